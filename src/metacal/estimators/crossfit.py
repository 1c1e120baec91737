"""Cross-fitting: every row is scored by a classifier that was fitted without it, and the one in use is fitted on all.

What that costs: a certificate is exact when the rows it counts were scored by *the* classifier in use, which never saw
them. Cross-fitted rows were scored by K others, each fitted on a part of the rows. Without an assumption on how alike
these are nothing can be promised for the one fitted on all rows: the jackknife has no distribution-free coverage at
all, and CV+ and cross-conformal prediction, which keep the fold classifiers, halve their promise (1 - 2 alpha).

References
----------
Vovk, "Cross-conformal predictors", Annals of Mathematics and Artificial Intelligence 74, 2015.
Barber, Candès, Ramdas & Tibshirani, "Predictive inference with the jackknife+", Annals of Statistics 49, 2021.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold, check_cv
from sklearn.utils import _safe_indexing
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import _check_method_params

from metacal.errors import InputError
from metacal.estimators.responses import classes_of, logits_of, spread_columns
from metacal.promises.certificate import Certificate
from metacal.promises.circumstances import Circumstances, under
from metacal.promises.notes import cross_fitted


@dataclass(frozen=True)
class CrossFit:
    """The classifier fitted on all rows, and what the fold classifiers said about the rows they had not seen."""

    classifier: Any
    classes: NDArray[Any]
    logits: NDArray[Any]
    n_folds: int


def cross_fit(
    estimator: Any,
    X: Any,
    y: NDArray[Any],
    *,
    cv: Any,
    response_method: str = "auto",
    random_state: int = 0,
    fit_params: dict[str, Any] | None = None,
    split_params: dict[str, Any] | None = None,
    units: NDArray[np.intp] | None = None,
    n_jobs: int | None = None,
) -> CrossFit:
    """Fit a classifier per fold and one on all rows; `fit_params` with an entry per row follow the rows.

    With `units` the rows of one unit are all in one fold.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.naive_bayes import GaussianNB
    >>> found = cross_fit(GaussianNB(), *load_iris(return_X_y=True), cv=5)
    >>> found.logits.shape, found.n_folds
    ((150, 3), 5)
    """
    folds = _folds(cv, X, y, random_state, split_params or {}, units)
    params = fit_params or {}
    jobs = (delayed(_held_out)(estimator, X, y, train, test, params, response_method) for train, test in folds)
    answers = Parallel(n_jobs=n_jobs, prefer="threads")(jobs)
    classifier = clone(estimator).fit(X, y, **_check_method_params(X, params))
    classes = classes_of(classifier, max(table.shape[1] for table, _ in answers))
    parts = [spread_columns(table, own, classes) for table, own in answers]
    logits = np.empty((len(y), len(classes)), dtype=np.result_type(*parts))
    for (_, test), part in zip(folds, parts):
        logits[test] = part
    return CrossFit(classifier, classes, logits, len(folds))


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


def _folds(
    cv: Any,
    X: Any,
    y: NDArray[Any],
    random_state: int,
    split_params: dict[str, Any],
    units: NDArray[np.intp] | None,
) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    if isinstance(cv, bool) or (isinstance(cv, int | np.integer) and cv < 2):
        raise InputError(f"cv must be at least 2 folds, a splitter or None (hold rows out once); got {cv!r}.")
    if isinstance(cv, int | np.integer):
        _, counts = np.unique(y, return_counts=True)
        if counts.max() < cv:
            raise InputError(f"no class has the {cv} rows that cv={cv} needs (n_samples={len(y)}); use fewer folds.")
        kind = StratifiedKFold if units is None else StratifiedGroupKFold
        cv = kind(int(cv), shuffle=True, random_state=random_state)
    if units is not None:
        split_params = {**split_params, "groups": units}
    folds = list(check_cv(cv, y, classifier=True).split(X, y, **split_params))
    tested = np.sort(np.concatenate([test for _, test in folds]))
    if not np.array_equal(tested, np.arange(len(y))):
        raise InputError(
            "cv must put every row in exactly one test fold, as KFold does; rows counted twice certify twice."
        )
    if units is not None and any(np.isin(units[test], units[train]).any() for train, test in folds):
        raise InputError("cv parts rows of one unit between folds; give a number, GroupKFold or StratifiedGroupKFold.")
    return folds


def _held_out(
    estimator: Any,
    X: Any,
    y: NDArray[Any],
    train: NDArray[np.intp],
    test: NDArray[np.intp],
    params: dict[str, Any],
    response_method: str,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """One fold: the logits of its rows, and the classes of its classifier."""
    own = _check_method_params(X, params, indices=train)
    classifier = clone(estimator).fit(_safe_indexing(X, train), y[train], **own)
    table = logits_of(classifier, _safe_indexing(X, test), response_method)
    return table, classes_of(classifier, table.shape[1])
