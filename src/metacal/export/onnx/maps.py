"""A fitted map as ONNX nodes: its formula, written in the table's precision or in double."""

from __future__ import annotations

import numpy as np

from metacal.errors import InputError
from metacal.export.onnx.graph import Arithmetic, Graph
from metacal.export.onnx.shortcuts import has_no_masks, with_masks
from metacal.export.onnx.traced import Traced, Value
from metacal.formulas.logits import bring_within_reach
from metacal.maps.map import Map
from metacal.maps.methods import METHODS


def probabilities(graph: Graph, fitted: Map, logits: str, dtype: str, n_classes: int) -> str:
    """The map's probabilities (n × K) of logits in float32 or float64, in the same precision.

    Smooth maps of one exponential are written in the table's own precision, which is enough for them, as it is in
    Python, where a kernel writes them. The others in double: steps and steep curves show the last bits of a
    probability.
    """
    if fitted.formula is None:
        known = ", ".join(sorted({row.map.partition(":")[2] for row in METHODS.values()}))
        raise InputError(f"a {type(fitted).__name__} cannot be exported to ONNX; what can is {known}.")
    maths = Arithmetic(graph, dtype)
    if fitted.in_table_precision:
        single = Traced(maths, n_classes)
        return single.part(fitted, single.value(logits)).name
    double = Traced(Arithmetic(graph, "float64", masks_read=True), n_classes)
    found = double.part(fitted, double.value(_doubles(maths, logits))).name
    return found if dtype == "float64" else graph.cast(found, dtype)


def _doubles(maths: Arithmetic, logits: str) -> str:
    """The logits in double, finite masks as -inf, none beyond reach; the usual table pays for one look at it."""

    def plainly(branch: Graph) -> list[str]:
        return [branch.cast(logits, "float64")]

    def masked(branch: Graph) -> list[str]:
        return [branch.cast(with_masks(Arithmetic(branch, maths.dtype), logits), "float64")]

    table = maths.graph.choose(has_no_masks(maths, logits), ["float64"], plainly, masked)[0]
    if maths.dtype != "float64":  # no float32 logit is out of a double's reach
        return table
    xp = Traced(maths)
    near: Value = bring_within_reach(xp, xp.value(table))
    return near.name


def are_numbers(graph: Graph, fitted: Map, probs: str, dtype: str) -> str:
    """Whether the probabilities of a row (n) are numbers at all.

    One NaN makes every entry of a softmax NaN, so that one column tells; of the other maps the sum of the row does.
    """
    maths = Arithmetic(graph, dtype)
    if fitted.ends_in_softmax:
        one = graph.op("Gather", probs, graph.constant(np.asarray(0, dtype=np.int64)), axis=1)
    else:
        one = graph.squeeze(maths.sum(probs))
    return graph.at_most(one, maths.value(2.0))
