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
    "ArtifactError": "errors",
    "CalibratedClassifier": "wrap",
    "Certificate": "certificate",
    "InfeasibleTargetError": "errors",
    "InputError": "errors",
    "MaxMiscoverage": "constraints",
    "MetaCal": "meta",
    "MetacalError": "errors",
    "MetacalWarning": "errors",
    "MinCoverageAccuracy": "constraints",
    "MissingExtraError": "errors",
    "Rows": "rows",
    "TemperatureScaling": "calibrators",
    "load": "io.artifact",
    "read_predictions": "io.predictions",
    "save": "io.artifact",
    "show_config": "config",
}
_MODULES = ("bounds", "datasets", "io", "metrics", "paper", "scores", "wrap")

__all__ = [*_HOME, *_MODULES]

if TYPE_CHECKING:
    from metacal import bounds as bounds
    from metacal import datasets as datasets
    from metacal import io as io
    from metacal import metrics as metrics
    from metacal import paper as paper
    from metacal import scores as scores
    from metacal import wrap as wrap
    from metacal.calibrators import TemperatureScaling as TemperatureScaling
    from metacal.certificate import Certificate as Certificate
    from metacal.config import show_config as show_config
    from metacal.constraints import MaxMiscoverage as MaxMiscoverage
    from metacal.constraints import MinCoverageAccuracy as MinCoverageAccuracy
    from metacal.errors import ArtifactError as ArtifactError
    from metacal.errors import InfeasibleTargetError as InfeasibleTargetError
    from metacal.errors import InputError as InputError
    from metacal.errors import MetacalError as MetacalError
    from metacal.errors import MetacalWarning as MetacalWarning
    from metacal.errors import MissingExtraError as MissingExtraError
    from metacal.io.artifact import load as load
    from metacal.io.artifact import save as save
    from metacal.io.predictions import read_predictions as read_predictions
    from metacal.meta import MetaCal as MetaCal
    from metacal.rows import Rows as Rows
    from metacal.wrap import CalibratedClassifier as CalibratedClassifier


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
