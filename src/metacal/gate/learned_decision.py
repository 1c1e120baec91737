"""Prediction of two classes at log-odds that are learned from calibration rows.

The second class is predicted if its log-odds exceed the *decision offset*. The offset of the largest
logit is 0. A learned offset is where both classes are equally likely.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metacal import kernels
from metacal.certificates.design import CertificationDesign
from metacal.certificates.notes import (
    Note,
    note_about_largest_logit,
    note_changed_predictions,
    note_decision_learned,
)
from metacal.certification.even_odds import find_even_odds_score
from metacal.certification.row_selection import RowSelection, SelectedRows
from metacal.certification.rows import Clusters
from metacal.formulas import Codes, Flags, Float
from metacal.gate.calibration_table import check_two_classes
from metacal.gate.shifted_rows import shift_second_logit
from metacal.maps.map import Map
from metacal.maps.monotone import log_odds
from metacal.rows import Rows
from metacal.rows.arrays import to_numpy
from metacal.rows.draws import RowDraws

# The decision is learned from one in this many rows (or clusters), called pilot rows.
_ROWS_PER_PILOT = 10

# Minimum number of pilot rows (or clusters), unless half of all rows is a smaller number.
_MIN_PILOTS = 40

# Code of an unselected row, in place of its position among the selected rows.
_NOT_SELECTED = -1


@dataclass(frozen=True, eq=False)
class LearnedDecision:
    """Decision offset learned from pilot rows, and the rows left to certify.

    Attributes
    ----------
    decision_offset : float
        Log-odds above which the second class is predicted.

    shifted_rows : Rows
        All rows, shifted so that their largest logit is the predicted class.

    rows_to_certify : SelectedRows
        Rows that count for the certificate. Pilot rows are not among them.
    """

    decision_offset: float
    shifted_rows: Rows
    rows_to_certify: SelectedRows


def learn_decision(rows: Rows, labels: Codes, selection: RowSelection | None) -> LearnedDecision:
    """Learn from pilot rows at which log-odds two classes are equally likely.

    The pilot rows are drawn at random, so the others are still a random sample, and the decision is
    fixed before any of them is read. It would be invalid to learn the decision from the rows to
    certify: 16% to 19% of promises would be broken at delta = 0.1. If every row of a cluster counts, whole
    clusters are drawn.

    Parameters
    ----------
    rows : Rows
        Logits of two classes.

    labels : array of int of shape (n_rows,)
        Column of the true class of each row.

    selection : RowSelection or None
        Rows that count, to be drawn. None if all rows count.

    Returns
    -------
    LearnedDecision
    """
    check_two_classes(rows.n_classes, "decision='calibrated'")
    host_labels = np.asarray(to_numpy(labels, "labels"))
    row_log_odds = rows.to_host().compute_column(log_odds)
    counted_row_indices = np.arange(len(rows))
    design = CertificationDesign()
    notes: tuple[Note, ...] = ()
    clusters = None
    if selection is not None:
        selected_rows = selection.draw(row_log_odds, host_labels)
        counted_row_indices = selected_rows.indices
        design = selected_rows.design
        notes = selected_rows.notes
        clusters = selected_rows.clusters

    if clusters is None:
        is_pilot = _draw_pilot_rows(
            row_log_odds[counted_row_indices], host_labels[counted_row_indices]
        )
    else:
        is_pilot = _select_rows_of_pilot_clusters(clusters)
        clusters = clusters.take(~is_pilot)
    pilot_row_indices = counted_row_indices[is_pilot]
    row_indices_to_certify = counted_row_indices[~is_pilot]

    is_pilot_of_second_class = host_labels[pilot_row_indices] == 1
    decision_offset = find_even_odds_score(
        row_log_odds[pilot_row_indices], is_pilot_of_second_class
    )
    decision_note = note_decision_learned(aside=len(pilot_row_indices), at=decision_offset)
    return LearnedDecision(
        decision_offset=decision_offset,
        shifted_rows=shift_second_logit(rows, decision_offset),
        rows_to_certify=SelectedRows(
            indices=row_indices_to_certify,
            representatives=_compute_positions_in_selection(row_indices_to_certify, len(rows)),
            design=design,
            notes=(*notes, decision_note),
            clusters=clusters,
        ),
    )


def _draw_pilot_rows(row_log_odds: Float, labels: Codes) -> Flags:
    """Return a mask of independent rows that are drawn at random as pilot rows."""
    n_rows = len(labels)
    row_draws = RowDraws((row_log_odds, labels))
    random_order = row_draws.draw_row_order(purpose="learned decision")
    pilot_indices = random_order[: _choose_n_pilots(n_rows)]
    is_pilot = np.zeros(n_rows, dtype=bool)
    is_pilot[pilot_indices] = True
    return is_pilot


def _select_rows_of_pilot_clusters(clusters: Clusters) -> Flags:
    """Return a mask of the rows of randomly ordered pilot clusters.

    It is not valid to draw rows of all clusters, because certifying rows of the same clusters depend
    on them.
    """
    n_pilot_clusters = _choose_n_pilots(clusters.n_clusters)
    return clusters.codes < n_pilot_clusters


def _choose_n_pilots(n_independent: int) -> int:
    """Choose the number of rows or clusters from which the decision is learned."""
    max_pilots = n_independent // 2
    n_pilots = max(_MIN_PILOTS, n_independent // _ROWS_PER_PILOT)
    return min(n_pilots, max_pilots)


def _compute_positions_in_selection(selected_indices: Codes, n_rows: int) -> Codes:
    """Return the position of each row among the selected rows, or -1."""
    position_in_selection = np.full(n_rows, _NOT_SELECTED, dtype=np.intp)
    position_in_selection[selected_indices] = np.arange(len(selected_indices))
    return position_in_selection


def build_note_on_changed_predictions(rows: Rows, calibration_map: Map, is_accepted: Flags) -> Note:
    """Build a note on whether a calibration map changes predictions of two classes.

    Parameters
    ----------
    rows : Rows
        Validated logits.

    calibration_map : Map
        Map that may change the order of the classes.

    is_accepted : array of bool of shape (n_rows,)
        Whether the gate accepts each row.

    Returns
    -------
    Note
        Number of accepted rows with another prediction, which is also a warning. If none is found,
        a note that the promise is about the largest logit.
    """
    has_two_classes = rows.n_classes == 2
    if not has_two_classes or rows.is_on_device or not is_accepted.any():
        return note_about_largest_logit()
    accepted_rows = rows.select(is_accepted)
    largest_logit_codes = accepted_rows.compute_column(kernels.predict_classes)
    probabilities = Rows(calibration_map(accepted_rows.to_array()))
    most_probable_codes = probabilities.compute_column(kernels.predict_classes)
    n_changed_predictions = int((largest_logit_codes != most_probable_codes).sum())
    if n_changed_predictions == 0:
        return note_about_largest_logit()
    return note_changed_predictions(
        rows=len(largest_logit_codes), differ=n_changed_predictions
    ).issue_warning()
