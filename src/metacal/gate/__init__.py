"""What is fitted, saved, exported and applied: `gate` has the value, `fitting` makes one from labelled rows.

`unlabelled` makes one from rows without labels, where the promise needs none.
"""

from metacal.gate.fitting import FitMap, check_gate, fit_gate
from metacal.gate.gate import Gate, Rejected
from metacal.gate.unlabelled import fit_unlabelled, needs_labels

__all__ = ["FitMap", "Gate", "Rejected", "check_gate", "fit_gate", "fit_unlabelled", "needs_labels"]
