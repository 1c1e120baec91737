"""Paths of threshold vectors for a cascade of scores, from strict to lax, built from pilot rows.

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

from metacal.certificates.certificate import accepts
from metacal.formulas import Codes, Flags, Float
from metacal.kernels.grid import RELATIVE
from metacal.promises.risk_estimates import (
    compute_expected_p_value,
    estimate_risk,
    fit_risk_curve,
)

# Number of points of the common-rank path.
_N_COMMON_RANKS = 100
# Prices of a bad answer in calls of the last model, from high (strict) to low (lax).
_PRICES = np.logspace(5, -2, 150)
# Number of sweeps of coordinate descent over the thresholds, for each price.
_N_SWEEPS = 3


def find_answering_model(uncertainty: Float, thresholds: Float) -> Codes:
    """Return the index of the first model that accepts each row, or m if none of m does."""
    is_accepted = accepts(uncertainty, thresholds)
    n_models = is_accepted.shape[1]
    return np.where(is_accepted.any(axis=1), is_accepted.argmax(axis=1), n_models)


@dataclass(frozen=True, eq=False)
class PilotScores:
    """Pilot rows of a cascade, which lay out the paths.

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
    def n_models(self) -> int:
        """Number of models that may pass a row on."""
        return self.uncertainty.shape[1]

    def build_common_rank_path(self) -> list[Float]:
        """Build the path on which every model accepts the same share of its scores."""
        all_scores = np.vstack([self.uncertainty, self.unlabelled_uncertainty])
        shares = np.arange(1, _N_COMMON_RANKS + 1) / _N_COMMON_RANKS
        return _place_between_scores(np.quantile(all_scores, shares, axis=0, method="lower"))

    def build_price_path(self, allowed_bad_share: float, *, joint: bool) -> list[Float]:
        """Build the path of thresholds that cost least at each price of a bad answer.

        Parameters
        ----------
        allowed_bad_share : float
            Share of bad answers that is free of charge.
        joint : bool
            Whether the risk of an answer is estimated from the scores of all models asked so far,
            instead of the score of the answering model.

        Returns
        -------
        list of array of shape (m,)
        """
        if joint:
            thresholds = self._price_thresholds_from_all_scores(allowed_bad_share)
        else:
            thresholds = self._price_thresholds_from_own_score(allowed_bad_share)
        # A lower price must not make a threshold stricter.
        return _place_between_scores(np.maximum.accumulate(thresholds, axis=0))

    def _price_thresholds_from_own_score(self, allowed_bad_share: float) -> Float:
        """Compute thresholds by dynamic programming from the last model back to the first."""
        row_orders = []
        risk_curves = []
        for model in range(self.n_models):
            scores = self.uncertainty[:, model]
            row_orders.append(np.argsort(scores, kind="stable"))
            is_good = ~self.is_bad[:, model]
            risk_curves.append(fit_risk_curve(scores, is_good) - allowed_bad_share)
        last_model_risk = float(self.is_bad[:, -1].mean())

        thresholds = np.full((len(_PRICES), self.n_models), -math.inf)
        for price_index, price in enumerate(_PRICES * self.costs[-1]):
            expected_later_cost = price * last_model_risk
            for model in reversed(range(self.n_models)):
                row_order = row_orders[model]
                cost_of_going_on = self.costs[model + 1] + expected_later_cost
                cost_of_answering = price * risk_curves[model]
                n_answered = _count_leading_true(cost_of_answering[row_order] <= cost_of_going_on)
                if n_answered:
                    last_answered = row_order[n_answered - 1]
                    thresholds[price_index, model] = self.uncertainty[last_answered, model]
                expected_later_cost = float(np.minimum(cost_of_answering, cost_of_going_on).mean())
        return thresholds

    def _price_thresholds_from_all_scores(self, allowed_bad_share: float) -> Float:
        """Compute thresholds by coordinate descent over the rows that reach each model."""
        n_models = self.n_models
        models = range(n_models)
        row_orders = np.argsort(self.uncertainty, axis=0, kind="stable")
        ranks = np.argsort(row_orders, axis=0, kind="stable")
        risks = [
            fit_risk_curve(self.uncertainty[:, : model + 1], ~self.is_bad[:, model])
            - allowed_bad_share
            for model in models
        ]
        risks.append(self.is_bad[:, n_models].astype(np.float64))

        # The accepted counts of one price are the initial values for the next price.
        n_accepted = np.zeros(n_models, dtype=np.intp)
        thresholds = np.full((len(_PRICES), n_models), -math.inf)
        for price_index, price in enumerate(_PRICES * self.costs[-1]):
            total_costs = self.costs.cumsum() + price * np.stack(risks, axis=1)
            for _ in range(_N_SWEEPS):
                for model in reversed(models):
                    n_accepted[model] = _find_best_accepted_count(
                        model, n_accepted, ranks, row_orders[:, model], total_costs
                    )
            last_accepted_rows = row_orders[n_accepted - 1, models]
            last_accepted_scores = self.uncertainty[last_accepted_rows, models]
            thresholds[price_index] = np.where(n_accepted > 0, last_accepted_scores, -math.inf)
        return thresholds

    def find_surest_point(
        self, path: list[Float], beta: float, n_tested: int, has_people: bool
    ) -> int:
        """Return the index of the path point with the smallest expected p-value.

        Parameters
        ----------
        path : list of array of shape (m,)
            Threshold vectors.
        beta : float
            Accuracy to test.
        n_tested : int
            Number of rows that will be tested.
        has_people : bool
            Whether people answer the rows that no model accepts. Such rows are not counted.

        Returns
        -------
        int
        """
        tested_per_pilot_row = (n_tested + self.n_rows) / self.n_rows - 1.0
        row_index = np.arange(self.n_rows)
        error_risks = self.is_bad.astype(np.float64)
        for model in range(self.n_models):
            error_risks[:, model] = estimate_risk(
                self.uncertainty[:, model], ~self.is_bad[:, model]
            )

        answered_counts = []
        error_counts = []
        for thresholds in path:
            answering_model = find_answering_model(self.uncertainty, thresholds)
            n_answered = self.n_rows
            if has_people:
                n_answered = int(np.count_nonzero(answering_model < self.n_models))
            answered_counts.append(tested_per_pilot_row * n_answered)
            n_errors = error_risks[row_index, answering_model].sum()
            error_counts.append(tested_per_pilot_row * n_errors)
        p_values = compute_expected_p_value(np.array(answered_counts), np.array(error_counts), beta)
        return int(np.argmin(p_values))


def _count_leading_true(flags: Flags) -> int:
    """Count the true values before the first false value."""
    if flags.all():
        return len(flags)
    return int(np.argmin(flags))


def _find_best_accepted_count(
    model: int, n_accepted: Codes, ranks: Codes, row_order: Codes, total_costs: Float
) -> int:
    """Find how many rows a model should accept, with the thresholds of the others fixed.

    Parameters
    ----------
    model : int
        Index of the model.
    n_accepted : array of int of shape (m,)
        Number of lowest scores that each model accepts now.
    ranks : array of int of shape (n_rows, m)
        Rank of each row among the scores of each model.
    row_order : array of int of shape (n_rows,)
        Rows in increasing order of the model's score.
    total_costs : array of shape (n_rows, m + 1)
        Cost of each row if a given model answers it, with the price of a bad answer.

    Returns
    -------
    int
    """
    n_rows = len(ranks)
    last_model_accepts = np.ones(n_rows, dtype=bool)
    is_accepted = np.column_stack([ranks < n_accepted, last_model_accepts])
    next_model = model + 1 + is_accepted[:, model + 1 :].argmax(axis=1)
    cost_of_going_on = total_costs[np.arange(n_rows), next_model]
    saving = cost_of_going_on - total_costs[:, model]
    is_answered_earlier = is_accepted[:, :model].any(axis=1)
    saving_by_score = np.where(is_answered_earlier, 0.0, saving)[row_order]
    total_savings = np.concatenate(([0.0], saving_by_score.cumsum()))
    return int(np.argmax(total_savings))


def _place_between_scores(path: Float) -> list[Float]:
    """Remove repeated points, and move each threshold between two representable scores."""
    settle_thresholds = np.vectorize(RELATIVE.snap_to_midpoint, otypes=[np.float64])
    return list(settle_thresholds(np.unique(path, axis=0)))
