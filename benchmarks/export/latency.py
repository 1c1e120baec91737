"""What the gate costs in onnxruntime, as a multiple of a plain Softmax node on the same batch.

    python -m benchmarks.export.latency                   # 256 × 1,000 and the other sizes: about a minute
    python -m benchmarks.export.latency --json latency.json

One thread, processor time, the graphs interleaved call by call, medians. Besides the gates: the plain Softmax, and the
floor that any such gate has, one softmax for the score and one at the temperature. Logits are made up: a normal cloud
with a margin for one class, so that the gate rejects about a tenth.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import metacal as mc
from benchmarks.machine import description, load_average
from metacal.export.onnx import to_onnx
from metacal.scores import NAMED

SIZES = ((256, 1_000), (1, 1_000), (256, 100), (256, 10), (1, 10))
#: Maps beside temperature scaling that are worth a line.
MAPS = {
    "ensemble-temperature": mc.EnsembleTemperatureScaling(),
    "vector": mc.VectorScaling(regularisation=1.0),
    "isotonic": mc.IsotonicCalibration(),
    "top-label-histogram": mc.TopLabelHistogramBinning(),
}


def session(model):
    """The model in onnxruntime, on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def plain(width, *, floor=False):
    """A graph of one Softmax; with `floor`, a tempered one besides."""
    names = ["plain", "tempered"] if floor else ["plain"]
    nodes = [helper.make_node("Softmax", ["logits"], ["plain"], axis=1)]
    if floor:
        nodes += [
            helper.make_node("Mul", ["logits", "b"], ["scaled"]),
            helper.make_node("Softmax", ["scaled"], ["tempered"], axis=1),
        ]
    graph = helper.make_graph(
        nodes,
        "plain",
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", width])],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", width])
            for name in names
        ],
        [numpy_helper.from_array(np.float32(0.7), "b")] if floor else [],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def made_up(rows, width):
    """Logits and labels."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, width, rows)
    table = rng.normal(0.0, 1.5, (rows, width)).astype(np.float32)
    table[np.arange(rows), labels] += rng.normal(9.0, 4.0, rows).astype(np.float32)
    return table, labels


def graphs(width):
    """Name -> session."""
    table, labels = made_up(4_000, width)
    found = {"softmax": plain(width), "two softmaxes (the floor)": plain(width, floor=True)}
    for score in NAMED:
        gate = mc.MetaCal(mc.MinAccuracy(0.9), mc.TemperatureScaling(), score=score).fit(
            table, labels
        )
        found[f"temperature, {score}"] = to_onnx(gate)
    found["the default gate"] = to_onnx(mc.MetaCal(mc.MinAccuracy(0.9)).fit(table, labels))
    for name, calibrator in MAPS.items():
        found[f"{name}, entropy"] = to_onnx(
            mc.MetaCal(mc.MinAccuracy(0.9), calibrator).fit(table, labels)
        )
    return {name: session(model) for name, model in found.items()}


def measure(batch, width, rounds):
    """Median microseconds of processor time per call, by graph."""
    sessions = graphs(width)
    table, _ = made_up(3 * batch, width)
    batches = [np.ascontiguousarray(table[i * batch : (i + 1) * batch]) for i in range(3)]
    times = {name: [] for name in sessions}
    calls = min(100, max(3, 20_000 // (batch * width)))
    for place in range(rounds + 5):
        for name, one in sessions.items():
            feed = {"logits": batches[place % 3]}
            one.run(
                None, feed
            )  # what ran before has emptied the caches, for one graph more than for another
            began = time.process_time_ns()
            for _ in range(calls):
                one.run(None, feed)
            if place >= 5:
                times[name].append((time.process_time_ns() - began) / calls / 1_000)
    return {name: float(np.median(values)) for name, values in times.items()}


def main():
    """Print a table per size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--json", help="where the results go as JSON")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    results = []
    for batch, width in SIZES:
        found = measure(batch, width, arguments.rounds)
        print(f"\n{batch} × {width:,}")
        for name, micros in found.items():
            ratio = micros / found["softmax"]
            print(f"  {name:34} {micros:9.1f} µs  {ratio:6.2f} ×")
            results.append(
                {
                    "batch": batch,
                    "classes": width,
                    "graph": name,
                    "microseconds": micros,
                    "ratio": ratio,
                }
            )
    if arguments.json:
        found = {"machine": description(), "load": load_average(), "rows": results}
        Path(arguments.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
