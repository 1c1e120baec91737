"""Both promises at once, and promises whose targets were chosen after looking at the same rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from metacal.errors import InfeasibleTargetError, InputError
from metacal.promises import bands, bounds
from metacal.promises.certificate import Certificate, Quantity, at_least
from metacal.promises.constraints import (
    RANKED,
    SAME_SOURCE,
    AllRows,
    Flags,
    MinCoverageAccuracy,
    Ranking,
    Scores,
    certified_prefix,
    columns,
    describe,
)
from metacal.promises.contradiction import Words, other_promise, too_few_right_kept, too_many_wrong_accepted
from metacal.rows.validate import fraction

Limits = tuple[tuple[Quantity, float], ...]

#: How the certificates of these promises name their rules; former names after the present one.
HALF_EACH = Words(
    "binomial tests along the ranking and the order statistic of the correct scores, delta/2 each",
    (SAME_SOURCE, RANKED),
)
BOTH_EXPECTED = Words("both rules in expectation", (SAME_SOURCE, RANKED))
BANDS = (
    Words(
        "band over all thresholds at once, equal local levels (Bates et al. 2021): targets may be chosen after looking",
        (SAME_SOURCE,),
    ),
    Words(
        "band over all thresholds at once, equal local levels (Bates et al. 2021); targets may be chosen after looking",
        (SAME_SOURCE,),
    ),
)


@dataclass
class Both(AllRows):
    """At most `alpha` of the correct predictions are rejected, and what is accepted is right at least `beta` often.

    Each at delta/2, so together with probability 1 - `delta` (or both in expectation when `delta` is None). With s_α
    the smallest threshold that keeps the first promise and s_β the largest that keeps the second, every threshold
    between them keeps both: feasible iff s_α <= s_β, and s_β, which accepts more, is used. Otherwise the error names
    the nearest pairs that these rows do certify.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.random(5000)
    >>> correct = rng.random(5000) > scores**3 / 2
    >>> print(Both(alpha=0.3, beta=0.95).certify(scores, correct).statement)
    What is accepted is right at least 95% of the time and at most 30% of the correct predictions are rejected,
    both with 90% confidence.
    >>> Both(alpha=0.1, beta=0.95).certify(scores, correct)
    Traceback (most recent call last):
    metacal.errors.InfeasibleTargetError: min accuracy 0.95 and max miscoverage 0.1 cannot be certified together: ...
    """

    alpha: float
    beta: float
    delta: float | None = 0.1

    def __post_init__(self) -> None:
        fraction("alpha", self.alpha)
        fraction("beta", self.beta)
        if self.delta is not None:
            fraction("delta", self.delta)

    @property
    def limits(self) -> Limits:
        """What is promised, as a certificate lists it."""
        return ("coverage accuracy", float(self.beta)), ("miscoverage", float(self.alpha))

    def certify(self, scores: Scores, correct: Flags) -> Certificate:
        """Choose the largest threshold that keeps the accuracy, if it keeps the miscoverage too."""
        scores, correct = columns(scores, correct)
        half = None if self.delta is None else self.delta / 2
        threshold = MinCoverageAccuracy(self.beta, half).certify(scores, correct).threshold
        kept = int((correct & (scores <= threshold)).sum())
        if kept < _rank(int(correct.sum()), self.alpha, half) and threshold < math.inf:
            raise self._infeasible(scores, correct, kept)
        return describe(
            scores,
            correct,
            threshold,
            quantity="coverage accuracy",
            target=self.beta,
            max_miscoverage=self.alpha,
            delta=self.delta,
            guarantee="in expectation" if self.delta is None else "certified",
            rule=self.words[0].rule,
            assumptions=self.words[0].assumptions,
        )

    @property
    def words(self) -> tuple[Words, ...]:
        """How its certificates name their rule; former names, if any, after the present one."""
        return (BOTH_EXPECTED if self.delta is None else HALF_EACH,)

    def contradiction(self, certificate: Certificate) -> str | None:
        """What in a certificate is not as this promise makes it, or cannot be true; None when all agrees."""
        half = None if self.delta is None else self.delta / 2
        return (
            other_promise(
                certificate,
                self,
                limits=self.limits,
                delta=self.delta,
                guarantee="in expectation" if self.delta is None else "certified",
                words=self.words,
            )
            or too_many_wrong_accepted(certificate, self.beta, half)
            or too_few_right_kept(certificate, self.alpha, half)
        )

    def _infeasible(self, scores: Scores, correct: Flags, kept: int) -> InfeasibleTargetError:
        half = None if self.delta is None else self.delta / 2
        n = int(correct.sum())
        smallest = _smallest_alpha(n, kept, half)
        needed = int(np.searchsorted(np.sort(scores), _lowest_threshold(scores[correct], self.alpha, half), "right"))
        best = _best_beta(Ranking.of(scores, correct), needed, self.beta, half)
        surely = "in expectation" if self.delta is None else f"at {at_least(1 - self.delta)} confidence"
        other = (
            f"with max miscoverage {self.alpha:g} the best min accuracy is {best:.4f}"
            if best is not None
            else f"no min accuracy goes with max miscoverage {self.alpha:g}"
        )
        return InfeasibleTargetError(
            f"min accuracy {self.beta:g} and max miscoverage {self.alpha:g} cannot be certified together: on these "
            f"{len(scores):,} rows {surely}, with min accuracy {self.beta:g} the smallest max miscoverage is "
            f"{smallest:.4f}, and {other}; loosen one of them, bring more rows, or find a better ranking score.",
            target=self.alpha,
            best=smallest,
        )


@dataclass
class AfterLooking(AllRows):
    """The same promises, valid although their targets were chosen after looking at these very rows.

    Give `alpha`, `beta` or both. The bounds come from bands that hold at every threshold at once
    (`metacal.promises.bands.certified_frontier`), so whatever was picked from a curve or a report of the same rows stands with
    probability 1 - `delta`. With `beta`, the largest threshold whose accuracy bound reaches it is used; with `alpha`
    alone, the smallest that keeps it. No assumption about the ranking is made. The price against a target fixed
    beforehand, on real logits: about 8 points of coverage with 1,000 rows and 2 to 3 with 5,000 for an accuracy,
    1 to 3 points more coverage than needed for a miscoverage.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.random(5000)
    >>> correct = rng.random(5000) > scores**3 / 2
    >>> AfterLooking(beta=0.95).certify(scores, correct).coverage
    0.662
    >>> AfterLooking(alpha=0.3, beta=0.95).certify(scores, correct).limits
    (('coverage accuracy', 0.95), ('miscoverage', 0.3))
    """

    alpha: float | None = None
    beta: float | None = None
    delta: float = 0.1

    def __post_init__(self) -> None:
        if self.alpha is None and self.beta is None:
            raise InputError("AfterLooking needs alpha, beta or both; got neither.")
        for name in ("alpha", "beta"):
            if getattr(self, name) is not None:
                fraction(name, getattr(self, name))
        fraction("delta", self.delta)

    @property
    def limits(self) -> Limits:
        """What is promised, as a certificate lists it."""
        first: Limits = () if self.beta is None else (("coverage accuracy", float(self.beta)),)
        return first if self.alpha is None else (*first, ("miscoverage", float(self.alpha)))

    def certify(self, scores: Scores, correct: Flags) -> Certificate:
        """Read the threshold off the simultaneous bands."""
        scores, correct = columns(scores, correct)
        ranking = Ranking.of(scores, correct)
        threshold = self._for_alpha(scores, correct) if self.beta is None else self._for_beta(scores, correct)
        accepted = int((scores <= threshold).sum())
        (quantity, target), *more = self.limits
        return describe(
            scores,
            correct,
            ranking.just_below_next(accepted) if accepted else threshold,
            quantity=quantity,
            target=target,
            max_miscoverage=more[0][1] if more else None,
            delta=self.delta,
            guarantee="certified",
            rule=BANDS[0].rule,
            assumptions=BANDS[0].assumptions,
        )

    def contradiction(self, certificate: Certificate) -> str | None:
        """What in a certificate is not as this promise makes it, or cannot be true; None when all agrees."""
        other = other_promise(
            certificate, self, limits=self.limits, delta=self.delta, guarantee="certified", words=BANDS
        )
        if other is not None:
            return other
        kept, wrong = certificate.n_correct_accepted, certificate.n_accepted - certificate.n_correct_accepted
        if self.beta is not None:
            accuracy = bands.accuracy_of_counts(kept, wrong, certificate.n_rows, self.delta / 2)
            if not accuracy >= self.beta * (1.0 - 1e-9):
                return (
                    f"{wrong:,} wrong of {kept + wrong:,} accepted rows certify an accuracy of {accuracy:.4f} at every "
                    f"threshold at once, not of {self.beta:g} (delta {self.delta:g})"
                )
        if self.alpha is not None and not certificate.accepts_everything:
            miscoverage = bands.miscoverage_of_counts(kept, certificate.n_correct, self.delta / 2)
            if not miscoverage <= self.alpha * (1.0 + 1e-9):
                return (
                    f"{kept:,} of {certificate.n_correct:,} right rows accepted certify a miscoverage of "
                    f"{miscoverage:.4f} at every threshold at once, not of {self.alpha:g} (delta {self.delta:g})"
                )
        return None

    def _for_alpha(self, scores: Scores, correct: Flags) -> float:
        """The smallest score of a right row at which the miscoverage is certified; inf (accept all) without one."""
        assert self.alpha is not None
        right = np.sort(scores[correct])
        kept = np.flatnonzero(bands.certified_miscoverage(right, right, self.delta / 2) <= self.alpha)
        return float(right[kept[0]]) if len(kept) else math.inf

    def _for_beta(self, scores: Scores, correct: Flags) -> float:
        assert self.beta is not None
        frontier = bands.certified_frontier(scores, correct, self.delta)
        at = int(np.searchsorted(frontier.beta, self.beta))
        alpha = 1.0 if self.alpha is None else self.alpha
        if at < len(frontier.beta) and frontier.alpha[at] <= alpha:
            return float(frontier.threshold[at])
        best = float(frontier.beta[-1]) if len(frontier.beta) else 0.0
        asked = f"min accuracy {self.beta:g}"
        if self.alpha is None or at == len(frontier.beta):
            can = f"the best that these {len(scores):,} rows certify at every threshold at once is {_down(best):.4f}"
            raise InfeasibleTargetError(
                f"{asked} cannot be certified after looking: {can}; lower the target or bring more rows.",
                target=self.beta,
                best=_down(best),
            )
        smallest, other = _up(float(frontier.alpha[at])), _down(frontier.best_accuracy(alpha))
        raise InfeasibleTargetError(
            f"{asked} and max miscoverage {self.alpha:g} cannot be certified together after looking: with {asked} the "
            f"smallest max miscoverage is {smallest:.4f}, with max miscoverage {self.alpha:g} the best min accuracy is "
            f"{other:.4f}; loosen one of them or bring more rows.",
            target=self.alpha,
            best=smallest,
        )


def _rank(n_correct: int, alpha: float, delta: float | None) -> int:
    """How many right rows must be accepted."""
    if delta is None:
        return bounds.expected_miscoverage_rank(n_correct, alpha)
    return bounds.certified_miscoverage_rank(n_correct, alpha, delta)


def _lowest_threshold(right: Scores, alpha: float, delta: float | None) -> float:
    rank = _rank(len(right), alpha, delta)
    return float(np.sort(right)[rank - 1]) if rank <= len(right) else math.inf


def _smallest_alpha(n_correct: int, kept: int, delta: float | None) -> float:
    """The smallest alpha, to four decimals, whose rank is at most `kept`."""
    if kept == 0:
        return 1.0
    exact = (n_correct + 1 - kept) / (n_correct + 1)
    if delta is not None:
        exact = bounds.miscoverage_quantile(n_correct, kept, 1.0 - delta)
    rounded = _up(exact)
    while rounded < 1.0 and _rank(n_correct, rounded, delta) > kept:
        rounded = round(rounded + 1e-4, 4)
    return rounded


def _best_beta(ranking: Ranking, needed: int, beta: float, delta: float | None) -> float | None:
    """The largest accuracy below `beta`, to four decimals, certified for a prefix of at least `needed` rows."""
    low, high = 0, math.ceil(1e4 * beta)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if certified_prefix(ranking, middle / 1e4, delta) >= needed else (low, middle)
    return low / 1e4 if low else None


def _down(value: float) -> float:
    return math.floor(value * 1e4) / 1e4


def _up(value: float) -> float:
    return math.ceil(value * 1e4) / 1e4
