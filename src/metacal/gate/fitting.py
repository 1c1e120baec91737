"""fit_gate: certify a threshold on the rows' scores, fit the base map, and put both into a gate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.certificates.fingerprint import Fingerprint, fingerprint_rows
from metacal.certificates.notes import (
    Note,
    check_repeated_rows,
    check_scores,
    not_calibrated,
    not_compared,
    off_by_class,
    suspicion,
    weights_not_certified,
)
from metacal.certification.row_selection import RowSelection
from metacal.errors import InputError
from metacal.formulas import Array, Codes, Flags, Float
from metacal.gate.background_map import WORTH_A_THREAD, BackgroundMap, plan_background_map
from metacal.gate.calibration_data import CalibrationData, CertificationResult
from metacal.gate.certify_table import certify_table, subgroups_of_table
from metacal.gate.gate import Gate
from metacal.gate.helping import helping
from metacal.gate.learned_decision import learn_decision, note_on_predictions
from metacal.gate.logits_source import LogitsSource, Recipe, check_score, shift_second_class
from metacal.gate.long_rows import remarks_on_long_rows
from metacal.gate.thresholds import get_certified_thresholds
from metacal.maps.composed import make_softmax_map
from metacal.maps.heldout import is_fast_to_refit
from metacal.maps.map import FitMap, Map
from metacal.maps.methods import METHODS
from metacal.maps.temperature import TemperatureMap
from metacal.promises.promise import Promise
from metacal.promises.sequential.profile import Profile, build_profile
from metacal.rows import Rows
from metacal.rows.arrays import check_choice
from metacal.rows.draws import generator
from metacal.rows.executors import start_task
from metacal.rows.labels import check_reject_label
from metacal.rows.plausibility import Suspicion, warn_of_suspicion
from metacal.scores import Score
from metacal.scores.registry import AUTO_SCORE

#: Whose decision a promise is about: the largest logit, or of two classes even calibrated odds.
Decided = Literal["largest", "calibrated"]
# Largest number of table entries from which the confidences of the profile are computed.
_MAX_PROFILE_ENTRIES = 1 << 20


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
    gets is for `promise.select_base_map_rows` to say. `weights` go to it alone, the certificate counts rows:
    all, or those that `selection` draws (`metacal.certification.row_selection`). `groups` has the group of
    each row, for a promise per group. `notes` go into the certificate. `known` are further fields
    of its source: `input`, `recipe`, `classes_given`. Of two classes the `decision` may be
    "calibrated": at even odds, learned from some of the rows (`gate.learned_decision`).

    Log loss and ECE of the accepted rows with the map and without are compared by cross-fitting
    (`gate.helping`), by `refit` where fitting leaves traces. If the map does not help, the
    certificate says so; with `gives_way` it is the softmax then, where the log loss is what is
    worse.

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
    >>> from metacal.promises import MaxReview
    >>> gate = fit_gate(rows, None, MaxReview(0.2), "entropy", fit_temperature)
    >>> gate.certificate.n_rows, gate.certificate.labelled, gate.source.map.temperature
    (400, False, 1.0)
    """
    if codes is None:
        _check_needs_no_labels(promise, score)
    if classes is None:
        classes = np.arange(rows.n_classes)
    reject_label = check_reject_label(reject_label, classes)
    input_suspicion = warn_of_suspicion(rows.table, known.get("input", "logits"))
    background = plan_background_map(rows, promise, fit_map, codes, weights)
    if decision == "calibrated" and codes is not None:
        result = _certify_learned_decision(rows, codes, promise, score, selection, classes, groups)
        background = None
    else:
        subgroups = subgroups_of_table(promise, rows, classes, groups)
        data = CalibrationData(rows, codes, classes, subgroups, selection)
        result = certify_table(data, promise, score, background)

    pending_fingerprint = _start_fingerprint(result)
    certificate = result.certificate.with_notes(
        *notes, *_data_notes(result, input_suspicion, is_weighted=weights is not None)
    )
    if codes is None:
        known["recipe"] = Recipe(METHODS["temperature"].public_name)
        fitted = FittedBase(
            map=TemperatureMap(1.0),
            notes=(not_calibrated(),),
            profile=build_profile(result.columns.ranking),
        )
    else:
        base_fit = BaseFit(
            fit_map=fit_map,
            refit=refit or fit_map,
            weights=weights,
            gives_way=gives_way,
            class_names=classes,
            background=background,
        )
        fitted = base_fit.fit(replace(result, certificate=certificate), codes, promise)

    fingerprint = pending_fingerprint()
    source = LogitsSource(
        fitted.map, classes, result.score, decision_at=certificate.decision_at, **known
    )
    return Gate.of(
        source,
        get_certified_thresholds(certificate, classes),
        certificate.with_notes(*fitted.notes),
        promise,
        reject_label=reject_label,
        data_hash=fingerprint.data_hash,
        sketch=fingerprint.sketch,
        profile=fitted.profile,
    )


def _certify_learned_decision(
    rows: Rows,
    codes: Codes,
    promise: Promise,
    score: str | Score,
    selection: RowSelection | None,
    classes: NDArray[Any],
    groups: Any,
) -> CertificationResult:
    """Certify rows of two classes that are decided at log-odds learned from some of them."""
    rows = rows.validated()
    learned = learn_decision(rows, codes, selection)
    subgroups = subgroups_of_table(promise, learned.rows, classes, groups)
    data = CalibrationData(learned.rows, codes, classes, subgroups, learned.counted)
    result = certify_table(data, promise, score)
    offset = learned.decision_offset
    certificate = replace(result.certificate, decision_at=offset)
    return replace(result, rows=rows, certificate=certificate, decision_offset=offset)


def _start_fingerprint(result: CertificationResult) -> Callable[[], Fingerprint]:
    """Start to compute the fingerprint of the rows, and return a function that waits for it."""
    fingerprint = result.fingerprint
    if fingerprint is not None:
        return lambda: fingerprint
    rows = result.rows
    is_worth_a_thread = len(rows) >= WORTH_A_THREAD
    return start_task(
        rows.executor if is_worth_a_thread else None,
        fingerprint_rows,
        result.columns.scores,
        result.columns.correct,
        aside=is_worth_a_thread and rows.on_device,
    )


def _data_notes(
    result: CertificationResult, input_suspicion: Suspicion | None, *, is_weighted: bool
) -> list[Note]:
    """Return the notes about the input, the rows and their weights."""
    notes: list[Note] = []
    if input_suspicion is not None:
        notes.append(suspicion(looks=input_suspicion.kind, lowest=input_suspicion.lowest))
    if result.fingerprint is not None:
        row_notes = remarks_on_long_rows(
            result.rows, result.score, result.certificate, input_suspicion
        )
    else:
        row_notes = _row_notes(result, input_suspicion)
    notes.extend(note.issue_warning() for note in row_notes)
    if is_weighted:
        notes.append(weights_not_certified())
    return notes


@dataclass(frozen=True, eq=False)
class FittedBase:
    """Fitted base map with its notes and what monitors compare new rows with.

    Attributes
    ----------
    map : Map
        Base map.

    notes : tuple of Note
        Notes on how well the map calibrates.

    profile : Profile
        Scores and confidences of the calibration rows.
    """

    map: Map
    notes: tuple[Note, ...]
    profile: Profile


@dataclass(frozen=True, eq=False)
class BaseFit:
    """How the base map is fitted.

    Attributes
    ----------
    fit_map : callable
        Function that fits the map.

    refit : callable
        Function that fits the map without side effects, for cross-fitting.

    weights : array of float of shape (n_rows,) or None
        Weight of each row.

    gives_way : bool
        Whether the softmax replaces a map with a larger log loss.

    class_names : array of shape (n_classes,)
        Names of the classes.

    background : BackgroundMap or None
        Map that was fitted while the rows were ranked.
    """

    fit_map: FitMap
    refit: FitMap
    weights: Float | None
    gives_way: bool
    class_names: NDArray[Any]
    background: BackgroundMap | None

    def fit(self, result: CertificationResult, codes: Codes, promise: Promise) -> FittedBase:
        """Fit the base map on the rows that the promise allows.

        Raises
        ------
        InputError
            If no row is left to fit on.
        """
        columns = result.columns
        is_accepted = columns.is_accepted
        fit_mask = self._choose_rows(result, codes, promise)
        if not fit_mask.any():
            raise InputError(
                "no row is left to fit the base calibrator on; use more rows or loosen the promise."
            )
        rows = result.rows
        fits_all_rows = bool(fit_mask.all())
        fit_rows = rows if fits_all_rows else rows.where(fit_mask)
        fit_index: Any = slice(None) if fits_all_rows else fit_mask
        fit_weights = None if self.weights is None else self.weights[fit_index]
        fit_data = (fit_rows, codes[fit_index], fit_weights)
        base_map = self._take_or_fit(fit_data, is_on_all_rows=fits_all_rows)

        notes: list[Note] = []
        predicts_largest_logit = not np.any(result.decision_offset)
        if predicts_largest_logit:
            # The paper's calibrator is used without a comparison.
            if promise.default_calibrator is None:
                base_map, notes = _compare_with_softmax(
                    base_map,
                    self.refit,
                    fit_data,
                    is_accepted[fit_index],
                    self.gives_way,
                    self.class_names,
                )
            accepting_is_safe = result.certificate.quantity.accepting_is_safe
            if not base_map.preserves_accuracy and not accepting_is_safe:
                notes.append(note_on_predictions(rows, base_map, is_accepted))
        profile = _profile(base_map, result, is_accepted)
        return FittedBase(base_map, tuple(notes), profile)

    def _choose_rows(self, result: CertificationResult, codes: Codes, promise: Promise) -> Flags:
        """Return a mask of the rows on which the map is fitted."""
        columns = result.columns
        scores = columns.scores
        if result.certificate.parts is not None:
            # The one threshold of a certificate with parts accepts nothing but -inf.
            scores = np.where(columns.is_accepted, -np.inf, np.inf)
        is_available = columns.is_available
        if not result.rows.on_device:
            is_available = is_available & (codes >= 0)
        return promise.select_base_map_rows(
            is_available, scores, columns.correct, result.certificate
        )

    def _take_or_fit(
        self, fit_data: tuple[Rows, Codes, Float | None], *, is_on_all_rows: bool
    ) -> Map:
        """Return the map that was fitted in the background, or fit it now."""
        background = self.background
        if is_on_all_rows and background is not None and background.fitted.done():
            return background.fitted.result()
        return self.fit_map(*fit_data)


def _check_needs_no_labels(promise: Promise, score: str | Score) -> None:
    """Raise where rows without labels can certify nothing."""
    if promise.needs_labels:
        raise InputError(
            f"{type(promise).__name__} is about right and wrong answers; give the true labels."
        )
    if score == AUTO_SCORE:
        raise InputError(
            "which score is best shows on labelled rows only; name one, say 'entropy', or give the"
            " labels."
        )


def _compare_with_softmax(
    base: Map,
    refit: FitMap,
    fitting: tuple[Rows, Codes, Float | None],
    accept: Flags,
    gives_way: bool,
    classes: Array,
) -> tuple[Map, list[Note]]:
    """Check by cross-fitting that the map improves on the softmax for accepted rows."""
    if not is_fast_to_refit(base, fitting[0].n_classes):
        return base, [not_compared()]
    found = helping(base, refit, *fitting, accept, classes)
    if found is None:
        return base, []
    given_way = gives_way and found.log_loss.worse
    off = None if found.marginal is None else found.marginal.failure
    remarks = [found.note(given_way=given_way).issue_warning()] if found.harms else []
    remarks += [] if off is None else [off_by_class(**off).issue_warning()]
    return (make_softmax_map(fitting[0].n_classes) if given_way else base), remarks


def _profile(base: Map, result: CertificationResult, is_accepted: Flags) -> Profile:
    """Build what the gate keeps of its calibration rows.

    It holds all scores, and the confidence of some of the accepted rows.
    """
    rows = result.rows
    columns = result.columns
    if result.counted is not None:
        is_accepted = is_accepted & result.counted.to_mask(len(rows))
    profile_index = np.flatnonzero(is_accepted)
    if rows.on_device or len(profile_index) == 0:
        return build_profile(columns.ranking)
    max_rows = max(1, _MAX_PROFILE_ENTRIES // rows.n_classes)
    if len(profile_index) > max_rows:
        order = generator(0).permutation(len(profile_index))
        profile_index = np.sort(profile_index[order[:max_rows]])
    offsets = np.broadcast_to(result.decision_offset, len(rows))[profile_index]
    confidence = rows.picked(profile_index).collect(partial(_confidence, base), offsets)
    return build_profile(columns.ranking, confidence, columns.correct[profile_index])


def _confidence(fitted: Map, block: NDArray[Any], at: NDArray[np.float64]) -> NDArray[Any]:
    """The calibrated probability of the answer, which the promise is about: of the largest logit,
    unless moved.
    """
    room = np.empty(block.shape, dtype=np.float64 if block.dtype == np.float64 else np.float32)
    fitted.fill(block, room)
    return room[
        np.arange(len(block)),
        kernels.predicted(shift_second_class(block, at) if at.any() else block),
    ]


def check_gate(promise: Any, score: str | Score, input: str, decision: str = "largest") -> None:
    """Raise unless these can make a gate."""
    check_choice("decision", decision, "largest", "calibrated")
    if isinstance(promise, Promise) and promise.is_two_sided and decision == "calibrated":
        raise InputError(
            f"{type(promise).__name__} has decisions of its own; leave out decision='calibrated'."
        )
    if isinstance(promise, type) or not isinstance(promise, Promise):
        raise InputError(
            "promise must be one such as MaxMiscoverage(0.05) or MinAccuracy(0.97); got"
            f" {promise!r}."
        )
    if score != AUTO_SCORE:
        check_score(score, input)
    elif promise.delta is None:
        raise InputError(
            f"score='auto' lets several scores share delta, and {promise!r} has none; give a delta,"
            " or name a score."
        )


def _row_notes(result: CertificationResult, input_suspicion: Suspicion | None) -> list[Note]:
    """Return the notes about equal scores and repeated rows."""
    columns = result.columns
    counted = result.counted
    rows = result.rows
    scores = columns.scores
    if counted is not None:
        is_counted = counted.to_mask(len(scores))
        rows = rows.where(is_counted)
        scores = scores[is_counted]
    notes = check_scores(columns.ranking, ties=input_suspicion is None)
    # Decisions repeat each other, and the rows of a cluster may do so.
    holds_decisions = input_suspicion is not None and input_suspicion.kind in ("alike", "one-hot")
    has_clusters = counted is not None and counted.clusters is not None
    if holds_decisions or has_clusters:
        return notes
    return [*notes, *check_repeated_rows(rows, scores, len(columns.ranking.ranks))]
