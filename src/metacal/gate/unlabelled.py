"""fit_unlabelled: a gate from rows without labels, for promises that look at no label."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError, warn_caller
from metacal.gate.gate import Gate
from metacal.gate.table import Recipe, Table
from metacal.maps.methods import METHODS
from metacal.maps.temperature import TemperatureMap
from metacal.promises.certificate import accepts
from metacal.promises.fingerprint import data_hash
from metacal.promises.notes import many_ties, not_calibrated, remarks_on_rows, suspicion
from metacal.promises.parts.units import Counted
from metacal.promises.promise import Promise
from metacal.promises.rules.order_statistic import MaxReview
from metacal.promises.sample import Ranking, Sample
from metacal.promises.sequential.profile import profile_of
from metacal.rows import Rows, run_rows
from metacal.rows.plausibility import warn_of_suspicion
from metacal.scores import Score, grid_of, name_of, score_rows
from metacal.scores.registry import AUTO


def needs_labels(promise: Promise) -> bool:
    """Whether a promise can be certified from labelled rows only.

    Examples
    --------
    >>> from metacal.promises.rules.order_statistic import MaxMiscoverage
    >>> needs_labels(MaxReview(0.2)), needs_labels(MaxMiscoverage(0.05))
    (False, True)
    """
    return not isinstance(promise, Promise) or promise.needs_labels


def fit_unlabelled(
    rows: Rows,
    promise: Promise,
    score: str | Score,
    *,
    counted: Counted | None = None,
    classes: NDArray[Any] | None = None,
    notes: tuple[str, ...] = (),
    reject_label: Any = -1,
    **known: Any,
) -> Gate:
    """Certify a threshold on the scores of rows whose labels nobody knows; the map is the softmax.

    The arguments are those of `fit_gate`, less the labels and what learns from them.

    Examples
    --------
    >>> gate = fit_unlabelled(Rows(np.random.default_rng(0).normal(size=(500, 3))), MaxReview(0.2), "entropy")
    >>> gate.certificate.n_rows, gate.certificate.labelled, gate.source.map.temperature
    (500, False, 1.0)
    """
    if not isinstance(promise, MaxReview):
        raise InputError(f"{type(promise).__name__} is about right and wrong answers; give the true labels.")
    if score == AUTO:
        raise InputError(
            "which score is best shows on labelled rows only; name one, say 'entropy', or give the labels."
        )
    odd = warn_of_suspicion(rows.table, known.get("input", "logits"))
    rows = rows.looked_over()
    values = score_rows(rows, score)
    own, none = values if counted is None else values[counted.rows], np.zeros(len(values), dtype=bool)
    sample = Sample.of(own, units=None if counted is None else counted.whole)
    certificate = promise.certify(sample)
    if certificate.n_rows < len(own):
        certificate = certificate.with_traffic(accepts(own, certificate.threshold), none[: len(own)])
    ranking = Ranking.of(own, none[: len(own)])
    if counted is not None:
        certificate = counted.told(certificate)
    further = [] if odd is not None else many_ties(Ranking.of(values, none) if counted else ranking)
    if odd is None and counted is None:
        further += remarks_on_rows(rows, values, len(ranking.ranks))
    for note in further:
        warn_caller(str(note))
    threshold = grid_of(score).settled(certificate.threshold)
    odd_remarks = () if odd is None else (suspicion(looks=odd.kind, lowest=odd.lowest),)
    written = (*certificate.notes, *notes, *odd_remarks, *further, not_calibrated())
    certificate = replace(certificate, score=name_of(score), threshold=threshold, notes=written)
    classes = np.arange(rows.n_classes) if classes is None else classes
    recipe = Recipe(METHODS["temperature"].public_name)
    return Gate.of(
        Table(TemperatureMap(1.0), classes, score, recipe=recipe, **known),
        certificate.threshold,
        certificate=certificate,
        promise=promise,
        reject_label=reject_label,
        data_hash=data_hash(values, none, run_rows(rows.n_classes)),
        profile=profile_of(ranking),
    )
