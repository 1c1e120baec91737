"""MinAccuracy: what is accepted is right at least beta of the time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from scipy.special import betainc

from metacal.errors import InfeasibleTargetError
from metacal.kernels.grid import RELATIVE
from metacal.promises.certificate import Certificate
from metacal.promises.promise import ByRanking, OneThreshold, Standing, cannot_certify
from metacal.promises.quantity import COVERAGE_ACCURACY
from metacal.promises.rules import bounds
from metacal.promises.rules.rows_needed import rows_needed
from metacal.promises.rules.sequence import (
    ASKED,
    Ladder,
    expected_passes,
    last_passed,
    segments,
    walk,
)
from metacal.promises.rules.whole_units import OfUnits
from metacal.promises.sample import Ranking, Sample, Undecided
from metacal.promises.sequential.answers import Answers
from metacal.promises.words import (
    RISING,
    SAME_SOURCE,
    SAME_SOURCE_OF_BOTH,
    at_least,
    at_most,
    register_rule,
)

if TYPE_CHECKING:
    from metacal.promises.parts.part import Part

#: Certified, and in expectation.
FALLBACK_SEQUENCE = register_rule(
    "fallback-sequence",
    "exact binomial tests in a fixed sequence of ranks with fallback shares of delta "
    "(Wiens 2003; Angelopoulos et al. 2021)",
    SAME_SOURCE,
    at_values=(
        "exact binomial tests at the values of the score, in rising order (Angelopoulos et al."
        " 2021)"
    ),
)
EXPECTED_PREFIX = register_rule(
    "expected-prefix",
    "largest prefix of the ranking with (errors + 1) <= (1 - beta)(rows + 1)",
    SAME_SOURCE,
    RISING,
)
#: Of a cascade, without people in it and with.
CASCADE_RULES = (
    register_rule(
        "cascade-binomial",
        "exact binomial tests at fixed thresholds, in a fixed sequence (Angelopoulos et al. 2021)",
        SAME_SOURCE_OF_BOTH,
    ),
    register_rule(
        "cascade-pareto",
        "exact binomial tests at fixed pairs of thresholds, cheapest at their risk, safest first "
        "(Pareto testing, Laufer-Goldenthal et al. 2023)",
        SAME_SOURCE_OF_BOTH,
    ),
)


@dataclass
class MinAccuracy(OfUnits, ByRanking, OneThreshold):
    """What is accepted is right at least `beta` of the time.

    With probability 1 - `delta` over the calibration rows (exact binomial tests in a fixed sequence
    of ranks with fallback shares: `certified_prefix`), whatever the accuracy does along the
    ranking. With `delta` None the target is met on average over calibration sets, those that
    certify nothing counted as kept: `expected_prefix`.

    Examples
    --------
    >>> scores, correct = np.arange(1000.0), np.arange(1000) % 100 < 99
    >>> MinAccuracy(0.95).certify(scores, correct).accepts_everything
    True
    >>> MinAccuracy(0.999).certify(scores, correct)
    Traceback (most recent call last):
    metacal.errors.InfeasibleTargetError: min accuracy 0.999 cannot be certified: ...
    """

    beta: float
    delta: float | None = 0.1

    limited: ClassVar = {"beta": COVERAGE_ACCURACY}
    rules: ClassVar = (FALLBACK_SEQUENCE, EXPECTED_PREFIX)
    cascade_rules: ClassVar = CASCADE_RULES

    def from_ranking(self, ranking: Ranking) -> Certificate:
        return self._highest(ranking, ranking)

    def _highest(
        self, ranking: Ranking, seen: Ranking, known: int | None = None, labels: int | None = None
    ) -> Certificate:
        """That of the highest rank that passes, of the first `known`, with what is `seen` of the
        rows.
        """

        def passed(beta: float) -> int:
            delta = self.delta
            return (
                expected_prefix(ranking, beta)
                if delta is None
                else walk(ranking, beta, delta, known=known).best
            )

        rank = passed(self.beta)
        if rank == 0:
            raise self._infeasible(seen, passed, labels)
        above = int(np.searchsorted(ranking.ranks, ranking.accepted_at(rank), side="right"))
        ranking.settle(above - 1, above)
        return replace(self._ranked(seen, ranking.threshold_at(rank)), labels=labels)

    @property
    def walks(self) -> bool:
        """With a delta, yes: testing a rank takes the labels up to it."""
        return self.delta is not None

    scouted = walks

    def standing(self, answers: Answers) -> Standing:
        """How far the fixed sequence has come, and how far it would if every further answer were
        right.
        """
        if self.delta is None:
            return super().standing(answers)
        best, delta = answers.at_best, self.delta
        now, reach = (
            walk(best, self.beta, delta, known=known).best for known in (answers.known, None)
        )
        thresholds = [
            RELATIVE.settled(best.threshold_at(rank)) if rank else None for rank in (now, reach)
        ]
        return Standing(
            thresholds[0], thresholds[1], int(best.ranks[best.at_least(reach)]) if reach else 0
        )

    def from_answers(self, answers: Answers) -> Certificate:
        """The certificate of the highest rank that passed among those up to which all labels are
        known.
        """
        if self.delta is None:
            return super().from_answers(answers)
        # Right are those that are known to be.
        return self._highest(answers.at_best, answers.at_worst, answers.known, answers.labels)

    def impossible(self, certificate: Certificate | Part) -> str | None:
        return too_many_wrong_accepted(certificate, self.beta, self.delta)

    #: A part that cannot carry an accuracy accepts nothing.
    unproven: ClassVar[float] = -math.inf

    def fewest(self, level: float) -> int:
        """How many rows a test at this level takes: so many without an error pass."""
        return bounds.error_free_rows_needed(self.beta, level)

    def takes(self, sample: Sample, level: float) -> list[tuple[int, int]]:
        return [(len(sample), self.fewest(level))]

    def settle(self, sample: Sample, level: float, planned: float) -> tuple[float | None, bool]:
        best, complete = walk(sample.ranking, self.beta, level, planned)
        return sample.ranking.threshold_at(best) if best else None, complete

    def lacking(self, sample: Sample, level: float) -> tuple[float | None, int | None]:
        """How many rows of their kind would do; what they can carry would take a search for every
        class.
        """
        if not len(sample) or (sample.right.all() and len(sample) < self.fewest(level)):
            return None, self.fewest(level)
        return None, rows_needed(sample.ranking, self.at_level(level).plan)

    def plan(self, n: int) -> list[tuple[int, int]]:
        """Where tests of n rows begin, and how many errors may be found up to there: one that
        passes certifies.
        """
        return _plan(n, self.beta, self.delta)

    def _infeasible(
        self, ranking: Ranking, passed: Callable[[float], int], labels: int | None
    ) -> InfeasibleTargetError:
        # The largest beta, to four decimals, that these rows certify for any prefix.
        n, most = (
            ranking.n,
            math.floor(1e4 * bounds.largest_certifiable_accuracy(ranking.n, self.delta)),
        )
        best = largest(0, most + 1, lambda beta: passed(beta) > 0) / 1e4 or None
        needed = rows_needed(ranking, self.plan)
        what = f"min accuracy {self.beta:g}"
        if labels is None or labels == n:
            ruled_out = ruled_out_words(ranking, self.beta, self.delta, "is that accurate")
            return cannot_certify(
                self, what, n, best, f"{best or 0.0:.4f}", needed, "lower the target", ruled_out
            )
        # Of the others nothing is known, nor of what more rows would show.
        more = "" if needed is None else f"; about {needed:,} may be enough (a rough estimate)"
        said = (
            f"{what} cannot be certified: {labels:,} of {n:,} labels show that, whatever the"
            " others are"
        )
        said += f"; begin anew with a lower target or with more rows{more}."
        return InfeasibleTargetError(said, target=self.beta, best=best, rows_needed=needed)


#: The paper's name for it.
MinCoverageAccuracy = MinAccuracy


def ruled_out_share(ranking: Ranking, beta: float, delta: float) -> float | None:
    """Return the smallest share c such that no threshold accepting at least c of the rows is
    beta-accurate.

    The statement is false with probability at most delta over the calibration rows. It says nothing
    of thresholds that accept less: the surest rows, fewer than these rows can show, may be
    accurate.

    Let q = 1 - beta, and E_m be the errors among the first m rows, where m is the end of a block of
    equal scores. Let m* be the lowest such m from which on every m has P(Bin(m, q) >= E_m) <= delta
    / 2, and k the end of the block before it, or 0. Then c is the upper confidence limit of a share
    at level delta / 2 from k of n rows.

    *Proof.* (1) Let u be the largest share of all rows that a threshold accepts with an accuracy of
    at least beta. It is fixed. N rows of the sample lie below that threshold. N is 0 or the end of
    a block. Given N, the errors among them are binomial with a rate of at most q. (2) The statement
    is false only if c <= u. (3) If N >= m*, then the test at N has rejected, a single test:
    probability at most delta / 2. All later tests must reject too, so that many of them need no
    correction. (4) If N < m*, then N <= k, and c is at least the upper confidence limit from N of n
    rows. That limit lies at or below u with probability at most delta / 2. ∎

    Parameters
    ----------
    ranking : Ranking
        The calibration rows with their errors.
    beta, delta : float
        The accuracy that is asked for, and the probability of a false statement.

    Returns
    -------
    float or None
        None if the test at all rows does not reject, or if rows were only counted.

    Examples
    --------
    >>> wrong_at_the_end = Ranking.of(np.arange(1000.0), np.arange(1000) < 30)
    >>> round(ruled_out_share(wrong_at_the_end, 0.9, 0.1), 3)
    0.048
    >>> ruled_out_share(Ranking.of(np.arange(1000.0), np.arange(1000) % 20 > 0), 0.9, 0.1) is None
    True
    """
    if ranking.mixed is not None or not ranking.n:
        return None
    errors, ranks = ranking.errors, ranking.ranks
    # P(Bin(m, q) >= e) is the incomplete beta function I_q(e, m - e + 1).
    chance = np.where(
        errors > 0, betainc(np.maximum(errors, 1), ranks - errors + 1.0, 1.0 - beta), 1.0
    )
    kept = np.flatnonzero(chance > 0.5 * delta)
    if len(kept) and kept[-1] == len(ranks) - 1:
        return None
    n_below = int(ranks[kept[-1]]) if len(kept) else 0
    return bounds.clopper_pearson_upper(n_below, ranking.n, 0.5 * delta)


def ruled_out_words(
    ranking: Ranking, beta: float, delta: float | None, accurate: str
) -> str | None:
    """Say which thresholds these rows rule out, as a sentence; None if they rule out none.

    Parameters
    ----------
    ranking, beta, delta
        As in `ruled_out_share`. Without a delta nothing is ruled out.
    accurate : str
        What the thresholds are not: "is that accurate".
    """
    share = None if delta is None else ruled_out_share(ranking, beta, delta)
    if share is None or delta is None:
        return None
    accepted = at_most(math.ceil(1e4 * share) / 1e4)
    said = (
        f"With {at_least(1.0 - delta)} confidence, no threshold that accepts {accepted} of the rows"
        f" or more {accurate}."
    )
    n_needed = bounds.two_digits(math.ceil(bounds.error_free_rows_needed(beta, delta) / share))
    if n_needed <= ranking.n:
        return said
    return (
        f"{said} One that accepts fewer may be; to certify it takes about {n_needed:,} rows or"
        " more."
    )


def certified_prefix(ranking: Ranking, beta: float, delta: float | None) -> int:
    r"""How many of the most confident rows may be accepted with accuracy at least beta; 0 when
    none.

    In expectation (`delta` None): see `expected_prefix`. With probability 1 - delta, and assuming
    nothing but i.i.d. rows: with q = 1 - beta, p(e, m) = P(Bin(m, q) <= e), equal scores sorted
    wrong rows first, and E_m the errors among the first m rows,

    - rank m passes at level l if p(E_m, m) <= l;
    - walks start where min(.18, .03 + 2q), .30 and .65 of the n·q errors that all rows may have
      would just pass, with shares w = .95, .03 and .02 of delta (one start with all of it where n·q
      < 20); each goes up to the next start, over the ranks where the exact test can use at least
      3/4 of its level (`metacal.promises.rules.sequence` has the roundings);
    - a walk has its own share and those of the walks before it that passed to their end; one that
      fails at a rank stops there, and its shares are lost;
    - with m the highest rank that passed, accepted is what scores less than row m + 1. Where rows m
      and m + 1 have equal scores, that block is accepted whole if row m + 1 is right (all its wrong
      rows are then among the first m), and left out otherwise.

    Ranks, order and shares depend on n, beta and delta alone.

    Why it holds. Order all rows there can be by X = (score, wrong before right, an independent
    uniform number): that is the order above. X is continuous and, with F1(x) the accuracy of the
    rows at or below x, the bad set {F1 < beta} consists of intervals (a_i, b_i) with F1 = beta at
    finite ends. (Finitely many: the rest, where F1 comes within ε of beta or which lie below a far
    quantile, have a chance that vanishes.) Let C be the numbers N(a_i), N(b_i) of calibration rows
    up to each end. Given C:

    1. Between consecutive ends the mean error is exactly q, so E_N(a_i) ~ Bin(N(a_i), q), and the same at b_i.
    2. Call rank m bad if X_(m+1) lies in a bad interval, or if m = N(b_i): settled by C. In the first case the rows
       between a_i and X_(m+1) = x are i.i.d. with a mean error above q, since F1(x) < beta; in the
       second E_m is exactly Bin(m, q) where b_i is finite. Where the last interval has no end (all
       rows together are less accurate than beta) m = n is bad, and E_n, with i.i.d. rows of a mean
       error above q beyond a_i, is stochastically larger than Bin(n, q), which only raises p(E_n,
       n). So p(E_m, m) is a valid p-value at every bad rank.
    3. If m is the last rank that passed and what is accepted is less accurate than beta, then m is bad. Accepted is
       everything up to a point t between two scores, with F1(t) < beta, so t lies in some (a_i,
       b_i). *Block left out, or no tie, row m + 1 wrong*: t is the lower end of the score of
       X_(m+1), whose wrong rows come first: from t to X_(m+1) there are only wrong ones, F1 falls,
       and X_(m+1) is in (a_i, b_i). *No tie, row m + 1 right*: X_(m) <= t < X_(m+1); either X_(m+1)
       < b_i, or N(b_i) = m. *Block accepted, row m + 1 right*: t is the upper end of the score of
       X_(m+1); from X_(m+1) to t there are only right rows, F1 rises to F1(t) < beta, and X_(m+1)
       is in (a_i, b_i).
    4. Fallback (Wiens 2003) over ranks of which the bad ones are fixed: the first bad rank passes with probability at
       most the shares up to it; if it fails they are lost, and the next one sees later shares
       alone: delta in all. ∎

    References: Wiens, "A fixed sequence Bonferroni procedure", Pharmaceutical Statistics 2003;
    Angelopoulos, Bates, Candès, Jordan & Lei, "Learn then Test", 2021.

    >>> ranking = Ranking.of(np.arange(1000.0), np.arange(1000) < 900)
    >>> certified_prefix(ranking, 0.95, 0.1), certified_prefix(ranking, 0.95, None)
    (937, 946)
    """
    if delta is None:
        return expected_prefix(ranking, beta)
    rank = last_passed(ranking, beta, delta)
    return ranking.accepted_at(rank) if rank else 0


def expected_prefix(ranking: Ranking, beta: float) -> int:
    r"""The largest m that ends a block of ties with E_m + 1 <= (1 - beta)(m + 1); 0 when there is
    none.

    If the chance of an error does not fall as the score rises, the mean over calibration sets of
    the accepted rows' error rate is at most q = 1 - beta, where a set on which nothing is certified
    counts as rate 0. (Given that something is certified, the mean can be above q: only lucky sets
    certify a strict target from few rows.)

    Why it holds. Without ties first; τ is the largest m, r_m the true error rate below X_(m+1), F
    the distribution function, c_m = floor(q(m+1)) - 1. Given the n - m rows above, "τ = m" is d <
    E_m <= c_m with some d that they fix, and E_m ~ Bin(m, r_m). Add a row below X_(m+1) and let E'
    = E_m + (1 if it is wrong):

        r_m P(τ = m) = P(τ = m, the new row is wrong) = E[E'/(m+1); d + 1 < E' <= c_m + 1] <= q P(d
        + 1 < E' <= c_m + 1)

    which is the event that n + 1 rows, of which those above are the same, have m + 1 as their
    largest m' with E'_m' <= q·m'; call that τ'. The density of the rows above is that in a set of n
    + 1 rows times (m+1) / ((n+1) F(X_(m+1))). So E[r_τ; τ > 0] <= q E[D_τ'] with D_k = k / ((n+1)
    F(X_(k+1))) from n + 1 rows and D_(n+1) = 1. Going down from k = n + 1, D is a martingale given
    the rows above (F(X_(k)) / F(X_(k+1)) is the largest of k uniforms), and going on at k means
    that E'_k is large: an increasing event of independent scores where errors do not get rarer,
    while D_(k-1) falls in them, so the two are negatively correlated (Harris's inequality) and
    E[D_τ'] <= 1. With ties, broken by an independent number, the largest block end that passes lies
    at or below τ, where the error rate is not higher. ∎

    The downward walk with "+ 1" is that of Barber & Candès, "Controlling the false discovery rate
    via knockoffs", Annals of Statistics 2015.

    >>> expected_prefix(Ranking.of(np.arange(100.0), np.arange(100) < 95), 0.97)
    96
    """
    good = np.flatnonzero(expected_passes(ranking.errors, ranking.ranks, beta))
    highest = int(good[-1]) if len(good) else -1
    if ranking.mixed is not None:
        # Inside a mixed block nothing passes if m + r rows with e errors do not, all its right rows
        # and none of the wrong ones: open are those above the highest end that passes where they
        # do.
        wrong = np.diff(ranking.errors, prepend=0)
        possible = (
            expected_passes(ranking.errors - wrong, ranking.ranks - wrong, beta) & ranking.mixed
        )
        possible[: highest + 1] = False
        if possible.any():
            raise ranking.undecided(np.flatnonzero(possible)[-ASKED:].tolist())
    return int(ranking.ranks[highest]) if len(good) else 0


def too_many_wrong_accepted(
    certificate: Certificate | Part, beta: float, delta: float | None
) -> str | None:
    """Whether the accepted rows hold too many wrong ones to certify an accuracy of at least
    beta.
    """
    accepted = certificate.n_accepted
    wrong = accepted - certificate.n_correct_accepted
    if bounds.few_enough(wrong, accepted, beta, delta):
        return None
    said = (
        f"{wrong:,} wrong of {accepted:,} accepted rows do not certify an accuracy of at least"
        f" {beta:g}"
    )
    return f"{said}{bounds.surely(delta)}"


def largest(low: int, high: int, certifies: Callable[[float], bool], ahead: int = 3) -> int:
    """The largest of low … high - 1 that is certified, in ten-thousandths; low is.

    Where counts leave one open, the next steps either way are asked too: one more pass over the
    rows answers several.
    """
    while high - low > 1:
        middle = (low + high) // 2
        try:
            low, high = (middle, high) if certifies(middle / 1e4) else (low, middle)
        except Undecided as question:
            if not ahead:
                raise
            for half in ((low, middle), (middle, high)):
                try:
                    largest(*half, certifies, ahead - 1)
                except Undecided as further:
                    question.cells.extend(further.cells)
            raise Undecided(question.cells) from None
    return low


@lru_cache(maxsize=1000)  # parts ask for the same again and again
def _plan(n: int, beta: float, delta: float | None) -> list[tuple[int, int]]:
    """`MinAccuracy.plan`."""
    if delta is None:
        ranks = np.unique(np.geomspace(1, n, 40).astype(int)).tolist()
        return [(rank, math.floor((1.0 - beta) * (rank + 1)) - 1) for rank in ranks]
    parts = segments(n, beta, delta)
    levels = (float(part.share) * delta for part in parts)
    return [
        (part.start, Ladder(n, 1.0 - beta, level).most_errors(part.start))
        for part, level in zip(parts, levels)
    ]
