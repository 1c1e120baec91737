# mypy: allow-subclassing-any, allow-untyped-calls
"""One-vs-rest: a curve of each class's own probability (isotonic, bins), and what such answers amount to."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metacal.export.torch.fixed import Fixed, beside, possible, softmax
from metacal.maps.curves.onevsrest import PiecewiseMap

#: How far a probability p differs between two machines, relative to it: this times |log p| (the exponent is rounded
#: before it is raised) and a few more (sum and division; sums of many classes are rounded more often).
_ROUNDING = 2.0**-53
_FEW = 3.0


class Curves(Fixed):
    """C curves side by side, each piecewise linear or a step function with right-closed pieces.

    The piece of a point is found by binary search in gathers and comparisons, which every exporter knows; knots are
    padded with +inf to a power of two.

    Examples
    --------
    >>> halves = Curves(np.array([0.0, 0.5]), np.array([0.2, 0.9]), np.array([0, 2]), "step")
    >>> halves(torch.tensor([[0.5], [0.6]], dtype=torch.float64))
    tensor([[0.2000], [0.9000]], dtype=torch.float64)
    """

    def __init__(
        self, knots: NDArray[Any], values: NDArray[Any], offsets: NDArray[Any], interpolation: str, few: float = _FEW
    ) -> None:
        super().__init__()
        self.stepped = interpolation == "step"
        sizes = np.diff(offsets)
        self.levels = int(sizes.max()).bit_length()
        width = 2**self.levels
        table = np.full((len(sizes), width), np.inf)
        heights = np.zeros((len(sizes), width))
        for k, size in enumerate(sizes):
            own = slice(offsets[k], offsets[k + 1])
            table[k, :size] = _lifted(knots[own], few) if self.stepped else knots[own]
            heights[k, :size] = values[own]
            heights[k, size:] = values[own][-1]
        self.keep(knots=table.ravel(), values=heights.ravel(), starts=width * np.arange(len(sizes)))

    def forward(self, at: Tensor) -> Tensor:
        """The value of curve k at each entry of column k; a single curve serves all columns."""
        knots, values = beside(self.knots, at), beside(self.values, at)
        piece = beside(self.starts, at).unsqueeze(0) + torch.zeros_like(at, dtype=torch.int64)
        for level in range(self.levels - 1, -1, -1):
            # Pieces are entered past a knot other than the first: piece + 2^level is entered where that knot < at.
            beyond = knots[piece + 2**level] < at
            piece = piece + beyond.to(torch.int64) * 2**level
        if self.stepped:
            return values[piece]
        low, high = knots[piece], knots[piece + 1]
        share = torch.clamp((at - low) / (high - low), min=0.0, max=1.0)
        return values[piece] + share * (values[piece + 1] - values[piece])


def _lifted(knots: NDArray[Any], few: float) -> NDArray[Any]:
    """Knots of a step curve, a hair higher.

    Such a knot may be a calibration row's own probability, and that row lies on its left: it stays there whatever the
    rounding of another machine. Rows further to the right than rounding reaches are not passed over.
    """
    size = -np.log(np.maximum(knots, np.finfo(np.float64).tiny))
    return np.asarray(knots * (1.0 + _ROUNDING * (few + size)))


def questions(table: Tensor, n_questions: int) -> Tensor:
    """The columns that are asked about: all, or the second of two classes, where there is one question."""
    return table[:, 1:] if n_questions == 1 else table


def combined(table: Tensor, answers: Tensor, rest: Tensor | None, fallback: Tensor) -> Tensor:
    """The distribution that the answers amount to; `rest` is 1 - answers of two classes.

    Masked classes get zero. A row without a positive answer gets `fallback`.
    """
    inside = possible(table)
    if rest is not None:
        answers = torch.cat([rest, answers], dim=1)
        # Of a masked pair the other class is certain.
        answers = torch.where(inside.all(dim=1, keepdim=True), answers, torch.ones_like(answers))
    answers = torch.where(inside, answers, torch.zeros_like(answers))
    total = answers.sum(dim=1, keepdim=True)
    lost = total <= 0.0
    return torch.where(lost, fallback, answers / torch.where(lost, torch.ones_like(total), total))


class Piecewise(Fixed):
    """q_k = curve_k(p_k) with p = softmax(b·x), then q / Σ q, and p itself where every q is zero."""

    def __init__(self, fitted: PiecewiseMap) -> None:
        super().__init__()
        self.n_questions = len(fitted.offsets) - 1
        few = _FEW + float(np.log2(1 + self.n_questions))
        self.curves = Curves(fitted.knots, fitted.values, fitted.offsets, fitted.interpolation, few)
        self.keep(inverse_temperature=fitted.inverse_temperature)

    def forward(self, table: Tensor) -> Tensor:
        """Probabilities of each row."""
        plain = softmax(table, beside(self.inverse_temperature, table))
        answers = self.curves(questions(plain, self.n_questions))
        return combined(table, answers, 1.0 - answers if self.n_questions == 1 else None, plain)
