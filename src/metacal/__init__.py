"""Calibrated probabilities and an accept/reject gate with a certificate, for any trained classifier.

>>> import metacal as mc
>>> cal = mc.MetaCal(mc.MinCoverageAccuracy(0.97))
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

from metacal import former

__version__ = "0.1.0"

#: Public name -> the module it lives in; the calibrators' stand in the registry of methods. Loaded on first use:
#: `import metacal` pulls in nothing heavy.
_HOME = {
    "AfterLooking": "promises.after_looking",
    "ArtifactError": "errors",
    "Both": "promises.both",
    "CalibratedClassifier": "estimators.classifier",
    "Certificate": "promises.certificate",
    "compare": "estimators.compare",
    "Decision": "gate",
    "Gate": "gate",
    "InfeasibleTargetError": "errors",
    "InputError": "errors",
    "load": "artifact.file",
    "load_gate": "artifact.file",
    "MaxMiscoverage": "promises.miscoverage",
    "MetaCal": "estimators.metacal",
    "MetacalError": "errors",
    "MetacalWarning": "errors",
    "MinCoverageAccuracy": "promises.accuracy",
    "MissingExtraError": "errors",
    "PromiseMonitor": "promises.monitor",
    "read_predictions": "files.predictions",
    "Rows": "rows",
    "save": "artifact.file",
    "show_config": "config",
}
#: Public module -> where it stands.
_MODULES = {
    "artifact": "artifact",
    "bands": "promises.bands",
    "bounds": "promises.bounds",
    "datasets": "datasets",
    "estimators": "estimators",
    "export": "export",
    "files": "files",
    "metrics": "metrics",
    "paper": "promises.paper",
    "plots": "report.plots",
    "promises": "promises",
    "ranking": "scores.learned",
    "report": "report",
    "scores": "scores",
    **former.ATTRIBUTES,
}

if TYPE_CHECKING:
    from metacal import artifact as artifact
    from metacal import datasets as datasets
    from metacal import estimators as estimators
    from metacal import export as export
    from metacal import files as files
    from metacal import metrics as metrics
    from metacal import promises as promises
    from metacal import report as report
    from metacal import scores as scores
    from metacal.artifact.file import load as load
    from metacal.artifact.file import load_gate as load_gate
    from metacal.artifact.file import save as save
    from metacal.config import show_config as show_config
    from metacal.errors import ArtifactError as ArtifactError
    from metacal.errors import InfeasibleTargetError as InfeasibleTargetError
    from metacal.errors import InputError as InputError
    from metacal.errors import MetacalError as MetacalError
    from metacal.errors import MetacalWarning as MetacalWarning
    from metacal.errors import MissingExtraError as MissingExtraError
    from metacal.estimators.classifier import CalibratedClassifier as CalibratedClassifier
    from metacal.estimators.compare import compare as compare
    from metacal.estimators.metacal import MetaCal as MetaCal
    from metacal.files.predictions import read_predictions as read_predictions
    from metacal.gate import Decision as Decision
    from metacal.gate import Gate as Gate
    from metacal.maps.methods import *  # noqa: F403 the calibrators
    from metacal.promises import bands as bands
    from metacal.promises import bounds as bounds
    from metacal.promises import paper as paper
    from metacal.promises.accuracy import MinCoverageAccuracy as MinCoverageAccuracy
    from metacal.promises.after_looking import AfterLooking as AfterLooking
    from metacal.promises.both import Both as Both
    from metacal.promises.certificate import Certificate as Certificate
    from metacal.promises.miscoverage import MaxMiscoverage as MaxMiscoverage
    from metacal.promises.monitor import PromiseMonitor as PromiseMonitor
    from metacal.report import plots as plots
    from metacal.rows import Rows as Rows
    from metacal.scores import learned as ranking  # noqa: F401
else:  # hidden from type checkers, to whom a misspelt name shall be an error

    def __getattr__(name):
        if name == "__all__":
            return _public()
        if name in _HOME:
            value = getattr(importlib.import_module(f"metacal.{_HOME[name]}"), name)
        elif name in _MODULES:
            value = importlib.import_module(f"metacal.{_MODULES[name]}")
        elif name in (estimators := _estimators()):
            value = getattr(importlib.import_module(estimators[name]), name)
        else:
            raise AttributeError(f"module 'metacal' has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return [*_public(), "__version__"]


def _estimators() -> dict[str, str]:
    from metacal.maps.methods import homes

    return homes()


def _public() -> list[str]:
    return sorted({*_HOME, *_MODULES, *_estimators()} - set(former.ATTRIBUTES))


sys.meta_path.append(former.Finder())
