"""MaxMiscoverage and MaxReview: promises that at most a share of rows is rejected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from metacal.certificates.quantities import MISCOVERAGE, REVIEW
from metacal.certificates.rule_texts import SAME_SOURCE, register_rule
from metacal.certification.one_threshold import OneThresholdProcedure
from metacal.certification.rules.order_statistics import RejectionRateRule
from metacal.promises.promise import Promise, SubgroupPromise

# Names of the rules for correct rows and for all rows, with a delta and in expectation.
UMBRELLA = register_rule(
    "umbrella", "umbrella order statistic of the correct scores (Tong, Feng & Li 2018)", SAME_SOURCE
)
EXPECTED_RANK = register_rule(
    "expected-rank",
    "rank of the correct scores, in expectation (Ma & Blaschko 2021, exact arithmetic)",
    SAME_SOURCE,
)
UMBRELLA_OF_ALL = register_rule(
    "umbrella-of-all", "umbrella order statistic of all scores (Tong, Feng & Li 2018)", SAME_SOURCE
)
EXPECTED_RANK_OF_ALL = register_rule(
    "expected-rank-of-all", "rank of all scores, in expectation", SAME_SOURCE
)


@dataclass(frozen=True)
class MaxMiscoverage(SubgroupPromise):
    """At most `alpha` of the correct predictions are rejected.

    The threshold is just above the k-th smallest score of the correct rows. If there are too few
    correct rows to reject any row, every row is accepted, and the certificate has a note about it.

    Parameters
    ----------
    alpha : float
        Largest miscoverage (false rejection rate).

    delta : float or None, default=0.1
        The promise fails with at most this probability over the calibration rows (the umbrella
        algorithm of Tong, Feng & Li 2018). If None, the promise holds in expectation (the rank of
        the paper, on all correct rows).

    Examples
    --------
    >>> import numpy as np
    >>> scores, correct = np.arange(200.0), np.ones(200, dtype=bool)
    >>> MaxMiscoverage(0.05).certify(scores, correct).highest_accepted
    194.0
    >>> MaxMiscoverage(0.05, delta=None).certify(scores, correct).highest_accepted
    190.0
    """

    alpha: float
    delta: float | None = 0.1

    quantities: ClassVar = {"alpha": MISCOVERAGE}
    rules: ClassVar = (UMBRELLA, EXPECTED_RANK)

    def procedure(self) -> OneThresholdProcedure:
        """Return the procedure that certifies the promise on calibration rows."""
        return OneThresholdProcedure(
            MISCOVERAGE, self.alpha, RejectionRateRule("correct", self.rule)
        )


@dataclass(frozen=True)
class MaxReview(Promise):
    r"""At most `share` of all rows are rejected and go to review.

    The threshold is the k-th smallest of all n scores. With a delta, k is the smallest rank with
    P(Bin(n, 1 - share) >= k) <= delta. Let h_(1) <= ... <= h_(n) be the scores. P(h > h_(k)) is at
    most 1 - U_(k), where U_(k) is the k-th of n uniform order statistics, and 1 - U_(k) > share just
    if at least k of n uniform numbers lie below 1 - share. In expectation, k = n + 1 - floor((n + 1)
    share), because E[1 - U_(k)] = (n + 1 - k) / (n + 1).

    Only scores are read, so rows without labels suffice: `MetaCal(MaxReview(0.2)).fit(logits)`. If
    there are too few rows to reject any, every row is accepted, and the certificate has a note about
    it.

    Parameters
    ----------
    share : float
        Largest share of rows that go to review.

    delta : float or None, default=0.1
        The promise fails with at most this probability over the calibration rows. If None, the
        promise holds in expectation.

    References
    ----------
    Tong, Feng & Li, "Neyman-Pearson classification algorithms and NP receiver operating
    characteristics", Science Advances, 2018.

    Examples
    --------
    >>> import numpy as np
    >>> scores = np.arange(1000.0)
    >>> MaxReview(0.2).certify(scores).n_accepted
    817
    >>> MaxReview(0.2, delta=None).certify(scores).n_accepted
    801
    >>> print(MaxReview(0.2).certify(scores).statement)
    At most 20% of all rows go to review, with 90% confidence.
    """

    share: float
    delta: float | None = 0.1

    quantities: ClassVar = {"share": REVIEW}
    rules: ClassVar = (UMBRELLA_OF_ALL, EXPECTED_RANK_OF_ALL)

    def procedure(self) -> OneThresholdProcedure:
        """Return the procedure that certifies the promise on calibration rows."""
        return OneThresholdProcedure(REVIEW, self.share, RejectionRateRule("all", self.rule))
