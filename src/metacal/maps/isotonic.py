"""Isotonic calibration: the non-decreasing curve nearest to the outcomes, one-vs-rest, top-label,
or shared (IRM).

Zadrozny & Elkan, "Transforming classifier scores into accurate multiclass probability estimates",
KDD 2002; Zhang, Kailkhura & Han, "Mix-n-Match: Ensemble and Compositional Methods for Uncertainty
Calibration", ICML 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from metacal.formulas import Codes, Float
from metacal.formulas.curves import shared
from metacal.maps.curves import (
    Curve,
    Draw,
    OneCurveMap,
    PiecewiseMap,
    TopLabelMap,
    fit_piecewise,
    fit_top_label,
    identity_curve,
    softmax,
    tie_groups,
)
from metacal.maps.labelled import Labelled, Weights
from metacal.maps.map import check_prior_rows
from metacal.maps.temperature import fit_temperature
from metacal.rows import Rows


@dataclass(frozen=True, eq=False)
class SharedMap(OneCurveMap):
    """q_k = curve(p_k) with p = softmax(b·x) and one strictly increasing, piecewise linear curve;
    then q / Σ q.

    A curve shared by all classes keeps their order, so every prediction is kept. Where every q is
    zero, which only `prior_rows=0` can bring about, p stays.

    Examples
    --------
    >>> square_ish = SharedMap(np.array([0.0, 0.5, 1.0]), np.array([0.0, 0.25, 1.0]))
    >>> square_ish(np.log([[0.5, 0.3, 0.2]])).round(3)
    array([[0.5, 0.3, 0.2]])
    """

    knots: Float
    values: Float
    inverse_temperature: float = 1.0

    preserves_accuracy = True
    interpolation = "linear"
    derived = (*OneCurveMap.derived, "interpolation")
    formula = staticmethod(shared)


def fit_isotonic(
    rows: Rows, labels: Codes, weights: Weights = None, *, prior_rows: float = 1.0
) -> PiecewiseMap:
    """Fit q_k = (N·iso_k(p_k) + s·p_k) / (N + s) for every class, with s = `prior_rows` and N the
    weight of the rows.

    iso_k minimises Σ w·(outcome - iso(p))² among non-decreasing functions (pool adjacent violators,
    tied p pooled first), runs straight between the blocks and level beyond the outer ones, as
    scikit-learn's. Its zeros and ones would deny what n rows happened not to show; s rows' worth of
    the uncalibrated model keeps each answer inside (0, 1) and each curve strictly increasing (Zhang
    et al. add 1e-9·p for the same reason). s = 0 is plain isotonic.
    """
    return fit_piecewise(rows, labels, weights, _draw(prior_rows), "linear")


def fit_top_label_isotonic(
    rows: Rows,
    labels: Codes,
    weights: Weights = None,
    *,
    tempered: bool = True,
    prior_rows: float = 1.0,
) -> TopLabelMap:
    """Fit the isotonic curve of the predicted class's confidence alone, after temperature scaling
    if `tempered`.
    """
    return fit_top_label(rows, labels, weights, _draw(prior_rows), "linear", tempered)


def fit_irova_ts(
    rows: Rows, labels: Codes, weights: Weights = None, *, prior_rows: float = 1.0
) -> PiecewiseMap:
    """IROvA-TS: temperature scaling, then isotonic one-vs-all on its probabilities."""
    b = fit_temperature(rows, labels, weights).inverse_temperature
    return fit_piecewise(rows, labels, weights, _draw(prior_rows), "linear", b)


def fit_irm(
    rows: Rows,
    labels: Codes,
    weights: Weights = None,
    *,
    tempered: bool = True,
    prior_rows: float = 1.0,
) -> SharedMap:
    """IRM: one isotonic curve through the pooled pairs (p_k, is it class k?) of all classes, after
    temperature scaling.

    The same blend with `prior_rows` as in `fit_isotonic` makes it strictly increasing.
    `tempered=False` leaves the temperature out. Level stretches of the answer begin at positive
    pairs, so it is found exactly from the n probabilities of the true classes and counts of the
    others between them: two passes, O(n·K·log) time, O(n) memory.
    """
    prior_rows = check_prior_rows(prior_rows)
    b = fit_temperature(rows, labels, weights).inverse_temperature if tempered else 1.0
    sample = Labelled(rows, labels, weights).counted()
    rows, labels, weights = sample.rows, sample.labels, sample.counts
    own = rows.collect(partial(_own_probability, inverse_temperature=b), labels)
    seen = ~np.isnan(own)
    if not seen.any():
        return SharedMap(*identity_curve(), b)
    at, _, positive = tie_groups(own[seen], np.ones(int(seen.sum())), weights[seen])
    total = rows.sum(partial(_weights_between, cuts=at, inverse_temperature=b), weights)
    # Group 0 lies below the first positive pair; group i begins with the i-th and ends before the
    # next.
    used = total > 0.0
    fitted = isotonic_regression(
        np.append(0.0, positive)[used] / total[used], weights=total[used]
    ).x
    first = np.append(0.0, at)[used]
    new_level = np.append(True, np.diff(fitted) > 0.0)
    starts, levels = first[new_level], fitted[new_level]
    ends = rows.collect(partial(_last_before, cuts=starts[1:], inverse_temperature=b))
    ends = ends.reshape(-1, len(starts)).max(axis=0)
    knots = np.stack([starts, np.maximum(ends, starts)], axis=1).ravel()
    distinct = np.append(True, np.diff(knots) > 0.0)
    curve = blended(
        knots[distinct], np.repeat(levels, 2)[distinct], float(weights.sum()), prior_rows
    )
    return SharedMap(*curve, b)


def _draw(prior_rows: object) -> Draw:
    return partial(isotonic_curve, prior_rows=check_prior_rows(prior_rows))


def isotonic_curve(points: Float, total: Float, positive: Float, prior_rows: float) -> Curve:
    """The corners of the isotonic regression, blended with `prior_rows` rows of the identity."""
    fitted = np.clip(isotonic_regression(positive / total, weights=total).x, 0.0, 1.0)
    rises = np.diff(fitted) > 0.0
    corner = np.append(True, rises) | np.append(rises, True)
    return blended(points[corner], fitted[corner], float(total.sum()), prior_rows)


def blended(knots: Float, values: Float, total: float, prior_rows: float) -> Curve:
    """(N·curve + s·p) / (N + s), with corners at 0 and 1 added."""
    if knots[0] > 0.0:
        knots, values = np.append(0.0, knots), np.append(values[0], values)
    if knots[-1] < 1.0:
        knots, values = np.append(knots, 1.0), np.append(values, values[-1])
    share = prior_rows / (total + prior_rows)
    return knots, np.clip((1.0 - share) * values + share * knots, 0.0, 1.0)


def _own_probability(block: NDArray[Any], labels: Codes, inverse_temperature: float) -> Float:
    """p of the true class, NaN where it is masked."""
    line = np.arange(len(block))
    own = softmax(block, inverse_temperature)[line, labels]
    own[np.isneginf(block[line, labels])] = np.nan
    return own


def _weights_between(
    block: NDArray[Any], weights: Float, cuts: Float, inverse_temperature: float
) -> Float:
    """The weight of all pairs below the first cut, from each cut to the next, and from the last
    on.
    """
    possible = block > -np.inf
    pairs = softmax(block, inverse_temperature)[possible]
    order = np.argsort(pairs, kind="stable")
    below = np.append(
        0.0, np.cumsum(np.broadcast_to(weights[:, None], block.shape)[possible][order])
    )
    at = np.searchsorted(pairs[order], cuts, side="left")
    return np.diff(np.concatenate(([0.0], below[at], below[-1:])))


def _last_before(block: NDArray[Any], cuts: Float, inverse_temperature: float) -> Float:
    """The largest p of a pair below the first cut, from each cut to the next, and from the last on;
    0 if none.
    """
    pairs = np.sort(softmax(block, inverse_temperature)[block > -np.inf])
    edges = np.concatenate(([0], np.searchsorted(pairs, cuts, side="left"), [len(pairs)]))
    return np.where(edges[1:] > edges[:-1], pairs[np.maximum(edges[1:] - 1, 0)], 0.0)
