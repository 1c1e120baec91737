"""Logits that a map can compute with: what stands for a masked class, and what is out of reach of
the arithmetic.

**Masks.** The one rule, for arrays here, for tensors in torch.py, and exported.

-inf says that a class is masked out. Many programs write a finite number instead:
`torch.finfo(dtype).min`, -1e30, or -1e9 and -1e4, as Hugging Face did. To a softmax they are the
same; a map that takes logits as numbers (their mean, a matrix times them) is ruined by them. Such a
logit is read as -inf when both hold:

1. it is at most -2^49, or it *is* one of `NAMED`, the numbers that programs write: -10^4, … -10^10, -65504 (the least
   float16), and what bfloat16 makes of -10^4 and -10^9;
2. it lies a hundred times further from zero than the row's largest logit: x <= -100 · |max x|.

Nothing is guessed from an ordinary value. No model computes a logit at or below -2^49 (-5.6e14):
not even a double holds it to a tenth there, and the log-likelihoods of the crudest density (a
Gaussian with next to no variance, of hundreds of pixels) end some hundred times above. Above it
only those exact numbers count, which a computed logit hits by chance as often as any other single
float; by 2. not even in integers that count thousandths of a logit. The largest logit of a row is
never a mask, so some class always stays possible.

**Reach.** A softmax takes the largest logit off first, so that nothing overflows upwards. A map
that multiplies before it does so, or takes a mean, gets ∞ - ∞ from double logits near 1e308.
(float32 logits are computed with in double, far from its end.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from metacal.formulas.operations import Operations

#: A logit above this is no mask. (-10^4 in bfloat16: the one of `NAMED` that is nearest to zero.)
LOWEST_ORDINARY = -9984.0
#: At or below this every finite logit may be a mask: -1e15, -1e30, `finfo.min` of float32, float64
#: and bfloat16.
NO_LOGIT = -(2.0**49)
#: What else is written for a mask; -998244352 and -9984 are -10^9 and -10^4 in bfloat16.
NAMED = (-1e4, -1e5, -1e6, -1e7, -1e8, -1e9, -1e10, -65504.0, -998244352.0, LOWEST_ORDINARY)
#: A mask lies this many times further from zero than the largest logit of its row.
FURTHER = 100.0
#: No logit that is further from zero than this is computed with: its square, times any number of
#: classes, is a double.
REACH = 1e100


def finite_masks(block: NDArray[Any]) -> NDArray[np.bool_] | None:
    """Where a block of logits holds a finite number for a masked class; None where it holds none.

    Examples
    --------
    >>> finite_masks(np.array([[3.0, 0.5, -1e9], [0.0, -9999.0, -1e30]]))
    array([[False, False,  True], [False, False,  True]])
    >>> finite_masks(np.array([[-7e4, -1e4], [300.0, -1e4]])) is None
    True
    """
    values = np.asarray(block, dtype=np.float64)
    low = (values <= LOWEST_ORDINARY) & (values > -np.inf)
    if not low.any():
        return None
    with np.errstate(over="ignore"):
        far = -FURTHER * np.abs(values.max(axis=1, keepdims=True))
    low &= values <= far
    low &= (values <= NO_LOGIT) | np.isin(values, NAMED)
    return low if low.any() else None


def with_masks(block: NDArray[Any]) -> NDArray[Any]:
    """The block with -inf where a finite number stands for it: itself where there is none, a copy
    otherwise.

    Examples
    --------
    >>> with_masks(np.array([[3.0, np.finfo(np.float32).min]], dtype=np.float32))
    array([[  3., -inf]], dtype=float32)
    """
    found = finite_masks(block)
    if found is None:
        return block
    masked = block.copy()
    masked[found] = -np.inf
    return masked


def read_masks(xp: Operations, x: Any) -> Any:
    """The same as a formula: the logits with -inf where a finite number stands for a masked
    class.
    """
    written = x <= NO_LOGIT
    for number in NAMED:
        written = written | (x == number)
    return xp.where(written & (x <= xp.absolute(xp.max(x)) * -FURTHER), -np.inf, x)


def without_zeros(xp: Operations, p: Any) -> Any:
    """Probabilities whose logarithms are the logits that softmax makes p of.

    A zero is read as "too small to write down": the smaller of 2.2e-16 and the row's smallest
    positive entry. Whoever takes the logarithm does so in double, and rounds once: single-precision
    ones differ from one runtime to the next.
    """
    positive = p > 0.0
    smallest = xp.minimum(xp.min(xp.where(positive, p, np.inf)), float(np.finfo(np.float64).eps))
    return xp.where(positive, p, smallest)


def within_reach(block: NDArray[Any]) -> NDArray[Any]:
    """Logits of the same softmax, none larger than 1e100 in size; the block itself, to the last
    bit, where none is.

    A row whose largest logit is out of reach is taken less that logit; then what lies below -1e100
    counts as -1e100, and -inf stays.

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


def scaled(block: NDArray[Any], inverse_temperature: float) -> NDArray[np.float64]:
    """b·x in float64, within reach."""
    return np.asarray(np.multiply(within_reach(block), inverse_temperature, dtype=np.float64))


def bring_within_reach(xp: Operations, x: Any, reach: float = REACH) -> Any:
    """The same as a formula."""
    top = xp.max(x)
    moved = xp.maximum(x - xp.where(xp.absolute(top) < reach, 0.0, top), -reach)
    return xp.where(xp.possible(x), moved, -np.inf)
