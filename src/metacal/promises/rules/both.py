"""Both: two promises at once, each at half of delta."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from metacal.errors import InfeasibleTargetError
from metacal.promises.certificate import Certificate
from metacal.promises.promise import Promise
from metacal.promises.quantity import COVERAGE_ACCURACY, MISCOVERAGE
from metacal.promises.rules import bounds
from metacal.promises.rules.accuracy import MinAccuracy, certified_prefix, too_many_wrong_accepted
from metacal.promises.rules.order_statistic import too_few_right_kept
from metacal.promises.sample import Ranking, Sample
from metacal.promises.words import RISING, SAME_SOURCE, register_rule, rounded_up

#: Certified, and in expectation.
HALF_EACH = register_rule(
    "both-half-each",
    "binomial tests in a fixed sequence of ranks with fallback shares, and the order statistic of the correct scores, "
    "delta/2 each",
    SAME_SOURCE,
)
BOTH_EXPECTED = register_rule("both-expected", "both rules in expectation", SAME_SOURCE, RISING)


@dataclass
class Both(Promise):
    """At most `alpha` of the correct predictions are rejected, and what is accepted is right at least `beta` often.

    Each at delta/2, so together with probability 1 - `delta` (or both in expectation when `delta` is None). With s_α
    the smallest threshold certified for the first promise and s_β the one certified for the second: feasible iff
    s_α <= s_β, and then s_β keeps both, since a higher threshold rejects fewer. Otherwise the error names the nearest
    pairs that these rows do certify.

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

    limited: ClassVar = {"beta": COVERAGE_ACCURACY, "alpha": MISCOVERAGE}
    rules: ClassVar = (HALF_EACH, BOTH_EXPECTED)

    @property
    def _half(self) -> float | None:
        """The delta of each."""
        return None if self.delta is None else self.delta / 2

    def from_sample(self, sample: Sample) -> Certificate:
        """Choose the largest threshold that keeps the accuracy, if it keeps the miscoverage too."""
        correct = sample.right
        threshold = MinAccuracy(self.beta, self._half).from_sample(sample).threshold
        kept = int((correct & (sample.score <= threshold)).sum())
        if kept < bounds.miscoverage_rank(int(correct.sum()), self.alpha, self._half) and threshold < math.inf:
            raise self._infeasible(sample, kept)
        return self._certificate(sample, threshold)

    def impossible(self, certificate: Certificate) -> str | None:
        """What in the counts cannot be; None when all agrees."""
        return too_many_wrong_accepted(certificate, self.beta, self._half) or too_few_right_kept(
            certificate, self.alpha, self._half
        )

    def _infeasible(self, sample: Sample, kept: int) -> InfeasibleTargetError:
        half, right = self._half, np.sort(sample.score[sample.right])
        smallest = _smallest_alpha(len(right), kept, half)
        rank = bounds.miscoverage_rank(len(right), self.alpha, half)
        needed = int((sample.score <= (right[rank - 1] if rank <= len(right) else math.inf)).sum())
        best = _best_beta(sample.ranking, needed, self.beta, half)
        other = (
            f"with max miscoverage {self.alpha:g} the best min accuracy is {best:.4f}"
            if best is not None
            else f"no min accuracy goes with max miscoverage {self.alpha:g}"
        )
        return InfeasibleTargetError(
            f"min accuracy {self.beta:g} and max miscoverage {self.alpha:g} cannot be certified together: on these "
            f"{len(sample):,} rows {self.surely}, with min accuracy {self.beta:g} the smallest max miscoverage is "
            f"{smallest:.4f}, and {other}; loosen one of them, bring more rows, or find a better ranking score.",
            target=self.alpha,
            best=smallest,
        )


def _smallest_alpha(n_correct: int, kept: int, delta: float | None) -> float:
    """The smallest alpha, to four decimals, whose rank is at most `kept`."""
    if kept == 0:
        return 1.0
    exact = (n_correct + 1 - kept) / (n_correct + 1)
    if delta is not None:
        exact = bounds.miscoverage_quantile(n_correct, kept, 1.0 - delta)
    rounded = rounded_up(exact)
    while rounded < 1.0 and bounds.miscoverage_rank(n_correct, rounded, delta) > kept:
        rounded = round(rounded + 1e-4, 4)
    return rounded


def _best_beta(ranking: Ranking, needed: int, beta: float, delta: float | None) -> float | None:
    """The largest accuracy below `beta`, to four decimals, certified for a prefix of at least `needed` rows."""
    low, high = 0, math.ceil(1e4 * beta)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if certified_prefix(ranking, middle / 1e4, delta) >= needed else (low, middle)
    return low / 1e4 if low else None
