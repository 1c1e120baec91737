"""Both and AfterLooking: promises about selective accuracy and miscoverage."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from metacal.certificates.quantities import MISCOVERAGE, SELECTIVE_ACCURACY
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
    """Limits on the miscoverage and on the selective accuracy, which hold together.

    At most `alpha` of the correct predictions are rejected, and accepted predictions are correct at
    least `beta` of the time. Each limit is certified at delta/2, so both hold together with
    probability 1 - `delta`, or both in expectation if `delta` is None.

    Parameters
    ----------
    alpha : float
        Largest miscoverage (false rejection rate).

    beta : float
        Smallest selective accuracy.

    delta : float or None, default=0.1
        The limits fail to hold together with at most this probability over the calibration rows. If
        None, both hold in expectation.

    Notes
    -----
    1. Let s_α be the smallest threshold certified for the miscoverage, and s_β the threshold
       certified for the accuracy.
    2. If s_α <= s_β, the threshold s_β keeps both limits, because a higher threshold rejects fewer
       rows.
    3. Otherwise the error names the nearest pairs of limits that the rows support.

    The invalid shortcut is to test each limit at all of delta, because both tests must pass. If a
    single threshold keeps both limits, a lower one breaks the first and a higher one the second,
    and each happens with nearly its own level. With tests at 0.1 each, a constructed source broke
    0.16 of the promises.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.random(5000)
    >>> correct = rng.random(5000) > scores**3 / 2
    >>> print(Both(alpha=0.3, beta=0.95).certify(scores, correct).statement)
    Accepted predictions are correct at least 95% of the time and at most 30% of the correct predictions are rejected,
    both with 90% confidence.
    >>> Both(alpha=0.1, beta=0.95).certify(scores, correct)
    Traceback (most recent call last):
    metacal.errors.InfeasibleTargetError: Cannot certify an accuracy of 0.95 together with a miscoverage of 0.1 ...
    """

    alpha: float
    beta: float
    delta: float | None = 0.1

    quantities: ClassVar = {"beta": SELECTIVE_ACCURACY, "alpha": MISCOVERAGE}
    rules: ClassVar = (BOTH_CERTIFIED, BOTH_EXPECTED)

    def procedure(self) -> AccuracyAndMiscoverage:
        """Return the procedure that certifies the promise on calibration rows."""
        return AccuracyAndMiscoverage(self.alpha, self.beta, in_expectation=self.delta is None)


@dataclass(frozen=True)
class AfterLooking(Promise):
    """Limits that hold even if they were chosen after looking at the calibration rows.

    The bounds come from bands that hold at every threshold at once (`bands.certified_frontier`). So
    a limit that was picked from a curve or a report of the same rows holds with probability 1 -
    `delta`. Nothing is assumed about the ranking. A single limit has all of `delta`, two limits
    have half of it each. `statistics.levels` and `statistics.selective_accuracy` prove the bands.

    Parameters
    ----------
    alpha : float, optional
        Largest miscoverage. Without `beta`, the smallest threshold that keeps it is used.

    beta : float, optional
        Smallest selective accuracy. The largest threshold whose accuracy bound reaches it is used.

    delta : float, default=0.1
        The limits fail to hold together with at most this probability over the calibration rows.

    threshold : float, optional
        Threshold to certify instead. An error is raised if it does not support the limits.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.random(5000)
    >>> correct = rng.random(5000) > scores**3 / 2
    >>> AfterLooking(beta=0.95).certify(scores, correct).coverage
    0.688
    >>> AfterLooking(alpha=0.3, beta=0.95).certify(scores, correct).limits
    (('selective accuracy', 0.95), ('miscoverage', 0.3))
    >>> AfterLooking(beta=0.95, threshold=0.6).certify(scores, correct).coverage
    0.604
    """

    alpha: float | None = None
    beta: float | None = None
    delta: float = 0.1
    threshold: float | None = field(default=None, metadata={"optional": True})

    quantities: ClassVar = {"beta": SELECTIVE_ACCURACY, "alpha": MISCOVERAGE}
    rules: ClassVar = (DISTRIBUTION_BAND, ACCURACY_BAND)

    def __post_init__(self) -> None:
        if self.threshold is not None and not math.isfinite(self.threshold):
            raise InputError(f"threshold must be a finite number, but got {self.threshold}.")
        if self.alpha is None and self.beta is None:
            raise InputError("AfterLooking requires alpha, beta or both, but got neither.")
        super().__post_init__()
        # A confidence band needs a confidence level, so delta must not be None.
        check_fraction("delta", self.delta)

    @property
    def rule(self) -> str:
        """Name of the certification rule, which depends on the limits."""
        return self.procedure().rule_name

    def procedure(self) -> SimultaneousThreshold:
        """Return the procedure that certifies the promise on calibration rows."""
        return SimultaneousThreshold(self.alpha, self.beta, self.threshold)
