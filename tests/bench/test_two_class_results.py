"""What was measured on real two-class sets, and that the page says it."""

from __future__ import annotations

import json
import math
from pathlib import Path

from benchmarks.two_class import OURS, table

ROOT = Path(__file__).resolve().parents[2]
SIDES = json.loads((ROOT / "benchmarks" / "results" / "two-sided.json").read_text(encoding="utf-8"))
RESULT = json.loads(
    (ROOT / "benchmarks" / "results" / "two-class.json").read_text(encoding="utf-8")
)


def test_the_page_shows_what_was_measured():
    page = (ROOT / "docs" / "two-classes-measured.md").read_text(encoding="utf-8")
    assert "\n".join(table(RESULT)) in page


def test_no_promise_is_broken_more_often_than_said():
    cells, delta = SIDES["cells"], SIDES["delta"]
    draws = cells[0]["draws"]
    worst = max(cell["broken"] for cell in cells)
    assert worst <= draws * delta + 3.0 * math.sqrt(draws * delta * (1.0 - delta))


def test_a_learned_decision_comes_near_the_best_where_scores_are_off():
    of = {
        (cell["promise"], cell["rows"]): cell
        for cell in SIDES["cells"]
        if cell["population"] == "offset"
    }
    learned, own = of["accuracy, learned decision", 1000], of["accuracy, own decision", 1000]
    assert learned["accepted"] > 0.9 * learned["oracle"] > own["accepted"] + 0.1


def test_the_default_is_nearer_to_the_best_peer_than_any_peer():
    methods = RESULT["methods"]
    peers = [row["mean excess"] for name, row in methods.items() if name not in OURS]
    assert methods["monotone"]["mean excess"] < 0.02 < 3 * min(peers)
    assert methods["monotone"]["mean excess"] < min(peers)
    assert methods["auto"]["mean excess"] <= methods["monotone"]["mean excess"]
    for name in ("monotone", "auto"):
        assert methods[name]["largest fall"] < 1e-12
