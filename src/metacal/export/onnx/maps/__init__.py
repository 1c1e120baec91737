"""Every calibration map as ONNX nodes, one file per method, named like the map's own; `maps.methods` has the rows.

A writer is a function of arithmetic in a precision, the fitted map, logits in that precision and the number of classes:
writer(maths, fitted, logits, n_classes) -> the name of the probabilities.
"""

from __future__ import annotations

import numpy as np

from metacal.errors import InputError
from metacal.export.onnx.graph import Arithmetic, Graph
from metacal.export.onnx.maps.masks import has_no_masks, with_masks, within_reach
from metacal.maps.map import Map
from metacal.maps.methods import METHODS, Method, method_of_map


def probabilities(graph: Graph, fitted: Map, logits: str, dtype: str, n_classes: int) -> str:
    """The map's probabilities (n × K) of logits in float32 or float64, in the same precision.

    Smooth maps of one exponential are written in the table's own precision, which is enough for them, as it is in
    Python, where a kernel writes them. The others in double: steps and steep curves show the last bits of a
    probability.
    """
    method = _method(fitted)
    maths = Arithmetic(graph, dtype)
    if method.in_table_precision or fitted.whole_blocks:
        return method.onnx_writer()(maths, fitted, logits, n_classes)
    double = Arithmetic(graph, "float64", masks_read=True)
    found = method.onnx_writer()(double, fitted, _doubles(maths, logits), n_classes)
    return found if dtype == "float64" else graph.cast(found, dtype)


def _method(fitted: Map) -> Method:
    found = method_of_map(type(fitted))
    if found is None or not found.onnx:
        known = ", ".join(sorted({row.map.partition(":")[2] for row in METHODS.values() if row.onnx}))
        raise InputError(f"a {type(fitted).__name__} cannot be exported to ONNX; what can is {known}.")
    return found


def _doubles(maths: Arithmetic, logits: str) -> str:
    """The logits in double, finite masks as -inf, none beyond reach; the usual table pays for one look at it."""

    def plainly(branch: Graph) -> list[str]:
        return [branch.cast(logits, "float64")]

    def masked(branch: Graph) -> list[str]:
        return [branch.cast(with_masks(Arithmetic(branch, maths.dtype), logits), "float64")]

    table = maths.graph.choose(has_no_masks(maths, logits), ["float64"], plainly, masked)[0]
    return within_reach(maths, table) if maths.dtype == "float64" else table


def are_numbers(graph: Graph, fitted: Map, probs: str, dtype: str) -> str:
    """Whether the probabilities of a row (n) are numbers at all.

    One NaN makes every entry of a softmax NaN, so that one column tells; of the other maps the sum of the row does.
    """
    maths = Arithmetic(graph, dtype)
    if _method(fitted).ends_in_softmax:
        one = graph.op("Gather", probs, graph.constant(np.asarray(0, dtype=np.int64)), axis=1)
    else:
        one = graph.squeeze(maths.sum(probs))
    return graph.at_most(one, maths.value(2.0))
