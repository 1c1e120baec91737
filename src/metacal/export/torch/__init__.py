"""Export of fitted gates to torch modules.

`to_module` builds the module of a gate. `CalibratedModule` combines a classifier with its gate.
"""

from __future__ import annotations

from metacal.errors import needs_extra

with needs_extra("metacal.export.torch", "torch"):
    import torch as _torch  # noqa: F401

from metacal.export.torch.gate import CalibratedModule, Gate, to_module

__all__ = ["CalibratedModule", "Gate", "to_module"]
