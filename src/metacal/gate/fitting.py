"""fit_gate: certify a threshold on the rows' scores, fit the base map, and put both into a gate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.errors import InfeasibleTargetError, InputError, warn_caller
from metacal.gate.gate import Flags, Gate
from metacal.gate.helping import NOT_COMPARED, helping
from metacal.gate.long_rows import (
    Counts,
    accepted_and_right,
    certified_by_counts,
    counts_instead,
    remarks_on_long_rows,
)
from metacal.gate.meanwhile import WORTH_A_THREAD, Meanwhile, meanwhile
from metacal.kernels.grid import RELATIVE
from metacal.maps.composed import plain_softmax
from metacal.maps.heldout import FitMap, soon_fitted
from metacal.maps.map import Map
from metacal.promises.certificate import Certificate, accepts
from metacal.promises.circumstances import Circumstances, under
from metacal.promises.costs import Costed, Losses
from metacal.promises.counting import Counted
from metacal.promises.fingerprint import data_hash
from metacal.promises.parted import Parted
from metacal.promises.parts import Name
from metacal.promises.per_group import PerGroup
from metacal.promises.profile import Profile, profile_of
from metacal.promises.promise import Constraint, Promise, require_some_correct
from metacal.promises.ranking import Ranking
from metacal.promises.remarks import remarks_on_rows, remarks_on_scores
from metacal.promises.thresholds import Thresholds, thresholds_of
from metacal.rows import Rows
from metacal.rows.arrays import on_host
from metacal.rows.rows import run_rows
from metacal.rows.suspicions import Suspicion, warn_of_suspicion
from metacal.rows.workers import started
from metacal.scores import (
    Ranked,
    Score,
    collected,
    grid_of,
    name_of,
    needs_logits,
    ranked_in_place,
    ranked_on_device,
    resolve,
)
from metacal.scores.registry import AUTO, candidates

#: Entries of the table that the profile's confidence is computed from, at most.
_LOOKED_AT = 1 << 20


def fit_gate(
    rows: Rows,
    codes: NDArray[np.intp],
    constraint: Constraint,
    score: str | Score,
    fit_map: FitMap,
    *,
    weights: NDArray[np.float64] | None = None,
    counted: Counted | None = None,
    classes: NDArray[Any] | None = None,
    notes: Sequence[str] = (),
    refit: FitMap | None = None,
    gives_way: bool = False,
    **known: Any,
) -> Gate:
    """Certify a threshold on the rows' scores, then fit the base map on the rows that the constraint names for it.

    A code below 0 is a label that is none of the classes: the row counts as wrong, and no map is fitted on it.

    `fit_map(rows, codes, weights)` is a method's fit function, its options bound; which rows it gets is for
    `constraint.for_base` to say. `weights` go to it alone, the certificate counts rows: all, or those of `counted`
    (`metacal.promises.counting`). `notes` go into the certificate. `known` are further fields of the gate:
    `reject_label`, `input`, `recipe`, `classes_given`.

    Log loss and ECE of the accepted rows with the map and without are compared by cross-fitting (`gate.helping`), by
    `refit` where fitting leaves traces. If the map does not help, the certificate says so; with `gives_way` it is the
    softmax then, where the log loss is what is worse.

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
    odd = warn_of_suspicion(rows.table, known.get("input", "logits"))
    parts = _parts(constraint, rows, classes)
    early = meanwhile(rows, constraint, fit_map, codes, weights)
    rows, score, certificate, seen = _ranked(rows, codes, constraint, score, counted, parts, early)
    fingerprint: Callable[[], str]
    if isinstance(seen, Counts):
        fingerprint, further = partial(str, seen.fingerprint), remarks_on_long_rows(rows, score, certificate, odd)
    else:
        hashed = seen.values, seen.correct, run_rows(rows.n_classes)
        many = len(seen.values) >= WORTH_A_THREAD
        fingerprint = started(rows.executor if many else None, data_hash, *hashed, aside=many and rows.on_device)
        further = _further_remarks(rows, seen, odd, counted)
    for note in further:
        warn_caller(note)
    for note in (*notes, *([odd.remark] if odd is not None else []), *further):
        certificate = _with_note(certificate, note)
    if weights is not None:
        certificate = _with_note(certificate, "sample weights are not used by the certificate.")
    thresholds = thresholds_of(certificate, classes)
    decided = _decided(rows, codes, score, certificate, seen, None if parts is None else parts[0], thresholds)
    available = decided.available
    if not rows.on_device and (codes < 0).any():
        available = available & (codes >= 0)
    used = constraint.for_base(available, decided.ranked, decided.correct, certificate)
    if not used.any():
        raise InputError("no row is left to fit the base calibrator on; bring more rows or loosen the promise.")
    kept, own = (rows, slice(None)) if used.all() else (rows.where(used), used)
    fitting = kept, codes[own], None if weights is None else weights[own]
    base = (early.told() if early is not None and kept is rows else None) or fit_map(*fitting)
    base, remark = _checked_help(base, refit or fit_map, fitting, decided.accept[own], constraint, gives_way=gives_way)
    if remark is not None:
        certificate = _with_note(certificate, remark)
    if not base.preserves_accuracy and certificate.quantity.about_answers:
        certificate = _with_note(
            certificate,
            "the base calibrator may change the largest class; the promise is about the largest "
            "logit, which predict returns.",
        )
    gate = Gate(
        base,
        classes,
        score=score,
        threshold=certificate.threshold,
        thresholds=thresholds,
        certificate=certificate,
        constraint=constraint,
        data_hash=fingerprint(),
        **known,
    )
    return replace(gate, profile=_profile(gate, rows, seen.ranking, decided, counted))


def _checked_help(
    base: Map,
    refit: FitMap,
    fitting: tuple[Rows, NDArray[np.intp], NDArray[np.float64] | None],
    accept: Flags,
    constraint: Constraint,
    *,
    gives_way: bool,
) -> tuple[Map, str | None]:
    """The base map, or the softmax in its place, and what there is to say of how it helps."""
    if isinstance(constraint, Promise) and constraint.calibrator is not None:  # the paper's, to the letter
        return base, None
    if not soon_fitted(base, fitting[0].n_classes):
        return base, NOT_COMPARED
    found = helping(base, refit, *fitting, accept)
    if found is None or not found.harms:
        return base, None
    given_way = gives_way and found.log_loss.worse
    remark = found.words(given_way=given_way)
    warn_caller(remark)
    return (plain_softmax() if given_way else base), remark


class _Decided(NamedTuple):
    """Of each row: whether it is accepted and right, a number to rank it by, whether the base map may have it."""

    accept: Flags
    correct: Flags
    ranked: NDArray[Any]
    available: Flags


def _decided(
    rows: Rows,
    codes: NDArray[np.intp],
    score: str | Score,
    certificate: Certificate,
    seen: _Columns | Counts,
    parts: NDArray[np.intp] | None,
    thresholds: Thresholds | None,
) -> _Decided:
    """What the certificate's thresholds say of each row."""
    if isinstance(seen, Counts):
        accept, correct = accepted_and_right(rows, codes, score, certificate.threshold)
        # Two bytes a row in place of its score: what is accepted is below every threshold, the rest above.
        ranked = np.where(accept, np.float16(-np.inf), np.float16(np.inf))
        return _Decided(accept, correct, ranked, np.ones(len(accept), dtype=bool))
    if thresholds is None or parts is None:
        return _Decided(accepts(seen.values, certificate.threshold), seen.correct, seen.values, seen.available)
    # The certificate's own threshold accepts nothing but -inf: these are the rows that theirs accept.
    accept = thresholds.accepts(seen.values, parts)
    return _Decided(accept, seen.correct, np.where(accept, -np.inf, np.inf), seen.available)


def _profile(gate: Gate, rows: Rows, ranking: Ranking, decided: _Decided, counted: Counted | None) -> Profile:
    """What the gate keeps of its calibration rows: all scores, the confidence of some of the accepted rows."""
    if rows.on_device:
        return profile_of(ranking)
    own = decided.accept if counted is None else decided.accept & counted.mask(len(rows))
    chosen = np.flatnonzero(own)
    if not len(chosen):
        return profile_of(ranking)
    chosen = chosen[:: -(-len(chosen) * rows.n_classes // _LOOKED_AT)]
    confidence = rows.picked(chosen).collect(partial(_confidence, gate.map))
    return profile_of(ranking, confidence, decided.correct[chosen])


def _confidence(fitted: Map, block: NDArray[Any]) -> NDArray[Any]:
    """The calibrated probability of the largest logit, which the promise is about."""
    room = np.empty(block.shape, dtype=np.float64 if block.dtype == np.float64 else np.float32)
    fitted.write(block, room)
    found: NDArray[Any] = room[np.arange(len(block)), kernels.predicted(block)]
    return found


def check_gate(constraint: Any, score: str | Score, input: str) -> None:
    """Raise unless these can make a gate."""
    if isinstance(constraint, type) or not isinstance(constraint, Constraint):
        raise InputError(
            "constraint must be a promise such as MaxMiscoverage(0.05) or MinCoverageAccuracy(0.97); "
            f"got {constraint!r}."
        )
    if score != AUTO:
        check_score(score, input)
    elif not isinstance(constraint, Promise) or constraint.delta is None:
        raise InputError(
            f"score='auto' lets several scores share delta, and {constraint!r} has none; give a delta, or name a score."
        )


def check_score(score: str | Score, input: str) -> None:
    """Raise unless this score ranks rows of this kind."""
    resolve(score)
    if needs_logits(score) and input == "probabilities":
        raise InputError(
            f"the score {score!r} is the same for every row of probabilities; use 'entropy', or pass logits."
        )


#: The number of each row's class or group, and what these are called; nothing where one threshold is for all.
_Parts = tuple[NDArray[np.intp], Sequence[Name]] | None


def _parts(constraint: Constraint, rows: Rows, classes: NDArray[Any]) -> _Parts:
    """Which part each row belongs to, where the promise is for each."""
    if isinstance(constraint, PerGroup):
        return constraint.rows_and_names(len(rows))
    return (rows.collect(kernels.predicted), classes.tolist()) if isinstance(constraint, Parted) else None


class _Columns(NamedTuple):
    """The score of each row, whether it is right, whether it is left for the base map; the ranking of those counted."""

    values: NDArray[np.float64]
    correct: Flags
    available: Flags
    ranking: Ranking


class _Certified(NamedTuple):
    """Rows, looked over; the score; the certificate; what is known of the rows."""

    rows: Rows
    score: str | Score
    certificate: Certificate
    seen: _Columns | Counts


def _ranked(
    rows: Rows,
    codes: NDArray[np.intp],
    constraint: Constraint,
    score: str | Score,
    counted: Counted | None,
    parts: _Parts = None,
    early: Meanwhile | None = None,
) -> _Certified:
    """Certify with the score, or with the best of several that share delta.

    With shares of delta that add up to one, all certificates hold together with probability 1 - delta (Bonferroni), so
    any of them may be taken after looking: the one that accepts most or, where accepting is safe and each accepts about
    as many, the one that accepts the fewest wrong rows.
    """
    if score != AUTO:
        if counted is None and parts is None and counts_instead(rows, constraint):
            rows, certificate, counts = certified_by_counts(rows, codes, constraint, score)
            return _Certified(rows, score, certificate, counts)
        rows, values, correct, ranking = _scored(rows, score, codes)
        losses = _losses(constraint, rows, codes)
        if counted is not None or ranking is None:
            require_some_correct(correct)
            rank = started(None if early is None else rows.executor, _ranking_of, values, correct, score, counted)
            if early is not None:
                early(rows)
            ranking = rank()
        certificate, available = _certified(constraint, values, correct, ranking, score, counted, losses, parts)
        return _Certified(rows, score, certificate, _Columns(values, correct, available, ranking))
    assert isinstance(constraint, Promise)
    shares = candidates(rows.n_classes)
    found: list[_Certified] = []
    failed: list[InfeasibleTargetError] = []
    rows = rows.looked_over()
    for name, share in shares.items():
        try:
            found.append(_ranked(rows, codes, constraint.at(share), name, counted, parts))
        except InfeasibleTargetError as error:
            failed.append(error)
    if not found:
        raise max(failed, key=lambda error: error.best or 0.0)
    best = max(found, key=lambda one: _merit(one.certificate))
    certificate = replace(best.certificate, delta=constraint.delta)
    if len(shares) > 1:
        share = shares[str(best.score)]
        told = ", ".join(f"{name} {each:g}" for name, each in shares.items())
        certificate = under(certificate, Circumstances(scores=len(shares), share=share))
        certificate = _with_note(certificate, f"{best.score} was chosen among scores that shared delta: {told} of it.")
    return best._replace(certificate=certificate)


def _merit(certificate: Certificate) -> tuple[float, int]:
    """What a score is chosen for, the first limit being what matters most: a lower cost, then what is accepted."""
    cost = -certificate.target if certificate.quantity.mean else 0.0
    if certificate.quantity.accepting_is_safe:
        return cost, certificate.n_correct_accepted - certificate.n_accepted
    return cost, certificate.n_accepted


def _further_remarks(rows: Rows, seen: _Columns, odd: Suspicion | None, counted: Counted | None) -> list[str]:
    """What else is odd: scores tie because the table is, and rows that are alike, or decisions, repeat each other."""
    alike = odd is not None and odd.kind in ("alike", "one-hot")
    values = seen.values
    if counted is not None:
        counts = counted.mask(len(values))
        rows, values = rows.where(counts), values[counts]
    repeated = [] if alike else remarks_on_rows(rows, values, len(seen.ranking.ranks))
    return [*remarks_on_scores(seen.ranking, ties=odd is None), *repeated]


def _scored(
    rows: Rows, score: str | Score, codes: NDArray[np.intp]
) -> tuple[Rows, NDArray[np.float64], Flags, Ranking | None]:
    """The rows, looked over, the score of each and whether its largest logit is the true class: one walk for all.

    Scores that lie on a device are ranked there before they come here.
    """
    if rows.on_device:
        rows, values, correct = ranked_on_device(rows, score, codes)
        ranking = _ranking_of(values, correct, score) if kernels.on_device(values) else None
        return rows, on_host(values), on_host(correct), ranking
    found = ranked_in_place(rows, score, codes)
    if found is not None:
        return *found, None
    rows, both = collected(rows, Ranked(score), codes)
    return rows, grid_of(score).rounded(both[:, 0]), both[:, 1] > 0.0, None


def _ranking_of(values: Any, correct: Any, score: str | Score, counted: Counted | None = None) -> Ranking:
    """The ranking of the rows that count, on the grid that all certificates share."""
    require_some_correct(correct)
    if counted is not None:
        values, correct = values[counted.rows], correct[counted.rows]
    return Ranking.of(values if grid_of(score) == RELATIVE else kernels.rounded(values, RELATIVE), correct)


def _losses(constraint: Constraint, rows: Rows, codes: NDArray[np.intp]) -> Losses | None:
    """What each answer costs, where the promise is about that."""
    if not isinstance(constraint, Costed):
        return None
    constraint.check_classes(rows.n_classes)
    return constraint.losses(np.asarray(on_host(codes, "labels")), rows.collect(kernels.predicted))


def _certified(
    constraint: Constraint,
    values: NDArray[np.float64],
    correct: Flags,
    ranking: Ranking,
    score: str | Score,
    counted: Counted | None = None,
    losses: Losses | None = None,
    parts: _Parts = None,
) -> tuple[Certificate, Flags]:
    """The certificate, and the rows that are left for the base map; the ranking is that of the rows that count."""
    if counted is not None:
        values, correct = values[counted.rows], correct[counted.rows]
    for_threshold, for_base = constraint.split(correct)
    if isinstance(constraint, Costed) and losses is not None:
        own = losses if counted is None else losses.where(counted.rows)
        chosen = values[for_threshold], correct[for_threshold], own.where(for_threshold)
        certificate = constraint.certify_losses(*chosen)
    elif isinstance(constraint, Parted) and parts is not None:
        codes = parts[0] if counted is None else parts[0][counted.rows]
        certificate = constraint.certify_parts(values, correct, codes, parts[1])
    elif hasattr(constraint, "certify_ranking") and for_threshold.all():
        require_some_correct(correct)
        certificate = constraint.certify_ranking(ranking)
    else:
        certificate = constraint.certify(values[for_threshold], correct[for_threshold])
    if counted is not None:
        for_base = counted.spread(for_base)
        certificate = counted.told(certificate)
    # A constraint does not know the score; on a coarser grid the middle is a wider one, between the same neighbours.
    grid = grid_of(score)
    settled = certificate.parts and certificate.parts.settled(grid.settled)
    threshold = grid.settled(certificate.threshold)
    return replace(certificate, score=name_of(score), threshold=threshold, parts=settled), for_base


def _with_note(certificate: Certificate, note: str) -> Certificate:
    return replace(certificate, notes=(*certificate.notes, note))
