"""Audit: check that the counts in a certificate can certify its promise.

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
from metacal.certification.statements import other_promise_sentence
from metacal.certification.two_sides import TwoClassProcedure
from metacal.statistics.bounds import ROUNDING_SLACK


def find_contradiction(promise: CertifiablePromise, certificate: Certificate) -> str | None:
    """Return what in a certificate cannot be true under a promise, or None.

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


def find_contradiction_of_clusters(
    promise: CertifiablePromise, certificate: Certificate
) -> str | None:
    """Return what in a certificate from whole clusters cannot be true, or None."""
    procedure = promise.procedure()
    promised_limit = get_clustered_limit(promise, procedure)
    if promised_limit is None or promise.delta is None:
        return "it is never certified from whole units"
    quantity, target = promised_limit
    if certificate.accepts_everything and quantity.accepting_is_safe:
        return None

    circumstances = certificate.circumstances
    max_cluster_size = circumstances.largest_unit
    rule = ClusterBettingRule(quantity)
    could_certify = rule.could_certify(
        certificate.tested_counts,
        quantity.max_violation_rate(target),
        promise.delta,
        max_cluster_size=max_cluster_size or 1,
        count_means=circumstances.units == "mean",
    )
    if could_certify:
        return None
    n_counted = rule.count_counted_rows(certificate.tested_counts)
    n_bad = rule.count_bad_rows(certificate.tested_counts)
    return (
        f"{n_bad:,} bad of {n_counted:,} rows, in units of up to {max_cluster_size:,}, do not"
        f" certify the limit {target:g}"
    )


def _find_contradiction_in_subgroups(
    promise: CertifiablePromise, scope: EachSubgroup, certificate: Certificate
) -> str | None:
    """Check the parts of a certificate for each class or group."""
    assert promise.delta is not None
    parts = certificate.parts
    if parts is None or parts.by != scope.by or parts.shares != scope.error_rate:
        return other_promise_sentence(promise)
    if parts.pooled_names and not scope.pool_small:
        return f"{parts.plural} are pooled, which was not asked for"

    procedure = as_subgroup_procedure(promise.procedure())
    n_tested = sum(_level_of(family) is not None for family in parts.families)
    spare_level = promise.delta
    if isinstance(procedure, TwoClassProcedure):
        spare_level = scope.compute_level_of_next_subgroup(n_tested, promise.delta)
    for family in parts.families:
        contradiction = _find_contradiction_in_family(procedure, family, spare_level, promise)
        if contradiction is not None:
            return f"{scope.by} {family[0].name_without_side}: {contradiction}"

    highest_level = _highest_possible_level(scope, parts, promise.delta)
    for family in parts.families:
        level = _level_of(family)
        if level is not None and not 0.0 < level <= ROUNDING_SLACK * highest_level:
            return f"a {scope.by} was tested at more than its share of delta {promise.delta:g}"
    return None


def _find_contradiction_in_family(
    procedure: SubgroupProcedure,
    family: tuple[SubgroupCertificate, ...],
    spare_level: float,
    promise: CertifiablePromise,
) -> str | None:
    """Check the parts of one class or group."""
    level = _level_of(family)
    accepts_rows = _accepts_rows(family)
    if level is None and accepts_rows and procedure.fallback_threshold == REJECT_ALL_ROWS:
        return "it accepts rows, but was never tested"
    if accepts_rows or isinstance(procedure, TwoClassProcedure):
        expected_level = spare_level if level is None else level
        return procedure.find_contradiction_in_subgroup(
            family, expected_level, _inner_promise(promise)
        )
    return None


def _highest_possible_level(
    scope: EachSubgroup, parts: SubgroupCertificates, delta: float
) -> float:
    """Compute the highest significance level at which a subgroup can have been tested."""
    tested = [family for family in parts.families if _level_of(family) is not None]
    if scope.error_rate == "fcr":
        n_accepting = sum(_accepts_rows(family) for family in tested)
        return delta * n_accepting / max(1, len(tested))
    if scope.error_rate == "each":
        return delta
    n_unfinished = sum(not all(part.accepts_everything for part in family) for family in tested)
    return delta / max(1, n_unfinished)


def _level_of(family: tuple[SubgroupCertificate, ...]) -> float | None:
    """Return the significance level of a subgroup, or None if it was not tested."""
    levels = [part.delta for part in family if part.delta is not None]
    if not levels:
        return None
    return sum(levels)


def _accepts_rows(family: tuple[SubgroupCertificate, ...]) -> bool:
    """Check whether a subgroup accepts any row."""
    return any(part.status != "always rejected" for part in family)


def _inner_promise(promise: CertifiablePromise) -> object:
    """Return the promise that a promise for each subgroup is made of."""
    return getattr(promise, "promise", promise)
