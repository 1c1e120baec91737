"""Printed lines about the calibration cases and item types of a certificate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metacal.certificates.subgroup_words import (
    Line,
    format_accepted_range,
    get_coverage_or_zero,
)

if TYPE_CHECKING:
    from metacal.certificates.case_counts import CaseCounts
    from metacal.certificates.certificate import Certificate
    from metacal.certificates.subgroups import SubgroupCertificate

# Largest number of item types that are listed.
_MAX_LISTED_TYPES = 8


def describe_calibration_cases(certificate: Certificate, case_counts: CaseCounts) -> str:
    """Describe the numbers of calibration cases and of their items."""
    cases_text = (
        f"{case_counts.n_tested:,} calibration cases with {certificate.n_rows:,} scored items,"
        f" {certificate.n_correct:,} of them correct"
    )
    if case_counts.n_pilot:
        cases_text += f"; {case_counts.n_pilot:,} more cases only fitted the scale of the items"
    return cases_text


def describe_case_outcome(certificate: Certificate, case_counts: CaseCounts) -> str:
    """Describe how many items are accepted, and how many cases break the promise."""
    item_counts = certificate.traffic
    quantity = certificate.quantity
    # `violations_suffix` is, for example, "with an incorrect accepted item".
    outcome_text = (
        f"{item_counts.n_accepted:,} of {item_counts.n_rows:,} items accepted,"
        f" {case_counts.n_broken:,} of {case_counts.n_counted:,} cases {quantity.violations_suffix}"
    )
    if certificate.mean_cost is not None:
        outcome_text += f", {quantity.name} {certificate.mean_cost:.6g}"
    return outcome_text


def list_type_lines(certificate: Certificate) -> list[Line]:
    """Return a printed line for each of the item types with the lowest coverage."""
    if certificate.subgroups is None:
        return []
    types_by_coverage = sorted(certificate.subgroups.items, key=get_coverage_or_zero)
    type_lines = [
        (item_type.name, _describe_accepted_items(item_type, certificate.score))
        for item_type in types_by_coverage[:_MAX_LISTED_TYPES]
    ]
    n_omitted = len(types_by_coverage) - _MAX_LISTED_TYPES
    if n_omitted > 0:
        type_lines.append(("types", f"and {n_omitted:,} more, of higher coverage"))
    return type_lines


def _describe_accepted_items(item_type: SubgroupCertificate, score_name: str) -> str:
    """Describe which items of a type are accepted, and how many."""
    if item_type.accepts_everything:
        condition = "accept every item with a score"
    elif item_type.status == "always rejected":
        condition = "accept no item"
    else:
        score_name_without_sign = score_name.removeprefix("-")
        accepted_range = format_accepted_range(score_name, item_type.threshold)
        condition = f"accept if {score_name_without_sign} {accepted_range}"
    return f"{condition}; {item_type.n_accepted:,} of {item_type.n_rows:,} items"
