"""Sentences and lines about the subgroups of a certificate.

A *subgroup* is a class or a group of rows with its own threshold. If a promise is about two classes,
a subgroup is a *side*: the rows that are predicted to be of one of the two classes, among all rows or
among the rows of one group. The two sides of the same rows are a *pair*, with the first class first.

A *line* is a pair of a short heading and a text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from metacal.certificates.number_format import floor_to_4_decimals

if TYPE_CHECKING:
    from metacal.certificates.certificate import Certificate
    from metacal.certificates.subgroups import (
        Name,
        SidePair,
        Status,
        SubgroupCertificate,
        SubgroupCertificates,
    )

#: Function that formats a share as text.
FormatShare = Callable[[float], str]
#: A line of a description: a short heading, and the text beside it.
Line = tuple[str, str]

#: Largest number of subgroups, or of pairs of sides, that are listed.
_MAX_LISTED_SUBGROUPS = 8
#: Text about the number of subgroups with a status, for each status.
_STATUS_TEXTS: dict[Status, str] = {
    "certified": "{:,} with a threshold",
    "accepts everything": "{:,} accept every row",
    "always rejected": "{:,} always rejected",
}


def lower_first_letter(claim: str) -> str:
    """Convert the first letter of a claim to lower case."""
    return f"{claim[0].lower()}{claim[1:]}"


def format_subgroup_name(name: Name, predicted_class: Name | None) -> str:
    """Format the name of a class or group, with its predicted class if it has one."""
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


def get_coverage_or_zero(subgroup: SubgroupCertificate) -> float:
    """Return the accepted share of the rows of a subgroup, 0 if it has no rows."""
    if subgroup.coverage is None:
        return 0.0
    return subgroup.coverage


# ── sentences ─────────────────────────────────────────────────────────────────────────────────────


def state_side_claims(
    subgroups: SubgroupCertificates,
    format_lower_bound: FormatShare,
    format_upper_bound: FormatShare,
) -> str:
    """Join the claims about both predicted classes, starting with the second class.

    If no row of any group is accepted as a class, its promise cannot be broken, and
    `state_never_predicted_classes` states that instead of the promise.

    Parameters
    ----------
    subgroups : SubgroupCertificates
        Pairs of sides. All groups have the same claims, so only the first pair is read.
    format_lower_bound, format_upper_bound : callable
        Functions that format a promised share.

    Returns
    -------
    str
        The claim without a full stop.
    """
    claims = []
    for side in subgroups.sides_of_accepted_classes:
        if side.quantity is not None and side.target is not None:
            claim = side.quantity.format_claim(
                side.target,
                format_lower_bound,
                format_upper_bound,
                class_name=side.promised_class,
            )
            claims.append(claim)
    first_claim, *other_claims = claims
    continued_claims = [lower_first_letter(claim) for claim in other_claims]
    return ", and ".join([first_claim, *continued_claims])


def state_never_predicted_classes(subgroups: SubgroupCertificates) -> str:
    """State which classes are never predicted, and which promise is the reason."""
    sentences = []
    for side in subgroups.sides_of_never_predicted_classes:
        if side.quantity is not None:
            # The recall of one class may be the reason that the other class is never predicted.
            quantity_name = side.quantity.name_with_class(side.promised_class)
            sentence = (
                f" No row is predicted {side.predicted_class_name}, because {quantity_name}"
                f" {side.target:g} is not certified."
            )
            sentences.append(sentence)
    return "".join(sentences)


def state_subgroup_claim(subgroups: SubgroupCertificates, claim: str) -> str:
    """Restate a claim about all rows as a claim about every class or group."""
    if subgroups.is_two_sided_without_groups:
        return claim
    scope_text = "every predicted class" if subgroups.by == "class" else "every group"
    lower_case_claim = lower_first_letter(claim)
    n_pooled_names = len(subgroups.pooled_names)
    n_separate_names = len(subgroups.names) - n_pooled_names
    if n_pooled_names == 0:
        return f"For {scope_text}, {lower_case_claim}"
    if n_separate_names == 0:
        return f"For all {n_pooled_names} {subgroups.plural} taken together, {lower_case_claim}"
    return (
        f"For {scope_text} but {n_pooled_names} small ones, which are pooled and count as one:"
        f" {lower_case_claim}"
    )


def state_subgroup_confidence(
    subgroups: SubgroupCertificates, *, confidence_text: str, delta_text: str
) -> str:
    """State the confidence level of a promise about subgroups, as a clause.

    Parameters
    ----------
    subgroups : SubgroupCertificates
        The subgroups, with the error rate that delta limits.
    confidence_text : str
        The confidence level as a percentage.
    delta_text : str
        Delta as a percentage.

    Returns
    -------
    str
        End of the sentence that states the promise, without a full stop.
    """
    if subgroups.is_two_sided_without_groups:
        has_two_claims = len(subgroups.sides_of_accepted_classes) == 2
        scope_text = " for both together" if has_two_claims else ""
        return f"with {confidence_text} confidence{scope_text}"
    if subgroups.delta_sharing == "fcr":
        return (
            f"but for an expected share of at most {delta_text} of the {subgroups.plural} that"
            " accept (false-coverage rate)"
        )
    if subgroups.delta_sharing == "together":
        return f"with {confidence_text} confidence for all {subgroups.plural} together"
    return (
        f"each with {confidence_text} confidence: the expected share of broken"
        f" {subgroups.plural} is at most {delta_text}"
    )


def explain_rejection(subgroup: SubgroupCertificate) -> str:
    """Explain why a subgroup is always rejected, and estimate how many rows it needs.

    >>> import math
    >>> from metacal.certificates.subgroups import SubgroupCertificate
    >>> cats = SubgroupCertificate(("cat",), 40, 39, 0, 0, -math.inf, None, 0.1, 0.01, 0.89, 120)
    >>> explain_rejection(cats)
    '40 rows, 39 right, certify 0.89 at most; about 120 rows may be enough (a rough estimate)'
    """
    if subgroup.n_rows == 0:
        return f"no calibration row; it takes at least {subgroup.rows_needed:,}"
    explanation = f"{subgroup.n_rows:,} rows, {subgroup.n_correct:,} right"
    if subgroup.best_supported_target is not None:
        explanation += f", certify {floor_to_4_decimals(subgroup.best_supported_target):g} at most"
    if subgroup.rows_needed is not None:
        explanation += f"; about {subgroup.rows_needed:,} rows may be enough (a rough estimate)"
    return explanation


# ── conditions of two-sided gates ───────────────────────────────────────────────────────────────────


def describe_two_sided_condition(certificate: Certificate, subgroups: SubgroupCertificates) -> str:
    """Describe the log-odds at which a two-sided gate accepts either prediction."""
    if subgroups.is_two_sided_without_groups:
        conditions = _describe_side_conditions(subgroups.side_pairs[0], certificate.decision_at)
        return f"{', '.join(conditions)}, else review"
    class_names = [side.predicted_class_name for side in subgroups.sides_of_accepted_classes]
    classes_text = " or ".join(class_names)
    return f"called {classes_text} beyond the log-odds of the row's group, else review"


def _describe_side_conditions(side_pair: SidePair, decision_log_odds: float) -> list[str]:
    """Describe the log-odds that are accepted for each class, second class first.

    Rows above the decision log-odds are predicted to be of the second class, and the others of the
    first. The score of a row is the negated distance of its log-odds from the decision log-odds.
    """
    first_class_side, second_class_side = side_pair
    conditions = []
    if not second_class_side.accepts_nothing:
        log_odds_lower_bound = decision_log_odds + _get_smallest_accepted_margin(second_class_side)
        class_name = second_class_side.predicted_class_name
        conditions.append(f"called {class_name} if log-odds > {log_odds_lower_bound:.6g}")
    if not first_class_side.accepts_nothing:
        log_odds_upper_bound = decision_log_odds - _get_smallest_accepted_margin(first_class_side)
        printed_bound = f"{log_odds_upper_bound:.6g}"
        # The score of a row of the first class is its log-odds minus the decision log-odds.
        lowest_rejected_score = first_class_side.lowest_rejected or 0.0
        lowest_rejected_log_odds = decision_log_odds + lowest_rejected_score
        # The comparison is strict if the gate rejects log-odds that are printed like the bound.
        printed_bound_is_rejected = f"{lowest_rejected_log_odds:.6g}" == printed_bound
        comparison = "<" if printed_bound_is_rejected else "<="
        class_name = first_class_side.predicted_class_name
        conditions.append(f"called {class_name} if log-odds {comparison} {printed_bound}")
    return conditions


def _get_smallest_accepted_margin(side: SubgroupCertificate) -> float:
    """Return the least distance of accepted log-odds from the decision log-odds."""
    if side.accepts_everything:
        return 0.0
    return -side.threshold


# ── lines ─────────────────────────────────────────────────────────────────────────────────────────


def list_subgroup_lines(subgroups: SubgroupCertificates, score_name: str) -> list[Line]:
    """Return the printed lines about the subgroups of a certificate.

    Always rejected subgroups come first, then the others in rising order of coverage.
    """
    if subgroups.is_two_sided:
        return _list_side_lines(subgroups)
    return [
        (subgroups.plural, _format_status_counts(subgroups)),
        *_list_pooled_names(subgroups),
        *_list_rejected_subgroups(subgroups),
        *_list_accepting_subgroups(subgroups, score_name),
    ]


def _format_status_counts(subgroups: SubgroupCertificates) -> str:
    """Format the number of classes or groups, and how many have each status."""
    n_names = sum(len(subgroup.names) for subgroup in subgroups.items)
    statuses = [subgroup.status for subgroup in subgroups.items]
    status_texts = []
    for status, text_template in _STATUS_TEXTS.items():
        n_subgroups_with_status = statuses.count(status)
        if n_subgroups_with_status > 0:
            status_texts.append(text_template.format(n_subgroups_with_status))
    return f"{n_names:,}: {', '.join(status_texts)}"


def _list_pooled_names(subgroups: SubgroupCertificates) -> list[Line]:
    """Return a line that names the first pooled classes or groups, if there are any."""
    pooled_names = subgroups.pooled_names
    if not pooled_names:
        return []
    names_text = ", ".join(str(name) for name in pooled_names[:_MAX_LISTED_SUBGROUPS])
    if len(pooled_names) > _MAX_LISTED_SUBGROUPS:
        names_text += ", ..."
    return [("pooled", names_text)]


def _list_rejected_subgroups(subgroups: SubgroupCertificates) -> list[Line]:
    """Return a line for each of the first rejected subgroups, with the reason."""
    rejected_subgroups = subgroups.always_rejected
    rejected_lines = [
        ("rejected", f"{subgroup.name}: {explain_rejection(subgroup)}")
        for subgroup in rejected_subgroups[:_MAX_LISTED_SUBGROUPS]
    ]
    n_omitted = len(rejected_subgroups) - _MAX_LISTED_SUBGROUPS
    if n_omitted > 0:
        rejected_lines.append(("rejected", f"and {n_omitted:,} more"))
    return rejected_lines


def _list_accepting_subgroups(subgroups: SubgroupCertificates, score_name: str) -> list[Line]:
    """Return a line for each of the accepting subgroups with the lowest coverage."""
    accepting_subgroups = [subgroup for subgroup in subgroups.items if subgroup.n_accepted > 0]
    accepting_subgroups.sort(key=get_coverage_or_zero)
    accepting_lines = []
    for subgroup in accepting_subgroups[:_MAX_LISTED_SUBGROUPS]:
        if subgroup.accepts_everything:
            condition = "accept every row"
        else:
            condition = format_accepted_range(score_name, subgroup.threshold)
        subgroup_text = (
            f"{subgroup.name}: {condition}; coverage {subgroup.coverage:.4f} of"
            f" {subgroup.n_rows:,} rows, selective accuracy {subgroup.selective_accuracy:.4f}"
        )
        accepting_lines.append(("accepts", subgroup_text))
    n_omitted = len(accepting_subgroups) - _MAX_LISTED_SUBGROUPS
    if n_omitted > 0:
        accepting_lines.append(("accepts", f"and {n_omitted:,} more, of higher coverage"))
    return accepting_lines


def _list_side_lines(subgroups: SubgroupCertificates) -> list[Line]:
    """Return lines about both predicted classes of a two-sided gate."""
    side_pairs = subgroups.side_pairs
    if subgroups.is_two_sided_without_groups:
        return _list_pair_lines(side_pairs[0], group_prefix="")
    n_groups = len(subgroups.names)
    lines = [(subgroups.plural, f"{n_groups:,}, both sides of each by itself")]
    for side_pair in side_pairs[:_MAX_LISTED_SUBGROUPS]:
        # Both sides of a group have the same name and the same decision log-odds.
        group_name = side_pair.first_class.name_without_side
        decision_log_odds = side_pair.first_class.decision_log_odds
        conditions = _describe_side_conditions(side_pair, decision_log_odds)
        condition_text = ", ".join(conditions) or "all rows go to review"
        lines.append(("group", f"{group_name}: {condition_text}"))
        lines += _list_pair_lines(side_pair, group_prefix=f"{group_name}: ")
    n_omitted = len(side_pairs) - _MAX_LISTED_SUBGROUPS
    if n_omitted > 0:
        lines.append(("group", f"and {n_omitted:,} more"))
    return lines


def _list_pair_lines(side_pair: SidePair, group_prefix: str) -> list[Line]:
    """Return a line for each predicted class with a promise, second class first."""
    return [
        _make_side_line(side, side.quantity.name_with_class(side.promised_class), group_prefix)
        for side in (side_pair.second_class, side_pair.first_class)
        if side.quantity is not None and side.target is not None
    ]


def _make_side_line(side: SubgroupCertificate, quantity_name: str, group_prefix: str) -> Line:
    """Describe how many rows of a predicted class are accepted, or why none is.

    Parameters
    ----------
    side : SubgroupCertificate
        Side with a promise.
    quantity_name : str
        Name of the promised quantity, such as "recall of fraud".
    group_prefix : str
        First words of the text, which name the group.

    Returns
    -------
    Line
    """
    class_name = side.predicted_class_name
    if side.accepts_nothing:
        reason = f"{quantity_name} {side.target:g} is not certified"
        if side.best_supported_target is not None:
            reason += f" ({side.best_supported_target:g} is the best that these rows certify)"
        if side.rows_needed:
            reason += f"; it takes at least {side.rows_needed:,} rows that speak about it"
        return ("closed", f"{group_prefix}no row is predicted {class_name}: {reason}")
    counts_text = (
        f"{group_prefix}{side.n_accepted:,} of {side.n_rows:,} rows on the side of {class_name} are"
        f" accepted, {side.n_correct_accepted:,} of them correct"
    )
    return ("predicted", counts_text)
