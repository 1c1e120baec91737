"""Counting certifies what sorting certifies, bit for bit: ties, infinities, any order, blocks and
number of cells.
"""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import metacal as mc
from metacal import kernels
from metacal.certification import planned_tests
from metacal.certification import test_sequences as sequence
from metacal.certification.passes import CellTally, Passes, _count_arrays
from metacal.errors import InfeasibleTargetError, InputError
from metacal.kernels import numpy as definition
from metacal.kernels.keys import CellCounts

SPECIAL = [
    0.0,
    -0.0,
    np.inf,
    -np.inf,
    1.0,
    1.5,
    -2.0,
    np.finfo(float).max,
    -np.finfo(float).max,
    5e-324,
    1e-300,
]
PROMISES = [
    mc.MaxMiscoverage(0.05),
    mc.MaxMiscoverage(0.3, delta=None),
    mc.MaxReview(0.2),
    mc.MinAccuracy(0.9),
    mc.MinAccuracy(0.6, delta=0.3),
    mc.MinAccuracy(0.8, delta=None),
]


def one_pass(blocks, passes, cut):
    """All blocks counted, in an order of their own each time, and one of them again after its
    answer was lost.
    """
    passes.append(cut.n_cells)
    order = np.random.default_rng(len(passes)).permutation(len(blocks))
    _count_arrays(*blocks[order[0]], cut)
    return CellCounts.add_up(cut, (_count_arrays(*blocks[i], cut) for i in order))


def answer(certify):
    """The certificate, or what is said instead; how many rows would do is an estimate, and left
    out.
    """
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            return certify(), [str(warning.message) for warning in said]
    except InfeasibleTargetError as error:
        return error.target, error.best
    except InputError as error:
        return str(error)


def same_answer(promise, scores, correct, cells, n_blocks=3):
    """Passes that it took."""
    blocks, passes = (
        list(zip(np.array_split(scores, n_blocks), np.array_split(correct, n_blocks))),
        [],
    )
    by_counts = answer(lambda: promise.certify(Passes(partial(one_pass, blocks, passes), cells)))
    assert by_counts == answer(lambda: promise.certify(scores, correct))
    return len(passes)


@st.composite
def columns(draw):
    """Scores and flags: drawn one by one, or some hundred rows of a kind, in rising, falling or no
    order.
    """
    if draw(st.booleans()):
        number = (
            st.floats(allow_nan=False) | st.sampled_from(SPECIAL) | st.integers(-3, 3).map(float)
        )
        rows = draw(st.lists(st.tuples(number, st.booleans()), min_size=1, max_size=60))
        scores, correct = (np.array(column) for column in zip(*rows))
        return scores.astype(float), correct
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, digits = draw(st.integers(50, 900)), draw(st.sampled_from([0, 1, 2, 15]))
    scores = np.round(
        rng.random(n) ** draw(st.sampled_from([1, 30])) * draw(st.sampled_from([1.0, -1.0, 3.0])),
        digits,
    )
    odds = draw(st.sampled_from([0.3, 0.1, 0.05, 0.0]))
    correct = rng.random(n) >= odds * (0.3 + np.argsort(np.argsort(scores)) / n)
    order = draw(st.sampled_from(["none", "rising", "falling", "wrong first", "right first"]))
    if order != "none":
        keys = {
            "rising": scores,
            "falling": -scores,
            "wrong first": correct,
            "right first": ~correct,
        }
        placed = np.argsort(keys[order], kind="stable")
        scores, correct = scores[placed], correct[placed]
    return scores, correct


@pytest.mark.parametrize(
    "promise",
    [pytest.param(p, marks=[pytest.mark.slow] * (p == mc.MinAccuracy(0.9))) for p in PROMISES],
    ids=repr,
)
@settings(max_examples=25)
@given(columns(), st.sampled_from([16, 256, 1 << 12]), st.integers(1, 5))
@example((np.zeros(1), np.ones(1, dtype=bool)), 4, 1)
@example((np.zeros(400), np.arange(400) >= 30), 8, 2)
@example((np.array([np.inf, -np.inf] * 50), np.arange(100) % 9 > 0), 64, 2)
def test_counting_is_sorting(promise, rows, cells, n_blocks):
    same_answer(promise, *rows, cells, n_blocks)


@pytest.mark.parametrize("promise", PROMISES, ids=repr)
def test_without_the_kernel_in_c_too(promise, monkeypatch):
    monkeypatch.setattr(kernels, "host_kernels", definition)
    rng = np.random.default_rng(1)
    scores = np.append(rng.normal(size=2000), SPECIAL * 3)
    same_answer(promise, scores, rng.random(len(scores)) < 0.95 - 0.05 * (scores > 0.5), 1 << 10)


@pytest.mark.slow
@pytest.mark.parametrize("beta", [0.5, 0.9, 0.97, 0.99, 0.999])
@pytest.mark.parametrize("digits", [2, 4, 12])
def test_walks_of_many_rows_end_at_the_same_rank(beta, digits):
    rng = np.random.default_rng([int(1000 * beta), digits])
    for gap in (2.0, 0.8, 0.3):
        scores = np.round(rng.exponential(size=40_000), digits)
        correct = rng.random(40_000) > (1 - beta) * (gap + scores * (1.5 - gap) / 2)
        same_answer(mc.MinAccuracy(beta), scores, correct, 1 << 14)


@pytest.mark.slow
def test_two_or_three_passes_are_enough():
    rng = np.random.default_rng(0)
    scores = rng.exponential(size=300_000)
    correct = rng.random(300_000) > 0.1 * scores
    assert same_answer(mc.MaxMiscoverage(0.05), scores, correct, 1 << 22) == 2
    assert same_answer(mc.MinAccuracy(0.95), scores, correct, 1 << 22) <= 3
    assert same_answer(mc.MinAccuracy(0.95, delta=None), scores, correct, 1 << 22) <= 3


def test_an_open_segment_leaves_both_levels_open(monkeypatch):
    # Cells so coarse that whether the first walk fails is seen only later.
    rng = np.random.default_rng(3)
    shares = set()
    first_failure = planned_tests.find_first_failure

    def noting(ranking, part, level):
        if ranking.is_unordered_block is not None:
            shares.add((part.start_rank, level))
        return first_failure(ranking, part, level)

    monkeypatch.setattr(planned_tests, "find_first_failure", noting)
    scores, correct = rng.random(5000), rng.random(5000) < 0.957
    same_answer(mc.MinAccuracy(0.95), scores, correct, 8)
    starts = [start for start, _ in shares]
    assert len(sequence.plan_rank_ranges(5000, 0.95, 0.1)) == 3
    assert len(starts) > len(set(starts))


def rows_of(seed):
    rng = np.random.default_rng(seed)
    scores = rng.random(4000)
    return scores, rng.random(4000) > 0.15 * scores


@pytest.mark.slow
def test_blocks_are_read_by_any_executor():
    from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

    promise = mc.MinAccuracy(0.95)
    expected = promise.certify(
        *(np.concatenate(column) for column in zip(*map(rows_of, range(12))))
    )
    for pool in (ThreadPoolExecutor(3), ProcessPoolExecutor(2)):
        with pool:
            assert promise.certify(Passes.over(rows_of, range(12), executor=pool)) == expected


def test_what_cannot_be_counted_is_said():
    with pytest.raises(
        InputError, match="Both does not support counts, because it reads all rows in the order"
    ):
        mc.Both(alpha=0.1, beta=0.9).certify(Passes.over(rows_of, range(2)))
    with pytest.raises(InputError, match="Some scores are NaN"):
        mc.MaxMiscoverage(0.1).certify(
            Passes.over(lambda _: (np.array([1.0, np.nan]), np.array([True, True])), range(2))
        )
    with pytest.raises(InputError, match="No calibration row is classified correctly"):
        mc.MaxMiscoverage(0.1).certify(
            Passes.over(lambda _: (np.ones(2), np.zeros(2, dtype=bool)), range(2))
        )
    calls = []

    def changing(_):
        calls.append(1)
        return np.random.default_rng(len(calls)).random(500), np.ones(500, dtype=bool)

    with pytest.raises(InputError, match="The rows changed while they were read"):
        mc.MaxMiscoverage(0.1).certify(Passes.over(changing, range(2)))


def test_memory_does_not_grow_with_rows():
    tally = CellTally.from_first_pass(partial(one_pass, [rows_of(seed) for seed in range(20)], []))
    assert len(tally.first_keys) < 15_000  # 80,000 rows
