"""Counts of violations and reference rows per cluster.

`certification.clusters` defines the terms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metacal.certificates.certificate import accept_up_to_threshold
from metacal.certificates.quantity import Quantity
from metacal.certification.rows import CalibrationRows, Clusters
from metacal.formulas import Flags, Float
from metacal.statistics import betting


@dataclass(frozen=True, eq=False)
class ClusterCounts:
    """Numbers of violations and reference rows in each cluster at one threshold.

    Attributes
    ----------
    n_violations : array of float of shape (n_clusters,)
        Number of violations. If clusters count by their mean, fraction of violations.

    n_reference_rows : array of float of shape (n_clusters,)
        Number of reference rows. If clusters count by their mean, 1 if the cluster has
        any reference row, else 0.

    max_reference_rows : int
        Upper bound on `n_reference_rows` for any cluster, including future ones.
    """

    n_violations: Float
    n_reference_rows: Float
    max_reference_rows: int

    def compute_values_to_compare_with_limit(self, limit: float) -> Float:
        """Compute one value in [0, 1] per cluster for a betting test of the mean.

        The expected value of this number is at most `limit` if and only if the rate
        of violations is at most `limit`. The promise is thus a statement about the
        mean of independent bounded variables, which a betting test can check.

        Parameters
        ----------
        limit : float
            Largest allowed rate of violations.

        Returns
        -------
        array of float of shape (n_clusters,)
        """
        n_excess_violations = self.n_violations - limit * self.n_reference_rows
        return n_excess_violations / self.max_reference_rows + limit

    @property
    def violation_rate(self) -> float | None:
        """Share of violations among the reference rows, or None if there are none."""
        has_reference_rows = self.n_reference_rows.any()
        if not has_reference_rows:
            return None
        return float(self.n_violations.sum() / self.n_reference_rows.sum())

    def confidence_interval(self, tail_probability: float) -> tuple[float, float]:
        """Compute a confidence interval for the violation rate.

        Parameters
        ----------
        tail_probability : float
            Probability that the rate lies below the lower end, and that it lies above the upper
            end.

        Returns
        -------
        tuple of float
            Lower and upper end.
        """

        def rate_may_be_at_most(limit: float) -> bool:
            cluster_values = self.compute_values_to_compare_with_limit(limit)
            rate_is_above_limit = betting.certifies_mean_above(
                cluster_values, limit, significance_level=tail_probability
            )
            return not rate_is_above_limit

        def rate_is_below(limit: float) -> bool:
            # The mean x is below the limit if 1 - x is above 1 - limit.
            cluster_values = self.compute_values_to_compare_with_limit(limit)
            return betting.certifies_mean_above(
                1.0 - cluster_values, 1.0 - limit, significance_level=tail_probability
            )

        # Both functions are monotonic in the limit, so bisection finds where they become true.
        lower_bracket = betting.bracket_first_true(rate_may_be_at_most)
        upper_bracket = betting.bracket_first_true(rate_is_below)
        return lower_bracket.largest_false, upper_bracket.smallest_true


class ClusterCounter:
    """Counter of violations and reference rows per cluster at any threshold.

    Parameters
    ----------
    rows : CalibrationRows
        Rows with cluster codes.

    quantity : Quantity
        Quantity that the promise limits. It defines the violations and the reference rows.
    """

    def __init__(self, rows: CalibrationRows, quantity: Quantity) -> None:
        assert rows.clusters is not None
        self.rows = rows
        self.quantity = quantity
        self.clusters = rows.clusters

    def count(self, threshold: float) -> ClusterCounts:
        """Count the violations and reference rows per cluster.

        Parameters
        ----------
        threshold : float
            Rows with a score of at most `threshold` are accepted.

        Returns
        -------
        ClusterCounts
        """
        is_accepted = accept_up_to_threshold(self.rows.scores, threshold)
        return count_violations_per_cluster(
            self.quantity, self.clusters, is_accepted, self.rows.correct
        )


def count_violations_per_cluster(
    quantity: Quantity, clusters: Clusters, is_accepted: Flags, correct: Flags | None
) -> ClusterCounts:
    """Count the violations and reference rows per cluster.

    The clusters are in the order of their codes, which is random. A betting test depends on the
    order, and the order of the input may follow the labels.

    Parameters
    ----------
    quantity : Quantity
        Quantity that defines the violations and the reference rows.

    clusters : Clusters
        Cluster of each row.

    is_accepted : array of bool of shape (n_rows,)
        Whether each row is accepted.

    correct : array of bool of shape (n_rows,) or None
        Whether each prediction is correct.

    Returns
    -------
    ClusterCounts
    """
    is_event, is_reference_row = quantity.compute_numerator_and_denominator_masks(
        is_accepted, correct
    )
    is_violation = is_event
    if not quantity.has_upper_limit:
        is_violation = is_reference_row & ~is_event
    n_violations = _count_per_cluster(clusters, is_violation)
    n_reference_rows = _count_per_cluster(clusters, is_reference_row)
    if not clusters.uses_cluster_means:
        return ClusterCounts(
            n_violations=n_violations,
            n_reference_rows=n_reference_rows,
            max_reference_rows=clusters.max_size,
        )

    share_of_violations = n_violations / np.maximum(n_reference_rows, 1.0)
    # Each cluster with reference rows has a total weight of one row.
    has_reference_row = np.minimum(n_reference_rows, 1.0)
    return ClusterCounts(
        n_violations=share_of_violations,
        n_reference_rows=has_reference_row,
        max_reference_rows=1,
    )


def _count_per_cluster(clusters: Clusters, row_mask: Flags) -> Float:
    """Count the rows selected by a mask for each cluster."""
    n_rows_by_cluster = np.bincount(clusters.codes[row_mask], minlength=clusters.n_clusters)
    return n_rows_by_cluster.astype(np.float64)
