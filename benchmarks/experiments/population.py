"""A logits file as a population: draws from it are calibration sets, and the truth about any
threshold is known.

Rows drawn with replacement are independent and identically distributed, as a certificate assumes,
and every rate of the whole file is the true rate. So "the promise was broken" is a fact here, not
an estimate.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from benchmarks.experiments.logits_files import Found, read
from metacal.kernels import predict_classes
from metacal.rows import Rows
from metacal.scores import score_rows


@dataclass(frozen=True, eq=False)
class Population:
    """Scores and correctness of all rows, sorted by score.

    Examples
    --------
    >>> whole = Population.of(np.array([0.3, 0.1, 0.2, 0.4]), np.array([False, True, True, True]))
    >>> whole.accepted(0.25), whole.accuracy(2), whole.miscoverage(2)
    (2, 1.0, 0.33333333333333337)
    >>> whole.most_accurate(0.75), whole.least_miscovering(0.4)
    (4, 2)
    """

    scores: NDArray[np.float64]
    correct: NDArray[np.bool_]
    right: NDArray[np.intp]

    @classmethod
    def of(cls, scores: NDArray[np.float64], correct: NDArray[np.bool_]) -> Population:
        """Sort by score."""
        order = np.argsort(scores, kind="stable")
        return cls(scores[order], correct[order], np.append(0, np.cumsum(correct[order])))

    def __len__(self) -> int:
        return len(self.scores)

    def draw(self, n: int, *seed: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Scores and correctness of `n` rows drawn with replacement."""
        rows = np.random.default_rng(seed).integers(0, len(self), n)
        return self.scores[rows], self.correct[rows]

    def accepted(self, threshold: float) -> int:
        """How many rows have a score of at most the threshold."""
        return int(np.searchsorted(self.scores, threshold, side="right"))

    def accuracy(self, accepted: int) -> float:
        """Share of right rows among the `accepted` most confident; 1 when there are none."""
        return float(self.right[accepted] / accepted) if accepted else 1.0

    def miscoverage(self, accepted: int) -> float:
        """Share of the right rows that are not among the `accepted` most confident."""
        return float(1.0 - self.right[accepted] / self.right[-1])

    def most_accurate(self, beta: float) -> int:
        """The oracle for accuracy: the most rows that a threshold can accept with accuracy at least
        beta; 0 if none.
        """
        at = np.append(0, self._ends())
        keeps = self.right[at] >= beta * at - 1e-9
        return int(at[np.flatnonzero(keeps)[-1]])

    def least_miscovering(self, alpha: float) -> int:
        """The oracle for miscoverage: the fewest rows that a threshold can accept with miscoverage
        at most alpha.
        """
        ends = self._ends()
        keeps = self.right[-1] - self.right[ends] <= alpha * self.right[-1] + 1e-9
        return int(ends[np.flatnonzero(keeps)[0]])

    def _ends(self) -> NDArray[np.intp]:
        """The numbers of rows at which a block of equal scores ends."""
        last = np.append(np.flatnonzero(self.scores[1:] != self.scores[:-1]), len(self) - 1)
        return last + 1


@lru_cache(maxsize=2)
def population(found: Found) -> Population:
    """The rows of a file by the entropy of their softmax."""
    logits, labels = read(found)
    rows = Rows(logits)
    return Population.of(
        score_rows(rows, "entropy"), rows.compute_column(predict_classes) == labels
    )
