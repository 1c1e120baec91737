"""Every calibration map as ONNX nodes, one file per family; a new map is one entry in `WRITERS`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from metacal.errors import InputError
from metacal.export.onnx.graph import Arithmetic, Graph
from metacal.export.onnx.maps.affine import dirichlet, matrix, structured, vector
from metacal.export.onnx.maps.gp import gaussian_process
from metacal.export.onnx.maps.logistic import beta, platt
from metacal.export.onnx.maps.masks import has_no_masks, with_masks, within_reach
from metacal.export.onnx.maps.onevsrest import piecewise, shared
from metacal.export.onnx.maps.temperature import ensemble, local_temperature, temperature
from metacal.export.onnx.maps.toplabel import spline, top_label
from metacal.maps.affine import MatrixMap, VectorMap
from metacal.maps.beta import BetaMap
from metacal.maps.curves.onevsrest import PiecewiseMap
from metacal.maps.curves.toplabel import TopLabelMap
from metacal.maps.dirichlet import DirichletMap
from metacal.maps.ensemble import EnsembleTemperatureMap
from metacal.maps.gp import GaussianProcessMap
from metacal.maps.isotonic import SharedMap
from metacal.maps.local import LocalTemperatureMap
from metacal.maps.platt import PlattMap
from metacal.maps.spline import SplineMap
from metacal.maps.structured import StructuredMap
from metacal.maps.temperature import TemperatureMap

#: Map -> how it is written, given arithmetic in a precision and logits in that precision.
Writer = Callable[[Arithmetic, Any, str, int], str]

#: Smooth maps of one exponential: the table's own precision is enough, as it is in Python.
_IN_TABLE_PRECISION: dict[type, Writer] = {TemperatureMap: temperature, EnsembleTemperatureMap: ensemble}
#: The others in double: steps and steep curves show the last bits of a probability.
_IN_DOUBLE: dict[type, Writer] = {
    BetaMap: beta,
    DirichletMap: dirichlet,
    GaussianProcessMap: gaussian_process,
    LocalTemperatureMap: local_temperature,
    MatrixMap: matrix,
    PiecewiseMap: piecewise,
    PlattMap: platt,
    SharedMap: shared,
    SplineMap: spline,
    StructuredMap: structured,
    TopLabelMap: top_label,
    VectorMap: vector,
}
WRITERS: dict[type, Writer] = {**_IN_TABLE_PRECISION, **_IN_DOUBLE}
#: Maps whose last step is a softmax, or a mixture of some.
_SOFTMAX = {
    *_IN_TABLE_PRECISION,
    DirichletMap,
    GaussianProcessMap,
    LocalTemperatureMap,
    MatrixMap,
    StructuredMap,
    VectorMap,
}


def probabilities(graph: Graph, fitted: Any, logits: str, dtype: str, n_classes: int) -> str:
    """The map's probabilities (n × K) of logits in float32 or float64, in the same precision."""
    kind = type(fitted)
    if kind not in WRITERS:
        known = ", ".join(sorted(cls.__name__ for cls in WRITERS))
        raise InputError(f"a {kind.__name__} cannot be exported to ONNX; what can is {known}.")
    maths = Arithmetic(graph, dtype)
    if kind in _IN_TABLE_PRECISION:
        return WRITERS[kind](maths, fitted, logits, n_classes)
    double = Arithmetic(graph, "float64")
    found = WRITERS[kind](double, fitted, _doubles(maths, logits), n_classes)
    return found if dtype == "float64" else graph.cast(found, dtype)


def _doubles(maths: Arithmetic, logits: str) -> str:
    """The logits in double, finite masks as -inf, none beyond reach; the usual table pays for one look at it."""

    def plainly(branch: Graph) -> list[str]:
        return [branch.cast(logits, "float64")]

    def masked(branch: Graph) -> list[str]:
        return [branch.cast(with_masks(Arithmetic(branch, maths.dtype), logits), "float64")]

    table = maths.graph.choose(has_no_masks(maths, logits), ["float64"], plainly, masked)[0]
    return within_reach(maths, table) if maths.dtype == "float64" else table


def are_numbers(graph: Graph, fitted: Any, probs: str, dtype: str) -> str:
    """Whether the probabilities of a row (n) are numbers at all.

    One NaN makes every entry of a softmax NaN, so that one column tells; of the other maps the sum of the row does.
    """
    maths = Arithmetic(graph, dtype)
    if type(fitted) in _SOFTMAX:
        one = graph.op("Gather", probs, graph.constant(np.asarray(0, dtype=np.int64)), axis=1)
    else:
        one = graph.squeeze(maths.sum(probs))
    return graph.at_most(one, maths.value(2.0))
