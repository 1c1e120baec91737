"""Base class of sources, which compute the uncertainty scores and probabilities of a stage.

A source reads the table of a caller and converts it to *checked rows*. The type of checked rows
depends on the source: `Rows` of logits, or an array of scores.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sized
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from metacal.errors import CascadeError
from metacal.formulas import Codes, Flags, Float
from metacal.gate.decision import Decision, DecisionOptions
from metacal.gate.thresholds import Thresholds, encode_groups_if_needed

CheckedRows = TypeVar("CheckedRows", bound=Sized)


@dataclass(frozen=True)
class Recipe:
    """Name and parameters of the estimator that fitted a map."""

    estimator: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


class BaseSource(ABC, Generic[CheckedRows]):
    """Base class of sources. Subclasses determine the type of checked rows."""

    @abstractmethod
    def to_rows(self, table: Any) -> CheckedRows:
        """Read and check a table. Return checked rows unchanged."""

    @abstractmethod
    def select_rows(self, rows: CheckedRows, row_indices: Codes) -> CheckedRows:
        """Select rows by their indices, in the order of the table."""

    @abstractmethod
    def uncertainty_scores(self, rows: CheckedRows) -> Float:
        """Compute the uncertainty score of each row. Higher is less certain."""

    @abstractmethod
    def accepts(
        self, rows: CheckedRows, thresholds: Thresholds, group_codes: Codes | None
    ) -> Flags:
        """Return a mask of the rows whose score is at most their threshold."""

    @abstractmethod
    def decide(self, rows: CheckedRows, options: DecisionOptions) -> Decision:
        """Accept or reject each row, and compute its confidence if required."""

    def score_table(self, table: Any) -> Float:
        """Read a table and compute the uncertainty score of each row."""
        return self.uncertainty_scores(self.to_rows(table))

    def accept_table(self, table: Any, thresholds: Thresholds, groups: Any) -> Flags:
        """Read a table and compare the score of each row with its threshold.

        The `groups` are None, or the group of each row if each group has its own threshold.
        """
        rows = self.to_rows(table)
        group_codes = encode_groups_if_needed(thresholds, groups, len(rows))
        return self.accepts(rows, thresholds, group_codes)

    def decide_table(self, table: Any, options: DecisionOptions, groups: Any) -> Decision:
        """Read a table and decide on each row.

        The `groups` are None, or the group of each row if each group has its own threshold.
        """
        rows = self.to_rows(table)
        group_codes = encode_groups_if_needed(options.thresholds, groups, len(rows))
        return self.decide(rows, options._replace(group_codes=group_codes))

    def decide_rejected_rows(
        self,
        table: Any,
        rejected_indices: Codes,
        options: DecisionOptions,
        *,
        n_rows: int,
        stage_name: str,
    ) -> Decision:
        """Decide on the rows that all earlier stages of a cascade reject.

        Parameters
        ----------
        table : array-like or Rows
            Input of the stage, for all rows or only for the rows that earlier stages reject.
        rejected_indices : ndarray of int
            Indices of the rows that all earlier stages reject.
        options : DecisionOptions
            Options of the decision.
        n_rows : int
            Number of all rows.
        stage_name : str
            Name of the stage, for the error message.

        Raises
        ------
        InputError
            If the table has neither all rows nor those that earlier stages reject.
        """
        n_rejected = len(rejected_indices)
        rows = self.to_rows(table)
        has_rejected_rows_only = len(rows) == n_rejected
        has_all_rows = len(rows) == n_rows
        if not has_rejected_rows_only and not has_all_rows:
            raise CascadeError(
                f"The table of the {stage_name} model must have all {n_rows:,} rows, or the"
                f" {n_rejected:,} rows that needs_large returns in the same order, but it has"
                f" {len(rows):,} rows."
            )
        if not has_rejected_rows_only:
            rows = self.select_rows(rows, rejected_indices)
        return self.decide(rows, options)
