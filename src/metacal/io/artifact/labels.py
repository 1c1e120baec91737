"""Class labels in a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NewType

import numpy as np
from numpy.typing import NDArray

from metacal.errors import ArtifactError, InputError
from metacal.io.artifact.messages import describe_json, summarize_error
from metacal.io.artifact.registry import STORED_FORM_OF_TYPE, StoredForm, Unsigned
from metacal.rows import validate

#: Array of class labels.
Labels = NewType("Labels", np.ndarray)

# Python types of the JSON values of labels, by dtype name.
# Labels can be floats, because the two classes of a binary problem may be any two numbers.
_VALUE_TYPES: dict[str, type] = {
    "str": str,
    "bool": bool,
    "int8": int,
    "int16": int,
    "int32": int,
    "int64": int,
    "uint8": int,
    "uint16": int,
    "uint32": int,
    "uint64": int,
    "float64": float,
}

# Maximum number of characters of all class names, each padded to the longest one.
# NumPy allocates four bytes per character.
_MAX_NAME_CHARACTERS = 1 << 23


@dataclass(frozen=True)
class LabelList:
    """Stored form of class labels.

    Attributes
    ----------
    dtype : str
        Name of the dtype.

    values : tuple of str, bool, int or float
        Labels in column order.
    """

    dtype: Literal[tuple(_VALUE_TYPES)]  # type: ignore[valid-type]
    values: tuple[str | bool | int | Unsigned | float, ...]


def encode_labels(labels: Any, location: str = "classes") -> LabelList:
    """Convert class labels to their stored form.

    Parameters
    ----------
    labels : array-like of shape (n_classes,)
        Labels in column order.

    location : str, default="classes"
        Name of the labels in error messages.

    Returns
    -------
    LabelList

    Raises
    ------
    ArtifactError
        If names are too long.

    Examples
    --------
    >>> encode_labels(np.array(["cat", "dog"]))
    LabelList(dtype='str', values=('cat', 'dog'))
    """
    array = np.asarray(labels)
    if array.dtype == object:
        array = array.astype(np.str_)
    label_values = tuple(array.tolist())
    dtype_name = array.dtype.name
    if array.dtype.kind == "U":
        _check_name_lengths(label_values, location)
        dtype_name = "str"
    elif array.dtype.kind == "f":
        dtype_name = "float64"
    return LabelList(dtype_name, label_values)


def decode_labels(labels: LabelList, location: str = "classes") -> NDArray[Any]:
    """Convert the stored form of class labels to an array.

    Parameters
    ----------
    labels : LabelList
        Stored labels.

    location : str, default="classes"
        Position of the labels in the file, used in error messages.

    Returns
    -------
    array of shape (n_classes,)

    Raises
    ------
    ArtifactError
        If there are no labels, they do not have the stated dtype, or two are equal.

    Examples
    --------
    >>> decode_labels(LabelList("int8", (1, 300)))
    Traceback (most recent call last):
    metacal.errors.ArtifactError: classes[1] must be of type int8, but it is 300.
    """
    dtype_name: str = labels.dtype
    values: tuple[Any, ...] = labels.values
    if not values:
        raise ArtifactError(f"the values of {location} must be a list with one entry per column.")
    for index, value in enumerate(values):
        if not _has_dtype(value, dtype_name):
            raise ArtifactError(
                f"{location}[{index}] must be of type {dtype_name}, but it is"
                f" {describe_json(value)}."
            )
    if dtype_name == "str":
        _check_name_lengths(values, location)
    try:
        return validate.check_classes(np.array(values, dtype=np.dtype(dtype_name)), len(values))
    except (InputError, OverflowError, ValueError) as error:
        raise ArtifactError(f"{location}: {summarize_error(error)}") from None


def _has_dtype(value: Any, dtype_name: str) -> bool:
    """Check whether a JSON value has the type of a dtype and fits its range."""
    if type(value) is not _VALUE_TYPES[dtype_name]:
        return False
    if not isinstance(value, int) or isinstance(value, bool):
        return True
    smallest, largest = _integer_range(dtype_name)
    return smallest <= value <= largest


@cache
def _integer_range(dtype_name: str) -> tuple[int, int]:
    """Return the smallest and largest value of an integer dtype."""
    limits = np.iinfo(dtype_name)
    return int(limits.min), int(limits.max)


def _check_name_lengths(names: Sequence[str], location: str) -> None:
    """Raise ArtifactError if an array of the names would take too much memory."""
    max_length = max(map(len, names))
    if len(names) * max_length > _MAX_NAME_CHARACTERS:
        raise ArtifactError(
            f"the {len(names):,} names of {location} are too long: the longest has {max_length:,}"
            " characters. The number of names times the longest length must be at most"
            f" {_MAX_NAME_CHARACTERS:,}. Shorten the names."
        )


STORED_FORM_OF_TYPE[Labels] = StoredForm(
    stored_type=LabelList, to_stored=encode_labels, from_stored=decode_labels
)
