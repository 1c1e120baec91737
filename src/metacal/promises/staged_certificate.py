"""Certificates of a cascade of scores, with the counts of each model."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from metacal.certificates.cascade_stages import StageCount, Stages
from metacal.certificates.certificate import Certificate
from metacal.certificates.circumstances import Circumstances, add_circumstances
from metacal.certification.ranking import ThresholdOutcome
from metacal.certification.statements import build_certificate
from metacal.formulas import Codes, Float
from metacal.promises.accuracy import MinAccuracy
from metacal.promises.cascade import MaxLoss


def build_staged_certificate(
    promise: MaxLoss | MinAccuracy,
    *,
    rule_name: str,
    first_threshold: float,
    stages: Stages,
    n_correct: int,
    random_state: int | None,
) -> Certificate:
    """Build the certificate of a cascade from the counts of its stages.

    Parameters
    ----------
    promise : MaxLoss or MinAccuracy
        Certified promise.
    rule_name : str
        Name of the rule that certified the thresholds.
    first_threshold : float
        Threshold of the first model.
    stages : Stages
        Counts of the tested rows.
    n_correct : int
        Number of correct answers. 0 if it was not observed.
    random_state : int or None
        Seed that the user gave.

    Returns
    -------
    Certificate
    """
    outcome = ThresholdOutcome(
        n_rows=stages.n_labels,
        n_correct=n_correct,
        n_accepted=stages.n_answered,
        n_correct_accepted=n_correct,
        highest_accepted=None,
        lowest_rejected=None,
    )
    quantity, target = promise.limits[0]
    certificate = build_certificate(
        quantity, target, promise.delta, rule_name, first_threshold, outcome
    )
    certificate = replace(certificate, stages=stages)
    return add_circumstances(certificate, Circumstances(random_state=random_state))


def build_stage_counts(
    thresholds: Float,
    answering_model: Codes,
    *,
    n_wrong_by_model: list[int] | None,
    has_human_review: bool,
) -> tuple[StageCount, ...]:
    """Count the rows and the wrong answers of each model that answers.

    Parameters
    ----------
    thresholds : array of shape (m,)
        Certified thresholds.
    answering_model : array of int of shape (n_rows,)
        Index of the model that answers each row. The index m is the last model, or people.
    n_wrong_by_model : list of int, optional
        Number of wrong answers of each model. None if it was not observed.
    has_human_review : bool
        Whether people answer the rows that no model accepts.

    Returns
    -------
    tuple of StageCount
    """
    model_thresholds = thresholds.tolist()
    if not has_human_review:
        last_model_threshold = math.inf
        model_thresholds.append(last_model_threshold)
    n_rows_by_model = np.bincount(answering_model, minlength=len(model_thresholds))
    stages = []
    for model, name in enumerate(_name_models(len(model_thresholds))):
        n_wrong = None
        if n_wrong_by_model is not None:
            n_wrong = n_wrong_by_model[model]
        stage = StageCount(
            name=name,
            score="score",
            threshold=model_thresholds[model],
            n_rows=int(n_rows_by_model[model]),
            n_wrong=n_wrong,
        )
        stages.append(stage)
    return tuple(stages)


def _name_models(n_models: int) -> list[str]:
    """Return the names of the models: small, middle (numbered if several), large."""
    if n_models == 3:
        return ["small", "middle", "large"]
    middle_names = [f"middle {number}" for number in range(1, n_models - 1)]
    return ["small", *middle_names, "large"][:n_models]
