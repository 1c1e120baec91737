# mypy: allow-subclassing-any, allow-untyped-calls
"""Logistic curves of each class's log-probabilities: what Platt scaling and beta calibration share."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from metacal.export.torch.fixed import Fixed, beside, log1p, softmax
from metacal.export.torch.maps.curves.onevsrest import combined, questions
from metacal.maps.curves.onevsrest import FARTHEST


class Logistic(Fixed):
    """q_k = σ(a_k log p_k - b_k log(1 - p_k) + c_k), then q / Σ q."""

    def __init__(self, a: NDArray[Any], b: NDArray[Any], intercept: NDArray[Any]) -> None:
        super().__init__()
        self.n_questions = len(intercept)
        self.keep(a=a, b=b, intercept=intercept)

    def forward(self, table: Tensor) -> Tensor:
        """Probabilities of each row."""
        a, b, intercept = (beside(buffer, table) for buffer in (self.a, self.b, self.intercept))
        logs, minus_log_rest = self._logarithms(table)
        z = a * logs + b * minus_log_rest + intercept
        rest = torch.sigmoid(-z) if self.n_questions == 1 else None
        return combined(table, torch.sigmoid(z), rest, softmax(table))

    def _logarithms(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """log p and -log(1 - p) of each question, without cancellation, at most 700 in size."""
        top, column = torch.max(table, dim=1, keepdim=True)
        gaps = table - top
        powers = torch.exp(gaps).scatter(1, column, 0.0)
        mass = powers.sum(dim=1, keepdim=True)
        logs = torch.clamp(gaps - log1p(mass), min=-FARTHEST)
        others = -log1p(-powers / (1.0 + mass))
        own = torch.clamp(log1p(mass) - torch.log(mass), max=FARTHEST)
        return questions(logs, self.n_questions), questions(others.scatter(1, column, own), self.n_questions)
