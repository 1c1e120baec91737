r"""Monotone calibration of log-odds: an increasing curve, a straight line with a Brownian bend,
averaged by evidence.

Of two classes one number s, the log-odds of the second, says all that the classifier says. A
temperature b·s cannot learn an offset (class weights, a resampled training set, another share of
positives), Platt's a + b·s no bend, isotonic regression answers 0 and 1. Here

    P(second | s) = σ(h(x)),   h(x) = θ₀ + Σ_j w_j · clip((x - k_{j-1}) / Δ_j, 0, 1),   w_j >= 0,

with knots k₀ < … < k_J, Δ_j = k_j - k_{j-1}, and beyond the outer knots the mean slope. The prior
is a straight line near the identity with a Brownian motion on top, h ~ a + b·x + √τ·B(x), a ~ N(0,
s_a²), b ~ N(1, s_b²):

    θ ~ N(G, s_b²·GGᵀ + diag(s_a², τ·min(Δ, 4))),   G = (k₀, Δ₁, …, Δ_J).

The most likely θ is a convex problem, solved by projected Newton steps; its evidence by Laplace.
Nobody knows (s_a, s_b), τ nor whether x is s or s held back at one in n; and scores may be log-odds
or, as the margins of a support vector machine, have a scale of their own, so three of the priors
are of (x - mean)/deviation instead of x. Nine priors and two x make 18 curves, averaged with their
evidence as weights. A last e = 2/(k + 1)², k the rows of the rarer class, goes to the share r = (k
+ 1)/(n + 2) of it: no answer is 0 or 1, and of a handful of rows none is far from r. (All chosen on
half of the sets of `benchmarks.two_class`.)

Increasing by construction: an average of increasing curves. Knots stand at quantiles of ½F₁ + ½F₀,
F the distributions of x in the two classes, J = 2√(rows of the rarer class), between 4 and 16:
where a class is rare its rows say the most.

Of more than two classes the question is whether the winner is right, and s its log-odds after a
temperature; the other classes share the rest in proportion.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError
from metacal.formulas import Codes, Flags, Float
from metacal.formulas import curves as formulas
from metacal.formulas.operations import NUMPY
from metacal.maps.fitting.newton import Sums, minimise, with_prior
from metacal.maps.labelled import Labelled, Weights
from metacal.maps.map import TemperedMap, positive
from metacal.maps.spline import tempered_log_odds
from metacal.maps.temperature import fit_temperature
from metacal.rows import Rows
from metacal.rows.arrays import on_host

#: Standard deviations of intercept and slope, and variances of a step of one, averaged over: in x;
#: in its own units.
_LINES = ((0.3, 0.2, (0.05,)), (1.5, 0.7, (0.05, 0.5, 4.0)), (6.0, 4.0, (0.05, 4.0)))
_OWN_LINES = ((4.0, 4.0, (0.05, 0.5, 4.0)),)
#: The standard deviation of x counts as no smaller.
_LEAST_UNIT = 1e-3
#: A step of the Brownian motion counts as no longer than this.
_LONGEST_STEP = 4.0
_FEWEST_PIECES, _MOST_PIECES = 4, 16
#: More rows than this are counted in so many cells.
_CELLS = 2048
#: A curve whose weight is below this is left out.
_NEGLIGIBLE = 1e-4
#: What a curve that changes nothing leaves to the share of the class.
_NO_REST = 1e-12
#: The fit of a curve ends when a step promises less than this per row: the evidence needs no more.
_TOLERANCE = 1e-8


@dataclass(frozen=True, eq=False)
class MonotoneMap(TemperedMap):
    """(1 - e)·Σ_m w_m σ(h_m) + e·r, increasing in the log-odds; never 0 or 1.

    Attributes
    ----------
    inverse_temperature : float
        Of more than two classes, fitted first; 1 of two.
    two_classes : bool
        Whether it answers for the second of two classes, or of more for the one with the largest
        logit.
    turned : bool
        Whether it is the first of two classes: the rarer one, so that relabelling changes nothing
        but columns.
    n_rows : float
        How many rows it was fitted on, their weights summed.
    level, rest : float
        r, the share of what it answers for, and e.
    low, width : array of shape (J,)
        Where the pieces of the curves in s begin, and how long they are.
    rise, start, weight : arrays of shape (J, M), (M,) and (M,)
        How much each of M curves rises along each piece, where it starts, and its share of the
        average. A shape (J, 0): no curve in s has any weight worth speaking of.
    low_2, width_2, rise_2, start_2, weight_2 : arrays
        The same of the curves in log((n·p + ½)/(n·(1 - p) + ½)).

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> s = rng.normal(size=2000)
    >>> labels = (rng.random(2000) < 1 / (1 + np.exp(4 - s))).astype(int)           # an offset of -4
    >>> fitted = fit_monotone(Rows(np.column_stack([0 * s, s])), labels)
    >>> fitted(np.array([[0.0, 0.0], [0.0, 2.0]]))[:, 1].round(2)
    array([0.01, 0.13])
    """

    inverse_temperature: float
    two_classes: bool
    turned: bool
    n_rows: float
    level: float
    rest: float
    low: Float
    width: Float
    rise: Float
    start: Float
    weight: Float
    low_2: Float
    width_2: Float
    rise_2: Float
    start_2: Float
    weight_2: Float

    formula = staticmethod(formulas.monotone)

    @property
    def n_classes(self) -> int | None:
        """2, or any number."""
        return 2 if self.two_classes else None

    @property
    def preserves_accuracy(self) -> bool:
        """Of more than two classes the winner stays the winner; of two the curve decides."""
        return not self.two_classes

    def check(self) -> None:
        """Raise unless the fields make a map."""
        super().check()
        positive("n_rows", self.n_rows)
        total = self.rest
        for end in ("", "_2"):
            low, width, rise, start, weight = (
                getattr(self, name + end) for name in formulas.CURVES
            )
            shapes = (
                low.ndim == start.ndim == 1
                and low.shape == width.shape
                and weight.shape == start.shape
            )
            rising = (
                shapes
                and len(low) > 0
                and rise.shape == (*low.shape, *start.shape)
                and (width > 0.0).all()
            )
            rising = rising and (np.append(rise, weight) >= 0.0).all()
            if not (rising and np.isfinite([*low, *start, rise.sum()]).all()):
                raise InputError(
                    "the curves of a monotone map must not fall, nor their weights be negative."
                )
            total += float(weight.sum())
        if not (abs(total - 1.0) <= 1e-6 and 0.0 < self.level < 1.0 and 0.0 < self.rest < 1.0):
            raise InputError(
                f"the weights of a monotone map must sum to 1; they sum to {total:.6g}."
            )


def fit_monotone(rows: Rows, labels: Codes, weights: Weights = None) -> MonotoneMap:
    """Fit 18 curves and average them by their evidence: see above.

    One pass over the rows for s; then O(n·J²) per Newton step, some 10 steps, for n of at most
    2,048: more rows are counted in so many cells.
    """
    sample = Labelled(rows, labels, weights).usable()
    two = rows.n_classes == 2
    temperature = 1.0 if two else fit_temperature(*sample).inverse_temperature
    if two:
        s, right = sample.rows.collect(log_odds), np.asarray(on_host(sample.labels)) == 1
    else:
        s, right = (
            sample.rows.collect(partial(tempered_log_odds, temperature)),
            sample.correct() > 0.0,
        )
    counts = np.asarray(on_host(sample.counts), dtype=np.float64)
    more = float(counts @ right) - 0.5 * float(counts.sum())
    turned = two and (more > 0.0 or (more == 0.0 and float(np.clip(s, -1e300, 1e300).sum()) < 0.0))
    s, right = (-s, ~right) if turned else (s, right)
    told = np.abs(s) < formulas.FARTHEST  # where a class is masked the other is certain
    s, right, counts = s[told], right[told], counts[told]
    total = float(counts.sum())
    n = max(total, total**2 / float(counts @ counts)) if len(counts) else 1.0
    second = float(counts @ right) * n / max(total, 1e-300)
    level, rest = (second + 1.0) / (n + 2.0), min(0.5, 2.0 / (min(second, n - second) + 1.0) ** 2)
    x, yes, no = _cells(s, right, counts * (n / total if total else 1.0))
    found = [_curves(seen, yes, no) for seen in (x, NUMPY.run(formulas._shrunk, n, x))]
    evidence = np.concatenate([own for _, _, own in found])
    weight = np.exp(evidence - evidence.max())
    weight[weight < _NEGLIGIBLE * weight.sum()] = 0.0
    shares = np.split(weight * ((1.0 - rest) / weight.sum()), 2)
    both = (
        part
        for (knots, theta, _), share in zip(found, shares)
        for part in _weighted(knots, theta, share)
    )
    return MonotoneMap(temperature, two, turned, n, float(level), rest, *both)


def plain_monotone() -> MonotoneMap:
    """The curve of two classes that changes nothing: σ(s), but for one part in 10¹².

    >>> plain_monotone()(np.array([[0.0, 2.0]])).round(3)
    array([[0.119, 0.881]])
    """
    pieces, none = (np.array([-0.5]), np.ones(1)), np.empty((1, 0))
    straight = (*pieces, np.ones((1, 1)), np.array([-0.5]), np.array([1.0 - _NO_REST]))
    return MonotoneMap(
        1.0, True, False, 1.0, 0.5, _NO_REST, *straight, *pieces, none, none[0], none[0]
    )


def log_odds(block: NDArray[Any]) -> Float:
    """Of the second of two classes, in double."""
    double = np.asarray(block, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        return np.asarray(double[:, 1] - double[:, 0])


def _cells(s: Float, right: Flags, counts: Float) -> tuple[Float, Float, Float]:
    """Places on the line, and the weight of rows of either kind there: each row, or of many those
    of a cell.
    """
    if not len(s):
        return np.zeros(1), np.zeros(1), np.zeros(1)
    order = np.argsort(s, kind="stable")
    cell = np.empty(len(s), dtype=np.intp)
    cell[order] = np.arange(len(s)) * _CELLS // len(s)
    columns = (counts, counts * s, counts * right)
    sums: list[Any] = [np.bincount(cell, weights=each, minlength=_CELLS) for each in columns]
    of, place, yes = (each[sums[0] > 0.0] for each in sums)
    return place / of, yes, np.maximum(of - yes, 0.0)


def _curves(x: Float, yes: Float, no: Float) -> tuple[Float, Float, Float]:
    """Knots, curves over them, one for each prior, and the evidence of each."""
    knots = _knots(x, yes, no)
    width = np.diff(knots)
    centre = np.append(knots[0], width)
    design = np.column_stack(
        [np.ones(len(x)), np.clip((x[:, None] - knots[:-1]) / width, 0.0, 1.0)]
    )
    beyond = np.minimum(x - knots[0], 0.0) + np.maximum(x - knots[-1], 0.0)
    design[:, 1:] += beyond[:, None] / (knots[-1] - knots[0])
    share = (yes + no) / max(float(yes.sum() + no.sum()), 1e-300)
    mean = float(share @ x)
    unit = max(float(share @ (x - mean) ** 2) ** 0.5, _LEAST_UNIT)
    covariance = np.stack(
        [
            slope**2 * np.outer(line, line)
            + np.diag(np.append(intercept**2, bend * np.minimum(line[1:], _LONGEST_STEP)))
            for line, lines in (
                (centre, _LINES),
                (np.append(knots[0] - mean, width) / unit, _OWN_LINES),
            )
            for intercept, slope, bends in lines
            for bend in bends
        ]
    )
    precision: Float = np.asarray(np.linalg.inv(covariance), dtype=np.float64)
    start = np.tile(centre, (len(covariance), 1))
    bounded = np.arange(len(centre)) > 0
    total = np.full(len(covariance), max(1.0, float(yes.sum() + no.sum())))
    sums = partial(with_prior, partial(_sums, design, yes, no), start, precision)
    theta, seen = minimise(sums, start, bounded, total, "monotone calibration", _TOLERANCE)
    _, log_det = np.linalg.slogdet(seen.hessian @ covariance)
    return knots, theta, -sums(theta).loss - 0.5 * log_det


def _weighted(
    knots: Float, theta: Float, weight: Float
) -> tuple[Float, Float, Float, Float, Float]:
    """Pieces and curves as a map has them; without weight none."""
    there = weight > 0.0
    rise = np.ascontiguousarray(
        np.maximum(theta[there, 1:], 0.0).T
    )  # in the order that a file brings back
    return knots[:-1], np.diff(knots), rise, theta[there, 0], weight[there]


def _knots(x: Float, yes: Float, no: Float) -> Float:
    """Quantiles of ½F₁ + ½F₀; evenly spread where x hardly varies."""
    share = yes / max(float(yes.sum()), 1e-300) + no / max(float(no.sum()), 1e-300)
    rarer = min(float(yes.sum()), float(no.sum()))
    pieces = int(np.clip(2.0 * np.sqrt(rarer), _FEWEST_PIECES, _MOST_PIECES))
    order = np.argsort(x, kind="stable")
    below = np.cumsum(share[order])
    levels = (
        np.linspace(0.0, below[-1], pieces + 1) - 1e-9
    )  # a row of weight two is two rows: no interpolation
    place = x[order][np.minimum(np.searchsorted(below, levels), len(x) - 1)]
    least = 1e-3 * max(1.0, float(x.max() - x.min()))
    cell = np.floor((place - place[0]) / least)
    kept = place[np.unique(cell, return_index=True)[1]]
    return kept if len(kept) > 1 else kept[0] + np.array([-0.5, 0.5])


def _sums(design: Float, yes: Float, no: Float, theta: Float) -> Sums:
    """Loss, gradient and Hessian of each curve: Σ yes·log(1 + e^-h) + no·log(1 + e^h)."""
    h = design @ theta.T
    small = np.exp(-np.abs(h))
    log_sum = np.log1p(small)
    chance = np.where(h >= 0.0, 1.0, small) / (1.0 + small)
    of = yes + no
    loss = yes @ (log_sum + np.maximum(-h, 0.0)) + no @ (log_sum + np.maximum(h, 0.0))
    gradient = (of[:, None] * chance - yes[:, None]).T @ design
    curvature = of[:, None] * (small / (1.0 + small) ** 2)
    hessian = np.stack([(design * curvature[:, m, None]).T @ design for m in range(len(theta))])
    return Sums(loss, gradient, hessian)
