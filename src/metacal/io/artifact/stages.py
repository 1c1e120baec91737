"""Stages of a gate in a file.

A gate has one stage, or one stage per model of a cascade. A *stage* consists of the source of the
scores and the thresholds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from metacal import scores
from metacal.certificates.certificate import Certificate
from metacal.errors import ArtifactError, SavingError
from metacal.gate import Gate, LogitsSource, ScoreSource, Stage
from metacal.gate.score_source import clean_score_name
from metacal.gate.stages import Source
from metacal.gate.thresholds import SingleThreshold, Thresholds, get_certified_thresholds
from metacal.io.artifact.messages import describe_json
from metacal.io.artifact.source_checks import (
    check_classes,
    check_map_cost,
    check_score_range,
    check_thresholds_between_scores,
)
from metacal.io.artifact.sources import LEARNED_SCORE_CLASSES, check_calibrator_is_supported
from metacal.kernels.grid import RELATIVE_GRID
from metacal.scores import Score, get_rounding_grid, get_score_name, needs_logits

#: Maximum number of stages of a cascade.
MAX_STAGES = 16

# Maximum number of knots of a confidence curve. A fit produces at most 129.
_MAX_CURVE_KNOTS = 1000


@dataclass(frozen=True)
class SavedStage:
    """Entries of a stage in a file.

    Attributes
    ----------
    name : str
        Name of the model in a cascade, otherwise an empty text.

    threshold : float
        Threshold of the stage.

    source : Source
        Source of the scores.
    """

    name: str
    threshold: float
    source: Source


@dataclass(frozen=True)
class _CertifiedStage:
    """Requirements of a certificate for a stage.

    Attributes
    ----------
    name : str
        Name of the model in a cascade, otherwise an empty text.

    score : str or None
        Name of the ranking score. None if any score is allowed.

    threshold : float
        Largest accepted score.
    """

    name: str
    score: str | None
    threshold: float


def convert_to_saved_stages(gate: Gate) -> tuple[SavedStage, ...]:
    """Convert the stages of a gate to the entries of a file.

    Raise ArtifactError if a map or score is not one of metacal's own.
    """
    saved_stages = []
    for stage in gate.stages:
        saved_stage = SavedStage(
            name=stage.name,
            threshold=stage.thresholds.threshold,
            source=_prepare_source_for_saving(stage.source),
        )
        saved_stages.append(saved_stage)
    return tuple(saved_stages)


def _prepare_source_for_saving(source: Source) -> Source:
    """Convert a source to its saved form. Raise SavingError if it contains user code."""
    if not isinstance(source, LogitsSource):
        return source
    check_calibrator_is_supported(source)
    _check_score_is_supported(source.score)
    # Class names always come from the user, whereas numbers may be the default.
    has_class_names = source.classes.dtype.kind == "U"
    return replace(source, classes_given=source.classes_given or has_class_names)


def _check_score_is_supported(score: str | Score) -> None:
    """Raise SavingError if a file cannot represent a score."""
    if isinstance(score, str):
        return
    score_name = get_score_name(score)
    if type(score) is not LEARNED_SCORE_CLASSES.get(score_name):
        raise SavingError(
            f"The score {score_name} is a Python function, so a gate file cannot store it. Use a"
            f" named score: {', '.join(scores.NAMED)}, or a trained"
            f" {' or '.join(LEARNED_SCORE_CLASSES)}."
        )
    is_trained = score.n_classes_ > 0
    if not is_trained:
        raise SavingError(
            f"The score {score_name} is not trained. Train the score, and fit the gate again"
            " before you save it."
        )


def build_stages(
    saved_stages: tuple[SavedStage, ...], certificate: Certificate | None
) -> tuple[Stage, ...]:
    """Build the stages of a gate from a file.

    Parameters
    ----------
    saved_stages : tuple of SavedStage
        Entries of the stages.

    certificate : Certificate or None
        Certificate of the gate. None if the gate is a calibrator without a promise.

    Returns
    -------
    tuple of Stage

    Raises
    ------
    ArtifactError
        If a stage is invalid or does not agree with the certificate.
    """
    certified_stages = _list_certified_stages(certificate)
    n_stages = len(certified_stages)
    if len(saved_stages) != n_stages or len(saved_stages) > MAX_STAGES:
        raise ArtifactError(
            f"stages must be a list of {n_stages} stages, as many as the certificate has."
        )
    stages = []
    for index, (saved_stage, certified_stage) in enumerate(zip(saved_stages, certified_stages)):
        location = f"stages[{index}]"
        _check_stage_matches_certificate(saved_stage, certified_stage, location)
        stages.append(_build_stage(saved_stage, certificate, location))
    return tuple(stages)


def _list_certified_stages(certificate: Certificate | None) -> list[_CertifiedStage]:
    """List the name, score and threshold of each stage that a certificate requires."""
    if certificate is None:
        # A calibrator has one stage, which accepts every row, whatever its score is.
        return [_CertifiedStage(name="", score=None, threshold=math.inf)]
    if certificate.stages is None:
        return [_CertifiedStage(name="", score=certificate.score, threshold=certificate.threshold)]
    return [
        _CertifiedStage(name=model.name, score=model.score, threshold=model.threshold)
        for model in certificate.stages.models
    ]


def _check_stage_matches_certificate(
    saved_stage: SavedStage, certified_stage: _CertifiedStage, location: str
) -> None:
    """Check that a stage agrees with the certificate.

    Parameters
    ----------
    saved_stage : SavedStage
        Entries of the stage.

    certified_stage : _CertifiedStage
        Required name, score and threshold.

    location : str
        Position of the stage in the file, used in error messages.

    Raises
    ------
    ArtifactError
        If name, score or threshold differ.
    """
    if saved_stage.name != certified_stage.name:
        raise ArtifactError(
            f"{location}.name must be {certified_stage.name!r}, as in the certificate, but it is"
            f" {describe_json(saved_stage.name)}."
        )
    requires_score = certified_stage.score is not None
    if requires_score and saved_stage.source.score_name != certified_stage.score:
        raise ArtifactError(f"the source of {location} has a different score than the certificate.")
    if saved_stage.threshold != certified_stage.threshold:
        raise ArtifactError(f"{location} has a different threshold than the certificate.")


def _build_stage(saved_stage: SavedStage, certificate: Certificate | None, location: str) -> Stage:
    """Build a stage that agrees with the certificate; see `build_stages`."""
    source = saved_stage.source
    if isinstance(source, LogitsSource):
        _check_logits_source(source, certificate, saved_stage.threshold, location)
        rounding_grid = get_rounding_grid(source.score)
        classes = source.classes
    else:
        source = _check_and_complete_score_source(source, certificate, location)
        rounding_grid = RELATIVE_GRID
        # Given scores belong to no classes.
        classes = np.empty(0)

    # Calibrators and the stages of a cascade have one threshold. Other gates can have one per
    # class or group, which the certificate contains.
    thresholds: Thresholds = SingleThreshold(saved_stage.threshold)
    if certificate is not None:
        check_thresholds_between_scores(certificate, rounding_grid, saved_stage.threshold)
        check_classes(certificate, classes)
        is_cascade = certificate.stages is not None
        if not is_cascade:
            thresholds = get_certified_thresholds(certificate, class_names=classes)
    return Stage(source, thresholds, saved_stage.name)


def _check_logits_source(
    source: LogitsSource, certificate: Certificate | None, threshold: float, location: str
) -> None:
    """Check that map, score and classes of a source agree with each other.

    Parameters
    ----------
    source : LogitsSource
        Source to check.

    certificate : Certificate or None
        Certificate of the gate.

    threshold : float
        Threshold of the stage.

    location : str
        Position of the stage in the file, used in error messages.

    Raises
    ------
    ArtifactError
        If they do not agree.
    """
    n_classes = source.n_classes
    check_calibrator_is_supported(source)
    check_map_cost(source.map, n_classes)
    # A learned score was trained on tables with a certain number of classes.
    n_classes_of_score = getattr(source.score, "n_classes_", n_classes)
    if n_classes_of_score != n_classes:
        raise ArtifactError(
            f"{location}.source must have {n_classes} classes, as the gate has, but it has"
            f" {n_classes_of_score}."
        )
    if needs_logits(source.score) and source.input == "probabilities":
        raise ArtifactError(
            f"The score {get_score_name(source.score)} has the same value for every row of"
            " probabilities, so it cannot rank the rows."
        )
    _check_decision_offset(source, certificate, location)
    if certificate is not None:
        check_score_range(certificate, n_classes, source.score_name, threshold)


def _check_decision_offset(
    source: LogitsSource, certificate: Certificate | None, location: str
) -> None:
    """Raise ArtifactError unless source and certificate have equal decision offsets.

    With two classes, a row is predicted to be of the second class if its log-odds exceed
    `decision_at`. With more classes, `decision_at` is 0.
    """
    certified_decision_at = 0.0
    if certificate is not None:
        certified_decision_at = certificate.decision_at
    has_decision_offset = source.decision_at != 0.0
    has_wrong_number_of_classes = has_decision_offset and source.n_classes != 2
    if source.decision_at != certified_decision_at or has_wrong_number_of_classes:
        raise ArtifactError(
            f"{location}.source.decision_at must be the value in the certificate, but it is"
            f" {source.decision_at}."
        )


def _check_and_complete_score_source(
    source: ScoreSource, certificate: Certificate | None, location: str
) -> ScoreSource:
    """Check a source of given scores, and complete it from the certificate."""
    if clean_score_name(source.score) != source.score:
        raise ArtifactError(
            f"{location}.source.score must be one line of plain text, but it is"
            f" {describe_json(source.score)}."
        )
    confidence_curve = source.curve
    n_knots = 0 if confidence_curve is None else len(confidence_curve.knots)
    if n_knots > _MAX_CURVE_KNOTS:
        raise ArtifactError(
            f"{location}.source.curve must have at most {_MAX_CURVE_KNOTS:,} knots, but it has"
            f" {n_knots:,}."
        )
    if certificate is None:
        raise ArtifactError(
            f"the source of {location} reads scores, so the gate must have a certificate."
        )
    reads_losses = source.truth == "losses"
    if reads_losses and not certificate.quantity.is_mean_cost:
        raise ArtifactError(
            f"the source of {location} reads losses, so the promise must be about losses."
        )
    is_cascade = certificate.stages is not None
    if is_cascade:
        return source
    return source.with_threshold_neighbours_of(certificate)
