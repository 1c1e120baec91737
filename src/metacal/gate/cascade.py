"""fit_cascade: two models behind each other under one promise, as a gate of two stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.certificates.certificate import Certificate
from metacal.certificates.fingerprint import fingerprint_rows
from metacal.certificates.notes import cascade_not_calibrated
from metacal.errors import InputError
from metacal.formulas import Codes, Flags, Float
from metacal.gate.gate import Gate
from metacal.gate.logits_source import LogitsSource
from metacal.gate.score_source import (
    HigherIs,
    ScoreSource,
    check_score_gate_options,
    clean_score_name,
)
from metacal.gate.stages import Source, Stage
from metacal.gate.thresholds import SingleThreshold
from metacal.maps.map import FitMap
from metacal.maps.temperature import TemperatureMap
from metacal.promises.accuracy import MinAccuracy
from metacal.promises.cascade import TwoModelEvidence, check_cascade_promise
from metacal.promises.cascade_candidates import (
    DEFAULT_PLAN,
    CascadePlan,
    PairedPredictions,
    draw_pilot_rows,
)
from metacal.promises.promise import Promise
from metacal.promises.staged_cascade import CascadeScores
from metacal.rows import Rows
from metacal.rows.labels import check_classes, check_reject_label, encode_known_labels
from metacal.rows.score_columns import check_scores, read_model_flags
from metacal.scores import Score, get_rounding_grid, score_rows


def fit_cascade(
    small: Rows,
    large: Rows,
    labels: Any,
    promise: Promise,
    score: str | Score,
    fit_map: FitMap,
    *,
    plan: CascadePlan = DEFAULT_PLAN,
    large_score: str | Score | None = None,
    classes: Sequence[Any] | NDArray[Any] | None = None,
    reject_label: Any = None,
    **known: Any,
) -> Gate:
    """Certify the thresholds of a cascade on the same rows seen by both models, and calibrate each.

    None, NaN, "" or -1 is a label that nobody knows, which MaxLoss allows where the two models
    agree. Calibrators are fitted on all rows, and only where every label is known: labels known
    just where models disagree would teach them nonsense. `plan` says which rows choose thresholds
    and whether people are in the cascade; `known` are further fields of the two sources.

    Examples
    --------
    >>> from metacal.promises.cascade import MaxLoss
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
    promise = check_cascade_promise(promise)
    scores = (score, score if large_score is None else large_score)
    columns = check_classes(classes, small.n_classes)
    reject_label = check_reject_label(reject_label, columns)
    codes = encode_known_labels(labels, len(small), columns)
    rows = paired(small, large, codes, scores)
    certificate = promise.certify(
        TwoModelEvidence(rows, plan, (get_rounding_grid(scores[0]), get_rounding_grid(scores[1])))
    )
    if rows.has_label.all():
        maps = [fit_map(small, codes, None), fit_map(large, codes, None)]
    else:
        certificate = certificate.with_notes(cascade_not_calibrated().issue_warning())
        maps = [TemperatureMap(1.0), TemperatureMap(1.0)]
        known = {**known, "recipe": None}
    sources = [LogitsSource(base, columns, own, **known) for base, own in zip(maps, scores)]
    return replace(
        _gate(sources, certificate, promise, rows.small_score, rows.models_agree),
        reject_label=reject_label,
    )


def fit_scored_cascade(
    scores: Sequence[Any],
    promise: Promise,
    *,
    agrees: Any = None,
    correct: Any = None,
    costs: Sequence[float] | None = None,
    score_names: Sequence[str] | None = None,
    higher_is: HigherIs = "surer",
    people: bool = False,
    pool: bool = False,
    random_state: int | None = None,
    joint: bool = False,
) -> Gate:
    """Certify the thresholds of models of rising cost from their scores.

    Parameters
    ----------
    scores : sequence of arrays of shape (n,)
        A column for each model. The last model's is not used, and may be left out unless there are
        `people`.
    promise : MaxLoss or MinAccuracy
    agrees : array of shape (n, m), optional
        For MaxLoss without people: whether each model but the last gives the last model's answer.
        An entry may be missing; only the scores of such a row are used.
    correct : array of shape (n, m), optional
        For MinAccuracy, or with people: whether each model is correct.
    costs : sequence of float, optional
        What it costs to ask each model, and people.
    score_names, higher_is
        What the scores are called, and what a higher one means.
    people : bool
        Whether people answer what no model does.
    pool : bool
        Whether the promise is about these rows, of which those with an entry were drawn at random.
    random_state : int
        Draws the rows that are tested and the pilot rows.
    joint : bool
        Whether the risk of an answer is learned from all scores up to its model's.

    Raises
    ------
    InputError
        If the flags are not those that the promise is about, or shapes do not fit.

    Examples
    --------
    >>> from metacal.promises.cascade import MaxLoss
    >>> rng = np.random.default_rng(0)
    >>> sure = rng.random((3, 2000))
    >>> agrees = rng.random((2, 2000)) > (1 - sure[:2]) ** 3 / [[4], [9]]
    >>> gate = fit_scored_cascade(sure, MaxLoss(0.02), agrees=agrees, costs=[1, 10, 100])
    >>> gate.decide(*sure).by[:8]
    array([0, 2, 1, 2, 0, 0, 0, 0])
    """
    check_score_gate_options(promise, higher_is)
    given = [check_scores(column) for column in scores]
    if len({len(column) for column in given}) > 1:
        raise InputError(
            "each model needs a score for every row; got"
            f" {', '.join(str(len(one)) for one in given)}."
        )
    absolute = isinstance(promise, MinAccuracy)
    name = "correct" if absolute or people else "agrees"
    flags, known = read_model_flags(
        _required_flags(promise, name, agrees, correct), len(given[0]), name
    )
    if absolute and pool:
        raise InputError("of a pool the promise is MaxLoss(0.01); leave out pool, or ask for that.")
    m = flags.shape[1] - (absolute and not people)  # those that may turn a row away
    if len(given) not in ((m,) if people else (m, m + 1)) or m + people < 2 - (not people):
        every = absolute or people
        raise InputError(
            f"there are {len(given)} columns of scores and {flags.shape[1]} of {name}; each model"
            " but the last has one "
            f"of both{', and the last one says whether it is right' if every else ''}"
            f"{', and has a score too, with people behind it: two models or more' if people else ''}."
        )
    names = [
        clean_score_name(name) for name in score_names or [f"score {j + 1}" for j in range(m + 1)]
    ]
    sources = [
        ScoreSource(name, higher_is) for name in [*names, f"score {m + 1}"][: m + (not people)]
    ]
    doubt = np.stack(
        [source.uncertainty_scores(column) for source, column in zip(sources, given[:m])], axis=1
    )
    if np.isnan(doubt).any():
        raise InputError(
            f"row {np.argwhere(np.isnan(doubt))[0][0]} lacks a score; leave out rows that lack one."
        )
    prices = np.asarray(
        [10.0**j for j in range(m + 1)] if costs is None else costs, dtype=np.float64
    )
    if prices.shape != (m + 1,) or not (prices >= 0.0).all() or not prices[-1] > 0.0:
        raise InputError(
            f"costs must be {m + 1} numbers, what it costs to ask"
            f" each{' and people' if people else ''}."
        )
    rows = CascadeScores(
        doubt[known], ~flags[known], prices, doubt[~known], pool, people, random_state, joint
    )
    return _gate(sources, promise.certify(rows), promise, doubt[known, 0], flags[known, 0])


def _required_flags(promise: Promise, name: str, agrees: Any, correct: Any) -> Any:
    """Return the flags that a promise is about, called `name`. Raise InputError if others were
    given.
    """
    given = {"agrees": agrees, "correct": correct}
    other = "correct" if name == "agrees" else "agrees"
    if given[other] is None and given[name] is not None:
        return given[name]
    if name == "agrees":
        raise InputError(
            f"{type(promise).__name__} over scores needs agrees=..., whether each model but the"
            " last gives the last model's answer. correct=... does not say that: two models may"
            " both be wrong and differ. If you know only which answers are correct, promise"
            " MinAccuracy, or fit on tables of logits with labels."
        )
    raise InputError(
        f"This cascade needs correct=..., whether each model is correct: {promise!r} is about"
        " correct answers. agrees=... is for MaxLoss without people."
    )


def _gate(
    sources: Sequence[Source],
    certificate: Certificate,
    promise: Promise,
    score: Float,
    agree: Flags,
) -> Gate:
    """The stages of a certificate, which gets the names of their scores; the hash is of the first
    score and `agree`.
    """
    known = certificate.stages
    assert known is not None
    items = tuple(
        replace(one, score=own.score_name) for one, own in zip(known.items, sources, strict=True)
    )
    stages = tuple(
        Stage(own, SingleThreshold(one.threshold), one.name) for one, own in zip(items, sources)
    )
    named = replace(certificate, score=items[0].score, stages=replace(known, items=items))
    found = fingerprint_rows(score, agree)
    return Gate(stages, named, promise, data_hash=found.data_hash, sketch=found.sketch)


def paired(
    small: Rows, large: Rows, codes: Codes, scores: tuple[str | Score, str | Score]
) -> PairedPredictions:
    """What both models say about the same rows, as a certificate sees it."""
    if len(small) != len(large) or small.n_classes != large.n_classes:
        raise InputError(
            f"both models must have seen the same rows and classes; got tables of {len(small):,} x"
            f" {small.n_classes} and {len(large):,} x {large.n_classes}."
        )
    one, other, known = (
        small.collect(kernels.predicted),
        large.collect(kernels.predicted),
        np.asarray(codes >= 0),
    )
    doubts = score_rows(small, scores[0]), score_rows(large, scores[1])
    return PairedPredictions(
        *doubts, (one == codes) & known, (other == codes) & known, np.asarray(one == other), known
    )


def labels_needed(
    small: Rows,
    large: Rows,
    score: str | Score,
    plan: CascadePlan = DEFAULT_PLAN,
    large_score: str | Score | None = None,
) -> Codes:
    """The rows that need a label before `MaxLoss` can be certified: those tested on which the two
    models disagree.

    In the order of the small model's score: labels of the first ones certify that it answers
    little, more of them that it answers more. Rows that are set aside to choose thresholds need
    none; `plan` must be the one to be fitted with.

    Examples
    --------
    >>> table = np.eye(2)[np.arange(100) % 2]
    >>> other = table.copy()
    >>> other[:10] = other[:10, ::-1]
    >>> labels_needed(Rows(table), Rows(other), "entropy").tolist()
    [0, 1, 2, 3, 4, 5, 7, 8, 9]
    """
    agree = np.asarray(small.collect(kernels.predicted) == large.collect(kernels.predicted))
    small_doubt = score_rows(small, score)
    large_doubt = score_rows(large, score if large_score is None else large_score)
    tested = np.ones(len(agree), dtype=bool)
    tested[draw_pilot_rows(small_doubt, large_doubt, agree, plan)] = False
    rows = np.flatnonzero(tested & ~agree)
    return rows[np.argsort(small_doubt[rows], kind="stable")]
