"""MaxRisk: what is accepted has a mean loss of at most so much; and the rule that every mean of
losses is tested by.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar

import numpy as np

from metacal.errors import InfeasibleTargetError, InputError
from metacal.formulas import Codes
from metacal.promises.certificate import Certificate
from metacal.promises.circumstances import Circumstances, under
from metacal.promises.promise import cannot_certify
from metacal.promises.quantity import COST, RISK
from metacal.promises.rules import betting, bounds
from metacal.promises.rules.accuracy import (
    FALLBACK_SEQUENCE,
    MinAccuracy,
    certified_prefix,
    ruled_out_words,
)
from metacal.promises.rules.costs import (
    Costed,
    CostRanking,
    Losses,
    Wrong,
    checked_costs,
    is_uniform,
    positive,
)
from metacal.promises.rules.rows_needed import resampled, rows_needed
from metacal.promises.rules.sequence import fallback, segments, start_value
from metacal.promises.sample import Sample
from metacal.promises.words import RANKED, SAME_SOURCE, register_rule
from metacal.rows.arrays import fraction

#: Bets, exact tests of rounded losses, and in expectation.
BETTING = register_rule(
    "loss-betting",
    "bets on the loss of the rows up to each of a fixed sequence of ranks, with fallback shares of"
    " delta (Waudby-Smith & Ramdas 2024; Wiens 2003)",
    SAME_SOURCE,
)
ROUNDED = register_rule(
    "rounded-losses",
    "each loss rounded at random to 0 or 1, then exact binomial tests in a fixed sequence of ranks"
    " with fallback shares of delta (Wiens 2003; Angelopoulos et al. 2021)",
    SAME_SOURCE,
)
EXPECTED = register_rule(
    "expected-loss",
    "largest prefix of the ranking with (loss + largest) <= limit (rows + 1)",
    SAME_SOURCE,
    RANKED,
)

#: A bet is lost by a hair where an exact test of no error at all just passes: the first walk starts
#: so much later.
_LATER = 1.2
#: Ranks tested between 0 and n.
_RUNGS = 200


class MeanLimit(Costed):
    """A promise that limits the mean loss of what is accepted: a dataclass with `limit` and
    `delta`.

    Where every loss is 0 or the largest, their mean is a share of rows, and exact binomial tests
    certify it as they do an accuracy; else bets do (`certified_loss_rank`).
    """

    limit: float
    #: What errors call it.
    called: ClassVar[str]
    rules: ClassVar = (BETTING, EXPECTED)

    def exact_rule(self, losses: Losses) -> str | None:
        """The rule of exact tests, where the losses are fit for them."""
        return FALLBACK_SEQUENCE if losses.all_or_nothing else None

    @property
    def share(self) -> float:
        """The limit as a share of the largest loss."""
        return self.limit / self.largest

    @property
    def scouted(self) -> bool:
        return self.delta is not None

    def from_sample(self, sample: Sample) -> Certificate:
        losses = self.losses_in(sample)
        rule = None if self.delta is None else self.exact_rule(losses)
        shares, counted = losses.answered / self.largest, sample
        draws = replace(sample, losses=losses).draws(self.random_state)
        if rule == ROUNDED:
            counted = replace(sample, correct=draws.numbers("rounded losses") >= shares)
        ranked = CostRanking.of(sample.score, shares, draws.seed("order of bets"))
        blocks = (
            counted.ranking if rule is not None else replace(ranked.blocks, scouts=sample.starts)
        )
        ranked = replace(ranked, blocks=blocks)
        rank = self._certified_rows(ranked, self.share, rule)
        if rank == 0:
            raise self._infeasible(ranked, rule)
        certificate = self._certificate(sample, ranked.blocks.just_below_next(rank))
        mean = float(ranked.losses[: certificate.n_accepted].mean())
        certificate = replace(certificate, rule=rule or self.rule, mean_cost=mean * self.largest)
        is_drawn = certificate.rule in (BETTING, ROUNDED)
        return under(
            certificate, Circumstances(random_state=self.random_state if is_drawn else None)
        )

    def impossible(self, certificate: Certificate) -> str | None:
        accepted, right, mean = (
            certificate.n_accepted,
            certificate.n_correct_accepted,
            certificate.mean_cost,
        )
        if mean is None or not accepted:
            return "a promise about losses needs accepted rows and their mean loss"
        wrong = accepted - right
        cost = wrong / accepted * self.largest
        if self.is_counted(certificate) and not math.isclose(
            mean, cost, rel_tol=1e-9, abs_tol=1e-12
        ):
            return f"{wrong:,} wrong of {accepted:,} accepted rows do not cost {mean:g} on average"
        if self.delta is None:
            enough = mean * accepted + self.largest <= bounds.SLACK * self.limit * (accepted + 1)
        elif certificate.rule == BETTING:
            # What no bet can do better: nothing has cost anything, and nearly everything was staked
            # each time.
            most = certificate.n_rows * math.log1p(0.9 * self.share / (1.0 - self.share))
            enough = mean <= self.limit * bounds.SLACK and most >= -math.log(
                bounds.SLACK * self.delta
            )
        else:  # which losses were rounded up is not kept: at best none was
            bad = 0 if certificate.rule == ROUNDED else wrong
            enough = bool(
                bounds.binomial_p_value(bad, accepted, self.share) <= bounds.SLACK * self.delta
            )
        if enough and mean <= self.largest:
            return None
        said = f"{accepted:,} accepted rows that cost {mean:g} on average do not certify"
        return f"{said} a {self.called} of at most {self.limit:g}"

    def is_counted(self, certificate: Certificate) -> bool:
        return certificate.rule == FALLBACK_SEQUENCE

    def _certified_rows(self, ranked: CostRanking, share: float, rule: str | None) -> int:
        if self.delta is None:
            return expected_loss_rank(ranked, share)
        if rule is not None:
            return certified_prefix(ranked.blocks, 1.0 - share, self.delta)
        return certified_loss_rank(ranked, share, self.delta)

    def _infeasible(self, ranked: CostRanking, rule: str | None) -> InfeasibleTargetError:
        # The smallest limit, to three digits, that these rows certify for any prefix.
        _, high = betting.halved(
            lambda share: self._certified_rows(ranked, share, rule) > 0, self.share, 14
        )
        unit = 10.0 ** (math.floor(math.log10(high * self.largest)) - 2)
        least = math.ceil(high * self.largest / unit) * unit
        known = least < self.largest and self._certified_rows(ranked, least / self.largest, rule)
        best = float(f"{least:.6g}") if known else None

        def certifies(rows: Codes) -> bool:
            again = CostRanking.of(np.arange(float(len(rows))), ranked.losses[rows], seed=0)
            return self._certified_rows(again, self.share, rule) > 0

        ruled_out = None
        if rule is not None:
            needed = rows_needed(ranked.blocks, MinAccuracy(1.0 - self.share, self.delta).plan)
            # Losses that are 0 or 1, or were rounded to them, are errors: what is proved of an
            # accuracy holds.
            low_enough = f"has so low a {self.called}"
            ruled_out = ruled_out_words(ranked.blocks, 1.0 - self.share, self.delta, low_enough)
        else:
            needed = resampled(ranked.blocks.n, certifies)
        what = f"max {self.called} {self.limit:g}"
        return cannot_certify(
            self,
            what,
            ranked.blocks.n,
            best,
            f"{best or 0.0:g}",
            needed,
            "raise the limit",
            ruled_out,
        )


@dataclass
class MaxRisk(MeanLimit):
    """What is accepted has a mean loss of at most `limit`, each loss a number between 0 and 1.

    A loss says how bad an answer is: 1 - F1, the share of wrong fields, of missed labels, a judge's
    mark turned around (`metacal.losses` has those in use). Where answers are only right or wrong,
    it is the error rate.

    Parameters
    ----------
    limit : float
        The most that an accepted row may lose on average.
    delta : float or None
        The promise fails with at most this probability over the calibration rows; None: it holds on
        average, nearly.
    near_binary : bool
        Say so where nearly every loss is 0 or 1: each is then rounded at random, up with its own
        probability, and the exact tests of 0/1 losses certify the rounded ones, which have the same
        mean. To be settled before looking at the rows: of two tests on the same rows the better one
        would break more promises than `delta` allows.
    random_state : int, optional
        Seed of the order in which rows are bet on, and of the rounding. By default it is derived
        from the rows; a seed that you give is recorded in the certificate.

    Losses of an integer type, 0 or 1, and right or wrong take the exact tests; floats are certified
    by bets in an order that looks at no loss, even where these rows have only zeros and ones. Where
    a loss could be graded and seldom is, say `near_binary`: what is rounded and what need not be
    are then one test.

    *Why the type decides.* It is settled before any loss is looked at, so that one test is made,
    which fails with probability at most delta. Whoever takes the exact test where the tested losses
    happen to be 0 or 1, and bets where they do not, breaks the promise if either fails on its part
    of the draws: delta for each, 2 delta in all.

    *Why rounding holds.* B = 1[U < L] with U uniform and independent of the rest has E[B | row] =
    L: a mean of B is the mean of L, in any part of the ranking. The proof for errors
    (`promises.rules.accuracy`) asks no more of them.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> score = rng.random(2000)
    >>> losses = Losses.graded(score**2 * rng.random(2000))
    >>> certificate = MaxRisk(0.1).certify(Sample(score, losses.answered == 0.0, losses))
    >>> certificate.statement
    'What is accepted has a mean loss of at most 0.1, with 90% confidence.'
    >>> round(certificate.coverage, 2), round(certificate.mean_cost, 3)
    (0.74, 0.092)
    >>> MaxRisk(10)
    Traceback (most recent call last):
    metacal.errors.InputError: limit must be strictly between 0 and 1, got 10; write 10% as 0.1.
    """

    limit: float
    delta: float | None = 0.1
    near_binary: bool = False
    random_state: int | None = None

    wrong: ClassVar[Wrong] = 1.0  # type: ignore[misc]
    called: ClassVar = "risk"
    limited: ClassVar = {"limit": RISK}
    takes_losses: ClassVar = True

    @property
    def all_rules(self) -> tuple[str, ...]:
        """Which of them it is depends on the losses."""
        return (self.rule,) if self.delta is None else (BETTING, FALLBACK_SEQUENCE, ROUNDED)

    def exact_rule(self, losses: Losses) -> str | None:
        return (
            ROUNDED
            if self.near_binary and not losses.all_or_nothing
            else super().exact_rule(losses)
        )


@dataclass(repr=False)
class MaxCost(MeanLimit):
    """What is accepted costs at most `limit` a row on average.

    Parameters
    ----------
    wrong : float or table
        What a wrong answer costs, in any unit; or K rows of K costs, `wrong[truth][answer]`, in the
        order of the columns.
    limit : float
        The most that an accepted row may cost on average, in the same unit.
    delta : float or None
        The promise fails with at most this probability over the calibration rows; None: it holds on
        average, nearly.
    random_state : int, optional
        Seed of the order in which rows are bet on, if there is a table. By default it is derived
        from the rows; a seed that you give is recorded in the certificate.

    It is `MaxRisk` of what an answer costs, as a share of the most that one can. One cost for every
    wrong answer is a promise of accuracy, at least 1 - limit/wrong: the exact binomial tests of
    `MinAccuracy` certify it.

    Examples
    --------
    >>> import numpy as np
    >>> scores, correct = np.arange(1000.0), np.arange(1000) < 900
    >>> print(MaxCost(wrong=50, limit=2.5).certify(scores, correct))
    What is accepted costs at most 2.5 a row on average, with 90% confidence.
      gate         accept if score < 937
      ...
      on these     coverage 0.9370, accuracy of accepted 0.9605, miscoverage 0.0000, cost 1.97439
      ...
    """

    wrong: Wrong
    limit: float
    delta: float | None = 0.1
    random_state: int | None = None

    called: ClassVar = "cost"
    limited: ClassVar = {"limit": COST}

    def __post_init__(self) -> None:
        self.wrong = checked_costs(self.wrong)
        self.limit = positive("limit", self.limit)
        if self.delta is not None:
            fraction("delta", self.delta)
        if self.limit >= self.largest:
            what = (
                f"limit must be less than the largest cost, {self.largest:g}: no mean cost is"
                " above it"
            )
            raise InputError(f"{what}; got {self.limit:g}.")

    @property
    def rule(self) -> str:
        """Bets where there is a table; one cost for every wrong answer is a promise of accuracy."""
        return (
            FALLBACK_SEQUENCE if self.delta is not None and is_uniform(self.wrong) else super().rule
        )

    def is_counted(self, certificate: Certificate) -> bool:
        return is_uniform(self.wrong)


def certified_loss_rank(ranked: CostRanking, limit: float, delta: float) -> int:
    r"""How many of the surest rows may be accepted with a mean loss of at most `limit`, each
    between 0 and 1; 0: none.

    A fixed sequence of ranks, walked with fallback shares of delta as in
    `promises.rules.accuracy.certified_prefix`: starts, shares and order follow from n, limit and
    delta alone (every 200th part of the rows is a rank). Rank m passes at level l if whoever bets
    on the first m rows, in random order, that they cost less than `limit` on average, ever has 1/l
    of what they began with (`promises.rules.betting`). With m the highest rank that passed,
    accepted is what scores less than row m + 1; where rows m and m + 1 have equal scores, that
    block is accepted whole if row m + 1 costs at most the limit, and left out otherwise.

    Why it holds. As for the accuracy, with the cost L in place of the error. Order all rows there
    can be by X = (score, dearest first, an independent uniform number), and let A(x) = E[L | X <=
    x], which is continuous. The bad set {A > limit} consists of intervals (a_i, b_i), with A =
    limit at finite ends. Given the numbers of calibration rows up to each end:

    1. Call rank m bad if X_(m+1) lies in a bad interval, or if m rows lie up to some b_i: that is settled. The rows up
       to a bad rank fall into groups: between consecutive ends, where the mean of L is exactly the
       limit, and from the last a_i to X_(m+1) = x, where it is above, as A(x) > limit. In a group
       the rows are independent and alike, and in a random order that looks at no cost each next row
       has, given all before it, the mean of its group: at least the limit. So the capital is a
       nonnegative supermartingale, and m passes with probability at most l (Ville).
    2. If what is accepted, everything up to a point t between two scores, has A(t) > limit, then m is bad. Block left
       out, or row m + 1 alone with its score and dearer than the limit: from t to X_(m+1) all rows
       cost more than the limit, so A stays above it. Block accepted: from X_(m+1) to t all rows
       cost at most the limit, and A(t) could not be above it had it not been so all along.
       Otherwise X_(m) <= t < X_(m+1), and X_(m+1) < b_i or m rows lie up to b_i.
    3. Fallback (Wiens 2003) over ranks of which the bad ones are fixed: delta in all. ∎

    Rows that cost nothing or everything are better served by exact binomial tests, which then take
    its place.

    >>> rng = np.random.default_rng(0)
    >>> scores = rng.random(2000)
    >>> ranked = CostRanking.of(scores, scores**2 * rng.random(2000) / 2, seed=0)
    >>> accepted = certified_loss_rank(ranked, 0.05, 0.1)
    >>> 1400 < accepted < 1560, bool(ranked.losses[:accepted].mean() < 0.05)
    (True, True)
    """
    blocks = ranked.blocks

    def passes(rank: int, share: Fraction) -> bool:
        return ranked.passes(rank, limit, float(share) * delta)

    if blocks.scouts is None:
        best = fallback(rungs(blocks.n, limit, delta), passes)
        return ranked.accepted_at(best, limit) if best else 0
    # Of scores that tie, values from a start upward, each bet on at all of delta
    # (`promises.scouts`).
    start = start_value(blocks.scouts, blocks.n, 1.0 - limit, delta)
    first = max(0, int(np.searchsorted(blocks.scores, start, side="right")) - 1)
    return fallback([(Fraction(1), blocks.ranks[first:].tolist())], passes) or 0


def rungs(n: int, limit: float, delta: float) -> list[tuple[Fraction, list[int]]]:
    """The ranks that are tested, walk by walk, each with the share of delta that it brings: from n,
    limit and delta.

    >>> shares, ranks = zip(*rungs(1000, 0.05, 0.1))
    >>> sum(shares) == 1, ranks[0][:4], ranks[-1][-1]
    (True, [284, 289, 294, 299], 1000)
    """
    walks: list[tuple[Fraction, list[int]]] = []
    carried, step = Fraction(0), max(1, n // _RUNGS)
    for part in segments(n, 1.0 - limit, delta):
        start = part.start if walks else min(n, math.ceil(_LATER * part.start))
        ranks = sorted({*range(start, part.stop, step), *range(n, part.stop)})  # the last rank, too
        if ranks:
            walks.append((carried + part.share, ranks))
        carried = Fraction(0) if ranks else carried + part.share
    return walks


def expected_loss_rank(ranked: CostRanking, limit: float) -> int:
    """The largest m with cost of the first m + 1 <= limit·(m + 1), at the ends of blocks of equal
    scores; 0: none.
    """
    ends = ranked.blocks.ranks
    good = np.flatnonzero(np.cumsum(ranked.losses)[ends - 1] + 1.0 <= limit * (ends + 1))
    return int(ends[good[-1]]) if len(good) else 0
