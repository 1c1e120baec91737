"""Does the promise of a cascade still stand? An exact test on labelled rows that the fit has not seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scipy.special import betainc

from metacal import shown
from metacal.errors import InputError
from metacal.promises.rules.cascade import Candidate, Counts, Paired, counts
from metacal.promises.rules.cascade_certificate import CascadeCertificate, MaxLoss
from metacal.promises.rules.noninferiority import kept_p_value
from metacal.promises.shares import at_most
from metacal.rows.validate import fraction

#: Of the level of the test, what is spent on the limit of the nuisance parameter.
_GAMMA = 0.05


@dataclass(frozen=True)
class CascadeVerification:
    """Whether labelled rows refute the certificate of a cascade; prints itself.

    Attributes
    ----------
    certificate : CascadeCertificate
        What was promised.
    seen : Counts
        Who answered how many of the rows, how many were wrong, worse and better.
    value, p_value : float
        What was measured, the loss or the accuracy, and the chance of as much or more if the promise is just kept.
    confidence : float
        A promise that is kept is refuted with probability at most 1 - confidence.
    """

    certificate: CascadeCertificate
    seen: Counts
    value: float
    p_value: float
    confidence: float

    @property
    def refuted(self) -> bool:
        """Whether so many bad rows are too many."""
        return self.p_value <= 1.0 - self.confidence

    @property
    def n_rows(self) -> int:
        """Rows looked at."""
        return self.seen.answered + self.seen.person

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "statement": self.certificate.statement,
            "n_rows": self.n_rows,
            "counts": self.seen._asdict(),
            "measured": self.measured,
            "value": self.value,
            "confidence": self.confidence,
            "refuted": self.refuted,
            "p_value": self.p_value,
        }

    @property
    def measured(self) -> str:
        """The name of what was measured."""
        return "loss" if isinstance(self.certificate.promise, MaxLoss) else "accuracy"

    def text(self, source: str = "") -> str:
        """For people; `source` says where the rows come from."""
        word, seen = "REFUTED" if self.refuted else "not refuted", self.seen
        promise = self.certificate.promise
        limit = f"<= {promise.epsilon:g}" if isinstance(promise, MaxLoss) else f">= {promise.beta:g}"
        people = f", people {seen.person:,}" if self.certificate.people else ""
        counted = (
            f"{seen.worse:,} worse by the small model, {seen.better:,} better"
            if isinstance(promise, MaxLoss)
            else f"{seen.wrong_small:,} wrong by the small model, {seen.wrong_large:,} by the large one"
        )
        return "\n".join(
            [
                f"{word}: {self.certificate.statement}",
                f"  rows         {self.n_rows:,}{source}: small {seen.small:,}, large {seen.large:,}{people}",
                f"  measured     {self.measured} {self.value:.4f}, promised {limit}",
                f"  counted      {counted}",
                f"  p-value      {self.p_value:.4g}: the chance of as many or more if the promise is just kept",
                "  tested       the promise itself; a kept promise is called refuted by at most "
                f"{at_most(1.0 - self.confidence)} of such tests",
            ]
        )

    __str__ = __repr__ = text

    def _repr_html_(self) -> str:
        statement, *lines = self.text().splitlines()
        return shown.facts(statement, shown.named(lines))


def verify_cascade(certificate: CascadeCertificate, rows: Paired, confidence: float = 0.95) -> CascadeVerification:
    """Test on labelled rows what the certificate of a cascade promises; MaxLoss needs labels where the two disagree.

    A promise that holds is refuted with probability at most 1 - confidence.

    Examples
    --------
    >>> import numpy as np
    >>> from metacal.promises.rules.cascade import certify_cascade
    >>> score, yes = np.linspace(0, 1, 1000), np.ones(1000, dtype=bool)
    >>> certificate = certify_cascade(MaxLoss(0.01), Paired(score, score, yes, yes, yes, yes))
    >>> bad = np.arange(1000) % 20 != 0
    >>> print(verify_cascade(certificate, Paired(score, score, bad, yes, bad, yes)))
    REFUTED: Of all answers at most 1% more are wrong than if the large model answered alone, ...
      rows         1,000: small 1,000, large 0
      measured     loss 0.0500, promised <= 0.01
      counted      50 worse by the small model, 0 better
      p-value      0.0025: the chance of as many or more if the promise is just kept
      tested       the promise itself; a kept promise is called refuted by at most 5% of such tests
    """
    if fraction("confidence", confidence) <= 0.5:
        raise InputError(f"confidence must be above 0.5, got {confidence}; say how surely a kept promise passes: 0.95.")
    promise, n = certificate.promise, len(rows)
    seen = counts(rows, Candidate(certificate.threshold, certificate.large_threshold))
    if isinstance(promise, MaxLoss):
        missing = int((~rows.known & ~rows.agree & (rows.small_score <= certificate.threshold)).sum())
        if missing:
            raise InputError(f"{missing:,} rows on which the two models disagree have no label; label them.")
        gamma = _GAMMA * (1.0 - confidence)
        p_value = kept_p_value(seen.worse, seen.better, n, promise.epsilon, gamma)
        return CascadeVerification(certificate, seen, (seen.worse - seen.better) / n, p_value, confidence)
    if not rows.known.all():
        raise InputError(f"{int((~rows.known).sum()):,} rows have no label, and an accuracy needs them all.")
    if not seen.answered:
        raise InputError("no row here is answered by a model: none speaks about the promise.")
    wrong, answered = seen.wrong, seen.answered
    p_value = float(betainc(wrong, answered - wrong + 1, 1.0 - promise.beta)) if wrong else 1.0
    return CascadeVerification(certificate, seen, 1.0 - wrong / answered, p_value, confidence)
