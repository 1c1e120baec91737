"""What the page says of the promise: the certificate in words, and a verdict on each promised quantity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from metacal.promises.verdict import Verdict
from metacal.promises.words import at_least, at_most

if TYPE_CHECKING:
    from metacal.estimators.evaluate import Answerer
    from metacal.gate import Gate
    from metacal.report.measured import Measured


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
        One for each promised quantity: quantity, direction ("at most" or "at least"), target, value, low, high,
        level, verdict (kept, undecided or refuted), counted (what the value is a share of), limit (the target in
        words), mean (whether it is a mean cost), curve (of `Curves`, which shows it), text (the verdict in words).
        value, low and high are None when no row speaks about it.
    verdict : str
        Kept where every measured value keeps its target, refuted where an interval lies wholly on the wrong side,
        undecided otherwise.
    advice : str
        What to do now, in one sentence.
    fitted_here : bool
        Whether these look like the very rows the gate was fitted on (same counts at its threshold): the promise is then
        no news, and calibration looks better than it is.
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
    fitted_here: bool
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
        verdicts=tuple(spoken(part, int(data.accept.sum()), by) for part in verdict.heads),
        verdict=verdict.word,
        advice=verdict.advice,
        fitted_here=found.fitted_here,
        answered_by=found.answered_by,
    )


def spoken(part: Verdict, n_accepted: int, by: str = "") -> dict[str, Any]:
    """One quantity's verdict as the page gets it: no reader has to know what a quantity's name means.

    Examples
    --------
    >>> from metacal.promises.quantity import MISCOVERAGE
    >>> kept = Verdict(MISCOVERAGE, 0.1, 0.08, 0.07, 0.09, 0.95, True, False)
    >>> told = spoken(kept, 900)
    >>> told["direction"], told["limit"], told["counted"], told["curve"]
    ('at most', '10%', 'of the right answers were rejected', 'miscoverage')
    """
    promised = part.quantity
    where = "" if part.part is None else f" in {by} {part.part}, which has the most against it"
    counted = promised.measured.format(n_accepted=n_accepted)
    if where:  # so many are accepted in all, not there
        counted = counted.replace(f"the {n_accepted:,} ", "the ")
    return {
        **part.to_dict(),
        "direction": promised.direction,
        "counted": counted + where,
        "curve": promised.short,
        "limit": promised.written(part.target, at_least, at_most),
        "mean": promised.mean,
        "text": str(part),
    }
