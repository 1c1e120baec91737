"""Metrics of probabilities and of gate decisions, with confidence intervals.

Calibration errors take (proba, labels) or (confidence, correct). `metacal.metrics.registry` describes
all metrics. This package exports every registered metric and the names below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metacal.lazy import make_lazy_attributes
from metacal.metrics import calibration, proper, ranking, selective  # noqa: F401
from metacal.metrics.registry import list_metric_modules

if TYPE_CHECKING:
    from metacal.metrics.binning import equal_mass as equal_mass
    from metacal.metrics.binning import equal_width as equal_width
    from metacal.metrics.calibration import *  # noqa: F403
    from metacal.metrics.evaluation import evaluate as evaluate
    from metacal.metrics.evaluation_result import Evaluation as Evaluation
    from metacal.metrics.interval_functions import bootstrap as bootstrap
    from metacal.metrics.interval_functions import interval as interval
    from metacal.metrics.intervals import Interval as Interval
    from metacal.metrics.intervals import clopper_pearson as clopper_pearson
    from metacal.metrics.marginal import MarginalCheck as MarginalCheck
    from metacal.metrics.marginal import marginal_check as marginal_check
    from metacal.metrics.proper import *  # noqa: F403
    from metacal.metrics.proper import BrierDecomposition as BrierDecomposition
    from metacal.metrics.proper import brier_decomposition as brier_decomposition
    from metacal.metrics.ranking import *  # noqa: F403
    from metacal.metrics.reliability_diagram import ReliabilityCurve as ReliabilityCurve
    from metacal.metrics.reliability_diagram import reliability_curve as reliability_curve
    from metacal.metrics.risk_coverage import RiskCoverageCurve as RiskCoverageCurve
    from metacal.metrics.risk_coverage import risk_coverage_curve as risk_coverage_curve
    from metacal.metrics.selective import *  # noqa: F403
    from metacal.metrics.streaming import StreamingAccuracy as StreamingAccuracy
    from metacal.metrics.streaming import StreamingBrier as StreamingBrier
    from metacal.metrics.streaming import StreamingECE as StreamingECE
    from metacal.metrics.streaming import StreamingNLL as StreamingNLL
    from metacal.metrics.toplabel import TopLabel as TopLabel
    from metacal.metrics.toplabel import top_label as top_label
else:
    __getattr__, __dir__ = make_lazy_attributes(__name__, list_metric_modules)
