"""Tables of two classes: one score per row, and the order of the two labels.

A binary classifier may give one number for each row, the log-odds or the probability of the second
class. A table with one column for each class is made of these numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import errors, kernels
from metacal.rows.arrays import as_native_floats, as_plain_array, find_first_true
from metacal.rows.labels import check_labels, shorten_values
from metacal.rows.stored import StoredTable
from metacal.spelling import format_option


def has_one_score_per_row(table: Any) -> bool:
    """Check whether there is one score per row, shape (n,) or (n, 1), for two classes.

    This is the output of `decision_function` of a binary classifier.

    Examples
    --------
    >>> has_one_score_per_row([0.2, -1.3]), has_one_score_per_row(np.zeros((5, 1))), has_one_score_per_row(np.zeros((5, 2)))
    (True, True, False)
    """
    if (
        isinstance(table, StoredTable)
        or hasattr(table, "toarray")
        or kernels.is_device_tensor(table)
    ):
        return False
    if isinstance(table, list | tuple):
        return bool(table) and all(isinstance(item, int | float | np.number) for item in table)
    # A nested tensor of torch raises RuntimeError when its shape is read.
    try:
        shape = tuple(table.shape)
    except (AttributeError, TypeError, RuntimeError):
        return False
    dtype = getattr(table, "dtype", None)
    is_numeric = getattr(dtype, "kind", "f") in "iubf"
    is_column = len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)
    return is_numeric and is_column and shape[0] > 0


def scores_to_two_columns(table: Any, input_kind: str) -> NDArray[Any]:
    """Convert one score per row to a table of two classes.

    Parameters
    ----------
    table : array-like of shape (n,) or (n, 1)
        Log-odds s, or probabilities p, of the second (positive) class.

    input_kind : {"logits", "probabilities"}
        Content of the table.

    Returns
    -------
    array of shape (n, 2)
        [0, s] for log-odds and [1 - p, p] for probabilities.

    Raises
    ------
    InputError
        If a probability is outside of [0, 1].

    Examples
    --------
    >>> scores_to_two_columns([2.0, -1.0], "logits"), scores_to_two_columns([[0.25]], "probabilities")
    (array([[ 0.,  2.], [ 0., -1.]]), array([[0.75, 0.25]]))
    """
    scores = as_native_floats(as_plain_array(table, "scores").reshape(-1), "scores")
    if input_kind != "probabilities":
        # The softmax of (0, s) depends only on the score s.
        return np.column_stack([np.zeros_like(scores), scores])
    invalid_row = find_first_true(~((scores >= 0.0) & (scores <= 1.0)))
    if invalid_row is not None:
        raise errors.InputKindError(
            f"probabilities must lie in [0, 1], but row {invalid_row} holds {scores[invalid_row]}."
            " If the numbers"
            f" are values of a decision_function, pass {format_option('input', 'logits')}."
        )
    return np.column_stack([1.0 - scores, scores])


def find_two_classes(
    labels: Any, positive: Any = None, *, has_one_score: bool = False
) -> NDArray[Any] | None:
    """Find the classes of two columns from the labels.

    Parameters
    ----------
    labels : array-like of shape (n,)
        Booleans, numbers or names.

    positive : label, default=None
        Class that a higher score favours.

    has_one_score : bool, default=False
        Whether there is one score per row. The second class is then `positive`, or the larger of two
        numbers. Two names have no order, so they need `positive`.

    Returns
    -------
    array of shape (2,) or None
        Class of the first and of the second column. None if the classes are the column numbers 0
        and 1, and if there are not two distinct labels, about which `encode_labels` raises the error.

    Raises
    ------
    InputError
        If there is one score per row and more than two labels, if `positive` is not a label, or if
        it is missing for two names.

    Examples
    --------
    >>> find_two_classes([True, False]), find_two_classes([-1, 1, 1]), find_two_classes([0, 1])
    (array([False,  True]), array([-1,  1]), None)
    >>> find_two_classes(["fraud", "fine"], "fraud", has_one_score=True)
    array(['fine', 'fraud'], dtype='<U5')
    """
    array = check_labels(labels)
    dtype_kind = array.dtype.kind
    distinct_labels = np.unique(array)
    # Labels that are booleans, or 0 and 1, imply both classes even if only one class occurs.
    is_boolean = dtype_kind == "b"
    if is_boolean or (dtype_kind == "f" and np.isin(distinct_labels, (0.0, 1.0)).all()):
        distinct_labels = np.array([0, 1], dtype=array.dtype)
    _check_positive_class(distinct_labels, positive, has_one_score=has_one_score)
    names_have_unknown_order = dtype_kind == "U" and not has_one_score
    if names_have_unknown_order:
        return None
    are_column_numbers = dtype_kind in "iu" and np.isin(distinct_labels, (0, 1)).all()
    if are_column_numbers:
        distinct_labels = np.array([0, 1])
    if len(distinct_labels) != 2:
        return None
    first_class, _ = distinct_labels
    if has_one_score and positive is not None and positive == first_class:
        return distinct_labels[::-1]
    return None if are_column_numbers else distinct_labels


def _check_positive_class(
    distinct_labels: NDArray[Any], positive: Any, *, has_one_score: bool
) -> None:
    """Raise InputError if the positive class is invalid or missing.

    Parameters
    ----------
    distinct_labels : array
        Distinct labels, sorted.

    positive : label or None
        Class that a higher score favours.

    has_one_score : bool
        Whether there is one score per row.
    """
    if has_one_score and len(distinct_labels) > 2:
        raise errors.ShapeError(
            "scores must be 2-D (one column per class) for more than two classes, but got"
            f" one score per row (n_features=1) and labels with {len(distinct_labels)} values"
            f" ({shorten_values(distinct_labels[:5])}). Reshape your data: at least 2 columns are"
            " needed."
        )
    if positive is not None and positive not in distinct_labels.tolist():
        raise errors.PositiveClassError(
            f"positive must be one of the labels ({shorten_values(distinct_labels[:5])}), but got"
            f" {positive!r}."
        )
    if has_one_score and distinct_labels.dtype.kind == "U" and positive is None:
        raise errors.PositiveClassError(
            f"Cannot tell which of the labels ({shorten_values(distinct_labels)}) a higher score"
            f" favours. Pass this label with {format_option('positive')}."
        )
