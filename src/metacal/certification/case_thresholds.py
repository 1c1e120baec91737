"""Certificate of a promise about cases, built from the cutoffs of the item types.

Cutoffs are on the scale of safety, thresholds on that of uncertainty (`case_items` has the terms). An
item without a score has no safety, and is never accepted.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from metacal.certificates.case_counts import CaseCounts
from metacal.certificates.certificate import Certificate, accept_up_to_threshold
from metacal.certificates.notes import Note
from metacal.certificates.quantity import Quantity
from metacal.certificates.subgroups import Name, SubgroupCertificate, SubgroupCertificates
from metacal.certification.case_division import CaseDivision
from metacal.certification.case_items import CaseItems, Cases
from metacal.certification.case_outcomes import CaseOutcomes, compute_case_outcomes
from metacal.certification.ranking import Ranking, ThresholdOutcome
from metacal.certification.rows import CalibrationRows
from metacal.certification.rules.rule import REJECT_ALL_ROWS
from metacal.certification.statements import build_certificate
from metacal.formulas import Flags, Float
from metacal.kernels.grid import RELATIVE_GRID


def build_case_items(
    rows: CalibrationRows, cases: Cases, *, limits_accepted_errors: bool
) -> CaseItems:
    """Build the items of cases, with their safety and harmfulness, from rows.

    Parameters
    ----------
    rows : CalibrationRows
        Items with their uncertainty, correctness and type.

    cases : Cases
        Case of each item.

    limits_accepted_errors : bool
        Whether incorrect accepted items break the promise. Accepted items are then cleared, and
        incorrect ones are harmful. If not, rejected items are cleared, and correct ones are harmful.

    Returns
    -------
    CaseItems
    """
    item_types = np.zeros(len(rows), dtype=np.intp)
    n_types = 1
    if rows.subgroups is not None:
        item_types = rows.subgroups.codes
        n_types = len(rows.subgroups.names)
    if limits_accepted_errors:
        safety = -rows.scores
        is_harmful = ~rows.is_correct
    else:
        safety = rows.scores
        is_harmful = rows.is_correct
    return CaseItems(
        safety=safety,
        is_harmful=is_harmful,
        types=item_types,
        cases=cases.codes,
        n_types=n_types,
    )


def convert_cutoffs_to_thresholds(cutoffs: Float, *, limits_accepted_errors: bool) -> Float:
    """Convert cutoffs on the safety of items to thresholds on their uncertainty.

    An item is cleared if its safety is strictly above the cutoff, and accepted if its uncertainty is
    at most the threshold.

    Examples
    --------
    >>> cutoffs = np.array([0.5, -np.inf, np.inf])
    >>> thresholds = convert_cutoffs_to_thresholds(cutoffs, limits_accepted_errors=True)
    >>> bool(thresholds[0] < -0.5), thresholds[1:]
    (True, array([ inf, -inf]))
    >>> bool(convert_cutoffs_to_thresholds(cutoffs, limits_accepted_errors=False)[0] > 0.5)
    True
    """
    if limits_accepted_errors:
        # The safety is the negated uncertainty: "safety > cutoff" means "uncertainty < -cutoff".
        thresholds = [_find_threshold_accepting_below(-cutoff) for cutoff in cutoffs.tolist()]
    else:
        # The safety equals the uncertainty, and items with an uncertainty <= cutoff are accepted.
        thresholds = [RELATIVE_GRID.make_robust_to_rounding(cutoff) for cutoff in cutoffs.tolist()]
    return np.array(thresholds)


def _find_threshold_accepting_below(uncertainty: float) -> float:
    """Find the threshold that accepts the items with an uncertainty below a value.

    If the uncertainty is infinite, every item or no item is accepted.
    """
    if math.isinf(uncertainty):
        return uncertainty
    return RELATIVE_GRID.find_largest_threshold_rejecting(uncertainty)


def build_case_certificate(
    rows: CalibrationRows,
    cases: Cases,
    division: CaseDivision,
    thresholds: Float,
    *,
    quantity: Quantity,
    target: float,
    delta: float | None,
    rule_name: str,
    max_counted_errors: int | None = None,
    notes: tuple[Note, ...] = (),
) -> Certificate:
    """Build the certificate of thresholds, with the counts of the tested cases.

    Parameters
    ----------
    rows : CalibrationRows
        All items.

    cases : Cases
        Case of each item.

    division : CaseDivision
        Cases that were tested.

    thresholds : array of float of shape (n_types,)
        Threshold of each type.

    quantity : Quantity
        Limited quantity.

    target : float
        Promised limit.

    delta : float or None
        Error probability of the promise. None if it holds in expectation.

    rule_name : str
        Name of the rule.

    max_counted_errors : int, optional
        Largest number of errors that counts in a case, if their mean is limited.

    notes : tuple of Note, default=()
        Notes of the certificate.

    Returns
    -------
    Certificate
    """
    is_tested_case = np.zeros(cases.n_cases, dtype=bool)
    is_tested_case[division.tested_cases] = True
    tested_rows = rows.take(is_tested_case[cases.codes])
    item_types = np.zeros(len(tested_rows), dtype=np.intp)
    if tested_rows.subgroups is not None:
        item_types = tested_rows.subgroups.codes
    is_accepted = accept_up_to_threshold(tested_rows.scores, thresholds[item_types])
    threshold = REJECT_ALL_ROWS
    type_certificates = None
    if tested_rows.subgroups is None:
        threshold = float(thresholds[0])
        threshold_outcome = tested_rows.ranking.summarize_threshold(threshold)
    else:
        type_certificates = _build_type_certificates(
            tested_rows, tested_rows.subgroups.names, thresholds
        )
        threshold_outcome = ThresholdOutcome.from_masks(is_accepted, tested_rows.is_correct)
    assert tested_rows.cases is not None
    case_outcomes = compute_case_outcomes(
        quantity, tested_rows.cases, is_accepted, tested_rows.is_correct, max_counted_errors
    )
    certificate = build_certificate(
        quantity=quantity,
        target=target,
        delta=delta,
        rule_name=rule_name,
        threshold=threshold,
        outcome=threshold_outcome,
        notes=notes,
    )
    return replace(
        certificate,
        subgroups=type_certificates,
        cases=_count_tested_cases(quantity, case_outcomes, is_tested_case, division),
        mean_cost=_compute_mean_errors(case_outcomes, is_tested_case),
    )


def _build_type_certificates(
    tested_rows: CalibrationRows, type_names: tuple[Name, ...], thresholds: Float
) -> SubgroupCertificates:
    """Build the certificate of each item type from its tested items."""
    assert tested_rows.subgroups is not None
    type_certificates = []
    for type_code, type_name in enumerate(type_names):
        is_of_type = tested_rows.subgroups.codes == type_code
        ranking_of_type = Ranking.from_scores(
            tested_rows.scores[is_of_type], tested_rows.is_correct[is_of_type]
        )
        threshold = float(thresholds[type_code])
        threshold_outcome = ranking_of_type.summarize_threshold(threshold)
        type_certificate = SubgroupCertificate(
            (type_name,), threshold=threshold, **threshold_outcome._asdict()
        )
        type_certificates.append(type_certificate)
    # Item types are stored as groups. They share one promise, so delta is not divided.
    return SubgroupCertificates(
        by="group", delta_sharing="together", items=tuple(type_certificates)
    )


def _count_tested_cases(
    quantity: Quantity, case_outcomes: CaseOutcomes, is_tested_case: Flags, division: CaseDivision
) -> CaseCounts:
    """Count the tested cases and the cases that break the promise."""
    n_broken, n_counted = quantity.count_violations(
        case_outcomes.accept[is_tested_case], case_outcomes.correct[is_tested_case]
    )
    n_uncovered = 0
    if quantity.limits_missed_items_of_cases:
        has_item_without_score = division.breaks_at_every_cutoff
        n_uncovered = int(has_item_without_score.sum())
    return CaseCounts(
        n_tested=len(division.tested_cases),
        n_counted=n_counted,
        n_broken=n_broken,
        n_pilot=division.n_pilot,
        n_uncovered=n_uncovered,
    )


def _compute_mean_errors(case_outcomes: CaseOutcomes, is_tested_case: Flags) -> float | None:
    """Compute the mean number of errors per tested case."""
    if case_outcomes.losses is None:
        return None
    n_errors_per_case = case_outcomes.losses.if_accepted[is_tested_case]
    return float(n_errors_per_case.mean())
