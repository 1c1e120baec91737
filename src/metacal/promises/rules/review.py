"""MaxReview: at most a share of all rows goes to review. Labels are not needed."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from metacal.errors import InputError, MetacalWarning
from metacal.kernels.grid import RELATIVE
from metacal.promises.certificate import Certificate
from metacal.promises.contradiction import SLACK
from metacal.promises.notes import Note, too_few_to_review
from metacal.promises.promise import Flags, Promise, Scores, check_shares, columns
from metacal.promises.quantity import REVIEW, Limits
from metacal.promises.rules import bounds
from metacal.promises.words import SAME_SOURCE, register_rule

#: Certified, and in expectation.
UMBRELLA_OF_ALL = register_rule(
    "umbrella-of-all", "umbrella order statistic of all scores (Tong, Feng & Li 2018)", SAME_SOURCE
)
EXPECTED_RANK_OF_ALL = register_rule("expected-rank-of-all", "rank of all scores, in expectation", SAME_SOURCE)


@dataclass
class MaxReview(Promise):
    r"""At most `share` of all rows go to review: are rejected.

    With probability 1 - `delta` over the calibration rows, or on average where `delta` is None. The threshold is the
    k-th smallest of all n scores; with h_(1) <= … <= h_(n),

    - certified: the smallest k with P(Bin(n, 1 - share) >= k) <= delta. P(h > h_(k)) is at most 1 - U_(k), U_(k) the
      k-th of n uniform order statistics, and 1 - U_(k) > share just where at least k of n uniforms lie below 1 -
      share;
    - in expectation: k = n + 1 - floor((n + 1)·share), as E[1 - U_(k)] = (n + 1 - k)/(n + 1).

    Only scores are looked at: rows without labels will do, `MetaCal(MaxReview(0.2)).fit(logits)`. Of the share that is
    allowed it uses 76, 88 and 94% at n = 300, 1,000 and 5,000 (share 0.1, delta 0.1). With too few rows to reject any,
    everything is accepted, and the certificate says so.

    Tong, Feng & Li, "Neyman-Pearson classification algorithms and NP receiver operating characteristics", Science
    Advances 2018 (the umbrella algorithm, there for the scores of one class).

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

    def __post_init__(self) -> None:
        check_shares(self, "share", "delta")

    @property
    def limits(self) -> Limits:
        """What is promised, as a certificate lists it."""
        return ((REVIEW, float(self.share)),)

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules that its certificates may have, the usual one first."""
        return (EXPECTED_RANK_OF_ALL if self.delta is None else UMBRELLA_OF_ALL,)

    def certify(self, scores: Scores, correct: Flags | None = None) -> Certificate:
        """Choose the threshold on all scores; whether the answers are right is only counted, where it is known."""
        if correct is None:
            scores = _scores(scores)
        else:
            scores, correct = columns(scores, correct)
        n = len(scores)
        rank = self._rank(n)
        notes: tuple[Note, ...] = ()
        if rank > n:
            notes = (self._too_few(n),)
            warnings.warn(str(notes[0]), MetacalWarning, stacklevel=3)
        threshold = float(np.partition(scores, rank - 1)[rank - 1]) if rank <= n else math.inf
        return self._certificate(scores, correct, threshold, notes)

    def impossible(self, certificate: Certificate) -> str | None:
        """What in the counts cannot be; None when all agrees."""
        n, kept = certificate.n_rows, certificate.n_accepted
        if certificate.accepts_everything:
            return None
        if self.delta is None:
            enough = kept >= self._rank(n)
        else:
            enough = kept > 0 and bounds.miscoverage_violation(n, kept, self.share) <= SLACK * self.delta
        if enough:
            return None
        surely = " in expectation" if self.delta is None else f" (delta {self.delta:g})"
        return f"{kept:,} of {n:,} rows accepted do not certify that at most {self.share:g} go to review{surely}"

    def _rank(self, n: int) -> int:
        """How many of n rows must be accepted; n + 1: all rows, whatever their score."""
        if self.delta is None:
            return bounds.expected_miscoverage_rank(n, self.share)
        return bounds.certified_miscoverage_rank(n, self.share, self.delta)

    def _too_few(self, n: int) -> Note:
        best = bounds.smallest_certifiable_miscoverage(n, self.delta)
        needed = bounds.correct_rows_needed(self.share, self.delta)
        return too_few_to_review(rows=n, share=float(self.share), best=best, needed=needed)


def _scores(scores: Any) -> Scores:
    column = np.asarray(scores, dtype=np.float64)
    if column.ndim != 1 or not len(column) or np.isnan(column).any():
        raise InputError(f"certify needs a score for every row, and at least one row; got shape {column.shape}.")
    return RELATIVE.rounded(column)
