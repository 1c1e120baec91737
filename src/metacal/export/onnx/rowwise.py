"""Statistics of a row as ONNX nodes, as `metacal.kernels.numpy` defines them: d = x - max x, no cancellation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metacal.export.onnx.graph import Arithmetic, Graph

#: e^-800 is zero: keeps 0 · (-inf) = NaN out.
_ZERO = -800.0


@dataclass(frozen=True)
class Tail:
    """What surrounds the winner of each row."""

    #: The largest logit (n × 1).
    top: str
    #: Its column, the lowest on a tie (n × 1).
    winner: str
    #: d, no less than -800 (n × K).
    gaps: str
    #: e^d, zero for the winner (n × K).
    weights: str
    #: S = Σ e^d without the winner (n × 1).
    mass: str


def gaps(maths: Arithmetic, logits: str) -> str:
    """d = x - max x."""
    return maths("Sub", logits, maths.max(logits))


def tail(maths: Arithmetic, logits: str) -> Tail:
    """Leave the winner out of Σ e^d: 1 - max p of a confident row is lost in rounding otherwise."""
    clamped = maths("Max", gaps(maths, logits), _ZERO)
    winner = winners(maths, logits)
    weights = replaced(maths, maths("Exp", clamped), winner, 0.0)
    return Tail(maths.max(logits), winner, clamped, weights, maths.sum(weights))


def winners(maths: Arithmetic, logits: str) -> str:
    """The column of the largest logit, the lowest on a tie (n × 1)."""
    return maths.graph.op("ArgMax", logits, axis=1, keepdims=1)


def replaced(maths: Arithmetic, table: str, columns: str, value: float | str) -> str:
    """The table with one entry of each row, at `columns` (n × 1), set to a number or to a value per row (n × 1)."""
    graph = maths.graph
    if not isinstance(value, str):
        value = maths("Expand", value, graph.op("Shape", columns))
    return graph.op("ScatterElements", table, columns, value, axis=1)


def mean_of_possible(maths: Arithmetic, table: str) -> str:
    """The mean over the classes that are not masked (n × 1)."""
    possible = maths.possible(table)
    return maths("Div", maths.sum(maths("Where", possible, table, 0.0)), maths.sum(maths.cast(possible)))


def doubt(maths: Arithmetic, logits: str) -> str:
    """1 - max p = S / (1 + S)."""
    mass = tail(maths, logits).mass
    return maths("Div", mass, maths("Add", mass, 1.0))


def entropy(maths: Arithmetic, logits: str) -> str:
    """Entropy of softmax(x): log1p(S) - Σ_{j≠top} e^{d_j} d_j / (1 + S)."""
    found = tail(maths, logits)
    moment = maths.sum(maths("Mul", found.weights, found.gaps))
    share = maths("Div", moment, maths("Add", found.mass, 1.0))
    return maths("Sub", maths.log1p(found.mass), share)


def free_energy(maths: Arithmetic, logits: str) -> str:
    """-logsumexp(x)."""
    found = tail(maths, logits)
    return maths("Neg", maths("Add", found.top, maths.log1p(found.mass)))


def rivals_norm(maths: Arithmetic, logits: str) -> str:
    """‖(z_j)_{j≠top}‖_8 / z_top with z = x - mean x over the possible classes."""
    possible = maths.possible(logits)
    away = maths("Min", maths("Neg", gaps(maths, logits)), float(np.finfo(np.float64).max))
    away = maths("Where", possible, away, 0.0)
    longest = maths.max(away)
    flat = maths("Equal", longest, 0.0)
    away = maths("Div", away, maths("Where", flat, 1.0, longest))
    mean = maths("Div", maths.sum(away), maths.sum(maths.cast(possible)))
    share = maths("Sub", 1.0, maths("Div", away, maths("Where", flat, 1.0, mean)))
    share = replaced(maths, maths("Where", possible, share, 0.0), winners(maths, logits), 0.0)
    for _ in range(3):
        share = maths("Mul", share, share)
    norm = maths.sum(share)
    for _ in range(3):
        norm = maths("Sqrt", norm)
    return norm


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
        others = replaced(maths, logits, winners(maths, logits), -np.inf)
        return [branch.op("Concat", maths.max(logits), maths.max(others), axis=1), is_usable(maths, logits)]

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
