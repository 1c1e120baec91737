"""Measurement: a promised quantity on labelled rows, with interval and p-value.

A row is *bad* if it counts against the promise: an accepted error for a selective accuracy, a
rejected correct prediction for a miscoverage, a row with a positive cost for a mean cost. For the
loss of a cascade, a row is bad if the cascade is wrong and its last model alone is right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scipy.special import betainc

from metacal.certificates.quantity import Quantity
from metacal.certification.cluster_counts import ClusterCounts, count_violations_per_cluster
from metacal.certification.rows import Clusters
from metacal.errors import ClustersError, MissingLabelsError
from metacal.formulas import Flags, Float
from metacal.rows.draws import RowDraws
from metacal.statistics import betting, bounds
from metacal.statistics.noninferiority import (
    NUISANCE_LEVEL_FRACTION,
    difference_interval,
    p_value_of_noninferiority,
)

if TYPE_CHECKING:
    from metacal.certification.row_losses import Losses


@dataclass(frozen=True, eq=False)
class Measurement:
    """Value of one promised quantity on labelled rows, with the counts behind it.

    Attributes
    ----------
    quantity : Quantity
        Promised quantity.
    target : float
        Promised limit on the quantity.
    value : float or None
        Measured value. None if the quantity counts none of the rows.
    n_bad, n_rows : int
        Number of bad rows, and of all rows that the quantity counts.
    largest_cost : float, default=1.0
        Largest possible cost of a row. 1 if the quantity is not a mean cost.
    total_cost : float, optional
        Sum of the costs of all counted rows, for a mean cost.
    relative_costs : array of shape (n_rows,), optional
        Costs divided by `largest_cost`, if they may lie between 0 and 1. Their order is random but
        reproducible, because bets on sorted rows would see a drift that does not exist.
    n_better : int, optional
        Number of rows that the cascade answers better than its last model alone, for a loss.
    cluster_counts : ClusterCounts, optional
        Counts of each cluster, if rows are dependent. Bets are then placed on whole clusters.
    """

    quantity: Quantity
    target: float
    value: float | None
    n_bad: int
    n_rows: int
    largest_cost: float = 1.0
    total_cost: float | None = None
    relative_costs: Float | None = None
    n_better: int | None = None
    cluster_counts: ClusterCounts | None = None

    @classmethod
    def from_rows(
        cls,
        quantity: Quantity,
        target: float,
        accept: Flags,
        correct: Flags | None,
        losses: Losses | None = None,
        clusters: Clusters | None = None,
    ) -> Measurement:
        """Measure a promised quantity on labelled rows.

        Parameters
        ----------
        quantity : Quantity
            Promised quantity.
        target : float
            Promised limit.
        accept : array of bool of shape (n,)
            Whether each row is accepted.
        correct : array of bool of shape (n,) or None
            Whether each prediction is correct. None if the quantity needs no labels.
        losses : Losses, optional
            Cost of each row. Required for a mean cost and for the loss of a cascade.
        clusters : Clusters, optional
            Clusters of dependent rows.

        Returns
        -------
        Measurement

        Raises
        ------
        InputError
            If required losses or labels are missing, or if the quantity cannot be measured on
            clusters.
        """
        requires_independent_rows = quantity.is_paired_difference or quantity.is_mean_cost
        if requires_independent_rows and clusters is not None:
            raise ClustersError(
                f"The test of {quantity} requires independent rows. Fit the gate with units, so"
                " that the test counts one row of each cluster."
            )
        if quantity.is_paired_difference:
            return cls._measure_cascade_loss(quantity, target, losses)
        if quantity.is_mean_cost:
            return cls._measure_mean_cost(quantity, target, accept, correct, losses)
        if clusters is not None:
            return cls._measure_share_of_clusters(quantity, target, accept, correct, clusters)
        return cls._measure_share(quantity, target, accept, correct)

    @classmethod
    def _measure_cascade_loss(
        cls, quantity: Quantity, target: float, losses: Losses | None
    ) -> Measurement:
        """Measure how many more errors a cascade makes than its last model alone."""
        if losses is None:
            raise MissingLabelsError(
                f"The test of the {quantity} of a cascade requires the predictions of all models."
                " Pass the tables of all models."
            )
        # The loss is 1 if only the cascade is wrong, -1 if only the last model is, and 0 otherwise.
        loss_differences = losses.if_accepted
        n_rows = len(loss_differences)
        n_worse = int((loss_differences > 0.0).sum())
        n_better = int((loss_differences < 0.0).sum())
        return cls(
            quantity=quantity,
            target=target,
            value=(n_worse - n_better) / n_rows,
            n_bad=n_worse,
            n_rows=n_rows,
            n_better=n_better,
        )

    @classmethod
    def _measure_share(
        cls, quantity: Quantity, target: float, accept: Flags, correct: Flags | None
    ) -> Measurement:
        """Measure a share of rows, such as an error rate, on independent rows."""
        n_events, n_rows = quantity.count_events(accept, correct)
        n_violations, _ = quantity.count_violations(accept, correct)
        share = None
        if n_rows > 0:
            share = n_events / n_rows
        return cls(quantity=quantity, target=target, value=share, n_bad=n_violations, n_rows=n_rows)

    @classmethod
    def _measure_share_of_clusters(
        cls,
        quantity: Quantity,
        target: float,
        accept: Flags,
        correct: Flags | None,
        clusters: Clusters,
    ) -> Measurement:
        """Measure a share of rows that may depend on each other within clusters."""
        n_violations, n_rows = quantity.count_violations(accept, correct)
        cluster_counts = count_violations_per_cluster(quantity, clusters, accept, correct)
        share = cluster_counts.violation_rate
        if share is not None and not quantity.has_upper_limit:
            share = 1.0 - share
        return cls(
            quantity=quantity,
            target=target,
            value=share,
            n_bad=n_violations,
            n_rows=n_rows,
            cluster_counts=cluster_counts,
        )

    @classmethod
    def _measure_mean_cost(
        cls,
        quantity: Quantity,
        target: float,
        accept: Flags,
        correct: Flags | None,
        losses: Losses | None,
    ) -> Measurement:
        """Measure the mean cost of the counted rows, with data for a betting test."""
        if quantity.needs_labels:
            quantity.check_labels(correct)
        if losses is None:
            raise MissingLabelsError(
                f"The test of the {quantity} requires the cost of each row. Pass losses."
            )
        costs_in_row_order = losses.get_counted_losses(quantity, accept)
        # A betting test needs a random order of rows, because sorted costs would look like drift.
        draws = RowDraws(seed_columns=(costs_in_row_order,))
        costs = costs_in_row_order[draws.draw_row_order(purpose="order of bets")]
        relative_costs = costs / losses.max_loss
        mean_cost = None
        if len(costs) > 0:
            mean_cost = float(costs.mean())
        # If every cost is 0 or the largest cost, an exact binomial test replaces the betting test.
        relative_costs_for_bets = None if losses.is_all_or_nothing else relative_costs
        n_rows_with_cost = int((costs > 0.0).sum())
        return cls(
            quantity=quantity,
            target=target,
            value=mean_cost,
            n_bad=n_rows_with_cost,
            n_rows=len(costs),
            largest_cost=losses.max_loss,
            total_cost=float(losses.max_loss * relative_costs.sum()),
            relative_costs=relative_costs_for_bets,
        )

    @property
    def max_bad_share(self) -> float:
        """Largest share of bad rows, or relative mean cost, that keeps the promise."""
        return self.quantity.max_violation_rate(self.target) / self.largest_cost

    @property
    def has_graded_costs(self) -> bool:
        """Whether the quantity is a mean of costs between 0 and the largest cost."""
        return self.relative_costs is not None

    @property
    def has_clusters(self) -> bool:
        """Whether rows depend on each other within clusters."""
        return self.cluster_counts is not None

    @property
    def is_error_rate_difference(self) -> bool:
        """Whether the quantity is an error rate of a cascade minus that of its last model."""
        return self.n_better is not None

    @property
    def is_binomial(self) -> bool:
        """Whether the number of bad rows is binomial, so that exact binomial tests apply."""
        is_share_of_rows = not self.has_graded_costs and not self.is_error_rate_difference
        return is_share_of_rows and not self.has_clusters

    def compute_interval(self, confidence_level: float) -> tuple[float, float]:
        """Compute a two-sided confidence interval for the quantity.

        The interval is that of Clopper and Pearson for a share, a betting interval for a mean cost
        or for clusters, and an inverted exact test for the loss of a cascade.

        Parameters
        ----------
        confidence_level : float
            Probability that the interval contains the true value.

        Returns
        -------
        low, high : float
        """
        assert self.value is not None
        if self.is_error_rate_difference:
            return self._compute_error_difference_interval(confidence_level)
        tail_probability = (1.0 - confidence_level) / 2.0
        if self.has_clusters:
            low, high = self._compute_cluster_interval(tail_probability)
        elif self.has_graded_costs:
            low, high = self._compute_relative_cost_interval(tail_probability)
        else:
            low, high = self._compute_binomial_interval(tail_probability)
        low_in_cost_units = self.largest_cost * low
        high_in_cost_units = self.largest_cost * high
        # Because of rounding errors, the computed interval may exclude the measured value.
        return min(low_in_cost_units, self.value), max(high_in_cost_units, self.value)

    def _compute_error_difference_interval(self, confidence_level: float) -> tuple[float, float]:
        """Compute an exact confidence interval for the difference of two error rates."""
        assert self.n_better is not None
        return difference_interval(
            n_only_first_incorrect=self.n_bad,
            n_only_second_incorrect=self.n_better,
            n=self.n_rows,
            confidence_level=confidence_level,
        )

    def _compute_binomial_interval(self, tail_probability: float) -> tuple[float, float]:
        """Compute the Clopper-Pearson interval for a share of independent rows."""
        n_events = self.n_bad
        bad_rows_are_events = self.quantity.has_upper_limit
        if not bad_rows_are_events:
            n_events = self.n_rows - self.n_bad
        low = bounds.clopper_pearson_lower(n_events, self.n_rows, tail_probability)
        high = bounds.clopper_pearson_upper(n_events, self.n_rows, tail_probability)
        return low, high

    def _compute_relative_cost_interval(self, tail_probability: float) -> tuple[float, float]:
        """Compute a betting interval for the mean of costs in [0, 1]."""
        assert self.relative_costs is not None
        mean_guess = min(0.5, self.max_bad_share)
        low = betting.mean_lower_bound(self.relative_costs, tail_probability, mean_guess)
        high = betting.mean_upper_bound(self.relative_costs, tail_probability, mean_guess)
        return low, high

    def _compute_cluster_interval(self, tail_probability: float) -> tuple[float, float]:
        """Compute a confidence interval for the quantity from the counts of clusters."""
        assert self.cluster_counts is not None
        lowest_bad_rate, highest_bad_rate = self.cluster_counts.confidence_interval(
            tail_probability
        )
        if self.quantity.has_upper_limit:
            return lowest_bad_rate, highest_bad_rate
        return 1.0 - highest_bad_rate, 1.0 - lowest_bad_rate

    def compute_p_value(self, significance_level: float) -> float:
        """Compute the p-value of the hypothesis that the promise is kept.

        For a share it is P(Bin(n_rows, max_bad_share) >= n_bad). A small p-value is evidence
        against the promise.

        Parameters
        ----------
        significance_level : float
            Level of the test for which the stakes of bets are chosen.

        Returns
        -------
        float

        Examples
        --------
        >>> from metacal.certificates.quantities import SELECTIVE_ACCURACY
        >>> import numpy as np
        >>> all_rows, correct = np.ones(20, dtype=bool), np.arange(20) >= 3
        >>> measurement = Measurement.from_rows(SELECTIVE_ACCURACY, 0.95, all_rows, correct)
        >>> round(measurement.compute_p_value(0.05), 4)
        0.0755
        """
        if self.is_error_rate_difference:
            return self._compute_error_difference_p_value(significance_level)
        if self.has_clusters:
            return self._compute_cluster_p_value(significance_level)
        if self.has_graded_costs:
            return self._compute_relative_cost_p_value(significance_level)
        return self._compute_binomial_p_value()

    def _compute_error_difference_p_value(self, significance_level: float) -> float:
        """Compute the exact p-value for the difference between two error rates."""
        assert self.n_better is not None
        n_worse = self.n_bad
        return p_value_of_noninferiority(
            n_only_first_incorrect=n_worse,
            n_only_second_incorrect=self.n_better,
            n=self.n_rows,
            margin=self.target,
            nuisance_level=NUISANCE_LEVEL_FRACTION * significance_level,
        )

    def _compute_cluster_p_value(self, significance_level: float) -> float:
        """Compute the p-value of a betting test that bets on whole clusters."""
        assert self.cluster_counts is not None
        limit = self.max_bad_share
        cluster_values = self.cluster_counts.compute_values_to_compare_with_limit(limit)
        return betting.p_value_of_mean_above(
            cluster_values, limit=limit, significance_level=significance_level
        )

    def _compute_relative_cost_p_value(self, significance_level: float) -> float:
        """Compute the p-value of a betting test on the mean of costs in [0, 1]."""
        assert self.relative_costs is not None
        limit_is_always_kept = self.max_bad_share >= 1.0
        if limit_is_always_kept:
            return 1.0
        return betting.p_value_of_mean_above(
            self.relative_costs, limit=self.max_bad_share, significance_level=significance_level
        )

    def _compute_binomial_p_value(self) -> float:
        """Compute the probability of at least `n_bad` bad rows if their rate is the limit."""
        if self.n_bad == 0:
            return 1.0
        # P(Bin(n, p) >= k) is the regularized incomplete beta function I_p(k, n - k + 1).
        upper_binomial_tail = betainc(self.n_bad, self.n_rows - self.n_bad + 1, self.max_bad_share)
        return float(upper_binomial_tail)
