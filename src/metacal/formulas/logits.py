"""Preparation of logits: finite masks, zero probabilities and huge values.

**Masks.** -inf means that a class is masked: it is known not to be the true class. Many
programs write a finite number instead: `torch.finfo(dtype).min`, -1e30, or -1e9 and -1e4
as Hugging Face did. A softmax treats both alike, but a map that uses the logits as
numbers (their mean, a matrix product) would be ruined. This module defines the one rule,
for arrays, tensors and exported graphs. A finite logit is read as -inf if both hold:

1. it is at most -2^49, or it equals one of the numbers in `KNOWN_MASKS` that programs write:
   -10^4, ..., -10^10, -65504 (the smallest float16), and the bfloat16 values of -10^4
   and -10^9;
2. it is at least a hundred times further from zero than the largest logit of the row:
   x <= -100 |max x|.

The rule does not misread computed logits. No model computes a logit of -2^49 (-5.6e14)
or less: a double has no correct decimal there, and the log-likelihoods of the crudest
density (a Gaussian with almost no variance, of hundreds of pixels) stay about a hundred
times above it. Above -2^49 only the exact numbers of `KNOWN_MASKS` count, which a computed
logit equals no more often than any other single float; condition 2 protects even
integer logits that count thousandths. The largest logit of a row is never a mask, so at
least one class stays unmasked.

**Reach.** A softmax subtracts the largest logit first, so nothing overflows upwards. A
map that multiplies or averages before that obtains inf - inf from float64 logits near
1e308. Such logits are first brought within `MAX_LOGIT_SIZE`. float32 logits are computed in
float64 and are never that large.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from metacal.formulas.operations import Operations

#: Largest finite number that can be a mask: -10^4 in bfloat16.
LARGEST_FINITE_MASK = -9984.0
#: Any finite logit up to this number can be a mask, such as `finfo.min`.
LARGEST_ARBITRARY_MASK = -(2.0**49)
#: Numbers above `LARGEST_ARBITRARY_MASK` that programs use as masks, some rounded to bfloat16.
KNOWN_MASKS = (
    -1e4,
    -1e5,
    -1e6,
    -1e7,
    -1e8,
    -1e9,
    -1e10,
    -65504.0,
    -998244352.0,
    LARGEST_FINITE_MASK,
)
#: Smallest ratio of the size of a mask to the size of the largest logit of its row.
MIN_MASK_RATIO = 100.0
#: Largest size of a logit, so that the sum of squares over any number of classes is finite.
MAX_LOGIT_SIZE = 1e100


def find_finite_masks(block: NDArray[Any]) -> NDArray[np.bool_] | None:
    """Find the finite logits that stand for a masked class.

    Parameters
    ----------
    block : array of shape (n_rows, n_classes)
        Logits.

    Returns
    -------
    array of bool of shape (n_rows, n_classes) or None
        Mask of these logits, or None if there are none.

    Examples
    --------
    >>> find_finite_masks(np.array([[3.0, 0.5, -1e9], [0.0, -9999.0, -1e30]]))
    array([[False, False,  True], [False, False,  True]])
    >>> find_finite_masks(np.array([[-7e4, -1e4], [300.0, -1e4]])) is None
    True
    """
    logits = np.asarray(block, dtype=np.float64)
    is_mask = (logits <= LARGEST_FINITE_MASK) & (logits > -np.inf)
    if not is_mask.any():
        return None
    with np.errstate(over="ignore"):
        largest_mask_of_row = -MIN_MASK_RATIO * np.abs(logits.max(axis=1, keepdims=True))
    is_mask &= logits <= largest_mask_of_row
    is_mask &= (logits <= LARGEST_ARBITRARY_MASK) | np.isin(logits, KNOWN_MASKS)
    if not is_mask.any():
        return None
    return is_mask


def replace_finite_masks(block: NDArray[Any]) -> NDArray[Any]:
    """Replace finite numbers that stand for a masked class by -inf.

    Parameters
    ----------
    block : array of shape (n_rows, n_classes)
        Logits.

    Returns
    -------
    array of shape (n_rows, n_classes)
        The block itself if it needs no replacement, otherwise a copy.

    Examples
    --------
    >>> replace_finite_masks(np.array([[3.0, np.finfo(np.float32).min]], dtype=np.float32))
    array([[  3., -inf]], dtype=float32)
    """
    is_mask = find_finite_masks(block)
    if is_mask is None:
        return block
    masked_block = block.copy()
    masked_block[is_mask] = -np.inf
    return masked_block


def replace_finite_masks_formula(xp: Operations, x: Any) -> Any:
    """Replace finite numbers that stand for a masked class by -inf, as a formula.

    It equals `replace_finite_masks` and runs in every runtime.
    """
    is_written_mask = x <= LARGEST_ARBITRARY_MASK
    for number in KNOWN_MASKS:
        is_written_mask = is_written_mask | (x == number)
    is_far_below = x <= xp.absolute(xp.max(x)) * -MIN_MASK_RATIO
    return xp.where(is_written_mask & is_far_below, -np.inf, x)


def replace_zero_probabilities(xp: Operations, p: Any) -> Any:
    """Replace zero probabilities by small ones, so that their logarithms are finite.

    A zero stands for a probability too small to be written. It becomes the smaller of
    2.2e-16 and the smallest positive entry of the row.

    Take the logarithm in double precision and round once, because single-precision
    logarithms differ between runtimes.
    """
    is_positive = p > 0.0
    smallest_positive = xp.min(xp.where(is_positive, p, np.inf))
    floor = xp.minimum(smallest_positive, float(np.finfo(np.float64).eps))
    return xp.where(is_positive, p, floor)


def limit_logits(block: NDArray[Any]) -> NDArray[Any]:
    """Shift huge logits within `MAX_LOGIT_SIZE` without changing their softmax.

    If the largest logit of a row is out of reach, it is subtracted from the row. Logits
    below -1e100 then become -1e100; -inf stays.

    Parameters
    ----------
    block : array of shape (n_rows, n_classes)
        Logits.

    Returns
    -------
    array of shape (n_rows, n_classes)
        The block itself if no logit is out of reach.

    Examples
    --------
    >>> limit_logits(np.array([[1.5e308, 1.5e308, -1.5e308], [1.0, 0.0, -np.inf]]))
    array([[   0.e+000,    0.e+000, -1.e+100], [   1.e+000,    0.e+000,       -inf]])
    """
    if block.dtype != np.float64 or not block.size:
        return block
    largest_logit_of_row = block.max(axis=1, keepdims=True)
    row_is_in_range = np.abs(largest_logit_of_row) < MAX_LOGIT_SIZE
    if row_is_in_range.all() and not (block < -MAX_LOGIT_SIZE).any():
        return block
    with np.errstate(over="ignore"):
        shifted_block = block - np.where(row_is_in_range, 0.0, largest_logit_of_row)
    return np.where(np.isneginf(block), -np.inf, np.maximum(shifted_block, -MAX_LOGIT_SIZE))


def scale_logits(block: NDArray[Any], inverse_temperature: float) -> NDArray[np.float64]:
    """Compute b x in float64, after shifting huge logits into a finite range."""
    return np.asarray(np.multiply(limit_logits(block), inverse_temperature, dtype=np.float64))


def limit_logits_formula(xp: Operations, x: Any, reach: float = MAX_LOGIT_SIZE) -> Any:
    """Shift huge logits into a finite range, as a formula.

    It equals `limit_logits` and runs in every runtime.
    """
    largest_logit_of_row = xp.max(x)
    shifted_logits = x - xp.where(
        xp.absolute(largest_logit_of_row) < reach, 0.0, largest_logit_of_row
    )
    return xp.where(xp.find_unmasked(x), xp.maximum(shifted_logits, -reach), -np.inf)
