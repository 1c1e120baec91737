"""fit_cascade: two models behind each other under one promise, as a gate of two stages."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.errors import InputError, MetacalWarning
from metacal.gate.gate import Gate, Stage
from metacal.gate.table import Table
from metacal.maps.map import FitMap
from metacal.maps.temperature import TemperatureMap
from metacal.promises.certificate import Certificate
from metacal.promises.fingerprint import data_hash
from metacal.promises.notes import cascade_not_calibrated
from metacal.promises.parts.thresholds import One
from metacal.promises.promise import Promise
from metacal.promises.rules.cascade import Pair, as_promise
from metacal.promises.rules.cascade_walks import PLAN, Paired, Plan, aside_rows
from metacal.rows import Rows
from metacal.scores import Score, grid_of, name_of, score_rows


def fit_cascade(
    small: Rows,
    large: Rows,
    codes: NDArray[np.intp],
    promise: Promise,
    score: str | Score,
    fit_map: FitMap,
    *,
    plan: Plan = PLAN,
    large_score: str | Score | None = None,
    classes: NDArray[Any] | None = None,
    reject_label: Any = -1,
    **known: Any,
) -> Gate:
    """Certify the thresholds of a cascade on the same rows seen by both models, and calibrate each.

    A code of -1 is a label that nobody knows, which MaxLoss allows where the two models agree. The calibrators are
    fitted on all rows, and only where every label is known: labels known just where models disagree would teach them
    nonsense. `plan` says which rows choose thresholds and whether people are in the cascade; `known` are further fields
    of the two sources.

    Examples
    --------
    >>> from metacal.promises.rules.cascade import MaxLoss
    >>> from metacal.maps.temperature import fit_temperature
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(3, size=1000)
    >>> small = Rows(rng.normal(size=(1000, 3)) + 2.0 * np.eye(3)[labels])
    >>> large = Rows(rng.normal(size=(1000, 3)) + 5.0 * np.eye(3)[labels])
    >>> gate = fit_cascade(small, large, labels, MaxLoss(0.01), "entropy", fit_temperature)
    >>> rest = ~gate.accepts(small)
    >>> decision = gate.decide(small, Rows(large.table[rest]))  # the large model ran on these rows only
    >>> sorted(set(decision.answered_by.tolist())), bool((decision.answered_by == "large").sum() == rest.sum())
    (['large', 'small'], True)
    """
    promise = as_promise(promise)
    scores = (score, score if large_score is None else large_score)
    rows = paired(small, large, codes, scores)
    certificate = promise.certify(Pair(rows, plan, (grid_of(scores[0]), grid_of(scores[1]))))
    certificate = _named(certificate, [name_of(own) for own in scores])
    if rows.known.all():
        maps = [fit_map(small, codes, None), fit_map(large, codes, None)]
    else:
        note = cascade_not_calibrated()
        warnings.warn(str(note), MetacalWarning, stacklevel=2)
        certificate = certificate.with_notes(note)
        maps = [TemperatureMap(1.0), TemperatureMap(1.0)]
        known = {**known, "recipe": None}
    columns = np.arange(small.n_classes) if classes is None else classes
    assert certificate.stages is not None
    stages = tuple(
        Stage(Table(base, columns, own, **known), One(stage.threshold), stage.name)
        for base, own, stage in zip(maps, scores, certificate.stages.items, strict=True)
    )
    hashed = data_hash(rows.small_score, rows.agree)
    return Gate(stages, certificate, promise, reject_label=reject_label, data_hash=hashed)


def _named(certificate: Certificate, scores: Sequence[str]) -> Certificate:
    """The certificate with the names of the scores."""
    assert certificate.stages is not None
    items = tuple(replace(stage, score=name) for stage, name in zip(certificate.stages.items, scores, strict=True))
    return replace(certificate, score=scores[0], stages=replace(certificate.stages, items=items))


def paired(small: Rows, large: Rows, codes: NDArray[np.intp], scores: tuple[str | Score, str | Score]) -> Paired:
    """What both models say about the same rows, as a certificate sees it."""
    if len(small) != len(large) or small.n_classes != large.n_classes:
        raise InputError(
            f"both models must have seen the same rows and classes; got tables of {len(small):,} x {small.n_classes} "
            f"and {len(large):,} x {large.n_classes}."
        )
    one, other = small.collect(kernels.predicted), large.collect(kernels.predicted)
    known = codes >= 0
    return Paired(
        score_rows(small, scores[0]),
        score_rows(large, scores[1]),
        (one == codes) & known,
        (other == codes) & known,
        np.asarray(one == other),
        np.asarray(known),
    )


def labels_needed(small: Rows, large: Rows, score: str | Score, plan: Plan = PLAN) -> NDArray[np.intp]:
    """The rows that need a label before `MaxLoss` can be certified: those tested on which the two models disagree.

    In the order of the small model's score: labels of the first ones certify that it answers little, more of them that
    it answers more. Rows that are set aside to choose thresholds need none; `plan` must be the one to be fitted with.

    Examples
    --------
    >>> table = np.eye(2)[np.arange(100) % 2]
    >>> other = table.copy()
    >>> other[:10] = other[:10, ::-1]
    >>> labels_needed(Rows(table), Rows(other), "entropy").tolist()
    [0, 1, 3, 4, 5, 6, 7, 8, 9]
    """
    differ = small.collect(kernels.predicted) != large.collect(kernels.predicted)
    differ[aside_rows(len(small), plan)] = False
    rows = np.flatnonzero(differ)
    return rows[np.argsort(score_rows(small, score)[rows], kind="stable")]
