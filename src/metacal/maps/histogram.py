"""Histogram binning: the frequency of a class in the bin of its probability.

References
----------
Zadrozny & Elkan, "Obtaining calibrated probability estimates from decision trees and naive
Bayesian classifiers", ICML 2001.

Gupta & Ramdas, "Top-label calibration and multiclass-to-binary reductions", ICLR 2022.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError
from metacal.formulas import Codes, Float
from metacal.kernels import exact
from metacal.maps.curve_fitting import (
    DistinctPoints,
    FitCurve,
    PiecewiseCurve,
    build_one_vs_rest_map,
    compute_unmasked_probabilities,
    fit_piecewise,
    fit_top_label,
    make_identity_curve,
)
from metacal.maps.curves import PiecewiseMap, TopLabelMap, get_one_vs_rest_columns
from metacal.maps.labelled import Weights
from metacal.maps.map import check_count, check_prior_rows
from metacal.rows import Rows

#: Kinds of bins.
BINS = ("equal_width", "equal_mass")


def fit_histogram_binning(
    rows: Rows,
    labels: Codes,
    weights: Weights = None,
    *,
    n_bins: int = 15,
    bins: str = "equal_width",
    prior_rows: float = 1.0,
) -> PiecewiseMap:
    """Fit one histogram per class, with the frequency of the class in each bin.

    The value of a bin is (N₊ + s p̄) / (N + s).

    N is the weight in the bin, N₊ that of the rows of the class, and p̄ the mean probability
    in the bin, or its middle if the bin is empty. The s rows' worth of the uncalibrated model
    keep every value away from 0 and 1. Bins include their right end. Tied probabilities share
    a bin; if they leave a bin of equal weight empty, there are fewer bins.

    Parameters
    ----------
    rows : Rows
        Rows of logits.

    labels : array of int of shape (n_rows,)
        Column index of the true class of each row.

    weights : array of shape (n_rows,), optional
        Weight of each row.

    n_bins : int, default=15
        Number of bins.

    bins : {"equal_width", "equal_mass"}, default="equal_width"
        Whether the bins have equal width or nearly equal weight.

    prior_rows : float, default=1.0
        Number s of pseudo-rows. 0 gives the plain frequency.

    Returns
    -------
    PiecewiseMap
    """
    fit_curve = _make_curve_fitter(n_bins, bins, prior_rows)
    can_be_summed_exactly = weights is None and len(rows) <= exact.MAX_SUMMANDS
    if bins == "equal_width" and can_be_summed_exactly:
        bin_counts = _count_rows_by_bin(rows, labels, n_bins)
        return build_one_vs_rest_map(bin_counts.build_curves(prior_rows), "step")
    return fit_piecewise(rows, labels, weights, fit_curve, "step")


def fit_top_label_histogram_binning(
    rows: Rows,
    labels: Codes,
    weights: Weights = None,
    *,
    n_bins: int = 15,
    bins: str = "equal_mass",
    tempered: bool = True,
    prior_rows: float = 1.0,
) -> TopLabelMap:
    """Fit histogram binning of the confidence of the predicted class.

    Parameters
    ----------
    rows, labels, weights, n_bins, bins, prior_rows
        See `fit_histogram_binning`.

    tempered : bool, default=True
        Whether to fit a temperature first.

    Returns
    -------
    TopLabelMap
    """
    fit_curve = _make_curve_fitter(n_bins, bins, prior_rows)
    return fit_top_label(rows, labels, weights, fit_curve, "step", tempered=tempered)


def _count_rows_by_bin(rows: Rows, labels: Codes, n_bins: int) -> BinCounts:
    """Count the rows in every class and bin of equal width, in one pass over the table."""
    make_empty_counts = partial(BinCounts, rows.n_classes, n_bins)
    total_counts = make_empty_counts()
    for block_counts in rows.accumulate_blocks_on_host(
        _compute_class_probabilities, make_empty_counts, labels
    ):
        total_counts += block_counts
    return total_counts


class BinCounts:
    """Integer sums of every class and bin of equal width, from one pass over a table.

    Integers can be added in any order, on any machine (`metacal.kernels.exact`). A cluster
    therefore gives the same bits as one machine.

    Parameters
    ----------
    n_classes : int
        Number of classes.

    n_bins : int
        Number of bins.

    Attributes
    ----------
    classes : array of int
        Classes that have a curve: all, or the second of two.

    n_rows_of_cell, n_positive_of_cell : arrays of int of shape (n_cells,)
        Number of rows in each cell, and of those whose true class is that of the cell. A cell
        is a pair of a class and a bin. The cells of a class are neighbours.

    probability_units_of_cell : array of int of shape (2, n_cells)
        Sum of the probabilities in each cell, in coarse and in fine units.

    Examples
    --------
    >>> counts = BinCounts(2, 2)
    >>> counts.add((np.array([[0.2], [0.3], [0.7], [0.8]]), np.array([0, 1, 1, 1])))
    >>> counts.build_curves(0.0)
    [PiecewiseCurve(knots=array([0. , 0.5]), values=array([0.5, 1. ]))]
    """

    def __init__(self, n_classes: int, n_bins: int) -> None:
        classes = np.arange(n_classes)
        self.classes = classes[-1:] if n_classes == 2 else classes
        self.n_bins = n_bins
        n_cells = len(self.classes) * n_bins
        self.n_rows_of_cell = np.zeros(n_cells, dtype=np.int64)
        self.n_positive_of_cell = np.zeros(n_cells, dtype=np.int64)
        self.probability_units_of_cell = np.zeros((len(exact.UNITS), n_cells), dtype=np.int64)

    def add(self, block: tuple[Float, Codes]) -> None:
        """Add the rows of a block to the counts.

        Parameters
        ----------
        block : tuple of arrays
            Probabilities of the classes that have a curve, NaN if masked, and the labels.
        """
        probability_table, labels = block
        n_cells = len(self.n_rows_of_cell)
        inner_edges = _compute_equal_width_edges(self.n_bins)
        bin_table = np.searchsorted(inner_edges, probability_table, side="left")
        first_cell_of_class = self.n_bins * np.arange(len(self.classes))
        cell_table = bin_table + first_cell_of_class
        is_true_class = labels[:, None] == self.classes

        is_unmasked = ~np.isnan(probability_table)
        probabilities = probability_table[is_unmasked]
        cell_of_probability = cell_table[is_unmasked]
        is_positive = is_true_class[is_unmasked]
        cell_of_positive = cell_of_probability[is_positive]
        self.n_rows_of_cell += np.bincount(cell_of_probability, minlength=n_cells)
        self.n_positive_of_cell += np.bincount(cell_of_positive, minlength=n_cells)
        self.probability_units_of_cell += _sum_exactly_by_cell(
            cell_of_probability, probabilities, n_cells
        )

    def result(self) -> BinCounts:
        """Return the counts, which a worker sends back to the main process."""
        return self

    def __iadd__(self, other: BinCounts) -> BinCounts:
        self.n_rows_of_cell += other.n_rows_of_cell
        self.n_positive_of_cell += other.n_positive_of_cell
        self.probability_units_of_cell += other.probability_units_of_cell
        return self

    def build_curves(self, prior_rows: float) -> list[PiecewiseCurve]:
        """Build the histogram curve of each class from the counts."""
        probability_sum_of_cell = exact.units_to_floats(self.probability_units_of_cell)
        inner_edges = _compute_equal_width_edges(self.n_bins)
        curves = []
        for first_cell in range(0, len(self.n_rows_of_cell), self.n_bins):
            cells_of_class = slice(first_cell, first_cell + self.n_bins)
            curve = build_histogram_curve(
                inner_edges,
                weight=self.n_rows_of_cell[cells_of_class].astype(np.float64),
                positive_weight=self.n_positive_of_cell[cells_of_class].astype(np.float64),
                probability_sum=probability_sum_of_cell[cells_of_class],
                prior_rows=prior_rows,
            )
            curves.append(curve)
        return curves


def fit_histogram_curve(
    distinct_points: DistinctPoints, n_bins: int, bins: str, prior_rows: float
) -> PiecewiseCurve:
    """Fit the histogram curve of one class.

    Parameters
    ----------
    distinct_points : DistinctPoints
        Distinct probabilities with their weights.

    n_bins, bins, prior_rows
        See `fit_histogram_binning`.

    Returns
    -------
    PiecewiseCurve
    """
    if bins == "equal_width":
        inner_edges = _compute_equal_width_edges(n_bins)
    else:
        last_points_of_bins = find_equal_mass_bin_ends(distinct_points.weight, n_bins)
        inner_edges = distinct_points.probability[last_points_of_bins[:-1]]
    bin_of_point = np.searchsorted(inner_edges, distinct_points.probability, side="left")
    # Ties can leave fewer bins than requested.
    n_used_bins = len(inner_edges) + 1
    weighted_probability = distinct_points.weight * distinct_points.probability
    return build_histogram_curve(
        inner_edges,
        weight=_sum_by_bin(bin_of_point, distinct_points.weight, n_used_bins),
        positive_weight=_sum_by_bin(bin_of_point, distinct_points.positive_weight, n_used_bins),
        probability_sum=_sum_by_bin(bin_of_point, weighted_probability, n_used_bins),
        prior_rows=prior_rows,
    )


def build_histogram_curve(
    inner_edges: Float,
    weight: Float,
    positive_weight: Float,
    probability_sum: Float,
    prior_rows: float,
) -> PiecewiseCurve:
    """Build a step function whose value in each bin is the smoothed frequency.

    Parameters
    ----------
    inner_edges : array of shape (n_bins - 1,)
        Edges between the bins.

    weight, positive_weight : arrays of shape (n_bins,)
        Weight of all rows and of the rows of the class in each bin.

    probability_sum : array of shape (n_bins,)
        Weighted sum of the probabilities in each bin.

    prior_rows : float
        Number of pseudo-rows.

    Returns
    -------
    PiecewiseCurve
    """
    if not weight.any():
        return make_identity_curve("step")
    edges = np.concatenate(([0.0], inner_edges, [1.0]))
    is_empty = weight <= 0.0
    mean_probability = probability_sum / np.where(is_empty, 1.0, weight)
    bin_middles = 0.5 * (edges[1:] + edges[:-1])
    mean_probability[is_empty] = bin_middles[is_empty]
    smoothed_weight = np.where(is_empty, 1.0, weight + prior_rows)
    frequency = (positive_weight + prior_rows * mean_probability) / smoothed_weight
    bin_values = np.where(is_empty, mean_probability, frequency)
    return PiecewiseCurve(knots=edges[:-1], values=np.clip(bin_values, 0.0, 1.0))


def find_equal_mass_bin_ends(weights: Float, n_bins: int) -> Codes:
    """Return the last point of each bin if sorted points form bins of equal weight.

    Parameters
    ----------
    weights : array of shape (n_points,)
        Weight of each point.

    n_bins : int
        Number of bins.

    Returns
    -------
    array of int
        Index of the last point in each bin.

    Examples
    --------
    >>> find_equal_mass_bin_ends(np.ones(6), 3)
    array([1, 3, 5])
    >>> find_equal_mass_bin_ends(np.array([1.0, 9.0, 1.0, 1.0]), 3)  # the heavy point fills two bins
    array([1, 3])
    """
    cumulative_weight = np.cumsum(weights)
    cumulative_levels = cumulative_weight[-1] * np.arange(1, n_bins) / n_bins
    last_points = np.searchsorted(cumulative_weight, cumulative_levels, side="left")
    return np.unique(np.append(last_points, len(weights) - 1))


def _compute_class_probabilities(block: NDArray[Any], labels: Codes) -> tuple[Float, Codes]:
    """Return the probabilities of the classes that have a curve, and the labels."""
    probabilities = compute_unmasked_probabilities(block, 1.0, slice(None))
    return get_one_vs_rest_columns(probabilities), labels


def _sum_exactly_by_cell(
    cell_of_probability: Codes, probabilities: Float, n_cells: int
) -> NDArray[np.int64]:
    """Sum the probabilities of each cell in whole numbers of coarse and of fine units.

    Returns
    -------
    array of int of shape (2, n_cells)
    """
    units_of_cell = np.empty((len(exact.UNITS), n_cells), dtype=np.int64)
    parts_by_unit = exact.split_into_units(probabilities)
    for unit_index, parts in enumerate(parts_by_unit):
        sum_of_parts = _sum_by_bin(cell_of_probability, parts, n_cells)
        unit = exact.UNITS[unit_index]
        units_of_cell[unit_index] = exact.units_to_integers(sum_of_parts, unit)
    return units_of_cell


def _sum_by_bin(bin_of_value: Codes, values: Float, n_bins: int) -> Float:
    """Sum the values that belong to each bin."""
    return np.asarray(np.bincount(bin_of_value, values, n_bins), dtype=np.float64)


def _compute_equal_width_edges(n_bins: int) -> Float:
    """Compute the edges between bins of equal width on [0, 1]."""
    return np.arange(1, n_bins) / n_bins


def _make_curve_fitter(n_bins: object, bins: object, prior_rows: object) -> FitCurve:
    """Validate the options and return the function that fits the curve of a class."""
    if bins not in BINS:
        raise InputError(f"bins must be 'equal_width' or 'equal_mass', but got {bins!r}.")
    return partial(
        fit_histogram_curve,
        n_bins=check_count("n_bins", n_bins, usual=15),
        bins=str(bins),
        prior_rows=check_prior_rows(prior_rows),
    )
