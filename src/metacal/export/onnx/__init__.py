"""ONNX: the fitted map and its gate as plain operators, alone or behind a classifier that is served
already.

    to_onnx(cal)                              the gate as a model: logits -> probs, score, accept
    attach("model.onnx", cal)                 the classifier with the gate behind its logits
    save(cal, "gate.onnx")                    the same two, checked in onnxruntime and written whole
    or not at all save_attached("model.onnx", cal, "served.onnx")

A gate on scores takes `scores`, a cascade `logits_small` and `logits_large`. The decision is
Python's on every row: see `scores` for the precision it is taken in and `threshold` for the number
it is compared with. NaN is never accepted.
"""

from __future__ import annotations

from metacal.export.onnx.model import Saved, attach, save, save_attached, to_onnx

__all__ = ["Saved", "attach", "save", "save_attached", "to_onnx"]
