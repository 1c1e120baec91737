"""Classifiers that are calibrated as they are, without being fitted again.

A classifier is *frozen* if it is wrapped in scikit-learn's FrozenEstimator. An object that
scikit-learn cannot clone and fit, such as a model of another library, is treated in the same way.

It is not possible to prove from rows and predictions alone that a classifier was fitted on the
rows: a classifier may really be that good. But a certificate on such rows is void, and
classifiers that memorise their rows, such as forests, are nearly perfect on them. Therefore few
errors lead to a warning, which the certificate stores as a note, and never to an error.
"""

from __future__ import annotations

from typing import Any

from sklearn.frozen import FrozenEstimator
from sklearn.utils.validation import check_is_fitted

from metacal.certificates.notes import Note
from metacal.certificates.row_checks import check_frozen_error_count
from metacal.errors import UnfittedError
from metacal.estimators.crossfit import ClassifierFitResult
from metacal.estimators.responses import get_classifier_classes, get_classifier_logits
from metacal.formulas import Array, Codes


def is_frozen(estimator: Any) -> bool:
    """Check whether a classifier is used as it is.

    Examples
    --------
    >>> from sklearn.naive_bayes import GaussianNB
    >>> fitted = GaussianNB().fit([[0.0], [1.0]], [0, 1])
    >>> is_frozen(fitted), is_frozen(FrozenEstimator(fitted))
    (False, True)
    """
    can_be_refitted = hasattr(estimator, "fit") and hasattr(estimator, "get_params")
    return isinstance(estimator, FrozenEstimator) or not can_be_refitted


def score_frozen_classifier(estimator: Any, X: Any, response_method: str) -> ClassifierFitResult:
    """Compute the logits of a frozen classifier for all rows.

    Parameters
    ----------
    estimator : estimator
        Frozen classifier.
    X : array-like
        Features.
    response_method : str
        Method that returns the logits, see `get_classifier_logits`.

    Returns
    -------
    ClassifierFitResult

    Raises
    ------
    InputError
        If the classifier is not fitted.
    """
    if isinstance(estimator, FrozenEstimator):
        try:
            check_is_fitted(estimator)
        except ValueError:
            class_name = type(estimator.estimator).__name__
            raise UnfittedError(
                f"The frozen {class_name} is not fitted. Fit the classifier before you freeze it,"
                " or pass it without FrozenEstimator."
            ) from None
    logits = get_classifier_logits(estimator, X, response_method)
    n_columns = logits.shape[1]
    return ClassifierFitResult(
        classifier=estimator,
        classes=get_classifier_classes(estimator, n_columns),
        calibration_logits=logits,
    )


def check_frozen_classifier(logits: Array, codes: Codes) -> list[Note]:
    """Warn if a frozen classifier is nearly perfect on the calibration rows.

    Parameters
    ----------
    logits : array of shape (n_rows, n_classes)
        Logits of the calibration rows.
    codes : array of int of shape (n_rows,)
        Column of each label, or -1.

    Returns
    -------
    list of Note
        Note for the certificate, if there was a warning.
    """
    predicted_codes = logits.argmax(axis=1)
    n_errors = int((predicted_codes != codes).sum())
    notes = check_frozen_error_count(n_errors, len(codes))
    return [note.issue_warning() for note in notes]
