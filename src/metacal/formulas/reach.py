"""Logits that a map can compute with: double ones near the end of the range overflow when they are summed.

A softmax takes the largest logit off first, so that nothing overflows upwards. A map that multiplies before it does so,
or takes a mean, gets ∞ - ∞ from logits near 1e308. (float32 logits are computed with in double, far from its end.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from metacal.formulas.operations import Operations

#: No logit that is further from zero than this is computed with: its square, times any number of classes, is a double.
REACH = 1e100


def within_reach(block: NDArray[Any]) -> NDArray[Any]:
    """Logits of the same softmax, none larger than 1e100 in size; the block itself, to the last bit, where none is.

    A row whose largest logit is out of reach is taken less that logit; then what lies below -1e100 counts as -1e100,
    and -inf stays.

    Examples
    --------
    >>> within_reach(np.array([[1.5e308, 1.5e308, -1.5e308], [1.0, 0.0, -np.inf]]))
    array([[   0.e+000,    0.e+000, -1.e+100], [   1.e+000,    0.e+000,       -inf]])
    """
    if block.dtype != np.float64 or not block.size:
        return block
    top = block.max(axis=1, keepdims=True)
    if np.abs(top).max() < REACH and not (block < -REACH).any():
        return block
    with np.errstate(over="ignore"):
        moved = block - np.where(np.abs(top) < REACH, 0.0, top)
    return np.where(np.isneginf(block), -np.inf, np.maximum(moved, -REACH))


def bring_within_reach(xp: Operations, x: Any, reach: float = REACH) -> Any:
    """The same as a formula."""
    top = xp.max(x)
    moved = xp.maximum(x - xp.where(xp.absolute(top) < reach, 0.0, top), -reach)
    return xp.where(xp.possible(x), moved, -np.inf)
