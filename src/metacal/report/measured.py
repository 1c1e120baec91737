"""Columns of the rows of a report, and the verdict on the promise.

The columns have one entry per row: true class, prediction, decision, score and confidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metacal.certificates.fingerprint import FitRows
from metacal.certificates.number_format import format_percent_ceil, format_percent_floor
from metacal.estimators.evaluate import Answerer, GateEvaluation, evaluate_decisions, evaluate_table
from metacal.formulas import Codes, Flags, Float
from metacal.gate import Gate, LogitsSource
from metacal.gate.judged import check_measurable, judge_rows
from metacal.maps.temperature import TemperatureMap
from metacal.metrics.resampling import Resampling
from metacal.metrics.toplabel import TopLabel
from metacal.promises.verdict import Verdict
from metacal.rows import Rows, validate


@dataclass(frozen=True)
class Settings:
    """Settings of a report.

    Attributes
    ----------
    level : float
        Confidence level of the intervals.

    delta : float
        The bands hold with probability 1 - delta.

    n_bins : int
        Number of bins of binned metrics.

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
    def intervals(self) -> Resampling:
        """Settings of the intervals; proportions have an exact interval without resamples, too."""
        return Resampling(self.level, self.n_resamples, self.seed, exact_proportions=True)


@dataclass(frozen=True, eq=False)
class Measured:
    """Columns of the rows of a report, and their evaluation.

    Attributes
    ----------
    evaluation : GateEvaluation
        Metrics of the rows.

    codes, predicted : array of int of shape (n_rows,)
        True and predicted class.

    accept : array of bool of shape (n_rows,) or None
        Decisions of the gate. None without a gate.

    score_name : str
        Name of the ranking score. It starts with "-" if higher values are more confident.

    doubt : array of shape (n_rows,)
        Ranking score, of which higher values are less confident.

    threshold : float or None
        Threshold of the gate.

    confidence : array of shape (n_rows,)
        Confidence of the prediction, calibrated for accepted rows.

    after : TopLabel or None
        Calibrated confidence and correctness.

    errors : array of shape (n_classes,)
        Calibration error of each class, on the accepted rows if there is a gate.

    numbers : array of int of shape (n_rows,)
        Index of each row in the input.

    before : TopLabel or None
        Confidence of the softmax, and correctness.
    """

    evaluation: GateEvaluation
    codes: Codes
    predicted: Codes
    accept: Flags | None
    score_name: str
    doubt: Float
    threshold: float | None
    confidence: Float
    after: TopLabel | None
    errors: Float
    numbers: Codes
    before: TopLabel | None = None

    @property
    def correct(self) -> Flags:
        """Whether each prediction is correct."""
        return np.asarray(self.predicted == self.codes)


def read_tables(
    gate: Gate | None, inputs: Sequence[Any], classes: Any, input: str | None
) -> tuple[Gate, Sequence[Any]]:
    """Validate the input of a report.

    Parameters
    ----------
    gate : Gate or None
        Gate or calibrator to report on. If None, the softmax of the logits is used.

    inputs : sequence
        One table or column of scores for each stage of the gate.

    classes : sequence or None
        Class of each column.

    input : {"logits", "probabilities"} or None
        Content of the tables. If None, that of the gate, or logits.

    Returns
    -------
    gate : Gate
        Gate that reads the tables.

    tables : sequence
        Validated input of each stage.
    """
    if gate is None:
        table = validate.read_logits(validate.on_host(inputs[0]), input or "logits")
        class_names = validate.check_classes(classes, table.shape[1])
        return Gate.from_source(LogitsSource(TemperatureMap(1.0), class_names)), (table,)
    reading_gate = gate if input is None else gate.with_source(input=input)
    tables = []
    for stage, stage_input in zip(reading_gate.stages, inputs, strict=True):
        if isinstance(stage_input, Rows):
            tables.append(stage_input.table)
        else:
            tables.append(stage.source.read(validate.on_host(stage_input)))
    return reading_gate, tables


def measure_logits(
    gate: Gate | None,
    reading_gate: Gate,
    rows: Rows,
    codes: Codes,
    groups: Any,
    settings: Settings,
) -> Measured:
    """Measure a table of logits in one pass over its rows.

    Parameters
    ----------
    gate : Gate or None
        Gate or calibrator to report on.

    reading_gate : Gate
        Gate that reads the table, as returned by `read_tables`.

    rows : Rows
        The table.

    codes : array of int of shape (n_rows,)
        True classes.

    groups : sequence or None
        Group of each row.

    settings : Settings
        Settings of the report.

    Returns
    -------
    Measured
    """
    decision_groups = groups if reading_gate.has_group_thresholds else None
    columns, evaluation = evaluate_table(
        gate, rows, codes, settings.intervals, settings.n_bins, decision_groups
    )
    accept = columns.accept
    calibrated = columns.gate_metrics.top
    confidence = calibrated.confidence
    if columns.softmax_metrics is None:
        before, after = calibrated, None
    else:
        before, after = columns.softmax_metrics.top, calibrated
        if accept is not None:
            confidence = np.where(accept, confidence, before.confidence)
    class_gaps = columns.gate_metrics.sums["classwise_ece"]
    return Measured(
        evaluation=evaluation,
        codes=codes,
        predicted=columns.predicted_codes,
        accept=accept,
        score_name=reading_gate.source.score_name,
        doubt=columns.scores,
        threshold=None if accept is None else reading_gate.threshold,
        confidence=confidence,
        before=before,
        after=after,
        errors=class_gaps.compute_class_errors(accepted=accept is not None),
        numbers=np.arange(len(codes)),
    )


def measure_decisions(
    gate: Gate, tables: Sequence[Any], y: Any, groups: Any, settings: Settings
) -> Measured:
    """Measure rows of scores, or of the models of a cascade.

    The rows of a cascade are ranked by their confidence, which is comparable between its models.

    Parameters
    ----------
    gate : Gate
        The gate.

    tables : sequence
        Validated input of each stage.

    y : array-like
        True labels, or whether each row is correct.

    groups : sequence or None
        Group of each row.

    settings : Settings
        Settings of the report.

    Returns
    -------
    Measured
    """
    check_measurable(gate)
    stage_inputs = [
        stage.source.wrap_checked(table) for stage, table in zip(gate.stages, tables, strict=True)
    ]
    judged_rows = judge_rows(gate, stage_inputs, y, groups, probabilities=True)
    # Evaluation comes first, because its errors about missing labels are more specific.
    evaluation = evaluate_decisions(gate, judged_rows, settings.intervals, settings.n_bins)
    assert judged_rows.correct is not None
    decision = judged_rows.decision
    correct = judged_rows.correct
    is_score_gate = gate.is_score_gate

    if gate.has_classes:
        codes = gate.source.encode_truth(y, len(tables[0]))[judged_rows.row_indices]
    else:
        codes = correct.astype(np.intp)

    score_name = gate.source.score_name
    doubt = decision.uncertainty
    confidence = np.full(len(judged_rows), np.nan)
    after = None
    if decision.confidence is not None:
        confidence = decision.confidence
        after = TopLabel(confidence, correct.astype(np.float64))
        if not is_score_gate:
            score_name = "-confidence"
            doubt = -confidence.astype(np.float64)

    has_threshold = is_score_gate and not gate.is_calibrator
    return Measured(
        evaluation=evaluation,
        codes=codes,
        predicted=decision.predicted_codes,
        accept=None if gate.is_calibrator else decision.accept,
        score_name=score_name,
        doubt=doubt,
        threshold=gate.threshold if has_threshold else None,
        confidence=confidence,
        after=after,
        errors=np.full(gate.n_classes, np.nan),
        numbers=judged_rows.row_indices,
    )


# ── the promise and its verdict ───────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False)
class Promise:
    """Promise of the gate, and whether it is kept on the rows of the report.

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
        it is a mean cost), curve (name of its curve in `Curves`) and text (the verdict as text).
        value, low and high are None if no row is relevant, or if the promise is not judged.

    verdict : str
        "kept" if every value meets its target, "refuted" if an interval is entirely on the wrong
        side, "not judged" on rows of the fit, and "undecided" otherwise.

    advice : str
        Recommended action, one sentence.

    fit_rows : FitRows or None
        Rows that the gate was fitted on. If there are any, the promise is not judged, and
        calibration looks better than it is.

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
    fit_rows: FitRows | None
    answered_by: tuple[Answerer, ...] = ()


def describe_promise(gate: Gate, measured: Measured) -> Promise | None:
    """Build the `Promise` of a report, or None if nothing is promised."""
    evaluation = measured.evaluation
    certificate = evaluation.certificate
    verdict = evaluation.verdict
    if certificate is None or verdict is None or measured.accept is None:
        return None
    subgroup_kind = "" if certificate.subgroups is None else certificate.subgroups.by
    return Promise(
        statement=certificate.statement,
        certificate=tuple(certificate.description_lines),
        threshold=gate.threshold,
        assumptions=certificate.assumptions,
        notes=tuple(str(note) for note in certificate.notes),
        verdicts=tuple(describe_verdict(head, subgroup_kind) for head in verdict.headline_verdicts),
        verdict=verdict.word,
        advice=verdict.advice,
        fit_rows=evaluation.fit_rows,
        answered_by=evaluation.answered_by,
    )


def describe_verdict(verdict: Verdict, subgroup_kind: str = "") -> dict[str, Any]:
    """Return the verdict on one quantity as data for the page.

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
    >>> from metacal.certificates.quantity import MISCOVERAGE
    >>> from metacal.promises.measurement import Measurement
    >>> data = describe_verdict(Verdict.from_measurement(Measurement(MISCOVERAGE, 0.1, 0.08, 8, 100), 0.95))
    >>> data["direction"], data["limit"], data["counted"], data["curve"]
    ('at most', '10%', 'of the right answers were rejected', 'miscoverage')
    """
    quantity = verdict.quantity
    counted = quantity.measured_template.format(
        n=verdict.measurement.n_rows, name=verdict.class_name
    )
    if verdict.subgroup is not None:
        counted += f" in {subgroup_kind} {verdict.subgroup}, where the evidence is worst"
    return {
        **verdict.to_dict(),
        "direction": quantity.direction,
        "counted": counted,
        "curve": quantity.short_name,
        "limit": quantity.format_limit(verdict.target, format_percent_floor, format_percent_ceil),
        "mean": quantity.is_mean_cost,
        "text": str(verdict),
    }
