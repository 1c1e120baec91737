"""MinCoverageAccuracy: what is accepted is right at least beta of the time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InfeasibleTargetError
from metacal.promises import bounds
from metacal.promises.certificate import Certificate, at_least
from metacal.promises.contradiction import Words, too_many_wrong_accepted
from metacal.promises.promise import RANKED, SAME_SOURCE, Flags, Promise, Scores, check_shares, columns, promised
from metacal.promises.quantity import Limits
from metacal.promises.ranking import Ranking

FIXED_SEQUENCE = Words(
    "exact binomial tests along the ranking, fixed sequence (Angelopoulos et al. 2021)", (SAME_SOURCE, RANKED)
)
EXPECTED_PREFIX = Words(
    "largest prefix of the ranking with (errors + 1) <= (1 - beta)(rows + 1)", (SAME_SOURCE, RANKED)
)


@dataclass
class MinCoverageAccuracy(Promise):
    """What is accepted is right at least `beta` of the time.

    With probability 1 - `delta` over the calibration rows (exact binomial tests along the ranking, in a fixed sequence:
    Angelopoulos et al. 2021, Learn then Test), or in expectation when `delta` is None.

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
        accepted = certified_prefix(ranking, self.beta, self.delta)
        if accepted == 0:
            raise self._infeasible(ranking)
        return self._certificate(scores, correct, ranking.just_below_next(accepted))

    @property
    def words(self) -> tuple[Words, ...]:
        """How its certificates name their rule; former names, if any, after the present one."""
        return (EXPECTED_PREFIX if self.delta is None else FIXED_SEQUENCE,)

    def impossible(self, certificate: Certificate) -> str | None:
        """What in the counts cannot be; None when all agrees."""
        return too_many_wrong_accepted(certificate, self.beta, self.delta)

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
    """How many of the most confident rows may be accepted with accuracy at least beta; 0 when none.

    In expectation: the largest m with E_m + 1 <= (1 - beta)(m + 1). With probability 1 - delta: given the next score
    the m rows below it are i.i.d., so E_m ~ Bin(m, 1 - F1) and the exact binomial test is valid at each rank; a fixed
    sequence of ranks needs no correction (Angelopoulos et al. 2021). With m_min the rows that pass without an error:

    - n < 30·m_min: walk up from a fixed rank, about n/3, at level delta;
    - else spend delta/10 on a start as high as possible, the largest of 8 ranks in geometric steps that passes at
      delta/80 (Bonferroni), and walk up from there at 0.9·delta; when none passes, walk from a fixed rank below them.

    If the first rank past the truth is j, an error needs one of the 8 tests at ranks >= j to pass (delta/10 in all) or
    the one at j (0.9·delta; at the fixed start if that is past the truth, since all 8 then are too).

    Examples
    --------
    >>> ranking = Ranking.of(np.arange(1000.0), np.arange(1000) < 900)
    >>> certified_prefix(ranking, 0.95, 0.1), certified_prefix(ranking, 0.95, None)
    (937, 946)
    """
    if delta is None:
        return _expected_prefix(ranking, beta)
    n, least = ranking.n, bounds.error_free_rows_needed(beta, delta)
    if n < 30 * least:
        return _walk(ranking, max(least, min(2 * least, n // 2), n // 3), beta, delta)
    first = bounds.error_free_rows_needed(beta, delta / 80)
    grid = [ranking.at_least(rank) for rank in np.round(np.geomspace(first, n, 8)).astype(int)]
    passing = [i for i in grid if _passes(ranking, i, beta, delta / 80)]
    start = ranking.ranks[max(passing)] if passing else 2 * bounds.error_free_rows_needed(beta, 0.9 * delta)
    return _walk(ranking, int(start), beta, 0.9 * delta)


def _passes(ranking: Ranking, index: int, beta: float, level: float) -> bool:
    p_value = bounds.binomial_p_value(ranking.errors[index], ranking.ranks[index], 1.0 - beta)
    return bool(p_value <= level)


def _walk(ranking: Ranking, rank: int, beta: float, level: float) -> int:
    """The last rank before the first that fails, from `rank` on; 0 when that one fails already.

    Rows without a new error never turn a pass into a failure, so only errors are tested.
    """
    start = ranking.at_least(rank)
    if start >= len(ranking.ranks) or not _passes(ranking, start, beta, level):
        return 0
    new_error = np.flatnonzero(np.diff(ranking.errors[start:]) > 0) + start + 1
    for piece in range(0, len(new_error), 1024):
        at = new_error[piece : piece + 1024]
        failed = bounds.binomial_p_value(ranking.errors[at], ranking.ranks[at], 1.0 - beta) > level
        if failed.any():
            return int(ranking.ranks[at[failed.argmax()] - 1])
    return ranking.n


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
