# mypy: allow-subclassing-any, allow-untyped-calls
"""Fitted maps as torch modules.

The fitted numbers are buffers. They have no gradients and stay in float64, whatever the dtype of
the surrounding model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from metacal.errors import ExportError
from metacal.formulas.torch import TORCH
from metacal.maps.map import Map
from metacal.maps.methods import METHODS


class FixedDtypeModule(nn.Module):
    """Module whose buffers follow a change of device, but not a change of dtype.

    Otherwise `model.half()` or `model.to(torch.bfloat16)` would round a certified threshold
    together with the weights.

    Examples
    --------
    >>> module = FixedDtypeModule()
    >>> module.register_numbers(threshold=0.1)
    >>> module.half().threshold.dtype
    torch.float64
    """

    def register_numbers(self, **arrays: Any) -> None:
        """Register numbers as buffers: integers as int64, all others as float64."""
        for name, value in arrays.items():
            # The copy is writable, unlike the arrays of fitted maps.
            array = np.array(value)
            dtype = np.int64 if array.dtype.kind in "iu" else np.float64
            self.register_buffer(name, torch.from_numpy(array.astype(dtype)))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the buffers to the device of `fn`, and ignore its dtype."""

        def move(buffer: Tensor) -> Tensor:
            device = fn(torch.zeros(0, device=buffer.device)).device
            dtype = working_dtype(device) if buffer.is_floating_point() else buffer.dtype
            return buffer.to(device=device, dtype=dtype)

        return super()._apply(move, recurse)


def working_dtype(device: torch.device) -> torch.dtype:
    """Return the floating-point dtype of computations on a device.

    It is float64, so that decisions do not depend on the dtype of the logits, and float32 on a
    device without float64.

    Examples
    --------
    >>> working_dtype(torch.device("cpu")), working_dtype(torch.device("mps"))
    (torch.float64, torch.float32)
    """
    if device.type == "mps":
        return torch.float32
    return torch.float64


def match_table(buffer: Tensor, table: Tensor) -> Tensor:
    """Return a buffer on the device of a table and, if it holds floats, in its dtype."""
    dtype = table.dtype if buffer.is_floating_point() else buffer.dtype
    if buffer.device == table.device and buffer.dtype == dtype:
        return buffer
    return buffer.to(device=table.device, dtype=dtype)


class MapModule(FixedDtypeModule):
    """Module of a fitted map.

    Numbers are buffers with the names of the map's fields, and nested maps are submodules.

    Parameters
    ----------
    fitted : Map
        Fitted map.

    Examples
    --------
    >>> from metacal.maps.temperature import TemperatureMap
    >>> module = MapModule(TemperatureMap(2.0))
    >>> module(torch.tensor([[1.0, 0.0]], dtype=torch.float64))
    tensor([[0.8808, 0.1192]], dtype=torch.float64)
    >>> module, dict(module.named_buffers())
    (TemperatureMap(), {'inverse_temperature': tensor(2., dtype=torch.float64)})
    """

    def __init__(self, fitted_map: Map) -> None:
        super().__init__()
        if fitted_map.formula is None:
            calibrator = getattr(fitted_map, "estimator", fitted_map)
            supported_names = ", ".join(method.public_name for method in METHODS.values())
            raise ExportError(
                f"The base calibrator {type(calibrator).__name__} is not one of metacal's"
                f" calibrators, so it cannot be exported. Use one of {supported_names}."
            )
        self.kind = type(fitted_map).__name__
        self.formula = fitted_map.formula
        field_names = [field.name for field in fields(fitted_map)]  # type: ignore[arg-type]
        for name in (*field_names, *fitted_map.derived):
            self._register_field(name, getattr(fitted_map, name))

    def _register_field(self, name: str, value: Any) -> None:
        """Store a field of the map as a submodule, buffer or attribute."""
        if isinstance(value, Map):
            self.add_module(name, MapModule(value))
        elif isinstance(value, tuple) and isinstance(value[0], Map):
            self.add_module(name, nn.ModuleList(map(MapModule, value)))
        elif isinstance(value, float | tuple | np.ndarray):
            self.register_numbers(**{name: value})
        else:
            setattr(self, name, value)

    def forward(self, table: Tensor) -> Tensor:
        """Compute the probabilities of each row of logits."""
        return self.formula(TORCH, _FieldsOnDevice(self, table), table)

    def _get_name(self) -> str:
        return self.kind


class _FieldsOnDevice:
    """View of a map module whose numbers have the device and dtype of a table.

    Parameters
    ----------
    module : MapModule
        Module of a fitted map.

    table : Tensor
        Table of logits.
    """

    def __init__(self, module: MapModule, table: Tensor) -> None:
        self.module = module
        self.table = table

    def __getattr__(self, name: str) -> Any:
        field_value = getattr(self.module, name)
        if isinstance(field_value, Tensor):
            return match_table(field_value, self.table)
        return field_value
