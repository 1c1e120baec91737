"""ONNX: the fitted map and its gate as plain operators, alone or behind a classifier that is served already.

    to_onnx(cal)                              the gate as a model: logits -> probs, score, accept
    attach("model.onnx", cal)                 the classifier with the gate behind its logits
    save(cal, "gate.onnx")                    the same two, checked in onnxruntime and written whole or not at all
    save_attached("model.onnx", cal, "served.onnx")
    save_cascade(cascade, "cascade.onnx")     two models' logits -> probs, answered_by; small_gate(cascade): its half

The decision is Python's on every row: see `scores` for the precision it is taken in and `threshold` for the number it
is compared with. NaN is never accepted.
"""

from __future__ import annotations

from metacal.export.onnx.cascade import cascade_to_onnx, save_cascade, small_gate
from metacal.export.onnx.model import Saved, attach, save, save_attached, to_onnx

__all__ = ["Saved", "attach", "cascade_to_onnx", "save", "save_attached", "save_cascade", "small_gate", "to_onnx"]
