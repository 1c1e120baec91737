"""The fitted gate as a torch module, alone (`to_module`) or behind a classifier
(`CalibratedModule`).
"""

from __future__ import annotations

from metacal.errors import needs_extra

with needs_extra("metacal.export.torch", "torch"):
    import torch as _torch  # noqa: F401

from metacal.export.torch.gate import CalibratedModule, Gate, to_module

__all__ = ["CalibratedModule", "Gate", "to_module"]
