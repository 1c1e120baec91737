"""Checks that the counts in a certificate can certify its promise.

A certificate that is read from a file has counts but no rows. These are enough to repeat the last
test: an order statistic is certified by the number of reference rows that it keeps, and a binomial
test by the number of errors among the accepted rows, whatever sequence of tests led there.
"""

from __future__ import annotations

from metacal.certificates.certificate import Certificate
from metacal.certificates.subgroups import SubgroupCertificate, SubgroupCertificates
from metacal.certification.certify import (
    CertifiablePromise,
    as_subgroup_procedure,
    get_clustered_limit,
)
from metacal.certification.clusters import ClusterBettingRule
from metacal.certification.procedures import SubgroupProcedure
from metacal.certification.rules.rule import REJECT_ALL_ROWS
from metacal.certification.scopes import EachSubgroup
from metacal.certification.statements import format_promise_mismatch
from metacal.certification.two_sides import TwoClassProcedure
from metacal.statistics.bounds import ONE_PLUS_ROUNDING_ERROR


def find_test_contradiction(promise: CertifiablePromise, certificate: Certificate) -> str | None:
    """Describe why the counts of a certificate do not pass its test.

    Parameters
    ----------
    promise : CertifiablePromise
        Promise with the delta that the certificate had.

    certificate : Certificate
        Certificate to check.

    Returns
    -------
    str or None
        Sentence without a full stop. None if no contradiction was found.
    """
    if promise.scope is None:
        return promise.procedure().find_contradiction(certificate, promise.delta, promise)
    return _find_contradiction_in_subgroups(promise, promise.scope, certificate)


def find_cluster_test_contradiction(
    promise: CertifiablePromise, certificate: Certificate
) -> str | None:
    """Describe why the counts of clustered rows cannot certify a promise."""
    procedure = promise.procedure()
    promised_limit = get_clustered_limit(promise, procedure)
    if promised_limit is None or promise.delta is None:
        return "it is never certified from whole units"
    quantity, target = promised_limit
    if certificate.accepts_everything and quantity.limits_only_rejections:
        return None

    design = certificate.design
    max_cluster_size = design.largest_cluster_size
    betting_rule = ClusterBettingRule(quantity)
    could_certify = betting_rule.could_certify(
        certificate.tested_counts,
        limit=quantity.max_violation_rate(target),
        significance_level=promise.delta,
        max_cluster_size=max_cluster_size or 1,
        uses_cluster_means=design.counts_cluster_means,
    )
    if could_certify:
        return None
    n_reference_rows = betting_rule.count_reference_rows(certificate.tested_counts)
    n_violations = betting_rule.count_violations(certificate.tested_counts)
    return (
        f"{n_violations:,} bad of {n_reference_rows:,} rows, in units of up to {max_cluster_size:,}, do not"
        f" certify the limit {target:g}"
    )


def _find_contradiction_in_subgroups(
    promise: CertifiablePromise, scope: EachSubgroup, certificate: Certificate
) -> str | None:
    """Describe why the certificates of the subgroups cannot be genuine."""
    assert promise.delta is not None
    all_certificates = certificate.subgroups
    if (
        all_certificates is None
        or all_certificates.by != scope.by
        or all_certificates.delta_sharing != scope.error_rate
    ):
        return format_promise_mismatch(promise)
    if all_certificates.pooled_names and not scope.pool_small:
        return f"{all_certificates.plural} are pooled, which was not asked for"

    subgroup_procedure = as_subgroup_procedure(promise.procedure())
    significance_level_if_untested = promise.delta
    if isinstance(subgroup_procedure, TwoClassProcedure):
        n_tested = len(_select_tested_subgroups(all_certificates))
        significance_level_if_untested = scope.compute_level_of_next_subgroup(
            n_tested, promise.delta
        )
    for subgroup_certificates in all_certificates.sides_by_group:
        contradiction = _find_contradiction_in_subgroup(
            subgroup_procedure, subgroup_certificates, significance_level_if_untested, promise
        )
        if contradiction is not None:
            subgroup_name = subgroup_certificates[0].name_without_side
            return f"{scope.by} {subgroup_name}: {contradiction}"

    highest_possible_level = _compute_highest_possible_level(scope, all_certificates, promise.delta)
    for subgroup_certificates in all_certificates.sides_by_group:
        subgroup_level = _get_significance_level(subgroup_certificates)
        if subgroup_level is None:
            continue
        is_possible_level = 0.0 < subgroup_level <= ONE_PLUS_ROUNDING_ERROR * highest_possible_level
        if not is_possible_level:
            return f"a {scope.by} was tested at more than its share of delta {promise.delta:g}"
    return None


def _find_contradiction_in_subgroup(
    procedure: SubgroupProcedure,
    subgroup_certificates: tuple[SubgroupCertificate, ...],
    significance_level_if_untested: float,
    promise: CertifiablePromise,
) -> str | None:
    """Describe why the certificates of one subgroup cannot be genuine.

    Parameters
    ----------
    procedure : SubgroupProcedure
        Procedure that certifies a subgroup.

    subgroup_certificates : tuple of SubgroupCertificate
        Certificates of the subgroup, one for each of its thresholds.

    significance_level_if_untested : float
        Significance level for which an untested subgroup states how many rows it needs.

    promise : CertifiablePromise
        Promise for each subgroup.

    Returns
    -------
    str or None
        None if the certificates can be genuine.
    """
    significance_level = _get_significance_level(subgroup_certificates)
    accepts_rows = _accepts_any_row(subgroup_certificates)
    if significance_level is None:
        must_reject_untested_rows = procedure.fallback_threshold == REJECT_ALL_ROWS
        if accepts_rows and must_reject_untested_rows:
            return "it accepts rows, but was never tested"
        significance_level = significance_level_if_untested
    # A two-class procedure states the promise about a class even if it rejects all of its rows.
    is_two_class_procedure = isinstance(procedure, TwoClassProcedure)
    if not accepts_rows and not is_two_class_procedure:
        return None
    return procedure.find_contradiction_in_subgroup(
        subgroup_certificates,
        significance_level=significance_level,
        promise=_get_promise_for_one_subgroup(promise),
    )


def _compute_highest_possible_level(
    scope: EachSubgroup, all_certificates: SubgroupCertificates, delta: float
) -> float:
    """Compute the highest possible significance level of the test of a subgroup."""
    tested_subgroups = _select_tested_subgroups(all_certificates)
    if scope.controls_false_coverage_rate:
        n_tested = len(tested_subgroups)
        n_accepting_subgroups = sum(map(_accepts_any_row, tested_subgroups))
        return delta * n_accepting_subgroups / max(1, n_tested)
    if scope.controls_family_wise_error_rate:
        # Holm's correction divides delta among the subgroups with at least one failed test.
        # In a subgroup that accepts every row, all tests have passed.
        max_failed_subgroups = sum(
            not _accepts_every_row(subgroup_certificates)
            for subgroup_certificates in tested_subgroups
        )
        return delta / max(1, max_failed_subgroups)
    return delta


def _select_tested_subgroups(
    all_certificates: SubgroupCertificates,
) -> list[tuple[SubgroupCertificate, ...]]:
    """Return the certificates of the tested subgroups."""
    return [
        subgroup_certificates
        for subgroup_certificates in all_certificates.sides_by_group
        if _get_significance_level(subgroup_certificates) is not None
    ]


def _get_significance_level(
    subgroup_certificates: tuple[SubgroupCertificate, ...],
) -> float | None:
    """Return the significance level of a subgroup, or None if it was not tested."""
    level_per_threshold = [
        certificate.delta for certificate in subgroup_certificates if certificate.delta is not None
    ]
    was_tested = len(level_per_threshold) > 0
    if not was_tested:
        return None
    return sum(level_per_threshold)


def _accepts_any_row(subgroup_certificates: tuple[SubgroupCertificate, ...]) -> bool:
    """Check whether a subgroup accepts any row."""
    return any(certificate.status != "always rejected" for certificate in subgroup_certificates)


def _accepts_every_row(subgroup_certificates: tuple[SubgroupCertificate, ...]) -> bool:
    """Check whether a subgroup accepts every row."""
    return all(certificate.accepts_everything for certificate in subgroup_certificates)


def _get_promise_for_one_subgroup(promise: CertifiablePromise) -> object:
    """Return the promise about a single subgroup."""
    return getattr(promise, "promise", promise)
