"""fit_unlabelled: a gate from rows without labels, for promises that look at no label."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.decision import Recipe
from metacal.errors import InputError, MetacalWarning
from metacal.gate.gate import Gate
from metacal.maps.methods import METHODS
from metacal.maps.temperature import TemperatureMap
from metacal.promises.budget import MaxReview
from metacal.promises.certificate import data_hash
from metacal.promises.promise import Constraint, Promise
from metacal.promises.remarks import remarks_on_rows, tied_scores
from metacal.rows import Rows
from metacal.scores import Score, grid_of, name_of, score_rows

NOT_CALIBRATED = (
    "the rows had no labels: no calibrator was fitted, and probabilities are the softmax of the logits, as honest as "
    "the classifier is."
)


def needs_labels(constraint: Constraint) -> bool:
    """Whether a promise can be certified from labelled rows only.

    Examples
    --------
    >>> from metacal.promises.miscoverage import MaxMiscoverage
    >>> needs_labels(MaxReview(0.2)), needs_labels(MaxMiscoverage(0.05))
    (False, True)
    """
    return not isinstance(constraint, Promise) or constraint.needs_labels


def fit_unlabelled(
    rows: Rows, constraint: Constraint, score: str | Score, *, classes: NDArray[Any] | None = None, **known: Any
) -> Gate:
    """Certify a threshold on the scores of rows whose labels nobody knows; the map is the softmax.

    Examples
    --------
    >>> gate = fit_unlabelled(Rows(np.random.default_rng(0).normal(size=(500, 3))), MaxReview(0.2), "entropy")
    >>> gate.certificate.n_rows, gate.certificate.labelled, gate.map.temperature
    (500, False, 1.0)
    """
    if not isinstance(constraint, MaxReview):
        raise InputError(f"{type(constraint).__name__} is about right and wrong answers; give the true labels.")
    values = score_rows(rows, score)
    certificate = constraint.certify(values)
    notes = [*tied_scores(values), *remarks_on_rows(rows, values)]
    for note in notes:
        warnings.warn(note, MetacalWarning, stacklevel=3)
    threshold = grid_of(score).settled(certificate.threshold)
    written = (*certificate.notes, *notes, NOT_CALIBRATED)
    certificate = replace(certificate, score=name_of(score), threshold=threshold, notes=written)
    return Gate(
        TemperatureMap(1.0),
        np.arange(rows.n_classes) if classes is None else classes,
        score=score,
        threshold=certificate.threshold,
        certificate=certificate,
        constraint=constraint,
        data_hash=data_hash(values, np.zeros(len(values), dtype=bool)),
        recipe=Recipe(METHODS["temperature"].public_name),
        **known,
    )
