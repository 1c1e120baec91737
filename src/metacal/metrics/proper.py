"""Proper scoring rules: negative log-likelihood, and the Brier score with its decomposition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from metacal.formulas import Float
from metacal.metrics.binning import check_n_bins, sums_per_code
from metacal.metrics.classwise import UpperEntries, find_upper_entries, weighted_column_sums
from metacal.metrics.registry import PROBABILITIES, register
from metacal.metrics.toplabel import CheckedTable, checked_table

_register_scoring_rule = partial(
    register, input=PROBABILITIES, evaluated=True, compared=True, proper=True, needs_errors=True
)


def log_loss_rows(checked: CheckedTable) -> Float:
    """Compute -log p of the true class of each row."""
    with np.errstate(divide="ignore"):
        # The tolerance of the row sums allows a probability slightly above 1. The loss is then 0.
        return np.maximum(-np.log(checked.true_probability), 0.0)


def brier_rows(checked: CheckedTable) -> Float:
    """Compute the Brier loss of each row, Σ_k p_k² - 2 p_y + 1, in float64."""
    sums_of_squares = np.empty(len(checked))
    for start, block in checked.blocks():
        values = block.astype(np.float64)
        block_sums = sums_of_squares[start : start + len(block)]
        np.einsum("ij,ij->i", values, values, out=block_sums)
    # Rounding may give -1e-16 on a row with no loss.
    return np.maximum(sums_of_squares - 2.0 * checked.true_probability + 1.0, 0.0)


@_register_scoring_rule(
    title="NLL", heading="NLL", words="log loss", losses=log_loss_rows, range=(0.0, inf)
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
    checked = checked_table(proba, labels, classes=classes)
    return float(log_loss_rows(checked).mean())


@_register_scoring_rule(title="Brier score", heading="Brier", losses=brier_rows, range=(0.0, 2.0))
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
    checked = checked_table(proba, labels, classes=classes)
    return float(brier_rows(checked).mean())


@dataclass(frozen=True)
class BrierDecomposition:
    """Decomposition of the Brier score.

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
        """Brier score."""
        return self.reliability - self.resolution + self.uncertainty + self.remainder


def brier_decomposition(
    proba: ArrayLike, labels: ArrayLike, n_bins: int = 15, *, classes: Sequence[Any] | None = None
) -> BrierDecomposition:
    """Decompose the Brier score into reliability, resolution, uncertainty and remainder.

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
    checked = checked_table(proba, labels, classes=classes)
    n_rows = len(checked)
    label_counts = np.bincount(checked.codes, minlength=checked.n_classes).astype(np.float64)
    sums = _CellSums.from_table(checked, check_n_bins(n_bins), label_counts)

    divisors = np.maximum(sums.counts, 1.0)
    base_rates = (label_counts / n_rows)[:, None]
    squared_distances = (sums.labels / divisors - base_rates) ** 2
    reliability = ((sums.forecasts - sums.labels) ** 2 / divisors).sum()
    resolution = np.where(sums.counts > 0, sums.counts * squared_distances, 0.0).sum()
    variance = (sums.squares - sums.forecasts**2 / divisors).sum()
    covariance = (sums.products - sums.forecasts * sums.labels / divisors).sum()
    return BrierDecomposition(
        reliability=float(reliability / n_rows),
        resolution=float(resolution / n_rows),
        uncertainty=float((base_rates * (1.0 - base_rates)).sum()),
        remainder=float((variance - 2.0 * covariance) / n_rows),
    )


@dataclass(frozen=True, eq=False)
class _CellSums:
    """Sums over the entries of each class and bin, arrays of shape (n_classes, n_bins).

    Attributes
    ----------
    counts : array
        Number of entries.

    labels : array
        Number of entries whose class is the true class of their row.

    forecasts, squares : array
        Sums of the probabilities, and of their squares.

    products : array
        Sums of the probabilities of true classes.
    """

    counts: Float
    labels: Float
    forecasts: Float
    squares: Float
    products: Float

    @classmethod
    def from_table(cls, checked: CheckedTable, n_bins: int, label_counts: Float) -> _CellSums:
        """Sum the entries of a table; `label_counts` has the number of rows of each class."""
        n_rows = len(checked)
        n_classes = checked.n_classes
        upper = find_upper_entries(checked, n_bins)
        probability = upper.probability
        is_label = upper.is_label

        column_counts = np.full(n_classes, float(n_rows))
        unit_weights = np.ones((1, n_rows), dtype=np.intp)
        column_sums = weighted_column_sums(checked, unit_weights)[0]
        label_sums = sums_per_code(checked.codes, checked.true_probability, n_classes)
        column_squares = _column_sums_of_squares(checked)
        return cls(
            counts=_sum_cells(upper, np.ones(len(probability)), column_counts, n_bins),
            labels=_sum_cells(upper, is_label, label_counts, n_bins),
            forecasts=_sum_cells(upper, probability, column_sums, n_bins),
            squares=_sum_cells(upper, probability**2, column_squares, n_bins),
            products=_sum_cells(upper, probability * is_label, label_sums, n_bins),
        )


def _sum_cells(upper: UpperEntries, values: Float, column_totals: Float, n_bins: int) -> Float:
    """Sum values per class and bin.

    Parameters
    ----------
    upper : UpperEntries
        Entries above the first bin.

    values : array of shape (n_entries,)
        Value of each of these entries.

    column_totals : array of shape (n_classes,)
        Sum of the values of all entries of each class.

    n_bins : int
        Number of bins.

    Returns
    -------
    array of shape (n_classes, n_bins)
        The first bin has the rest of the column totals.
    """
    n_classes = len(column_totals)
    sums = sums_per_code(upper.cell, values, n_classes * n_bins).reshape(n_classes, n_bins)
    sums[:, 0] = column_totals - sums.sum(axis=1)
    return sums


def _column_sums_of_squares(checked: CheckedTable) -> Float:
    """Compute Σ_i p_ik² of each class k in float64."""
    totals = np.zeros(checked.n_classes)
    for _, block in checked.blocks():
        values = block.astype(np.float64)
        totals += np.einsum("ij,ij->j", values, values)
    return totals
