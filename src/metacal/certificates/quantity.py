"""Quantity: what a promise limits. Its name, how it is counted, which direction is good, and how it
is said.

A quantity is a share: of the rows that it looks at (`of`), those where it happens (`hit`); or the
mean of a cost over the rows that it looks at. Everyone who needs to know whether "at most" or "at
least" is promised, how to count it on labelled rows, which rows count against it or how to speak of
it asks the object. It is a string, its name, so that files and callers may go on reading
`certificate.quantity == "miscoverage"`; no module of metacal does.

A new quantity is one entry in `QUANTITIES`, or a call of `register_quantity` from elsewhere.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import numpy as np

from metacal.errors import InputError
from metacal.formulas import Flags


class Share(NamedTuple):
    """`hit` of `of` rows."""

    hit: int
    of: int


class Quantity(str):
    """A share of rows that a promise limits, from above ("at most") or from below ("at least").

    Attributes
    ----------
    counted : callable
        counted(accept, correct) -> (hit, of), a flag per row each; every hit is a row that it looks
        at.
    at_most : bool, default True
        Whether small is good: the promise is then "at most", otherwise "at least".
    accepting_is_safe : bool, default False
        Whether accepting one more row can never break the promise. Where two scores cannot be told
        apart, the row is accepted if so, and rejected otherwise. Where it can, the promise says how
        good the answers are that the gate gives, and not only how many.
    sentence : str
        The promise as a sentence without its full stop, with {} for the limit.
    short : str
        The word for it where there is little room, and the name of its curve in a report; its name
        by default.
    measured : str
        What follows a measured percentage: "of the {n:,} accepted rows are right", with the number
        of rows that it looks at.
    In these sentences "{name}" stands for the class that the quantity is about.
    bad_rows : str
        The rows that count against the promise: "wrong answers among the accepted".
    bad_among : str
        The same after "2 of 100": "wrong among the accepted".
    bad_share : str
        What their share is called; its name by default.
    needs_labels : bool, default True
        Whether it can be counted only where the true labels are known.
    mean : bool, default False
        Whether it is the mean of a cost, in the user's unit, over the rows that it looks at, and no
        share of them. What each row costs then comes in a column of its own
        (`metacal.certification.row_losses.Losses`).
    of_class : bool, default False
        Of two classes: whether it looks at all rows of a class, whatever they are called, and no
        row's own part alone.
    graded : bool, default False
        Whether a row may be partly right: what is called right has no loss at all.
    paired : bool, default False
        Whether it is the difference of two error rates on the same rows. Each row is then worse, 1,
        better, -1, or neither, in such a column.
    of_agreement : bool, default False
        Whether it is counted from whether each answer of a cascade is the last model's. `correct`
        then has that, and nothing is known of right and wrong.

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

    counted: Callable[[Flags, Flags], tuple[Flags, Flags]]
    sentence: str
    short: str
    measured: str
    bad_rows: str
    bad_among: str
    bad_share: str
    at_most: bool = True
    accepting_is_safe: bool = False
    needs_labels: bool = True
    mean: bool = False
    graded: bool = False
    paired: bool = False
    of_agreement: bool = False
    of_class: bool = False

    def __new__(cls, name: str, **facts: Any) -> Self:
        """The name with all of the facts above."""
        facts = {"short": name, "bad_share": name, **facts}
        missing = {fact for fact in cls.__annotations__ if not hasattr(cls, fact)} - set(facts)
        if wrong := missing | (set(facts) - set(cls.__annotations__)):
            raise InputError(
                f"quantity {name!r}: missing or too many facts: {', '.join(sorted(wrong))}."
            )
        self = super().__new__(cls, name)
        self.__dict__.update(facts)
        return self

    @property
    def name(self) -> str:
        """What files call it: a plain string."""
        return str(self)

    def about(self, class_name: Any) -> str:
        """Return the quantity with the class that it is about, if there is one.

        >>> RECALL.about("fraud"), RECALL.about(None)
        ('recall of fraud', 'recall')
        """
        return self.name if class_name is None else f"{self.name} of {class_name}"

    @property
    def sign(self) -> str:
        """How the limit bounds it."""
        return "<=" if self.at_most else ">="

    @property
    def direction(self) -> str:
        """How the limit bounds it, in words."""
        return "at most" if self.at_most else "at least"

    def flags(self, accept: Flags, correct: Flags | None) -> tuple[Flags, Flags]:
        """`counted`, where `correct` may be None if it needs no labels.

        >>> REVIEW.flags(np.array([True, False]), None)[0]
        array([False,  True])
        >>> MISCOVERAGE.flags(np.array([True, False]), None)
        Traceback (most recent call last):
        metacal.errors.InputError: whether miscoverage is kept shows on labelled rows only; give the true labels.
        """
        if correct is None:
            if self.needs_labels:
                raise InputError(
                    f"whether {self} is kept shows on labelled rows only; give the true labels."
                )
            correct = np.zeros_like(accept)
        return self.counted(accept, correct)

    def share(self, accept: Flags, correct: Flags | None) -> Share:
        """The rows where it happens, of those that it looks at."""
        hit, of = self.flags(accept, correct)
        return Share(int(hit.sum()), int(of.sum()))

    def bad(self, accept: Flags, correct: Flags | None) -> Share:
        """The rows that count against the promise, of those that it looks at."""
        hit, of = self.share(accept, correct)
        return Share(hit if self.at_most else of - hit, of)

    def events(self, accept: Flags, correct: Flags | None) -> Flags:
        """For each row that it looks at, in their order, whether it counts against the promise."""
        hit, of = self.flags(accept, correct)
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

    def claim(
        self,
        limit: float,
        at_least: Callable[[float], str],
        at_most: Callable[[float], str],
        name: Any = "positive",
    ) -> str:
        """The promise as a sentence without its full stop; the two functions write a share, `name`
        is of a class.
        """
        return self.sentence.format(self.written(limit, at_least, at_most), name=name)

    def written(
        self, limit: float, at_least: Callable[[float], str], at_most: Callable[[float], str]
    ) -> str:
        """The limit as people write it: a share by one of the two functions, a cost as a number,
        rounded outward.
        """
        if self.mean:
            return amount(limit)
        return (at_most if self.at_most else at_least)(limit)

    def __reduce__(self) -> tuple[Any, ...]:
        return quantity, (self.name,)


def amount(value: float) -> str:
    """A cost that is promised from above, as people write it: six digits, rounded up.

    >>> amount(2.0), amount(0.12345612), amount(12345678.0)
    ('2', '0.123457', '12345700')
    """
    number = decimal.Context(prec=6, rounding=decimal.ROUND_CEILING).create_decimal(
        repr(float(value))
    )
    return f"{number.normalize():f}"


#: P(reject | correct).
MISCOVERAGE = Quantity(
    "miscoverage",
    counted=lambda accept, correct: (correct & ~accept, correct),
    accepting_is_safe=True,
    sentence="At most {} of the correct predictions are rejected",
    measured="of the right answers were rejected",
    bad_rows="right answers rejected",
    bad_among="rejected among the right",
)
#: P(correct | accept).
COVERAGE_ACCURACY = Quantity(
    "coverage accuracy",
    counted=lambda accept, correct: (correct & accept, accept),
    at_most=False,
    sentence="What is accepted is right at least {} of the time",
    short="accuracy",
    measured="of the {n:,} accepted rows are right",
    bad_rows="wrong answers among the accepted",
    bad_among="wrong among the accepted",
    bad_share="share of errors",
)
#: P(reject).
REVIEW = Quantity(
    "review rate",
    counted=lambda accept, correct: (~accept, np.ones_like(accept)),
    accepting_is_safe=True,
    sentence="At most {} of all rows go to review",
    short="review",
    measured="of all rows went to review",
    bad_rows="rows sent to review",
    bad_among="sent to review",
    needs_labels=False,
)
#: E[cost of the answer | accept].
COST = Quantity(
    "cost",
    counted=lambda accept, correct: (accept & ~correct, accept),
    sentence="What is accepted costs at most {} a row on average",
    measured="is what the {n:,} accepted rows cost on average",
    bad_rows="costly answers among the accepted",
    bad_among="costly among the accepted",
    bad_share="mean cost",
    mean=True,
)
#: E[loss of the answer | accept].
RISK = Quantity(
    "risk",
    counted=lambda accept, correct: (accept & ~correct, accept),
    sentence="What is accepted has a mean loss of at most {}",
    measured="is the mean loss of the {n:,} accepted rows",
    bad_rows="answers with a loss among the accepted",
    bad_among="with a loss among the accepted",
    bad_share="mean loss",
    mean=True,
    graded=True,
)
#: E[cost of the answer if accepted, cost of a review if not].
COST_PER_ROW = Quantity(
    "cost per row",
    counted=lambda accept, correct: (~(accept & correct), np.ones_like(accept)),
    sentence="Wrong answers and reviews together cost at most {} a row on average",
    measured="is what a row costs on average, wrong answers and reviews together",
    bad_rows="rows that are answered wrong or sent to review",
    bad_among="answered wrong or sent to review",
    bad_share="mean cost per row",
    mean=True,
)
#: P(cascade wrong) - P(last model wrong).
LOSS = Quantity(
    "loss",
    counted=lambda accept, correct: (~correct, np.ones_like(accept)),
    sentence="Of all answers at most {} more are wrong than if the large model answered alone",
    measured="more of all answers are wrong than if the large model answered alone",
    bad_rows="answered worse than by the large model alone",
    bad_among="answered worse than by the large model alone",
    paired=True,
)
#: P(the cascade answers otherwise than its last model). It is at least the loss, and needs no true
#: label.
DISAGREEMENT = Quantity(
    "disagreement",
    counted=lambda accept, correct: (~correct, np.ones_like(accept)),
    sentence=(
        "At most {0} of all answers differ from the large model's, so at most {0} more are wrong"
    ),
    measured="of all answers differ from the large model's",
    bad_rows="answers that differ from the large model's",
    bad_among="differ from the large model's",
    of_agreement=True,
)
#: What promises about rows that are wrongly called by one of two classes have in common.
_FALSE_ALARMS = {
    "bad_rows": "rows that are called {name} and are not",
    "bad_among": "called {name} and are not",
}
#: P(of the class | called by it).
PRECISION = Quantity(
    "precision",
    counted=lambda accept, correct: (correct & accept, accept),
    at_most=False,
    sentence="At least {} of what is called {name} is {name}",
    measured="of the {n:,} rows called {name} are {name}",
    bad_share="share of false alarms",
    **_FALSE_ALARMS,
)
#: P(not called by the other class | of the class): `accept` says which rows are called by the
#: other, `correct` whether they are of it.
RECALL = Quantity(
    "recall",
    counted=lambda accept, correct: (~correct & ~accept, ~correct),
    at_most=False,
    sentence="At least {} of all {name} is caught or sent to review",
    measured="of all {name} was caught or sent to review",
    bad_rows="rows of {name} that are missed",
    bad_among="missed",
    bad_share="share of missed rows",
    of_class=True,
)
#: P(called by the class | not of it).
FALSE_POSITIVE_RATE = Quantity(
    "false-positive rate",
    counted=lambda accept, correct: (~correct & accept, ~correct),
    sentence="At most {} of what is not {name} is called {name}",
    measured="of what is not {name} was called {name}",
    of_class=True,
    **_FALSE_ALARMS,
)
#: Every quantity by its name.
QUANTITIES: dict[str, Quantity] = {
    q.name: q
    for q in (
        MISCOVERAGE,
        COVERAGE_ACCURACY,
        REVIEW,
        COST,
        RISK,
        COST_PER_ROW,
        LOSS,
        DISAGREEMENT,
        PRECISION,
        RECALL,
        FALSE_POSITIVE_RATE,
    )
}
#: What is promised: each quantity with its limit.
Limits = tuple[tuple[Quantity, float], ...]


def quantity(name: str) -> Quantity:
    """The quantity with this name.

    >>> quantity("coverage accuracy").sign
    '>='
    >>> quantity("profit")
    Traceback (most recent call last):
    metacal.errors.InputError: quantity must be one of 'miscoverage', 'coverage accuracy', ...; got 'profit'.
    """
    if isinstance(name, str) and name in QUANTITIES:
        return QUANTITIES[name]
    raise InputError(f"quantity must be one of {', '.join(map(repr, QUANTITIES))}; got {name!r}.")


def register_quantity(new: Quantity) -> Quantity:
    """Enter a quantity that lives outside metacal, so that certificates about it can be read from
    files.

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
