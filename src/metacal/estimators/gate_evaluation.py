"""Result of evaluating a gate: metrics, the verdict on the promise, and their presentation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from metacal import display
from metacal.certificates.certificate import Certificate
from metacal.certificates.notes import note_miscalibrated_by_class
from metacal.certificates.number_format import format_percent_floor
from metacal.certificates.overlap_with_fit import OverlapWithFit
from metacal.metrics.evaluation_result import Evaluation, describe_harm
from metacal.metrics.intervals import Interval
from metacal.promises.verdict import Verdict

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
        accuracy_entry = None if self.accuracy is None else self.accuracy.to_dict()
        return {
            "name": self.name,
            "n_rows": self.n_rows,
            "share": self.share.to_dict(),
            "accuracy": accuracy_entry,
        }

    def __str__(self) -> str:
        accuracy_text = "" if self.accuracy is None else f", right {self.accuracy} of them"
        return f"answers {self.share} of all rows{accuracy_text}"


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
    fit_rows : OverlapWithFit or None
        Rows that the gate was fitted on. If there are any, the promise is not judged, and the
        calibration looks better than it is.
    answered_by : tuple of Answerer
        For a cascade: how many rows each model answers, and how accurately.
    """

    after: Evaluation
    before: Evaluation | None = None
    certificate: Certificate | None = None
    verdict: Verdict | None = None
    fit_rows: OverlapWithFit | None = None
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
        """Return the promise and its verdict as JSON types, None without a promise."""
        if self.certificate is None or self.verdict is None:
            return None
        promise_entries = {"statement": self.certificate.statement, **self.verdict.to_dict()}
        promise_entries["fit_rows"] = None if self.fit_rows is None else vars(self.fit_rows)
        return promise_entries

    @property
    def caveat(self) -> str | None:
        """Warning if calibration worsens a metric, or leaves a predicted class miscalibrated."""
        warnings = []
        calibrated_metrics, uncalibrated_metrics = self.after, self.before
        if uncalibrated_metrics is not None:
            harm_warning = describe_harm(calibrated_metrics, uncalibrated_metrics)
            if harm_warning is not None:
                warnings.append(harm_warning)
        check_by_class = calibrated_metrics.marginal
        if check_by_class is not None and check_by_class.fails:
            measured_gap = check_by_class.get_note_arguments()
            warnings.append(str(note_miscalibrated_by_class(**measured_gap)))
        if not warnings:
            return None
        sentences = [f"{warning[0].upper()}{warning[1:]}" for warning in warnings]
        return " ".join(sentences)

    def _uncalibrated_to_dict(self) -> dict[str, Any] | None:
        """Return the metrics of the uncalibrated probabilities as JSON types."""
        uncalibrated_metrics = self.before
        if uncalibrated_metrics is None:
            return None
        intervals_of_accepted_rows = uncalibrated_metrics.accepted_rows
        estimates_of_accepted_rows = None
        if intervals_of_accepted_rows is not None:
            estimates_of_accepted_rows = _estimates_to_dict(intervals_of_accepted_rows)
        return {
            "accepted_rows": estimates_of_accepted_rows,
            "all_rows": _estimates_to_dict(uncalibrated_metrics.all_rows),
        }

    def text(self, title_prefix: str = "", wrap_line: Callable[[str], str] = str) -> str:
        """Format the evaluation as text.

        Parameters
        ----------
        title_prefix : str, default=""
            Beginning of the first line.
        wrap_line : callable, default=str
            Function that wraps a long line.

        Returns
        -------
        str
        """
        calibrated_metrics, uncalibrated_metrics = self.after, self.before
        table_size_text = calibrated_metrics.size
        text_lines = [f"{title_prefix}{table_size_text}", self._interval_note()]
        if self.certificate is not None:
            text_lines += [
                "",
                f"promised  {self.certificate.statement}",
                f"measured  {self.verdict}",
            ]
        if self.verdict is not None:
            shown_verdicts = self.verdict.subgroup_verdicts[:_MAX_SHOWN_SUBGROUPS]
            for subgroup_verdict in shown_verdicts:
                text_lines.append(f"  {subgroup_verdict.subgroup}  {subgroup_verdict.summary}")
            text_lines.append(f"to do     {self.verdict.advice}")
        for answerer in self.answered_by:
            text_lines.append(f"  {answerer.name:<8}{answerer}")
        wrapped_lines = [wrap_line(line) for line in text_lines]
        caveat_lines = []
        if self.caveat is not None:
            caveat_lines.append(wrap_line(self.caveat))
        return calibrated_metrics.text(
            head=wrapped_lines, before=uncalibrated_metrics, caveat=caveat_lines
        )

    def _interval_note(self) -> str:
        """Return the line about the confidence levels of the intervals and the promise."""
        interval_level = self.after.level
        certificate = self.certificate
        explanation = ""
        if certificate is not None and certificate.confidence is not None:
            promise_level = format_percent_floor(certificate.confidence)
            explanation = (
                f" of what these rows show; the promise's {promise_level} is about the fit"
            )
        is_about_cases = certificate is not None and certificate.cases is not None
        if is_about_cases:
            explanation += "; the metrics treat items of one case as independent"
        return f"(in brackets: {100 * interval_level:g}% intervals{explanation})"

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
        metric_frame = self.after.to_frame()
        if self.before is None:
            return metric_frame
        uncalibrated_estimates = self.before.to_frame()[["estimate"]]
        return metric_frame.join(
            uncalibrated_estimates.rename(columns={"estimate": "uncalibrated"})
        )


def _estimates_to_dict(intervals: Mapping[str, Interval]) -> dict[str, Any]:
    """Return the estimate of each metric, without its interval, as JSON types."""
    return {name: interval.to_dict()["estimate"] for name, interval in intervals.items()}
