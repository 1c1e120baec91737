# mypy: allow-subclassing-any, allow-untyped-calls
"""A fitted map as a module: its formula, with the fitted numbers as buffers."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
from torch import Tensor, nn

from metacal.errors import InputError
from metacal.export.torch.fixed import Fixed, beside
from metacal.formulas.torch import TORCH
from metacal.maps.map import Map
from metacal.maps.methods import METHODS


class MapModule(Fixed):
    """A map's formula in torch. Numbers are buffers under the names of the map's fields, parts are modules.

    Examples
    --------
    >>> import torch
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
                f"the base calibrator {what} is not one of metacal's own and cannot be exported; use one of metacal's "
                f"calibrators: {', '.join(row.public_name for row in METHODS.values())}."
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
        found: Tensor = self.formula(TORCH, _Beside(self, table), table)
        return found

    def _get_name(self) -> str:
        return self.kind


class _Beside:
    """The fitted numbers where a table lies, in its precision."""

    def __init__(self, module: MapModule, table: Tensor) -> None:
        self.module, self.table = module, table

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.module, name)
        return beside(found, self.table) if isinstance(found, Tensor) else found
