"""Calibrated probabilities and certified accept/reject gates for classifiers.

>>> import metacal as mc
>>> cal = mc.MetaCal(mc.MinAccuracy(0.97))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metacal.lazy import make_lazy_attributes

__version__ = "0.2.0rc1"


def _list_registered_modules() -> dict[str, str]:
    """Return the module of each registered calibrator and promise."""
    from metacal.maps import methods
    from metacal.promises import kinds

    return {**methods.get_estimator_modules(), **kinds.find_promise_modules()}


# `make_lazy_attributes` reads these public names and imports each on first use.
# The check .ci/typed lets mypy look up every name of `dir(metacal)`.
if TYPE_CHECKING:
    from metacal import datasets as datasets
    from metacal import estimators as estimators
    from metacal import export as export
    from metacal import io as io
    from metacal import metrics as metrics
    from metacal import promises as promises
    from metacal import reports as reports
    from metacal import scores as scores
    from metacal.certificates.certificate import Certificate as Certificate
    from metacal.certification.importance import Importance as Importance
    from metacal.certification.units import Units as Units
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
    from metacal.estimators.evaluate import evaluate as evaluate
    from metacal.estimators.metacal import MetaCal as MetaCal
    from metacal.estimators.scored import ScoreGate as ScoreGate
    from metacal.estimators.verify import estimate_accuracy as estimate_accuracy
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
    from metacal.io.artifact.document import load_gate as load_gate
    from metacal.io.artifact.watch_journal import load_watch as load_watch
    from metacal.io.artifact.watch_journal import save_watch as save_watch
    from metacal.io.batches import BatchGate as BatchGate
    from metacal.io.predictions import read_predictions as read_predictions
    from metacal.maps.methods import *  # noqa: F403 the calibrators
    from metacal.metrics import losses as losses
    from metacal.promises import paper as paper
    from metacal.promises.kinds import *  # noqa: F403 the promises
    from metacal.promises.sequential.monitor import PromiseMonitor as PromiseMonitor
    from metacal.reports import plots as plots
    from metacal.reports import report as report
    from metacal.reports.telemetry import WatchMetrics as WatchMetrics
    from metacal.rows import Rows as Rows
    from metacal.scores import learned as ranking  # noqa: F401
    from metacal.statistics import bands as bands
    from metacal.statistics import bounds as bounds
else:
    # A type checker that saw this `__getattr__` would accept any misspelt name.
    __getattr__, _list_names = make_lazy_attributes(__name__, _list_registered_modules)

    def __dir__():
        return [*_list_names(), "__version__"]
