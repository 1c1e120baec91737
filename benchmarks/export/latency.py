"""What the gate costs in onnxruntime, as a multiple of a plain Softmax node on the same batch.

    python -m benchmarks.export.latency                   # 256 × 1,000 and the other sizes: about a minute
    python -m benchmarks.export.latency --json latency.json

One thread, processor time, the graphs interleaved call by call, medians. Besides the gates: the plain Softmax, and the
floor that any such gate has, one softmax for the score and one at the temperature. Logits are made up: a normal cloud
with a margin for one class, so that the gate rejects about a tenth.

Some rows lie so near the threshold that they are scored again in float64. The times of many different
batches show what this costs.

The same two gates are also timed through `MetaCal.decide` and the torch module, as multiples of a softmax in NumPy and
in torch.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from pathlib import Path

# The thread pools read these variables when the libraries are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper

import metacal as mc
from benchmarks.machine import description, load_average
from metacal.export.onnx import to_onnx
from metacal.export.torch import to_module
from metacal.scores import NAMED

SIZES = ((256, 1_000), (1, 1_000), (256, 100), (256, 10), (1, 10))
#: Graphs that are timed on many batches of the first size.
BATCH_GRAPHS = ("temperature, entropy", "the default gate")
N_BATCHES = 400
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


def softmax_in_numpy(batch):
    """The softmax of a batch, as one writes it in NumPy."""
    exponentials = np.exp(batch - batch.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def runtimes(width):
    """(runtime, what) -> function of a batch of logits."""
    table, labels = made_up(4_000, width)
    softmax = session(plain(width))
    functions = {
        ("ONNX Runtime", "softmax"): lambda batch: softmax.run(None, {"logits": batch}),
        ("torch", "softmax"): lambda batch: torch.softmax(torch.from_numpy(batch), dim=1),
        ("NumPy", "softmax"): softmax_in_numpy,
    }
    calibrators = {"temperature, entropy": mc.TemperatureScaling(), "the default gate": None}
    for name, calibrator in calibrators.items():
        gate = mc.MetaCal(mc.MinAccuracy(0.9), calibrator).fit(table, labels)
        graph, module = session(to_onnx(gate)), to_module(gate)
        functions |= {
            ("ONNX Runtime", name): lambda batch, graph=graph: graph.run(None, {"logits": batch}),
            ("torch", name): lambda batch, module=module: module(torch.from_numpy(batch)),
            ("NumPy", name): lambda batch, gate=gate: gate.decide(batch),
        }
    return functions


def measure(functions, batch, width, rounds):
    """Median microseconds of processor time per call of each function of a batch."""
    table, _ = made_up(3 * batch, width)
    batches = [np.ascontiguousarray(table[i * batch : (i + 1) * batch]) for i in range(3)]
    times = {name: [] for name in functions}
    calls = min(100, max(3, 20_000 // (batch * width)))
    for place in range(rounds + 5):
        for name, function in functions.items():
            logits = batches[place % 3]
            # What ran before has emptied the caches, for one function more than for another.
            function(logits)
            began = time.process_time_ns()
            for _ in range(calls):
                function(logits)
            if place >= 5:
                times[name].append((time.process_time_ns() - began) / calls / 1_000)
    return {name: float(np.median(values)) for name, values in times.items()}


def measure_graphs(batch, width, rounds):
    """One row of the results for each graph."""
    functions = {
        name: lambda logits, one=one: one.run(None, {"logits": logits})
        for name, one in graphs(width).items()
    }
    found = measure(functions, batch, width, rounds)
    return [
        {
            "batch": batch,
            "classes": width,
            "graph": name,
            "microseconds": micros,
            "ratio": micros / found["softmax"],
        }
        for name, micros in found.items()
    ]


def measure_batches(batch, width, n_batches):
    """One row of the results for each graph, about many different batches."""
    functions = graphs(width)
    softmax = functions["softmax"]
    gates = {name: functions[name] for name in BATCH_GRAPHS}
    times = {name: [] for name in gates}
    softmax_times = []
    table, _ = made_up(batch * n_batches, width)
    for place in range(n_batches):
        logits = np.ascontiguousarray(table[place * batch : (place + 1) * batch])
        softmax_times.append(time_best(softmax, logits))
        for name, gate in gates.items():
            times[name].append(time_best(gate, logits))
    unit = np.median(softmax_times)
    return [
        {
            "batch": batch,
            "classes": width,
            "batches": n_batches,
            "graph": name,
            "median": np.median(values) / unit,
            "mean": np.mean(values) / unit,
            "percentile_99": np.quantile(values, 0.99) / unit,
        }
        for name, values in times.items()
    ]


def time_best(one, logits, n_calls=4):
    """Nanoseconds of processor time of the fastest of some calls on the same batch."""
    times = []
    for _ in range(n_calls):
        began = time.process_time_ns()
        one.run(None, {"logits": logits})
        times.append(time.process_time_ns() - began)
    return min(times)


def measure_runtimes(batch, width, rounds):
    """One row of the results for each runtime and gate; the ratio is to the runtime's softmax."""
    with torch.inference_mode():
        found = measure(runtimes(width), batch, width, rounds)
    return [
        {
            "batch": batch,
            "classes": width,
            "runtime": runtime,
            "graph": name,
            "microseconds": micros,
            "ratio": micros / found[runtime, "softmax"],
        }
        for (runtime, name), micros in found.items()
    ]


def main():
    """Print a table per size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--json", help="where the results go as JSON")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rows, runtime_rows = [], []
    for batch, width in SIZES:
        rows += measure_graphs(batch, width, arguments.rounds)
        runtime_rows += measure_runtimes(batch, width, arguments.rounds)
    batch_rows = measure_batches(*SIZES[0], N_BATCHES)
    for row in [*rows, *runtime_rows]:
        name = f"{row.get('runtime', '')} {row['graph']}".strip()
        size = f"{row['batch']} × {row['classes']:,}"
        print(f"{size:12} {name:40} {row['microseconds']:9.1f} µs  {row['ratio']:6.2f} ×")
    for row in batch_rows:
        print(
            f"{row['graph']:40} median {row['median']:.2f}, mean {row['mean']:.2f},"
            f" 99th percentile {row['percentile_99']:.2f}"
        )
    if arguments.json:
        found = {
            "machine": description(),
            "load": load_average(),
            "rows": rows,
            "batches": batch_rows,
            "runtimes": runtime_rows,
        }
        Path(arguments.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
