"""Certificates of a cascade of scores, with the counts of each model."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from metacal.certificates.cascade_stages import StageCount, Stages
from metacal.certificates.certificate import Certificate
from metacal.certificates.design import CertificationDesign, record_design
from metacal.certificates.quantities import DISAGREEMENT
from metacal.certification.ranking import ThresholdOutcome
from metacal.certification.statements import build_certificate
from metacal.formulas import Codes, Float
from metacal.promises.accuracy import MinAccuracy
from metacal.promises.cascade import MaxLoss, get_agreement_rule

if TYPE_CHECKING:
    from metacal.promises.staged_cascade import CascadeScores


# A loss is certified without true labels. Its certificates state 0 for the unknown number of
# correct answers, because that field must have a number.
_COUNT_IF_UNKNOWN = 0


def build_loss_certificate(
    cascade: CascadeScores,
    promise: MaxLoss,
    *,
    thresholds: Float,
    tested_rows: Codes,
    n_pilot: int,
    pool_size: int | None,
) -> Certificate:
    """Build the certificate of a limited loss, which needs no labels.

    Parameters
    ----------
    cascade : CascadeScores
        Scores and bad answers of the models.
    promise : MaxLoss
        Certified promise.
    thresholds : array of shape (m,)
        Certified thresholds.
    tested_rows : array of int
        Rows that were tested.
    n_pilot : int
        Number of pilot rows.
    pool_size : int or None
        Number of rows of the pool, if the promise is about a pool.

    Returns
    -------
    Certificate
    """
    answering_model_index = cascade.find_answering_model(thresholds, tested_rows)
    n_bad_answers = cascade.count_answers(thresholds, tested_rows).n_bad
    n_only_cascade_wrong = None
    n_only_people_wrong = None
    n_disagreements = None
    if cascade.has_human_review:
        n_only_cascade_wrong = n_bad_answers
        n_only_people_wrong = 0
    else:
        n_disagreements = n_bad_answers
    stages = Stages(
        _build_stage_counts(
            thresholds,
            answering_model_index,
            n_wrong_by_model=None,
            has_human_review=cascade.has_human_review,
        ),
        has_human_review=cascade.has_human_review,
        n_only_cascade_wrong=n_only_cascade_wrong,
        n_only_reference_wrong=n_only_people_wrong,
        n_pilot_rows=n_pilot,
        n_labels=len(tested_rows),
        pool_size=pool_size,
        n_disagreements=n_disagreements,
    )
    rule_name = get_agreement_rule(
        has_pool=cascade.is_finite_pool, has_one_threshold=cascade.has_one_threshold
    )
    certificate = _build_certificate_from_stages(
        promise,
        rule_name=rule_name,
        first_threshold=thresholds[0].item(),
        stages=stages,
        n_correct_answers=_COUNT_IF_UNKNOWN,
        random_state=cascade.random_state,
    )
    if not cascade.has_human_review:
        certificate = replace(certificate, quantity=DISAGREEMENT)
    return replace(certificate, has_labels=False)


def build_accuracy_certificate(
    cascade: CascadeScores,
    promise: MinAccuracy,
    *,
    thresholds: Float,
    tested_rows: Codes,
    n_pilot: int,
) -> Certificate:
    """Build the certificate of an accuracy, with the errors of each model.

    Parameters
    ----------
    cascade : CascadeScores
        Scores and bad answers of the models.
    promise : MinAccuracy
        Certified promise.
    thresholds : array of shape (m,)
        Certified thresholds.
    tested_rows : array of int
        Rows that were tested.
    n_pilot : int
        Number of pilot rows.

    Returns
    -------
    Certificate
    """
    answering_model_index = cascade.find_answering_model(thresholds, tested_rows)
    is_model_wrong = cascade.select_bad_flags(tested_rows)
    is_answer_wrong = is_model_wrong[np.arange(len(tested_rows)), answering_model_index]
    n_wrong_by_model = np.bincount(
        answering_model_index[is_answer_wrong], minlength=cascade.n_gated_models + 1
    )

    # The last model has a threshold only if people review the rows that it rejects.
    last_model_index = cascade.n_gated_models
    if cascade.has_human_review:
        last_model_index = cascade.n_gated_models - 1
    is_answered_before_last_model = answering_model_index < last_model_index
    is_last_model_wrong = is_model_wrong[:, last_model_index]
    is_worse = is_answered_before_last_model & is_answer_wrong & ~is_last_model_wrong
    is_better = is_answered_before_last_model & ~is_answer_wrong & is_last_model_wrong
    stages = Stages(
        _build_stage_counts(
            thresholds,
            answering_model_index,
            n_wrong_by_model=n_wrong_by_model.tolist(),
            has_human_review=cascade.has_human_review,
        ),
        has_human_review=cascade.has_human_review,
        n_only_cascade_wrong=int(is_worse.sum()),
        n_only_reference_wrong=int(is_better.sum()),
        n_pilot_rows=n_pilot,
        n_labels=len(tested_rows),
    )
    return _build_certificate_from_stages(
        promise,
        rule_name=promise.cascade_rules[0],
        first_threshold=thresholds[0].item(),
        stages=stages,
        n_correct_answers=stages.n_answered - int(is_answer_wrong.sum()),
        random_state=cascade.random_state,
    )


def _build_certificate_from_stages(
    promise: MaxLoss | MinAccuracy,
    *,
    rule_name: str,
    first_threshold: float,
    stages: Stages,
    n_correct_answers: int,
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
    n_correct_answers : int
        Number of correct answers of the models. 0 if it was not observed.
    random_state : int or None
        Seed that the user gave.

    Returns
    -------
    Certificate
    """
    # A certificate counts the rows that models answer as accepted. Whether the models would be
    # correct on the other rows is unknown, so only correct answers count as correct.
    n_tested_rows = stages.n_labels
    outcome = ThresholdOutcome(
        n_rows=n_tested_rows,
        n_correct=n_correct_answers,
        n_accepted=stages.n_answered,
        n_correct_accepted=n_correct_answers,
        highest_accepted=None,
        lowest_rejected=None,
    )
    quantity, target = promise.limits[0]
    certificate = build_certificate(
        quantity,
        target=target,
        delta=promise.delta,
        rule_name=rule_name,
        threshold=first_threshold,
        outcome=outcome,
    )
    certificate_with_stages = replace(certificate, stages=stages)
    return record_design(certificate_with_stages, CertificationDesign(random_state=random_state))


def _build_stage_counts(
    thresholds: Float,
    answering_model_index: Codes,
    *,
    n_wrong_by_model: list[int] | None,
    has_human_review: bool,
) -> tuple[StageCount, ...]:
    """Count the rows that each model answers, and its wrong answers.

    Parameters
    ----------
    thresholds : array of shape (m,)
        Certified thresholds.
    answering_model_index : array of int of shape (n_rows,)
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
    n_rows_by_model = np.bincount(answering_model_index, minlength=len(model_thresholds))
    stages = []
    for model_index, model_name in enumerate(_make_model_names(len(model_thresholds))):
        n_wrong = None
        if n_wrong_by_model is not None:
            n_wrong = n_wrong_by_model[model_index]
        stage = StageCount(
            name=model_name,
            score="score",
            threshold=model_thresholds[model_index],
            n_rows=int(n_rows_by_model[model_index]),
            n_wrong=n_wrong,
        )
        stages.append(stage)
    return tuple(stages)


def _make_model_names(n_gated_models: int) -> list[str]:
    """Return the names of the models: small, middle (numbered if several), large."""
    if n_gated_models == 3:
        return ["small", "middle", "large"]
    middle_names = [f"middle {number}" for number in range(1, n_gated_models - 1)]
    return ["small", *middle_names, "large"][:n_gated_models]
