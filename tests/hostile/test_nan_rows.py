"""NaN is never sure: a row with NaN or +inf, or with every class masked, has no score and is never
accepted.

Validated or not: the building blocks (`score_rows`, `map_.accepts`, the kernels) are public, and an
exported gate has nobody who validates for it.
"""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import metacal as mc
from metacal import kernels
from metacal.certificates.certificate import accept_up_to_threshold
from metacal.gate import Gate, LogitsSource
from metacal.kernels import numpy as definition
from metacal.maps.temperature import TemperatureMap
from metacal.rows import Rows
from metacal.scores import NAMED, score_rows

SCORES = ("entropy", "one_minus_max_probability", "negative_margin", "free_energy")
#: R's NA: a NaN with a payload, which arithmetic on the bits of a float may turn into a number.
NA = np.array([0x7FF00000000007A2], dtype=np.uint64).view(np.float64)[0]
DTYPES = (np.float16, np.float32, np.float64)


def bad_rows(width, dtype):
    """Rows that are no rows of logits, each kind in several places."""
    good = np.random.default_rng(width).normal(size=width)
    rows = []
    for value in (np.nan, -np.nan, NA, np.inf):
        for place in {0, 1, width // 2, width - 1}:
            rows.append(good.copy())
            rows[-1][place] = value
    rows += [np.full(width, value) for value in (np.nan, np.inf, -np.inf)]
    masked = np.full(width, -np.inf)
    rows += [np.where(np.arange(width) == width - 1, value, masked) for value in (np.nan, np.inf)]
    with np.errstate(invalid="ignore"):
        return np.array(rows).astype(dtype)


def good_rows(width, dtype):
    rows = np.random.default_rng(width).normal(size=(3, width))
    rows[2, 1:] = -np.inf
    return rows.astype(dtype)


def c_kernels():
    """(name, module) of every kernel here; selecting an instruction set is part of running it."""
    found = [("numpy", definition)]
    if kernels.host_kernels is not definition:
        found += [(name, kernels.host_kernels) for name in kernels.host_kernels.instruction_sets()]
    return found


@pytest.fixture(params=c_kernels(), ids=lambda pair: pair[0])
def kernel(request):
    name, module = request.param
    if module is definition:
        yield module
        return
    from metacal.kernels import _fused

    _fused.use(name)
    yield module
    _fused.use(_fused.instruction_sets()[0])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [2, 3, 5, 8, 9, 16, 17, 40, 129, 1030])
def test_every_kernel_gives_nan_and_some_column(kernel, width, dtype):
    bad, good = bad_rows(width, dtype), good_rows(width, dtype)
    table = np.concatenate([good, bad])
    for name in SCORES:
        values = getattr(kernel, name)(table)
        assert np.isnan(values[3:]).all(), (name, bad[~np.isnan(values[3:])])
        np.testing.assert_array_equal(
            values[:3], getattr(kernel, name)(good)
        )  # neighbours do not suffer
        assert np.isfinite(values[:3]).all()
    columns = kernel.predict_classes(table)
    assert ((columns >= 0) & (columns < width)).all()


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [3, 8, 33, 1030])
def test_softmax_of_such_a_row_is_nan(kernel, width, dtype):
    table = np.concatenate([good_rows(width, dtype), bad_rows(width, dtype)])
    out = np.empty(table.shape, dtype=np.float64 if dtype == np.float64 else np.float32)
    kernel.softmax(table, 0.7, out)
    assert np.isnan(out[3:]).all()
    np.testing.assert_allclose(out[:3].sum(axis=1), 1.0, rtol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_accepts_it_and_the_map_is_uniform(kernel, dtype):
    bad = bad_rows(5, dtype)
    for score in NAMED:
        values = score_rows(Rows(bad), score)
        assert np.isnan(values).all()
        for threshold in (np.inf, 0.5, -np.inf):
            assert not accept_up_to_threshold(values, threshold).any()
            gate = Gate.from_source(
                LogitsSource(TemperatureMap(1.0), np.arange(5), score), threshold
            )
            assert not gate.accepts(Rows(bad)).any()
            paper_map = gate(bad, rejected="uniform")
            np.testing.assert_array_equal(paper_map, np.full(bad.shape, paper_map.dtype.type(0.2)))
            assert np.isnan(gate(bad)).all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::metacal.MetacalWarning")
@pytest.mark.parametrize("alpha", [0.1, 1e-6], ids=["a threshold", "accepts everything"])
@pytest.mark.parametrize("score", NAMED)
def test_exports_reject_it(score, alpha):
    onnxruntime, torch = pytest.importorskip("onnxruntime"), pytest.importorskip("torch")
    from metacal.export.onnx import to_onnx
    from metacal.export.torch import to_module

    rng = np.random.default_rng(0)
    for width in (5, 40):
        labels = rng.integers(width, size=600)
        logits = rng.normal(size=(600, width)) + 2.5 * np.eye(width)[labels]
        gate = mc.MetaCal(mc.MaxMiscoverage(alpha), score=score).fit(logits, labels)
        for dtype in (np.float32, np.float64)[: 1 + (width > 5)]:  # many are scored in single first
            bad = bad_rows(width, dtype)
            session = onnxruntime.InferenceSession(
                to_onnx(gate, dtype=np.dtype(dtype).name).SerializeToString()
            )
            answers = dict(
                zip(
                    ("probs", "score", "accept"),
                    session.run(["probs", "score", "accept"], {"logits": bad}),
                )
            )
            module = dict(
                zip(answers, (value.numpy() for value in to_module(gate)(torch.from_numpy(bad))))
            )
            for found in (answers, module):
                assert not found["accept"].any()
                assert np.isnan(found["score"]).all()
                np.testing.assert_allclose(found["probs"], 1.0 / width, rtol=1e-6)


def test_the_plain_kernels_on_tensors():
    torch = pytest.importorskip("torch")
    from metacal.formulas import rowwise
    from metacal.kernels import torch as on_tensors

    for width in (2, 5, 40):
        for dtype in DTYPES:
            table = torch.from_numpy(
                np.concatenate([good_rows(width, dtype), bad_rows(width, dtype)])
            )
            for name in SCORES:
                values = on_tensors.score_by_formula(table, getattr(rowwise, name)).numpy()
                assert np.isnan(values[3:]).all()
                assert np.isfinite(values[:3]).all()
            columns = on_tensors.predict_classes(table).numpy()
            assert ((columns >= 0) & (columns < width)).all()


INTERPRETED = """
import numpy as np, torch
from metacal.kernels import triton, numpy as definition
from test_nan_rows import bad_rows, good_rows
triton.WHOLE_ROW = 64
for width, dtype in ((5, np.float32), (150, np.float32)):
    good = good_rows(width, dtype)
    table = torch.from_numpy(np.concatenate([good, bad_rows(width, dtype)]))
    assert triton.can_fuse(table)
    for name in ("predicted", "entropy", "one_minus_max_probability", "negative_margin", "free_energy"):
        values = triton.score(table, name, torch.int64 if name == "predicted" else torch.float64).numpy()
        if name != "predicted":
            assert np.isnan(values[3:]).all(), (name, values)
            np.testing.assert_allclose(values[:3], getattr(definition, name)(good), rtol=1e-13)
        else:
            assert ((values >= 0) & (values < width)).all()
print("fine")
"""


@pytest.mark.long
def test_the_fused_kernels_on_tensors_interpreted():
    """Scores in float64 whatever the table, and NaN for what is no row."""
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path, "METACAL_KERNEL": "auto"}
    found = subprocess.run(
        [sys.executable, "-c", INTERPRETED], env=env, capture_output=True, text=True, timeout=300
    )
    assert found.stdout.strip() == "fine", found.stderr[-2000:]
