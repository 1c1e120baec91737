"""The torch module beyond its numbers: bad rows, dtypes, exporters, wrapping a model, a real model
end to end.
"""

from __future__ import annotations

import io
import os
import warnings

import numpy as np
import pytest

import metacal as mc

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from metacal.export.torch import CalibratedModule, Gate, to_module  # noqa: E402
from metacal.formulas.torch import TORCH  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::metacal.errors.MetacalWarning")


@pytest.fixture(scope="module")
def data():
    return mc.datasets.load("cifar10-resnet110")


@pytest.fixture(scope="module")
def cal(data):
    return mc.MetaCal(mc.MinAccuracy(0.97)).fit(data.logits[:3000], data.labels[:3000])


def dynamic():
    return ({0: torch.export.Dim("batch")},)


@pytest.mark.parametrize("score", ["entropy", "max_probability", "margin", "energy"])
@pytest.mark.parametrize(
    "promise", [mc.MaxMiscoverage(0.05), mc.MaxMiscoverage(0.0001)], ids=["gate", "accept all"]
)
def test_what_cannot_be_read_is_never_accepted(data, promise, score):
    gate = to_module(mc.MetaCal(promise, score=score).fit(data.logits[:3000], data.labels[:3000]))
    sure = torch.zeros(6, 10)
    sure[:, 0] = 50.0
    sure[1, 3], sure[2, 0], sure[3, 4], sure[5, 1:] = torch.nan, torch.nan, torch.inf, -torch.inf
    sure[4] = -torch.inf
    probs, found, accept = gate(sure)
    assert accept.tolist() == [True, False, False, False, False, True]
    assert torch.isnan(found).tolist() == [False, True, True, True, True, False]
    assert torch.allclose(probs[1:5], torch.full((4, 10), 0.1))
    assert torch.equal(probs[5], torch.eye(10)[0])


def test_probabilities_that_are_none_are_never_accepted(data):
    table = mc.TemperatureScaling().fit(data.logits, data.labels).predict_proba(data.logits[:2000])
    gate = to_module(
        mc.MetaCal(mc.MaxMiscoverage(0.05), input="probabilities").fit(table, data.labels[:2000])
    )
    rows = torch.zeros(5, 10)
    rows[:, 0] = 1.0
    rows[1, 1], rows[2, 0], rows[3, 1:3] = 0.5, torch.nan, torch.tensor([-0.5, 0.5])
    rows[4, 0] = 50.0
    probs, _, accept = gate(rows)
    assert accept.tolist() == [True, False, False, False, False]
    assert torch.allclose(probs[1:], torch.full((4, 10), 0.1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_probabilities_have_the_dtype_of_the_input_and_no_gradient(cal, data, dtype):
    logits = torch.tensor(data.logits[:500]).to(dtype).requires_grad_()
    probs, score, accept = to_module(cal)(logits)
    assert (probs.dtype, score.dtype, accept.dtype) == (dtype, torch.float64, torch.bool)
    assert not probs.requires_grad
    assert not score.requires_grad
    assert not list(to_module(cal).parameters())
    # A half-precision tie must not change the prediction.
    assert torch.equal(probs.argmax(dim=1)[accept], logits.argmax(dim=1)[accept])
    np.testing.assert_array_equal(accept.numpy(), cal.accepts(logits.detach().double().numpy()))


def test_integers_an_empty_batch_and_one_row(cal):
    gate = to_module(cal)
    assert gate(torch.eye(10, dtype=torch.int64) * 20)[0].dtype == torch.float32
    assert [out.shape[0] for out in gate(torch.zeros(0, 10))] == [0, 0, 0]
    assert gate(torch.zeros(1, 10))[2].tolist() == [False]


def test_halving_the_model_does_not_round_the_threshold(cal, data):
    served = CalibratedModule(nn.Linear(4, 10), cal)
    before = served.gate.threshold.clone()
    for turned in (served.half(), served.to(torch.bfloat16), served.float()):
        assert turned.gate.threshold.dtype == torch.float64
        assert torch.equal(turned.gate.threshold, before)
    assert served.to(torch.float16).model.weight.dtype == torch.float16
    assert to_module(cal).to("meta").threshold.device.type == "meta"


def test_the_threshold_keeps_off_the_calibration_scores(data):
    for promise in (mc.MaxMiscoverage(0.05), mc.MinAccuracy(0.97)):
        cal = mc.MetaCal(promise).fit(data.logits[:3000], data.labels[:3000])
        stored = float(to_module(cal).threshold)
        assert cal.certificate_.highest_accepted < stored < cal.certificate_.lowest_rejected
        assert stored == cal.certificate_.threshold


def test_log1p_is_exact_for_small_and_large_numbers():
    values = np.array([0.0, 1e-300, 1e-17, 1e-9, 0.3, 1.0, 1e6, -1e-17, -0.5])
    np.testing.assert_allclose(
        TORCH.log1p(torch.from_numpy(values)).numpy(), np.log1p(values), rtol=4e-16
    )


def test_a_calibrator_without_a_gate_accepts_every_row_it_can_read(data):
    fitted = mc.IsotonicCalibration().fit(data.logits[:1000], data.labels[:1000])
    rows = torch.tensor(data.logits[:50])
    rows[7, 0] = torch.nan
    probs, score, accept = to_module(fitted)(rows)
    assert accept.tolist() == [i != 7 for i in range(50)]
    np.testing.assert_allclose(probs[:7].numpy(), fitted.predict_proba(data.logits[:7]), atol=1e-5)
    assert torch.isnan(score).sum() == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x, y: mc.MetaCal(mc.MaxMiscoverage(0.05)), "not fitted"),
        (
            lambda x, y: mc.MetaCal(mc.MaxMiscoverage(0.05), score=lambda b: b.max(axis=1)).fit(
                x, y
            ),
            "is a Python function",
        ),
        (lambda x, y: {"temperature": 2.0}, "got dict"),
    ],
)
def test_what_cannot_be_exported_says_why(data, make, message):
    with pytest.raises(mc.InputError, match=message):
        to_module(make(data.logits[:500], data.labels[:500]))


def test_a_foreign_base_calibrator_is_named(data):
    from sklearn.linear_model import LogisticRegression

    cal = mc.MetaCal(mc.MaxMiscoverage(0.05), calibrator=LogisticRegression(max_iter=5000)).fit(
        data.logits[:500], data.labels[:500]
    )
    with pytest.raises(mc.InputError, match="LogisticRegression is not one of metacal's"):
        to_module(cal)


def test_the_wrong_number_of_classes_is_said(cal):
    with pytest.raises(mc.InputError, match=r"with 10 columns.*shape \(2, 3, 10\)"):
        to_module(cal)(torch.zeros(2, 3, 10))


# ── exporters ─────────────────────────────────────────────────────────────────────────────────────

EXPORTED = {
    "temperature": (mc.TemperatureScaling(), "entropy"),
    "matrix": (mc.MatrixScaling(regularisation=1.0), "max_probability"),
    "beta": (mc.BetaCalibration(), "margin"),
    "bbq": (mc.BBQ(), "energy"),
    "spline": (mc.SplineCalibration(), "entropy"),
}


#: A graph is traced in a second or two, by torch's newer ONNX exporter in five: one calibrator
#: stands for the others.
FULL = os.environ.get("METACAL_PARITY") == "full"


@pytest.fixture
def exported(request, data):
    calibrator, score = EXPORTED[request.param]
    return to_module(
        mc.MetaCal(mc.MaxMiscoverage(0.05), calibrator, score).fit(
            data.logits[:2000], data.labels[:2000]
        )
    )


def assert_equal_outputs(found, expected):
    probs, score, accept = (np.asarray(out) for out in found)
    np.testing.assert_array_equal(accept, expected[2].numpy())
    np.testing.assert_allclose(probs, expected[0].numpy(), atol=1e-6)
    np.testing.assert_allclose(score, expected[1].numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("exported", EXPORTED if FULL else ["temperature", "bbq"], indirect=True)
def test_torch_export_with_a_dynamic_batch(exported, data):
    program = torch.export.export(
        exported, (torch.tensor(data.logits[:3]),), dynamic_shapes=dynamic()
    )
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    table = torch.tensor(data.logits[:3000])
    assert_equal_outputs(loaded(table), exported(table))
    assert_equal_outputs(loaded(table[:1]), exported(table[:1]))


@pytest.mark.parametrize("exported", EXPORTED, indirect=True)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tracing(exported, data):
    traced = torch.jit.trace(exported, (torch.tensor(data.logits[:3]),))
    table = torch.tensor(data.logits[:3000])
    assert_equal_outputs(traced(table), exported(table))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("exported", "dynamo"),
    [
        *((name, False) for name in EXPORTED),
        *((name, True) for name in (EXPORTED if FULL else ["matrix"])),
    ],
    indirect=["exported"],
    ids=lambda value: {True: "dynamo", False: "torchscript"}.get(value, value),
)
def test_torch_s_own_onnx_exporters(exported, data, dynamo, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript" if dynamo else "onnx")
    path, names = str(tmp_path / "gate.onnx"), ["probs", "score", "accept"]
    options = (
        {"dynamic_shapes": dynamic(), "verbose": False}
        if dynamo
        else {
            "dynamic_axes": {name: {0: "batch"} for name in ("logits", *names)},
            "opset_version": 17,
        }
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about its own exporters
        torch.onnx.export(
            exported,
            (torch.tensor(data.logits[:3]),),
            path,
            dynamo=dynamo,
            input_names=["logits"],
            output_names=names,
            **options,
        )
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    table = data.logits[:3000].copy()
    table[0, 3], table[1, 3], table[2], table[3, 4] = np.nan, np.inf, -np.inf, -np.inf
    found = session.run(names, {"logits": table})
    assert not found[2][:3].any()
    assert_equal_outputs(found, exported(torch.from_numpy(table)))


# ── around a model ────────────────────────────────────────────────────────────────────────────────


class Says(nn.Module):
    """Returns its logits in one of the ways that models do."""

    def __init__(self, way):
        super().__init__()
        self.way, self.layer, self.drop = way, nn.Linear(4, 10), nn.Dropout()

    def forward(self, values, mask=None):
        logits = self.drop(self.layer(values)) * (1.0 if mask is None else mask)
        return self.way(logits)


class Output:
    def __init__(self, logits):
        self.logits = logits


WAYS = {
    "tensor": lambda z: z,
    "tuple": lambda z: (z, z.sum()),
    "mapping": lambda z: {"loss": None, "logits": z},
    "object": Output,
}


@pytest.mark.parametrize("way", WAYS)
def test_logits_are_found_in_what_a_model_returns(cal, way):
    model = Says(WAYS[way])
    served = CalibratedModule(model, cal)
    served.train()
    assert not model.training
    values = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)) * 20
    probs, score, accept = served(values)
    assert not probs.requires_grad
    assert_equal_outputs((probs, score, accept), to_module(cal)(model.layer(values)))
    assert torch.equal(served(values=values, mask=torch.ones(8, 1))[1], score)


def test_a_model_without_logits_is_told(cal):
    with pytest.raises(mc.InputError, match="The model must return"):
        CalibratedModule(Says(lambda z: "cat"), cal)(torch.zeros(1, 4))


def test_the_certificate_travels_with_the_module(cal):
    gate = to_module(cal)
    assert isinstance(gate, Gate)
    assert gate.certificate == cal.certificate_
    assert "correct at least 97% of the time" in repr(CalibratedModule(nn.Linear(4, 10), cal))


@pytest.mark.slow
def test_a_network_trained_on_digits_is_gated_exported_and_keeps_its_promise(tmp_path):
    from sklearn.datasets import load_digits
    from sklearn.utils import shuffle

    images, labels = shuffle(
        *load_digits(return_X_y=True), random_state=0
    )  # the file has one writer after the other
    images = torch.tensor(images / 16.0, dtype=torch.float32).reshape(-1, 1, 8, 8)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(128, 10),
    )
    train, fit, held = slice(0, 300), slice(300, 1000), slice(1000, None)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(30):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(images[train]), torch.tensor(labels[train])).backward()
        optimiser.step()
    model.eval()
    with torch.no_grad():
        logits = model(images).numpy()
    cal = mc.MetaCal(mc.MinAccuracy(0.97)).fit(logits[fit], labels[fit])
    served = CalibratedModule(model, cal)

    program = torch.export.export(served, (images[:2],), dynamic_shapes=dynamic())
    torch.export.save(program, tmp_path / "served.pt2")
    probs, _, accept = torch.export.load(tmp_path / "served.pt2").module()(images[held])

    accept = accept.numpy()
    np.testing.assert_array_equal(accept, cal.accepts(logits[held]))
    np.testing.assert_allclose(probs.numpy(), cal.predict_proba(logits[held]), atol=1e-5)
    plain = (logits[held].argmax(axis=1) == labels[held]).mean()
    kept = (probs.numpy().argmax(axis=1) == labels[held])[accept].mean()
    assert 0.5 < accept.mean() < 1.0
    assert plain < 0.97 <= kept  # the network alone does not reach what the gate promises
