"""One-vs-rest: a curve of each class's own probability (isotonic, histogram, BBQ), and what such answers amount to."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.export.onnx.graph import Arithmetic
from metacal.maps.curves.onevsrest import PiecewiseMap

Float = NDArray[np.float64]

#: How far a knot is moved up, in units of the last place (2⁻⁵³) times 1 + |log knot|: a calibration probability that
#: *is* a knot must not come out on its other side because another runtime rounds its last bits differently.
_LAST_PLACES = 8.0


def piecewise(maths: Arithmetic, fitted: PiecewiseMap, logits: str, n_classes: int) -> str:
    """q_k = curve_k(p_k), p = softmax(b·x); then q / Σ q."""
    tempered = softmax(maths, logits, fitted.inverse_temperature)
    asked = second_column(maths, tempered) if n_classes == 2 else tempered
    answers = follow(maths, fitted.knots, fitted.values, fitted.offsets, fitted.interpolation, asked)
    if n_classes == 2:
        return combine_two(maths, maths("Sub", 1.0, answers), answers, logits, fitted.inverse_temperature)
    return combine(maths, answers, logits, fitted.inverse_temperature)


def softmax(maths: Arithmetic, logits: str, inverse_temperature: float) -> str:
    """softmax(b·x)."""
    return maths.graph.softmax(maths("Mul", logits, inverse_temperature))


def second_column(maths: Arithmetic, table: str) -> str:
    """Of two classes only the second is asked about (n × 1)."""
    return maths.graph.op("Gather", table, maths.graph.integers(1), axis=1)


def follow(maths: Arithmetic, knots: Float, values: Float, offsets: NDArray[Any], interpolation: str, at: str) -> str:
    """The value at each point of column k's curve; one curve serves all columns.

    The piece is found by bisection over all columns at once: one step for each power of two up to the longest curve.
    """
    graph = maths.graph
    if interpolation == "step":
        piece = _piece(maths, _lifted(knots, offsets), offsets, at)
        return graph.op("Gather", maths.value(values), piece, axis=0)
    piece = _piece(maths, knots, offsets, at)
    columns = (knots, values, _slopes(knots, values, offsets))
    start, level, slope = (graph.op("Gather", maths.value(column), piece, axis=0) for column in columns)
    along = maths("Max", maths("Sub", at, start), 0.0)
    return maths("Add", level, maths("Mul", slope, along))


def _piece(maths: Arithmetic, knots: Float, offsets: NDArray[Any], at: str) -> str:
    """The last knot of the column's curve that lies below the point, or its first knot: an index into `knots`."""
    graph = maths.graph
    first = graph.constant(offsets[None, :-1].astype(np.int64))
    end = graph.constant(offsets[None, 1:].astype(np.int64))
    table = maths.value(knots)
    shape = graph.op("Shape", at)
    place = graph.op("Expand", first, shape)
    step = 1 << max(0, int(np.diff(offsets).max()) - 1).bit_length()
    while step > 1:
        step //= 2
        further = graph.op("Add", place, graph.integers(step))
        inside = graph.op("Where", graph.op("Less", further, end), further, place)
        below = graph.op("Less", graph.op("Gather", table, inside, axis=0), at)
        place = graph.op("Where", below, inside, place)
    return place


def _lifted(knots: Float, offsets: NDArray[Any]) -> Float:
    """Knots moved up by rounding, but no further than a quarter of the way to the next one."""
    with np.errstate(divide="ignore", invalid="ignore"):
        moved = knots * (1.0 + _LAST_PLACES * 2.0**-53 * (1.0 + np.abs(np.log(knots))))
    moved = np.where(knots > 0.0, moved, 0.0)
    gap = np.append(np.diff(knots), np.inf)
    gap[offsets[1:] - 1] = np.inf
    return np.asarray(np.where(gap > 0.0, np.minimum(moved, knots + 0.25 * gap), knots))


def _slopes(knots: Float, values: Float, offsets: NDArray[Any]) -> Float:
    """The slope from each knot to the next; level after the last."""
    slopes = np.zeros(len(knots))
    slopes[:-1] = np.diff(values) / np.where(np.diff(knots) > 0.0, np.diff(knots), 1.0)
    slopes[offsets[1:] - 1] = 0.0
    return slopes


def combine(maths: Arithmetic, answers: str, logits: str, inverse_temperature: float = 1.0) -> str:
    """Divide the answers by their sum; masked classes get zero, a row without a positive answer softmax(b·x)."""
    table = maths("Where", maths.possible(logits), answers, 0.0)
    total = maths.sum(table)
    lost = maths.graph.at_most(total, maths.value(0.0))
    divided = maths("Div", table, maths("Where", lost, 1.0, total))
    return maths("Where", lost, softmax(maths, logits, inverse_temperature), divided)


def combine_two(maths: Arithmetic, first: str, second: str, logits: str, inverse_temperature: float = 1.0) -> str:
    """The same for two classes, whose answers need no common sum; of a masked pair the other class is certain."""
    both = maths.graph.op("Concat", first, second, axis=1)
    whole = maths("Greater", maths.min(logits), -np.inf)
    return combine(maths, maths("Where", whole, both, 1.0), logits, inverse_temperature)
