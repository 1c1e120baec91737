"""Composed calibration: one map after another."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from metacal.export.onnx import rowwise
from metacal.export.onnx.graph import Arithmetic, Graph
from metacal.export.onnx.maps.masks import has_no_masks, with_masks
from metacal.export.onnx.maps.spline import risen
from metacal.export.onnx.maps.temperature import tempered_softmax
from metacal.kernels.lifted import AHEAD
from metacal.maps.composed import SMALLEST, ComposedMap
from metacal.maps.map import Map
from metacal.maps.methods import method_of_map
from metacal.maps.spline import SplineMap
from metacal.maps.uniform import UniformTemperatureMap


def composed(maths: Arithmetic, fitted: ComposedMap, logits: str, n_classes: int) -> str:
    """then(log first(x)), a masked class masked for both; the usual pair as its kernel writes it."""
    if fitted.usual is not None:
        return lifted(maths, *fitted.usual, logits, n_classes)
    first = part(maths, fitted.first, logits, n_classes)
    seen = maths("Max", maths("Log", first), SMALLEST)
    return part(maths, fitted.then, maths("Where", maths.possible(logits), seen, -np.inf), n_classes)


def lifted(maths: Arithmetic, first: UniformTemperatureMap, then: SplineMap, logits: str, n_classes: int) -> str:
    """A softmax in the table's precision; what it is multiplied with and what is added, a few numbers a row, in double.

    `metacal.kernels.lifted` says what is computed.
    """
    double, uniform = Arithmetic(maths.graph, "float64"), first.uniform
    winner = rowwise.winners(maths, logits)
    softmax = tempered_softmax(maths, logits, first.inverse_temperature)
    others = rowwise.replaced(maths, softmax, winner, 0.0)
    even, keep = _even(maths, logits, n_classes)
    rest, second = double.cast(maths.sum(others)), double.cast(maths.max(others))
    shift = double("Mul", even, uniform)
    left = double("Add", double("Mul", rest, 1.0 - uniform), double("Mul", double("Sub", 1.0, even), uniform))
    alone = double("Equal", left, 0.0)
    left = double("Where", alone, 1.0, left)
    ahead = double("Add", double("Mul", double("Sub", 1.0, rest), 1.0 - uniform), shift)
    z = double("Add", risen(double, then, double("Sub", double("Log", ahead), double("Log", left))), then.intercept)
    behind = double("Add", double("Mul", second, 1.0 - uniform), shift)
    share = double("Div", double("Mul", behind, AHEAD), left)
    most = double("Div", 1.0, double("Add", share, 1.0))
    below = double("Min", double.logistic(double("Neg", z)), most)
    top = double("Max", double.logistic(z), double("Mul", share, most))  # never below the second class
    each = double("Where", alone, 0.0, double("Div", below, left))
    scale, add = maths.cast(double("Mul", each, 1.0 - uniform)), maths.cast(double("Mul", each, shift))
    probs = keep(maths("Add", maths("Mul", others, scale), add))
    return rowwise.replaced(maths, probs, winner, maths.cast(double("Where", alone, 1.0, top)))


def _even(maths: Arithmetic, logits: str, n_classes: int) -> tuple[str, Callable[[str], str]]:
    """One over the number of possible classes in double (n × 1), and what sets those that are masked to zero."""
    plain = has_no_masks(maths, logits)

    def possible(branch: Graph) -> str:
        inner = Arithmetic(branch, maths.dtype)
        return inner.cast(inner.possible(logits if maths.masks_read else with_masks(inner, logits)))

    def over_all(branch: Graph) -> list[str]:
        return [branch.constant(np.array([[1.0 / n_classes]]))]

    def over_possible(branch: Graph) -> list[str]:
        inner = Arithmetic(branch, "float64")
        return [inner("Div", 1.0, inner.cast(branch.over_classes("ReduceSum", possible(branch))))]

    def keep(table: str) -> str:
        def masked(branch: Graph) -> list[str]:
            return [branch.op("Mul", table, possible(branch))]

        return maths.graph.choose(plain, [maths.dtype], lambda branch: [branch.op("Identity", table)], masked)[0]

    return maths.graph.choose(plain, ["float64"], over_all, over_possible)[0], keep


def part(maths: Arithmetic, fitted: Map, logits: str, n_classes: int) -> str:
    """A map inside another, in the same precision."""
    method = method_of_map(type(fitted))
    assert method is not None
    return method.onnx_writer()(maths, fitted, logits, n_classes)
