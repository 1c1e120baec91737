"""What is fitted, saved, exported and applied: `gate` has the value, `fitting` makes one from labelled rows.

`scored` has both for scores that are given, where there are no logits; `cascade` for two models behind each other;
`unlabelled` for rows without labels, where the promise needs none.
"""

from metacal.gate.cascade import CascadeGate, fit_cascade
from metacal.gate.fitting import check_gate, fit_gate
from metacal.gate.gate import Gate, Rejected
from metacal.gate.scored import ScoredDecision, ScoredGate, fit_scored
from metacal.gate.unlabelled import fit_unlabelled, needs_labels
from metacal.maps.heldout import FitMap

__all__ = [
    "CascadeGate",
    "FitMap",
    "Gate",
    "Rejected",
    "ScoredDecision",
    "ScoredGate",
    "check_gate",
    "fit_cascade",
    "fit_gate",
    "fit_scored",
    "fit_unlabelled",
    "needs_labels",
]
