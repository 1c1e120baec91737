"""Curves of a probability: of each class's own, one class against the rest, or of the predicted
class's confidence.

**One-vs-rest**: a question "is it class k?" for each class, answered by a curve of that class's own
probability. Beyond two classes the K answers are divided by their sum; two classes are one
question, asked of the second column. Isotonic regression, histogram binning and BBQ differ only in
how they draw the curve: all fit a `PiecewiseMap`.

**Top-label**: a new confidence for the predicted class; the other classes share the rest in
proportion. Gupta & Ramdas, "Top-label calibration and multiclass-to-binary reductions", ICLR 2022,
without their split by predicted class: one curve serves all. It starts from tempered probabilities
softmax(b·x): an over-confident network spreads the rest too unevenly as well.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.errors import InputError
from metacal.formulas import Codes, Float
from metacal.formulas import curves as formulas
from metacal.formulas.logits import scaled
from metacal.formulas.operations import NUMPY, Operations
from metacal.formulas.temperature import tempered
from metacal.maps.labelled import Labelled, Weights
from metacal.maps.map import Map, TemperedMap
from metacal.maps.temperature import fit_temperature
from metacal.rows import Rows

#: A curve on [0, 1]: where its pieces begin (or its corners are), and its values there.
Curve = tuple[Float, Float]
#: How one class's curve is drawn: (distinct probabilities, weight on each, that of the positive
#: outcomes) -> curve.
Draw = Callable[[Float, Float, Float], Curve]

#: Probabilities of a group of classes held at once while fitting: 64 MB.
GROUP_ELEMENTS = 1 << 23
#: How far the knot of a step is lifted, in units of the last place (2⁻⁵³) times 1 + |log knot|: a
#: calibration probability that *is* a knot must not come out on its other side because another
#: runtime rounds it otherwise.
_LAST_PLACES = 8.0


class OneVsRestMap(Map):
    """A map that asks of each class whether it is the one; of two classes, of the second alone."""

    preserves_accuracy = False

    @property
    def n_classes(self) -> int:
        """The number of classes the map was fitted for."""
        return 2 if self.n_questions == 1 else self.n_questions

    @property
    @abstractmethod
    def n_questions(self) -> int:
        """One for each class, one for two."""


class CurvesMap(TemperedMap):
    """A map with curves one after another: what the formula `follow` reads besides `knots` and
    `values`.
    """

    knots: Float
    values: Float
    offsets: NDArray[np.int64]
    interpolation: str

    derived: tuple[str, ...] = ("offsets", "lifted", "rises", "longest")

    def check(self) -> None:
        """Raise unless these are curves on [0, 1], one after another."""
        super().check()
        if self.interpolation not in ("linear", "step"):
            raise InputError(
                f"interpolation must be 'linear' or 'step', got {self.interpolation!r}."
            )
        knots, values, starts, stepped = (
            self.knots,
            self.values,
            self.offsets,
            self.interpolation == "step",
        )
        if starts.ndim != 1 or len(starts) < 2 or starts[0] != 0 or (np.diff(starts) < 1).any():
            raise InputError("offsets must rise from 0, a step for each curve.")
        if knots.shape != (starts[-1],) or values.shape != knots.shape:
            raise InputError(
                f"knots and values must have {starts[-1]} entries each; got {knots.shape},"
                f" {values.shape}."
            )
        inner = np.delete(np.arange(len(knots)), starts[:-1])
        before, after = knots[inner - 1], knots[inner]
        # Two steps may begin at zero: the first is then for p = 0 alone.
        rises = (after > before) | ((after == 0.0) & (before == 0.0) & stepped)
        if not ((knots >= 0.0) & (knots <= 1.0)).all() or not rises.all():
            raise InputError("the knots of a curve must rise strictly within [0, 1].")
        if not ((values >= 0.0) & (values <= 1.0)).all():
            raise InputError("the values of a curve must lie in [0, 1].")
        # What runs straight between corners is isotonic; steps (bins) may go down.
        if not stepped and (values[inner] < values[inner - 1]).any():
            raise InputError("the values of an increasing curve must not fall.")

    @cached_property
    def lifted(self) -> Float:
        """The knots as pieces are looked up by them.

        Those of steps are moved up by rounding, but no further than a quarter of the way to the
        next one.

        Examples
        --------
        >>> bool(TopLabelMap(np.array([0.0, 0.5]), np.array([0.6, 0.8]), "step").lifted[1] > 0.5)
        True
        """
        if self.interpolation == "linear":
            return self.knots
        with np.errstate(divide="ignore", invalid="ignore"):
            moved = self.knots * (
                1.0 + _LAST_PLACES * 2.0**-53 * (1.0 + np.abs(np.log(self.knots)))
            )
        moved = np.where(self.knots > 0.0, moved, 0.0)
        gap = np.append(np.diff(self.knots), np.inf)
        gap[self.offsets[1:] - 1] = np.inf
        return np.asarray(
            np.where(gap > 0.0, np.minimum(moved, self.knots + 0.25 * gap), self.knots)
        )

    @cached_property
    def rises(self) -> Float:
        """The slope from each knot to the next; level after the last of a curve."""
        found, width = np.zeros(len(self.knots)), np.diff(self.knots)
        found[:-1] = np.diff(self.values) / np.where(width > 0.0, width, 1.0)
        found[self.offsets[1:] - 1] = 0.0
        return found

    @property
    def longest(self) -> int:
        """How many knots the longest curve has."""
        return int(np.diff(self.offsets).max())


class OneCurveMap(CurvesMap):
    """A map with one curve for all classes."""

    @cached_property
    def offsets(self) -> NDArray[np.int64]:  # type: ignore[override]
        """Where the curve begins and ends."""
        return np.array([0, len(self.knots)])


@dataclass(frozen=True, eq=False)
class PiecewiseMap(OneVsRestMap, CurvesMap):
    """q_k = curve_k(p_k) with p = softmax(b·x); then q / Σ q, and p itself where every q is zero.

    Curve k is `knots[offsets[k]:offsets[k + 1]]` with the `values` beside them: its corners where
    `interpolation` is "linear"; where it is "step", the left ends of right-closed pieces. A masked
    class (-inf) keeps probability zero. With a single curve there are two classes: it gives the
    second one, and the first has the rest.

    Examples
    --------
    >>> halves = PiecewiseMap(np.array([0.0, 0.5]), np.array([0.2, 0.9]), np.array([0, 2]), "step")
    >>> halves(np.array([[0.0, 2.0], [2.0, 0.0]])).round(3)
    array([[0.1, 0.9], [0.8, 0.2]])
    """

    knots: Float
    values: Float
    offsets: NDArray[np.int64]
    interpolation: str
    inverse_temperature: float = 1.0

    derived = (*CurvesMap.derived, "n_questions")
    formula = staticmethod(formulas.piecewise)

    @property
    def n_questions(self) -> int:
        """One for each class, one for two."""
        return len(self.offsets) - 1


@dataclass(frozen=True, eq=False)
class TopLabelMap(OneCurveMap):
    """The predicted class gets curve(max p), any other its share p_j / (1 - max p) of what is left;
    p = softmax(b·x).

    The curve's corners (`interpolation` "linear") or the left ends of its right-closed pieces
    ("step") are `knots`. The predicted class is never pushed below another: its probability is at
    least a millionth more than the second one's. So every prediction is kept.

    Examples
    --------
    >>> steps = TopLabelMap(np.array([0.0, 0.9]), np.array([0.6, 0.8]), "step")
    >>> steps(np.log([[0.95, 0.04, 0.01], [0.5, 0.3, 0.2]])).round(3)
    array([[0.8 , 0.16, 0.04], [0.6 , 0.24, 0.16]])
    """

    knots: Float
    values: Float
    interpolation: str
    inverse_temperature: float = 1.0

    preserves_accuracy = True
    formula = staticmethod(formulas.top_label)


def fit_piecewise(
    rows: Rows,
    labels: Codes,
    weights: Weights,
    draw: Draw,
    interpolation: str,
    inverse_temperature: float = 1.0,
) -> PiecewiseMap:
    """Draw one curve per class, a group of classes at a time: O(n·K·log n) time, 64 MB of
    probabilities at once.
    """
    sample = Labelled(rows, labels, weights).counted()
    curves = [
        draw(*tie_groups(*column)) if len(column[0]) else identity_curve(interpolation)
        for column in columns(sample, inverse_temperature)
    ]
    return joined(curves, interpolation, inverse_temperature)


def joined(
    curves: Sequence[Curve], interpolation: str, inverse_temperature: float = 1.0
) -> PiecewiseMap:
    """The map of these curves, one for each class."""
    offsets = np.append(0, np.cumsum([len(knots) for knots, _ in curves]))
    knots, values = (np.concatenate([curve[side] for curve in curves]) for side in (0, 1))
    return PiecewiseMap(knots, values, offsets.astype(np.int64), interpolation, inverse_temperature)


def columns(
    sample: Labelled, inverse_temperature: float = 1.0
) -> Iterator[tuple[Float, Float, Float]]:
    """For each question, over the rows where its class is possible: the probability, the outcome,
    the weight.
    """
    rows, labels, weights = sample.rows, sample.labels, sample.counts
    classes = [1] if rows.n_classes == 2 else range(rows.n_classes)
    width = max(1, GROUP_ELEMENTS // len(labels))
    for first in range(0, len(classes), width):
        group = classes[first : first + width]
        span = slice(group[0], group[-1] + 1)
        table = rows.collect(
            partial(possible_chances, inverse_temperature=inverse_temperature, span=span)
        )
        for place, k in enumerate(group):
            probability, outcome = table[:, place], (labels == k).astype(np.float64)
            possible = ~np.isnan(probability)
            if possible.all():
                yield np.ascontiguousarray(probability), outcome, weights
            else:
                yield probability[possible], outcome[possible], weights[possible]


def softmax(block: NDArray[Any], inverse_temperature: float = 1.0) -> Float:
    """softmax(b·x) of each row, in float64 whatever the table: curves must not depend on how logits
    were stored.
    """
    out = np.empty(block.shape)
    kernels.softmax(np.asarray(block, dtype=np.float64), inverse_temperature, out)
    return out


def questions(table: NDArray[Any]) -> NDArray[Any]:
    """The columns that are asked about: all, or the second of two."""
    return table[:, 1:] if table.shape[1] == 2 else table


def follow(knots: Float, values: Float, interpolation: str, at: Float) -> Float:
    """The curve's value at each point; beyond the outer knots it goes on level.

    Examples
    --------
    >>> follow(np.array([0.0, 1.0]), np.array([0.2, 0.6]), "linear", np.array([0.5])).round(3)
    array([0.4])
    """
    if interpolation == "linear":
        return np.asarray(np.interp(at, knots, values))
    return np.asarray(values[np.searchsorted(knots[1:], at, side="left")])


def _follow_each(_: Operations, fitted: CurvesMap, at: Float) -> Float:
    """`follow` of each column's own curve: up to three times as fast as the formula in NumPy."""
    if len(fitted.offsets) == 2:
        return follow(fitted.lifted, fitted.values, fitted.interpolation, at)
    found = np.empty(at.shape, order="F")
    for k, (start, stop) in enumerate(pairwise(fitted.offsets)):
        piece = slice(start, stop)
        found[:, k] = follow(
            fitted.lifted[piece], fitted.values[piece], fitted.interpolation, at[:, k]
        )
    return found


NUMPY.fast[formulas.follow] = _follow_each
NUMPY.fast[tempered] = lambda _, x, inverse_temperature: softmax(x, inverse_temperature)


def tie_groups(at: Float, outcomes: Float, weights: Float) -> tuple[Float, Float, Float]:
    """The distinct points in order, the weight on each, and the weight of the positive outcomes
    there.
    """
    order = np.argsort(at, kind="stable")
    ordered = at[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] > ordered[:-1]))
    total = np.add.reduceat(weights[order], starts)
    return ordered[starts], total, np.add.reduceat((weights * outcomes)[order], starts)


def identity_curve(interpolation: str = "linear") -> Curve:
    """The curve of a class that no row says anything about."""
    grid = np.linspace(0.0, 1.0, 2 if interpolation == "linear" else 101)
    return (grid, grid) if interpolation == "linear" else (grid[:-1], 0.5 * (grid[1:] + grid[:-1]))


def possible_chances(block: NDArray[Any], inverse_temperature: float, span: slice) -> Float:
    """The probabilities of a span of classes, NaN where a class is masked."""
    chosen = np.ascontiguousarray(softmax(block, inverse_temperature)[:, span])
    chosen[np.isneginf(block[:, span])] = np.nan
    return chosen


def fit_top_label(
    rows: Rows, labels: Codes, weights: Weights, draw: Draw, interpolation: str, tempered: bool
) -> TopLabelMap:
    """Draw the curve of "is the prediction right?" over its confidence: O(n·K + n·log n) time, O(n)
    memory.
    """
    b = fit_temperature(rows, labels, weights).inverse_temperature if tempered else 1.0
    sample = Labelled(rows, labels, weights).counted()
    confidence = sample.rows.collect(partial(_confidences, b))
    return TopLabelMap(
        *draw(*tie_groups(confidence, sample.correct(), sample.counts)), interpolation, b
    )


def _confidences(inverse_temperature: float, block: NDArray[Any]) -> Float:
    """Max p of each row."""
    return np.asarray(1.0 - kernels.doubt(scaled(block, inverse_temperature)))
