"""Candidate thresholds of a cascade of two models, in the order of their tests.

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
from typing import NamedTuple

import numpy as np

from metacal.formulas import Flags, Float
from metacal.kernels.grid import Grid
from metacal.promises.cascade_candidates import Candidate, PairedPredictions
from metacal.promises.risk_estimates import compute_expected_p_value, estimate_error_probabilities

# Number of candidate thresholds if only the small model has a threshold.
_N_THRESHOLDS = 100
# Number of candidate thresholds of each model if both the small and the large model have one.
_N_THRESHOLDS_PER_MODEL = 40

# Accuracy tests begin at the threshold where the small model answers this share of the rows.
_SMALL_MODEL_SHARE_AT_FIRST_TEST = 0.4
# Fraction of delta for the first test sequence. The rest of delta is for the second sequence.
_DELTA_FRACTION_OF_FIRST_SEQUENCE = 0.9


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


def build_loss_sequences(
    pilot_rows: PairedPredictions, small_score_grid: Grid
) -> list[CandidateSequence]:
    """Build a test sequence in which the small model answers more and more rows."""
    thresholds = _compute_quantile_thresholds(
        pilot_rows.small_score, n_thresholds=_N_THRESHOLDS, grid=small_score_grid
    )
    candidates = [Candidate(threshold) for threshold in thresholds]
    return [CandidateSequence(candidates, delta_fraction=1.0)]


def build_accuracy_sequences(
    pilot_rows: PairedPredictions, small_score_grid: Grid
) -> list[CandidateSequence]:
    """Build the sequences that test the accuracy of a cascade without human review.

    The first sequence starts where the small model answers a middle share of the rows, because a
    cascade is there about as accurate as the large model, or more. The second one starts where the
    small model answers no row.
    """
    ascending_thresholds = _compute_quantile_thresholds(
        pilot_rows.small_score, n_thresholds=_N_THRESHOLDS, grid=small_score_grid
    )
    start_threshold = float(
        np.quantile(pilot_rows.small_score, _SMALL_MODEL_SHARE_AT_FIRST_TEST, method="lower")
    )
    start_index = bisect_left(ascending_thresholds, start_threshold)
    candidates_below_start = [
        Candidate(small_threshold=threshold) for threshold in ascending_thresholds[:start_index]
    ]
    candidates_from_start = [
        Candidate(small_threshold=threshold) for threshold in ascending_thresholds[start_index:]
    ]
    large_model_alone = Candidate(small_threshold=-math.inf)
    first_sequence = CandidateSequence(
        candidates_from_start, delta_fraction=_DELTA_FRACTION_OF_FIRST_SEQUENCE
    )
    second_sequence = CandidateSequence(
        [large_model_alone, *candidates_below_start],
        delta_fraction=1.0 - _DELTA_FRACTION_OF_FIRST_SEQUENCE,
    )
    return [first_sequence, second_sequence]


def build_review_sequences(
    pilot_rows: PairedPredictions,
    *,
    n_tested: int,
    min_accuracy: float,
    review_cost: float,
    score_grids: tuple[Grid, Grid],
) -> list[CandidateSequence]:
    """Build the sequence that tests the accuracy of a cascade with human review.

    A pair is in the sequence if every safer pair costs more. Safety is the p-value that is to be
    expected on the tested rows.

    Parameters
    ----------
    pilot_rows : PairedPredictions
        Labelled pilot rows.
    n_tested : int
        Number of rows that will be tested.
    min_accuracy : float
        Accuracy to certify.
    review_cost : float
        Cost of a row that a person answers, in calls of the large model.
    score_grids : tuple of two Grid
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
    >>> pilot_rows = PairedPredictions(
    ...     small_score,
    ...     large_score,
    ...     small_correct,
    ...     large_correct,
    ...     models_agree=small_correct == large_correct,
    ...     has_label=np.ones(400, dtype=bool),
    ... )
    >>> (sequence,) = build_review_sequences(
    ...     pilot_rows,
    ...     n_tested=1600,
    ...     min_accuracy=0.95,
    ...     review_cost=10.0,
    ...     score_grids=(RELATIVE_GRID, RELATIVE_GRID),
    ... )
    >>> sequence.delta_fraction, len(sequence.candidates) > 10
    (1.0, True)
    """
    small_score_grid, large_score_grid = score_grids
    small_thresholds = _compute_pair_thresholds(pilot_rows.small_score, small_score_grid)
    large_thresholds = _compute_pair_thresholds(pilot_rows.large_score, large_score_grid)
    n_pilot = len(pilot_rows)
    answer_counts = _sum_over_answered_rows(
        pilot_rows,
        small_thresholds=small_thresholds,
        large_thresholds=large_thresholds,
        value_if_small_answers=np.ones(n_pilot),
        value_if_large_answers=np.ones(n_pilot),
    )
    expected_errors = _sum_over_answered_rows(
        pilot_rows,
        small_thresholds=small_thresholds,
        large_thresholds=large_thresholds,
        value_if_small_answers=estimate_error_probabilities(
            pilot_rows.small_score, pilot_rows.small_correct
        ),
        value_if_large_answers=estimate_error_probabilities(
            pilot_rows.large_score, pilot_rows.large_correct
        ),
    )

    # Each table has one row per threshold of the small model and one column per large threshold.
    n_answered_table = answer_counts.sum_both_models()
    n_errors_table = expected_errors.sum_both_models()
    n_sent_to_large_column = (n_pilot - answer_counts.of_small_model)[:, None]
    n_sent_to_people_table = n_pilot - n_answered_table
    cost_table = n_sent_to_large_column + review_cost * n_sent_to_people_table
    n_tested_per_pilot_row = n_tested / n_pilot
    expected_p_value_table = compute_expected_p_value(
        n_answered=n_tested_per_pilot_row * n_answered_table,
        n_errors=n_tested_per_pilot_row * n_errors_table,
        min_accuracy=min_accuracy,
    )

    pareto_front = _find_pareto_front(
        risks=expected_p_value_table, costs=cost_table, is_allowed=n_answered_table > 0
    )
    pareto_optimal_pairs = []
    for small_index, large_index in pareto_front:
        candidate = Candidate(
            small_threshold=float(small_thresholds[small_index]),
            large_threshold=float(large_thresholds[large_index]),
        )
        pareto_optimal_pairs.append(candidate)
    return [CandidateSequence(pareto_optimal_pairs, delta_fraction=1.0)]


def _find_pareto_front(*, risks: Float, costs: Float, is_allowed: Flags) -> list[tuple[int, int]]:
    """Find the allowed table entries that are cheaper than all entries of lower risk.

    Parameters
    ----------
    risks, costs : array of shape (n_rows, n_columns)
        Risk and cost of each entry.
    is_allowed : array of bool of shape (n_rows, n_columns)
        Entries that may be on the front.

    Returns
    -------
    list of tuple of int
        Row and column of each entry of the front, the lowest risk first.

    Examples
    --------
    >>> risks, costs = np.array([[0.1, 0.2, 0.3]]), np.array([[5.0, 6.0, 4.0]])
    >>> _find_pareto_front(risks=risks, costs=costs, is_allowed=np.ones((1, 3), dtype=bool))
    [(0, 0), (0, 2)]
    """
    pareto_front: list[tuple[int, int]] = []
    lowest_cost = math.inf
    # `np.lexsort` sorts by its last key first, so entries are sorted by risk and then by cost.
    flat_indices_by_risk = np.lexsort((costs.ravel(), risks.ravel()))
    for flat_index in flat_indices_by_risk:
        row_index, column_index = divmod(int(flat_index), costs.shape[1])
        if is_allowed[row_index, column_index] and costs[row_index, column_index] < lowest_cost:
            lowest_cost = float(costs[row_index, column_index])
            pareto_front.append((row_index, column_index))
    return pareto_front


def _compute_quantile_thresholds(scores: Float, *, n_thresholds: int, grid: Grid) -> list[float]:
    """Compute thresholds at evenly spaced quantiles of the scores, then +inf."""
    accepted_shares = np.arange(1, n_thresholds + 1) / n_thresholds
    quantiles = np.quantile(scores, accepted_shares, method="lower")
    distinct_thresholds = {grid.make_robust_to_rounding(float(quantile)) for quantile in quantiles}
    return [*sorted(distinct_thresholds), math.inf]


def _compute_pair_thresholds(scores: Float, grid: Grid) -> Float:
    """Return ascending thresholds of one model, from -inf (accept no row) to +inf."""
    thresholds = _compute_quantile_thresholds(
        scores, n_thresholds=_N_THRESHOLDS_PER_MODEL, grid=grid
    )
    return np.array([-math.inf, *thresholds])


class _SumsOverAnsweredRows(NamedTuple):
    """Sums over the rows that each model answers, for all pairs of thresholds.

    Attributes
    ----------
    of_small_model : array of shape (n_small_thresholds,)
        Sums over the rows that the small model answers.
    of_large_model : array of shape (n_small_thresholds, n_large_thresholds)
        Sums over the rows that the large model answers.
    """

    of_small_model: Float
    of_large_model: Float

    def sum_both_models(self) -> Float:
        """Return, for each threshold pair, the sum over the rows that a model answers."""
        return self.of_small_model[:, None] + self.of_large_model


def _sum_over_answered_rows(
    rows: PairedPredictions,
    *,
    small_thresholds: Float,
    large_thresholds: Float,
    value_if_small_answers: Float,
    value_if_large_answers: Float,
) -> _SumsOverAnsweredRows:
    """Sum values over the rows that each model answers, for all pairs of thresholds.

    Parameters
    ----------
    rows : PairedPredictions
        Rows of the sums.
    small_thresholds, large_thresholds : array
        Increasing thresholds of each model.
    value_if_small_answers, value_if_large_answers : array of shape (n_rows,)
        Value of each row if the small model, or the large model, answers it.

    Returns
    -------
    _SumsOverAnsweredRows
    """
    n_small_thresholds = len(small_thresholds)
    n_large_thresholds = len(large_thresholds)
    # A model accepts a row at every threshold from the first that is not below its score.
    # If the model never accepts the row, the first index equals the number of thresholds.
    first_small_index = np.searchsorted(small_thresholds, rows.small_score)
    first_large_index = np.searchsorted(large_thresholds, rows.large_score)
    small_sums_by_index = np.bincount(
        first_small_index, weights=value_if_small_answers, minlength=n_small_thresholds + 1
    )
    small_sums = small_sums_by_index[:-1].cumsum()

    small_axis, large_axis = 0, 1
    large_sums_by_index_pair = np.zeros((n_small_thresholds + 1, n_large_thresholds + 1))
    np.add.at(
        large_sums_by_index_pair, (first_small_index, first_large_index), value_if_large_answers
    )
    sums_if_large_accepts = large_sums_by_index_pair.cumsum(axis=large_axis)
    reverse_cumulative_sums = np.flip(
        np.flip(sums_if_large_accepts, small_axis).cumsum(axis=small_axis), small_axis
    )
    # At threshold i, the small model rejects the rows whose first accepting index exceeds i.
    sums_if_large_answers = reverse_cumulative_sums[1:]
    large_sums = sums_if_large_answers[:, :n_large_thresholds]
    return _SumsOverAnsweredRows(of_small_model=small_sums, of_large_model=large_sums)
