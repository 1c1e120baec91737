"""certify: a promise and calibration rows give a certificate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from metacal.certificates.certificate import Certificate, accepts
from metacal.certificates.notes import Note, too_few_units
from metacal.certificates.quantity import Limits
from metacal.certificates.subgroups import SubgroupCertificate, SubgroupCertificates
from metacal.certification.clusters import ClusterBettingRule, split_pilot_clusters
from metacal.certification.one_threshold import OneThresholdProcedure
from metacal.certification.procedures import Procedure, PromisedLimit, SubgroupProcedure
from metacal.certification.ranking import ThresholdOutcome
from metacal.certification.rows import CalibrationRows
from metacal.certification.rules.rule import REJECT_ALL_ROWS
from metacal.certification.scopes import EachSubgroup
from metacal.certification.statements import (
    build_certificate,
    clusters_error,
    clusters_refused_error,
    labels_needed_error,
    no_subgroup_error,
    subgroups_needed_error,
)
from metacal.certification.subgroups import SubgroupTest
from metacal.errors import InfeasibleTargetError
from metacal.kernels.grid import RELATIVE


class CertifiablePromise(Protocol):
    """What certification reads of a promise."""

    @property
    def delta(self) -> float | None:
        """Probability that the promise fails. None if it holds in expectation."""

    @property
    def limits(self) -> Limits:
        """Promised quantities with their limits."""

    @property
    def needs_labels(self) -> bool:
        """Whether only labelled rows can certify the promise."""

    @property
    def scope(self) -> EachSubgroup | None:
        """Scope of a promise for each subgroup. None for all rows together."""

    def procedure(self) -> Procedure:
        """Return how rows are certified."""


def certify(promise: CertifiablePromise, rows: CalibrationRows) -> Certificate:
    """Certify a promise on calibration rows.

    Parameters
    ----------
    promise : CertifiablePromise
        Promise to certify.

    rows : CalibrationRows
        Rows that are tested, with their subgroups, clusters and pilot rows.

    Returns
    -------
    Certificate

    Raises
    ------
    InfeasibleTargetError
        If the rows do not support the promise.

    InputError
        If the promise needs a column that the rows do not have, or cannot use one that they have.
    """
    if rows.correct is None and promise.needs_labels:
        raise labels_needed_error(promise)
    procedure = promise.procedure()
    if rows.clusters is not None:
        return _certify_clusters(promise, procedure, rows)
    if promise.scope is None:
        return procedure.certify_all(rows, promise.delta)
    if rows.subgroups is None:
        raise subgroups_needed_error(promise, promise.scope.by)
    assert promise.delta is not None
    return _certify_subgroups(as_subgroup_procedure(procedure), promise.scope, rows, promise.delta)


def as_subgroup_procedure(procedure: Procedure) -> SubgroupProcedure:
    """Return a procedure that can certify subgroups. `PerClass` and `PerGroup` accept no other."""
    assert hasattr(procedure, "find_contradiction_in_subgroup")
    return procedure  # type: ignore[return-value]


def can_count_clusters(promise: CertifiablePromise) -> bool:
    """Check whether a promise can be certified from every row of clustered rows."""
    return get_clustered_limit(promise, promise.procedure()) is not None


def get_clustered_limit(promise: CertifiablePromise, procedure: Procedure) -> PromisedLimit | None:
    """Return the limit of a promise that can count every row of a cluster, else None."""
    if not isinstance(procedure, OneThresholdProcedure) or promise.scope is not None:
        return None
    if promise.delta is None:
        return None
    return procedure.promised_limits[0]


def _certify_clusters(
    promise: CertifiablePromise, procedure: Procedure, rows: CalibrationRows
) -> Certificate:
    """Certify a promise about every row of clustered rows by bets on whole clusters."""
    promised_limit = get_clustered_limit(promise, procedure)
    delta = promise.delta
    if promised_limit is None or delta is None:
        raise clusters_refused_error(promise)
    quantity, target = promised_limit
    rule = ClusterBettingRule(quantity)
    pilot_rows, test_rows = split_pilot_clusters(rows)
    assert test_rows.clusters is not None
    n_clusters = test_rows.clusters.n_clusters

    def find_threshold(limit: float) -> float | None:
        plan = rule.plan(pilot_rows, n_clusters, limit, delta)
        return rule.certify(test_rows, plan, delta).threshold

    limit = quantity.max_violation_rate(target)
    threshold = find_threshold(limit)
    notes: tuple[Note, ...] = ()
    if threshold is None and rule.fallback_threshold == REJECT_ALL_ROWS:
        best_limit = rule.find_highest_accuracy(
            limit, lambda error_rate: find_threshold(error_rate) is not None
        )
        raise clusters_error(
            quantity,
            target,
            delta,
            n_clusters,
            len(test_rows),
            best_limit,
            count_means=test_rows.clusters.count_means,
        )
    if threshold is None:
        threshold = rule.fallback_threshold
        notes = (too_few_units(units=n_clusters, rows=len(test_rows)).issue_warning(),)

    threshold = RELATIVE.settled(threshold)
    certificate = build_certificate(
        quantity,
        target,
        delta,
        rule.name,
        threshold,
        test_rows.ranking.summarize_threshold(threshold),
        notes,
    )
    return replace(certificate, labelled=test_rows.correct is not None)


def _certify_subgroups(
    procedure: SubgroupProcedure, scope: EachSubgroup, rows: CalibrationRows, delta: float
) -> Certificate:
    """Certify a promise for each subgroup."""
    subgroups = scope.split(procedure, rows, delta)
    subgroup_tests = scope.certify_subgroups(procedure, subgroups, delta)
    n_tested = sum(test.significance_level is not None for test in subgroup_tests)
    spare_level = scope.compute_level_of_next_subgroup(n_tested, delta)
    families = [
        procedure.build_subgroup_certificates(
            test.subgroup.names,
            test.subgroup.rows,
            test.result,
            test.significance_level,
            spare_level,
        )
        for test in subgroup_tests
    ]
    all_parts = tuple(part for family in families for part in family)
    parts = SubgroupCertificates(scope.by, scope.error_rate, all_parts)
    if len(parts.always_rejected) == len(parts.items):
        raise _no_subgroup_certified(procedure, parts, delta, len(rows))

    outcome = _count_subgroups(procedure, rows, subgroup_tests, families)
    certificate = build_certificate(
        *procedure.get_main_limit(rows), delta, procedure.rule_name, REJECT_ALL_ROWS, outcome
    )
    if procedure.score_name is not None:
        certificate = replace(certificate, score=procedure.score_name)
    return replace(certificate, parts=parts)


def _count_subgroups(
    procedure: SubgroupProcedure,
    rows: CalibrationRows,
    subgroup_tests: Sequence[SubgroupTest],
    families: Sequence[tuple[SubgroupCertificate, ...]],
) -> ThresholdOutcome:
    """Count all rows with the thresholds of their subgroups."""
    assert rows.subgroups is not None
    family_of_code = {
        code: family
        for test, family in zip(subgroup_tests, families)
        for code in test.subgroup.codes
    }
    families_in_order = [family_of_code[code] for code in range(len(rows.subgroups.names))]
    thresholds = np.array([[part.threshold for part in family] for family in families_in_order])
    decision_points = np.array([family[0].at for family in families_in_order])

    row_codes = rows.subgroups.codes
    decided = procedure.compute_decision_columns(rows, decision_points[row_codes])
    is_accepted = accepts(decided.uncertainty, thresholds[row_codes, decided.threshold_indices])
    return ThresholdOutcome(
        n_rows=len(rows),
        n_correct=int(decided.correct.sum()),
        n_accepted=int(is_accepted.sum()),
        n_correct_accepted=int((is_accepted & decided.correct).sum()),
        highest_accepted=None,
        lowest_rejected=None,
    )


def _no_subgroup_certified(
    procedure: SubgroupProcedure, parts: SubgroupCertificates, delta: float, n_rows: int
) -> InfeasibleTargetError:
    """Build the error for rows that certify the promise for no subgroup."""
    rows_needed = [part.rows_needed for part in parts.items if part.rows_needed is not None]
    best_limits = [part.best for part in parts.items if part.best is not None]
    quantity, target = procedure.promised_limits[0]
    return no_subgroup_error(
        quantity,
        float(target),
        delta,
        parts.by,
        n_rows,
        len(parts.families),
        max(best_limits, default=None),
        min(rows_needed, default=None),
        has_sides=parts.is_two_sided,
    )
