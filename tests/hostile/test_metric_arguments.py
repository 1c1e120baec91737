"""Metrics and displays given the wrong thing: what came, what is needed, what to do."""

from __future__ import annotations

import numpy as np
import pytest

from metacal import InputError, metrics
from metacal.metrics.ranking import RANKING
from metacal.metrics.registry import METRICS, PROBABILITIES, TOP_LABEL
from metacal.reports import plots

LOGITS = np.random.default_rng(0).standard_normal((40, 3)) * 3
LABELS = np.arange(40) % 3
PROBA = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
OF_TABLES = [metric for metric in METRICS.values() if metric.input in (PROBABILITIES, TOP_LABEL)]
OF_RANKINGS = [metric for metric in METRICS.values() if metric.input is RANKING]


def named(metric):
    return metric.name


@pytest.mark.parametrize("metric", OF_TABLES, ids=named)
def test_labels_before_the_table(metric):
    for call in (
        lambda: metric.function(LABELS, PROBA),
        lambda: metrics.interval(metric.function, LABELS, PROBA),
    ):
        with pytest.raises(InputError, match="proba and labels are"):
            call()


@pytest.mark.parametrize(
    "function", [metrics.evaluate, metrics.top_label, metrics.brier_decomposition]
)
def test_labels_before_the_table_elsewhere(function):
    with pytest.raises(InputError, match="swapped"):
        function(LABELS.tolist(), PROBA.tolist())


@pytest.mark.parametrize("metric", OF_TABLES, ids=named)
def test_logits_where_probabilities_belong(metric):
    with pytest.raises(InputError, match="softmax") as caught:
        metric.function(LOGITS, LABELS)
    assert "input=" not in str(caught.value)  # no metric has such an argument
    assert "row 0 holds" in str(caught.value)
    with pytest.raises(InputError, match=r"sums to 0\.5.*divided by their sums"):
        metric.function(PROBA / 2, LABELS)


@pytest.mark.parametrize(
    "metric", [metric for metric in OF_TABLES if metric.input is TOP_LABEL], ids=named
)
def test_columns_in_the_wrong_order(metric):
    top = metrics.top_label(PROBA, LABELS)
    with pytest.raises(InputError, match=r"Pass confidence first, then correct\."):
        metric.function(top.correct == 1, top.confidence)
    with pytest.raises(InputError, match="classes has no effect"):
        metric.function(*top, classes=["a", "b"])


def test_columns_that_only_look_swapped_are_taken():
    """A confidence of exactly 0 or 1 in every row is unusual, but floats may say it; fractions may
    be ties.
    """
    assert metrics.accuracy([1.0, 0.0], [0.5, 1.0]) == 0.75
    assert metrics.accuracy(np.array([1, 0]), np.array([1.0, 0.0])) == 0.5


@pytest.mark.parametrize("metric", OF_RANKINGS, ids=named)
def test_correct_before_the_score(metric):
    with pytest.raises(InputError, match=r"Pass score first, then correct\."):
        metric.function(LABELS == 0, PROBA[:, 0])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"binning": "equal_mass"}, "metacal.metrics.equal_mass"),
        ({"binning": [0.2, 0.5, 1]}, "increase from 0 to 1"),
        ({"binning": [0, 0.7, 0.5, 1]}, "increase from 0 to 1"),
        ({"binning": [0, np.nan, 1]}, "increase from 0 to 1"),
        ({"binning": lambda confidence, n_bins: [[0, 1]]}, "increase from 0 to 1"),
        ({"binning": 7}, "a list of edges"),
        ({"norm": 0.5}, r"at least 1 \(1: mean"),
        ({"norm": np.nan}, r"at least 1 \(1: mean"),
        ({"norm": "2"}, r"at least 1 \(1: mean"),
    ],
)
def test_bins_and_norms_that_are_none(options, words):
    with pytest.raises(InputError, match=words):
        metrics.ece(PROBA, LABELS, **options)


def test_infinite_scores_have_no_exponential_loss():
    with pytest.raises(InputError, match="finite scores, but row 1 holds"):
        metrics.exponential_ranking_loss([0.1, np.inf], [True, False])


def test_an_option_that_the_metric_has_not():
    with pytest.raises(
        InputError, match=r"ece has no option 'bins'\. Its options are proba, labels, n_bins"
    ):
        metrics.interval(metrics.ece, PROBA, LABELS, bins=5)
    with pytest.raises(InputError, match="nll has no option 'n_bins'"):
        metrics.interval(metrics.nll, PROBA, LABELS, n_bins=5)


@pytest.mark.parametrize(
    "display",
    [
        plots.ReliabilityDisplay,
        plots.ConfidenceHistogramDisplay,
        plots.RiskCoverageDisplay,
        plots.ThresholdDisplay,
    ],
)
def test_displays_say_which_they_are_and_what_they_take(display):
    name = display.__name__
    with pytest.raises(AttributeError, match="unexpected keyword argument 'bins'"):
        display.from_predictions(LABELS, PROBA, bins=5)
    with pytest.raises(InputError, match=rf"{name}.from_estimator requires.*ndarray"):
        display.from_estimator(LOGITS, LABELS, None)
    with pytest.raises(InputError, match=rf"{name}.summary. requires.*ndarray.*from_predictions"):
        display(PROBA)
