"""Scores against closed forms, in the places where the naive formula fails."""

from __future__ import annotations

from decimal import Decimal, getcontext

import numpy as np
import pytest
from scipy.special import entr, logsumexp, softmax

import metacal as mc
from metacal import kernels
from metacal.errors import InputError, MetacalWarning
from metacal.kernels.grid import ABSOLUTE_GRID, RELATIVE_GRID
from metacal.rows import Rows
from metacal.scores import NAMED, get_score_name, resolve_score, score_and_validate_rows, score_rows

LOGITS = np.random.default_rng(0).normal(scale=3, size=(200, 7))


def test_kernels_against_scipy():
    p = softmax(LOGITS, axis=1)
    top = np.sort(LOGITS, axis=1)
    np.testing.assert_allclose(kernels.entropy(LOGITS), entr(p).sum(axis=1), rtol=1e-12)
    np.testing.assert_allclose(
        kernels.one_minus_max_probability(LOGITS), 1 - p.max(axis=1), rtol=1e-9
    )
    np.testing.assert_allclose(kernels.negative_margin(LOGITS), top[:, -2] - top[:, -1], rtol=1e-12)
    np.testing.assert_allclose(kernels.free_energy(LOGITS), -logsumexp(LOGITS, axis=1), rtol=1e-12)


def test_a_score_is_what_the_kernel_computes_on_the_grid():
    for name, score in NAMED.items():
        raw, value = score.compute_unrounded(LOGITS), score(LOGITS)
        grid = ABSOLUTE_GRID if name == "energy" else RELATIVE_GRID
        np.testing.assert_array_equal(value, grid.round(raw))
        assert (np.abs(value - raw) <= 2.0**-31 * np.maximum(np.abs(raw), grid.even_below)).all()
        np.testing.assert_array_equal(grid.round(value), value)


def test_confident_rows_do_not_tie():
    """Through float32 probabilities these are all exactly 0; here they keep full precision."""
    getcontext().prec = 60
    gaps = np.array([20.0, 25.0, 40.0, 90.0, 300.0, 650.0])
    rows = np.column_stack([gaps, np.zeros_like(gaps), np.zeros_like(gaps) - 1.5])
    for gap, value in zip(gaps, kernels.entropy(rows)):
        weights = [Decimal(0).exp(), Decimal(-gap).exp(), Decimal(-gap - 1.5).exp()]
        total = sum(weights)
        exact = -sum(w / total * (w / total).ln() for w in weights)
        assert value == pytest.approx(float(exact), rel=1e-12)
    assert (np.diff(NAMED["entropy"](rows)) < 0).all()
    assert (np.diff(NAMED["max_probability"](rows)) < 0).all()


def test_limits():
    uniform = np.zeros((1, 8))
    assert NAMED["entropy"](uniform)[0] == pytest.approx(np.log(8), rel=2.0**-31)
    assert NAMED["max_probability"](uniform)[0] == pytest.approx(7 / 8, rel=1e-15)
    assert NAMED["margin"](uniform)[0] == 0
    alone = np.array([[1.0, -np.inf, -np.inf]])
    assert NAMED["entropy"](alone)[0] == 0
    assert NAMED["margin"](alone)[0] == -np.finfo(float).max


def test_any_callable_ranks():
    by_norm = mc.MetaCal(mc.MaxMiscoverage(0.2), score=lambda block: -np.linalg.norm(block, axis=1))
    by_norm.fit(LOGITS, LOGITS.argmax(axis=1) * (np.arange(200) % 9 > 0))
    np.testing.assert_array_equal(
        by_norm.ranking_scores(LOGITS), RELATIVE_GRID.round(-np.linalg.norm(LOGITS, axis=1))
    )
    assert get_score_name(by_norm.score) == "<lambda>"


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (lambda block: block, "one number per row"),
        (lambda block: np.full(len(block), np.nan), "returned NaN"),
        ("entrpy", "must be one of"),
        (3, "name of a score, or a callable"),
    ],
)
def test_bad_scores(score, message):
    with pytest.raises(mc.InputError, match=message):
        score_rows(Rows(LOGITS), resolve_score(score))


@pytest.mark.parametrize("score", sorted(NAMED))
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_table_is_looked_over_while_it_is_scored(score, bad):
    table = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    rows = Rows(table, is_unvalidated=True)
    seen, values = score_and_validate_rows(rows, resolve_score(score).compute_unrounded)
    assert not seen.is_unvalidated
    assert np.array_equal(
        values, score_and_validate_rows(Rows(table), resolve_score(score).compute_unrounded)[1]
    )
    table[7, 3] = bad
    with pytest.raises(InputError, match="row 7, column 3"):
        score_and_validate_rows(rows, resolve_score(score).compute_unrounded)
    table[7] = -np.inf
    with pytest.raises(InputError, match="row 7 has -infinity in every column"):
        score_and_validate_rows(rows, resolve_score(score).compute_unrounded)


@pytest.mark.parametrize("score", sorted(NAMED))
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_masks_are_found_while_rows_are_scored(score, dtype):
    table = np.random.default_rng(0).normal(size=(40, 6)).astype(dtype)
    table[5:, 2] = -1e4
    with pytest.warns(MetacalWarning, match="masked class"):
        rows, values = score_and_validate_rows(
            Rows(table, is_unvalidated=True), resolve_score(score).compute_unrounded
        )
    assert np.isneginf(rows.table[5:, 2]).all()
    assert np.array_equal(
        values, score_and_validate_rows(Rows(rows.table), resolve_score(score).compute_unrounded)[1]
    )
