"""A finite number that is read as -inf is read as -inf wherever logits come in; an
ordinary one never is.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import metacal as mc
from metacal import kernels
from metacal.formulas.logits import find_finite_masks, replace_finite_masks
from metacal.kernels import numpy_kernels
from metacal.rows import validate
from metacal.rows.stored import StoredTable

N, K = 240, 5
RNG = np.random.default_rng(5)
LABELS = RNG.integers(K, size=N)
LOGITS = RNG.normal(size=(N, K)) + 2.5 * np.eye(K)[LABELS]
#: The true class is never masked; one row in ten is wrong.
MASKED = RNG.random((N, K)) < 0.25
MASKED[np.arange(N), LABELS] = False
LOGITS[RNG.random(N) < 0.1] = 0.0
LOGITS += 1e-3 * RNG.normal(size=LOGITS.shape)

#: How programs write masks: the dtype of the table and the number.
WRITTEN = {
    "finfo(float16).min": (np.float16, np.finfo(np.float16).min),
    "finfo(float32).min": (np.float32, np.finfo(np.float32).min),
    "finfo(float64).min": (np.float64, np.finfo(np.float64).min),
    "finfo(float32).min in double": (np.float64, float(np.finfo(np.float32).min)),
    "finfo(float16).min in float": (np.float32, -65504.0),
    "finfo(bfloat16).min": (np.float32, -3.3895313892515355e38),
    "-1e30": (np.float32, -1e30),
    "-1e20": (np.float32, -1e20),
    "-1e9": (np.float32, -1e9),
    "-1e9 in double": (np.float64, -1e9),
    "-1e9 in bfloat16": (np.float32, -998244352.0),
    "-1e4 in half": (np.float16, -1e4),
    "-1e4": (np.float32, -1e4),
    "-1e4 in bfloat16": (np.float32, -9984.0),
}
CALIBRATORS = [
    mc.TemperatureScaling(),
    mc.VectorScaling(regularisation=1.0),
    mc.MatrixScaling(regularisation=1.0),
    mc.DirichletCalibration(regularisation=1.0),
    mc.StructuredScaling(regularisation=1.0),
    mc.GaussianProcessCalibration(),
    mc.EnsembleTemperatureScaling(),
    mc.LocalTemperatureScaling(),
    mc.PlattScaling(),
    mc.IsotonicCalibration(),
    mc.SplineCalibration(),
]


def written(dtype, number):
    """The table with the mask as a number, and with -inf."""
    finite = np.where(MASKED, number, LOGITS).astype(dtype)
    return finite, np.where(MASKED, -np.inf, finite).astype(dtype)


def quietly(function, *arguments, **keywords):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*arguments, **keywords)


class Blocks(StoredTable):
    """A table that is not in memory, as a file's reader gives it."""

    def __init__(self, table):
        super().__init__(table.shape, table.dtype)
        self.table = table

    def read(self, start, stop):
        return self.table[start:stop].copy()


@pytest.mark.parametrize("case", WRITTEN)
def test_it_is_the_same_table_as_with_minus_infinity(case):
    finite, infinite = written(*WRITTEN[case])
    with pytest.warns(mc.MetacalWarning, match="reads as -inf"):
        read = validate.check_logits(finite)
    assert read.dtype == finite.dtype
    assert np.array_equal(read, infinite)
    assert not np.isinf(finite).any()  # the caller's own table is left alone


@pytest.mark.parametrize("calibrator", CALIBRATORS, ids=lambda c: type(c).__name__)
def test_no_map_is_ruined(calibrator):
    finite, infinite = written(np.float32, np.finfo(np.float32).min)
    from sklearn.base import clone

    found = quietly(clone(calibrator).fit, finite, LABELS)
    expected = quietly(clone(calibrator).fit, infinite, LABELS)
    assert np.array_equal(
        quietly(found.predict_proba, finite), quietly(expected.predict_proba, infinite)
    )
    assert (quietly(found.predict_proba, finite)[MASKED] == 0.0).all()


@pytest.mark.parametrize("score", ["entropy", "max_probability", "margin", "energy"])
def test_a_gate_scores_and_decides_alike(score):
    finite, infinite = written(np.float32, -1e9)
    gate = quietly(
        mc.MetaCal(mc.MaxMiscoverage(0.2), mc.VectorScaling(regularisation=1.0), score=score).fit,
        infinite,
        LABELS,
    )
    for method in (gate.ranking_scores, gate.accepts, gate.predict, gate.predict_proba):
        assert np.array_equal(quietly(method, finite), quietly(method, infinite))


def test_a_true_class_that_is_masked_is_left_out_of_the_fit():
    finite, infinite = written(np.float32, -1e30)
    finite[3, LABELS[3]], infinite[3, LABELS[3]] = -1e30, -np.inf
    with pytest.warns(
        mc.MetacalWarning, match="In 1 of 240 rows, the logit of the true class is -inf"
    ):
        found = mc.TemperatureScaling().fit(finite, LABELS)
    assert found.temperature_ == quietly(mc.TemperatureScaling().fit, infinite, LABELS).temperature_


@pytest.mark.parametrize("kind", ["stored", "memory map"])
def test_out_of_memory_tables_stay_there(tmp_path, kind):
    finite, infinite = written(np.float32, np.finfo(np.float32).min)
    if kind == "stored":
        table = Blocks(finite)
    else:
        table = np.memmap(tmp_path / "logits", dtype=np.float32, mode="w+", shape=finite.shape)
        table[...] = finite
    assert isinstance(quietly(validate.check_logits, table), StoredTable)
    found = quietly(mc.VectorScaling(regularisation=1.0).fit, table, LABELS)
    expected = mc.VectorScaling(regularisation=1.0).fit(infinite, LABELS)
    assert np.array_equal(quietly(found.predict_proba, table), expected.predict_proba(infinite))


def test_it_is_said_once_for_each_line_that_passes_such_a_table():
    finite, infinite = written(np.float32, -1e9)
    gate = mc.TemperatureScaling().fit(infinite, LABELS)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for start in range(3):
            gate.predict_proba(finite[start:])
    assert len(caught) == 1
    assert caught[0].filename == __file__


ORDINARY = {
    "a crude density's log-likelihoods": [[-312.0, -8.7e4, -1.31e11]],
    "near a power of ten": [[1.0, -9999.0, -10001.0]],
    "no further than the others": [[-1e9, -2e9, -1e10]],
    "thousandths of a logit": [[2300, -10000, 140]],
    "far, but not a hundred times": [[101.0, -1e4, 0.0]],
    "twenty thousand": [[0.0, -20000.0, -5e8]],
    "every class alike": [[-1e30, -1e30, -1e30]],
    "minus infinity itself": [[0.0, -np.inf, 1.0]],
}


@pytest.mark.parametrize("case", ORDINARY)
def test_nothing_is_guessed_from_ordinary_numbers(case):
    table = np.array(ORDINARY[case], dtype=np.float64)
    assert find_finite_masks(table) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.array_equal(validate.check_logits(table), table)


def test_a_class_always_stays_possible():
    hostile = np.array([[-1e4, -1e9, -1e30], [-1.7e308] * 3, [-65504.0, -65504.0, -1e300]])
    assert (replace_finite_masks(hostile).max(axis=1) > -np.inf).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("n_classes", [2, 7, 33, 130])
def test_every_kernel_sees_a_number_that_may_be_a_mask(dtype, n_classes):
    for number in (-9976.0, -9984.0, -65504.0, -np.inf):
        for column in (0, n_classes - 1):
            block = np.zeros((9, n_classes), dtype=dtype)
            block[4, column] = number
            expected = (None, -np.inf < number <= -9984.0)
            assert numpy_kernels.inspect_logits(block) == expected
            assert kernels.inspect_logits(block) == expected
    block[5] = -np.inf
    assert kernels.inspect_logits(block)[0] == numpy_kernels.inspect_logits(block)[0] == 5


@pytest.mark.parametrize("case", WRITTEN)
def test_a_tensor_is_read_alike(case):
    torch = pytest.importorskip("torch")
    from metacal.kernels import torch as device

    finite, infinite = written(*WRITTEN[case])
    assert device.inspect_logits(torch.from_numpy(finite)) == (None, True)
    read, example = device.replace_finite_masks(torch.from_numpy(finite))
    assert np.array_equal(read.numpy(), infinite)
    assert example == pytest.approx(float(finite[MASKED][0]))
    untouched = torch.tensor([[0.0, -20000.0, -5e8]])
    assert device.replace_finite_masks(untouched)[0] is untouched


def test_a_tensor_on_a_device_is_fitted_and_predicted_alike(monkeypatch):
    torch = pytest.importorskip("torch")
    where = "cuda" if torch.cuda.is_available() else "cpu"
    if where == "cpu":  # send CPU tensors down the device's path
        monkeypatch.setattr(
            kernels, "is_device_tensor", lambda table: isinstance(table, torch.Tensor)
        )
    finite, infinite = written(np.float32, np.finfo(np.float32).min)
    finite[3, LABELS[3]], infinite[3, LABELS[3]] = np.finfo(np.float32).min, -np.inf
    for calibrator in (mc.TemperatureScaling(), mc.VectorScaling(regularisation=1.0)):
        gate = mc.MetaCal(mc.MaxMiscoverage(0.2), calibrator)
        there = torch.tensor(finite, device=where)
        with pytest.warns(mc.MetacalWarning, match="reads as -inf"):
            gate.fit(there, LABELS)
        found = quietly(gate.predict_proba, there)
        expected = quietly(quietly(gate.fit, infinite, LABELS).predict_proba, infinite)
        assert found.device.type == where
        assert np.allclose(found.cpu().numpy(), expected, atol=1e-6)


def test_out_on_a_device_must_not_overlap(monkeypatch):
    torch = pytest.importorskip("torch")
    where = "cuda" if torch.cuda.is_available() else "cpu"
    if where == "cpu":
        monkeypatch.setattr(
            kernels, "is_device_tensor", lambda table: isinstance(table, torch.Tensor)
        )
    cal = mc.TemperatureScaling().fit(LOGITS, LABELS)
    room = torch.zeros(N + 1, K, dtype=torch.float64, device=where)
    with pytest.raises(mc.InputError, match="out overlaps"):
        cal.predict_proba(room[:-1], out=room[1:])
    place = torch.tensor(LOGITS, device=where)
    expected = cal.predict_proba(place)
    assert torch.equal(cal.predict_proba(place, out=place), expected)


@pytest.mark.slow
@pytest.mark.parametrize("calibrator", CALIBRATORS, ids=lambda c: type(c).__name__)
def test_exported_gates_read_masks_alike(calibrator):
    torch, runtime = pytest.importorskip("torch"), pytest.importorskip("onnxruntime")
    from metacal.export.onnx import to_onnx
    from metacal.export.torch import to_module

    _, infinite = written(np.float32, -np.inf)
    gate = quietly(mc.MetaCal(mc.MaxMiscoverage(0.2), calibrator).fit, infinite, LABELS)
    session = runtime.InferenceSession(to_onnx(gate).SerializeToString())
    module = to_module(gate)
    for number in (np.finfo(np.float32).min, -1e9, -65504.0, -1e4):
        finite, _ = written(np.float32, number)
        expected, accept = quietly(gate.predict_proba, finite), quietly(gate.accepts, finite)
        probs, _, accepted = session.run(["probs", "score", "accept"], {"logits": finite})
        assert np.array_equal(accepted, accept)
        assert np.allclose(probs, expected, atol=1e-6)
        probs, _, accepted = module(torch.from_numpy(finite))
        assert np.array_equal(accepted.numpy(), accept)
        assert np.allclose(probs.numpy(), expected, atol=1e-6)
