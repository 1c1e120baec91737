"""Losses of rows: the cost of each accepted prediction and of each review.

Costs are declared as one number for every incorrect prediction, or as a table with a row for each true
class and a column for each prediction.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.certificates.quantity import Quantity
from metacal.errors import InputError, MissingLabelsError, ShapeError
from metacal.formulas import Codes, Flags, Float

# Type of a cost for all incorrect predictions, or of a table, `costs[true class][prediction]`.
ErrorCosts = float | tuple[tuple[float, ...], ...]

# Largest allowed cost, because a larger number is probably a mistake.
_MAX_COST = 1e15

# Largest number of characters of an invalid value that an error message shows.
_MAX_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, eq=False)
class Losses:
    """Losses of rows if they are accepted or rejected.

    Attributes
    ----------
    if_accepted : array of float of shape (n_rows,)
        Loss of each row if its prediction is accepted.

    if_rejected : float
        Loss of a rejected row.

    max_loss : float
        Largest possible loss of a row.

    is_all_or_nothing : bool
        Whether every possible loss is 0 or `max_loss`, so that a mean loss is a share of rows.
    """

    if_accepted: Float
    if_rejected: float
    max_loss: float
    is_all_or_nothing: bool

    @classmethod
    def from_graded(cls, losses: NDArray[Any]) -> Losses:
        """Build the losses of rows whose loss is a number between 0 and 1.

        Integers can only be 0 or 1. For floats, other losses are possible, even if all of them
        happen to be 0 or 1.

        Examples
        --------
        >>> Losses.from_graded(np.array([0, 1])).is_all_or_nothing
        True
        >>> Losses.from_graded(np.array([0.0, 1.0])).is_all_or_nothing
        False
        """
        return cls(
            if_accepted=losses.astype(np.float64),
            if_rejected=0.0,
            max_loss=1.0,
            is_all_or_nothing=losses.dtype.kind in "iu",
        )

    def get_counted_losses(self, quantity: Quantity, is_accepted: Flags) -> Float:
        """Return the losses of the rows that a quantity counts.

        Examples
        --------
        >>> from metacal.certificates.quantities import COST, COST_PER_ROW
        >>> losses = Losses(np.array([5.0, 7.0]), 1.0, 7.0, False)
        >>> is_accepted = np.array([True, False])
        >>> losses.get_counted_losses(COST, is_accepted), losses.get_counted_losses(COST_PER_ROW, is_accepted)
        (array([5.]), array([5., 1.]))
        """
        # The mask function of a quantity requires an array of correctness, but a mean loss ignores it.
        unused_correctness = np.zeros_like(is_accepted)
        _, is_counted = quantity.mask_function(is_accepted, unused_correctness)
        row_losses = np.where(is_accepted, self.if_accepted, self.if_rejected)
        return row_losses[is_counted]

    def select_rows(self, index: Flags | Codes) -> Losses:
        """Return the losses of the rows that a mask or an index selects."""
        return replace(self, if_accepted=self.if_accepted[index])


@dataclass(frozen=True)
class Costs:
    """Costs of predictions and of reviews.

    Attributes
    ----------
    error_costs : float or tuple of tuples of float
        Cost of any incorrect prediction, or a table, `error_costs[true class][prediction]`.

    review_cost : float
        Cost of a rejected row.
    """

    error_costs: ErrorCosts
    review_cost: float = 0.0

    @property
    def max_prediction_cost(self) -> float:
        """Largest cost of a prediction."""
        return max_error_cost(self.error_costs)

    @property
    def max_row_cost(self) -> float:
        """Largest cost of a row."""
        return max(self.max_prediction_cost, self.review_cost)

    @property
    def has_equal_error_costs(self) -> bool:
        """Whether all errors cost the same, and correct predictions cost nothing."""
        return has_uniform_costs(self.error_costs)

    def losses_from_predictions(self, true_codes: Codes, predicted_codes: Codes) -> Losses:
        """Compute the loss of each row from its true class and its prediction.

        A negative code stands for a true class that is none of the classes.
        """
        prediction_costs = compute_prediction_costs(self.error_costs, true_codes, predicted_codes)
        return self._build_losses(prediction_costs)

    def losses_from_correctness(self, is_correct: Flags) -> Losses:
        """Compute the loss of each row from whether its prediction is correct.

        Raises
        ------
        InputError
            If incorrect predictions do not all cost the same.
        """
        if not self.has_equal_error_costs:
            raise MissingLabelsError(
                "A cost matrix requires the true class of each row, but only correctness was"
                " passed. Fit MetaCal(promise) on logits and labels, or pass"
                " losses=promise.losses(...) to Sample."
            )
        return self._build_losses(np.where(is_correct, 0.0, self.max_prediction_cost))

    def _build_losses(self, prediction_costs: Float) -> Losses:
        """Build the losses of rows from the cost of each prediction."""
        review_is_all_or_nothing = self.review_cost in (0.0, self.max_row_cost)
        return Losses(
            if_accepted=prediction_costs,
            if_rejected=self.review_cost,
            max_loss=self.max_row_cost,
            is_all_or_nothing=self.has_equal_error_costs and review_is_all_or_nothing,
        )


def validate_error_costs(costs: Any) -> ErrorCosts:
    """Validate the costs of incorrect predictions.

    Parameters
    ----------
    costs : float or square array-like
        Cost of any incorrect prediction, or a table, `costs[true class][prediction]`.

    Returns
    -------
    float or tuple of tuples of float
        A valid table of tuples is returned as the same object, because scikit-learn's `clone`
        compares parameters by identity.

    Raises
    ------
    InputError
        If a cost is negative or too large, if all costs are 0, or if the table is not square.

    Examples
    --------
    >>> validate_error_costs(50), validate_error_costs([[0, 1], [5, 0]])
    (50.0, ((0.0, 1.0), (5.0, 0.0)))
    >>> validate_error_costs([[0, 1], [5]])
    Traceback (most recent call last):
    metacal.errors.ShapeError: A cost matrix must be square, with one row per true class and ...
    """
    if _is_number(costs):
        return validate_positive_cost("wrong", costs)
    try:
        cost_table = np.array(costs, dtype=np.float64)
    except (TypeError, ValueError):
        # An empty table is rejected below, with a message about its shape.
        cost_table = np.zeros(0)
    is_square_table = cost_table.ndim == 2 and cost_table.shape[0] == cost_table.shape[1]
    n_classes = len(cost_table)
    if not is_square_table or n_classes < 2:
        raise ShapeError(
            "A cost matrix must be square, with one row per true class and one column per"
            f" predicted class, but got {_describe_shape(costs)}. Pass K rows of K numbers, or a"
            " single cost for every incorrect prediction."
        )
    is_valid_cost = (cost_table >= 0.0) & (cost_table <= _MAX_COST)
    has_positive_cost = cost_table.any()
    if not is_valid_cost.all() or not has_positive_cost:
        raise InputError(
            f"Costs must lie between 0 and {_MAX_COST:g}, and at least one must be positive. If a"
            " prediction earns money, add a constant to all costs."
        )
    valid_table = tuple(map(tuple, cost_table.tolist()))
    is_already_valid_table = _is_table_of_floats(costs) and costs == valid_table
    if is_already_valid_table:
        # The same object is returned, because scikit-learn compares parameters by identity.
        return costs
    return valid_table


def _is_number(value: Any) -> bool:
    """Check whether a value is a number, but not a boolean."""
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _is_table_of_floats(costs: Any) -> bool:
    """Check whether a table of costs is a tuple that has only Python floats."""
    if not isinstance(costs, tuple):
        return False
    return all(type(cost) is float for table_row in costs for cost in table_row)


def validate_positive_cost(name: str, value: Any) -> float:
    """Return a positive cost as a float, or raise InputError.

    Parameters
    ----------
    name : str
        Name of the parameter in the error message.

    value : float
        Cost.

    Examples
    --------
    >>> validate_positive_cost("limit", 0)
    Traceback (most recent call last):
    metacal.errors.InputError: limit must be a positive number, but got 0.
    """
    if not _is_number(value) or not 0.0 < value <= _MAX_COST:
        raise InputError(f"{name} must be a positive number, but got {value!r}.")
    if type(value) is float:
        # The same object is returned, because scikit-learn compares parameters by identity.
        return value
    return float(value)


def has_uniform_costs(error_costs: ErrorCosts) -> bool:
    """Check whether all errors cost the same, and correct predictions cost nothing.

    Examples
    --------
    >>> has_uniform_costs(50.0), has_uniform_costs(((0.0, 1.0), (1.0, 0.0)))
    (True, True)
    >>> has_uniform_costs(((0.0, 1.0), (5.0, 0.0)))
    False
    """
    if isinstance(error_costs, float):
        return True
    cost_table = np.array(error_costs)
    is_error = 1.0 - np.eye(len(cost_table))
    uniform_table = cost_table.max() * is_error
    return bool((cost_table == uniform_table).all())


def max_error_cost(error_costs: ErrorCosts) -> float:
    """Return the largest cost of a prediction."""
    if isinstance(error_costs, float):
        return error_costs
    return max(max(costs_of_true_class) for costs_of_true_class in error_costs)


def compute_prediction_costs(
    error_costs: ErrorCosts, true_codes: Codes, predicted_codes: Codes
) -> Float:
    """Compute the cost of each prediction.

    Parameters
    ----------
    error_costs : float or tuple of tuples of float
        Cost of any incorrect prediction, or a table, `error_costs[true class][prediction]`.

    true_codes : array of int of shape (n_rows,)
        True class of each row. A negative code stands for none of the classes. Its prediction has
        the largest cost of its column.

    predicted_codes : array of int of shape (n_rows,)
        Predicted class of each row.

    Returns
    -------
    array of float of shape (n_rows,)

    Examples
    --------
    >>> table = ((0.0, 1.0), (5.0, 0.0))
    >>> compute_prediction_costs(table, np.array([0, 1, -1]), np.array([1, 0, 0]))
    array([1., 5., 5.])
    """
    if isinstance(error_costs, float):
        return np.where(true_codes == predicted_codes, 0.0, error_costs)
    cost_table = np.array(error_costs)
    cost_if_class_known = cost_table[true_codes, predicted_codes]
    max_cost_of_prediction = cost_table.max(axis=0)[predicted_codes]
    has_unknown_class = true_codes < 0
    return np.asarray(np.where(has_unknown_class, max_cost_of_prediction, cost_if_class_known))


def _describe_shape(costs: Any) -> str:
    """Describe the shape of an invalid table of costs for an error message."""
    array_shape = getattr(costs, "shape", None)
    if array_shape is not None:
        return f"an array of shape {array_shape}"
    if isinstance(costs, list | tuple):
        return f"{len(costs)} rows"
    return repr(costs)[:_MAX_SHOWN_CHARACTERS]
