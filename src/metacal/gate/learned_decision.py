"""Two classes that are decided at log-odds learned from calibration rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from metacal import kernels
from metacal.certificates.circumstances import Circumstances
from metacal.certificates.notes import (
    Note,
    about_largest_logit,
    decision_disagrees,
    decision_learned,
)
from metacal.certification.ranking import find_even_odds_score
from metacal.certification.row_selection import RowSelection, SelectedRows
from metacal.formulas import Flags
from metacal.gate.certify_table import check_two_classes
from metacal.gate.logits_source import shift_rows
from metacal.maps.map import Map
from metacal.maps.monotone import log_odds
from metacal.rows import Rows
from metacal.rows.arrays import on_host
from metacal.rows.draws import RowDraws

# Number of rows per row that the decision is learned from.
_ROWS_PER_DECISION_ROW = 10

# Smallest number of rows that the decision is learned from, unless this is more than half of them.
_MIN_DECISION_ROWS = 40


@dataclass(frozen=True, eq=False)
class LearnedDecision:
    """Decision between two classes at even calibrated odds.

    Attributes
    ----------
    rows : Rows
        Rows that are moved so that their largest logit is the decision.

    decision_offset : float
        Log-odds above which the second class is predicted.

    counted : SelectedRows
        Rows that certify. The rows that the decision was learned from are not among them.
    """

    rows: Rows
    decision_offset: float
    counted: SelectedRows


def learn_decision(rows: Rows, codes: Any, selection: RowSelection | None) -> LearnedDecision:
    """Learn where two classes are equally likely, from a random tenth of the rows.

    The rows are drawn at random, so the others are still a random sample, and the decision is fixed
    before any of them is read. (A decision that is learned from the rows that certify breaks 0.16 to
    0.19 of promises at delta = 0.1.)

    Parameters
    ----------
    rows : Rows
        Logits of two classes.

    codes : array of int of shape (n_rows,)
        True class of each row.

    selection : RowSelection or None
        Rows that count, to be drawn. None if all rows count.

    Returns
    -------
    LearnedDecision
    """
    check_two_classes(rows.n_classes, "decision='calibrated'")
    true_codes = np.asarray(on_host(codes, "labels"))
    scores = rows.on_host().collect(log_odds)
    counted_index = np.arange(len(rows))
    circumstances = Circumstances()
    notes: tuple[Note, ...] = ()
    if selection is not None:
        counted = selection.draw(scores, true_codes)
        counted_index = counted.indices
        circumstances = counted.circumstances
        notes = counted.notes

    n_counted = len(counted_index)
    n_decision_rows = max(_MIN_DECISION_ROWS, n_counted // _ROWS_PER_DECISION_ROW)
    n_decision_rows = min(n_decision_rows, n_counted // 2)
    draws = RowDraws(scores[counted_index], true_codes[counted_index])
    is_decision_row = np.zeros(n_counted, dtype=bool)
    is_decision_row[draws.order("learned decision")[:n_decision_rows]] = True

    decision_index = counted_index[is_decision_row]
    decision_offset = find_even_odds_score(scores[decision_index], true_codes[decision_index] == 1)
    certifying_index = counted_index[~is_decision_row]
    speaker = np.full(len(rows), -1, dtype=np.intp)
    speaker[certifying_index] = np.arange(len(certifying_index))
    note = decision_learned(aside=n_decision_rows, at=decision_offset)
    return LearnedDecision(
        rows=shift_rows(rows, decision_offset),
        decision_offset=decision_offset,
        counted=SelectedRows(certifying_index, speaker, circumstances, (*notes, note)),
    )


def note_on_predictions(rows: Rows, base_map: Map, is_accepted: Flags) -> Note:
    """Return the note for a map that may change which class has the largest probability."""
    if rows.n_classes == 2 and not rows.on_device and is_accepted.any():
        accepted_rows = rows.where(is_accepted)
        predicted = accepted_rows.collect(kernels.predicted)
        calibrated = Rows(base_map(accepted_rows.gathered()))
        n_different = int((predicted != calibrated.collect(kernels.predicted)).sum())
        if n_different:
            return decision_disagrees(rows=len(predicted), differ=n_different).issue_warning()
    return about_largest_logit()
