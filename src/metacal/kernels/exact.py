"""Exact sums of probabilities, independent of the order of addition and the number of machines.

An entry is rounded to whole units of 2⁻⁶², which is finer than float64 near 1, and split into coarse
units of 2⁻³⁰ and fine units of 2⁻⁶². Sums of either are whole numbers. They are exact in float64 for
up to 2²² entries, and in int64 for up to 2³¹.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from metacal.formulas import Array, Codes, Flags, Float
from metacal.kernels.buffers import thread_buffers

#: Coarse and fine unit into which a probability is split.
UNITS = (2.0**-30, 2.0**-62)
#: Largest number of entries whose sums fit into int64.
MAX_ENTRIES = 1 << 31
#: A larger entry is not a probability. It is clipped, so that sums of `MAX_ENTRIES` entries fit.
_MAX_ENTRY = 2.0
#: (x + shift) - shift rounds x to whole units, because a float64 of this size has no finer bits.
_ROUNDING_SHIFTS = tuple(1.5 * 2.0**52 * unit for unit in UNITS)


def split_into_units(block: Array) -> Iterator[Float]:
    """Yield each entry rounded to coarse units, then the remainder rounded to fine units.

    The entries must lie in [0, 1], apart from rounding. The arrays are buffers that the next call
    overwrites.

    Examples
    --------
    >>> sum(float(part[0]) for part in split_into_units(np.array([0.1])))
    0.1
    """
    coarse: Float = thread_buffers.get_array("units", block.shape, np.float64)
    remainder: Float = thread_buffers.get_array("rest of units", block.shape, np.float64)
    # Converting once is faster than a sum that converts its operands.
    np.copyto(remainder, block)
    coarse_shift, fine_shift = _ROUNDING_SHIFTS
    np.add(remainder, coarse_shift, out=coarse)
    coarse -= coarse_shift
    yield coarse
    remainder -= coarse
    remainder += fine_shift
    remainder -= fine_shift
    yield remainder


def units_to_integers(values: Float, unit: float) -> NDArray[np.int64]:
    """Convert values that are multiples of a unit to integer numbers of units."""
    return (values / unit).astype(np.int64)


def add_class_units(
    block: Array, is_accepted: Flags, edges: Float, class_sums: Float, cell_sums: NDArray[np.int64]
) -> None:
    """Add the probabilities of a block exactly, separately for rejected and accepted rows.

    The C kernel in `fused.py` does the same in one pass.

    Parameters
    ----------
    block : array of shape (n_rows, n_classes)
        Probabilities.

    is_accepted : array of bool of shape (n_rows,)
        Decisions.

    edges : array of shape (n_bins + 1,)
        Bin edges.

    class_sums : array of shape (2, 2, n_classes)
        Sums per unit, decision and class, as floats that are exact for 2²¹ rows. The probabilities
        are added to them.

    cell_sums : array of int of shape (2, 2, n_classes * n_bins)
        Sums per unit, decision, class and bin. The entries above the first bin, of which there are
        few with many classes, are subtracted from them.
    """
    n_bins = len(edges) - 1
    decisions = np.stack([~is_accepted, is_accepted]).astype(np.float64)
    for unit_class_sums, entry_units in zip(class_sums, split_into_units(block)):
        # Sums of whole units are exact in any order, also in a matrix product.
        unit_class_sums += decisions @ entry_units
    flat_indices, values = find_entries_above(block, edges)
    rows, columns = np.divmod(flat_indices, block.shape[1])
    bins = np.searchsorted(edges[1:-1], values, side="left")
    cells = columns * n_bins + bins
    decision_codes = is_accepted[rows].astype(np.intp)
    clipped_values = np.clip(values, -_MAX_ENTRY, _MAX_ENTRY)
    for unit_cell_sums, unit, entry_units in zip(
        cell_sums, UNITS, split_into_units(clipped_values)
    ):
        np.subtract.at(
            unit_cell_sums, (decision_codes, cells), units_to_integers(entry_units, unit)
        )


def find_entries_above(block: Array, edges: Float) -> tuple[Codes, Float]:
    """Return the flat indices and the values of the entries above the first bin."""
    flat_block = np.ascontiguousarray(block).reshape(-1)
    first_edge = edges[1] if len(edges) > 2 else np.inf
    # The threshold is the largest number of the block's type that is not above the edge. Comparing
    # with it is comparing with the edge.
    threshold = flat_block.dtype.type(first_edge)
    if float(threshold) > first_edge:
        threshold = np.nextafter(threshold, flat_block.dtype.type(0))
    flat_indices = np.flatnonzero(flat_block > threshold)
    return flat_indices, flat_block[flat_indices].astype(np.float64)


def units_to_floats(units: NDArray[np.int64]) -> Float:
    """Convert sums of coarse and fine units, shape (2, ...), to floats."""
    return np.asarray(units[0] * UNITS[0] + units[1] * UNITS[1])
