"""Evaluation of probabilities and of a gate: all metrics with their intervals.

The probabilities of all rows and of the accepted rows are evaluated side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import nan
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from metacal.errors import InputError, warn_caller
from metacal.formulas import Flags, Float
from metacal.metrics import registry
from metacal.metrics.binning import mean_statistic
from metacal.metrics.evaluation_result import Evaluation
from metacal.metrics.intervals import Interval
from metacal.metrics.marginal import PredictedClasses, predicted_columns
from metacal.metrics.ranked_errors import Ranking
from metacal.metrics.ranking import RANKING
from metacal.metrics.registry import DECISION, PROBABILITIES, TOP_LABEL, Measured, Metric
from metacal.metrics.replicates import one_blas_thread
from metacal.metrics.resampling import RandomState, Resampling
from metacal.metrics.toplabel import (
    CheckedTable,
    TopLabel,
    bool_column,
    check_same_length,
    checked_table,
    number_column,
)
from metacal.rows.memory import give_back_freed_memory

#: Metrics to compute, each with its counts, statistic or value.
MeasuredMetrics = list[tuple[Metric, Measured]]


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
    """Evaluate probabilities and, if given, the decisions of a gate.

    Parameters
    ----------
    proba : array of shape (n, K)
        Output of `MetaCal.predict_proba`: calibrated probabilities for accepted rows and uniform
        ones for rejected rows, which count 1/K.

    labels : array of shape (n,)
        True classes.

    accept : array of bool of shape (n,), default=None
        Decisions of the gate.

    correct : array of bool of shape (n,), default=None
        Whether each prediction of the *uncalibrated* model is correct. If None, it is read from
        `proba`. This is not possible for rejected rows that are uniform, so metrics that depend on
        them are then NaN.

    score : array of shape (n,), default=None
        Ranking score, of which higher values are less confident. Adds AURC, excess AURC, AUGRC and
        AUROC.

    classes : sequence, default=None
        Class of each column. Required if labels are not column numbers.

    n_bins : int, default=15
        Number of bins of binned metrics.

    level : float, default=0.95
        Confidence level of the intervals.

    n_resamples : int, default=1000
        Number of resamples of the bootstrap.

    random_state : int, numpy.random.Generator or None, default=0
        Seed or generator of the bootstrap.

    intervals : bool, default=True
        Whether to compute intervals. If False, their ends are NaN.

    Returns
    -------
    Evaluation

    Raises
    ------
    InputError
        If an argument is invalid.

    Examples
    --------
    >>> proba = [[0.9, 0.1], [0.2, 0.8], [0.5, 0.5], [0.6, 0.4]]
    >>> accept, correct = [True, True, False, True], [True, True, False, False]
    >>> evaluation = evaluate(proba, [0, 1, 1, 1], accept=accept, correct=correct)
    >>> print(evaluation.gate["coverage"])
    0.7500 [0.1941, 0.9937]
    >>> round(evaluation.accepted_rows["ece"].estimate, 4)
    0.3
    >>> round(evaluation.all_rows["ece"].estimate, 4)
    0.225
    """
    if intervals and n_resamples == 0:
        raise InputError(
            "n_resamples must be at least 1 with intervals; for estimates alone pass"
            " intervals=False."
        )
    checked = checked_table(proba, labels, classes=classes)
    return evaluate_rows(
        RowMetrics(checked.top_label(), row_losses(checked), checked),
        checked.n_classes,
        Resampling(level, n_resamples if intervals else 0, random_state),
        n_bins,
        accept=accept,
        correct=correct,
        score=score,
        by_class=PredictedClasses(predicted_columns(checked), classes),
    )


def evaluate_scores(
    doubt: Float,
    correct: Flags,
    plan: Resampling,
    n_bins: int,
    *,
    accept: Flags | None,
    confidence: Float | None,
) -> Evaluation:
    """Evaluate a ranking score without a probability table (`n_classes` is 0).

    Parameters
    ----------
    doubt : array of shape (n_rows,)
        Ranking score, of which higher values are less confident, without missing values.

    correct : array of bool of shape (n_rows,)
        Whether each prediction is correct.

    plan : Resampling
        Settings of the intervals.

    n_bins : int
        Number of bins of binned metrics.

    accept : array of bool of shape (n_rows,) or None
        Decisions of the gate.

    confidence : array of shape (n_rows,) or None
        Calibrated probability that each prediction is correct. If None, there are no calibration
        errors.

    Returns
    -------
    Evaluation

    Examples
    --------
    >>> doubt, correct = np.array([0.1, 0.2, 0.3, 0.4]), np.array([True, True, False, True])
    >>> evaluation = evaluate_scores(
    ...     doubt, correct, Resampling(), 15, accept=doubt < 0.25, confidence=None
    ... )
    >>> evaluation.gate["coverage_accuracy"].estimate, evaluation.gate["coverage"].estimate
    (1.0, 0.5)
    >>> list(evaluation.all_rows)
    ['accuracy']
    """
    metrics = registry.evaluated(TOP_LABEL)
    if confidence is None:
        confidence = np.zeros(len(doubt))
        metrics = [metric for metric in metrics if not metric.calibration_error]
    top = TopLabel(confidence, correct.astype(np.float64))
    rows = RowMetrics(top, losses={}, metrics=metrics)
    return evaluate_rows(rows, 0, plan, n_bins, accept=accept, correct=correct, score=doubt)


@one_blas_thread()
def evaluate_rows(
    rows: RowMetrics,
    n_classes: int,
    plan: Resampling,
    n_bins: int = 15,
    *,
    accept: ArrayLike | None = None,
    correct: ArrayLike | None = None,
    score: ArrayLike | None = None,
    by_class: PredictedClasses | None = None,
) -> Evaluation:
    """Evaluate a table that has been reduced to columns.

    Parameters
    ----------
    rows : RowMetrics
        Columns from which the metrics of the probabilities are computed.

    n_classes : int
        Number of classes.

    plan : Resampling
        Settings of the intervals.

    n_bins : int, default=15
        Number of bins of binned metrics.

    accept, correct, score : array of shape (n_rows,), default=None
        As in `evaluate`.

    by_class : PredictedClasses, default=None
        Predicted classes for the marginal check. If None, there is no marginal check.

    Returns
    -------
    Evaluation
        Metrics that need the whole table are undefined if `rows` has neither the table nor sums.
    """
    top = rows.top
    is_accepted: Flags | None = None
    accepted_intervals: dict[str, Interval] | None = None
    if accept is not None:
        is_accepted = bool_column(accept, "accept")
        check_same_length(proba=top.confidence, accept=is_accepted)
    n_errors = _count_errors(top, is_accepted)
    if is_accepted is not None and is_accepted.any():
        accepted_metrics = rows.subset(is_accepted).measured_metrics(n_bins)
        accepted_intervals = plan.measure(accepted_metrics, int(is_accepted.sum()), n_errors)
        give_back_freed_memory(len(top) * n_classes)

    # The metrics of the gate and of all rows share their resamples, so that they are drawn once.
    gate_metrics = _measure_gate(top, is_accepted, correct, score)
    all_metrics = [*rows.measured_metrics(n_bins), *gate_metrics]
    intervals = plan.measure(all_metrics, len(top), n_errors)
    gate_intervals = {metric.name: intervals.pop(metric.name) for metric, _ in gate_metrics}
    if correct is None and is_accepted is not None:
        gate_intervals = _remove_unknown_metrics(gate_intervals, top, is_accepted, plan)
    return Evaluation(
        all_rows=intervals,
        accepted_rows=accepted_intervals,
        gate=gate_intervals,
        n_rows=len(top),
        n_accepted=None if is_accepted is None else int(is_accepted.sum()),
        n_classes=n_classes,
        level=plan.level,
        n_bins=n_bins,
        marginal=None if by_class is None else by_class.check(top, is_accepted),
    )


@dataclass(frozen=True, eq=False)
class RowMetrics:
    """Columns from which the metrics of probabilities are computed, one entry per row.

    A subset of rows needs no second pass over the probability table.

    Attributes
    ----------
    top : TopLabel
        Confidence and correctness.

    losses : mapping of metric name to array of shape (n_rows,)
        Loss of each row, for each metric that is a mean over rows.

    checked : CheckedTable or None
        The table. Without it, metrics of the whole table have no interval.

    sums : mapping of metric name to accumulator
        Accumulators of `Metric.sums`. They give the value of a metric of the whole table without
        the table.

    accepted : bool
        Whether these are the accepted rows only.

    metrics : sequence of Metric
        Metrics to compute.
    """

    top: TopLabel
    losses: Mapping[str, Float]
    checked: CheckedTable | None = None
    sums: Mapping[str, Any] = field(default_factory=dict)
    accepted: bool = False
    metrics: Sequence[Metric] = field(
        default_factory=lambda: registry.evaluated(PROBABILITIES, TOP_LABEL)
    )

    def subset(self, is_accepted: Flags) -> RowMetrics:
        """Return the accepted rows, without a copy of the table."""
        return replace(
            self,
            top=TopLabel(self.top.confidence[is_accepted], self.top.correct[is_accepted]),
            losses={name: column[is_accepted] for name, column in self.losses.items()},
            checked=None if self.checked is None else self.checked.subset(is_accepted),
            accepted=True,
        )

    def measured_metrics(self, n_bins: int) -> MeasuredMetrics:
        """Return each metric with its counts, statistic or value."""
        return [(metric, self._measure(metric, n_bins)) for metric in self.metrics]

    def _measure(self, metric: Metric, n_bins: int) -> Measured:
        """Return the counts, statistic or value of a metric, NaN if it is unknown."""
        if metric.losses is not None:
            return mean_statistic(self.losses[metric.name])
        source = self.top if metric.input is TOP_LABEL else self.checked
        if source is not None:
            options = {"n_bins": n_bins} if metric.binned else {}
            return metric.measured(source, **options)
        if metric.name in self.sums:
            return float(self.sums[metric.name].value(self.accepted))
        return nan


def row_losses(checked: CheckedTable) -> dict[str, Float]:
    """Compute the loss of each row, for each evaluated metric that is a mean over rows."""
    return {
        metric.name: metric.losses(checked)
        for metric in registry.evaluated(PROBABILITIES)
        if metric.losses is not None
    }


def _measure_gate(
    top: TopLabel,
    is_accepted: Flags | None,
    correct: ArrayLike | None,
    score: ArrayLike | None,
) -> MeasuredMetrics:
    """Return the metrics of the decisions and of the ranking.

    Parameters
    ----------
    top : TopLabel
        Confidence and correctness.

    is_accepted : array of bool of shape (n_rows,) or None
        Decisions of the gate. If None, there are no metrics of decisions.

    correct : array of shape (n_rows,) or None
        Whether each prediction is correct. If None, it is read from `top`.

    score : array of shape (n_rows,) or None
        Ranking score. If None, there are no metrics of the ranking.

    Returns
    -------
    list of tuples (Metric, Measured)
    """
    is_correct = top.correct == 1.0 if correct is None else bool_column(correct, "correct")
    check_same_length(proba=top.confidence, correct=is_correct)
    measured: MeasuredMetrics = []
    if is_accepted is not None:
        for metric in registry.evaluated(DECISION):
            counts = None
            if metric.counts is not None:
                counts = metric.counts(is_accepted, is_correct)
            if counts is not None:
                measured.append((metric, counts))
    if score is not None:
        scores = number_column(score, "score")
        check_same_length(proba=top.confidence, score=scores)
        ranking = Ranking(scores, is_correct)
        for metric in registry.evaluated(RANKING):
            measured.append((metric, metric.measured(ranking)))
    return measured


def _count_errors(top: TopLabel, is_accepted: Flags | None) -> float:
    """Count the incorrect rows, only among accepted rows if there is a gate.

    Rejected rows are uniform, so whether they are correct is unknown.
    """
    correct = top.correct if is_accepted is None else top.correct[is_accepted]
    return float((correct < 1.0).sum())


def _remove_unknown_metrics(
    intervals: dict[str, Interval], top: TopLabel, is_accepted: Flags, plan: Resampling
) -> dict[str, Interval]:
    """Replace metrics that depend on rejected rows by NaN if these rows are uniform.

    The prediction for a uniform row cannot be read from its probabilities. A tie on an accepted row
    counts as incorrect.

    Parameters
    ----------
    intervals : dict of str to Interval
        Intervals of the metrics of the gate.

    top : TopLabel
        Confidence and correctness.

    is_accepted : array of bool of shape (n_rows,)
        Decisions of the gate.

    plan : Resampling
        Settings of the intervals.

    Returns
    -------
    dict of str to Interval
    """
    is_tied = (top.correct < 1) & (top.correct > 0)
    if not np.any(is_tied & ~is_accepted):
        return intervals
    warn_caller(
        "rejected rows are uniform, so the model's own answers on them cannot be read from proba;"
        " numbers that need them are NaN. Pass correct=(uncalibrated_logits.argmax(axis=1) =="
        " labels)."
    )
    known_intervals = {}
    for name, interval in intervals.items():
        needs_rejected = registry.METRICS[name].needs_rejected
        known_intervals[name] = plan.without_interval() if needs_rejected else interval
    return known_intervals
