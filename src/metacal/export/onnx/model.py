"""The gate as an ONNX model of its own, the classifier with the gate attached, and both as
files.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from metacal import __version__
from metacal.errors import ArtifactError, InputError, MissingExtraError, option, spelled
from metacal.export.fitted import exportable, gate_of
from metacal.export.onnx.checking import Checked, check_alone, check_behind
from metacal.export.onnx.gate import Attached, append_gate, inputs_of
from metacal.export.onnx.graph import described, onnx_library
from metacal.export.onnx.reading import (
    Logits,
    check_opset,
    find_logits,
    opset_of,
    read_model,
    refuse_probabilities,
)
from metacal.gate import Gate, Stage
from metacal.io.artifact.document import Content, document_of
from metacal.io.artifact.wrapping import checksum
from metacal.io.disk import plain_write_errors
from metacal.io.writing import atomic_path
from metacal.rows.arrays import one_of

#: Old enough for every onnxruntime of the last years, new enough for every operator.
OPSET, IR_VERSION = 17, 8
DTYPES = ("float32", "float16", "float64")
#: No operator set or IR version will be beyond this.
_MOST_VERSIONS = 1000


@dataclass(frozen=True)
class Saved:
    """What was written: the file, its operator set and IR version, its outputs, and whether the
    whole model was run.
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
) -> Any:
    """The gate of whatever holds one as an `onnx.ModelProto`.

    The graph's input is `logits`, batch × K of `dtype`; its outputs are `probs` (batch × K; float64
    for float64 logits, else float32), `score` (batch, float64) and `accept` (batch, bool). Rejected
    rows are 1/K throughout. A gate with a threshold for each group has a second input `group`
    (batch, int64): the place of the row's group in the list `metacal.groups` of the metadata; any
    other number is a group that the fit has not seen, and rejected. A calibrator without a gate has
    `probs` alone. Rows that Python would refuse (NaN, +inf, every class masked) are never accepted;
    without a gate their probabilities are NaN. A gate on given scores takes `scores` (batch) and
    gives `accept` and `confidence` (batch, float64; NaN where there is no score).

    A cascade takes an input for each stage, `logits_small` and `logits_large`, and gives `probs` of
    the model that answers (1/K where people do), `answered_by` (int64: 0 the small model, 1 the
    large one, 2 a person), `accept` (whether a model answers) and `score`, the small model's. Rows
    that the small model answers may hold anything in `logits_large`. Its first stage alone is
    `cascade.gate_.stage(0)`: `accept` is "the small model answers"; the promise is kept by all
    stages together, not by this part.

    Parameters
    ----------
    cal : Gate, MetaCal, calibrator, CalibratedClassifier, ScoreGate or Cascade
        Fitted. A score that is a Python function and somebody else's base calibrator cannot be
        exported.
    opset, ir_version : int, optional
        The operator set, from 11, and the IR version; 17 and 8 by default.
    dtype : "float32", "float16" or "float64"
        The type of the logits.
    input : "logits" or "probabilities", optional
        What the graph will be given; what `cal` was fitted on by default. Of probabilities the
        logarithms are taken.

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
    return _alone(cal, opset, ir_version, dtype, input).model


def _alone(
    cal: Any, opset: int | None, ir_version: int | None, dtype: str, input: str | None
) -> Attached:
    """The gate behind a model that has inputs and no nodes."""
    onnx = onnx_library("ONNX export")
    one_of("dtype", dtype, *DTYPES)
    opset = _whole("opset", OPSET if opset is None else opset)
    ir_version = _whole("ir_version", IR_VERSION if ir_version is None else ir_version)
    fitted = gate_of(cal)
    gate = exportable(fitted, input)
    tables = gate.source.kind == "logits"
    shape = ["batch", gate.n_classes] if tables else ["batch"]
    says = [
        f"{gate.source.input}, one column per class" if tables else repr(stage.source)
        for stage in gate.stages
    ]
    inputs = [described(name, dtype, shape, text) for name, text in zip(inputs_of(gate), says)]
    model = onnx.helper.make_model(
        onnx.helper.make_graph([], "metacal", inputs, []),
        opset_imports=[onnx.helper.make_opsetid("", opset)],
        ir_version=ir_version,
        producer_name="metacal",
    )
    alone = append_gate(model, gate, inputs_of(gate), dtype, "batch")
    write_metadata(model, metadata_of(fitted, gate, alone.outputs, alone.group))
    return alone


def attach(model: Any, cal: Any, *, logits: str | None = None, input: str | None = None) -> Any:
    """A classifier with the gate behind its logits, as an `onnx.ModelProto` at its own operator set
    and IR version.

    Its outputs stay; `probs`, `score` and `accept` come after them (`metacal_probs` … where a name
    is taken). Weights that lie in files beside the model stay there: save the result in the same
    folder, as `save_attached` does, which also checks it. What `attach` returns is not checked yet.

    Parameters
    ----------
    model : path or onnx.ModelProto
        Operator set 11 or newer.
    cal : Gate, MetaCal, calibrator or CalibratedClassifier
        Fitted on this model's logits.
    logits : str, optional
        The output that holds the logits, or a value inside the graph (what goes into the last
        softmax, say). Found without help when the model has one floating-point output of two
        dimensions.
    input : "logits" or "probabilities", optional
        What that output holds; what `cal` was fitted on by default.
    """
    return _behind(read_model(model).model, cal, logits, input)[0].model


def _behind(model: Any, cal: Any, logits: str | None, input: str | None) -> tuple[Attached, Logits]:
    """The gate behind the logits of a model."""
    if any(entry.key.startswith(PREFIX) for entry in model.metadata_props):
        raise InputError("this model already has a metacal gate; attach to the original model.")
    check_opset(model)
    table = find_logits(model, logits)
    fitted = gate_of(cal, on_tables=True)
    gate = exportable(fitted, input)
    if table.width is not None and table.width != gate.n_classes:
        raise InputError(
            f"output {table.name!r} has {table.width} columns, but the calibration has"
            f" {gate.n_classes} classes; attach the one that was fitted on this model's logits."
        )
    if gate.source.input == "logits":
        refuse_probabilities(model, table.name)
    served = append_gate(model, gate, (table.name,), table.dtype, table.batch, guarded=True)
    own = metadata_of(fitted, gate, served.outputs, served.group)
    write_metadata(model, own | {f"{PREFIX}logits": table.name})
    return served, table


def save(
    cal: Any,
    path: str | os.PathLike[str],
    *,
    opset: int | None = None,
    ir_version: int | None = None,
    dtype: str = "float32",
    input: str | None = None,
) -> Saved:
    """Write `to_onnx(cal, ...)` once onnx.checker has passed it and onnxruntime has run it like
    Python.

    A probe batch with a tie, masked classes and NaN goes through the graph before the file takes
    its place.
    """
    _require_runtime()
    alone = _alone(cal, opset, ir_version, dtype, input)
    with atomic_path(path) as part:
        checked = check_alone(part, alone, dtype, _write(alone.model, part, path))
    return _saved(path, alone.model, checked)


def save_attached(
    model: str | os.PathLike[str],
    cal: Any,
    path: str | os.PathLike[str],
    *,
    logits: str | None = None,
    input: str | None = None,
    inputs: Mapping[str, Any] | None = None,
    unchecked: bool = False,
) -> Saved:
    """Write `attach(model, cal, ...)` once it is checked; the model and the files of its weights
    are only read.

    The whole model is checked by onnx.checker, loaded by onnxruntime and run, and its gate's
    answers are compared with Python's. A model with weights in files of their own keeps referring
    to them, so the result has to be written to the same folder.

    Parameters
    ----------
    model, cal, logits, input
        As for `attach`.
    path : path
        Where the result goes.
    inputs : mapping of str to array, optional
        What the model is run on: its inputs by name, some rows each. Made up by default, from types
        and shapes.
    unchecked : bool
        Write a model that could not be run on made-up inputs all the same (`Saved.ran` is then
        False). By default that is an error: nothing would show that its logits have one column per
        class, or are logits at all.
    """
    _require_runtime()
    source = read_model(model)
    if source.folder not in (None, Path(os.path.realpath(path)).parent):
        raise InputError(
            f"the model's weights lie in files beside it, in {source.folder}; write the result"
            f" there too: -o {source.folder / Path(path).name}."
        )
    served, table = _behind(source.model, cal, logits, input)
    feed = None if inputs is None else {key: np.asarray(value) for key, value in inputs.items()}
    with atomic_path(path) as part:
        n_bytes = _write(_showing(served.model, table), part, path)
        checked = check_behind(part, served, source.n_bytes + n_bytes, feed)
        if not checked.ran and not unchecked:
            raise InputError(
                f"the model could not be run ({checked.why_not}), so nothing shows that"
                f" {table.name!r} holds {served.gate.source.input} of {served.gate.n_classes}"
                f" classes. Give inputs to run it on with {option('inputs', metavar='FILE.npz')},"
                f" or write it all the same with {spelled('unchecked=True', '--unchecked')}."
            )
        _write(served.model, part, path)
    return _saved(path, served.model, checked)


def _showing(model: Any, table: Logits) -> Any:
    """The model with the value that its gate reads among its outputs, where it is inside: what is
    checked.
    """
    if table.name in [output.name for output in model.graph.output]:
        return model
    shown = deepcopy(model)
    shown.graph.output.append(described(table.name, table.dtype, [None, None]))
    return shown


def _write(model: Any, part: Path, path: str | os.PathLike[str]) -> int:
    """Write a model to a file that will take the place of `path`; its size."""
    try:
        raw: bytes = model.SerializeToString(deterministic=True)
    except (
        Exception
    ) as error:  # protobuf's own errors are not public; a graph over 2 GB is the usual one
        raise ArtifactError(
            f"the model cannot be written as one file ({' '.join(str(error).split())})."
        ) from None
    with plain_write_errors(path):
        return part.write_bytes(raw)


def _saved(path: str | os.PathLike[str], model: Any, checked: Checked) -> Saved:
    outputs = tuple(output.name for output in model.graph.output)
    own = {key: value for key, value in checked.metadata.items() if key.startswith(PREFIX)}
    return Saved(os.fspath(path), opset_of(model), int(model.ir_version), outputs, checked.ran, own)


def _require_runtime() -> None:
    onnx_library("ONNX export")
    if importlib.util.find_spec("onnxruntime") is None:
        raise MissingExtraError("checking an ONNX file", "onnx")


def _whole(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{name} must be a whole number, got {value!r}.")
    if not 1 <= value <= _MOST_VERSIONS:
        raise InputError(
            f"{name} must be a version of ONNX, from 1 on; there is none like {value}."
        )
    return value


# ── what a model file says about its gate ─────────────────────────────────────────────────────────

#: All keys of the metadata begin with this.
PREFIX = "metacal."


def metadata_of(
    gate: Gate, exported: Gate, outputs: dict[str, str], group: str | None = None
) -> dict[str, str]:
    """The metadata properties of an exported graph, as text. onnxruntime gives them back as
    `custom_metadata_map`.

    `exported` is the gate as it is exported, which may read something else. `metacal.artifact_hash`
    is the SHA-256 of the gate as `metacal.save` would write it, without its wrapping: the same
    however many threads an estimator was given; `metacal.thresholds` has those of the classes or
    groups, where each has its own, `metacal.groups` the groups' names in the order of their
    numbers, `metacal.group_input` the input that takes these; `metacal.data_hash` is that of the
    calibration rows, where the gate carries it. What belongs to a later stage of a cascade begins
    with its name: `metacal.large_threshold`.

    Examples
    --------
    >>> import metacal as mc
    >>> gate = mc.TemperatureScaling().fit([[2.0, 0.0], [0.0, 1.0], [0.5, 0.0]], [0, 1, 1]).gate_
    >>> properties = metadata_of(gate, gate, {"probs": "probs"})
    >>> properties["metacal.calibrator"], properties["metacal.classes"], "metacal.promise" in properties
    ('TemperatureMap', '[0, 1]', False)
    """
    certificate, own = exported.certificate, exported.thresholds
    known = {"version": __version__, "outputs": json.dumps(outputs), "data_hash": gate.data_hash}
    with suppress(ArtifactError):  # fitted inside a classifier, say: it works, but has no file
        known["artifact_hash"] = checksum(document_of(Content(gate)))
    for number, stage in enumerate(exported.stages):
        known |= {
            (f"{stage.name}_" if number else "") + name: text
            for name, text in _of_stage(stage).items()
        }
    if len(exported.stages) > 1:
        known |= {
            "kind": "Cascade",
            "answered_by": json.dumps([*(stage.name for stage in exported.stages), "person"]),
        }
    if exported.n_classes:
        known["classes"] = json.dumps(gate.classes.tolist())
    if certificate is None:
        known |= {"score": None, "threshold": None}
    else:
        label = gate.reject_label
        known["promise"] = certificate.statement
        known["certificate"] = json.dumps(certificate.to_dict(), allow_nan=False, sort_keys=True)
        if exported.n_classes:
            known["reject_label"] = json.dumps(label.item() if hasattr(label, "item") else label)
    if own is not None:
        values = [
            [*map(repr, value)] if isinstance(value, tuple) else repr(value) for value in own.values
        ]
        at = {"at": [*map(repr, own.at)]} if own.at else {}
        known["thresholds"] = json.dumps(
            {"by": own.by, "names": list(own.names), "values": values, **at}
        )
        known |= (
            {"groups": json.dumps(list(own.names)), "group_input": group}
            if group is not None
            else {}
        )
    return {PREFIX + name: text for name, text in known.items() if text is not None}


def _of_stage(stage: Stage) -> dict[str, str]:
    source: Any = stage.source
    known = {"score": str(source.score), "threshold": repr(stage.policy.threshold)}
    if source.kind == "scores":
        return known | {"input": "scores", "higher_is": source.higher_is}
    return known | {"input": source.input, "calibrator": type(source.map).__name__}


def write_metadata(model: Any, properties: dict[str, str]) -> None:
    """Add properties to a model, in place of those of the same name."""
    kept = {entry.key: entry.value for entry in model.metadata_props}
    onnx_library("ONNX export").helper.set_model_props(model, kept | properties)
