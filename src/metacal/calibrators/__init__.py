"""The scikit-learn faces of the maps, thin. X is a table of logits: one row per item, one column per class."""

from __future__ import annotations

from metacal.calibrators.base import Calibrator, LogitsEstimator
from metacal.calibrators.temperature import TemperatureScaling

__all__ = ["Calibrator", "LogitsEstimator", "TemperatureScaling"]
