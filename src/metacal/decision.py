"""Decision: what a gate says of each row, CascadeDecision: what two say; Recipe: how a map was fitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from metacal import shown

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Recipe:
    """How a map was fitted: the estimator's public name and its parameters, for whoever wants to fit it again."""

    estimator: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Decision:
    """What a gate says of each row.

    Attributes
    ----------
    label : array
        The answer where the row is accepted, the gate's `reject_label` where it is not.
    answer : array
        The class with the largest logit, of every row: what the promise is about. Of a calibrator, which promises
        nothing and rejects nothing, the most probable class.
    confidence : array or None
        The calibrated probability of that answer, of every row: what a reviewer wants to see.
    accept : boolean array
    score : array
        The ranking score, higher = less sure.
    probabilities : array of shape (n, K) or None
        Calibrated; of rejected rows too, or 1/K there, as asked.
    top : array
        The column of the largest logit, of every row: comparing it with the true one says whether the row is right, in
        the sense of scores and promises.

    Examples
    --------
    >>> import metacal as mc
    >>> (logits, labels), (new_logits, _) = mc.datasets.load("cifar10-resnet110").split(5000, random_state=0)
    >>> gate = mc.MetaCal(mc.MinAccuracy(0.97)).fit(logits, labels)
    >>> gate.decide(new_logits)
    Decision(10,000 rows, 8,891 accepted)
    """

    label: NDArray[Any]
    answer: NDArray[Any]
    confidence: NDArray[Any] | None
    accept: Flags
    score: NDArray[np.float64]
    probabilities: NDArray[Any] | None
    top: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.accept)

    def to_frame(self) -> Any:
        """A `pandas.DataFrame`, a row for each row: label, answer, confidence, accept, score; no probabilities."""
        named = {name: getattr(self, name) for name in self._columns}
        return shown.columns({name: column for name, column in named.items() if column is not None})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self):,} rows, {int(self.accept.sum()):,} accepted)"

    _columns: ClassVar[tuple[str, ...]] = ("label", "answer", "confidence", "accept", "score")


@dataclass(frozen=True, eq=False)
class CascadeDecision(Decision):
    """What a cascade says of each row: a `Decision` of the model that answers it.

    `accept` is whether a model answers; where people do, `answer`, `confidence` and `probabilities` are the large
    model's. `score` is the small model's ranking score.

    Attributes
    ----------
    answered_by : array of "small", "large" or "person"
    large_score : array
        The large model's ranking score, NaN where it was not asked.
    """

    answered_by: NDArray[np.str_]
    large_score: NDArray[np.float64]

    __repr__ = Decision.__repr__
    _columns = (*Decision._columns, "answered_by", "large_score")
