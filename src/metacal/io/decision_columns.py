"""Columns of the results that `apply` and `BatchGate` return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import FileWriteError
from metacal.gate import Decision, Gate


def build_decision_columns(
    gate: Gate, decision: Decision, ids: NDArray[Any] | None = None
) -> dict[str, Any]:
    """Return the result columns of a decision, keyed by name.

    Parameters
    ----------
    gate : Gate
        Gate that made the decision.

    decision : Decision
        Decision on each row.

    ids : array of shape (n_rows,), optional
        Ids of the rows.

    Returns
    -------
    dict of str to array
        The array "probs" is 2-D. A calibrator rejects nothing, so it has no columns "answer",
        "accept" and "score".

    Examples
    --------
    >>> import numpy as np
    >>> from metacal.gate import LogitsSource
    >>> from metacal.maps.temperature import TemperatureMap
    >>> gate = Gate.from_source(LogitsSource(TemperatureMap(1.0), np.arange(2)), 0.5)
    >>> list(build_decision_columns(gate, gate.decide(np.zeros((1, 2)))))
    ['prediction', 'answer', 'confidence', 'accept', 'score', 'probs']
    """
    predictions = decision.label
    if predictions is not None and predictions.dtype.kind == "O":
        # An array of objects holds booleans and a reject label, which are written as integers.
        predictions = predictions.astype(np.int64)
    # The columns of a decision include "answer", "confidence", "accept", "score" and "label".
    decision_columns = decision.columns
    all_columns = {
        "id": ids,
        "prediction": predictions,
        **decision_columns,
        "probs": decision.probabilities,
    }
    # The column "label" is omitted because "prediction" has the same values.
    omitted_names = {"label"}
    if gate.is_calibrator:
        omitted_names.update(("answer", "accept", "score"))

    result_columns = {}
    for name, column in all_columns.items():
        if column is not None and name not in omitted_names:
            result_columns[name] = column
    return result_columns


def list_result_names(gate: Gate) -> list[str]:
    """Return the names that the result columns of a gate can have, without the ids."""
    result_names = ["prediction", "answer", "confidence", "answered_by", "accept", "score", "probs"]
    for stage in gate.stages[1:]:
        result_names.append(f"{stage.name}_score")
    return result_names


def merge_result_columns(
    kept_columns: Mapping[str, Any], result_columns: Mapping[str, Any]
) -> dict[str, Any]:
    """Merge kept columns and result columns, in the order: ids, kept columns, results.

    Parameters
    ----------
    kept_columns : mapping of str to array
        Columns copied from the input. A kept column "id" replaces that of the results.

    result_columns : mapping of str to array
        Columns of the decision.

    Returns
    -------
    dict of str to array

    Raises
    ------
    InputError
        If a kept column other than "id" has the name of a result column.
    """
    for name in kept_columns:
        if name in result_columns and name != "id":
            raise FileWriteError(
                f"The results already have a column {name!r}. Rename the column that you keep."
            )
    merged_columns: dict[str, Any] = {}
    if "id" in result_columns and "id" not in kept_columns:
        merged_columns["id"] = result_columns["id"]
    merged_columns.update(kept_columns)
    for name, column in result_columns.items():
        if name != "id":
            merged_columns[name] = column
    return merged_columns
