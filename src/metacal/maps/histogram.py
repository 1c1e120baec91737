"""Histogram binning: the frequency of the class in the bin its probability falls in.

Zadrozny & Elkan, "Obtaining calibrated probability estimates from decision trees and naive Bayesian classifiers", ICML
2001; Gupta & Ramdas, "Top-label calibration and multiclass-to-binary reductions", ICLR 2022.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError
from metacal.maps.curves.onevsrest import (
    Curve,
    Draw,
    Float,
    Labels,
    PiecewiseMap,
    Weights,
    check_count,
    check_prior_rows,
    fit_piecewise,
    identity_curve,
    tie_groups,
)
from metacal.maps.curves.toplabel import TopLabelMap, fit_top_label
from metacal.rows import Rows

BINS = ("equal_width", "equal_mass")


def fit_histogram(
    rows: Rows,
    labels: Labels,
    weights: Weights = None,
    *,
    n_bins: int = 15,
    bins: str = "equal_width",
    prior_rows: float = 1.0,
) -> PiecewiseMap:
    """Fit q_k = (N₊ + s·p̄) / (N + s) for each bin of each class's probability, s = `prior_rows`.

    N is the weight in the bin, N₊ that of the rows of the class, p̄ the mean probability in the bin (its middle if the
    bin is empty): a row's worth of the uncalibrated model, so that no bin says never or always. s = 0 is the plain
    frequency. Bins are right-closed, of equal width 1/B or of nearly equal weight; tied probabilities share a bin, and
    where they leave a bin of equal weight empty there are fewer.

    Examples
    --------
    >>> logits = np.log([[0.8, 0.2], [0.7, 0.3], [0.3, 0.7], [0.2, 0.8]])
    >>> fit_histogram(Rows(logits), np.array([0, 1, 1, 1]), n_bins=2, prior_rows=0.0).values
    array([0.5, 1. ])
    """
    draw = _draw(n_bins, bins, prior_rows)
    return fit_piecewise(rows, labels, weights, draw, "step")


def fit_top_label_histogram(
    rows: Rows,
    labels: Labels,
    weights: Weights = None,
    *,
    n_bins: int = 15,
    bins: str = "equal_mass",
    tempered: bool = True,
    prior_rows: float = 1.0,
) -> TopLabelMap:
    """Fit the histogram of the predicted class's confidence alone, after temperature scaling if `tempered`.

    Examples
    --------
    >>> logits = np.log([[0.6, 0.4], [0.7, 0.3], [0.8, 0.2], [0.9, 0.1]])
    >>> fit_top_label_histogram(Rows(logits), np.array([1, 0, 0, 0]), n_bins=2, prior_rows=0.0).values
    array([0.5, 1. ])
    """
    draw = _draw(n_bins, bins, prior_rows)
    return fit_top_label(rows, labels, weights, draw, "step", tempered)


def histogram_curve(at: Float, outcomes: Float, weights: Float, n_bins: int, bins: str, prior_rows: float) -> Curve:
    """The smoothed frequency in each bin, and where the bins begin."""
    if not len(at):
        return identity_curve("step")
    points, total, positive = tie_groups(at, outcomes, weights)
    cuts = np.arange(1, n_bins) / n_bins if bins == "equal_width" else points[equal_mass_ends(total, n_bins)[:-1]]
    codes = np.searchsorted(cuts, points, side="left")
    edges = np.concatenate(([0.0], cuts, [1.0]))
    weight = np.bincount(codes, total, len(cuts) + 1)
    empty = weight <= 0.0
    mean = np.bincount(codes, total * points, len(cuts) + 1) / np.where(empty, 1.0, weight)
    mean[empty] = 0.5 * (edges[1:] + edges[:-1])[empty]
    shown = np.bincount(codes, positive, len(cuts) + 1) + prior_rows * mean
    values = np.where(empty, mean, shown / np.where(empty, 1.0, weight + prior_rows))
    return edges[:-1], np.clip(values, 0.0, 1.0)


def equal_mass_ends(weights: Float, n_bins: int) -> NDArray[np.intp]:
    """The last point of each bin, when ordered points of these weights fall into bins of nearly equal weight.

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
    return partial(histogram_curve, n_bins=n_bins, bins=str(bins), prior_rows=check_prior_rows(prior_rows))
