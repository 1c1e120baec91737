"""fit_gate: certify a threshold on the rows' scores, fit the base map, and put both into a gate."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.errors import InputError, MetacalWarning
from metacal.gate.gate import Flags, Gate
from metacal.maps.map import Map
from metacal.promises.certificate import Certificate, accepts, data_hash
from metacal.promises.parted import Parted
from metacal.promises.parts import Name
from metacal.promises.per_group import PerGroup
from metacal.promises.promise import Constraint, require_some_correct
from metacal.promises.remarks import remarks_on_rows, remarks_on_scores
from metacal.promises.thresholds import thresholds_of
from metacal.rows import Rows
from metacal.scores import Score, grid_of, name_of, needs_logits, resolve, score_rows

#: With no error among the accepted rows a temperature would run away; below this many, fitting on all rows gave a lower
#: ECE of accepted rows (embedded sets, 500 to 2,000 rows).
_FEWEST_ERRORS = 50

#: Fits a map: fit(rows, labels, weights or None), labels being column numbers. `Method.fit_function` is one.
FitMap = Callable[[Rows, NDArray[np.intp], NDArray[np.float64] | None], Map]


def fit_gate(
    rows: Rows,
    codes: NDArray[np.intp],
    constraint: Constraint,
    score: str | Score,
    fit_map: FitMap,
    *,
    weights: NDArray[np.float64] | None = None,
    classes: NDArray[Any] | None = None,
    **known: Any,
) -> Gate:
    """Certify a threshold on the rows' scores, then fit the base map on the accepted rows.

    A code below 0 is a label that is none of the classes: the row counts as wrong, and no map is fitted on it.

    `fit_map(rows, codes, weights)` is a method's fit function, its options bound; it gets all rows (that the constraint
    leaves for it) when fewer than 50 of the accepted ones are wrong: a calibrator learns from errors. `weights` go to
    it alone, the certificate counts rows. `known` are further fields of the gate: `reject_label`, `input`, `recipe`,
    `classes_given`.

    Examples
    --------
    >>> from metacal.promises.miscoverage import MaxMiscoverage
    >>> from metacal.maps.temperature import fit_temperature
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(3, size=400)
    >>> rows = Rows(rng.normal(size=(400, 3)) + 3.0 * np.eye(3)[labels])
    >>> gate = fit_gate(rows, labels, MaxMiscoverage(0.1), "entropy", fit_temperature)
    >>> gate.threshold == gate.certificate.threshold, gate.certificate.n_rows
    (True, 400)
    """
    classes = np.arange(rows.n_classes) if classes is None else classes
    values, correct = _scored(rows, score, codes)
    parts = _parts(constraint, rows, classes)
    certificate, available = _certified(constraint, values, correct, score, parts)
    for note in remarks_on_rows(rows, values):
        warnings.warn(note, MetacalWarning, stacklevel=3)
        certificate = _with_note(certificate, note)
    if weights is not None:
        certificate = _with_note(certificate, "sample weights are not used by the certificate.")
    if not rows.on_device and (codes < 0).any():
        available = available & (codes >= 0)
    thresholds = thresholds_of(certificate, classes)
    accept = accepts(values, certificate.threshold if thresholds is None or parts is None else thresholds.of(parts[0]))
    used = _worth_fitting(available, accept, correct)
    if not used.any():
        raise InputError("no row is left to fit the base calibrator on; bring more rows or loosen the promise.")
    kept = rows if used.all() else rows.where(used)
    base = fit_map(kept, codes[used], None if weights is None else weights[used])
    if not base.preserves_accuracy and certificate.quantity.about_answers:
        certificate = _with_note(
            certificate,
            "the base calibrator may change the largest class; the promise is about the largest "
            "logit, which predict returns.",
        )
    return Gate(
        base,
        classes,
        score=score,
        threshold=certificate.threshold,
        thresholds=thresholds,
        certificate=certificate,
        constraint=constraint,
        data_hash=data_hash(values, correct),
        **known,
    )


def check_gate(constraint: Any, score: str | Score, input: str) -> None:
    """Raise unless these can make a gate."""
    resolve(score)
    if isinstance(constraint, type) or not isinstance(constraint, Constraint):
        raise InputError(
            "constraint must be a promise such as MaxMiscoverage(0.05) or MinCoverageAccuracy(0.97); "
            f"got {constraint!r}."
        )
    if needs_logits(score) and input == "probabilities":
        raise InputError(
            f"the score {score!r} is the same for every row of probabilities; use 'entropy', or pass logits."
        )


def _scored(rows: Rows, score: str | Score, codes: NDArray[np.intp]) -> tuple[NDArray[np.float64], Flags]:
    """The score of each row and whether its largest logit is the true class, from one pass over the table."""
    if rows.on_device:
        return score_rows(rows, score), rows.collect(kernels.correct, codes)
    resolved = resolve(score)
    both = rows.collect(partial(_score_and_correct, resolved.unrounded), codes)
    return resolved.grid.rounded(both[:, 0]), both[:, 1] > 0.0


def _score_and_correct(unrounded: Score, block: NDArray[Any], codes: NDArray[np.intp]) -> NDArray[np.float64]:
    return np.stack([unrounded(block), kernels.correct(block, codes)], axis=1)


#: The number of each row's class or group, and what these are called; nothing where one threshold is for all.
_Parts = tuple[NDArray[np.intp], Sequence[Name]] | None


def _parts(constraint: Constraint, rows: Rows, classes: NDArray[Any]) -> _Parts:
    """Which part each row belongs to, where the promise is for each."""
    if isinstance(constraint, PerGroup):
        return constraint.rows_and_names(len(rows))
    return (rows.collect(kernels.predicted), classes.tolist()) if isinstance(constraint, Parted) else None


def _certified(
    constraint: Constraint, values: NDArray[np.float64], correct: Flags, score: str | Score, parts: _Parts
) -> tuple[Certificate, Flags]:
    """The certificate, and the rows that are left for the base map."""
    require_some_correct(correct)
    notes = remarks_on_scores(values, correct)
    for_threshold, for_base = constraint.split(correct)
    if isinstance(constraint, Parted) and parts is not None:
        certificate = constraint.certify_parts(values, correct, *parts)
    else:
        certificate = constraint.certify(values[for_threshold], correct[for_threshold])
    for note in notes:
        warnings.warn(note, MetacalWarning, stacklevel=4)
        certificate = _with_note(certificate, note)
    # A constraint does not know the score; on a coarser grid the middle is a wider one, between the same neighbours.
    grid = grid_of(score)
    settled = certificate.parts and certificate.parts.settled(grid.settled)
    threshold = grid.settled(certificate.threshold)
    return replace(certificate, score=name_of(score), threshold=threshold, parts=settled), for_base


def _worth_fitting(available: Flags, accept: Flags, correct: Flags) -> Flags:
    """The rows to fit the base calibrator on: the accepted ones, if there are enough errors to learn from."""
    accepted = available & accept
    return accepted if int((accepted & ~correct).sum()) >= _FEWEST_ERRORS else available


def _with_note(certificate: Certificate, note: str) -> Certificate:
    return replace(certificate, notes=(*certificate.notes, note))
