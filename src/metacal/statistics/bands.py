"""Simultaneous confidence bands: bounds that hold at every threshold at once.

You may therefore choose a threshold after looking at the band.

Bands on miscoverage and coverage rest on order statistics (`distribution_band`). Bands on the
selective accuracy rest on a martingale (`selective_accuracy`, with its proof). The only assumption
is that the rows are independent draws from one source.

Throughout, *miscoverage* (false rejection rate) is F0(t) = P(score > t | correct), and the selective
accuracy is F1(t) = P(correct | score <= t).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from metacal.formulas import Float
from metacal.rows.arrays import check_fraction
from metacal.statistics.accepted_counts import (
    check_correct,
    check_scores,
    count_accepted,
    find_candidate_thresholds,
)
from metacal.statistics.band import (
    Band as Band,
)
from metacal.statistics.band import (
    compute_band_on_accuracy,
    compute_band_on_share_above,
    resolve_thresholds,
)
from metacal.statistics.distribution_band import DistributionBand
from metacal.statistics.levels import local_level, uniform_order_statistic_quantiles
from metacal.statistics.selective_accuracy import (
    bound_selective_accuracy,
    certifies_selective_accuracy,
)


def miscoverage_band(
    right_scores: ArrayLike, delta: float = 0.1, thresholds: ArrayLike | None = None
) -> Band:
    """Compute a confidence band on the miscoverage from the scores of correct rows.

    The band consists of two one-sided bands on the distribution of the scores, at delta/2 each.

    Parameters
    ----------
    right_scores : array-like
        Scores of the correct rows.
    delta : float, default=0.1
        Probability that the true miscoverage leaves the band anywhere.
    thresholds : array-like, optional
        Thresholds of the band. By default all scores.

    Returns
    -------
    Band

    Examples
    --------
    >>> band = miscoverage_band(np.arange(1000.0), thresholds=[899.0, 949.0])
    >>> band.lower.round(4), band.estimate, band.upper.round(4)
    (array([0.0734, 0.0315]), array([0.1 , 0.05]), array([0.1319, 0.0745]))
    """
    check_fraction("delta", delta)
    score_distribution = DistributionBand.from_draws(check_scores(right_scores))
    return compute_band_on_share_above(
        score_distribution, thresholds, delta, lower_delta=delta / 2, upper_delta=delta / 2
    )


def accuracy_band(
    scores: ArrayLike, correct: ArrayLike, delta: float = 0.1, thresholds: ArrayLike | None = None
) -> Band:
    """Compute a confidence band on the accuracy P(correct | score <= t).

    Both sides are proved for independent rows from one source (`selective_accuracy`). The accuracy
    may rise and fall with the score in any way, and scores may tie. Each side has delta/2.

    Parameters
    ----------
    scores : array-like
        Score of each row.
    correct : array-like of bool
        Whether each prediction is correct.
    delta : float, default=0.1
        Probability that the true accuracy leaves the band anywhere.
    thresholds : array-like, optional
        Thresholds of the band. By default all scores.

    Returns
    -------
    Band

    Examples
    --------
    >>> band = accuracy_band(np.arange(1000.0), np.arange(1000) % 50 != 49, thresholds=[499.0, 999.0])
    >>> band.lower.round(3), band.estimate, band.upper.round(3)
    (array([0.956, 0.964]), array([0.98, 0.98]), array([0.993, 0.99 ]))
    """
    check_fraction("delta", delta)
    band_thresholds = resolve_thresholds(thresholds, default_scores=check_scores(scores))
    accepted_counts = count_accepted(scores, correct, band_thresholds)
    return compute_band_on_accuracy(
        accepted_counts, band_thresholds, delta, lower_delta=delta / 2, upper_delta=delta / 2
    )


def coverage_band(
    scores: ArrayLike, delta: float = 0.1, thresholds: ArrayLike | None = None
) -> Band:
    """Compute a confidence band on the coverage P(score <= t).

    It consists of two one-sided bands, at delta/2 each.

    Parameters
    ----------
    scores : array-like
        Score of each row.
    delta : float, default=0.1
        Probability that the true coverage leaves the band anywhere.
    thresholds : array-like, optional
        Thresholds of the band. By default all scores.

    Returns
    -------
    Band

    Examples
    --------
    >>> band = coverage_band(np.arange(1000.0), thresholds=[499.0])
    >>> band.lower.round(3), band.estimate, band.upper.round(3)
    (array([0.452]), array([0.5]), array([0.548]))
    """
    check_fraction("delta", delta)
    score_distribution = DistributionBand.from_draws(check_scores(scores))
    band_thresholds = resolve_thresholds(thresholds, default_scores=score_distribution.sorted_draws)
    return Band(
        threshold=band_thresholds,
        lower=score_distribution.lower_bound_on_cdf(band_thresholds, delta / 2),
        estimate=score_distribution.count_draws_at_most(band_thresholds)
        / score_distribution.n_draws,
        upper=score_distribution.upper_bound_on_cdf(band_thresholds, delta / 2),
        delta=delta,
    )


def certified_miscoverage(
    right_scores: ArrayLike, thresholds: ArrayLike, delta: float = 0.1
) -> Float:
    """Compute simultaneous upper bounds on the miscoverage.

    They hold at every threshold at once. They are the upper side of `miscoverage_band`, with all of
    delta.
    """
    check_fraction("delta", delta)
    threshold_array = np.asarray(thresholds, dtype=np.float64)
    score_distribution = DistributionBand.from_draws(check_scores(right_scores))
    return np.asarray(1.0 - score_distribution.lower_bound_on_cdf(threshold_array, delta))


def certified_accuracy(
    scores: ArrayLike, correct: ArrayLike, thresholds: ArrayLike, delta: float = 0.1
) -> Float:
    """Compute simultaneous lower bounds on the selective accuracy.

    They hold at every threshold at once. They are the lower side of `accuracy_band`, with all of
    delta.

    Parameters
    ----------
    scores : array-like
        Score of each row.
    correct : array-like of bool
        Whether each prediction is correct.
    thresholds : array-like
        Thresholds of the bounds.
    delta : float, default=0.1
        Probability that any of the bounds fails.

    Returns
    -------
    array
    """
    check_fraction("delta", delta)
    n_correct, n_incorrect, n_rows = count_accepted(scores, correct, thresholds)
    return bound_selective_accuracy(n_correct, n_incorrect, n_rows, delta)


def largest_supporting_threshold(
    scores: ArrayLike, correct: ArrayLike, accuracy: float, delta: float
) -> float | None:
    """Find the largest threshold that is certified to have an accuracy.

    `certified_accuracy` is then at least `accuracy`. Returns None if there is no such score. The
    bounds hold at every threshold at once with probability 1 - delta.

    Examples
    --------
    >>> correct = np.arange(1000) < 900
    >>> largest_supporting_threshold(np.arange(1000.0), correct, 0.97, 0.1)
    914.0
    """
    check_fraction("delta", delta)
    score_array = check_scores(scores)
    is_correct = check_correct(correct)
    candidate_thresholds = find_candidate_thresholds(score_array, is_correct)
    n_correct, n_incorrect, n_rows = count_accepted(score_array, is_correct, candidate_thresholds)
    is_certified = certifies_selective_accuracy(
        n_correct, n_incorrect, n_rows=n_rows, accuracy=accuracy, delta=delta
    )
    if not is_certified.any():
        return None
    return float(candidate_thresholds[is_certified].max())


def certified_miscoverage_from_counts(n_accepted: int, n_correct: int, delta: float) -> float:
    """Compute an upper bound on the miscoverage from counts of correct rows.

    The bound is that of `certified_miscoverage`.

    >>> round(certified_miscoverage_from_counts(950, 1000, 0.1), 4)
    0.0721
    """
    level_per_bound = local_level(n_correct, delta)
    (min_acceptance_rate,) = uniform_order_statistic_quantiles(
        np.array([n_accepted]), n_correct, level_per_bound
    )
    return 1.0 - float(min_acceptance_rate)


def certified_accuracy_from_counts(
    n_correct: int, n_incorrect: int, n_rows: int, delta: float
) -> float:
    """Compute a lower bound on the accuracy from the numbers of accepted rows.

    The bound is that of `certified_accuracy`.

    >>> round(certified_accuracy_from_counts(980, 20, 1000, 0.1), 4)
    0.9662
    """
    (min_accuracy,) = bound_selective_accuracy(
        np.array([n_correct]), np.array([n_incorrect]), n_rows, delta
    )
    return float(min_accuracy)


@dataclass(frozen=True, eq=False)
class OperatingBands:
    """Jointly valid bands on miscoverage, selective accuracy and coverage.

    Attributes
    ----------
    miscoverage, accuracy, coverage : Band
        Bands over the same thresholds.
    delta : float
        Probability that any of the true curves leaves its band anywhere.
    """

    miscoverage: Band
    accuracy: Band
    coverage: Band
    delta: float


def operating_bands(
    scores: ArrayLike, correct: ArrayLike, delta: float, thresholds: ArrayLike
) -> OperatingBands:
    """Compute jointly valid bands on miscoverage, accuracy and coverage.

    Half of delta is spent on the sides that a promise uses (miscoverage from above, accuracy from
    below), and half on the others.

    Parameters
    ----------
    scores : array-like
        Score of each row.
    correct : array-like of bool
        Whether each prediction is correct.
    delta : float
        Probability that any of the true curves leaves its band anywhere.
    thresholds : array-like
        Thresholds of the bands.

    Returns
    -------
    OperatingBands

    Examples
    --------
    >>> bands = operating_bands(np.arange(1000.0), np.arange(1000) % 50 != 49, 0.1, [899.0])
    >>> bands.accuracy.lower.round(3), bands.miscoverage.upper.round(3), bands.coverage.lower.round(3)
    (array([0.962]), array([0.135]), array([0.863]))
    """
    check_fraction("delta", delta)
    score_array = check_scores(scores)
    is_correct = check_correct(correct)
    band_thresholds = np.asarray(thresholds, dtype=np.float64)
    # The two bounds that promises use have level delta/4 each, and all other bounds delta/8 each.
    promised_side_delta = delta / 4
    other_side_delta = delta / 8
    accepted_counts = count_accepted(score_array, is_correct, band_thresholds)
    accuracy_bounds = compute_band_on_accuracy(
        accepted_counts,
        thresholds=band_thresholds,
        delta=delta,
        lower_delta=promised_side_delta,
        upper_delta=other_side_delta,
    )
    correct_score_distribution = DistributionBand.from_draws(score_array[is_correct])
    miscoverage_bounds = compute_band_on_share_above(
        correct_score_distribution,
        thresholds=band_thresholds,
        delta=delta,
        lower_delta=other_side_delta,
        upper_delta=promised_side_delta,
    )
    coverage_delta = delta / 4
    coverage_bounds = coverage_band(score_array, delta=coverage_delta, thresholds=band_thresholds)
    return OperatingBands(
        miscoverage=miscoverage_bounds,
        accuracy=accuracy_bounds,
        coverage=coverage_bounds,
        delta=delta,
    )


@dataclass(frozen=True, eq=False)
class CertifiedFrontier:
    """Pairs of an accuracy and a miscoverage that are certified together.

    Attributes
    ----------
    beta : array
        Certified selective accuracies, rising.
    alpha : array
        Smallest miscoverage that is certified together with each accuracy, rising.
    threshold : array
        Threshold at which each pair is certified, falling.
    delta : float
        Probability that any of the pairs fails.
    """

    beta: Float
    alpha: Float
    threshold: Float
    delta: float

    def best_accuracy(self, alpha: float) -> float:
        """Return the largest accuracy that is certified at a miscoverage, 0 if none is."""
        n_allowed_pairs = int(np.searchsorted(self.alpha, alpha, side="right"))
        if n_allowed_pairs == 0:
            return 0.0
        # Accuracy and miscoverage rise along the frontier, so the last allowed pair is the best.
        last_allowed_index = n_allowed_pairs - 1
        return float(self.beta[last_allowed_index])


def certified_frontier(
    scores: ArrayLike,
    correct: ArrayLike,
    delta: float = 0.1,
    thresholds: ArrayLike | None = None,
    share: float = 0.5,
) -> CertifiedFrontier:
    """Compute the smallest miscoverage that is certified together with each accuracy.

    The miscoverage is bounded from above and the accuracy from below, at every threshold at once
    and at delta/2 each. By the union bound all pairs of bounds hold together. The frontier has the
    pairs that no other pair improves in both respects.

    Parameters
    ----------
    scores : array-like
        Score of each row.
    correct : array-like of bool
        Whether each prediction is correct.
    delta : float, default=0.1
        Probability that any pair fails.
    thresholds : array-like, optional
        Thresholds to consider. By default all scores.
    share : float, default=0.5
        Share of delta of each bound. With a share of 1, either all bounds on the miscoverage or all
        bounds on the accuracy hold at level delta, not both.

    Returns
    -------
    CertifiedFrontier

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.random(5000)
    >>> frontier = certified_frontier(scores, rng.random(5000) > scores**3 / 2)
    >>> round(float(frontier.alpha[np.searchsorted(frontier.beta, 0.95)]), 2), round(frontier.best_accuracy(0.3), 2)
    (0.28, 0.95)
    """
    check_fraction("delta", delta)
    score_array = check_scores(scores)
    is_correct = check_correct(correct)
    if thresholds is None:
        rising_thresholds = find_candidate_thresholds(score_array, is_correct)
    else:
        rising_thresholds = np.unique(np.asarray(thresholds, dtype=np.float64))
    falling_thresholds = rising_thresholds[::-1]
    delta_per_bound = share * delta
    max_miscoverages = certified_miscoverage(
        score_array[is_correct], falling_thresholds, delta_per_bound
    )
    min_accuracies = certified_accuracy(
        score_array, is_correct, falling_thresholds, delta_per_bound
    )
    # A lower threshold is on the frontier only if its accuracy exceeds that of all higher ones.
    highest_accuracies_so_far = np.maximum.accumulate(min_accuracies)
    highest_accuracies_before = np.append(0.0, highest_accuracies_so_far[:-1])
    is_on_frontier = min_accuracies > highest_accuracies_before
    return CertifiedFrontier(
        beta=min_accuracies[is_on_frontier],
        alpha=max_miscoverages[is_on_frontier],
        threshold=falling_thresholds[is_on_frontier],
        delta=delta,
    )
