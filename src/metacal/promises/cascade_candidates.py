"""Paired predictions of two models, and the outcome of candidate thresholds.

*Pilot rows* are rows that choose the candidate thresholds. They are not tested.
`metacal.promises.cascade_sequences` orders the candidates for the tests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from metacal.certificates.certificate import accept_up_to_threshold
from metacal.errors import CascadeError, TooFewRowsError
from metacal.formulas import Codes, Flags, Float
from metacal.rows.draws import RowDraws


@dataclass(frozen=True)
class PairedPredictions:
    """Predictions of a small and a large model for the same rows.

    Attributes
    ----------
    small_score, large_score : array of shape (n_rows,)
        Ranking score of each model. Higher is less certain.
    small_correct, large_correct : array of bool of shape (n_rows,)
        Whether each prediction is correct. False for both models if the row has no label.
    models_agree : array of bool of shape (n_rows,)
        Whether both models predict the same class.
    has_label : array of bool of shape (n_rows,)
        Whether the true label of the row is known.
    """

    small_score: Float
    large_score: Float
    small_correct: Flags
    large_correct: Flags
    models_agree: Flags
    has_label: Flags

    def __len__(self) -> int:
        return len(self.small_score)

    def take(self, index: Codes) -> PairedPredictions:
        """Return the rows at the given positions."""
        selected_columns = {field.name: getattr(self, field.name)[index] for field in fields(self)}
        return PairedPredictions(**selected_columns)


class Candidate(NamedTuple):
    """Thresholds of both models of a cascade. Without people, the large one is +inf."""

    small_threshold: float
    large_threshold: float = math.inf


class OutcomeCounts(NamedTuple):
    """Numbers of rows that each model answers, and of their errors.

    Attributes
    ----------
    n_small, n_large : int
        Number of rows that each model answers.
    n_worse, n_better : int
        Number of rows of the small model on which only the large model is correct, and on which
        only the small model is.
    n_small_errors, n_large_errors : int
        Number of errors of each model on the rows that it answers.
    """

    n_small: int
    n_large: int
    n_worse: int
    n_better: int
    n_small_errors: int
    n_large_errors: int

    @property
    def n_answered(self) -> int:
        """Number of rows that a model answers."""
        return self.n_small + self.n_large

    @property
    def n_errors(self) -> int:
        """Number of errors of both models."""
        return self.n_small_errors + self.n_large_errors


def count_outcomes(rows: PairedPredictions, candidate: Candidate) -> OutcomeCounts:
    """Count the answers and the errors of each model at the given thresholds.

    Examples
    --------
    >>> small_correct = np.array([True, True, False, False])
    >>> scores, no_row, every_row = np.arange(4.0), np.zeros(4, dtype=bool), np.ones(4, dtype=bool)
    >>> rows = PairedPredictions(scores, scores, small_correct, ~small_correct, no_row, every_row)
    >>> count_outcomes(rows, Candidate(0.5))
    OutcomeCounts(n_small=1, n_large=3, n_worse=0, n_better=1, n_small_errors=0, n_large_errors=1)
    """
    is_small_answer = accept_up_to_threshold(rows.small_score, candidate.small_threshold)
    is_large_answer = ~is_small_answer & accept_up_to_threshold(
        rows.large_score, candidate.large_threshold
    )
    is_small_error = is_small_answer & ~rows.small_correct
    is_large_error = is_large_answer & ~rows.large_correct
    is_worse_than_large = is_small_error & rows.large_correct
    is_better_than_large = is_small_answer & rows.small_correct & ~rows.large_correct
    return OutcomeCounts(
        n_small=int(np.count_nonzero(is_small_answer)),
        n_large=int(np.count_nonzero(is_large_answer)),
        n_worse=int(np.count_nonzero(is_worse_than_large)),
        n_better=int(np.count_nonzero(is_better_than_large)),
        n_small_errors=int(np.count_nonzero(is_small_error)),
        n_large_errors=int(np.count_nonzero(is_large_error)),
    )


class _PilotSizePolicy(NamedTuple):
    """Share of the rows that become pilot rows, and bounds on their number."""

    share: float
    min_rows: int
    max_rows: int

    def compute_pilot_size(self, n_rows: int) -> int:
        """Compute the number of pilot rows among `n_rows` rows."""
        return min(self.max_rows, max(self.min_rows, math.ceil(self.share * n_rows)))


# Unlabelled pilot rows only choose thresholds of the small model, so few rows suffice.
_UNLABELLED_PILOT_POLICY = _PilotSizePolicy(share=0.05, min_rows=20, max_rows=500)
# Labelled pilot rows estimate error rates, which takes more rows than unlabelled pilot rows.
_LABELLED_PILOT_POLICY = _PilotSizePolicy(share=0.2, min_rows=20, max_rows=5000)


@dataclass(frozen=True)
class CascadePlan:
    """Options of the certification of a cascade, besides the promise.

    Attributes
    ----------
    has_human_review : bool, default=False
        Whether people answer the rows that neither model accepts. Otherwise the large model answers
        every row that the small model passes on.
    review_cost : float, default=10.0
        Cost of a row that a person answers, in calls of the large model. It decides which of two
        cascades is cheaper.
    random_state : int, optional
        Seed of the draw of the pilot rows. By default it is derived from the scores.
    separate_pilot_scores : array, optional
        Scores of the small model for other rows, without labels, which choose the thresholds in
        place of pilot rows. People require labels, so they exclude such scores.
    """

    has_human_review: bool = False
    review_cost: float = 10.0
    random_state: int | None = None
    separate_pilot_scores: Float | None = None

    @property
    def has_separate_pilot_scores(self) -> bool:
        """Whether scores of other rows choose the thresholds, in place of pilot rows."""
        return self.separate_pilot_scores is not None


# By default, a cascade has no human review, and pilot rows choose its thresholds.
DEFAULT_PLAN = CascadePlan()


def draw_pilot_rows(
    small_score: Float, large_score: Float, models_agree: Flags, plan: CascadePlan
) -> Codes:
    """Draw random indices of the rows that choose thresholds and are not tested.

    The draw depends on no label, because `labels_needed` must know the tested rows before there are
    labels.

    Parameters
    ----------
    small_score, large_score : array of shape (n_rows,)
        Ranking scores of both models.
    models_agree : array of bool of shape (n_rows,)
        Whether both models predict the same class.
    plan : CascadePlan
        Options of the certification.

    Returns
    -------
    array of int
        Positions of the pilot rows in increasing order. Empty if other rows choose the thresholds.
    """
    if plan.has_separate_pilot_scores:
        return np.empty(0, dtype=np.intp)
    pilot_rows_need_labels = plan.has_human_review
    size_policy = _LABELLED_PILOT_POLICY if pilot_rows_need_labels else _UNLABELLED_PILOT_POLICY
    n_pilot = size_policy.compute_pilot_size(len(models_agree))
    draws = RowDraws(
        seed_columns=(small_score, large_score, models_agree), random_state=plan.random_state
    )
    random_order = draws.draw_row_order(purpose="thresholds of a cascade")
    return np.sort(random_order[:n_pilot])


def split_pilot_rows(
    rows: PairedPredictions, plan: CascadePlan
) -> tuple[PairedPredictions, PairedPredictions]:
    """Split rows at random into rows for choosing thresholds and rows for testing.

    Parameters
    ----------
    rows : PairedPredictions
        Calibration rows.
    plan : CascadePlan
        Options of the certification.

    Returns
    -------
    pilot, tested : PairedPredictions
        If the plan has scores of other rows, these are the pilot rows, and all rows are tested.

    Raises
    ------
    InputError
        If there are too few rows, or if the scores of other rows cannot be used.
    """
    if plan.separate_pilot_scores is not None:
        if plan.has_human_review:
            raise CascadeError(
                "A cascade with people requires labels to order its thresholds, but"
                " thresholds_from has scores without labels. Leave out thresholds_from."
            )
        return _make_unlabelled_pilot(plan.separate_pilot_scores), rows
    n_rows = len(rows)
    pilot_index = draw_pilot_rows(rows.small_score, rows.large_score, rows.models_agree, plan)
    n_pilot = len(pilot_index)
    n_tested = n_rows - n_pilot
    # More than half of the rows must be left for the tests.
    if n_tested <= n_pilot:
        raise TooFewRowsError(
            f"Certifying this cascade requires more than {2 * n_pilot} rows, but got"
            f" {n_rows}. Pass more rows."
        )
    tested_index = np.setdiff1d(np.arange(n_rows), pilot_index)
    return rows.take(pilot_index), rows.take(tested_index)


def _make_unlabelled_pilot(small_score: Float) -> PairedPredictions:
    """Build unlabelled pilot rows from the scores of the small model alone."""
    small_score = np.asarray(small_score, dtype=np.float64)
    if small_score.ndim != 1 or len(small_score) == 0 or np.isnan(small_score).any():
        raise CascadeError("thresholds_from must have at least one row, and a score in every row.")
    # Only the scores of the small model are read from pilot rows without labels. The other columns
    # are placeholders.
    unused_scores = np.zeros(len(small_score))
    unused_flags = np.zeros(len(small_score), dtype=bool)
    return PairedPredictions(
        small_score=small_score,
        large_score=unused_scores,
        small_correct=unused_flags,
        large_correct=unused_flags,
        models_agree=unused_flags,
        has_label=np.zeros(len(small_score), dtype=bool),
    )
