"""Sums over strips of rows, whose bits do not depend on blocks and threads."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def add_in_order(
    total: NDArray[Any] | None, strip_sums: NDArray[Any] | list[NDArray[Any]]
) -> NDArray[Any] | None:
    """Add the sums of strips to a total one after another, in the order of the strips.

    Parameters
    ----------
    total : array or None
        Sum over earlier strips. None if there are none.

    strip_sums : array of shape (n_strips, ...) or list of arrays
        Sum of each strip. A kernel that takes whole blocks returns them in one array.

    Returns
    -------
    array or None
    """
    if isinstance(strip_sums, np.ndarray):
        summands = strip_sums if total is None else np.concatenate((total[None], strip_sums))
        # `np.add.accumulate` adds from left to right, with the bits of a loop.
        cumulative_sums = np.add.accumulate(summands)
        return cumulative_sums[-1]
    for strip_sum in strip_sums:
        total = strip_sum.copy() if total is None else total + strip_sum
    return total
