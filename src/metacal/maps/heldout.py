"""Rows as a map has them that was fitted without them, and as the softmax has them: does calibration help here?

Cross-fitting on some of the rows, every s-th: they are dealt out into folds, whatever their order, and each fold is
mapped by what is fitted on the others. The usual base map costs two walks over those rows and no more (`Seen` says the
rest); the others are fitted anew, where that is affordable.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from metacal import kernels
from metacal.errors import MetacalError, MetacalWarning
from metacal.kernels.uniform import MEAN, OWN, POSSIBLE, TAIL, log_partition
from metacal.maps.composed import ComposedMap, as_front
from metacal.maps.map import Map
from metacal.maps.methods import CHOOSERS, method_of_map
from metacal.maps.spline import fit_averaged
from metacal.maps.uniform import MOST_UNIFORM, Seen, UniformTemperatureMap, newton
from metacal.rows import Rows
from metacal.rows.arrays import on_host

Float = NDArray[np.float64]
#: Fits a map: fit(rows, labels, weights or None), labels being column numbers. `Method.fit_function` is one.
FitMap = Callable[[Rows, NDArray[np.intp], NDArray[np.float64] | None], Map]

#: The most rows that are dealt out, and the most entries of their table; of a map that is fitted anew half of both.
_MOST_ROWS, _MOST_ENTRIES = 4_000, 1 << 21
#: Fewer rows say nothing.
_FEWEST_ROWS = 100
#: Folds of up to so many rows, and of more: the fewer rows, the more of them each fit needs.
_FEW_ROWS, _FOLDS_OF_FEW, _FOLDS = 2_000, 5, 2
#: Methods with parameters for each class are fitted anew up to so many classes.
_MOST_CLASSES_ANEW = 32
#: No loss is larger: that of a probability of 1e-12.
LARGEST_LOSS = -float(np.log(1e-12))


@dataclass(frozen=True)
class HeldOut:
    """Of some rows, at these positions: log loss and confidence under a map fitted without them, and uncalibrated."""

    rows: NDArray[np.intp]
    loss: Float
    confidence: Float
    plain_loss: Float
    plain_confidence: Float
    right: Float

    def where(self, keep: NDArray[np.bool_]) -> HeldOut:
        """Some of them."""
        return HeldOut(*(getattr(self, name)[keep] for name in self.__dataclass_fields__))


def soon_fitted(fitted: Map, n_classes: int) -> bool:
    """Whether a map of this kind is soon fitted anew: not a mixture of many, not somebody else's, not for many classes.

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
    fitted: Map, refit: FitMap, rows: Rows, labels: NDArray[np.intp], weights: NDArray[np.float64] | None
) -> HeldOut | None:
    """Deal out every s-th row, map each fold by what is fitted on the others; None where there are too few.

    `fitted` is the map of all rows, and `refit` what fits such a map.

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
    usual = fitted.usual if isinstance(fitted, ComposedMap) else None
    most = min(_MOST_ROWS, _MOST_ENTRIES // rows.n_classes) // (2 if usual is None else 1)
    if min(len(rows), most) < _FEWEST_ROWS:
        return None
    step = -(-len(rows) // most)
    some, at = (rows, np.arange(len(rows))) if step == 1 else rows.every(step)
    some, labels = some.on_host(), np.asarray(on_host(labels[::step]))
    weights = None if weights is None else np.asarray(on_host(weights[::step]))
    plain = some.collect(partial(kernels.mixed_rows, inverse_temperature=1.0), labels)
    fold = _dealt(plain, labels, weights)
    own = (labels, weights, fold)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MetacalWarning)
        try:
            if usual is not None:
                return replace(_from_columns(usual[0], plain, some, *own), rows=at)
            return replace(_fitted_anew(refit, some, *own), rows=at)
        except MetacalError:  # some fold has no row that is right, or nothing but masks
            return None


def _dealt(plain: Float, labels: NDArray[np.intp], weights: Float | None) -> NDArray[np.intp]:
    """The fold of each row, by its place among all as the softmax has them: not by the order in which rows come."""
    folds = _FOLDS_OF_FEW if len(plain) < _FEW_ROWS else _FOLDS
    keys = (labels, plain[:, OWN], plain[:, MEAN], plain[:, TAIL])
    fold = np.empty(len(plain), dtype=np.intp)
    fold[np.lexsort(keys if weights is None else (weights, *keys))] = np.arange(len(plain)) % folds
    return fold


def _from_columns(
    front: UniformTemperatureMap, plain: Float, rows: Rows, labels: Any, weights: Any, fold: Any
) -> HeldOut:
    """The usual map of each fold from what two walks saw: `plain` at the temperature of the softmax, one at its own."""
    b = front.inverse_temperature
    walk = rows.collect(partial(kernels.mixed_rows, inverse_temperature=b), labels)
    seen = Seen(np.ascontiguousarray(walk.T), None, b)
    right = seen.right
    loss, confidence = np.empty(len(right)), np.empty(len(right))
    for k in range(int(fold.max()) + 1):
        train, test = (Seen(seen.columns[:, own], _part(weights, own), b) for own in (fold != k, fold == k))
        found = _usual_of(train, front)
        loss[fold == k], confidence[fold == k] = _mapped(found, test)
    tail = plain[:, TAIL]
    before = _capped(np.log1p(tail) - plain[:, OWN], 1.0 / (1.0 + tail))
    return HeldOut(fold, loss, confidence, before[0], before[1], right)


def _usual_of(train: Seen, front: UniformTemperatureMap) -> ComposedMap:
    """The usual map of these rows, from where that of all ended."""
    possible = train.with_possible_truth()
    log_b = np.log(front.inverse_temperature)
    box = np.array([[log_b - 0.5, 0.0], [log_b + 0.5, MOST_UNIFORM]])
    found = newton(possible.loss, np.array([log_b, front.uniform]), box).point
    own = as_front(UniformTemperatureMap(float(np.exp(found[0])), float(found[1])), possible, possible.weights)
    return ComposedMap(own, fit_averaged(train.log_odds(own), train.right, train.weights))


def _mapped(fitted: ComposedMap, seen: Seen) -> tuple[Float, Float]:
    """Loss and confidence of these rows under the usual map."""
    assert fitted.usual is not None
    front, spline = fitted.usual
    b, uniform, even = front.inverse_temperature, front.uniform, 1.0 / seen.columns[POSSIBLE]
    value = log_partition(np, seen.columns, b - seen.walked)[0]
    own = (1.0 - uniform) * np.exp(b * seen.columns[OWN] - value) + uniform * even
    rest = -(1.0 - uniform) * np.expm1(-value) + uniform * (1.0 - even)
    s = spline.curve.value(seen.log_odds(front))
    with np.errstate(divide="ignore", invalid="ignore"):  # a class alone, a true class that is masked
        wrong = np.log1p(np.exp(s)) + np.log(rest) - np.log(np.where(np.isneginf(seen.columns[OWN]), 0.0, own))
    return _capped(np.where(seen.right > 0.0, np.log1p(np.exp(-s)), wrong), expit(s))


def _fitted_anew(refit: FitMap, rows: Rows, labels: Any, weights: Any, fold: Any) -> HeldOut:
    table = rows.gathered()
    line, right = np.arange(len(table)), kernels.predicted(table) == labels
    plain, found = (np.empty(table.shape, dtype=np.float64) for _ in range(2))
    kernels.softmax(table, 1.0, plain)
    for k in range(int(fold.max()) + 1):
        own = fold != k
        fitted = refit(Rows(table[own]), labels[own], _part(weights, own))
        found[~own] = fitted(table[~own])
    with np.errstate(divide="ignore"):
        after, before = (_capped(-np.log(p[line, labels]), p.max(axis=1)) for p in (found, plain))
    return HeldOut(fold, after[0], after[1], before[0], before[1], right.astype(np.float64))


def _part(weights: Any, own: NDArray[np.bool_]) -> Any:
    return None if weights is None else weights[own]


def _capped(loss: Float, confidence: Float) -> tuple[Float, Float]:
    return np.minimum(np.where(np.isnan(loss), LARGEST_LOSS, loss), LARGEST_LOSS), confidence
