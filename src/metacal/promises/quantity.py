"""Quantity: what a promise limits. Its name, how it is counted, which direction is good, and how it is said.

A quantity is a share: of the rows that it looks at (`of`), those where it happens (`hit`). Everyone who needs to know
whether "at most" or "at least" is promised, or how to count it on labelled rows, asks the object. It is a string, its
name, so that files and callers may go on reading `certificate.quantity == "miscoverage"`; no module of metacal does.

A new quantity is one entry in `QUANTITIES`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError

Flags = NDArray[np.bool_]


class Share(NamedTuple):
    """`hit` of `of` rows."""

    hit: int
    of: int


class Quantity(str):
    """A share of rows that a promise limits, from above ("at most") or from below ("at least").

    Examples
    --------
    >>> accept, correct = np.array([True, True, False, False]), np.array([True, False, True, False])
    >>> MISCOVERAGE.share(accept, correct), COVERAGE_ACCURACY.share(accept, correct)
    (Share(hit=1, of=2), Share(hit=1, of=2))
    >>> COVERAGE_ACCURACY.bad(accept, correct), COVERAGE_ACCURACY.limit_on_bad(0.97)
    (Share(hit=1, of=2), 0.030000000000000027)
    >>> MISCOVERAGE == "miscoverage", MISCOVERAGE.kept(0.04, 0.05), COVERAGE_ACCURACY.kept(0.96, 0.97)
    (True, True, False)
    """

    #: Whether small is good: the promise is then "at most".
    at_most: bool
    #: The sentence, with a place for the limit.
    sentence: str
    #: What happens where the promise is broken a little, and what breaks it, in words.
    bad_share: str
    bad_rows: str
    #: The option of `metacal fit`, and the constraint's field that holds the limit.
    option: str
    field: str
    _count: Callable[[Flags, Flags], tuple[Flags, Flags]]

    def __new__(cls, name: str, **facts: Any) -> Self:  # noqa: D102
        found = super().__new__(cls, name)
        found.__dict__.update(facts)
        return found

    @property
    def sign(self) -> str:
        """How the limit bounds it."""
        return "<=" if self.at_most else ">="

    def share(self, accept: Flags, correct: Flags) -> Share:
        """The rows where it happens, of those that it looks at."""
        hit, of = self._count(accept, correct)
        return Share(int(hit.sum()), int(of.sum()))

    def bad(self, accept: Flags, correct: Flags) -> Share:
        """The rows that count against the promise, of those that it looks at."""
        hit, of = self.share(accept, correct)
        return Share(hit if self.at_most else of - hit, of)

    def limit_on_bad(self, target: float) -> float:
        """The largest share of bad rows that the promise allows."""
        return target if self.at_most else 1.0 - target

    def kept(self, value: float, target: float) -> bool:
        """Whether a value keeps the promise."""
        return value <= target if self.at_most else value >= target

    def __getnewargs_ex__(self) -> tuple[tuple[str], dict[str, Any]]:
        return (str(self),), dict(self.__dict__)


def _rejected_among_right(accept: Flags, correct: Flags) -> tuple[Flags, Flags]:
    return correct & ~accept, correct


def _right_among_accepted(accept: Flags, correct: Flags) -> tuple[Flags, Flags]:
    return correct & accept, accept


MISCOVERAGE = Quantity(
    "miscoverage",
    at_most=True,
    sentence="At most {} of the correct predictions are rejected",
    bad_share="miscoverage",
    bad_rows="right answers turned away",
    option="--max-miscoverage",
    field="alpha",
    _count=_rejected_among_right,
)
COVERAGE_ACCURACY = Quantity(
    "coverage accuracy",
    at_most=False,
    sentence="What is accepted is right at least {} of the time",
    bad_share="share of errors",
    bad_rows="wrong answers among the accepted",
    option="--min-accuracy",
    field="beta",
    _count=_right_among_accepted,
)
#: Every quantity by its name.
QUANTITIES: dict[str, Quantity] = {str(q): q for q in (MISCOVERAGE, COVERAGE_ACCURACY)}


def quantity(name: str) -> Quantity:
    """The quantity with this name.

    Examples
    --------
    >>> quantity("coverage accuracy").sign
    '>='
    >>> quantity("coverage")
    Traceback (most recent call last):
    metacal.errors.InputError: quantity must be one of 'miscoverage', 'coverage accuracy'; got 'coverage'.
    """
    if name not in QUANTITIES:
        raise InputError(f"quantity must be one of {', '.join(map(repr, map(str, QUANTITIES)))}; got {name!r}.")
    return QUANTITIES[name]
