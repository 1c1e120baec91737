"""Validation of labels and classes, and conversion of labels to column numbers.

The *code* of a label is the number of the column of its class. A label may be missing if two models
agree on a row, because nobody needs to label such rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from metacal import errors
from metacal.formulas import Codes, Flags
from metacal.rows.arrays import as_plain_array, find_first_true
from metacal.rows.reject_labels import check_reject_label as check_reject_label
from metacal.rows.reject_labels import default_reject_label as default_reject_label
from metacal.rows.reject_labels import replace_rejected_labels as replace_rejected_labels
from metacal.spelling import choose_spelling, format_option

#: Code of a missing label, accepted in the input unless it is the label of a class.
NO_LABEL = -1
#: Pattern of integers without leading zeros, with at most as many digits as int64.
_INTEGER_TEXT = re.compile("0|-?[1-9][0-9]{0,18}")
#: Smallest positive integer that is too large for int64.
_INT64_LIMIT = 1 << 63
#: Largest number of characters of a list of values in a message.
_MAX_SHOWN_LENGTH = 80


def check_classes(classes: Sequence[Any] | NDArray[Any] | None, n_classes: int) -> NDArray[Any]:
    """Validate the classes of the columns.

    Parameters
    ----------
    classes : sequence or None
        Classes in column order. None stands for 0 … K-1.

    n_classes : int
        Number of columns.

    Returns
    -------
    array of shape (n_classes,)

    Raises
    ------
    InputError
        If the classes are neither integers nor strings, their number differs, or one is repeated.

    Examples
    --------
    >>> check_classes(None, 3)
    array([0, 1, 2])
    >>> check_classes(["cat", "dog"], 2)
    array(['cat', 'dog'], dtype='<U3')
    """
    if classes is None:
        return np.arange(n_classes)
    array = as_plain_array(classes, "classes")
    if array.dtype.kind in "OT" and all(isinstance(item, str) for item in array.ravel()):
        array = array.astype(np.str_)
    valid_dtype_kinds = "iubU"
    # Binary labels may be floats, such as 0.0 and 1.0.
    are_two_classes = array.ndim == 1 and len(array) == 2
    if are_two_classes:
        valid_dtype_kinds += "f"
    if array.ndim != 1 or array.dtype.kind not in valid_dtype_kinds:
        raise errors.ClassMismatchError(
            "classes must be a flat list of integers or a flat list of strings, but got"
            f" {shorten_values(classes)}."
        )
    if len(array) != n_classes:
        raise errors.ClassMismatchError(
            f"classes has {len(array)} names, but the table has {n_classes} columns. Pass one"
            " name per column, in the order of the columns."
        )
    if len(np.unique(array)) != len(array):
        raise errors.ClassMismatchError(
            f"classes must not contain a name twice, but got {shorten_values(classes)}."
        )
    return array


def as_class_names(values: Any) -> tuple[str | int, ...]:
    """Return names as a tuple of integers if all are whole numbers, else of strings.

    Examples
    --------
    >>> as_class_names(["0", "1"]), as_class_names(["cat", "1"]), as_class_names(["01", "02"])
    ((0, 1), ('cat', '1'), ('01', '02'))
    """
    class_names = values.tolist() if hasattr(values, "tolist") else values
    is_flat_list = isinstance(class_names, list | tuple) and all(
        isinstance(name, str | int | float) for name in class_names
    )
    if not is_flat_list:
        raise errors.ClassMismatchError(
            "Class names must be a flat list of strings or of integers, but got"
            f" {shorten_values(values)}."
        )
    # The names are kept in a list, because an array would store each at the width of the longest.
    texts = [str(name) for name in class_names]
    if all(is_integer_text(text) for text in texts):
        return tuple(int(text) for text in texts)
    return tuple(texts)


def is_integer_text(text: str) -> bool:
    """Check whether a text is a 64-bit integer without leading zeros."""
    return _INTEGER_TEXT.fullmatch(text) is not None and -_INT64_LIMIT <= int(text) < _INT64_LIMIT


def encode_labels(labels: Any, n_rows: int, classes: NDArray[Any]) -> Codes:
    """Convert each label to the index of its class.

    Parameters
    ----------
    labels : array-like of shape (n_rows,)
        Integers, strings, or floats without a fraction (as read from a csv). If the classes are
        names, labels that are numbers count the columns from 0.

    n_rows : int
        Number of rows.

    classes : array of shape (n_classes,)
        Class of each column.

    Returns
    -------
    array of int of shape (n_rows,)

    Raises
    ------
    InputError
        If the number of labels differs, or a label is not a class.

    Examples
    --------
    >>> encode_labels(["dog", "cat"], 2, check_classes(["cat", "dog"], 2))
    array([1, 0])
    >>> encode_labels([0, 3], 2, check_classes(None, 3))
    Traceback (most recent call last):
    metacal.errors.LabelError: labels must lie between 0 and 2, because the table has 3 ...
    >>> encode_labels([1, 0], 2, check_classes(["cat", "dog"], 2))
    array([1, 0])
    """
    array = check_labels(labels)
    labels_count_named_columns = array.dtype.kind != "U" and classes.dtype.kind == "U"
    if labels_count_named_columns:
        classes = np.arange(len(classes))
    if len(array) != n_rows:
        raise errors.ShapeError(
            f"Expected one label for each row, but got {n_rows} rows and {len(array)} labels."
        )
    classes_are_numbers = classes.dtype.kind in "iub"
    if array.dtype.kind == "b":
        array = array.astype(np.int64)
    if classes_are_numbers and array.dtype.kind == "f":
        array = _convert_to_whole_numbers(array)
    if classes_are_numbers and array.dtype.kind == "U":
        _raise_unordered_names(array, n_classes=len(classes))
    comparable_classes = classes.astype(np.int64) if classes.dtype.kind == "b" else classes
    codes, unknown_row = find_indices_of_names(array, comparable_classes)
    if unknown_row is not None:
        _raise_unknown_label(array, unknown_row, classes)
    return codes.astype(np.intp, copy=False)


def _raise_unordered_names(names: NDArray[Any], n_classes: int) -> NoReturn:
    """Raise InputError for labels that are strings if the classes are unknown."""
    hint = choose_spelling("For a scikit-learn model, pass classes=model.classes_.", "")
    if n_classes == 2:
        hint = choose_spelling(hint, "For a single score column, pass --positive NAME instead.")
    raise errors.LabelError(
        f"Labels are strings (row 0: {str(names[0])!r}), so the order of the classes is"
        f" required. Pass {format_option('classes')} with one name per column, in the order"
        f" of the columns. {hint}".rstrip()
    )


def encode_known_labels(labels: Any, n_rows: int, classes: NDArray[Any]) -> Codes:
    """Convert each label to the index of its class, and a missing label to -1.

    Parameters
    ----------
    labels : array-like of shape (n_rows,)
        Labels. None, NaN, an empty string, and -1 unless it is a class, are missing labels.

    n_rows : int
        Number of rows.

    classes : array of shape (n_classes,)
        Class of each column.

    Returns
    -------
    array of int of shape (n_rows,)

    Raises
    ------
    InputError
        If all labels are missing, or a label is not a class.

    Examples
    --------
    >>> encode_known_labels(["dog", "", None, "cat"], 4, np.array(["cat", "dog"]))
    array([ 1, -1, -1,  0])
    >>> encode_known_labels(np.array([2, -1, 0]), 3, np.arange(3))
    array([ 2, -1,  0])
    """
    array = as_plain_array(labels, "labels")
    if array.ndim != 1 or len(array) != n_rows:
        raise errors.ShapeError(
            f"Expected one entry for each of the {n_rows} rows, but got labels of shape"
            f" {array.shape}."
        )
    class_values = classes.tolist()
    missing_marks: tuple[Any, ...] = ("", NO_LABEL, str(NO_LABEL))
    if NO_LABEL in class_values or str(NO_LABEL) in class_values:
        missing_marks = ("",)
    is_unlabelled = np.array(
        [is_missing(label) or label in missing_marks for label in array.tolist()], dtype=bool
    )
    if is_unlabelled.all():
        raise errors.MissingLabelsError(
            "No row has a label. Label at least the rows on which the two models disagree."
        )
    known_labels = array[~is_unlabelled]
    if known_labels.dtype == object:
        known_labels = np.asarray(known_labels.tolist())
    codes = np.full(n_rows, NO_LABEL, dtype=np.intp)
    codes[~is_unlabelled] = encode_labels(known_labels, len(known_labels), classes)
    return codes


def find_indices_of_names(labels: NDArray[Any], classes: NDArray[Any]) -> tuple[Codes, int | None]:
    """Find the class index of each label, and the first row with an unknown label.

    Examples
    --------
    >>> find_indices_of_names(np.array(["dog", "cow"]), np.array(["cat", "dog"]))
    (array([1, 1]), 1)
    """
    n_classes = len(classes)
    if labels.dtype.kind in "iu" and classes.dtype.kind in "iu" and len(labels):
        are_column_numbers = np.array_equal(classes, np.arange(n_classes))
        if are_column_numbers and labels.min() >= 0 and labels.max() < n_classes:
            return labels.astype(np.intp, copy=False), None
    are_names = classes.dtype.kind == "U" or (
        classes.dtype == object and isinstance(classes[0], str)
    )
    if (labels.dtype.kind == "U") != are_names:
        # The first label is unknown, because numbers and strings are never equal.
        unknown_row = 0 if len(labels) else None
        return np.zeros(len(labels), dtype=np.intp), unknown_row
    sorting_order = np.argsort(classes, kind="stable")
    sorted_positions = np.searchsorted(classes, labels, sorter=sorting_order)
    codes = sorting_order[np.minimum(sorted_positions, n_classes - 1)]
    return codes.astype(np.intp, copy=False), find_first_true(classes[codes] != labels)


def check_labels(labels: Any, noun: str = "label") -> NDArray[Any]:
    """Validate labels: a flat array of integers, booleans, floats or strings.

    Parameters
    ----------
    labels : array-like of shape (n,) or (n, 1)
        Labels.

    noun : str, default="label"
        Noun for an entry in messages.

    Returns
    -------
    array of shape (n,)

    Raises
    ------
    InputError
        If the labels are of another shape or type, or some are missing.

    Examples
    --------
    >>> check_labels(np.array(["cat", "dog"], dtype=object))
    array(['cat', 'dog'], dtype='<U3')
    """
    if hasattr(labels, "toarray"):
        raise errors.ShapeError(
            f"{noun}s must be a 1-D list with one {noun} per row, but got a sparse matrix."
        )
    array = as_plain_array(labels, f"{noun}s")
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        hint = f" {advise_on_label_table(array)}" if noun == "label" else ""
        raise errors.ShapeError(
            f"{noun}s must be 1-D with one {noun} per row, but got an array of shape"
            f" {array.shape}.{hint}"
        )
    if array.dtype.kind in "OT":
        array = _convert_objects(array.astype(object), noun)
    if array.dtype.kind == "S":
        array = np.char.decode(array, "utf-8", "backslashreplace")
    if array.dtype.kind == "c":
        raise errors.LabelError(f"{noun}s must be integers or strings. Complex data not supported.")
    if array.dtype.kind not in "iubfU":
        raise errors.LabelError(f"{noun}s must be integers or strings, but got type {array.dtype}.")
    if array.dtype == np.uint64 and array.max(initial=0) < _INT64_LIMIT:
        # NumPy has no integer type for both uint64 and a negative label of rejected rows.
        return array.astype(np.int64)
    return array


def advise_on_label_table(array: NDArray[Any]) -> str:
    """Return advice about labels in a table, such as one-hot labels.

    Examples
    --------
    >>> advise_on_label_table(np.eye(2))
    'If the labels are one-hot, pass labels.argmax(axis=1).'
    """
    if array.ndim == 2 and array.dtype.kind in "iubf" and (array.sum(axis=1) != 1).any():
        return (
            "A gate supports one class per row. If rows have several classes or none, calibrate each"
            " class separately, as two classes (no, yes)."
        )
    return "If the labels are one-hot, pass labels.argmax(axis=1)."


def _convert_to_whole_numbers(array: NDArray[Any]) -> NDArray[np.int64]:
    """Convert floats without a fraction to int64; raise InputError for other floats."""
    _raise_if_missing(np.isnan(array), "label")
    invalid_row = find_first_true(~(np.isfinite(array) & (array == np.floor(array))))
    if invalid_row is not None:
        raise errors.LabelError(
            f"labels must be classes, but row {invalid_row} has the continuous value"
            f" {float(array[invalid_row])}."
            " Pass the class of each row, as an integer or a string."
        )
    return _to_int64(array)


def _to_int64(labels: NDArray[Any], noun: str = "label") -> NDArray[np.int64]:
    """Convert whole numbers to int64; raise InputError if one does not fit.

    NumPy would wrap on one processor, saturate on another and raise on a third.
    """
    fits = (labels >= -(2.0**63)) & (labels < 2.0**63)
    invalid_row = find_first_true(~fits.astype(bool))
    if invalid_row is not None:
        raise errors.LabelError(
            f"{noun}s must fit into 64-bit integers, but row {invalid_row} has"
            f" {labels[invalid_row]}."
        )
    return labels.astype(np.int64)


def _convert_objects(array: NDArray[Any], noun: str) -> NDArray[Any]:
    """Convert an array of objects to strings, booleans or integers."""
    _raise_if_missing(np.array([is_missing(item) for item in array], dtype=bool), noun)
    if all(isinstance(item, str) for item in array):
        return array.astype(np.str_)
    if all(isinstance(item, bool | np.bool_) for item in array):
        return array.astype(np.bool_)
    if all(isinstance(item, int | np.integer | np.bool_) for item in array):
        return _to_int64(array, noun)
    type_names = sorted({type(item).__name__ for item in array})
    mixture = ", not a mixture of types" if len(type_names) > 1 else ""
    raise errors.LabelError(
        f"{noun}s must be all integers or all strings{mixture}, but got"
        f" {' and '.join(type_names[:3])}."
    )


def is_missing(item: object) -> bool:
    """Check whether a value is None, NaN or a missing value of pandas."""
    if item is None or type(item).__name__ in ("NAType", "NaTType"):
        return True
    if not isinstance(item, float | np.floating | np.datetime64 | np.timedelta64):
        return False
    # NaN and NaT are not equal to themselves.
    return bool(item != item)


def _raise_if_missing(is_missing_row: Flags, noun: str) -> None:
    """Raise InputError if any label is missing."""
    first_missing_row = find_first_true(is_missing_row)
    if first_missing_row is not None:
        n_missing = int(is_missing_row.sum())
        raise errors.MissingLabelsError(
            f"{noun}s are missing in {n_missing} rows (the first is row {first_missing_row}). Leave"
            " out these"
            " rows."
        )


def _raise_unknown_label(labels: NDArray[Any], row: int, classes: NDArray[Any]) -> None:
    """Raise InputError for a label that is not one of the classes."""
    n_classes = len(classes)
    label = labels[row].item()
    if np.array_equal(classes, np.arange(n_classes)):
        hint = (
            f"For other labels, pass {format_option('classes')} with one name per column, in the"
            " order of the columns."
        )
        if labels.min() == 1 and labels.max() == n_classes:
            hint = "If your labels start at 1, pass labels - 1."
        raise errors.LabelError(
            f"labels must lie between 0 and {n_classes - 1}, because the table has {n_classes}"
            f" columns, but row {row} has label {label}. {hint}"
        )
    raise errors.LabelError(
        f"The label {label!r} of row {row} is not one of the {n_classes} classes"
        f" ({shorten_values(classes)}). Correct the label, or pass {format_option('classes')} with the"
        " name of every column, in the order of the columns."
    )


def shorten_values(values: object) -> str:
    """Return a list of values as text of at most 80 characters."""
    values_text = repr(np.asarray(values, dtype=object).tolist())
    if len(values_text) <= _MAX_SHOWN_LENGTH:
        return values_text
    return values_text[: _MAX_SHOWN_LENGTH - 3] + "..."
