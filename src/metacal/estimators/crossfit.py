"""Calibration rows of a classifier, from one held-out set or by cross-fitting.

In cross-fitting, each row is scored by a classifier that was fitted without it, and the classifier
in use is fitted on all rows. The certificate is then only approximate:

1. A certificate is exact if the rows that it counts were scored by the classifier in use, which
   never saw them.
2. Cross-fitted rows were scored by K other classifiers, each fitted on a part of the rows.
3. Without an assumption on how similar these classifiers are, nothing can be promised for the one
   fitted on all rows. The jackknife has no distribution-free coverage at all. CV+ and
   cross-conformal prediction, which keep the fold classifiers, guarantee only 1 - 2 alpha.

It is therefore not valid to certify with cross-fitted rows as if they had been held out.

References
----------
Vovk, "Cross-conformal predictors", Annals of Mathematics and Artificial Intelligence 74, 2015.
Barber, Candès, Ramdas & Tibshirani, "Predictive inference with the jackknife+", Annals of
Statistics 49, 2021.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils import _safe_indexing
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import (
    _check_method_params,
)

from metacal.certificates.certificate import Certificate
from metacal.certificates.design import CertificationDesign, record_design
from metacal.certificates.notes import note_cross_fitted
from metacal.estimators.responses import (
    expand_columns,
    get_classifier_classes,
    get_classifier_logits,
)
from metacal.estimators.row_division import Folds
from metacal.formulas import Array, Codes


@dataclass(frozen=True, eq=False)
class ClassifierFitResult:
    """Fitted classifier, and logits of calibration rows that it was not fitted on.

    Attributes
    ----------
    classifier : estimator or None
        Fitted classifier. None for a fold of a cross-fit, to save memory.
    classes : array of shape (n_classes,)
        Classes in column order.
    calibration_logits : array of shape (n_calibration_rows, n_classes)
        Logits of the calibration rows.
    calibration_rows : array of int or None
        Indices of the calibration rows. None if all rows are used.
    n_folds : int
        Number of folds; 0 without cross-fitting.
    uses_random_state : bool
        Whether `random_state` determined the calibration rows or the folds.
    """

    classifier: Any
    classes: Array
    calibration_logits: Array
    calibration_rows: Codes | None = None
    n_folds: int = 0
    uses_random_state: bool = False


@dataclass(frozen=True)
class ClassifierFitter:
    """Unfitted classifier with the parameters of its `fit`.

    Attributes
    ----------
    estimator : estimator
        Unfitted classifier.
    fit_params : mapping
        Parameters of its `fit`. Those with an entry per row are indexed like the rows.
    response_method : str
        Method that returns its logits, see `get_classifier_logits`.
    """

    estimator: Any
    fit_params: Mapping[str, Any] = field(default_factory=dict)
    response_method: str = "auto"

    def fit(self, X: Any, y: Array, rows: Codes | None = None) -> Any:
        """Fit a new classifier on some rows, by default on all of them."""
        fit_params = _check_method_params(X, self.fit_params, indices=rows)
        if rows is not None:
            X = _safe_indexing(X, rows)
            y = y[rows]
        return clone(self.estimator).fit(X, y, **fit_params)

    def fit_held_out(
        self, X: Any, y: Array, fit_rows: Codes, test_rows: Codes
    ) -> ClassifierFitResult:
        """Fit a classifier on some rows, and compute its logits for other rows.

        Parameters
        ----------
        X : array-like
            Features.
        y : array of shape (n_rows,)
            Labels.
        fit_rows : array of int
            Rows to fit on.
        test_rows : array of int
            Rows to compute logits for.

        Returns
        -------
        ClassifierFitResult
        """
        classifier = self.fit(X, y, fit_rows)
        test_features = _safe_indexing(X, test_rows)
        test_logits = get_classifier_logits(classifier, test_features, self.response_method)
        n_columns = test_logits.shape[1]
        return ClassifierFitResult(
            classifier=classifier,
            classes=get_classifier_classes(classifier, n_columns),
            calibration_logits=test_logits,
            calibration_rows=test_rows,
        )

    def cross_fit(
        self, X: Any, y: Array, folds: Folds, n_jobs: int | None = None
    ) -> ClassifierFitResult:
        """Compute out-of-fold logits of all rows, and fit the classifier on all of them.

        Parameters
        ----------
        X : array-like
            Features.
        y : array of shape (n_rows,)
            Labels.
        folds : list of pairs of arrays of int
            Rows to fit and rows to score, for each fold.
        n_jobs : int or None, default=None
            Number of threads.

        Returns
        -------
        ClassifierFitResult
            Classifier fitted on all rows, and the out-of-fold logits of every row.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.naive_bayes import GaussianNB
        >>> from metacal.estimators.row_division import make_folds
        >>> X, y = load_iris(return_X_y=True)
        >>> folds = make_folds(5, X, y, 0, None)
        >>> cross_fitted = ClassifierFitter(GaussianNB()).cross_fit(X, y, folds)
        >>> cross_fitted.calibration_logits.shape, cross_fitted.n_folds
        ((150, 3), 5)
        """

        def fit_fold(fold: tuple[Codes, Codes]) -> ClassifierFitResult:
            fit_rows, test_rows = fold
            fold_result = self.fit_held_out(X, y, fit_rows, test_rows)
            # The classifiers of all folds together may not fit into memory.
            return replace(fold_result, classifier=None)

        parallel = Parallel(n_jobs=n_jobs, prefer="threads")
        fold_results: list[ClassifierFitResult] = parallel(map(delayed(fit_fold), folds))
        classifier = self.fit(X, y)
        n_columns = max(result.calibration_logits.shape[1] for result in fold_results)
        classes = get_classifier_classes(classifier, n_columns)
        logits_by_fold = [
            expand_columns(result.calibration_logits, result.classes, classes)
            for result in fold_results
        ]
        logits_dtype = np.result_type(*logits_by_fold)
        out_of_fold_logits = np.empty((len(y), len(classes)), dtype=logits_dtype)
        for result, fold_logits in zip(fold_results, logits_by_fold):
            out_of_fold_logits[result.calibration_rows] = fold_logits
        return ClassifierFitResult(
            classifier=classifier,
            classes=classes,
            calibration_logits=out_of_fold_logits,
            n_folds=len(folds),
        )


def mark_cross_fitted(certificate: Certificate, n_folds: int) -> Certificate:
    """Mark a certificate as approximate, because its rows were cross-fitted.

    Examples
    --------
    >>> from metacal.promises.miscoverage import MaxMiscoverage
    >>> exact = MaxMiscoverage(0.05).certify(np.linspace(0, 1, 100), np.ones(100, dtype=bool))
    >>> mark_cross_fitted(exact, 5).statement
    'At most 5% of the correct predictions are rejected, with about 90% confidence (approximate, not certified).'
    """
    approximate_certificate = record_design(certificate, CertificationDesign(n_folds=n_folds))
    notes = (*certificate.notes, note_cross_fitted(folds=n_folds))
    return replace(approximate_certificate, notes=notes)


def record_classifier_fit(
    certificate: Certificate, fit_result: ClassifierFitResult, random_state: int | None
) -> Certificate:
    """Record in a certificate how the classifier of its rows was fitted.

    The seed is recorded only if the division into fit and calibration rows used it.
    """
    is_cross_fitted = fit_result.n_folds > 0
    if is_cross_fitted:
        certificate = mark_cross_fitted(certificate, fit_result.n_folds)
    if fit_result.uses_random_state and random_state is not None:
        design = CertificationDesign(random_state=random_state)
        certificate = record_design(certificate, design)
    return certificate
