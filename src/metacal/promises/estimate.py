r"""What can be said of rows before they have labels: how many go to review, how many of the accepted are right.

**Next rows**: a prediction interval, before any of them has been seen.

**Accuracy**: what calibrated confidence says of the accepted rows. An estimate, and nothing more.

A calibrated row of confidence c is right with probability c, so the mean confidence c̄ of N accepted rows estimates how
many of them are right. Three things are off:

- chance: given their confidences, N rows are right c̄ of the time give or take √(Σ c(1 - c)) / N;
- the calibrator: it was fitted on n accepted rows, of which a share p was right, and cannot know its level on them
  better than √(p(1 - p) / n);
- its shape: on those very rows its mean confidence is g beside the share of right ones.

The error bar is z · √(the first² + the second²) + |g|, at the level of z. It holds for rows from the same source as the
calibration rows. **Shift breaks it**, and nothing in the confidences tells: a classifier that meets strange rows is
often sure and wrong. Labels tell; that is what monitors are for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, ndtri

from metacal import display
from metacal.errors import InputError
from metacal.rows.arrays import fraction

if TYPE_CHECKING:
    from metacal.promises.certificate import Certificate
    from metacal.promises.sequential.profile import Profile

#: Every count has its probability computed.
_MOST_ROWS = 10_000_000


@dataclass(frozen=True)
class NextRows:
    """How many of the next `rows` rows go to review: at least `fewest` and at most `most`, with probability `level`.

    >>> print(next_rows(1000, accepted=892, of=1000))
    of the next 1,000 rows 86 to 131 go to review (90% interval)
    >>> print(next_rows(50, accepted=200, of=200))
    none of the next 50 rows goes to review
    """

    rows: int
    level: float
    fewest: int
    most: int

    def __str__(self) -> str:
        if self.most == 0:
            return f"none of the next {self.rows:,} rows goes to review"
        share = f"{100 * self.level:.6g}%"
        return f"of the next {self.rows:,} rows {self.fewest:,} to {self.most:,} go to review ({share} interval)"

    def to_dict(self) -> dict[str, float]:
        """As plain JSON types."""
        return {"rows": self.rows, "level": self.level, "fewest": self.fewest, "most": self.most}


def next_rows(rows: int, level: float = 0.9, *, accepted: int, of: int) -> NextRows:
    """The equal-tailed interval of a beta-binomial count, for a gate that accepts `accepted` `of` calibration rows.

    The threshold lies just below the (m+1)-th of n scores, so the true share of accepted rows is Beta(m+1, n-m), and of
    N new rows BetaBinomial(N, m+1, n-m) are accepted. Exact for a rank m that was fixed beforehand; where labels chose
    it, measured: 90% intervals cover 89 to 93%. A binomial with the calibration's share covers 76 to 80%: it takes for
    known what a finite calibration set only estimates.
    """
    if isinstance(rows, bool) or not isinstance(rows, int | np.integer) or not 1 <= rows <= _MOST_ROWS:
        raise InputError(f"rows must be a whole number from 1 to {_MOST_ROWS:,}, got {rows!r}.")
    fraction("level", level)
    if accepted == of:
        return NextRows(int(rows), float(level), 0, 0)
    # Reviewed rows: the same with the two sides exchanged.
    a, b, n = of - accepted, accepted + 1, int(rows)
    count = np.arange(n + 1.0)
    log_mass = (
        gammaln(n + 1.0) - gammaln(count + 1.0) - gammaln(n - count + 1.0) + gammaln(count + a) + gammaln(n - count + b)
    )
    mass = np.exp(log_mass - log_mass.max())
    below = np.cumsum(mass) / mass.sum()
    tail = (1.0 - level) / 2.0
    fewest = int(np.searchsorted(below, tail, side="right"))
    most = int(np.searchsorted(below, 1.0 - tail, side="left"))
    return NextRows(n, float(level), fewest, min(most, n))


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
        """JSON types."""
        return {**vars(self), "basis": BASIS}

    def to_frame(self) -> Any:
        """One row of a `pandas.DataFrame`."""
        return display.frame([vars(self)])

    def _repr_html_(self) -> str:
        return display.notes(str(self))

    def __str__(self) -> str:
        if self.accuracy is None or self.low is None or self.high is None:
            return f"No row of {self.n_rows:,} was accepted: there is nothing to estimate."
        return (
            f"About {100 * self.accuracy:.2f}% of the {self.n_accepted:,} accepted rows are right, "
            f"{100 * self.low:.2f}% to {100 * self.high:.2f}%: an estimate from confidence alone, at {self.level:.0%}. "
            "If the rows have shifted since calibration it is wrong; only labels would tell."
        )


#: What the estimate rests on, wherever it is given to machines.
BASIS = "calibrated confidence of accepted rows, no labels; wrong under shift"


def estimate_from_sums(
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

    >>> from metacal.promises.rules.accuracy import MinAccuracy
    >>> from metacal.promises.sequential.profile import profile_of
    >>> from metacal.promises.sample import Ranking
    >>> scores, right = np.arange(2000.0), np.arange(2000) % 100 > 0
    >>> certificate = MinAccuracy(0.97).certify(scores, right)
    >>> profile = profile_of(Ranking.of(scores, right), np.full(2000, 0.99), right)
    >>> estimate_from_sums(certificate, profile, n_rows=1000, n_accepted=900, confidence=891.0, variance=8.91)
    AccuracyEstimate(accuracy=0.99, low=0.98..., high=0.99..., level=0.95, n_rows=1000, n_accepted=900)
    """
    fraction("level", level)
    if certificate is None or not certificate.labelled:
        raise InputError(
            "accuracy is estimated from the confidence of a gate that was fitted on labelled rows under a promise; "
            "this one does not know how well it is calibrated."
        )
    if not n_accepted:
        return AccuracyEstimate(None, None, None, level, n_rows, 0)
    right, of, gap = certificate.n_correct_accepted, certificate.n_accepted, 0.0
    if (
        profile is not None and profile.confidence is not None
    ):  # all rows, where a split certifies from right ones alone
        right, of = profile.n_right, profile.n_accepted
        gap = abs(profile.confidence - right / of)
    share = (right + 0.5) / (of + 1.0)
    of_calibrator = share * (1.0 - share) / (of + 1.0)
    mean = confidence / n_accepted
    half = float(ndtri(0.5 + 0.5 * level)) * math.sqrt(variance / n_accepted**2 + of_calibrator) + gap
    return AccuracyEstimate(mean, max(0.0, mean - half), min(1.0, mean + half), level, n_rows, n_accepted)


def sums_of(confidence: NDArray[Any], accept: NDArray[np.bool_]) -> dict[str, Any]:
    """What `estimate_from_sums` needs of these rows."""
    sure = np.asarray(confidence, dtype=np.float64)[accept]
    spread = float((sure * (1.0 - sure)).sum())
    return {"n_rows": len(accept), "n_accepted": len(sure), "confidence": float(sure.sum()), "variance": spread}
