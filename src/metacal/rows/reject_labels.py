"""Labels of rejected rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError
from metacal.formulas import Flags

#: Candidates for the default reject label of numeric classes, in order of preference.
_DEFAULT_NUMBERS = (-1, 0, -2, -3)
_DEFAULT_NAME = "rejected"


def check_reject_label(reject_label: Any, classes: NDArray[Any]) -> Any:
    """Validate the label of rejected rows.

    Parameters
    ----------
    reject_label : str, int or None
        The label. None stands for -1 (0 if -1 is a class), or 'rejected' if the classes are names.

    classes : array of shape (n_classes,)
        Classes.

    Returns
    -------
    str or int

    Raises
    ------
    InputError
        If the label has another type than the classes, or is one of them.

    Examples
    --------
    >>> check_reject_label(None, np.arange(2)), check_reject_label(None, np.array(["cat", "dog"]))
    (-1, 'rejected')
    """
    if reject_label is None:
        reject_label = default_reject_label(classes)
    label = np.asarray(reject_label)
    are_names = classes.dtype.kind in "UO"
    if label.ndim or label.dtype.kind not in ("U" if are_names else "iub"):
        required_type = "an integer of at most 64 bits"
        if are_names:
            required_type = "a string, such as reject_label='rejected',"
        raise InputError(
            f"reject_label must be {required_type} like the classes, but got {reject_label!r}."
        )
    if not are_names and not -(2**63) <= int(label) < 2**63:
        raise InputError(
            f"reject_label must fit into a signed 64-bit integer, but got {reject_label!r}."
        )
    if label in classes:
        raise InputError(
            f"reject_label must not be one of the classes, but got {reject_label!r}. Choose"
            " another label."
        )
    # NumPy combines int64 and uint64 to float64, which would round labels.
    if classes.dtype.kind in "iu" and np.result_type(classes.dtype, label.dtype).kind == "f":
        raise InputError(
            f"No integer type holds both the classes ({classes.dtype}) and reject_label"
            f" {reject_label!r}. Choose a label that fits the type of the classes."
        )
    return reject_label


def default_reject_label(classes: NDArray[Any]) -> str | int:
    """Return the default label of rejected rows: 'rejected' for names, else -1 or 0.

    >>> default_reject_label(np.array([-1, 1])), default_reject_label(np.array([False, True]))
    (0, -1)
    """
    if classes.dtype.kind in "UO":
        return _DEFAULT_NAME
    return next(number for number in _DEFAULT_NUMBERS if number not in classes)


def replace_rejected_labels(
    reject_label: Any, is_accepted: Flags, predictions: NDArray[Any]
) -> NDArray[Any]:
    """Return the predictions, with the reject label for rows that are not accepted.

    The type of the result does not depend on the decisions. Predictions that are booleans become
    objects, because a boolean array has no third value.

    Parameters
    ----------
    reject_label : str or int
        Label of rejected rows.

    accept : array of bool of shape (n,)
        Decisions.

    answers : array of shape (n,)
        Predictions.

    Returns
    -------
    array of shape (n,)

    Examples
    --------
    >>> replace_rejected_labels(-1, np.array([True, False]), np.array([True, True]))
    array([True, -1], dtype=object)
    """
    predictions = predictions.astype(object) if predictions.dtype.kind == "b" else predictions
    return np.where(is_accepted, predictions, np.asarray(reject_label))
