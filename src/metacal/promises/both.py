"""Both and AfterLooking: an accuracy and a miscoverage at once, or chosen after looking."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from metacal.certificates.quantity import COVERAGE_ACCURACY, MISCOVERAGE
from metacal.certification.accuracy_and_miscoverage import (
    BOTH_CERTIFIED,
    BOTH_EXPECTED,
    AccuracyAndMiscoverage,
)
from metacal.certification.after_looking import (
    ACCURACY_BAND,
    DISTRIBUTION_BAND,
    SimultaneousThreshold,
)
from metacal.errors import InputError
from metacal.promises.promise import Promise
from metacal.rows.arrays import check_fraction


@dataclass(frozen=True)
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
    >>> import numpy as np
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

    quantities: ClassVar = {"beta": COVERAGE_ACCURACY, "alpha": MISCOVERAGE}
    rules: ClassVar = (BOTH_CERTIFIED, BOTH_EXPECTED)

    def procedure(self) -> AccuracyAndMiscoverage:
        """Return how rows are certified."""
        return AccuracyAndMiscoverage(self.alpha, self.beta, in_expectation=self.delta is None)


@dataclass(frozen=True)
class AfterLooking(Promise):
    """The same promises, valid although their targets were chosen after looking at these very rows.

    Give `alpha`, `beta` or both. The bounds come from bands that hold at every threshold at once
    (`bands.certified_frontier`), so whatever was picked from a curve or a report of the same rows
    stands with probability 1 - `delta`. With `beta`, the largest threshold whose accuracy bound
    reaches it is used; with `alpha` alone, the smallest that keeps it; with `threshold` that very
    threshold, or an error where it does not carry what is asked. No assumption about the ranking is
    made. One limit has all of `delta`, two have half of it each. Both bands are proved
    (`statistics.levels`, `statistics.selective_accuracy`).

    Examples
    --------
    >>> import numpy as np
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

    quantities: ClassVar = {"beta": COVERAGE_ACCURACY, "alpha": MISCOVERAGE}
    rules: ClassVar = (DISTRIBUTION_BAND, ACCURACY_BAND)

    def __post_init__(self) -> None:
        if self.threshold is not None and not math.isfinite(self.threshold):
            raise InputError(f"threshold must be a finite score, got {self.threshold}.")
        if self.alpha is None and self.beta is None:
            raise InputError("AfterLooking needs alpha, beta or both; got neither.")
        super().__post_init__()
        # None is not allowed here.
        check_fraction("delta", self.delta)

    @property
    def rule(self) -> str:
        """Rule of the certificates."""
        return self.procedure().rule_name

    def procedure(self) -> SimultaneousThreshold:
        """Return how rows are certified."""
        return SimultaneousThreshold(self.alpha, self.beta, self.threshold)
