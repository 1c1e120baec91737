"""Kernels in C on columns of scores: sorting, counting and hashing, with the GIL released.

They are part of the interface of `fused.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import metacal.kernels._fused as _fused
from metacal.formulas import Flags, Float
from metacal.kernels.grid import Grid


def rank_scores(scores: Float, flags: Flags) -> tuple[Float, Any, Any, Any] | None:
    """Return the result of `kernels.keys.rank_scores`, None if a score uses its last bit."""
    keys = np.empty(len(scores), dtype=np.int64)
    flags = np.ascontiguousarray(flags, dtype=bool)
    is_packed = _fused.keys(as_column(scores), flags, keys)
    if not is_packed:
        return None
    return summarise_keys(keys, in_order=False)


def summarise_keys(keys: NDArray[np.int64], *, in_order: bool) -> tuple[Float, Any, Any, Any]:
    """Return the result of `kernels.keys.rank_scores` for keys with a flag in the last bit.

    Parameters
    ----------
    keys : array of int64 of shape (n_rows,)
        Output of `kernels.keys.pack_keys`, which is overwritten.

    in_order : bool
        Whether the keys are sorted already.

    Returns
    -------
    distinct_scores, last_ranks, n_unflagged, unflagged_ranks : arrays
    """
    last_ranks = np.empty(len(keys), dtype=np.int64)
    n_unflagged = np.empty(len(keys), dtype=np.int64)
    unflagged_ranks = np.empty(len(keys), dtype=np.int64)
    n_distinct, n_ranks = _fused.blocks(keys, last_ranks, n_unflagged, unflagged_ranks, in_order)
    # The C code writes the distinct scores over the keys.
    distinct_scores = keys.view(np.float64)[:n_distinct]
    return (
        distinct_scores,
        last_ranks[:n_distinct],
        n_unflagged[:n_distinct],
        unflagged_ranks[:n_ranks],
    )


def hash_scores(
    scores: Float, is_correct: Flags, coarse_grid: Grid, fine_grid: Grid, bound: int
) -> tuple[tuple[int, ...], NDArray[np.uint64]]:
    """Hash the scores and the correctness of rows in one pass, as `rows.row_hashes` does.

    Parameters
    ----------
    scores : array of shape (n_rows,)
        Scores.

    is_correct : array of bool of shape (n_rows,)
        Correctness of the predictions.

    coarse_grid, fine_grid : Grid
        Grids of the two hashes, which are even below the same size.

    bound : int
        Largest hash to return.

    Returns
    -------
    digest_sums : tuple of int
        Sums of the digest of the coarsely rounded scores with the correctness.

    hashes : array of uint64
        Hashes of the finely rounded scores, up to the bound.
    """
    sums = np.zeros(4, dtype=np.int64)
    hashes = np.empty(len(scores), dtype=np.int64)
    n_hashes = _fused.hash_scores(
        as_column(scores),
        np.ascontiguousarray(is_correct, dtype=bool),
        coarse_grid.even_below,
        coarse_grid.n_dropped_bits,
        fine_grid.n_dropped_bits,
        bound,
        sums,
        hashes,
    )
    return tuple(sums.view(np.uint64).tolist()), hashes[:n_hashes].view(np.uint64)


def count_in_cells(
    scores: Float,
    is_correct: Flags,
    packed_ranges: NDArray[np.int64],
    counts: NDArray[np.int64],
    totals: NDArray[np.int64],
) -> None:
    """Add rows to the counts of their cells in place, as `kernels.keys.CellCounter.add` does."""
    is_correct = np.ascontiguousarray(is_correct, dtype=bool)
    _fused.count_in_cells(as_column(scores), is_correct, packed_ranges.reshape(-1), counts, totals)


def as_column(values: Any, dtype: Any = np.float64) -> Any:
    """Return a contiguous and aligned array for the C code; None stays None.

    `ascontiguousarray` would accept an array that is not aligned.
    """
    return None if values is None else np.require(values, dtype, ("C_CONTIGUOUS", "ALIGNED"))
