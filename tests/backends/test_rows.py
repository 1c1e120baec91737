"""Scores, softmax and predictions are the same in every backend: a score is its formula, in NumPy
without kernels.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from metacal.formulas.operations import Operations
from metacal.kernels import numpy as definition
from metacal.scores import NAMED

DTYPES = ("float16", "float32", "float64")
WIDTHS = (2, 3, 8, 17, 33, 100, 1000)
#: Triton's interpreter takes one row after the other.
ROWS = 4 if os.environ.get("TRITON_INTERPRET") == "1" else 13


def tables(dtype):
    """Ordinary rows of several widths, plain and with masked classes."""
    for width in WIDTHS:
        rng = np.random.default_rng(width)
        table = (rng.normal(size=(ROWS, width)) * 5).astype(dtype)
        yield table
        holes = rng.random(table.shape) < 0.3
        holes[:, width // 2] = False
        yield np.where(holes, -np.inf, table).astype(dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMED)
def test_scores_agree(backend, name, dtype):
    formula = NAMED[name].formula_function()
    for table in tables(dtype):
        exact = Operations().evaluate(formula, table.astype(np.float64))[:, 0]
        np.testing.assert_allclose(backend.score(name, table), exact, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("b", [0.03, 1.0, 7.0])
def test_softmax_agrees(backend, b, dtype):
    for table in tables(dtype):
        expected = np.empty(table.shape)
        definition.softmax(table, b, expected)
        found = backend.softmax(table, b)
        np.testing.assert_allclose(found, expected, rtol=0, atol=backend.tolerance)
        # Zero, or less than the least normal number: onnxruntime 1.18 ends its exponential there.
        assert (found[np.isneginf(table)].astype(np.float64) < np.finfo(np.float64).tiny).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_predictions_agree(backend, dtype):
    for table in tables(dtype):
        for rows in (table, np.round(table)):  # ties: the lowest column
            np.testing.assert_array_equal(backend.predicted(rows), definition.predict_classes(rows))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMED)
def test_what_is_no_row_has_no_score(backend, name, dtype):
    table = np.random.default_rng(0).normal(size=(7, 40)).astype(dtype)
    table[3, 5], table[4, 0], table[5, 39], table[6] = np.nan, np.nan, np.inf, -np.inf
    values = backend.score(name, table)
    assert np.isnan(values[3:]).all()
    assert np.isfinite(values[:3]).all()
