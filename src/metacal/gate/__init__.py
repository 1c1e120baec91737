"""What is fitted, saved, exported and applied: `gate` has the value, `fitting` makes one from labelled rows.

`scored` has both for scores that are given, where there are no logits; `cascade` for two models behind each other;
`unlabelled` for rows without labels, where the promise needs none. A name is imported when it is first asked for: who
applies a gate does not wait for what fits one.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

_HOME = {
    "CascadeGate": "metacal.gate.cascade",
    "FitMap": "metacal.maps.heldout",
    "Gate": "metacal.gate.gate",
    "Rejected": "metacal.gate.gate",
    "ScoredDecision": "metacal.gate.scored",
    "ScoredGate": "metacal.gate.scored",
    "check_gate": "metacal.gate.fitting",
    "fit_cascade": "metacal.gate.cascade",
    "fit_gate": "metacal.gate.fitting",
    "fit_scored": "metacal.gate.scored",
    "fit_unlabelled": "metacal.gate.unlabelled",
    "needs_labels": "metacal.gate.unlabelled",
}

if TYPE_CHECKING:
    from metacal.gate.cascade import CascadeGate as CascadeGate
    from metacal.gate.cascade import fit_cascade as fit_cascade
    from metacal.gate.fitting import check_gate as check_gate
    from metacal.gate.fitting import fit_gate as fit_gate
    from metacal.gate.gate import Gate as Gate
    from metacal.gate.gate import Rejected as Rejected
    from metacal.gate.scored import ScoredDecision as ScoredDecision
    from metacal.gate.scored import ScoredGate as ScoredGate
    from metacal.gate.scored import fit_scored as fit_scored
    from metacal.gate.unlabelled import fit_unlabelled as fit_unlabelled
    from metacal.gate.unlabelled import needs_labels as needs_labels
    from metacal.maps.heldout import FitMap as FitMap
else:

    def __getattr__(name):
        home = _HOME.get(name)
        if home is None:
            raise AttributeError(f"module 'metacal.gate' has no attribute {name!r}")
        return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(_HOME)
