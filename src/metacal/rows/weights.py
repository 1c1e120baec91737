"""Sample weights: finite, non-negative, and of a size that sums and squares of them survive."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metacal.errors import InputError
from metacal.rows.arrays import plain_array

#: The largest weight lies between 2^-64 and 2^64, or all are multiplied by the power of two that takes it there. No sum
#: or square of such weights overflows or vanishes, and no weight that counts rows or dollars is touched.
_LARGEST_POWER = 64


def row_weights(weights: ArrayLike | None, n_rows: int, *, name: str = "sample_weight") -> NDArray[np.float64] | None:
    """Return sample weights as float64, non-negative and not all zero, or None.

    Weights beyond all measure (all 1e308, all 5e-324) are scaled by a power of two: their ratios stay as they are, to
    the last bit.

    Examples
    --------
    >>> row_weights([1, 0], 2)
    array([1., 0.])
    >>> row_weights([1e308, 2.5e307], 2) < 2.0**64
    array([ True,  True])
    """
    if weights is None:
        return None
    array = _numbers(weights, name)
    if array.ndim == 0:
        array = np.full(n_rows, float(array))
    if array.shape != (n_rows,):
        raise InputError(f"{name} must have shape ({n_rows},), one weight per row; got {array.shape}.")
    wrong = ~(np.isfinite(array) & (array >= 0.0))
    if wrong.any():
        row = int(wrong.argmax())
        raise InputError(f"{name} must be finite and non-negative; row {row} has {float(array[row])}.")
    if not (array > 0).any():
        raise InputError(f"{name} is zero on every row; at least one row must count.")
    return _of_ordinary_size(array)


def _numbers(weights: ArrayLike, name: str) -> NDArray[np.float64]:
    array = plain_array(weights, name)
    if array.dtype.kind in "biuf":
        with np.errstate(over="ignore"):
            return array.astype(np.float64)
    if array.dtype == object:
        try:
            return array.astype(np.float64)
        except (ValueError, TypeError, OverflowError):
            pass
    raise InputError(f"{name} must be numbers, one per row; got an array of type {array.dtype}.")


def _of_ordinary_size(array: NDArray[np.float64]) -> NDArray[np.float64]:
    power = int(np.frexp(array.max())[1])
    if abs(power) <= _LARGEST_POWER:
        return array
    return np.ldexp(array, int(np.sign(power)) * _LARGEST_POWER - power)
