"""Comparison of an exported ONNX gate with its decisions in Python."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metacal.errors import ArtifactError, OnnxModelError
from metacal.formulas import Array, Flags
from metacal.gate import Decision, Gate, Rejected


class _ComparedOutput(NamedTuple):
    """Numeric output of a graph, and the attribute of a `Decision` that it must equal."""

    output_name: str
    decision_attribute: str
    max_difference: float


# Numeric outputs that are compared with Python, in this order.
_COMPARED_OUTPUTS = (
    _ComparedOutput(output_name="probs", decision_attribute="probabilities", max_difference=1e-5),
    _ComparedOutput(output_name="confidence", decision_attribute="confidence", max_difference=1e-9),
)


def compare_with_python(
    gate: Gate,
    stage_rows: list[Array],
    outputs: dict[str, Array],
    is_valid_input: Flags,
    group_indices: NDArray[np.int64] | None = None,
    *,
    rejected: Rejected,
) -> None:
    """Raise an error if the outputs of an exported gate differ from Python.

    Parameters
    ----------
    gate : Gate
        Gate that makes the expected decisions.

    stage_rows : list of array
        Input rows of each stage.

    outputs : dict of str to array
        Outputs of the exported gate.

    is_valid_input : array of bool of shape (n_rows, n_stages)
        Whether the row of a stage is valid.

    group_indices : array of int of shape (n_rows,) or None, default=None
        Index of each row's group.

    rejected : {"calibrated", "uniform"}
        Probabilities of rejected rows.

    Raises
    ------
    ArtifactError
        If a decision or number differs, a row that is invalid in all stages is accepted, or a row
        of an unknown group is not decided as the gate says.
    """
    thresholds = gate.subgroup_thresholds
    group_names = None
    if group_indices is not None and thresholds is not None:
        n_groups = len(thresholds.subgroup_names)
        is_known_group = (group_indices >= 0) & (group_indices < n_groups)
        accepts_unknown_groups = thresholds.unknown_threshold == np.inf
        if accepts_unknown_groups:
            # Only a gate on scores accepts unknown groups. It still rejects rows without a score.
            has_score = np.isfinite(stage_rows[0])
            is_accepted_as_unknown = is_valid_input.all(axis=1) & ~is_known_group & has_score
            if not outputs["accept"][is_accepted_as_unknown].all():
                raise _decision_error()
            is_left_to_check = ~is_accepted_as_unknown
            stage_rows = [rows[is_left_to_check] for rows in stage_rows]
            outputs = _select_output_rows(outputs, is_left_to_check)
            is_valid_input = is_valid_input[is_left_to_check]
            group_indices = group_indices[is_left_to_check]
            is_known_group = is_known_group[is_left_to_check]
        is_valid_input = is_valid_input & is_known_group[:, None]
        valid_group_indices = group_indices[is_valid_input.all(axis=1)]
        group_names = np.array(thresholds.subgroup_names)[valid_group_indices]

    is_valid_row = np.asarray(is_valid_input.all(axis=1))
    if not is_valid_row.any():
        return
    valid_rows = [rows[is_valid_row] for rows in stage_rows]
    decision = gate.decide(*valid_rows, rejected=rejected, groups=group_names)
    valid_outputs = _select_output_rows(outputs, is_valid_row)
    is_invalid_in_all_stages = ~is_valid_input.any(axis=1)
    accepts_invalid_row = "accept" in outputs and outputs["accept"][is_invalid_in_all_stages].any()
    if accepts_invalid_row or not _has_same_decisions(valid_outputs, decision):
        raise _decision_error()
    _raise_if_numbers_differ(valid_outputs, decision)


def _select_output_rows(outputs: dict[str, Array], is_selected: Flags) -> dict[str, Array]:
    """Return the selected rows of every output, keyed by the name of the output."""
    return {output_name: values[is_selected] for output_name, values in outputs.items()}


def _decision_error() -> ArtifactError:
    """Build the error for decisions that differ between Python and ONNX."""
    return OnnxModelError(
        "The decisions of the exported gate differ from its decisions in Python. This is a bug"
        " in metacal. Please report it."
    )


def _has_same_decisions(outputs: dict[str, Array], decision: Decision) -> bool:
    """Check whether exported decisions are equal to the decisions in Python."""
    stage_of_each_row = decision.by
    class_index_of_each_row = decision.predicted_codes
    expected_outputs = {
        "accept": decision.accept,
        "answered_by": stage_of_each_row,
        "prediction": class_index_of_each_row,
    }
    for output_name, expected in expected_outputs.items():
        if output_name in outputs and (outputs[output_name] != expected).any():
            return False
    return True


def _raise_if_numbers_differ(outputs: dict[str, Array], decision: Decision) -> None:
    """Raise ArtifactError if exported probabilities or confidences differ from Python."""
    for compared in _COMPARED_OUTPUTS:
        if compared.output_name not in outputs:
            continue
        exported_values = outputs[compared.output_name]
        attribute = compared.decision_attribute
        expected_values = getattr(decision, attribute)
        is_close = np.allclose(
            exported_values,
            expected_values,
            rtol=0.0,
            atol=compared.max_difference,
            equal_nan=True,
        )
        if not is_close:
            largest_difference = np.nanmax(np.abs(exported_values - expected_values))
            raise OnnxModelError(
                f"{attribute} of the exported gate differs from {attribute} in Python by"
                f" {largest_difference:.2g}. This is a bug in metacal. Please report it."
            )
