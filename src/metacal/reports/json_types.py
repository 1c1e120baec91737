"""Conversion of the numbers of a report to JSON types."""

from __future__ import annotations

import math
from dataclasses import is_dataclass
from typing import Any

import numpy as np

#: Smaller whole numbers are written as integers.
_MAX_EXACT_INTEGER = 1e15


def to_json_types(value: Any, n_significant_digits: int) -> Any:
    """Convert a value to JSON types, and round floats to significant digits.

    Parameters
    ----------
    value : object
        Number, text, array, sequence, dict or dataclass.

    n_significant_digits : int
        Number of significant digits. 17 digits keep every bit.

    Returns
    -------
    object
        NaN becomes None and infinity becomes "inf".

    Examples
    --------
    >>> to_json_types({"a": np.array([1 / 3, np.nan]), "b": (True, 2)}, n_significant_digits=7)
    {'a': [0.3333333, None], 'b': [True, 2]}
    """
    # Floats are tested first for speed, because nearly all values are floats.
    if isinstance(value, float):
        return _round_float(value, n_significant_digits)
    if isinstance(value, tuple | list):
        return [to_json_types(element, n_significant_digits) for element in value]
    if isinstance(value, np.ndarray | np.generic):
        return to_json_types(value.tolist(), n_significant_digits)
    if isinstance(value, dict):
        return {
            str(name): to_json_types(element, n_significant_digits)
            for name, element in value.items()
        }
    if is_dataclass(value):
        return to_json_types(vars(value), n_significant_digits)
    return value


def _round_float(value: float, n_significant_digits: int) -> float | int | str | None:
    """Round a float to significant digits, and convert it to a JSON type.

    NaN becomes None and infinity a string. Whole numbers become int, which is shorter in JSON.
    """
    if math.isnan(value):
        return None
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    rounded_value = float(f"{value:.{n_significant_digits}g}")
    if rounded_value.is_integer() and abs(rounded_value) < _MAX_EXACT_INTEGER:
        return int(rounded_value)
    return rounded_value
