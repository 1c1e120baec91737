"""Both: two promises at once, each at half of delta; AfterLooking: chosen after looking at the same
rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from metacal.errors import InfeasibleTargetError, InputError
from metacal.promises.certificate import Certificate
from metacal.promises.promise import Promise
from metacal.promises.quantity import COVERAGE_ACCURACY, MISCOVERAGE
from metacal.promises.rules import bands, bounds
from metacal.promises.rules.accuracy import (
    MinAccuracy,
    certified_prefix,
    largest,
    too_many_wrong_accepted,
)
from metacal.promises.rules.order_statistic import too_few_right_kept
from metacal.promises.sample import Sample
from metacal.promises.words import RISING, SAME_SOURCE, register_rule, rounded_down, rounded_up
from metacal.rows.arrays import fraction

#: Certified, and in expectation.
HALF_EACH = register_rule(
    "both-half-each",
    "binomial tests in a fixed sequence of ranks with fallback shares, and the order statistic of"
    " the correct scores, delta/2 each",
    SAME_SOURCE,
    at_values=(
        "binomial tests at the values of the score, in rising order, and the order statistic of the"
        " correct scores, delta/2 each"
    ),
)
BOTH_EXPECTED = register_rule("both-expected", "both rules in expectation", SAME_SOURCE, RISING)

BANDS = register_rule(
    "band-over-thresholds",
    "band over all thresholds at once, equal local levels (Bates et al. 2021): targets may be"
    " chosen after looking",
    SAME_SOURCE,
)
ACCURACY_BAND = register_rule(
    "accuracy-band",
    "mixture of likelihood ratios at all thresholds at once (Robbins 1970; Ville 1939): targets may"
    " be chosen after looking",
    SAME_SOURCE,
)
#: Thresholds at which an error message looks for the best supported targets.
_MESSAGE_THRESHOLDS = 2000


@dataclass
class Both(Promise):
    """At most `alpha` of the correct predictions are rejected, and what is accepted is right at
    least `beta` often.

    Each at delta/2, so together with probability 1 - `delta` (or both in expectation when `delta`
    is None). With s_α the smallest threshold certified for the first promise and s_β the one
    certified for the second: feasible iff s_α <= s_β, and then s_β keeps both, since a higher
    threshold rejects fewer. Otherwise the error names the nearest pairs that these rows do certify.
    All of delta for each would break up to twice as many, although both tests must pass: where one
    threshold alone keeps both promises, a lower one breaks the first and a higher one the second,
    and either comes about with nearly its own level (of tests at 0.1 each, 0.16 were broken by a
    source made for it).

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
    def scouted(self) -> bool:
        return self.delta is not None

    @property
    def _half(self) -> float | None:
        return None if self.delta is None else self.delta / 2

    def from_sample(self, sample: Sample) -> Certificate:
        correct = sample.right
        threshold = MinAccuracy(self.beta, self._half).from_sample(sample).threshold
        kept = int((correct & (sample.score <= threshold)).sum())
        if (
            kept < bounds.miscoverage_rank(int(correct.sum()), self.alpha, self._half)
            and threshold < math.inf
        ):
            raise self._infeasible(sample, kept)
        return self._certificate(sample, threshold)

    def impossible(self, certificate: Certificate) -> str | None:
        wrong = too_many_wrong_accepted(certificate, self.beta, self._half)
        return wrong or too_few_right_kept(certificate, self.alpha, self._half)

    def _infeasible(self, sample: Sample, kept: int) -> InfeasibleTargetError:
        half, right = self._half, np.sort(sample.score[sample.right])
        smallest = _smallest_alpha(len(right), kept, half)
        rank = bounds.miscoverage_rank(len(right), self.alpha, half)
        needed = int((sample.score <= (right[rank - 1] if rank <= len(right) else math.inf)).sum())
        # The largest accuracy below beta, to four decimals, certified for a prefix of at least so
        # many rows.
        best = largest(
            0,
            math.ceil(1e4 * self.beta),
            lambda beta: certified_prefix(sample.ranking, beta, half) >= needed,
        )
        other = f"no min accuracy goes with max miscoverage {self.alpha:g}"
        if best:
            other = f"with max miscoverage {self.alpha:g} the best min accuracy is {best / 1e4:.4f}"
        one = f"with min accuracy {self.beta:g} the smallest max miscoverage is {smallest:.4f}"
        said = (
            f"min accuracy {self.beta:g} and max miscoverage {self.alpha:g} cannot be certified"
            " together"
        )
        said += f": on these {len(sample):,} rows {self.surely}, {one}, and {other}"
        said += "; loosen one of them, use more rows, or find a better ranking score."
        return InfeasibleTargetError(said, target=self.alpha, best=smallest)


@dataclass
class AfterLooking(Promise):
    """The same promises, valid although their targets were chosen after looking at these very rows.

    Give `alpha`, `beta` or both. The bounds come from bands that hold at every threshold at once
    (`bands.certified_frontier`), so whatever was picked from a curve or a report of the same rows
    stands with probability 1 - `delta`. With `beta`, the largest threshold whose accuracy bound
    reaches it is used; with `alpha` alone, the smallest that keeps it; with `threshold` that very
    threshold, or an error where it does not carry what is asked. No assumption about the ranking is
    made. One limit has all of `delta`, two have half of it each. Both bands are proved
    (`promises.rules.levels`, `promises.rules.selective_accuracy`).

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.random(5000)
    >>> correct = rng.random(5000) > scores**3 / 2
    >>> AfterLooking(beta=0.95).certify(scores, correct).coverage
    0.688
    >>> AfterLooking(alpha=0.3, beta=0.95).certify(scores, correct).limits
    (('coverage accuracy', 0.95), ('miscoverage', 0.3))
    >>> AfterLooking(beta=0.95, threshold=0.6).certify(scores, correct).coverage
    0.604
    """

    alpha: float | None = None
    beta: float | None = None
    delta: float = 0.1
    threshold: float | None = field(default=None, metadata={"optional": True})

    limited: ClassVar = {"beta": COVERAGE_ACCURACY, "alpha": MISCOVERAGE}
    rules: ClassVar = (BANDS, ACCURACY_BAND)

    @property
    def rule(self) -> str:
        return BANDS if self.beta is None else ACCURACY_BAND

    @property
    def _share(self) -> float:
        """The delta of each limit that is asked for: all of it where there is one."""
        return self.delta / len(self.limits)

    def __post_init__(self) -> None:
        if self.threshold is not None and not math.isfinite(self.threshold):
            raise InputError(f"threshold must be a finite score, got {self.threshold}.")
        if self.alpha is None and self.beta is None:
            raise InputError("AfterLooking needs alpha, beta or both; got neither.")
        super().__post_init__()
        fraction("delta", self.delta)  # None is no choice here

    def from_sample(self, sample: Sample) -> Certificate:
        if self.threshold is None:
            threshold = (
                self._for_alpha(sample) if self.beta is None else self._for_beta(sample, self.beta)
            )
            accepted = int((sample.score <= threshold).sum())
            at = sample.ranking.just_below_next(accepted) if accepted else threshold
            return self._certificate(sample, at)
        certificate = self._certificate(sample, self.threshold)
        if (missing := self.impossible(certificate)) is not None:
            said = f"the threshold {self.threshold:g} does not carry it on these rows: {missing}"
            said += (
                "; read what it carries off a report of these very rows, or leave the threshold"
                " out."
            )
            raise InfeasibleTargetError(said, target=self.limits[0][1])
        return certificate

    def impossible(self, certificate: Certificate) -> str | None:
        kept, wrong = (
            certificate.n_correct_accepted,
            certificate.n_accepted - certificate.n_correct_accepted,
        )

        def short(rows: str, bound: float, limit: float) -> str:
            return (
                f"{rows} of {bound:.4f} at every threshold at once, not of {limit:g} (delta"
                f" {self.delta:g})"
            )

        if self.beta is not None:
            accuracy = bands.accuracy_of_counts(kept, wrong, certificate.n_rows, self._share)
            if not accuracy >= self.beta * (1.0 - 1e-9):
                rows = f"{wrong:,} wrong of {kept + wrong:,} accepted rows certify an accuracy"
                return short(rows, rounded_down(accuracy), self.beta)
        if self.alpha is not None and not certificate.accepts_everything:
            miscoverage = bands.miscoverage_of_counts(kept, certificate.n_correct, self._share)
            if not miscoverage <= self.alpha * (1.0 + 1e-9):
                rows = (
                    f"{kept:,} of {certificate.n_correct:,} right rows accepted certify a"
                    " miscoverage"
                )
                return short(rows, rounded_up(miscoverage), self.alpha)
        return None

    def _for_alpha(self, sample: Sample) -> float:
        """The smallest score of a right row at which the miscoverage is certified; inf (accept all)
        without one.
        """
        right, ((_, alpha),) = np.sort(sample.score[sample.right]), self.limits
        kept = np.flatnonzero(bands.certified_miscoverage(right, right, self._share) <= alpha)
        return float(right[kept[0]]) if len(kept) else math.inf

    def _for_beta(self, sample: Sample, beta: float) -> float:
        """Return the largest threshold that supports `beta`. Raise if it does not support
        `alpha`.
        """
        threshold = bands.largest_supporting_threshold(
            sample.score, sample.right, beta, self._share
        )
        if threshold is None:
            raise self._infeasible_accuracy(sample, beta)
        if self.alpha is not None:
            correct_scores = sample.score[sample.right]
            miscoverage = bands.certified_miscoverage(correct_scores, [threshold], self._share)
            if miscoverage[0] > self.alpha:
                raise self._infeasible_pair(sample, beta, self.alpha, float(miscoverage[0]))
        return threshold

    def _frontier(self, sample: Sample) -> bands.CertifiedFrontier:
        """Compute the certified frontier at no more thresholds than a message needs."""
        thresholds = bands.run_ends(sample.score, sample.right)
        step = math.ceil(len(thresholds) / _MESSAGE_THRESHOLDS)
        share = 1.0 / len(self.limits)
        return bands.certified_frontier(
            sample.score, sample.right, self.delta, thresholds[:: max(step, 1)], share
        )

    def _infeasible_accuracy(self, sample: Sample, beta: float) -> InfeasibleTargetError:
        best = rounded_down(float(self._frontier(sample).beta.max(initial=0.0)))
        message = (
            f"min accuracy {beta:g} cannot be certified after looking: the best that these"
            f" {len(sample):,} rows "
        )
        message += (
            f"certify at every threshold at once is {best:.4f}; lower the target or use more rows."
        )
        return InfeasibleTargetError(message, target=beta, best=best)

    def _infeasible_pair(
        self, sample: Sample, beta: float, alpha: float, miscoverage: float
    ) -> InfeasibleTargetError:
        """Build the error for a threshold that supports `beta`, but not `alpha`."""
        smallest = rounded_up(miscoverage)
        accuracy = rounded_down(self._frontier(sample).best_accuracy(alpha))
        message = (
            f"min accuracy {beta:g} and max miscoverage {alpha:g} cannot be certified together"
            " after looking: "
        )
        message += (
            f"with min accuracy {beta:g} the smallest max miscoverage is {smallest:.4f}, with max"
            " miscoverage "
        )
        message += (
            f"{alpha:g} the best min accuracy is {accuracy:.4f}; loosen one of them or use more"
            " rows."
        )
        return InfeasibleTargetError(message, target=alpha, best=smallest)


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
