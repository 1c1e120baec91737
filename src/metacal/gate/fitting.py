"""fit_gate: certify a threshold on the rows' scores, fit the base map, and put both into a gate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.errors import InputError
from metacal.formulas import Array, Codes, Flags, Float
from metacal.gate.gate import Gate
from metacal.gate.helping import helping
from metacal.gate.long_rows import Certified, Columns, Counts, decided_columns, remarks_on_long_rows
from metacal.gate.ranked import (
    WORTH_A_THREAD,
    meanwhile,
    parts_of_rows,
    ranked_and_certified,
)
from metacal.gate.sides import about_answers, certified_sides, learned_decision
from metacal.gate.table import Recipe, Table, check_score, moved
from metacal.maps.composed import plain_softmax
from metacal.maps.heldout import soon_fitted
from metacal.maps.map import FitMap, Map
from metacal.maps.methods import METHODS
from metacal.maps.temperature import TemperatureMap
from metacal.promises.certificate import accepts
from metacal.promises.fingerprint import Fingerprint, fingerprint_rows
from metacal.promises.notes import (
    Note,
    not_calibrated,
    not_compared,
    off_by_class,
    remarks_on_rows,
    remarks_on_scores,
    suspicion,
    weights_not_certified,
)
from metacal.promises.parts.per import Per
from metacal.promises.parts.thresholds import policy_of
from metacal.promises.parts.units import Counted, RowSelection
from metacal.promises.promise import Promise
from metacal.promises.rules.two_sided import Sided
from metacal.promises.sequential.profile import Profile, profile_of
from metacal.rows import Rows
from metacal.rows.arrays import one_of
from metacal.rows.draws import generator
from metacal.rows.executors import started
from metacal.rows.labels import reject_label_of
from metacal.rows.plausibility import Suspicion, warn_of_suspicion
from metacal.scores import Score
from metacal.scores.registry import AUTO

#: Whose decision a promise is about: the largest logit, or of two classes even calibrated odds.
Decided = Literal["largest", "calibrated"]
#: Entries of the table that the profile's confidence is computed from, at most.
_LOOKED_AT = 1 << 20


def fit_gate(
    rows: Rows,
    codes: Codes | None,
    promise: Promise,
    score: str | Score,
    fit_map: FitMap,
    *,
    weights: Float | None = None,
    selection: RowSelection | None = None,
    classes: NDArray[Any] | None = None,
    groups: Any = None,
    notes: Sequence[Note] = (),
    refit: FitMap | None = None,
    gives_way: bool = False,
    reject_label: Any = None,
    decision: Decided = "largest",
    **known: Any,
) -> Gate:
    """Certify a threshold on the rows' scores, then fit the base map on the rows that the promise
    names for it.

    A code below 0 is a label that is none of the classes: the row counts as wrong, and no map is
    fitted on it. Without codes, for a promise that looks at no labels, the map is the softmax, and
    the decision the largest logit's.

    `fit_map(rows, codes, weights)` is a method's fit function, its options bound; which rows it
    gets is for `promise.for_base` to say. `weights` go to it alone, the certificate counts rows:
    all, or those that `selection` draws (`metacal.promises.parts.units`). `groups` has the group of
    each row, for a promise per group. `notes` go into the certificate. `known` are further fields
    of its source: `input`, `recipe`, `classes_given`. Of two classes the `decision` may be
    "calibrated": at even odds, learned from some of the rows (`gate.sides`).

    Log loss and ECE of the accepted rows with the map and without are compared by cross-fitting
    (`gate.helping`), by `refit` where fitting leaves traces. If the map does not help, the
    certificate says so; with `gives_way` it is the softmax then, where the log loss is what is
    worse.

    Examples
    --------
    >>> from metacal.promises.rules.order_statistic import MaxMiscoverage
    >>> from metacal.maps.temperature import fit_temperature
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(3, size=400)
    >>> rows = Rows(rng.normal(size=(400, 3)) + 3.0 * np.eye(3)[labels])
    >>> gate = fit_gate(rows, labels, MaxMiscoverage(0.1), "entropy", fit_temperature)
    >>> gate.threshold == gate.certificate.threshold, gate.certificate.n_rows
    (True, 400)
    >>> from metacal.promises import MaxReview
    >>> gate = fit_gate(rows, None, MaxReview(0.2), "entropy", fit_temperature)
    >>> gate.certificate.n_rows, gate.certificate.labelled, gate.source.map.temperature
    (400, False, 1.0)
    """
    if codes is None:
        _check_needs_no_labels(promise, score)
    classes, input = (
        np.arange(rows.n_classes) if classes is None else classes,
        known.get("input", "logits"),
    )
    reject_label = reject_label_of(reject_label, classes)
    odd = warn_of_suspicion(rows.table, input)
    there, at, early = rows, 0.0, None
    counted: RowSelection | Counted | None = selection
    if decision == "calibrated" and codes is not None:
        rows = rows.looked_over()
        there, at, counted = learned_decision(rows, codes, selection)
    parts = parts_of_rows(promise, there, classes, groups)
    if isinstance(promise, Sided | Per) and promise.sided:
        found = certified_sides(rows, codes, promise, counted, classes, parts)
    else:
        early = meanwhile(rows, promise, fit_map, codes, weights) if there is rows else None
        found = ranked_and_certified(there, codes, promise, score, counted, parts, early)
    if there is not rows:
        found = found._replace(
            rows=rows, certificate=replace(found.certificate, decision_at=at), at=at
        )
    rows, (seen, pending_fingerprint, further) = found.rows, _looked_at(found, codes, odd)
    of_rows = () if odd is None else (suspicion(looks=odd.kind, lowest=odd.lowest),)
    of_weights = () if weights is None else (weights_not_certified(),)
    certificate = found.certificate.with_notes(
        *notes, *of_rows, *(one.warned() for one in further), *of_weights
    )
    policy = policy_of(certificate, classes)
    accept = accepts(seen.values, policy.of(*found.placed))
    base: Map = TemperatureMap(1.0)
    if codes is None:
        known["recipe"] = Recipe(METHODS["temperature"].public_name)
        remarks, profile = [not_calibrated()], profile_of(seen.ranking)
    else:
        # One threshold for all accepts nothing but -inf: these are the rows that those of the parts
        # accept.
        values = seen.values if policy.by is None else np.where(accept, -np.inf, np.inf)
        available = seen.available if rows.on_device else seen.available & (codes >= 0)
        used = promise.for_base(available, values, seen.correct, certificate)
        if not used.any():
            raise InputError(
                "no row is left to fit the base calibrator on; use more rows or loosen the promise."
            )
        kept, own = (rows, slice(None)) if used.all() else (rows.where(used), used)
        fitting = kept, codes[own], None if weights is None else weights[own]
        fitted = (
            None if early is None or kept is not rows or not early.fitted.done() else early.fitted
        )
        base, remarks = fit_map(*fitting) if fitted is None else fitted.result(), []
        if not np.any(found.at):  # what is compared are answers by the largest logit
            if promise.calibrator is None:  # the paper's is taken to the letter
                base, remarks = _checked_help(
                    base, refit or fit_map, fitting, accept[own], gives_way, classes
                )
            if not base.preserves_accuracy and not certificate.quantity.accepting_is_safe:
                remarks.append(about_answers(rows, base, accept))
        profile = _profile(base, rows, seen, accept, found.counted, found.at)
    fingerprint = pending_fingerprint()
    source = Table(base, classes, found.score, decision_at=certificate.decision_at, **known)
    certificate = certificate.with_notes(*remarks)
    known_rows = {
        "data_hash": fingerprint.data_hash,
        "sketch": fingerprint.sketch,
        "profile": profile,
    }
    return Gate.of(source, policy, certificate, promise, reject_label=reject_label, **known_rows)


def _looked_at(
    found: Certified, codes: Codes | None, odd: Suspicion | None
) -> tuple[Columns, Callable[[], Fingerprint], list[Note]]:
    """Return the columns of the rows, a function that waits for their fingerprint, and notes about
    the data.
    """
    rows, seen = found.rows, found.seen
    if isinstance(seen, Counts):
        assert codes is not None
        further = remarks_on_long_rows(rows, found.score, found.certificate, odd)
        columns = decided_columns(
            rows, codes, found.score, found.certificate.threshold, seen.ranking
        )
        return columns, lambda: seen.fingerprint, further
    many = len(rows) >= WORTH_A_THREAD
    executor = rows.executor if many else None
    fingerprint = started(
        executor, fingerprint_rows, seen.values, seen.correct, aside=many and rows.on_device
    )
    return seen, fingerprint, _further_remarks(rows, seen, odd, found.counted)


def _check_needs_no_labels(promise: Promise, score: str | Score) -> None:
    """Raise where rows without labels can certify nothing."""
    if promise.needs_labels:
        raise InputError(
            f"{type(promise).__name__} is about right and wrong answers; give the true labels."
        )
    if score == AUTO:
        raise InputError(
            "which score is best shows on labelled rows only; name one, say 'entropy', or give the"
            " labels."
        )


def _checked_help(
    base: Map,
    refit: FitMap,
    fitting: tuple[Rows, Codes, Float | None],
    accept: Flags,
    gives_way: bool,
    classes: Array,
) -> tuple[Map, list[Note]]:
    """The base map, or the softmax in its place, and what there is to say of how it helps."""
    if not soon_fitted(base, fitting[0].n_classes):
        return base, [not_compared()]
    found = helping(base, refit, *fitting, accept, classes)
    if found is None:
        return base, []
    given_way = gives_way and found.log_loss.worse
    off = None if found.marginal is None else found.marginal.failure
    remarks = [found.note(given_way=given_way).warned()] if found.harms else []
    remarks += [] if off is None else [off_by_class(**off).warned()]
    return (plain_softmax(fitting[0].n_classes) if given_way else base), remarks


def _profile(
    base: Map, rows: Rows, seen: Columns, accept: Flags, counted: Counted | None, at: float | Float
) -> Profile:
    """What the gate keeps of its calibration rows: all scores, the confidence of some of the
    accepted rows.
    """
    chosen = np.flatnonzero(accept if counted is None else accept & counted.mask(len(rows)))
    if rows.on_device or not len(chosen):
        return profile_of(seen.ranking)
    most = max(1, _LOOKED_AT // rows.n_classes)
    if len(chosen) > most:
        chosen = np.sort(chosen[generator(0).permutation(len(chosen))[:most]])
    confidence = rows.picked(chosen).collect(
        partial(_confidence, base), np.broadcast_to(at, len(rows))[chosen]
    )
    return profile_of(seen.ranking, confidence, seen.correct[chosen])


def _confidence(fitted: Map, block: NDArray[Any], at: NDArray[np.float64]) -> NDArray[Any]:
    """The calibrated probability of the answer, which the promise is about: of the largest logit,
    unless moved.
    """
    room = np.empty(block.shape, dtype=np.float64 if block.dtype == np.float64 else np.float32)
    fitted.fill(block, room)
    return room[np.arange(len(block)), kernels.predicted(moved(at, block) if at.any() else block)]


def check_gate(promise: Any, score: str | Score, input: str, decision: str = "largest") -> None:
    """Raise unless these can make a gate."""
    one_of("decision", decision, "largest", "calibrated")
    if isinstance(promise, Promise) and promise.sided and decision == "calibrated":
        raise InputError(
            f"{type(promise).__name__} has decisions of its own; leave out decision='calibrated'."
        )
    if isinstance(promise, type) or not isinstance(promise, Promise):
        raise InputError(
            "promise must be one such as MaxMiscoverage(0.05) or MinAccuracy(0.97); got"
            f" {promise!r}."
        )
    if score != AUTO:
        check_score(score, input)
    elif promise.delta is None:
        raise InputError(
            f"score='auto' lets several scores share delta, and {promise!r} has none; give a delta,"
            " or name a score."
        )


def _further_remarks(
    rows: Rows, seen: Columns, odd: Suspicion | None, counted: Counted | None
) -> list[Note]:
    """What else is odd: scores tie because the table is, and rows that are alike, or decisions,
    repeat each other.
    """
    alike = odd is not None and odd.kind in ("alike", "one-hot")
    alike = alike or (
        counted is not None and counted.whole is not None
    )  # rows of a unit may well be
    values = seen.values
    if counted is not None:
        counts = counted.mask(len(values))
        rows, values = rows.where(counts), values[counts]
    repeated = [] if alike else remarks_on_rows(rows, values, len(seen.ranking.ranks))
    return [*remarks_on_scores(seen.ranking, ties=odd is None), *repeated]
