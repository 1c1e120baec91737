"""Sums of probabilities that are the same in whatever order, and on however many machines, they are
added up.

An entry is rounded to whole units of 2⁻⁶², finer than float64 is near 1, and taken apart: so many
coarse units of 2⁻³⁰, so many fine ones. Sums of either are whole numbers: exact in float64 for up
to 2²² entries, in int64 for up to 2³¹.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.formulas import Array, Codes, Flags, Float
from metacal.kernels.numpy import workplace

#: The coarse unit and the fine one.
UNITS = (2.0**-30, 2.0**-62)
#: Entries whose sums int64 holds: of more, whoever adds them up must not ask.
MOST = 1 << 31
#: A larger entry is no probability; it counts as this much, so that the sums of `MOST` entries
#: hold.
_MOST_TAKEN_OFF = 2.0
#: x + s - s is x in whole units, where s is this many of them: a float64 has no place for anything
#: finer.
_SHIFTS = tuple(1.5 * 2.0**52 * unit for unit in UNITS)


def in_units(block: Array) -> Iterator[Float]:
    """Each entry rounded to coarse units, then what is left of it rounded to fine ones.

    An entry lies in [0, 1] or hardly above.

    Examples
    --------
    >>> sum(float(part[0]) for part in in_units(np.array([0.1])))
    0.1
    """
    whole: Float = workplace.array("units", block.shape, np.float64)
    rest: Float = workplace.array("rest of units", block.shape, np.float64)
    np.copyto(rest, block)  # in double once: a sum that converts on its way takes longer than both
    np.add(rest, _SHIFTS[0], out=whole)
    whole -= _SHIFTS[0]
    yield whole
    rest -= whole
    rest += _SHIFTS[1]
    rest -= _SHIFTS[1]
    yield rest


def counted(parts: Float, unit: float) -> NDArray[np.int64]:
    """Whole units, or sums of them, as integers."""
    return (parts / unit).astype(np.int64)


def class_units(block: Array, accept: Flags, edges: Float, totals: Float, above: Any) -> None:
    """Add the probabilities of a block up in whole units, rows that are rejected and those that are
    accepted apart.

    Each class's sum goes to `totals`, shape (units, accepted, classes), as floats, which hold those
    of 2²¹ rows. An entry above the first of the bins that `edges` part is taken off its place in
    `above`, shape (units, accepted, classes × bins): with many classes there are few. In C a block
    is gone through once (`fused.py`).
    """
    flags = np.stack([~accept, accept]).astype(np.float64)
    for total, own in zip(totals, in_units(block)):
        total += flags @ own  # exact, in whatever order a product adds whole units up
    places, values = entries_above(block, edges)
    row, column = np.divmod(places, block.shape[1])
    cell = column * (len(edges) - 1) + np.searchsorted(edges[1:-1], values, side="left")
    bounded = np.clip(values, -_MOST_TAKEN_OFF, _MOST_TAKEN_OFF)
    for sums, unit, own in zip(above, UNITS, in_units(bounded)):
        np.subtract.at(sums, (accept[row].astype(np.intp), cell), counted(own, unit))


def entries_above(block: Array, edges: Float) -> tuple[Codes, Float]:
    """The places in a block, row after row, of the entries above the first bin, and the entries."""
    flat = np.ascontiguousarray(block).reshape(-1)
    edge = edges[1] if len(edges) > 2 else np.inf
    rounded = flat.dtype.type(
        edge
    )  # to compare with the largest such number not above the edge is to compare with it
    threshold = rounded if float(rounded) <= edge else np.nextafter(rounded, flat.dtype.type(0))
    places = np.flatnonzero(flat > threshold)
    return places, flat[places].astype(np.float64)


def value(units: NDArray[np.int64]) -> Float:
    """What sums of coarse and fine units, shape (2, ...), come to."""
    return np.asarray(units[0] * UNITS[0] + units[1] * UNITS[1])
