"""What a classifier is given, features and labels: checked, and parted into rows to fit and rows to calibrate on."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import NotFittedError
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _num_samples, check_is_fitted, column_or_1d

from metacal.errors import InputError
from metacal.rows.arrays import plain_array
from metacal.rows.labels import flat_labels


def table_and_labels(X: Any, y: Any) -> tuple[Any, NDArray[Any]]:
    """Features that rows can be picked from, and a label for each row; raises where there is none."""
    if y is None:
        raise InputError("CalibratedClassifier requires y to be passed, but the target y is None.")
    y = _targets(y)
    if len(y) != _num_samples(X):
        raise InputError(f"there are {_num_samples(X)} rows but {len(y)} labels; each row needs one label.")
    if hasattr(X, "tocsr"):
        X = X.tocsr()
    elif not hasattr(X, "__getitem__"):
        X = np.asarray(X)
    return X, y


def _targets(y: Any) -> NDArray[Any]:
    """Labels as a flat array of what scikit-learn takes for classes."""
    if len(getattr(y, "shape", ())) == 2 and y.shape[1] == 1:
        y = column_or_1d(plain_array(y, "labels"), warn=True)
    found = flat_labels(y)
    try:
        check_classification_targets(found)
    except (ValueError, TypeError) as error:
        raise InputError(f"labels are no classes: {error}") from None
    return found


def is_fitted(estimator: Any) -> bool:
    """Whether it can predict already; an object that scikit-learn could not clone and fit is taken at its word."""
    if not (hasattr(estimator, "fit") and hasattr(estimator, "get_params")):
        return True
    try:
        check_is_fitted(estimator)
    except NotFittedError:
        return False
    return True


def split_rows(
    n: int, holdout: float, random_state: int, units: NDArray[np.intp] | None = None
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows to fit and rows to calibrate on, at random: if labels had a say, new rows would be of another source."""
    codes = np.arange(n) if units is None else units
    n_units = int(codes.max()) + 1 if n else 0
    kept = min(round(holdout * n_units), n_units - 1)
    if kept < 1:
        what = "samples" if units is None else "units"
        raise InputError(
            f"an unfitted classifier needs rows to fit and rows to calibrate on; got {n_units} {what} "
            f"(n_samples={n}). Bring more rows, or a fitted classifier."
        )
    order = np.random.default_rng(random_state).permutation(n_units)
    held_out = np.isin(codes, order[:kept])
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)
