"""Stages of a gate, and the decisions of the later stages of a cascade.

A *stage* has a source, which computes uncertainty scores, and the thresholds of these scores. In a
*cascade*, each stage decides on the rows that all earlier stages reject. These rows are called
*open*.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from metacal.errors import CascadeError
from metacal.gate.decision import (
    Decision,
    DecisionOptions,
    LaterStageDecision,
    merge_stage_decisions,
)
from metacal.gate.logits_source import LogitsSource
from metacal.gate.score_source import ScoreSource
from metacal.gate.thresholds import SingleThreshold, Thresholds

#: A source computes scores and confidences of the rows of a stage, and encodes their labels.
Source = LogitsSource | ScoreSource


@dataclass(frozen=True)
class Stage:
    """Stage of a gate, with a source of scores and the thresholds for acceptance."""

    source: Source
    thresholds: Thresholds = field(default_factory=SingleThreshold)
    name: str = ""


def decide_later_stages(
    stages: tuple[Stage, ...],
    first_decision: Decision,
    later_tables: tuple[Any, ...],
    options: DecisionOptions,
) -> Decision:
    """Let each later stage of a cascade decide on the rows that earlier stages reject.

    Parameters
    ----------
    stages : tuple of Stage
        All stages of the cascade.
    first_decision : Decision
        Decision of the first stage.
    later_tables : tuple
        Input of each later stage. It may be shorter if no row reaches the last stages.
    options : DecisionOptions
        Options of the first stage.

    Returns
    -------
    Decision
        Decision of the cascade on all rows.
    """
    later_decisions: list[LaterStageDecision] = []
    n_rows = len(first_decision)
    rejected_indices = np.flatnonzero(~first_decision.accept)
    for table_index, stage in enumerate(stages[1:]):
        if len(rejected_indices) == 0:
            break
        table = None
        if table_index < len(later_tables):
            table = later_tables[table_index]
        _check_has_table(stage, table, n_rejected=len(rejected_indices), n_rows=n_rows)
        stage_options = options._replace(thresholds=stage.thresholds)
        stage_decision = stage.source.decide_rejected_rows(
            table,
            rejected_indices=rejected_indices,
            options=stage_options,
            n_rows=n_rows,
            stage_name=stage.name,
        )
        later_decisions.append(
            LaterStageDecision(row_indices=rejected_indices, decision=stage_decision)
        )
        rejected_indices = rejected_indices[~stage_decision.accept]
    stage_names = tuple(stage.name for stage in stages)
    return merge_stage_decisions(first_decision, later_decisions, stage_names)


def _check_has_table(stage: Stage, table: Any, *, n_rejected: int, n_rows: int) -> None:
    """Raise InputError if the input of a stage is missing."""
    if table is None:
        raise CascadeError(
            f"{n_rejected:,} of {n_rows:,} rows require the {stage.name} model. Pass its logits"
            " for the rows that needs_large returns."
        )
