"""Thresholds of a promise about cases: from cuts of item types to a certificate.

Cuts are on the scale of safety, thresholds on that of uncertainty (`case_items` has the terms). An
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
from metacal.certification.case_outcomes import compute_case_outcomes
from metacal.certification.ranking import Ranking, ThresholdOutcome
from metacal.certification.rows import CalibrationRows
from metacal.certification.rules.rule import REJECT_ALL_ROWS
from metacal.certification.statements import build_certificate
from metacal.formulas import Flags, Float
from metacal.kernels.grid import RELATIVE_GRID


def build_case_items(rows: CalibrationRows, cases: Cases, *, clears_accepted: bool) -> CaseItems:
    """Build the items of cases from rows.

    Parameters
    ----------
    rows : CalibrationRows
        Items with their uncertainty, correctness and type.

    cases : Cases
        Case of each item.

    clears_accepted : bool
        Whether accepted items are cleared, so that incorrect ones are harmful. If not, rejected items
        are, and correct ones are harmful.

    Returns
    -------
    CaseItems
    """
    types = np.zeros(len(rows), dtype=np.intp)
    n_types = 1
    if rows.subgroups is not None:
        types = rows.subgroups.codes
        n_types = len(rows.subgroups.names)
    return CaseItems(
        safety=-rows.scores if clears_accepted else rows.scores,
        is_harmful=~rows.is_correct if clears_accepted else rows.is_correct,
        types=types,
        cases=cases.codes,
        n_types=n_types,
    )


def convert_cuts_to_thresholds(cuts: Float, *, clears_accepted: bool) -> Float:
    """Convert cuts to thresholds of the uncertainty, on midpoints of the grid of scores.

    An item whose safety equals the cut is not cleared.

    Examples
    --------
    >>> cuts = np.array([0.5, -np.inf, np.inf])
    >>> thresholds = convert_cuts_to_thresholds(cuts, clears_accepted=True)
    >>> bool(thresholds[0] < -0.5), thresholds[1:]
    (True, array([ inf, -inf]))
    >>> bool(convert_cuts_to_thresholds(cuts, clears_accepted=False)[0] > 0.5)
    True
    """
    thresholds = []
    for cut in cuts.tolist():
        if not clears_accepted:
            thresholds.append(RELATIVE_GRID.move_between_grid_points(cut))
        elif math.isinf(cut):
            thresholds.append(-cut)
        else:
            thresholds.append(RELATIVE_GRID.get_midpoint_below(-cut))
    return np.array(thresholds)


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
    largest: int | None = None,
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

    largest : int, optional
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
    types = np.zeros(len(tested_rows), dtype=np.intp)
    if tested_rows.subgroups is not None:
        types = tested_rows.subgroups.codes
    is_accepted = accept_up_to_threshold(tested_rows.scores, thresholds[types])
    threshold = REJECT_ALL_ROWS
    subgroups = None
    if tested_rows.subgroups is None:
        threshold = float(thresholds[0])
        outcome = tested_rows.ranking.summarize_threshold(threshold)
    else:
        subgroups = _build_type_certificates(tested_rows, tested_rows.subgroups.names, thresholds)
        outcome = _count_outcome(is_accepted, tested_rows.is_correct)
    counts, mean_errors = _count_cases(
        quantity, tested_rows, is_accepted, division, is_tested_case, largest
    )
    certificate = build_certificate(
        quantity=quantity,
        target=target,
        delta=delta,
        rule_name=rule_name,
        threshold=threshold,
        outcome=outcome,
        notes=notes,
    )
    return replace(certificate, subgroups=subgroups, cases=counts, mean_cost=mean_errors)


def _build_type_certificates(
    tested_rows: CalibrationRows, names: tuple[Name, ...], thresholds: Float
) -> SubgroupCertificates:
    """Build the certificate of each type from its tested items."""
    assert tested_rows.subgroups is not None
    items = []
    for code, name in enumerate(names):
        is_of_type = tested_rows.subgroups.codes == code
        ranking = Ranking.from_scores(
            tested_rows.scores[is_of_type], tested_rows.is_correct[is_of_type]
        )
        threshold = float(thresholds[code])
        outcome = ranking.summarize_threshold(threshold)
        items.append(SubgroupCertificate((name,), threshold=threshold, **outcome._asdict()))
    # The promise is one about all types, so delta is not divided among them.
    return SubgroupCertificates(by="group", delta_sharing="together", items=tuple(items))


def _count_outcome(is_accepted: Flags, is_correct: Flags) -> ThresholdOutcome:
    """Count the items that the thresholds of all types accept."""
    return ThresholdOutcome(
        n_rows=len(is_accepted),
        n_correct=int(is_correct.sum()),
        n_accepted=int(is_accepted.sum()),
        n_correct_accepted=int((is_accepted & is_correct).sum()),
        highest_accepted=None,
        lowest_rejected=None,
    )


def _count_cases(
    quantity: Quantity,
    tested_rows: CalibrationRows,
    is_accepted: Flags,
    division: CaseDivision,
    is_tested_case: Flags,
    largest: int | None,
) -> tuple[CaseCounts, float | None]:
    """Count the tested cases that break the promise, and compute their mean number of errors."""
    assert tested_rows.cases is not None
    outcomes = compute_case_outcomes(
        quantity, tested_rows.cases, is_accepted, tested_rows.is_correct, largest
    )
    n_broken, n_counted = quantity.count_violations(
        outcomes.accept[is_tested_case], outcomes.correct[is_tested_case]
    )
    mean_errors = None
    if outcomes.losses is not None:
        mean_errors = float(outcomes.losses.if_accepted[is_tested_case].mean())
    n_uncovered = 0
    if quantity.case_outcome == "missed":
        n_uncovered = int(division.is_uncovered.sum())
    counts = CaseCounts(
        n_tested=len(division.tested_cases),
        n_counted=n_counted,
        n_broken=n_broken,
        n_pilot=division.n_pilot,
        n_uncovered=n_uncovered,
    )
    return counts, mean_errors
