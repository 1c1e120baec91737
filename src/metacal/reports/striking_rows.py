"""Rows that a report shows: the most confident errors and the least confident correct rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from metacal.formulas import Array, Flags, Float

if TYPE_CHECKING:
    from metacal.reports.report_rows import ReportRows

#: Largest number of rows in the lists of single rows.
MAX_ROWS = 20


def select_striking_rows(
    report_rows: ReportRows, is_candidate: Flags, order_by: Float, names: Array, ids: Any = None
) -> list[dict[str, Any]]:
    """List the candidate rows with the lowest values of a column, as dicts.

    Parameters
    ----------
    report_rows : ReportRows
        Labelled rows of the report.

    is_candidate : array of bool of shape (n_rows,)
        Mask of the candidate rows.

    order_by : array of shape (n_rows,)
        Column to order by. Ties are ordered by row number.

    names : array of shape (n_classes,)
        Names of the classes, empty if there are none.

    ids : sequence, default=None
        Name of each row of the input.

    Returns
    -------
    list of dict
        At most 20 rows with their number, id, true and predicted class, score, confidence and
        decision.
    """
    candidates = np.flatnonzero(is_candidate)
    if len(candidates) > MAX_ROWS:
        # A partition is faster than a sort, and leaves only a few rows to be sorted.
        largest_listed_value = np.partition(order_by[candidates], MAX_ROWS - 1)[MAX_ROWS - 1]
        candidates = candidates[order_by[candidates] <= largest_listed_value]
    sorted_candidates = candidates[np.argsort(order_by[candidates], kind="stable")]
    row_descriptions = []
    for index in sorted_candidates[:MAX_ROWS]:
        input_index = report_rows.row_indices[index]
        true_class = predicted_class = ""
        if len(names):
            true_class = str(names[report_rows.true_codes[index]])
            predicted_class = str(names[report_rows.predicted_codes[index]])
        row_descriptions.append(
            {
                "row": int(input_index),
                "id": None if ids is None else str(ids[input_index]),
                "label": true_class,
                "predicted": predicted_class,
                "score": float(report_rows.uncertainty[index]),
                "confidence": float(report_rows.confidence[index]),
                "accepted": None if report_rows.accept is None else bool(report_rows.accept[index]),
            }
        )
    return row_descriptions
