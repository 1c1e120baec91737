"""What the report needs of every row, as columns, read block by block: memory grows by numbers per row, not tables.

The columns go through the same functions as `metacal.metrics.evaluate`, so the numbers are the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.metrics import columns
from metacal.metrics.binning import Statistic, estimate, mean_statistic
from metacal.metrics.classwise import upper_entries
from metacal.metrics.evaluation import Evaluation, gate_metrics
from metacal.metrics.intervals import NO_INTERVAL, Interval, Resampling, accuracy_interval
from metacal.metrics.proper import brier_rows, log_loss_rows
from metacal.metrics.smooth import smooth_ece_statistic
from metacal.metrics.toplabel import TopLabel, checked_table
from metacal.rows import Rows

Column = NDArray[np.float64]
Codes = NDArray[np.intp]
Flags = NDArray[np.bool_]

#: A fitted map on a block: (logits, which of these rows are accepted or None) -> probabilities.
BlockMap = Callable[[NDArray[Any], Flags | None], NDArray[Any]]

_BLOCK_ELEMENTS, _FEWEST_ROWS = 1 << 20, 64


@dataclass(frozen=True, eq=False)
class ProbabilityColumns:
    """Confidence, correctness, log loss and Brier score of each row."""

    top: TopLabel
    log_loss: Column
    brier: Column

    def subset(self, keep: Flags) -> ProbabilityColumns:
        """The same of some rows."""
        top = TopLabel(self.top.confidence[keep], self.top.correct[keep])
        return ProbabilityColumns(top, self.log_loss[keep], self.brier[keep])


def probability_columns(rows: Rows, codes: Codes, accept: Flags | None, block_map: BlockMap) -> ProbabilityColumns:
    """Go through the table once, mapping each block and reducing it to four numbers per row."""

    def reduce(block: NDArray[Any], labels: Codes, accepted: Flags | None) -> Column:
        checked = checked_table(block_map(block, accepted), labels)
        confidence, correct = checked.top_label()
        return np.stack([confidence, correct, log_loss_rows(checked), brier_rows(checked)], axis=1)

    found = rows.collect(reduce, codes, accept)
    confidence, correct, log_loss, brier = (np.ascontiguousarray(found[:, k]) for k in range(4))
    return ProbabilityColumns(TopLabel(confidence, correct), log_loss, brier)


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


def estimates(found: ProbabilityColumns, classwise_ece: float, n_bins: int, plan: Resampling) -> dict[str, Interval]:
    """The probability metrics of `evaluate` from columns, without bootstrap intervals."""
    top = found.top
    statistics: dict[str, Statistic] = {
        "ece": columns.ece_statistic(top, n_bins),
        "ece_equal_mass": columns.ece_equal_mass_statistic(top, n_bins),
        "sup_ece": columns.sup_ece_statistic(top),
        "smooth_ece": smooth_ece_statistic(top),
        "nll": mean_statistic(found.log_loss),
        "brier": mean_statistic(found.brier),
    }
    values = {name: estimate(statistic, len(top)) for name, statistic in statistics.items()}
    values["classwise_ece"] = classwise_ece
    order = ("ece", "ece_equal_mass", "classwise_ece", "sup_ece", "smooth_ece", "nll", "brier")
    bare = {name: Interval(values[name], nan, nan, plan.level, NO_INTERVAL) for name in order}
    return {"accuracy": _accuracy(top, plan), **bare}


def blocked_evaluation(
    found: ProbabilityColumns,
    classwise: tuple[float, float],
    *,
    accept: Flags | None,
    correct: Flags,
    score: Column,
    n_classes: int,
    n_bins: int,
    level: float,
) -> Evaluation:
    """What `evaluate` gives for large tables: every estimate, exact intervals of the shares, no bootstrap.

    `classwise` is the class-wise ECE of all rows and of the accepted ones.
    """
    exact, bare = Resampling(level, 1), Resampling(level, 0)
    kept = None
    if accept is not None and accept.any():
        kept = estimates(found.subset(accept), classwise[1], n_bins, exact)
    gate = gate_metrics(found.top, accept, correct, None, exact) | gate_metrics(found.top, None, correct, score, bare)
    return Evaluation(
        all_rows=estimates(found, classwise[0], n_bins, exact),
        accepted_rows=kept,
        gate=gate,
        n_rows=len(found.top),
        n_accepted=None if accept is None else int(accept.sum()),
        n_classes=n_classes,
        level=level,
        n_bins=n_bins,
    )


def _accuracy(top: TopLabel, plan: Resampling) -> Interval:
    if np.isin(top.correct, (0.0, 1.0)).all():
        return accuracy_interval(top, plan)
    return Interval(float(top.correct.mean()), nan, nan, plan.level, NO_INTERVAL)
