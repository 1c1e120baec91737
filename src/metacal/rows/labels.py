"""Labels and classes: from what the caller calls the classes to column numbers. A label may be
missing where two models agree: nobody need have looked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError, option
from metacal.formulas import Codes, Flags
from metacal.rows.arrays import first_row, plain_array

#: The number that stands for "no label" where it is no class.
NO_LABEL = -1
_WHOLE = re.compile("0|-?[1-9][0-9]{0,18}")


def class_list(classes: Sequence[Any] | NDArray[Any] | None, n_classes: int) -> NDArray[Any]:
    """Return the class labels in column order: `classes` checked, or 0 … K-1 when None.

    Examples
    --------
    >>> class_list(None, 3)
    array([0, 1, 2])
    >>> class_list(["cat", "dog"], 2)
    array(['cat', 'dog'], dtype='<U3')
    """
    if classes is None:
        return np.arange(n_classes)
    array = plain_array(classes, "classes")
    if array.dtype.kind in "OT" and all(isinstance(item, str) for item in array.ravel()):
        array = array.astype(np.str_)
    if array.ndim != 1 or array.dtype.kind not in ("iubfU" if len(array) == 2 else "iubU"):
        raise InputError(
            f"classes must be a flat list of integers or of strings, got {_shown(classes)}."
        )
    if len(array) != n_classes:
        raise InputError(
            f"classes names {len(array)} classes but the table has {n_classes} columns; "
            "give one name per column, in column order."
        )
    if len(np.unique(array)) != len(array):
        raise InputError(f"classes must not repeat a name, got {_shown(classes)}.")
    return array


def as_class_names(values: Any) -> tuple[str | int, ...]:
    """Return names as a tuple; if all are whole numbers, as integers.

    Examples
    --------
    >>> as_class_names(["0", "1"]), as_class_names(["cat", "1"]), as_class_names(["01", "02"])
    ((0, 1), ('cat', '1'), ('01', '02'))
    """
    listed_values = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(listed_values, list | tuple) or not all(
        isinstance(v, str | int | float) for v in listed_values
    ):
        raise InputError(
            f"the class names must be a flat list of texts or whole numbers, got {_shown(values)}."
        )
    # Not by way of an array: NumPy makes all names as wide as the longest.
    texts = [str(value) for value in listed_values]
    return tuple(map(int, texts)) if all(map(is_whole, texts)) else tuple(texts)


def is_whole(text: str) -> bool:
    """Whether this is how a 64-bit integer is written; 007 and -0 are names."""
    return _WHOLE.fullmatch(text) is not None and -(1 << 63) <= int(text) < 1 << 63


def two_classes(
    labels: Any, positive: Any = None, *, one_score: bool = False
) -> NDArray[Any] | None:
    """The two values that labels have, in order: booleans, floats, -1 and 1, any two numbers. None
    for 0 and 1.

    Of `one_score` for each row the second class is the one that the score speaks for: `positive`,
    or the larger of two numbers. Two names have no order that anybody could know. None where there
    are not two values either: `label_codes` says then what is wrong.

    Examples
    --------
    >>> two_classes([True, False]), two_classes([-1, 1, 1]), two_classes([0, 1])
    (array([False,  True]), array([-1,  1]), None)
    >>> two_classes(["fraud", "fine"], "fraud", one_score=True)
    array(['fine', 'fraud'], dtype='<U5')
    """
    array = flat_labels(labels)
    values, kind = np.unique(array), array.dtype.kind
    if kind == "b" or (kind == "f" and np.isin(values, (0.0, 1.0)).all()):
        values = np.array([0, 1], dtype=array.dtype)
    if one_score and len(values) > 2:
        raise InputError(
            "scores must be 2-D, one column per class, where there are more than two classes: one"
            f" score per row (n_features=1) speaks of two, and the labels have {len(values)} values"
            f" ({_shown(values[:5])}). Reshape your data: at least 2 columns are needed."
        )
    if positive is not None and positive not in values.tolist():
        raise InputError(f"positive={positive!r} is none of the labels ({_shown(values[:5])}).")
    if not one_score and kind == "U":
        return None
    if kind == "U" and positive is None:
        raise InputError(
            f"which of the labels ({_shown(values)}) does the score speak for? Name it with"
            f" {option('positive')}: the class that is the likelier the higher the score."
        )
    if kind in "iu" and np.isin(values, (0, 1)).all():
        values = np.array([0, 1])
    if len(values) != 2:
        return None
    order = values[::-1] if one_score and positive is not None and positive == values[0] else values
    return None if kind in "iu" and order.tolist() == [0, 1] else order


def label_codes(labels: Any, n_rows: int, classes: NDArray[Any]) -> Codes:
    """Return for each label the column of its class.

    Labels are integers, strings, or floats without a fraction (as a csv gives them), one per row.
    Where the classes are names, labels that are numbers count the columns from 0: the names say
    what the columns are called.

    Examples
    --------
    >>> label_codes(["dog", "cat"], 2, class_list(["cat", "dog"], 2))
    array([1, 0])
    >>> label_codes([0, 3], 2, class_list(None, 3))
    Traceback (most recent call last):
    metacal.errors.InputError: labels must be classes 0..2 (3 columns); row 1 has label 3. ...
    >>> label_codes([1, 0], 2, class_list(["cat", "dog"], 2))
    array([1, 0])
    """
    array = flat_labels(labels)
    if array.dtype.kind != "U" and classes.dtype.kind == "U":
        classes = class_list(None, len(classes))
    if len(array) != n_rows:
        raise InputError(
            f"there are {n_rows} rows but {len(array)} labels; each row needs one label."
        )
    numbered = classes.dtype.kind in "iub"
    if array.dtype.kind == "b":
        array = array.astype(np.int64)
    if numbered and array.dtype.kind == "f":
        array = _whole_numbers(array)
    if numbered and array.dtype.kind == "U":
        raise InputError(
            f"labels are strings (row 0: {str(array[0])!r}) but no class order was given; give "
            f"{option('classes')}, one name per column, in column order"
            f"{', or of one score for two classes ' + option('positive') if len(classes) == 2 else ''}."
        )
    codes, unknown = columns_of(
        array, classes.astype(np.int64) if classes.dtype.kind == "b" else classes
    )
    if unknown is not None:
        _raise_unknown_label(array, unknown, classes)
    return codes.astype(np.intp, copy=False)


def codes_where_known(labels: Any, n_rows: int, classes: NDArray[Any]) -> Codes:
    """The column of each label, -1 where there is none: None, NaN, an empty string, or -1 where
    that is no class.

    Examples
    --------
    >>> codes_where_known(["dog", "", None, "cat"], 4, np.array(["cat", "dog"]))
    array([ 1, -1, -1,  0])
    >>> codes_where_known(np.array([2, -1, 0]), 3, np.arange(3))
    array([ 2, -1,  0])
    """
    array = plain_array(labels, "labels")
    if array.ndim != 1 or len(array) != n_rows:
        raise InputError(
            f"there are {n_rows} rows but labels of shape {array.shape}; each row needs one entry."
        )
    own = classes.tolist()
    none = ("",) if NO_LABEL in own or str(NO_LABEL) in own else ("", NO_LABEL, str(NO_LABEL))
    missing = np.array([is_missing(item) or item in none for item in array.tolist()], dtype=bool)
    codes = np.full(n_rows, NO_LABEL, dtype=np.intp)
    if missing.all():
        raise InputError(
            "no row has a label; label at least the rows on which the two models disagree."
        )
    known = array[~missing]
    if known.dtype == object:
        known = np.asarray(known.tolist())
    codes[~missing] = label_codes(known, len(known), classes)
    return codes


def columns_of(labels: NDArray[Any], classes: NDArray[Any]) -> tuple[Codes, int | None]:
    """The column of each label, and the first row whose label is no class (None when all are).

    Examples
    --------
    >>> columns_of(np.array(["dog", "cow"]), np.array(["cat", "dog"]))
    (array([1, 1]), 1)
    """
    if labels.dtype.kind in "iu" and classes.dtype.kind in "iu" and len(labels):
        columns = np.array_equal(classes, np.arange(len(classes)))
        if columns and labels.min() >= 0 and labels.max() < len(classes):
            return labels.astype(np.intp, copy=False), None
    names = classes.dtype.kind == "U" or (classes.dtype == object and isinstance(classes[0], str))
    if (labels.dtype.kind == "U") != names:  # no name is a number
        return np.zeros(len(labels), dtype=np.intp), 0 if len(labels) else None
    order = np.argsort(classes, kind="stable")
    codes = order[np.minimum(np.searchsorted(classes, labels, sorter=order), len(classes) - 1)]
    return codes.astype(np.intp, copy=False), first_row(classes[codes] != labels)


def flat_labels(labels: Any, noun: str = "label") -> NDArray[Any]:
    """Labels as a 1-D array of integers, booleans, floats or strings, whatever they came in; errors
    say the noun.

    Examples
    --------
    >>> flat_labels(np.array(["cat", "dog"], dtype=object))
    array(['cat', 'dog'], dtype='<U3')
    """
    if hasattr(labels, "toarray"):
        raise InputError(f"{noun}s must be a flat list, one {noun} per row; got a sparse matrix.")
    array = plain_array(labels, f"{noun}s")
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        hint = f" {several_labels(array)}" if noun == "label" else ""
        raise InputError(f"{noun}s must be 1-D, one {noun} per row; got shape {array.shape}.{hint}")
    if array.dtype.kind in "OT":
        array = _plain_labels(array.astype(object), noun)
    if array.dtype.kind == "S":
        array = np.char.decode(array, "utf-8", "backslashreplace")
    if array.dtype.kind not in "iubfU":
        got = (
            ". Complex data not supported"
            if array.dtype.kind == "c"
            else f", got type {array.dtype}"
        )
        raise InputError(f"{noun}s must be integers or strings{got}.")
    return array


def several_labels(array: NDArray[Any]) -> str:
    """What to do with labels that are a table: one-hot, or several classes in one row.

    Examples
    --------
    >>> several_labels(np.eye(2))
    'One-hot labels: labels.argmax(axis=1).'
    """
    if array.ndim == 2 and array.dtype.kind in "iubf" and (array.sum(axis=1) != 1).any():
        return (
            "Rows with several classes, or none, are beyond a gate of one answer per row: calibrate"
            " each class by itself, as two classes (no, yes)."
        )
    return "One-hot labels: labels.argmax(axis=1)."


def _whole_numbers(array: NDArray[Any]) -> NDArray[np.int64]:
    """Floats that are whole numbers (as a csv or a column with gaps gives them) as integers."""
    _refuse_missing(np.isnan(array), "label")
    if (row := first_row(~(np.isfinite(array) & (array == np.floor(array))))) is not None:
        raise InputError(
            f"labels must be class numbers, not continuous values; row {row} has label"
            f" {float(array[row])}. Give the class of each row, a whole number or a name."
        )
    return _within_64_bits(array)


def _within_64_bits(labels: NDArray[Any], noun: str = "label") -> NDArray[np.int64]:
    """Whole numbers as int64. What does not fit wraps on one processor, saturates on another and
    raises elsewhere.
    """
    if (row := first_row(~((labels >= -(2.0**63)) & (labels < 2.0**63)).astype(bool))) is not None:
        raise InputError(
            f"{noun}s must be integers of 64 bits; row {row} has {noun} {labels[row]}."
        )
    return labels.astype(np.int64)


def _plain_labels(array: NDArray[Any], noun: str) -> NDArray[Any]:
    _refuse_missing(np.array([is_missing(item) for item in array], dtype=bool), noun)
    for kind, plain in ((str, np.str_), (bool | np.bool_, np.bool_)):
        if all(isinstance(item, kind) for item in array):
            return array.astype(plain)
    if all(isinstance(item, int | np.integer | np.bool_) for item in array):
        return _within_64_bits(array, noun)
    kinds = sorted({type(item).__name__ for item in array})
    mixture = ", not a mixture of types" if len(kinds) > 1 else ""
    raise InputError(
        f"{noun}s must be all integers or all strings{mixture}; got {' and '.join(kinds[:3])}."
    )


def is_missing(item: object) -> bool:
    """None, NaN, and what pandas writes for them."""
    if item is None or type(item).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(item, float | np.floating | np.datetime64 | np.timedelta64) and bool(
        item != item
    )


def _refuse_missing(missing: Flags, noun: str) -> None:
    if (row := first_row(missing)) is not None:
        count = int(missing.sum())
        raise InputError(
            f"{noun}s are missing in {count} rows, the first is row {row}; leave them out."
        )


def _raise_unknown_label(labels: NDArray[Any], row: int, classes: NDArray[Any]) -> None:
    count = len(classes)
    label = labels[row].item()
    if np.array_equal(classes, np.arange(count)):
        hint = f"Other labels: give {option('classes')}, one entry per column, in column order."
        if labels.min() == 1 and labels.max() == count:
            hint = "Labels that count from 1: labels - 1."
        raise InputError(
            f"labels must be classes 0..{count - 1} ({count} columns); row {row} has label {label}."
            f" {hint}"
        )
    raise InputError(
        f"label {label!r} of row {row} is not among the {count} classes ({_shown(classes)}). Fix"
        f" it, or give {option('classes')} with the name of every column, in column order."
    )


def _shown(values: object) -> str:
    text = repr(np.asarray(values, dtype=object).tolist())
    return text if len(text) <= 80 else text[:77] + "..."


def reject_label_of(reject_label: Any, classes: NDArray[Any]) -> Any:
    """The label for rejected rows; where it is None -1 (0 where that is a class), or 'rejected'
    beside names.

    Raises unless it is of the classes' type and none of them.

    Examples
    --------
    >>> reject_label_of(None, np.arange(2)), reject_label_of(None, np.array(["cat", "dog"]))
    (-1, 'rejected')
    """
    reject_label = default_reject_label(classes) if reject_label is None else reject_label
    label = np.asarray(reject_label)
    strings = classes.dtype.kind in "UO"
    if label.ndim or label.dtype.kind not in ("U" if strings else "iub"):
        kind = (
            "a string, such as reject_label='rejected',"
            if strings
            else "an integer of at most 64 bits"
        )
        raise InputError(f"reject_label must be {kind} like the classes; got {reject_label!r}.")
    if not strings and not -(2**63) <= int(label) < 2**63:
        raise InputError(
            f"reject_label must fit a signed integer of 64 bits; got {reject_label!r}."
        )
    if label in classes:
        raise InputError(
            f"reject_label {reject_label!r} is one of the classes; choose a label that is not."
        )
    whole = classes.dtype.kind in "iu"
    if (
        whole and np.result_type(classes.dtype, label.dtype).kind == "f"
    ):  # int64 beside uint64: labels round
        raise InputError(
            f"no integer type holds both the classes ({classes.dtype}) and reject_label"
            f" {reject_label!r}; choose a label that the classes' type can hold."
        )
    return reject_label


def default_reject_label(classes: NDArray[Any]) -> str | int:
    """What stands for a rejected row where nothing else was asked for: -1, or 0 between the classes
    -1 and 1.

    >>> default_reject_label(np.array([-1, 1])), default_reject_label(np.array([False, True]))
    (0, -1)
    """
    if classes.dtype.kind in "UO":
        return "rejected"
    return next(label for label in (-1, 0, -2, -3) if label not in classes)


def labels_or(reject_label: Any, accept: Flags, answers: NDArray[Any]) -> NDArray[Any]:
    """The answers, and the reject label where a row is not accepted: of one type, whatever is
    accepted.

    No array of booleans holds a third value: they come as objects.

    >>> labels_or(-1, np.array([True, False]), np.array([True, True]))
    array([True, -1], dtype=object)
    """
    whole = answers.astype(object) if answers.dtype.kind == "b" else answers
    return np.where(accept, whole, np.asarray(reject_label))
