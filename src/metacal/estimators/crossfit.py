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

A *cluster* (`units`) is a set of dependent rows, which are never divided between fitting and
calibration.

References
----------
Vovk, "Cross-conformal predictors", Annals of Mathematics and Artificial Intelligence 74, 2015.
Barber, Candès, Ramdas & Tibshirani, "Predictive inference with the jackknife+", Annals of
Statistics 49, 2021.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold, check_cv
from sklearn.utils import _safe_indexing
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import (
    _check_method_params,
    _num_samples,
    check_is_fitted,
    column_or_1d,
)

from metacal.certificates.certificate import Certificate
from metacal.certificates.circumstances import Circumstances, add_circumstances
from metacal.certificates.notes import cross_fitted
from metacal.errors import InputError
from metacal.estimators.responses import (
    expand_columns,
    get_classifier_classes,
    get_classifier_logits,
)
from metacal.formulas import Array, Codes
from metacal.rows.arrays import as_plain_array
from metacal.rows.draws import RowDraws
from metacal.rows.labels import check_labels
from metacal.rows.row_hashes import hash_rows

#: Indices of the rows to fit on and of the rows to score, for each fold.
Folds = list[tuple[Codes, Codes]]
#: Upper limit of the seeds of scikit-learn's splitters.
_SEED_LIMIT = 2**31


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
        logits = get_classifier_logits(classifier, test_features, self.response_method)
        classes = get_classifier_classes(classifier, logits.shape[1])
        return ClassifierFitResult(classifier, classes, logits, test_rows)

    def cross_fit(
        self, X: Any, y: Array, folds: Folds, n_jobs: int | None = None
    ) -> ClassifierFitResult:
        """Fit one classifier per fold for the logits, and one on all rows for later use.

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
        fold_logits = [
            expand_columns(result.calibration_logits, result.classes, classes)
            for result in fold_results
        ]
        logits = np.empty((len(y), len(classes)), dtype=np.result_type(*fold_logits))
        for result, table in zip(fold_results, fold_logits):
            logits[result.calibration_rows] = table
        return ClassifierFitResult(classifier, classes, logits, n_folds=len(folds))


def mark_approximate(certificate: Certificate, n_folds: int) -> Certificate:
    """Mark a certificate as approximate, because its rows were cross-fitted.

    Examples
    --------
    >>> from metacal.promises.miscoverage import MaxMiscoverage
    >>> exact = MaxMiscoverage(0.05).certify(np.linspace(0, 1, 100), np.ones(100, dtype=bool))
    >>> mark_approximate(exact, 5).statement
    'At most 5% of the correct predictions are rejected, with about 90% confidence (approximate, not certified).'
    """
    approximate_certificate = add_circumstances(certificate, Circumstances(n_folds=n_folds))
    notes = (*certificate.notes, cross_fitted(folds=n_folds))
    return replace(approximate_certificate, notes=notes)


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
        raise InputError("CalibratedClassifier requires y to be passed, but the target y is None.")
    if len(getattr(y, "shape", ())) == 2 and y.shape[1] == 1:
        y = column_or_1d(as_plain_array(y, "labels"), warn=True)
    y = check_labels(y)
    try:
        check_classification_targets(y)
    except (ValueError, TypeError) as error:
        raise InputError(f"labels are no classes: {error}") from None
    n_rows = _num_samples(X)
    if len(y) != n_rows:
        raise InputError(f"there are {n_rows} rows but {len(y)} labels; each row needs one label.")
    if hasattr(X, "tocsr"):
        X = X.tocsr()
    elif not hasattr(X, "__getitem__"):
        X = np.asarray(X)
    return X, y


def is_fitted(estimator: Any) -> bool:
    """Check whether a classifier is fitted.

    An object without `fit` or `get_params` counts as fitted, because scikit-learn cannot fit it.
    """
    if not (hasattr(estimator, "fit") and hasattr(estimator, "get_params")):
        return True
    try:
        check_is_fitted(estimator)
    except NotFittedError:
        return False
    return True


def draw_calibration_rows(
    X: Any, y: Array, holdout: float, random_state: int | None, units: Codes | None = None
) -> tuple[Codes, Codes]:
    """Draw the rows to calibrate on at random; the other rows are for fitting.

    The draw is not stratified. A stratified draw would depend on the labels, and the calibration
    rows would then not have the distribution of new rows.

    Parameters
    ----------
    X : array-like
        Features.
    y : array of shape (n_rows,)
        Labels.
    holdout : float
        Fraction of the rows, or of the clusters, to calibrate on.
    random_state : int or None
        Seed that the user chose. None derives it from X and y.
    units : array of int or None, default=None
        Cluster of each row. Clusters are not divided.

    Returns
    -------
    fit_rows : array of int
        Rows to fit on.
    calibration_rows : array of int
        Rows to calibrate on.
    """
    n_rows = len(y)
    n_units = n_rows
    if units is not None and n_rows > 0:
        n_units = int(units.max()) + 1
    n_held_out = min(round(holdout * n_units), n_units - 1)
    if n_held_out < 1:
        unit_name = "samples" if units is None else "units"
        raise InputError(
            f"an unfitted classifier needs rows to fit and rows to calibrate on; got {n_units}"
            f" {unit_name} (n_samples={n_rows}). Bring more rows, or a fitted classifier."
        )
    draws = make_row_draws(X, y, random_state, units)
    if units is None:
        random_order = draws.draw_row_order("held-out rows")
        is_held_out = np.zeros(n_rows, dtype=bool)
        is_held_out[random_order[:n_held_out]] = True
    else:
        is_held_out = draws.draw_cluster_numbers("held-out units") < n_held_out
    fit_rows = np.flatnonzero(~is_held_out)
    calibration_rows = np.flatnonzero(is_held_out)
    return fit_rows, calibration_rows


def make_row_draws(X: Any, y: Array, random_state: int | None, units: Codes | None) -> RowDraws:
    """Make a source of random draws that do not depend on the order of the rows.

    Parameters
    ----------
    X : array-like
        Features.
    y : array of shape (n_rows,)
        Labels.
    random_state : int or None
        Seed that the user chose. None derives it from X and y.
    units : array of int or None
        Cluster of each row.

    Returns
    -------
    RowDraws
    """
    _, codes = np.unique(y, return_inverse=True)
    codes = codes.reshape(-1)
    feature_columns = _make_numeric_columns(X, len(y))
    return RowDraws(*feature_columns, codes, units=units, random_state=random_state)


def _make_numeric_columns(X: Any, n_rows: int) -> list[NDArray[Any]]:
    """Return numeric columns that distinguish the rows of the features.

    The rows of a sparse matrix, or of text, are hashed to one column. The list is empty if X holds
    anything but numbers and text.
    """
    if hasattr(X, "tocsr"):
        return [_hash_sparse_rows(X.tocsr(), n_rows)]
    try:
        table = np.asarray(X).reshape(n_rows, -1)
    except (TypeError, ValueError):
        return []
    if table.dtype.kind in "biuf":
        return list(table.T)
    entries = table.ravel().tolist()
    if any(not isinstance(entry, str | bytes | int | float | None) for entry in entries):
        # The string form of an arbitrary object may differ from run to run.
        return []
    return [_hash_text_rows(table)]


def _hash_sparse_rows(matrix: Any, n_rows: int) -> NDArray[np.uint64]:
    """Compute a hash of each row of a sparse matrix in CSR format."""
    hashes = np.zeros(n_rows, dtype=np.uint64)
    n_entries_per_row = np.diff(matrix.indptr)
    row_of_entry = np.repeat(np.arange(n_rows), n_entries_per_row)
    entry_hashes = hash_rows(matrix.indices, matrix.data)
    np.add.at(hashes, row_of_entry, entry_hashes)
    return hashes


def _hash_text_rows(table: NDArray[Any]) -> NDArray[Any]:
    """Compute a hash of each row of a table of text."""
    digests = []
    for row in table.tolist():
        row_text = "\0".join(map(str, row))
        row_hash = blake2b(row_text.encode(errors="surrogatepass"), digest_size=8)
        digests.append(row_hash.digest())
    return np.frombuffer(b"".join(digests), dtype="<u8")


def make_folds(
    cv: Any, X: Any, y: Array, random_state: int | None, units: Codes | None, **split_params: Any
) -> Folds:
    """Draw the folds of a cross-fit, or take them from a splitter, and validate them.

    Parameters
    ----------
    cv : int or splitter
        Number of folds, or a scikit-learn splitter.
    X : array-like
        Features.
    y : array of shape (n_rows,)
        Labels.
    random_state : int or None
        Seed that the user chose, if `cv` is a number. None derives it from X and y.
    units : array of int or None
        Cluster of each row. All rows of a cluster are in one fold.
    **split_params
        Parameters of the splitter.

    Returns
    -------
    list of pairs of arrays of int
        Rows to fit and rows to score, for each fold.

    Raises
    ------
    InputError
        If a row is not scored exactly once, or if a cluster is divided.
    """
    is_number = isinstance(cv, int | np.integer)
    if isinstance(cv, bool) or (is_number and cv < 2):
        raise InputError(
            f"cv must be at least 2 folds, a splitter or None (hold rows out once); got {cv!r}."
        )
    if is_number:
        _, class_counts = np.unique(y, return_counts=True)
        if class_counts.max() < cv:
            raise InputError(
                f"no class has the {cv} rows that cv={cv} needs (n_samples={len(y)}); use fewer"
                " folds."
            )
        folds = _draw_folds(int(cv), y, units, make_row_draws(X, y, random_state, units))
    else:
        if units is not None:
            split_params["groups"] = units
        splitter = check_cv(cv, y, classifier=True)
        folds = list(splitter.split(X, y, **split_params))
    _check_folds(folds, len(y), units)
    return folds


def _check_folds(folds: Folds, n_rows: int, units: Codes | None) -> None:
    """Check that every row is tested exactly once, and that no cluster is divided."""
    all_test_rows = np.sort(np.concatenate([test_rows for _, test_rows in folds]))
    if not np.array_equal(all_test_rows, np.arange(n_rows)):
        raise InputError(
            "cv must put every row in one test fold, as KFold does; rows counted twice certify"
            " twice."
        )
    if units is None:
        return
    for fit_rows, test_rows in folds:
        if np.isin(units[test_rows], units[fit_rows]).any():
            raise InputError(
                "cv parts rows of one unit between folds; give a number, GroupKFold or"
                " StratifiedGroupKFold."
            )


def _draw_folds(n_folds: int, y: Array, units: Codes | None, draws: RowDraws) -> Folds:
    """Draw stratified folds that do not depend on the order of the rows.

    Parameters
    ----------
    n_folds : int
        Number of folds.
    y : array of shape (n_rows,)
        Labels.
    units : array of int or None
        Cluster of each row. Clusters are not divided.
    draws : RowDraws
        Source of random draws.

    Returns
    -------
    list of pairs of arrays of int
        Rows to fit and rows to score, for each fold.
    """
    row_order = draws.draw_row_order("folds")
    seed = draws.derive_seed("folds") % _SEED_LIMIT
    splitter_class = StratifiedKFold if units is None else StratifiedGroupKFold
    splitter = splitter_class(n_folds, shuffle=True, random_state=seed)
    groups = None if units is None else units[row_order]
    placeholder_features = np.zeros((len(y), 1))
    folds = []
    for fit_positions, test_positions in splitter.split(placeholder_features, y[row_order], groups):
        fit_rows = np.sort(row_order[fit_positions])
        test_rows = np.sort(row_order[test_positions])
        folds.append((fit_rows, test_rows))
    return folds
