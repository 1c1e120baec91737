"""Other packages' numbers for the affine calibrators on real logits.

scikit-learn is asked live. The others are golden values, printed by ``python -m
benchmarks.reference.affine`` with the versions named beside each: the mean negative log-likelihood
on rows 5,000 to 15,000 of cifar10-resnet110 after fitting on the first 5,000, in float64.
"""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from metacal.estimators.temperature import TemperatureScaling
from metacal.maps.affine import (
    fit_dirichlet_calibration,
    fit_matrix_scaling,
    fit_structured_scaling,
    fit_vector_scaling,
)
from metacal.maps.ensemble import fit_ensemble_temperature
from metacal.maps.fitting import penalties
from metacal.metrics import nll
from metacal.rows import Rows


@pytest.fixture(scope="module")
def script():
    return importlib.import_module("benchmarks.reference.affine")


@pytest.fixture(scope="module")
def loss_of(script):
    logits, labels = script.sample()
    n = script.N_FIT

    def held_out(fit, **options):
        fitted = fit(Rows(logits[:n]), labels[:n], **options)
        return nll(fitted(logits[n:]), labels[n:])

    return held_out


def test_the_temperature_is_the_one_the_golden_values_used(script):
    logits, labels = script.sample()
    fitted = TemperatureScaling().fit(logits[: script.N_FIT], labels[: script.N_FIT])
    assert fitted.temperature_ == pytest.approx(script.TEMPERATURE, rel=1e-9)


def test_ensemble_temperature(script, loss_of):
    logits, labels = script.sample()
    # probmetrics 1.3.0, ETSCalibrator(loss="ce"): T, weights, and the held-out loss
    fit = fit_ensemble_temperature(Rows(logits[: script.N_FIT]), labels[: script.N_FIT])
    assert fit.temperature == pytest.approx(2.7706937413511343, rel=1e-7)
    np.testing.assert_allclose(fit.weights, [1.0, 0.0, 0.0], atol=1e-6)
    assert loss_of(fit_ensemble_temperature) == pytest.approx(0.22505458685965135, abs=1e-8)
    # probmetrics 1.3.0, ETSCalibrator(loss="mse")
    fit = fit_ensemble_temperature(Rows(logits[: script.N_FIT]), labels[: script.N_FIT], loss="mse")
    assert fit.temperature == pytest.approx(2.883169517975009, rel=1e-6)
    assert loss_of(fit_ensemble_temperature, loss="mse") == pytest.approx(
        0.22529368667935074, abs=1e-8
    )


def test_vector_scaling_without_penalty(loss_of):
    # probmetrics 1.3.0 (torch 2.13.0), VectorScalingCalibrator: logits that are not centred, but
    # here nearly are
    assert loss_of(fit_vector_scaling, regularisation=0.0) == pytest.approx(
        0.22218491705354723, abs=5e-5
    )


def test_matrix_scaling_without_penalty(loss_of):
    # probmetrics 1.3.0 (torch 2.13.0), MatrixScalingCalibrator: not centred, and no penalty of a
    # thousandth of a row
    assert loss_of(fit_matrix_scaling, regularisation=0.0) == pytest.approx(
        0.22627575549993295, abs=1e-4
    )


def test_structured_scaling(loss_of):
    # probmetrics 1.3.0, SVSCalibrator(): the same but for its temperature, which is mixed with
    # Laplace smoothing
    assert loss_of(fit_structured_scaling, regularisation=1.0) == pytest.approx(
        0.22162382304668427, abs=2e-4
    )


def test_structured_matrix_scaling(loss_of):
    # probmetrics 1.3.0, SMSCalibrator(): on log-probabilities, that is our Dirichlet map with the
    # structured penalty; what is left is the Laplace smoothing of its temperature.
    assert loss_of(fit_dirichlet_calibration, regularisation=1.0) == pytest.approx(
        0.22001250104814654, abs=2e-4
    )
    assert loss_of(fit_matrix_scaling, regularisation=1.0) == pytest.approx(
        0.22001250104814654, abs=1e-3
    )


@pytest.mark.slow
def test_dirichlet_calibration(loss_of):
    # dirichletcal 0.5.3 (jax 0.12.0.1), FullDirichletCalibrator(ref_row=False) with reg_lambda =
    # λK(K-1)T²/n and reg_mu = λK/n; ours holds the diagonal by a tenth of a row.
    assert loss_of(fit_dirichlet_calibration, penalty="odir", regularisation=1.0) == pytest.approx(
        0.22068563895353327, abs=2e-5
    )
    assert loss_of(fit_dirichlet_calibration, penalty="odir", regularisation=0.01) == pytest.approx(
        0.22628732181293154, abs=1e-4
    )


def test_matrix_scaling_is_a_logistic_regression(script, monkeypatch):
    monkeypatch.setattr(penalties, "_MIN_STRENGTH", 0.0)  # scikit-learn's intercept is wholly free
    logits, labels = script.sample()
    logits, labels = logits[:1000], labels[:1000]
    centred = logits - logits.mean(axis=1, keepdims=True)
    temperature = TemperatureScaling().fit(logits, labels).temperature_
    for strength in (10.0, 0.5):
        peer = LogisticRegression(C=1.0 / (2.0 * strength), tol=1e-8, max_iter=5000).fit(
            centred / temperature, labels
        )
        ours = fit_matrix_scaling(
            Rows(logits),
            labels,
            penalty="l2",
            regularisation=strength,
            intercept_regularisation=0.0,
        )
        np.testing.assert_allclose(
            ours(logits), peer.predict_proba(centred / temperature), atol=1e-4
        )
