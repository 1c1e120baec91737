"""What ONNX says of a row in its own way: the margin by TopK, and whether Python would refuse the row."""

from __future__ import annotations

import numpy as np

from metacal.export.onnx.graph import Arithmetic, Graph
from metacal.export.onnx.traced import Traced


def negative_margin(double: Arithmetic, logits: str, table: Arithmetic) -> str:
    """Second largest logit minus the largest; the most negative double where every other class is masked.

    Only the two largest are widened, so the difference is exact for float32 logits. NaN where a logit is NaN or the
    largest is infinite.
    """
    graph = double.graph
    two, clean = _two_largest(table, logits)
    first, second = (graph.op("Gather", two, graph.integers(i), axis=1) for i in (0, 1))
    graph.is_reduced("ReduceMax", logits, first)
    first, second = double.cast(first), double.cast(second)
    margin = double("Max", double("Sub", second, first), -np.finfo(np.float64).max)
    usable = graph.op("And", double("Less", double("Abs", first), np.inf), clean)
    return double("Where", usable, margin, np.nan)


def _two_largest(table: Arithmetic, logits: str) -> tuple[str, str]:
    """The two largest logits of each row (n × 2), and whether it holds no NaN (n × 1).

    By TopK where there are rows and all their sums are numbers. TopK of no rows divides by zero in many versions of
    onnxruntime and ends the process; and a sum is NaN where a logit is, but also where huge ones of both signs are.
    """
    graph = table.graph
    numbers = graph.op("Not", graph.op("IsNaN", table.sum(logits)))
    least = graph.op("ReduceMin", graph.cast(numbers, "float32"), keepdims=0)  # 0, 1, or +inf for no rows
    plain = graph.op("Equal", least, graph.constant(np.ones((), dtype=np.float32)))

    def at_once(branch: Graph) -> list[str]:
        return [branch.ops("TopK", 2, logits, branch.integers(2), axis=1)[0], branch.op("Identity", numbers)]

    def one_by_one(branch: Graph) -> list[str]:
        maths = Arithmetic(branch, table.dtype)
        xp = Traced(maths)
        x = xp.value(logits)
        others = xp.put(x, xp.argmax(x), -np.inf)
        return [xp.beside(xp.max(x), xp.max(others)).name, is_usable(maths, logits)]

    two, clean = graph.choose(plain, [table.dtype, "bool"], at_once, one_by_one)
    return two, clean


def is_usable(maths: Arithmetic, logits: str) -> str:
    """Whether a row (n × 1) holds no NaN and its largest logit is finite: what Python would not refuse."""
    graph = maths.graph
    nan = graph.over_classes("ReduceMax", graph.cast(graph.op("IsNaN", logits), "float32"))
    top = maths.max(logits)
    finite = graph.op("And", maths("Greater", top, -np.inf), maths("Less", top, np.inf))
    clean = graph.op("Equal", nan, graph.constant(np.zeros((), dtype=np.float32)))
    return graph.op("And", finite, clean)
