"""Under which circumstances a rule was used: shared by scores, on units, weighted, cross-fitted.

Each adds its words to the rule and changes what the promise rests on (`metacal.certificates.words`),
and may leave less to promise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from metacal.certificates.certificate import Certificate, Guarantee

#: How weights are known: exactly, exactly but for the largest that a row can have, or estimated
#: from other rows.
Weights = Literal["given", "unbounded", "estimated"]
#: What is counted of rows that belong together: one row of each unit, every row, or the mean of
#: each unit.
CountedBy = Literal["unit", "row", "mean"]


@dataclass(frozen=True)
class Circumstances:
    """What was particular about a fit; nothing by default.

    Attributes
    ----------
    scores, share : int and float
        How many ranking scores shared delta, and the share of the one that was taken.
    units : "unit", "row", "mean" or None
        Whether rows belong together, and what was counted: one row of each unit, every row, or the
        mean of each unit.
    weights : "given", "unbounded", "estimated" or None
        Whether rows were kept in proportion to weights, and how these are known.
    folds : int
        How many fold classifiers scored the rows; 0: the one in use did.
    largest_unit, largest_declared : int or None, and bool
        Of whole units: how many rows one can have, and whether that is known or only what was seen.
    by_value : bool
        Whether values of the score were tested, not ranks (`metacal.certification.pilot`).
    aside : int
        How many calibration rows were set aside to lay out the tests of the others.
    random_state : int or None
        The seed that the user gave for a draw that the certificate depends on. None: there was no
        such draw, or its seed was derived from the rows (`metacal.rows.draws`).

    >>> Circumstances(folds=5).guarantee("certified")
    'approximate'
    >>> Circumstances(scores=3).impossible(100, 0.1)
    '3 scores cannot have shared delta so that one has 1 of it'
    """

    scores: int = 1
    share: float = 1.0
    units: CountedBy | None = None
    weights: Weights | None = None
    folds: int = 0
    largest_unit: int | None = None
    largest_declared: bool = False
    by_value: bool = False
    aside: int = 0
    random_state: int | None = None

    def guarantee(self, exact: Guarantee) -> Guarantee:
        """What can be promised, where without these circumstances it would be `exact`."""
        return "approximate" if exact != "none" and (self.folds or self.unknown) else exact

    @property
    def unknown(self) -> str | None:
        """What is not known well enough for an exact promise; None where all is."""
        if self.weights in ("estimated", "unbounded"):
            return (
                "the weights are estimates"
                if self.weights == "estimated"
                else "no largest weight was declared"
            )
        return (
            "no largest unit was declared"
            if self.units == "row" and not self.largest_declared
            else None
        )

    @property
    def whole_units(self) -> bool:
        """Whether units were counted as a whole, by bets."""
        return self.units in ("row", "mean")

    def together(self, other: Circumstances) -> Circumstances:
        """Both at once; `other` where the two say the same thing differently."""
        own: dict[str, Any] = {
            name: value or getattr(self, name) for name, value in vars(other).items()
        }
        least, most = min(self.share, other.share), max(self.scores, other.scores)
        seed = self.random_state if other.random_state is None else other.random_state
        return Circumstances(**{**own, "share": least, "scores": most, "random_state": seed})

    def impossible(self, most_folds: int, delta: float | None) -> str | None:
        """What cannot be, with at most so many folds; None when all agrees."""
        if self.folds < 0 or self.folds == 1 or self.folds > most_folds:
            return f"{most_folds:,} rows cannot be scored in {self.folds:,} folds"
        sized = self.largest_unit is not None
        if (
            sized != self.whole_units
            or (self.largest_declared and not sized)
            or (self.largest_unit or 1) < 1
        ):
            return "the size of a unit matters where whole units count, and only then"
        if self.aside < 0 or (delta is None and (self.aside or self.by_value)):
            return f"{self.aside:,} rows cannot be set aside to lay out tests"
        if self.random_state is not None and self.random_state < 0:
            return f"{self.random_state} cannot be a seed"
        if self.scores > 1 and delta is None:
            return "scores can only share a delta"
        if not (
            0.0 < self.share < 1.0 and 1 < self.scores < 1000
            if self.scores != 1
            else self.share == 1.0
        ):
            return (
                f"{self.scores:,} scores cannot have shared delta so that one has {self.share:g}"
                " of it"
            )
        return None


def under(certificate: Certificate, more: Circumstances) -> Certificate:
    """The certificate with further circumstances told, and no more promised than they allow."""
    around = certificate.circumstances.together(more)
    return replace(
        certificate, guarantee=around.guarantee(certificate.guarantee), circumstances=around
    )
