# mypy: allow-subclassing-any, allow-untyped-calls
"""A fitted map as a module: its formula, with the fitted numbers as buffers.

Buffers have no gradients and stay in float64, whatever the model around is turned to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from metacal.errors import InputError
from metacal.formulas.torch import TORCH
from metacal.maps.map import Map
from metacal.maps.methods import METHODS


class Fixed(nn.Module):
    """A module whose buffers follow a change of device, never one of dtype.

    `model.half()` or `model.to(torch.bfloat16)` would otherwise round a certified threshold along
    with the weights.

    Examples
    --------
    >>> module = Fixed()
    >>> module.keep(threshold=0.1)
    >>> module.half().threshold.dtype
    torch.float64
    """

    def keep(self, **arrays: Any) -> None:
        """Register numbers as buffers: floats in float64, whole numbers in int64."""
        for name, value in arrays.items():
            array = np.array(value)  # a copy: fitted maps are read-only
            self.register_buffer(
                name,
                torch.from_numpy(array.astype(np.int64 if array.dtype.kind in "iu" else float)),
            )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        def moved(buffer: Tensor) -> Tensor:
            device = fn(torch.zeros(0, device=buffer.device)).device  # where to, and nothing else
            return buffer.to(
                device=device,
                dtype=work_type(device) if buffer.is_floating_point() else buffer.dtype,
            )

        return super()._apply(moved, recurse)


def work_type(device: torch.device) -> torch.dtype:
    """float64, so that a decision does not depend on how the logits were stored; float32 where a
    device has no other.

    Examples
    --------
    >>> work_type(torch.device("cpu")), work_type(torch.device("mps"))
    (torch.float64, torch.float32)
    """
    return torch.float32 if device.type == "mps" else torch.float64


def beside(buffer: Tensor, table: Tensor) -> Tensor:
    """The buffer on the table's device and, where it holds floats, in the table's dtype."""
    dtype = table.dtype if buffer.is_floating_point() else buffer.dtype
    if buffer.device == table.device and buffer.dtype == dtype:
        return buffer
    return buffer.to(device=table.device, dtype=dtype)


class MapModule(Fixed):
    """A map's formula in torch. Numbers are buffers under the names of the map's fields, parts are
    modules.

    Examples
    --------
    >>> from metacal.maps.temperature import TemperatureMap
    >>> module = MapModule(TemperatureMap(2.0))
    >>> module(torch.tensor([[1.0, 0.0]], dtype=torch.float64))
    tensor([[0.8808, 0.1192]], dtype=torch.float64)
    >>> module, dict(module.named_buffers())
    (TemperatureMap(), {'inverse_temperature': tensor(2., dtype=torch.float64)})
    """

    def __init__(self, fitted: Map) -> None:
        super().__init__()
        if fitted.formula is None:
            what = type(getattr(fitted, "estimator", fitted)).__name__
            raise InputError(
                f"the base calibrator {what} is not one of metacal's own and cannot be exported;"
                " use one of metacal's calibrators:"
                f" {', '.join(row.public_name for row in METHODS.values())}."
            )
        self.kind, self.formula = type(fitted).__name__, fitted.formula
        for name in (*(field.name for field in fields(fitted)), *fitted.derived):  # type: ignore[arg-type]
            self._hold(name, getattr(fitted, name))

    def _hold(self, name: str, value: Any) -> None:
        several = isinstance(value, tuple) and isinstance(value[0], Map)
        if several or isinstance(value, Map):
            parts = nn.ModuleList(map(MapModule, value)) if several else MapModule(value)
            self.add_module(name, parts)
        elif isinstance(value, float | tuple | np.ndarray):
            self.keep(**{name: value})
        else:
            setattr(self, name, value)

    def forward(self, table: Tensor) -> Tensor:
        """Probabilities of each row."""
        return self.formula(TORCH, _Beside(self, table), table)

    def _get_name(self) -> str:
        return self.kind


class _Beside:
    """The fitted numbers where a table lies, in its precision."""

    def __init__(self, module: MapModule, table: Tensor) -> None:
        self.module, self.table = module, table

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.module, name)
        return beside(found, self.table) if isinstance(found, Tensor) else found
