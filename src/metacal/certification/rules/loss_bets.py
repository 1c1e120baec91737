r"""Tests of a mean loss by betting.

**The rule.** Let the loss of each row be a number in [0, 1]. A fixed sequence of ranks is tested with
the starts, order and levels of `rules.fixed_sequence`, at every 200th part of the rows. Rank m passes
at level l if a bettor who bets on the losses of the first m rows, in random order, that their mean is
below the limit, ever has 1 / l of the initial capital (`statistics.betting`). Let m be the highest
rank that passed. The rows that score less than row m + 1 are accepted. If rows m and m + 1 have equal
scores, their whole block is accepted if the loss of row m + 1 is at most the limit, and rejected
otherwise.

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
3. Fallback (Wiens 2003) over ranks of which the bad ones are fixed: delta in all. ∎

Losses of 0 and 1 are better served by the exact binomial tests of `rules.fixed_sequence`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from metacal.certification.plans import PilotRows
from metacal.certification.ranking import Ranking
from metacal.certification.test_sequences import (
    choose_first_tested_score,
    plan_rank_ranges,
    run_fallback_tests,
)
from metacal.formulas import Codes, Float
from metacal.rows.draws import make_generator
from metacal.statistics import replicating_bets

# Factor by which the first rank of bets exceeds that of exact tests, because bets need more rows.
_FIRST_RANK_FACTOR = 1.2

# Approximate number of ranks that are tested.
_N_TESTED_RANKS = 200


@dataclass(frozen=True, eq=False)
class LossRanking:
    """Calibration rows in increasing order of score, with their losses.

    Among equal scores, the largest losses come first.

    Attributes
    ----------
    ranking : Ranking
        Ends of the blocks of equal scores. A row with any loss counts as an error.

    losses : array of float of shape (n_rows,)
        Losses in [0, 1], in the order of the ranking.

    bet_order : array of int of shape (n_rows,)
        Indices of the ranked rows, in the random order of the bets.
    """

    ranking: Ranking
    losses: Float
    bet_order: Codes

    @classmethod
    def from_scores(cls, scores: Float, losses: Float, seed: int) -> LossRanking:
        """Sort the rows and draw the order of the bets."""
        return cls(
            ranking=Ranking.from_scores(scores, losses == 0.0),
            losses=losses[np.lexsort((-losses, scores))],
            bet_order=make_generator(seed).permutation(len(scores)),
        )

    def losses_up_to(self, rank: int) -> Float:
        """Return the losses of the first rows of the ranking, in the order of the bets."""
        return self.losses[self.bet_order[self.bet_order < rank]]

    def passes(self, rank: int, limit: float, significance_level: float) -> bool:
        """Test whether the mean loss of the rows up to a rank is at most the limit."""
        losses = self.losses_up_to(rank)
        if losses.mean() > limit:
            return False
        return replicating_bets.certifies_mean_below(losses, limit, significance_level)

    def count_accepted_after_passing_rank(self, rank: int, limit: float) -> int:
        """Count the rows that may be accepted if a rank passed.

        It is the rank itself, or the start or the end of its block of equal scores.
        """
        tie_block = self.ranking.find_tie_block(rank)
        block_end_rank = int(self.ranking.tie_block_end_ranks[tie_block])
        if rank == block_end_rank:
            return block_end_rank
        # The largest losses of a block come first, so the next loss bounds all later ones.
        largest_later_loss = self.losses[rank]
        if largest_later_loss <= limit:
            return block_end_rank
        if tie_block == 0:
            return 0
        return int(self.ranking.tie_block_end_ranks[tie_block - 1])


def count_certified_loss_rows(
    loss_ranking: LossRanking, limit: float, delta: float, pilot: PilotRows | None = None
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

    pilot : PilotRows, optional
        Pilot rows. If many scores are equal, values are tested instead of ranks.

    Returns
    -------
    int
        Number of accepted rows, 0 if nothing is certified.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.random(2000)
    >>> ranking = LossRanking.from_scores(scores, scores**2 * rng.random(2000) / 2, seed=0)
    >>> n_accepted = count_certified_loss_rows(ranking, 0.05, 0.1)
    >>> 1400 < n_accepted < 1560, bool(ranking.losses[:n_accepted].mean() < 0.05)
    (True, True)
    """
    n_rows = loss_ranking.ranking.n_rows

    def passes(rank: int, delta_fraction: Fraction) -> bool:
        return loss_ranking.passes(rank, limit, significance_level=float(delta_fraction) * delta)

    if pilot is None or not pilot.tests_score_values or len(pilot.scores) == 0:
        best_rank = run_fallback_tests(plan_loss_ranks(n_rows, limit, delta), passes)
        if best_rank is None:
            return 0
        return loss_ranking.count_accepted_after_passing_rank(best_rank, limit)

    first_tested_score = choose_first_tested_score(
        np.sort(pilot.scores), n_rows, accuracy=1.0 - limit, delta=delta
    )
    tie_block_ends = loss_ranking.ranking.find_tie_block_ends_from(first_tested_score)
    every_end_at_full_delta = [(Fraction(1), tie_block_ends.tolist())]
    n_accepted = run_fallback_tests(every_end_at_full_delta, passes)
    if n_accepted is None:
        return 0
    return n_accepted


def plan_loss_ranks(n_rows: int, limit: float, delta: float) -> list[tuple[Fraction, list[int]]]:
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
    list of (Fraction, list of int)
        For each rank range, the fraction of delta that it adds and its ranks.

    Examples
    --------
    >>> delta_fractions, ranks = zip(*plan_loss_ranks(1000, 0.05, 0.1))
    >>> sum(delta_fractions) == 1, ranks[0][:4], ranks[-1][-1]
    (True, [284, 289, 294, 299], 1000)
    """
    fractions_and_ranks: list[tuple[Fraction, list[int]]] = []
    fraction_of_empty_ranges = Fraction(0)
    distance_of_tested_ranks = max(1, n_rows // _N_TESTED_RANKS)
    for rank_range in plan_rank_ranges(n_rows, accuracy=1.0 - limit, delta=delta):
        start_rank = rank_range.start_rank
        is_first_range = not fractions_and_ranks
        if is_first_range:
            start_rank = min(n_rows, math.ceil(_FIRST_RANK_FACTOR * rank_range.start_rank))
        tested_ranks = set(range(start_rank, rank_range.stop_rank, distance_of_tested_ranks))
        is_last_range = n_rows < rank_range.stop_rank
        if is_last_range:
            tested_ranks.add(n_rows)
        delta_fraction = fraction_of_empty_ranges + rank_range.delta_fraction
        if not tested_ranks:
            # The next range receives the delta of a range in which no rank is tested.
            fraction_of_empty_ranges = delta_fraction
            continue
        fractions_and_ranks.append((delta_fraction, sorted(tested_ranks)))
        fraction_of_empty_ranges = Fraction(0)
    return fractions_and_ranks


def count_expected_loss_rows(loss_ranking: LossRanking, limit: float) -> int:
    """Count the rows of the largest prefix whose mean loss meets the limit in expectation.

    It is the largest m at the end of a block of equal scores for which the sum of the first m losses
    plus 1 is at most limit (m + 1).
    """
    tie_block_ends = loss_ranking.ranking.tie_block_end_ranks
    cumulative_losses = np.cumsum(loss_ranking.losses)[tie_block_ends - 1]
    passing_blocks = np.flatnonzero(cumulative_losses + 1.0 <= limit * (tie_block_ends + 1))
    if len(passing_blocks) == 0:
        return 0
    last_passing_block = passing_blocks[-1]
    return int(tie_block_ends[last_passing_block])
