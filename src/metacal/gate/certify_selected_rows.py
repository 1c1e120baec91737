"""Certification of a promise on the calibration rows that count.

Clusters and importance weights select the rows that count (`certification.row_selection`), a promise
may split these (`Promise.split_rows`), and pilot rows may be withheld (`certification.pilot`). The
remaining rows are *tested*. The certificate records how the other rows were used.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from metacal.certificates.certificate import Certificate, accept_up_to_threshold
from metacal.certificates.design import CertificationDesign, record_design
from metacal.certification.certify import certify
from metacal.certification.ranking import Ranking
from metacal.certification.row_selection import SelectedRows
from metacal.certification.rows import CalibrationRows, Subgroups
from metacal.errors import GroupsError
from metacal.formulas import Codes, Flags, Float
from metacal.gate.thresholds import factorize_groups, get_certified_thresholds
from metacal.kernels.grid import RELATIVE_GRID, Grid
from metacal.promises.promise import Promise

if TYPE_CHECKING:
    from metacal.certification.pilot import PilotPolicy


@dataclass(frozen=True, eq=False)
class SelectedRowsResult:
    """Certificate of the selected rows, and the rows that may train the calibrator.

    Attributes
    ----------
    certificate : Certificate
        Certificate of the rows that count.

    is_available_for_map : array of bool of shape (n_rows,)
        Whether the calibration map or confidence curve may be fitted on each row.
    """

    certificate: Certificate
    is_available_for_map: Flags


def certify_selected_rows(
    promise: Promise,
    all_rows: CalibrationRows,
    ranking: Ranking,
    *,
    grid: Grid,
    score_name: str,
    selected_rows: SelectedRows | None = None,
    pilot_policy: PilotPolicy | None = None,
    are_logits: bool = False,
) -> SelectedRowsResult:
    """Certify a promise on the selected calibration rows.

    Parameters
    ----------
    promise : Promise
        Promise to certify.

    all_rows : CalibrationRows
        All calibration rows. Their scores are rounded to `grid`.

    ranking : Ranking
        Ranking of the rows that count.

    grid : Grid
        Rounding grid of the score.

    score_name : str
        Name of the score in the certificate.

    selected_rows : SelectedRows, optional
        Rows that count. By default all rows.

    pilot_policy : PilotPolicy, optional
        How pilot rows are withheld. By default none are.

    are_logits : bool, default=False
        Whether the rows are logits, of which fewer pilot rows are withheld.

    Returns
    -------
    SelectedRowsResult
    """
    counted_rows = all_rows
    if selected_rows is not None:
        counted_rows = replace(
            all_rows.take(selected_rows.indices), clusters=selected_rows.clusters
        )
    scores_on_grid = counted_rows.scores
    if grid != RELATIVE_GRID:
        counted_rows = replace(counted_rows, scores=RELATIVE_GRID.round(scores_on_grid))

    is_available_for_threshold, is_available_for_map = promise.split_rows(
        counted_rows.is_correct, counted_rows.scores
    )
    split_design = CertificationDesign()
    if is_available_for_threshold.all():
        tested_rows = replace(counted_rows, precomputed_ranking=ranking)
    else:
        tested_rows = counted_rows.take(is_available_for_threshold)
        split_design = CertificationDesign(random_state=promise.split_seed)
    if pilot_policy is not None and tested_rows.clusters is None:
        tested_rows = _withhold_pilot_rows(tested_rows, pilot_policy, are_logits=are_logits)

    certificate = certify(promise, tested_rows)
    tests_every_counted_row = certificate.n_rows >= len(scores_on_grid)
    if not tests_every_counted_row:
        is_accepted = _accept_by_certificate(certificate, scores_on_grid, counted_rows.subgroups)
        certificate = certificate.with_counts_of_all_rows(is_accepted, counted_rows.is_correct)
    if pilot_policy is not None and tested_rows.pilot_rows is not None:
        certificate = _record_pilot_rows(certificate, pilot_policy, tested_rows)
    certificate = record_design(certificate, split_design)
    if selected_rows is not None:
        is_available_for_map = selected_rows.extend_to_all_rows(is_available_for_map)
        certificate = selected_rows.annotate_certificate(certificate)
    return SelectedRowsResult(
        certificate=name_score_and_make_thresholds_robust(
            certificate, grid=grid, score_name=score_name
        ),
        is_available_for_map=is_available_for_map,
    )


def _withhold_pilot_rows(
    tested_rows: CalibrationRows, pilot_policy: PilotPolicy, *, are_logits: bool
) -> CalibrationRows:
    """Set pilot rows aside, and return the rows that remain to be tested."""
    if are_logits:
        return pilot_policy.withhold_pilot_rows_of_logits(tested_rows)
    return pilot_policy.withhold_pilot_rows(tested_rows)


def get_index_of_selected_or_all_rows(selected_rows: SelectedRows | None) -> slice | Codes:
    """Return an index of the selected rows, or of all rows if there is no selection."""
    if selected_rows is None:
        return slice(None)
    return selected_rows.indices


def _accept_by_certificate(
    certificate: Certificate, scores: Float, subgroups: Subgroups | None
) -> Flags:
    """Return a mask of the rows that a certificate accepts."""
    if subgroups is None:
        return accept_up_to_threshold(scores, certificate.threshold)
    # The subgroup names serve as class names only if the subgroups are classes.
    thresholds = get_certified_thresholds(certificate, class_names=np.array(subgroups.names))
    row_thresholds = thresholds.get_row_thresholds(subgroups.codes)
    return accept_up_to_threshold(scores, row_thresholds)


def _record_pilot_rows(
    certificate: Certificate, pilot_policy: PilotPolicy, tested_rows: CalibrationRows
) -> Certificate:
    """Add the use of pilot rows to a certificate, with row counts per score value."""
    assert tested_rows.pilot_rows is not None
    pilot_design = pilot_policy.build_design(tested_rows.pilot_rows, certificate)
    certificate = record_design(certificate, pilot_design)
    if not certificate.design.tests_score_values:
        return certificate
    score_value_counts = pilot_policy.count_rows_per_score_value(tested_rows)
    return replace(certificate, score_value_counts=score_value_counts)


def name_score_and_make_thresholds_robust(
    certificate: Certificate, *, grid: Grid, score_name: str
) -> Certificate:
    """Name the score of a certificate, and make its thresholds robust to rounding.

    Parameters
    ----------
    certificate : Certificate
        Certificate whose thresholds are midpoints of the finest grid.

    grid : Grid
        Rounding grid of the score, which may be coarser.

    score_name : str
        Name of the score.

    Returns
    -------
    Certificate
        Its thresholds are midpoints between the points of `grid`, which are farther from the scores
        on both sides.
    """
    move_to_midpoint = grid.make_robust_to_rounding
    subgroups_with_midpoints = None
    if certificate.subgroups is not None:
        subgroups_with_midpoints = certificate.subgroups.map_thresholds(move_to_midpoint)
    return replace(
        certificate,
        score=score_name,
        threshold=move_to_midpoint(certificate.threshold),
        subgroups=subgroups_with_midpoints,
    )


def encode_groups_as_subgroups(
    promise: Promise, n_rows: int, groups: ArrayLike | None
) -> Subgroups | None:
    """Encode groups as subgroups with their own thresholds, or return None.

    Parameters
    ----------
    promise : Promise
        Promise to certify. For a promise about cases, the groups are the types of the items.

    n_rows : int
        Number of rows (items of cases).

    groups : array-like of shape (n_rows,) or None
        Group of each row.

    Raises
    ------
    InputError
        If groups are missing, or are given for a promise that does not use them.
    """
    promise_requires_groups = promise.scope is not None and promise.scope.by == "group"
    promise_supports_groups = promise_requires_groups or promise.counts_cases
    has_groups = groups is not None
    if promise_requires_groups or (promise_supports_groups and has_groups):
        group_codes, group_names = factorize_groups(groups, n_rows)
        return Subgroups(codes=group_codes, names=tuple(group_names))
    if has_groups:
        raise GroupsError(
            "groups requires a promise for each group, such as mc.PerGroup(...). If the rows"
            " depend on each other, name their clusters with units=... instead."
        )
    return None
