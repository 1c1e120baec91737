"""Measured: the rows as the report needs them, a column of each thing that is decided or measured
per row.

What they say of the promise stands beside it: the certificate in words, and a verdict on each
promised quantity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metacal.estimators.evaluate import Answerer, GateEvaluation, measured_columns, walked
from metacal.formulas import Codes, Flags, Float
from metacal.gate import Gate, Table
from metacal.gate.judged import check_measurable, judged
from metacal.maps.temperature import TemperatureMap
from metacal.metrics.resampling import Resampling
from metacal.metrics.toplabel import TopLabel
from metacal.promises.fingerprint import FitRows
from metacal.promises.verdict import Verdict
from metacal.promises.words import at_least, at_most
from metacal.rows import Rows, validate


@dataclass(frozen=True)
class Settings:
    """What was asked for: level of the intervals, 1 - delta of the bands, bins, bootstrap
    resamples, seed.
    """

    level: float
    delta: float
    n_bins: int
    n_resamples: int
    seed: int

    @property
    def intervals(self) -> Resampling:
        """How intervals are drawn: shares have their exact one without resamples, too."""
        return Resampling(self.level, self.n_resamples, self.seed, shares=True)


@dataclass(frozen=True, eq=False)
class Measured:
    """Columns of the rows that are reported on, and what `evaluate` says of them.

    Attributes
    ----------
    evaluation : GateEvaluation
    codes, predicted, correct, accept : arrays
        The truth, the answer, whether they are the same, and whether it is accepted; no `accept`
        without a gate.
    score_name, doubt, threshold : str, array, float or None
        What rows are ranked by, and where the gate cuts it.
    confidence : array
        Of the answer, calibrated where there is a calibrated one: a rejected row has none.
    before, after : TopLabel or None
        Of the softmax, and of the gate's confidence.
    errors : array
        Each class's own calibration error (of the accepted rows).
    numbers : array
        The number of each row among those that were given.
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
        """Whether each answer is right."""
        return np.asarray(self.predicted == self.codes)


def read(
    gate: Gate | None, given: Sequence[Any], classes: Any, input: str | None
) -> tuple[Gate, Sequence[Any]]:
    """What decides, the softmax of the logits where nothing was given, and what its stages read,
    checked.
    """
    if gate is None:
        table = validate.logits_from(validate.on_host(given[0]), input or "logits")
        return Gate.of(Table(TemperatureMap(1.0), validate.class_list(classes, table.shape[1]))), (
            table,
        )
    through = gate if input is None else gate.with_source(input=input)
    return through, [
        table.table if isinstance(table, Rows) else stage.source.read(validate.on_host(table))
        for stage, table in zip(through.stages, given, strict=True)
    ]


def walk(
    gate: Gate | None, through: Gate, rows: Rows, codes: Codes, groups: Any, settings: Settings
) -> Measured:
    """One walk over a table of logits: every row is scored and mapped once."""
    by_group = groups if through.by_group else None
    found, evaluation = walked(gate, rows, codes, settings.intervals, settings.n_bins, by_group)
    accept, shown, before = found.accept, found.after.top, found.before
    confidence = shown.confidence
    if before is not None and accept is not None:
        confidence = np.where(accept, confidence, before.top.confidence)
    return Measured(
        evaluation=evaluation,
        codes=codes,
        predicted=found.top,
        accept=accept,
        score_name=through.source.score_name,
        doubt=found.score,
        threshold=None if accept is None else through.threshold,
        confidence=confidence,
        before=shown if before is None else before.top,
        after=None if before is None else shown,
        errors=found.after.sums["classwise_ece"].by_class(accept is not None),
        numbers=np.arange(len(codes)),
    )


def decide(gate: Gate, tables: Sequence[Any], y: Any, groups: Any, settings: Settings) -> Measured:
    """Rows of scores, or of a cascade's models: what is decided on each, and how sure the answer
    is.

    The answers of a cascade are ranked by their confidence, which is the same thing whichever model
    gives them.
    """
    check_measurable(gate)
    checked = [
        stage.source.checked(table) for stage, table in zip(gate.stages, tables, strict=True)
    ]
    seen = judged(gate, checked, y, groups, probabilities=True)
    evaluation = measured_columns(gate, seen, settings.intervals, settings.n_bins)
    decision, n, alone = seen.decision, len(seen), gate.kind == "scores"
    assert seen.correct is not None
    sure = decision.confidence
    return Measured(
        evaluation=evaluation,
        codes=seen.correct.astype(np.intp)
        if not gate.n_classes
        else gate.source.codes(y, len(tables[0]))[seen.rows],
        predicted=decision.top,
        accept=None if gate.is_calibrator else decision.accept,
        score_name=gate.source.score_name if alone or sure is None else "-confidence",
        doubt=decision.doubt if alone or sure is None else -sure.astype(np.float64),
        threshold=None if gate.is_calibrator or not alone else gate.threshold,
        confidence=np.full(n, np.nan) if sure is None else sure,
        after=None if sure is None else TopLabel(sure, seen.correct.astype(np.float64)),
        errors=np.full(gate.n_classes, np.nan),
        numbers=seen.rows,
    )


# ── what the page says of the promise ─────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False)
class Promise:
    """The gate's promise, and whether it is kept on these rows.

    Attributes
    ----------
    statement : str
        The promise as one sentence.
    certificate : tuple of (name, text)
        The certificate in words, a line each: gate, from, on these, rule.
    threshold : float
        Accept iff score <= threshold; inf accepts everything.
    assumptions, notes : tuple of str
    verdicts : tuple of dict
        One for each promised quantity: quantity, class (that it is about, for two classes),
        direction ("at most" or "at least"), target, value, low, high, level, verdict (kept,
        undecided or refuted), counted (what the value is a share of), limit (the target in words),
        mean (whether it is a mean cost), curve (of `Curves`, which shows it), text (the verdict in
        words). value, low and high are None when no row speaks about it, or if the promise is not
        judged.
    verdict : str
        Kept where every measured value keeps its target, refuted where an interval lies wholly on
        the wrong side, not judged on rows of the fit, undecided otherwise.
    advice : str
        What to do now, in one sentence.
    fit_rows : FitRows or None
        Rows that the gate was fitted on. If there are any, the promise is not judged, and
        calibration looks better than it is.
    answered_by : tuple of Answerer
        Of a cascade: who answers how much, and how right each is.
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


def promised(gate: Gate, data: Measured) -> Promise | None:
    """What is promised and kept; None where nothing is promised."""
    found = data.evaluation
    certificate, verdict = found.certificate, found.verdict
    if certificate is None or verdict is None or data.accept is None:
        return None
    by = certificate.parts.by if certificate.parts is not None else ""
    return Promise(
        statement=certificate.statement,
        certificate=tuple(certificate.lines),
        threshold=gate.threshold,
        assumptions=certificate.assumptions,
        notes=tuple(map(str, certificate.notes)),
        verdicts=tuple(spoken(head, by) for head in verdict.heads),
        verdict=verdict.word,
        advice=verdict.advice,
        fit_rows=found.fit_rows,
        answered_by=found.answered_by,
    )


def spoken(part: Verdict, by: str = "") -> dict[str, Any]:
    """One quantity's verdict as the page gets it: no reader has to know what a quantity's name
    means.

    Examples
    --------
    >>> from metacal.promises.quantity import MISCOVERAGE
    >>> from metacal.promises.verdict import Seen
    >>> told = spoken(Verdict.of(Seen(MISCOVERAGE, 0.1, 0.08, 8, 100), 0.95))
    >>> told["direction"], told["limit"], told["counted"], told["curve"]
    ('at most', '10%', 'of the right answers were rejected', 'miscoverage')
    """
    promised = part.quantity
    where = "" if part.part is None else f" in {by} {part.part}, where the evidence is worst"
    counted = promised.measured.format(n=part.seen.n, name=part.about)
    return {
        **part.to_dict(),
        "direction": promised.direction,
        "counted": counted + where,
        "curve": promised.short,
        "limit": promised.written(part.target, at_least, at_most),
        "mean": promised.mean,
        "text": str(part),
    }
