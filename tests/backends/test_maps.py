"""Every map is its formula: NumPy with its kernels, torch and ONNX against the formula in NumPy
without.
"""

from __future__ import annotations

import warnings
from functools import cache

import numpy as np
import pytest

from metacal.formulas.operations import Operations
from metacal.gate import Gate, LogitsSource
from metacal.maps.methods import AUTOMATIC_METHODS, METHODS
from metacal.rows import Rows

OPTIONS = {
    **{name: {"regularisation": 1.0} for name in ("vector", "matrix", "dirichlet", "structured")},
    "auto": {"candidates": ("temperature", "irm", "structured"), "n_splits": 2},
    "composed-platt": {"then": "platt"},
}
NAMES = (*METHODS, *AUTOMATIC_METHODS, "composed-platt")
FINITE = np.float32(-1e9)


def rows_of(n, n_classes, seed):
    rng = np.random.default_rng(seed)
    table = rng.normal(0.0, 3.0, (n, n_classes)).astype(np.float32)
    return table, (0.5 * table + rng.gumbel(size=table.shape)).argmax(axis=1)


@cache
def fitted(name, n_classes):
    table, labels = rows_of(300, n_classes, 1)
    row = METHODS.get(name) or AUTOMATIC_METHODS.get(name) or METHODS["composed"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return row.get_fit_function()(Rows(table), labels, None, **OPTIONS.get(name, {}))


def probes(n_classes):
    """Rows, some with masked classes, one with a single class left, one with equal logits."""
    table = rows_of(60, n_classes, 2)[0]
    table[::7, 0] = table[3::7, n_classes - 1] = -np.inf
    table[5], table[5, 1], table[6] = -np.inf, 0.0, 0.0
    return table


def by_formula(fitted, table):
    """The plain formula, parts too."""

    class Plain(Operations):
        def apply_map(self, fitted, x):
            return fitted.formula(self, fitted, x)

    return Plain().evaluate(fitted.formula, fitted, table.astype(np.float64))


@pytest.mark.parametrize("n_classes", [2, 7])
@pytest.mark.parametrize("name", NAMES)
def test_numpy(name, n_classes):
    map_, table = fitted(name, n_classes), probes(n_classes).astype(np.float64)
    np.testing.assert_allclose(map_(table), by_formula(map_, table), rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("n_classes", [2, 7])
@pytest.mark.parametrize("name", NAMES)
def test_torch(name, n_classes):
    torch = pytest.importorskip("torch")
    from metacal.export.torch import to_module

    map_, table = fitted(name, n_classes), probes(n_classes)
    module, expected = (
        to_module(Gate.from_source(LogitsSource(map_, np.arange(n_classes)))),
        by_formula(map_, table),
    )
    for given in (table, np.where(np.isneginf(table), FINITE, table)):
        probs = module(torch.from_numpy(given.astype(np.float64)))[0].numpy()
        np.testing.assert_allclose(probs, expected, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("name", NAMES)
def test_torch_in_single_precision(name):
    """As on a device that has no other."""
    torch = pytest.importorskip("torch")
    from metacal.export.torch.maps import MapModule

    probs = MapModule(fitted(name, 7))(torch.from_numpy(probes(7)))
    assert probs.dtype == torch.float32
    np.testing.assert_allclose(probs.numpy().sum(axis=1), 1.0, atol=1e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 1e-6)])
@pytest.mark.parametrize("n_classes", [2, 7])
@pytest.mark.parametrize("name", NAMES)
def test_onnx(name, n_classes, dtype, tolerance):
    runtime = pytest.importorskip("onnxruntime")
    from metacal.export.onnx import to_onnx

    map_, table = fitted(name, n_classes), probes(n_classes)
    model, expected = (
        to_onnx(Gate.from_source(LogitsSource(map_, np.arange(n_classes))), dtype=dtype),
        by_formula(map_, table),
    )
    session = runtime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    for given in (table, np.where(np.isneginf(table), FINITE, table)):
        probs = session.run(["probs"], {"logits": given.astype(dtype)})[0]
        np.testing.assert_allclose(probs, expected, rtol=0.0, atol=tolerance)
