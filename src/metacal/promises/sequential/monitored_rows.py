"""Labelled rows that a monitor bets on, with their sampling weights and clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from metacal.certificates.quantity import Quantity
from metacal.errors import MissingLabelsError, MonitoringError
from metacal.formulas import Codes, Flags, Float
from metacal.spelling import format_option

if TYPE_CHECKING:
    from metacal.certification.row_losses import Losses


def compute_sampling_weights(
    probability: ArrayLike | None, n_rows: int, least_probability: float
) -> Float:
    """Compute the sampling weight of each row from its labelling probability.

    The weight is `least_probability` divided by the probability of the row, so it is at most 1.

    >>> compute_sampling_weights([0.1, 0.5], 2, 0.1), compute_sampling_weights(None, 2, 0.1)
    (array([1. , 0.2]), array([1., 1.]))
    """
    if probability is None:
        return np.ones(n_rows)
    probabilities = np.atleast_1d(np.asarray(probability, dtype=np.float64))
    are_probabilities = ((probabilities > 0.0) & (probabilities <= 1.0)).all()
    if probabilities.shape != (n_rows,) or not are_probabilities:
        raise MonitoringError(
            f"probability must have one number for each of the {n_rows} rows, greater than 0 and"
            " at most 1."
        )
    if n_rows and probabilities.min() < least_probability:
        raise MonitoringError(
            f"A row was sampled with probability {probabilities.min():g}, but the declared"
            f" minimum is {least_probability:g}. Start again with a lower minimum:"
            f" {format_option('least_probability', metavar='P')}."
        )
    return np.asarray(least_probability / probabilities)


class ClusterMembership(NamedTuple):
    """Cluster of each row, for rows of complete clusters.

    Attributes
    ----------
    cluster_of_row : array of int
        Index of the cluster of each row: 0, 1, ...
    is_cluster_representative : boolean array
        True for one random row of each cluster.
    n_clusters : int
        Number of clusters.
    full_weight_sums : array of float of shape (n_clusters,), or None
        Sum of row weights at which each cluster has the weight 1. The weight of a cluster is the
        sum of the weights of its labelled rows, divided by this number. It is the number of rows of
        the cluster, labelled or not, if every cluster counts the same, and one number for all
        clusters if every row counts the same. None if each cluster has weight 1, whatever the
        number of its rows.
    """

    cluster_of_row: Codes
    is_cluster_representative: Flags
    n_clusters: int
    full_weight_sums: Float | None

    def select_rows(self, rows: Flags | slice) -> ClusterMembership:
        """Return the membership of the selected rows."""
        return self._replace(
            cluster_of_row=self.cluster_of_row[rows],
            is_cluster_representative=self.is_cluster_representative[rows],
        )

    def compute_cluster_means_and_weights(
        self, values: Float, weights: Float
    ) -> tuple[Float, Float]:
        """Compute the weighted mean of the values of each cluster, and its weight.

        Clusters without weight are left out.

        >>> is_cluster_representative = np.array([True, False, True])
        >>> membership = ClusterMembership(
        ...     cluster_of_row=np.array([0, 0, 1]),
        ...     is_cluster_representative=is_cluster_representative,
        ...     n_clusters=2,
        ...     full_weight_sums=np.array([4.0, 1.0]),
        ... )
        >>> membership.compute_cluster_means_and_weights(np.array([1.0, 0.0, 1.0]), np.ones(3))
        (array([0.5, 1. ]), array([0.5, 1. ]))
        """
        weight_sums = np.bincount(self.cluster_of_row, weights=weights, minlength=self.n_clusters)
        weighted_value_sums = np.bincount(
            self.cluster_of_row, weights=weights * values, minlength=self.n_clusters
        )
        has_weight = weight_sums > 0.0
        cluster_means = weighted_value_sums[has_weight] / weight_sums[has_weight]
        if self.full_weight_sums is None:
            # Each cluster has the same weight, whatever the number of its rows.
            cluster_weights = np.ones(self.n_clusters)
        else:
            cluster_weights = weight_sums / self.full_weight_sums
        return cluster_means, cluster_weights[has_weight]


class MonitoredRows(NamedTuple):
    """Columns of the rows that a monitor bets on.

    Attributes
    ----------
    is_accepted : boolean array
        Decision on each row.
    is_correct : boolean array or None
        Correctness of each prediction. None if the rows have no labels.
    sampling_weights : array
        Weight of each row, which is inverse to the probability of labelling it.
    clusters : ClusterMembership or None
        Cluster of each row, if rows depend on each other.
    """

    is_accepted: Flags
    is_correct: Flags | None
    sampling_weights: Float
    clusters: ClusterMembership | None

    def make_flags_about_class(self, is_predicted_as_class: Flags) -> MonitoredRows:
        """Return the same rows with flags that refer to one of two classes.

        In the result, `is_accepted` means that a row is predicted and accepted as the class, and
        `is_correct` means that the class is the true one.
        """
        belongs_to_class = None
        if self.is_correct is not None:
            # The true class is the predicted one if the prediction is correct, else the other one.
            belongs_to_class = is_predicted_as_class == self.is_correct
        return self._replace(
            is_accepted=self.is_accepted & is_predicted_as_class, is_correct=belongs_to_class
        )

    def select_rows(self, rows: Flags | slice) -> MonitoredRows:
        """Select rows by a mask or slice, in all columns."""
        is_correct = self.is_correct
        if is_correct is not None:
            is_correct = is_correct[rows]
        clusters = self.clusters
        if clusters is not None:
            clusters = clusters.select_rows(rows)
        return MonitoredRows(
            is_accepted=self.is_accepted[rows],
            is_correct=is_correct,
            sampling_weights=self.sampling_weights[rows],
            clusters=clusters,
        )


def compute_relative_costs(
    losses: Losses | None, is_accepted: Flags, *, quantity: Quantity, largest_cost: float
) -> Float:
    """Return the cost of each counted row as a fraction of the largest cost."""
    if (
        losses is None
        or len(losses.if_accepted) != len(is_accepted)
        or losses.max_loss != largest_cost
    ):
        raise MissingLabelsError(
            "A monitor of a cost requires the cost of each row. Pass"
            " losses=gate.losses(codes, answers), computed for the same rows and promise."
        )
    costs_of_counted_rows = losses.get_counted_losses(quantity, is_accepted)
    return np.asarray(costs_of_counted_rows / largest_cost)
