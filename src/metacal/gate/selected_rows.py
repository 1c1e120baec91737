"""certify_selected: a certificate from the calibration rows that count.

Clusters and weights select the rows that count (`certification.row_selection`), a promise may split them
(`Promise.split`), and pilot rows may be withheld (`certification.pilot`). The rows that remain are
certified, and the certificate records what happened to the others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from metacal.certificates.certificate import Certificate, accepts
from metacal.certificates.circumstances import Circumstances, add_circumstances
from metacal.certification.certify import certify
from metacal.certification.pilot import PilotPolicy
from metacal.certification.ranking import Ranking
from metacal.certification.row_selection import SelectedRows
from metacal.certification.rows import CalibrationRows, Subgroups
from metacal.errors import InputError
from metacal.formulas import Flags
from metacal.gate.thresholds import factorize_groups, get_certified_thresholds
from metacal.kernels.grid import RELATIVE, Grid
from metacal.promises.per_subgroup import PerGroup
from metacal.promises.promise import Promise


@dataclass(frozen=True, eq=False)
class SelectedCertificate:
    """Certificate, and the rows that are left for the base map.

    Attributes
    ----------
    certificate : Certificate
        Certificate of the rows that count.

    is_available : array of bool of shape (n_rows,)
        Whether the base map may be fitted on each row.
    """

    certificate: Certificate
    is_available: Flags


def certify_selected(
    promise: Promise,
    rows: CalibrationRows,
    ranking: Ranking,
    *,
    grid: Grid,
    score_name: str,
    counted: SelectedRows | None = None,
    pilot_policy: PilotPolicy | None = None,
) -> SelectedCertificate:
    """Certify a promise on the calibration rows that count.

    Parameters
    ----------
    promise : Promise
        Promise to certify.

    rows : CalibrationRows
        All calibration rows. Their scores lie on `grid`.

    ranking : Ranking
        Ranking of the rows that count.

    grid : Grid
        Grid of the score.

    score_name : str
        Name of the score in the certificate.

    counted : SelectedRows, optional
        Rows that count. By default all rows.

    pilot_policy : PilotPolicy, optional
        How pilot rows are withheld. By default none are.

    Returns
    -------
    SelectedCertificate
    """
    scores = rows.scores
    if grid != RELATIVE:
        rows = replace(rows, scores=RELATIVE.rounded(scores))
    if counted is not None:
        scores = scores[counted.indices]
        rows = replace(rows.take(counted.indices), clusters=counted.clusters)
    subgroup_codes = None if rows.subgroups is None else rows.subgroups.codes
    is_correct = rows.is_correct

    is_for_threshold, is_available = promise.split(is_correct, rows.scores)
    split_seed = None
    if is_for_threshold.all():
        rows = replace(rows, precomputed_ranking=ranking)
    else:
        split_seed = promise.split_seed
        rows = rows.take(is_for_threshold)
    if pilot_policy is not None and rows.clusters is None:
        rows = pilot_policy.withhold_pilot_rows(rows)

    certificate = certify(promise, rows)
    if certificate.n_rows < len(scores):
        thresholds = get_certified_thresholds(certificate, np.empty(0)).get_row_thresholds(
            subgroup_codes
        )
        certificate = certificate.with_traffic(accepts(scores, thresholds), is_correct)
    if pilot_policy is not None and rows.pilot is not None:
        certificate = add_circumstances(certificate, pilot_policy.build_circumstances(rows.pilot))
        certificate = replace(certificate, marks=pilot_policy.count_rows_per_score_value(rows))
    certificate = add_circumstances(certificate, Circumstances(random_state=split_seed))
    if counted is not None:
        is_available = counted.extend_to_all_rows(is_available)
        certificate = counted.annotate_certificate(certificate)
    return SelectedCertificate(_name_score(certificate, grid, score_name), is_available)


def _name_score(certificate: Certificate, grid: Grid, score_name: str) -> Certificate:
    """Name the score, and move thresholds into the middle between two points of its grid.

    A coarser grid has a wider middle between the same neighbours.
    """
    parts = certificate.parts
    if parts is not None:
        parts = parts.map_thresholds(grid.settled)
    return replace(
        certificate,
        score=score_name,
        threshold=grid.settled(certificate.threshold),
        parts=parts,
    )


def subgroups_by_group(promise: Promise, n_rows: int, groups: Any) -> Subgroups | None:
    """Return the group of each row for a promise per group, else None.

    Raises
    ------
    InputError
        If groups are missing, or are given for a promise that does not use them.
    """
    if isinstance(promise, PerGroup):
        codes, names = factorize_groups(groups, n_rows)
        return Subgroups(codes, tuple(names))
    if groups is not None:
        raise InputError(
            "groups are for a promise per group, mc.PerGroup(...); rows that belong together are"
            " named with units=..."
        )
    return None
