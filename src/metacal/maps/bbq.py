"""BBQ, Bayesian binning into quantiles: an average of histograms by their evidence.

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
#: Number of rows above which there are no more bins. Sample weights can add up to any number.
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
    last_point : array of int of shape (n_bins,)
        Index of the last point in each bin, one binning after another.

    first_bin : array of int of shape (n_binnings,)
        Index of the first bin of each binning.
    """

    last_point: Codes
    first_bin: Codes

    @property
    def n_bins_of_each(self) -> Codes:
        """Number of bins of each binning."""
        return np.diff(np.append(self.first_bin, len(self.last_point)))


def fit_bbq(rows: Rows, labels: Codes, weights: Weights = None) -> PiecewiseMap:
    """Fit the average of histograms with different numbers of bins, by their evidence.

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
    """Fit BBQ to the confidence.

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


def fit_bbq_curve(ties: DistinctPoints) -> PiecewiseCurve:
    """Fit the averaged step function in O(N log N) time."""
    binnings = build_equal_mass_binnings(ties.weight)
    n_bins_of_each = binnings.n_bins_of_each
    first_bin = binnings.first_bin
    weight = _sum_per_bin(ties.weight, binnings)
    positive_weight = _sum_per_bin(ties.positive_weight, binnings)
    middle = _bin_middles(ties, binnings)
    pseudo_rows = np.repeat(_PRIOR_ROWS / n_bins_of_each, n_bins_of_each)

    bin_evidence = _log_evidence(weight, positive_weight, pseudo_rows, middle)
    log_evidence = np.add.reduceat(bin_evidence, first_bin)
    posterior = np.exp(log_evidence - log_evidence.max())
    posterior[posterior < _NEGLIGIBLE_PROBABILITY] = 0.0
    posterior /= posterior.sum()

    frequency = (positive_weight + pseudo_rows * middle) / (weight + pseudo_rows)
    is_used_bin = np.repeat(posterior > 0.0, n_bins_of_each)
    step_ends = np.unique(binnings.last_point[is_used_bin])
    average = np.zeros(len(step_ends))
    for m in np.flatnonzero(posterior):
        bins = slice(first_bin[m], first_bin[m] + n_bins_of_each[m])
        bin_of_step = np.searchsorted(binnings.last_point[bins], step_ends, side="left")
        average += posterior[m] * frequency[first_bin[m] + bin_of_step]
    return PiecewiseCurve(
        knots=np.append(0.0, ties.points[step_ends[:-1]]), values=np.clip(average, 0.0, 1.0)
    )


def build_equal_mass_binnings(weights: Float) -> Binnings:
    """Divide sorted points into bins of equal weight, for every number of bins.

    There is at most one bin per five rows. Ties merge bins, and a binning that equals the
    previous one is omitted.
    """
    cumulative_weight = np.cumsum(weights)
    numbers_of_bins = _numbers_of_bins(float(cumulative_weight[-1]))
    n_bins = np.repeat(numbers_of_bins, numbers_of_bins)
    n_previous_bins = np.cumsum(numbers_of_bins) - numbers_of_bins
    bin_number = np.arange(1, len(n_bins) + 1) - np.repeat(n_previous_bins, numbers_of_bins)
    levels = cumulative_weight[-1] * bin_number / n_bins
    last_point = np.searchsorted(cumulative_weight, levels, side="left")
    # The last bin ends at the last point, whatever the rounding of the sum.
    last_point[bin_number == n_bins] = len(weights) - 1

    is_first_bin = bin_number[1:] == 1
    is_not_empty = np.append(True, (last_point[1:] > last_point[:-1]) | is_first_bin)
    last_point = last_point[is_not_empty]
    n_bins = n_bins[is_not_empty]
    first_bin = np.flatnonzero(np.append(True, np.diff(n_bins) > 0))
    if is_not_empty.all():
        return Binnings(last_point=last_point, first_bin=first_bin)
    return _drop_repeated_binnings(np.split(last_point, first_bin[1:]))


def _numbers_of_bins(total_weight: float) -> Codes:
    """Return the numbers of bins of the binnings."""
    n_rows = min(total_weight, _MAX_ROWS)
    cube_root = n_rows ** (1.0 / 3.0)
    fewest = max(1, int(cube_root / _BIN_RANGE))
    limit = min(np.ceil(n_rows / _MIN_ROWS_PER_BIN), np.ceil(cube_root * _BIN_RANGE))
    most = max(fewest, int(limit))
    return np.arange(fewest, most + 1)


def _drop_repeated_binnings(last_points: list[Codes]) -> Binnings:
    """Join binnings, without those that equal their predecessor."""
    kept = [last_points[0]]
    for previous, current in pairwise(last_points):
        if not np.array_equal(previous, current):
            kept.append(current)
    n_bins_of_each = [len(last_point) for last_point in kept]
    return Binnings(
        last_point=np.concatenate(kept),
        first_bin=np.append(0, np.cumsum(n_bins_of_each)[:-1]),
    )


def _bin_middles(ties: DistinctPoints, binnings: Binnings) -> Float:
    """Return the middle of each bin, kept away from zero and one."""
    last_point = binnings.last_point
    is_last_bin = last_point == len(ties.points) - 1
    right = np.where(is_last_bin, 1.0, ties.points[last_point])
    left = np.append(0.0, right[:-1])
    left[binnings.first_bin] = 0.0
    margin = 1.0 / (ties.weight.sum() + 2.0)
    return np.clip(0.5 * (left + right), margin, 1.0 - margin)


def _sum_per_bin(values: Float, binnings: Binnings) -> Float:
    """Sum the values of the points in each bin."""
    cumulative = np.cumsum(values)
    last_point = binnings.last_point
    first_bin = binnings.first_bin
    sums = np.diff(cumulative[last_point], prepend=0.0)
    sums[first_bin] = cumulative[last_point[first_bin]]
    return sums


def _log_evidence(
    weight: Float, positive_weight: Float, pseudo_rows: Float, middle: Float
) -> Float:
    """Compute the logarithm of the factor of each bin in the evidence of its binning.

    Parameters
    ----------
    weight, positive_weight : arrays of shape (n_bins,)
        Weight of all rows and of the positive rows in each bin.

    pseudo_rows : array of shape (n_bins,)
        Number of pseudo-rows in each bin, N' / B.

    middle : array of shape (n_bins,)
        Middle of each bin, π_b.

    Returns
    -------
    array of shape (n_bins,)
    """
    alpha = pseudo_rows * middle
    beta = pseudo_rows * (1.0 - middle)
    negative_weight = np.maximum(weight - positive_weight, 0.0)
    total_term = gammaln(pseudo_rows) - gammaln(weight + pseudo_rows)
    positive_term = total_term + gammaln(positive_weight + alpha) - gammaln(alpha)
    return np.asarray(positive_term + gammaln(negative_weight + beta) - gammaln(beta))
