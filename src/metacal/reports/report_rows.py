"""Rows of a report as columns, and the verdict on the promise of the gate.

Each column has one entry per row: true class, predicted class, decision, uncertainty or confidence.
A *code* is the column index of a class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metacal.certificates.number_format import format_percent_ceil, format_percent_floor
from metacal.certificates.overlap_with_fit import OverlapWithFit
from metacal.estimators.evaluate import evaluate_decisions, evaluate_table
from metacal.estimators.gate_evaluation import Answerer, GateEvaluation
from metacal.formulas import Codes, Flags, Float
from metacal.gate import Gate, LogitsSource
from metacal.gate.feature_checks import check_accuracy_is_measurable
from metacal.gate.judged import judge_rows
from metacal.gate.judged_cases import check_takes_cases, is_about_cases, judge_case_rows
from metacal.maps.temperature import TemperatureMap
from metacal.metrics.resampling import Resampling
from metacal.metrics.toplabel import TopLabel
from metacal.promises.verdict import Verdict
from metacal.reports.case_table import count_cases
from metacal.reports.next_steps import NewRowsCommand, list_report_steps
from metacal.rows import Rows, validate


@dataclass(frozen=True)
class Settings:
    """Statistical settings of a report: levels, bins and resamples.

    Attributes
    ----------
    level : float
        Confidence level of the intervals.

    delta : float
        Error probability of the simultaneous confidence bands.

    n_bins : int
        Number of confidence bins, for example of the ECE.

    n_resamples : int
        Number of bootstrap resamples.

    seed : int
        Seed of the bootstrap.
    """

    level: float
    delta: float
    n_bins: int
    n_resamples: int
    seed: int

    @property
    def resampling(self) -> Resampling:
        """Settings of the confidence intervals, which are exact for proportions."""
        return Resampling(self.level, self.n_resamples, self.seed, exact_proportions=True)


@dataclass(frozen=True, eq=False)
class ReportRows:
    """Labelled rows of a report as columns, with their evaluation.

    Attributes
    ----------
    evaluation : GateEvaluation
        Metrics of the rows.

    true_codes, predicted_codes : array of int of shape (n_rows,)
        Codes of the true and of the predicted class.

    accept : array of bool of shape (n_rows,) or None
        Decisions of the gate. None without a gate.

    score_name : str
        Name of the ranking score. It starts with "-" if higher scores are more confident.

    uncertainty : array of shape (n_rows,)
        Ranking score, negated if necessary so that higher values are less confident.

    threshold : float or None
        Threshold of the gate.

    confidence : array of shape (n_rows,)
        Confidence of the prediction, calibrated for accepted rows.

    calibrated_top_label : TopLabel or None
        Calibrated confidence of the prediction, and whether the prediction is correct.

    class_calibration_errors : array of shape (n_classes,)
        Calibration error of each class, on the accepted rows if there is a gate.

    row_indices : array of int of shape (n_rows,)
        Index of each row in the input.

    softmax_top_label : TopLabel or None
        Softmax confidence of the prediction, and whether the prediction is correct.

    case_counts : dict or None
        Output of `count_cases` for a promise about cases.
    """

    evaluation: GateEvaluation
    true_codes: Codes
    predicted_codes: Codes
    accept: Flags | None
    score_name: str
    uncertainty: Float
    threshold: float | None
    confidence: Float
    calibrated_top_label: TopLabel | None
    class_calibration_errors: Float
    row_indices: Codes
    softmax_top_label: TopLabel | None = None
    case_counts: dict[str, Any] | None = None

    @property
    def correct(self) -> Flags:
        """Boolean mask of the correct predictions."""
        return np.asarray(self.predicted_codes == self.true_codes)


def read_tables(
    gate: Gate | None, stage_inputs: Sequence[Any], classes: Any, input_kind: str | None
) -> tuple[Gate, Sequence[Any]]:
    """Validate the tables of a report, and choose the gate to apply to them.

    Parameters
    ----------
    gate : Gate or None
        Gate or calibrator to report on. None stands for the softmax of the logits.

    stage_inputs : sequence
        One table or column of scores for each stage of the gate.

    classes : sequence or None
        Class of each column.

    input_kind : {"logits", "probabilities"} or None
        Content of the tables. If None, that of the gate, or logits.

    Returns
    -------
    effective_gate : Gate
        `gate` with the content of the tables set to `input_kind`, or the softmax if `gate` is None.

    tables : sequence
        Validated input of each stage.
    """
    if gate is None:
        table = validate.to_numpy(stage_inputs[0])
        logits = validate.read_logits(table, input_kind or "logits")
        class_names = validate.check_classes(classes, logits.shape[1])
        softmax_map = TemperatureMap(1.0)
        softmax_gate = Gate.from_source(LogitsSource(softmax_map, class_names))
        return softmax_gate, (logits,)
    effective_gate = gate if input_kind is None else gate.with_source(input=input_kind)
    tables = []
    for stage, stage_input in zip(effective_gate.stages, stage_inputs, strict=True):
        if isinstance(stage_input, Rows):
            # Tables in `Rows` objects have already been validated.
            tables.append(stage_input.table)
        else:
            tables.append(stage.source.read(validate.to_numpy(stage_input)))
    return effective_gate, tables


def make_report_rows_from_logits(
    gate: Gate | None,
    effective_gate: Gate,
    rows: Rows,
    true_codes: Codes,
    groups: Any,
    settings: Settings,
) -> ReportRows:
    """Evaluate a table of logits in one pass, and return its rows as columns.

    Parameters
    ----------
    gate : Gate or None
        Gate or calibrator to report on. None stands for the softmax of the logits.

    effective_gate : Gate
        Gate to apply, as returned by `read_tables`.

    rows : Rows
        Table of logits.

    true_codes : array of int of shape (n_rows,)
        Codes of the true classes.

    groups : sequence or None
        Group of each row.

    settings : Settings
        Settings of the report.

    Returns
    -------
    ReportRows
    """
    decision_groups = groups if effective_gate.has_group_thresholds else None
    columns, evaluation = evaluate_table(
        gate, rows, true_codes, settings.resampling, settings.n_bins, decision_groups
    )
    accept = columns.accept
    confidence = columns.gate_metrics.top_labels.confidence
    calibrated_top_label: TopLabel | None
    if columns.softmax_metrics is None:
        # Without a calibrator, the only confidence is that of the softmax.
        softmax_top_label = columns.gate_metrics.top_labels
        calibrated_top_label = None
    else:
        softmax_top_label = columns.softmax_metrics.top_labels
        calibrated_top_label = columns.gate_metrics.top_labels
        if accept is not None and effective_gate.default_rejected == "uniform":
            # A gate with the default "uniform" has the same confidence, 1/K, for all rejected rows.
            # The report shows the confidence of the softmax for them.
            confidence = np.where(accept, confidence, softmax_top_label.confidence)
    class_gaps = columns.gate_metrics.accumulators["classwise_ece"]
    return ReportRows(
        evaluation=evaluation,
        true_codes=true_codes,
        predicted_codes=columns.predicted_codes,
        accept=accept,
        score_name=effective_gate.source.score_name,
        uncertainty=columns.scores,
        threshold=None if accept is None else effective_gate.threshold,
        confidence=confidence,
        softmax_top_label=softmax_top_label,
        calibrated_top_label=calibrated_top_label,
        class_calibration_errors=class_gaps.compute_class_errors(accepted=accept is not None),
        row_indices=np.arange(len(true_codes)),
    )


def make_report_rows_from_decisions(
    gate: Gate,
    tables: Sequence[Any],
    y: Any,
    groups: Any,
    settings: Settings,
    cases: Any = None,
) -> ReportRows:
    """Evaluate a gate on scores or a cascade, and return the rows as columns.

    The rows of a cascade are ranked by their confidence, which is comparable between its models.

    Parameters
    ----------
    gate : Gate
        Gate on scores, or cascade.

    tables : sequence
        Validated input of each stage.

    y : array-like
        True labels, or whether each row is correct.

    groups : sequence or None
        Group of each row.

    settings : Settings
        Settings of the report.

    cases : sequence or None, default=None
        Case of each item, for a promise about cases.

    Returns
    -------
    ReportRows
    """
    check_accuracy_is_measurable(gate)
    check_takes_cases(gate, cases)
    case_counts = None
    if is_about_cases(gate):
        judged_rows = judge_case_rows(gate, tables[0], y, cases, groups, probabilities=True)
        case_counts = count_cases(gate, judged_rows, tables[0], y, cases, groups)
    else:
        stage_inputs = [
            stage.source.to_rows_from_checked(table)
            for stage, table in zip(gate.stages, tables, strict=True)
        ]
        judged_rows = judge_rows(gate, stage_inputs, y, groups, probabilities=True)
    # The evaluation runs first because its errors about missing labels are more specific.
    evaluation = evaluate_decisions(gate, judged_rows, settings.resampling, settings.n_bins)
    assert judged_rows.correct is not None
    decision = judged_rows.decision
    correct = judged_rows.correct
    is_score_gate = gate.is_score_gate

    if gate.has_classes:
        true_codes = gate.source.encode_truth(y, len(tables[0]))[judged_rows.row_indices]
    else:
        true_codes = correct.astype(np.intp)

    score_name = gate.source.score_name
    uncertainty = decision.uncertainty
    confidence = np.full(len(judged_rows), np.nan)
    calibrated_top_label = None
    if decision.confidence is not None:
        confidence = decision.confidence
        calibrated_top_label = TopLabel(confidence, correct.astype(np.float64))
        if not is_score_gate:
            score_name = "-confidence"
            uncertainty = -confidence.astype(np.float64)

    has_threshold = is_score_gate and not gate.is_calibrator and case_counts is None
    return ReportRows(
        evaluation=evaluation,
        true_codes=true_codes,
        predicted_codes=decision.predicted_codes,
        accept=None if gate.is_calibrator else decision.accept,
        score_name=score_name,
        uncertainty=uncertainty,
        threshold=gate.threshold if has_threshold else None,
        confidence=confidence,
        calibrated_top_label=calibrated_top_label,
        class_calibration_errors=np.full(gate.n_classes, np.nan),
        row_indices=judged_rows.row_indices,
        case_counts=case_counts,
    )


# ── the promise and its verdict ───────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False)
class Promise:
    """Promise of a gate, and the verdict on it from the rows of a report.

    Attributes
    ----------
    statement : str
        The promise as one sentence.

    certificate : tuple of (name, text)
        Lines of the certificate: gate, from, on these, rule.

    threshold : float
        A row is accepted if its score is at most the threshold. inf accepts every row.

    assumptions, notes : tuple of str
        Assumptions and notes of the certificate.

    verdicts : tuple of dict
        One entry per promised quantity, with the keys quantity, class (for two classes), direction
        ("at most" or "at least"), target, value, low, high, level, verdict (kept, undecided or
        refuted), counted (the denominator of the value), limit (the target as text), mean (whether
        it is a mean cost), curve (name of its curve in `OperatingCurves`) and text (the verdict as text).
        value, low and high are None if no row is relevant, or if the promise is not judged.

    verdict : str
        "kept" if every value meets its target, "refuted" if an interval is entirely on the wrong
        side, "not judged" on rows of the fit, and "undecided" otherwise.

    advice : str
        Recommended action, one sentence.

    fit_rows : OverlapWithFit or None
        Rows that the gate was fitted on. If there are any, the promise is not judged, and
        calibration looks better than it is.

    next_steps : tuple of dict
        What to do next, as `list_report_steps` returns it.

    answered_by : tuple of Answerer
        For a cascade, the fraction of rows and the accuracy of each model.
    """

    statement: str
    certificate: tuple[tuple[str, str], ...]
    threshold: float
    assumptions: tuple[str, ...]
    notes: tuple[str, ...]
    verdicts: tuple[dict[str, Any], ...]
    verdict: str
    advice: str
    fit_rows: OverlapWithFit | None
    next_steps: tuple[dict[str, Any], ...] = ()
    answered_by: tuple[Answerer, ...] = ()

    def find_target(self, curve_name: str) -> float | None:
        """Find the promised limit of a curve, or return None if it has no promise."""
        for verdict in self.verdicts:
            if verdict["curve"] == curve_name:
                target: float | None = verdict["target"]
                return target
        return None


def describe_promise(
    gate: Gate, report_rows: ReportRows, new_rows_command: NewRowsCommand | None = None
) -> Promise | None:
    """Build the `Promise` of a report, or None if nothing is promised."""
    evaluation = report_rows.evaluation
    certificate = evaluation.certificate
    verdict = evaluation.verdict
    if certificate is None or verdict is None or report_rows.accept is None:
        return None
    subgroup_kind = "" if certificate.subgroups is None else certificate.subgroups.by
    return Promise(
        statement=certificate.statement,
        certificate=tuple(certificate.description_lines),
        threshold=gate.threshold,
        assumptions=certificate.assumptions,
        notes=tuple(str(note) for note in certificate.notes),
        verdicts=tuple(
            describe_verdict(quantity_verdict, subgroup_kind)
            for quantity_verdict in verdict.headline_verdicts
        ),
        verdict=verdict.word,
        advice=verdict.advice,
        fit_rows=evaluation.fit_rows,
        next_steps=tuple(list_report_steps(verdict.word, new_rows_command)),
        answered_by=evaluation.answered_by,
    )


def describe_verdict(verdict: Verdict, subgroup_kind: str = "") -> dict[str, Any]:
    """Convert the verdict on one quantity to a dict for the HTML page.

    Parameters
    ----------
    verdict : Verdict
        Verdict on one quantity.

    subgroup_kind : str, default=""
        "class" or "group" if the promise is about subgroups.

    Returns
    -------
    dict

    Examples
    --------
    >>> from metacal.certificates.quantities import MISCOVERAGE
    >>> from metacal.promises.measurement import Measurement
    >>> measurement = Measurement(MISCOVERAGE, 0.1, 0.08, 8, 100)
    >>> data = describe_verdict(Verdict.from_measurement(measurement, 0.95))
    >>> data["direction"], data["limit"], data["counted"], data["curve"]
    ('at most', '10%', 'of the correct predictions were rejected', 'miscoverage')
    """
    quantity = verdict.quantity
    counted_text = quantity.measured_template.format(
        n=verdict.measurement.n_rows, name=verdict.class_name
    )
    if verdict.subgroup is not None:
        counted_text += f" in {subgroup_kind} {verdict.subgroup}, where the evidence is worst"
    return {
        **verdict.to_dict(),
        "direction": quantity.direction,
        "counted": counted_text,
        "curve": quantity.short_name,
        "limit": quantity.format_limit(verdict.target, format_percent_floor, format_percent_ceil),
        "mean": quantity.is_mean_cost,
        "text": str(verdict),
    }
