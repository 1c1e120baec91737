"""Ranking scores as ONNX nodes: in double, and for float32 tables first in single, where a decision is not close.

A double exponential costs ten times a single one in onnxruntime. So a float32 table is scored in single precision,
with a bound on the error, and only the rows whose score lies within that bound of the threshold (or is not a number:
masked classes, NaN) are scored again in double, as Python scores every row. The decision is the double one on every
row; the score of the others is right to the bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from metacal.export.onnx import rowwise
from metacal.export.onnx.graph import Arithmetic, Graph
from metacal.export.onnx.shortcuts import has_no_masks, with_masks
from metacal.export.onnx.traced import Traced, Value
from metacal.formulas import rowwise as formulas
from metacal.scores.registry import NAMED

#: Half the distance from 1 to the next float32.
_UNIT = 2.0**-24
#: Up to this many classes everything is scored in double: fewer nodes outweigh the slower exponentials.
_FEW_CLASSES = 32
#: Columns looked at for one whose probability has not underflowed.
_REFERENCES = 4
#: A probability below this has lost digits to underflow.
_SMALLEST = 1e-36
#: A score beyond this is no score.
_LARGEST = 1e30


@dataclass(frozen=True)
class Estimate:
    """A score in single precision (n × 1), what its error is proportional to, and whether it can be trusted at all."""

    score: str
    scale: str | None = None
    sound: str | None = None


#: estimate(maths, logits, n_classes) -> a score in single precision, with what its error is proportional to.
Estimating = Callable[[Arithmetic, str, int], Estimate]


def _entropy_estimate(single: Arithmetic, logits: str, n_classes: int) -> Estimate:
    """log Σ e^x - Σ p x, which is NaN or infinite if any logit is."""
    log_sum, scale, sound = _log_sum(single, logits, n_classes)
    mean = single.sum(single("Mul", single.graph.softmax(logits), logits))
    return Estimate(single("Sub", log_sum, mean), scale, sound)


def _doubt_estimate(single: Arithmetic, logits: str, n_classes: int) -> Estimate:
    """1 - max p; the sum of the row shows whether all of it is finite."""
    largest = single.max(single.graph.softmax(logits))
    finite = single("Less", single("Abs", single.sum(logits)), _LARGEST)
    return Estimate(single("Sub", 1.0, largest), sound=finite)


def _energy_estimate(single: Arithmetic, logits: str, n_classes: int) -> Estimate:
    log_sum, scale, sound = _log_sum(single, logits, n_classes)
    finite = single("Less", single("Abs", single.sum(logits)), _LARGEST)
    return Estimate(single("Neg", log_sum), scale, single.graph.op("And", sound, finite))


def _log_sum(single: Arithmetic, logits: str, n_classes: int) -> tuple[str, str, str]:
    """log Σ e^x, its size, and whether underflow has left it its digits.

    The row's largest logit is not needed, which saves two passes over the table: any column tells log Σ e^x =
    x_j - log p_j, unless p_j has underflowed. The best of a few columns nearly never has.
    """
    graph = single.graph
    step = -(-n_classes // _REFERENCES)
    logit = single.max(graph.some_columns(logits, step))
    probability = single.max(graph.some_columns(graph.softmax(logits), step))
    log_sum = single("Sub", logit, single("Log", probability))
    return log_sum, single("Abs", log_sum), single("Greater", probability, _SMALLEST)


@dataclass(frozen=True)
class Quick:
    """Scores in single precision, and which of them are settled: rounding cannot have carried them over the threshold.

    A row is settled only if all its logits are finite.
    """

    estimate: str
    settled: str
    #: Whether a settled row may hold logits so large that a multiple of them overflows.
    unbounded: bool


def quick_scores(graph: Graph, logits: str, dtype: str, score: str, threshold: float, n_classes: int) -> Quick | None:
    """Scores in single precision (n × 1), where they pay: for wide float32 tables, if the score can be estimated."""
    rough = ESTIMATES.get(NAMED[score].formula_function())
    if rough is None or dtype == "float64" or n_classes <= _FEW_CLASSES:
        return None
    single = Arithmetic(graph, dtype)
    estimate = rough(single, logits, n_classes)
    settled = _settled(single, estimate, threshold, n_classes)
    return Quick(estimate.score, settled, unbounded=estimate.scale is None)


def all_again(graph: Graph, logits: str, dtype: str, score: str) -> str:
    """The score of every row (n) in double; NaN for a row that Python would refuse."""
    double = Arithmetic(graph, "float64")
    if NAMED[score].formula_function() is formulas.negative_margin:  # the whole table need not be widened
        return graph.squeeze(rowwise.negative_margin(double, logits, Arithmetic(graph, dtype)))
    return _exact(double, logits if dtype == "float64" else double.cast(logits), score)


def as_they_are(graph: Graph, quick: Quick) -> str:
    """The quick scores (n), as doubles."""
    return graph.cast(graph.squeeze(quick.estimate), "float64")


def close_ones_again(graph: Graph, quick: Quick, logits: str, score: str) -> str:
    """The quick scores (n), with those that are not settled computed once more in double."""
    double = Arithmetic(graph, "float64")
    listed, scattered = graph.rows_where(graph.op("Not", graph.squeeze(quick.settled)))
    rows = double.cast(graph.op("Gather", logits, listed, axis=0))
    return graph.op("ScatterND", as_they_are(graph, quick), scattered, _exact(double, rows, score))


def _exact(double: Arithmetic, logits: str, score: str) -> str:
    """The formula in double, finite masks read where the score asks for it; the usual table pays for one look."""
    graph, row = double.graph, NAMED[score]

    def written(branch: Graph, table: str) -> str:
        xp = Traced(Arithmetic(branch, double.dtype))
        found: Value = row.formula_function()(xp, xp.value(table))
        return found.name

    def plainly(branch: Graph) -> list[str]:
        return [written(branch, logits)]

    def masked(branch: Graph) -> list[str]:
        return [written(branch, with_masks(Arithmetic(branch, double.dtype), logits))]

    if row.reads_masks:
        found = graph.choose(has_no_masks(double, logits), [double.dtype], plainly, masked)[0]
    else:
        found = written(graph, logits)
    return graph.squeeze(double("Where", rowwise.is_usable(double, logits), found, np.nan))


def _settled(single: Arithmetic, estimate: Estimate, threshold: float, n_classes: int) -> str:
    """Whether the row is finite and its score further from the threshold than rounding can carry it (n × 1).

    Sums over K classes are taken at least four lanes wide: their relative error is at most (K/4 + a few) units, and
    Σ p |x| is at most |log Σ e^x| + h. The logarithm of a probability above 1e-36 is at most 83 in size, its error four
    units of that. All comparisons are false for NaN, which therefore settles nothing.
    """
    graph = single.graph
    level = threshold if np.isfinite(threshold) else 0.0
    away = single("Abs", single("Sub", estimate.score, level))
    settled = single("Less", away, _LARGEST)
    if estimate.sound is not None:
        settled = graph.op("And", settled, estimate.sound)
    if not np.isfinite(threshold):
        if estimate.scale is None:
            return settled
        return graph.op("And", settled, single("Less", estimate.scale, _LARGEST))
    bound = (n_classes / 4.0 + 64.0) * _UNIT
    constant = bound * (1.0 + abs(threshold)) + 4.0 * 83.0 * _UNIT
    allowed = constant if estimate.scale is None else single("Add", single("Mul", estimate.scale, bound), constant)
    return graph.op("And", settled, single("Greater", away, allowed))


#: The scores that have an estimate in single precision, by their formulas.
ESTIMATES: dict[Callable[..., Any], Estimating] = {
    formulas.entropy: _entropy_estimate,
    formulas.doubt: _doubt_estimate,
    formulas.free_energy: _energy_estimate,
}
