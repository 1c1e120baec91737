"""Decision: what a gate says of each row."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metacal import display
from metacal.formulas import Codes, Flags, Float

if TYPE_CHECKING:
    from metacal.gate.thresholds import Thresholds


#: What probabilities a rejected row gets: the calibrated ones, or 1/K in every class, the paper's
#: map.
Rejected = Literal["calibrated", "uniform"]


class Asked(NamedTuple):
    """What a decision takes: what scores are compared with, by the numbers of rows' `groups`, and
    what is wanted of it.

    A `calibrator` promises nothing: its answer is the most probable class.
    """

    policy: Thresholds
    groups: Codes | None = None
    rejected: Rejected = "calibrated"
    probabilities: bool = True
    calibrator: bool = False


@dataclass(frozen=True, eq=False)
class Decision:
    """What a gate says of each row.

    Attributes
    ----------
    accept : boolean array
        Whether a model answers; of a cascade, any of them.
    score : array
        The score of the first stage as people know it: a ranking score of logits (higher = less
        sure), or one that was given, NaN where there is none.
    doubt : array
        The same as promises see it, higher = less sure.
    top : array
        The code of the answer: the column of the largest logit. A row is right, in the sense of
        scores and promises, where it is the code of the truth; of a score that was given the answer
        is "right", 1.
    confidence : array or None
        The calibrated probability of the answer, of every row: what a reviewer wants to see.
    answer : array or None
        The class with the largest logit, of every row: what the promise is about. Of a calibrator,
        which promises nothing and rejects nothing, the most probable class. None where there are no
        classes.
    label : array or None
        The answer where the row is accepted, the gate's `reject_label` where it is not.
    probabilities : array of shape (n, K) or None
        Calibrated; of rejected rows too, or 1/K there, as asked.
    by : array or None
        Of a cascade: the number of the stage that answers, the first that accepts; people come
        last.
    later : array of shape (n, stages - 1) or None
        Of a cascade: the doubt at each later stage, NaN where it was not asked.
    stages : tuple of str
        What the stages are called.
    last : str
        Who answers what no stage does.

    Examples
    --------
    >>> import metacal as mc
    >>> (logits, labels), (new_logits, _) = mc.datasets.load("cifar10-resnet110").split(5000, random_state=0)
    >>> gate = mc.MetaCal(mc.MinAccuracy(0.97)).fit(logits, labels)
    >>> gate.decide(new_logits)
    Decision(10,000 rows, 8,891 accepted)
    """

    accept: Flags
    score: NDArray[np.floating[Any]]
    doubt: Float
    top: Codes
    confidence: NDArray[Any] | None = None
    answer: NDArray[Any] | None = None
    label: NDArray[Any] | None = None
    probabilities: NDArray[Any] | None = None
    by: Codes | None = None
    later: Float | None = None
    stages: tuple[str, ...] = ()
    last: str = "person"

    def __len__(self) -> int:
        return len(self.accept)

    def __repr__(self) -> str:
        return f"Decision({len(self):,} rows, {int(self.accept.sum()):,} accepted)"

    @property
    def answered_by(self) -> NDArray[np.str_] | None:
        """Of a cascade: who answers each row, by name."""
        return None if self.by is None else np.array([*self.stages, self.last])[self.by]

    @property
    def columns(self) -> dict[str, Any]:
        """What is worth a column, by name: label, answer, confidence, answered_by, accept, score
        and later scores.
        """
        first, then = ("label", "answer", "confidence", "answered_by"), ("accept", "score")
        order = (*first, *then) if self.answer is not None else (*then, "confidence", "answered_by")
        named = {name: getattr(self, name) for name in order}
        if self.later is not None:
            named |= {
                f"{name}_score": doubt
                for name, doubt in zip(self.stages[1:], self.later.T, strict=True)
            }
        return {name: column for name, column in named.items() if column is not None}

    def to_frame(self) -> Any:
        """A `pandas.DataFrame` of the columns, a row for each row; no probabilities."""
        return display.make_column_frame(self.columns)

    def none(self) -> Decision:
        """No row, in the types of these."""
        parts: dict[str, Any] = {
            name: part[:0] for name, part in vars(self).items() if isinstance(part, np.ndarray)
        }
        return replace(self, **parts)


def joined(
    first: Decision, answers: list[tuple[Codes, Decision]], stages: tuple[str, ...]
) -> Decision:
    """What a cascade says: the first stage's decision, and each later one's in the rows that it was
    asked about.
    """
    n = len(first)
    columns = {
        one: getattr(first, one)
        for one in ("accept", "top", "confidence", "answer", "label", "probabilities")
    }
    by, later = np.where(first.accept, 0, len(stages)), np.full((n, len(stages) - 1), np.nan)
    for number, (rows, decision) in enumerate(answers, start=1):
        for name, column in columns.items():
            other = getattr(decision, name)
            if column is not None and other is not None:
                columns[name] = column = column.astype(np.result_type(column.dtype, other.dtype))
                column[rows] = other
        by[rows[decision.accept]] = number
        later[rows, number - 1] = decision.doubt
    return replace(first, **columns, by=by, later=later, stages=stages)
