"""Metrics computed batch by batch, with the interface of TorchMetrics.

An object stores sums over rows, so its memory does not grow with the number of rows, and the sums
of two parts add up to those of the whole. `state` is one NumPy array of these sums.
`torch.distributed.all_reduce(torch.from_numpy(metric.state))` sums it over processes in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from metacal.errors import InputError, NoRowsError
from metacal.formulas import Float
from metacal.metrics.binning import assign_bins, check_n_bins, equal_width, sum_by_group
from metacal.metrics.calibration import accuracy
from metacal.metrics.proper import brier, nll
from metacal.metrics.toplabel import top_label


class Streaming:
    """Metric that is a mean over rows, computed batch by batch.

    Attributes
    ----------
    metric : callable
        The metric, a function of (proba, labels).

    state : array of float64
        Sum of the metric over all rows so far, and the number of rows. The states of several
        processes can be added.
    """

    metric: ClassVar[Callable[..., float]]

    def __init__(self) -> None:
        self.state: Float = np.zeros(2)

    def update(self, proba: ArrayLike, labels: ArrayLike, **options: Any) -> Self:
        """Add a batch of rows.

        Parameters
        ----------
        proba : array or tensor of shape (n, K)
            Probabilities.

        labels : array or tensor of shape (n,)
            True classes.

        **options
            Options of the metric, such as `classes`.

        Returns
        -------
        self
        """
        self.state += self._compute_batch_state(proba, labels, **options)
        return self

    def compute(self) -> float:
        """Compute the metric of all rows so far, of which there must be at least one."""
        if not self.state[..., 1].sum():
            raise NoRowsError("No rows have been added. Call update before compute.")
        return self._compute_metric_of_state()

    def reset(self) -> Self:
        """Remove all rows."""
        self.state[...] = 0.0
        return self

    def merge(self, other: Self) -> Self:
        """Add the rows of another object of the same class and number of bins."""
        if type(other) is not type(self) or other.state.shape != self.state.shape:
            raise InputError(
                f"{type(self).__name__} can be merged only with another {type(self).__name__}"
                " that has the same bins."
            )
        self.state += other.state
        return self

    def _compute_batch_state(self, proba: ArrayLike, labels: ArrayLike, **options: Any) -> Float:
        """Return the state of one batch."""
        n_rows = len(labels)  # type: ignore[arg-type]
        mean = type(self).metric(proba, labels, **options)
        return np.array([mean * n_rows, n_rows])

    def _compute_metric_of_state(self) -> float:
        """Compute the metric from the state."""
        return float(self.state[0] / self.state[1])


class StreamingAccuracy(Streaming):
    """`accuracy`, computed batch by batch."""

    metric = staticmethod(accuracy)


class StreamingNLL(Streaming):
    """`nll`, computed batch by batch."""

    metric = staticmethod(nll)


class StreamingBrier(Streaming):
    """`brier`, computed batch by batch."""

    metric = staticmethod(brier)


class StreamingECE(Streaming):
    """`ece` over bins of equal width, computed batch by batch.

    The state has two sums per bin: of the gaps, confidence minus correctness, and of the rows.

    Parameters
    ----------
    n_bins : int, default=15
        Number of bins.

    Examples
    --------
    >>> metric = StreamingECE(n_bins=15)
    >>> _ = metric.update([[0.9, 0.1], [0.2, 0.8]], [0, 0])
    >>> _ = metric.merge(StreamingECE(n_bins=15).update([[0.6, 0.4]], [1]))
    >>> round(metric.compute(), 6)
    0.5
    """

    def __init__(self, n_bins: int = 15) -> None:
        self.n_bins = check_n_bins(n_bins)
        self.state = np.zeros((self.n_bins, 2))

    def _compute_batch_state(self, proba: ArrayLike, labels: ArrayLike, **options: Any) -> Float:
        top_labels = top_label(proba, labels, **options)
        bin_indices = assign_bins(
            top_labels.confidence, equal_width(top_labels.confidence, self.n_bins)
        )
        gap_sums = sum_by_group(
            bin_indices, top_labels.confidence - top_labels.correct, self.n_bins
        )
        row_counts = np.bincount(bin_indices, minlength=self.n_bins)
        return np.column_stack([gap_sums, row_counts])

    def _compute_metric_of_state(self) -> float:
        gap_sums, row_counts = self.state.T
        return float(np.abs(gap_sums).sum() / row_counts.sum())
