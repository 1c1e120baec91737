"""Data of a reliability diagram: the accuracy and the mean confidence of each bin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from metacal.formulas import Codes, Float
from metacal.metrics.binning import Binning, assign_bins, compute_bin_edges, equal_width
from metacal.metrics.toplabel import TopLabel, read_top_label


@dataclass(frozen=True, eq=False)
class ReliabilityCurve:
    """Data of a reliability diagram, one entry per bin.

    Attributes
    ----------
    edges : array of float64 of shape (n_bins + 1,)
        Bin edges from 0 to 1. Bin b is ``(edges[b], edges[b + 1]]``.

    counts : array of int of shape (n_bins,)
        Number of rows in each bin.

    mean_confidence, accuracy : array of float64 of shape (n_bins,)
        Means of the rows in each bin, NaN for empty bins.
    """

    edges: Float
    counts: Codes
    mean_confidence: Float
    accuracy: Float


def reliability_curve(
    proba: ArrayLike,
    labels: ArrayLike,
    n_bins: int = 15,
    binning: Binning = equal_width,
    *,
    classes: Sequence[Any] | None = None,
) -> ReliabilityCurve:
    """Compute the data of a reliability diagram.

    Parameters
    ----------
    proba, labels, n_bins, binning, classes
        As in `metacal.metrics.ece`.

    Returns
    -------
    ReliabilityCurve
        Edges, counts, mean confidence and accuracy of the bins.

    Examples
    --------
    >>> curve = reliability_curve([[0.9, 0.1], [0.7, 0.3], [0.4, 0.6]], [0, 1, 1], n_bins=4)
    >>> curve.counts
    array([0, 0, 2, 1])
    >>> curve.accuracy
    array([nan, nan, 0.5, 1. ])
    """
    top_labels = read_top_label(proba, labels, classes=classes)
    bin_edges = compute_bin_edges(binning, top_labels.confidence, n_bins)
    return compute_reliability_curve(top_labels, bin_edges)


def compute_reliability_curve(top_labels: TopLabel, edges: Float) -> ReliabilityCurve:
    """Count the rows in each bin and average their confidence and correctness."""
    bin_indices = assign_bins(top_labels.confidence, edges)
    n_bins = len(edges) - 1
    counts = np.bincount(bin_indices, minlength=n_bins)
    divisors = np.where(counts > 0, counts, np.nan)
    return ReliabilityCurve(
        edges=edges,
        counts=counts,
        mean_confidence=np.bincount(bin_indices, top_labels.confidence, n_bins) / divisors,
        accuracy=np.bincount(bin_indices, top_labels.correct, n_bins) / divisors,
    )
