"""Consistency checks of the numbers in a certificate.

A *subgroup* is a class or group with its own threshold (`SubgroupCertificate`). The *tested* rows certified the
promise. The *traffic* rows describe the rows that the gate receives; usually they are the same.
Scores are uncertainties: a row is accepted if its score is at most the threshold.
"""

from __future__ import annotations

import math
from typing import Any

from metacal.certificates.certificate import Certificate
from metacal.certificates.counts import Counts, Traffic
from metacal.certificates.quantity import Quantity
from metacal.certificates.subgroups import Name, SubgroupCertificate, SubgroupCertificates
from metacal.errors import ArtifactError

#: Largest relative rounding error of a score.
#: A threshold may differ by this much from the score that it was computed from.
MAX_RELATIVE_ROUNDING_ERROR = 2.0**-29

#: Maximum number of rows. Every count up to this number is exact in a float.
MAX_ROWS = 2**53

# Maximum lengths of the name of a class or group, and of the name of a model in a cascade.
_MAX_NAME_LENGTH = 2000
_MAX_MODEL_NAME_LENGTH = 80


def require(condition: bool, complaint: str, location: str = "certificate") -> None:
    """Raise ArtifactError unless a condition holds.

    Parameters
    ----------
    condition : bool
        Required condition.

    complaint : str
        Description of the problem, without a full stop.

    location : str, default="certificate"
        Position in the file.
    """
    if not condition:
        raise ArtifactError(f"{location}: {complaint}.")


def check_certificate_numbers(certificate: Certificate) -> None:
    """Raise ArtifactError if the numbers of a certificate are inconsistent."""
    n_rows = certificate.n_rows
    require(n_rows >= 1, f"n_rows must be at least 1, not {n_rows}")
    require(n_rows <= MAX_ROWS, f"n_rows {n_rows} is more than anybody has")
    _check_needed_labels_exist(certificate)
    _check_mean_cost(certificate)
    _check_some_row_is_correct(certificate)
    _check_counts(certificate, "certificate")
    _check_traffic(certificate.traffic)

    has_single_threshold = certificate.stages is None and certificate.subgroups is None
    if has_single_threshold:
        _check_threshold(
            certificate, relative_tolerance=MAX_RELATIVE_ROUNDING_ERROR, location="certificate"
        )
        return
    has_scores = certificate.highest_accepted is not None or certificate.lowest_rejected is not None
    require(not has_scores, "scores beside the threshold belong to its parts or stages")
    if certificate.stages is not None:
        _check_stages(certificate)
    else:
        _check_subgroups(certificate)


def _check_traffic(traffic: Traffic) -> None:
    """Raise ArtifactError if the counts of rows that a gate receives are inconsistent."""
    require(1 <= traffic.n_rows <= MAX_ROWS, "such traffic cannot be")
    _check_counts(traffic, "traffic")


def _list_limited_quantities(certificate: Certificate) -> list[Quantity]:
    """Return the quantities that the promise limits, for example the miscoverage."""
    return [quantity for quantity, _limit in certificate.limits]


def _check_needed_labels_exist(certificate: Certificate) -> None:
    """Raise ArtifactError if a promise that needs labels was certified without them."""
    depends_on_labels = any(
        quantity.needs_labels for quantity in _list_limited_quantities(certificate)
    )
    # A cascade can be certified without labels if its promise needs only the agreement of models.
    # For example, the agreement bounds the difference between the error rates of two models.
    is_cascade = certificate.stages is not None
    is_agreement_sufficient = (
        certificate.quantity.is_paired_difference or certificate.quantity.uses_agreement_only
    )
    needs_labels = depends_on_labels and not (is_cascade and is_agreement_sufficient)
    require(
        certificate.has_labels or not needs_labels,
        "what is promised cannot be certified without labels",
    )


def _check_mean_cost(certificate: Certificate) -> None:
    """Raise ArtifactError if the mean cost is missing, invalid or unexpected."""
    limits_cost = any(quantity.is_mean_cost for quantity in _list_limited_quantities(certificate))
    mean_cost = certificate.mean_cost
    require(
        limits_cost == (mean_cost is not None),
        "mean_cost belongs to promises about costs, and to all of them",
    )
    is_valid_cost = mean_cost is None or 0.0 <= mean_cost < math.inf
    require(is_valid_cost, f"mean_cost {mean_cost} is no cost")


def _check_some_row_is_correct(certificate: Certificate) -> None:
    """Raise ArtifactError if a certificate that counts correct rows has none."""
    limits_cost = any(quantity.is_mean_cost for quantity in _list_limited_quantities(certificate))
    counts_correct_rows = certificate.has_labels and not limits_cost
    require(
        certificate.n_correct >= 1 or not counts_correct_rows,
        f"0 of {certificate.n_rows} rows cannot be right",
    )


def _check_counts(counts: Certificate | SubgroupCertificate | Counts, location: str) -> None:
    """Raise ArtifactError if the counts of accepted and correct rows are inconsistent."""
    n_rows = counts.n_rows
    n_correct = counts.n_correct
    n_accepted = counts.n_accepted
    require(0 <= n_correct <= n_rows, f"{n_correct} of {n_rows} rows cannot be right", location)
    require(
        0 <= n_accepted <= n_rows, f"{n_accepted} of {n_rows} rows cannot be accepted", location
    )
    has_labels = getattr(counts, "has_labels", True)
    if not has_labels:
        return
    n_correct_accepted = counts.n_correct_accepted
    require(
        0 <= n_correct_accepted <= min(n_accepted, n_correct),
        f"{n_correct_accepted} rows cannot be both accepted and right",
        location,
    )
    n_incorrect_accepted = n_accepted - n_correct_accepted
    require(
        n_incorrect_accepted <= n_rows - n_correct,
        f"{n_incorrect_accepted} accepted rows cannot be wrong",
        location,
    )


def _check_threshold(
    certificate: Certificate | SubgroupCertificate, relative_tolerance: float, location: str
) -> None:
    """Raise ArtifactError unless a threshold separates accepted and rejected scores.

    Parameters
    ----------
    certificate : Certificate or SubgroupCertificate
        Threshold with the neighbouring scores.

    relative_tolerance : float
        Allowed rounding error, relative to the score. It is relative because the entropy of a
        confident row can be as small as 1e-12.

    location : str
        Position in the file, used in error messages.
    """
    threshold = certificate.threshold
    highest_accepted = certificate.highest_accepted
    lowest_rejected = certificate.lowest_rejected
    accepts_none = certificate.n_accepted == 0
    accepts_all = certificate.n_accepted == certificate.n_rows
    require(
        (highest_accepted is None) == accepts_none,
        "highest_accepted and n_accepted disagree",
        location,
    )
    require(
        (lowest_rejected is None) == accepts_all,
        "lowest_rejected and n_accepted disagree",
        location,
    )
    accepts_highest = True
    if highest_accepted is not None:
        rounding_error = max_rounding_error(threshold, relative_tolerance)
        accepts_highest = highest_accepted <= threshold + rounding_error
    rejects_lowest = True
    if lowest_rejected is not None:
        rounding_error = max_rounding_error(lowest_rejected, relative_tolerance)
        rejects_lowest = threshold < lowest_rejected + rounding_error
    require(
        accepts_highest and rejects_lowest,
        f"the threshold {threshold} does not separate accepted from rejected scores",
        location,
    )


def max_rounding_error(
    score: float, relative_tolerance: float, min_magnitude: float = 0.0
) -> float:
    """Return the largest rounding error of a score.

    Parameters
    ----------
    score : float
        Score or threshold.

    relative_tolerance : float
        Largest relative rounding error.

    min_magnitude : float, default=0.0
        Magnitude to which the rounding error of smaller scores is relative.

    Returns
    -------
    float
        0 for an infinite score.
    """
    if not math.isfinite(score):
        return 0.0
    return relative_tolerance * max(min_magnitude, abs(score))


def _check_stages(certificate: Certificate) -> None:
    """Raise ArtifactError if the stages of a cascade are not valid."""
    assert certificate.stages is not None
    require(certificate.subgroups is None, "the stages of a cascade have no parts")
    for stage in certificate.stages.models:
        require(
            _is_valid_name(stage.name, _MAX_MODEL_NAME_LENGTH),
            "the name of a stage must be one line of plain text",
        )


def _check_subgroups(certificate: Certificate) -> None:
    """Raise ArtifactError unless the subgroups are valid and their counts add up."""
    subgroups = certificate.subgroups
    assert subgroups is not None
    location = "certificate.parts"
    require(
        len(subgroups.items) > 0,
        f"items must be a list with an entry per {subgroups.by}",
        location,
    )
    _check_subgroup_names(subgroups, location)
    for index, subgroup in enumerate(subgroups.items):
        _check_subgroup(subgroup, f"{location}.items[{index}]")
    require(
        certificate.threshold == -math.inf,
        "the threshold of a certificate with parts must be -inf",
    )
    # A pooled subgroup is certified on only three quarters of its rows, so its counts can lack rows.
    can_lack_rows = any(subgroup.is_pooled for subgroup in subgroups.items)
    for count_name in ("n_rows", "n_correct", "n_accepted", "n_correct_accepted"):
        subgroup_sum = sum(getattr(subgroup, count_name) for subgroup in subgroups.items)
        certificate_count = getattr(certificate, count_name)
        adds_up = subgroup_sum == certificate_count
        if can_lack_rows:
            adds_up = subgroup_sum <= certificate_count
        require(adds_up, f"{count_name} is not the sum of its parts")


def _check_subgroup_names(subgroups: SubgroupCertificates, location: str) -> None:
    """Raise ArtifactError if the names of the subgroups are invalid or not unique."""
    # Two subgroups can have the same name if they are about different predicted classes.
    names_with_predicted_class: list[tuple[Name, Name | None]] = []
    for subgroup in subgroups.items:
        names_with_predicted_class.extend(subgroup.names_with_predicted_class)
    has_distinct_names = len(set(names_with_predicted_class)) == len(names_with_predicted_class)
    require(has_distinct_names, "two parts bear the same name", location)
    _check_predicted_classes_of_groups(subgroups, location)
    names = subgroups.names
    n_texts = sum(isinstance(name, str) for name in names)
    has_names_of_one_type = len(names) > 0 and n_texts in (0, len(names))
    require(
        has_names_of_one_type,
        "names must be all text or all numbers",
        location,
    )
    require(
        all(_is_valid_name(name, _MAX_NAME_LENGTH) for name in names),
        "a name must be one line of plain text",
        location,
    )


def _check_predicted_classes_of_groups(subgroups: SubgroupCertificates, location: str) -> None:
    """Raise ArtifactError if the two subgroups of a group contradict each other.

    If a promise is about two classes, each group has one subgroup per predicted class. Both must
    name the same group, and the same log-odds above which the second class is predicted.
    Otherwise, a subgroup must not have a predicted class.
    """
    has_two_per_group = subgroups.by == "group" and subgroups.is_two_sided
    for subgroups_of_group in subgroups.sides_by_group:
        names_and_decision_log_odds = {
            (subgroup.names, subgroup.decision_log_odds)
            for subgroup in subgroups_of_group
            if subgroup.predicted_class is not None
        }
        if has_two_per_group:
            is_consistent = len(names_and_decision_log_odds) == 1
        else:
            is_consistent = len(names_and_decision_log_odds) == 0
        require(is_consistent, "the two sides of a group are not of one", location)


def _check_subgroup(subgroup: SubgroupCertificate, location: str) -> None:
    """Raise ArtifactError if the numbers of a subgroup are inconsistent."""
    require(len(subgroup.names) >= 1, "it has no name", location)
    _check_counts(subgroup, location)
    _check_threshold(subgroup, relative_tolerance=0.0, location=location)
    delta = subgroup.delta
    require(delta is None or 0.0 < delta < 1.0, f"delta {delta} is not between 0 and 1", location)
    # A certificate can record the best target that the rows support.
    supported_target = subgroup.best_supported_target
    require(
        supported_target is None or 0.0 <= supported_target <= 1.0,
        f"best {supported_target} is no share",
        location,
    )
    rows_needed = subgroup.rows_needed
    require(rows_needed is None or rows_needed >= 1, "rows_needed must be at least 1", location)


def _is_valid_name(name: Any, max_length: int) -> bool:
    """Check whether a name is a number or a short line of printable text."""
    if not isinstance(name, str):
        return True
    return name.isprintable() and len(name) <= max_length
