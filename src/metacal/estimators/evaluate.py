"""evaluate: a gate on labelled rows: calibration before and after, the ranking, and whether the
promise is kept.

One walk over the rows (`metacal.estimators.walk`) leaves all that is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from metacal import display
from metacal.errors import InputError
from metacal.estimators.walk import (
    MeasuredRows,
    measured_rows,
    room_for_table,
    softmax_gate,
    softmaxes,
)
from metacal.formulas import Codes
from metacal.gate import Gate
from metacal.gate.judged import Judged, check_measurable, judged, opened
from metacal.metrics import registry
from metacal.metrics.evaluation import evaluate_rows, evaluate_scores
from metacal.metrics.evaluation_result import Evaluation, harm_in_words
from metacal.metrics.intervals import Interval, clopper_pearson
from metacal.metrics.marginal import ByClass
from metacal.metrics.registry import PROBABILITIES
from metacal.metrics.resampling import Resampling
from metacal.promises.certificate import Certificate
from metacal.promises.fingerprint import FitRows
from metacal.promises.notes import off_by_class
from metacal.promises.verdict import Verdict, judge
from metacal.promises.words import at_least
from metacal.rows import Rows, workers
from metacal.rows.executors import ExecutorLike, is_remote
from metacal.rows.stored import StoredTable
from metacal.rows.validate import label_codes

#: Classes or groups that are shown, the worst first; `to_dict` has all.
_FEW = 10


@dataclass(frozen=True)
class Answerer:
    """One who answers in a cascade: how many rows, which share of all, and how often right; None
    for people.
    """

    name: str
    n_rows: int
    share: Interval
    accuracy: Interval | None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        accuracy = None if self.accuracy is None else self.accuracy.to_dict()
        return {
            "name": self.name,
            "n_rows": self.n_rows,
            "share": self.share.to_dict(),
            "accuracy": accuracy,
        }

    def __str__(self) -> str:
        right = "" if self.accuracy is None else f", right {self.accuracy} of them"
        return f"answers {self.share} of all rows{right}"


@dataclass(frozen=True)
class GateEvaluation:
    """The gate's probabilities and the classifier's own side by side, and the verdict on the
    promise.

    Attributes
    ----------
    after, before : Evaluation
        Through the gate, and the softmax of the logits; `before` is None where there is no gate.
    certificate, verdict : Certificate, Verdict or None
        What was promised, and what these rows say of it.
    fit_rows : FitRows or None
        Rows that the gate was fitted on. If there are any, the promise is not judged, and what is
        measured of calibration is too good.
    answered_by : tuple of Answerer
        Of a cascade: who answers how much, and how right each is.
    """

    after: Evaluation
    before: Evaluation | None = None
    certificate: Certificate | None = None
    verdict: Verdict | None = None
    fit_rows: FitRows | None = None
    answered_by: tuple[Answerer, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON types."""
        promise = None
        if self.certificate is not None and self.verdict is not None:
            promise = {"statement": self.certificate.statement, **self.verdict.to_dict()}
            promise["fit_rows"] = None if self.fit_rows is None else vars(self.fit_rows)
        found = {**self.after.to_dict(), "promise": promise, "uncalibrated": self._uncalibrated()}
        found |= (
            {"answered_by": [one.to_dict() for one in self.answered_by]} if self.answered_by else {}
        )
        return {**found, "calibration": self.caveat}

    @property
    def caveat(self) -> str | None:
        """What calibration makes worse on these rows, and whether the marginal check fails; None
        where all is well.
        """
        harm = None if self.before is None else harm_in_words(self.after, self.before)
        off = None if self.after.marginal is None else self.after.marginal.failure
        note = None if off is None else str(off_by_class(**off))
        return (
            " ".join(f"{one[0].upper()}{one[1:]}" for one in (harm, note) if one is not None)
            or None
        )

    def _uncalibrated(self) -> dict[str, Any] | None:
        if self.before is None:
            return None
        groups = {"accepted_rows": self.before.accepted_rows, "all_rows": self.before.all_rows}
        return {
            title: (
                None
                if group is None
                else {name: value.to_dict()["estimate"] for name, value in group.items()}
            )
            for title, group in groups.items()
        }

    def text(
        self, about: str = "", wrapped: Callable[[str], str] = str, *, few: bool = False
    ) -> str:
        """All of it for people: `about` says of what, `wrapped` breaks long lines; with `few` in
        fewer numbers.
        """
        sure, lines = "", [f"{about}{self.after.size}"]
        if self.certificate is not None and self.certificate.confidence is not None:
            # Two percentages stand close together; they are about different rows.
            surely = at_least(self.certificate.confidence)
            sure = f" of what these rows show; the promise's {surely} is about the fit"
        lines.append(f"(in brackets: {100 * self.after.level:g}% intervals{sure})")
        if self.certificate is not None:
            lines += ["", f"promised  {self.certificate.statement}", f"measured  {self.verdict}"]
        if self.verdict is not None:
            lines += [f"  {own.part}  {own.short}" for own in self.verdict.of_parts[:_FEW]]
            lines += [f"to do     {self.verdict.advice}"]
        lines += [f"  {one.name:<8}{one}" for one in self.answered_by]
        caveat = [] if self.caveat is None else [wrapped(self.caveat)]
        return self.after.text([*map(wrapped, lines)], self.before, caveat, few=few)

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        promised = (
            () if self.certificate is None else (self.certificate.statement, str(self.verdict))
        )
        return f"<div>{display.notes(*promised)}{self.after._repr_html_()}</div>"

    def to_frame(self) -> Any:
        """The frame of `after`, with the estimate before calibration beside it where there is
        one.
        """
        frame = self.after.to_frame()
        if self.before is None:
            return frame
        return frame.join(
            self.before.to_frame()[["estimate"]].rename(columns={"estimate": "uncalibrated"})
        )


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
    """Measure a gate, or a calibrator, on labelled rows that its fit has not seen.

    Parameters
    ----------
    gate : Gate, or fitted MetaCal, CalibratedClassifier, ScoreGate, Cascade or calibrator, or None
        None: the classifier's own softmax.
    X, y : table of shape (n, K) and labels of shape (n,)
        For a gate on scores a score for each row, and whether it is right.
    large : table, optional
        Of a cascade that reads tables: the large model's table of the same rows. X is then the
        small one's. What comes back says who answers how much, how right each is, and whether the
        promise stands; its intervals are exact.
    groups : array of shape (n,), optional
        The group of each row, for a promise per group.
    n_bins, level, n_resamples, random_state
        Bins of the binned errors, level of the intervals, resamples of the bootstrap (0: no
        intervals), its seed.
    n_jobs : int, optional
        Threads; -1 for one per core.
    executor : concurrent.futures.Executor or distributed.Client, optional
        Where blocks of a table that stays in its files are worked on: a pool of processes, a Dask
        client. Some 80 bytes a row come back. All numbers are the same, but the class-wise ECE has
        no interval, which needs every entry for each resample.
    overwrite : bool
        Whether an array of logits may be written over: it saves the memory of another.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = mc.MetaCal(mc.MinAccuracy(0.97)).fit(data.logits[:5000], data.labels[:5000])
    >>> found = evaluate(cal, data.logits[5000:], data.labels[5000:], n_resamples=0)
    >>> round(found.after.gate["coverage_accuracy"].estimate, 3), found.verdict.refuted
    (0.972, False)
    """
    own, given = opened(gate, X, large)
    if own is not None:
        check_measurable(own)
    plan = Resampling(level, n_resamples, random_state)
    if own is not None and own.kind != "logits":
        return measured_columns(
            own, judged(own, given, y, groups, probabilities=True), plan, n_bins
        )
    through = softmax_gate(np.shape(given[0])[1]) if own is None else own
    with workers(n_jobs, executor) as pool:
        unseen = isinstance(given[0], StoredTable) and is_remote(pool)
        rows = Rows(
            given[0] if unseen else through.source.read(given[0]), executor=pool, unseen=unseen
        )
        return walked(
            own,
            rows,
            label_codes(y, len(rows), through.classes),
            plan,
            n_bins,
            groups,
            ours=overwrite,
        )[1]


def measured_columns(
    gate: Gate, seen: Judged, plan: Resampling, n_bins: int = 15
) -> GateEvaluation:
    """The same where there is no one table to walk over: by given scores, or through a cascade."""
    assert seen.correct is not None
    if not seen.known.all():
        raise InputError(
            f"{int((~seen.known).sum()):,} rows have no label, and measuring needs them all; verify"
            " (metacal verify) needs those alone on which the models disagree."
        )
    accept, sure = None if gate.is_calibrator else seen.accept, seen.decision.confidence
    result = evaluate_scores(
        seen.decision.doubt, seen.correct, plan, n_bins, accept=accept, confidence=sure
    )
    if gate.certificate is None:
        return GateEvaluation(result)
    verdict = judge(
        gate.certificate,
        seen.accept,
        seen.correct,
        result.level,
        losses=seen.losses,
        names=seen.names,
        fit_rows=seen.fit_rows,
    )
    answers = answerers(gate, seen, result.level)
    return GateEvaluation(result, None, gate.certificate, verdict, seen.fit_rows, answers)


def answerers(gate: Gate, seen: Judged, level: float) -> tuple[Answerer, ...]:
    """Who answers how much in a cascade, with exact intervals; nothing where one model does."""
    by, n = seen.decision.by, len(seen)
    if by is None or seen.correct is None or gate.certificate is None:
        return ()
    found = []
    for number, name in enumerate((*seen.decision.stages, *(("person",) if gate.people else ()))):
        own = by == number
        count, right = int(own.sum()), int((own & seen.correct).sum())
        accuracy = (
            clopper_pearson(right, count, level) if count and number < len(gate.stages) else None
        )
        found.append(Answerer(name, count, clopper_pearson(count, n, level), accuracy))
    return tuple(found)


def walked(
    gate: Gate | None,
    rows: Rows,
    codes: Codes,
    plan: Resampling,
    n_bins: int,
    groups: Any,
    *,
    ours: bool = False,
) -> tuple[MeasuredRows, GateEvaluation]:
    """Decide on every row once, and measure; the softmax of the logits beside it.

    Rows that are `unseen` are looked over, and converted, where they are read. With `ours` the
    table may be written over, which saves another.
    """
    through = softmax_gate(rows.n_classes) if gate is None else gate
    through.group_codes(
        groups if gate is not None else None, len(rows)
    )  # says now which groups are missing
    tabled = any(
        metric.whole_table and metric.sums is None for metric in registry.evaluated(PROBABILITIES)
    )
    room = None
    if (tabled or plan.n_resamples) and not is_remote(rows.executor):
        # A metric of the whole table asks for the logits once more, to have their softmax.
        room = room_for_table(rows.table, over=ours and not tabled)
    found = measured_rows(through, rows, codes, n_bins, groups, beside=gate is not None, room=room)
    accepted, correct, bare = found.accept, found.top == codes, None
    fit_rows = None if gate is None else gate.find_fit_rows(found.score, correct)
    by_class = ByClass(found.top, through.classes, fitted=fit_rows is not None)
    columns = {"accept": accepted, "correct": correct, "by_class": by_class}
    if found.before is not None:
        before = found.before
        if tabled and room is not None:
            before = replace(before, checked=softmaxes(rows, codes, before.top))
        without = replace(plan, n_resamples=0, shares=False)
        bare = evaluate_rows(before, rows.n_classes, without, n_bins, **columns)
    result = evaluate_rows(found.after, rows.n_classes, plan, n_bins, score=found.score, **columns)
    if gate is None or gate.certificate is None or accepted is None:
        return found, GateEvaluation(result, bare)
    verdict = judge(
        gate.certificate,
        accepted,
        correct,
        plan.level,
        losses=gate.losses(codes, found.top),
        names=through.part_names(found.top, groups),
        fit_rows=fit_rows,
    )
    return found, GateEvaluation(result, bare, gate.certificate, verdict, fit_rows)
