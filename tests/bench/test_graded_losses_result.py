"""What was measured for graded losses."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

FILE = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "graded-losses.json"
RESULT = json.loads(FILE.read_text(encoding="utf-8"))
SIZES = RESULT["populations"]["sizes"]
DELTA = RESULT["delta"]


def largest_share(draws):
    return DELTA + 3.0 * math.sqrt(DELTA * (1.0 - DELTA) / draws)


@pytest.mark.parametrize(("n", "least_share"), [("300", 0.25), ("1000", 0.43), ("3000", 0.72)])
def test_the_mean_of_fifteen_populations(n, least_share):
    assert SIZES[n]["mean"]["rule"] >= least_share


def test_beta_losses_at_3000_rows():
    assert SIZES["3000"]["beta .15"]["rule"] >= 0.62


def test_no_population_loses_where_the_former_rule_accepted_half_of_the_oracle():
    for measured in SIZES.values():
        for name in RESULT["populations"]["oracle"]:
            if measured[name]["former"] >= 0.5:
                assert measured[name]["rule"] >= measured[name]["former"] - 0.02


def test_single_tests():
    tests = RESULT["tests"]
    assert tests["0/1 .1, 500, .8"]["replicating"] >= 0.53
    assert tests["0 or uniform .1, 300, .8"]["replicating"] >= 0.49
    for name, cell in tests.items():
        if name.endswith(", 1"):
            assert max(cell.values()) <= largest_share(tests["draws"])


def test_no_adversary_breaks_more_than_delta():
    adversaries = RESULT["adversaries"]
    assert adversaries["draws"] >= 2000
    assert len(adversaries["broken"]) == 30
    assert adversaries["largest"] <= largest_share(adversaries["draws"])
