"""Judging of a promise on labelled rows, for all rows or for each class or group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metacal.certificates.overlap_with_fit import OverlapWithFit
from metacal.certification.rows import Clusters
from metacal.errors import GroupsError, MissingLabelsError
from metacal.formulas import Flags
from metacal.promises.measurement import Measurement
from metacal.promises.verdict import Verdict

if TYPE_CHECKING:
    from metacal.certificates.certificate import Certificate
    from metacal.certificates.subgroups import SubgroupCertificate, SubgroupCertificates
    from metacal.certification.row_losses import Losses


# Bonferroni-corrected confidence levels are rounded to this many decimals.
_LEVEL_DECIMALS = 12


def judge(
    certificate: Certificate,
    accept: Flags,
    correct: Flags | None,
    confidence_level: float,
    losses: Losses | None = None,
    row_subgroups: NDArray[Any] | None = None,
    clusters: Clusters | None = None,
    overlap_with_fit: OverlapWithFit | None = None,
) -> Verdict:
    """Judge whether a certified promise is kept or refuted on labelled rows.

    If there are several limits, their intervals hold together at the confidence level (Bonferroni).
    A promise that is kept is thus refuted with probability at most (1 - confidence_level) / 2.

    Parameters
    ----------
    certificate : Certificate
        Certificate of the promise.
    accept : array of bool of shape (n_rows,)
        Whether each row is accepted.
    correct : array of bool of shape (n_rows,) or None
        Whether each prediction is correct. None if no promised quantity needs labels.
    confidence_level : float
        Confidence level of all intervals together.
    losses : Losses, optional
        Cost of each row, required if a cost is promised (`Gate.losses`).
    row_subgroups : array of shape (n_rows,) or (n_rows, 2), optional
        Predicted class or group of each row, required if each class or group has its own promise.
        If each group has a promise for each of two classes, a second column is the predicted class.
    clusters : Clusters, optional
        Clusters of dependent rows whose every row counts.
    overlap_with_fit : OverlapWithFit, optional
        How many of the rows were part of the fit, if any were. The promise is then not judged.

    Returns
    -------
    Verdict

    Examples
    --------
    >>> from metacal.promises.miscoverage import MaxMiscoverage
    >>> correct = np.ones(100, dtype=bool)
    >>> certificate = MaxMiscoverage(0.05).certify(np.linspace(0, 1, 100), correct)
    >>> print(judge(certificate, np.arange(100) >= 4, correct, 0.95))
    kept: miscoverage 0.0400 [0.0110, 0.0993], promised at most 0.05.
    """
    if overlap_with_fit is not None:
        return Verdict.not_judged(certificate, overlap_with_fit, confidence_level)
    if certificate.has_promise_per_subgroup:
        return _judge_subgroups(
            certificate,
            accept=accept,
            correct=correct,
            confidence_level=confidence_level,
            row_subgroups=row_subgroups,
            clusters=clusters,
        )
    measurements = [
        Measurement.from_rows(
            quantity, target, accept=accept, correct=correct, losses=losses, clusters=clusters
        )
        for quantity, target in certificate.limits
    ]
    interval_level = _compute_bonferroni_level(confidence_level, n_intervals=len(measurements))
    return Verdict.combine(
        [Verdict.from_measurement(measurement, interval_level) for measurement in measurements]
    )


class _MeasuredSubgroup(NamedTuple):
    """Certificate of a subgroup, with its promised quantity measured on its rows."""

    subgroup: SubgroupCertificate
    measurement: Measurement


def _judge_subgroups(
    certificate: Certificate,
    *,
    accept: Flags,
    correct: Flags | None,
    confidence_level: float,
    row_subgroups: NDArray[Any] | None,
    clusters: Clusters | None,
) -> Verdict:
    """Return the verdict on each subgroup with rows, in the order of p-values."""
    subgroups = certificate.subgroups
    assert subgroups is not None
    if correct is None:
        raise MissingLabelsError(
            "The test of a promise for each class or group requires labels. Pass the true labels."
        )
    if row_subgroups is None:
        raise GroupsError(
            f"This promise holds for each {subgroups.by}, so the test requires the {subgroups.by}"
            " of every row. Pass it for every row."
        )
    measured_subgroups = _measure_subgroups_with_rows(
        certificate,
        subgroups,
        accept=accept,
        correct=correct,
        row_subgroups=row_subgroups,
        clusters=clusters,
    )
    if not measured_subgroups:
        quantity, target = certificate.limits[0]
        empty_mask = np.zeros_like(accept)
        empty_measurement = Measurement.from_rows(
            quantity, target, accept=empty_mask, correct=empty_mask
        )
        return Verdict.from_measurement(empty_measurement, confidence_level)
    measured_subgroups.sort(
        key=lambda measured: measured.measurement.compute_p_value(confidence_level)
    )
    interval_level = _compute_bonferroni_level(
        confidence_level, n_intervals=len(measured_subgroups)
    )
    verdicts = []
    for subgroup, measurement in measured_subgroups:
        verdict = Verdict.from_measurement(
            measurement,
            interval_level,
            subgroup=_get_shown_name(subgroup, subgroups),
            class_name=subgroup.promised_class,
        )
        verdicts.append(verdict)
    return Verdict.combine(verdicts)


def _measure_subgroups_with_rows(
    certificate: Certificate,
    subgroups: SubgroupCertificates,
    *,
    accept: Flags,
    correct: Flags,
    row_subgroups: NDArray[Any],
    clusters: Clusters | None,
) -> list[_MeasuredSubgroup]:
    """Measure the promised quantity of each subgroup that has rows."""
    common_quantity, common_target = certificate.limits[0]
    measured_subgroups: list[_MeasuredSubgroup] = []
    for judged_rows in subgroups.iterate_judged_rows(row_subgroups, accept, correct):
        subgroup = judged_rows.subgroup
        subgroup_clusters = None
        if clusters is not None:
            subgroup_clusters = clusters.take(judged_rows.row_mask)
        measurement = Measurement.from_rows(
            subgroup.quantity or common_quantity,
            subgroup.target or common_target,
            accept=judged_rows.accept,
            correct=judged_rows.correct,
            clusters=subgroup_clusters,
        )
        if measurement.n_rows > 0:
            measured_subgroups.append(_MeasuredSubgroup(subgroup, measurement))
    return measured_subgroups


def _get_shown_name(subgroup: SubgroupCertificate, subgroups: SubgroupCertificates) -> str | None:
    """Return the printed name of a subgroup, or None if it needs no name."""
    if subgroups.is_two_sided_without_groups:
        return None
    return subgroup.name_without_side


def _compute_bonferroni_level(confidence_level: float, *, n_intervals: int) -> float:
    """Compute the Bonferroni-corrected confidence level of each joint interval."""
    error_probability_per_interval = (1.0 - confidence_level) / n_intervals
    return round(1.0 - error_probability_per_interval, _LEVEL_DECIMALS)
