"""Every calibration map as ONNX nodes, one file per family; a new map is one entry in `WRITERS`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from metacal.errors import InputError
from metacal.export.onnx.graph import Arithmetic, Graph
from metacal.export.onnx.maps.affine import dirichlet, matrix, structured, vector
from metacal.export.onnx.maps.gp import gaussian_process
from metacal.export.onnx.maps.logistic import beta, platt
from metacal.export.onnx.maps.onevsrest import piecewise, shared
from metacal.export.onnx.maps.temperature import ensemble, local_temperature, temperature
from metacal.export.onnx.maps.toplabel import spline, top_label
from metacal.export.onnx.masks import with_masks
from metacal.maps.affine import MatrixMap, VectorMap
from metacal.maps.binary import BetaMap, PlattMap
from metacal.maps.dirichlet import DirichletMap
from metacal.maps.ensemble import EnsembleTemperatureMap
from metacal.maps.gp import GaussianProcessMap
from metacal.maps.isotonic import SharedMap
from metacal.maps.local import LocalTemperatureMap
from metacal.maps.onevsrest import PiecewiseMap
from metacal.maps.spline import SplineMap
from metacal.maps.structured import StructuredMap
from metacal.maps.temperature import TemperatureMap
from metacal.maps.toplabel import TopLabelMap

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


def probabilities(graph: Graph, fitted: Any, logits: str, dtype: str, n_classes: int) -> str:
    """The map's probabilities (n × K) of logits in float32 or float64, in the same precision."""
    kind = type(fitted)
    if kind not in WRITERS:
        known = ", ".join(sorted(cls.__name__ for cls in WRITERS))
        raise InputError(f"a {kind.__name__} cannot be exported to ONNX; what can is {known}.")
    if kind is not TemperatureMap:  # e^-10000 is zero at every temperature that was ever fitted
        logits = with_masks(graph, logits, dtype)
    if kind in _IN_TABLE_PRECISION or dtype == "float64":
        return WRITERS[kind](Arithmetic(graph, dtype), fitted, logits, n_classes)
    double = Arithmetic(graph, "float64")
    return graph.cast(WRITERS[kind](double, fitted, double.cast(logits), n_classes), dtype)
