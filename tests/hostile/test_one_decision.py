"""One gate, one decision, everywhere: rows that tie, quantised rows and continuous ones, by every
kernel and export.

The whole grid of cases is `benchmarks/decisions.py`; here is a share of it, what it rests on, and
files from before.
"""

from __future__ import annotations

import importlib
import json
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import metacal as mc
from metacal.certificates.fingerprint import fingerprint_rows
from metacal.export import saved as artifact
from metacal.kernels.grid import ABSOLUTE_GRID, RELATIVE_GRID, Grid
from metacal.rows import Rows, validate
from metacal.scores import named as scores
from metacal.scores.learned import LogisticRanker

pytest.importorskip("onnxruntime")
torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "contracts" / "fixtures"
GATES = [
    path
    for path in sorted(FIXTURES.rglob("*.json"))
    if json.loads(path.read_bytes()).get("kind") == "MetaCal"
    and "parts" not in json.loads(path.read_bytes())["certificate"]  # these have several
]
GRIDS = (
    RELATIVE_GRID,
    ABSOLUTE_GRID,
    Grid(even_below=1.0, bits=3),
    Grid(even_below=2.0**-960, bits=12),
)


@pytest.fixture(scope="module")
def decisions():
    """The script of the whole grid."""
    return importlib.import_module("benchmarks.decisions")


def assert_one_decision(tally, gates):
    """Nothing differs, and there was something to differ."""
    assert tally.gates == gates
    assert tally.fits > 2 * gates // 3
    assert {"torch", "numpy"} <= set(tally.flips)
    assert not any(tally.flips.values()), tally.flips
    assert (
        tally.other_thresholds
        == tally.other_verdicts
        == tally.other_counts
        == tally.other_once_saved
        == 0
    )


@pytest.mark.long
def test_votes_of_forests(decisions):
    promises = (mc.MaxMiscoverage(0.2), mc.MinAccuracy(0.95))
    assert_one_decision(decisions.run(decisions.forests((5, 25), 1), promises=promises), gates=24)


@pytest.mark.slow
def test_quantised_logits(decisions):
    cases = (case for case in decisions.quantised((10,), 1) if case.name.startswith("drawn"))
    assert_one_decision(decisions.run(cases, promises=(mc.MaxMiscoverage(0.1),)), gates=16)


@pytest.mark.slow
def test_continuous_logits(decisions):
    cases = (case for case in decisions.continuous((2, 100), 1) if case.name.startswith("drawn"))
    assert_one_decision(decisions.run(cases, promises=(mc.MinAccuracy(0.95),)), gates=16)


@pytest.mark.slow
@pytest.mark.parametrize("ranker", [LogisticRanker()], ids=lambda r: type(r).__name__)
def test_learned_scores_of_rows_that_tie(decisions, ranker):
    logits, labels = decisions.synthetic(10, seed=9)
    ranker.fit(np.round(logits, 1), labels)
    cases = (case for case in decisions.quantised((10,), 1) if case.name.startswith("drawn"))
    tally = decisions.run(cases, scores=(ranker,), promises=(mc.MaxMiscoverage(0.1),))
    assert tally.gates == 4
    assert not any(tally.flips.values()), tally.flips


# ── the grid ──────────────────────────────────────────────────────────────────────────────────────


def nearest(grid, value):
    """The nearest grid point in rational numbers, the lower one of two."""
    exponent = math.frexp(value)[1] - 1
    step = (
        Fraction(grid.step)
        if abs(value) < grid.even_below
        else Fraction(2) ** (exponent - grid.bits)
    )
    return math.ceil(Fraction(value) / step - Fraction(1, 2)) * step


@pytest.mark.slow
@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(GRIDS))
def test_rounding_is_to_the_nearest_grid_point_and_the_lower_of_two(value, grid):
    expected = min(
        max(nearest(grid, value), -Fraction(np.finfo(float).max)), Fraction(np.finfo(float).max)
    )
    found = grid.round([value])[0]
    assert Fraction(float(found)) == expected
    assert grid.round([found])[0] == found


@given(
    st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(GRIDS), st.integers(-2, 2),
)  # fmt: skip
def test_comparing_the_raw_score_with_a_settled_threshold_is_comparing_the_rounded_one(
    value, other, grid, ulps
):
    """Also for scores that are the threshold itself, or next to it."""
    level = grid.make_robust_to_rounding(other)
    assert grid.make_robust_to_rounding(level) == level
    near = level
    for _ in range(abs(ulps)):
        near = math.nextafter(near, math.copysign(math.inf, ulps))
    for score in (value, near):
        assert (grid.round([score])[0] <= level) == (score <= level)
    assert (grid.round([value])[0] <= level) == (grid.round([value])[0] <= other)


def test_what_is_no_number_to_round_stays():
    odd = np.array([np.nan, np.inf, -np.inf, 0.0, np.finfo(float).max, -np.finfo(float).max])
    odd[:1].view(np.uint64)[:] = (
        0x7FF0000000000001  # a NaN that rounding by bits would make infinite
    )
    for grid in (RELATIVE_GRID, ABSOLUTE_GRID):
        np.testing.assert_array_equal(grid.round(odd), odd)
        assert grid.make_robust_to_rounding(math.inf) == math.inf
        assert grid.make_robust_to_rounding(-math.inf) == -math.inf
        assert -np.finfo(float).max < grid.make_robust_to_rounding(-np.finfo(float).max) < 0


def test_the_same_rounding_where_the_column_is_a_tensor():
    from metacal.kernels.torch import round_to_grid

    rng = np.random.default_rng(0)
    values = rng.normal(size=4000) * 10.0 ** rng.integers(-310, 300, size=4000)
    values = np.concatenate(
        [values, rng.normal(size=4000), [0.0, np.nan, np.inf, -np.inf, np.finfo(float).max]]
    )
    for grid in (RELATIVE_GRID, ABSOLUTE_GRID):
        middles = np.array(
            [grid.make_robust_to_rounding(value) for value in grid.round(values[:-5])]
        )
        every = np.concatenate(
            [values, middles, np.nextafter(middles, 1), np.nextafter(middles, -1)]
        )
        np.testing.assert_array_equal(
            round_to_grid(torch.from_numpy(every), grid).numpy(), grid.round(every)
        )


# ── promises ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "promise",
    [
        mc.MaxMiscoverage(0.1),
        mc.MinAccuracy(0.9),
        mc.Both(0.6, 0.9),
        mc.AfterLooking(alpha=0.2),
        mc.AfterLooking(beta=0.85),
        mc.paper.MaxMiscoverage(0.1),
        mc.paper.MinCoverageAccuracy(0.9),
    ],
    ids=repr,
)
def test_a_constraint_certifies_the_rounded_scores_and_settles_its_threshold(promise):
    rng = np.random.default_rng(1)
    values = np.round(rng.random(3000), 2) * (
        1.0 + 1e-14 * rng.normal(size=3000)
    )  # ties, but for rounding
    correct = rng.random(3000) < 1.0 - 0.4 * values**2
    found, again = (
        promise.certify(values, correct),
        promise.certify(RELATIVE_GRID.round(values), correct),
    )
    assert found == again
    assert 0 < found.n_accepted < 3000
    assert found.threshold == RELATIVE_GRID.make_robust_to_rounding(found.threshold)
    assert found.highest_accepted < found.threshold < found.lowest_rejected
    assert found.n_accepted == (values <= found.threshold).sum()
    assert len(np.unique(RELATIVE_GRID.round(values))) <= 101


def test_the_energy_of_log_probabilities_is_zero_on_every_row():
    """Each kernel has another speck of rounding there, of either sign; on its grid all rows tie."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(500, 7))
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert set(scores.score_rows(Rows(logits), "energy")) == {0.0}


# ── saved files ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", GATES, ids=lambda path: path.stem)
def test_a_saved_file_keeps_its_decisions(path):
    """Every row whose score is not within a grid step of the threshold, and the calibration rows on
    either side.
    """
    data = json.loads(path.read_bytes())
    gate, source = artifact.loads(path.read_bytes()), data["stages"][0]["source"]
    stored = float(data["certificate"]["threshold"])
    assert gate.certificate_.threshold == stored
    grid = scores.get_rounding_grid(gate.gate_.source.score)
    assert grid.make_robust_to_rounding(gate.threshold_) == gate.threshold_
    rng = np.random.default_rng(0)
    table = rng.normal(size=(4000, len(source["classes"]["values"]))) * rng.gamma(
        2.0, 2.0, size=(4000, 1)
    )
    if source["input"] == "probabilities":
        table = np.exp(table) / np.exp(table).sum(axis=1, keepdims=True)
    rows = Rows(validate.read_logits(table, gate.gate_.source.input))
    raw = scores.score_and_validate_rows(
        rows, scores.resolve_score(gate.gate_.source.score).compute_unrounded
    )[1]
    far = (
        np.abs(raw - stored) > 2.0**-29 * max(grid.even_below, abs(stored))
        if math.isfinite(stored)
        else np.full(4000, True)
    )
    assert far.sum() > 3900
    np.testing.assert_array_equal(gate.accepts(table)[far], (raw <= stored)[far])
    high, low = gate.certificate_.highest_accepted, gate.certificate_.lowest_rejected
    assert high is None or grid.round([high])[0] <= gate.threshold_
    assert low is None or grid.round([low])[0] > gate.threshold_


def test_rows_are_recognised_by_their_fingerprint(decisions):
    logits, labels = decisions.synthetic(10, seed=3)
    rows, correct = Rows(logits), logits.argmax(axis=1) == labels
    gate = mc.MetaCal(mc.MaxMiscoverage(0.1)).fit(logits, labels)
    values = scores.score_rows(rows, "entropy")
    assert gate.gate_.find_fit_rows(values, correct).n_fit_rows == len(rows)
    assert gate.gate_.find_fit_rows(values[::-1], correct[::-1]).n_fit_rows == len(rows)
    assert (
        replace(gate.gate_, data_hash=None, row_hash_sample=None).find_fit_rows(values, correct)
        is None
    )
    sketch_hashes = set(gate.gate_.row_hash_sample.hash_values.tolist())
    for kernel in decisions.kernel_names():
        with decisions.using(kernel):
            own_scores = scores.score_and_validate_rows(
                rows, scores.resolve_score("entropy").compute_unrounded
            )[1]
        found = fingerprint_rows(own_scores, correct)
        assert found.data_hash == gate.data_hash_
        # Kernels differ in the last bits: a finely rounded score differs in one row of some ten
        # thousand.
        assert len(sketch_hashes & set(found.sketch.hash_values.tolist())) >= 0.98 * len(
            sketch_hashes
        )
        assert gate.gate_.find_fit_rows(own_scores[:2000], None) is not None
