"""Gates: how they are calibrated, applied, evaluated and monitored.

The function `metacal.gate.calibrate.calibrate` makes a gate from calibration data: `LogitsData`,
`ScoreData`, `LogitsCascadeData` or `ScoreCascadeData`. Names are imported on first use, so that
applying a gate does not load the code that fits one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metacal.lazy import make_lazy_attributes

if TYPE_CHECKING:
    from metacal.gate.decision import Decision as Decision
    from metacal.gate.decision import Rejected as Rejected
    from metacal.gate.gate import Gate as Gate
    from metacal.gate.logits_cascade_data import LogitsCascadeData as LogitsCascadeData
    from metacal.gate.logits_data import DecisionRule as DecisionRule
    from metacal.gate.logits_data import LogitsData as LogitsData
    from metacal.gate.logits_data import check_logits_gate_options as check_logits_gate_options
    from metacal.gate.logits_source import LogitsSource as LogitsSource
    from metacal.gate.score_cascade_data import ScoreCascadeData as ScoreCascadeData
    from metacal.gate.score_data import ScoreData as ScoreData
    from metacal.gate.score_source import ScoreSource as ScoreSource
    from metacal.gate.source import Recipe as Recipe
    from metacal.gate.stages import Stage as Stage
    from metacal.maps.map import FitMap as FitMap
else:
    __getattr__, __dir__ = make_lazy_attributes(__name__)
