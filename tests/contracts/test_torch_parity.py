"""The torch module says what Python says: every calibrator, every score, every input type, on real
logits.

Probabilities agree to 1e-5 (float16 outputs to float16's own spacing), decisions on every row, the
calibration rows that sit on the threshold included. `METACAL_PARITY=full` takes all rows of all
sets and every score with every calibrator instead of a share.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import metacal as mc
from metacal.estimators import CALIBRATORS
from metacal.scores import NAMED
from metacal.scores.learned import LogisticRanker, PairwiseRanker

torch = pytest.importorskip("torch")
from metacal.export.torch import to_module  # noqa: E402

FULL = os.environ.get("METACAL_PARITY") == "full"
FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "data"
SETS = [*mc.datasets.names(), *(mc.datasets.names(folder=FOLDER) if FULL else ())]
#: What is chosen by cross-validation elsewhere is given here: the export does not depend on it.
OPTIONS = {
    name: {"regularisation": 1.0} for name in ("vector", "matrix", "dirichlet", "structured")
}
#: Half a spacing of float16 below one, and the step by which a tied winner is lifted.
FLOAT16 = 2.0**-12 + 2.0**-10

pytestmark = pytest.mark.filterwarnings("ignore::metacal.errors.MetacalWarning")


def read_set(name):
    return mc.datasets.load(name, folder=None if name in mc.datasets.names() else FOLDER)


def rows(name):
    """Rows to fit on, and rows to compare on: those and as many others."""
    data = read_set(name)
    order = np.random.default_rng(0).permutation(len(data.logits))
    n_fit = 5000 if FULL else (900 if data.logits.shape[1] == 10 else 500)
    fit, seen = order[:n_fit], order if FULL else order[: 2 * n_fit]
    return (data.logits[fit], data.labels[fit]), data.logits[seen]


def gate(name, calibrator, score, fit):
    # The two promises put the threshold on either side of a calibration score.
    exact = (
        mc.MaxMiscoverage(0.05)
        if score in ("margin", "energy")
        else mc.MinAccuracy(0.97 if fit[0].shape[1] == 10 else 0.8)
    )
    return mc.MetaCal(exact, calibrator=calibrator, score=score).fit(*fit)


def assert_same(cal, module, table):
    for dtype in (np.float32, np.float16, np.float64):
        block = table.astype(dtype)
        expected, accept = cal.predict_proba(block), cal.accepts(block)
        probs, score, decided = module(torch.from_numpy(block))
        assert str(probs.dtype) == f"torch.{np.dtype(dtype).name}"
        np.testing.assert_array_equal(decided.numpy(), accept)
        # The module's score is not rounded, Python's is: half a step of the grid, and a hair.
        np.testing.assert_allclose(
            score.numpy(), cal.ranking_scores(block), rtol=1.001 * 2**-31, atol=1.001 * 2**-31
        )
        assert 0 < accept.mean() < 1
        np.testing.assert_allclose(
            probs.double().numpy(), expected, rtol=0, atol=FLOAT16 if dtype == np.float16 else 1e-5
        )
        if dtype == np.float16:
            finer, _, _ = module(torch.from_numpy(block.astype(np.float32)))
            np.testing.assert_allclose(finer.numpy(), expected, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("calibrator", CALIBRATORS)
@pytest.mark.parametrize("name", SETS)
def test_every_calibrator_with_every_score(name, calibrator):
    fit, table = rows(name)
    names = list(NAMED)
    place = list(CALIBRATORS).index(calibrator)
    places = (place, place + 2) if name == SETS[0] else (place + 1,)
    for score in names if FULL else [names[at % len(names)] for at in places]:
        cal = gate(name, CALIBRATORS[calibrator](**OPTIONS.get(calibrator, {})), score, fit)
        assert_same(cal, to_module(cal), table)


@pytest.mark.parametrize(
    "ranker", [LogisticRanker(), PairwiseRanker()], ids=lambda r: type(r).__name__
)
def test_every_learned_score(ranker):
    fit, table = rows("cifar10-resnet110")
    data = read_set("cifar10-resnet110")
    ranker.fit(data.logits[-2000:], data.labels[-2000:])
    cal = gate("cifar10-resnet110", None, ranker, fit)
    assert_same(cal, to_module(cal), table)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
@pytest.mark.parametrize("score", ["entropy", "max_probability", "margin"])
def test_probabilities_as_input(score, dtype):
    (fit_x, fit_y), table = rows("cifar10-resnet110")

    def probabilities(logits):
        return (
            mc.TemperatureScaling()
            .fit(fit_x, fit_y)
            .predict_proba(logits.astype(np.float64))
            .astype(dtype)
        )

    promise = mc.MaxMiscoverage(0.05)
    cal = mc.MetaCal(promise, score=score, input="probabilities").fit(probabilities(fit_x), fit_y)
    module, block = to_module(cal), probabilities(table)
    probs, _, accept = module(torch.from_numpy(block))
    np.testing.assert_array_equal(accept.numpy(), cal.accepts(block))
    tolerance = FLOAT16 if dtype == np.float16 else 1e-5
    np.testing.assert_allclose(
        probs.double().numpy(), cal.predict_proba(block), rtol=0, atol=tolerance
    )


@pytest.mark.slow
def test_every_calibrator_after_the_automatic_choice():
    fit, table = rows("cifar10-resnet110")
    assert_same(cal := gate("", mc.AutoCalibrator(), "entropy", fit), to_module(cal), table)


def test_a_loaded_artifact_makes_the_same_module(tmp_path):
    fit, table = rows("cifar10-resnet110")
    cal = gate("", mc.BBQ(), "entropy", fit)
    mc.save(cal, tmp_path / "cal.json")
    first, second = (
        to_module(c)(torch.from_numpy(table)) for c in (cal, mc.load(tmp_path / "cal.json"))
    )
    assert all(torch.equal(a, b) for a, b in zip(first, second))


@pytest.mark.parametrize("calibrator", CALIBRATORS)
def test_masked_classes_and_two_classes(calibrator):
    (fit_x, fit_y), table = rows("cifar10-resnet110")
    three, labels = fit_x[fit_y < 3][:, :3], fit_y[fit_y < 3]
    two, pairs = fit_x[fit_y < 2][:, :2], fit_y[fit_y < 2]
    masked = table[:300, :3].copy()
    masked[np.arange(300), np.arange(300) % 3] = -np.inf
    masked[:20, 1:] = -np.inf
    masked[:20, 0] = 1.0
    for x, y, new in ((three, labels, masked), (two, pairs, table[:300, :2])):
        cal = CALIBRATORS[calibrator](**OPTIONS.get(calibrator, {})).fit(x, y)
        probs, _, accept = to_module(cal)(torch.from_numpy(new))
        assert accept.all()
        np.testing.assert_allclose(probs.numpy(), cal.predict_proba(new), rtol=0, atol=1e-5)
        assert (probs.numpy()[np.isneginf(new)] == 0.0).all()
