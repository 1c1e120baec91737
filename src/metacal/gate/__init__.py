"""What is fitted, saved, exported and applied: `gate` has the value, `fitting` makes one from labelled rows.

`cascade` has both for two models behind each other.
"""

from metacal.gate.cascade import CascadeGate, fit_cascade
from metacal.gate.fitting import FitMap, check_gate, fit_gate
from metacal.gate.gate import Gate, Rejected

__all__ = ["CascadeGate", "FitMap", "Gate", "Rejected", "check_gate", "fit_cascade", "fit_gate"]
