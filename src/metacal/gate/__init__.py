"""What is fitted, saved, exported and applied: `gate` has the value, `fitting` makes one from labelled rows."""

from metacal.gate.fitting import FitMap, check_gate, fit_gate
from metacal.gate.gate import Gate, Rejected

__all__ = ["FitMap", "Gate", "Rejected", "check_gate", "fit_gate"]
