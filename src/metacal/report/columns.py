"""What the report needs of every row, as columns, read block by block: memory grows by numbers per row, not tables.

The columns go through the same functions as `metacal.metrics.evaluate`, so the numbers are the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.metrics import registry
from metacal.metrics.binning import estimate
from metacal.metrics.classwise import upper_entries
from metacal.metrics.evaluation import Evaluation, RowMetrics, Wanted, gate_wanted, row_losses
from metacal.metrics.intervals import NO_INTERVAL, Interval, Resampling
from metacal.metrics.metric import PROBABILITIES, TOP_LABEL
from metacal.metrics.toplabel import TopLabel, checked_table
from metacal.rows import Rows

Column = NDArray[np.float64]
Codes = NDArray[np.intp]
Flags = NDArray[np.bool_]

#: A fitted map on a block: (logits, which of these rows are accepted or None) -> probabilities.
BlockMap = Callable[[NDArray[Any], Flags | None], NDArray[Any]]

_BLOCK_ELEMENTS, _FEWEST_ROWS = 1 << 20, 64


def probability_columns(rows: Rows, codes: Codes, accept: Flags | None, block_map: BlockMap) -> RowMetrics:
    """Go through the table once, mapping each block and reducing it to a few numbers per row."""
    names = [metric.name for metric in registry.evaluated(PROBABILITIES) if metric.losses is not None]

    def reduce(block: NDArray[Any], labels: Codes, accepted: Flags | None) -> Column:
        checked = checked_table(block_map(block, accepted), labels)
        return np.stack([*checked.top_label(), *row_losses(checked).values()], axis=1)

    found = rows.collect(reduce, codes, accept)
    confidence, correct, *losses = (np.ascontiguousarray(column) for column in found.T)
    return RowMetrics(TopLabel(confidence, correct), dict(zip(names, losses, strict=True)))


def class_errors(
    table: Any, codes: Codes, accept: Flags | None, block_map: BlockMap, n_bins: int, *, only_accepted: bool
) -> Column:
    """(1/n) Σ_b |Σ_{p_ik in b} (1(y_i = k) - p_ik)| of each class k; their mean is the class-wise ECE."""
    n_classes = int(table.shape[1])
    gaps, n = np.zeros((n_classes, n_bins)), 0
    step = max(_FEWEST_ROWS, _BLOCK_ELEMENTS // n_classes)
    for start in range(0, len(table), step):
        block, labels = np.asarray(table[start : start + step]), codes[start : start + step]
        accepted = None if accept is None else accept[start : start + step]
        if only_accepted and accepted is not None:
            block, labels, accepted = block[accepted], labels[accepted], accepted[accepted]
        if not len(block):
            continue
        checked = checked_table(block_map(block, accepted), labels)
        upper = upper_entries(checked, n_bins)
        above = upper.sums(upper.hit - upper.probability, n_classes, n_bins)
        whole = np.bincount(labels, minlength=n_classes) - checked.table.sum(axis=0, dtype=np.float64)
        above[:, 0] += whole - above.sum(axis=1)
        gaps, n = gaps + above, n + len(block)
    return np.asarray(np.abs(gaps).sum(axis=1) / max(n, 1))


def estimates(found: RowMetrics, given: Mapping[str, float], n_bins: int, level: float) -> dict[str, Interval]:
    """The probability metrics of `evaluate` from columns, without bootstrap intervals.

    `given` holds those that need the whole table; what is neither there nor in the columns is undefined.
    """
    known = _estimated(found.wanted(n_bins), len(found.top), level)
    known |= {name: _bare(value, level) for name, value in given.items()}
    shown = (metric.name for metric in registry.evaluated(PROBABILITIES, TOP_LABEL))
    return {name: known.get(name, _bare(nan, level)) for name in shown}


def _estimated(wanted: Wanted, n_rows: int, level: float) -> dict[str, Interval]:
    """Proportions with their exact intervals, the others as bare estimates."""
    estimates = ((metric, estimate(found, n_rows) if callable(found) else found) for metric, found in wanted)
    return Resampling(level, 1).measure(estimates, n_rows)


def _bare(value: float, level: float) -> Interval:
    return Interval(value, nan, nan, level, NO_INTERVAL)


def blocked_evaluation(
    found: RowMetrics,
    given: tuple[Mapping[str, float], Mapping[str, float]],
    *,
    accept: Flags | None,
    correct: Flags,
    score: Column,
    n_classes: int,
    n_bins: int,
    level: float,
) -> Evaluation:
    """What `evaluate` gives for large tables: every estimate, exact intervals of the shares, no bootstrap.

    `given` are the metrics that need the whole table, of all rows and of the accepted ones.
    """
    kept = None
    if accept is not None and accept.any():
        kept = estimates(found.subset(accept), given[1], n_bins, level)
    return Evaluation(
        all_rows=estimates(found, given[0], n_bins, level),
        accepted_rows=kept,
        gate=_estimated(gate_wanted(found.top, accept, correct, score), len(found.top), level),
        n_rows=len(found.top),
        n_accepted=None if accept is None else int(accept.sum()),
        n_classes=n_classes,
        level=level,
        n_bins=n_bins,
    )
