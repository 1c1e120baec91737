"""Sentences and lines about the subgroups of a certificate.

A *subgroup* is a class or a group of rows with its own threshold. If a promise is about two classes,
a subgroup is a *side*: the rows that are predicted to be of one of the two classes, among all rows or
among the rows of one group. A *family* is the pair of sides of the same rows.

A *line* is a pair of a short heading and a text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from metacal.certificates.number_format import floor_to_4_decimals

if TYPE_CHECKING:
    from metacal.certificates.certificate import Certificate
    from metacal.certificates.subgroups import (
        Name,
        Status,
        SubgroupCertificate,
        SubgroupCertificates,
    )

#: Function that formats a share as text.
FormatShare = Callable[[float], str]
#: Short heading and text of one line.
Line = tuple[str, str]

#: Largest number of subgroups, or of families, that get a line each.
_MAX_LISTED = 8
#: Headings are cut to the width of their column.
_MAX_HEADING_LENGTH = 12
_STATUS_TEXTS: dict[Status, str] = {
    "certified": "{:,} with a threshold",
    "accepts everything": "{:,} accept every row",
    "always rejected": "{:,} always rejected",
}


def lower_first_letter(claim: str) -> str:
    """Convert the first letter of a claim to lower case."""
    return f"{claim[0].lower()}{claim[1:]}"


def format_subgroup_name(name: Name, predicted_class: Name | None) -> str:
    """Format the name of a class or group, with the predicted class if it has two sides."""
    if predicted_class is None:
        return str(name)
    return f"{name}, called {predicted_class}"


def format_accepted_range(score_name: str, threshold: float) -> str:
    """Format the range of accepted scores, for example "<= 0.3".

    The range is ">= 0.3" if the name of the score starts with a minus sign, because the threshold
    then bounds the negated score.
    """
    if score_name.startswith("-"):
        return f">= {-threshold:.6g}"
    return f"<= {threshold:.6g}"


# ── sentences ─────────────────────────────────────────────────────────────────────────────────────


def state_side_claims(
    subgroups: SubgroupCertificates,
    format_lower_bound: FormatShare,
    format_upper_bound: FormatShare,
) -> str:
    """Join the claims of both sides to one claim, starting with the second class.

    Parameters
    ----------
    subgroups : SubgroupCertificates
        The sides. All groups have the same claims, so only the first family is read.
    format_lower_bound, format_upper_bound : callable
        Functions that format a promised share.

    Returns
    -------
    str
        The claim without a full stop.
    """
    first_family_reversed = subgroups.items[1::-1]
    claims = [
        side.quantity.format_claim(
            side.target, format_lower_bound, format_upper_bound, side.promised_class
        )
        for side in first_family_reversed
        if side.quantity is not None and side.target is not None
    ]
    return ", and ".join([claims[0], *map(lower_first_letter, claims[1:])])


def state_subgroup_claim(subgroups: SubgroupCertificates, claim: str) -> str:
    """Convert a claim about all rows to a claim about every subgroup."""
    if subgroups.is_two_sided_without_groups:
        return claim
    every_subgroup = "every predicted class" if subgroups.by == "class" else "every group"
    continued_claim = lower_first_letter(claim)
    n_pooled = len(subgroups.pooled_names)
    if n_pooled == 0:
        return f"For {every_subgroup}, {continued_claim}"
    if len(subgroups.side_families) == 1:
        return f"For all {n_pooled} {subgroups.plural} taken together, {continued_claim}"
    return (
        f"For {every_subgroup} but {n_pooled} small ones, which are pooled and count as one:"
        f" {continued_claim}"
    )


def state_subgroup_confidence(
    subgroups: SubgroupCertificates, confidence_text: str, max_broken_text: str
) -> str:
    """State the confidence level of a promise about subgroups.

    Parameters
    ----------
    subgroups : SubgroupCertificates
        The subgroups, with the error rate that delta limits.
    confidence_text : str
        The confidence level as a percentage.
    max_broken_text : str
        Delta as a percentage.

    Returns
    -------
    str
        End of the sentence that states the promise, without a full stop.
    """
    if subgroups.is_two_sided_without_groups:
        both_promised = all(side.quantity is not None for side in subgroups.items)
        scope = " for both together" if both_promised else ""
        return f"with {confidence_text} confidence{scope}"
    if subgroups.delta_sharing == "fcr":
        return (
            f"but for an expected share of at most {max_broken_text} of the {subgroups.plural} that"
            " accept (false-coverage rate)"
        )
    if subgroups.delta_sharing == "together":
        return f"with {confidence_text} confidence for all {subgroups.plural} together"
    return (
        f"each with {confidence_text} confidence: the expected share of broken"
        f" {subgroups.plural} is at most {max_broken_text}"
    )


def explain_rejection(subgroup: SubgroupCertificate) -> str:
    """Explain why a subgroup is always rejected, and estimate how many rows it needs.

    >>> from metacal.certificates.subgroups import SubgroupCertificate
    >>> cats = SubgroupCertificate(("cat",), 40, 39, 0, 0, -math.inf, None, 0.1, 0.01, 0.89, 120)
    >>> explain_rejection(cats)
    '40 rows, 39 right, certify 0.89 at most; about 120 rows may be enough (a rough estimate)'
    """
    if not subgroup.n_rows:
        return f"no calibration row; it takes at least {subgroup.rows_needed:,}"
    explanation = f"{subgroup.n_rows:,} rows, {subgroup.n_correct:,} right"
    if subgroup.best_target is not None:
        explanation += f", certify {floor_to_4_decimals(subgroup.best_target):g} at most"
    if subgroup.rows_needed is not None:
        explanation += f"; about {subgroup.rows_needed:,} rows may be enough (a rough estimate)"
    return explanation


# ── the conditions of two sides ───────────────────────────────────────────────────────────────────


def describe_two_sided_condition(certificate: Certificate, subgroups: SubgroupCertificates) -> str:
    """Describe the log-odds at which rows are predicted to be of either class."""
    if subgroups.is_two_sided_without_groups:
        conditions = _describe_side_conditions(subgroups.items, certificate.decision_at)
        return f"{', '.join(conditions)}, else review"
    first_family_reversed = subgroups.items[1::-1]
    class_names = [
        _predicted_class_name(side) for side in first_family_reversed if side.quantity is not None
    ]
    return f"called {' or '.join(class_names)} beyond the log-odds of the row's group, else review"


def _predicted_class_name(side: SubgroupCertificate) -> str:
    """Return the name of the class that the rows of a side are predicted to be of."""
    return str(side.names[0] if side.predicted_class is None else side.predicted_class)


def _describe_side_conditions(
    family: Sequence[SubgroupCertificate], decision_log_odds: float
) -> list[str]:
    """Describe the log-odds that each open side of a family accepts, second class first.

    The score of a side is the distance of the log-odds from the decision, with a minus sign.
    """
    first_side, second_side = family[:2]
    conditions = []
    if second_side.threshold != -math.inf:
        limit = decision_log_odds + _distance_from_decision(second_side)
        class_name = _predicted_class_name(second_side)
        conditions.append(f"called {class_name} if log-odds > {limit:.6g}")
    if first_side.threshold != -math.inf:
        limit = decision_log_odds - _distance_from_decision(first_side)
        next_log_odds = decision_log_odds + (first_side.lowest_rejected or 0.0)
        # If the rounded limit is itself a rejected value, then "<=" would be wrong.
        is_rejected_value = f"{next_log_odds:.6g}" == f"{limit:.6g}"
        comparison = "<" if is_rejected_value else "<="
        class_name = _predicted_class_name(first_side)
        conditions.append(f"called {class_name} if log-odds {comparison} {limit:.6g}")
    return conditions


def _distance_from_decision(side: SubgroupCertificate) -> float:
    """Return how far the log-odds of accepted rows lie from the decision at least."""
    return 0.0 if side.accepts_everything else -side.threshold


# ── lines ─────────────────────────────────────────────────────────────────────────────────────────


def list_subgroup_lines(subgroups: SubgroupCertificates, score_name: str) -> list[Line]:
    """List lines about the subgroups of a certificate.

    Always rejected subgroups come first, then the others in rising order of coverage.
    """
    if subgroups.is_two_sided:
        return _list_side_lines(subgroups)
    return [
        (subgroups.plural, _count_statuses(subgroups)),
        *_list_pooled_names(subgroups),
        *_list_rejected_subgroups(subgroups),
        *_list_accepting_subgroups(subgroups, score_name),
    ]


def _count_statuses(subgroups: SubgroupCertificates) -> str:
    """Return the number of classes or groups, and how many subgroups have each status."""
    n_names = sum(len(subgroup.names) for subgroup in subgroups.items)
    status_counts = {
        status: sum(subgroup.status == status for subgroup in subgroups.items)
        for status in _STATUS_TEXTS
    }
    texts = [_STATUS_TEXTS[status].format(n) for status, n in status_counts.items() if n]
    return f"{n_names:,}: {', '.join(texts)}"


def _list_pooled_names(subgroups: SubgroupCertificates) -> list[Line]:
    """Return a line with the first pooled classes or groups, or no line."""
    pooled_names = subgroups.pooled_names
    if not pooled_names:
        return []
    text = ", ".join(map(str, pooled_names[:_MAX_LISTED]))
    if len(pooled_names) > _MAX_LISTED:
        text += ", ..."
    return [("pooled", text)]


def _list_rejected_subgroups(subgroups: SubgroupCertificates) -> list[Line]:
    """Return a line for each of the first subgroups that are always rejected."""
    rejected = subgroups.always_rejected
    lines = [
        ("rejected", f"{subgroup.name}: {explain_rejection(subgroup)}")
        for subgroup in rejected[:_MAX_LISTED]
    ]
    if len(rejected) > _MAX_LISTED:
        lines.append(("rejected", f"and {len(rejected) - _MAX_LISTED:,} more"))
    return lines


def _list_accepting_subgroups(subgroups: SubgroupCertificates, score_name: str) -> list[Line]:
    """Return a line for each of the accepting subgroups with the lowest coverage."""
    accepting = [subgroup for subgroup in subgroups.items if subgroup.n_accepted]
    accepting.sort(key=lambda subgroup: subgroup.coverage or 0.0)
    lines = []
    for subgroup in accepting[:_MAX_LISTED]:
        if subgroup.accepts_everything:
            condition = "accept every row"
        else:
            condition = format_accepted_range(score_name, subgroup.threshold)
        text = (
            f"{subgroup.name}: {condition}; coverage {subgroup.coverage:.4f} of"
            f" {subgroup.n_rows:,} rows, accuracy of accepted {subgroup.coverage_accuracy:.4f}"
        )
        lines.append(("accepts", text))
    if len(accepting) > _MAX_LISTED:
        n_omitted = len(accepting) - _MAX_LISTED
        lines.append(("accepts", f"and {n_omitted:,} more, of higher coverage"))
    return lines


def _list_side_lines(subgroups: SubgroupCertificates) -> list[Line]:
    """List lines about both sides of all rows, or of each of the first groups."""
    families = subgroups.side_families
    if subgroups.is_two_sided_without_groups:
        return _list_family_lines(families[0], prefix="")
    lines = [(subgroups.plural, f"{len(subgroups.names):,}, both sides of each by itself")]
    for family in families[:_MAX_LISTED]:
        prefix = f"{family[0].name_without_side}: "
        conditions = _describe_side_conditions(family, family[0].decision_log_odds)
        lines.append(("group", f"{prefix}{', '.join(conditions) or 'all rows go to review'}"))
        lines += _list_family_lines(family, prefix)
    if len(families) > _MAX_LISTED:
        lines.append(("group", f"and {len(families) - _MAX_LISTED:,} more"))
    return lines


def _list_family_lines(family: Sequence[SubgroupCertificate], prefix: str) -> list[Line]:
    """Return a line for each side of a family that has a promise, second class first."""
    return [
        _describe_side(side, prefix)
        for side in reversed(family)
        if side.quantity is not None and side.target is not None
    ]


def _describe_side(side: SubgroupCertificate, prefix: str) -> Line:
    """Describe the counts of a side, or why none of its rows is accepted."""
    assert side.quantity is not None
    class_name = _predicted_class_name(side)
    if side.threshold == -math.inf:
        reason = (
            f"{side.quantity.name_with_class(side.promised_class)} {side.target:g} is not certified"
        )
        if side.rows_needed:
            reason += f"; it takes at least {side.rows_needed:,} rows that speak about it"
        return "closed", f"{prefix}nothing is called {class_name}: {reason}"
    heading = f"called {class_name}"[:_MAX_HEADING_LENGTH]
    text = (
        f"{prefix}{side.n_accepted:,} of {side.n_rows:,} rows on that side,"
        f" {side.n_correct_accepted:,} of them right"
    )
    return heading, text
