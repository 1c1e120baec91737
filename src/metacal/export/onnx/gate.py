"""The whole answer as ONNX nodes: from a table of logits to `probs`, `score` and `accept`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metacal.export.onnx import rowwise
from metacal.export.onnx.graph import Arithmetic, Graph
from metacal.export.onnx.maps import are_numbers, probabilities
from metacal.export.onnx.scores import Quick, all_again, as_they_are, close_ones_again, quick_scores
from metacal.gate import Gate
from metacal.maps.temperature import TemperatureMap

#: How far a row of probabilities may be from summing to one, as in `metacal.rows.validate`.
_SUM_TOLERANCE = {"float16": 5e-3, "bfloat16": 1e-2, "float32": 1e-4, "float64": 1e-4}


@dataclass(frozen=True)
class Answer:
    """The values of the three outputs; a calibrator without a gate has probabilities only."""

    probs: str
    score: str | None
    accept: str | None

    def outputs(self) -> dict[str, str]:
        """Output name -> value."""
        pairs = {"probs": self.probs, "score": self.score, "accept": self.accept}
        return {name: value for name, value in pairs.items() if value is not None}


def working_type(dtype: str) -> str:
    """Narrow tables are worked on in float32, as Python does."""
    return "float64" if dtype == "float64" else "float32"


def answer(graph: Graph, fitted: Gate, value: str, dtype: str, group: str | None = None) -> Answer:
    """Append the map and the gate to a graph that has the model's output as `value`.

    `group` is the value that holds the number of each row's group, where the gate goes by them.
    """
    work = working_type(dtype)
    table = value if dtype == work else _widened(graph, value, work)
    logits = table if fitted.input == "logits" else logarithms(graph, table, work, _SUM_TOLERANCE[dtype])
    if fitted.certificate is None:
        return Answer(_usable_only(graph, fitted, logits, work), None, None)
    quick = None
    if fitted.thresholds is None:  # a quick score is bounded away from one threshold, not from that of each row
        quick = quick_scores(graph, logits, work, str(fitted.score), fitted.threshold, fitted.n_classes)
    if quick is None:
        score = all_again(graph, logits, work, str(fitted.score))
        probs, accept = _overwritten(graph, fitted, logits, work, _accept(graph, fitted, score, logits, group))
        return Answer(probs, score, accept)
    return _quick_answer(graph, fitted, quick, logits, work)


def _quick_answer(graph: Graph, fitted: Gate, quick: Quick, logits: str, dtype: str) -> Answer:
    """Two branches: every score settled, which is the rule, or some to be computed again.

    With every score settled all logits are finite, and temperature scaling can have both kinds of rows from one
    softmax: with an inverse temperature of zero a row comes out uniform (0 · (-inf) would be no number).
    """
    by_temperature = isinstance(fitted.map, TemperatureMap)
    inverse_temperature = fitted.map.inverse_temperature if isinstance(fitted.map, TemperatureMap) else 1.0

    def settled(branch: Graph) -> list[str]:
        score = as_they_are(branch, quick)
        accept = _accept(branch, fitted, score)
        if not by_temperature:
            return [score, accept]
        maths = Arithmetic(branch, dtype)
        inverse = maths("Where", branch.unsqueeze(accept), inverse_temperature, 0.0)
        return [score, accept, branch.softmax(maths("Mul", logits, inverse))]

    def some_close(branch: Graph) -> list[str]:
        score = close_ones_again(branch, quick, logits, str(fitted.score))
        accept = _accept(branch, fitted, score)
        if not by_temperature:
            return [score, accept]
        probs, accept = _overwritten(branch, fitted, logits, dtype, accept)
        return [score, accept, probs]

    types = ["float64", "bool", *([dtype] if by_temperature else [])]
    calm = graph.all(quick.settled)
    if by_temperature and quick.unbounded and inverse_temperature > 1.0:
        maths, limit = Arithmetic(graph, dtype), np.finfo(dtype).max / inverse_temperature
        calm = graph.op("And", calm, graph.all(maths("Less", maths.max(logits), limit)))
    score, accept, *probs = graph.choose(calm, types, settled, some_close)
    if not probs:
        found, accept = _overwritten(graph, fitted, logits, dtype, accept)
        probs = [found]
    return Answer(probs[0], score, accept)


def _widened(graph: Graph, value: str, dtype: str) -> str:
    """Narrow logits in float32: the numbers that the model gives, not the wider ones they were rounded from.

    Where onnxruntime has no narrow kernel it computes in float32 and rounds, and a cast right behind would make it
    leave out the rounding. A change of shape in between keeps the two apart.
    """
    return graph.op("Reshape", graph.cast(graph.unsqueeze(value), dtype), graph.op("Shape", value))


def _accept(graph: Graph, fitted: Gate, score: str, logits: str = "", group: str | None = None) -> str:
    """score <= threshold, the one there is or, gathered, that of the predicted class or of the group."""
    own = fitted.thresholds
    if own is None:
        return graph.at_most(score, graph.constant(np.asarray(fitted.threshold)))
    values = graph.constant(np.array([*own.values, -np.inf]))  # the last for a group that the fit has not seen
    if group is None:
        part = graph.op("ArgMax", logits, axis=1, keepdims=0)
    else:
        last = graph.constant(np.array(len(own.values), dtype=np.int64))
        known = graph.op("And", graph.op("Less", group, last), graph.op("Greater", group, graph.constant(np.array(-1))))
        part = graph.op("Where", known, group, last)
    return graph.at_most(score, graph.op("Gather", values, part, axis=0))


def logarithms(graph: Graph, table: str, dtype: str, tolerance: float) -> str:
    """The logits of probabilities, as `validate.logits_from` takes them; NaN for a row that is no distribution.

    The logarithm is taken in double and rounded: closer to the true one than either runtime's own single logarithm.
    """
    maths, double = Arithmetic(graph, dtype), Arithmetic(graph, "float64")
    zero = graph.at_most(table, maths.value(0.0))
    smallest = maths.min(maths("Where", zero, np.inf, table))
    filled = maths("Where", zero, maths("Min", smallest, np.finfo(np.float64).eps), table)
    off = double("Abs", double("Sub", double.sum(double.cast(table)), 1.0))
    sound = graph.op(
        "And", graph.at_most(maths.value(0.0), maths.min(table)), graph.at_most(off, double.value(tolerance))
    )
    return maths("Where", sound, maths.cast(double("Log", double.cast(filled))), np.nan)


def _overwritten(graph: Graph, fitted: Gate, logits: str, dtype: str, accept: str) -> tuple[str, str]:
    """The map's probabilities, with 1/K written over the rejected rows; and what is accepted.

    In place, which is cheaper than choosing for every entry, and leaves no NaN. The last line of defence: whatever the
    score says, a row whose probabilities are no numbers is not accepted.
    """
    probs = probabilities(graph, fitted.map, logits, dtype, fitted.n_classes)
    accept = graph.op("And", accept, are_numbers(graph, fitted.map, probs, dtype))
    _, rejected = graph.rows_where(graph.op("Not", accept))
    count = graph.op("Gather", graph.op("Shape", rejected), graph.integers(0), axis=0)
    shape = graph.op("Concat", count, graph.integers(fitted.n_classes), axis=0)
    uniform = Arithmetic(graph, dtype)("Expand", 1.0 / fitted.n_classes, shape)
    return graph.op("ScatterND", probs, rejected, uniform), accept


def _usable_only(graph: Graph, fitted: Gate, logits: str, dtype: str) -> str:
    """Without a gate nothing can be rejected: a row that Python would refuse is NaN throughout.

    The sums of the rows show at a glance whether every logit is finite; only if not is each row looked at.
    """
    probs = probabilities(graph, fitted.map, logits, dtype, fitted.n_classes)

    def checked(branch: Graph) -> list[str]:
        maths = Arithmetic(branch, dtype)
        return [maths("Where", rowwise.is_usable(maths, logits), probs, np.nan)]

    maths = Arithmetic(graph, dtype)
    finite = graph.all(maths("Less", maths("Abs", maths.sum(logits)), np.inf))
    return graph.choose(finite, [dtype], lambda branch: [branch.op("Identity", probs)], checked)[0]
