"""The marginal check: its size on new and on fitted rows, and that it sees what the ECE of the top
label hides.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.special import expit, softmax

import metacal as mc
from metacal.maps.composed import fit_composed
from metacal.maps.temperature import fit_temperature
from metacal.metrics import marginal_check
from metacal.metrics.marginal import check_predicted_classes
from metacal.rows import Rows


def drawn(seed, n, n_classes, spread=2.0, offset=0.0):
    """Logits whose softmax is the truth, and labels; the first class is rarer by an offset."""
    random = np.random.default_rng([7, seed, n, n_classes])
    logits = random.normal(0.0, spread, (n, n_classes))
    logits[:, 0] -= offset
    return logits, (logits + random.gumbel(size=logits.shape)).argmax(axis=1)


@pytest.mark.parametrize(
    ("n", "n_classes", "spread", "offset"),
    [(500, 2, 2.0, 0.0), (500, 2, 1.5, 5.0), (800, 12, 3.0, 0.0)],
)
def test_size_on_new_rows(n, n_classes, spread, offset):
    off = 0
    for seed in range(300):
        logits, labels = drawn(seed, n, n_classes, spread, offset)
        off += marginal_check(softmax(logits, axis=1), labels).off
    assert 0.03 * 300 - 6 <= off <= 0.05 * 300 + 3 * np.sqrt(300 * 0.05 * 0.95)


@pytest.mark.parametrize(
    "fit", [fit_temperature, pytest.param(fit_composed, marks=pytest.mark.slow)]
)
def test_size_on_rows_of_the_fit(fit):
    off = 0
    for seed in range(200):
        logits, labels = drawn(seed, 600, 2)
        proba = fit(Rows(3.0 * logits), labels)(3.0 * logits)
        off += marginal_check(proba, labels, fitted=True).off
    assert 2 <= off <= 0.05 * 200 + 3 * np.sqrt(200 * 0.05 * 0.95)


def test_rare_positives_do_not_alarm_and_no_residual_enters_the_variance():
    random, off = np.random.default_rng(3), 0
    for _ in range(200):
        rare = expit(random.normal(-6.5, 1.0, 1000))
        off += marginal_check(
            np.stack([1.0 - rare, rare], axis=1), (random.random(1000) < rare).astype(int)
        ).off
    assert off <= 0.05 * 200 + 3 * np.sqrt(200 * 0.05 * 0.95)


def test_an_offset_that_the_ece_hides_is_found_and_named():
    random = np.random.default_rng(0)
    sure, predicted = random.uniform(0.6, 0.95, 4000), random.integers(2, size=4000)
    correct = random.random(4000) < sure + np.where(predicted == 0, 0.05, -0.05)
    assert mc.metrics.debiased_ece(sure, correct.astype(float)) < 0.005
    for fitted in (False, True):
        found = check_predicted_classes(
            sure, correct, predicted, classes=["ham", "spam"], fitted=fitted
        )
        assert found.to_dict()["fails"]
        assert found.gap == pytest.approx(0.05, abs=0.02)
        assert found.worst in ("ham", "spam")


def test_nothing_to_go_by_is_no_verdict():
    found = check_predicted_classes(
        np.array([0.99, 0.999]), np.array([1.0, 1.0]), np.array([0, 1]), classes=None, fitted=False
    )
    assert (found.dof, found.p_value, found.fails) == (0.0, 1.0, False)
    assert "cannot tell" in str(found)


def test_fit_notes_a_wrong_offset_and_evaluate_and_the_report_say_it():
    logits, labels = drawn(1, 6000, 2)
    shifted = logits + np.array([1.5, 0.0])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        cal = mc.MetaCal(mc.MaxMiscoverage(0.1), calibrator=mc.TemperatureScaling()).fit(
            shifted[:3000], labels[:3000]
        )
    assert any("for some predicted classes" in str(one.message) for one in told)
    assert "off_by_class" in [note.kind for note in cal.certificate_.notes]
    found = mc.evaluate(cal, shifted[3000:], labels[3000:], n_resamples=0)
    assert found.after.marginal.fails
    assert "for some predicted classes" in found.to_dict()["calibration"]
    honest = mc.MetaCal(mc.MaxMiscoverage(0.1), calibrator=mc.TemperatureScaling()).fit(
        logits[:3000], labels[:3000]
    )
    assert "off_by_class" not in [note.kind for note in honest.certificate_.notes]
    assert not mc.evaluate(honest, logits[3000:], labels[3000:], n_resamples=0).after.marginal.off


def test_many_classes_are_checked_by_one_thread(monkeypatch):
    """On a busy machine, several threads of OpenBLAS take a hundred times as long as one."""
    threadpoolctl = pytest.importorskip("threadpoolctl")

    def count_threads():
        pools = threadpoolctl.threadpool_info()
        return [pool["num_threads"] for pool in pools if pool["user_api"] == "blas"]

    before, inside = count_threads(), []
    decompose = np.linalg.eigh

    def count_and_decompose(matrix):
        inside.append(count_threads())
        return decompose(matrix)

    monkeypatch.setattr(np.linalg, "eigh", count_and_decompose)
    logits, labels = drawn(0, 4000, 60)
    proba = softmax(logits, axis=1)
    predicted = proba.argmax(axis=1)
    check_predicted_classes(
        proba.max(axis=1), predicted == labels, predicted, classes=None, fitted=True
    )
    assert len(inside) == 1
    assert set(inside[0]) == {1}
    assert count_threads() == before
