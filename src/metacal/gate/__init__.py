"""What is fitted, saved, exported and applied: `gate` has the value, `table` and `marks` what its
stages rank rows by.

`fitting` makes one from rows of logits, without labels where the promise needs none, `fit_marks`
from scores that are given, `cascade` from models behind each other. A name is imported when it is
first asked for: who applies a gate does not wait for what fits one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metacal.lazy import make_lazy_attributes

if TYPE_CHECKING:
    from metacal.gate.cascade import fit_cascade as fit_cascade
    from metacal.gate.decision import Decision as Decision
    from metacal.gate.decision import Rejected as Rejected
    from metacal.gate.fit_scores import fit_scored as fit_scored
    from metacal.gate.fitting import Decided as Decided
    from metacal.gate.fitting import check_gate as check_gate
    from metacal.gate.fitting import fit_gate as fit_gate
    from metacal.gate.gate import Gate as Gate
    from metacal.gate.logits_source import LogitsSource as LogitsSource
    from metacal.gate.logits_source import Recipe as Recipe
    from metacal.gate.score_source import ScoreSource as ScoreSource
    from metacal.gate.stages import Stage as Stage
    from metacal.maps.map import FitMap as FitMap
else:
    __getattr__, __dir__ = make_lazy_attributes(__name__)
