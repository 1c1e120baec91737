"""Logits of a fitted classifier, from its probabilities or decision values."""

from __future__ import annotations

from typing import Any

import numpy as np

from metacal.errors import ClassMismatchError, InputError, LabelError, warn_caller
from metacal.formulas import Array, Codes
from metacal.rows import validate
from metacal.rows.arrays import check_choice
from metacal.rows.labels import check_labels

#: Methods of a classifier that give its logits, in the order in which "auto" tries them.
RESPONSE_METHODS = ("predict_proba", "decision_function")
#: Code of a label that the classifier does not know.
UNKNOWN_LABEL_CODE = -1


def get_classifier_logits(classifier: Any, X: Any, method: str = "auto") -> Array:
    """Compute the logits of a classifier, one column per class.

    Parameters
    ----------
    classifier : estimator
        Fitted classifier.
    X : array-like
        Features.
    method : {"auto", "predict_proba", "decision_function"}, default="auto"
        Method of the classifier. The logits are the logarithms of its probabilities, or its
        decision values. For two classes, the decision value s becomes the columns [0, s]: s > 0
        means the second class, as in scikit-learn.

    Returns
    -------
    array of shape (n_rows, n_classes)

    Examples
    --------
    >>> from sklearn.svm import LinearSVC
    >>> svm = LinearSVC().fit([[-1.0], [-2.0], [1.0], [2.0]], ["no", "no", "yes", "yes"])
    >>> get_classifier_logits(svm, [[3.0]]).argmax(axis=1)
    array([1])
    """
    check_choice("response_method", method, "auto", *RESPONSE_METHODS)
    allowed_methods = RESPONSE_METHODS if method == "auto" else (method,)
    available_methods = [name for name in allowed_methods if hasattr(classifier, name)]
    if not available_methods:
        raise InputError(
            f"{type(classifier).__name__} has none of the required methods:"
            f" {' and '.join(allowed_methods)}. Pass a classifier that has one of them."
        )
    method_name = available_methods[0]
    compute_response = getattr(classifier, method_name)
    classifier_response = np.asarray(compute_response(X))
    if method_name == "predict_proba":
        logits = validate.read_logits(classifier_response, "probabilities")
    elif classifier_response.ndim == 2:
        logits = classifier_response
    else:
        first_class_logits = np.zeros_like(classifier_response)
        logits = np.column_stack([first_class_logits, classifier_response])
    n_columns = logits.shape[1]
    n_classes = n_columns
    if hasattr(classifier, "classes_"):
        n_classes = len(classifier.classes_)
    if n_columns != n_classes:
        raise ClassMismatchError(
            f"{method_name} of {type(classifier).__name__} must return one column per class, but"
            f" it returns {n_columns} columns for {n_classes} classes. For an SVC, pass"
            " decision_function_shape='ovr'."
        )
    return logits


def get_classifier_classes(classifier: Any, n_columns: int) -> Array:
    """Return the classes of a classifier in column order. The default is 0 ... K-1."""
    classes = getattr(classifier, "classes_", None)
    if classes is None:
        return np.arange(n_columns)
    # Labels from pandas are objects, so `classes_` may be an array of objects.
    return check_labels(classes, noun="class label")


def expand_columns(logits: Array, known_classes: Array, classes: Array) -> Array:
    """Add a column of logits for each class that the classifier was not fitted on.

    A class that the classifier has never seen gets the same logit as a probability of zero: 2.2e-16
    times the top class, or the lowest logit of the row.

    Parameters
    ----------
    logits : array of shape (n_rows, n_known_classes)
        Logits of the classifier.
    known_classes : array of shape (n_known_classes,)
        Classes of the classifier.
    classes : array of shape (n_classes,)
        All classes.

    Returns
    -------
    array of shape (n_rows, n_classes)

    Examples
    --------
    >>> logits = np.array([[0.0, 5.0]])
    >>> expand_columns(logits, np.array(["a", "c"]), np.array(["a", "b", "c"])).round(2)
    array([[  0.  , -31.04,   5.  ]])
    """
    if len(known_classes) == len(classes):
        return logits
    known_columns, _ = validate.find_indices_of_names(known_classes, classes)
    largest_logits = logits.max(axis=1, keepdims=True)
    smallest_logits = logits.min(axis=1, keepdims=True)
    log_epsilon = np.log(np.finfo(np.float64).eps)
    missing_logits = np.minimum(smallest_logits, largest_logits + log_epsilon)
    expanded_logits = np.repeat(missing_logits.astype(logits.dtype), len(classes), axis=1)
    expanded_logits[:, known_columns] = logits
    return expanded_logits


def encode_labels(y: Array, classes: Array) -> Codes:
    """Return the column of each label, -1 if the classifier does not know it.

    The prediction for a row with such a label is incorrect. Leaving these rows out, or moving rare
    labels to the rows for fitting, would be invalid: it would certify an accuracy that new rows do
    not have.

    Parameters
    ----------
    y : array of shape (n_rows,)
        Labels of the calibration rows.
    classes : array of shape (n_classes,)
        Classes of the classifier.

    Returns
    -------
    array of int of shape (n_rows,)

    Raises
    ------
    InputError
        If no label is one of the classes, or an unknown label has another type.
    """
    candidate_codes, first_unknown_row = validate.find_indices_of_names(y, classes)
    if first_unknown_row is None:
        return candidate_codes
    first_class = classes[:1].tolist()[0]
    unknown_label = y[first_unknown_row].item()
    labels_are_text = y.dtype.kind == "U"
    classes_are_text = isinstance(first_class, str)
    if labels_are_text != classes_are_text:
        raise LabelError(
            f"The label {unknown_label!r} (row {first_unknown_row} of the calibration rows) is not"
            f" one of the {len(classes)} classes of the classifier, and its type is different. The"
            f" first class is {first_class!r}."
        )
    # The candidate of an unknown label is the column of another class.
    is_unknown = classes[candidate_codes] != y
    if is_unknown.all():
        raise LabelError(
            f"None of the {len(y):,} calibration rows has a label that is one of the"
            f" {len(classes)} classes of the classifier. The first label is {y[0].item()!r}, and"
            f" the first class is {first_class!r}. Pass the labels of this classifier."
        )
    warn_caller(
        f"{int(is_unknown.sum()):,} of {len(y):,} calibration rows have a label that the"
        f" classifier was not fitted on, for example {unknown_label!r}. These rows count as"
        " incorrect."
    )
    return np.where(is_unknown, UNKNOWN_LABEL_CODE, candidate_codes)
