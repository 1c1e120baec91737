"""The two threshold rules of the paper and its split, to reproduce its tables.

Ma & Blaschko, "Meta-Cal: Well-controlled Post-hoc Calibration by Ranking", ICML 2021, Algorithms 1
and 2. Both use 1/10 of the calibration rows (at most 500) for the threshold, and fit the base
calibrator on the accepted rows among the others, however few of these are incorrect. Neither has a
guarantee: the miscoverage target is exceeded in about half of all fits, and the accuracy target is
missed in 20-40%. For anything but reproduction, use `metacal.MaxMiscoverage` and
`metacal.MinAccuracy`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from metacal.certificates.certificate import Certificate, Guarantee, accept_up_to_threshold
from metacal.certificates.quantities import MISCOVERAGE, SELECTIVE_ACCURACY
from metacal.certification.paper_rules import (
    ALGORITHM_1,
    ALGORITHM_2,
    MAX_THRESHOLD_ROWS,
    PaperAccuracy,
    PaperMiscoverage,
)
from metacal.certification.paper_rules import coverage_accuracy_curve as coverage_accuracy_curve
from metacal.errors import InputError, TooFewRowsError
from metacal.formulas import Codes, Flags, Float
from metacal.promises.promise import Promise
from metacal.rows.draws import RowDraws, make_generator

# A tenth of the rows choose the threshold: "we randomly select 1/10 samples" (Section 5.1).
_ROWS_PER_THRESHOLD_ROW = 10


class _WithoutGuarantee(Promise):
    """Base class of the paper's rules, which have a target but no guarantee."""

    # "Throughout the experimental part of this paper, we use temperature scaling" (Section 5.1).
    default_calibrator: ClassVar[str | None] = "temperature"
    delta: ClassVar[None] = None  # type: ignore[misc]
    guarantee: ClassVar[Guarantee] = "none"
    random_state: Any

    @property
    def split_seed(self) -> int | None:
        """Integer seed of the random split, or None if `random_state` is not an integer."""
        if isinstance(self.random_state, int | np.integer):
            return int(self.random_state)
        return None

    def select_map_training_rows(
        self, is_available: Flags, scores: Float, correct: Flags, certificate: Certificate
    ) -> Flags:
        """Return a mask of the available rows that the threshold accepts.

        These are the "samples whose scores are smaller than r* among the second part" (line 6 of
        Algorithm 1, line 7 of Algorithm 2). Under the paper's Assumption 1 no score equals r*, so
        "smaller" means accepted.
        """
        return is_available & accept_up_to_threshold(scores, certificate.threshold)


@dataclass(frozen=True)
class MaxMiscoverage(_WithoutGuarantee):
    """Miscoverage rule of the paper (Algorithm 1), without a guarantee.

    The threshold is the score with rank ceil((n1+1)(1-alpha)) among n1 correct rows, which are a
    tenth of all correct rows, at most 500.

    Parameters
    ----------
    alpha : float
        Targeted miscoverage (false rejection rate).

    random_state : int or Generator, optional
        Seed of the split. By default it is derived from the rows.

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

    def split_rows(self, correct: Flags, score: Float | None = None) -> tuple[Flags, Flags]:
        """Return two masks: rows that choose the threshold, and rows for the calibrator.

        The rows for the threshold are correct: the first part "has only negative samples".
        """
        correct_rows = np.flatnonzero(correct)
        return _draw_threshold_rows(
            correct_rows, correct=correct, score=score, random_state=self.random_state
        )

    def procedure(self) -> PaperMiscoverage:
        """Return the procedure that certifies the promise on calibration rows."""
        return PaperMiscoverage(self.alpha)

    def select_map_training_rows(
        self, is_available: Flags, scores: Float, correct: Flags, certificate: Certificate
    ) -> Flags:
        """Return a mask of the available rows with a score below r* (line 6).

        Here r* is the score of a row. Rows with the same score are accepted, but their score is not
        "smaller than r*".
        """
        if certificate.accepts_everything or certificate.highest_accepted is None:
            return is_available
        return is_available & (scores < certificate.highest_accepted)


@dataclass(frozen=True)
class MinCoverageAccuracy(_WithoutGuarantee):
    """Accuracy rule of the paper (Algorithm 2), without a guarantee.

    The scores are divided into bins of equal mass. The accuracy of bins 1 to j is a function of the
    mean score of bin j. A decreasing isotonic regression is fitted to it, linear between the bins.
    The threshold is the largest score at which the regression is at least beta.

    Parameters
    ----------
    beta : float
        Targeted selective accuracy.

    random_state : int or Generator, optional
        Seed of the split. By default it is derived from the rows.

    n_bins : int, default=20
        Number of bins.

    Examples
    --------
    >>> scores, correct = np.arange(500.0), np.arange(500) < 400
    >>> round(MinCoverageAccuracy(0.9).certify(scores, correct).coverage, 2)
    0.86
    """

    beta: float
    random_state: Any = None
    n_bins: int = 20

    quantities: ClassVar = {"beta": SELECTIVE_ACCURACY}
    rules: ClassVar = (ALGORITHM_2,)

    def __post_init__(self) -> None:
        super().__post_init__()
        is_integer = isinstance(self.n_bins, int | np.integer) and not isinstance(self.n_bins, bool)
        if not is_integer or self.n_bins < 1:
            raise InputError(
                f"n_bins must be a positive integer, but got {self.n_bins!r}. The paper uses 20."
            )

    def split_rows(self, correct: Flags, score: Float | None = None) -> tuple[Flags, Flags]:
        """Return masks of at most 500 random threshold rows and of the calibrator rows."""
        all_rows = np.arange(len(correct))
        return _draw_threshold_rows(
            all_rows, correct=correct, score=score, random_state=self.random_state
        )

    def procedure(self) -> PaperAccuracy:
        """Return the procedure that certifies the promise on calibration rows."""
        return PaperAccuracy(self.beta, self.n_bins)


def _draw_threshold_rows(
    candidate_indices: Codes, *, correct: Flags, score: Float | None, random_state: Any
) -> tuple[Flags, Flags]:
    """Draw a random tenth of the rows, at most 500, to choose the threshold.

    All other rows are for the calibrator, also rows that were no candidates.

    Parameters
    ----------
    candidate_indices : array of int
        Positions of the rows to draw from.
    correct : array of bool of shape (n_rows,)
        Whether each prediction is correct.
    score : array of shape (n_rows,) or None
        Ranking score of each row.
    random_state : int, Generator or None
        Seed of a draw by position, as in the reproduction of the paper. If None, the draw is
        derived from the rows.

    Returns
    -------
    is_for_threshold, is_for_calibrator : arrays of bool of shape (n_rows,)
    """
    n_candidates = len(candidate_indices)
    n_drawn = min(n_candidates // _ROWS_PER_THRESHOLD_ROW, MAX_THRESHOLD_ROWS)
    if n_drawn < 1:
        raise TooFewRowsError(
            "The rule of the paper requires at least 10 rows, because it sets aside a tenth of"
            f" them, but got {n_candidates}. Pass more rows."
        )
    if random_state is None:
        candidate_scores = None
        if score is not None:
            candidate_scores = score[candidate_indices]
        draws = RowDraws(seed_columns=(correct[candidate_indices], candidate_scores))
        random_order = draws.draw_row_order(purpose="the paper's split")
        drawn_indices = candidate_indices[random_order[:n_drawn]]
    else:
        rng = make_generator(random_state)
        drawn_indices = rng.choice(candidate_indices, size=n_drawn, replace=False)
    is_threshold_row = np.zeros(len(correct), dtype=bool)
    is_threshold_row[drawn_indices] = True
    # The calibrator is fitted on all rows that do not choose the threshold.
    is_calibrator_row = ~is_threshold_row
    return is_threshold_row, is_calibrator_row
