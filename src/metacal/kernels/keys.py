"""Scores as integers in the same order: what sorting and counting by bits go by.

Read as an integer, a float64 keeps its order among numbers of its sign. Negative ones count down, so that
key(-h) = -key(h), a zero of either sign has key 0, and bits that are zero at the end of every score are zero at the end
of every key: on the grid (`kernels.grid`) the last 22.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import kernels

Keys = NDArray[np.int64]
Float = NDArray[np.float64]
Flags = NDArray[np.bool_]
_SIGN = np.int64(np.iinfo(np.int64).min)
_ONE = np.int64(1)
#: Where each bit of a negative number counts down instead of the number: the order is the same.
_FLIPPED = np.int64(0x7FFFFFFFFFFFFFFF)


def keys_of(scores: Any) -> Keys:
    """An integer for each score; a < b iff key(a) < key(b). NaN has none: its key means nothing.

    Examples
    --------
    >>> (keys_of([-np.inf, -1.0, -0.0, 0.0, 1.0, 1.5, np.inf]) >> 50).tolist()
    [-8188, -4092, 0, 0, 4092, 4094, 8188]
    """
    bits = np.asarray(scores, dtype=np.float64).view(np.int64)
    return np.where(bits < 0, _SIGN - bits, bits)


def scores_of(keys: Any) -> Float:
    """The score of each key: the other way round.

    Examples
    --------
    >>> scores_of(keys_of([-np.inf, -1.5, 0.0, 2.0]))
    array([-inf, -1.5,  0. ,  2. ])
    """
    given = np.asarray(keys, dtype=np.int64)
    return np.where(given < 0, _SIGN - given, given).view(np.float64)


def flagged_order(scores: Float, flags: Flags) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Scores in order, of equal ones those without a flag first, and the flag of each.

    The last bit of a score on the grid is free: with the flag in it one sort of integers does, several times faster
    than finding the order first.

    Examples
    --------
    >>> flagged_order(np.array([2.0, 1.0, 2.0]), np.array([True, True, False]))
    (array([1., 2., 2.]), array([ True, False,  True]))
    """
    keys = _sorted_keys(scores, flags)
    if keys is None:
        order = np.lexsort((flags, scores))
        return scores[order] + 0.0, flags[order]
    marked = (keys & _ONE).astype(bool)
    keys &= ~_ONE
    if len(keys) and keys[0] < 0:
        keys = np.where(keys < 0, keys ^ (_FLIPPED - _ONE), keys)
    return keys.view(np.float64), marked


def _sorted_keys(scores: Float, flags: Flags) -> Keys | None:
    """Integers in the order of the scores, sorted, with the flag in the last bit; None where that bit is not free."""
    sort = getattr(kernels.active, "flagged_keys", None)
    if sort is not None and len(scores) <= np.iinfo(np.uint32).max:
        found: Keys | None = sort(scores, flags)
        return found
    bits = (scores + 0.0).view(np.int64)
    if (bits & _ONE).any():
        return None
    keys = np.where(bits < 0, bits ^ _FLIPPED, bits) & ~_ONE | flags
    if not (keys[1:] >= keys[:-1]).all():
        keys.sort()
    return keys
