"""The two promises: at most alpha of the correct rows rejected, or accepted rows right at least beta of the time.

A constraint turns two columns, the ranking score and whether the prediction was right, into a `Certificate`. Scores are
numbers on a grid (`metacal.scores.grid`), also where a caller brings columns of their own, and the threshold of every rule
ends in the middle between two grid points (`describe`), so that no score is ever equal to it.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, fields
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InfeasibleTargetError, InputError, MetacalWarning
from metacal.promises import bounds
from metacal.promises.certificate import Certificate, Guarantee, Quantity, accepts, at_least
from metacal.promises.contradiction import Words, other_promise, too_few_right_kept, too_many_wrong_accepted
from metacal.rows.validate import fraction
from metacal.scores.grid import RELATIVE

Scores = NDArray[np.float64]
Flags = NDArray[np.bool_]

SAME_SOURCE = "new rows come from the same source as the calibration rows, which the classifier was not trained on"
RANKED = "accuracy falls as the score rises: accepting more never makes the accepted rows more accurate"

#: How the certificates of the two promises name their rules, certified and in expectation. A rule that is replaced
#: stays in `words` of its promise, after the new one: its certificates are still good.
UMBRELLA = Words("umbrella order statistic of the correct scores (Tong, Feng & Li 2018)", (SAME_SOURCE,))
EXPECTED_RANK = Words(
    "rank of the correct scores, in expectation (Ma & Blaschko 2021, exact arithmetic)", (SAME_SOURCE,)
)
FIXED_SEQUENCE = Words(
    "exact binomial tests along the ranking, fixed sequence (Angelopoulos et al. 2021)", (SAME_SOURCE, RANKED)
)
EXPECTED_PREFIX = Words(
    "largest prefix of the ranking with (errors + 1) <= (1 - beta)(rows + 1)", (SAME_SOURCE, RANKED)
)


@runtime_checkable
class Constraint(Protocol):
    """What `MetaCal` needs of a promise."""

    def split(self, correct: Flags) -> tuple[Flags, Flags]:
        """The rows that choose the threshold and the rows that fit the base calibrator."""
        ...

    def certify(self, scores: Scores, correct: Flags) -> Certificate:
        """The threshold and its certificate."""
        ...


class Parameters:
    """`get_params` / `set_params` for a dataclass, so that scikit-learn can clone it and search over it."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def set_params(self, **params: Any) -> Self:
        """Change arguments in place, checked as in the constructor."""
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                raise InputError(f"{type(self).__name__} has no parameter {name!r}; it has {', '.join(known)}.")
            setattr(self, name, value)
        type(self)(**self.get_params())
        return self


class AllRows(Parameters):
    """The score looks at no label, so threshold and calibrator may both use every row."""

    def split(self, correct: Flags) -> tuple[Flags, Flags]:
        """All rows for both purposes."""
        everything = np.ones(len(correct), dtype=bool)
        return everything, everything


@dataclass
class MaxMiscoverage(AllRows):
    """At most `alpha` of the correct predictions are rejected.

    With probability 1 - `delta` over the calibration rows (the umbrella algorithm of Tong, Feng & Li 2018), or in
    expectation when `delta` is None (the paper's rank, on all correct rows). The threshold is just above the k-th
    smallest score of the correct rows; with too few rows to reject any, everything is accepted, and the certificate
    says so.

    Examples
    --------
    >>> scores, correct = np.arange(200.0), np.ones(200, dtype=bool)
    >>> MaxMiscoverage(0.05).certify(scores, correct).highest_accepted
    194.0
    >>> MaxMiscoverage(0.05, delta=None).certify(scores, correct).highest_accepted
    190.0
    """

    alpha: float
    delta: float | None = 0.1

    def __post_init__(self) -> None:
        fraction("alpha", self.alpha)
        if self.delta is not None:
            fraction("delta", self.delta)

    def certify(self, scores: Scores, correct: Flags) -> Certificate:
        """Choose the threshold on the scores of the correct rows."""
        scores, correct = columns(scores, correct)
        right = np.sort(scores[correct])
        n = len(right)
        if self.delta is None:
            rank = bounds.expected_miscoverage_rank(n, self.alpha)
        else:
            rank = bounds.certified_miscoverage_rank(n, self.alpha, self.delta)
        notes = []
        if rank > n:
            notes.append(self._too_few(n))
            warnings.warn(notes[-1], MetacalWarning, stacklevel=3)
        threshold = float(right[rank - 1]) if rank <= n else math.inf
        return describe(
            scores,
            correct,
            threshold,
            quantity="miscoverage",
            target=self.alpha,
            delta=self.delta,
            guarantee="in expectation" if self.delta is None else "certified",
            rule=self.words[0].rule,
            assumptions=self.words[0].assumptions,
            notes=tuple(notes),
        )

    @property
    def words(self) -> tuple[Words, ...]:
        """How its certificates name their rule; former names, if any, after the present one."""
        return (EXPECTED_RANK if self.delta is None else UMBRELLA,)

    def contradiction(self, certificate: Certificate) -> str | None:
        """What in a certificate is not as this promise makes it, or cannot be true; None when all agrees."""
        return other_promise(
            certificate,
            self,
            limits=(("miscoverage", float(self.alpha)),),
            delta=self.delta,
            guarantee="in expectation" if self.delta is None else "certified",
            words=self.words,
        ) or too_few_right_kept(certificate, self.alpha, self.delta)

    def _too_few(self, n_correct: int) -> str:
        best = bounds.smallest_certifiable_miscoverage(n_correct, self.delta)
        needed = bounds.correct_rows_needed(self.alpha, self.delta)
        return (
            f"everything is accepted: {n_correct} correct rows are too few to reject any at a miscoverage of "
            f"{self.alpha:g}; rejecting starts at {best:.4g} with these rows, or with {needed} correct rows."
        )


@dataclass
class MinCoverageAccuracy(AllRows):
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
        fraction("beta", self.beta)
        if self.delta is not None:
            fraction("delta", self.delta)

    def certify(self, scores: Scores, correct: Flags) -> Certificate:
        """Choose the largest prefix of the ranking that passes."""
        scores, correct = columns(scores, correct)
        ranking = Ranking.of(scores, correct)
        accepted = certified_prefix(ranking, self.beta, self.delta)
        if accepted == 0:
            raise self._infeasible(ranking)
        threshold = ranking.just_below_next(accepted)
        return describe(
            scores,
            correct,
            threshold,
            quantity="coverage accuracy",
            target=self.beta,
            delta=self.delta,
            guarantee="in expectation" if self.delta is None else "certified",
            rule=self.words[0].rule,
            assumptions=self.words[0].assumptions,
        )

    @property
    def words(self) -> tuple[Words, ...]:
        """How its certificates name their rule; former names, if any, after the present one."""
        return (EXPECTED_PREFIX if self.delta is None else FIXED_SEQUENCE,)

    def contradiction(self, certificate: Certificate) -> str | None:
        """What in a certificate is not as this promise makes it, or cannot be true; None when all agrees."""
        return other_promise(
            certificate,
            self,
            limits=(("coverage accuracy", float(self.beta)),),
            delta=self.delta,
            guarantee="in expectation" if self.delta is None else "certified",
            words=self.words,
        ) or too_many_wrong_accepted(certificate, self.beta, self.delta)

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


@dataclass(frozen=True)
class Ranking:
    """The calibration rows by rising score, at the ranks that end a block of equal scores.

    `ranks[i]` rows have a score of at most `scores[i]`, with `errors[i]` wrong ones among them.
    """

    ranks: NDArray[np.intp]
    errors: NDArray[np.intp]
    scores: Scores

    @classmethod
    def of(cls, scores: Scores, correct: Flags) -> Ranking:
        """Sort, and keep the ends of the tie blocks."""
        order = np.argsort(scores, kind="stable")
        ordered = scores[order]
        ends = np.append(np.flatnonzero(ordered[1:] != ordered[:-1]), len(ordered) - 1)
        errors = np.cumsum(~correct[order])
        return cls(ends + 1, errors[ends], ordered[ends])

    @property
    def n(self) -> int:
        """All rows."""
        return int(self.ranks[-1])

    def just_below_next(self, accepted: int) -> float:
        """The largest threshold that accepts the first `accepted` rows and no more: +inf for all of them."""
        if accepted == self.n:
            return math.inf
        following = self.scores[np.searchsorted(self.ranks, accepted, side="right")]
        return float(np.nextafter(following, -np.inf))

    def at_least(self, rank: int) -> int:
        """Index of the first tie-block end at or above `rank`; len(ranks) if there is none."""
        return int(np.searchsorted(self.ranks, rank))


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


def describe(
    scores: Scores,
    correct: Flags,
    threshold: float,
    *,
    quantity: Quantity,
    target: float,
    delta: float | None,
    guarantee: Guarantee,
    rule: str,
    assumptions: tuple[str, ...],
    notes: tuple[str, ...] = (),
    max_miscoverage: float | None = None,
) -> Certificate:
    """A certificate for `threshold`, settled, with what the calibration rows look like under it.

    The scores are grid points: settling the threshold moves it past none of them.
    """
    threshold = RELATIVE.settled(threshold)
    accept = accepts(scores, threshold)
    return Certificate(
        quantity=quantity,
        target=target,
        delta=delta,
        guarantee=guarantee,
        threshold=threshold,
        rule=rule,
        n_rows=len(scores),
        n_correct=int(correct.sum()),
        n_accepted=int(accept.sum()),
        n_correct_accepted=int((accept & correct).sum()),
        highest_accepted=float(scores[accept].max()) if accept.any() else None,
        lowest_rejected=float(scores[~accept].min()) if not accept.all() else None,
        assumptions=assumptions,
        notes=notes,
        max_miscoverage=max_miscoverage,
    )


def require_some_correct(correct: Flags) -> None:
    """Raise when the classifier got every calibration row wrong."""
    if not correct.any():
        raise InputError(
            f"no calibration row is classified correctly (n_samples={len(correct)}): nothing can be promised. "
            "Check that the labels and the columns use the same class order."
        )


def columns(scores: Any, correct: Any) -> tuple[Scores, Flags]:
    """The two columns a constraint sees, checked; the scores on the grid, where `metacal.scores.named` puts its own."""
    scores, correct = np.asarray(scores, dtype=np.float64), np.asarray(correct)
    if scores.ndim != 1 or scores.shape != correct.shape or correct.dtype != bool:
        raise InputError(
            f"certify needs one score and one boolean per row; got shapes {scores.shape} and {correct.shape} "
            f"({correct.dtype})."
        )
    if np.isnan(scores).any():
        raise InputError("certify needs a score for every row; some are NaN.")
    require_some_correct(correct)
    return RELATIVE.rounded(scores), correct


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
