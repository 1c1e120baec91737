"""Ranking scores as ONNX nodes: in double, and for float32 tables first in single, where a decision
is not close.

A double exponential costs ten times a single one in onnxruntime. So a float32 table is scored in
single precision, with a bound on the error, and only the rows whose score lies within that bound of
the threshold (or is not a number: masked classes, NaN) are scored again in double, as Python scores
every row. The decision is the double one on every row; the score of the others is right to the
bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from metacal.export.onnx.traced import Traced, Value, unless_masked, with_masks
from metacal.formulas import rowwise
from metacal.scores.registry import NAMED

#: Half the distance from 1 to the next float32.
_UNIT = 2.0**-24
#: Up to this many classes everything is scored in double: fewer nodes outweigh the slower
#: exponentials.
_FEW_CLASSES = 32
#: Columns looked at for one whose probability has not underflowed.
_REFERENCES = 4
#: A probability below this has lost digits to underflow.
_SMALLEST = 1e-36
#: A score beyond this is no score.
_LARGEST = 1e30


#: A score in single precision (n × 1), what its error is proportional to, and whether it can be
#: trusted at all.
Estimate = tuple[Value, Value | None, Value]


def _entropy_estimate(xp: Traced, x: Value) -> Estimate:
    """log Σ e^x - Σ p x, which is NaN or infinite if any logit is."""
    log_sum, scale, sound = _log_sum(xp, x)
    return log_sum - xp.sum(xp.softmax(x) * x), scale, sound


def _doubt_estimate(xp: Traced, x: Value) -> Estimate:
    """1 - max p; the sum of the row shows whether all of it is finite."""
    largest = xp.max(xp.softmax(x))
    finite = xp.absolute(xp.sum(x)) < _LARGEST
    return 1.0 - largest, None, finite


def _energy_estimate(xp: Traced, x: Value) -> Estimate:
    log_sum, scale, sound = _log_sum(xp, x)
    finite = xp.absolute(xp.sum(x)) < _LARGEST
    return -log_sum, scale, sound & finite


def _log_sum(xp: Traced, x: Value) -> tuple[Value, Value, Value]:
    """log Σ e^x, its size, and whether underflow has left it its digits.

    The row's largest logit is not needed, which saves two passes over the table: any column tells
    log Σ e^x = x_j - log p_j, unless p_j has underflowed. The best of a few columns nearly never
    has.
    """
    logit = xp.max(_some_columns(xp, x))
    probability = xp.max(_some_columns(xp, xp.softmax(x)))
    log_sum = logit - xp.log(probability)
    return log_sum, xp.absolute(log_sum), probability > _SMALLEST


def _some_columns(xp: Traced, table: Value) -> Value:
    """A few columns, evenly spaced, without touching the others."""
    step = -(-xp.n_classes // _REFERENCES)
    start, end, axis = (xp.graph.integers(number) for number in (0, np.iinfo(np.int64).max, 1))
    return xp.op("Slice", table, start, end, axis, xp.graph.integers(step))


@dataclass(frozen=True)
class Quick:
    """Scores in single precision, and which of them are settled: rounding cannot have carried them
    over the threshold.

    A row is settled only if all its logits are finite.
    """

    estimate: Value
    settled: Value
    #: Whether a settled row may hold logits so large that a multiple of them overflows.
    unbounded: bool

    def as_they_are(self, xp: Traced) -> Value:
        """The scores (n), as doubles."""
        return xp.to("float64").cast(xp.squeeze(self.estimate))

    def close_ones_again(self, xp: Traced, x: Value, score: str) -> Value:
        """The scores (n), with those that are not settled computed once more in double."""
        double = xp.to("float64")
        listed, scattered = double.rows_where(~xp.squeeze(self.settled))
        rows = double.cast(xp.take(x, listed))
        return double.op("ScatterND", self.as_they_are(xp), scattered, _exact(double, rows, score))


def quick_scores(xp: Traced, x: Value, score: str, threshold: float) -> Quick | None:
    """Scores in single precision (n × 1), where they pay: for wide float32 tables, if the score can
    be estimated.
    """
    rough = ESTIMATES.get(NAMED[score].formula_function())
    if rough is None or xp.dtype == "float64" or xp.n_classes <= _FEW_CLASSES:
        return None
    estimate, scale, sound = rough(xp, x)
    return Quick(estimate, _settled(xp, estimate, scale, sound, threshold), unbounded=scale is None)


def exact_scores(xp: Traced, x: Value, score: str) -> Value:
    """The score of every row (n) in double; NaN for a row that Python would refuse."""
    double = xp.to("float64")
    if (
        NAMED[score].formula_function() is rowwise.negative_margin
    ):  # the whole table need not be widened
        return double.squeeze(_negative_margin(xp, x))
    return _exact(double, double.value(x) if xp.dtype == "float64" else double.cast(x), score)


def _exact(double: Traced, x: Value, score: str) -> Value:
    """The formula in double, finite masks read where the score asks for it; the usual table pays
    for one look.
    """
    formula = NAMED[score].formula_function()

    def plainly(xp: Traced) -> Value:
        return formula(xp, xp.value(x))

    def masked(xp: Traced) -> Value:
        return formula(xp, with_masks(xp, x))

    written = (
        unless_masked(double, x, plainly, masked) if NAMED[score].reads_masks else plainly(double)
    )
    return double.squeeze(double.where(is_usable(double, x), written, np.nan))


def _settled(
    xp: Traced, estimate: Value, scale: Value | None, sound: Value, threshold: float
) -> Value:
    """Whether the row is finite and its score further from the threshold than rounding can carry it
    (n × 1).

    Sums over K classes are taken at least four lanes wide: their relative error is at most (K/4 + a
    few) units, and Σ p |x| is at most |log Σ e^x| + h. The logarithm of a probability above 1e-36
    is at most 83 in size, its error four units of that. All comparisons are false for NaN, which
    therefore settles nothing.
    """
    known = np.isfinite(threshold)
    away = xp.absolute(estimate - (threshold if known else 0.0))
    settled: Value = (away < _LARGEST) & sound
    if not known:
        return settled if scale is None else settled & (scale < _LARGEST)
    bound = (xp.n_classes / 4.0 + 64.0) * _UNIT
    constant = bound * (1.0 + abs(threshold)) + 4.0 * 83.0 * _UNIT
    return settled & (away > (constant if scale is None else scale * bound + constant))


def _negative_margin(xp: Traced, x: Value) -> Value:
    """Second largest logit minus the largest; the most negative double where every other class is
    masked.

    Only the two largest are widened, so the difference is exact for float32 logits. NaN where a
    logit is NaN or the largest is infinite.
    """
    double = xp.to("float64")
    two, clean = _two_largest(xp, x)
    first, second = (xp.column(two, place) for place in (0, 1))
    xp.graph.is_reduced("ReduceMax", x.name, first.name)
    first, second = double.cast(first), double.cast(second)
    margin = double.maximum(second - first, -np.finfo(np.float64).max)
    return double.where((double.absolute(first) < np.inf) & clean, margin, np.nan)


def _two_largest(xp: Traced, x: Value) -> list[Value]:
    """The two largest logits of each row (n × 2), and whether it holds no NaN (n × 1).

    By TopK where there are rows and all their sums are numbers. TopK of no rows divides by zero in
    many versions of onnxruntime and ends the process; and a sum is NaN where a logit is, but also
    where huge ones of both signs are.
    """
    single = xp.to("float32")
    numbers = ~xp.op("IsNaN", xp.sum(x))
    least = single.op("ReduceMin", single.cast(numbers), keepdims=0)  # 0, 1, or +inf for no rows

    def at_once(inner: Traced) -> list[Value]:
        leading = inner.graph.ops("TopK", 2, x.name, inner.graph.integers(2), axis=1)[0]
        return [inner.value(leading), inner.op("Identity", numbers)]

    def one_by_one(inner: Traced) -> list[Value]:
        table = inner.value(x)
        others = inner.put(table, inner.argmax(table), -np.inf)
        return [inner.join_columns(inner.max(table), inner.max(others)), is_usable(inner, table)]

    return xp.choose(least == 1.0, at_once, one_by_one, [xp.dtype, "bool"])


def is_usable(xp: Traced, x: Value) -> Value:
    """Whether a row (n × 1) holds no NaN and its largest logit is finite: what Python would not
    refuse.
    """
    single = xp.to("float32")
    nan = single.max(single.cast(xp.op("IsNaN", x)))
    top = xp.max(x)
    finite = (top > -np.inf) & (top < np.inf)
    return finite & (nan == 0.0)


#: The scores that have an estimate in single precision, by their formulas.
ESTIMATES: dict[Callable[..., Any], Callable[[Traced, Value], Estimate]] = {
    rowwise.entropy: _entropy_estimate,
    rowwise.doubt: _doubt_estimate,
    rowwise.free_energy: _energy_estimate,
}
