"""An evaluation from what one walk over the rows has left of each: without a table, and without a bootstrap."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from metacal.metrics.binning import estimate
from metacal.metrics.evaluation import Evaluation, RowMetrics, Wanted, gate_wanted
from metacal.metrics.intervals import Interval
from metacal.metrics.resampling import Resampling

Column = NDArray[np.float64]
Codes = NDArray[np.intp]
Flags = NDArray[np.bool_]


def estimates(found: RowMetrics, n_bins: int, level: float) -> dict[str, Interval]:
    """The probability metrics of `evaluate` without bootstrap intervals; what needs the table itself is undefined."""
    return _estimated(found.wanted(n_bins), len(found.top), level)


def _estimated(wanted: Wanted, n_rows: int, level: float) -> dict[str, Interval]:
    """Proportions with their exact intervals, the others as bare estimates."""
    estimates = ((metric, estimate(found, n_rows) if callable(found) else found) for metric, found in wanted)
    return Resampling(level, 1).measure(estimates, n_rows)


def blocked_evaluation(
    found: RowMetrics,
    *,
    accept: Flags | None,
    correct: Flags,
    score: Column | None,
    n_classes: int,
    n_bins: int,
    level: float,
) -> Evaluation:
    """What `evaluate` gives for large tables: every estimate, exact intervals of the shares, no bootstrap."""
    kept = None
    if accept is not None and accept.any():
        kept = estimates(found.subset(accept), n_bins, level)
    return Evaluation(
        all_rows=estimates(found, n_bins, level),
        accepted_rows=kept,
        gate=_estimated(gate_wanted(found.top, accept, correct, score), len(found.top), level),
        n_rows=len(found.top),
        n_accepted=None if accept is None else int(accept.sum()),
        n_classes=n_classes,
        level=level,
        n_bins=n_bins,
    )
