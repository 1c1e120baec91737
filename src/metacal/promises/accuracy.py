"""MinCoverageAccuracy: what is accepted is right at least beta of the time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InfeasibleTargetError
from metacal.promises import bounds
from metacal.promises.certificate import Certificate, at_least
from metacal.promises.contradiction import Words, too_many_wrong_accepted
from metacal.promises.parted import Settled
from metacal.promises.parts import Part
from metacal.promises.promise import RANKED, SAME_SOURCE, Flags, Promise, Scores, check_shares, columns, promised
from metacal.promises.quantity import Limits
from metacal.promises.ranking import Ranking
from metacal.promises.sequence import last_passed, walk

FALLBACK_SEQUENCE = Words(
    "exact binomial tests in a fixed sequence of ranks with fallback shares of delta "
    "(Wiens 2003; Angelopoulos et al. 2021)",
    (SAME_SOURCE,),
)
#: As certificates of former versions say it; its start was chosen by labels, which the assumption did not cover.
FIXED_SEQUENCE = Words(
    "exact binomial tests along the ranking, fixed sequence (Angelopoulos et al. 2021)", (SAME_SOURCE, RANKED)
)
EXPECTED_PREFIX = Words(
    "largest prefix of the ranking with (errors + 1) <= (1 - beta)(rows + 1)", (SAME_SOURCE, RANKED)
)


@dataclass
class MinCoverageAccuracy(Promise):
    """What is accepted is right at least `beta` of the time.

    With probability 1 - `delta` over the calibration rows (exact binomial tests in a fixed sequence of ranks with
    fallback shares: `certified_prefix`), whatever the accuracy does along the ranking. With `delta` None the target is
    met on average, nearly: see `docs/choosing.md`.

    Examples
    --------
    >>> scores, correct = np.arange(1000.0), np.arange(1000) % 100 < 99
    >>> MinCoverageAccuracy(0.95).certify(scores, correct).accepts_everything
    True
    >>> MinCoverageAccuracy(0.999).certify(scores, correct)
    Traceback (most recent call last):
    metacal.errors.InfeasibleTargetError: min accuracy 0.999 cannot be certified: ...
    """

    beta: float
    delta: float | None = 0.1

    def __post_init__(self) -> None:
        check_shares(self, "beta", "delta")

    @property
    def limits(self) -> Limits:
        """What is promised, as a certificate lists it."""
        return promised(beta=self.beta)

    def certify(self, scores: Scores, correct: Flags) -> Certificate:
        """Choose the largest prefix of the ranking that passes."""
        scores, correct = columns(scores, correct)
        ranking = Ranking.of(scores, correct)
        rank = (
            _expected_prefix(ranking, self.beta) if self.delta is None else last_passed(ranking, self.beta, self.delta)
        )
        if rank == 0:
            raise self._infeasible(ranking)
        return self._certificate(scores, correct, ranking.threshold_at(rank))

    @property
    def words(self) -> tuple[Words, ...]:
        """How its certificates name their rule; former names, if any, after the present one."""
        return (EXPECTED_PREFIX,) if self.delta is None else (FALLBACK_SEQUENCE, FIXED_SEQUENCE)

    def impossible(self, certificate: Certificate) -> str | None:
        """What in the counts cannot be; None when all agrees."""
        return too_many_wrong_accepted(certificate, self.beta, self.delta)

    #: A part that cannot carry an accuracy accepts nothing (`metacal.promises.parted`).
    unproven: ClassVar[float] = -math.inf

    def fewest(self, level: float) -> int:
        """How many rows a test at this level takes: so many without an error pass."""
        return bounds.error_free_rows_needed(self.beta, level)

    def counted(self, correct: Flags) -> int:
        """Every row."""
        return len(correct)

    def settle(self, scores: Scores, correct: Flags, level: float, planned: float) -> Settled:
        """The threshold at a level, by the tests that were laid out for the planned one."""
        ranking = Ranking.of(scores, correct)
        best, complete = walk(ranking, self.beta, level, planned)
        return Settled(ranking.threshold_at(best) if best else None, complete)

    def lacking(self, scores: Scores, correct: Flags, level: float) -> tuple[float | None, int | None]:
        """How many rows of their kind would do; what they can carry would take a search for every class."""
        if not len(scores) or (correct.all() and len(scores) < self.fewest(level)):
            return None, self.fewest(level)
        return None, _rows_needed(Ranking.of(scores, correct), self.beta, level)

    def part_impossible(self, part: Part) -> str | None:
        """What in the counts of a part cannot be; None when all agrees."""
        if part.delta is None:
            return "it accepts rows, but was never tested"
        return too_many_wrong_accepted(part, self.beta, part.delta)

    def _infeasible(self, ranking: Ranking) -> InfeasibleTargetError:
        best = _best_accuracy(ranking, self.delta)
        needed = _rows_needed(ranking, self.beta, self.delta)
        surely = "in expectation" if self.delta is None else f"at {at_least(1 - self.delta)} confidence"
        can = (
            f"the best certifiable on these {ranking.n:,} rows {surely} is {best:.4f}"
            if best is not None
            else f"these {ranking.n:,} rows certify nothing {surely}"
        )
        do = (
            f"lower the target or bring about {needed:,} rows"
            if needed is not None
            else "lower the target: no part of the ranking is that accurate, so more rows would not help"
        )
        return InfeasibleTargetError(
            f"min accuracy {self.beta:g} cannot be certified: {can}; {do}.",
            target=self.beta,
            best=best,
            rows_needed=needed,
        )


def certified_prefix(ranking: Ranking, beta: float, delta: float | None) -> int:
    r"""How many of the most confident rows may be accepted with accuracy at least beta; 0 when none.

    In expectation (`delta` None): the largest m with E_m + 1 <= (1 - beta)(m + 1). With probability 1 - delta, and
    assuming nothing but i.i.d. rows: with q = 1 - beta, p(e, m) = P(Bin(m, q) <= e), equal scores sorted wrong rows
    first, E_m the errors among the first m rows and M(m) the end of the block of equal scores that m lies in,

    - rank m passes at level l if max(p(E_m, m), p(E_M(m), M(m))) <= l;
    - walks start where min(.18, .03 + 2q), .30 and .65 of the n·q errors that all rows may have would just pass, with
      shares w = .92, .04, .04 of delta (one start with all of it where n·q < 10), and each goes up to the next start,
      over the ranks where the exact test can use at least 3/4 of its level;
    - a walk has its own share and those of the walks before it that passed to their end; one that fails at a rank stops
      there, and its shares are lost. The highest rank that passed is certified.

    Ranks, order and shares depend on n, beta and delta alone.

    Why it holds. Break ties by an independent uniform number; the bad thresholds {F1 < beta} are then intervals
    (a_i, b_i) with F1 = beta at the ends. Given how many rows lie below each end, (1) between ends the mean error is
    exactly q, so there are Bin(N(a_i), q) errors up to a_i; (2) which ranks are bad is fixed; (3) at a bad rank the
    rows between a_i and the next score x are i.i.d. with a mean error above q, as F1(x) < beta. So E_m is
    stochastically at least Bin(m, q): every bad rank has a valid p-value, and a familywise method for fixed
    hypotheses applies. Fallback (Wiens 2003): the first bad rank passes with probability at most the shares up to it;
    if it fails they are lost, and the next one sees later shares alone: delta in all. Wrong-first order makes each E_m
    largest; inside a block the tied score is the threshold, so the end of the block is tested too.

    References: Wiens, "A fixed sequence Bonferroni procedure", Pharmaceutical Statistics 2003; Angelopoulos, Bates,
    Candès, Jordan & Lei, "Learn then Test", 2021.

    Examples
    --------
    >>> ranking = Ranking.of(np.arange(1000.0), np.arange(1000) < 900)
    >>> certified_prefix(ranking, 0.95, 0.1), certified_prefix(ranking, 0.95, None)
    (937, 946)
    """
    if delta is None:
        return _expected_prefix(ranking, beta)
    rank = last_passed(ranking, beta, delta)
    return ranking.block_end(rank) if rank else 0


def _expected_prefix(ranking: Ranking, beta: float) -> int:
    share = 1 - bounds.exact(beta)
    ints: type = object if share.denominator * (ranking.n + 1) >= 2**62 else np.int64
    left: NDArray[Any] = (ranking.errors.astype(ints) + 1) * share.denominator
    good = np.flatnonzero(left <= (ranking.ranks.astype(ints) + 1) * share.numerator)
    return int(ranking.ranks[good[-1]]) if len(good) else 0


def _best_accuracy(ranking: Ranking, delta: float | None) -> float | None:
    """The largest beta, to four decimals, that these rows certify for any prefix; None when not even 0.0001."""
    low, high = 0, math.floor(1e4 * bounds.largest_certifiable_accuracy(ranking.n, delta)) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if certified_prefix(ranking, middle / 1e4, delta) else (low, middle)
    return low / 1e4 if low else None


def _rows_needed(ranking: Ranking, beta: float, delta: float | None) -> int | None:
    """About how many rows of this kind would do, to two digits; None when no part of the ranking is accurate enough.

    Each prefix is taken to keep its error rate while the whole ranking grows by a factor. Prefixes so short that
    not a single error is expected at the target say too little, unless they are a quarter of all rows.
    """
    rate = ranking.errors / ranking.ranks
    telling = ranking.ranks >= min(ranking.n / 4, 1.0 / (1.0 - beta))
    hopeful = np.flatnonzero((rate < 1.0 - beta) & telling)
    hopeful = hopeful[:: max(1, len(hopeful) // 256)]  # an estimate: a few hundred prefixes tell as much as all
    for quarter_doublings in range(1, 81):
        factor = 2.0 ** (quarter_doublings / 4)
        rows = np.floor(ranking.ranks[hopeful] * factor)
        errors = np.ceil(rows * rate[hopeful])
        if delta is None:
            enough = errors + 1 <= (1.0 - beta) * (rows + 1)
        else:
            enough = bounds.binomial_p_value(errors, rows, 1.0 - beta) <= 0.8 * delta
        if enough.any():
            return _two_digits(math.ceil(ranking.n * factor))
    return None


def _two_digits(rows: int) -> int:
    unit = 10 ** max(0, len(str(rows)) - 2)
    return int(math.ceil(rows / unit) * unit)
