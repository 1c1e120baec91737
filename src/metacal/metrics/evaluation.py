"""One look at a gate and its probabilities: accepted rows and all rows side by side, each number with its interval."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metacal.errors import InputError, MetacalWarning
from metacal.metrics import calibration, classwise, columns, proper, selective, smooth
from metacal.metrics.binning import mean_statistic
from metacal.metrics.intervals import (
    NO_INTERVAL,
    SCORE_METRICS,
    Interval,
    RandomState,
    Resampling,
    Target,
    accuracy_interval,
    target_of,
)
from metacal.metrics.toplabel import CheckedTable, TopLabel, checked_table, number_column, same_length

_TITLES = {
    "accuracy": "accuracy",
    "ece": "ECE, equal width",
    "ece_equal_mass": "ECE, equal mass",
    "classwise_ece": "ECE, class-wise",
    "sup_ece": "ECE, sup over binnings",
    "smooth_ece": "ECE, smooth",
    "nll": "NLL",
    "brier": "Brier score",
    "coverage": "coverage",
    "miscoverage": "miscoverage, P(reject | correct)",
    "coverage_accuracy": "coverage accuracy, P(correct | accept)",
    "type_1_error": "type I error, P(reject | correct)",
    "type_2_error": "type II error, P(accept | wrong)",
    "aurc": "AURC",
    "e_aurc": "excess AURC",
    "augrc": "AUGRC",
    "auroc": "AUROC of the score",
}


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What `evaluate` found; print it for people, `to_dict` for machines.

    Attributes
    ----------
    all_rows : mapping of metric name to Interval
        Probability metrics on every row, rejected ones as they stand in the table (uniform: confidence 1/K).
    accepted_rows : mapping of metric name to Interval, or None
        The same on the accepted rows alone; None without `accept` or when nothing was accepted.
    gate : mapping of metric name to Interval
        The gate's numbers; empty without `accept` and `score`.
    n_rows, n_accepted, n_classes : int
        Sizes; `n_accepted` is None without `accept`.
    level, n_bins : float, int
        What was asked for.
    """

    all_rows: Mapping[str, Interval]
    accepted_rows: Mapping[str, Interval] | None
    gate: Mapping[str, Interval]
    n_rows: int
    n_accepted: int | None
    n_classes: int
    level: float
    n_bins: int

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe: intervals become mappings, and what is not a finite number becomes None."""
        return {
            "n_rows": self.n_rows,
            "n_accepted": self.n_accepted,
            "n_classes": self.n_classes,
            "level": self.level,
            "n_bins": self.n_bins,
            "accepted_rows": None if self.accepted_rows is None else _plain(self.accepted_rows),
            "all_rows": _plain(self.all_rows),
            "gate": _plain(self.gate),
        }

    def __str__(self) -> str:
        percent = f"{100 * self.level:g}%"
        if self.n_accepted is None:
            head = [f"{self.n_rows} rows, {self.n_classes} classes; {percent} intervals in brackets"]
        else:
            head = [
                f"{self.n_rows} rows, {self.n_accepted} accepted, {self.n_classes} classes; "
                f"{percent} intervals in brackets"
            ]
        lines = head
        if self.gate:
            lines += [
                "",
                *_aligned([("gate", ""), *((_TITLES[name], str(found)) for name, found in self.gate.items())]),
            ]
        names = list(self.all_rows)
        if self.n_accepted is None:
            body = [("probabilities", "all rows"), *((_TITLES[name], str(self.all_rows[name])) for name in names)]
            return "\n".join([*lines, "", *_aligned(body)])
        accepted = self.accepted_rows or {}
        table = [("probabilities", "accepted rows", "all rows")]
        table += [(_TITLES[name], str(accepted.get(name, "undefined")), str(self.all_rows[name])) for name in names]
        note = (
            "Rejected rows dilute the errors of all rows: judge calibration by the accepted rows, next to the coverage."
        )
        return "\n".join([*lines, "", *_aligned(table), "", note])


def evaluate(
    proba: ArrayLike,
    labels: ArrayLike,
    *,
    accept: ArrayLike | None = None,
    correct: ArrayLike | None = None,
    score: ArrayLike | None = None,
    classes: Sequence[Any] | None = None,
    n_bins: int = 15,
    level: float = 0.95,
    n_resamples: int = 1000,
    random_state: RandomState = 0,
    intervals: bool = True,
) -> Evaluation:
    """Evaluate probabilities and, where given, the gate that accepted or rejected them.

    Parameters
    ----------
    proba : array of shape (n, K)
        What `MetaCal.predict_proba` gives: calibrated on accepted rows, uniform on rejected ones (which count 1/K).
    labels : array of shape (n,)
        True classes.
    accept : boolean array, optional
        The gate's decisions.
    correct : boolean array, optional
        Whether the *uncalibrated* model's answer is right. By default read from `proba`, which cannot be done for
        rejected rows that were made uniform: without `correct` the numbers that need those rows are then NaN.
    score : array, optional
        The ranking score, higher = less sure; adds AURC, excess AURC, AUGRC and AUROC.
    classes : sequence, optional
        The class of each column, where labels are not column numbers.
    n_bins, level, n_resamples, random_state
        Bins of the binned errors, level of the intervals, resamples of the bootstrap, its seed.
    intervals : bool
        False computes estimates only; the ends of every interval are then NaN.

    Examples
    --------
    >>> proba = [[0.9, 0.1], [0.2, 0.8], [0.5, 0.5], [0.6, 0.4]]
    >>> found = evaluate(proba, [0, 1, 1, 1], accept=[True, True, False, True], correct=[True, True, False, False])
    >>> print(found.gate["coverage"])
    0.7500 [0.1941, 0.9937]
    >>> round(found.accepted_rows["ece"].estimate, 4), round(found.all_rows["ece"].estimate, 4)
    (0.3, 0.225)
    """
    plan = Resampling(level, n_resamples if intervals else 0, random_state)
    if intervals and n_resamples == 0:
        raise InputError("n_resamples must be at least 1 with intervals; for estimates alone pass intervals=False.")
    checked = checked_table(proba, labels, classes=classes)
    top = checked.top_label()
    rows = _RowMetrics.of(checked, top)
    n_rows, n_classes = checked.table.shape
    accepted = None if accept is None else selective.bool_column(accept, "accept")
    if accepted is not None:
        same_length(proba=checked.table, accept=accepted)
    kept = None
    if accepted is not None and accepted.any():
        kept = rows.subset(accepted).intervals(n_bins, plan)
    return Evaluation(
        all_rows=rows.intervals(n_bins, plan),
        accepted_rows=kept,
        gate=gate_metrics(top, accepted, correct, score, plan),
        n_rows=n_rows,
        n_accepted=None if accepted is None else int(accepted.sum()),
        n_classes=n_classes,
        level=plan.level,
        n_bins=n_bins,
    )


@dataclass(frozen=True, eq=False)
class _RowMetrics:
    """All that the probability metrics need, one entry per row, so that a subset costs no second reduction."""

    checked: CheckedTable
    top: TopLabel
    log_loss: NDArray[np.float64]
    brier: NDArray[np.float64]

    @classmethod
    def of(cls, checked: CheckedTable, top: TopLabel) -> _RowMetrics:
        return cls(checked, top, proper.log_loss_rows(checked), proper.brier_rows(checked))

    def subset(self, keep: NDArray[np.bool_]) -> _RowMetrics:
        if keep.all():
            return self
        checked = CheckedTable(self.checked.table[keep], self.checked.codes[keep], self.checked.top[keep])
        top = TopLabel(self.top.confidence[keep], self.top.correct[keep])
        return _RowMetrics(checked, top, self.log_loss[keep], self.brier[keep])

    def intervals(self, n_bins: int, plan: Resampling) -> dict[str, Interval]:
        top = self.top
        statistics = {
            calibration.ece: columns.ece_statistic(top, n_bins),
            calibration.ece_equal_mass: columns.ece_equal_mass_statistic(top, n_bins),
            calibration.classwise_ece: classwise.classwise_ece_statistic(self.checked, n_bins),
            calibration.sup_ece: columns.sup_ece_statistic(top),
            calibration.smooth_ece: smooth.smooth_ece_statistic(top),
            proper.nll: mean_statistic(self.log_loss),
            proper.brier: mean_statistic(self.brier),
        }
        targets = {metric.__name__: target_of(metric, statistic) for metric, statistic in statistics.items()}
        return {"accuracy": accuracy_interval(top, plan), **plan.intervals(targets, len(top))}


def gate_metrics(
    top: TopLabel,
    accept: NDArray[np.bool_] | None,
    correct: ArrayLike | None,
    score: ArrayLike | None,
    plan: Resampling,
) -> dict[str, Interval]:
    """The gate's shares where `accept` is given, and the areas of the ranking where `score` is."""
    right = top.correct == 1.0 if correct is None else selective.bool_column(correct, "correct")
    same_length(proba=top.confidence, correct=right)
    # A tie at the top hides the model's own answer; on an accepted row it is simply not a right answer.
    hidden = correct is None and accept is not None and bool(np.any((top.correct < 1) & (top.correct > 0) & ~accept))
    found: dict[str, Interval] = {}
    if accept is not None:
        counts = {
            "coverage": selective.coverage_counts(accept),
            "miscoverage": selective.miscoverage_counts(accept, right),
            "coverage_accuracy": selective.coverage_accuracy_counts(accept, right),
            "type_1_error": selective.miscoverage_counts(accept, right),
            "type_2_error": selective.type_2_error_counts(accept, right),
        }
        found |= {name: plan.proportion(*parts) for name, parts in counts.items()}
    if score is not None:
        ranks = number_column(score, "score")
        same_length(proba=top.confidence, score=ranks)
        targets = {metric.__name__: Target(prepare(ranks, right)) for metric, prepare in SCORE_METRICS.items()}
        found |= plan.intervals(targets, len(right))
    return _without_hidden(found, plan) if hidden else found


def _without_hidden(found: Mapping[str, Interval], plan: Resampling) -> dict[str, Interval]:
    warnings.warn(
        "rejected rows are uniform, so the model's own answers on them cannot be read from proba; numbers that need "
        "them are NaN. Pass correct=(uncalibrated_logits.argmax(axis=1) == labels).",
        MetacalWarning,
        stacklevel=4,
    )
    unknown = Interval(nan, nan, nan, plan.level, NO_INTERVAL)
    return {name: value if name in ("coverage", "coverage_accuracy") else unknown for name, value in found.items()}


def _plain(found: Mapping[str, Interval]) -> dict[str, dict[str, float | str | None]]:
    return {name: value.to_dict() for name, value in found.items()}


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
