"""The main metrics batch by batch, as TorchMetrics has them: update, compute, reset, and merge
across processes.

What is kept are sums, so that memory does not grow with the rows and two halves add up to the
whole. `state` is one NumPy array of them:
`torch.distributed.all_reduce(torch.from_numpy(metric.state))` sums it over processes in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from metacal.errors import InputError
from metacal.formulas import Float
from metacal.metrics.binning import bin_codes, bin_count, equal_width, sums_per_code
from metacal.metrics.calibration import accuracy
from metacal.metrics.proper import brier, nll
from metacal.metrics.toplabel import top_label


class Streaming:
    """A metric whose sums are kept: what a batch adds to `state`, and what comes of it in the end.
    Here a mean.
    """

    metric: ClassVar[Callable[..., float]]

    def __init__(self) -> None:
        #: Sums over all rows so far; those of several processes are added.
        self.state: Float = np.zeros(2)

    def update(self, proba: ArrayLike, labels: ArrayLike, **options: Any) -> Self:
        """Take in a batch: probabilities (arrays or tensors), one column per class, and true
        labels.
        """
        self.state += self._sums(proba, labels, **options)
        return self

    def compute(self) -> float:
        """The metric of all rows so far."""
        if not self.state[..., 1].sum():
            raise InputError("no row has come yet; call update first.")
        return self._finished()

    def reset(self) -> Self:
        """Forget all rows."""
        self.state[...] = 0.0
        return self

    def merge(self, other: Self) -> Self:
        """Add what another one of the same kind has seen."""
        if type(other) is not type(self) or other.state.shape != self.state.shape:
            raise InputError(
                f"{type(self).__name__} can be merged with one of the same kind and bins alone."
            )
        self.state += other.state
        return self

    def _sums(self, proba: ArrayLike, labels: ArrayLike, **options: Any) -> Float:
        rows = len(labels)  # type: ignore[arg-type]
        return np.array([type(self).metric(proba, labels, **options) * rows, rows])

    def _finished(self) -> float:
        return float(self.state[0] / self.state[1])


class StreamingAccuracy(Streaming):
    """`accuracy`, batch by batch."""

    metric = staticmethod(accuracy)


class StreamingNLL(Streaming):
    """`nll`, batch by batch."""

    metric = staticmethod(nll)


class StreamingBrier(Streaming):
    """`brier`, batch by batch."""

    metric = staticmethod(brier)


class StreamingECE(Streaming):
    """`ece` over bins of equal width, batch by batch: two sums a bin, whatever the number of rows.

    Examples
    --------
    >>> metric = StreamingECE(n_bins=15)
    >>> _ = metric.update([[0.9, 0.1], [0.2, 0.8]], [0, 0])
    >>> _ = metric.merge(StreamingECE(n_bins=15).update([[0.6, 0.4]], [1]))
    >>> round(metric.compute(), 6)
    0.5
    """

    def __init__(self, n_bins: int = 15) -> None:
        self.n_bins = bin_count(n_bins)
        self.state = np.zeros((self.n_bins, 2))

    def _sums(self, proba: ArrayLike, labels: ArrayLike, **options: Any) -> Float:
        top = top_label(proba, labels, **options)
        codes = bin_codes(top.confidence, equal_width(top.confidence, self.n_bins))
        gaps = sums_per_code(codes, top.confidence - top.correct, self.n_bins)
        return np.column_stack([gaps, np.bincount(codes, minlength=self.n_bins)])

    def _finished(self) -> float:
        return float(np.abs(self.state[:, 0]).sum() / self.state[:, 1].sum())
