r"""What can be said of rows before they have labels: how many go to review, how many of the
accepted are right.

**Next rows**: a prediction interval, before any of them has been seen. The law of the share that
goes to review:

- The threshold is the k-th smallest of n scores, and that row is accepted (MaxReview; of the right
  rows MaxMiscoverage): P(h <= t) ~ Beta(k, n-k+1), so the share beyond is Beta(n-k+1, k), whatever
  the law of the scores.
- It lies just below the (m+1)-th of n scores (accuracy): the share beyond is Beta(n-m, m+1). Exact
  for a rank that was fixed beforehand; where labels chose it, measured: 90% intervals cover 89 to
  93%.
- The wrong rows have no say in a threshold for miscoverage: of n0 of them a0 lie below it, and the
  share beyond is Beta(n0-a0+1/2, a0+1/2) (Jeffreys). Rows in all are a mixture of right and wrong
  ones, of which n1 and n0 were seen.
- Where each class or group has a threshold, all rows are a mixture of its parts, each by its own
  counts.

Of a mixture Σ w_j R_j with w ~ Dirichlet(counts + 1/2) and independent beta shares R_j mean and
variance are known; the beta law that has both stands for it. Of N new rows as many go to review as
a beta-binomial law says. A binomial with the calibration's share would cover 76 to 80%: it takes
for known what a finite calibration set only estimates.

**Accuracy**: what calibrated confidence says of the accepted rows. An estimate, and nothing more.

A calibrated row of confidence c is right with probability c, so the mean confidence c̄ of N
accepted rows estimates how many of them are right. Three things are off:

- chance: given their confidences, N rows are right c̄ of the time give or take √(Σ c(1 - c)) / N;
- the calibrator: it was fitted on n accepted rows, of which a share p was right, and cannot know
  its level on them better than √(p(1 - p) / n);
- its shape: on those very rows its mean confidence is g beside the share of right ones.

The error bar is z · √(the first² + the second²) + |g|, at the level of z. It holds for rows from
the same source as the calibration rows. **Shift breaks it**, and nothing in the confidences tells:
a classifier that meets strange rows is often sure and wrong. Labels tell; that is what monitors are
for.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, ndtri

from metacal import display
from metacal.errors import InputError
from metacal.formulas import Flags
from metacal.rows.arrays import check_fraction

if TYPE_CHECKING:
    from metacal.certificates.certificate import Certificate
    from metacal.certificates.counts import Traffic
    from metacal.certificates.subgroups import Name, SubgroupCertificate
    from metacal.promises.sequential.profile import Profile

#: Every count has its probability computed.
_MOST_ROWS = 10_000_000


class ReviewRate(NamedTuple):
    """Rows of one kind: so many were seen, and the share of them that goes to review is Beta(a, b);
    0: none, or all.
    """

    seen: float
    a: float
    b: float

    @classmethod
    def from_threshold(cls, n: int, accepted: int, threshold: float, *, at_a_row: bool) -> Self:
        """Beyond a threshold that accepts so many of n, and is one of their scores or just below
        the next one.
        """
        if math.isinf(threshold):
            return cls(n, *((0.0, 1.0) if threshold > 0.0 else (1.0, 0.0)))
        return (
            cls(n, n - accepted + 1.0, accepted)
            if at_a_row
            else cls(n, max(1.0, n - accepted), accepted + 1.0)
        )

    @classmethod
    def from_mixture(cls, kinds: Sequence[ReviewRate]) -> ReviewRate:
        """The rows of several kinds together: the beta law with their mean and variance.

        >>> ReviewRate.from_mixture([ReviewRate(100, 10, 91), ReviewRate(100, 0, 1)])
        ReviewRate(seen=200, a=9.99..., b=191.9...)
        """
        if len(kinds) == 1:
            return kinds[0]
        seen, a, b = (np.array(column, dtype=np.float64) for column in zip(*kinds))
        mean = a / (a + b)
        square = mean * (a + 1.0) / (a + b + 1.0)
        weight, total = seen + 0.5, float((seen + 0.5).sum())
        square = np.where(a * b == 0.0, mean, square)  # none or all of them, for sure
        first = float(weight @ mean) / total
        own = weight * (weight + 1.0) * square - (weight * mean) ** 2
        second = (total * first) ** 2 + float(own.sum())
        spread = second / (total * (total + 1.0)) - first**2
        sure = first * (1.0 - first) / spread - 1.0 if 0.0 < first < 1.0 else 1.0
        return cls(int(seen.sum()), first * sure, (1.0 - first) * sure)


def estimate_review_rate(certificate: Certificate, name: Name | None = None) -> ReviewRate:
    """The share of the traffic that goes to review, or of that of one class or group."""
    parts = certificate.parts
    if parts is None:
        if name is not None:
            raise InputError(
                f"one threshold is for all rows: there is no part {name!r} of its own."
            )
        finite = (
            math.inf
            if certificate.accepts_everything
            else min(certificate.threshold, sys.float_info.max)
        )
        # Rows of whole units say less than as many independent ones: at least as much as one of
        # each largest unit.
        most = certificate.circumstances.largest_unit or 1
        seen, *shape = _reviewed(certificate, certificate.traffic, finite)
        return ReviewRate(
            seen, *(max(1.0, value / most) if value > 1.0 else value for value in shape)
        )
    own = [part for part in parts.items if (part.n_rows if name is None else name in part.names)]
    if not own:
        raise InputError(
            f"there is no {parts.by} {name!r}; there are {', '.join(map(str, parts.names))}."
        )
    kinds = [_reviewed(certificate, part, part.threshold) for part in own]
    # A part that is pooled was tested on some of its rows: the others came too.
    rest = certificate.n_rows - sum(part.n_rows for part in parts.items)
    kinds = [
        kind._replace(seen=kind.seen + rest * (len(part.names) > 1))
        for kind, part in zip(kinds, own)
    ]
    return ReviewRate.from_mixture(kinds)


def _reviewed(
    certificate: Certificate, seen: Traffic | SubgroupCertificate, threshold: float
) -> ReviewRate:
    """By the law of the promise: an order statistic of the right rows, or of all, or a threshold
    below the next row.
    """
    promised, accepted = certificate.quantity, seen.n_accepted
    if not (promised.accepting_is_safe and promised.needs_labels):
        return ReviewRate.from_threshold(
            seen.n_rows, accepted, threshold, at_a_row=promised.accepting_is_safe
        )
    right = ReviewRate.from_threshold(
        seen.n_correct, seen.n_correct_accepted, threshold, at_a_row=True
    )
    wrong, among = seen.n_rows - seen.n_correct, accepted - seen.n_correct_accepted
    half = (0.5, 0.5) if math.isfinite(threshold) else (0.0, 0.0)
    return (
        ReviewRate.from_mixture(
            [right, ReviewRate(wrong, wrong - among + half[0], among + half[1])]
        )
        if wrong
        else right
    )


@dataclass(frozen=True)
class NextRows:
    """How many of the next `rows` rows go to review: at least `fewest` and at most `most`, with
    probability `level`.

    `each` is "unit" where calibration rows belong together: then each of these rows is of a unit of
    its own.

    >>> print(predict_review_count(1000, 0.9, ReviewRate(1000, 108, 893)))
    of the next 1,000 rows 86 to 131 go to review (90% interval)
    >>> print(predict_review_count(50, 0.9, ReviewRate(200, 0, 1)))
    none of the next 50 rows goes to review
    """

    rows: int
    level: float
    fewest: int
    most: int
    each: Literal["row", "unit"] = "row"

    def __str__(self) -> str:
        what = f"{self.rows:,} rows{', each of a unit of its own,' if self.each == 'unit' else ''}"
        if self.most == 0:
            return f"none of the next {what} goes to review"
        share = f"{100 * self.level:.6g}%"
        return (
            f"of the next {what} {self.fewest:,} to {self.most:,} go to review ({share} interval)"
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        return vars(self).copy()


def predict_review_count(
    rows: int, level: float, reviewed: ReviewRate, *, each: Literal["row", "unit"] = "row"
) -> NextRows:
    """The equal-tailed interval of a beta-binomial count, for a share that goes to review of a
    known law.
    """
    if (
        isinstance(rows, bool)
        or not isinstance(rows, int | np.integer)
        or not 1 <= rows <= _MOST_ROWS
    ):
        raise InputError(f"rows must be a whole number from 1 to {_MOST_ROWS:,}, got {rows!r}.")
    check_fraction("level", level)
    _, a, b = reviewed
    if not a or not b:
        return NextRows(int(rows), float(level), *((int(rows),) * 2 if a else (0, 0)), each)
    n = int(rows)
    k = np.arange(n + 1.0)
    log_mass = (
        gammaln(n + 1.0)
        - gammaln(k + 1.0)
        - gammaln(n - k + 1.0)
        + gammaln(k + a)
        + gammaln(n - k + b)
    )
    mass = np.exp(log_mass - log_mass.max())
    below = np.cumsum(mass) / mass.sum()
    tail = (1.0 - level) / 2.0
    fewest = int(np.searchsorted(below, tail, side="right"))
    most = int(np.searchsorted(below, 1.0 - tail, side="left"))
    return NextRows(n, float(level), fewest, min(most, n), each)


@dataclass(frozen=True)
class AccuracyEstimate:
    """How many of the accepted rows are right, by their confidence alone.

    Attributes
    ----------
    accuracy : float or None
        The estimate; None where nothing was accepted.
    low, high : float or None
        Its error bar.
    level : float
        How often such a bar should hold the truth, on rows from the source of the calibration rows.
    n_rows, n_accepted : int
    """

    accuracy: float | None
    low: float | None
    high: float | None
    level: float
    n_rows: int
    n_accepted: int

    def to_dict(self) -> dict[str, Any]:
        """JSON types, and what the estimate rests on."""
        return {
            **vars(self),
            "basis": "calibrated confidence of accepted rows, no labels; wrong under shift",
        }

    def to_frame(self) -> Any:
        """One row of a `pandas.DataFrame`."""
        return display.make_frame([vars(self)])

    def _repr_html_(self) -> str:
        return display.make_paragraphs_html(str(self))

    def __str__(self) -> str:
        if self.accuracy is None or self.low is None or self.high is None:
            return f"No row of {self.n_rows:,} was accepted: there is nothing to estimate."
        return (
            f"About {100 * self.accuracy:.2f}% of the {self.n_accepted:,} accepted rows are right,"
            f" {100 * self.low:.2f}% to {100 * self.high:.2f}%: an estimate from confidence alone,"
            f" at {self.level:.0%}. If the rows have shifted since calibration it is wrong; only"
            " labels would tell."
        )


def estimate_accuracy_from_sums(
    certificate: Certificate | None,
    profile: Profile | None,
    *,
    n_rows: int,
    n_accepted: int,
    confidence: float,
    variance: float,
    level: float = 0.95,
) -> AccuracyEstimate:
    """The estimate from what is summed over rows: the accepted rows' confidences c, and c(1 - c).

    >>> from metacal.promises.accuracy import MinAccuracy
    >>> from metacal.promises.sequential.profile import build_profile
    >>> from metacal.certification.ranking import Ranking
    >>> scores, right = np.arange(2000.0), np.arange(2000) % 100 > 0
    >>> certificate = MinAccuracy(0.97).certify(scores, right)
    >>> profile = build_profile(Ranking.from_scores(scores, right), np.full(2000, 0.99), right)
    >>> estimate_accuracy_from_sums(certificate, profile, n_rows=1000, n_accepted=900, confidence=891.0, variance=8.91)
    AccuracyEstimate(accuracy=0.99, low=0.98..., high=0.99..., level=0.95, n_rows=1000, n_accepted=900)
    """
    check_fraction("level", level)
    if certificate is None or not certificate.labelled:
        raise InputError(
            "accuracy is estimated from the confidence of a gate that was fitted on labelled rows"
            " under a promise; this one does not know how well it is calibrated."
        )
    if not n_accepted:
        return AccuracyEstimate(None, None, None, level, n_rows, 0)
    right, of, gap = certificate.traffic.n_correct_accepted, certificate.traffic.n_accepted, 0.0
    if profile is not None and any(rows for rows, _, _ in profile.by_confidence):
        of, right, sure = map(sum, zip(*profile.by_confidence))
        gap = abs(sure / of - right / of)
    share = (right + 0.5) / (of + 1.0)
    of_calibrator = share * (1.0 - share) / (of + 1.0)
    mean = confidence / n_accepted
    half = (
        float(ndtri(0.5 + 0.5 * level)) * math.sqrt(variance / n_accepted**2 + of_calibrator) + gap
    )
    return AccuracyEstimate(
        mean, max(0.0, mean - half), min(1.0, mean + half), level, n_rows, n_accepted
    )


def sum_confidences(confidence: NDArray[Any], accept: Flags) -> dict[str, Any]:
    """What `estimate_accuracy_from_sums` needs of these rows."""
    sure = np.asarray(confidence, dtype=np.float64)[accept]
    spread = float((sure * (1.0 - sure)).sum())
    return {
        "n_rows": len(accept),
        "n_accepted": len(sure),
        "confidence": float(sure.sum()),
        "variance": spread,
    }
