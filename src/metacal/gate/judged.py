"""Judged rows: decisions of a gate on rows whose labels are known, to measure its promise.

Input comes in different forms: features for an estimator, a table of logits, or scores. For a
*cascade* there is one input for each of its models. The functions of this module find the gate and
the inputs of its stages, and compare the decisions with the truth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.certificates.overlap_with_fit import OverlapWithFit
from metacal.certification.case_outcomes import CaseOutcomes
from metacal.certification.case_statements import build_missing_cases_error
from metacal.certification.row_losses import Losses
from metacal.errors import CascadeError, ColumnError, MissingLabelsError
from metacal.formulas import Codes, Flags
from metacal.gate.decision import Decision
from metacal.gate.find_gate import find_gate
from metacal.gate.gate import Gate
from metacal.gate.model_outputs import collect_score_columns
from metacal.gate.scored_rows import warn_about_unlabelled_entries
from metacal.rows import Rows
from metacal.rows.labels import encode_known_labels
from metacal.rows.model_flags import read_model_flags
from metacal.rows.score_tables import has_several_columns


@dataclass(frozen=True, eq=False)
class JudgedRows:
    """Decisions of a gate on some rows, with their correctness and losses.

    Attributes
    ----------
    decision : Decision
        Decision on each row.
    correct : boolean array or None
        Whether each prediction is correct. If the gate reads agreement: whether the answer agrees
        with the last model. None without labels.
    losses : Losses or None
        Loss of each row, if a cost is promised. For a cascade, 1 if a row is answered worse than by
        the last model alone, and -1 if it is answered better.
    row_subgroups : array or None
        Predicted class or group of each row, if each has its own promise.
    has_label : boolean array
        Whether the label of each row is known. In a cascade, rows on which the models agree may
        have none.
    fit_rows : OverlapWithFit or None
        Calibration rows of the gate among these rows. None if there are none.
    row_indices : array
        Index of each row in the input. Rows without a score are left out.
    case_outcomes : CaseOutcomes or None
        Outcome of each case, if the promise is about cases (`metacal.gate.judged_cases`).
    """

    decision: Decision
    correct: Flags | None
    losses: Losses | None
    row_subgroups: NDArray[Any] | None
    has_label: Flags
    fit_rows: OverlapWithFit | None
    row_indices: Codes
    case_outcomes: CaseOutcomes | None = None

    @property
    def accept(self) -> Flags:
        """Whether each row is accepted."""
        return self.decision.accept

    def __len__(self) -> int:
        return len(self.decision)


def find_gate_and_stage_inputs(
    fitted: Any, X: Any, large: Any = None
) -> tuple[Gate | None, tuple[Any, ...]]:
    """Find the gate of an estimator or pipeline, and the input of each stage.

    Parameters
    ----------
    fitted : Gate, estimator, pipeline or None
        Object that contains the gate. None stands for the classifier itself, without a gate.
    X : array-like
        Input of `fitted`. Features are converted to logits.
    large : array-like, optional
        Table of the second model of a cascade.

    Returns
    -------
    gate : Gate or None
    stage_inputs : tuple
        One input for each stage of the gate.

    Raises
    ------
    InputError
        If the table of the second model is missing or superfluous.
    """
    is_classifier_without_gate = fitted is None
    if is_classifier_without_gate:
        return None, _collect_model_tables(X, large, n_models=1)
    if isinstance(fitted, Gate):
        is_score_cascade = fitted.is_cascade and not fitted.has_classes
        if is_score_cascade:
            return fitted, collect_score_columns(fitted, X)
        return fitted, _collect_model_tables(X, large, n_models=fitted.n_stages)
    is_pipeline = hasattr(fitted, "steps")
    if is_pipeline:
        last_step = fitted[-1]
        last_step_input = transform_before_last_step(fitted, X)
        return find_gate_and_stage_inputs(last_step, last_step_input, large)
    if _is_cascade_estimator(fitted) and find_gate(fitted).has_classes:
        small_logits, large_logits = fitted.tables(X, large)
        return find_gate_and_stage_inputs(
            fitted.gate_, Rows(small_logits), large=Rows(large_logits)
        )
    if _is_classifier_with_gate(fitted):
        logits = fitted.logits(X)
        return find_gate_and_stage_inputs(fitted.gate_, logits, large)
    return find_gate_and_stage_inputs(find_gate(fitted), X, large)


def _is_cascade_estimator(fitted: Any) -> bool:
    """Check whether an object computes the logits of a small and a large model."""
    return hasattr(fitted, "tables")


def _is_classifier_with_gate(fitted: Any) -> bool:
    """Check whether an object computes logits from features and has a gate on them."""
    return hasattr(fitted, "logits")


def _collect_model_tables(X: Any, large: Any, *, n_models: int) -> tuple[Any, ...]:
    """Return one table for each model. Raise InputError for a wrong number of tables."""
    tables = (X,) if large is None else (X, large)
    if len(tables) < n_models:
        raise CascadeError(
            "The table of the large model is missing. Pass its logits for the same rows with"
            " large=large_logits."
        )
    if len(tables) > n_models:
        raise CascadeError(
            "large requires a cascade, but this gate has one model. Leave out large."
        )
    return tables


def transform_before_last_step(pipeline: Any, X: Any) -> Any:
    """Return the input of the last step of a pipeline."""
    if len(pipeline) > 1:
        return pipeline[:-1].transform(X)
    return X


def accepts(fitted: Any, X: Any, **options: Any) -> Flags:
    """Return whether each row is accepted by an estimator or a pipeline.

    Parameters
    ----------
    fitted : estimator or pipeline
        Fitted estimator with a method `accepts`, or a pipeline whose last step it is.
    X : array-like
        Input of `fitted`.
    **options
        Further arguments of `accepts` of the estimator.

    Returns
    -------
    boolean array

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import MinMaxScaler
    >>> import metacal as mc
    >>> X, y = load_digits(return_X_y=True)
    >>> inner = mc.CalibratedClassifier(LogisticRegression(), mc.MaxMiscoverage(0.1))
    >>> pipeline = make_pipeline(MinMaxScaler(), inner).fit(X, y)
    >>> mc.accepts(pipeline, X[:3])
    array([ True,  True,  True])
    """
    is_pipeline = hasattr(fitted, "steps")
    if is_pipeline:
        return accepts(fitted[-1], transform_before_last_step(fitted, X), **options)
    return np.asarray(fitted.accepts(X, **options))


def is_group_table(gate: Gate | None, X: Any) -> bool:
    """Check whether a gate on scores has group thresholds, and X several columns."""
    if gate is None or not gate.is_score_gate:
        return False
    return gate.has_group_thresholds and has_several_columns(X)


def judge_rows(
    gate: Gate,
    stage_inputs: Sequence[Any],
    truth: Any = None,
    groups: Any = None,
    *,
    probabilities: bool = False,
) -> JudgedRows:
    """Decide on rows, and compare the decisions with the truth.

    Parameters
    ----------
    gate : Gate
        Gate that decides.
    stage_inputs : sequence
        Input of each stage, for all rows.
    truth : array-like, optional
        Labels or, for scores, the correctness of each row. None if it is not needed.
    groups : array-like, optional
        Group of each row, if the gate has a threshold for each group.
    probabilities : bool, default=False
        Whether to compute probabilities.

    Returns
    -------
    JudgedRows
        Rows without a score are left out, because nothing is promised about them. Rows of groups or
        clusters without a label are left out too, with a warning.

    Examples
    --------
    >>> import metacal as mc
    >>> mark = np.linspace(0, 1, 500)
    >>> gate = mc.ScoreGate(mc.MinAccuracy(0.9)).fit(mark, mark > 0.1).gate_
    >>> judged = judge_rows(gate, [[0.9, None, 0.0]], [True, True, False])
    >>> judged.accept, judged.correct, judged.row_indices
    (array([ True, False]), array([ True, False]), array([0, 2]))
    """
    if gate.is_cascade:
        return _judge_cascade_rows(gate, stage_inputs, truth, probabilities=probabilities)
    if gate.certificate is not None and gate.certificate.cases is not None:
        raise build_missing_cases_error(gate.promise)
    return judge_rows_of_one_stage(gate, stage_inputs, truth, groups, probabilities=probabilities)


def judge_rows_of_one_stage(
    gate: Gate,
    stage_inputs: Sequence[Any],
    truth: Any = None,
    groups: Any = None,
    *,
    probabilities: bool = False,
) -> JudgedRows:
    """Decide on rows with a one-stage gate, and compare the result with the truth."""
    rows = gate.source.to_rows(stage_inputs[0])
    has_truth = truth is not None
    true_codes = None
    row_indices = np.arange(len(rows))
    # Logits are `Rows`. Scores are an array, in which NaN stands for a missing score.
    if isinstance(rows, np.ndarray):
        has_score = ~np.isnan(rows)
        if not has_score.any():
            raise ColumnError(
                "No row has a score. Check the column of scores, or pass rows with a score."
            )
        is_judged = has_score
        if truth is not None and not _reads_table_entries(gate):
            true_codes = gate.source.encode_truth(truth, len(rows))
        elif truth is not None:
            true_codes, has_label = gate.score_source.encode_known_truth(truth, len(rows))
            warn_about_unlabelled_entries(has_score, has_label)
            is_judged = has_score & has_label
        row_indices = np.flatnonzero(is_judged)
        rows = rows[row_indices]
        if true_codes is not None:
            true_codes = true_codes[row_indices]
        if groups is not None:
            groups = np.asarray(groups)[row_indices]
    elif truth is not None:
        true_codes = gate.source.encode_truth(truth, len(rows))
    decision = gate.decide(rows, probabilities=probabilities, groups=groups)
    is_correct = None
    losses = None
    if true_codes is not None:
        is_correct = decision.predicted_codes == true_codes
        losses = gate.losses(true_codes, answer_codes=decision.predicted_codes)
    return JudgedRows(
        decision=decision,
        correct=is_correct,
        losses=losses,
        row_subgroups=gate.get_row_subgroups(decision.predicted_codes, groups),
        has_label=np.full(len(row_indices), has_truth),
        fit_rows=gate.find_fit_rows(decision.uncertainty, is_correct),
        row_indices=row_indices,
    )


def _reads_table_entries(gate: Gate) -> bool:
    """Check whether the rows of a gate on scores are the entries of a table.

    They belong to groups or to clusters then, and those without a label are left out.
    """
    if gate.certificate is None:
        return False
    counts_clusters = gate.certificate.design.cluster_counting is not None
    return gate.has_group_thresholds or counts_clusters


def _judge_cascade_rows(
    gate: Gate, stage_inputs: Sequence[Any], truth: Any, *, probabilities: bool
) -> JudgedRows:
    """Decide on rows by a cascade, and compare its answers with its last model.

    Parameters
    ----------
    gate : Gate
        Cascade.
    stage_inputs : sequence
        Input of each model, for all rows.
    truth : array-like
        Labels, or for scores the correctness or agreement of each model.
    probabilities : bool
        Whether to compute probabilities.

    Returns
    -------
    JudgedRows

    Raises
    ------
    InputError
        If labels that the promise needs are missing.
    """
    if truth is None:
        raise MissingLabelsError(
            "The promise of a cascade requires labelled rows. Pass the true labels."
        )
    if not gate.has_classes:
        return _judge_score_cascade_rows(gate, stage_inputs, truth)
    model_tables: list[Any] = [
        stage.source.to_rows(table) for stage, table in zip(gate.stages, stage_inputs, strict=True)
    ]
    _check_same_number_of_rows(model_tables)
    decision = gate.decide(*model_tables, probabilities=probabilities)
    true_codes = encode_known_labels(truth, len(decision), gate.classes)
    has_label = true_codes >= 0
    first_model_codes = model_tables[0].compute_column(kernels.predict_classes)
    last_model_codes = model_tables[-1].compute_column(kernels.predict_classes)
    differs_from_last_model = decision.predicted_codes != last_model_codes
    _check_needed_labels(gate, has_label, differs_from_last_model)
    is_correct = decision.predicted_codes == true_codes
    is_last_model_correct = last_model_codes == true_codes
    is_worse_than_last_model = ~is_correct & is_last_model_correct
    is_better_than_last_model = is_correct & ~is_last_model_correct
    loss_differences = is_worse_than_last_model.astype(np.float64) - is_better_than_last_model
    models_agree = np.asarray(first_model_codes == last_model_codes)
    return JudgedRows(
        decision=decision,
        correct=is_correct,
        losses=Losses.from_graded(loss_differences),
        row_subgroups=None,
        has_label=has_label,
        fit_rows=gate.find_fit_rows(decision.uncertainty, models_agree),
        row_indices=np.arange(len(decision)),
    )


def _check_same_number_of_rows(tables: Sequence[Any]) -> None:
    """Raise InputError if the tables of the models of a cascade differ in length."""
    table_lengths = [len(table) for table in tables]
    if len(set(table_lengths)) > 1:
        counts_text = " and ".join(f"{length:,}" for length in table_lengths)
        raise CascadeError(
            "The models of a cascade must have tables of the same rows, but got tables of"
            f" {counts_text} rows."
        )


def _check_needed_labels(gate: Gate, has_label: Flags, differs_from_last_model: Flags) -> None:
    """Raise InputError if a label that the promise of a cascade needs is missing.

    A paired difference needs labels only where the answer differs from that of the last model.
    """
    if gate.certificate is None or has_label.all():
        return
    lacks_label = ~has_label
    if not gate.certificate.quantity.is_paired_difference:
        raise MissingLabelsError(
            "A promise about accuracy requires a label for every row, but"
            f" {int(lacks_label.sum()):,} rows have none. Label these rows, or leave them out."
        )
    n_missing_labels = int((lacks_label & differs_from_last_model).sum())
    if n_missing_labels > 0:
        raise MissingLabelsError(
            f"The two models disagree on {n_missing_labels:,} rows without a label. Label these"
            " rows."
        )


def _judge_score_cascade_rows(gate: Gate, stage_inputs: Sequence[Any], truth: Any) -> JudgedRows:
    """Decide on rows by a cascade on scores, and find which answers are correct."""
    decision = gate.decide(*stage_inputs)
    is_model_correct, has_label = _read_correctness_of_models(gate, truth, n_rows=len(decision))
    answering_stages = np.asarray(decision.by)
    is_correct = _find_correct_answers(answering_stages, is_model_correct)
    loss_per_row = (~is_correct).astype(np.float64)
    # `fit` computed the fingerprint of the rows from the first model only.
    is_first_model_correct = is_model_correct[:, 0]
    calibration_rows = gate.find_fit_rows(decision.uncertainty, correct=is_first_model_correct)
    return JudgedRows(
        decision=decision,
        correct=is_correct,
        losses=Losses.from_graded(loss_per_row),
        row_subgroups=None,
        has_label=has_label,
        fit_rows=calibration_rows,
        row_indices=np.arange(len(decision)),
    )


def _find_correct_answers(answering_stages: Codes, is_model_correct: Flags) -> Flags:
    """Return whether the answer to each row is correct.

    Parameters
    ----------
    answering_stages : array of int of shape (n_rows,)
        Number of the model that answers each row. A number without a column in `is_model_correct`
        is the last model or a reviewer, whose answers count as correct.
    is_model_correct : array of bool of shape (n_rows, n_models)
        Whether the answer of each model would be correct.
    """
    n_rows, n_models = is_model_correct.shape
    is_counted_as_correct = answering_stages >= n_models
    model_columns = np.minimum(answering_stages, n_models - 1)
    is_answering_model_correct = is_model_correct[np.arange(n_rows), model_columns]
    return is_counted_as_correct | is_answering_model_correct


def _read_correctness_of_models(gate: Gate, truth: Any, n_rows: int) -> tuple[Flags, Flags]:
    """Read whether each model of a cascade is correct, or agrees with the last one.

    Returns
    -------
    is_model_correct : array of bool of shape (n_rows, n_models)
    has_label : array of bool of shape (n_rows,)

    Raises
    ------
    InputError
        If there is not one column for each model that needs one, or an entry is missing.
    """
    truth_name = "agrees" if gate.needs_agreement_flags else "correct"
    is_model_correct, has_label = read_model_flags(truth, n_rows, truth_name)
    n_columns = is_model_correct.shape[1]
    n_needed_columns = gate.n_stages
    if gate.needs_agreement_flags:
        # There is no column for the last model, because it always agrees with itself.
        n_needed_columns -= 1
    if n_columns != n_needed_columns:
        raise CascadeError(
            f"The number of columns of {truth_name} must be {n_needed_columns}, but it is"
            f" {n_columns}."
        )
    if not has_label.all():
        first_row_without_label = int(np.argmin(has_label))
        raise MissingLabelsError(
            f"Row {first_row_without_label} has no entry in {truth_name}. Leave out this row."
        )
    return is_model_correct, has_label
