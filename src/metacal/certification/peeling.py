r"""Peeling: reading the least certain rows before the tests are planned.

The ranks at which the tests of an accuracy start are fractions of the errors that all tested rows may
have. If correct rows are rare, no ranking comes near so many errors, and every test fails. Peeling
removes the bottom of the ranking, which consists of errors, before the tests are planned. It reads
losses from the least certain row upward until a window of rows contains enough correct ones. The rows
that were read are rejected. The remaining *unread* rows are tested as if they were all rows.

Terms used in this module:

- *loss*: 1 for an incorrect row and 0 for a correct one, or any number in [0, 1].
- *rank*: number of rows, counted from the most certain one.
- *tie block*: rows with equal scores. They are read together.
- *unread rows*: the rows that were not read. They are the first ranks of the ranking.

**Proof.** The rows are assumed to be independent draws from one distribution, and nothing else. Let F
be the accuracy (or the mean loss) of all possible rows up to a score.

1. The rows are read in tie blocks, from the highest score downward. The decision to read another
   block depends on the rows that were read, on the number of rows, and on values that are
   independent of the rows, such as pilot rows. So the last score that is read, S, is a stopping time.
2. Given the rows with a score of at least S, the M unread rows are independent draws from the
   distribution of the rows with a lower score. Nothing is known about them but their number.
3. Up to any score below S, F is the same for this distribution as for all rows. So whatever
   certifies a threshold from M independent rows is valid for the unread rows, whichever of its
   choices (first rank, fractions of the level, treatment of ties) depend on the rows that were read.
   Given these rows, the promise is broken with probability at most delta. Hence also on average. ∎

**Not valid**: testing ranks among the rows that were read ("un-peeling"). If one reads the least
certain rows, finds them good, and starts the tests among them after all, the plan depends on labels
that are tested. With an error rate of 1.002 times the allowed one everywhere, 1,000 rows of which 300
are read, and accuracy 0.9, this breaks 0.13 of the promises at delta = 0.1, while each of the two
plans alone breaks 0.10 (`benchmarks.rare_rows`). Also not valid: reading a tie block in part, or
looking at the score of an unread row before deciding whether to read it. Within a tie block, or given
their scores, the unread rows would no longer be independent draws from one distribution.

`LeastCertainRowReader` ensures this by its type. A plan receives it instead of the ranking. It returns
losses of rows that it counts as read, and no other, and `OneThresholdProcedure` and `ClassPromise`
test no rank above its `n_unread_rows`, whatever the plan says.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right

import numpy as np

from metacal.certification.ranking import Ranking
from metacal.formulas import Codes, Float

# Length of the window for the mean loss, as a fraction of the rank at which the window ends.
_WINDOW_FRACTION = 0.04

# Smallest number of rows in the window for the mean loss.
_MIN_WINDOW_ROWS = 8

# Number of steps in which the window for the mean loss moves by its own length.
_STEPS_PER_WINDOW = 8


class LeastCertainRowReader:
    """Reader of a ranking from its least certain row upward.

    It returns facts about rows that were read, and about no others. Rows are read in whole tie
    blocks. The rows that stay unread may be tested, because the caller learns only their number.

    Parameters
    ----------
    tie_block_end_ranks : array of int of shape (n_blocks,)
        Number of rows up to the end of each tie block.

    cumulative_losses : array of shape (n_blocks,)
        Sum of the losses up to the end of each tie block. The losses are between 0 and 1.

    tie_block_scores : array of float of shape (n_blocks,)
        Score of each tie block, in increasing order.

    max_score_kept_unread : float, default=-inf
        Rows with this score or a lower one are never read. It must not depend on the rows.

    Examples
    --------
    >>> ranking = Ranking.from_scores(np.arange(10.0), np.arange(10) < 4)
    >>> rows = LeastCertainRowReader.from_ranking(ranking)
    >>> rows.read_down_to_rank(3)
    >>> rows.n_unread_rows, rows.compute_mean_loss_next_to_unread_rows(2), rows.compute_mean_loss_next_to_unread_rows(7)
    (3, 0.5, 0.8571428571428571)
    """

    def __init__(
        self,
        tie_block_end_ranks: Codes,
        cumulative_losses: Codes | Float,
        tie_block_scores: Float,
        max_score_kept_unread: float = -math.inf,
    ) -> None:
        # Both views start at rank 0, so that each block lies between two consecutive entries.
        # Single entries are read faster from a memoryview than from an array, as Python numbers.
        self._block_ends = np.append(0, tie_block_end_ranks).data
        self._cumulative_losses = np.append(0, cumulative_losses).data
        self._n_blocks_never_read = int(
            np.searchsorted(tie_block_scores, max_score_kept_unread, side="right")
        )
        self._n_unread_blocks = len(tie_block_end_ranks)

    @classmethod
    def from_ranking(
        cls, ranking: Ranking, max_score_kept_unread: float = -math.inf
    ) -> LeastCertainRowReader:
        """Build a reader of a ranking, with a loss of 1 for every error."""
        return cls(
            ranking.tie_block_end_ranks,
            ranking.cumulative_errors,
            ranking.tie_block_scores,
            max_score_kept_unread,
        )

    @classmethod
    def from_losses(
        cls, ranking: Ranking, losses: Float, max_score_kept_unread: float = -math.inf
    ) -> LeastCertainRowReader:
        """Build a reader of a ranking with graded losses."""
        end_ranks = ranking.tie_block_end_ranks
        cumulative_losses = np.cumsum(losses)[end_ranks - 1]
        return cls(end_ranks, cumulative_losses, ranking.tie_block_scores, max_score_kept_unread)

    @property
    def n_rows(self) -> int:
        """Number of all rows."""
        return self._block_ends[-1]

    @property
    def n_unread_rows(self) -> int:
        """Number of unread rows, which is also the highest rank that may be tested."""
        return self._block_ends[self._n_unread_blocks]

    @property
    def n_read_rows(self) -> int:
        """Number of rows that were read."""
        return self.n_rows - self.n_unread_rows

    def read_down_to_rank(self, max_unread_rows: int) -> None:
        """Read the least certain rows until at most a given number is unread.

        At most `max_unread_rows` rows are then unread. Reading stops earlier at
        `max_score_kept_unread`.
        """
        n_blocks_up_to_rank = bisect_right(self._block_ends, max_unread_rows) - 1
        min_unread_blocks = max(n_blocks_up_to_rank, self._n_blocks_never_read)
        self._n_unread_blocks = min(self._n_unread_blocks, min_unread_blocks)

    def compute_mean_loss_next_to_unread_rows(self, n_rows: int) -> float:
        """Compute the mean loss of the most certain rows that were read.

        If only a part of a tie block belongs to these rows, that part has the mean loss of the block.

        Parameters
        ----------
        n_rows : int
            Number of rows, at least 1 and at most `n_read_rows`.
        """
        self._check_rows_were_read(n_rows)
        last_rank = self.n_unread_rows + n_rows
        block_of_last_rank = self._find_block(last_rank)
        block_start_rank = self._block_ends[block_of_last_rank]
        block_end_rank = self._block_ends[block_of_last_rank + 1]
        losses_up_to_block_start = self._cumulative_losses[block_of_last_rank]
        losses_up_to_block_end = self._cumulative_losses[block_of_last_rank + 1]
        losses_of_unread_rows = self._cumulative_losses[self._n_unread_blocks]

        n_block_rows = block_end_rank - block_start_rank
        included_fraction = (last_rank - block_start_rank) / n_block_rows
        losses_in_included_part = included_fraction * (
            losses_up_to_block_end - losses_up_to_block_start
        )
        losses_of_lower_blocks = losses_up_to_block_start - losses_of_unread_rows
        return (losses_of_lower_blocks + losses_in_included_part) / n_rows

    def compute_mean_ties_next_to_unread_rows(self, n_rows: int) -> float:
        """Compute the mean number of other rows with the same score as a row.

        Parameters
        ----------
        n_rows : int
            Number of rows to average over, at least 1 and at most `n_read_rows`. They are the most
            certain rows among those that were read, next to the unread ones.
        """
        self._check_rows_were_read(n_rows)
        last_rank = self.n_unread_rows + n_rows
        last_block = self._find_block(last_rank)
        # A block lies between two consecutive entries, so there is one entry more than blocks.
        block_ends = self._block_ends[self._n_unread_blocks : last_block + 2]
        n_rows_by_block = np.diff(block_ends)
        # Only a part of the last block may belong to the rows that are averaged.
        n_included_rows_by_block = np.diff(np.minimum(block_ends, last_rank))
        n_ties_of_row_by_block = n_rows_by_block - 1
        return float((n_included_rows_by_block * n_ties_of_row_by_block).sum() / n_rows)

    def compute_tie_probability(self) -> float:
        """Compute the probability that two of the read rows have equal scores.

        The rows of the largest tie block are left out, because a matcher often gives one score to
        all hopeless rows. Without other rows, the probability is 0.

        Examples
        --------
        >>> ranking = Ranking.from_scores(np.array([0.0, 1.0, 2.0, 3.0, 3.0, 9.0, 9.0, 9.0]), [True] * 8)
        >>> rows = LeastCertainRowReader.from_ranking(ranking)
        >>> rows.read_down_to_rank(2)
        >>> rows.compute_tie_probability()  # one pair of three
        0.3333333333333333
        """
        n_rows_of_blocks = np.diff(self._block_ends[self._n_unread_blocks :])
        n_other_rows = np.sort(n_rows_of_blocks)[:-1]
        n_ordered_pairs = n_other_rows.sum() * (n_other_rows.sum() - 1)
        if n_ordered_pairs <= 0:
            return 0.0
        return float((n_other_rows * (n_other_rows - 1)).sum() / n_ordered_pairs)

    def _find_block(self, rank: int) -> int:
        """Return the index of the tie block that contains a rank."""
        return bisect_left(self._block_ends, rank) - 1

    def _check_rows_were_read(self, n_rows: int) -> None:
        """Raise ValueError if a statistic would need rows that were not read."""
        if not 1 <= n_rows <= self.n_read_rows:
            raise ValueError(
                f"{n_rows} rows were requested, but only {self.n_read_rows} were read."
            )


def read_until_loss_is_low(
    rows: LeastCertainRowReader, *, max_window_loss: float, min_unread_rows: int
) -> int:
    """Read the least certain rows until the mean loss of a window is low.

    The window has 4% of the rows up to its end, and at least eight. It moves by an eighth of its
    rows. The first window is read in any case, because nothing is known without it.

    Parameters
    ----------
    rows : LeastCertainRowReader
        Rows to read. Afterwards, `rows.n_unread_rows` rows may be tested.

    max_window_loss : float
        Reading ends if the mean loss of the window is at most this value.

    min_unread_rows : int
        Number of rows that must stay unread, because fewer could not pass a test. Reading also ends
        if the next step would leave fewer. Only a large tie block can still leave fewer.

    Returns
    -------
    int
        Number of rows of the last window, or 0 if no row was read.

    Examples
    --------
    >>> ranking = Ranking.from_scores(np.arange(1000.0), np.arange(1000) < 100)
    >>> rows = LeastCertainRowReader.from_ranking(ranking)
    >>> read_until_loss_is_low(rows, max_window_loss=0.775, min_unread_rows=29), rows.n_unread_rows
    (8, 98)
    """
    n_window_rows = _choose_number_of_window_rows(rows.n_rows)
    max_unread_after_step = rows.n_rows - n_window_rows
    while max_unread_after_step >= min_unread_rows:
        n_unread_before_step = rows.n_unread_rows
        rows.read_down_to_rank(max_unread_after_step)
        no_row_was_read = rows.n_unread_rows == n_unread_before_step
        if no_row_was_read:
            break
        last_rank_of_window = rows.n_unread_rows + n_window_rows
        n_window_rows = min(_choose_number_of_window_rows(last_rank_of_window), rows.n_read_rows)
        if rows.compute_mean_loss_next_to_unread_rows(n_window_rows) <= max_window_loss:
            break
        n_rows_per_step = max(1, n_window_rows // _STEPS_PER_WINDOW)
        max_unread_after_step = rows.n_unread_rows - n_rows_per_step
    return min(n_window_rows, rows.n_read_rows)


def _choose_number_of_window_rows(last_rank: int) -> int:
    """Choose the number of rows of a window that ends at a rank."""
    return max(_MIN_WINDOW_ROWS, round(_WINDOW_FRACTION * last_rank))
