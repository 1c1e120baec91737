"""Tensors on a device against arrays on the host. Without a GPU, CPU tensors are sent down the
device's path.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import warnings
from functools import partial

import numpy as np
import pytest

import metacal as mc
from metacal import kernels
from metacal.errors import InputError, MetacalWarning
from metacal.formulas import rowwise
from metacal.gate import Gate, LogitsSource
from metacal.kernels import keys
from metacal.kernels import numpy as definition
from metacal.kernels.columns import N_POSSIBLE, Curve, mixture_loss_and_derivatives
from metacal.kernels.grid import RELATIVE_GRID
from metacal.maps.temperature import TemperatureMap, fit_temperature
from metacal.rows import Rows

torch = pytest.importorskip("torch", reason="torch is not installed")
from metacal.kernels import torch as device_kernels  # noqa: E402
from metacal.kernels import torch_chunks  # noqa: E402
from metacal.kernels import triton as fused_kernels  # noqa: E402
from metacal.kernels import triton_scores as fused_scores  # noqa: E402

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
#: A step of the grid that scores are rounded to: of a score on a border each device may take
#: another neighbour.
STEP = 2.0**-29
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
KERNELS = {
    "entropy": "entropy",
    "max_probability": "one_minus_max_probability",
    "margin": "negative_margin",
    "energy": "free_energy",
}


@pytest.fixture(params=DEVICES)
def device(request, monkeypatch):
    if request.param == "cpu":
        monkeypatch.setattr(
            kernels, "is_device_tensor", lambda table: isinstance(table, torch.Tensor)
        )
        monkeypatch.setattr(
            torch_chunks, "CHUNK_ELEMENTS", 1 << 14
        )  # several chunks even of a small table
    return request.param


@pytest.fixture
def crossings(monkeypatch):
    """The number of elements of every tensor that is brought to the host."""
    sizes = []
    for name in ("cpu", "numpy", "tolist"):
        original = getattr(torch.Tensor, name)

        def counted(self, *arguments, original=original, **keywords):
            sizes.append(self.numel())
            return original(self, *arguments, **keywords)

        monkeypatch.setattr(torch.Tensor, name, counted)
    return sizes


def data(n=4000, n_classes=30, seed=0, temperature=1.7):
    """Over-confident logits: labels are drawn from softmax(x / temperature)."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, n_classes)) * 2.0
    logits[np.arange(n), rng.integers(n_classes, size=n)] += rng.gamma(4.0, 2.5, size=n)
    labels = (logits / temperature + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return logits, labels


def masked(logits, labels, seed=1):
    holes = np.random.default_rng(seed).random(logits.shape) < 0.3
    holes[np.arange(len(logits)), labels] = False
    return np.where(holes, -np.inf, logits)


def with_value(tensor, place, value):
    tensor[place] = value
    return tensor


def on_both(logits, dtype, device):
    """The same numbers as a tensor and, exactly, as an array."""
    tensor = torch.tensor(logits).to(dtype).to(device)
    return tensor, tensor.cpu().float().numpy() if dtype == torch.bfloat16 else tensor.cpu().numpy()


def one_walk_for_all(tensor, array):
    """Predictions beside the scores; carefully, no score where a mask may be, and the same scores
    elsewhere.
    """
    low = tensor.clone()
    low[1, 1] = -10_000.0
    for name in (*KERNELS.values(), "maxlogit_pnorm"):
        scored = partial(device_kernels.score_by_formula, formula=getattr(rowwise, name))
        top = torch.empty(len(tensor), dtype=torch.int64, device=tensor.device)
        plain = scored(tensor).cpu().numpy()
        np.testing.assert_array_equal(
            scored(tensor, predictions_out=top, is_unvalidated=True).cpu(), plain, err_msg=name
        )
        np.testing.assert_array_equal(top.cpu(), definition.predict_classes(array))
        careful = scored(low, is_unvalidated=True).cpu().numpy()
        assert np.isnan(careful[1])
        np.testing.assert_array_equal(np.delete(careful, 1), np.delete(plain, 1), err_msg=name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_mask", [False, True])
@pytest.mark.parametrize("n_classes", [2, 30, 1000, 9000])
def test_kernels_agree(device, dtype, with_mask, n_classes):
    logits, labels = data(23 if n_classes < 1000 else 5, n_classes)
    tensor, array = on_both(masked(logits, labels) if with_mask else logits, dtype, device)
    for name in KERNELS.values():
        found = device_kernels.score_by_formula(tensor, getattr(rowwise, name))
        assert found.device == tensor.device
        assert found.dtype == torch.float64
        np.testing.assert_allclose(
            found.cpu(), getattr(definition, name)(array), rtol=1e-12, atol=1e-300, err_msg=name
        )
    np.testing.assert_array_equal(
        device_kernels.predict_classes(tensor).cpu(), definition.predict_classes(array)
    )
    one_walk_for_all(tensor, array)
    codes, weights = torch.tensor(labels).to(device), np.linspace(0.5, 2.0, len(labels))
    largest = np.abs(np.where(np.isfinite(array), array, 0)).max().astype(float)
    for b in (0.1, 1.0, 3.0):
        size = len(array) * np.array([1 + b * largest, largest, largest**2, largest**3])
        for w in (None, weights):
            expected = definition.tempered_loss_and_derivatives(array, labels, w, b)
            found = device_kernels.tempered_loss_and_derivatives(
                tensor, codes, None if w is None else torch.tensor(w).to(device), b
            )
            np.testing.assert_allclose(found.cpu().numpy() / size, expected / size, atol=1e-6)
        out, expected = (
            device_kernels.empty_probabilities(tensor).fill_(-1.0),
            np.empty(array.shape),
        )
        device_kernels.softmax(tensor, b, out)
        definition.softmax(array, b, expected)
        np.testing.assert_allclose(out.cpu(), expected, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_mask", [False, True])
@pytest.mark.parametrize("n_classes", [2, 30, 9000])
def test_a_uniform_part_agrees(device, dtype, with_mask, n_classes):
    logits, labels = data(200 if n_classes < 1000 else 5, n_classes)
    tensor, array = on_both(masked(logits, labels) if with_mask else logits, dtype, device)
    codes, weights = torch.tensor(labels).to(device), np.linspace(0.5, 2.0, len(labels))
    expected = mixture_loss_and_derivatives(
        np, kernels.temperature_statistics(array, labels, 0.7).T, weights, 0.7, 0.71, 0.05
    )
    columns = kernels.temperature_statistics(tensor, codes, 0.7)
    found = kernels.mixture_loss_and_derivatives(
        columns.T.contiguous(), torch.tensor(weights).to(device), 0.7, 0.71, 0.05
    )
    tolerance = {
        "rtol": 2e-3 if dtype == torch.bfloat16 else 1e-4,
        "atol": 1e-5 * np.abs(expected).max(),
    }
    np.testing.assert_allclose(found, expected, **tolerance)
    plain = mixture_loss_and_derivatives(torch, columns.T, None, 0.7, 0.7, 0.05)
    np.testing.assert_allclose(
        kernels.mixture_loss_and_derivatives(columns.T.contiguous(), None, 0.7, 0.7, 0.05),
        plain.cpu(),
        rtol=1e-9,
    )
    np.testing.assert_array_equal(
        columns[:, N_POSSIBLE:].cpu(),
        kernels.temperature_statistics(array, labels, 0.7)[:, N_POSSIBLE:],
    )
    out, host = device_kernels.empty_probabilities(tensor), np.empty(array.shape)
    kernels.mixture_softmax(tensor, 0.7, 0.05, out)
    kernels.mixture_softmax(array, 0.7, 0.05, host)
    np.testing.assert_allclose(out.cpu(), host, atol=1e-14 if dtype == torch.float64 else 1e-6)
    np.testing.assert_array_equal(
        definition.predict_classes(out.cpu().numpy()), definition.predict_classes(array)
    )
    curve = Curve(np.array([-1.0, 0.5, 3.0]), np.array([0.5, 1.3, 0.0]), -0.4)
    kernels.softmax_with_curve(tensor, 0.7, 0.05, curve, out)
    kernels.softmax_with_curve(array, 0.7, 0.05, curve, host)
    np.testing.assert_allclose(out.cpu(), host, atol=1e-6)
    np.testing.assert_array_equal(
        definition.predict_classes(out.cpu().numpy()), definition.predict_classes(array)
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_temperature_with_a_uniform_part_stays_there(device, dtype, crossings):
    logits, labels = data(5_000)
    labels[:250] = np.random.default_rng(0).integers(30, size=250)
    tensor, array = on_both(logits, dtype, device)
    expected = mc.UniformTemperatureScaling().fit(array, labels)
    crossings.clear()
    found = mc.UniformTemperatureScaling().fit(tensor, torch.tensor(labels).to(device))
    assert max(crossings) <= 8 * len(tensor) < tensor.numel()  # eight columns of few rows
    assert found.temperature_ == pytest.approx(expected.temperature_, rel=1e-4)
    assert found.uniform_ == pytest.approx(expected.uniform_, rel=1e-3)
    probabilities = found.predict_proba(tensor)
    assert probabilities.device == tensor.device
    np.testing.assert_allclose(probabilities.cpu(), expected.predict_proba(array), atol=1e-5)


def test_scores_are_ranked_there(device, monkeypatch):
    random = np.random.default_rng(0)
    values = RELATIVE_GRID.round(
        np.append(random.normal(size=4_000).round(2), [-0.0, 0.0, -np.inf])
    )
    flags = random.random(len(values)) < 0.7
    there = [torch.tensor(column).to(device) for column in (values, flags)]
    for kernel in (kernels.host_kernels, definition):  # with the C kernel and without
        monkeypatch.setattr(kernels, "host_kernels", kernel)
        for found, expected in zip(
            keys.rank_scores(*there), keys.rank_scores(values, flags), strict=True
        ):
            np.testing.assert_array_equal(found, expected)


def test_extreme_rows(device):
    rows = [
        [0.0, 0.0, 0.0, 0.0],
        [5.0, 5.0, -np.inf, 5.0],
        [-np.inf, 3.0, -np.inf, -np.inf],
        [300.0, 0.0, -1.0, 9.0],
    ]
    rows += [
        [-1.0, 2.0, 2.0, 0.0],
        [3e38, -3e38, 0.0, 1.0],
        [1e-30, 0.0, -1e-30, 0.0],
        [600.0, 0.0, 0.0, 1.0],
    ]
    tensor, array = on_both(rows, torch.float32, device)
    with np.errstate(over="ignore"):
        for name in KERNELS.values():
            found = device_kernels.score_by_formula(tensor, getattr(rowwise, name)).cpu()
            expected = getattr(definition, name)(array)
            np.testing.assert_allclose(found, expected, rtol=1e-12, err_msg=name)
    np.testing.assert_array_equal(
        device_kernels.predict_classes(tensor).cpu(), definition.predict_classes(array)
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_temperature_agrees(device, dtype, crossings):
    logits, labels = data(5_000)
    tensor, array = on_both(logits, dtype, device)
    expected = mc.TemperatureScaling().fit(array, labels)
    crossings.clear()
    found = mc.TemperatureScaling().fit(tensor, torch.tensor(labels).to(device))
    assert max(crossings) <= len(tensor)
    assert found.temperature_ == pytest.approx(expected.temperature_, rel=1e-6)
    assert mc.TemperatureScaling().fit(tensor, labels).temperature_ == found.temperature_

    crossings.clear()
    probabilities = found.predict_proba(tensor)
    assert max(crossings, default=0) <= 1
    assert isinstance(probabilities, torch.Tensor)
    assert probabilities.device == tensor.device
    assert probabilities.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    np.testing.assert_allclose(probabilities.cpu(), expected.predict_proba(array), atol=2e-6)
    labels_found = found.predict(tensor)
    assert isinstance(labels_found, np.ndarray)
    assert (labels_found == expected.predict(array)).mean() > 0.9999


@pytest.mark.slow
@pytest.mark.parametrize("score", KERNELS)
@pytest.mark.parametrize(
    "promise", [mc.MaxMiscoverage(0.05), mc.MinAccuracy(0.9)], ids=["alpha", "beta"]
)
def test_certificates_agree(device, score, promise, crossings):
    logits, labels = data(20_000)
    tensor, array = on_both(logits, torch.float32, device)
    expected = mc.MetaCal(promise, score=score).fit(array, labels)
    crossings.clear()
    found = mc.MetaCal(promise, score=score).fit(tensor, torch.tensor(labels).to(device))
    # A score and a flag of each row; at most 4,000 rows, which tell whether calibration helps.
    assert max(crossings) <= max(2 * len(tensor), 4000 * tensor.shape[1])
    assert found.threshold_ == pytest.approx(expected.threshold_, rel=STEP)
    for name in ("n_rows", "n_correct", "n_accepted", "n_correct_accepted", "statement"):
        assert getattr(found.certificate_, name) == getattr(expected.certificate_, name)
    assert found.calibrator_.temperature_ == pytest.approx(
        expected.calibrator_.temperature_, rel=1e-6
    )
    scores = found.ranking_scores(tensor)
    assert isinstance(scores, np.ndarray)
    np.testing.assert_allclose(scores, expected.ranking_scores(array), rtol=STEP)
    assert (scores == expected.ranking_scores(array)).mean() > 0.999
    accept = found.accepts(tensor)
    assert isinstance(accept, np.ndarray)
    n_pilot_rows = found.certificate_.design.n_pilot_rows
    assert 0 <= accept.sum() - found.certificate_.n_accepted <= n_pilot_rows
    probabilities = found.predict_proba(tensor, rejected="uniform")
    assert probabilities.device == tensor.device
    assert (probabilities[torch.from_numpy(~accept).to(device)] == 1 / array.shape[1]).all()
    np.testing.assert_allclose(
        probabilities.cpu().numpy()[accept], expected.predict_proba(array)[accept], atol=2e-6
    )
    np.testing.assert_array_equal(found.predict(tensor)[~accept], -1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gate(device, dtype):
    tensor, array = on_both(data()[0], dtype, device)
    labels = data()[1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MetacalWarning)  # logits of few digits tie
        expected = mc.MetaCal(mc.MaxMiscoverage(0.05)).fit(array, labels)
        found = mc.MetaCal(mc.MaxMiscoverage(0.05)).fit(tensor, labels)
    assert found.threshold_ == pytest.approx(expected.threshold_, rel=STEP)
    assert found.certificate_.n_accepted == expected.certificate_.n_accepted
    assert found.predict_proba(tensor).dtype == torch.float32


def test_masked_classes_and_impossible_labels(device):
    logits, labels = data(3000)
    logits = masked(logits, labels)
    logits[np.arange(7), labels[:7]] = -np.inf
    tensor, array = on_both(logits, torch.float64, device)
    with pytest.warns(MetacalWarning, match="7 of 3000 rows"):
        found = mc.TemperatureScaling().fit(tensor, labels)
    with pytest.warns(MetacalWarning, match="7 of 3000 rows"):
        expected = mc.TemperatureScaling().fit(array, labels)
    assert found.temperature_ == pytest.approx(expected.temperature_, rel=1e-9)
    assert (found.predict_proba(tensor)[torch.isinf(tensor)] == 0).all()


def test_weights(device):
    logits, labels = data(3000)
    weights = np.random.default_rng(2).integers(0, 3, size=3000).astype(float)
    tensor, array = on_both(logits, torch.float64, device)
    expected = mc.TemperatureScaling().fit(array, labels, weights)
    for given in (weights, torch.tensor(weights).to(device)):
        found = mc.TemperatureScaling().fit(tensor, labels, given)
        assert found.temperature_ == pytest.approx(expected.temperature_, rel=1e-9)


def test_one_row(device):
    tensor, array = on_both([[2.0, 0.0, 1.0]], torch.float32, device)
    with pytest.warns(MetacalWarning):
        found = mc.TemperatureScaling().fit(tensor, [1])
    with pytest.warns(MetacalWarning):
        expected = mc.TemperatureScaling().fit(array, [1])
    assert found.temperature_ == pytest.approx(expected.temperature_, rel=1e-6)
    assert found.predict_proba(tensor).shape == (1, 3)


def test_equal_logits(device):
    with pytest.warns(MetacalWarning, match="logits of every row are equal"):
        fit = mc.TemperatureScaling().fit(
            torch.zeros((5, 3), device=device), torch.arange(5, device=device) % 3
        )
    assert fit.temperature_ == 1.0


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.repeat_interleave(2, dim=0)[::2],
        lambda t: t.repeat_interleave(2, dim=1)[:, ::2],
        lambda t: t.T.contiguous().T,
        lambda t: torch.cat([t, t], dim=1)[:, : t.shape[1]],
        lambda t: t.clone().requires_grad_(),
        lambda t: torch.nn.Parameter(t.clone()),
    ],
    ids=["rows", "columns", "transposed", "slice", "requires_grad", "parameter"],
)
def test_any_layout(device, view):
    logits, labels = data(2500, 31)
    tensor = torch.tensor(logits, device=device)
    expected = mc.MetaCal(mc.MaxMiscoverage(0.05)).fit(tensor, labels)
    found = mc.MetaCal(mc.MaxMiscoverage(0.05)).fit(view(tensor), labels)
    assert found.threshold_ == pytest.approx(expected.threshold_, rel=1e-12)
    assert found.calibrator_.temperature_ == pytest.approx(
        expected.calibrator_.temperature_, rel=1e-9
    )
    result = found.predict_proba(view(tensor))
    assert not result.requires_grad
    np.testing.assert_allclose(result.cpu(), expected.predict_proba(tensor).cpu(), atol=1e-9)


def test_strips_change_nothing(device, monkeypatch):
    logits, labels = data(3000)
    tensor = torch.tensor(logits, device=device)
    keep = np.random.default_rng(0).random(3000) < 0.6
    whole = fit_temperature(Rows(tensor).select(keep), labels[keep]).temperature
    expected = fit_temperature(Rows(logits).select(keep), labels[keep]).temperature
    monkeypatch.setattr("metacal.rows.strips.DEVICE_STRIP_ELEMENTS", 30 * 700)
    monkeypatch.setattr("metacal.rows.strips.DEVICE_COPY_ELEMENTS", 30 * 700)
    assert fit_temperature(Rows(tensor).select(keep), labels[keep]).temperature == pytest.approx(
        whole, rel=1e-9
    )
    assert whole == pytest.approx(expected, rel=1e-9)
    np.testing.assert_allclose(
        Rows(tensor).compute_column(kernels.entropy), definition.entropy(logits), rtol=1e-9
    )


def test_the_warm_start_reads_a_view(device):
    tensor = torch.zeros((100, 3), device=device)
    sample = Rows(tensor).take_every(7)
    assert sample.table.data_ptr() == tensor.data_ptr()


def test_maps_called_directly(device):
    tensor = torch.tensor([[5.0, 0.0], [0.1, 0.0]], device=device, requires_grad=True)
    gate = Gate.from_source(LogitsSource(TemperatureMap(1.0), np.arange(2), "entropy"), 0.5)
    expected = [[0.9933071, 0.0066929], [0.5249792, 0.4750208]]
    np.testing.assert_allclose(gate(tensor).cpu(), expected, atol=1e-6)
    paper_map = gate(tensor, rejected="uniform").cpu()
    np.testing.assert_allclose(paper_map, [expected[0], [0.5, 0.5]], atol=1e-6)


def test_probabilities(device):
    logits, labels = data(2000)
    table = TemperatureMap(1.0)(logits)
    table[0, :3], table[0] = 0.0, np.append([0.0] * 3, table[0, 3:] / table[0, 3:].sum())
    tensor, array = on_both(table, torch.float64, device)
    expected = mc.TemperatureScaling(input="probabilities").fit(array, labels)
    found = mc.TemperatureScaling(input="probabilities").fit(tensor, labels)
    assert found.temperature_ == pytest.approx(expected.temperature_, rel=1e-9)


def test_a_callers_own_score_gets_arrays(device):
    logits, labels = data(2000)
    tensor = torch.tensor(logits, device=device)

    def spread(block):
        assert isinstance(block, np.ndarray)
        return -block.std(axis=1)

    found = mc.MetaCal(mc.MaxMiscoverage(0.1), score=spread).fit(tensor, labels)
    assert (
        found.threshold_
        == mc.MetaCal(mc.MaxMiscoverage(0.1), score=spread).fit(logits, labels).threshold_
    )


def test_a_calibrator_of_the_host(device):
    logits, labels = data(2000, 5)
    tensor = torch.tensor(logits, device=device)
    base = mc.EnsembleTemperatureScaling()
    expected = mc.MetaCal(mc.MaxMiscoverage(0.1), calibrator=base).fit(logits, labels)
    found = mc.MetaCal(mc.MaxMiscoverage(0.1), calibrator=base).fit(tensor, labels)
    proba = found.predict_proba(tensor)
    assert proba.device == tensor.device
    np.testing.assert_allclose(proba.cpu(), expected.predict_proba(logits), atol=1e-9)
    assert (
        mc.EnsembleTemperatureScaling().fit(tensor, labels).predict_proba(tensor).device
        == tensor.device
    )


def test_an_estimator_of_scikit_learn(device):
    from sklearn.linear_model import LogisticRegression

    logits, labels = data(1000, 4)
    tensor = torch.tensor(logits, device=device)
    base = LogisticRegression()
    expected = (
        mc.MetaCal(mc.MaxMiscoverage(0.1), calibrator=base)
        .fit(logits, labels)
        .predict_proba(logits)
    )
    found = (
        mc.MetaCal(mc.MaxMiscoverage(0.1), calibrator=base)
        .fit(tensor, labels)
        .predict_proba(tensor)
    )
    np.testing.assert_allclose(found.cpu(), expected, atol=1e-9)


def test_named_classes(device):
    logits, labels = data(1000, 3)
    names = np.array(["ant", "bee", "cat"])
    tensor = torch.tensor(logits, device=device)
    fit = mc.TemperatureScaling(classes=list(names)).fit(tensor, names[labels])
    assert set(fit.predict(tensor)) <= set(names)
    assert fit.temperature_ == mc.TemperatureScaling().fit(tensor, labels).temperature_


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.float32])
def test_labels_of_any_type(device, dtype):
    logits, labels = data(1000, 3)
    tensor = torch.tensor(logits, device=device)
    expected = mc.TemperatureScaling().fit(tensor, labels).temperature_
    given = torch.tensor(labels).to(dtype).to(device)
    assert mc.TemperatureScaling().fit(tensor, given).temperature_ == expected
    assert mc.TemperatureScaling().fit(tensor, list(labels)).temperature_ == expected


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda t: with_value(t, (41, 2), np.nan), "row 41, column 2 is NaN"),
        (lambda t: with_value(t, (9, 1), np.inf), "row 9, column 1 is infinity"),
        (lambda t: with_value(t, 3, -np.inf), "row 3 has -infinity in every column"),
        (lambda t: t[0], "must be 2-D"),
        (lambda t: t[:0], "is empty"),
        (lambda t: t[:, :1], "at least 2 columns"),
        (lambda t: t.to(torch.complex64), "Complex data not supported"),
    ],
)
def test_bad_tables_are_refused_on_the_device(device, spoil, message, crossings):
    table = spoil(torch.ones((50, 4), device=device))
    with pytest.raises(InputError, match=message):
        mc.TemperatureScaling().fit(table, np.zeros(50, dtype=int))
    assert max(crossings, default=0) <= 4


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1, 4], "row 2 has label 4"),
        ([0, -1, 2], "row 1 has label -1"),
        ([0, 1], r"3 rows and 2 labels\."),
        ([[0], [1], [7]], "row 2 has label 7"),
        ([0.5, 1.0, 2.0], "continuous value"),
    ],
)
def test_bad_labels_are_refused(device, labels, message):
    table = torch.eye(3, device=device)
    with pytest.raises(InputError, match=message):
        mc.MetaCal(mc.MaxMiscoverage(0.1)).fit(table, torch.tensor(labels, device=device))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([2.0, -1.0], "row 1 holds -1"),
        ([0.5, 0.4], "row 1 sums to 0.9"),
        ([np.nan, 1.0], "row 1 holds"),
    ],
)
def test_bad_probabilities_are_refused(device, row, message):
    table = torch.tensor([[0.5, 0.5], row], dtype=torch.float64, device=device)
    with pytest.raises(InputError, match=message):
        mc.TemperatureScaling(input="probabilities").fit(table, [0, 1])


def test_integers_become_float64(device):
    tensor = torch.tensor([[3, 0], [0, 2], [1, 0]], device=device)
    fit = mc.TemperatureScaling().fit(tensor, [0, 1, 1])
    assert fit.predict_proba(tensor).dtype == torch.float64


def test_tensors_on_the_cpu_still_become_arrays():
    logits, labels = data(1000)
    fit = mc.TemperatureScaling().fit(torch.tensor(logits), torch.tensor(labels))
    assert isinstance(fit.predict_proba(torch.tensor(logits)), np.ndarray)
    assert fit.temperature_ == mc.TemperatureScaling().fit(logits, labels).temperature_


@pytest.mark.slow
def test_arrays_do_not_import_torch():
    code = (
        "import sys, numpy as np, metacal as mc; x = np.eye(3);"
        " mc.TemperatureScaling().fit(np.repeat(x, 9, 0), [0, 1, 2] * 9).predict(x); assert 'torch'"
        " not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_failing_compiler_is_survived(device, monkeypatch):
    class Broken:
        def __getitem__(self, grid):
            raise RuntimeError("no compiler")

    monkeypatch.setattr(fused_kernels, "is_available", True)
    monkeypatch.setattr(fused_kernels, "can_fuse", lambda block: fused_kernels.is_available)
    monkeypatch.setattr(fused_scores, "_score_kernel", Broken())
    table = torch.eye(4, dtype=torch.float64, device=device)
    with pytest.warns(MetacalWarning, match="plain torch instead, which is"):
        found = device_kernels.score_by_formula(table, rowwise.entropy)
    np.testing.assert_allclose(found.cpu(), definition.entropy(np.eye(4)), rtol=1e-12)
    assert not fused_kernels.is_available


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_fused_kernels_agree_when_interpreted():
    """Triton's own interpreter runs the fused kernels on the CPU; it must be asked for before they
    are defined.
    """
    code = (
        "import importlib.util, pathlib, warnings; spec ="
        f" importlib.util.spec_from_file_location('test_device', {__file__!r}); tests ="
        " importlib.util.module_from_spec(spec); spec.loader.exec_module(tests);"
        " warnings.simplefilter('ignore', RuntimeWarning); warnings.simplefilter('error',"
        " tests.MetacalWarning); [tests.test_kernels_agree('cpu', dtype, mask, k) for dtype, mask"
        " in zip(tests.DTYPES, (True, False, False, True)) for k in (30, 9000 if mask else 3000)];"
        " tests.test_extreme_rows('cpu')"
    )
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("rejected", ["calibrated", "uniform"])
def test_decisions_on_a_tensor_have_the_confidence_of_decisions_on_an_array(device, rejected):
    logits, labels = data(n=1500)
    gate = mc.MetaCal(mc.MinAccuracy(0.9)).fit(logits, labels).gate_
    on_host = gate.decide(logits, rejected=rejected)
    on_device = gate.decide(torch.tensor(logits, device=device), rejected=rejected)
    assert np.array_equal(on_device.accept, on_host.accept)
    assert np.allclose(on_device.confidence, on_host.confidence)
    assert np.allclose(on_device.probabilities.cpu().numpy(), on_host.probabilities)
