"""Stages of a gate in a file.

A gate has one stage, or one stage per model of a cascade. A *stage* consists of the source of the
scores and the thresholds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from metacal.certificates.cascade_stages import StageCount
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
from metacal.io.artifact.sources import RANKERS, check_calibrator_is_supported
from metacal.kernels.grid import RELATIVE_GRID
from metacal.scores import NAMED, get_rounding_grid, get_score_name, needs_logits

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
    # Class names always come from the user, whereas numbers may be the default.
    has_class_names = source.classes.dtype.kind == "U"
    source = replace(source, classes_given=source.classes_given or has_class_names)
    score = source.score
    if isinstance(score, str):
        return source
    score_name = get_score_name(score)
    if type(score) is not RANKERS.get(score_name):
        raise SavingError(
            f"The score {score_name} is a Python function, so a gate file cannot store it. Use a"
            f" named score: {', '.join(NAMED)}, or a trained {' or '.join(RANKERS)}."
        )
    if not score.n_classes_:
        raise SavingError(
            f"The score {score_name} is not trained. Train the score, and fit the gate again"
            " before you save it."
        )
    return source


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
    certified_stages: tuple[StageCount | Certificate | None, ...] = (certificate,)
    if certificate is not None and certificate.stages is not None:
        certified_stages = certificate.stages.items
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


def _check_stage_matches_certificate(
    saved_stage: SavedStage, certified_stage: StageCount | Certificate | None, location: str
) -> None:
    """Check that a stage agrees with the certificate.

    Parameters
    ----------
    saved_stage : SavedStage
        Entries of the stage.

    certified_stage : StageCount, Certificate or None
        What the certificate contains about the stage. None if there is no certificate.

    location : str
        Position of the stage in the file, used in error messages.

    Raises
    ------
    ArtifactError
        If name, score or threshold differ.
    """
    certified_name = getattr(certified_stage, "name", "")
    if saved_stage.name != certified_name:
        raise ArtifactError(
            f"{location}.name must be {certified_name!r}, as in the certificate, but it is"
            f" {describe_json(saved_stage.name)}."
        )
    if certified_stage is not None and saved_stage.source.score_name != certified_stage.score:
        raise ArtifactError(f"the source of {location} has a different score than the certificate.")
    certified_threshold = math.inf
    if certified_stage is not None:
        certified_threshold = certified_stage.threshold
    if saved_stage.threshold != certified_threshold:
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
        classes = np.empty(0)

    thresholds: Thresholds = SingleThreshold(saved_stage.threshold)
    if certificate is not None:
        check_thresholds_between_scores(certificate, rounding_grid, saved_stage.threshold)
        check_classes(certificate, classes)
        is_cascade = certificate.stages is not None
        if not is_cascade:
            thresholds = get_certified_thresholds(certificate, names_by_code=classes)
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
    decision_offset = source.decision_at
    certified_offset = 0.0 if certificate is None else certificate.decision_at
    has_offset_without_two_classes = bool(decision_offset) and n_classes != 2
    if decision_offset != certified_offset or has_offset_without_two_classes:
        raise ArtifactError(
            f"{location}.source.decision_at must be the value in the certificate, but it is"
            f" {decision_offset}."
        )
    if certificate is not None:
        check_score_range(certificate, n_classes, source.score_name, threshold)


def _check_and_complete_score_source(
    source: ScoreSource, certificate: Certificate | None, location: str
) -> ScoreSource:
    """Check a source of given scores, and complete it from the certificate."""
    if clean_score_name(source.score) != source.score:
        raise ArtifactError(
            f"{location}.source.score must be one line of plain text, but it is"
            f" {describe_json(source.score)}."
        )
    n_knots = 0
    if source.curve is not None:
        n_knots = len(source.curve.knots)
    if n_knots > _MAX_CURVE_KNOTS:
        raise ArtifactError(
            f"{location}.source.curve must have at most {_MAX_CURVE_KNOTS:,} knots, but it has"
            f" {n_knots:,}."
        )
    if certificate is None:
        raise ArtifactError(
            f"the source of {location} reads scores, so the gate must have a certificate."
        )
    if source.truth == "losses" and not certificate.quantity.is_mean_cost:
        raise ArtifactError(
            f"the source of {location} reads losses, so the promise must be about losses."
        )
    is_cascade = certificate.stages is not None
    if is_cascade:
        return source
    return source.with_certificate(certificate)
