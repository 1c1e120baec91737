"""What a certificate says of each class or group (`Part`), or of each model of a cascade
(`StageCount`), and of all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from metacal.certificates.counts import OPTIONAL
from metacal.certificates.quantity import Quantity, quantity
from metacal.certificates.subgroup_words import side_of
from metacal.formulas import Flags

if TYPE_CHECKING:
    from metacal.certificates.certificate import Certificate

#: What a row's part is: the class with its largest logit, or a group that comes with the row.
By = Literal["class", "group"]
#: What delta limits: the chance that any part is broken ("together"), that each is ("each"), or the
#: expected share of broken parts among those that accept rows, the false-coverage rate ("fcr").
Shares = Literal["together", "each", "fcr"]
#: What a class or group is called.
Name = str | int
#: What becomes of the rows of a part.
Status = Literal["certified", "accepts everything", "always rejected"]

_PLURAL = {"class": "classes", "group": "groups"}


def jsonable(value: Any) -> Any:
    """Plain JSON types: an infinite number becomes the string "inf" or "-inf", NaN becomes None.

    >>> jsonable((0.5, -math.inf, math.nan))
    [0.5, '-inf', None]
    """
    if hasattr(value, "to_dict"):
        return jsonable(value.to_dict())
    if is_dataclass(value):
        return jsonable(vars(value))
    if isinstance(value, Mapping):
        return {name: jsonable(one) for name, one in value.items()}
    if isinstance(value, tuple):
        return [jsonable(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


@dataclass(frozen=True)
class Part:
    """A class or group, or several that share a threshold, and what the calibration rows say of it.

    Attributes
    ----------
    names : tuple of str or int
        The class or group; more than one where too few rows were pooled.
    n_rows, n_correct, n_accepted, n_correct_accepted : int
        Its calibration rows, as in a certificate.
    threshold : float
        Its rows are accepted iff score <= threshold; -inf: never.
    highest_accepted, lowest_rejected : float or None
        Its calibration scores on either side of the threshold.
    delta : float or None
        The level at which it was tested; None where there was nothing to test.
    best : float or None
        Where its rows cannot carry the promise: the limit that they could.
    rows_needed : int or None
        Where its rows cannot carry the promise: about how many of them would; None where more would
        not help.
    quantity, target : Quantity, float, or None
        Where each part has a promise of its own (`metacal.certification.two_sides`): what is limited, and the
        limit; None where nothing was asked of it, so that its rows go to review.
    called, at : str, int or None, and float
        Of one side of a group of two classes: the class that its rows are called by, and the
        log-odds above which rows of the group are called by the second.
    about : str, int or None
        For promises about two classes: the class that `quantity` is about. A recall of one class
        limits which rows are called by the other one.

    >>> Part(("cat",), 40, 39, 0, 0, -math.inf, None, 0.1, 0.01, 0.89, 120).status
    'always rejected'
    """

    names: tuple[Name, ...]
    n_rows: int
    n_correct: int
    n_accepted: int
    n_correct_accepted: int
    threshold: float
    highest_accepted: float | None
    lowest_rejected: float | None
    delta: float | None = None
    best: float | None = None
    rows_needed: int | None = None
    quantity: Quantity | None = field(default=None, metadata=OPTIONAL)
    target: float | None = field(default=None, metadata=OPTIONAL)
    called: Name | None = field(default=None, metadata=OPTIONAL)
    at: float = field(default=0.0, metadata=OPTIONAL)
    about: Name | None = field(default=None, metadata=OPTIONAL)

    def __post_init__(self) -> None:
        if self.quantity is not None:
            object.__setattr__(self, "quantity", quantity(self.quantity))

    @property
    def whole(self) -> str:
        """What the class or group is called, both sides of it where there are two."""
        return str(self.names[0]) if len(self.names) == 1 else f"{len(self.names)} pooled"

    @property
    def name(self) -> str:
        """Name of the subgroup, with its side if it has two."""
        return side_of(self.whole, self.called)

    @property
    def label(self) -> Name:
        """The class or group as it is, or what stands for several, or for a side."""
        return self.names[0] if self.called is None and len(self.names) == 1 else self.name

    @property
    def cells(self) -> tuple[tuple[Name, Name | None], ...]:
        """What its rows are known by: the class or group and, where groups have two sides, what
        rows are called.
        """
        return tuple((name, self.called) for name in self.names)

    @property
    def accepts_everything(self) -> bool:
        """Whether every row with a score is accepted."""
        return self.threshold == math.inf

    @property
    def status(self) -> Status:
        """Whether the subgroup is certified, accepts everything or is always rejected."""
        if math.isfinite(self.threshold):
            return "certified"
        return "accepts everything" if self.accepts_everything else "always rejected"

    @property
    def coverage(self) -> float | None:
        """Share of its calibration rows that is accepted; None without rows."""
        return self.n_accepted / self.n_rows if self.n_rows else None

    @property
    def coverage_accuracy(self) -> float | None:
        """Accuracy of its accepted calibration rows; None when none is."""
        return self.n_correct_accepted / self.n_accepted if self.n_accepted else None

    def among(self, names: NDArray[Any]) -> Flags:
        """Which of the rows belong to it, by the class or group of each, or by `Gate.get_row_subgroups`
        where it has sides.
        """
        own = np.array(self.names)
        if self.called is not None:
            return np.isin(names[:, 0], own.astype(str)) & (names[:, 1] == str(self.called))
        alike = (own.dtype.kind == "U") == (names.dtype.kind == "U")  # no name is a number
        return np.isin(names, own) if alike else np.zeros(len(names), dtype=bool)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values, without optional fields at their defaults."""
        silent = {
            each.name
            for each in fields(self)
            if each.metadata and getattr(self, each.name) == each.default
        }
        plain = {name: value for name, value in vars(self).items() if name not in silent}
        plain |= {} if self.quantity is None else {"quantity": self.quantity.name}
        return jsonable({**plain, "status": self.status})


@dataclass(frozen=True)
class Parts:
    """Every part of a certificate, in the order of the classes; what was pooled comes last."""

    by: By
    shares: Shares
    items: tuple[Part, ...]

    @property
    def plural(self) -> str:
        """Plural of the kind of subgroup: "classes" or "groups"."""
        return _PLURAL[self.by]

    @property
    def sides(self) -> bool:
        """Whether they are the two sides of two classes, each with a promise of its own
        (`metacal.certification.two_sides`).
        """
        return any(part.quantity is not None for part in self.items)

    @property
    def of_all(self) -> bool:
        """Whether they are the two sides of all rows, and not of each group."""
        return self.sides and self.by == "class"

    def judged(
        self, names: NDArray[Any], accept: Flags, correct: Flags
    ) -> Iterator[tuple[Part, Flags, Flags, Flags]]:
        """Each part that promises something, the rows that it looks at, and which of these are
        accepted and right.

        Of a side that looks at all rows of a class, these are the rows that are called so, and
        those of the class that they are called by: of two classes a row is of it where it is called
        so and right, or neither.
        """
        for family in self.families:
            rows = [part.among(names) for part in family]
            here = np.logical_or.reduce(rows)
            for part, own in zip(family, rows):
                if part.quantity is not None and part.quantity.of_class:
                    yield part, here, (accept & own)[here], (own == correct)[here]
                elif not self.sides or part.quantity is not None:
                    yield part, own, accept[own], correct[own]

    @property
    def families(self) -> tuple[tuple[Part, ...], ...]:
        """The parts that look at the same rows: the two sides of a group or, without groups, of all
        rows.
        """
        step = 2 if self.sides else 1
        return tuple(self.items[first : first + step] for first in range(0, len(self.items), step))

    @property
    def names(self) -> tuple[Name, ...]:
        """Of every class or group."""
        return tuple(dict.fromkeys(name for part in self.items for name in part.names))

    @property
    def pooled(self) -> tuple[Name, ...]:
        """The classes or groups that share one threshold."""
        return next((part.names for part in self.items if len(part.names) > 1), ())

    @property
    def rejected(self) -> tuple[Part, ...]:
        """Subgroups whose rows are always rejected."""
        return tuple(part for part in self.items if part.status == "always rejected")

    def settled(self, settle: Callable[[float], float]) -> Parts:
        """The same with every threshold settled on the grid of the score."""
        return replace(
            self,
            items=tuple(replace(part, threshold=settle(part.threshold)) for part in self.items),
        )

    def renamed(self, names: Sequence[Name]) -> Parts:
        """The same where a class has been called by the number of its column."""

        def renamed(part: Part) -> Part:
            about = None if part.about is None else names[int(part.about)]
            if self.by == "class":
                return replace(
                    part, names=tuple(names[int(name)] for name in part.names), about=about
                )
            return (
                part
                if part.called is None
                else replace(part, called=names[int(part.called)], about=about)
            )

        return replace(self, items=tuple(map(renamed, self.items)))


# ── the models of a cascade ───────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class StageCount:
    """One model of a cascade: it answers what is left to it iff its score is at most the threshold.

    Attributes
    ----------
    name, score : str
        What the model and its ranking score are called.
    threshold : float
        +inf: it answers all that is left.
    n_rows : int
        How many of the tested rows it answers.
    n_wrong : int or None
        How many of those it answers wrong; None where labels are missing.
    """

    name: str
    score: str
    threshold: float
    n_rows: int
    n_wrong: int | None


@dataclass(frozen=True)
class Stages:
    """The models of a cascade, and how it compares with the last one alone.

    Attributes
    ----------
    items : tuple of StageCount
        In the order in which they are asked.
    people : bool
        Whether what no model accepts is left to people.
    n_worse, n_better : int or None
        Of the tested rows that an earlier model answers: it alone is wrong, the last one alone
        would be. None if only agreement was observed.
    n_differ : int or None
        If only agreement was observed: the tested rows that an earlier model answers otherwise than
        the last one.
    n_aside, n_labels : int
        Rows set aside before to choose thresholds, and how many labels the tests needed.
    pool : int or None
        Where the promise is about a pool of rows and not about their source: how many there are.
    """

    items: tuple[StageCount, ...]
    people: bool
    n_worse: int | None
    n_better: int | None
    n_aside: int
    n_labels: int
    pool: int | None = None
    n_differ: int | None = None

    @property
    def n_answered(self) -> int:
        """Number of rows that some stage answers."""
        return sum(stage.n_rows for stage in self.items)

    @property
    def n_wrong(self) -> int | None:
        """Those of them that are answered wrong; None where labels are missing."""
        wrong = [stage.n_wrong for stage in self.items]
        return None if None in wrong else sum(wrong)  # type: ignore[arg-type]

    def contradiction(self, certificate: Certificate) -> str | None:
        """What cannot be in these counts, alone or beside those of the certificate; None where all
        agrees.
        """
        first, wrong = self.items[0], self.n_wrong
        if (certificate.threshold, certificate.score) != (first.threshold, first.score):
            return "the first model's threshold or score is not the certificate's"
        right = None if wrong is None else self.n_answered - wrong
        own = (
            (certificate.n_correct, certificate.n_correct_accepted)
            if certificate.labelled
            else (None, None)
        )
        if certificate.n_accepted != self.n_answered or own != (right, right):
            return "the models answer other rows than are accepted"
        n_rows, answered = certificate.n_rows, [stage.n_rows for stage in self.items]
        of_agreement = certificate.quantity.of_agreement
        compared = (self.n_differ,) if of_agreement else (self.n_worse, self.n_better)
        unknown = (self.n_worse, self.n_better) if of_agreement else (self.n_differ,)
        if None in compared or unknown != (None,) * len(unknown):
            return "worse and better rows belong to labels, differing ones to agreement"
        n_compared = [count for count in compared if count is not None]
        if min(*n_compared, self.n_aside, self.n_labels, *answered) < 0:
            return "a count is negative"
        if len(self.items) < 2 or self.n_answered > n_rows:
            return "the rows that each answers do not sum to all rows"
        if self.n_answered < n_rows and not self.people:
            return "rows are left to people in a cascade without people"
        if not self.people and self.items[-1].threshold != math.inf:
            return "the last model turns rows away in a cascade without people"
        earlier = self.n_answered - (0 if self.people else self.items[-1].n_rows)
        if sum(n_compared) > earlier or self.n_labels > n_rows:
            return "more rows differ, or have a label, than there are"
        *others, last = [stage.n_wrong or 0 for stage in self.items]
        if wrong is None:
            none_known = all(stage.n_wrong is None for stage in self.items)
            return None if none_known else "the wrong answers are known of some models alone"
        if self.n_worse is None or self.n_better is None:
            return "wrong answers are counted, and only agreement was observed"
        fit = (
            self.n_worse <= sum(others) <= earlier - self.n_better
            and 0 <= last <= self.items[-1].n_rows
        )
        return (
            None
            if fit and min(others) >= 0
            else "more answers are wrong than were given, or fewer than differ"
        )
