"""What was measured on real two-class sets, and that the page says it."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.two_class import OURS, table

ROOT = Path(__file__).resolve().parents[2]
RESULT = json.loads((ROOT / "benchmarks" / "results" / "two-class.json").read_text(encoding="utf-8"))


def test_the_page_shows_what_was_measured():
    page = (ROOT / "docs" / "two-classes.md").read_text(encoding="utf-8")
    assert "\n".join(table(RESULT)) in page
    assert f"On {RESULT['sets']} real sets" in page


def test_the_default_is_nearer_to_the_best_peer_than_any_peer():
    methods = RESULT["methods"]
    peers = [row["mean excess"] for name, row in methods.items() if name not in OURS]
    assert methods["monotone"]["mean excess"] < 0.02 < 3 * min(peers)
    assert methods["monotone"]["mean excess"] < min(peers)
    assert methods["auto"]["mean excess"] <= methods["monotone"]["mean excess"]
    for name in ("monotone", "auto"):
        assert methods[name]["largest fall"] < 1e-12
