"""What the gate adds to a served model: time for a batch, on one thread, beside a plain softmax in
the same runtime.

    PYTHONPATH=src python -m benchmarks.export.torch_latency

Logits are random normal numbers times three (their values do not matter for the time), gates are
temperature scaling with the entropy score unless named. Each number is the least of many runs: what
it takes when nothing disturbs it.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import io
import time
import warnings
from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper

import metacal as mc
from metacal.export.onnx import to_onnx
from metacal.export.torch import to_module

SHAPES = ((256, 1000), (1, 10))
CALIBRATORS = {
    "temperature": mc.TemperatureScaling(),
    "vector": mc.VectorScaling(regularisation=1.0),
    "isotonic": mc.IsotonicCalibration(),
    "spline": mc.SplineCalibration(),
}


def least(function: Callable[[], object], seconds: float) -> float:
    """The least time of one call, in microseconds.

    Of calls under a millisecond by the wall clock; of longer ones, which a busy machine never
    leaves alone, by processor time (all run on one thread).
    """
    function()
    wall, work, until = np.inf, np.inf, time.perf_counter() + seconds
    while time.perf_counter() < until:
        start, start_work = time.perf_counter(), time.thread_time()
        function()
        wall, work = (
            min(wall, time.perf_counter() - start),
            min(work, time.thread_time() - start_work),
        )
    return 1e6 * (wall if wall < 1e-3 else work)


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """The model in onnxruntime, on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def softmax_model(n_classes: int) -> onnx.ModelProto:
    """A model that is one Softmax node."""
    logits, probs = (
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", n_classes])
        for n in ("logits", "probs")
    )
    graph = helper.make_graph(
        [helper.make_node("Softmax", ["logits"], ["probs"], axis=1)], "g", [logits], [probs]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def exported(module: torch.nn.Module, example: torch.Tensor) -> torch.nn.Module:
    """The module through torch.export, saved and loaded."""
    batch = {0: torch.export.Dim("batch")} if len(example) > 1 else {}
    file = io.BytesIO()
    torch.export.save(torch.export.export(module, (example,), dynamic_shapes=(batch,)), file)
    file.seek(0)
    return torch.export.load(file).module()


def fitted(n_classes: int, calibrator: object) -> mc.MetaCal:
    """A gate for this many classes, on labels drawn from the logits' own softmax."""
    random = np.random.default_rng(0)
    logits = 3.0 * random.normal(size=(4000, n_classes)).astype(np.float32)
    labels = (logits + random.gumbel(size=logits.shape)).argmax(axis=1)
    return mc.MetaCal(mc.MaxMiscoverage(0.05), calibrator).fit(logits, labels)


def measure(shape: tuple[int, int], name: str, seconds: float) -> dict[str, float]:
    """Microseconds for one batch of this shape, by runtime."""
    cal = fitted(shape[1], CALIBRATORS[name])
    array = 3.0 * np.random.default_rng(1).normal(size=shape).astype(np.float32)
    tensor = torch.from_numpy(array)
    module, gate, plain = to_module(cal), session(to_onnx(cal)), session(softmax_model(shape[1]))
    loaded = exported(module, tensor)
    feed = {"logits": array}
    with torch.inference_mode():
        return {
            "torch softmax": least(lambda: torch.softmax(tensor, dim=1), seconds),
            "torch module": least(lambda: module(tensor), seconds),
            "torch.export": least(lambda: loaded(tensor), seconds),
            "ONNX Softmax": least(lambda: plain.run(None, feed), seconds),
            "ONNX gate": least(lambda: gate.run(None, feed), seconds),
            "MetaCal": least(lambda: (cal.predict_proba(array), cal.accepts(array)), seconds),
        }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="for each number")
    seconds = parser.parse_args().seconds
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for shape in SHAPES:
        for name in CALIBRATORS:
            times = measure(shape, name, seconds)
            cells = " | ".join(f"{kind} {value:,.1f}" for kind, value in times.items())
            print(f"{shape[0]} x {shape[1]}, {name}: {cells} (µs)", flush=True)


if __name__ == "__main__":
    main()
