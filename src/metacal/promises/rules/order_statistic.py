"""MaxMiscoverage and MaxReview: at most a share of some rows is rejected. The threshold is an order
statistic of them.

Miscoverage looks at the right rows, review at all of them; labels are not needed for the latter.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from metacal.promises.certificate import Certificate
from metacal.promises.notes import Note, too_few_right, too_few_to_review
from metacal.promises.parts.part import Part
from metacal.promises.promise import ByRanking, OneThreshold
from metacal.promises.quantity import MISCOVERAGE, REVIEW
from metacal.promises.rules import bounds
from metacal.promises.rules.whole_units import OfUnits
from metacal.promises.sample import Ranking, Sample
from metacal.promises.words import SAME_SOURCE, register_rule

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


class OrderStatistic(ByRanking, OfUnits):
    """At most a share of the rows that are looked at is rejected: the k-th smallest of their scores
    is accepted.
    """

    @abstractmethod
    def _too_few(self, n: int, best: float, needed: int) -> Note:
        """What is said where n rows are too few to reject any: at which limit they are not, and how
        many would do.
        """

    def from_ranking(self, ranking: Ranking) -> Certificate:
        """Choose the threshold on the scores of the rows that it looks at: the first up to which
        there are enough.
        """
        seen = ranking.ranks - ranking.errors if self.needs_labels else ranking.ranks
        n, limit = int(seen[-1]), self.limits[0][1]
        block = int(np.searchsorted(seen, bounds.miscoverage_rank(n, limit, self.delta)))
        ranking.settle(block - 1 if block == len(seen) else block, block + 1)
        if block < len(seen):
            return self._ranked(ranking, float(ranking.scores[block]))
        best = bounds.smallest_certifiable_miscoverage(n, self.delta)
        note = self._too_few(n, best, bounds.correct_rows_needed(limit, self.delta)).warned()
        return self._ranked(ranking, math.inf, (note,))


@dataclass
class MaxMiscoverage(OrderStatistic, OneThreshold):
    """At most `alpha` of the correct predictions are rejected.

    With probability 1 - `delta` over the calibration rows (the umbrella algorithm of Tong, Feng &
    Li 2018), or in expectation when `delta` is None (the paper's rank, on all correct rows). The
    threshold is just above the k-th smallest score of the correct rows; with too few rows to reject
    any, everything is accepted, and the certificate says so.

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

    limited: ClassVar = {"alpha": MISCOVERAGE}
    rules: ClassVar = (UMBRELLA, EXPECTED_RANK)

    def impossible(self, certificate: Certificate | Part) -> str | None:
        return too_few_right_kept(certificate, self.alpha, self.delta)

    #: A part with too few right rows to reject any accepts everything, which keeps the promise.
    unproven: ClassVar[float] = math.inf

    def takes(self, sample: Sample, level: float) -> list[tuple[int, int]]:
        return [(int(sample.right.sum()), bounds.correct_rows_needed(self.alpha, level))]

    def settle(self, sample: Sample, level: float, planned: float) -> tuple[float | None, bool]:
        """The order statistic at a level; nothing of it is left over for other parts."""
        right = sample.score[sample.right]
        rank = bounds.certified_miscoverage_rank(len(right), self.alpha, level)
        return float(np.partition(right, rank - 1)[rank - 1]) if rank <= len(right) else None, False

    def lacking(self, sample: Sample, level: float) -> tuple[float | None, int | None]:
        """The smallest limit at which any row can be rejected, and how many right rows would do."""
        ((right, needed),) = self.takes(sample, level)
        return bounds.smallest_certifiable_miscoverage(right, level) if right else None, needed

    def _too_few(self, n: int, best: float, needed: int) -> Note:
        return too_few_right(right=n, alpha=float(self.alpha), best=best, needed=needed)


@dataclass
class MaxReview(OrderStatistic):
    r"""At most `share` of all rows go to review: are rejected.

    With probability 1 - `delta` over the calibration rows, or on average where `delta` is None. The
    threshold is the k-th smallest of all n scores; with h_(1) <= … <= h_(n),

    - certified: the smallest k with P(Bin(n, 1 - share) >= k) <= delta. P(h > h_(k)) is at most 1 -
      U_(k), U_(k) the k-th of n uniform order statistics, and 1 - U_(k) > share just where at least
      k of n uniforms lie below 1 - share;
    - in expectation: k = n + 1 - floor((n + 1)·share), as E[1 - U_(k)] = (n + 1 - k)/(n + 1).

    Only scores are looked at: rows without labels will do, `MetaCal(MaxReview(0.2)).fit(logits)`.
    Of the share that is allowed it uses 76, 88 and 94% at n = 300, 1,000 and 5,000 (share 0.1,
    delta 0.1). With too few rows to reject any, everything is accepted, and the certificate says
    so.

    Tong, Feng & Li, "Neyman-Pearson classification algorithms and NP receiver operating
    characteristics", Science Advances 2018 (the umbrella algorithm, there for the scores of one
    class).

    Examples
    --------
    >>> scores = np.arange(1000.0)
    >>> MaxReview(0.2).certify(scores).n_accepted, MaxReview(0.2, delta=None).certify(scores).n_accepted
    (817, 801)
    >>> print(MaxReview(0.2).certify(scores).statement)
    At most 20% of all rows go to review, with 90% confidence.
    """

    share: float
    delta: float | None = 0.1

    limited: ClassVar = {"share": REVIEW}
    rules: ClassVar = (UMBRELLA_OF_ALL, EXPECTED_RANK_OF_ALL)

    def impossible(self, certificate: Certificate) -> str | None:
        n, kept = certificate.n_rows, certificate.n_accepted
        if certificate.accepts_everything or bounds.keeps_enough(n, kept, self.share, self.delta):
            return None
        said = (
            f"{kept:,} of {n:,} rows accepted do not certify that at most {self.share:g} go to"
            " review"
        )
        return f"{said}{bounds.surely(self.delta)}"

    def _too_few(self, n: int, best: float, needed: int) -> Note:
        return too_few_to_review(rows=n, share=float(self.share), best=best, needed=needed)


def too_few_right_kept(
    certificate: Certificate | Part, alpha: float, delta: float | None
) -> str | None:
    """Whether the right rows that were accepted are too few to certify a miscoverage of at most
    alpha.

    Where everything is accepted no right row is rejected, and nothing is to be certified.
    """
    n, kept = certificate.n_correct, certificate.n_correct_accepted
    if certificate.accepts_everything or bounds.keeps_enough(n, kept, alpha, delta):
        return None
    said = (
        f"{kept:,} of {n:,} right rows accepted do not certify a miscoverage of at most {alpha:g}"
    )
    return f"{said}{bounds.surely(delta)}"
