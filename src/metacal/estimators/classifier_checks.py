"""Checks of the parameters and rows of a CalibratedClassifier."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _num_samples, column_or_1d

from metacal.certificates.row_checks import MAX_REPEATED_SHARE
from metacal.errors import (
    LabelError,
    MissingLabelsError,
    PositiveClassError,
    ShapeError,
    UnsupportedPromiseError,
)
from metacal.estimators.calibrator_factory import make_base_calibrator
from metacal.estimators.frozen import is_frozen
from metacal.estimators.responses import RESPONSE_METHODS, get_classifier_classes
from metacal.formulas import Array, Codes
from metacal.gate import check_logits_gate_options
from metacal.promises.positive_class import apply_positive_class, check_positive_class
from metacal.promises.promise import Promise
from metacal.rows.arrays import as_plain_array, check_choice
from metacal.rows.labels import check_labels, check_reject_label

if TYPE_CHECKING:
    from metacal.estimators.classifier import CalibratedClassifier


def check_features_and_labels(X: Any, y: Any) -> tuple[Any, Array]:
    """Validate the features and labels that are passed to `fit`.

    Returns
    -------
    X : array, sparse matrix or frame
        Features whose rows can be selected.
    y : array of shape (n_rows,)
        Labels.

    Raises
    ------
    InputError
        If there are no labels, if they are not classes, or if their number is not that of the rows.
    """
    if y is None:
        raise MissingLabelsError(
            "CalibratedClassifier requires y to be passed, but the target y is None."
        )
    label_shape: tuple[int, ...] = getattr(y, "shape", ())
    is_column_vector = len(label_shape) == 2 and label_shape[1] == 1
    if is_column_vector:
        y = column_or_1d(as_plain_array(y, "labels"), warn=True)
    labels = check_labels(y)
    try:
        check_classification_targets(labels)
    except (ValueError, TypeError) as error:
        raise LabelError(f"y is not a valid array of classes: {error}") from None
    n_rows = _num_samples(X)
    if len(labels) != n_rows:
        raise ShapeError(
            f"Expected one label for each row, but got {n_rows} rows and {len(labels)} labels."
        )
    is_sparse = hasattr(X, "tocsr")
    rows_can_be_selected = hasattr(X, "__getitem__")
    if is_sparse:
        X = X.tocsr()
    elif not rows_can_be_selected:
        X = np.asarray(X)
    return X, labels


def check_classifier_parameters(
    meta_estimator: CalibratedClassifier, y: Array, groups: Any
) -> None:
    """Check the parameters before the classifier is trained, which may take hours.

    Parameters
    ----------
    meta_estimator : CalibratedClassifier
        Meta-estimator with the parameters.
    y : array of shape (n_rows,)
        Labels.
    groups : array-like of shape (n_rows,) or None
        Group of each row.

    Raises
    ------
    InputError
        If a parameter is invalid, or does not fit the labels.
    """
    promise = meta_estimator.promise
    positive = meta_estimator.positive
    # The calibrator is made only to raise an error if its name is unknown.
    make_base_calibrator(meta_estimator.calibrator, promise)
    response_method = meta_estimator.response_method
    check_choice("response_method", response_method, "auto", *RESPONSE_METHODS)
    check_choice("decision", meta_estimator.decision, "largest", "calibrated")
    if promise is not None:
        _check_gate_parameters(meta_estimator, promise, y)
    elif positive is not None:
        raise PositiveClassError(
            f"positive={positive!r} has no effect without a promise. Leave out positive, or pass"
            f" a promise such as MinPrecision(0.9, positive={positive!r})."
        )
    if groups is not None and len(groups) != len(y):
        raise ShapeError(
            f"groups must have one entry for each row, but got {len(groups):,} entries for"
            f" {len(y):,} rows."
        )


def _check_gate_parameters(
    meta_estimator: CalibratedClassifier, promise: Promise, y: Array
) -> None:
    """Raise InputError if a parameter of the gate is invalid for the classes in `y`."""
    decision = meta_estimator.decision
    check_logits_gate_options(
        promise, score=meta_estimator.ranking, input="logits", decision=decision
    )
    promise = apply_positive_class(promise, meta_estimator.positive)
    classes = np.unique(y)
    estimator = meta_estimator.estimator
    if is_frozen(estimator) and hasattr(estimator, "classes_"):
        classes = get_classifier_classes(estimator, len(classes))
    check_reject_label(meta_estimator.reject_label, classes)
    n_classes = len(classes)
    two_class_option = None
    if promise.is_two_sided:
        two_class_option = type(promise).__name__
    elif decision == "calibrated":
        two_class_option = "decision='calibrated'"
    if two_class_option is not None and n_classes != 2:
        raise UnsupportedPromiseError(
            f"{two_class_option} requires two classes, but y has {n_classes}. Leave out"
            f" {two_class_option}."
        )
    if n_classes == 2:
        check_positive_class(promise, classes.tolist())


def choose_skipped_checks(X: Any, calibration_rows: Codes | None) -> tuple[str, ...]:
    """Choose the notes for which the logits need not be checked.

    It is known whether the classifier was fitted on the rows. Equal logits are no copies of a row if
    the features differ: a forest, for example, has as many values as trees.

    Parameters
    ----------
    X : array, sparse matrix or frame
        Features.
    calibration_rows : array of int or None
        Rows of X that are used for calibration. None if all are.

    Returns
    -------
    tuple of str
        Kinds of notes.
    """
    if calibration_rows is None:
        calibration_rows = np.arange(_num_samples(X))
    if _may_have_copied_rows(X, calibration_rows):
        return ("few_errors",)
    return ("few_errors", "repeated_rows")


def _may_have_copied_rows(X: Any, rows: Codes) -> bool:
    """Check for more rows with the features of an earlier row than a note tolerates.

    True if that is not known.
    """
    n_repeated = _count_repeated_features(X, rows)
    return n_repeated is None or n_repeated > MAX_REPEATED_SHARE * len(rows)


def _count_repeated_features(X: Any, rows: Codes) -> int | None:
    """Count the rows that repeat an earlier row. Return None if X cannot be compared."""
    is_data_frame = hasattr(X, "duplicated") and hasattr(X, "iloc")
    if is_data_frame:
        try:
            return int(X.iloc[rows].duplicated().sum())
        except TypeError:
            # A cell is not hashable, such as a list.
            return None
    is_numeric_table = isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind in "iubf"
    if not is_numeric_table:
        return None
    distinct_rows = np.unique(X[rows], axis=0)
    return len(rows) - len(distinct_rows)


def make_group_keywords(groups: Any) -> dict[str, Any]:
    """Return `groups` as a keyword if it is set, because calibrators do not accept it."""
    if groups is None:
        return {}
    return {"groups": groups}
