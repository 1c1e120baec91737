"""Exact sums of probabilities, independent of the order of addition.

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

#: Coarse and fine unit. A probability is a multiple of the first plus a multiple of the second.
UNITS = (2.0**-30, 2.0**-62)
#: Largest number of probabilities whose exact sums fit into int64.
MAX_SUMMANDS = 1 << 31
#: Upper limit to which entries are clipped, so that `MAX_SUMMANDS` of them fit into int64.
_MAX_ENTRY = 2.0
#: Offsets c for which (x + c) - c rounds x to whole units in float64.
_ROUNDING_OFFSETS = tuple(1.5 * 2.0**52 * unit for unit in UNITS)


def split_into_units(block: Array) -> Iterator[Float]:
    """Yield the coarse part of each entry, then the fine part of the remainder.

    The entries must lie in [0, 1], apart from rounding. The arrays are buffers that the next call
    overwrites.

    Examples
    --------
    >>> sum(float(part[0]) for part in split_into_units(np.array([0.1])))
    0.1
    """
    rounded_block: Float = thread_buffers.get_array("units", block.shape, np.float64)
    remainder: Float = thread_buffers.get_array("remainder of units", block.shape, np.float64)
    # The block is converted once, because a sum of mixed types converts its operands each time.
    np.copyto(remainder, block)
    coarse_offset, fine_offset = _ROUNDING_OFFSETS
    np.add(remainder, coarse_offset, out=rounded_block)
    rounded_block -= coarse_offset
    yield rounded_block
    remainder -= rounded_block
    rounded_remainder = remainder
    rounded_remainder += fine_offset
    rounded_remainder -= fine_offset
    yield rounded_remainder


def units_to_integers(values: Float, unit: float) -> NDArray[np.int64]:
    """Convert values that are multiples of a unit to integer numbers of units."""
    return (values / unit).astype(np.int64)


def add_probabilities_in_units(
    block: Array, is_accepted: Flags, edges: Float, class_sums: Float, cell_sums: NDArray[np.int64]
) -> None:
    """Add probabilities of rejected and of accepted rows to exact sums.

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
    n_classes = block.shape[1]
    decision_indicators = np.stack([~is_accepted, is_accepted]).astype(np.float64)
    for class_sums_of_unit, rounded_block in zip(class_sums, split_into_units(block)):
        # Sums of whole units are exact in any order, also in a matrix product.
        class_sums_of_unit += decision_indicators @ rounded_block

    # Entries in the first bin of a class, which are most entries, are not added to its cell.
    # The caller computes the sum of the first bin from the class sum and the other bins.
    flat_indices, entries = find_entries_above_first_bin(block, edges)
    entry_rows, entry_classes = np.divmod(flat_indices, n_classes)
    entry_bins = np.searchsorted(edges[1:-1], entries, side="left")
    entry_cells = entry_classes * n_bins + entry_bins
    entry_decisions = is_accepted[entry_rows].astype(np.intp)
    clipped_entries = np.clip(entries, -_MAX_ENTRY, _MAX_ENTRY)
    for cell_sums_of_unit, unit, rounded_entries in zip(
        cell_sums, UNITS, split_into_units(clipped_entries)
    ):
        np.subtract.at(
            cell_sums_of_unit,
            (entry_decisions, entry_cells),
            units_to_integers(rounded_entries, unit),
        )


def find_entries_above_first_bin(block: Array, edges: Float) -> tuple[Codes, Float]:
    """Return the flat indices and the values of the entries above the first bin."""
    flat_block = np.ascontiguousarray(block).reshape(-1)
    first_edge = edges[1] if len(edges) > 2 else np.inf
    # The edge is rounded down to the type of the block, which does not change any comparison.
    threshold = flat_block.dtype.type(first_edge)
    if float(threshold) > first_edge:
        threshold = np.nextafter(threshold, flat_block.dtype.type(0))
    flat_indices = np.flatnonzero(flat_block > threshold)
    return flat_indices, flat_block[flat_indices].astype(np.float64)


def units_to_floats(units: NDArray[np.int64]) -> Float:
    """Convert sums of coarse and fine units, shape (2, ...), to floats."""
    return np.asarray(units[0] * UNITS[0] + units[1] * UNITS[1])
