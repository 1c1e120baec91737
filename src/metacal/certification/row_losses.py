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
ErrorCosts = float | tuple[tuple[float, ...], ...]
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

    if_accepted: Float
    if_rejected: float
    max_loss: float
    is_all_or_nothing: bool

    @classmethod
    def from_graded(cls, losses: NDArray[Any]) -> Losses:
        """Losses between 0 and 1, which are given; of integers there is none between: the type says
        so, not the rows.

        >>> Losses.from_graded(np.array([0, 1])).is_all_or_nothing, Losses.from_graded(np.array([0.0, 1.0])).is_all_or_nothing
        (True, False)
        """
        return cls(losses.astype(np.float64), 0.0, 1.0, losses.dtype.kind in "iu")

    def counted_by(self, promised: Quantity, accept: Flags) -> Float:
        """The cost of each row that a quantity looks at.

        >>> from metacal.certificates.quantity import COST, COST_PER_ROW
        >>> accept, losses = np.array([True, False]), Losses(np.array([5.0, 7.0]), 1.0, 7.0, False)
        >>> losses.counted_by(COST, accept), losses.counted_by(COST_PER_ROW, accept)
        (array([5.]), array([5., 1.]))
        """
        _, looked_at = promised.mask_function(accept, np.zeros_like(accept))
        return np.where(accept, self.if_accepted, self.if_rejected)[looked_at]

    def select_rows(self, chosen: Flags | Codes) -> Losses:
        """Return the losses of the chosen rows."""
        return Losses(
            self.if_accepted[chosen], self.if_rejected, self.max_loss, self.is_all_or_nothing
        )


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

    error_costs: ErrorCosts
    review_cost: float = 0.0

    @property
    def max_prediction_cost(self) -> float:
        """Largest cost of a prediction."""
        return max_error_cost(self.error_costs)

    @property
    def max_cost(self) -> float:
        """Largest cost of a row."""
        return max(self.max_prediction_cost, self.review_cost)

    @property
    def is_uniform(self) -> bool:
        """Whether every incorrect prediction costs the same, and a correct one nothing."""
        return has_uniform_costs(self.error_costs)

    def losses_from_predictions(self, codes: Codes, predictions: Codes) -> Losses:
        """Compute the cost of each row from its true class and its prediction.

        A true class below 0 is none of the classes.
        """
        return self._losses(compute_prediction_costs(self.error_costs, codes, predictions))

    def losses_from_correctness(self, correct: Flags) -> Losses:
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
        return self._losses(np.where(correct, 0.0, self.max_prediction_cost))

    def _losses(self, answered: Float) -> Losses:
        all_or_nothing = self.is_uniform and self.review_cost in (0.0, self.max_cost)
        return Losses(answered, self.review_cost, self.max_cost, all_or_nothing)


def validate_error_costs(wrong: Any) -> ErrorCosts:
    """The cost of a wrong answer as a float, or the table as tuples; a square one, of numbers from
    0 on.

    >>> validate_error_costs(50), validate_error_costs([[0, 1], [5, 0]])
    (50.0, ((0.0, 1.0), (5.0, 0.0)))
    >>> validate_error_costs([[0, 1], [5]])
    Traceback (most recent call last):
    metacal.errors.InputError: a table of costs has a row for each true class and in it a number for each answer; ...
    """
    if isinstance(wrong, int | float | np.number) and not isinstance(wrong, bool):
        return validate_positive_cost("wrong", wrong)
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


def validate_positive_cost(name: str, value: Any) -> float:
    """A cost as a float, or an error that names it.

    >>> validate_positive_cost("limit", 0)
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


def has_uniform_costs(wrong: ErrorCosts) -> bool:
    """Whether every wrong answer costs the same, and a right one nothing.

    >>> has_uniform_costs(50.0), has_uniform_costs(((0.0, 1.0), (5.0, 0.0))), has_uniform_costs(((0.0, 1.0), (1.0, 0.0)))
    (True, False, True)
    """
    if isinstance(wrong, float):
        return True
    table = np.array(wrong)
    return bool((table == table.max() * (1.0 - np.eye(len(table)))).all())


def max_error_cost(wrong: ErrorCosts) -> float:
    """The most that an answer can cost."""
    return wrong if isinstance(wrong, float) else max(map(max, wrong))


def compute_prediction_costs(wrong: ErrorCosts, codes: Codes, answers: Codes) -> Float:
    """What each answer costs. Where the true class is none of the columns (a code below 0), the
    most it could.

    >>> compute_prediction_costs(((0.0, 1.0), (5.0, 0.0)), np.array([0, 1, -1]), np.array([1, 0, 0]))
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
