"""Calibrated probabilities and an accept/reject gate with a certificate, for any trained classifier.

>>> import metacal as mc
>>> cal = mc.MetaCal(mc.MinCoverageAccuracy(0.97))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

#: Public name -> the module it lives in. Loaded on first use: `import metacal` pulls in nothing heavy.
_HOME = {
    "AfterLooking": "both",
    "ArtifactError": "errors",
    "AutoCalibrator": "calibrators",
    "BBQ": "calibrators",
    "BetaCalibration": "calibrators",
    "Both": "both",
    "CalibratedClassifier": "wrap",
    "Certificate": "certificate",
    "compare": "comparison",
    "DirichletCalibration": "calibrators",
    "EnsembleTemperatureScaling": "calibrators",
    "GaussianProcessCalibration": "calibrators",
    "HistogramBinning": "calibrators",
    "InfeasibleTargetError": "errors",
    "InputError": "errors",
    "IRM": "calibrators",
    "IROvATS": "calibrators",
    "IsotonicCalibration": "calibrators",
    "load": "io.artifact",
    "LocalTemperatureScaling": "calibrators",
    "MatrixScaling": "calibrators",
    "MaxMiscoverage": "constraints",
    "MetaCal": "meta",
    "MetacalError": "errors",
    "MetacalWarning": "errors",
    "MinCoverageAccuracy": "constraints",
    "MissingExtraError": "errors",
    "PlattScaling": "calibrators",
    "PromiseMonitor": "monitor",
    "read_predictions": "io.predictions",
    "Rows": "rows",
    "save": "io.artifact",
    "show_config": "config",
    "SplineCalibration": "calibrators",
    "StructuredScaling": "calibrators",
    "TemperatureScaling": "calibrators",
    "TopLabelBBQ": "calibrators",
    "TopLabelHistogramBinning": "calibrators",
    "TopLabelIsotonic": "calibrators",
    "VectorScaling": "calibrators",
}
_MODULES = ("bands", "bounds", "datasets", "io", "metrics", "paper", "plots", "ranking", "scores", "wrap")

__all__ = [*_HOME, *_MODULES]

if TYPE_CHECKING:
    from metacal import bands as bands
    from metacal import bounds as bounds
    from metacal import datasets as datasets
    from metacal import io as io
    from metacal import metrics as metrics
    from metacal import paper as paper
    from metacal import plots as plots
    from metacal import ranking as ranking
    from metacal import scores as scores
    from metacal import wrap as wrap
    from metacal.artifact.file import load as load
    from metacal.artifact.file import save as save
    from metacal.config import show_config as show_config
    from metacal.errors import ArtifactError as ArtifactError
    from metacal.errors import InfeasibleTargetError as InfeasibleTargetError
    from metacal.errors import InputError as InputError
    from metacal.errors import MetacalError as MetacalError
    from metacal.errors import MetacalWarning as MetacalWarning
    from metacal.errors import MissingExtraError as MissingExtraError
    from metacal.estimators import BBQ as BBQ
    from metacal.estimators import IRM as IRM
    from metacal.estimators import AutoCalibrator as AutoCalibrator
    from metacal.estimators import BetaCalibration as BetaCalibration
    from metacal.estimators import DirichletCalibration as DirichletCalibration
    from metacal.estimators import EnsembleTemperatureScaling as EnsembleTemperatureScaling
    from metacal.estimators import GaussianProcessCalibration as GaussianProcessCalibration
    from metacal.estimators import HistogramBinning as HistogramBinning
    from metacal.estimators import IROvATS as IROvATS
    from metacal.estimators import IsotonicCalibration as IsotonicCalibration
    from metacal.estimators import LocalTemperatureScaling as LocalTemperatureScaling
    from metacal.estimators import MatrixScaling as MatrixScaling
    from metacal.estimators import PlattScaling as PlattScaling
    from metacal.estimators import SplineCalibration as SplineCalibration
    from metacal.estimators import StructuredScaling as StructuredScaling
    from metacal.estimators import TemperatureScaling as TemperatureScaling
    from metacal.estimators import TopLabelBBQ as TopLabelBBQ
    from metacal.estimators import TopLabelHistogramBinning as TopLabelHistogramBinning
    from metacal.estimators import TopLabelIsotonic as TopLabelIsotonic
    from metacal.estimators import VectorScaling as VectorScaling
    from metacal.estimators.classifier import CalibratedClassifier as CalibratedClassifier
    from metacal.estimators.compare import compare as compare
    from metacal.estimators.metacal import MetaCal as MetaCal
    from metacal.files.predictions import read_predictions as read_predictions
    from metacal.promises.both import AfterLooking as AfterLooking
    from metacal.promises.both import Both as Both
    from metacal.promises.certificate import Certificate as Certificate
    from metacal.promises.constraints import MaxMiscoverage as MaxMiscoverage
    from metacal.promises.constraints import MinCoverageAccuracy as MinCoverageAccuracy
    from metacal.promises.monitor import PromiseMonitor as PromiseMonitor
    from metacal.rows import Rows as Rows


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(f"metacal.{_HOME[name]}"), name)
    elif name in _MODULES:
        value = importlib.import_module(f"metacal.{name}")
    else:
        raise AttributeError(f"module 'metacal' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
