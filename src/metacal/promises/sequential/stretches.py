"""Stretches of rows, after which a gambler with a window forgets and reinvests.

Time is divided into stretches of the length of the window. `metacal.promises.sequential.wager` has
the proof that the investments of all stretches sum to one.
"""

from __future__ import annotations

from typing import NamedTuple


class PartOfStretch(NamedTuple):
    """Consecutive rows of a batch that belong to the same stretch.

    Attributes
    ----------
    rows : slice
        Indices of the rows in the batch.
    stretch_number : int
        Number of the stretch, counted from 0.
    contains_start_of_stretch : bool
        Whether the stretch begins with the first of these rows, not in an earlier batch.
    """

    rows: slice
    stretch_number: int
    contains_start_of_stretch: bool


def split_into_stretches(
    n_rows: int, *, n_earlier_rows: int, stretch_length: int | None
) -> list[PartOfStretch]:
    """Split consecutive rows at the boundaries of stretches of equal length.

    If `stretch_length` is None, a single stretch contains all rows of all batches.

    >>> [(part.rows.stop, part.stretch_number) for part in split_into_stretches(5, n_earlier_rows=1, stretch_length=3)]
    [(2, 0), (5, 1)]
    """
    if n_rows == 0:
        return []
    if stretch_length is None:
        whole_batch = PartOfStretch(
            rows=slice(0, n_rows), stretch_number=0, contains_start_of_stretch=n_earlier_rows == 0
        )
        return [whole_batch]
    parts = []
    part_start = 0
    while part_start < n_rows:
        n_rows_before_part = n_earlier_rows + part_start
        stretch_number, n_earlier_stretch_rows = divmod(n_rows_before_part, stretch_length)
        n_remaining_stretch_rows = stretch_length - n_earlier_stretch_rows
        part_stop = min(n_rows, part_start + n_remaining_stretch_rows)
        part = PartOfStretch(
            rows=slice(part_start, part_stop),
            stretch_number=stretch_number,
            contains_start_of_stretch=n_earlier_stretch_rows == 0,
        )
        parts.append(part)
        part_start = part_stop
    return parts


def compute_invested_share(stretch_number: int, *, has_window: bool) -> float:
    """Compute the share of a gambler's initial capital that a stretch adds to the bets."""
    if not has_window:
        return 1.0
    k = stretch_number
    return 0.5 if k == 0 else 0.5 / (k * (k + 1.0))


def compute_uninvested_share(stretch_number: int) -> float:
    """Compute the share of a gambler's initial capital that is not yet invested."""
    # The investments up to stretch n leave 1/2 - Σ_{1 <= k <= n} 1/(2k(k+1)) = 1/(2(n + 1)).
    return 0.5 / (stretch_number + 1.0)
