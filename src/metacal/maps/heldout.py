"""Rows as a map has them that was fitted without them, and as the softmax has them: does
calibration help here?

Cross-fitting on some of the rows, drawn at random: they are dealt out into folds, whatever their
order, and each fold is mapped by what is fitted on the others. A temperature, one with a uniform
part, and the usual base map cost two walks over those rows and no more (`Seen` says the rest),
wherever the table lies; the others are fitted anew, where that is affordable.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy.special import expit

from metacal import kernels
from metacal.errors import MetacalError, MetacalWarning
from metacal.formulas import Codes, Flags, Float
from metacal.kernels.columns import MEAN, OWN, POSSIBLE, TAIL, log_partition
from metacal.maps.composed import ComposedMap, as_front
from metacal.maps.labelled import Labelled, Weights
from metacal.maps.map import FitMap, Map
from metacal.maps.methods import CHOOSERS, method_of_map
from metacal.maps.spline import fit_averaged_each
from metacal.maps.temperature import TemperatureMap
from metacal.maps.uniform import MOST_UNIFORM, Seen, UniformTemperatureMap, newton
from metacal.rows import Rows
from metacal.rows.arrays import on_host
from metacal.rows.draws import generator

#: The most rows that are dealt out, and the most entries of their table; of a map that is fitted
#: anew half of both.
_MOST_ROWS, _MOST_ENTRIES = 4_000, 1 << 21
#: Fewer rows say nothing.
_FEWEST_ROWS = 100
#: Folds of up to so many rows, and of more: the fewer rows, the more of them each fit needs.
_FEW_ROWS, _FOLDS_OF_FEW, _FOLDS = 2_000, 5, 2
#: Methods with parameters for each class are fitted anew up to so many classes.
_MOST_CLASSES_ANEW = 32
#: How far from where the rows were walked the map of a fold may be, in log b; and what the last of
#: Newton's steps to it promises per row: it is taken, which leaves about the square.
_REACH, _ACCURACY = 0.5, 1e-5
#: How far apart in log-odds are the points that rows are moved to for a fold's spline.
_GRID = 1.0 / 16.0
#: No loss is larger: that of a probability of 1e-12.
LARGEST_LOSS = -float(np.log(1e-12))


@dataclass(frozen=True)
class HeldOut:
    """Of some rows, at these positions: log loss and confidence under a map fitted without them,
    and uncalibrated.
    """

    rows: Codes
    loss: Float
    confidence: Float
    plain_loss: Float
    plain_confidence: Float
    right: Float

    def where(self, keep: Flags) -> HeldOut:
        """Some of them."""
        return HeldOut(*(getattr(self, name)[keep] for name in self.__dataclass_fields__))


def soon_fitted(fitted: Map, n_classes: int) -> bool:
    """Whether a map of this kind is soon fitted anew: not a mixture of many, not somebody else's,
    not for many classes.

    Examples
    --------
    >>> from metacal.maps.temperature import TemperatureMap
    >>> soon_fitted(TemperatureMap(1.0), 1000)
    True
    """
    method = method_of_map(type(fitted))
    known = method is not None and method.name not in CHOOSERS
    return known and (fitted.n_classes is None or n_classes <= _MOST_CLASSES_ANEW)


def held_out(
    fitted: Map,
    refit: FitMap,
    rows: Rows,
    labels: Codes,
    weights: Weights,
    enough: Callable[[HeldOut], bool] = lambda _: False,
) -> HeldOut | None:
    """Map each fold of a random sample of the rows by a map fitted on the other folds; None if
    there are too few rows.

    `fitted` is the map of all rows, and `refit` what fits such a map. The usual map, whose folds
    take longest, is first looked at as it is, on the rows that it was fitted on: `enough` says
    whether no fold has to be fitted.

    Examples
    --------
    >>> from metacal.maps.composed import fit_composed
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(0.0, 2.0, (3000, 4))
    >>> labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    >>> rows = Rows(3.0 * logits)                                        # three times too sure
    >>> found = held_out(fit_composed(rows, labels), fit_composed, rows, labels, None)
    >>> bool(found.loss.mean() < found.plain_loss.mean()), len(found.rows)
    (True, 3000)
    """
    front = _front_of(fitted)
    most = min(_MOST_ROWS, _MOST_ENTRIES // rows.n_classes) // (2 if front is None else 1)
    if min(len(rows), most) < _FEWEST_ROWS:
        return None
    at = _drawn_rows(len(rows), most)
    some, there, own = Labelled(rows, labels, weights).picked(at)
    labels, weights = np.asarray(on_host(there)), None if own is None else np.asarray(on_host(own))
    if front is not None:
        plain, seen = (_walked(some, there, weights, b) for b in (1.0, front.inverse_temperature))
        beside = (*_uncalibrated(plain), seen.right)
        if isinstance(fitted, ComposedMap) and weights is None:
            known = HeldOut(at, *_as_fitted(fitted, seen), *beside)
            if enough(known):
                return known
    else:
        some = some.on_host()
        plain = _walked(some, labels, weights, 1.0)
    fold = _dealt(plain, labels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MetacalWarning)
        if front is not None:
            return HeldOut(at, *_from_columns(fitted, front, seen, fold), *beside)
        try:
            return HeldOut(at, *_fitted_anew(refit, some, labels, weights, fold))
        except MetacalError:  # some fold has no row that is right, or nothing but masks
            return None


def _drawn_rows(n_rows: int, most: int) -> Codes:
    """Return the positions of the rows that are compared, rising: all rows, or a random sample of
    at most `most`.

    Every s-th row would be no sample of a file in which kinds of rows alternate: a picture and its
    mirror image.
    """
    step = -(-n_rows // most)
    if step == 1:
        return np.arange(n_rows)
    return np.sort(generator(0).permutation(n_rows)[: -(-n_rows // step)])


def _dealt(plain: Seen, labels: Codes) -> Codes:
    """The fold of each row, by its place among all as the softmax has them: not by the order in
    which rows come.
    """
    folds = _FOLDS_OF_FEW if len(plain) < _FEW_ROWS else _FOLDS
    columns = plain.columns
    order = np.argsort(columns[TAIL])
    tail = columns[TAIL][order]
    same = np.append(False, tail[1:] == tail[:-1])
    if same.any():  # what else tells these rows apart
        tied = np.flatnonzero(same | np.append(same[1:], False))
        own = order[tied]
        keys = (labels[own], columns[OWN][own], columns[MEAN][own], columns[TAIL][own])
        order[tied] = own[
            np.lexsort(keys if plain.weights is None else (plain.weights[own], *keys))
        ]
    fold = np.empty(len(plain), dtype=np.intp)
    fold[order] = np.arange(len(plain)) % folds
    return fold


def _as_fitted(fitted: ComposedMap, seen: Seen) -> tuple[Float, Float]:
    """What the usual map says of rows that it was fitted on."""
    assert fitted.usual is not None
    front, spline = fitted.usual
    fold = np.zeros(len(seen), dtype=np.intp)
    return _mapped([front], seen, fold, spline.curve.value(seen.log_odds(front)))


def _from_columns(
    fitted: Map, front: UniformTemperatureMap, seen: Seen, fold: Codes
) -> tuple[Float, Float]:
    """The map of each fold from what a walk at the map's own temperature saw."""
    others = [
        seen.where(np.flatnonzero(fold != k)).with_possible_truth()
        for k in range(int(fold.max()) + 1)
    ]
    most = 0.0 if isinstance(fitted, TemperatureMap) else MOST_UNIFORM
    fronts, s = [_front_from(train, front, most) for train in others], None
    if isinstance(fitted, ComposedMap):
        fronts = [
            as_front(own, train, train.weights) for own, train in zip(fronts, others, strict=True)
        ]
        s = _lifted(fronts, seen, fold)
    return _mapped(fronts, seen, fold, s)


def _walked(rows: Rows, labels: Any, weights: Any, b: float) -> Seen:
    """What a walk at this inverse temperature sees, on the host."""
    walk = rows.collect(partial(kernels.mixed_rows, inverse_temperature=b), labels)
    return Seen(np.ascontiguousarray(walk.T), weights, b)


def _uncalibrated(plain: Seen) -> tuple[Float, Float]:
    """Loss and confidence under the softmax."""
    tail = plain.columns[TAIL]
    return _capped(np.log1p(tail) - plain.columns[OWN], 1.0 / (1.0 + tail))


def _front_of(fitted: Map) -> UniformTemperatureMap | None:
    """Temperature and uniform part of a map whose folds are fitted from columns; None of any
    other.
    """
    if isinstance(fitted, ComposedMap):
        return None if fitted.usual is None else fitted.usual[0]
    if isinstance(fitted, TemperatureMap):
        return UniformTemperatureMap(fitted.inverse_temperature, 0.0)
    return fitted if isinstance(fitted, UniformTemperatureMap) else None


def _front_from(
    train: Seen, front: UniformTemperatureMap, most_uniform: float
) -> UniformTemperatureMap:
    """Temperature and uniform part of these rows, from where those of all ended."""
    log_b = np.log(front.inverse_temperature)
    box = np.array([[log_b - _REACH, 0.0], [log_b + _REACH, most_uniform]])
    found = newton(train.loss, np.array([log_b, front.uniform]), box, _ACCURACY).point
    return UniformTemperatureMap(float(np.exp(found[0])), float(found[1]))


def _lifted(fronts: list[UniformTemperatureMap], seen: Seen, fold: Codes) -> Float:
    """The log-odds of each row's confidence through the spline of the rows outside its fold."""
    odds = [seen.log_odds(own) for own in fronts]
    own = [fold != k for k in range(len(fronts))]
    splines = fit_averaged_each(
        [
            (z[rows], seen.right[rows], _part(seen.weights, rows))
            for z, rows in zip(odds, own, strict=True)
        ],
        grid=_GRID,
    )
    found = np.empty(len(fold))
    for spline, z, rows in zip(splines, odds, own, strict=True):
        found[~rows] = spline.curve.value(z[~rows])
    return found


def _mapped(
    fronts: list[UniformTemperatureMap], seen: Seen, fold: Codes, s: Float | None = None
) -> tuple[Float, Float]:
    """Loss and confidence of each row under the map of its fold; `s` are log-odds that the
    confidence goes through.
    """
    columns, even = seen.columns, 1.0 / seen.columns[POSSIBLE]
    b = np.array([front.inverse_temperature for front in fronts])[fold]
    uniform = np.array([front.uniform for front in fronts])[fold]
    value = log_partition(np, columns, b - seen.walked)[0]
    with np.errstate(
        divide="ignore", invalid="ignore", over="ignore"
    ):  # a class alone, a true class that is masked
        own = (1.0 - uniform) * np.exp(b * columns[OWN] - value) + uniform * even
        own[np.isneginf(columns[OWN])] = 0.0
        rest = -(1.0 - uniform) * np.expm1(-value) + uniform * (1.0 - even)
        if s is None:
            return _capped(-np.log(own), 1.0 - rest)
        wrong = np.log1p(np.exp(s)) + np.log(rest) - np.log(own)
        return _capped(np.where(seen.right > 0.0, np.log1p(np.exp(-s)), wrong), expit(s))


def _fitted_anew(
    refit: FitMap, rows: Rows, labels: Any, weights: Any, fold: Any
) -> tuple[Float, ...]:
    table = rows.gathered()
    line, top = (
        np.arange(len(table)),
        kernels.predicted(table),
    )  # the answer, whatever a map makes the likeliest
    plain, found = (np.empty(table.shape, dtype=np.float64) for _ in range(2))
    kernels.softmax(table, 1.0, plain)
    for k in range(int(fold.max()) + 1):
        own = fold != k
        fitted = refit(Rows(table[own]), labels[own], _part(weights, own))
        found[~own] = fitted(table[~own])
    with np.errstate(divide="ignore"):
        after, before = (_capped(-np.log(p[line, labels]), p[line, top]) for p in (found, plain))
    return (*after, *before, (top == labels).astype(np.float64))


def _part(weights: Any, own: Flags) -> Any:
    return None if weights is None else weights[own]


def _capped(loss: Float, confidence: Float) -> tuple[Float, Float]:
    return np.minimum(np.where(np.isnan(loss), LARGEST_LOSS, loss), LARGEST_LOSS), confidence
