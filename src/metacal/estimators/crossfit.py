"""Rows to calibrate a classifier on: some held out once, or all of them cross-fitted.

Cross-fitting: every row is scored by a classifier that was fitted without it, and the one in use is
fitted on all. What that costs: a certificate is exact when the rows it counts were scored by *the*
classifier in use, which never saw them. Cross-fitted rows were scored by K others, each fitted on a
part of the rows. Without an assumption on how alike these are nothing can be promised for the one
fitted on all rows: the jackknife has no distribution-free coverage at all, and CV+ and
cross-conformal prediction, which keep the fold classifiers, halve their promise (1 - 2 alpha).

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
from typing import Any, NamedTuple

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

from metacal.errors import InputError
from metacal.estimators.responses import classes_of, logits_of, spread_columns
from metacal.formulas import Array, Codes
from metacal.promises.certificate import Certificate
from metacal.promises.circumstances import Circumstances, under
from metacal.promises.notes import cross_fitted
from metacal.rows.arrays import plain_array
from metacal.rows.draws import RowDraws
from metacal.rows.labels import flat_labels
from metacal.rows.row_hashes import row_hashes

#: Rows to fit and rows to score, of each fold.
Folds = list[tuple[Codes, Codes]]


class CalibrationRows(NamedTuple):
    """The classifier in use, its classes, logits to calibrate on; `rows`: which of X they are
    (None: all).

    `is_drawn` says whether `random_state` decided which rows were held out, or the folds.
    """

    classifier: Any
    classes: Array
    logits: Array
    rows: Codes | None = None
    n_folds: int = 0
    is_drawn: bool = False


@dataclass(frozen=True)
class Fitting:
    """How a classifier is fitted; `params` with an entry per row follow the rows."""

    estimator: Any
    params: Mapping[str, Any] = field(default_factory=dict)
    response_method: str = "auto"

    def fitted(self, X: Any, y: Array, rows: Codes | None = None) -> Any:
        """A fresh classifier, fitted on these rows."""
        own = _check_method_params(X, self.params, indices=rows)
        some, labels = (X, y) if rows is None else (_safe_indexing(X, rows), y[rows])
        return clone(self.estimator).fit(some, labels, **own)

    def held_out(self, X: Any, y: Array, train: Codes, test: Codes) -> CalibrationRows:
        """A classifier fitted on some rows, and what it says about the others."""
        classifier = self.fitted(X, y, train)
        logits = logits_of(classifier, _safe_indexing(X, test), self.response_method)
        return CalibrationRows(classifier, classes_of(classifier, logits.shape[1]), logits, test)

    def cross_fit(
        self, X: Any, y: Array, folds: Folds, n_jobs: int | None = None
    ) -> CalibrationRows:
        """Fit a classifier per fold and one on all rows.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.naive_bayes import GaussianNB
        >>> X, y = load_iris(return_X_y=True)
        >>> found = Fitting(GaussianNB()).cross_fit(X, y, checked_folds(5, X, y, 0, None))
        >>> found.logits.shape, found.n_folds
        ((150, 3), 5)
        """

        def said(fold: tuple[Codes, Codes]) -> CalibrationRows:
            return self.held_out(X, y, *fold)._replace(
                classifier=None
            )  # as many as folds may be too large

        answers = Parallel(n_jobs=n_jobs, prefer="threads")(map(delayed(said), folds))
        classifier = self.fitted(X, y)
        classes = classes_of(classifier, max(part.logits.shape[1] for part in answers))
        tables = [spread_columns(part.logits, part.classes, classes) for part in answers]
        logits = np.empty((len(y), len(classes)), dtype=np.result_type(*tables))
        for part, table in zip(answers, tables):
            logits[part.rows] = table
        return CalibrationRows(classifier, classes, logits, n_folds=len(folds))


def approximate(certificate: Certificate, n_folds: int) -> Certificate:
    """The certificate of cross-fitted rows: the same threshold, and no more promised than can be.

    Examples
    --------
    >>> from metacal.promises.rules.order_statistic import MaxMiscoverage
    >>> exact = MaxMiscoverage(0.05).certify(np.linspace(0, 1, 100), np.ones(100, dtype=bool))
    >>> approximate(exact, 5).statement
    'At most 5% of the correct predictions are rejected, with about 90% confidence (approximate, not certified).'
    """
    found = under(certificate, Circumstances(folds=n_folds))
    return replace(found, notes=(*certificate.notes, cross_fitted(folds=n_folds)))


def table_and_labels(X: Any, y: Any) -> tuple[Any, Array]:
    """Features that rows can be picked from, and a label for each row; raises where there is
    none.
    """
    if y is None:
        raise InputError("CalibratedClassifier requires y to be passed, but the target y is None.")
    if len(getattr(y, "shape", ())) == 2 and y.shape[1] == 1:
        y = column_or_1d(plain_array(y, "labels"), warn=True)
    y = flat_labels(y)
    try:
        check_classification_targets(y)
    except (ValueError, TypeError) as error:
        raise InputError(f"labels are no classes: {error}") from None
    if len(y) != _num_samples(X):
        raise InputError(
            f"there are {_num_samples(X)} rows but {len(y)} labels; each row needs one label."
        )
    if hasattr(X, "tocsr"):
        X = X.tocsr()
    elif not hasattr(X, "__getitem__"):
        X = np.asarray(X)
    return X, y


def is_fitted(estimator: Any) -> bool:
    """Whether it can predict already; an object that scikit-learn could not clone and fit is taken
    at its word.
    """
    if not (hasattr(estimator, "fit") and hasattr(estimator, "get_params")):
        return True
    try:
        check_is_fitted(estimator)
    except NotFittedError:
        return False
    return True


def split_rows(
    X: Any, y: Array, holdout: float, random_state: int | None, units: Codes | None = None
) -> tuple[Codes, Codes]:
    """Draw the rows to calibrate on; return the rows to fit on, and these.

    The draw is not stratified: if labels had a say, new rows would be of another source.

    Parameters
    ----------
    X, y : features and labels of the rows
    holdout : float
        Share of the rows, or of the clusters, to calibrate on.
    random_state : int or None
        A seed that the user chose; None derives it from X and y.
    units : array of int, optional
        The cluster of each row. Clusters are not divided.
    """
    n = len(y)
    n_units = n
    if units is not None:
        n_units = int(units.max()) + 1 if n else 0
    kept = min(round(holdout * n_units), n_units - 1)
    if kept < 1:
        what = "samples" if units is None else "units"
        raise InputError(
            f"an unfitted classifier needs rows to fit and rows to calibrate on; got {n_units}"
            f" {what} (n_samples={n}). Bring more rows, or a fitted classifier."
        )
    draws = row_draws(X, y, random_state, units)
    if units is None:
        held_out = np.zeros(n, dtype=bool)
        held_out[draws.order("held-out rows")[:kept]] = True
    else:
        held_out = draws.unit_numbers("held-out units") < kept
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def row_draws(X: Any, y: Array, random_state: int | None, units: Codes | None) -> RowDraws:
    """Return the source of random draws from rows of features and labels, whatever their order."""
    labels = np.unique(y, return_inverse=True)[1].reshape(-1)
    return RowDraws(*_feature_columns(X, len(y)), labels, units=units, random_state=random_state)


def _feature_columns(X: Any, n_rows: int) -> list[NDArray[Any]]:
    """Return columns of numbers that tell the rows of X apart; none if X holds anything but numbers
    and text.

    Rows of a sparse table, or of text, are hashed to one column.
    """
    if hasattr(X, "tocsr"):
        table = X.tocsr()
        hashes = np.zeros(n_rows, dtype=np.uint64)
        row_of_entry = np.repeat(np.arange(n_rows), np.diff(table.indptr))
        np.add.at(hashes, row_of_entry, row_hashes(table.indices, table.data))
        return [hashes]
    try:
        table = np.asarray(X).reshape(n_rows, -1)
    except (TypeError, ValueError):
        return []
    if table.dtype.kind in "biuf":
        return list(table.T)
    entries = table.ravel().tolist()
    if any(not isinstance(entry, str | bytes | int | float | None) for entry in entries):
        return []  # the text of an unknown object may differ from run to run
    texts = ("\0".join(map(str, row)) for row in table.tolist())
    digests = (
        blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest() for text in texts
    )
    return [np.frombuffer(b"".join(digests), dtype="<u8")]


def checked_folds(
    cv: Any, X: Any, y: Array, random_state: int | None, units: Codes | None, **split_params: Any
) -> Folds:
    """Rows to fit and rows to score, of each fold; with `units` the rows of one unit are all in one
    fold.
    """
    if isinstance(cv, bool) or (isinstance(cv, int | np.integer) and cv < 2):
        raise InputError(
            f"cv must be at least 2 folds, a splitter or None (hold rows out once); got {cv!r}."
        )
    if isinstance(cv, int | np.integer):
        _, counts = np.unique(y, return_counts=True)
        if counts.max() < cv:
            raise InputError(
                f"no class has the {cv} rows that cv={cv} needs (n_samples={len(y)}); use fewer"
                " folds."
            )
        folds = _drawn_folds(int(cv), y, units, row_draws(X, y, random_state, units))
    else:
        if units is not None:
            split_params["groups"] = units
        folds = list(check_cv(cv, y, classifier=True).split(X, y, **split_params))
    tested = np.sort(np.concatenate([test for _, test in folds]))
    if not np.array_equal(tested, np.arange(len(y))):
        raise InputError(
            "cv must put every row in one test fold, as KFold does; rows counted twice certify"
            " twice."
        )
    if units is not None and any(np.isin(units[test], units[train]).any() for train, test in folds):
        raise InputError(
            "cv parts rows of one unit between folds; give a number, GroupKFold or"
            " StratifiedGroupKFold."
        )
    return folds


def _drawn_folds(n_folds: int, y: Array, units: Codes | None, draws: RowDraws) -> Folds:
    """Draw stratified folds. The rows are brought into an order of their own first, whatever that
    of the file.
    """
    order, seed = draws.order("folds"), draws.seed("folds") % 2**31
    kind = StratifiedKFold if units is None else StratifiedGroupKFold
    splitter = kind(n_folds, shuffle=True, random_state=seed)
    groups = None if units is None else units[order]
    folds = splitter.split(np.zeros((len(y), 1)), y[order], groups)
    return [(np.sort(order[train]), np.sort(order[test])) for train, test in folds]
