"""Gate metrics against enumeration, over every order of tied rows where there are ties."""

from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np
import pytest

from metacal import metrics
from metacal.errors import InputError

TIED = ([0.1, 0.4, 0.4, 0.4, 0.7, 0.7], [True, False, True, True, True, False])


def over_tie_orders(score, correct, area):
    """Mean of an area over all orders of the rows that respect the scores."""
    values = []
    for order in permutations(range(len(score))):
        if all(score[a] <= score[b] for a, b in pairwise(order)):
            values.append(area([not correct[row] for row in order]))
    return np.mean(values)


def plain_aurc(wrong):
    return np.mean([sum(wrong[:m]) / m for m in range(1, len(wrong) + 1)])


def plain_augrc(wrong):
    n = len(wrong)
    joint = np.array([sum(wrong[:m]) / n for m in range(n + 1)])
    return ((joint[1:] + joint[:-1]) / 2).mean()


def test_gate_numbers_by_hand():
    accept = [True, True, True, False, False]
    correct = [True, True, False, True, False]
    assert metrics.coverage(accept) == 0.6
    assert metrics.miscoverage(accept, correct) == metrics.type_1_error(accept, correct) == 1 / 3
    assert metrics.selective_accuracy(accept, correct) == 2 / 3
    assert metrics.type_2_error(accept, correct) == 0.5


def test_empty_denominators_are_nan():
    assert np.isnan(metrics.selective_accuracy([False, False], [True, False]))
    assert np.isnan(metrics.miscoverage([True], [False]))
    assert np.isnan(metrics.type_2_error([True], [True]))
    assert np.isnan(metrics.auroc([0.1, 0.2], [True, True]))
    assert np.isnan(metrics.auroc([0.1, 0.2], [False, False]))


def test_areas_are_the_mean_over_tie_orders():
    assert metrics.aurc(*TIED) == pytest.approx(over_tie_orders(*TIED, plain_aurc), abs=1e-14)
    assert metrics.augrc(*TIED) == pytest.approx(over_tie_orders(*TIED, plain_augrc), abs=1e-14)
    oracle = plain_aurc([False] * 4 + [True] * 2)
    assert metrics.e_aurc(*TIED) == pytest.approx(
        over_tie_orders(*TIED, plain_aurc) - oracle, abs=1e-14
    )


def test_a_constant_score_gives_the_error_rate():
    correct = [True, False, True, False, False]
    assert metrics.aurc([1.0] * 5, correct) == pytest.approx(0.6)
    assert metrics.augrc([1.0] * 5, correct) == pytest.approx(0.3)
    assert metrics.auroc([1.0] * 5, correct) == 0.5


def test_curve_has_one_point_per_distinct_score():
    curve = metrics.risk_coverage_curve(*TIED)
    np.testing.assert_array_equal(curve.threshold, [0.1, 0.4, 0.7])
    np.testing.assert_allclose(curve.coverage, [1 / 6, 4 / 6, 1])
    np.testing.assert_allclose(curve.risk, [0, 1 / 4, 2 / 6])
    np.testing.assert_allclose(curve.generalized_risk, curve.coverage * curve.risk)


def test_augrc_identity_of_traub_et_al():
    random = np.random.default_rng(4)
    score, correct = np.round(random.random(300), 1), random.random(300) < 0.7
    accuracy = correct.mean()
    identity = (1 - metrics.auroc(score, correct)) * accuracy * (1 - accuracy) + (
        1 - accuracy
    ) ** 2 / 2
    assert metrics.augrc(score, correct) == pytest.approx(identity, abs=1e-14)


def test_infinite_scores_rank_last():
    assert metrics.auroc([0.0, np.inf], [True, False]) == 1.0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: metrics.coverage([0.5]), "True or False"),
        (lambda: metrics.miscoverage([True], [True, False]), "same number of rows"),
        (lambda: metrics.aurc([np.nan], [True]), "NaN"),
        (lambda: metrics.aurc([0.1, 0.2], [0.5, 1]), "argmax"),
        (lambda: metrics.coverage([]), "at least one row"),
    ],
)
def test_bad_columns_are_refused(call, words):
    with pytest.raises(InputError, match=words):
        call()
