"""Metrics of probabilities and of the gate, with intervals. Pure NumPy and scipy.special.

Functions of (proba, labels) come first; the same from (confidence, correct) live in `metacal.metrics.columns`.
"""

from metacal.metrics import columns
from metacal.metrics.binning import ReliabilityCurve, equal_mass, equal_width
from metacal.metrics.calibration import (
    accuracy,
    classwise_ece,
    debiased_ece,
    debiased_rms_calibration_error,
    ece,
    ece_equal_mass,
    ks_error,
    max_calibration_error,
    reliability_curve,
    rms_calibration_error,
    smooth_ece,
    sup_ece,
)
from metacal.metrics.evaluation import Evaluation, evaluate
from metacal.metrics.intervals import Interval, bootstrap, clopper_pearson, interval
from metacal.metrics.proper import BrierDecomposition, brier, brier_decomposition, nll
from metacal.metrics.selective import (
    RiskCoverageCurve,
    augrc,
    aurc,
    auroc,
    coverage,
    coverage_accuracy,
    e_aurc,
    miscoverage,
    risk_coverage_curve,
    type_1_error,
    type_2_error,
)
from metacal.metrics.toplabel import TopLabel, top_label

__all__ = [
    "BrierDecomposition",
    "Evaluation",
    "Interval",
    "ReliabilityCurve",
    "RiskCoverageCurve",
    "TopLabel",
    "accuracy",
    "augrc",
    "aurc",
    "auroc",
    "bootstrap",
    "brier",
    "brier_decomposition",
    "classwise_ece",
    "clopper_pearson",
    "columns",
    "coverage",
    "coverage_accuracy",
    "debiased_ece",
    "debiased_rms_calibration_error",
    "e_aurc",
    "ece",
    "ece_equal_mass",
    "equal_mass",
    "equal_width",
    "evaluate",
    "interval",
    "ks_error",
    "max_calibration_error",
    "miscoverage",
    "nll",
    "reliability_curve",
    "risk_coverage_curve",
    "rms_calibration_error",
    "smooth_ece",
    "sup_ece",
    "top_label",
    "type_1_error",
    "type_2_error",
]
