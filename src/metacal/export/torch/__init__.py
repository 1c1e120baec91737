"""The fitted gate as a torch module, alone (`to_module`) or behind a classifier (`CalibratedModule`)."""

from __future__ import annotations

from metacal.errors import MissingExtraError

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise MissingExtraError("metacal.export.torch", "torch") from error

from metacal.export.torch.gate import CalibratedModule, Gate, to_module

__all__ = ["CalibratedModule", "Gate", "to_module"]
