"""Outputs of the models of a cascade, and the label of the model that answered a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import CascadeError
from metacal.gate.gate import Gate


def collect_score_columns(cascade: Gate, X: Any) -> tuple[Any, ...]:
    """Return the score column of each model of a cascade on scores."""
    is_single_column = np.ndim(X[0]) == 0
    score_columns = [X] if is_single_column else list(X)
    lacks_last_column = len(score_columns) < cascade.n_stages
    if lacks_last_column and not cascade.has_human_review:
        # The last model accepts every row that it receives, so its scores are arbitrary.
        n_rows = len(score_columns[0])
        arbitrary_scores = np.zeros(n_rows)
        score_columns.append(arbitrary_scores)
    return tuple(score_columns)


def stack_model_outputs(gate: Gate, X: Any) -> NDArray[Any]:
    """Stack the outputs of the models of a cascade along a second axis."""
    is_sequence = isinstance(X, list | tuple)
    has_wrong_number_of_tables = gate.has_classes and is_sequence and len(X) != gate.n_stages
    if not is_sequence or has_wrong_number_of_tables:
        raise CascadeError(
            "A cascade requires the output of each model. Pass both: watch.update([small,"
            " large], y)."
        )
    stage_inputs = X
    if not gate.has_classes:
        stage_inputs = collect_score_columns(gate, X)
    model_outputs = [
        np.asarray(stage.source.read(stage_input))
        for stage, stage_input in zip(gate.stages, stage_inputs, strict=True)
    ]
    output_lengths = {len(output) for output in model_outputs}
    if len(output_lengths) > 1:
        raise CascadeError(
            "A cascade requires the output of each model for all rows. If a model was not called"
            " for a row, pass NaN as its score."
        )
    return np.stack(model_outputs, axis=1)


def split_model_outputs(gate: Gate, rows: NDArray[Any]) -> Any:
    """Split the stacked outputs of a cascade by model.

    Rows of other gates are returned unchanged.
    """
    has_rows = len(rows) > 0
    if gate.is_cascade and has_rows:
        outputs_by_model = np.moveaxis(rows, 1, 0)
        return list(outputs_by_model)
    return rows


def select_label_of_answering_model(gate: Gate, X: NDArray[Any], y: Any) -> Any:
    """Select the label of the answering model, if `y` has a label for each model.

    Parameters
    ----------
    gate : Gate
        Gate that decides on the rows.
    X : array
        Rows, as `stack_model_outputs` returns them for a cascade.
    y : array-like or None
        Labels. For a cascade on scores, an entry may have one label for each model, or `y` may have
        one column for each model.

    Returns
    -------
    array-like or None
        One label for each row.
    """
    is_score_cascade = gate.is_cascade and not gate.has_classes
    if y is None or not is_score_cascade:
        return y
    has_labels_of_models = any(np.ndim(entry) > 0 for entry in y)
    if not has_labels_of_models:
        return y
    has_one_entry_per_row = len(y) == len(X)
    # If `y` does not have one entry for each row, it has one column for each model.
    entry_by_row = y if has_one_entry_per_row else zip(*y)
    scores_by_model = np.moveaxis(X, 1, 0)
    decision = gate.decide(*scores_by_model)
    answering_stages = np.asarray(decision.by).tolist()
    selected_labels: list[Any] = []
    for entry, answering_stage in zip(entry_by_row, answering_stages, strict=True):
        label_is_for_all_models = np.ndim(entry) == 0
        if label_is_for_all_models:
            selected_labels.append(entry)
        else:
            selected_labels.append(_select_label_of_stage(entry, answering_stage))
    return selected_labels


def _select_label_of_stage(model_labels: Sequence[Any], answering_stage: int) -> Any:
    """Return the label of the stage that answered a row, None if it is not known."""
    if answering_stage < len(model_labels):
        return model_labels[answering_stage]
    # An answer of the last model or of a reviewer is correct by definition.
    row_is_labelled = any(_is_known_label(label) for label in model_labels)
    return True if row_is_labelled else None


def _is_known_label(label: Any) -> bool:
    """Check that a label is neither None nor NaN."""
    is_nan = label != label
    return label is not None and not is_nan
