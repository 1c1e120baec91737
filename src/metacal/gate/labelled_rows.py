"""Labelled rows of a watch as columns, for its alarms and counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.formulas import Codes, Flags
from metacal.gate.traffic import PendingRow


@dataclass(frozen=True, eq=False)
class LabelledRows:
    """Decisions on labelled rows, with their labels and correctness.

    Attributes
    ----------
    is_accepted, is_correct : boolean arrays
        Decision on each row, and whether its answer is correct.
    predicted_codes : array of int
        Code of each prediction.
    label_codes : array
        Code of each label.
    """

    is_accepted: Flags
    is_correct: Flags
    predicted_codes: Codes
    label_codes: NDArray[Any]

    @classmethod
    def from_pending_rows(cls, rows: Sequence[PendingRow], *, in_cascade: bool) -> LabelledRows:
        """Collect the values of one or more labelled rows as columns."""
        is_accepted = np.array([row.is_accepted for row in rows])
        predicted_codes = np.array([row.predicted_code for row in rows])
        label_codes = np.array([row.label_code for row in rows])
        is_correct = predicted_codes == label_codes
        if in_cascade:
            # Reviewers answer the rows that every model rejects. Their answers count as correct.
            is_answered_by_reviewer = ~is_accepted
            is_correct |= is_answered_by_reviewer
        return cls(is_accepted, is_correct, predicted_codes, label_codes)

    @property
    def flags_by_count_name(self) -> dict[str, Flags]:
        """Boolean flags of each row, by the name of the count that they increase."""
        is_labelled = np.ones_like(self.is_accepted)
        return {
            "labelled": is_labelled,
            "labelled_accepted": self.is_accepted,
            "correct_accepted": self.is_accepted & self.is_correct,
        }
