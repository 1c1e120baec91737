"""Histogram binning: the frequency of the class in the bin its probability falls in.

Zadrozny & Elkan, "Obtaining calibrated probability estimates from decision trees and naive Bayesian
classifiers", ICML 2001; Gupta & Ramdas, "Top-label calibration and multiclass-to-binary
reductions", ICLR 2022.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError
from metacal.formulas import Codes, Float
from metacal.kernels import exact
from metacal.maps.curves import (
    Curve,
    Draw,
    PiecewiseMap,
    TopLabelMap,
    fit_piecewise,
    fit_top_label,
    identity_curve,
    joined,
    possible_chances,
    questions,
)
from metacal.maps.labelled import Weights
from metacal.maps.map import check_count, check_prior_rows
from metacal.rows import Rows

BINS = ("equal_width", "equal_mass")


def fit_histogram(
    rows: Rows,
    labels: Codes,
    weights: Weights = None,
    *,
    n_bins: int = 15,
    bins: str = "equal_width",
    prior_rows: float = 1.0,
) -> PiecewiseMap:
    """Fit q_k = (N₊ + s·p̄) / (N + s) for each bin of each class's probability, s = `prior_rows`.

    N is the weight in the bin, N₊ that of the rows of the class, p̄ the mean probability in the bin
    (its middle if the bin is empty): a row's worth of the uncalibrated model, so that no bin says
    never or always. s = 0 is the plain frequency. Bins are right-closed, of equal width 1/B or of
    nearly equal weight; tied probabilities share a bin, and where they leave a bin of equal weight
    empty there are fewer.
    """
    draw = _draw(n_bins, bins, prior_rows)
    if bins == "equal_mass" or weights is not None or len(rows) > exact.MOST:
        return fit_piecewise(rows, labels, weights, draw, "step")
    whole = BinCounts(rows.n_classes, n_bins)
    for found in rows.gather(_asked, partial(BinCounts, rows.n_classes, n_bins), labels):
        whole += found
    return joined(whole.curves(prior_rows), "step")


class BinCounts:
    """Rows, rows of the class, and Σ p of every class and bin of equal width, in whole numbers: one
    pass over a table.

    Rows may be added in any order, anywhere (`metacal.kernels.exact`), so a cluster gives the bits
    of one machine.

    Examples
    --------
    >>> counts = BinCounts(2, 2)
    >>> counts.add((np.array([[0.2], [0.3], [0.7], [0.8]]), np.array([0, 1, 1, 1])))
    >>> counts.curves(0.0)
    [(array([0. , 0.5]), array([0.5, 1. ]))]
    """

    def __init__(self, n_classes: int, n_bins: int) -> None:
        self.asked, self.n_bins = (
            np.arange(n_classes)[-1:] if n_classes == 2 else np.arange(n_classes),
            n_bins,
        )
        #: Rows, rows of the class, and Σ p in coarse and in fine units.
        self.sums = np.zeros((4, len(self.asked) * n_bins), dtype=np.int64)

    def add(self, part: tuple[Float, Codes]) -> None:
        """Add some rows: the probability of each question, NaN where its class is masked, and the
        labels.
        """
        table, labels = part
        flat = table.reshape(-1)
        cells = np.searchsorted(_cuts(self.n_bins), table, side="left") + self.n_bins * np.arange(
            len(self.asked)
        )
        possible = np.flatnonzero(~np.isnan(flat))
        cells, flat = cells.reshape(-1)[possible], flat[possible]
        right = (labels[:, None] == self.asked).reshape(-1)[possible]
        for sums, own in zip(self.sums, (cells, cells[right])):
            sums += np.bincount(own, minlength=len(sums))
        for sums, unit, part_of in zip(self.sums[2:], exact.UNITS, exact.in_units(flat)):
            sums += exact.counted(_sums(cells, part_of, len(sums)), unit)

    def result(self) -> BinCounts:
        """What travels: itself."""
        return self

    def __iadd__(self, other: BinCounts) -> BinCounts:
        self.sums += other.sums
        return self

    def curves(self, prior_rows: float) -> list[Curve]:
        """The curve of each class."""
        columns = np.stack([*self.sums[:2], exact.value(self.sums[2:])]).reshape(
            3, len(self.asked), -1
        )
        cuts = _cuts(self.n_bins)
        return [
            smoothed(cuts, rows, right, sums, prior_rows)
            for rows, right, sums in columns.swapaxes(0, 1)
        ]


def _asked(block: NDArray[Any], labels: Codes) -> tuple[Float, Codes]:
    """The probability of each question, NaN where its class is masked, and the labels."""
    return questions(possible_chances(block, 1.0, slice(None))), labels


def _sums(codes: Codes, values: Float, n_codes: int) -> Float:
    return np.asarray(np.bincount(codes, values, n_codes), dtype=np.float64)


def _cuts(n_bins: int) -> Float:
    return np.arange(1, n_bins) / n_bins


def fit_top_label_histogram(
    rows: Rows,
    labels: Codes,
    weights: Weights = None,
    *,
    n_bins: int = 15,
    bins: str = "equal_mass",
    tempered: bool = True,
    prior_rows: float = 1.0,
) -> TopLabelMap:
    """Fit the histogram of the predicted class's confidence alone, after temperature scaling if
    `tempered`.
    """
    return fit_top_label(rows, labels, weights, _draw(n_bins, bins, prior_rows), "step", tempered)


def histogram_curve(
    points: Float, total: Float, positive: Float, n_bins: int, bins: str, prior_rows: float
) -> Curve:
    """The smoothed frequency in each bin, and where the bins begin."""
    cuts = _cuts(n_bins) if bins == "equal_width" else points[equal_mass_ends(total, n_bins)[:-1]]
    codes = np.searchsorted(cuts, points, side="left")
    weight, right, sums = (
        _sums(codes, column, len(cuts) + 1) for column in (total, positive, total * points)
    )
    return smoothed(cuts, weight, right, sums, prior_rows)


def smoothed(cuts: Float, weight: Float, right: Float, sums: Float, prior_rows: float) -> Curve:
    """The curve from each bin's weight, that of the rows of the class, and the weighted sum of the
    probabilities.
    """
    if not weight.any():
        return identity_curve("step")
    edges, empty = np.concatenate(([0.0], cuts, [1.0])), weight <= 0.0
    mean = sums / np.where(empty, 1.0, weight)
    mean[empty] = 0.5 * (edges[1:] + edges[:-1])[empty]
    values = np.where(
        empty, mean, (right + prior_rows * mean) / np.where(empty, 1.0, weight + prior_rows)
    )
    return edges[:-1], np.clip(values, 0.0, 1.0)


def equal_mass_ends(weights: Float, n_bins: int) -> Codes:
    """The last point of each bin, when ordered points of these weights fall into bins of nearly
    equal weight.

    Examples
    --------
    >>> equal_mass_ends(np.ones(6), 3)
    array([1, 3, 5])
    >>> equal_mass_ends(np.array([1.0, 9.0, 1.0, 1.0]), 3)         # the heavy point fills two bins
    array([1, 3])
    """
    below = np.cumsum(weights)
    ends = np.searchsorted(below, below[-1] * np.arange(1, n_bins) / n_bins, side="left")
    return np.unique(np.append(ends, len(weights) - 1))


def _draw(n_bins: object, bins: object, prior_rows: object) -> Draw:
    if bins not in BINS:
        raise InputError(f"bins must be 'equal_width' or 'equal_mass', got {bins!r}.")
    n_bins = check_count("n_bins", n_bins, usual=15)
    return partial(
        histogram_curve, n_bins=n_bins, bins=str(bins), prior_rows=check_prior_rows(prior_rows)
    )
