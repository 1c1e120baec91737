"""Quantity: what a promise limits. Its name, how it is counted, which direction is good, and how it is said.

A quantity is a share: of the rows that it looks at (`of`), those where it happens (`hit`). Everyone who needs to know
whether "at most" or "at least" is promised, how to count it on labelled rows, which rows count against it or how to
speak of it asks the object. It is a string, its name, so that files and callers may go on reading
`certificate.quantity == "miscoverage"`; no module of metacal does.

A new quantity is one entry in `QUANTITIES`, or a call of `register_quantity` from elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError

Flags = NDArray[np.bool_]
#: From (accept, correct), a flag per row each: where it happens, and which rows it looks at.
Count = Callable[[Flags, Flags], tuple[Flags, Flags]]


class Share(NamedTuple):
    """`hit` of `of` rows."""

    hit: int
    of: int


class Quantity(str):
    """A share of rows that a promise limits, from above ("at most") or from below ("at least").

    Attributes
    ----------
    counted : callable
        counted(accept, correct) -> (hit, of), a flag per row each; every hit is a row that it looks at.
    at_most : bool
        Whether small is good: the promise is then "at most", otherwise "at least".
    accepting_is_safe : bool
        Whether accepting one more row can never break the promise. Where two scores cannot be told apart, the row is
        accepted if so, and rejected otherwise.
    about_answers : bool
        Whether it says how good the answers are that the gate gives, and not only how many.
    sentence : str
        The promise as a sentence without its full stop, with {} for the limit.
    short : str
        The word for it where there is little room, and the name of its curve in a report.
    measured : str
        What follows a measured percentage: "of the {n_accepted:,} accepted rows are right".
    bad_rows : str
        The rows that count against the promise: "wrong answers among the accepted".
    bad_among : str
        The same after "2 of 100": "wrong among the accepted".
    bad_share : str
        What their share is called.

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

    counted: Count
    at_most: bool
    accepting_is_safe: bool
    about_answers: bool
    sentence: str
    short: str
    measured: str
    bad_rows: str
    bad_among: str
    bad_share: str

    def __new__(cls, name: str, **facts: Any) -> Self:
        """The name with all of the facts above."""
        if wrong := set(cls.__annotations__) ^ set(facts):
            raise InputError(f"quantity {name!r}: missing or too many facts: {', '.join(sorted(wrong))}.")
        found = super().__new__(cls, name)
        found.__dict__.update(facts)
        return found

    @property
    def name(self) -> str:
        """What files call it: a plain string."""
        return str(self)

    @property
    def sign(self) -> str:
        """How the limit bounds it."""
        return "<=" if self.at_most else ">="

    @property
    def broken_sign(self) -> str:
        """How a value that breaks the promise stands to the limit."""
        return ">" if self.at_most else "<"

    @property
    def direction(self) -> str:
        """How the limit bounds it, in words."""
        return "at most" if self.at_most else "at least"

    def share(self, accept: Flags, correct: Flags) -> Share:
        """The rows where it happens, of those that it looks at."""
        hit, of = self.counted(accept, correct)
        return Share(int(hit.sum()), int(of.sum()))

    def bad(self, accept: Flags, correct: Flags) -> Share:
        """The rows that count against the promise, of those that it looks at."""
        hit, of = self.share(accept, correct)
        return Share(hit if self.at_most else of - hit, of)

    def events(self, accept: Flags, correct: Flags) -> Flags:
        """For each row that it looks at, in their order, whether it counts against the promise.

        Examples
        --------
        >>> COVERAGE_ACCURACY.events(np.array([True, False, True]), np.array([True, True, False]))
        array([False,  True])
        """
        hit, of = self.counted(accept, correct)
        return hit[of] if self.at_most else ~hit[of]

    def limit_on_bad(self, target: float) -> float:
        """The largest share of bad rows that the promise allows."""
        return target if self.at_most else 1.0 - target

    def kept(self, value: float, target: float) -> bool:
        """Whether a value keeps the promise."""
        return value <= target if self.at_most else value >= target

    def refuted(self, low: float, high: float, target: float) -> bool:
        """Whether an interval lies on the wrong side of the target as a whole."""
        return low > target if self.at_most else high < target

    def claim(self, limit: float, at_least: Callable[[float], str], at_most: Callable[[float], str]) -> str:
        """The promise as a sentence without its full stop; the two functions write a share.

        Examples
        --------
        >>> MISCOVERAGE.claim(0.05, "{:.0%}".format, "{:.1%}".format)
        'At most 5.0% of the correct predictions are rejected'
        """
        return self.sentence.format((at_most if self.at_most else at_least)(limit))

    def __reduce__(self) -> tuple[Any, ...]:
        return quantity, (self.name,)


def _rejected_among_right(accept: Flags, correct: Flags) -> tuple[Flags, Flags]:
    return correct & ~accept, correct


def _right_among_accepted(accept: Flags, correct: Flags) -> tuple[Flags, Flags]:
    return correct & accept, accept


#: P(reject | correct).
MISCOVERAGE = Quantity(
    "miscoverage",
    counted=_rejected_among_right,
    at_most=True,
    accepting_is_safe=True,
    about_answers=False,
    sentence="At most {} of the correct predictions are rejected",
    short="miscoverage",
    measured="of the right answers were turned away",
    bad_rows="right answers turned away",
    bad_among="rejected among the right",
    bad_share="miscoverage",
)
#: P(correct | accept).
COVERAGE_ACCURACY = Quantity(
    "coverage accuracy",
    counted=_right_among_accepted,
    at_most=False,
    accepting_is_safe=False,
    about_answers=True,
    sentence="What is accepted is right at least {} of the time",
    short="accuracy",
    measured="of the {n_accepted:,} accepted rows are right",
    bad_rows="wrong answers among the accepted",
    bad_among="wrong among the accepted",
    bad_share="share of errors",
)
#: Every quantity by its name.
QUANTITIES: dict[str, Quantity] = {q.name: q for q in (MISCOVERAGE, COVERAGE_ACCURACY)}
#: What is promised: each quantity with its limit.
Limits = tuple[tuple[Quantity, float], ...]


def quantity(name: str) -> Quantity:
    """The quantity with this name.

    Examples
    --------
    >>> quantity("coverage accuracy").sign
    '>='
    >>> quantity("cost")
    Traceback (most recent call last):
    metacal.errors.InputError: quantity must be one of 'miscoverage', 'coverage accuracy'; got 'cost'.
    """
    if isinstance(name, str) and name in QUANTITIES:
        return QUANTITIES[name]
    raise InputError(f"quantity must be one of {', '.join(map(repr, QUANTITIES))}; got {name!r}.")


def register_quantity(new: Quantity) -> Quantity:
    """Enter a quantity that lives outside metacal, so that certificates about it can be read from files.

    Examples
    --------
    >>> register_quantity(MISCOVERAGE)
    Traceback (most recent call last):
    metacal.errors.InputError: there is a quantity 'miscoverage' already.
    """
    if new in QUANTITIES:
        raise InputError(f"there is a quantity {new.name!r} already.")
    QUANTITIES[new.name] = new
    return new
