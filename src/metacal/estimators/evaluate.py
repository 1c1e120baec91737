"""Evaluation of the calibration, the ranking and the promise of a gate.

All measurements come from one pass over the rows (`metacal.estimators.measurement`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from metacal.certification.case_outcomes import CaseOutcomes
from metacal.errors import MissingLabelsError
from metacal.estimators.gate_evaluation import Answerer, GateEvaluation
from metacal.estimators.measurement import (
    RowMeasurements,
    make_lazy_softmax_table,
    make_probability_buffer,
    make_softmax_gate,
    measure_rows,
)
from metacal.formulas import Array, Codes
from metacal.gate import Gate
from metacal.gate.feature_checks import check_accuracy_is_measurable
from metacal.gate.judged import JudgedRows, find_gate_and_stage_inputs, is_group_table, judge_rows
from metacal.gate.judged_cases import (
    check_case_columns,
    check_takes_cases,
    is_about_cases,
    judge_case_rows,
)
from metacal.metrics import registry
from metacal.metrics.evaluation import evaluate_columns, evaluate_scores
from metacal.metrics.intervals import clopper_pearson
from metacal.metrics.marginal import PredictedClasses
from metacal.metrics.registry import PROBABILITIES
from metacal.metrics.resampling import Resampling
from metacal.promises.judging import judge
from metacal.rows import Rows, open_executor
from metacal.rows.executors import ExecutorLike, is_remote
from metacal.rows.score_tables import flatten_labelled_table
from metacal.rows.stored import StoredTable
from metacal.rows.validate import encode_labels


def evaluate(
    gate: Any,
    X: Any,
    y: Any,
    *,
    large: Any = None,
    groups: Any = None,
    cases: Any = None,
    n_bins: int = 15,
    level: float = 0.95,
    n_resamples: int = 1000,
    random_state: int = 0,
    n_jobs: int | None = None,
    executor: ExecutorLike | None = None,
    overwrite: bool = False,
) -> GateEvaluation:
    """Evaluate a gate or a calibrator on labelled rows that were not used to fit it.

    Parameters
    ----------
    gate : Gate, fitted MetaCal, CalibratedClassifier, ScoreGate, Cascade or calibrator, or None
        Gate to evaluate. None evaluates the softmax of the classifier.
    X : table of shape (n_rows, n_classes)
        Logits or probabilities; scores for a gate on scores.
    y : array-like of shape (n_rows,)
        Labels; for a gate on scores, whether each row is correct. If the gate on scores has a
        threshold for each group, entries of `y` may be None or NaN. These rows are left out. X and y
        may then be tables with a column for each group, as in `ScoreGate.fit`.
    large : table or None, default=None
        Table of the large model, for a cascade over tables. X is then the table of the small model.
        The result contains how many rows each model answers, how accurately, and whether the
        promise is kept, with exact intervals.
    groups : array-like of shape (n_rows,) or None, default=None
        Group of each row, for a promise per group, or type of each item.
    cases : array-like of shape (n_rows,) or None, default=None
        Case of each item, for a promise about cases. The verdict counts cases, the metrics items.
    n_bins : int, default=15
        Number of bins of binned errors.
    level : float, default=0.95
        Confidence level of the intervals.
    n_resamples : int, default=1000
        Number of bootstrap resamples; 0 for no intervals.
    random_state : int, default=0
        Seed of the bootstrap.
    n_jobs : int or None, default=None
        Number of threads; -1 for one per core.
    executor : concurrent.futures.Executor or distributed.Client or None, default=None
        Executor of the work on blocks of a table that stays in its files: a process pool, or a Dask
        client. It returns about 80 bytes per row. All numbers are the same, but the class-wise ECE
        has no interval, because each resample needs every entry of the table.
    overwrite : bool, default=False
        Whether an array of logits may be overwritten, which saves the memory of a second table.

    Returns
    -------
    GateEvaluation

    Raises
    ------
    InputError
        If the rows do not fit the gate, or a row has no label.

    See Also
    --------
    verify : Test the promise on labelled rows.
    report : Write the results as an HTML page.
    compare : Compare calibrators by cross-validation.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = mc.MetaCal(mc.MinAccuracy(0.97)).fit(data.logits[:5000], data.labels[:5000])
    >>> evaluation = evaluate(cal, data.logits[5000:], data.labels[5000:], n_resamples=0)
    >>> round(evaluation.after.gate["selective_accuracy"].estimate, 3), evaluation.verdict.refuted
    (0.972, False)
    """
    fitted_gate, stage_inputs = find_gate_and_stage_inputs(gate, X, large)
    if fitted_gate is not None:
        check_accuracy_is_measurable(fitted_gate)
    resampling = Resampling(level, n_resamples, random_state)
    if fitted_gate is not None and (cases is not None or is_about_cases(fitted_gate)):
        check_case_columns(fitted_gate)
        judged_rows = judge_case_rows(
            fitted_gate, stage_inputs[0], y, cases, groups, probabilities=True
        )
        return evaluate_decisions(fitted_gate, judged_rows, resampling, n_bins)
    check_takes_cases(fitted_gate, cases)
    if is_group_table(fitted_gate, stage_inputs[0]):
        entries = flatten_labelled_table(stage_inputs[0], y, groups)
        stage_inputs = (entries.scores,)
        y = entries.truth
        groups = entries.column_names
    if fitted_gate is not None and not fitted_gate.is_logits_gate:
        judged_rows = judge_rows(fitted_gate, stage_inputs, y, groups, probabilities=True)
        return evaluate_decisions(fitted_gate, judged_rows, resampling, n_bins)
    table = stage_inputs[0]
    gate_or_softmax = fitted_gate
    if gate_or_softmax is None:
        gate_or_softmax = make_softmax_gate(np.shape(table)[1])
    with open_executor(n_jobs, executor) as pool:
        # On a cluster, each worker reads a part of the rows, and validates it.
        is_unvalidated = isinstance(table, StoredTable) and is_remote(pool)
        if not is_unvalidated:
            table = gate_or_softmax.source.read(table)
        rows = Rows(table, executor=pool, is_unvalidated=is_unvalidated)
        true_codes = encode_labels(y, len(rows), gate_or_softmax.classes)
        _, evaluation = evaluate_table(
            fitted_gate, rows, true_codes, resampling, n_bins, groups, overwrite=overwrite
        )
        return evaluation


def evaluate_decisions(
    gate: Gate, decisions: JudgedRows, resampling: Resampling, n_bins: int = 15
) -> GateEvaluation:
    """Evaluate the decisions of a cascade, or of a gate on scores, on labelled rows.

    Parameters
    ----------
    gate : Gate
        Gate on scores, or cascade.
    decisions : JudgedRows
        Decisions on all rows, with their correctness.
    resampling : Resampling
        Level and resamples of the intervals.
    n_bins : int, default=15
        Number of bins of binned errors.

    Returns
    -------
    GateEvaluation
    """
    assert decisions.correct is not None
    n_unlabelled = int((~decisions.has_label).sum())
    if n_unlabelled > 0:
        raise MissingLabelsError(
            f"{n_unlabelled:,} rows have no label, but evaluate requires a label for every row."
            " To test only the promise, use verify, which requires labels only for rows on which"
            " the models disagree."
        )
    evaluation = evaluate_scores(
        decisions.decision.uncertainty,
        decisions.correct,
        resampling,
        n_bins,
        accept=None if gate.is_calibrator else decisions.accept,
        confidence=decisions.decision.confidence,
    )
    if gate.certificate is None:
        return GateEvaluation(evaluation)
    judged_outcomes: JudgedRows | CaseOutcomes = decisions
    if decisions.case_outcomes is not None:
        judged_outcomes = decisions.case_outcomes
    verdict = judge(
        gate.certificate,
        judged_outcomes.accept,
        judged_outcomes.correct,
        evaluation.level,
        losses=judged_outcomes.losses,
        row_subgroups=decisions.row_subgroups,
        overlap_with_fit=decisions.fit_rows,
    )
    return GateEvaluation(
        after=evaluation,
        certificate=gate.certificate,
        verdict=verdict,
        fit_rows=decisions.fit_rows,
        answered_by=_summarise_answerers(gate, decisions, evaluation.level),
    )


def _summarise_answerers(gate: Gate, judged_rows: JudgedRows, level: float) -> tuple[Answerer, ...]:
    """Compute the share and the accuracy of each model of a cascade, and of people.

    Parameters
    ----------
    gate : Gate
        Gate. The result is empty unless it is a cascade with a promise.
    judged_rows : JudgedRows
        Decisions on all rows, with their correctness.
    level : float
        Confidence level of the intervals.

    Returns
    -------
    tuple of Answerer
    """
    answering_stages = judged_rows.decision.by
    is_correct = judged_rows.correct
    if answering_stages is None or is_correct is None or gate.certificate is None:
        return ()
    answerer_names = list(judged_rows.decision.stage_names)
    if gate.has_human_review:
        # People are the stage after the last model.
        answerer_names.append("person")
    n_rows = len(judged_rows)
    answerers = []
    for stage_index, answerer_name in enumerate(answerer_names):
        is_answered_here = answering_stages == stage_index
        n_answered = int(is_answered_here.sum())
        n_correct = int((is_answered_here & is_correct).sum())
        is_model = stage_index < gate.n_stages
        accuracy = None
        if is_model and n_answered > 0:
            accuracy = clopper_pearson(n_correct, n_answered, level)
        share_of_rows = clopper_pearson(n_answered, n_rows, level)
        answerers.append(
            Answerer(answerer_name, n_rows=n_answered, share=share_of_rows, accuracy=accuracy)
        )
    return tuple(answerers)


def evaluate_table(
    gate: Gate | None,
    rows: Rows,
    codes: Codes,
    resampling: Resampling,
    n_bins: int,
    groups: Any,
    *,
    overwrite: bool = False,
) -> tuple[RowMeasurements, GateEvaluation]:
    """Evaluate a gate and the softmax of the logits on a labelled table.

    Parameters
    ----------
    gate : Gate or None
        Gate to evaluate. None evaluates the softmax alone.
    rows : Rows
        Logits. Rows that are not validated yet are validated when they are read.
    codes : array of int of shape (n_rows,)
        Column of each label.
    resampling : Resampling
        Level and resamples of the intervals.
    n_bins : int
        Number of bins of binned errors.
    groups : array-like of shape (n_rows,) or None
        Group of each row, for a promise per group.
    overwrite : bool, default=False
        Whether the table may be overwritten, which saves the memory of a second one.

    Returns
    -------
    measurements : RowMeasurements
        Score, prediction and metrics of each row.
    evaluation : GateEvaluation
    """
    if gate is None:
        gate_or_softmax = make_softmax_gate(rows.n_classes)
    else:
        gate_or_softmax = gate
        # Missing groups are reported before the rows are read.
        gate.encode_groups(groups, len(rows))
    buffer = _make_buffer(rows, resampling, overwrite=overwrite)
    measurements = measure_rows(
        gate_or_softmax, rows, codes, n_bins, groups, with_softmax=gate is not None, buffer=buffer
    )
    is_correct = measurements.predicted_codes == codes
    fit_rows = None
    if gate is not None:
        fit_rows = gate.find_fit_rows(measurements.scores, is_correct)
    predicted_classes = PredictedClasses(
        measurements.predicted_codes, gate_or_softmax.classes, fitted=fit_rows is not None
    )
    evaluate_metrics = partial(
        evaluate_columns,
        n_classes=rows.n_classes,
        n_bins=n_bins,
        accept=measurements.accept,
        correct=is_correct,
        predicted_classes=predicted_classes,
    )
    softmax_evaluation = None
    softmax_metrics = measurements.softmax_metrics
    if softmax_metrics is not None:
        if _needs_whole_table() and buffer is not None:
            softmax_table = make_lazy_softmax_table(rows, codes, softmax_metrics.top_labels)
            softmax_metrics = replace(softmax_metrics, table=softmax_table)
        no_resampling = replace(resampling, n_resamples=0, exact_proportions=False)
        softmax_evaluation = evaluate_metrics(softmax_metrics, resampling=no_resampling)
    gate_evaluation = evaluate_metrics(
        measurements.gate_metrics,
        resampling=resampling,
        score=measurements.scores,
        is_paper_map=gate_or_softmax.default_rejected == "uniform",
    )
    if gate is None or gate.certificate is None or measurements.accept is None:
        return measurements, GateEvaluation(gate_evaluation, softmax_evaluation)
    verdict = judge(
        gate.certificate,
        measurements.accept,
        is_correct,
        resampling.level,
        losses=gate.losses(codes, measurements.predicted_codes),
        row_subgroups=gate.get_row_subgroups(measurements.predicted_codes, groups),
        overlap_with_fit=fit_rows,
    )
    evaluation = GateEvaluation(
        after=gate_evaluation,
        before=softmax_evaluation,
        certificate=gate.certificate,
        verdict=verdict,
        fit_rows=fit_rows,
    )
    return measurements, evaluation


def _needs_whole_table() -> bool:
    """Check whether any registered metric needs the whole table of probabilities."""
    return any(
        metric.reads_whole_table and metric.make_accumulator is None
        for metric in registry.list_evaluated_metrics(PROBABILITIES)
    )


def _make_buffer(rows: Rows, resampling: Resampling, *, overwrite: bool) -> Array | None:
    """Allocate a buffer for all probabilities, or return None if none is needed.

    On a cluster there is no buffer, because the rows stay with the workers.
    """
    needs_whole_table = _needs_whole_table()
    is_buffer_needed = needs_whole_table or resampling.n_resamples > 0
    if not is_buffer_needed or is_remote(rows.executor):
        return None
    # A metric of the whole table also reads the logits again to compute their softmax, so the
    # probabilities must not overwrite them.
    may_overwrite = overwrite and not needs_whole_table
    return make_probability_buffer(rows.table, overwrite=may_overwrite)
