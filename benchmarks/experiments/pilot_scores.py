"""Pilot scores of other rows, for experiments that compare them with withheld rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from metacal.certification.pilot import PilotPolicy
from metacal.certification.plans import PilotRows
from metacal.certification.rows import CalibrationRows

_USUAL_POLICY = PilotPolicy()


def with_pilot_scores(
    rows: CalibrationRows, scores: NDArray[np.float64], policy: PilotPolicy = _USUAL_POLICY
) -> CalibrationRows:
    """Let the scores of other rows choose where the tests begin.

    The gates of metacal withhold some of the rows instead. So does this function for a promise about
    two classes if the scores do not tie, because the labels of pilot rows show whether a class is
    rare.

    Parameters
    ----------
    rows : CalibrationRows
        Rows that are tested.
    scores : array of shape (m,)
        Scores of other rows, on the scale of the tested rows.
    policy : PilotPolicy
        How rows would be withheld.

    Returns
    -------
    CalibrationRows
        Rows with their pilot rows.
    """
    if len(scores) == 0:
        return policy.withhold_pilot_rows(rows)
    test_values = policy.should_test_score_values(scores, len(rows))
    if policy.get_tested_class_codes is not None and not test_values:
        return policy.withhold_pilot_rows(rows)
    return replace(rows, pilot_rows=PilotRows(scores, requires_score_value_tests=test_values))
