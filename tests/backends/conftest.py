"""Every place where a row is computed, behind one face: NumPy, C, tensors, Triton, ONNX, the torch
module.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from metacal.gate import Gate, LogitsSource
from metacal.kernels import numpy as definition
from metacal.maps.temperature import TemperatureMap
from metacal.scores import NAMED

try:
    from metacal.kernels import _fused
except ImportError:
    _fused = None
SETS = () if _fused is None else tuple(_fused.instruction_sets())
#: Triton's interpreter runs the fused kernels of tensors on the CPU, if it is asked for before
#: Triton is imported: `test_interpreted.py` runs these tests once more in a process of that kind.
TRITON = ("triton",) if os.environ.get("TRITON_INTERPRET") == "1" else ()


class Host:
    """A kernel of arrays."""

    tolerance = 1e-6

    def __init__(self, kernel):
        self.kernel = kernel

    def score(self, name, table):
        function = NAMED[name].kernel.partition(":")[2]
        return (
            getattr(self.kernel, function)(table)
            if function
            else NAMED[name].compute_unrounded(table)
        )

    def softmax(self, table, b):
        out = np.empty(table.shape, dtype=np.float64 if table.dtype == np.float64 else np.float32)
        self.kernel.softmax(table, b, out)
        return out

    def predicted(self, table):
        return self.kernel.predict_classes(table)


class Tensors(Host):
    """The plain kernels of tensors, on the CPU."""

    def __init__(self):
        self.torch = pytest.importorskip("torch")
        from metacal.kernels import torch as kernel

        super().__init__(kernel)

    def score(self, name, table):
        return self.kernel.score_by_formula(
            self.torch.from_numpy(table), NAMED[name].formula_function()
        ).numpy()

    def softmax(self, table, b):
        tensor = self.torch.from_numpy(table)
        out = self.kernel.empty_probabilities(tensor)
        self.kernel.softmax(tensor, b, out)
        return out.numpy()

    def predicted(self, table):
        return super().predicted(self.torch.from_numpy(table)).numpy()


class Module:
    """The exported torch module."""

    tolerance = 1e-6

    def __init__(self):
        self.torch = pytest.importorskip("torch")

    def score(self, name, table):
        from metacal.export.torch import to_module

        gate = Gate.from_source(LogitsSource(TemperatureMap(1.0), np.arange(table.shape[1]), name))
        return to_module(gate)(self.torch.from_numpy(table))[1].numpy()

    def softmax(self, table, b):
        from metacal.export.torch.maps import MapModule

        return MapModule(TemperatureMap(b))(self.torch.from_numpy(table).double()).numpy()

    def predicted(self, table):
        from metacal.formulas.torch import TORCH

        return TORCH.argmax(self.torch.from_numpy(table))[:, 0].numpy()


class Onnx:
    """Nodes in onnxruntime."""

    #: What an exported file is checked for before it is written: b·x is rounded to the table's
    #: precision there.
    tolerance = 1e-5

    def __init__(self):
        pytest.importorskip("onnx")
        self.runtime = pytest.importorskip("onnxruntime")

    def run(self, table, write):
        from onnx import helper

        from metacal.export.onnx.graph import ELEMENT_TYPES, Graph

        dtype = "float64" if table.dtype == np.float64 else "float32"
        graph = Graph(17, reserved_names={"logits", "found"})
        kind = write(graph, dtype)
        make = helper.make_tensor_value_info
        inputs = [make("logits", ELEMENT_TYPES[dtype], ["batch", "classes"])]
        body = helper.make_graph(
            graph.nodes, "one", inputs, [make("found", kind, None)], graph.initializers
        )
        model = helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        session = self.runtime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        return session.run(["found"], {"logits": table.astype(dtype)})[0]

    def score(self, name, table):
        from metacal.export.onnx.graph import ELEMENT_TYPES
        from metacal.export.onnx.operations import OnnxOperations
        from metacal.export.onnx.scores import append_double_precision_scores

        def write(graph, dtype):
            xp = OnnxOperations(graph, dtype, table.shape[1])
            graph.rename_value(
                append_double_precision_scores(xp, xp.graph_value("logits"), name).name, "found"
            )
            return ELEMENT_TYPES["float64"]

        return self.run(table, write)

    def softmax(self, table, b):
        from metacal.export.onnx.graph import ELEMENT_TYPES
        from metacal.export.onnx.maps import append_map
        from metacal.export.onnx.operations import OnnxOperations

        def write(graph, dtype):
            xp = OnnxOperations(graph, dtype, table.shape[1])
            graph.rename_value(
                append_map(xp, TemperatureMap(b), xp.graph_value("logits")).name, "found"
            )
            return ELEMENT_TYPES[dtype]

        return self.run(table, write)

    def predicted(self, table):
        from onnx import TensorProto

        from metacal.export.onnx.operations import OnnxOperations

        def write(graph, dtype):
            xp = OnnxOperations(graph, dtype)
            graph.rename_value(xp.argmax(xp.graph_value("logits")).name, "found")
            return TensorProto.INT64

        return self.run(table, write)[:, 0]


@pytest.fixture(params=["numpy", *SETS, "tensors", *TRITON, "torch-module", "onnx"])
def backend(request):
    """Each place in turn."""
    if request.param in SETS:
        from metacal.kernels import fused

        _fused.use(request.param)
        yield Host(fused)
        _fused.use(SETS[0])
        return
    if request.param == "triton":
        yield Tensors()
        from metacal.kernels import triton as fused_kernels

        assert fused_kernels.is_available, "the fused kernels gave up"
        return
    other = {"tensors": Tensors, "torch-module": Module, "onnx": Onnx}
    yield other[request.param]() if request.param in other else Host(definition)
