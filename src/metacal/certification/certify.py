"""Certification of a promise on calibration rows, subgroups or clusters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Protocol

import numpy as np

from metacal.certificates.certificate import Certificate, accept_up_to_threshold
from metacal.certificates.design import CertificationDesign, record_design
from metacal.certificates.notes import Note, note_too_few_clusters
from metacal.certificates.quantity import Limits
from metacal.certificates.subgroups import SubgroupCertificate, SubgroupCertificates
from metacal.certification.case_statements import (
    build_missing_cases_error,
    build_unsupported_case_columns_error,
    build_unused_cases_error,
)
from metacal.certification.one_threshold import OneThresholdProcedure
from metacal.certification.ranking import ThresholdOutcome
from metacal.certification.rows import CalibrationRows
from metacal.certification.rules.rule import REJECT_ALL_ROWS
from metacal.certification.statements import (
    build_certificate,
    build_certificate_for_threshold,
    build_infeasible_clusters_error,
    build_no_certified_subgroup_error,
)
from metacal.certification.unsuitable_rows import (
    build_missing_labels_error,
    build_missing_subgroups_error,
    build_unsupported_clusters_error,
)
from metacal.errors import InfeasibleTargetError

if TYPE_CHECKING:
    from metacal.certification.procedures import Procedure, PromisedLimit, SubgroupProcedure
    from metacal.certification.scopes import EachSubgroup
    from metacal.certification.subgroups import SubgroupTest


class CertifiablePromise(Protocol):
    """Interface of a promise that can be certified."""

    @property
    def delta(self) -> float | None:
        """Probability that the promise fails. None if it holds in expectation."""

    @property
    def limits(self) -> Limits:
        """Promised quantities, with the limit of each quantity."""

    @property
    def needs_labels(self) -> bool:
        """Whether only labelled rows can certify the promise."""

    @property
    def scope(self) -> EachSubgroup | None:
        """Scope of a promise about subgroups, or None for a promise about all rows."""

    def procedure(self) -> Procedure:
        """Return the procedure that certifies the rows."""


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
        raise build_missing_labels_error(promise)
    procedure = promise.procedure()
    check_cases_column(promise, rows)
    if is_about_cases(promise):
        return procedure.certify_promise(rows, promise.delta)
    if rows.clusters is not None:
        return _certify_clusters(promise, procedure, rows)
    subgroup_scope = promise.scope
    if subgroup_scope is None:
        return procedure.certify_promise(rows, promise.delta)
    if rows.subgroups is None:
        raise build_missing_subgroups_error(promise, subgroup_scope.by)
    assert promise.delta is not None
    return _certify_subgroups(as_subgroup_procedure(procedure), subgroup_scope, rows, promise.delta)


def check_cases_column(promise: CertifiablePromise, rows: CalibrationRows) -> None:
    """Raise an error if the case column is missing or not used by the promise."""
    has_cases = rows.cases is not None
    if not is_about_cases(promise):
        if has_cases:
            raise build_unused_cases_error(promise)
        return
    if not has_cases:
        raise build_missing_cases_error(promise)
    has_unsupported_column = rows.clusters is not None or rows.losses is not None
    if has_unsupported_column:
        raise build_unsupported_case_columns_error(promise)


def is_about_cases(promise: CertifiablePromise) -> bool:
    """Check whether a promise is about cases."""
    return any(quantity.counts_cases for quantity, _ in promise.limits)


def as_subgroup_procedure(procedure: Procedure) -> SubgroupProcedure:
    """Return the procedure as a subgroup procedure, or raise an error."""
    assert hasattr(procedure, "find_contradiction_in_subgroup")
    return procedure  # type: ignore[return-value]


def can_count_clusters(promise: CertifiablePromise) -> bool:
    """Check whether bets on whole clusters can certify a promise."""
    return get_clustered_limit(promise, promise.procedure()) is not None


def get_clustered_limit(promise: CertifiablePromise, procedure: Procedure) -> PromisedLimit | None:
    """Return the limit of a promise that clusters can certify, or None."""
    if not isinstance(procedure, OneThresholdProcedure) or promise.scope is not None:
        return None
    if promise.delta is None:
        return None
    return procedure.promised_limits[0]


def _certify_clusters(
    promise: CertifiablePromise, procedure: Procedure, rows: CalibrationRows
) -> Certificate:
    """Certify a promise about clustered rows by bets on whole clusters."""
    # The module of the bets is imported here, because most promises do not need it.
    from metacal.certification.clusters import ClusterBettingRule, split_pilot_clusters

    promised_limit = get_clustered_limit(promise, procedure)
    delta = promise.delta
    if promised_limit is None or delta is None:
        raise build_unsupported_clusters_error(promise)
    quantity, target = promised_limit
    betting_rule = ClusterBettingRule(quantity)
    pilot_rows, test_rows = split_pilot_clusters(rows)
    assert test_rows.clusters is not None
    n_test_clusters = test_rows.clusters.n_clusters

    def find_threshold(max_error_rate: float) -> float | None:
        candidate_plan = betting_rule.plan(
            pilot_rows, n_test_clusters, limit=max_error_rate, significance_level=delta
        )
        return betting_rule.certify(test_rows, candidate_plan, significance_level=delta).threshold

    def certifies_error_rate(max_error_rate: float) -> bool:
        return find_threshold(max_error_rate) is not None

    promised_error_rate = quantity.max_violation_rate(target)
    threshold = find_threshold(promised_error_rate)
    notes: tuple[Note, ...] = ()
    if threshold is None and betting_rule.fallback_threshold == REJECT_ALL_ROWS:
        highest_accuracy = betting_rule.find_highest_certified_accuracy(
            promised_error_rate, certifies_error_rate
        )
        raise build_infeasible_clusters_error(
            quantity,
            target,
            delta,
            n_clusters=n_test_clusters,
            n_rows=len(test_rows),
            best_limit=highest_accuracy,
            uses_cluster_means=test_rows.clusters.uses_cluster_means,
        )
    if threshold is None:
        threshold = betting_rule.fallback_threshold
        note = note_too_few_clusters(units=n_test_clusters, rows=len(test_rows)).issue_warning()
        notes = (note,)
    return build_certificate_for_threshold(
        test_rows,
        quantity=quantity,
        target=target,
        delta=delta,
        rule_name=betting_rule.name,
        threshold=threshold,
        notes=notes,
    )


def _certify_subgroups(
    procedure: SubgroupProcedure, scope: EachSubgroup, rows: CalibrationRows, delta: float
) -> Certificate:
    """Certify a promise for each subgroup, and build the joint certificate."""
    subgroups = scope.split(procedure, rows, delta)
    subgroup_tests = scope.certify_subgroups(procedure, subgroups, delta)
    n_tested = sum(test.significance_level is not None for test in subgroup_tests)
    significance_level_if_untested = scope.compute_level_of_next_subgroup(n_tested, delta)
    certificates_per_subgroup = [
        procedure.build_subgroup_certificates(
            subgroup_names=test.subgroup.names,
            rows=test.subgroup.rows,
            result=test.result,
            significance_level=test.significance_level,
            significance_level_if_untested=significance_level_if_untested,
        )
        for test in subgroup_tests
    ]
    all_certificates = SubgroupCertificates(
        by=scope.by,
        delta_sharing=scope.error_rate,
        items=tuple(chain.from_iterable(certificates_per_subgroup)),
    )
    n_always_rejected = len(all_certificates.always_rejected)
    if n_always_rejected == len(all_certificates.items):
        raise _build_no_subgroup_error(procedure, all_certificates, delta, n_rows=len(rows))

    main_limit = procedure.get_main_limit(rows)
    # The overall threshold rejects every row that belongs to no subgroup.
    certificate = build_certificate(
        quantity=main_limit.quantity,
        target=main_limit.target,
        delta=delta,
        rule_name=procedure.rule_name,
        threshold=REJECT_ALL_ROWS,
        outcome=_count_accepted_rows(procedure, rows, subgroup_tests, certificates_per_subgroup),
    )
    if procedure.score_name is not None:
        certificate = replace(certificate, score=procedure.score_name)
    certificate = record_design(certificate, _combine_designs(subgroup_tests))
    return replace(certificate, subgroups=all_certificates)


def _combine_designs(subgroup_tests: Sequence[SubgroupTest]) -> CertificationDesign:
    """Combine the certification designs of all subgroups."""
    subgroup_results = [test.result for test in subgroup_tests if test.result is not None]
    return CertificationDesign(
        tests_score_values=any(result.design.tests_score_values for result in subgroup_results),
        n_planning_rows=sum(result.design.n_planning_rows for result in subgroup_results),
    )


def _count_accepted_rows(
    procedure: SubgroupProcedure,
    rows: CalibrationRows,
    subgroup_tests: Sequence[SubgroupTest],
    certificates_per_subgroup: Sequence[tuple[SubgroupCertificate, ...]],
) -> ThresholdOutcome:
    """Count the rows that are accepted with the thresholds of their subgroups.

    Parameters
    ----------
    procedure : SubgroupProcedure
        Procedure that determines which threshold of a subgroup applies to a row.

    rows : CalibrationRows
        All rows, with subgroup codes.

    subgroup_tests : sequence of SubgroupTest
        Tests of the subgroups. A pooled subgroup has several codes.

    certificates_per_subgroup : sequence of tuple of SubgroupCertificate
        Certificates of each test, one for each threshold of the subgroup.

    Returns
    -------
    ThresholdOutcome
    """
    assert rows.subgroups is not None
    certificates_by_subgroup_code: dict[int, tuple[SubgroupCertificate, ...]] = {}
    for subgroup_test, subgroup_certificates in zip(subgroup_tests, certificates_per_subgroup):
        for subgroup_code in subgroup_test.subgroup.codes:
            certificates_by_subgroup_code[subgroup_code] = subgroup_certificates

    thresholds_by_subgroup = []
    decision_log_odds_by_subgroup = []
    for subgroup_code in range(len(rows.subgroups.names)):
        subgroup_certificates = certificates_by_subgroup_code[subgroup_code]
        subgroup_thresholds = [certificate.threshold for certificate in subgroup_certificates]
        thresholds_by_subgroup.append(subgroup_thresholds)
        # The thresholds of a subgroup share the log-odds at which the predicted class changes.
        decision_log_odds_by_subgroup.append(subgroup_certificates[0].decision_log_odds)

    subgroup_by_row = rows.subgroups.codes
    decision_columns = procedure.compute_decision_columns(
        rows, decision_log_odds=np.array(decision_log_odds_by_subgroup)[subgroup_by_row]
    )
    # Each row of the table contains the thresholds of one subgroup.
    threshold_table = np.array(thresholds_by_subgroup)
    threshold_by_row = threshold_table[subgroup_by_row, decision_columns.threshold_indices]
    is_accepted = accept_up_to_threshold(decision_columns.uncertainty, threshold_by_row)
    return ThresholdOutcome.from_masks(is_accepted, decision_columns.correct)


def _build_no_subgroup_error(
    procedure: SubgroupProcedure,
    all_certificates: SubgroupCertificates,
    delta: float,
    n_rows: int,
) -> InfeasibleTargetError:
    """Build the error for rows that do not certify the promise for any subgroup."""
    rows_needed = [
        certificate.rows_needed
        for certificate in all_certificates.items
        if certificate.rows_needed is not None
    ]
    best_targets = [
        certificate.best_supported_target
        for certificate in all_certificates.items
        if certificate.best_supported_target is not None
    ]
    first_promised_limit = procedure.promised_limits[0]
    return build_no_certified_subgroup_error(
        quantity=first_promised_limit.quantity,
        target=float(first_promised_limit.target),
        delta=delta,
        subgroup_kind=all_certificates.by,
        n_rows=n_rows,
        n_subgroups=len(all_certificates.sides_by_group),
        best_target=max(best_targets, default=None),
        rows_needed=min(rows_needed, default=None),
        rows_needed_is_minimum=all_certificates.is_two_sided,
    )
