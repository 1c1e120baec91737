"""C kernels that sort, count and hash columns of scores.

They are part of the interface of `fused.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.formulas import Flags, Float
from metacal.kernels import _fused
from metacal.kernels.grid import Grid

# The C extension has shorter names for these functions.
write_ranking = _fused.blocks
try_to_pack_keys = _fused.keys


def try_to_rank_scores(scores: Float, is_correct: Flags) -> tuple[Float, Any, Any, Any] | None:
    """Rank rows by their scores, or return None if a score uses its last bit."""
    keys = np.empty(len(scores), dtype=np.int64)
    is_correct = np.ascontiguousarray(is_correct, dtype=bool)
    is_packed = try_to_pack_keys(as_column(scores), is_correct, keys)
    if not is_packed:
        return None
    return rank_keys(keys, are_sorted=False)


def rank_keys(keys: NDArray[np.int64], *, are_sorted: bool) -> tuple[Float, Any, Any, Any]:
    """Rank rows whose score and correctness are packed into one integer key.

    Parameters
    ----------
    keys : array of int64 of shape (n_rows,)
        Output of `kernels.keys.pack_keys`, which is overwritten.

    are_sorted : bool
        Whether the keys are sorted already.

    Returns
    -------
    distinct_scores, last_ranks, cumulative_errors, error_ranks : arrays
        As in `kernels.keys.rank_scores`.
    """
    last_ranks = np.empty(len(keys), dtype=np.int64)
    cumulative_errors = np.empty(len(keys), dtype=np.int64)
    error_ranks = np.empty(len(keys), dtype=np.int64)
    n_distinct, n_errors = write_ranking(
        keys, last_ranks, cumulative_errors, error_ranks, are_sorted
    )
    # The C code writes the distinct scores into the memory of the keys.
    distinct_scores = keys.view(np.float64)[:n_distinct]
    return (
        distinct_scores,
        last_ranks[:n_distinct],
        cumulative_errors[:n_distinct],
        error_ranks[:n_errors],
    )


def hash_scores(
    scores: Float, is_correct: Flags, coarse_grid: Grid, fine_grid: Grid, max_hash: int
) -> tuple[tuple[int, ...], NDArray[np.uint64]]:
    """Hash the scores and the correctness of rows in one pass.

    The module `rows.row_hashes` defines the hashes.

    Parameters
    ----------
    scores : array of shape (n_rows,)
        Scores.

    is_correct : array of bool of shape (n_rows,)
        Correctness of the predictions.

    coarse_grid, fine_grid : Grid
        Grids of the two hashes, which are even below the same size.

    max_hash : int
        Largest hash to return.

    Returns
    -------
    digest_sums : tuple of int
        Sums of the digest of the coarsely rounded scores with the correctness.

    hashes : array of uint64
        Hashes of the finely rounded scores, up to `max_hash`.
    """
    digest_sums = np.zeros(4, dtype=np.int64)
    hashes = np.empty(len(scores), dtype=np.int64)
    n_hashes = _fused.hash_scores(
        as_column(scores),
        np.ascontiguousarray(is_correct, dtype=bool),
        coarse_grid.even_below,
        coarse_grid.n_dropped_bits,
        fine_grid.n_dropped_bits,
        max_hash,
        digest_sums,
        hashes,
    )
    return tuple(digest_sums.view(np.uint64).tolist()), hashes[:n_hashes].view(np.uint64)


def count_in_cells(
    scores: Float,
    is_correct: Flags,
    packed_ranges: NDArray[np.int64],
    counts: NDArray[np.int64],
    summary: NDArray[np.int64],
) -> None:
    """Add rows to the counts of their cells in place."""
    is_correct = np.ascontiguousarray(is_correct, dtype=bool)
    _fused.count_in_cells(as_column(scores), is_correct, packed_ranges.reshape(-1), counts, summary)


def as_column(values: Any, dtype: Any = np.float64) -> Any:
    """Return a contiguous and aligned array for the C code; None stays None.

    `ascontiguousarray` would accept an array that is not aligned.
    """
    return None if values is None else np.require(values, dtype, ("C_CONTIGUOUS", "ALIGNED"))
