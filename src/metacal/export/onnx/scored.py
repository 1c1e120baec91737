"""A gate on given scores as ONNX nodes: from `scores` to `accept` and `confidence`, in double throughout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import __version__
from metacal.errors import ArtifactError, InputError
from metacal.export.onnx.checking import Checked, run_child
from metacal.export.onnx.graph import ELEMENT_TYPES, Arithmetic, Graph, onnx_library
from metacal.export.onnx.metadata import PREFIX, write_metadata
from metacal.gate import ScoredGate
from metacal.io.artifact.document import Content, document_of
from metacal.io.artifact.wrapping import checksum

#: How far a confidence may be from Python's: both are sums of a few products in double.
_TOLERANCE = 1e-9


def scored_gate_of(cal: Any) -> ScoredGate | None:
    """The gate on scores itself, or the one that a fitted ScoreGate holds; None for anything else."""
    found = cal if isinstance(cal, ScoredGate) else getattr(cal, "gate_", None)
    return found if isinstance(found, ScoredGate) else None


def scored_model(gate: ScoredGate, *, opset: int, ir_version: int, dtype: str, input: str | None) -> Any:
    """The gate as an `onnx.ModelProto`: `scores` (batch, of `dtype`) to `accept` (bool) and `confidence` (double).

    The threshold is that for scores of `dtype`; it lies between two numbers that a score can be, so that the unrounded
    score decides alike. What is not a finite number is not accepted, and its confidence is NaN.
    """
    if input is not None:
        raise InputError(f"a gate on scores takes scores, not {input}; leave input (--input) out.")
    onnx = onnx_library("ONNX export")
    outputs = {"accept": "bool"} if gate.source.curve is None else {"accept": "bool", "confidence": "float64"}
    graph = Graph(opset, taken={"scores", *outputs}, constants_as_nodes=ir_version < 4)
    maths = Arithmetic(graph, "float64")
    doubt = maths("Mul", maths.cast("scores"), -1.0 if gate.source.higher_is == "surer" else 1.0)
    finite = maths("Less", maths("Abs", doubt), np.inf)
    accept = graph.op("And", graph.at_most(doubt, maths.value(gate.threshold_for(dtype))), finite)
    graph.rename(accept, "accept")
    if gate.source.curve is not None:
        confidence = maths("Where", finite, _curve(graph, gate, doubt, finite), np.nan)
        graph.rename(confidence, "confidence")
    make = onnx.helper.make_tensor_value_info
    about = f"{gate.source.score}, higher is {gate.source.higher_is}"
    described = onnx.helper.make_graph(
        graph.nodes,
        "metacal",
        [make("scores", ELEMENT_TYPES[dtype], ["batch"], doc_string=about)],
        [make(name, ELEMENT_TYPES[kind], ["batch"]) for name, kind in outputs.items()],
        graph.initializers,
    )
    model = onnx.helper.make_model(
        described, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=ir_version, producer_name="metacal"
    )
    write_metadata(model, _metadata(gate, list(outputs)))
    return model


def _beside(gate: ScoredGate) -> list[float]:
    """The calibration scores on either side of the threshold, as they were given, to the digits of the grid."""
    sign = -1.0 if gate.source.higher_is == "surer" else 1.0
    found = (gate.certificate.highest_accepted, gate.certificate.lowest_rejected)
    return [sign * doubt for doubt in found if doubt is not None]


def _curve(graph: Graph, gate: ScoredGate, doubt: str, finite: str) -> str:
    """The broken line: its first value, and down each stretch as far as the doubt has gone along it."""
    assert gate.source.curve is not None
    knots, values = gate.source.curve.knots, gate.source.curve.values
    maths = Arithmetic(graph, "float64")
    if len(knots) == 1:
        return maths("Add", maths("Mul", maths("Where", finite, doubt, 0.0), 0.0), float(values[0]))
    widths = np.diff(knots)
    column = graph.unsqueeze(maths("Where", finite, doubt, 0.0))
    along = maths("Min", maths("Max", maths("Sub", column, knots[:-1][None, :]), 0.0), widths[None, :])
    drops = maths("Mul", along, (np.diff(values) / widths)[None, :])
    return maths("Add", graph.squeeze(maths.sum(drops)), float(values[0]))


def _metadata(gate: ScoredGate, outputs: list[str]) -> dict[str, str]:
    found = {
        "version": __version__,
        "input": "scores",
        "score": gate.source.score,
        "higher_is": gate.source.higher_is,
        "outputs": json.dumps({name: name for name in outputs}),
        "artifact_hash": checksum(document_of(Content(gate))),
        "promise": gate.certificate.statement,
        "certificate": json.dumps(gate.certificate.to_dict(words=True), allow_nan=False, sort_keys=True),
        "threshold": repr(gate.threshold),
        **({} if gate.data_hash is None else {"data_hash": gate.data_hash}),
    }
    return {PREFIX + name: text for name, text in found.items()}


def probe_scores(gate: ScoredGate, dtype: str) -> NDArray[Any]:
    """Scores around the threshold and all along the curve, far beyond it, and what is no number."""
    sign = -1.0 if gate.source.higher_is == "surer" else 1.0
    corners = [] if gate.source.curve is None else (sign * gate.source.curve.knots).tolist()
    scores = np.array([*_beside(gate), *corners, 0.0, 1.0, -1.0, 3e4, -3e4])
    return np.concatenate([scores, [np.nan, np.inf, -np.inf]]).astype(dtype)


def check_scored(path: Path, gate: ScoredGate, dtype: str, n_bytes: int) -> Checked:
    """Check the model, run scores through it and compare with Python."""
    scores = probe_scores(gate, dtype)
    checked = run_child(path, {"scores": scores}, n_bytes)
    if not checked.ran:
        raise ArtifactError("onnxruntime could not run the exported graph.")
    wanted = gate.decide(scores)
    if not np.array_equal(checked.answers["accept"], wanted.accept):
        raise ArtifactError("the exported graph accepts other rows than Python; please report it.")
    if wanted.confidence is not None:
        found = checked.answers["confidence"]
        if not np.allclose(found, wanted.confidence, rtol=0.0, atol=_TOLERANCE, equal_nan=True):
            raise ArtifactError("the exported graph gives other confidences than Python; please report it.")
    return checked
