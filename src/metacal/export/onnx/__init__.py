"""Export of fitted gates to ONNX, alone or attached to a classifier.

- `to_onnx(cal)` returns the gate as a model: logits -> probs, score, accept.
- `attach("model.onnx", cal)` returns the classifier with the gate attached to its logits.
- `save(cal, "gate.onnx")` and `save_attached("model.onnx", cal, "served.onnx")` write these models
  atomically, after checking them in onnxruntime.

A gate on given scores has the input `scores`, a cascade the inputs `logits_small` and
`logits_large`. The decision is that of Python for every row, see the module `scores` for the
precision in which it is made. Rows with NaN are never accepted.
"""

from __future__ import annotations

from metacal.export.onnx.model import Saved, attach, save, save_attached, to_onnx

__all__ = ["Saved", "attach", "save", "save_attached", "to_onnx"]
