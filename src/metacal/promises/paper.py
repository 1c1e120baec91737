"""The paper's own two threshold rules and its split, kept for reproducing its tables.

Ma & Blaschko, "Meta-Cal: Well-controlled Post-hoc Calibration by Ranking", ICML 2021, Algorithms 1
and 2. Both set aside 1/10 of the calibration rows (at most 500) for the threshold and fit the base
calibrator on the accepted ones of the others, however few of these are wrong. Neither gives a
guarantee: the miscoverage target is exceeded in about half of all fits, the accuracy target missed
in 20-40%. Use `metacal.MaxMiscoverage` and `metacal.MinCoverageAccuracy` for anything but
reproduction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from metacal.certificates.certificate import Certificate, Guarantee, accepts
from metacal.certificates.quantity import COVERAGE_ACCURACY, MISCOVERAGE
from metacal.certification.paper_rules import (
    ALGORITHM_1,
    ALGORITHM_2,
    MAX_THRESHOLD_ROWS,
    PaperAccuracy,
    PaperMiscoverage,
)
from metacal.certification.paper_rules import coverage_accuracy_curve as coverage_accuracy_curve
from metacal.errors import InputError
from metacal.formulas import Codes, Flags, Float
from metacal.promises.promise import Promise
from metacal.rows.draws import RowDraws, generator

#: "we randomly select 1/10 samples (up to 500 samples) from the calibration data set" (Section 5.1)
_SHARE = 10


class _WithoutGuarantee(Promise):
    """Aimed at, and no more."""

    #: "Throughout the experimental part of this paper, we use temperature scaling" (Section 5.1).
    default_calibrator: ClassVar[str | None] = "temperature"
    delta: ClassVar[None] = None  # type: ignore[misc] # nothing is said with a probability
    guarantee: ClassVar[Guarantee] = "none"
    random_state: Any

    @property
    def split_seed(self) -> int | None:
        return int(self.random_state) if isinstance(self.random_state, int | np.integer) else None

    def select_base_map_rows(
        self, available: Flags, scores: Float, correct: Flags, certificate: Certificate
    ) -> Flags:
        """The "samples whose scores are smaller than r* among the second part", however few of them
        are wrong.

        Line 6 of Algorithm 1, line 7 of Algorithm 2. No score ties with r* under the paper's
        Assumption 1, so that "smaller" is "accepted"; Algorithm 1 says below what it means where
        some do.
        """
        return available & accepts(scores, certificate.threshold)


@dataclass(frozen=True)
class MaxMiscoverage(_WithoutGuarantee):
    """Algorithm 1: the rank ceil((n1+1)(1-alpha)) among the scores of a tenth of the correct rows,
    at most 500.

    Examples
    --------
    >>> certificate = MaxMiscoverage(0.05).certify(np.arange(99.0), np.ones(99, dtype=bool))
    >>> certificate.highest_accepted, certificate.guarantee
    (94.0, 'none')
    """

    alpha: float
    random_state: Any = None

    quantities: ClassVar = {"alpha": MISCOVERAGE}
    rules: ClassVar = (ALGORITHM_1,)

    def split(self, correct: Flags, score: Float | None = None) -> tuple[Flags, Flags]:
        """The first part "has only negative samples": correct rows for the threshold, everything
        else for the base.
        """
        return _draw(np.flatnonzero(correct), correct, score, self.random_state)

    def procedure(self) -> PaperMiscoverage:
        """Return how rows are certified."""
        return PaperMiscoverage(self.alpha)

    def select_base_map_rows(
        self, available: Flags, scores: Float, correct: Flags, certificate: Certificate
    ) -> Flags:
        """Line 6, where r* is the score of a row: those tied with it are accepted, but not "smaller
        than r*".
        """
        if certificate.accepts_everything or certificate.highest_accepted is None:
            return available
        return available & (scores < certificate.highest_accepted)


@dataclass(frozen=True)
class MinCoverageAccuracy(_WithoutGuarantee):
    """Algorithm 2: binned accuracy of the ranking's prefixes, made decreasing, inverted at beta.

    Uniform-mass bins of the scores; accuracy of bins 1…j against the mean score of bin j;
    decreasing isotonic regression, linear between the bins; the largest score where it is still at
    least beta.

    Examples
    --------
    >>> scores, correct = np.arange(500.0), np.arange(500) < 400
    >>> round(MinCoverageAccuracy(0.9).certify(scores, correct).coverage, 2)
    0.86
    """

    beta: float
    random_state: Any = None
    n_bins: int = 20

    quantities: ClassVar = {"beta": COVERAGE_ACCURACY}
    rules: ClassVar = (ALGORITHM_2,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (
            isinstance(self.n_bins, bool)
            or not isinstance(self.n_bins, int | np.integer)
            or self.n_bins < 1
        ):
            raise InputError(
                f"n_bins must be a whole number of at least 1, got {self.n_bins!r}; 20 is the"
                " paper's."
            )

    def split(self, correct: Flags, score: Float | None = None) -> tuple[Flags, Flags]:
        """Up to 500 random rows for the threshold, the others for the base."""
        return _draw(np.arange(len(correct)), correct, score, self.random_state)

    def procedure(self) -> PaperAccuracy:
        """Return how rows are certified."""
        return PaperAccuracy(self.beta, self.n_bins)


def _draw(
    pool: Codes, correct: Flags, score: Float | None, random_state: Any
) -> tuple[Flags, Flags]:
    """Draw a tenth of the pool, at most 500 rows; return a mask of these rows, and a mask of the
    others.

    Without a seed the draw is derived from the rows. A seed draws by position, as in the
    reproduction of the paper.
    """
    size = min(len(pool) // _SHARE, MAX_THRESHOLD_ROWS)
    if size < 1:
        raise InputError(
            f"the paper's split sets aside a tenth of {len(pool)} rows; use at least 10."
        )
    chosen = np.zeros(len(correct), dtype=bool)
    if random_state is None:
        own_score = None if score is None else score[pool]
        order = RowDraws(correct[pool], own_score).order("the paper's split")
        chosen[pool[order[:size]]] = True
    else:
        chosen[generator(random_state).choice(pool, size=size, replace=False)] = True
    return chosen, ~chosen
