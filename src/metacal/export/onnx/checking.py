"""Checks of an exported model before it is written.

Every model is checked by onnx.checker and run by onnxruntime on a few rows, and its outputs are
compared with those of Python. Checker and runtime run in a child process with limits on memory and
time, see `probe`, because the model can come from anywhere. If it crashes, hangs or takes too much
memory, the child process ends and an ArtifactError is raised here.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import ArtifactError, ExportError, InputError, InputKindError, OnnxModelError
from metacal.export.fitted import SUM_TOLERANCE
from metacal.export.onnx.comparison import compare_with_python
from metacal.export.onnx.probe import COLUMN_CHECK_NODE_NAME
from metacal.export.onnx.probe_rows import generate_probe_rows
from metacal.formulas import Array
from metacal.rows.validate import scores_to_two_columns
from metacal.spelling import format_option

if TYPE_CHECKING:
    from metacal.export.onnx.gate import AttachedGate

# Limit on the memory of the child process: a constant, plus several copies of the model.
_BASE_MEMORY_BYTES = 192 * 2**20
_N_MODEL_COPIES_IN_MEMORY = 6

# Processor time limit of the child process. Large models get additional time.
_MIN_CPU_SECONDS = 60
_MODEL_BYTES_PER_EXTRA_SECOND = 10 * 2**20

# Largest number of characters of an error message.
_MAX_MESSAGE_LENGTH = 300


@dataclass(frozen=True)
class ModelCheck:
    """Result of checking a model.

    Attributes
    ----------
    was_run : bool
        Whether the whole model ran. A model for which no inputs can be generated is only loaded.

    metadata : dict of str to str
        Metadata that onnxruntime read from the file.

    outputs : dict of str to array
        Outputs of the model.

    reason_not_run : str
        Reason why the model did not run.

    generated_integer : int
        Value of all elements of the generated integer inputs.
    """

    was_run: bool
    metadata: dict[str, str]
    outputs: dict[str, Array]
    reason_not_run: str = ""
    generated_integer: int = 1


# ── runs and comparison with Python ────────────────────────────────────────────────────────────────────────


def check_gate_model(path: Path, gate_model: AttachedGate, dtype: str, n_bytes: int) -> ModelCheck:
    """Check a file that contains only a gate, and compare its outputs with Python.

    Parameters
    ----------
    path : Path
        File to check.

    gate_model : AttachedGate
        Gate in the file.

    dtype : str
        Dtype of the inputs.

    n_bytes : int
        Size of the file.

    Returns
    -------
    ModelCheck

    Raises
    ------
    ArtifactError
        If a check fails.
    """
    gate = gate_model.gate
    stage_rows, is_valid_input = generate_probe_rows(gate, dtype)
    input_arrays = stage_rows
    if gate_model.has_one_score:
        (table,) = stage_rows
        is_valid_row = is_valid_input.all(axis=1)
        second_class_values = table[:, 1]
        scores = np.where(is_valid_row, second_class_values, np.nan).astype(dtype)
        input_arrays = [scores[:, None]]
        stage_rows = [_table_of_probe_scores(scores, gate.logits_source.input)]
    inputs = dict(zip(gate_model.stage_input_names, input_arrays))
    group_indices = None
    if gate.subgroup_thresholds is not None and gate_model.group_input_name is not None:
        n_groups = len(gate.subgroup_thresholds.subgroup_names)
        group_indices = _generate_group_indices(n_groups, n_rows=len(is_valid_input))
        inputs[gate_model.group_input_name] = group_indices
    model_check = run_in_child_process(path, inputs, n_bytes)
    if not model_check.was_run:
        raise OnnxModelError(
            "onnxruntime could not run the exported graph. Export the gate with another operator"
            " set, or update onnxruntime."
        )
    compare_with_python(
        gate,
        stage_rows,
        model_check.outputs,
        is_valid_input,
        group_indices,
        rejected=gate_model.rejected,
    )
    return model_check


def _generate_group_indices(n_groups: int, n_rows: int) -> NDArray[np.int64]:
    """Generate the group index of each row: all groups in turn, and two unknown groups.

    The indices of the unknown groups are -1 and n_groups, next to those of the known groups.
    """
    tested_indices = np.arange(-1, n_groups + 1)
    return np.resize(tested_indices, n_rows).astype(np.int64)


def _table_of_probe_scores(scores: Array, input_type: str) -> Array:
    """Return the table of two classes for scores, of which some are NaN."""
    table = np.full((len(scores), 2), np.nan, dtype=scores.dtype)
    has_score = ~np.isnan(scores)
    table[has_score] = scores_to_two_columns(scores[has_score], input_type)
    return table


def check_attached_model(
    path: Path, gated_model: AttachedGate, n_bytes: int, inputs: dict[str, Array] | None = None
) -> ModelCheck:
    """Check a file that contains a classifier with a gate.

    Parameters
    ----------
    path : Path
        File to check.

    gated_model : AttachedGate
        Classifier with its gate.

    n_bytes : int
        Size of the model, including external data.

    inputs : dict of str to array, or None, default=None
        Inputs to run the model on. If None, inputs are generated.

    Returns
    -------
    ModelCheck
        If the model could be run, its outputs were compared with Python.

    Raises
    ------
    ArtifactError
        If a check fails.

    InputError
        If the value that the gate reads does not have one column per class, or does not contain
        the logits or probabilities that the gate was fitted on.
    """
    gate = gated_model.gate
    (logits_name,) = gated_model.stage_input_names
    try:
        model_check = run_in_child_process(path, inputs, n_bytes)
    except ArtifactError as error:
        if COLUMN_CHECK_NODE_NAME not in str(error):
            raise
        n_columns = 1 if gated_model.has_one_score else gate.n_classes
        raise _column_count_error(str(error), logits_name, n_columns, gate.n_classes) from None
    if not model_check.was_run or logits_name not in model_check.outputs:
        return model_check

    table = model_check.outputs[logits_name]
    if gated_model.has_one_score:
        table = _complete_one_score(table, gate.logits_source.input, logits_name)
    is_finite = np.isfinite(table).all(axis=1)
    if not is_finite.any():
        reason_not_run = f"{logits_name!r} is not finite in any row of its answer"
        return replace(model_check, was_run=False, reason_not_run=reason_not_run)
    finite_rows = table[is_finite]
    _check_input_type(finite_rows, gate.logits_source.input, logits_name)
    group_indices = None
    if gated_model.group_input_name is not None:
        if inputs is None:
            group_input = np.full(len(table), model_check.generated_integer)
        else:
            group_input = np.broadcast_to(inputs[gated_model.group_input_name], len(table))
        group_indices = group_input.astype(np.int64)[is_finite]
    gate_outputs = {}
    for default_name, output_name in gated_model.output_names.items():
        if output_name in model_check.outputs:
            gate_outputs[default_name] = model_check.outputs[output_name][is_finite]
    all_valid = np.ones((len(finite_rows), 1), dtype=bool)
    compare_with_python(
        gate,
        [finite_rows],
        gate_outputs,
        all_valid,
        group_indices,
        rejected=gated_model.rejected,
    )
    return model_check


def _complete_one_score(scores: Array, input_type: str, logits_name: str) -> Array:
    """Return the table of two classes for one score per row, or raise InputError."""
    try:
        return scores_to_two_columns(scores, input_type)
    except InputError as error:
        raise type(error)(f"{logits_name!r}: {error}") from None


def _column_count_error(
    message: str, logits_name: str, n_columns: int, n_classes: int
) -> InputError:
    """Build the error for logits with a wrong number of columns.

    The actual number of columns is part of onnxruntime's message.
    """
    shape_match = re.search(r"[Ii]nput shape: ?\{(\d+), ?(\d+)\}", message)
    problem = f"does not have {n_columns} columns"
    if shape_match is not None:
        problem = f"has {shape_match[2]} columns"
    return ExportError(
        f"{logits_name!r} {problem} for every input, but the calibration has {n_classes} classes."
        " Attach the calibration that was fitted on the logits of this model."
    )


def _check_input_type(table: Array, input_type: str, logits_name: str) -> None:
    """Raise InputError if a table holds probabilities instead of logits, or the reverse.

    Nonnegative logits that sum to one in every row do not occur by chance.
    """
    double_table = table.astype(np.float64)
    row_sums = double_table.sum(axis=1)
    sums_to_one = np.abs(row_sums - 1.0) <= SUM_TOLERANCE[str(table.dtype)]
    has_probabilities = bool(sums_to_one.all() and (double_table >= 0.0).all())
    is_constant = double_table.max() <= double_table.min()
    if input_type == "logits" and has_probabilities and not is_constant:
        raise InputKindError(
            f"{logits_name!r} holds probabilities, because every row sums to one, but the"
            f" calibration was fitted on logits. Name the logits with {format_option('logits')},"
            f" or pass {format_option('input', 'probabilities')}."
        )
    if input_type == "probabilities" and not has_probabilities:
        raise InputKindError(
            f"{logits_name!r} does not hold probabilities, because a row sums to"
            f" {row_sums[0]:.4g}. Attach a calibration that was fitted on the logits of the"
            " model."
        )


# ── child process ─────────────────────────────────────────────────────────────────────────────────


def run_in_child_process(path: Path, inputs: dict[str, Array] | None, n_bytes: int) -> ModelCheck:
    """Check a model file with onnx.checker and run it, in a child process with limits.

    Parameters
    ----------
    path : Path
        File to run.

    inputs : dict of str to array, or None
        Inputs of the model. If None, inputs are generated.

    n_bytes : int
        Size of the model, which determines the limits of the child process.

    Returns
    -------
    ModelCheck

    Raises
    ------
    ArtifactError
        If the checker or onnxruntime rejects the model, or the child process fails.
    """
    cpu_seconds = _MIN_CPU_SECONDS + n_bytes // _MODEL_BYTES_PER_EXTRA_SECOND
    memory_bytes = _BASE_MEMORY_BYTES + _N_MODEL_COPIES_IN_MEMORY * n_bytes
    with tempfile.TemporaryDirectory(prefix="metacal-") as folder:
        if inputs is not None:
            np.savez(os.path.join(folder, "inputs.npz"), **inputs)  # type: ignore[arg-type]
        _run_probe(cpu_seconds, os.fspath(path), folder, str(memory_bytes), str(cpu_seconds))
        probe_reply = json.loads(Path(folder, "reply.json").read_text(encoding="utf-8"))
        if "error" in probe_reply:
            raise _rejection_error(probe_reply)
        # The arrays have numbers as names, because an output name may not be a valid file name.
        with np.load(os.path.join(folder, "outputs.npz"), allow_pickle=False) as arrays:
            outputs = dict(zip(probe_reply["outputs"], arrays.values()))
    return ModelCheck(
        was_run=probe_reply["stage"] == "ran",
        metadata=probe_reply["metadata"],
        outputs=outputs,
        reason_not_run=_clean_message(probe_reply["reason_not_run"]),
        generated_integer=probe_reply["generated_integer"],
    )


def _run_probe(cpu_seconds: int, *script_arguments: str) -> None:
    """Run the script `probe.py`. Raise ArtifactError if it crashes or takes too long."""
    probe_script = os.path.join(os.path.dirname(__file__), "probe.py")
    timeout_seconds = 2 * cpu_seconds
    try:
        process = subprocess.run(
            [sys.executable, "-P", probe_script, *script_arguments],
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise OnnxModelError(
            f"onnxruntime did not finish this model within {timeout_seconds} s. Use a smaller model, or a"
            " faster machine."
        ) from None
    if process.returncode < 0:
        raise OnnxModelError(
            "onnxruntime crashed on this model, or exceeded its limit of memory or time (signal"
            f" {-process.returncode}). Export the model again."
        )
    if process.returncode > 0:
        error_lines = process.stderr.decode("utf-8", "replace").strip().splitlines()
        error_reason = "no reason given"
        if error_lines:
            error_reason = error_lines[-1][:_MAX_MESSAGE_LENGTH]
        raise OnnxModelError(f"The model could not be checked ({error_reason}). Export it again.")


def _rejection_error(probe_reply: dict[str, Any]) -> ArtifactError:
    """Build the error about a model that the checker or onnxruntime rejects."""
    failed_stage = probe_reply["stage"]
    subject = f"onnxruntime does not {failed_stage}"
    if failed_stage == "check":
        subject = "onnx.checker rejects"
    advice = "Export the model again"
    if failed_stage == "load":
        advice = "Try an older operator set or IR version, or update onnxruntime"
    return OnnxModelError(
        f"{subject} the model ({_clean_message(probe_reply['error'])}). {advice}."
    )


def _clean_message(cleaned_message: str) -> str:
    """Remove error codes and source locations from a message of onnxruntime."""
    source_location = r"\S*onnxruntime_src/\S+ [^()]*\([^()]*\) (const )?"
    error_code = r"\[ONNXRuntimeError\][ :]*\d+[ :]*\w+[ :]*"
    # The user has not seen the name of the temporary file.
    temporary_file = r"\S*\.part\S*"
    cleaned_message = re.sub(source_location, "", cleaned_message)
    cleaned_message = re.sub(error_code, "", cleaned_message)
    cleaned_message = re.sub(temporary_file, "it", cleaned_message)
    return cleaned_message[:_MAX_MESSAGE_LENGTH].strip(" .")
