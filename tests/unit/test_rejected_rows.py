"""Probabilities of rejected rows: calibrated by default, 1/K for the map of the paper."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import metacal as mc
from metacal.cli import main
from metacal.io import write_table

PROMISE = mc.MinAccuracy(0.93)


@pytest.fixture(scope="module")
def churn():
    """Scores of a classifier that is wrong on one row of six, and two classes with names."""
    rng = np.random.default_rng(1)
    log_odds = rng.normal(-1.0, 2.5, size=4000)
    is_yes = rng.random(4000) < 1.0 / (1.0 + np.exp(-log_odds))
    return 1.5 * log_odds, np.where(is_yes, "Yes", "No")


@pytest.fixture(scope="module")
def cifar10():
    return mc.datasets.load("cifar10-resnet110")


@pytest.fixture(scope="module")
def ten(cifar10):
    return mc.MetaCal(mc.MinAccuracy(0.97)).fit(cifar10.logits[:3000], cifar10.labels[:3000])


@pytest.fixture(scope="module")
def of_paper(cifar10):
    promise = mc.paper.MinCoverageAccuracy(0.97, random_state=0)
    return mc.MetaCal(promise).fit(cifar10.logits[:3000], cifar10.labels[:3000])


@pytest.mark.parametrize(
    "promise",
    [
        PROMISE,
        mc.MaxMiscoverage(0.2),
        mc.MinPrecision(0.85, positive="Yes"),
        mc.TwoSided(mc.MinPrecision(0.8, positive="Yes"), mc.MinPrecision(0.9, positive="No")),
    ],
    ids=lambda promise: type(promise).__name__,
)
def test_a_promise_does_not_change_the_probabilities(churn, promise):
    scores, labels = churn
    fit, new = slice(2000), slice(2000, None)
    plain = mc.MonotoneCalibration(positive="Yes").fit(scores[fit], labels[fit])
    gate = mc.MetaCal(promise, positive="Yes").fit(scores[fit], labels[fit])
    accept = gate.accepts(scores[new])
    assert 0.05 < accept.mean() < 0.95
    is_yes = labels[new] == "Yes"
    expected = plain.predict_proba(scores[new])[:, 1]
    found = gate.predict_proba(scores[new])[:, 1]
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert roc_auc_score(is_yes, found) == roc_auc_score(is_yes, expected)
    assert (found == 0.5).mean() == 0.0
    paper = gate.predict_proba(scores[new], rejected="uniform")[:, 1]
    assert (paper == 0.5).mean() == (~accept).mean()
    assert roc_auc_score(is_yes, paper) < roc_auc_score(is_yes, expected) - 0.005


def test_python_answers_the_same_everywhere(ten, cifar10):
    logits = cifar10.logits[3000:5000]
    accept = ten.accepts(logits)
    assert 0 < accept.sum() < len(accept)
    for rejected in (None, "calibrated", "uniform"):
        expected = ten.decide(logits, rejected=rejected).probabilities
        np.testing.assert_array_equal(ten.predict_proba(logits, rejected=rejected), expected)
        np.testing.assert_array_equal(ten.gate_(logits, rejected=rejected), expected)
        is_uniform = (expected == np.float32(0.1)).all(axis=1)
        np.testing.assert_array_equal(is_uniform, ~accept if rejected == "uniform" else False)
    with pytest.raises(mc.InputError, match="rejected"):
        ten.predict_proba(logits, rejected="unifrom")


def test_the_rules_of_the_paper_have_the_map_of_the_paper(of_paper, cifar10, tmp_path):
    logits = cifar10.logits[3000:5000]
    accept = of_paper.accepts(logits)
    assert 0 < accept.sum() < len(accept)
    proba = of_paper.predict_proba(logits)
    assert (proba[~accept] == np.float32(0.1)).all()
    assert not (of_paper.predict_proba(logits, rejected="calibrated") == np.float32(0.1)).any()
    of_paper.save(tmp_path / "gate.json")
    loaded = mc.load(tmp_path / "gate.json")
    np.testing.assert_array_equal(loaded.predict_proba(logits), proba)
    np.testing.assert_array_equal(loaded.decide(logits).probabilities, proba)


@pytest.mark.parametrize("rejected", [None, "calibrated", "uniform"])
@pytest.mark.parametrize("gate_name", ["ten", "of_paper"])
def test_exports_have_the_probabilities_of_python(request, gate_name, rejected, cifar10):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    torch = pytest.importorskip("torch")
    from metacal.export.onnx import to_onnx
    from metacal.export.torch import to_module

    cal = request.getfixturevalue(gate_name)
    logits = np.concatenate([cifar10.logits[3000:3500], np.full((1, 10), np.nan)])
    logits = logits.astype(np.float32)
    # Python refuses a row without a number; an exported gate rejects it, with 1/K in every class.
    expected = np.full((501, 10), 0.1)
    expected[:500] = cal.predict_proba(logits[:500], rejected=rejected)
    model = to_onnx(cal, rejected=rejected)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    probs, _, accept = session.run(None, {"logits": logits})
    np.testing.assert_allclose(probs, expected, atol=1e-5)
    np.testing.assert_array_equal(accept[:500], cal.accepts(logits[:500]))
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    chosen = rejected or ("uniform" if gate_name == "of_paper" else "calibrated")
    assert metadata["metacal.rejected"] == chosen
    probs, _, accept = to_module(cal, rejected=rejected)(torch.from_numpy(logits))
    np.testing.assert_allclose(probs.numpy(), expected, atol=1e-5)
    np.testing.assert_array_equal(accept[:500].numpy(), cal.accepts(logits[:500]))


@pytest.mark.parametrize("gate_name", ["ten", "of_paper"])
def test_evaluate_measures_what_apply_writes(request, gate_name, cifar10, tmp_path, capsys):
    cal = request.getfixturevalue(gate_name)
    logits, labels = cifar10.logits[3000:5000], cifar10.labels[3000:5000]
    cal.save(tmp_path / "gate.json")
    write_table(tmp_path / "new.npz", {"logits": logits, "labels": labels})
    files = [str(tmp_path / name) for name in ("gate.json", "new.npz", "out.npz")]
    main(["apply", *files[:2], "-o", files[2]], standalone_mode=False)
    with np.load(files[2]) as written:
        probabilities, accept = written["probs"], written["accept"]
    capsys.readouterr()
    main(["evaluate", *files[:2], "--json"], standalone_mode=False)
    measured = json.loads(capsys.readouterr().out)
    expected = mc.metrics.evaluate(
        probabilities, labels, accept=accept, correct=logits.argmax(axis=1) == labels
    )
    for name in ("ece", "nll", "brier", "accuracy"):
        assert measured["all_rows"][name]["estimate"] == expected.all_rows[name].estimate
    is_paper_map = gate_name == "of_paper"
    assert measured["is_paper_map"] == expected.is_paper_map == is_paper_map
    main(["evaluate", *files[:2]], standalone_mode=False)
    assert ("paper's map" in capsys.readouterr().out) == is_paper_map
