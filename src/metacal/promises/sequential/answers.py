r"""Answers: labels that arrive one after the other, for rows that were drawn beforehand.

N rows of a pool are drawn at random, N fixed before the first label. Their scores are known from
the start, so the fixed sequence of an accuracy's tests is too (`promises.rules.sequence`): which
ranks, in which order, at which level. Testing a rank takes the labels of the rows up to it and no
others. Whoever labels from the surest row upward therefore walks along that sequence, and at every
moment

- what is certified is the highest rank that passed among those up to which every row has its label;
- what can still be certified is what would be if every row without a label were right: more errors
  make each p-value larger and each level smaller, so whatever passes in the end passes then.

**Why it holds at any stopping time.** The ranks that have passed by now are some of those that pass
once all N labels are there: labels above a rank do not change its test, nor the tests before it.
With probability 1 - delta none of the latter is bad (`promises.rules.accuracy.certified_prefix`),
so with the same probability none of the former is, whenever somebody stops, the most flattering
moment included. Which rows are labelled first, and why, is of no account for the same reason. When
nothing more can be certified the threshold is that of all N labels.

N must not change after labels are seen: another N is another sequence, and two of them at full
delta break more than delta of the promises. An extension that was declared before the first label
shares delta with it: `SHARES`.

*No such walk for a miscoverage.* Its threshold is the k-th score of the n right rows, and k depends
on n: a step of k takes 1/alpha right rows, so that nearly every label must be there before n is
known that well. A bound on n from some labels costs its own share of delta and comes out no better
than `fit` on as many labels. It and all other promises are certified from all N labels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError, spelled
from metacal.formulas import Float
from metacal.promises.rules import bounds
from metacal.promises.sample import Evidence, Ranking, Sample
from metacal.promises.scouts import Scouts

if TYPE_CHECKING:
    from metacal.promises.certificate import Certificate
    from metacal.promises.promise import Promise

#: Of a row: what is known of its label.
WRONG, RIGHT, UNKNOWN = 0, 1, -1
#: Rows that are drawn unless the user says otherwise: so many errors would be allowed among them
#: all.
_ERRORS_ALLOWED = 40
#: The shares of delta, where one extension to so many times the rows is declared beforehand.
SHARES, EXTENSION = (0.8, 0.2), 4


@dataclass(frozen=True)
class Answers(Evidence):
    """The ranking scores of the rows that were drawn, and what is known of each: RIGHT, WRONG or
    UNKNOWN.

    Examples
    --------
    >>> answers = Answers(np.array([0.3, 0.1, 0.2, 0.2]), np.array([UNKNOWN, RIGHT, WRONG, UNKNOWN], dtype=np.int8))
    >>> answers.labels, answers.known  # of the two rows at 0.2 one has no label yet
    (2, 1)
    """

    scores: Float
    right: NDArray[np.int8]
    scouts: Scouts | None = None  # the rest of the pool, where values of a given score are tested

    @property
    def labels(self) -> int:
        return int(np.count_nonzero(self.right != UNKNOWN))

    @property
    def complete(self) -> bool:
        return self.labels == len(self.scores)

    @cached_property
    def known(self) -> int:
        """So many of the surest rows have a label, with all rows of equal score."""
        unknown = self.scores[self.right == UNKNOWN]
        return (
            int(np.count_nonzero(self.scores < unknown.min())) if len(unknown) else len(self.scores)
        )

    @cached_property
    def at_best(self) -> Ranking:
        """The ranking if all that is not known is right."""
        return Sample(self.scores, self.right != WRONG, scouts=self.scouts).ranking

    @cached_property
    def at_worst(self) -> Ranking:
        """The ranking if all that is not known is wrong."""
        return Sample(self.scores, self.right == RIGHT, scouts=self.scouts).ranking

    def certify(self, promise: Promise) -> Certificate:
        return promise.from_answers(self)


def default_labels(promise: Promise) -> int:
    """How many rows are drawn unless the user says otherwise.

    >>> from metacal.promises.rules.accuracy import MinAccuracy
    >>> default_labels(MinAccuracy(0.97))
    1334
    """
    room = [
        bounds.exact(target) if quantity.accepting_is_safe else 1 - bounds.exact(target)
        for quantity, target in promise.limits
        if not quantity.mean
    ]
    if not room:
        raise InputError(
            f"say how many rows may be labelled for {promise!r}:"
            f" {spelled('labels=N', '--labels N')}."
        )
    return math.ceil(_ERRORS_ALLOWED / min(room))
