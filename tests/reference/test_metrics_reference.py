"""Other packages' numbers for the same sample.

scikit-learn is asked live. The others are golden values, printed by ``python -m
benchmarks.reference.metrics`` in an environment with the versions named beside each (numpy 2.4.6,
Python 3.11), on its seeded `sample()`: 2,100 rows of 5 classes.
"""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from metacal import metrics


@pytest.fixture(scope="module")
def sample():
    return importlib.import_module("benchmarks.reference.metrics").sample()


def test_the_sample_is_the_one_the_golden_values_came_from(sample):
    proba, labels = sample
    assert proba.shape == (2100, 5)
    assert metrics.accuracy(proba, labels) == pytest.approx(0.6866666666666666, abs=1e-15)


def test_ece(sample):
    # netcal 1.4.0, netcal.metrics.ECE(15).measure(proba, labels)
    assert metrics.ece(*sample) == pytest.approx(0.15454590439743032, abs=1e-14)
    # uncertainty-calibration 0.1.4, calibration.get_ece(proba, labels, num_bins=15)
    assert metrics.ece(*sample) == pytest.approx(0.1545459043974305, abs=1e-14)
    # torchmetrics 1.9.0 (torch 2.13.0), multiclass_calibration_error(norm="l1", n_bins=15): float32
    # inside
    assert metrics.ece(*sample) == pytest.approx(0.154545858502388, abs=1e-6)


def test_equal_mass_ece(sample):
    # uncertainty-calibration 0.1.4, calibration.get_ece_em(proba, labels, num_bins=15)
    assert metrics.ece_equal_mass(*sample) == pytest.approx(0.15537891755722094, abs=1e-14)


def test_root_mean_square_and_largest_gap(sample):
    # torchmetrics 1.9.0 (torch 2.13.0), multiclass_calibration_error(norm="l2" and "max",
    # n_bins=15)
    assert metrics.rms_calibration_error(*sample) == pytest.approx(0.15977203845977783, abs=1e-6)
    assert metrics.max_calibration_error(*sample) == pytest.approx(0.7407190799713135, abs=1e-6)
    # netcal 1.4.0, netcal.metrics.MCE(15).measure(proba, labels)
    assert metrics.max_calibration_error(*sample) == pytest.approx(0.7407191036327101, abs=1e-14)


def test_debiased_errors(sample):
    # uncertainty-calibration 0.1.4, lower_bound_scaling_top_ce(proba, labels, p=2, debias=True,
    # num_bins=15)
    ours = metrics.debiased_rms_calibration_error(*sample, 15, metrics.equal_mass)
    assert ours == pytest.approx(0.1574856914854615, abs=1e-14)
    # uncertainty-calibration 0.1.4, mean of 50 calls of get_ece_em(proba, labels, debias=True,
    # num_bins=15), seed 0: the peer samples what is a closed form here; its mean has a standard
    # error near 5e-5.
    ours = metrics.debiased_ece(*sample, 15, metrics.equal_mass)
    assert ours == pytest.approx(0.15509873765022003, abs=2e-4)


@pytest.mark.parametrize(
    ("bandwidth", "theirs"),
    # relplot 1.0.3, relplot.metrics.smECE_sigma(confidence, correct, bandwidth), on its mesh of 200
    # points
    [(0.02, 0.15007969512451735), (0.05, 0.13641735934683635), (0.1, 0.11689139076393683)],
)
def test_smooth_ece_at_fixed_bandwidths(sample, bandwidth, theirs, smooth_ece_at):
    assert smooth_ece_at(metrics.top_label(*sample), bandwidth) == pytest.approx(theirs, abs=3e-4)


def test_smooth_ece(sample):
    # relplot 1.0.3, relplot.metrics.smECE(confidence, correct): its bandwidth is found to 1/1024
    assert metrics.smooth_ece(*sample) == pytest.approx(0.11206533872514399, abs=5e-4)


def test_scikit_learn_agrees_on_proper_scores_and_ranking(sample):
    proba, labels = sample
    assert metrics.nll(proba, labels) == pytest.approx(log_loss(labels, proba), rel=1e-12)
    one_hot = np.eye(5)[labels]
    assert metrics.brier(proba, labels) == pytest.approx(
        ((proba - one_hot) ** 2).sum(axis=1).mean(), rel=1e-12
    )
    score, correct = np.round(1 - proba.max(axis=1), 2), proba.argmax(axis=1) == labels
    assert metrics.auroc(score, correct) == pytest.approx(roc_auc_score(~correct, score), rel=1e-12)


def test_scikit_learn_agrees_on_the_binary_brier_score(sample):
    from sklearn.metrics import brier_score_loss

    positive, outcome = sample[0][:, 0], sample[1] == 0
    table = np.column_stack((1 - positive, positive))
    # The multi-class score counts both columns: twice the binary one.
    assert metrics.brier(table, outcome) == pytest.approx(
        2 * brier_score_loss(outcome, positive), rel=1e-12
    )
