"""BBQ (Bayesian binning into quantiles): an average of histograms by their evidence.

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
    """Bins of several binnings.

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
    binnings = build_equal_mass_binnings(distinct_points.weight)
    n_bins_of_binning = binnings.n_bins_of_binning
    bin_weight = _sum_by_bin(distinct_points.weight, binnings)
    positive_weight = _sum_by_bin(distinct_points.positive_weight, binnings)
    bin_middle = _compute_bin_middles(distinct_points, binnings)
    bin_prior_rows = np.repeat(_PRIOR_ROWS / n_bins_of_binning, n_bins_of_binning)

    bin_log_evidence = _compute_log_evidence(
        bin_weight, positive_weight, bin_prior_rows, middle=bin_middle
    )
    log_evidence = np.add.reduceat(bin_log_evidence, binnings.first_bin_of_binning)
    posterior = np.exp(log_evidence - log_evidence.max())
    posterior[posterior < _NEGLIGIBLE_PROBABILITY] = 0.0
    posterior /= posterior.sum()

    prior_positive_rows = bin_prior_rows * bin_middle
    bin_frequency = (positive_weight + prior_positive_rows) / (bin_weight + bin_prior_rows)
    return _average_histograms(distinct_points, binnings, posterior, bin_frequency)


def _average_histograms(
    distinct_points: DistinctPoints, binnings: Binnings, posterior: Float, bin_frequency: Float
) -> PiecewiseCurve:
    """Average the histograms of several binnings, which gives a step function.

    Parameters
    ----------
    distinct_points : DistinctPoints
        Distinct probabilities, to which the bins refer.

    binnings : Binnings
        Bins of every histogram.

    posterior : array of shape (n_binnings,)
        Posterior probability of each binning.

    bin_frequency : array of shape (n_bins,)
        Frequency of the class in each bin, one binning after another.

    Returns
    -------
    PiecewiseCurve
    """
    n_bins_of_binning = binnings.n_bins_of_binning
    is_used_bin = np.repeat(posterior > 0.0, n_bins_of_binning)
    step_ends = np.unique(binnings.last_point_of_bin[is_used_bin])
    average_frequency = np.zeros(len(step_ends))
    for binning in np.flatnonzero(posterior):
        first_bin = binnings.first_bin_of_binning[binning]
        bin_ends = binnings.last_point_of_bin[first_bin : first_bin + n_bins_of_binning[binning]]
        bin_of_step = np.searchsorted(bin_ends, step_ends, side="left")
        average_frequency += posterior[binning] * bin_frequency[first_bin + bin_of_step]
    return PiecewiseCurve(
        knots=np.append(0.0, distinct_points.probability[step_ends[:-1]]),
        values=np.clip(average_frequency, 0.0, 1.0),
    )


def build_equal_mass_binnings(weights: Float) -> Binnings:
    """Divide sorted points into bins of equal weight, once for each number of bins.

    There is at most one bin per five rows. Ties merge bins, and a binning that equals the
    previous one is omitted.
    """
    cumulative_weight = np.cumsum(weights)
    numbers_of_bins = _choose_numbers_of_bins(float(cumulative_weight[-1]))
    n_bins_in_binning = np.repeat(numbers_of_bins, numbers_of_bins)
    n_previous_bins = np.cumsum(numbers_of_bins) - numbers_of_bins
    bin_index = np.arange(1, len(n_bins_in_binning) + 1)
    number_in_binning = bin_index - np.repeat(n_previous_bins, numbers_of_bins)
    weight_at_bin_end = cumulative_weight[-1] * number_in_binning / n_bins_in_binning
    last_point = np.searchsorted(cumulative_weight, weight_at_bin_end, side="left")
    # The last bin must end at the last point in spite of rounding errors in the sum.
    last_point[number_in_binning == n_bins_in_binning] = len(weights) - 1

    starts_binning = number_in_binning[1:] == 1
    is_not_empty = np.append(True, (last_point[1:] > last_point[:-1]) | starts_binning)
    last_point = last_point[is_not_empty]
    # Each binning has more bins than the previous one, so a new number starts a new binning.
    n_bins_in_binning = n_bins_in_binning[is_not_empty]
    first_bin = np.flatnonzero(np.append(True, np.diff(n_bins_in_binning) > 0))
    if is_not_empty.all():
        return Binnings(last_point_of_bin=last_point, first_bin_of_binning=first_bin)
    return _drop_repeated_binnings(np.split(last_point, first_bin[1:]))


def _choose_numbers_of_bins(total_weight: float) -> Codes:
    """Return the numbers of bins for which a binning is built."""
    n_rows = min(total_weight, _MAX_ROWS)
    cube_root = n_rows ** (1.0 / 3.0)
    min_bins = max(1, int(cube_root / _BIN_RANGE))
    max_bins_of_paper = np.ceil(cube_root * _BIN_RANGE)
    max_bins_of_rows = np.ceil(n_rows / _MIN_ROWS_PER_BIN)
    max_bins = max(min_bins, int(min(max_bins_of_rows, max_bins_of_paper)))
    return np.arange(min_bins, max_bins + 1)


def _drop_repeated_binnings(last_points: list[Codes]) -> Binnings:
    """Join binnings, except for those that equal the previous one."""
    distinct_binnings = [last_points[0]]
    for previous, current in pairwise(last_points):
        if not np.array_equal(previous, current):
            distinct_binnings.append(current)
    n_bins_of_binning = [len(last_point) for last_point in distinct_binnings]
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
