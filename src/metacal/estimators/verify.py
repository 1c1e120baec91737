"""Tests of a promise on labelled rows, and accuracy estimates without labels."""

from __future__ import annotations

from typing import Any

import numpy as np

from metacal.certificates.accuracy_estimate import (
    AccuracyEstimate,
    infer_accuracy_from_sums,
    sum_accepted_confidences,
)
from metacal.certificates.certificate import Certificate
from metacal.certification.units import Units
from metacal.errors import CombinationError, MissingLabelsError, MissingPromiseError
from metacal.gate.gate import Gate
from metacal.gate.judged import JudgedRows, find_gate_and_stage_inputs, judge_rows
from metacal.gate.judged_cases import check_case_columns, judge_case_rows
from metacal.gate.scored_rows import warn_about_unlabelled_table_rows
from metacal.promises.verification import Verification, verify_decisions
from metacal.rows.score_tables import flatten_labelled_table, has_several_columns


def verify(
    gate: Any,
    X: Any,
    y: Any = None,
    *,
    agrees: Any = None,
    large: Any = None,
    confidence: float = 0.95,
    groups: Any = None,
    units: Any = None,
    cases: Any = None,
) -> Verification:
    """Test the promise of a gate on labelled rows that were not used to fit it.

    Parameters
    ----------
    gate : Gate, MetaCal, CalibratedClassifier, ScoreGate or Cascade
        Gate that was fitted under a promise.
    X : table
        Input of the gate: logits or probabilities, features of its classifier, or a score for each
        row. For a gate that was fitted on a table of scores with a column for each label, such a
        table, with y of the same shape.
    y : array-like or None, default=None
        Labels or, if X are scores, whether each row is correct. It is not needed for a promise that
        does not depend on labels, such as MaxReview.
    agrees : array-like of shape (n_rows, n_models - 1) or None, default=None
        In place of y, for a cascade over scores that promises MaxLoss: whether each model but the
        last gives the answer of the last model.
    large : table or None, default=None
        Table of the large model, for a cascade over tables. X is then the table of the small one.
    confidence : float, default=0.95
        Confidence level. A promise that is kept is refuted with probability at most 1 - confidence.
    groups : sequence or None, default=None
        Group of each row, for a promise per group.
    units : sequence or None, default=None
        Cluster of each row. Depending on the promise, the test uses one row of each cluster, or
        bets on whole clusters if the promise is about rows.
    cases : sequence or None, default=None
        Case of each item, for a promise about cases. Whole cases are tested.

    Returns
    -------
    Verification
        Printable result with `refuted`, `p_value`, `advice`, `to_dict()`, and `tests` with counts
        and intervals. If rows of the fit are among these rows, in any order, the verdict is "not
        judged", and there are no tests.

    Raises
    ------
    InputError
        If the gate has no promise, or the rows do not fit the gate.

    See Also
    --------
    evaluate : Measure calibration and the promise on labelled rows.
    estimate_accuracy : Estimate the accuracy on rows without labels.
    Watch : Monitor the traffic of a gate.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = mc.MetaCal(mc.MinAccuracy(0.97)).fit(data.logits[:5000], data.labels[:5000])
    >>> verify(cal, data.logits[5000:], data.labels[5000:]).refuted
    False
    """
    fitted_gate, stage_inputs = find_gate_and_stage_inputs(gate, X, large)
    if fitted_gate is None or fitted_gate.certificate is None:
        raise MissingPromiseError(
            "verify requires a gate with a promise, but this gate has none. Fit the gate with a"
            " promise."
        )
    certificate = fitted_gate.certificate
    if certificate.cases is not None or cases is not None:
        check_case_columns(fitted_gate, units)
        judged_rows = judge_case_rows(fitted_gate, stage_inputs[0], y, cases, groups)
        return verify_cases(certificate, judged_rows, confidence)
    truth = _select_truth(fitted_gate, y, agrees)
    is_score_table = fitted_gate.is_score_gate and has_several_columns(X)
    counts_clusters = certificate.design.cluster_counting is not None
    if is_score_table and (fitted_gate.has_group_thresholds or counts_clusters):
        entries = flatten_labelled_table(X, truth, groups)
        if fitted_gate.has_group_thresholds:
            groups = entries.column_names
        else:
            entries = entries.without_unlabelled_rows()
            warn_about_unlabelled_table_rows(entries)
            # The entries of one row of the table are dependent.
            units = entries.row_of_entry
            groups = None
        stage_inputs = (entries.scores,)
        truth = entries.truth
    judged_rows = judge_rows(fitted_gate, stage_inputs, truth, groups)
    clusters = None
    if units is not None:
        n_input_rows = len(stage_inputs[0])
        clusters = Units.from_units_argument(units).take(judged_rows.row_indices, n_input_rows)
    return verify_decisions(
        certificate,
        judged_rows.accept,
        judged_rows.correct,
        confidence,
        losses=judged_rows.losses,
        row_subgroups=judged_rows.row_subgroups,
        units=clusters,
        overlap_with_fit=judged_rows.fit_rows,
    )


def verify_cases(
    certificate: Certificate, decisions: JudgedRows, confidence: float
) -> Verification:
    """Test a promise about whole cases, each of which has one outcome."""
    case_outcomes = decisions.case_outcomes
    assert case_outcomes is not None
    return verify_decisions(
        certificate,
        case_outcomes.accept,
        case_outcomes.correct,
        confidence,
        losses=case_outcomes.losses,
        overlap_with_fit=decisions.fit_rows,
    )


def _select_truth(gate: Gate, y: Any, agrees: Any) -> Any:
    """Return the argument that the gate is judged by: `agrees` or `y`."""
    has_only_agreement = agrees is not None and y is None
    if gate.needs_agreement_flags:
        if not has_only_agreement:
            raise CombinationError(
                "This cascade limits the disagreement with the large model, so it does not"
                " support y. Pass agrees=... (whether each model except the last agrees with the"
                " last one)."
            )
        return agrees
    if agrees is not None:
        raise CombinationError(
            "agrees requires a cascade over scores that promises MaxLoss. Pass y to this gate"
            " instead."
        )
    return y


def estimate_accuracy(
    gate: Any, X: Any, *, level: float = 0.95, groups: Any = None
) -> AccuracyEstimate:
    """Estimate the accuracy on accepted rows without labels.

    This is neither a promise nor a test. It is valid for rows from the distribution of the
    calibration rows, and a shift invalidates it without warning. The error bar includes the
    sampling error of these rows, the uncertainty of the calibrator about its level, and its error
    on the calibration rows: see `metacal.certificates.accuracy_estimate`.

    Parameters
    ----------
    gate : Gate, MetaCal, CalibratedClassifier or ScoreGate
        Gate that was fitted under a promise, on labelled rows.
    X : table
        Input of the gate.
    level : float, default=0.95
        Probability with which the error bar contains the true accuracy.
    groups : sequence or None, default=None
        Group of each row, for a promise per group.

    Returns
    -------
    AccuracyEstimate

    Raises
    ------
    InputError
        If the gate has no calibrated confidence.

    See Also
    --------
    evaluate : Measure calibration and the promise on labelled rows.
    verify : Test the promise on labelled rows.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = mc.MetaCal(mc.MinAccuracy(0.97)).fit(data.logits[:5000], data.labels[:5000])
    >>> estimate = mc.estimate_accuracy(cal, data.logits[5000:])
    >>> is_correct = data.logits[5000:].argmax(axis=1) == data.labels[5000:]
    >>> accuracy = is_correct[cal.accepts(data.logits[5000:])].mean()
    >>> bool(estimate.low <= accuracy <= estimate.high)
    True
    """
    fitted_gate, stage_inputs = find_gate_and_stage_inputs(gate, X)
    if fitted_gate is None or not fitted_gate.is_calibrated:
        raise MissingLabelsError(
            "This gate has no calibrated confidence, so the accuracy cannot be estimated. Fit"
            " the gate on labelled rows with a calibrator."
        )
    decision = fitted_gate.decide(*stage_inputs, groups=groups)
    confidence = np.nan_to_num(np.asarray(decision.confidence))
    confidence_sums = sum_accepted_confidences(confidence, decision.accept)
    calibration_profile = fitted_gate.profile
    return infer_accuracy_from_sums(
        fitted_gate.certificate, calibration_profile, confidence_sums, level=level
    )
