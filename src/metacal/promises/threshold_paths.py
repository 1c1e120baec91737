"""Paths of threshold vectors for a cascade of scores, built from pilot rows.

A *threshold vector* has one threshold for each model that may pass a row on. A *path* is a list of
such vectors that is fixed before any tested row is used. The quality of the estimates in this module
decides how far along a path the tests pass. It never decides whether the promise holds.

- The *common-rank path* accepts the same share of each model's scores.
- The *price path* is a Lagrangian relaxation: for each price of a bad answer, a model answers the
  rows for which the price times the risk is below the cost of going on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from metacal.certificates.certificate import accept_up_to_threshold
from metacal.formulas import Codes, Flags, Float
from metacal.kernels.grid import RELATIVE_GRID
from metacal.promises.risk_estimates import (
    compute_expected_p_value,
    estimate_error_probabilities,
    fit_error_probabilities,
)

# Number of points of the path on which all models accept the same share of their rows.
_N_COMMON_RANKS = 100
# Prices of a bad answer, in calls of the last model. Thresholds become laxer as prices fall.
_PRICES_IN_LAST_MODEL_CALLS = np.logspace(5, -2, 150)
# For each price, coordinate descent visits the threshold of every model this many times.
_N_SWEEPS = 3


def find_answering_model(uncertainty: Float, thresholds: Float) -> Codes:
    """Return the index of the first model that accepts each row.

    If none of the m models with a threshold accepts a row, its index is m, for the last model or
    people.
    """
    is_accepted = accept_up_to_threshold(uncertainty, thresholds)
    first_accepting_model = is_accepted.argmax(axis=1)
    last_model = is_accepted.shape[1]
    return np.where(is_accepted.any(axis=1), first_accepting_model, last_model)


@dataclass(frozen=True, eq=False)
class PilotScores:
    """Pilot rows of a cascade, from which the paths of thresholds are built.

    Attributes
    ----------
    uncertainty : array of shape (n_pilot, m)
        Score of each model that may pass a row on. Higher is less certain.
    is_bad : array of bool of shape (n_pilot, m + 1)
        Whether the answer of each model is bad. The last column is the last model or people.
    costs : array of shape (m + 1,)
        Cost of asking each model, and the last model or people.
    unlabelled_uncertainty : array of shape (n_unlabelled, m)
        Scores of rows without labels.
    """

    uncertainty: Float
    is_bad: Flags
    costs: Float
    unlabelled_uncertainty: Float

    @property
    def n_rows(self) -> int:
        """Number of pilot rows."""
        return len(self.uncertainty)

    @property
    def n_gated_models(self) -> int:
        """Number of models with a threshold, which may pass a row on to the next model."""
        return self.uncertainty.shape[1]

    def build_common_rank_path(self) -> list[Float]:
        """Build the path on which every model accepts the same share of its scores."""
        all_scores = np.vstack([self.uncertainty, self.unlabelled_uncertainty])
        accepted_shares = np.arange(1, _N_COMMON_RANKS + 1) / _N_COMMON_RANKS
        thresholds = np.quantile(all_scores, accepted_shares, axis=0, method="lower")
        return _snap_distinct_thresholds(thresholds)

    def build_price_path(self, tolerated_bad_share: float, *, uses_joint_risk: bool) -> list[Float]:
        """Build a path of the cheapest thresholds, one point per price of a bad answer.

        Parameters
        ----------
        tolerated_bad_share : float
            Share of bad answers that is free of charge. It is subtracted from the risk of an answer.
        uses_joint_risk : bool
            Whether the risk of an answer is estimated from the scores of all models asked so far,
            instead of the score of the answering model.

        Returns
        -------
        list of array of shape (m,)
        """
        if uses_joint_risk:
            thresholds = self._optimize_by_coordinate_descent(tolerated_bad_share)
        else:
            thresholds = self._optimize_by_dynamic_programming(tolerated_bad_share)
        # Prices fall along the first axis, and a lower price must not make a threshold stricter.
        return _snap_distinct_thresholds(np.maximum.accumulate(thresholds, axis=0))

    def _optimize_by_dynamic_programming(self, tolerated_bad_share: float) -> Float:
        """Compute the cheapest thresholds for each price of a bad answer.

        The threshold of the model before the last one is set first. A model's risk is estimated from
        its own score, as if every row reached the model.
        """
        row_order_by_model = []
        excess_risk_by_model = []
        for model_index in range(self.n_gated_models):
            model_scores = self.uncertainty[:, model_index]
            row_order_by_model.append(np.argsort(model_scores, kind="stable"))
            bad_probability = fit_error_probabilities(
                model_scores, correct=~self.is_bad[:, model_index]
            )
            excess_risk_by_model.append(bad_probability - tolerated_bad_share)
        is_last_answer_bad = self.is_bad[:, -1]
        last_model_risk = float(is_last_answer_bad.mean())

        last_model_cost = self.costs[-1]
        next_model_costs = self.costs[1:]
        prices = _PRICES_IN_LAST_MODEL_CALLS * last_model_cost
        thresholds = np.full((len(prices), self.n_gated_models), -math.inf)
        for price_index, price_of_bad_answer in enumerate(prices):
            mean_cost_of_later_models = price_of_bad_answer * last_model_risk
            for model_index in reversed(range(self.n_gated_models)):
                row_order = row_order_by_model[model_index]
                cost_of_passing_on = next_model_costs[model_index] + mean_cost_of_later_models
                cost_of_answering = price_of_bad_answer * excess_risk_by_model[model_index]
                is_answering_cheaper = cost_of_answering[row_order] <= cost_of_passing_on
                n_answered = _count_leading_true(is_answering_cheaper)
                if n_answered > 0:
                    last_answered_row = row_order[n_answered - 1]
                    thresholds[price_index, model_index] = self.uncertainty[
                        last_answered_row, model_index
                    ]
                mean_cost_of_later_models = float(
                    np.minimum(cost_of_answering, cost_of_passing_on).mean()
                )
        return thresholds

    def _optimize_by_coordinate_descent(self, tolerated_bad_share: float) -> Float:
        """Optimize thresholds for each price of a bad answer, one model at a time.

        A model's risk is estimated from all scores up to its own, for the rows that reach it.
        """
        models = range(self.n_gated_models)
        row_order_by_model = np.argsort(self.uncertainty, axis=0, kind="stable")
        ranks = np.argsort(row_order_by_model, axis=0, kind="stable")
        excess_risk_by_model = []
        for model_index in models:
            available_scores = self.uncertainty[:, : model_index + 1]
            bad_probability = fit_error_probabilities(
                available_scores, correct=~self.is_bad[:, model_index]
            )
            excess_risk_by_model.append(bad_probability - tolerated_bad_share)
        is_last_answer_bad = self.is_bad[:, -1]
        last_model_risk = is_last_answer_bad.astype(np.float64)
        excess_risks = np.stack([*excess_risk_by_model, last_model_risk], axis=1)

        prices = _PRICES_IN_LAST_MODEL_CALLS * self.costs[-1]
        thresholds = np.full((len(prices), self.n_gated_models), -math.inf)
        # The search for each price starts at the accepted counts of the previous price.
        n_accepted = np.zeros(self.n_gated_models, dtype=np.intp)
        for price_index, price_of_bad_answer in enumerate(prices):
            cost_by_answering_model = self.costs.cumsum() + price_of_bad_answer * excess_risks
            for _ in range(_N_SWEEPS):
                for model_index in reversed(models):
                    n_accepted[model_index] = _find_cheapest_accepted_count(
                        model_index,
                        n_accepted_by_model=n_accepted,
                        score_rank_by_model=ranks,
                        rows_by_rising_score=row_order_by_model[:, model_index],
                        cost_by_answering_model=cost_by_answering_model,
                    )
            last_accepted_ranks = np.maximum(n_accepted - 1, 0)
            last_accepted_rows = row_order_by_model[last_accepted_ranks, models]
            last_accepted_scores = self.uncertainty[last_accepted_rows, models]
            thresholds[price_index] = np.where(n_accepted > 0, last_accepted_scores, -math.inf)
        return thresholds

    def find_point_with_smallest_expected_p_value(
        self, path: list[Float], *, min_accuracy: float, n_tested: int, has_human_review: bool
    ) -> int:
        """Return the index of the path point with the smallest expected p-value.

        Parameters
        ----------
        path : list of array of shape (m,)
            Threshold vectors.
        min_accuracy : float
            Accuracy to test.
        n_tested : int
            Number of rows that will be tested.
        has_human_review : bool
            Whether people answer the rows that no model accepts. Such rows are not counted.

        Returns
        -------
        int
        """
        n_labelled_rows = n_tested + self.n_rows
        n_tested_per_pilot_row = n_labelled_rows / self.n_rows - 1.0
        # The last answer has no score, so its observed errors replace error probabilities.
        error_probability_by_model = self.is_bad.astype(np.float64)
        for model_index in range(self.n_gated_models):
            error_probability_by_model[:, model_index] = estimate_error_probabilities(
                self.uncertainty[:, model_index], correct=~self.is_bad[:, model_index]
            )

        expected_n_answered = []
        expected_n_errors = []
        pilot_row_index = np.arange(self.n_rows)
        for thresholds in path:
            answering_model_index = find_answering_model(self.uncertainty, thresholds)
            n_pilot_answered = self.n_rows
            if has_human_review:
                is_answered_by_model = answering_model_index < self.n_gated_models
                n_pilot_answered = int(np.count_nonzero(is_answered_by_model))
            expected_n_pilot_errors = error_probability_by_model[
                pilot_row_index, answering_model_index
            ].sum()
            expected_n_answered.append(n_tested_per_pilot_row * n_pilot_answered)
            expected_n_errors.append(n_tested_per_pilot_row * expected_n_pilot_errors)
        p_values = compute_expected_p_value(
            n_answered=np.array(expected_n_answered),
            n_errors=np.array(expected_n_errors),
            min_accuracy=min_accuracy,
        )
        return int(np.argmin(p_values))


def _count_leading_true(flags: Flags) -> int:
    """Count the true values before the first false value."""
    if flags.all():
        return len(flags)
    return int(np.argmin(flags))


def _find_cheapest_accepted_count(
    model_index: int,
    *,
    n_accepted_by_model: Codes,
    score_rank_by_model: Codes,
    rows_by_rising_score: Codes,
    cost_by_answering_model: Float,
) -> int:
    """Find the number of rows that one model accepts at the smallest total cost.

    The thresholds of the other models stay fixed.

    Parameters
    ----------
    model_index : int
        Index of the model.
    n_accepted_by_model : array of int of shape (m,)
        Number of lowest scores that each model accepts now.
    score_rank_by_model : array of int of shape (n_rows, m)
        Rank of each row among the scores of each model, from 0.
    rows_by_rising_score : array of int of shape (n_rows,)
        Rows in increasing order of the model's score.
    cost_by_answering_model : array of shape (n_rows, m + 1)
        Cost of each row if a given model answers it, with the price of a bad answer.

    Returns
    -------
    int
    """
    n_rows = len(score_rank_by_model)
    last_model_accepts = np.ones(n_rows, dtype=bool)
    is_accepted_by_model = np.column_stack(
        [score_rank_by_model < n_accepted_by_model, last_model_accepts]
    )
    is_accepted_by_later_model = is_accepted_by_model[:, model_index + 1 :]
    next_accepting_model = model_index + 1 + is_accepted_by_later_model.argmax(axis=1)
    cost_if_passed_on = cost_by_answering_model[np.arange(n_rows), next_accepting_model]
    cost_if_answered = cost_by_answering_model[:, model_index]
    is_answered_earlier = is_accepted_by_model[:, :model_index].any(axis=1)
    row_savings = np.where(is_answered_earlier, 0.0, cost_if_passed_on - cost_if_answered)
    savings_by_rising_score = row_savings[rows_by_rising_score]
    cumulative_savings = np.concatenate(([0.0], savings_by_rising_score.cumsum()))
    return int(np.argmax(cumulative_savings))


def _snap_distinct_thresholds(path: Float) -> list[Float]:
    """Remove duplicate threshold vectors, and round thresholds to grid midpoints."""
    snap_to_midpoints = np.vectorize(RELATIVE_GRID.make_robust_to_rounding, otypes=[np.float64])
    return list(snap_to_midpoints(np.unique(path, axis=0)))
