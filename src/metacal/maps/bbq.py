"""BBQ (Bayesian binning into quantiles): histograms averaged by their evidence.

Naeini, Cooper & Hauskrecht, "Obtaining Well Calibrated Probabilities Using Bayesian
Binning", AAAI 2015.

A *binning* is a division of the sorted probabilities into bins of equal weight. The bins of
all binnings are stored in one array, one binning after another.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.special import gammaln

from metacal.formulas import Codes, Float
from metacal.maps.curve_fitting import (
    DistinctPoints,
    PiecewiseCurve,
    fit_piecewise,
    fit_top_label,
)
from metacal.maps.curves import PiecewiseMap, TopLabelMap
from metacal.maps.labelled import Weights
from metacal.rows import Rows

#: The paper's C: the numbers of bins range from N^(1/3) / C to C N^(1/3).
_BIN_RANGE = 10.0
#: The paper's N': number of pseudo-rows, distributed over the bins.
_PRIOR_ROWS = 2.0
#: Total weight above which the number of bins no longer grows.
_MAX_ROWS = 1e7
#: Smallest number of rows per bin.
_MIN_ROWS_PER_BIN = 5.0
#: Probability of a binning, relative to the best, below which it is omitted.
_NEGLIGIBLE_PROBABILITY = 1e-3


@dataclass(frozen=True)
class Binnings:
    """Several divisions of the same points into bins.

    Attributes
    ----------
    last_point_of_bin : array of int of shape (n_bins,)
        Index of the last point in each bin, one binning after another.

    first_bin_of_binning : array of int of shape (n_binnings,)
        Index of the first bin of each binning.
    """

    last_point_of_bin: Codes
    first_bin_of_binning: Codes

    @property
    def n_bins_of_binning(self) -> Codes:
        """Number of bins of each binning."""
        return np.diff(np.append(self.first_bin_of_binning, len(self.last_point_of_bin)))


def fit_bbq(rows: Rows, labels: Codes, weights: Weights = None) -> PiecewiseMap:
    """Fit BBQ: average histograms of several numbers of bins by their evidence.

    M_B is the histogram with B bins of equal weight, B from N^(1/3) / 10 to 10 N^(1/3). With
    N' = 2, π_b the middle of bin b, α = N' π_b / B and β = N' (1 - π_b) / B::

        P(data | M_B) = Π_b  Γ(N'/B) / Γ(N_b + N'/B) · Γ(N₊ + α) / Γ(α) · Γ(N₋ + β) / Γ(β)
        q = Σ_B P(M_B | data) · (N₊ + α) / (N_b + N'/B)     in the bin b of M_B that contains p

    with a uniform prior over B. There are two deviations from the paper. π_b is kept
    1 / (N + 2) away from zero and one, because a network's probability of 1e-12 is no prior
    knowledge. Binnings that are less than 1/1000 as probable as the best are omitted, to keep
    the result small. The average of step functions is a step function, which is stored.

    Parameters
    ----------
    rows : Rows
        Rows of logits.

    labels : array of int of shape (n_rows,)
        Column index of the true class of each row.

    weights : array of shape (n_rows,), optional
        Weight of each row.

    Returns
    -------
    PiecewiseMap
    """
    return fit_piecewise(rows, labels, weights, fit_bbq_curve, "step")


def fit_top_label_bbq(
    rows: Rows, labels: Codes, weights: Weights = None, *, tempered: bool = True
) -> TopLabelMap:
    """Fit BBQ to the confidence of the predicted class.

    Parameters
    ----------
    rows, labels, weights
        See `fit_bbq`.

    tempered : bool, default=True
        Whether to fit a temperature first.

    Returns
    -------
    TopLabelMap
    """
    return fit_top_label(rows, labels, weights, fit_bbq_curve, "step", tempered=tempered)


def fit_bbq_curve(distinct_points: DistinctPoints) -> PiecewiseCurve:
    """Fit the averaged step function of one class in O(N log N) time."""
    # Arrays over bins hold the bins of all binnings, one binning after another.
    binnings = build_equal_mass_binnings(distinct_points.weight)
    n_bins_of_binning = binnings.n_bins_of_binning
    weight_of_bin = _sum_by_bin(distinct_points.weight, binnings)
    positive_weight_of_bin = _sum_by_bin(distinct_points.positive_weight, binnings)
    middle_of_bin = _compute_bin_middles(distinct_points, binnings)
    prior_rows_of_bin = np.repeat(_PRIOR_ROWS / n_bins_of_binning, n_bins_of_binning)

    log_evidence_of_bin = _compute_log_evidence(
        weight_of_bin, positive_weight_of_bin, prior_rows_of_bin, middle=middle_of_bin
    )
    log_evidence_of_binning = np.add.reduceat(log_evidence_of_bin, binnings.first_bin_of_binning)
    posterior_of_binning = np.exp(log_evidence_of_binning - log_evidence_of_binning.max())
    posterior_of_binning[posterior_of_binning < _NEGLIGIBLE_PROBABILITY] = 0.0
    posterior_of_binning /= posterior_of_binning.sum()

    prior_positives_of_bin = prior_rows_of_bin * middle_of_bin
    frequency_of_bin = (positive_weight_of_bin + prior_positives_of_bin) / (
        weight_of_bin + prior_rows_of_bin
    )
    return _average_histograms(distinct_points, binnings, posterior_of_binning, frequency_of_bin)


def _average_histograms(
    distinct_points: DistinctPoints,
    binnings: Binnings,
    posterior_of_binning: Float,
    frequency_of_bin: Float,
) -> PiecewiseCurve:
    """Average the histograms of several binnings, which gives a step function.

    Parameters
    ----------
    distinct_points : DistinctPoints
        Distinct probabilities, to which the bins refer.

    binnings : Binnings
        Bins of every histogram.

    posterior_of_binning : array of shape (n_binnings,)
        Posterior probability of each binning.

    frequency_of_bin : array of shape (n_bins,)
        Frequency of the class in each bin, one binning after another.

    Returns
    -------
    PiecewiseCurve
    """
    # The averaged histogram has a step boundary wherever a bin of any binning ends.
    is_used_bin = np.repeat(posterior_of_binning > 0.0, binnings.n_bins_of_binning)
    last_point_of_step = np.unique(binnings.last_point_of_bin[is_used_bin])
    average_frequency_of_step = np.zeros(len(last_point_of_step))
    first_bins = binnings.first_bin_of_binning
    for binning in np.flatnonzero(posterior_of_binning):
        first_bin = first_bins[binning]
        end_bin = first_bin + binnings.n_bins_of_binning[binning]
        bins = slice(first_bin, end_bin)
        bin_of_step = np.searchsorted(
            binnings.last_point_of_bin[bins], last_point_of_step, side="left"
        )
        frequency_of_step = frequency_of_bin[bins][bin_of_step]
        average_frequency_of_step += posterior_of_binning[binning] * frequency_of_step
    # Bins include their right end, so each step begins after the last point of the previous step.
    last_probability_of_step = distinct_points.probability[last_point_of_step]
    return PiecewiseCurve(
        knots=np.append(0.0, last_probability_of_step[:-1]),
        values=np.clip(average_frequency_of_step, 0.0, 1.0),
    )


def build_equal_mass_binnings(weights: Float) -> Binnings:
    """Divide sorted points into bins of equal weight, once for each number of bins.

    There is at most one bin per five rows. Ties merge bins, and a binning that equals the
    previous one is omitted.

    Parameters
    ----------
    weights : array of shape (n_points,)
        Weight of each point.

    Returns
    -------
    Binnings
    """
    cumulative_weight = np.cumsum(weights)
    total_weight = cumulative_weight[-1]
    # Every array `..._of_bin` holds the bins of all binnings, one binning after another.
    n_bins_of_binning = _choose_numbers_of_bins(float(total_weight))
    binning_size_of_bin = np.repeat(n_bins_of_binning, n_bins_of_binning)
    first_bin_of_binning = np.cumsum(n_bins_of_binning) - n_bins_of_binning
    bin_numbers = np.arange(1, len(binning_size_of_bin) + 1)
    rank_of_bin = bin_numbers - np.repeat(first_bin_of_binning, n_bins_of_binning)
    cumulative_weight_of_bin = total_weight * rank_of_bin / binning_size_of_bin
    last_point_of_bin = np.searchsorted(cumulative_weight, cumulative_weight_of_bin, side="left")
    # The last bin must end at the last point in spite of rounding errors in the sum.
    is_last_bin = rank_of_bin == binning_size_of_bin
    last_point_of_bin[is_last_bin] = len(weights) - 1

    is_first_bin = rank_of_bin == 1
    ends_after_previous_bin = np.append(True, np.diff(last_point_of_bin) > 0)
    is_nonempty_bin = ends_after_previous_bin | is_first_bin
    if is_nonempty_bin.all():
        return Binnings(
            last_point_of_bin=last_point_of_bin, first_bin_of_binning=first_bin_of_binning
        )
    n_previous_nonempty_bins = np.cumsum(is_nonempty_bin) - is_nonempty_bin
    split_indices = n_previous_nonempty_bins[first_bin_of_binning[1:]]
    last_points_by_binning = np.split(last_point_of_bin[is_nonempty_bin], split_indices)
    return _drop_repeated_binnings(last_points_by_binning)


def _choose_numbers_of_bins(total_weight: float) -> Codes:
    """Return the numbers of bins for which a binning is built."""
    n_rows = min(total_weight, _MAX_ROWS)
    cube_root = n_rows ** (1.0 / 3.0)
    min_bins = max(1, int(cube_root / _BIN_RANGE))
    max_bins_of_paper = np.ceil(cube_root * _BIN_RANGE)
    max_bins_of_rows = np.ceil(n_rows / _MIN_ROWS_PER_BIN)
    max_bins = max(min_bins, int(min(max_bins_of_rows, max_bins_of_paper)))
    return np.arange(min_bins, max_bins + 1)


def _drop_repeated_binnings(last_points_of_binnings: list[Codes]) -> Binnings:
    """Concatenate the binnings, and drop a binning that equals the previous one."""
    distinct_binnings = [last_points_of_binnings[0]]
    for previous, current in pairwise(last_points_of_binnings):
        if not np.array_equal(previous, current):
            distinct_binnings.append(current)
    n_bins_of_binning = [len(last_points) for last_points in distinct_binnings]
    return Binnings(
        last_point_of_bin=np.concatenate(distinct_binnings),
        first_bin_of_binning=np.append(0, np.cumsum(n_bins_of_binning)[:-1]),
    )


def _compute_bin_middles(distinct_points: DistinctPoints, binnings: Binnings) -> Float:
    """Compute the middle of each bin, kept away from zero and one."""
    last_point = binnings.last_point_of_bin
    is_last_bin = last_point == len(distinct_points.probability) - 1
    right_edges = np.where(is_last_bin, 1.0, distinct_points.probability[last_point])
    left_edges = np.append(0.0, right_edges[:-1])
    left_edges[binnings.first_bin_of_binning] = 0.0
    min_middle = 1.0 / (distinct_points.weight.sum() + 2.0)
    return np.clip(0.5 * (left_edges + right_edges), min_middle, 1.0 - min_middle)


def _sum_by_bin(values: Float, binnings: Binnings) -> Float:
    """Sum the values of the points in each bin."""
    cumulative_values = np.cumsum(values)
    last_point = binnings.last_point_of_bin
    first_bin = binnings.first_bin_of_binning
    bin_sums = np.diff(cumulative_values[last_point], prepend=0.0)
    bin_sums[first_bin] = cumulative_values[last_point[first_bin]]
    return bin_sums


def _compute_log_evidence(
    weight: Float, positive_weight: Float, bin_prior_rows: Float, middle: Float
) -> Float:
    """Compute the logarithm of the evidence factor of each bin.

    Parameters
    ----------
    weight, positive_weight : arrays of shape (n_bins,)
        Weight of all rows and of the positive rows in each bin.

    bin_prior_rows : array of shape (n_bins,)
        Number of pseudo-rows in each bin, N' / B.

    middle : array of shape (n_bins,)
        Middle of each bin, π_b.

    Returns
    -------
    array of shape (n_bins,)
    """
    alpha = bin_prior_rows * middle
    beta = bin_prior_rows * (1.0 - middle)
    negative_weight = np.maximum(weight - positive_weight, 0.0)
    total_term = gammaln(bin_prior_rows) - gammaln(weight + bin_prior_rows)
    positive_term = total_term + gammaln(positive_weight + alpha) - gammaln(alpha)
    return np.asarray(positive_term + gammaln(negative_weight + beta) - gammaln(beta))
