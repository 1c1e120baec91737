"""I-Max binning: bins of the log-odds with the largest mutual information.

Patel, Beluch, Yang, Pfeiffer & Zhang, "Multi-class uncertainty calibration via mutual
information maximization-based binning", ICLR 2021. With λ the log-odds of a class and Q(λ)
its bin, the edges maximise I(y; Q(λ)), and the value of a bin is the frequency in it. Bins of
equal width are mostly placed where few rows lie, and bins of equal mass divide rows that are
alike. These bins are divided where the frequency changes.

**One set of bins for all classes** (`shared`, the paper's "shared class-wise"). All n K pairs
(λ, is it this class?) are one problem, so that a class with few rows has bins as well founded
as any other.

**Deviation from the paper.** The paper alternates between edges and representatives from a
random start, with σ(λ) in place of P(y = 1 | λ), until neither changes. This finds a local
maximum of the information under a network that is assumed to be calibrated. Here
P(y = 1 | λ) is estimated by isotonic regression over narrow cells of λ, and the best edges
among those of the cells are found exactly, by dynamic programming. For a posterior that
increases with λ, no quantizer with as many values, contiguous or not, preserves more
information (Kurkoski & Yagi, "Quantization of binary-input discrete memoryless channels",
2014).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import isotonic_regression
from scipy.special import expit, xlogy

from metacal.formulas import Codes, Float
from metacal.maps.curve_fitting import (
    BinaryColumn,
    PiecewiseCurve,
    build_one_vs_rest_map,
    iterate_class_columns,
    make_identity_curve,
)
from metacal.maps.curves import PiecewiseMap
from metacal.maps.labelled import LabelledRows, Weights
from metacal.maps.map import check_count, check_prior_rows
from metacal.rows import Rows

#: Largest absolute value of the log-odds, which corresponds to p = 1.3e-14 or 1 - 1.3e-14.
_MAX_LOG_ODDS = 32
#: Number of cells per unit of the log-odds.
_CELLS_PER_UNIT = 32
#: Largest number of cell groups, small enough to compare every pair of groups.
_MAX_GROUPS = 256
#: Rounding error of a group number, so that a number just above an integer is not rounded up.
_ROUNDING_ERROR = 1e-9


@dataclass(frozen=True)
class _CellSums:
    """Sums over the rows in each cell of the log-odds.

    Attributes
    ----------
    weight : array of shape (n_cells,)
        Weight of the rows.

    positive_weight : array of shape (n_cells,)
        Weight of the rows of the class.

    probability_sum : array of shape (n_cells,)
        Weighted sum of the probabilities.
    """

    weight: Float
    positive_weight: Float
    probability_sum: Float

    def merge_neighbours(self, last_cell_of_group: Codes) -> _CellSums:
        """Sum over groups of neighbouring cells, given the last cell of each group."""
        first_cell_of_group = np.append(0, last_cell_of_group[:-1] + 1)
        return _CellSums(
            weight=np.add.reduceat(self.weight, first_cell_of_group),
            positive_weight=np.add.reduceat(self.positive_weight, first_cell_of_group),
            probability_sum=np.add.reduceat(self.probability_sum, first_cell_of_group),
        )


def fit_imax_binning(
    rows: Rows,
    labels: Codes,
    weights: Weights = None,
    *,
    n_bins: int = 15,
    shared: bool = True,
    prior_rows: float = 1.0,
) -> PiecewiseMap:
    """Fit the bins of the log-odds that are most informative about the class.

    The value of a bin is (N₊ + s p̄) / (N + s), where N is its weight, N₊ that of its positive
    rows, and p̄ the mean probability in it.

    Parameters
    ----------
    rows : Rows
        Rows of logits.

    labels : array of int of shape (n_rows,)
        Column index of the true class of each row.

    weights : array of shape (n_rows,), optional
        Weight of each row.

    n_bins : int, default=15
        Largest number of bins.

    shared : bool, default=True
        Whether all classes have the same bins.

    prior_rows : float, default=1.0
        Number s of pseudo-rows, as in histogram binning.

    Returns
    -------
    PiecewiseMap
    """
    n_bins = check_count("n_bins", n_bins, usual=15)
    prior_rows = check_prior_rows(prior_rows)
    sample = LabelledRows(rows, labels, weights).drop_zero_weight_rows()
    cells_of_classes = [_sum_by_log_odds_cell(column) for column in iterate_class_columns(sample)]
    if shared:
        cells_of_all_classes = _add_cells(cells_of_classes)
        shared_curve = _fit_most_informative_bins(cells_of_all_classes, n_bins, prior_rows)
        return build_one_vs_rest_map([shared_curve] * len(cells_of_classes), "step")
    curves = [_fit_most_informative_bins(cells, n_bins, prior_rows) for cells in cells_of_classes]
    return build_one_vs_rest_map(curves, "step")


def find_most_informative_bin_ends(weight: Float, positive: Float, n_bins: int) -> Codes:
    """Find the bins of cells with the largest mutual information, at most `n_bins`.

    I(y; bin) = H(y) - Σ_b (N_b / N) H(N₊_b / N_b). Dynamic programming over the last cell
    minimises the sum of the bin entropies, which follow from cumulative sums, in
    O(n_cells² n_bins) time.

    Parameters
    ----------
    weight, positive : arrays of shape (n_cells,)
        Weight of all rows and of the positive rows in each cell.

    n_bins : int
        Largest number of bins.

    Returns
    -------
    array of int
        Last cell of each bin.

    Examples
    --------
    >>> find_most_informative_bin_ends(np.ones(6), np.array([0.0, 0.1, 0.0, 0.9, 1.0, 1.0]), 2)
    array([2, 5])
    """
    n_cells = len(weight)
    entropy_of_bin = _compute_bin_entropies(weight, positive)
    # Entry j is the lowest entropy of any binning of the cells 0 to j, initially with one bin.
    lowest_entropy_up_to = entropy_of_bin[0]
    # Entry j of each array is the first cell of the bin that ends at cell j.
    first_cells_by_n_bins = [np.zeros(n_cells, dtype=np.intp)]
    for _ in range(min(n_bins, n_cells) - 1):
        # Entry (i, j) is the entropy of the cells 0 to j if the last bin starts at cell i.
        lowest_entropy_before = np.append(np.inf, lowest_entropy_up_to[:-1])
        total_entropy = lowest_entropy_before[:, None] + entropy_of_bin
        first_cells_by_n_bins.append(total_entropy.argmin(axis=0))
        lowest_entropy_up_to = total_entropy.min(axis=0)
    return _trace_back_bin_ends(first_cells_by_n_bins, n_cells)


def _compute_bin_entropies(weight: Float, positive: Float) -> Float:
    """Compute the weighted entropy of every possible bin of neighbouring cells.

    Entry (i, j) belongs to the bin of the cells i to j; it is infinite if i > j.
    """
    n_cells = len(weight)
    cumulative_weight = np.append(0.0, np.cumsum(weight))
    cumulative_positive = np.append(0.0, np.cumsum(positive))
    bin_weight = cumulative_weight[None, 1:] - cumulative_weight[:-1, None]
    bin_positive = cumulative_positive[None, 1:] - cumulative_positive[:-1, None]
    bin_positive = np.clip(bin_positive, 0.0, np.maximum(bin_weight, 0.0))
    bin_negative = bin_weight - bin_positive
    is_bin = np.arange(n_cells)[:, None] <= np.arange(n_cells)[None, :]
    entropy = (
        xlogy(bin_weight, np.where(is_bin, bin_weight, 1.0))
        - xlogy(bin_positive, bin_positive)
        - xlogy(bin_negative, bin_negative)
    )
    return np.where(is_bin, entropy, np.inf)


def _trace_back_bin_ends(first_cells_by_n_bins: list[Codes], n_cells: int) -> Codes:
    """Recover the last cell of each bin from the tables of the dynamic programme.

    Parameters
    ----------
    first_cells_by_n_bins : list of arrays of shape (n_cells,)
        For 1, 2, ... bins, entry j is the first cell of the last bin if it ends at cell j.

    n_cells : int
        Number of cells.

    Returns
    -------
    array of int
        Last cell of each bin, in increasing order.
    """
    last_cells_in_reverse = []
    last_cell = n_cells - 1
    for first_cell_given_last in reversed(first_cells_by_n_bins):
        last_cells_in_reverse.append(last_cell)
        last_cell = int(first_cell_given_last[last_cell]) - 1
        if last_cell < 0:
            break
    return np.array(last_cells_in_reverse[::-1], dtype=np.intp)


def _sum_by_log_odds_cell(column: BinaryColumn) -> _CellSums:
    """Sum weights and probabilities of a class in narrow cells of its log-odds."""
    probability = column.probability
    with np.errstate(divide="ignore"):
        log_odds = np.log(probability) - np.log1p(-probability)
    n_cells = 2 * _MAX_LOG_ODDS * _CELLS_PER_UNIT
    # Cells include their right end, because the steps of the map do so too.
    unbounded_cell = np.ceil((log_odds + _MAX_LOG_ODDS) * _CELLS_PER_UNIT) - 1
    last_cell = n_cells - 1
    cell_of_row = np.clip(unbounded_cell, 0, last_cell).astype(np.intp)

    def sum_by_cell(row_values: Float) -> Float:
        return np.asarray(np.bincount(cell_of_row, row_values, n_cells), dtype=np.float64)

    return _CellSums(
        weight=sum_by_cell(column.weight),
        positive_weight=sum_by_cell(column.weight * column.outcome),
        probability_sum=sum_by_cell(column.weight * probability),
    )


def _add_cells(cells_of_classes: list[_CellSums]) -> _CellSums:
    """Add the cell sums of all classes."""
    return _CellSums(
        weight=np.sum([cells.weight for cells in cells_of_classes], axis=0),
        positive_weight=np.sum([cells.positive_weight for cells in cells_of_classes], axis=0),
        probability_sum=np.sum([cells.probability_sum for cells in cells_of_classes], axis=0),
    )


def _fit_most_informative_bins(cells: _CellSums, n_bins: int, prior_rows: float) -> PiecewiseCurve:
    """Choose the most informative bins and compute the smoothed frequency in each."""
    used_cells = np.flatnonzero(cells.weight > 0.0)
    if not len(used_cells):
        return make_identity_curve("step")
    last_cell_of_group = _choose_last_cells_of_groups(cells, used_cells)
    groups = cells.merge_neighbours(last_cell_of_group)
    frequency = groups.positive_weight / groups.weight
    monotone_frequency = np.asarray(isotonic_regression(frequency, weights=groups.weight).x)
    last_group_of_bin = find_most_informative_bin_ends(
        groups.weight, monotone_frequency * groups.weight, n_bins
    )

    bins = groups.merge_neighbours(last_group_of_bin)
    prior_positive_rows = prior_rows * bins.probability_sum / bins.weight
    bin_values = (bins.positive_weight + prior_positive_rows) / (bins.weight + prior_rows)
    # A bin ends at the right end of its last cell.
    last_cell_of_bin = last_cell_of_group[last_group_of_bin]
    log_odds_at_bin_end = (last_cell_of_bin + 1) / _CELLS_PER_UNIT - _MAX_LOG_ODDS
    knots = np.append(0.0, expit(log_odds_at_bin_end[:-1]))
    return PiecewiseCurve(knots=knots, values=np.clip(bin_values, 0.0, 1.0))


def _choose_last_cells_of_groups(cells: _CellSums, used_cells: Codes) -> Codes:
    """Divide the used cells into at most 256 groups, given by their last cells.

    Positive and negative rows each determine half of the groups.
    """
    positive_weight = cells.positive_weight[used_cells]
    negative_weight = cells.weight[used_cells] - positive_weight
    shares_by_outcome = []
    for weight in (positive_weight, negative_weight):
        if weight.sum() > 0.0:
            shares_by_outcome.append(weight / weight.sum())
    cumulative_share = np.cumsum(np.sum(shares_by_outcome, axis=0))
    exact_group = cumulative_share / cumulative_share[-1] * _MAX_GROUPS
    group_of_used_cell = np.ceil(exact_group - _ROUNDING_ERROR)
    is_last_of_group = np.append(group_of_used_cell[1:] != group_of_used_cell[:-1], True)
    return used_cells[is_last_of_group]
