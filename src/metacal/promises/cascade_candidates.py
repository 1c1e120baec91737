"""Candidate thresholds of a cascade of two models, and the order in which they are tested.

Candidates and their order depend on *pilot rows* only, which are not tested.

A single threshold rises through quantiles of the small model's scores. If people answer the rows
that neither model accepts, there are two thresholds. Pairs of thresholds are then tested in Pareto
order: the pairs that are cheapest at their risk, safest first. The risk of a pair is estimated on
labelled pilot rows from their errors, shrunk towards a logistic curve of each model's errors along
its score, because a few hundred rows have hardly any error where the models are confident. The
quality of this estimate decides how far a sequence of tests gets, never whether the promise holds.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from metacal.certificates.certificate import accepts
from metacal.errors import InputError
from metacal.formulas import Codes, Flags, Float
from metacal.kernels.grid import Grid
from metacal.promises.risk_estimates import compute_expected_p_value, estimate_error_probabilities
from metacal.rows.draws import RowDraws

# Number of candidate thresholds if only the small model has a threshold.
_N_THRESHOLDS = 100
# Number of candidate thresholds of each model if both models have a threshold.
_N_THRESHOLDS_PER_MODEL = 40

# Tests of an accuracy begin where the small model answers this share of the rows.
_FIRST_SHARE_OF_SMALL_MODEL = 0.4
# Fraction of delta for the first test sequence. The second sequence has the rest of delta.
_FIRST_DELTA_FRACTION = 0.9


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
        """Return the rows at some positions."""
        columns = {field.name: getattr(self, field.name)[index] for field in fields(self)}
        return PairedPredictions(**columns)


class Candidate(NamedTuple):
    """Thresholds of the two models. The large one is +inf if people answer no rows."""

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
    """Count the answers and the errors of each model at some thresholds.

    Examples
    --------
    >>> small_correct = np.array([True, True, False, False])
    >>> scores, no_row, every_row = np.arange(4.0), np.zeros(4, dtype=bool), np.ones(4, dtype=bool)
    >>> rows = PairedPredictions(scores, scores, small_correct, ~small_correct, no_row, every_row)
    >>> count_outcomes(rows, Candidate(0.5))
    OutcomeCounts(n_small=1, n_large=3, n_worse=0, n_better=1, n_small_errors=0, n_large_errors=1)
    """
    is_small_answer = accepts(rows.small_score, candidate.small_threshold)
    is_large_answer = ~is_small_answer & accepts(rows.large_score, candidate.large_threshold)
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


# A few rows without labels suffice to choose thresholds of the small model.
_UNLABELLED_PILOT_POLICY = _PilotSizePolicy(share=0.05, min_rows=20, max_rows=500)
# The order of pairs of thresholds depends on error rates, so it needs more rows, with labels.
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
    thresholds_from : array, optional
        Scores of other rows, without labels, from which thresholds are chosen. Then there are no
        pilot rows. Not possible with people.
    """

    has_human_review: bool = False
    review_cost: float = 10.0
    random_state: int | None = None
    thresholds_from: Float | None = None


# Plan without people, whose thresholds are chosen from pilot rows.
DEFAULT_PLAN = CascadePlan()


def draw_pilot_rows(
    small_score: Float, large_score: Float, models_agree: Flags, plan: CascadePlan
) -> Codes:
    """Draw the pilot rows, which choose thresholds and are not tested.

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
    if plan.thresholds_from is not None:
        return np.empty(0, dtype=np.intp)
    policy = _UNLABELLED_PILOT_POLICY
    if plan.has_human_review:
        policy = _LABELLED_PILOT_POLICY
    n_pilot = policy.compute_pilot_size(len(models_agree))
    draws = RowDraws(small_score, large_score, models_agree, random_state=plan.random_state)
    random_order = draws.draw_row_order("thresholds of a cascade")
    return np.sort(random_order[:n_pilot])


def split_pilot_rows(
    rows: PairedPredictions, plan: CascadePlan
) -> tuple[PairedPredictions, PairedPredictions]:
    """Split rows into pilot rows and tested rows.

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
    if plan.thresholds_from is not None:
        if plan.has_human_review:
            raise InputError(
                "thresholds_from gives scores alone; with people in the cascade their order takes"
                " labels."
            )
        return _make_unlabelled_pilot(plan.thresholds_from), rows
    n_rows = len(rows)
    pilot_index = draw_pilot_rows(rows.small_score, rows.large_score, rows.models_agree, plan)
    if n_rows <= 2 * len(pilot_index):
        raise InputError(
            f"a cascade needs more than {2 * len(pilot_index)} rows to be certified on; got"
            f" {n_rows}."
        )
    tested_index = np.setdiff1d(np.arange(n_rows), pilot_index)
    return rows.take(pilot_index), rows.take(tested_index)


def _make_unlabelled_pilot(scores: Float) -> PairedPredictions:
    """Make pilot rows from scores of the small model, without labels."""
    scores = np.asarray(scores, dtype=np.float64)
    if scores.ndim != 1 or len(scores) == 0 or np.isnan(scores).any():
        raise InputError("thresholds_from needs one row or more, each with a score.")
    no_row = np.zeros(len(scores), dtype=bool)
    return PairedPredictions(
        small_score=scores,
        large_score=scores,
        small_correct=no_row,
        large_correct=no_row,
        models_agree=no_row,
        has_label=no_row,
    )


class CandidateSequence(NamedTuple):
    """Candidates that are tested in order, up to the first that fails.

    Attributes
    ----------
    candidates : sequence of Candidate
        Candidates in the order of the tests.
    delta_fraction : float
        Fraction of delta at which each candidate is tested.
    """

    candidates: Sequence[Candidate]
    delta_fraction: float


def build_loss_sequences(pilot: PairedPredictions, small_grid: Grid) -> list[CandidateSequence]:
    """Build the test sequence of a loss, in which the small model answers ever more rows."""
    thresholds = _compute_quantile_thresholds(
        pilot.small_score, n_thresholds=_N_THRESHOLDS, grid=small_grid
    )
    candidates = [Candidate(threshold) for threshold in thresholds]
    return [CandidateSequence(candidates, delta_fraction=1.0)]


def build_accuracy_sequences(pilot: PairedPredictions, small_grid: Grid) -> list[CandidateSequence]:
    """Build the test sequences of an accuracy without people.

    The first sequence starts where the small model answers a middle share of the rows, because a
    cascade is there about as accurate as the large model, or more. The second one starts where the
    small model answers no row.
    """
    thresholds = _compute_quantile_thresholds(
        pilot.small_score, n_thresholds=_N_THRESHOLDS, grid=small_grid
    )
    start_threshold = float(
        np.quantile(pilot.small_score, _FIRST_SHARE_OF_SMALL_MODEL, method="lower")
    )
    start = bisect_left(thresholds, start_threshold)
    stricter_candidates = [Candidate(small_threshold=value) for value in thresholds[:start]]
    laxer_candidates = [Candidate(small_threshold=value) for value in thresholds[start:]]
    large_model_alone = Candidate(small_threshold=-math.inf)
    return [
        CandidateSequence(laxer_candidates, delta_fraction=_FIRST_DELTA_FRACTION),
        CandidateSequence(
            [large_model_alone, *stricter_candidates], delta_fraction=1.0 - _FIRST_DELTA_FRACTION
        ),
    ]


def build_review_sequences(
    pilot: PairedPredictions,
    *,
    n_tested: int,
    min_accuracy: float,
    review_cost: float,
    grids: tuple[Grid, Grid],
) -> list[CandidateSequence]:
    """Build the test sequence of an accuracy with people from the Pareto-optimal pairs.

    A pair is in the sequence if every safer pair costs more. Safety is the p-value that is to be
    expected on the tested rows.

    Parameters
    ----------
    pilot : PairedPredictions
        Labelled pilot rows.
    n_tested : int
        Number of rows that will be tested.
    min_accuracy : float
        Accuracy to certify.
    review_cost : float
        Cost of a row that a person answers, in calls of the large model.
    grids : tuple of two Grid
        Grids of the scores of the small and the large model.

    Returns
    -------
    list of CandidateSequence
        A single sequence.

    Examples
    --------
    >>> from metacal.kernels.grid import RELATIVE_GRID
    >>> rng = np.random.default_rng(0)
    >>> small_score, large_score = rng.random((2, 400))
    >>> small_correct = rng.random(400) > small_score / 4
    >>> large_correct = rng.random(400) > large_score / 4
    >>> pilot = PairedPredictions(
    ...     small_score,
    ...     large_score,
    ...     small_correct,
    ...     large_correct,
    ...     models_agree=small_correct == large_correct,
    ...     has_label=np.ones(400, dtype=bool),
    ... )
    >>> (sequence,) = build_review_sequences(
    ...     pilot,
    ...     n_tested=1600,
    ...     min_accuracy=0.95,
    ...     review_cost=10.0,
    ...     grids=(RELATIVE_GRID, RELATIVE_GRID),
    ... )
    >>> sequence.delta_fraction, len(sequence.candidates) > 10
    (1.0, True)
    """
    small_grid, large_grid = grids
    small_thresholds = _compute_pair_thresholds(pilot.small_score, small_grid)
    large_thresholds = _compute_pair_thresholds(pilot.large_score, large_grid)
    one_per_row = np.ones(len(pilot))
    n_small, n_large = _sum_over_answered_rows(
        pilot,
        small_thresholds=small_thresholds,
        large_thresholds=large_thresholds,
        small_values=one_per_row,
        large_values=one_per_row,
    )
    small_errors, large_errors = _sum_over_answered_rows(
        pilot,
        small_thresholds=small_thresholds,
        large_thresholds=large_thresholds,
        small_values=estimate_error_probabilities(pilot.small_score, pilot.small_correct),
        large_values=estimate_error_probabilities(pilot.large_score, pilot.large_correct),
    )

    # Rows of these tables are thresholds of the small model, columns those of the large model.
    n_answered = n_small[:, None] + n_large
    n_errors = small_errors[:, None] + large_errors
    n_sent_to_large = (len(pilot) - n_small)[:, None]
    n_sent_to_people = len(pilot) - n_answered
    costs = n_sent_to_large + review_cost * n_sent_to_people
    tested_per_pilot_row = n_tested / len(pilot)
    expected_p_values = compute_expected_p_value(
        n_answered=tested_per_pilot_row * n_answered,
        n_errors=tested_per_pilot_row * n_errors,
        min_accuracy=min_accuracy,
    )

    pareto_front: list[Candidate] = []
    lowest_cost = math.inf
    indices_from_safest = np.lexsort((costs.ravel(), expected_p_values.ravel()))
    for flat_index in indices_from_safest:
        small_index, large_index = divmod(int(flat_index), len(large_thresholds))
        cost = costs[small_index, large_index]
        if n_answered[small_index, large_index] > 0 and cost < lowest_cost:
            lowest_cost = float(cost)
            candidate = Candidate(
                small_threshold=float(small_thresholds[small_index]),
                large_threshold=float(large_thresholds[large_index]),
            )
            pareto_front.append(candidate)
    return [CandidateSequence(pareto_front, delta_fraction=1.0)]


def _compute_quantile_thresholds(scores: Float, *, n_thresholds: int, grid: Grid) -> list[float]:
    """Return increasing thresholds that accept even shares of the scores, and +inf at the end."""
    accepted_shares = np.arange(1, n_thresholds + 1) / n_thresholds
    quantiles = np.quantile(scores, accepted_shares, method="lower")
    distinct_thresholds = {grid.snap_to_midpoint(float(quantile)) for quantile in quantiles}
    return [*sorted(distinct_thresholds), math.inf]


def _compute_pair_thresholds(scores: Float, grid: Grid) -> Float:
    """Return the thresholds of one model of a pair, from -inf (accept no row) to +inf."""
    thresholds = _compute_quantile_thresholds(
        scores, n_thresholds=_N_THRESHOLDS_PER_MODEL, grid=grid
    )
    return np.array([-math.inf, *thresholds])


def _sum_over_answered_rows(
    rows: PairedPredictions,
    *,
    small_thresholds: Float,
    large_thresholds: Float,
    small_values: Float,
    large_values: Float,
) -> tuple[Float, Float]:
    """Sum values over the rows that each model answers, for all pairs of thresholds.

    Parameters
    ----------
    rows : PairedPredictions
        Rows of the sums.
    small_thresholds, large_thresholds : array
        Increasing thresholds of each model, of shapes (n_small,) and (n_large,).
    small_values, large_values : array of shape (n_rows,)
        Value of each row if the small model, or the large model, answers it.

    Returns
    -------
    small_sums : array of shape (n_small,)
        Sums over the rows that the small model answers.
    large_sums : array of shape (n_small, n_large)
        Sums over the rows that the large model answers.
    """
    n_small = len(small_thresholds)
    n_large = len(large_thresholds)
    # A model accepts a row at the first threshold that is not below its score, and at all higher ones.
    first_accepting_small_index = np.searchsorted(small_thresholds, rows.small_score)
    first_accepting_large_index = np.searchsorted(large_thresholds, rows.large_score)
    small_sums_by_first_index = np.bincount(
        first_accepting_small_index, weights=small_values, minlength=n_small + 1
    )
    small_sums = small_sums_by_first_index[:-1].cumsum()

    # Rows of these tables are thresholds of the small model, columns those of the large model.
    large_sums_by_first_indices = np.zeros((n_small + 1, n_large + 1))
    np.add.at(
        large_sums_by_first_indices,
        (first_accepting_small_index, first_accepting_large_index),
        large_values,
    )
    sums_accepted_by_large = large_sums_by_first_indices.cumsum(axis=1)
    # The small model rejects a row at all thresholds before the first one that accepts the row.
    sums_rejected_by_previous_small = sums_accepted_by_large[::-1].cumsum(axis=0)[::-1]
    large_sums = sums_rejected_by_previous_small[1:, :-1]
    return small_sums, large_sums
