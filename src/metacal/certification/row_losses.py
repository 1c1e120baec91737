"""What answers cost: a number for every wrong one, or a table of true class and answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.certificates.quantity import Quantity
from metacal.errors import InputError
from metacal.formulas import Codes, Flags, Float

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

        >>> from metacal.certificates.quantity import COST, COST_PER_ROW
        >>> accept, losses = np.array([True, False]), Losses(np.array([5.0, 7.0]), 1.0, 7.0, False)
        >>> losses.of(COST, accept), losses.of(COST_PER_ROW, accept)
        (array([5.]), array([5., 1.]))
        """
        _, looked_at = promised.mask_function(accept, np.zeros_like(accept))
        return np.where(accept, self.answered, self.rejected)[looked_at]

    def where(self, chosen: Flags | Codes) -> Losses:
        """Return the losses of the chosen rows."""
        return Losses(self.answered[chosen], self.rejected, self.largest, self.all_or_nothing)


@dataclass(frozen=True)
class Costs:
    """Costs of predictions and of reviews.

    Attributes
    ----------
    wrong : float or tuple of tuples of float
        Cost of any incorrect prediction, or a table of costs, `wrong[true class][prediction]`.

    rejected : float
        Cost of a rejected row.
    """

    wrong: Wrong
    rejected: float = 0.0

    @property
    def largest_of_answers(self) -> float:
        """Largest cost of a prediction."""
        return largest_cost(self.wrong)

    @property
    def largest(self) -> float:
        """Largest cost of a row."""
        return max(self.largest_of_answers, self.rejected)

    @property
    def is_uniform(self) -> bool:
        """Whether every incorrect prediction costs the same, and a correct one nothing."""
        return is_uniform(self.wrong)

    def losses_of_predictions(self, codes: Codes, predictions: Codes) -> Losses:
        """Compute the cost of each row from its true class and its prediction.

        A true class below 0 is none of the classes.
        """
        return self._losses(costs(self.wrong, codes, predictions))

    def losses_of_correct(self, correct: Flags) -> Losses:
        """Compute the cost of each row from whether its prediction is correct.

        Raises
        ------
        InputError
            If there is a table of costs.
        """
        if not self.is_uniform:
            raise InputError(
                "with a table of costs, scores and right or wrong do not say what each row costs:"
                " fit MetaCal(promise) on logits and labels, or certify a Sample with"
                " losses=promise.losses(...)."
            )
        return self._losses(np.where(correct, 0.0, self.largest_of_answers))

    def _losses(self, answered: Float) -> Losses:
        all_or_nothing = self.is_uniform and self.rejected in (0.0, self.largest)
        return Losses(answered, self.rejected, self.largest, all_or_nothing)


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
