"""A cascade as ONNX: the small gate alone, which says what the large model has to answer, or both in one graph.

small_gate(cascade)                       an ordinary gate: accept is "the small model answers"
cascade_to_onnx(cascade)                  logits_small, logits_large -> probs, answered_by, accept, score
save_cascade(cascade, "cascade.onnx")     the same, checked in onnxruntime and written whole or not at all
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import __version__
from metacal.errors import ArtifactError, InputError
from metacal.export.fitted import fitted_parts
from metacal.export.onnx.checking import probe_batch, run_child
from metacal.export.onnx.gate import answer, working_type
from metacal.export.onnx.graph import ELEMENT_TYPES, Graph, onnx_library
from metacal.export.onnx.metadata import PREFIX, write_metadata
from metacal.export.onnx.model import DTYPES, IR_VERSION, OPSET, Saved, _require_runtime, _saved, _serialised, _write
from metacal.gate import CascadeGate, Gate
from metacal.io.artifact.cascade import document_of_cascade
from metacal.io.artifact.wrapping import checksum
from metacal.io.writing import atomic_path
from metacal.rows import Rows

#: Who answers, as the numbers of the output `answered_by`.
ANSWERED_BY = ("small", "large", "person")
_TYPES = {"answered_by": "int64", "accept": "bool", "score": "float64"}
_TOLERANCE = 1e-5


def small_gate(cascade: Any) -> Gate:
    """The small model's gate with the cascade's certificate, to be exported like any other.

    Its `accept` is "the small model answers"; the promise is kept by the two models together, not by this part.

    Examples
    --------
    >>> import metacal as mc
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(5, size=2000)
    >>> small, large = (rng.normal(size=(2000, 5)) + gap * np.eye(5)[y] for gap in (3.0, 4.0))
    >>> cascade = mc.Cascade(promise=mc.MaxLoss(0.02)).fit(small, y, large=large)
    >>> from metacal.export.onnx import to_onnx
    >>> [output.name for output in to_onnx(small_gate(cascade)).graph.output]
    ['probs', 'score', 'accept']
    """
    gate = _cascade_of(cascade)
    certificate: Any = gate.certificate
    return replace(gate.small, certificate=certificate, data_hash=gate.data_hash)


def cascade_to_onnx(
    cascade: Any, *, opset: int | None = None, ir_version: int | None = None, dtype: str = "float32"
) -> Any:
    """Both models' maps and gates in one graph, as an `onnx.ModelProto`.

    Inputs `logits_small` and `logits_large`, batch × K of `dtype`; outputs `probs` of the model that answers (1/K where
    people do), `answered_by` (int64: 0 the small model, 1 the large one, 2 a person), `accept` (whether a model
    answers) and `score`, the small model's. Rows that the small model answers may hold anything in `logits_large`.
    """
    onnx = onnx_library("ONNX export")
    if dtype not in DTYPES:
        raise InputError(f"dtype must be one of {', '.join(DTYPES)}; got {dtype!r}.")
    gate = _cascade_of(cascade)
    opset, ir_version = opset or OPSET, ir_version or IR_VERSION
    names = ("probs", *_TYPES)
    inputs = ("logits_small", "logits_large")
    graph = Graph(opset, taken={*inputs, *names}, constants_as_nodes=ir_version < 4)
    parts = [fitted_parts(part) for part in (small_gate(gate), _large_gate(gate))]
    small, large = (answer(graph, part, name, dtype) for part, name in zip(parts, inputs))
    assert small.accept is not None
    assert large.accept is not None
    assert small.score is not None
    probs = graph.op("Where", graph.unsqueeze(small.accept), small.probs, large.probs)
    whole = [graph.constant(np.asarray(code, dtype=np.int64)) for code in range(3)]
    by = graph.op("Where", small.accept, whole[0], graph.op("Where", large.accept, whole[1], whole[2]))
    accept = graph.op("Or", small.accept, large.accept)
    for name, value in zip(names, (probs, by, accept, graph.op("Identity", small.score))):
        graph.rename(value, name)
    table, make = ["batch", gate.n_classes], onnx.helper.make_tensor_value_info
    kinds = {"probs": working_type(dtype), **_TYPES}
    described = onnx.helper.make_graph(
        graph.nodes,
        "metacal",
        [
            make(name, ELEMENT_TYPES[dtype], table, doc_string=f"{gate.small.input}, one column per class")
            for name in inputs
        ],
        [make(name, _element(onnx, kinds[name]), table if name == "probs" else ["batch"]) for name in names],
        graph.initializers,
    )
    model = onnx.helper.make_model(
        described, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=ir_version, producer_name="metacal"
    )
    write_metadata(model, _metadata(gate, names))
    return model


def save_cascade(
    cascade: Any,
    path: str | os.PathLike[str],
    *,
    opset: int | None = None,
    ir_version: int | None = None,
    dtype: str = "float32",
) -> Saved:
    """Write `cascade_to_onnx(...)` once it is checked and onnxruntime has decided a probe batch like Python."""
    _require_runtime()
    gate = _cascade_of(cascade)
    model = cascade_to_onnx(gate, opset=opset, ir_version=ir_version, dtype=dtype)
    raw = _serialised(model)
    with atomic_path(path) as part:
        _write(raw, part, path)
        checked = _checked(part, gate, dtype, len(raw))
    return _saved(path, model, checked.ran, checked.metadata)


def _checked(path: Path, gate: CascadeGate, dtype: str, n_bytes: int) -> Any:
    """Run probe rows through the graph, each of the small model with each kind of the large one, and compare."""
    one, other = (probe_batch(part, dtype) for part in (gate.small, gate.large))
    n = len(one)
    pairs = np.array([(i, (i + shift) % n) for shift in (0, 3, 7) for i in range(n)])
    small, large = one[pairs[:, 0]], other[pairs[:, 1]]
    checked = run_child(path, {"logits_small": small, "logits_large": large}, n_bytes)
    if not checked.ran:
        raise ArtifactError("onnxruntime could not run the exported graph.")
    sound = (pairs < n - 3).all(axis=1)  # the last three rows of a batch are no logits: Python refuses them
    _compare(gate, small[sound], large[sound], {name: values[sound] for name, values in checked.answers.items()})
    if checked.answers["accept"][(pairs >= n - 3).all(axis=1)].any():
        raise ArtifactError("the exported graph answers rows that are no logits; please report it.")
    return checked


def _compare(gate: CascadeGate, small: NDArray[Any], large: NDArray[Any], answers: dict[str, NDArray[Any]]) -> None:
    wanted = gate.decide(Rows(gate.small.read(small)), Rows(gate.large.read(large)))
    by = np.array([ANSWERED_BY.index(name) for name in wanted.answered_by.tolist()])
    if not np.array_equal(by, answers["answered_by"]):
        raise ArtifactError("the exported graph lets another model answer than Python does; please report it.")
    assert wanted.probabilities is not None
    probs = np.where(wanted.accept[:, None], wanted.probabilities, 1.0 / gate.n_classes)
    if not np.allclose(answers["probs"], probs, atol=_TOLERANCE, rtol=0.0):
        raise ArtifactError("the exported graph's probabilities are not Python's; please report it.")


def _large_gate(gate: CascadeGate) -> Gate:
    certificate: Any = gate.certificate
    return replace(gate.large, certificate=certificate)


def _metadata(gate: CascadeGate, outputs: tuple[str, ...]) -> dict[str, str]:
    certificate = gate.certificate
    found = {
        "version": __version__,
        "kind": "Cascade",
        "input": gate.small.input,
        "classes": json.dumps(gate.classes.tolist()),
        "outputs": json.dumps({name: name for name in outputs}),
        "answered_by": json.dumps(ANSWERED_BY),
        "promise": certificate.statement,
        "certificate": json.dumps(certificate.to_dict(words=True), allow_nan=False, sort_keys=True),
        "threshold": repr(certificate.threshold),
        "large_threshold": repr(certificate.large_threshold),
        "artifact_hash": checksum(document_of_cascade(gate)),
    }
    if gate.data_hash is not None:
        found["data_hash"] = gate.data_hash
    return {PREFIX + name: text for name, text in found.items()}


def _element(onnx: Any, kind: str) -> Any:
    return onnx.TensorProto.INT64 if kind == "int64" else ELEMENT_TYPES[kind]


def _cascade_of(cascade: Any) -> CascadeGate:
    found = getattr(cascade, "gate_", cascade)
    if not isinstance(found, CascadeGate):
        raise InputError(f"what is exported here is a CascadeGate or a fitted Cascade; got {type(cascade).__name__}.")
    return found
