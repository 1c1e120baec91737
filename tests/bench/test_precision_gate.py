"""What was measured for certified precision on real sets with named classes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from benchmarks.precision_gate import DELTA

RESULT = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "precision-gate.json"
CELLS = json.loads(RESULT.read_text(encoding="utf-8"))["cells"]


@pytest.mark.parametrize(
    "cell", CELLS, ids=lambda cell: f"{cell['set']}-{cell['rows']}-{cell['target']}"
)
def test_the_precision_is_broken_no_more_often_than_promised(cell):
    n_broken = round(cell["methods"]["metacal"]["broken"] * cell["draws"])
    assert stats.binom.sf(n_broken - 1, cell["draws"], DELTA) > 0.01


def test_more_rows_are_accepted_than_by_either_method_of_mapie():
    for cell in CELLS:
        accepted = {name: measured["accepted"] for name, measured in cell["methods"].items()}
        assert accepted["metacal"] >= max(accepted.values())


def test_the_three_sets_are_large_enough_to_see_a_difference():
    assert len({cell["set"] for cell in CELLS}) == 3
    assert np.min([cell["draws"] for cell in CELLS]) >= 200
