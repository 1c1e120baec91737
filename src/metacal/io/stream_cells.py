"""Conversion of the cells of one line: numbers, lists of numbers, and ids."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from metacal.errors import InputError
from metacal.io.formats.jsonl import LineError
from metacal.io.formats.text_cells import parse_localized_number, parse_number_lists
from metacal.rows.score_columns import parse_score_text

#: Maximum number of characters in the name of a group.
MAX_GROUP_LENGTH = 1000
#: Maximum number of characters that a message quotes from a value.
_MAX_SHOWN = 40

#: Error about an invalid line, to which the caller adds the file and line number.
build_invalid_line_error = partial(LineError, "", 0)


def convert_cells_to_floats(
    column_names: Sequence[str], values: Sequence[Any]
) -> tuple[float, ...]:
    """Convert the cells of a line to floats.

    Parameters
    ----------
    column_names : sequence of str
        Column of each value, which an error names.

    values : sequence
        Numbers, or texts of numbers.

    Returns
    -------
    tuple of float

    Raises
    ------
    LineError
        If a value is missing or is not a number.
    """
    value_types = set(map(type, values))
    has_only_numbers = value_types <= {float, int}
    # Python accepts "1_000" as a number, but a file should not contain it.
    has_only_plain_texts = value_types == {str} and "_" not in "".join(values)
    if has_only_numbers or has_only_plain_texts:
        with suppress(ValueError, OverflowError):
            return tuple(map(float, values))
    return tuple(
        _parse_number(column_name, value)
        for column_name, value in zip(column_names, values, strict=True)
    )


def _parse_number(name: str, value: Any) -> float:
    """Convert one value to a float. Raise LineError if it is missing or not a number."""
    if value is None:
        raise build_invalid_line_error(
            f"{name!r} has no value for some classes; give a value for every class, or for none"
        )
    try:
        if isinstance(value, bool) or "_" in str(value):
            raise ValueError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        number = parse_localized_number(value) if isinstance(value, str) else None
        if number is not None and not math.isnan(number):
            return number
        shown_value = str(value)[:_MAX_SHOWN]
        raise build_invalid_line_error(
            f"{name!r} holds {shown_value!r}, which is not a number"
        ) from None


def parse_score_value(value: Any) -> Any:
    """Convert a score such as "8/10" or True to a number, and a missing score to NaN.

    Other values are returned unchanged.
    """
    if value is None:
        # The score is missing if a later model of a cascade was not called.
        return math.nan
    if not isinstance(value, str | bool):
        return value
    score = parse_score_text(str(value))
    if score is None and isinstance(value, str):
        score = parse_localized_number(value)
    if score is None:
        return value
    return score


def parse_list(path: str, name: str, value: Any) -> list[Any]:
    """Return the list in a cell, which may be text in the notation of JSON or NumPy.

    Parameters
    ----------
    path : str
        Name of the file in messages.

    name : str
        Name of the column.

    value : object
        A list, or text.

    Returns
    -------
    list

    Raises
    ------
    LineError
        If the value is not a list of numbers.
    """
    if isinstance(value, list):
        return value
    if isinstance(value, str):
        single_number = parse_localized_number(value)
        if single_number is not None:
            return [single_number]
        with suppress(InputError):
            return list(parse_number_lists(path, name, [value])[0].tolist())
    raise build_invalid_line_error(f"the entry {name!r} is not a list of numbers")


def parse_identifier(role: str, value: Any) -> str | None:
    """Convert an id or a cluster to the same text for all file formats.

    Parameters
    ----------
    role : str
        Meaning of the value in messages.

    value : str, int or None
        The value. None stands for a missing one.

    Returns
    -------
    str or None

    Raises
    ------
    LineError
        If the value is neither text nor an integer.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise build_invalid_line_error(
            f"the {role} must be text or a number, but it is {str(value)[:_MAX_SHOWN]!r}"
        )
    return str(value)


def parse_group(value: Any) -> str | None:
    """Convert a group to text. Raise LineError if it is too long or not printable."""
    group = parse_identifier("group", value)
    if group is None:
        return None
    if len(group) > MAX_GROUP_LENGTH or not group.isprintable():
        raise build_invalid_line_error(
            f"the group must be plain text with at most {MAX_GROUP_LENGTH} characters, but it is"
            f" {group[:_MAX_SHOWN]!r}"
        )
    return group
