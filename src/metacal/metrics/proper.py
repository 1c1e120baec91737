"""Proper scoring rules: negative log-likelihood and the Brier score with its decomposition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from metacal.formulas import Float
from metacal.metrics.binning import bin_count, sums_per_code
from metacal.metrics.classwise import upper_entries, weighted_column_sums
from metacal.metrics.registry import PROBABILITIES, register
from metacal.metrics.toplabel import CheckedTable, checked_table

_rule = partial(
    register, input=PROBABILITIES, evaluated=True, compared=True, proper=True, needs_errors=True
)


def log_loss_rows(checked: CheckedTable) -> Float:
    """-log of the true class's probability, row by row."""
    with np.errstate(divide="ignore"):
        # A sum within tolerance of 1 may carry a lone probability just above it; 0 is then the
        # right loss.
        return np.maximum(-np.log(checked.true_probability), 0.0)


def brier_rows(checked: CheckedTable) -> Float:
    """Σ_k p_k² - 2 p_y + 1, row by row, in float64."""
    squares = np.empty(len(checked))
    for start, block in checked.blocks():
        wide = block.astype(np.float64)
        np.einsum("ij,ij->i", wide, wide, out=squares[start : start + len(block)])
    # Rounding may leave -1e-16 on a perfect row.
    return np.maximum(squares - 2.0 * checked.true_probability + 1.0, 0.0)


@_rule(title="NLL", heading="NLL", words="log loss", losses=log_loss_rows, range=(0.0, inf))
def nll(proba: ArrayLike, labels: ArrayLike, *, classes: Sequence[Any] | None = None) -> float:
    """Mean negative log-likelihood of the true class, ``-(1/n) Σ_i log p_i[y_i]`` (Good 1952).

    Infinite when some true class was given probability 0: nothing is clipped.

    Examples
    --------
    >>> round(nll([[0.5, 0.5], [0.25, 0.75]], [0, 1]), 6)
    0.490415
    >>> nll([[1.0, 0.0]], [1])
    inf
    """
    return float(log_loss_rows(checked_table(proba, labels, classes=classes)).mean())


@_rule(title="Brier score", heading="Brier", losses=brier_rows, range=(0.0, 2.0))
def brier(proba: ArrayLike, labels: ArrayLike, *, classes: Sequence[Any] | None = None) -> float:
    """Brier score, ``(1/n) Σ_i Σ_k (p_ik - 1(y_i = k))²``, summed over classes: from 0 to 2 (Brier
    1950).

    Examples
    --------
    >>> brier([[0.5, 0.5], [0.25, 0.75]], [0, 1])
    0.3125
    """
    return float(brier_rows(checked_table(proba, labels, classes=classes)).mean())


@dataclass(frozen=True)
class BrierDecomposition:
    """Parts of the Brier score; ``reliability - resolution + uncertainty + remainder`` is the
    score.

    Attributes
    ----------
    reliability : float
        Squared gap between mean forecast and frequency per bin: 0 for calibrated forecasts. Lower
        is better.
    resolution : float
        Squared distance of the bins' frequencies from the base rate. Higher is better.
    uncertainty : float
        Variance of the labels; no forecast changes it.
    remainder : float
        Variance of the forecasts within bins less twice their covariance with the labels; 0 when
        each bin holds one forecast value.
    """

    reliability: float
    resolution: float
    uncertainty: float
    remainder: float

    @property
    def brier(self) -> float:
        """The score the parts add up to."""
        return self.reliability - self.resolution + self.uncertainty + self.remainder


def brier_decomposition(
    proba: ArrayLike, labels: ArrayLike, n_bins: int = 15, *, classes: Sequence[Any] | None = None
) -> BrierDecomposition:
    """Reliability, resolution and uncertainty of the Brier score, with what binning leaves over.

    Each class's forecasts are put in `n_bins` equal-width bins. With p̄_kb and ȳ_kb the mean
    forecast and frequency of class k in bin b, and ȳ_k the base rate, summed over classes,

        reliability Σ (n_kb/n)(p̄_kb - ȳ_kb)²,  resolution Σ (n_kb/n)(ȳ_kb - ȳ_k)²,  uncertainty Σ
        ȳ_k (1 - ȳ_k)

    (Murphy 1973), and the within-bin variance less covariance of Stephenson, Coelho & Jolliffe
    2008,

        remainder (1/n) Σ (p_ik - p̄_kb)² - (2/n) Σ (p_ik - p̄_kb)(y_ik - ȳ_kb),

    which makes the identity exact for any bins.

    Examples
    --------
    >>> parts = brier_decomposition([[0.9, 0.1], [0.9, 0.1], [0.2, 0.8], [0.2, 0.8]], [0, 0, 1, 0], n_bins=5)
    >>> round(parts.reliability, 6), round(parts.resolution, 6), round(parts.uncertainty, 6)
    (0.1, 0.125, 0.375)
    >>> round(parts.brier, 6), round(brier([[0.9, 0.1], [0.9, 0.1], [0.2, 0.8], [0.2, 0.8]], [0, 0, 1, 0]), 6)
    (0.35, 0.35)
    """
    checked, n_bins = checked_table(proba, labels, classes=classes), bin_count(n_bins)
    n_rows, n_classes = len(checked), checked.n_classes
    upper = upper_entries(checked, n_bins)
    p, y = upper.probability, upper.hit
    labels_per_class = np.bincount(checked.codes, minlength=n_classes).astype(np.float64)

    def cells(values: Float, totals: Float) -> Float:
        sums = sums_per_code(upper.cell, values, n_classes * n_bins).reshape(n_classes, n_bins)
        sums[:, 0] = totals - sums.sum(axis=1)
        return sums

    count = cells(np.ones(len(p)), np.full(n_classes, float(n_rows)))
    hits = cells(y, labels_per_class)
    forecast = cells(p, weighted_column_sums(checked, np.ones((1, n_rows), dtype=np.intp))[0])
    wide = (block.astype(np.float64) for _, block in checked.blocks())
    squares = cells(p**2, np.asarray(sum(np.einsum("ij,ij->j", block, block) for block in wide)))
    products = cells(p * y, sums_per_code(checked.codes, checked.true_probability, n_classes))

    safe = np.maximum(count, 1.0)
    base_rate = (labels_per_class / n_rows)[:, None]
    reliability = ((forecast - hits) ** 2 / safe).sum()
    resolution = np.where(count > 0, count * (hits / safe - base_rate) ** 2, 0.0).sum()
    variance = (squares - forecast**2 / safe).sum()
    covariance = (products - forecast * hits / safe).sum()
    return BrierDecomposition(
        reliability=float(reliability / n_rows),
        resolution=float(resolution / n_rows),
        uncertainty=float((base_rate * (1.0 - base_rate)).sum()),
        remainder=float((variance - 2.0 * covariance) / n_rows),
    )
