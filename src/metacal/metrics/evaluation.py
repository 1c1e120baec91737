"""Evaluation of probabilities and of a gate: all metrics with their intervals.

The probabilities of all rows and of the accepted rows are evaluated side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from metacal.errors import InputError, warn_caller
from metacal.formulas import Flags, Float
from metacal.metrics import registry
from metacal.metrics.evaluation_result import Evaluation
from metacal.metrics.intervals import Interval
from metacal.metrics.marginal import PredictedClasses, find_predicted_columns
from metacal.metrics.probability_columns import (
    PreparedMetrics,
    ProbabilityColumns,
    compute_row_losses,
    count_errors,
)
from metacal.metrics.ranked_errors import Ranking
from metacal.metrics.ranking import RANKING
from metacal.metrics.registry import (
    DECISION,
    TOP_LABEL,
)
from metacal.metrics.replicates import one_blas_thread
from metacal.metrics.resampling import RandomState, Resampling
from metacal.metrics.toplabel import (
    CheckedTable,
    TopLabel,
    check_same_length,
    checked_table,
    read_bool_column,
    read_number_column,
)
from metacal.rows.memory import release_freed_memory

#: Value of `Evaluation.n_classes` if there are scores instead of a probability table.
_N_CLASSES_WITHOUT_TABLE = 0


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
    """Evaluate probabilities and, if `accept` is given, the decisions of a gate.

    Parameters
    ----------
    proba : array of shape (n, K)
        Probabilities, such as the output of `MetaCal.predict_proba`. A row whose probabilities are
        all equal, as those of rejected rows in the paper, counts as 1/K correct.

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
            "n_resamples must be at least 1 to compute intervals. To compute only the estimates,"
            " pass intervals=False."
        )
    table = checked_table(proba, labels, classes=classes)
    columns = ProbabilityColumns(
        top_labels=table.top_label(), losses=compute_row_losses(table), table=table
    )
    are_rejected_rows_uniform = False
    if accept is not None:
        is_accepted = read_bool_column(accept, "accept")
        are_rejected_rows_uniform = _has_uniform_rejected_rows(table, is_accepted)
    n_used_resamples = n_resamples if intervals else 0
    return evaluate_columns(
        columns,
        n_classes=table.n_classes,
        resampling=Resampling(level, n_used_resamples, random_state),
        n_bins=n_bins,
        accept=accept,
        correct=correct,
        score=score,
        predicted_classes=PredictedClasses(
            predicted=find_predicted_columns(table), classes=classes
        ),
        is_paper_map=are_rejected_rows_uniform,
    )


def evaluate_scores(
    ranking_score: Float,
    correct: Flags,
    resampling: Resampling,
    n_bins: int,
    *,
    accept: Flags | None,
    confidence: Float | None,
) -> Evaluation:
    """Evaluate a ranking score without a probability table.

    The field `n_classes` of the result is 0.

    Parameters
    ----------
    ranking_score : array of shape (n_rows,)
        Ranking score, of which higher values are less confident, without missing values.

    correct : array of bool of shape (n_rows,)
        Whether each prediction is correct.

    resampling : Resampling
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
    >>> score, correct = np.array([0.1, 0.2, 0.3, 0.4]), np.array([True, True, False, True])
    >>> evaluation = evaluate_scores(
    ...     score, correct, Resampling(), 15, accept=score < 0.25, confidence=None
    ... )
    >>> evaluation.gate["selective_accuracy"].estimate, evaluation.gate["coverage"].estimate
    (1.0, 0.5)
    >>> list(evaluation.all_rows)
    ['accuracy']
    """
    metrics = registry.list_evaluated_metrics(TOP_LABEL)
    if confidence is None:
        # The confidence is set to zeros, because only calibration errors read it.
        metrics = [metric for metric in metrics if not metric.calibration_error]
        confidence = np.zeros(len(ranking_score))
    top_labels = TopLabel(confidence, correct.astype(np.float64))
    columns = ProbabilityColumns(top_labels, losses={}, metrics=metrics)
    return evaluate_columns(
        columns,
        n_classes=_N_CLASSES_WITHOUT_TABLE,
        resampling=resampling,
        n_bins=n_bins,
        accept=accept,
        correct=correct,
        score=ranking_score,
    )


@one_blas_thread()
def evaluate_columns(
    columns: ProbabilityColumns,
    n_classes: int,
    resampling: Resampling,
    n_bins: int = 15,
    *,
    accept: ArrayLike | None = None,
    correct: ArrayLike | None = None,
    score: ArrayLike | None = None,
    predicted_classes: PredictedClasses | None = None,
    is_paper_map: bool = False,
) -> Evaluation:
    """Evaluate probabilities that are reduced to columns, and the decisions of a gate.

    Parameters
    ----------
    columns : ProbabilityColumns
        Columns from which the metrics of the probabilities are computed.

    n_classes : int
        Number of classes.

    resampling : Resampling
        Settings of the intervals.

    n_bins : int, default=15
        Number of bins of binned metrics.

    accept, correct, score : array of shape (n_rows,), default=None
        As in `evaluate`.

    predicted_classes : PredictedClasses, default=None
        Predicted classes for the marginal check. If None, there is no marginal check.

    is_paper_map : bool, default=False
        Whether the probabilities of rejected rows are 1/K in every class, as in the paper.

    Returns
    -------
    Evaluation
        Metrics that need the whole table are undefined if `columns` has neither the table nor
        accumulators.
    """
    top_labels = columns.top_labels
    n_rows = len(top_labels)
    is_accepted: Flags | None = None
    n_accepted: int | None = None
    accepted_intervals: dict[str, Interval] | None = None
    if accept is not None:
        is_accepted = read_bool_column(accept, "accept")
        check_same_length(proba=top_labels.confidence, accept=is_accepted)
        n_accepted = int(is_accepted.sum())
        if n_accepted > 0:
            accepted_columns = columns.select_accepted(is_accepted)
            accepted_intervals = accepted_columns.compute_intervals(resampling, n_bins)
            release_freed_memory(n_rows * n_classes)

    # Metrics of the gate and of all rows share resamples, which are drawn only once.
    gate_metrics = _prepare_gate_metrics(top_labels, is_accepted, correct, score)
    prepared_metrics = [*columns.prepare_metrics(n_bins), *gate_metrics]
    correct_of_known_predictions = top_labels.correct
    if is_paper_map:
        # The prediction for a uniform row cannot be read from its probabilities.
        correct_of_known_predictions = top_labels.correct[is_accepted]
    n_known_errors = count_errors(correct_of_known_predictions)
    all_intervals = resampling.compute_intervals(
        prepared_metrics, n_rows=n_rows, n_errors=n_known_errors
    )
    gate_intervals = {}
    for metric, _ in gate_metrics:
        gate_intervals[metric.name] = all_intervals.pop(metric.name)
    if correct is None and is_accepted is not None:
        gate_intervals = _set_unknown_metrics_to_nan(
            gate_intervals, top_labels, is_accepted, resampling
        )
    marginal_check = None
    if predicted_classes is not None:
        marginal_check = predicted_classes.check_confidence(top_labels, is_accepted)
    return Evaluation(
        all_rows=all_intervals,
        accepted_rows=accepted_intervals,
        gate=gate_intervals,
        n_rows=n_rows,
        n_accepted=n_accepted,
        n_classes=n_classes,
        level=resampling.level,
        n_bins=n_bins,
        marginal=marginal_check,
        is_paper_map=is_paper_map,
    )


def _prepare_gate_metrics(
    top_labels: TopLabel,
    is_accepted: Flags | None,
    correct: ArrayLike | None,
    score: ArrayLike | None,
) -> PreparedMetrics:
    """Prepare the metrics of the gate's decisions and of the ranking score.

    Parameters
    ----------
    top_labels : TopLabel
        Confidence and correctness.

    is_accepted : array of bool of shape (n_rows,) or None
        Decisions of the gate. If None, there are no metrics of decisions.

    correct : array of shape (n_rows,) or None
        Whether each prediction is correct. If None, it is read from `top_labels`.

    score : array of shape (n_rows,) or None
        Ranking score. If None, there are no metrics of the ranking.

    Returns
    -------
    list of tuples (Metric, CountsStatisticOrValue)
    """
    is_correct = _read_correctness(top_labels, correct)
    check_same_length(proba=top_labels.confidence, correct=is_correct)
    prepared_metrics: PreparedMetrics = []
    if is_accepted is not None:
        for metric in registry.list_evaluated_metrics(DECISION):
            if metric.compute_counts is None:
                continue
            successes_and_trials = metric.compute_counts(is_accepted, is_correct)
            if successes_and_trials is not None:
                prepared_metrics.append((metric, successes_and_trials))
    if score is not None:
        scores = read_number_column(score, "score")
        check_same_length(proba=top_labels.confidence, score=scores)
        ranking = Ranking(scores, is_correct)
        for metric in registry.list_evaluated_metrics(RANKING):
            counts_or_statistic = metric.prepare_counts_or_statistic(ranking)
            prepared_metrics.append((metric, counts_or_statistic))
    return prepared_metrics


def _read_correctness(top_labels: TopLabel, correct: ArrayLike | None) -> Flags:
    """Validate the correctness column, or derive it from the top label if it is None."""
    if correct is None:
        return np.asarray(top_labels.correct == 1.0)
    return read_bool_column(correct, "correct")


def _has_uniform_rejected_rows(table: CheckedTable, is_accepted: Flags) -> bool:
    """Check whether all rejected rows have the uniform probabilities 1/K."""
    check_same_length(proba=table.row_maxima, accept=is_accepted)
    if is_accepted.all():
        return False
    largest_probabilities = table.row_maxima[~is_accepted]
    # The largest of K probabilities is 1/K only if all of them are, up to float32 rounding.
    return bool(np.allclose(largest_probabilities, 1.0 / table.n_classes, rtol=1e-6, atol=0.0))


def _set_unknown_metrics_to_nan(
    intervals: dict[str, Interval], top_labels: TopLabel, is_accepted: Flags, resampling: Resampling
) -> dict[str, Interval]:
    """Replace metrics that depend on unknown predictions for rejected rows by NaN.

    The prediction for a uniform row cannot be read from its probabilities. The correctness of such a
    row is the fraction 1/K, because all K classes are tied. A tie on an accepted row counts as
    incorrect.

    Parameters
    ----------
    intervals : dict of str to Interval
        Intervals of the metrics of the gate.

    top_labels : TopLabel
        Confidence and correctness.

    is_accepted : array of bool of shape (n_rows,)
        Decisions of the gate.

    resampling : Resampling
        Settings of the intervals.

    Returns
    -------
    dict of str to Interval
    """
    is_tied = (top_labels.correct > 0) & (top_labels.correct < 1)
    has_unknown_prediction = np.any(is_tied & ~is_accepted)
    if not has_unknown_prediction:
        return intervals
    warn_caller(
        "The probabilities of rejected rows are uniform, so proba does not contain the"
        " predictions of the model for these rows. Metrics that need the predictions are NaN."
        " Pass correct=(uncalibrated_logits.argmax(axis=1) == labels)."
    )
    updated_intervals = {}
    for name, interval in intervals.items():
        updated_intervals[name] = interval
        if registry.METRICS[name].needs_rejected:
            updated_intervals[name] = resampling.make_point_estimate(nan)
    return updated_intervals
