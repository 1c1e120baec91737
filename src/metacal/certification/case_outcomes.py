"""Outcome of each case: whether the decisions on its items break the promise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metacal.certificates.quantity import Quantity
from metacal.certification.case_items import Cases
from metacal.certification.row_losses import Losses
from metacal.formulas import Flags


@dataclass(frozen=True, eq=False)
class CaseOutcomes:
    """Outcomes of cases, expressed as one decision and one correctness per case.

    Attributes
    ----------
    accept : array of bool of shape (n_cases,)
        Whether the case has an accepted item. For a recall: whether every true item is accepted.

    correct : array of bool of shape (n_cases,)
        Whether the case has no incorrect accepted item. For a recall: whether it has a true item.

    losses : Losses or None
        Number of incorrect accepted items, if their mean is limited.
    """

    accept: Flags
    correct: Flags
    losses: Losses | None = None


def compute_case_outcomes(
    quantity: Quantity,
    cases: Cases,
    accept: Flags,
    correct: Flags,
    max_counted_errors: int | None = None,
) -> CaseOutcomes:
    """Compute the outcome of each case from the decisions on its items.

    Parameters
    ----------
    quantity : Quantity
        Quantity about cases.

    cases : Cases
        Case of each item.

    accept, correct : array of bool of shape (n_items,)
        Whether each item is accepted, and whether it is correct.

    max_counted_errors : int, optional
        Largest number of errors that counts in a case, if the mean number of errors is limited.

    Returns
    -------
    CaseOutcomes

    Examples
    --------
    >>> from metacal.certificates.quantities import CASE_ERRORS, CASE_RECALL
    >>> cases = Cases(np.array([0, 0, 1, 1]), has_correct_item_without_score=np.array([False, False, True]))
    >>> accept = np.array([True, False, True, False])
    >>> correct = np.array([False, True, True, False])
    >>> errors = compute_case_outcomes(CASE_ERRORS, cases, accept, correct)
    >>> CASE_ERRORS.count_events(errors.accept, errors.correct)
    EventCount(n_events=1, n_rows=3)
    >>> recall = compute_case_outcomes(CASE_RECALL, cases, accept, correct)
    >>> CASE_RECALL.count_events(recall.accept, recall.correct)
    EventCount(n_events=1, n_rows=3)
    """
    if quantity.limits_missed_items_of_cases:
        return _compute_recall_outcomes(cases, accept, correct)
    return _compute_error_outcomes(cases, accept, correct, max_counted_errors)


def _compute_recall_outcomes(
    cases: Cases, is_accepted_item: Flags, is_correct_item: Flags
) -> CaseOutcomes:
    """Compute whether each case has correct items, and accepts all of them."""
    has_correct_item = cases.any_item(is_correct_item) | cases.has_correct_item_without_score
    has_rejected_correct_item = cases.any_item(is_correct_item & ~is_accepted_item)
    misses_correct_item = has_rejected_correct_item | cases.has_correct_item_without_score
    return CaseOutcomes(accept=~misses_correct_item, correct=has_correct_item)


def _compute_error_outcomes(
    cases: Cases, is_accepted_item: Flags, is_correct_item: Flags, max_counted_errors: int | None
) -> CaseOutcomes:
    """Compute whether each case has accepted items, and count its errors."""
    has_accepted_item = cases.any_item(is_accepted_item)
    n_errors_per_case = cases.count_items(is_accepted_item & ~is_correct_item)
    has_no_error = n_errors_per_case == 0
    if max_counted_errors is None:
        return CaseOutcomes(accept=has_accepted_item, correct=has_no_error)
    counted_errors_per_case = np.minimum(n_errors_per_case, max_counted_errors)
    case_losses = Losses(
        if_accepted=counted_errors_per_case.astype(np.float64),
        if_rejected=0.0,
        max_loss=float(max_counted_errors),
        is_all_or_nothing=max_counted_errors == 1,
    )
    return CaseOutcomes(accept=has_accepted_item, correct=has_no_error, losses=case_losses)
