"""Calibrated probabilities and an accept/reject gate with a certificate, for any trained classifier.

>>> import metacal as mc
>>> cal = mc.MetaCal(mc.MinAccuracy(0.97))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.2.0rc1"

#: Public name -> the module it lives in; those of the calibrators and of the promises stand in their registries. Loaded
#: on first use: `import metacal` pulls in nothing heavy.
_HOME = {
    "apply": "io.apply",
    "ArtifactError": "errors",
    "BatchGate": "io.batches",
    "accepts": "gate.judged",
    "CalibratedClassifier": "estimators.classifier",
    "Cascade": "estimators.cascade",
    "Certificate": "promises.certificate",
    "Certifier": "gate.certifier",
    "compare": "estimators.compare",
    "compare_scores": "estimators.compare_scores",
    "Decision": "gate.decision",
    "estimate_accuracy": "estimators.estimate",
    "evaluate": "estimators.evaluate",
    "Gate": "gate",
    "InfeasibleTargetError": "errors",
    "InputError": "errors",
    "load": "export.saved",
    "load_gate": "io.artifact.file",
    "load_watch": "io.artifact.watch",
    "open_certifier": "io.artifact.certifier",
    "Importance": "promises.parts.units",
    "Units": "promises.parts.units",
    "MetaCal": "estimators.metacal",
    "MinCoverageAccuracy": "promises.rules.accuracy",
    "MetacalError": "errors",
    "MetacalWarning": "errors",
    "MissingExtraError": "errors",
    "PromiseMonitor": "promises.sequential.monitor",
    "read_predictions": "io.predictions",
    "Rows": "rows",
    "save": "export.saved",
    "save_watch": "io.artifact.watch",
    "ScoreGate": "estimators.scored",
    "show_config": "config",
    "verify": "estimators.verify",
    "Watch": "gate.watch",
    "write_report": "report",
}
#: Public module -> where it stands.
_MODULES = {
    "bands": "promises.rules.bands",
    "bounds": "promises.rules.bounds",
    "datasets": "datasets",
    "estimators": "estimators",
    "export": "export",
    "io": "io",
    "losses": "metrics.losses",
    "metrics": "metrics",
    "paper": "promises.rules.paper",
    "plots": "report.plots",
    "promises": "promises",
    "ranking": "scores.learned",
    "report": "report",
    "scores": "scores",
}

if TYPE_CHECKING:  # the same names once more: .ci/typed has mypy look up each name of `dir(metacal)`
    from metacal import datasets as datasets
    from metacal import estimators as estimators
    from metacal import export as export
    from metacal import io as io
    from metacal import metrics as metrics
    from metacal import promises as promises
    from metacal import report as report
    from metacal import scores as scores
    from metacal.config import show_config as show_config
    from metacal.errors import ArtifactError as ArtifactError
    from metacal.errors import InfeasibleTargetError as InfeasibleTargetError
    from metacal.errors import InputError as InputError
    from metacal.errors import MetacalError as MetacalError
    from metacal.errors import MetacalWarning as MetacalWarning
    from metacal.errors import MissingExtraError as MissingExtraError
    from metacal.estimators.cascade import Cascade as Cascade
    from metacal.estimators.classifier import CalibratedClassifier as CalibratedClassifier
    from metacal.estimators.compare import compare as compare
    from metacal.estimators.compare_scores import compare_scores as compare_scores
    from metacal.estimators.estimate import estimate_accuracy as estimate_accuracy
    from metacal.estimators.evaluate import evaluate as evaluate
    from metacal.estimators.metacal import MetaCal as MetaCal
    from metacal.estimators.scored import ScoreGate as ScoreGate
    from metacal.estimators.verify import verify as verify
    from metacal.export.saved import load as load
    from metacal.export.saved import save as save
    from metacal.gate import Gate as Gate
    from metacal.gate.certifier import Certifier as Certifier
    from metacal.gate.decision import Decision as Decision
    from metacal.gate.judged import accepts as accepts
    from metacal.gate.watch import Watch as Watch
    from metacal.io.apply import apply as apply
    from metacal.io.artifact.certifier import open_certifier as open_certifier
    from metacal.io.artifact.file import load_gate as load_gate
    from metacal.io.artifact.watch import load_watch as load_watch
    from metacal.io.artifact.watch import save_watch as save_watch
    from metacal.io.batches import BatchGate as BatchGate
    from metacal.io.predictions import read_predictions as read_predictions
    from metacal.maps.methods import *  # noqa: F403 the calibrators
    from metacal.metrics import losses as losses
    from metacal.promises.certificate import Certificate as Certificate
    from metacal.promises.kinds import *  # noqa: F403 the promises
    from metacal.promises.parts.units import Importance as Importance
    from metacal.promises.parts.units import Units as Units
    from metacal.promises.rules import bands as bands
    from metacal.promises.rules import bounds as bounds
    from metacal.promises.rules import paper as paper
    from metacal.promises.rules.accuracy import MinCoverageAccuracy as MinCoverageAccuracy
    from metacal.promises.sequential.monitor import PromiseMonitor as PromiseMonitor
    from metacal.report import plots as plots
    from metacal.report import write_report as write_report
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
        elif name in (registered := _registered()):
            return getattr(importlib.import_module(registered[name]), name)
        else:
            raise AttributeError(f"module 'metacal' has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return [*_public(), "__version__"]


def _registered() -> dict[str, str]:
    """The calibrators and the promises, by their public names."""
    from metacal.maps import methods
    from metacal.promises import kinds

    return {**methods.homes(), **kinds.homes()}


def _public() -> list[str]:
    return sorted({*_HOME, *_MODULES, *_registered()})
