"""Proper scoring rules: negative log-likelihood and Brier score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from metacal.formulas import Codes, Float
from metacal.metrics.binning import check_n_bins, sum_by_group
from metacal.metrics.classwise import (
    compute_weighted_column_sums,
    list_entries_above_first_bin,
)
from metacal.metrics.registry import PROBABILITIES, register
from metacal.metrics.toplabel import CheckedTable, checked_table

_register_scoring_rule = partial(
    register, input=PROBABILITIES, evaluated=True, compared=True, proper=True, needs_errors=True
)


def compute_log_losses(table: CheckedTable) -> Float:
    """Compute the negative log-likelihood of each row, -log p of its true class."""
    with np.errstate(divide="ignore"):
        # The tolerance of the row sums allows a probability slightly above 1. The loss is then 0.
        return np.maximum(-np.log(table.true_probability), 0.0)


def compute_brier_losses(table: CheckedTable) -> Float:
    """Compute the Brier loss of each row, Σ_k p_k² - 2 p_y + 1, in float64."""
    sums_of_squares = np.empty(len(table))
    for start, block in table.blocks():
        probabilities = block.astype(np.float64)
        block_sums = sums_of_squares[start : start + len(block)]
        np.einsum("ij,ij->i", probabilities, probabilities, out=block_sums)
    # Rounding may give -1e-16 on a row with no loss.
    return np.maximum(sums_of_squares - 2.0 * table.true_probability + 1.0, 0.0)


@_register_scoring_rule(
    title="log loss",
    heading="log loss",
    losses=compute_log_losses,
    range=(0.0, inf),
)
def nll(proba: ArrayLike, labels: ArrayLike, *, classes: Sequence[Any] | None = None) -> float:
    """Compute the mean negative log-likelihood, ``-(1/n) Σ_i log p_i[y_i]``.

    The value is infinite if a true class has probability 0. Probabilities are not clipped.

    Parameters
    ----------
    proba, labels, classes
        As in `top_label`.

    Returns
    -------
    float

    References
    ----------
    Good 1952.

    Examples
    --------
    >>> round(nll([[0.5, 0.5], [0.25, 0.75]], [0, 1]), 6)
    0.490415
    >>> nll([[1.0, 0.0]], [1])
    inf
    """
    table = checked_table(proba, labels, classes=classes)
    return float(compute_log_losses(table).mean())


@_register_scoring_rule(
    title="Brier score", heading="Brier", losses=compute_brier_losses, range=(0.0, 2.0)
)
def brier(proba: ArrayLike, labels: ArrayLike, *, classes: Sequence[Any] | None = None) -> float:
    """Compute the Brier score, ``(1/n) Σ_i Σ_k (p_ik - 1(y_i = k))²``, from 0 to 2.

    Parameters
    ----------
    proba, labels, classes
        As in `top_label`.

    Returns
    -------
    float

    References
    ----------
    Brier 1950.

    Examples
    --------
    >>> brier([[0.5, 0.5], [0.25, 0.75]], [0, 1])
    0.3125
    """
    table = checked_table(proba, labels, classes=classes)
    return float(compute_brier_losses(table).mean())


@dataclass(frozen=True)
class BrierDecomposition:
    """Decomposition of the Brier score into four terms.

    The score is ``reliability - resolution + uncertainty + remainder``.

    Attributes
    ----------
    reliability : float
        Squared gap between the mean forecast and the frequency of each bin. It is 0 for calibrated
        forecasts, and lower is better.

    resolution : float
        Squared distance of the frequencies of the bins from the base rate. Higher is better.

    uncertainty : float
        Variance of the labels. It does not depend on the forecast.

    remainder : float
        Variance of the forecasts within bins minus twice their covariance with the labels. It is 0
        if each bin has only one distinct forecast.
    """

    reliability: float
    resolution: float
    uncertainty: float
    remainder: float

    @property
    def brier(self) -> float:
        """Brier score, the sum of the four terms with their signs."""
        return self.reliability - self.resolution + self.uncertainty + self.remainder


def brier_decomposition(
    proba: ArrayLike, labels: ArrayLike, n_bins: int = 15, *, classes: Sequence[Any] | None = None
) -> BrierDecomposition:
    """Decompose the Brier score into reliability, resolution and uncertainty.

    A remainder comes from the variation within bins.

    The forecasts of each class are put in `n_bins` bins of equal width. Let p̄_kb and ȳ_kb be the
    mean forecast and frequency of class k in bin b, and ȳ_k the base rate. Summed over classes and
    bins,

        reliability = Σ (n_kb/n)(p̄_kb - ȳ_kb)²
        resolution = Σ (n_kb/n)(ȳ_kb - ȳ_k)²
        uncertainty = Σ ȳ_k (1 - ȳ_k)
        remainder = (1/n) Σ (p_ik - p̄_kb)² - (2/n) Σ (p_ik - p̄_kb)(y_ik - ȳ_kb)

    The first three terms are Murphy's. The remainder makes the decomposition exact for any bins.

    Parameters
    ----------
    proba, labels, classes
        As in `top_label`.

    n_bins : int, default=15
        Number of bins.

    Returns
    -------
    BrierDecomposition

    References
    ----------
    Murphy 1973. Remainder: Stephenson, Coelho & Jolliffe 2008.

    Examples
    --------
    >>> table, labels = [[0.9, 0.1], [0.9, 0.1], [0.2, 0.8], [0.2, 0.8]], [0, 0, 1, 0]
    >>> parts = brier_decomposition(table, labels, n_bins=5)
    >>> round(parts.reliability, 6), round(parts.resolution, 6), round(parts.uncertainty, 6)
    (0.1, 0.125, 0.375)
    >>> round(parts.brier, 6), round(brier(table, labels), 6)
    (0.35, 0.35)
    """
    table = checked_table(proba, labels, classes=classes)
    n_rows = len(table)
    label_counts = np.bincount(table.label_codes, minlength=table.n_classes).astype(np.float64)
    cell_sums = _CellSums.from_table(table, check_n_bins(n_bins), label_counts)

    divisors = np.maximum(cell_sums.entry_count, 1.0)
    base_rates = (label_counts / n_rows)[:, None]
    squared_distances = (cell_sums.label_count / divisors - base_rates) ** 2
    reliability = ((cell_sums.forecast_sum - cell_sums.label_count) ** 2 / divisors).sum()
    resolution = np.where(
        cell_sums.entry_count > 0, cell_sums.entry_count * squared_distances, 0.0
    ).sum()
    within_cell_variance = (cell_sums.square_sum - cell_sums.forecast_sum**2 / divisors).sum()
    within_cell_covariance = (
        cell_sums.true_forecast_sum - cell_sums.forecast_sum * cell_sums.label_count / divisors
    ).sum()
    return BrierDecomposition(
        reliability=float(reliability / n_rows),
        resolution=float(resolution / n_rows),
        uncertainty=float((base_rates * (1.0 - base_rates)).sum()),
        remainder=float((within_cell_variance - 2.0 * within_cell_covariance) / n_rows),
    )


@dataclass(frozen=True, eq=False)
class _CellSums:
    """Sums over the probabilities of each class and bin, of shape (n_classes, n_bins).

    Attributes
    ----------
    entry_count : array
        Number of entries.

    label_count : array
        Number of entries whose class is the true class of their row.

    forecast_sum, square_sum : array
        Sums of the probabilities, and of their squares.

    true_forecast_sum : array
        Sums of the probabilities of true classes.
    """

    entry_count: Float
    label_count: Float
    forecast_sum: Float
    square_sum: Float
    true_forecast_sum: Float

    @classmethod
    def from_table(cls, table: CheckedTable, n_bins: int, label_counts: Float) -> _CellSums:
        """Sum the probabilities of a table by class and bin.

        Parameters
        ----------
        table : CheckedTable
            Probabilities with labels.

        n_bins : int
            Number of bins of equal width.

        label_counts : array of shape (n_classes,)
            Number of rows of each class.

        Returns
        -------
        _CellSums
        """
        n_rows = len(table)
        n_classes = table.n_classes
        # Only entries above the first bin are listed, because nearly all entries lie in the first bin.
        # The sums of the first bin follow from the totals of each class.
        listed = list_entries_above_first_bin(table, n_bins)
        entry_count_of_class = np.full(n_classes, float(n_rows))
        unit_weights = np.ones((1, n_rows), dtype=np.intp)
        (probability_sum_of_class,) = compute_weighted_column_sums(table, unit_weights)
        square_sum_of_class = _compute_column_sums_of_squares(table)
        true_probability_sum_of_class = sum_by_group(
            table.label_codes, table.true_probability, n_classes
        )

        def sum_by_class_and_bin(listed_values: Float, totals_of_classes: Float) -> Float:
            return _sum_by_class_and_bin(
                listed.cell_index, listed_values, totals_of_classes, n_bins
            )

        return cls(
            entry_count=sum_by_class_and_bin(
                np.ones(len(listed.probability)), entry_count_of_class
            ),
            label_count=sum_by_class_and_bin(listed.is_label, label_counts),
            forecast_sum=sum_by_class_and_bin(listed.probability, probability_sum_of_class),
            square_sum=sum_by_class_and_bin(listed.probability**2, square_sum_of_class),
            true_forecast_sum=sum_by_class_and_bin(
                listed.probability * listed.is_label, true_probability_sum_of_class
            ),
        )


def _sum_by_class_and_bin(
    cell_index: Codes, listed_values: Float, totals_of_classes: Float, n_bins: int
) -> Float:
    """Sum values by class and bin, given the total of each class.

    Parameters
    ----------
    cell_index : array of int of shape (n_listed,)
        ``class * n_bins + bin`` of each entry above the first bin.

    listed_values : array of shape (n_listed,)
        Value of each of these entries.

    totals_of_classes : array of shape (n_classes,)
        Sum of the values of all entries of each class.

    n_bins : int
        Number of bins.

    Returns
    -------
    array of shape (n_classes, n_bins)
        The sum of the first bin is the total of the class minus the sums of the other bins.
    """
    n_classes = len(totals_of_classes)
    sums = sum_by_group(cell_index, listed_values, n_classes * n_bins)
    sums = sums.reshape(n_classes, n_bins)
    sums[:, 0] = totals_of_classes - sums.sum(axis=1)
    return sums


def _compute_column_sums_of_squares(table: CheckedTable) -> Float:
    """Compute the sum of squared probabilities of each class in float64."""
    square_sums = np.zeros(table.n_classes)
    for _, block in table.blocks():
        probabilities = block.astype(np.float64)
        square_sums += np.einsum("ij,ij->j", probabilities, probabilities)
    return square_sums
