"""What answers cost: a number for every wrong one, or a table of true class and answer; and the
promises about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError
from metacal.formulas import Codes, Flags, Float
from metacal.promises.certificate import Certificate
from metacal.promises.promise import Promise
from metacal.promises.quantity import Quantity
from metacal.promises.rules import betting
from metacal.promises.sample import Ranking, Sample
from metacal.rows.draws import generator

#: The cost of any wrong answer, or a row of costs for each true class with an entry for each
#: answer.
Wrong = float | tuple[tuple[float, ...], ...]
#: Costs are sums of money or of time: beyond this they are a slip of the finger.
_MOST = 1e15


@dataclass(frozen=True, eq=False)
class Losses:
    """What each of some rows costs.

    Attributes
    ----------
    answered : array
        The cost of each row's answer, should it be used.
    rejected : float
        The cost of each row that goes to review.
    largest : float
        The most that any row can cost.
    all_or_nothing : bool
        Whether every cost is 0 or the largest, whatever the rows: a mean cost is then a share of
        rows.
    """

    answered: Float
    rejected: float
    largest: float
    all_or_nothing: bool

    @classmethod
    def graded(cls, losses: NDArray[Any]) -> Losses:
        """Losses between 0 and 1, which are given; of integers there is none between: the type says
        so, not the rows.

        >>> Losses.graded(np.array([0, 1])).all_or_nothing, Losses.graded(np.array([0.0, 1.0])).all_or_nothing
        (True, False)
        """
        return cls(losses.astype(np.float64), 0.0, 1.0, losses.dtype.kind in "iu")

    def of(self, promised: Quantity, accept: Flags) -> Float:
        """The cost of each row that a quantity looks at.

        >>> from metacal.promises.quantity import COST, COST_PER_ROW
        >>> accept, losses = np.array([True, False]), Losses(np.array([5.0, 7.0]), 1.0, 7.0, False)
        >>> losses.of(COST, accept), losses.of(COST_PER_ROW, accept)
        (array([5.]), array([5., 1.]))
        """
        _, looked_at = promised.counted(accept, np.zeros_like(accept))
        return np.where(accept, self.answered, self.rejected)[looked_at]

    def where(self, chosen: Flags | Codes) -> Losses:
        return Losses(self.answered[chosen], self.rejected, self.largest, self.all_or_nothing)


@dataclass(frozen=True, eq=False)
class CostRanking:
    """The calibration rows by rising score, dearest first where scores are equal, and the order of
    the bets on them.

    Attributes
    ----------
    blocks : Ranking
        Where blocks of equal scores end; a row is an error there if it costs anything.
    losses : array
        Costs between 0 and 1, in the order of the ranking.
    turns : array
        The rank from 0 of each row, in the order of the bets: a random one.
    """

    blocks: Ranking
    losses: Float
    turns: Codes

    @classmethod
    def of(cls, scores: Float, losses: Float, seed: int) -> CostRanking:
        """Sort the rows. The seed decides the order of the bets."""
        turns = generator(seed).permutation(len(scores))
        return cls(Ranking.of(scores, losses == 0.0), losses[np.lexsort((-losses, scores))], turns)

    def first(self, rank: int) -> Float:
        """What the `rank` surest rows cost, in the order of the bets."""
        return self.losses[self.turns[self.turns < rank]]

    def passes(self, rank: int, limit: float, level: float) -> bool:
        """Whether bets show that the rows up to a rank cost less than the limit on average; they
        must do so here.
        """
        mine = self.first(rank)
        return bool(mine.mean() <= limit) and betting.is_below(mine, limit, level, rare=True)

    def accepted_at(self, rank: int, limit: float) -> int:
        """How many rows a rank that passed lets accept: the rank, or where its block of ties begins
        or ends.

        The whole block where the next row in it costs at most the limit, as then do all after it;
        else none of it.
        """
        block = self.blocks.at_least(rank)
        end, begin = (
            int(self.blocks.ranks[block]),
            int(self.blocks.ranks[block - 1]) if block else 0,
        )
        return end if rank == end or self.losses[rank] <= limit else begin


class Costed(Promise):
    """A promise about what answers cost: a dataclass with `wrong`. A `Sample` for it may say what
    each row costs.
    """

    wrong: Wrong
    random_state: int | None

    @property
    def rejected(self) -> float:
        """What a row costs that goes to review."""
        return 0.0

    @property
    def largest(self) -> float:
        """The most that a row can cost."""
        return max(largest_cost(self.wrong), self.rejected)

    def losses(self, codes: Codes, answers: Codes) -> Losses:
        """The costs of these rows: true classes and answers as column numbers; a class below 0 is
        none of them.
        """
        return self._losses(costs(self.wrong, codes, answers))

    def losses_of(self, correct: Flags) -> Losses:
        """The costs of rows that are only known to be right or wrong; a table needs to know
        more.
        """
        if not is_uniform(self.wrong):
            raise InputError(
                "with a table of costs, scores and right or wrong do not say what each row costs:"
                " fit MetaCal(promise) on logits and labels, or certify a Sample with"
                " losses=promise.losses(...)."
            )
        return self._losses(np.where(correct, 0.0, largest_cost(self.wrong)))

    def is_counted(self, certificate: Certificate) -> bool:
        """Whether the mean loss is that of so many wrong rows."""
        return False

    def _losses(self, answered: Float) -> Losses:
        all_or_nothing = is_uniform(self.wrong) and self.rejected in (0.0, self.largest)
        return Losses(answered, self.rejected, self.largest, all_or_nothing)

    def check_classes(self, n_classes: int) -> None:
        if not isinstance(self.wrong, float) and len(self.wrong) != n_classes:
            raise InputError(
                f"the table of costs is for {len(self.wrong)} classes, and the logits have"
                f" {n_classes} columns; it needs a row and a column for each."
            )

    def losses_in(self, sample: Sample) -> Losses:
        """The costs that a sample has, or those of its right and wrong rows."""
        return self.losses_of(sample.right) if sample.losses is None else sample.losses

    def __repr__(self) -> str:
        shown = {name: value for name, value in self.get_params().items() if name != "wrong"}
        table: Any = self.wrong
        if not isinstance(table, float) and len(table) > 4:
            table = f"<{len(table)} x {len(table)} costs of up to {self.largest:g}>"
        listed = ", ".join(f"{name}={value!r}" for name, value in shown.items())
        return f"{type(self).__name__}(wrong={table}, {listed})"


def checked_costs(wrong: Any) -> Wrong:
    """The cost of a wrong answer as a float, or the table as tuples; a square one, of numbers from
    0 on.

    >>> checked_costs(50), checked_costs([[0, 1], [5, 0]])
    (50.0, ((0.0, 1.0), (5.0, 0.0)))
    >>> checked_costs([[0, 1], [5]])
    Traceback (most recent call last):
    metacal.errors.InputError: a table of costs has a row for each true class and in it a number for each answer; ...
    """
    if isinstance(wrong, int | float | np.number) and not isinstance(wrong, bool):
        return positive("wrong", wrong)
    try:
        table = np.array(wrong, dtype=np.float64)
    except (TypeError, ValueError):
        table = np.zeros(0)
    if table.ndim != 2 or table.shape[0] != table.shape[1] or len(table) < 2:
        raise InputError(
            "a table of costs has a row for each true class and in it a number for each answer;"
            f" got {_shape(wrong)}. Give K rows of K numbers, wrong[truth][answer], or one number"
            " for any wrong answer."
        )
    if not ((table >= 0.0) & (table <= _MOST)).all() or not table.any():
        raise InputError(
            f"costs must be numbers from 0 to {_MOST:g}, not all of them 0; add a constant where an"
            " answer earns money."
        )
    checked = tuple(map(tuple, table.tolist()))
    # The very object where it is checked already: scikit-learn clones promises, and compares by
    # identity.
    same = (
        isinstance(wrong, tuple)
        and wrong == checked
        and all(type(cost) is float for row in wrong for cost in row)
    )
    return wrong if same else checked


def positive(name: str, value: Any) -> float:
    """A cost as a float, or an error that names it.

    >>> positive("limit", 0)
    Traceback (most recent call last):
    metacal.errors.InputError: limit must be a positive number, got 0.
    """
    good = (
        isinstance(value, int | float | np.number)
        and not isinstance(value, bool)
        and 0.0 < value <= _MOST
    )
    if not good:
        raise InputError(f"{name} must be a positive number, got {value!r}.")
    return value if type(value) is float else float(value)


def is_uniform(wrong: Wrong) -> bool:
    """Whether every wrong answer costs the same, and a right one nothing.

    >>> is_uniform(50.0), is_uniform(((0.0, 1.0), (5.0, 0.0))), is_uniform(((0.0, 1.0), (1.0, 0.0)))
    (True, False, True)
    """
    if isinstance(wrong, float):
        return True
    table = np.array(wrong)
    return bool((table == table.max() * (1.0 - np.eye(len(table)))).all())


def largest_cost(wrong: Wrong) -> float:
    """The most that an answer can cost."""
    return wrong if isinstance(wrong, float) else max(map(max, wrong))


def costs(wrong: Wrong, codes: Codes, answers: Codes) -> Float:
    """What each answer costs. Where the true class is none of the columns (a code below 0), the
    most it could.

    >>> costs(((0.0, 1.0), (5.0, 0.0)), np.array([0, 1, -1]), np.array([1, 0, 0]))
    array([1., 5., 5.])
    """
    if isinstance(wrong, float):
        return np.where(codes == answers, 0.0, wrong)
    table = np.array(wrong)
    return np.asarray(np.where(codes < 0, table.max(axis=0)[answers], table[codes, answers]))


def _shape(wrong: Any) -> str:
    shape = getattr(wrong, "shape", None)
    if shape is not None:
        return f"an array of shape {shape}"
    return f"{len(wrong)} rows" if isinstance(wrong, list | tuple) else repr(wrong)[:60]
