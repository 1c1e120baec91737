"""StageCount and Stages: what the certificate of a cascade says of each of its models, and of all together."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from metacal.promises.parts.part import jsonable

if TYPE_CHECKING:
    from metacal.promises.certificate import Certificate


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

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; an infinite threshold becomes the string "inf" or "-inf"."""
        return jsonable(vars(self))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Stages:
    """The models of a cascade, and how it compares with the last one alone.

    Attributes
    ----------
    items : tuple of StageCount
        In the order in which they are asked.
    people : bool
        Whether what no model accepts is left to people.
    n_worse, n_better : int
        Of the tested rows that an earlier model answers: it alone is wrong, the last one alone would be.
    n_aside, n_labels : int
        Rows set aside before to choose thresholds, and how many labels the tests needed.
    """

    items: tuple[StageCount, ...]
    people: bool
    n_worse: int
    n_better: int
    n_aside: int
    n_labels: int

    @property
    def n_answered(self) -> int:
        """Tested rows that a model answers."""
        return sum(stage.n_rows for stage in self.items)

    @property
    def n_wrong(self) -> int | None:
        """Those of them that are answered wrong; None where labels are missing."""
        wrong = [stage.n_wrong for stage in self.items]
        return None if None in wrong else sum(wrong)  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return jsonable(vars(self))  # type: ignore[no-any-return]

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Stages:
        """The inverse of `to_dict`."""
        items = tuple(StageCount(**{**item, "threshold": float(item["threshold"])}) for item in data["items"])
        return cls(**{field.name: data[field.name] for field in fields(cls)} | {"items": items})

    def contradiction(self, certificate: Certificate) -> str | None:
        """What cannot be in these counts, alone or beside those of the certificate; None where all agrees."""
        first, wrong = self.items[0], self.n_wrong
        if (certificate.threshold, certificate.score) != (first.threshold, first.score):
            return "the first model's threshold or score is not the certificate's"
        right = None if wrong is None else self.n_answered - wrong
        own = (certificate.n_correct, certificate.n_correct_accepted) if certificate.labelled else (None, None)
        if certificate.n_accepted != self.n_answered or own != (right, right):
            return "the models answer other rows than are accepted"
        return self._impossible(certificate.n_rows)

    def _impossible(self, n_rows: int) -> str | None:
        """What in the counts cannot be, of so many tested rows; None when all agrees."""
        counts = [self.n_worse, self.n_better, self.n_aside, self.n_labels, *(stage.n_rows for stage in self.items)]
        if min(counts) < 0:
            return "a count is negative"
        if len(self.items) < 2 or self.n_answered > n_rows:
            return "the rows that each answers do not sum to all rows"
        if self.n_answered < n_rows and not self.people:
            return "rows are left to people in a cascade without people"
        if not self.people and self.items[-1].threshold != math.inf:
            return "the last model turns rows away in a cascade without people"
        earlier = sum(stage.n_rows for stage in self.items[:-1])
        if self.n_worse + self.n_better > earlier or self.n_labels > n_rows:
            return "more rows differ, or have a label, than there are"
        wrong = [stage.n_wrong for stage in self.items]
        if None in wrong:
            return None if set(wrong) == {None} else "the wrong answers are known of some models alone"
        *first, last = [int(count or 0) for count in wrong]
        fit = self.n_worse <= sum(first) <= earlier - self.n_better and 0 <= last <= self.items[-1].n_rows
        return None if fit and min(first) >= 0 else "more answers are wrong than were given, or fewer than differ"
