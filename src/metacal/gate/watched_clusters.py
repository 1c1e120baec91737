"""Clusters and cases of watched rows.

A *cluster* (`units=`) is a set of dependent rows that is monitored as a whole. If the promise is about
cases, a cluster is a case and its rows are its items.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.certificates.certificate import Certificate
from metacal.certificates.design import CertificationDesign
from metacal.certification.case_items import Cases
from metacal.certification.case_outcomes import compute_case_outcomes
from metacal.certification.units import encode_units
from metacal.errors import CasesError, ClustersError
from metacal.formulas import Codes, Float
from metacal.gate.gate import Gate
from metacal.gate.labelled_rows import LabelledRows
from metacal.gate.traffic import Id, PendingRow, make_stored_id
from metacal.promises.case_errors import CasePromise
from metacal.promises.max_risk import get_largest_cost
from metacal.promises.sequential.alarms import Alarms
from metacal.promises.sequential.monitored_rows import ClusterMembership
from metacal.promises.sequential.profile import generate_uniform_numbers

# Random numbers for clusters start at this position, which the rows of a stream never reach.
# The numbers are therefore independent of those for the scores of rows.
_FIRST_POSITION_OF_CLUSTER_DRAWS = 1 << 40


def get_certificate_design(gate: Gate) -> CertificationDesign:
    """Return the design of a gate's certificate, or the defaults if it has none."""
    if gate.certificate is None:
        return CertificationDesign()
    return gate.certificate.design


def get_largest_loss(gate: Gate) -> float | None:
    """Return the largest loss of a row or case, or None if there are no losses."""
    if isinstance(gate.promise, CasePromise):
        return gate.promise.largest_number_of_errors
    return get_largest_cost(gate.promise)


def add_cluster_decisions(
    alarms: Alarms,
    rows: Sequence[PendingRow],
    row_subgroups: NDArray[Any] | None,
    clusters: ClusterMembership,
) -> None:
    """Update the alarms that need no labels with the rows of complete clusters."""
    alarms.add_decisions(
        accepted=np.array([row.is_accepted for row in rows]),
        scores=np.array([row.uncertainty for row in rows], dtype=np.float64),
        row_subgroups=row_subgroups,
        clusters=clusters,
    )


def add_case_outcomes(
    alarms: Alarms, gate: Gate, rows: Sequence[PendingRow], labelled_rows: LabelledRows
) -> None:
    """Update the alarms with the outcomes of complete cases.

    Parameters
    ----------
    alarms : Alarms
        Alarms of the gate.
    gate : Gate
        Gate whose promise is about cases.
    rows : sequence of PendingRow
        All rows of complete cases, one case after another. All of them have labels.
    labelled_rows : LabelledRows
        Decisions on the rows, and whether they are correct.
    """
    assert gate.certificate is not None
    assert isinstance(gate.promise, CasePromise)
    n_items_by_case = _count_rows_by_cluster(rows)
    n_cases = len(n_items_by_case)
    case_of_item = np.repeat(np.arange(n_cases), n_items_by_case)
    # No item is left out here, because an item without a score is a row that the gate rejects.
    has_correct_item_without_score = np.zeros(n_cases, dtype=bool)
    case_outcomes = compute_case_outcomes(
        gate.certificate.quantity,
        Cases(case_of_item, has_correct_item_without_score=has_correct_item_without_score),
        accept=labelled_rows.is_accepted,
        correct=labelled_rows.is_correct,
        max_counted_errors=gate.promise.largest_number_of_errors,
    )
    alarms.add_labelled_rows(
        accepted=case_outcomes.accept, correct=case_outcomes.correct, losses=case_outcomes.losses
    )


def draw_one_row_per_cluster(
    rows: Sequence[PendingRow], design: CertificationDesign
) -> ClusterMembership:
    """Number the clusters of some rows and draw one row of each cluster at random.

    Parameters
    ----------
    rows : sequence of PendingRow
        All rows of complete clusters, one cluster after another.
    design : CertificationDesign
        Design of the certificate, which determines the weight of a cluster.

    Returns
    -------
    ClusterMembership

    Examples
    --------
    >>> rows = [PendingRow(True, 0, None, None, None, k, cluster_id=name) for k, name in enumerate("aab")]
    >>> membership = draw_one_row_per_cluster(rows, CertificationDesign(cluster_counting="unit"))
    >>> membership.cluster_of_row.tolist(), membership.full_weight_sums.tolist()
    ([0, 0, 1], [2.0, 1.0])
    """
    cluster_sizes = _count_rows_by_cluster(rows)
    n_clusters = len(cluster_sizes)
    first_rows_of_clusters = np.cumsum(cluster_sizes) - cluster_sizes
    uniform_numbers = [
        _draw_uniform_number_for_cluster(rows[first_row]) for first_row in first_rows_of_clusters
    ]
    drawn_offsets = (np.array(uniform_numbers) * cluster_sizes).astype(np.intp)
    is_cluster_representative = np.zeros(len(rows), dtype=bool)
    is_cluster_representative[first_rows_of_clusters + drawn_offsets] = True
    return ClusterMembership(
        cluster_of_row=np.repeat(np.arange(n_clusters), cluster_sizes),
        is_cluster_representative=is_cluster_representative,
        n_clusters=n_clusters,
        full_weight_sums=_compute_full_weight_sums(cluster_sizes, design),
    )


def _count_rows_by_cluster(rows: Sequence[PendingRow]) -> Codes:
    """Count the rows of each cluster. The rows of a cluster are consecutive."""
    rows_by_cluster = groupby(rows, key=lambda row: row.cluster_id)
    cluster_sizes = [len(list(cluster_rows)) for _, cluster_rows in rows_by_cluster]
    return np.array(cluster_sizes, dtype=np.intp)


def _draw_uniform_number_for_cluster(first_row: PendingRow) -> float:
    """Draw a number in [0, 1) by the position of a cluster in the stream."""
    draw_position = _FIRST_POSITION_OF_CLUSTER_DRAWS + first_row.position
    uniform_numbers = generate_uniform_numbers(draw_position, n_positions=1)
    return float(uniform_numbers[0])


def _compute_full_weight_sums(cluster_sizes: Codes, design: CertificationDesign) -> Float | None:
    """Return the sum of row weights at which each cluster has the weight 1.

    If the certificate counts one row of each cluster, a cluster's weights are divided by its number
    of rows, so that all clusters have the same weight. If it counts every row, the divisor is the
    same for all clusters: the size of the largest cluster, which keeps each weight at most 1. The
    result is None if the certificate counts the mean of each cluster, which has the weight 1.
    """
    size_of_largest_cluster = design.largest_cluster_size
    counts_cluster_means = design.cluster_counting == "mean"
    # A file may state the size 0, which cannot be a divisor. Weights are then not divided.
    largest_size_is_zero = size_of_largest_cluster == 0
    if counts_cluster_means or largest_size_is_zero:
        return None
    if size_of_largest_cluster is None:
        # Only a certificate that counts one row of each cluster has no largest size.
        return cluster_sizes.astype(np.float64)
    return np.full(len(cluster_sizes), size_of_largest_cluster, dtype=np.float64)


def check_presence_of_clusters(certificate: Certificate | None, *, has_clusters: bool) -> None:
    """Raise InputError if clusters are missing, or given for a gate that has none.

    Parameters
    ----------
    certificate : Certificate or None
        Certificate of the gate, which records whether the gate was certified by clusters.
    has_clusters : bool
        True if the cluster of each new row is known.
    """
    was_certified_on_cases = certificate is not None and certificate.cases is not None
    if was_certified_on_cases and not has_clusters:
        raise CasesError(
            "The promise of this gate is about cases, but the rows have no cases. Pass the"
            " case of each row: cases=..., or --case-key NAME."
        )
    if was_certified_on_cases:
        return
    was_certified_on_clusters = (
        certificate is not None and certificate.design.cluster_counting is not None
    )
    if was_certified_on_clusters and not has_clusters:
        raise ClustersError(
            "This gate was certified on clusters, so each row requires the name of its cluster."
            " Pass units=... (--unit-key), and send the rows of a cluster consecutively or"
            " within the horizon."
        )
    if has_clusters and not was_certified_on_clusters:
        raise ClustersError(
            "This gate was certified on independent rows, so it does not support units. Leave"
            " out units, or fit the gate with units=... (--unit-key)."
        )


def read_cluster_ids(
    certificate: Certificate | None, clusters: Any, n_rows: int
) -> list[Id] | None:
    """Return the cluster id of each row, in the form in which ids are stored.

    Parameters
    ----------
    certificate : Certificate or None
        Certificate of the gate.
    clusters : array-like or None
        Cluster of each row.
    n_rows : int
        Number of rows.

    Returns
    -------
    list of str or int, or None
        None if no clusters are given.

    Raises
    ------
    InputError
        If a cluster is missing, or the gate was certified on independent rows.
    """
    has_clusters = clusters is not None
    if n_rows > 0 or has_clusters:
        check_presence_of_clusters(certificate, has_clusters=has_clusters)
    if not has_clusters:
        return None
    # The codes are ignored. `encode_units` is called because it raises if a cluster is missing.
    _ignored_codes = encode_units(clusters, n_rows)
    is_array = hasattr(clusters, "tolist")
    cluster_names = clusters.tolist() if is_array else clusters
    stored_ids: list[Id] = []
    for cluster_name in cluster_names:
        cluster_id = cluster_name if isinstance(cluster_name, str | int) else str(cluster_name)
        stored_ids.append(make_stored_id(cluster_id))
    return stored_ids
