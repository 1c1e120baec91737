"""What can be saved: a new calibrator is one entry here, a new promise one in `promises`, a score one in `rankers`."""

from __future__ import annotations

from METACAL import estimators as faces

from metacal.estimators import Calibrator
from metacal.maps.affine import MatrixMap, VectorMap
from metacal.maps.binary import BetaMap, PlattMap
from metacal.maps.curves.onevsrest import PiecewiseMap
from metacal.maps.curves.toplabel import TopLabelMap
from metacal.maps.dirichlet import DirichletMap
from metacal.maps.ensemble import EnsembleTemperatureMap
from metacal.maps.gp import GaussianProcessMap
from metacal.maps.isotonic import SharedMap
from metacal.maps.local import LocalTemperatureMap
from metacal.maps.meta import MetaMap
from metacal.maps.spline import SplineMap
from metacal.maps.structured import StructuredMap
from metacal.maps.temperature import TemperatureMap

#: kind -> the estimator, and the frozen dataclass it holds as `map_`. Its fields are saved as they are annotated.
CALIBRATORS: dict[str, tuple[type[Calibrator], type]] = {
    "BBQ": (faces.BBQ, PiecewiseMap),
    "BetaCalibration": (faces.BetaCalibration, BetaMap),
    "DirichletCalibration": (faces.DirichletCalibration, DirichletMap),
    "EnsembleTemperatureScaling": (faces.EnsembleTemperatureScaling, EnsembleTemperatureMap),
    "GaussianProcessCalibration": (faces.GaussianProcessCalibration, GaussianProcessMap),
    "HistogramBinning": (faces.HistogramBinning, PiecewiseMap),
    "IRM": (faces.IRM, SharedMap),
    "IROvATS": (faces.IROvATS, PiecewiseMap),
    "IsotonicCalibration": (faces.IsotonicCalibration, PiecewiseMap),
    "LocalTemperatureScaling": (faces.LocalTemperatureScaling, LocalTemperatureMap),
    "MatrixScaling": (faces.MatrixScaling, MatrixMap),
    "PlattScaling": (faces.PlattScaling, PlattMap),
    "SplineCalibration": (faces.SplineCalibration, SplineMap),
    "StructuredScaling": (faces.StructuredScaling, StructuredMap),
    "TemperatureScaling": (faces.TemperatureScaling, TemperatureMap),
    "TopLabelBBQ": (faces.TopLabelBBQ, TopLabelMap),
    "TopLabelHistogramBinning": (faces.TopLabelHistogramBinning, TopLabelMap),
    "TopLabelIsotonic": (faces.TopLabelIsotonic, TopLabelMap),
    "VectorScaling": (faces.VectorScaling, VectorMap),
}


def maps() -> dict[str, type]:
    """Every map by its own name; a map may hold another.

    Examples
    --------
    >>> {"MetaMap", "TemperatureMap"} <= set(maps())
    True
    """
    return {cls.__name__: cls for _, cls in CALIBRATORS.values()} | {"MetaMap": MetaMap}
