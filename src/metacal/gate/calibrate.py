"""The pipeline from calibration data to a gate.

There is one pipeline for all kinds of data: logits (`LogitsData`), one score per row (`ScoreData`),
logits of two models (`LogitsCascadeData`) and scores of several models (`ScoreCascadeData`).
"""

from __future__ import annotations

from collections.abc import Sequence

from metacal.certificates.certificate import Certificate
from metacal.certificates.fingerprint import RowSketch
from metacal.gate.calibration_data import CalibrationData, CertifiedDataT, FittedSources
from metacal.gate.gate import Gate
from metacal.gate.stages import Source, Stage
from metacal.gate.thresholds import SingleThreshold, get_certified_thresholds
from metacal.promises.promise import Promise
from metacal.rows.memory import make_allocator_keep_freed_memory


def calibrate(data: CalibrationData[CertifiedDataT], promise: Promise) -> Gate:
    """Certify a promise on calibration data, and build the gate.

    Parameters
    ----------
    data : CalibrationData
        Calibration rows and options of their kind, such as `LogitsData` or `ScoreData`.

    promise : Promise
        Promise to certify.

    Returns
    -------
    Gate

    Raises
    ------
    InputError
        If the data are invalid or do not suit the promise.

    InfeasibleTargetError
        If the rows do not support the target of the promise.

    Examples
    --------
    >>> import numpy as np
    >>> from metacal.gate.score_data import ScoreData
    >>> from metacal.promises.accuracy import MinAccuracy
    >>> rng = np.random.default_rng(0)
    >>> rating = rng.random(2000)
    >>> is_correct = rng.random(2000) > (1 - rating) ** 2
    >>> gate = calibrate(ScoreData(rating, is_correct, score_name="rating"), MinAccuracy(0.9))
    >>> print(gate.condition)
    rating >= 0.4...
    """
    # Keeping freed memory makes a fit faster, because a fit allocates many large columns.
    make_allocator_keep_freed_memory()
    certified_data = data.certify(promise)
    fitted_sources = data.fit_sources(certified_data, promise)
    fingerprint = certified_data.get_fingerprint()
    return assemble_gate(
        certified_data.certificate,
        fitted_sources,
        promise,
        data_hash=fingerprint.data_hash,
        row_hash_sample=fingerprint.sketch,
    )


def assemble_gate(
    certificate: Certificate,
    fitted_sources: FittedSources,
    promise: Promise,
    *,
    data_hash: str,
    row_hash_sample: RowSketch,
) -> Gate:
    """Build a gate from its certified thresholds and its fitted sources.

    Parameters
    ----------
    certificate : Certificate
        Certificate with the thresholds of all stages.

    fitted_sources : FittedSources
        Sources of the stages, with notes on their calibration and the profile of the rows.

    promise : Promise
        Promise that was certified.

    data_hash : str
        Digest of the calibration rows.

    row_hash_sample : RowSketch
        Sample of the hashes of the calibration rows.

    Returns
    -------
    Gate
    """
    return Gate(
        stages=_build_stages(fitted_sources.sources, certificate),
        certificate=certificate.with_notes(*fitted_sources.notes),
        promise=promise,
        reject_label=fitted_sources.reject_label,
        data_hash=data_hash,
        row_hash_sample=row_hash_sample,
        profile=fitted_sources.profile,
    )


def _build_stages(sources: Sequence[Source], certificate: Certificate) -> tuple[Stage, ...]:
    """Build the stages from their sources and the certified thresholds."""
    if certificate.stages is None:
        (only_source,) = sources
        thresholds = get_certified_thresholds(certificate, class_names=only_source.classes)
        return (Stage(source=only_source, thresholds=thresholds),)
    return tuple(
        Stage(
            source=source,
            thresholds=SingleThreshold(certified_stage.threshold),
            name=certified_stage.name,
        )
        for source, certified_stage in zip(sources, certificate.stages.models, strict=True)
    )
