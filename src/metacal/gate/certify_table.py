"""Certification of a promise on a table of logits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from numpy.typing import ArrayLike, NDArray

from metacal import kernels
from metacal.certificates.design import CertificationDesign, record_design
from metacal.certificates.notes import note_score_chosen
from metacal.certification.one_threshold import OneThresholdProcedure
from metacal.certification.rows import Subgroups
from metacal.errors import InfeasibleTargetError
from metacal.gate import long_rows
from metacal.gate.background_map import BackgroundMap
from metacal.gate.calibration_table import CalibrationTable, CertifiedTable
from metacal.gate.certify_selected_rows import encode_groups_as_subgroups
from metacal.gate.table_certifiers import (
    CountingCertifier,
    LogOddsSortingCertifier,
    SortingCertifier,
    TableCertifier,
)
from metacal.promises.promise import Promise
from metacal.rows import Rows
from metacal.scores import Score
from metacal.scores.registry import AUTO_SCORE, get_delta_fractions_of_auto_scores


def certify_table(
    table: CalibrationTable,
    promise: Promise,
    score: str | Score,
    background_map: BackgroundMap | None = None,
) -> CertifiedTable:
    """Certify a promise on a table of logits.

    Parameters
    ----------
    table : CalibrationTable
        Calibration rows.

    promise : Promise
        Promise to certify.

    score : str or callable
        Ranking score, or "auto" for the best of several that share delta. A promise about two
        classes ranks rows by their log-odds instead.

    background_map : BackgroundMap, optional
        Calibration map to fit while another thread sorts the rows.

    Returns
    -------
    CertifiedTable
    """
    certifier: TableCertifier
    ranks_by_log_odds = promise.is_two_sided
    if ranks_by_log_odds:
        certifier = LogOddsSortingCertifier(table)
    elif score == AUTO_SCORE:
        return _certify_best_score(table, promise)
    elif _is_too_long_to_sort(table) and _supports_counting(table, promise):
        certifier = CountingCertifier(table, score)
    else:
        certifier = SortingCertifier(table, score, background_map)
    return certifier.certify(promise)


def _is_too_long_to_sort(table: CalibrationTable) -> bool:
    """Check whether sorting the rows of a table would take too much memory."""
    return len(table.rows) > long_rows.MAX_SORTED_ROWS


def _supports_counting(table: CalibrationTable, promise: Promise) -> bool:
    """Check whether a promise can be certified by counting rows without sorting.

    Counts are made for all rows of a labelled table in main memory, and for a single threshold.
    """
    has_labels = table.labels is not None
    leaves_out_rows = table.selection is not None or table.rows.row_mask is not None
    if not has_labels or leaves_out_rows or table.rows.is_on_device:
        return False
    has_subgroups = table.subgroups is not None or promise.scope is not None
    has_single_threshold = isinstance(promise.procedure(), OneThresholdProcedure)
    return has_single_threshold and not has_subgroups


def _certify_best_score(table: CalibrationTable, promise: Promise) -> CertifiedTable:
    """Certify a promise with the best of several ranking scores.

    Each score receives a fraction of delta, and the fractions add up to one. By the union bound all
    certificates hold together with probability 1 - delta, so that the best of them may be chosen
    after they are computed.
    """
    delta_fractions = get_delta_fractions_of_auto_scores(table.rows.n_classes)
    validated_table = replace(table, rows=table.rows.as_validated())
    certified_tables: list[CertifiedTable] = []
    errors: list[InfeasibleTargetError] = []
    for score_name, fraction in delta_fractions.items():
        promise_for_score = promise.with_delta_fraction(fraction)
        try:
            certified_table = certify_table(validated_table, promise_for_score, score=score_name)
            certified_tables.append(certified_table)
        except InfeasibleTargetError as error:
            errors.append(error)
    if not certified_tables:
        raise max(errors, key=_get_best_certifiable_target)

    best_table = max(certified_tables, key=_make_comparison_key)
    certificate = replace(best_table.certificate, delta=promise.delta)
    if len(delta_fractions) > 1:
        best_name = str(best_table.score)
        design = CertificationDesign(
            n_competing_scores=len(delta_fractions), delta_fraction=delta_fractions[best_name]
        )
        certificate = record_design(certificate, design)
        score_note = note_score_chosen(score=best_name, shares=tuple(delta_fractions.items()))
        certificate = certificate.with_notes(score_note)
    return replace(best_table, certificate=certificate)


def _get_best_certifiable_target(error: InfeasibleTargetError) -> float:
    """Return the best target that the rows support, 0 if none is known."""
    if error.best is None:
        return 0.0
    return error.best


def _make_comparison_key(certified_table: CertifiedTable) -> tuple[float, int]:
    """Return the sort key of a certified score. A higher key is better.

    A lower certified cost comes first, then a larger number of accepted rows. If the promise limits
    only rejections, every score accepts about as many rows, and fewer accepted errors are better.
    """
    certificate = certified_table.certificate
    certified_cost = certificate.target if certificate.quantity.is_mean_cost else 0.0
    if certificate.quantity.limits_only_rejections:
        n_incorrect_accepted = certificate.n_accepted - certificate.n_correct_accepted
        return -certified_cost, -n_incorrect_accepted
    return -certified_cost, certificate.n_accepted


def find_subgroups_by_class_or_group(
    promise: Promise, rows: Rows, class_names: NDArray[Any], groups: ArrayLike | None
) -> Subgroups | None:
    """Return the subgroup of each row, or None if the promise has no subgroups.

    Parameters
    ----------
    promise : Promise
        Promise to certify.

    rows : Rows
        Logits.

    class_names : array of shape (n_classes,)
        Names of the columns.

    groups : array-like of shape (n_rows,) or None
        Group of each row.

    Returns
    -------
    Subgroups or None
    """
    is_promise_per_class = promise.scope is not None and promise.scope.by == "class"
    if is_promise_per_class and groups is None:
        predicted_codes = rows.compute_column(kernels.predict_classes)
        return Subgroups(codes=predicted_codes, names=tuple(class_names.tolist()))
    return encode_groups_as_subgroups(promise, len(rows), groups)
