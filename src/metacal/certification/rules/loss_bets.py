r"""Rule for a mean loss: tests by betting in a fixed sequence of ranks.

**The rule.** Let the loss of each row be a number in [0, 1]. Rank m passes at level l if a bettor who
bets on the losses of the first m rows, in random order, that their mean is below the limit, ever has
1 / l of the initial capital (`statistics.replicating_bets`). Ranks are tested in a fixed sequence, at
every 100th part of the rows, until one fails. Let t be 1.2 times the first rank of the exact tests of
an accuracy of 1 - limit (`certification.test_sequences`). If n · limit < 50 for n rows, the sequence
starts at t and has all of delta. Otherwise there are two starts, 0.6 t with 0.85 of delta and 1.5 t
with 0.15. A sequence whose every test passed passes its level on to the next one. Let m be the highest
rank that passed. The rows that score less than row m + 1 are accepted. If rows m and m + 1 have equal
scores, their whole block is accepted if the loss of row m + 1 is at most the limit, and rejected
otherwise.

**Rare good rows.** If at most one of the first ten pilot rows has a loss of at most the limit, the least
certain rows are read before the tests are planned, as long as the mean loss of a window of them is at
least min(4 limit, (1 + limit) / 2) (`certification.peeling`). They are rejected. In the rule above, n is
the number of rows that stay unread, and no other rank is tested.

**Proof.** As for the accuracy, with the loss L in place of the error. Order all possible rows by X =
(score, largest loss first, an independent uniform number), and let A(x) = E[L | X <= x], which is
continuous. The bad set {A > limit} consists of intervals (a_i, b_i) with A = limit at their finite
ends. Given the numbers of calibration rows up to each end:

1. Call rank m bad if X_(m+1) lies in a bad interval, or if m rows lie up to some b_i. The numbers
   determine which ranks are bad. The rows up to a bad rank form groups: between consecutive ends,
   where the mean of L is exactly the limit, and from the last a_i to X_(m+1) = x, where it is above
   the limit, because A(x) > limit. Within a group the rows are i.i.d. In a random order that does not
   depend on losses, each next row has, given all before it, the mean of its group, which is at least
   the limit. So the capital is a nonnegative supermartingale, and m passes with probability at most l
   (Ville 1939).
2. If the accepted rows, everything up to a point t between two scores, have A(t) > limit, then m is
   bad. *Block rejected, or row m + 1 alone with its score and its loss above the limit*: from t to
   X_(m+1) all losses exceed the limit, so A stays above it. *Block accepted*: from X_(m+1) to t all
   losses are at most the limit, so A(t) > limit only if A was above it all along. *Otherwise* X_(m) <=
   t < X_(m+1), and X_(m+1) < b_i or m rows lie up to b_i.
3. Fallback (Wiens 2003) over ranks of which the bad ones are fixed: delta in all.
4. If rows were read, all of this holds for the unread rows, given the rows that were read and the
   pilot rows (`certification.peeling` has the proof). ∎

**Not valid**: an order of the bets that follows the scores. The first rows may then be better than the
limit although all rows up to the rank are worse, and a capital that was reached on them would pass.
Also not valid is a test of a rank among the rows that were read.

Losses of 0 and 1 are better served by the exact binomial tests of `rules.fixed_sequence`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import numpy as np

from metacal.certification.peeling import LeastCertainRowReader, read_until_loss_is_low
from metacal.certification.plans import PilotRows
from metacal.certification.ranking import Ranking
from metacal.certification.test_sequences import (
    WHOLE_LEVEL,
    choose_first_tested_score,
    plan_rank_ranges,
)
from metacal.formulas import Codes, Float
from metacal.rows.draws import make_generator
from metacal.statistics import bounds, replicating_bets

# Factor by which the first rank of bets exceeds that of exact tests, because bets need more rows.
_FIRST_RANK_FACTOR = 1.2

# Smallest product of the row count and the limit at which two test sequences are run.
_MIN_ALLOWED_LOSS_FOR_TWO_STARTS = 50

# Number of pilot rows whose losses are read.
_N_PILOT_LOSSES = 10

# Largest number of good pilot rows at which the least certain rows are read. A good row has a loss of
# at most the limit.
_MAX_GOOD_PILOT_ROWS = 1

# Mean loss of a window at which no more of the least certain rows are read, divided by the limit.
_MAX_WINDOW_LOSS_FACTOR = 4.0

# Smallest number of unread rows, as a multiple of the rows that a loss-free test requires.
_MIN_UNREAD_FACTOR = 1.3

# Number of ranks that are tested together at the beginning of a sequence.
_N_RANKS_OF_FIRST_BATCH = 8

# Number of ranks that are tested together after the first batch.
_N_RANKS_OF_LATER_BATCHES = 64

# Approximate number of ranks that are tested.
_N_TESTED_RANKS = 100


class _RelativeStart(NamedTuple):
    """Start of a test sequence, relative to the rank of a single start.

    Attributes
    ----------
    rank_factor : float
        Rank of the start, as a multiple of the rank of a single start.

    level_fraction : Fraction
        Fraction of delta that the sequence adds.
    """

    rank_factor: float
    level_fraction: Fraction


# Start of the test sequence if there is only one sequence.
_SINGLE_START = _RelativeStart(rank_factor=1.0, level_fraction=WHOLE_LEVEL)

# Starts of the test sequences if there are two of them.
_TWO_STARTS = (
    _RelativeStart(rank_factor=0.6, level_fraction=Fraction("0.85")),
    _RelativeStart(rank_factor=1.5, level_fraction=Fraction("0.15")),
)


class LossTestSequence(NamedTuple):
    """Ranks at which a mean loss is tested in order, until one fails.

    Attributes
    ----------
    level_fraction : Fraction
        Fraction of delta that the sequence adds.

    ranks : list of int
        Ranks in increasing order.
    """

    level_fraction: Fraction
    ranks: list[int]


@dataclass(frozen=True, eq=False)
class LossRanking:
    """Calibration rows in increasing order of score, with their losses.

    Among equal scores, the largest losses come first.

    Attributes
    ----------
    error_ranking : Ranking
        Ends of the blocks of equal scores. A row with any loss counts as an error.

    losses_by_rank : array of float of shape (n_rows,)
        Losses in [0, 1], in the order of the ranking. Index m - 1 has the loss of the row at rank m.

    bet_order : array of int of shape (n_rows,)
        Indices of the ranked rows, in the random order of the bets.
    """

    error_ranking: Ranking
    losses_by_rank: Float
    bet_order: Codes

    @classmethod
    def from_scores(cls, scores: Float, losses: Float, bet_order_seed: int) -> LossRanking:
        """Sort the rows and draw the order of the bets."""
        return cls(
            error_ranking=Ranking.from_scores(scores, losses == 0.0),
            losses_by_rank=losses[np.lexsort((-losses, scores))],
            bet_order=make_generator(bet_order_seed).permutation(len(scores)),
        )

    def losses_up_to(self, rank: int) -> Float:
        """Return the losses of the first rows of the ranking, in the order of the bets."""
        is_up_to_rank = self.bet_order < rank
        return self.losses_by_rank[self.bet_order[is_up_to_rank]]

    @cached_property
    def _cumulative_losses(self) -> Float:
        """Sum of the losses up to each rank."""
        return np.cumsum(self.losses_by_rank)

    def count_passed_ranks(
        self, ranks: Sequence[int], limit: float, significance_level: float, losses_are_rare: bool
    ) -> int:
        """Count the ranks that pass before the first failure.

        Parameters
        ----------
        ranks : sequence of int
            Ranks in increasing order.

        limit : float
            Largest allowed mean loss.

        significance_level : float
            Significance level of each test.

        losses_are_rare : bool
            Whether most losses are 0.
        """
        n_ranks_to_test = self._count_ranks_before_mean_exceeds(ranks, limit)
        n_passed = 0
        batch_size = _N_RANKS_OF_FIRST_BATCH
        while n_passed < n_ranks_to_test:
            batch_stop = min(n_passed + batch_size, n_ranks_to_test)
            batch_ranks = ranks[n_passed:batch_stop]
            passes_by_rank = replicating_bets.find_means_below(
                self._losses_up_to_each(batch_ranks),
                limit,
                significance_level,
                losses_are_rare=losses_are_rare,
            )
            if not passes_by_rank.all():
                first_failure_in_batch = int(np.argmin(passes_by_rank))
                return n_passed + first_failure_in_batch
            n_passed += len(batch_ranks)
            # Later batches are larger, because the first ranks fail most often.
            batch_size = _N_RANKS_OF_LATER_BATCHES
        return n_passed

    def _count_ranks_before_mean_exceeds(self, ranks: Sequence[int], limit: float) -> int:
        """Count the ranks before the mean loss first exceeds the limit.

        A bettor can become rich although the mean loss up to the rank exceeds the limit. Such a rank
        fails too, so no later rank needs a test.
        """
        rank_array = np.array(ranks, dtype=np.intp)
        mean_exceeds_limit = self._cumulative_losses[rank_array - 1] > limit * rank_array
        if not mean_exceeds_limit.any():
            return len(ranks)
        first_exceeding_index = np.argmax(mean_exceeds_limit)
        return int(first_exceeding_index)

    def _losses_up_to_each(self, ranks: Sequence[int]) -> list[Float]:
        """Return the losses up to each rank, in the order of the bets."""
        last_rank = ranks[-1]
        bet_order = self.bet_order[self.bet_order < last_rank]
        losses_in_bet_order = self.losses_by_rank[bet_order]
        return [losses_in_bet_order[bet_order < rank] for rank in ranks]

    def count_accepted_after_passing_rank(self, rank: int, limit: float) -> int:
        """Count the rows that may be accepted after the test at a rank has passed.

        It is the rank itself, or the start or the end of its block of equal scores.
        """
        tie_block = self.error_ranking.find_tie_block(rank)
        block_end_rank = int(self.error_ranking.tie_block_end_ranks[tie_block])
        if rank == block_end_rank:
            return block_end_rank
        # Index `rank` has the loss of the row after the rank. The largest losses of a block come
        # first, so no later row of the block has a larger loss.
        losses_after_rank = self.losses_by_rank[rank:block_end_rank]
        largest_loss_after_rank = losses_after_rank[0]
        if largest_loss_after_rank <= limit:
            return block_end_rank
        if tie_block == 0:
            return 0
        previous_block = tie_block - 1
        return int(self.error_ranking.tie_block_end_ranks[previous_block])


def count_certified_loss_rows(
    loss_ranking: LossRanking,
    limit: float,
    delta: float,
    pilot_rows: PilotRows | None = None,
    *,
    losses_are_rare: bool = False,
) -> int:
    """Count the rows that may be accepted with a mean loss of at most `limit`.

    Parameters
    ----------
    loss_ranking : LossRanking
        Calibration rows with losses in [0, 1].

    limit : float
        Largest allowed mean loss.

    delta : float
        Significance level.

    pilot_rows : PilotRows, optional
        Pilot rows. If many scores are equal, values are tested instead of ranks. If few of their
        losses are small, the least certain rows are read before the tests are planned.

    losses_are_rare : bool, default=False
        Whether most losses are 0, according to the user.

    Returns
    -------
    int
        Number of accepted rows, 0 if nothing is certified.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.random(2000)
    >>> ranking = LossRanking.from_scores(scores, scores**2 * rng.random(2000) / 2, bet_order_seed=0)
    >>> n_accepted = count_certified_loss_rows(ranking, 0.05, 0.1)
    >>> 1400 < n_accepted < 1560, bool(ranking.losses_by_rank[:n_accepted].mean() < 0.05)
    (True, True)
    """
    last_rank_to_test = find_last_rank_to_test(loss_ranking, limit, delta, pilot_rows)
    if last_rank_to_test == 0:
        return 0
    test_sequences = _plan_test_sequences(
        loss_ranking.error_ranking, last_rank_to_test, limit, delta, pilot_rows
    )
    highest_passed_rank = _find_highest_passed_rank(
        loss_ranking, test_sequences, limit, delta, losses_are_rare=losses_are_rare
    )
    if highest_passed_rank == 0:
        return 0
    return loss_ranking.count_accepted_after_passing_rank(highest_passed_rank, limit)


def _find_highest_passed_rank(
    loss_ranking: LossRanking,
    test_sequences: Sequence[LossTestSequence],
    limit: float,
    delta: float,
    *,
    losses_are_rare: bool,
) -> int:
    """Run test sequences in order, and return the highest rank that passes, or 0.

    Each sequence is tested at its own fraction of delta. If every test of a sequence passes, its
    fraction is added to that of the next one (fallback procedure of Wiens 2003).
    """
    highest_passed_rank = 0
    available_level_fraction = Fraction(0)
    for sequence in test_sequences:
        available_level_fraction += sequence.level_fraction
        n_passed = loss_ranking.count_passed_ranks(
            sequence.ranks,
            limit,
            significance_level=float(available_level_fraction) * delta,
            losses_are_rare=losses_are_rare,
        )
        if n_passed > 0:
            highest_passed_rank = sequence.ranks[n_passed - 1]
        has_failed_rank = n_passed < len(sequence.ranks)
        if has_failed_rank:
            # A failed sequence passes no part of delta on to the next sequence.
            available_level_fraction = Fraction(0)
    return highest_passed_rank


def find_last_rank_to_test(
    loss_ranking: LossRanking, limit: float, delta: float, pilot_rows: PilotRows | None
) -> int:
    """Find the last rank that may be tested, after reading uncertain rows if needed.

    The losses of the least certain rows are read if most pilot rows have losses above the limit. The
    rows that were read must not be tested.
    """
    ranking = loss_ranking.error_ranking
    if pilot_rows is None or pilot_rows.relative_losses is None:
        return ranking.n_rows
    first_pilot_losses = pilot_rows.relative_losses[:_N_PILOT_LOSSES]
    has_few_pilot_rows = len(first_pilot_losses) < _N_PILOT_LOSSES
    n_good_pilot_rows = int((first_pilot_losses <= limit).sum())
    if has_few_pilot_rows or n_good_pilot_rows > _MAX_GOOD_PILOT_ROWS:
        return ranking.n_rows
    n_required_rows = bounds.error_free_rows_needed(1.0 - limit, delta)
    midpoint_of_limit_and_one = (1.0 + limit) / 2.0
    row_reader = LeastCertainRowReader.from_losses(ranking, loss_ranking.losses_by_rank)
    read_until_loss_is_low(
        row_reader,
        max_window_loss=min(_MAX_WINDOW_LOSS_FACTOR * limit, midpoint_of_limit_and_one),
        min_unread_rows=math.ceil(_MIN_UNREAD_FACTOR * n_required_rows),
    )
    return row_reader.n_unread_rows


def _plan_test_sequences(
    ranking: Ranking,
    last_rank_to_test: int,
    limit: float,
    delta: float,
    pilot_rows: PilotRows | None,
) -> list[LossTestSequence]:
    """Plan tests at score values if many pilot scores tie, and at ranks otherwise."""
    if (
        pilot_rows is not None
        and pilot_rows.requires_score_value_tests
        and len(pilot_rows.scores) > 0
    ):
        return _plan_tests_at_score_values(
            ranking, last_rank_to_test, limit, delta, pilot_rows.scores
        )
    return plan_loss_ranks(last_rank_to_test, limit, delta)


def _plan_tests_at_score_values(
    ranking: Ranking, last_rank_to_test: int, limit: float, delta: float, pilot_scores: Float
) -> list[LossTestSequence]:
    """Plan tests at the ends of tie blocks, upward from the score of a pilot row."""
    all_block_ends = ranking.tie_block_end_ranks
    tested_block_ends = all_block_ends[all_block_ends <= last_rank_to_test]
    if len(tested_block_ends) == 0:
        return []
    pilot_scores = np.sort(pilot_scores)
    last_row_is_excluded = last_rank_to_test < ranking.n_rows
    if last_row_is_excluded:
        last_tested_block = len(tested_block_ends) - 1
        highest_tested_score = ranking.tie_block_scores[last_tested_block]
        pilot_scores = pilot_scores[pilot_scores <= highest_tested_score]
    if len(pilot_scores) > 0:
        first_tested_score = choose_first_tested_score(
            pilot_scores, last_rank_to_test, accuracy=1.0 - limit, delta=delta
        )
        candidate_block_ends = ranking.find_tie_block_ends_from(first_tested_score)
        tested_block_ends = candidate_block_ends[candidate_block_ends <= last_rank_to_test]
    return [LossTestSequence(level_fraction=WHOLE_LEVEL, ranks=tested_block_ends.tolist())]


def plan_loss_ranks(n_rows: int, limit: float, delta: float) -> list[LossTestSequence]:
    """Plan the ranks at which a mean loss is tested.

    Parameters
    ----------
    n_rows : int
        Number of rows.

    limit : float
        Largest allowed mean loss.

    delta : float
        Significance level.

    Returns
    -------
    list of LossTestSequence
        Sequences in the order of their tests.

    Examples
    --------
    >>> for level_fraction, ranks in plan_loss_ranks(1000, 0.05, 0.1):
    ...     print(level_fraction, ranks[0], ranks[-1])
    17/20 171 421
    3/20 426 1000
    """
    rank_ranges = plan_rank_ranges(n_rows, accuracy=1.0 - limit, delta=delta)
    if not rank_ranges:
        return []
    start_rank_of_exact_tests = rank_ranges[0].start_rank
    rank_of_single_start = math.ceil(_FIRST_RANK_FACTOR * start_rank_of_exact_tests)
    relative_starts: tuple[_RelativeStart, ...] = _TWO_STARTS
    if has_one_start(n_rows, limit):
        relative_starts = (_SINGLE_START,)

    start_ranks = [
        min(math.ceil(start.rank_factor * rank_of_single_start), n_rows)
        for start in relative_starts
    ]
    # A sequence ends where the next one starts.
    stop_ranks = [*start_ranks[1:], n_rows + 1]
    rank_step = max(1, n_rows // _N_TESTED_RANKS)
    test_sequences = []
    for relative_start, start_rank, stop_rank in zip(relative_starts, start_ranks, stop_ranks):
        sequence_ranks = set(range(start_rank, stop_rank, rank_step))
        is_last_sequence = stop_rank > n_rows
        if is_last_sequence:
            sequence_ranks.add(n_rows)
        test_sequences.append(
            LossTestSequence(relative_start.level_fraction, sorted(sequence_ranks))
        )
    return test_sequences


def has_one_start(n_rows: int, limit: float) -> bool:
    """Check whether there are so few rows that one test sequence gets all of delta.

    >>> has_one_start(999, 0.05), has_one_start(1000, 0.05)
    (True, False)
    """
    return n_rows * limit < _MIN_ALLOWED_LOSS_FOR_TWO_STARTS


def count_expected_loss_rows(loss_ranking: LossRanking, limit: float) -> int:
    """Count the rows of the largest prefix that meets the limit in expectation.

    It is the largest m at the end of a block of equal scores for which the sum of the first m losses
    plus 1 is at most limit (m + 1).
    """
    block_end_ranks = loss_ranking.error_ranking.tie_block_end_ranks
    total_losses_at_block_ends = np.cumsum(loss_ranking.losses_by_rank)[block_end_ranks - 1]
    meets_limit = total_losses_at_block_ends + 1.0 <= limit * (block_end_ranks + 1)
    passing_blocks = np.flatnonzero(meets_limit)
    if len(passing_blocks) == 0:
        return 0
    last_passing_block = passing_blocks[-1]
    return int(block_end_ranks[last_passing_block])
