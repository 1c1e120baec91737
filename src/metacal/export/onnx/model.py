"""Export of a gate as an ONNX model, alone or attached to a classifier."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from metacal.errors import (
    ClassMismatchError,
    ExportError,
    FileWriteError,
    InputError,
    MissingExtraError,
    OnnxModelError,
)
from metacal.export.fitted import check_exportable_gate, extract_gate
from metacal.export.onnx.checking import ModelCheck, check_attached_model, check_gate_model
from metacal.export.onnx.gate import AttachedGate, append_gate, default_input_names
from metacal.export.onnx.graph import import_onnx, make_tensor_info
from metacal.export.onnx.logits import LogitsValue, check_not_probabilities, find_logits
from metacal.export.onnx.metadata import METADATA_PREFIX, gate_metadata, write_metadata
from metacal.export.onnx.reading import ensure_supported_opset, get_opset, read_model
from metacal.gate import Gate, Rejected
from metacal.io.disk import input_error_if_write_fails
from metacal.io.writing import open_atomic_path
from metacal.rows.arrays import check_choice
from metacal.spelling import choose_spelling, format_option

# The default versions work in every recent onnxruntime and include all operators of a gate.
_OPSET = 17
_IR_VERSION = 8

# Supported dtypes of the inputs.
_DTYPES = ("float32", "float16", "float64")

# Largest number that is accepted as an operator set or IR version.
_MAX_VERSION = 1000


@dataclass(frozen=True)
class Saved:
    """Information about a written model.

    Attributes
    ----------
    path : str
        File of the model.

    opset : int
        Operator set.

    ir_version : int
        IR version.

    outputs : tuple of str
        Names of the outputs.

    ran : bool
        Whether the whole model was run by onnxruntime.

    metadata : dict of str to str
        Metadata properties that begin with "metacal.".
    """

    path: str
    opset: int
    ir_version: int
    outputs: tuple[str, ...]
    ran: bool
    metadata: dict[str, str]


def to_onnx(
    cal: Any,
    *,
    opset: int | None = None,
    ir_version: int | None = None,
    dtype: str = "float32",
    input: str | None = None,
    rejected: Rejected | None = None,
    one_score: bool = False,
) -> Any:
    """Convert a gate, or the gate of a fitted estimator, to an `onnx.ModelProto`.

    The inputs and outputs depend on the kind of gate. Outputs have one element or row per row of
    the input:

    - A gate on logits has the input `logits` (batch × K) and the outputs `probs` (batch × K;
      float64 for float64 logits, otherwise float32), `score` (float64) and `accept` (bool).
    - A gate with a threshold for each group has the additional input `group` (int64): the index of
      the row's group in the list `metacal.groups` of the metadata. A row with any other index is
      rejected.
    - If the prediction is not always the class of the largest logit, as for a promise about one of
      two classes, there is the output `prediction` (int64), the index of the predicted class.
    - A calibrator without a promise has only the output `probs`.
    - A gate on given scores has the input `scores` and the outputs `accept` and `confidence`
      (float64; NaN if there is no score).
    - A cascade has an input for each stage, `logits_small` and `logits_large`, and the outputs
      `probs` of the model that answers (those of the large model if a person does), `answered_by`
      (int64: 0 for the small model, 1 for the large one, 2 for a person), `accept` (whether a model answers) and
      `score` of the small model. `logits_large` may contain anything in rows that the small model
      answers. To export the first stage alone, pass `cascade.gate_.stage(0)`; its `accept` denotes
      that the small model answers. The promise holds for all stages together, not for this one.

    Rows that Python would reject as invalid (NaN, +inf, every class masked) are never accepted, and
    their probabilities are 1/K. If there is no gate, their probabilities are NaN.

    Parameters
    ----------
    cal : Gate, MetaCal, calibrator, CalibratedClassifier, ScoreGate or Cascade
        Fitted. A score that is a Python function, or a base calibrator that is not one of
        metacal's own, cannot be exported.

    opset : int, default=None
        Operator set, at least 11. By default 17.

    ir_version : int, default=None
        IR version. By default 8.

    dtype : {"float32", "float16", "float64"}, default="float32"
        Dtype of the logits.

    input : {"logits", "probabilities"}, default=None
        Type of the model outputs that the graph reads. By default, the type that `cal` was fitted
        on.

    rejected : {"calibrated", "uniform"}, default=None
        Probabilities of rejected rows: calibrated too, or 1/K in every class as in the paper. By
        default "calibrated", and "uniform" for the rules of `metacal.paper`.

    one_score : bool, default=False
        For two classes: whether the input `logits` has one score per row (batch × 1), which favours
        the second class, as for a model that ends in one logit. There is then the output
        `prediction`.

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    ExportError
        If `one_score` is true, and the gate does not read the logits of two classes.

    Examples
    --------
    >>> import metacal as mc
    >>> from metacal.export.onnx import to_onnx
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> gate = to_onnx(mc.MetaCal(mc.MaxMiscoverage(0.05)).fit(data.logits, data.labels))
    >>> [output.name for output in gate.graph.output]
    ['probs', 'score', 'accept']
    >>> {entry.key: entry.value for entry in gate.metadata_props}["metacal.promise"]
    'At most 5% of the correct predictions are rejected, with 90% confidence.'
    """
    gate_model = _build_gate_model(
        cal, opset, ir_version, dtype, input=input, rejected=rejected, one_score=one_score
    )
    return gate_model.model


def _build_gate_model(
    cal: Any,
    opset: int | None,
    ir_version: int | None,
    dtype: str,
    *,
    input: str | None,
    rejected: Rejected | None,
    one_score: bool,
) -> AttachedGate:
    """Build a model that contains only a gate, with the parameters of `to_onnx`."""
    onnx = import_onnx("ONNX export")
    check_choice("dtype", dtype, *_DTYPES)
    opset = _check_version("opset", _OPSET if opset is None else opset)
    ir_version = _check_version("ir_version", _IR_VERSION if ir_version is None else ir_version)
    fitted_gate = extract_gate(cal)
    gate = check_exportable_gate(fitted_gate, input)
    if one_score and (not gate.is_logits_gate or gate.n_classes != 2):
        raise ExportError(
            f"{choose_spelling('one_score=True', '--one-score')} needs a gate on the logits of two"
            " classes; this gate has another input. Leave it out."
        )
    input_infos = _describe_inputs(gate, dtype, one_score=one_score)
    empty_graph = onnx.helper.make_graph([], "metacal", input_infos, [])
    model = onnx.helper.make_model(
        empty_graph,
        opset_imports=[onnx.helper.make_opsetid("", opset)],
        ir_version=ir_version,
        producer_name="metacal",
    )
    gate_model = append_gate(
        model,
        gate,
        default_input_names(gate),
        dtype=dtype,
        batch_dimension="batch",
        rejected=fitted_gate.choose_rejected(rejected),
        has_one_score=one_score,
    )
    properties = gate_metadata(fitted_gate, gate_model)
    write_metadata(model, properties)
    return gate_model


def _describe_inputs(gate: Gate, dtype: str, *, one_score: bool) -> list[Any]:
    """Describe the inputs of a graph that contains only a gate."""
    reads_tables = gate.has_classes
    input_infos = []
    for name, stage in zip(default_input_names(gate), gate.stages):
        if reads_tables:
            description = f"{gate.logits_source.input}, one column per class"
            shape = ["batch", gate.n_classes]
            if one_score:
                description = f"{gate.logits_source.input} of the second of two classes"
                shape = ["batch", 1]
            input_infos.append(make_tensor_info(name, dtype, shape, description))
        else:
            input_infos.append(make_tensor_info(name, dtype, ["batch"], repr(stage.source)))
    return input_infos


def attach(
    model: Any,
    cal: Any,
    *,
    logits: str | None = None,
    input: str | None = None,
    rejected: Rejected | None = None,
) -> Any:
    """Attach a gate to the logits of a classifier.

    The result has the operator set, the IR version and the outputs of the classifier, followed by
    `probs`, `score` and `accept` (`metacal_probs`, ... if a name is taken). If the prediction is not
    the largest of several logits, it has the output `prediction`, as for `to_onnx`. External data stay in
    their files, so the result must be saved in the same folder. `attach` does not check the result;
    `save_attached` does.

    Parameters
    ----------
    model : path or onnx.ModelProto
        Classifier with operator set 11 or newer.

    cal : Gate, MetaCal, calibrator or CalibratedClassifier
        Fitted on this model's logits.

    logits : str, default=None
        Output with the logits, or a value inside the graph, such as the input of the last softmax.
        By default, the only floating-point output with two dimensions. For two classes, one logit
        per row is enough, of shape (n,) or (n, 1), which favours the second class.

    input : {"logits", "probabilities"}, default=None
        Content of that output. By default, the type that `cal` was fitted on.

    rejected : {"calibrated", "uniform"}, default=None
        Probabilities of rejected rows, as for `to_onnx`.

    Returns
    -------
    onnx.ModelProto
    """
    gated_model, _ = _attach_gate(read_model(model).model, cal, logits, input, rejected)
    return gated_model.model


def _attach_gate(
    model: Any, cal: Any, logits: str | None, input: str | None, rejected: Rejected | None
) -> tuple[AttachedGate, LogitsValue]:
    """Attach a gate to a parsed model, with the parameters of `attach`."""
    if any(entry.key.startswith(METADATA_PREFIX) for entry in model.metadata_props):
        raise ExportError(
            "This model already contains a metacal gate. Attach the gate to the original model."
        )
    ensure_supported_opset(model)
    fitted_gate = extract_gate(cal, requires_logits_gate=True)
    table = find_logits(model, logits, fitted_gate.n_classes)
    gate = check_exportable_gate(fitted_gate, input)
    has_one_score = table.has_one_score and gate.n_classes == 2
    if table.n_columns not in (None, gate.n_classes) and not has_one_score:
        raise ClassMismatchError(
            f"Output {table.name!r} has {table.n_columns} columns, but the calibration has"
            f" {gate.n_classes} classes. Attach the calibration that was fitted on the logits"
            " of this model."
        )
    if gate.logits_source.input == "logits":
        check_not_probabilities(model, table.name)
    gated_model = append_gate(
        model,
        gate,
        (table.name,),
        dtype=table.dtype,
        batch_dimension=table.batch_dimension,
        rejected=fitted_gate.choose_rejected(rejected),
        checks_columns=True,
        has_one_score=has_one_score,
    )
    properties = gate_metadata(fitted_gate, gated_model)
    properties[f"{METADATA_PREFIX}logits"] = table.name
    write_metadata(model, properties)
    return gated_model, table


def save(
    cal: Any,
    path: str | os.PathLike[str],
    *,
    opset: int | None = None,
    ir_version: int | None = None,
    dtype: str = "float32",
    input: str | None = None,
    rejected: Rejected | None = None,
    one_score: bool = False,
) -> Saved:
    """Write the graph of a gate after checking it.

    The graph is checked by onnx.checker, and run by onnxruntime on rows that include a tie, masked
    classes and NaN. Its outputs must agree with Python before the file is replaced.

    Parameters
    ----------
    cal : Gate, MetaCal, calibrator, CalibratedClassifier, ScoreGate or Cascade
        Fitted, as for `to_onnx`.

    path : str or path
        File to create or replace.

    opset, ir_version, dtype, input, rejected, one_score
        As for `to_onnx`.

    Returns
    -------
    Saved

    Raises
    ------
    ArtifactError
        If a check fails.
    """
    _require_runtime()
    gate_model = _build_gate_model(
        cal, opset, ir_version, dtype, input=input, rejected=rejected, one_score=one_score
    )
    with open_atomic_path(path) as temporary_path:
        n_bytes = _write_model(gate_model.model, temporary_path, path)
        model_check = check_gate_model(temporary_path, gate_model, dtype, n_bytes)
    return _describe_saved_model(path, gate_model.model, model_check)


def save_attached(
    model: str | os.PathLike[str],
    cal: Any,
    path: str | os.PathLike[str],
    *,
    logits: str | None = None,
    input: str | None = None,
    inputs: Mapping[str, Any] | None = None,
    unchecked: bool = False,
    rejected: Rejected | None = None,
) -> Saved:
    """Attach a gate to the logits of a classifier, check the model, and write it.

    The whole model is checked by onnx.checker and run by onnxruntime, and the outputs of the gate
    are compared with Python. The original model is not changed. A model with external data refers
    to the same files, so the result must be written to the same folder.

    Parameters
    ----------
    model, cal, logits, input, rejected
        As for `attach`.

    path : str or path
        File to create or replace.

    inputs : mapping of str to array, default=None
        Inputs to run the model on, by name, with a few rows each. By default, they are generated
        from dtypes and shapes.

    unchecked : bool, default=False
        Whether to write a model that could not be run on generated inputs. `Saved.ran` is then
        False. By default, an InputError is raised, because nothing shows that the logits have one
        column per class, or are logits at all.

    Returns
    -------
    Saved

    Raises
    ------
    ArtifactError
        If a check fails.

    InputError
        If the model cannot be run, or its logits do not fit the gate.
    """
    _require_runtime()
    source = read_model(model)
    output_folder = Path(os.path.realpath(path)).parent
    if source.folder not in (None, output_folder):
        raise FileWriteError(
            f"The weights of the model are in separate files in {source.folder}. Write the"
            f" result to the same folder: -o {source.folder / Path(path).name}."
        )
    gated_model, table = _attach_gate(source.model, cal, logits, input, rejected)
    input_arrays = None
    if inputs is not None:
        input_arrays = {name: np.asarray(value) for name, value in inputs.items()}
    with open_atomic_path(path) as temporary_path:
        checked_model = _with_logits_output(gated_model.model, table)
        n_bytes = _write_model(checked_model, temporary_path, path)
        model_check = check_attached_model(
            temporary_path, gated_model, source.n_bytes + n_bytes, input_arrays
        )
        if not model_check.was_run and not unchecked:
            gate = gated_model.gate
            raise ExportError(
                f"The model could not be run ({model_check.reason_not_run}), so metacal could not"
                f" check that {table.name!r} holds {gate.logits_source.input} of {gate.n_classes}"
                " classes. Pass example inputs with"
                f" {format_option('inputs', metavar='FILE.npz')}, or skip the check with"
                f" {choose_spelling('unchecked=True', '--unchecked')}."
            )
        _write_model(gated_model.model, temporary_path, path)
    return _describe_saved_model(path, gated_model.model, model_check)


def _with_logits_output(model: Any, table: LogitsValue) -> Any:
    """Return a model that also outputs the logits that its gate reads."""
    if table.name in [output.name for output in model.graph.output]:
        return model
    model_copy = deepcopy(model)
    shape = [None] * table.n_dimensions
    model_copy.graph.output.append(make_tensor_info(table.name, table.dtype, shape))
    return model_copy


def _write_model(model: Any, temporary_path: Path, path: str | os.PathLike[str]) -> int:
    """Write a model to a temporary file that will replace `path`, and return its size."""
    try:
        raw: bytes = model.SerializeToString(deterministic=True)
    except Exception as error:  # protobuf does not export the class of its size-limit error
        raise OnnxModelError(
            f"The model cannot be written as one file ({' '.join(str(error).split())}). Save"
            " its weights as external data."
        ) from None
    with input_error_if_write_fails(path):
        return temporary_path.write_bytes(raw)


def _describe_saved_model(
    path: str | os.PathLike[str], model: Any, model_check: ModelCheck
) -> Saved:
    """Collect the information about a written model."""
    metadata = {
        key: text for key, text in model_check.metadata.items() if key.startswith(METADATA_PREFIX)
    }
    return Saved(
        path=os.fspath(path),
        opset=get_opset(model),
        ir_version=int(model.ir_version),
        outputs=tuple(output.name for output in model.graph.output),
        ran=model_check.was_run,
        metadata=metadata,
    )


def _require_runtime() -> None:
    """Raise MissingExtraError unless onnx and onnxruntime are installed."""
    import_onnx("ONNX export")
    if importlib.util.find_spec("onnxruntime") is None:
        raise MissingExtraError("checking an ONNX file", "onnx")


def _check_version(name: str, value: object) -> int:
    """Return an operator set or IR version, or raise InputError if it is invalid."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{name} must be an integer, but got {value!r}.")
    if not 1 <= value <= _MAX_VERSION:
        raise InputError(f"{name} must be an ONNX version of at least 1, but got {value}.")
    return value
