"""Certificates, notes and error messages that are built from the results of rules.

Rules and procedures return numbers. This module turns them into certificates and sentences.
`unsuitable_rows` and `case_statements` have further errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from metacal.certificates.certificate import Certificate
from metacal.certificates.counts import Counts
from metacal.certificates.notes import (
    Note,
    note_class_never_predicted,
    note_too_few_correct_rows,
    note_too_few_rows_to_review,
)
from metacal.certificates.number_format import format_percent_floor
from metacal.certificates.quantity import Quantity
from metacal.certificates.subgroups import SubgroupKind
from metacal.certification.ranking import ThresholdOutcome
from metacal.certification.ruled_out import get_error_fields
from metacal.errors import InfeasibleTargetError
from metacal.kernels.grid import RELATIVE_GRID
from metacal.statistics import bounds

if TYPE_CHECKING:
    from metacal.certification.class_shortfall import ClassShortfall
    from metacal.certification.rows import CalibrationRows
    from metacal.certification.ruled_out import RuledOut


def build_certificate(
    quantity: Quantity,
    target: float,
    delta: float | None,
    rule_name: str,
    threshold: float,
    outcome: ThresholdOutcome,
    notes: tuple[Note, ...] = (),
) -> Certificate:
    """Build a certificate from a threshold and the counts of accepted rows."""
    guarantee = "certified"
    if delta is None:
        guarantee = "in expectation"
    return Certificate(
        quantity=quantity,
        target=float(target),
        delta=delta,
        guarantee=guarantee,  # type: ignore[arg-type]
        threshold=threshold,
        rule=rule_name,
        notes=notes,
        **outcome._asdict(),
    )


def build_certificate_for_threshold(
    rows: CalibrationRows,
    quantity: Quantity,
    target: float,
    delta: float | None,
    rule_name: str,
    threshold: float,
    notes: tuple[Note, ...] = (),
) -> Certificate:
    """Build the certificate of a threshold that applies to all rows."""
    robust_threshold = RELATIVE_GRID.make_robust_to_rounding(threshold)
    threshold_outcome = rows.ranking.summarize_threshold(robust_threshold)
    certificate = build_certificate(
        quantity=quantity,
        target=target,
        delta=delta,
        rule_name=rule_name,
        threshold=robust_threshold,
        outcome=threshold_outcome,
        notes=notes,
    )
    return replace(certificate, has_labels=rows.correct is not None)


def format_confidence_level(delta: float | None) -> str:
    """Format the confidence level 1 - delta for a message."""
    if delta is None:
        return "in expectation"
    return f"at {format_percent_floor(1 - delta)} confidence"


def warn_about_too_few_rows(
    quantity: Quantity,
    *,
    n_reference_rows: int,
    target: float,
    delta: float | None,
    n_required_rows: int,
) -> Note:
    """Warn that there are too few rows to reject any row, and return the note.

    Parameters
    ----------
    quantity : Quantity
        Quantity that is limited: the miscoverage or the review rate.

    n_reference_rows : int
        Number of rows that the rule counted.

    target : float
        Promised limit of the quantity.

    delta : float or None
        Error probability of the promise.

    n_required_rows : int
        Smallest number of reference rows with which the rule can reject a row.

    Returns
    -------
    Note
    """
    best_limit = bounds.smallest_certifiable_miscoverage(n_reference_rows, delta)
    if quantity.needs_labels:
        too_few_rows_note = note_too_few_correct_rows(
            right=n_reference_rows, alpha=float(target), best=best_limit, needed=n_required_rows
        )
    else:
        too_few_rows_note = note_too_few_rows_to_review(
            rows=n_reference_rows, share=float(target), best=best_limit, needed=n_required_rows
        )
    return too_few_rows_note.issue_warning()


# The functions below build errors for rows that do not support the promise.


def build_infeasible_target_error(
    claim: str,
    target: float,
    delta: float | None,
    n_rows: int,
    *,
    best_limit: float | None,
    best_text: str,
    rows_needed: int | None,
    weaker_promise_advice: str,
    ruled_out: RuledOut | None,
    ruled_out_predicate: str,
) -> InfeasibleTargetError:
    """Build the error for rows that do not support a promise.

    Parameters
    ----------
    claim : str
        Promise as a phrase, for example "an accuracy of 0.97".

    target : float
        Target of the promise.

    delta : float or None
        Error probability of the promise.

    n_rows : int
        Number of rows that were tested.

    best_limit : float or None
        Strictest limit that the rows support.

    best_text : str
        `best_limit` as it is written in the message.

    rows_needed : int or None
        Approximate number of rows that would certify the promise.

    weaker_promise_advice : str
        Advice that makes the promise weaker, as the beginning of a sentence, for example
        "Lower the target".

    ruled_out : RuledOut or None
        What the rows prove about all thresholds. It is stated if no number of rows is known.

    ruled_out_predicate : str
        Predicate that does not hold for the ruled-out thresholds.

    Returns
    -------
    InfeasibleTargetError
    """
    confidence_level = format_confidence_level(delta)
    best_limit_clause = "they support no weaker target either"
    first_advice = weaker_promise_advice
    if best_limit is not None:
        best_limit_clause = f"the best they support is {best_text}"
        first_advice = f"{weaker_promise_advice} to {best_text}"
    second_advice = "improve the model"
    if rows_needed is not None:
        second_advice = f"collect about {rows_needed:,} rows (a rough estimate)"
    message = (
        f"Cannot certify {claim} on these {n_rows:,} rows {confidence_level}; {best_limit_clause}."
        f" {first_advice}, or {second_advice}."
    )
    if rows_needed is None and ruled_out is not None:
        message += f" {ruled_out.explain_missing_estimate(ruled_out_predicate)}"
    return InfeasibleTargetError(
        message,
        target=target,
        best=best_limit,
        rows_needed=rows_needed,
        **get_error_fields(ruled_out),
    )


def build_infeasible_accuracy_error(
    target: float,
    delta: float | None,
    n_rows: int,
    best_limit: float | None,
    rows_needed: int | None,
    ruled_out: RuledOut | None,
) -> InfeasibleTargetError:
    """Build the error for rows that do not support an accuracy."""
    return build_infeasible_target_error(
        f"an accuracy of {target:g}",
        float(target),
        delta,
        n_rows,
        best_limit=best_limit,
        best_text="" if best_limit is None else f"{best_limit:.4f}",
        rows_needed=rows_needed,
        weaker_promise_advice="Lower the target",
        ruled_out=ruled_out,
        ruled_out_predicate="is that accurate",
    )


def build_target_ruled_out_error(
    target: float,
    n_rows: int,
    n_labelled: int,
    best_limit: float | None,
    rows_needed: int | None,
) -> InfeasibleTargetError:
    """Build the error for a target that the first labels already rule out."""
    more_rows_phrase = ""
    if rows_needed is not None:
        more_rows_phrase = f" (about {rows_needed:,}, a rough estimate)"
    message = (
        f"Cannot certify an accuracy of {target:g}. After {n_labelled:,} of {n_rows:,} labels, no"
        " outcome of the remaining labels can reach the target. Start again with a lower target,"
        f" or with more rows{more_rows_phrase}."
    )
    return InfeasibleTargetError(message, target=target, best=best_limit, rows_needed=rows_needed)


def build_incomplete_labels_error(
    promise_name: str, target: float, n_rows: int, n_labelled: int
) -> InfeasibleTargetError:
    """Build the error for a promise that needs every label."""
    message = (
        f"Cannot certify {promise_name} yet, because {n_rows - n_labelled:,} of the {n_rows:,}"
        " drawn rows have no label. Label the remaining rows first."
    )
    return InfeasibleTargetError(message, target=target, rows_needed=n_rows)


def build_uncertified_classes_error(shortfalls: Sequence[ClassShortfall]) -> InfeasibleTargetError:
    """Build the error for rows that certify nothing about either of two classes.

    Parameters
    ----------
    shortfalls : sequence of ClassShortfall
        Shortfall of each promise. The error has the numbers of the first one.

    Returns
    -------
    InfeasibleTargetError
    """
    first_shortfall = shortfalls[0]
    return InfeasibleTargetError(
        " ".join(_explain_uncertified_class(shortfall) for shortfall in shortfalls),
        target=first_shortfall.class_promise.target,
        best=first_shortfall.best_target,
        rows_needed=first_shortfall.rows_needed,
        **get_error_fields(first_shortfall.ruled_out),
    )


def _explain_uncertified_class(shortfall: ClassShortfall) -> str:
    """Explain why no row may be accepted as the class of a promise, and what to do."""
    quantity = shortfall.class_promise.quantity
    first_advice = "Lower the target"
    if shortfall.best_target is not None:
        first_advice = f"Lower the target to {shortfall.best_target:g}"
        if quantity.has_upper_limit:
            first_advice = f"Raise the limit to {shortfall.best_target:g}"
    second_advice = "improve the model"
    if shortfall.rows_needed is not None:
        second_advice = f"collect about {shortfall.rows_needed:,} rows (a rough estimate)"
    claim = f"{quantity.name} of {quantity.direction} {shortfall.class_promise.target:g}"
    confidence_level = format_confidence_level(shortfall.significance_level)
    message = (
        f"Cannot certify a {claim} for {shortfall.positive_class!r} on these"
        f" {shortfall.n_rows:,} rows {confidence_level}."
        f" {_describe_best_target_of_class(shortfall)} {first_advice}, or {second_advice}."
    )
    if shortfall.rows_needed is None and shortfall.ruled_out is not None:
        message += f" {shortfall.ruled_out.explain_missing_estimate('is that precise')}"
    return message


def _describe_best_target_of_class(shortfall: ClassShortfall) -> str:
    """Describe the best supported target and the number of rows needed."""
    is_about_true_class = shortfall.class_promise.quantity.conditions_on_true_class
    if shortfall.best_target is not None:
        target_description = f"The best they support is {shortfall.best_target:g}."
    elif is_about_true_class:
        target_description = "These rows support no useful value."
    else:
        target_description = (
            f"They support none above {shortfall.class_share:.4g}, the share of"
            f" {shortfall.predicted_class!r} among them."
        )
    if is_about_true_class:
        target_description += (
            f" At least {shortfall.n_required_rows:,} rows of {shortfall.other_class!r} are"
            f" required; there are {shortfall.n_rows_of_other_class:,}."
        )
    return target_description


def warn_about_uncertified_class(shortfall: ClassShortfall) -> Note:
    """Warn that no row is predicted as the class of a promise, and return the note."""
    note = note_class_never_predicted(
        called=str(shortfall.predicted_class),
        quantity=shortfall.class_promise.quantity.name,
        positive=str(shortfall.positive_class),
        target=float(shortfall.class_promise.target),
        best=shortfall.best_target,
        rows=shortfall.n_rows,
        needed=shortfall.rows_needed,
    )
    return note.issue_warning()


def build_no_certified_subgroup_error(
    quantity: Quantity,
    target: float,
    delta: float,
    subgroup_kind: SubgroupKind,
    n_rows: int,
    n_subgroups: int,
    best_target: float | None,
    rows_needed: int | None,
    *,
    rows_needed_is_minimum: bool,
) -> InfeasibleTargetError:
    """Build the error for a promise that is not certified for any subgroup.

    Parameters
    ----------
    quantity : Quantity
        Quantity that is limited.

    target : float
        Promised limit of the quantity.

    delta : float
        Error probability of the promise.

    subgroup_kind : {"class", "group"}
        What the subgroups are.

    n_rows : int
        Number of rows of all subgroups.

    n_subgroups : int
        Number of subgroups.

    best_target : float or None
        Strictest target that any subgroup supports.

    rows_needed : int or None
        Number of rows of one subgroup that may certify its promise.

    rows_needed_is_minimum : bool
        Whether no test can pass with fewer than `rows_needed` rows. Otherwise `rows_needed` is an
        estimate.

    Returns
    -------
    InfeasibleTargetError
    """
    best_target_clause = ""
    if best_target is not None:
        best_target_clause = f"; the best that any of them supports is {best_target:.4f}"
    advice = "Lower the target, or improve the model"
    if rows_needed is not None and rows_needed_is_minimum:
        advice = (
            f"Lower the target, or collect at least {rows_needed:,} rows of one group that the"
            " quantity counts"
        )
    elif rows_needed is not None:
        advice = (
            f"Lower the target, or collect about {rows_needed:,} rows of one {subgroup_kind} (a rough"
            " estimate)"
        )
    message = (
        f"Cannot certify {quantity} {target:g} for any {subgroup_kind} ({n_subgroups} in these"
        f" {n_rows:,} rows) {format_confidence_level(delta)}{best_target_clause}. {advice}."
    )
    return InfeasibleTargetError(message, target=target, best=best_target, rows_needed=rows_needed)


def build_infeasible_clusters_error(
    quantity: Quantity,
    target: float,
    delta: float,
    n_clusters: int,
    n_rows: int,
    best_limit: float | None,
    *,
    uses_cluster_means: bool,
) -> InfeasibleTargetError:
    """Build the error for clusters that do not support an accuracy."""
    scope_phrase = "of all rows"
    if uses_cluster_means:
        scope_phrase = "on average over clusters"
    best_limit_clause = "they support no weaker target either"
    if best_limit is not None:
        best_limit_clause = f"the best they support is {best_limit:.4f}"
    message = (
        f"Cannot certify {quantity} {target:g} {scope_phrase} on these {n_clusters:,} clusters"
        f" ({n_rows:,} rows) {format_confidence_level(delta)}; {best_limit_clause}. Lower the target,"
        " collect more clusters, or count one random row of each cluster, which needs fewer of them."
    )
    return InfeasibleTargetError(message, target=target, best=best_limit)


# The functions below describe contradictions in a certificate that was read from a file.


def format_promise_mismatch(promise: object) -> str:
    """Format the sentence for a certificate that belongs to another promise."""
    return f"the certificate does not belong to the promise {promise!r}; fit again"


def format_unsupported_counts(
    quantity: Quantity, target: float, counts: Counts, delta: float | None
) -> str:
    """Format the sentence for counts that do not certify a target."""
    confidence_suffix = bounds.format_confidence_suffix(delta)
    if not quantity.limits_only_rejections:
        n_incorrect = counts.n_accepted - counts.n_correct_accepted
        return (
            f"{n_incorrect:,} errors in {counts.n_accepted:,} accepted rows do not certify an"
            f" accuracy of at least {target:g}{confidence_suffix}"
        )
    if quantity.needs_labels:
        return (
            f"{counts.n_correct_accepted:,} accepted of {counts.n_correct:,} correct rows do not"
            f" certify a miscoverage of at most {target:g}{confidence_suffix}"
        )
    return (
        f"{counts.n_accepted:,} accepted of {counts.n_rows:,} rows do not certify that at most"
        f" {target:g} go to review{confidence_suffix}"
    )
