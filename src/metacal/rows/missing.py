"""Labels that may be missing: where two models agree, nobody need have looked."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError
from metacal.rows.arrays import plain_array
from metacal.rows.labels import label_codes

#: The number that stands for "no label" where it is no class.
NO_LABEL = -1


def codes_where_known(labels: Any, n_rows: int, classes: NDArray[Any]) -> NDArray[np.intp]:
    """The column of each label, -1 where there is none: None, NaN, an empty string, or -1 where that is no class.

    Examples
    --------
    >>> codes_where_known(["dog", "", None, "cat"], 4, np.array(["cat", "dog"]))
    array([ 1, -1, -1,  0])
    >>> codes_where_known(np.array([2, -1, 0]), 3, np.arange(3))
    array([ 2, -1,  0])
    """
    array = plain_array(labels, "labels")
    if array.ndim != 1 or len(array) != n_rows:
        raise InputError(f"there are {n_rows} rows but labels of shape {array.shape}; each row needs one entry.")
    own = classes.tolist()
    missing = _missing(array, NO_LABEL in own or str(NO_LABEL) in own)
    codes = np.full(n_rows, NO_LABEL, dtype=np.intp)
    if missing.all():
        raise InputError("no row has a label; label at least the rows on which the two models disagree.")
    known = array[~missing]
    if known.dtype == object:
        known = np.asarray(known.tolist())
    codes[~missing] = label_codes(known, len(known), classes)
    return codes


def _missing(array: NDArray[Any], is_class: bool) -> NDArray[np.bool_]:
    if array.dtype.kind == "U":
        return np.asarray((array == "") | ((array == str(NO_LABEL)) & (not is_class)))
    if array.dtype.kind == "f":
        return np.asarray(np.isnan(array) | ((array == NO_LABEL) & (not is_class)))
    if array.dtype.kind in "iu":
        return np.asarray((array == NO_LABEL) & (not is_class))
    if array.dtype.kind in "OT":
        return np.array([_is_missing(item, is_class) for item in array.tolist()], dtype=bool)
    return np.zeros(len(array), dtype=bool)


def _is_missing(item: Any, is_class: bool) -> bool:
    if item is None or item == "" or item != item:
        return True
    return not is_class and not isinstance(item, bool) and item in (NO_LABEL, str(NO_LABEL))
