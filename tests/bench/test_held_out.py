"""The comparison of rules on held-out sets: its counting, its curves, and what the committed result
shows.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.experiments.population import Population
from benchmarks.selective import held_out
from benchmarks.selective.held_out import TOP_FIFTH, risk_coverage_curve, run, run_block, summarise
from benchmarks.tables.held_out import by_cell, leads

ROOT = Path(__file__).resolve().parents[2]
RESULT = json.loads(
    (ROOT / "benchmarks" / "results" / "selective-held-out.json").read_text(encoding="utf-8")
)
CELLS = by_cell(RESULT)
RARE = {one["set"] for one in RESULT["sets"] if one["accuracy"] < 0.5}


@pytest.fixture
def folder(tmp_path):
    """A folder with one made set of record linkage: a tenth of the pairs match, and nearly all of
    the surest do.
    """
    rng = np.random.default_rng(0)
    score = rng.random(2000)
    np.savez(tmp_path / "matching_abt_buy.npz", score=score, correct=rng.random(2000) < score**12)
    held_out.read_set.cache_clear()
    yield str(tmp_path)
    held_out.read_set.cache_clear()


def test_blocks_are_the_same_draws_however_they_are_cut(folder, monkeypatch):
    rules = ("certified", "sgr", TOP_FIFTH)
    whole = run_block(folder, "matching_abt_buy", 0.6, 1000, 0, 4, rules)
    monkeypatch.setattr(held_out, "BLOCK", 2)
    parts = [run_block(folder, "matching_abt_buy", 0.6, 1000, first, 4, rules) for first in (0, 2)]
    assert whole == {rule: parts[0][rule] + parts[1][rule] for rule in rules}


def test_rows_are_counted_on_the_whole_file(folder, monkeypatch):
    one = next(item for item in held_out.SETS if item.file_name == "matching_abt_buy")
    monkeypatch.setattr(held_out, "SETS", (one,))
    monkeypatch.setattr(held_out, "SIZES", (1000,))
    result = run(folder, draws=3, n_jobs=1, rules=("certified", "sgr", "plug-in", TOP_FIFTH))
    assert [row["rule"] for row in result["rows"][:4]] == ["certified", "sgr", "plug-in", TOP_FIFTH]
    assert {row["beta"] for row in result["rows"]} == {0.8, 0.9}
    assert all(row["draws"] == 3 for row in result["rows"])
    plug_in = next(row for row in result["rows"] if row["rule"] == "plug-in")
    assert 0.0 < plug_in["coverage"] <= 1.0
    assert plug_in["lead"] == pytest.approx(
        result["rows"][0]["coverage"] - plug_in["coverage"], abs=1e-6
    )


def test_a_draw_that_accepts_nothing_counts_as_coverage_0_and_breaks_nothing():
    whole = Population.of(np.array([0.1, 0.2, 0.3, 0.4]), np.array([True, True, False, False]))
    cells = summarise(whole, "made", 0.9, 10, {"certified": [0, 2], "plug-in": [4, 4]})
    assert (cells[0].coverage, cells[0].violation, cells[0].nothing, cells[0].risk) == (
        0.25,
        0.0,
        0.5,
        0.0,
    )
    assert (cells[1].coverage, cells[1].violation, cells[1].risk) == (1.0, 1.0, 0.5)
    assert cells[1].lead == -0.75
    assert cells[0].oracle == 0.5


def test_a_curve_never_parts_equal_scores():
    whole = Population.of(np.array([1.0, 1.0, 1.0, 2.0]), np.array([True, False, False, True]))
    curve = risk_coverage_curve(whole)
    assert curve == {"coverage": [0.75, 1.0], "risk": [0.666667, 0.5]}


def test_every_valid_rule_keeps_its_promise_on_sets_that_nothing_was_tuned_on():
    limit = 0.1 + 3 * math.sqrt(0.1 * 0.9 / RESULT["draws"])
    for cell, rules in CELLS.items():
        assert all(row["violation"] <= limit for row in rules.values() if row["valid"]), cell


def test_the_page_may_say_where_ours_accepts_most_and_where_it_accepts_nothing():
    assert sorted(RARE) == ["matching-abt-buy", "matching-amazon-google", "redaction-btc"]
    for (name, _, _), rules in CELLS.items():
        if name in RARE:
            assert rules["certified"]["nothing"] == 1.0
            assert rules["ltt-sequence"]["coverage"] > 0.0
        else:
            assert rules["certified"]["lead"] == 0.0
            assert rules["sgr"]["lead"] > 0.0
    assert len(leads(RESULT)) == 2 + 5
