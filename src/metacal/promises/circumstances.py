"""Under which circumstances a rule was used: shared by scores, on one row of each unit, weighted, cross-fitted.

Each adds its words to the rule and changes what the promise rests on (`metacal.promises.words`), and may leave less to
promise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from metacal.promises.certificate import Certificate, Guarantee

#: How weights are known: exactly, or estimated from other rows.
Weights = Literal["given", "estimated"]


@dataclass(frozen=True)
class Circumstances:
    """What was particular about a fit; nothing by default.

    Attributes
    ----------
    scores, share : int and float
        How many ranking scores shared delta, and the share of the one that was taken.
    units : bool
        Whether one row of each unit, rows that belong together, was counted.
    weights : "given", "estimated" or None
        Whether rows were kept in proportion to weights.
    folds : int
        How many fold classifiers scored the rows; 0: the one in use did.
    by_value : bool
        Whether values of the score were tested, not ranks (`promises.scouts`).
    aside : int
        How many calibration rows were set aside to lay out the tests of the others.

    >>> Circumstances(folds=5).guarantee("certified")
    'approximate'
    >>> Circumstances(scores=3).impossible(100, 0.1)
    '3 scores cannot have shared delta so that one has 1 of it'
    """

    scores: int = 1
    share: float = 1.0
    units: bool = False
    weights: Weights | None = None
    folds: int = 0
    by_value: bool = False
    aside: int = 0

    def guarantee(self, exact: Guarantee) -> Guarantee:
        """What can be promised, where without these circumstances it would be `exact`."""
        return "approximate" if exact != "none" and (self.folds or self.weights == "estimated") else exact

    def together(self, other: Circumstances) -> Circumstances:
        """Both at once; `other` where the two say the same thing differently."""
        return Circumstances(
            max(self.scores, other.scores),
            min(self.share, other.share),
            self.units or other.units,
            other.weights or self.weights,
            other.folds or self.folds,
            self.by_value or other.by_value,
            self.aside or other.aside,
        )

    def impossible(self, most_folds: int, delta: float | None) -> str | None:
        """What cannot be, with at most so many folds; None when all agrees."""
        if self.folds < 0 or self.folds == 1 or self.folds > most_folds:
            return f"{most_folds:,} rows cannot be scored in {self.folds:,} folds"
        if self.aside < 0 or (delta is None and (self.aside or self.by_value)):
            return f"{self.aside:,} rows cannot be set aside to lay out tests"
        if self.scores > 1 and delta is None:
            return "scores can only share a delta"
        if not (0.0 < self.share < 1.0 and 1 < self.scores < 1000 if self.scores != 1 else self.share == 1.0):
            return f"{self.scores:,} scores cannot have shared delta so that one has {self.share:g} of it"
        return None


def under(certificate: Certificate, more: Circumstances) -> Certificate:
    """The certificate with further circumstances told, and no more promised than they allow."""
    around = certificate.circumstances.together(more)
    return replace(certificate, guarantee=around.guarantee(certificate.guarantee), circumstances=around)
