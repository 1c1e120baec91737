"""What a classifier says about rows, as logits: one column per class, whichever method it answers
by.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from metacal.errors import InputError, warn_caller
from metacal.formulas import Array, Codes
from metacal.rows import validate
from metacal.rows.arrays import one_of

#: The methods that answer with a number per class, in the order "auto" looks for them.
METHODS = ("predict_proba", "decision_function")


def logits_of(classifier: Any, X: Any, method: str = "auto") -> Array:
    """The classifier's answers as logits: the logarithm of its probabilities, or its decision
    values.

    Two classes by decision values s give the columns [0, s]: s > 0 means the second class, as
    scikit-learn has it.

    Examples
    --------
    >>> from sklearn.svm import LinearSVC
    >>> machine = LinearSVC().fit([[-1.0], [-2.0], [1.0], [2.0]], ["no", "no", "yes", "yes"])
    >>> logits_of(machine, [[3.0]]).argmax(axis=1)
    array([1])
    """
    one_of("response_method", method, "auto", *METHODS)
    names = METHODS if method == "auto" else (method,)
    name = next((name for name in names if hasattr(classifier, name)), None)
    if name is None:
        raise InputError(f"{type(classifier).__name__} has neither of {' and '.join(names)}.")
    response = np.asarray(getattr(classifier, name)(X))
    if name == "predict_proba":
        table = validate.logits_from(response, "probabilities")
    else:
        table = (
            response if response.ndim == 2 else np.column_stack([np.zeros_like(response), response])
        )
    n_classes = len(getattr(classifier, "classes_", table.T))
    if table.shape[1] != n_classes:
        raise InputError(
            f"{name} of {type(classifier).__name__} has {table.shape[1]} columns for {n_classes}"
            " classes; one per class is needed (an SVC: decision_function_shape='ovr')."
        )
    return table


def classes_of(classifier: Any, n_columns: int) -> Array:
    """The classes in column order; 0 … K-1 where the classifier does not say."""
    return np.asarray(getattr(classifier, "classes_", np.arange(n_columns)))


def spread_columns(table: Array, own: Array, classes: Array) -> Array:
    """Logits over `classes` from those over the classifier's `own`, some of which it may never have
    seen.

    An unseen class gets what a probability of zero gets elsewhere: 2.2e-16 of the top class, or the
    row's lowest.

    Examples
    --------
    >>> spread_columns(np.array([[0.0, 5.0]]), np.array(["a", "c"]), np.array(["a", "b", "c"])).round(2)
    array([[  0.  , -31.04,   5.  ]])
    """
    if len(own) == len(classes):
        return table
    columns, _ = validate.columns_of(own, classes)
    top, low = table.max(axis=1, keepdims=True), table.min(axis=1, keepdims=True)
    floor = np.minimum(low, top + np.log(np.finfo(np.float64).eps))
    full = np.repeat(floor.astype(table.dtype), len(classes), axis=1)
    full[:, columns] = table
    return full


def codes_of(y: Array, classes: Array) -> Codes:
    """The column of each label; -1 for a label that the classifier was not fitted on, which it gets
    wrong.

    Leaving such rows out, or sending rare labels to the fit, would certify an accuracy that new
    rows do not have.
    """
    codes, unknown = validate.columns_of(y, classes)
    if unknown is None:
        return codes
    first = classes[:1].tolist()[0]
    if (y.dtype.kind == "U") != isinstance(first, str):
        raise InputError(
            f"label {y[unknown].item()!r} (row {unknown} of the calibration rows) is not one of the"
            f" {len(classes)} classes the classifier was fitted on, nor of their type; the first of"
            f" them is {first!r}."
        )
    found = np.where(classes[codes] == y, codes, -1)
    if (found < 0).all():
        raise InputError(
            f"none of the {len(y):,} calibration rows has a label of the {len(classes)} classes the"
            f" classifier was fitted on; row 0 has {y[0].item()!r}, the first class is {first!r}."
        )
    warn_caller(
        f"{int((found < 0).sum()):,} of {len(y):,} calibration rows have a label that the"
        f" classifier was not fitted on, such as {y[unknown].item()!r}; they count as wrong, as"
        " such rows will be."
    )
    return found
