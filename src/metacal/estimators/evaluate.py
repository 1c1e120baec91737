"""Evaluation of the calibration, the ranking and the promise of a gate.

All measurements come from one pass over the rows (`metacal.estimators.measurement`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from metacal import display
from metacal.certificates.certificate import Certificate
from metacal.certificates.fingerprint import FitRows
from metacal.certificates.notes import miscalibrated_by_class
from metacal.certificates.number_format import format_percent_floor
from metacal.errors import InputError
from metacal.estimators.measurement import (
    RowMeasurements,
    make_lazy_softmax_table,
    make_probability_buffer,
    make_softmax_gate,
    measure_rows,
)
from metacal.formulas import Array, Codes
from metacal.gate import Gate
from metacal.gate.judged import JudgedRows, check_measurable, find_gate_and_inputs, judge_rows
from metacal.metrics import registry
from metacal.metrics.evaluation import evaluate_columns, evaluate_scores
from metacal.metrics.evaluation_result import Evaluation, describe_harm
from metacal.metrics.intervals import Interval, clopper_pearson
from metacal.metrics.marginal import PredictedClasses
from metacal.metrics.registry import PROBABILITIES
from metacal.metrics.resampling import Resampling
from metacal.promises.verdict import Verdict, judge
from metacal.rows import Rows, open_executor
from metacal.rows.executors import ExecutorLike, is_remote
from metacal.rows.stored import StoredTable
from metacal.rows.validate import encode_labels

#: Maximal number of subgroups that the text shows, worst first. `to_dict` returns all of them.
_MAX_SHOWN_SUBGROUPS = 10


@dataclass(frozen=True)
class Answerer:
    """Share and accuracy of the rows that one model of a cascade, or people, answer.

    Attributes
    ----------
    name : str
        Name of the model, or "person".
    n_rows : int
        Number of rows answered.
    share : Interval
        Fraction of all rows that are answered.
    accuracy : Interval or None
        Accuracy on the answered rows. None for people.
    """

    name: str
    n_rows: int
    share: Interval
    accuracy: Interval | None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON types."""
        accuracy = None if self.accuracy is None else self.accuracy.to_dict()
        return {
            "name": self.name,
            "n_rows": self.n_rows,
            "share": self.share.to_dict(),
            "accuracy": accuracy,
        }

    def __str__(self) -> str:
        accuracy = "" if self.accuracy is None else f", right {self.accuracy} of them"
        return f"answers {self.share} of all rows{accuracy}"


@dataclass(frozen=True)
class GateEvaluation:
    """Evaluation of a gate and its classifier, with the verdict on the promise.

    Attributes
    ----------
    after : Evaluation
        Evaluation of the probabilities of the gate.
    before : Evaluation or None
        Evaluation of the softmax of the logits. None if there is no gate.
    certificate : Certificate or None
        Certificate of the gate.
    verdict : Verdict or None
        Whether the promise is kept on these rows.
    fit_rows : FitRows or None
        Rows that the gate was fitted on. If there are any, the promise is not judged, and the
        calibration looks better than it is.
    answered_by : tuple of Answerer
        For a cascade: how many rows each model answers, and how accurately.
    """

    after: Evaluation
    before: Evaluation | None = None
    certificate: Certificate | None = None
    verdict: Verdict | None = None
    fit_rows: FitRows | None = None
    answered_by: tuple[Answerer, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the evaluation as JSON types."""
        document = self.after.to_dict()
        document["promise"] = self._promise_to_dict()
        document["uncalibrated"] = self._uncalibrated_to_dict()
        if self.answered_by:
            document["answered_by"] = [answerer.to_dict() for answerer in self.answered_by]
        document["calibration"] = self.caveat
        return document

    def _promise_to_dict(self) -> dict[str, Any] | None:
        """Return the promise and its verdict as JSON types; None without a promise."""
        if self.certificate is None or self.verdict is None:
            return None
        promise = {"statement": self.certificate.statement, **self.verdict.to_dict()}
        promise["fit_rows"] = None if self.fit_rows is None else vars(self.fit_rows)
        return promise

    @property
    def caveat(self) -> str | None:
        """Note on metrics that calibration worsens and on a failed marginal check."""
        notes = []
        if self.before is not None:
            notes.append(describe_harm(self.after, self.before))
        if self.after.marginal is not None and self.after.marginal.failure is not None:
            notes.append(str(miscalibrated_by_class(**self.after.marginal.failure)))
        sentences = [f"{note[0].upper()}{note[1:]}" for note in notes if note is not None]
        return " ".join(sentences) or None

    def _uncalibrated_to_dict(self) -> dict[str, Any] | None:
        """Return the metrics of the softmax of the logits as JSON types."""
        if self.before is None:
            return None
        accepted_estimates = None
        if self.before.accepted_rows is not None:
            accepted_estimates = _estimates_to_dict(self.before.accepted_rows)
        return {
            "accepted_rows": accepted_estimates,
            "all_rows": _estimates_to_dict(self.before.all_rows),
        }

    def text(
        self, title_prefix: str = "", wrap_line: Callable[[str], str] = str, *, brief: bool = False
    ) -> str:
        """Format the evaluation as text.

        Parameters
        ----------
        title_prefix : str, default=""
            Beginning of the first line.
        wrap_line : callable, default=str
            Function that wraps a long line.
        brief : bool, default=False
            Whether to omit the metrics that `metacal evaluate` does not print.

        Returns
        -------
        str
        """
        lines = [f"{title_prefix}{self.after.size}", self._interval_note()]
        if self.certificate is not None:
            lines += ["", f"promised  {self.certificate.statement}", f"measured  {self.verdict}"]
        if self.verdict is not None:
            for subgroup_verdict in self.verdict.subgroup_verdicts[:_MAX_SHOWN_SUBGROUPS]:
                lines.append(f"  {subgroup_verdict.subgroup}  {subgroup_verdict.summary}")
            lines.append(f"to do     {self.verdict.advice}")
        lines += [f"  {answerer.name:<8}{answerer}" for answerer in self.answered_by]
        wrapped_lines = [wrap_line(line) for line in lines]
        caveat_lines = []
        if self.caveat is not None:
            caveat_lines.append(wrap_line(self.caveat))
        return self.after.text(wrapped_lines, self.before, caveat_lines, few=brief)

    def _interval_note(self) -> str:
        """Return the line about the confidence levels of the intervals and the promise."""
        explanation = ""
        if self.certificate is not None and self.certificate.confidence is not None:
            promise_level = format_percent_floor(self.certificate.confidence)
            explanation = (
                f" of what these rows show; the promise's {promise_level} is about the fit"
            )
        return f"(in brackets: {100 * self.after.level:g}% intervals{explanation})"

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        promise_html = ""
        if self.certificate is not None:
            promise_html = display.make_paragraphs_html(
                self.certificate.statement, str(self.verdict)
            )
        return f"<div>{promise_html}{self.after._repr_html_()}</div>"

    def to_frame(self) -> Any:
        """Return a `pandas.DataFrame` with one row per metric.

        The column `uncalibrated` has the estimates of the softmax of the logits.
        """
        frame = self.after.to_frame()
        if self.before is None:
            return frame
        uncalibrated_estimates = self.before.to_frame()[["estimate"]]
        return frame.join(uncalibrated_estimates.rename(columns={"estimate": "uncalibrated"}))


def _estimates_to_dict(intervals: Mapping[str, Interval]) -> dict[str, Any]:
    """Return the estimate of each metric, without its interval, as JSON types."""
    return {name: interval.to_dict()["estimate"] for name, interval in intervals.items()}


def evaluate(
    gate: Any,
    X: Any,
    y: Any,
    *,
    large: Any = None,
    groups: Any = None,
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
        Labels; for a gate on scores, whether each row is correct.
    large : table or None, default=None
        Table of the large model, for a cascade over tables. X is then the table of the small model.
        The result contains how many rows each model answers, how accurately, and whether the
        promise is kept, with exact intervals.
    groups : array-like of shape (n_rows,) or None, default=None
        Group of each row, for a promise per group.
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

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = mc.MetaCal(mc.MinAccuracy(0.97)).fit(data.logits[:5000], data.labels[:5000])
    >>> evaluation = evaluate(cal, data.logits[5000:], data.labels[5000:], n_resamples=0)
    >>> round(evaluation.after.gate["selective_accuracy"].estimate, 3), evaluation.verdict.refuted
    (0.972, False)
    """
    fitted_gate, stage_inputs = find_gate_and_inputs(gate, X, large)
    if fitted_gate is not None:
        check_measurable(fitted_gate)
    resampling = Resampling(level, n_resamples, random_state)
    if fitted_gate is not None and not fitted_gate.is_logits_gate:
        decisions = judge_rows(fitted_gate, stage_inputs, y, groups, probabilities=True)
        return evaluate_decisions(fitted_gate, decisions, resampling, n_bins)
    table = stage_inputs[0]
    gate_or_softmax = fitted_gate
    if gate_or_softmax is None:
        gate_or_softmax = make_softmax_gate(np.shape(table)[1])
    with open_executor(n_jobs, executor) as pool:
        # On a cluster, each worker validates the rows that it reads.
        is_unvalidated = isinstance(table, StoredTable) and is_remote(pool)
        if not is_unvalidated:
            table = gate_or_softmax.source.read(table)
        rows = Rows(table, executor=pool, is_unvalidated=is_unvalidated)
        codes = encode_labels(y, len(rows), gate_or_softmax.classes)
        _, evaluation = evaluate_table(
            fitted_gate, rows, codes, resampling, n_bins, groups, overwrite=overwrite
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
    if n_unlabelled:
        raise InputError(
            f"{n_unlabelled:,} rows have no label, and measuring needs them all; verify"
            " (metacal verify) needs those alone on which the models disagree."
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
    verdict = judge(
        gate.certificate,
        decisions.accept,
        decisions.correct,
        evaluation.level,
        losses=decisions.losses,
        row_names=decisions.row_subgroups,
        fit_rows=decisions.fit_rows,
    )
    return GateEvaluation(
        after=evaluation,
        certificate=gate.certificate,
        verdict=verdict,
        fit_rows=decisions.fit_rows,
        answered_by=_count_answers(gate, decisions, evaluation.level),
    )


def _count_answers(gate: Gate, decisions: JudgedRows, level: float) -> tuple[Answerer, ...]:
    """Count the rows that each model of a cascade answers; empty for a single model."""
    answering_stage = decisions.decision.by
    if answering_stage is None or decisions.correct is None or gate.certificate is None:
        return ()
    names = list(decisions.decision.stage_names)
    if gate.has_human_review:
        names.append("person")
    answerers = []
    for stage, name in enumerate(names):
        is_answered_here = answering_stage == stage
        n_answered = int(is_answered_here.sum())
        n_correct = int((is_answered_here & decisions.correct).sum())
        is_model = stage < gate.n_stages
        accuracy = None
        if n_answered and is_model:
            accuracy = clopper_pearson(n_correct, n_answered, level)
        share = clopper_pearson(n_answered, len(decisions), level)
        answerers.append(Answerer(name, n_rows=n_answered, share=share, accuracy=accuracy))
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
    correct = measurements.predicted_codes == codes
    fit_rows = None
    if gate is not None:
        fit_rows = gate.find_fit_rows(measurements.scores, correct)
    predicted_classes = PredictedClasses(
        measurements.predicted_codes, gate_or_softmax.classes, fitted=fit_rows is not None
    )
    evaluate_metrics = partial(
        evaluate_columns,
        n_classes=rows.n_classes,
        n_bins=n_bins,
        accept=measurements.accept,
        correct=correct,
        predicted_classes=predicted_classes,
    )
    before = None
    softmax_metrics = measurements.softmax_metrics
    if softmax_metrics is not None:
        if _needs_whole_table() and buffer is not None:
            softmax_table = make_lazy_softmax_table(rows, codes, softmax_metrics.top)
            softmax_metrics = replace(softmax_metrics, table=softmax_table)
        no_resampling = replace(resampling, n_resamples=0, exact_proportions=False)
        before = evaluate_metrics(softmax_metrics, resampling=no_resampling)
    after = evaluate_metrics(
        measurements.gate_metrics,
        resampling=resampling,
        score=measurements.scores,
        is_paper_map=gate_or_softmax.default_rejected == "uniform",
    )
    if gate is None or gate.certificate is None or measurements.accept is None:
        return measurements, GateEvaluation(after, before)
    verdict = judge(
        gate.certificate,
        measurements.accept,
        correct,
        resampling.level,
        losses=gate.losses(codes, measurements.predicted_codes),
        row_names=gate.get_row_subgroups(measurements.predicted_codes, groups),
        fit_rows=fit_rows,
    )
    evaluation = GateEvaluation(
        after=after,
        before=before,
        certificate=gate.certificate,
        verdict=verdict,
        fit_rows=fit_rows,
    )
    return measurements, evaluation


def _needs_whole_table() -> bool:
    """Check whether any registered metric needs the whole table of probabilities."""
    return any(
        metric.reads_whole_table and metric.sums is None
        for metric in registry.list_evaluated_metrics(PROBABILITIES)
    )


def _make_buffer(rows: Rows, resampling: Resampling, *, overwrite: bool) -> Array | None:
    """Allocate a buffer for all probabilities; None if they are not needed at once.

    On a cluster there is no buffer, because the rows stay with the workers.
    """
    needs_whole_table = _needs_whole_table()
    is_buffer_needed = needs_whole_table or resampling.n_resamples > 0
    if not is_buffer_needed or is_remote(rows.executor):
        return None
    # The logits are read a second time, for their softmax, if a metric needs the whole table.
    may_overwrite = overwrite and not needs_whole_table
    return make_probability_buffer(rows.table, overwrite=may_overwrite)
