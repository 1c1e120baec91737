"""The scikit-learn faces of the maps, thin. X is a table of logits: one row per item, one column per class."""

from __future__ import annotations

from metacal.estimators.auto import AutoCalibrator, chosen
from metacal.estimators.base import Calibrator, LogitsEstimator
from metacal.estimators.binned import BBQ, HistogramBinning, TopLabelBBQ, TopLabelHistogramBinning, TopLabelIsotonic
from metacal.estimators.gp import GaussianProcessCalibration
from metacal.estimators.local import LocalTemperatureScaling
from metacal.estimators.onevsrest import (
    IRM,
    BetaCalibration,
    IROvATS,
    IsotonicCalibration,
    PlattScaling,
    SplineCalibration,
)
from metacal.estimators.scaling import (
    DirichletCalibration,
    EnsembleTemperatureScaling,
    MatrixScaling,
    StructuredScaling,
    VectorScaling,
)
from metacal.estimators.temperature import TemperatureScaling

#: Every calibrator by the name that `compare` and the command line use, simplest first.
CALIBRATORS: dict[str, type[Calibrator]] = {
    "temperature": TemperatureScaling,
    "ensemble-temperature": EnsembleTemperatureScaling,
    "local-temperature": LocalTemperatureScaling,
    "spline": SplineCalibration,
    "gaussian-process": GaussianProcessCalibration,
    "structured": StructuredScaling,
    "vector": VectorScaling,
    "matrix": MatrixScaling,
    "dirichlet": DirichletCalibration,
    "platt": PlattScaling,
    "beta": BetaCalibration,
    "isotonic": IsotonicCalibration,
    "irova-ts": IROvATS,
    "irm": IRM,
    "histogram": HistogramBinning,
    "bbq": BBQ,
    "top-label-isotonic": TopLabelIsotonic,
    "top-label-histogram": TopLabelHistogramBinning,
    "top-label-bbq": TopLabelBBQ,
}

__all__ = [
    "BBQ",
    "CALIBRATORS",
    "IRM",
    "AutoCalibrator",
    "BetaCalibration",
    "Calibrator",
    "DirichletCalibration",
    "EnsembleTemperatureScaling",
    "GaussianProcessCalibration",
    "HistogramBinning",
    "IROvATS",
    "IsotonicCalibration",
    "LocalTemperatureScaling",
    "LogitsEstimator",
    "MatrixScaling",
    "PlattScaling",
    "SplineCalibration",
    "StructuredScaling",
    "TemperatureScaling",
    "TopLabelBBQ",
    "TopLabelHistogramBinning",
    "TopLabelIsotonic",
    "VectorScaling",
    "chosen",
]
