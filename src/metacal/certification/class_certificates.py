"""Certificates of the rows that are predicted as one of two classes.

`certification.two_sides` builds one certificate for each class, and checks both when a file is
loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from metacal.certificates.counts import Counts
from metacal.certificates.quantity import Quantity
from metacal.certificates.subgroups import Name, SubgroupCertificate
from metacal.certification.class_shortfall import ClassShortfall
from metacal.certification.procedures import DecisionColumns
from metacal.certification.ranking import Ranking, ThresholdOutcome
from metacal.certification.rules.rule import REJECT_ALL_ROWS
from metacal.certification.sides import ClassPromise
from metacal.kernels.grid import RELATIVE_GRID


def build_class_certificate(
    subgroup_names: tuple[Name, ...],
    decision_columns: DecisionColumns,
    predicted_class_code: int,
    max_accepted: int,
) -> SubgroupCertificate:
    """Build the certificate of the rows that are predicted as one class.

    Parameters
    ----------
    subgroup_names : tuple of str or int
        Names of the class or of the groups that the rows belong to.

    decision_columns : DecisionColumns
        Columns by which a gate decides the rows of both classes.

    predicted_class_code : int
        Index of the predicted class.

    max_accepted : int
        Number of rows that may be accepted as the class.

    Returns
    -------
    SubgroupCertificate
        Threshold and counts, without a promise.
    """
    # Each predicted class has its own threshold, so the threshold index is the class code.
    predicted_codes = decision_columns.threshold_indices
    is_predicted_as_class = predicted_codes == predicted_class_code
    class_ranking = Ranking.from_scores(
        decision_columns.uncertainty[is_predicted_as_class],
        decision_columns.correct[is_predicted_as_class],
    )
    largest_threshold = class_ranking.largest_threshold_accepting_at_most(max_accepted)
    threshold = RELATIVE_GRID.make_robust_to_rounding(largest_threshold)
    threshold_outcome = class_ranking.summarize_threshold(threshold)
    return SubgroupCertificate(subgroup_names, threshold=threshold, **threshold_outcome._asdict())


def add_class_promise(
    certificate: SubgroupCertificate,
    class_promise: ClassPromise,
    *,
    positive_class: Name,
    significance_level: float | None,
    significance_level_if_untested: float,
) -> SubgroupCertificate:
    """Add the promise about a class to its certificate.

    Parameters
    ----------
    certificate : SubgroupCertificate
        Threshold and counts of the rows that are predicted as the class.

    class_promise : ClassPromise
        Promise about these rows.

    positive_class : str or int
        Name of the positive class of the promise.

    significance_level : float or None
        Significance level of both classes together, or None if the rows were not tested.

    significance_level_if_untested : float
        Significance level for which the number of required rows is computed if the rows were not
        tested.

    Returns
    -------
    SubgroupCertificate
    """
    if significance_level is None:
        level_of_promise = class_promise.compute_level_of_promise(significance_level_if_untested)
        level_of_test = None
    else:
        level_of_promise = class_promise.compute_level_of_promise(significance_level)
        level_of_test = level_of_promise
    return replace(
        certificate,
        quantity=class_promise.quantity,
        target=float(class_promise.target),
        promised_class=positive_class,
        delta=level_of_test,
        rows_needed=_compute_rows_needed(certificate, class_promise, level_of_promise),
    )


def _compute_rows_needed(
    certificate: SubgroupCertificate, class_promise: ClassPromise, level_of_promise: float
) -> int | None:
    """Compute the rows needed for a class promise, or None if rows are accepted."""
    rejects_all_rows = certificate.threshold == REJECT_ALL_ROWS
    if not rejects_all_rows:
        return None
    return class_promise.rule.compute_required_rows(
        class_promise.limit, significance_level=level_of_promise
    )


def add_best_targets(
    class_certificates: tuple[SubgroupCertificate, ...], shortfalls: Sequence[ClassShortfall]
) -> tuple[SubgroupCertificate, ...]:
    """Add the best certifiable target to certificates without a certified promise."""
    best_target_by_class = {
        shortfall.predicted_class: shortfall.best_target for shortfall in shortfalls
    }
    completed_certificates = []
    for certificate in class_certificates:
        predicted_class = get_predicted_class(certificate)
        best_target = best_target_by_class.get(predicted_class, certificate.best_supported_target)
        completed_certificates.append(replace(certificate, best_supported_target=best_target))
    return tuple(completed_certificates)


def get_predicted_class(certificate: SubgroupCertificate) -> Name:
    """Return the predicted class of the rows of a certificate."""
    if certificate.predicted_class is None:
        return certificate.names[0]
    return certificate.predicted_class


class _StatedPromise(NamedTuple):
    """Promise in the certificate of a class, with None in all fields if it is absent."""

    quantity: Quantity | None = None
    target: float | None = None
    positive_class: Name | None = None
    rows_needed: int | None = None


def states_class_promise(
    certificate: SubgroupCertificate,
    class_promise: ClassPromise | None,
    class_names: Sequence[Name],
    significance_level: float,
) -> bool:
    """Check whether the certificate of a class states the promise about the class.

    Parameters
    ----------
    certificate : SubgroupCertificate
        Certificate of one class, read from a file.

    class_promise : ClassPromise or None
        Promise about the class. If None, the certificate must not state any promise.

    class_names : sequence of str or int
        Names of the two classes.

    significance_level : float
        Significance level of both classes together.

    Returns
    -------
    bool
    """
    stated_promise = _StatedPromise(
        quantity=certificate.quantity,
        target=certificate.target,
        positive_class=certificate.promised_class,
        rows_needed=certificate.rows_needed,
    )
    if class_promise is None:
        no_promise = _StatedPromise()
        return stated_promise == no_promise
    level_of_promise = class_promise.compute_level_of_promise(significance_level)
    if certificate.delta:
        # For tested rows, the certificate records the significance level of the test.
        level_of_promise = certificate.delta
    positive_code = class_promise.get_positive_code(class_names)
    expected_promise = _StatedPromise(
        quantity=class_promise.quantity,
        target=float(class_promise.target),
        positive_class=class_names[positive_code],
        rows_needed=_compute_rows_needed(certificate, class_promise, level_of_promise),
    )
    return stated_promise == expected_promise


def count_members_of_class(
    certificate: SubgroupCertificate, other_certificate: SubgroupCertificate
) -> Counts:
    """Count all rows, the rows of a class, and the rows accepted as this class.

    Parameters
    ----------
    certificate : SubgroupCertificate
        Counts of the rows that are predicted as one class.

    other_certificate : SubgroupCertificate
        Counts of the rows that are predicted as the other class.

    Returns
    -------
    Counts
        All rows, the rows of the class of `certificate`, and the rows accepted as this class.
    """
    n_rows = certificate.n_rows + other_certificate.n_rows
    # In a binary problem, an incorrect row belongs to the class that was not predicted.
    n_members_predicted_as_other_class = other_certificate.n_rows - other_certificate.n_correct
    n_members_of_class = certificate.n_correct + n_members_predicted_as_other_class
    return Counts(
        n_rows=n_rows,
        n_accepted=certificate.n_accepted,
        n_correct=n_members_of_class,
        n_correct_accepted=certificate.n_correct_accepted,
    )


def sum_counts_of_classes(
    class_certificates: tuple[SubgroupCertificate, ...],
) -> ThresholdOutcome:
    """Sum the row counts in the certificates of both classes."""
    return ThresholdOutcome(
        n_rows=sum(certificate.n_rows for certificate in class_certificates),
        n_correct=sum(certificate.n_correct for certificate in class_certificates),
        n_accepted=sum(certificate.n_accepted for certificate in class_certificates),
        n_correct_accepted=sum(
            certificate.n_correct_accepted for certificate in class_certificates
        ),
        highest_accepted=None,
        lowest_rejected=None,
    )
