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
Places = NDArray[np.intp]
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


def ranked(scores: Any, flags: Any) -> tuple[Float, Places, Places, Places]:
    """Scores in order, each once; how many rows have it or a lower one, and how many of those have no flag.

    Last the ranks of the rows without a flag, which come first among rows of one score. The last bit of a score on the
    grid is free: with the flag in it one sort of integers does, several times faster than finding the order first.
    Scores on a grid that lie on a device are sorted there.

    Examples
    --------
    >>> ranked(np.array([2.0, 1.0, 2.0]), np.array([True, True, False]))
    (array([1., 2.]), array([1, 3]), array([0, 1]), array([2]))
    """
    fast = kernels.active if len(scores) <= np.iinfo(np.uint32).max and hasattr(kernels.active, "ranked") else None
    if kernels.on_device(scores):
        keys = kernels.device_kernels().sorted_keys(scores, flags)
        if fast is not None:
            return fast.blocks(keys, in_order=True)  # type: ignore[no-any-return]
        return _blocks(*_unpacked(keys))
    found: tuple[Float, Places, Places, Places] | None = None if fast is None else fast.ranked(scores, flags)
    return _blocks(*_in_order(scores, flags)) if found is None else found


def _blocks(ordered: Float, marked: Flags) -> tuple[Float, Places, Places, Places]:
    ranks, errors = np.append(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1, len(ordered)), np.cumsum(~marked)
    return ordered[ranks - 1], ranks, errors[ranks - 1], np.flatnonzero(~marked) + 1


def _in_order(scores: Float, flags: Flags) -> tuple[Float, Flags]:
    """Scores in order, of equal ones those without a flag first, and the flag of each."""
    bits = (scores + 0.0).view(np.int64)
    if (bits & _ONE).any():
        order = np.lexsort((flags, scores))
        return scores[order] + 0.0, flags[order]
    keys = np.where(bits < 0, bits ^ _FLIPPED, bits) & ~_ONE | flags
    keys.sort()
    return _unpacked(keys)


def _unpacked(keys: Keys) -> tuple[Float, Flags]:
    """The score and the flag of each key, which is overwritten."""
    marked = (keys & _ONE).astype(bool)
    keys &= ~_ONE
    return np.where(keys < 0, keys ^ (_FLIPPED - _ONE), keys).view(np.float64), marked
