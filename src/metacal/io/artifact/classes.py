"""The labels of the columns as plain values, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import ArtifactError, InputError
from metacal.io.artifact.encoding import brief, decode, exact_keys, shown
from metacal.rows import validate

#: What labels may be: JSON's own type for each dtype name.
DTYPES: dict[str, type] = {
    "str": str,
    "bool": bool,
    **{f"{sign}int{bits}": int for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
#: Characters of all class names together, padded to the longest: what NumPy will allocate, four bytes each.
_MOST_NAME_CHARACTERS = 1 << 23


def described(classes: NDArray[Any]) -> dict[str, Any]:
    """Labels as {"dtype", "values"}.

    Examples
    --------
    >>> described(np.array(["cat", "dog"]))
    {'dtype': 'str', 'values': ['cat', 'dog']}
    """
    if classes.dtype == object:
        classes = classes.astype(np.str_)
    values = classes.tolist()
    if classes.dtype.kind != "U":
        return {"dtype": classes.dtype.name, "values": values}
    check_names(values, "classes")
    return {"dtype": "str", "values": values}


def describe_classes(classes: NDArray[Any], *, given: bool) -> dict[str, Any]:
    """The labels of the columns, and whether the user named them."""
    return {**described(classes), "given": given}


def classes_from(data: Any) -> tuple[NDArray[Any], bool]:
    """The labels of the columns, and whether the user named them: names always come from a user, numbers may not.

    Examples
    --------
    >>> classes_from({"dtype": "str", "values": ["cat", "dog"], "given": False})[1]
    True
    """
    exact_keys(data, ["dtype", "values", "given"], "classes")
    if type(data["given"]) is not bool:
        raise ArtifactError(f"classes.given must be true or false, not {shown(data['given'])}.")
    classes = read_classes({"dtype": data["dtype"], "values": data["values"]})
    return classes, data["given"] or classes.dtype.kind == "U"


def check_features(names: Any, n_classes: int) -> tuple[str, ...] | None:
    """The names of the columns, one for each class, if there are any."""
    if names is None:
        return None
    if not isinstance(names, list) or len(names) != n_classes:
        raise ArtifactError(f"feature_names must be null or a list of {n_classes} names.")
    found: tuple[str, ...] = decode(tuple[str, ...], names, "feature_names", {})
    return found


def check_names(names: list[str], where: str) -> None:
    """Raise ArtifactError where names are too long to be held as one array."""
    longest = max(map(len, names))
    if len(names) * longest > _MOST_NAME_CHARACTERS:
        raise ArtifactError(
            f"{where}: {len(names):,} names of up to {longest:,} characters are too long; "
            f"names times the longest may be {_MOST_NAME_CHARACTERS:,} at most: shorten them."
        )


def read_classes(data: Any, where: str = "classes") -> NDArray[Any]:
    """Return the labels that `described` wrote, or raise ArtifactError.

    Examples
    --------
    >>> read_classes({"dtype": "int8", "values": [1, 300]})
    Traceback (most recent call last):
    metacal.errors.ArtifactError: classes[1] must be of type int8, not 300.
    """
    exact_keys(data, ["dtype", "values"], where)
    kind, values = data["dtype"], data["values"]
    if not isinstance(values, list) or not values:
        raise ArtifactError(f"{where}: values must be a list with an entry per column.")
    if type(kind) is not str or kind not in DTYPES:
        raise ArtifactError(f"{where}: unknown dtype {shown(kind)}.")
    for k, value in enumerate(values):
        if type(value) is not DTYPES[kind] or (type(value) is int and not _in_range(value, kind)):
            raise ArtifactError(f"{where}[{k}] must be of type {kind}, not {shown(value)}.")
    if kind == "str":
        check_names(values, where)
        decode(tuple[str, ...], values, where, {})
    try:
        return validate.class_list(np.array(values, dtype=np.dtype(kind)), len(values))
    except (InputError, OverflowError, ValueError) as error:
        raise ArtifactError(f"{where}: {brief(error)}") from None


def _in_range(value: int, kind: str) -> bool:
    info = np.iinfo(kind)
    return int(info.min) <= value <= int(info.max)
