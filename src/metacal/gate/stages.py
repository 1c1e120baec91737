"""Stages of a gate, and the decisions of the later stages of a cascade.

A *stage* has a source, which computes uncertainty scores, and the thresholds of these scores. In a
*cascade*, each stage decides on the rows that all earlier stages reject. These rows are called
*open*.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from metacal.errors import InputError
from metacal.formulas import Codes
from metacal.gate.decision import (
    Decision,
    DecisionOptions,
    LaterStageDecision,
    merge_stage_decisions,
)
from metacal.gate.logits_source import LogitsSource
from metacal.gate.score_source import ScoreSource
from metacal.gate.thresholds import SingleThreshold, Thresholds
from metacal.rows import Rows

#: Source of a stage. Both kinds read the input of a caller, compute uncertainty scores (higher is
#: less certain) and confidence, and encode true labels. A prediction is correct if its code equals
#: the code of the true label.
Source = LogitsSource | ScoreSource


@dataclass(frozen=True)
class Stage:
    """Source and thresholds of a stage, which accepts rows up to the threshold of their score."""

    source: Source
    policy: Thresholds = field(default_factory=SingleThreshold)
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
    open_indices = np.flatnonzero(~first_decision.accept)
    for table_index, stage in enumerate(stages[1:]):
        if len(open_indices) == 0:
            break
        has_table = table_index < len(later_tables)
        table = later_tables[table_index] if has_table else None
        stage_rows = _read_open_rows(stage, table, open_indices, n_rows)
        stage_options = options._replace(thresholds=stage.policy)
        stage_decision = stage.source.decide(stage_rows, stage_options)
        later_decisions.append(LaterStageDecision(open_indices, stage_decision))
        open_indices = open_indices[~stage_decision.accept]
    stage_names = tuple(stage.name for stage in stages)
    return merge_stage_decisions(first_decision, later_decisions, stage_names)


def _read_open_rows(stage: Stage, table: Any, open_indices: Codes, n_rows: int) -> Any:
    """Read the input of a later stage for the rows that no earlier stage accepts.

    Parameters
    ----------
    stage : Stage
        Stage that decides on the rows.
    table : array-like, Rows or None
        Input of the stage, for all rows or for the open rows only.
    open_indices : ndarray of int
        Indices of the rows that no earlier stage accepts.
    n_rows : int
        Number of all rows.
    """
    n_open = len(open_indices)
    if table is None:
        raise InputError(
            f"{n_open:,} of {n_rows:,} rows need the {stage.name} model: give its logits for"
            " them (needs_large says which)."
        )
    rows = stage.source.to_rows(table)
    if len(rows) == n_open:
        return rows
    if len(rows) != n_rows:
        raise InputError(
            f"the {stage.name} model's table has {len(rows):,} rows; give all {n_rows:,}, or"
            f" the {n_open:,} that needs_large names, in their order."
        )
    if not isinstance(rows, Rows):
        return rows[open_indices]
    if rows.on_device:
        # Maps on a device write whole tables, so the open rows become a table of their own.
        return Rows(rows.table[open_indices])
    is_open = np.zeros(n_rows, dtype=bool)
    is_open[open_indices] = True
    return rows.where(is_open)
