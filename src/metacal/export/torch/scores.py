# mypy: allow-subclassing-any, allow-untyped-calls
"""The ranking scores as modules: a table of logits in, one number per row out, higher = less sure."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from metacal.errors import InputError
from metacal.export.torch.fixed import Fixed, beside, largest, log1p, possible, winner, with_masks
from metacal.scores import NAMED, Score, name_of
from metacal.scores.learned import FARTHEST, LARGEST_GAP, LinearRanker, Ranker
from metacal.scores.registry import LEARNED, learned_of

#: e^d is zero below this in float64, as in `metacal.kernels.numpy`: keeps 0 · (-inf) = NaN out.
_ZERO = -800.0


def tail(table: Tensor) -> tuple[Tensor, Tensor]:
    """S = Σ e^d over all columns but the largest, and Σ e^d d, with d = x - max x."""
    top, column = torch.max(table, dim=1, keepdim=True)
    gaps = torch.clamp(table - top, min=_ZERO)
    weights = torch.exp(gaps).scatter(1, column, 0.0)
    return weights.sum(dim=1), (weights * gaps).sum(dim=1)


def entropy(table: Tensor) -> Tensor:
    """log1p(S) - Σ e^d d / (1 + S)."""
    mass, moment = tail(table)
    return log1p(mass) - moment / (1.0 + mass)


def doubt(table: Tensor) -> Tensor:
    """1 - max p = S / (1 + S)."""
    mass, _ = tail(table)
    return mass / (1.0 + mass)


def negative_margin(table: Tensor) -> Tensor:
    """Second largest logit minus the largest; the most negative float where every other class is masked."""
    top = torch.topk(table, 2, dim=1).values
    return torch.clamp(top[:, 1] - top[:, 0], min=-torch.finfo(table.dtype).max)


def free_energy(table: Tensor) -> Tensor:
    """-logsumexp(x)."""
    mass, _ = tail(table)
    return -(largest(table)[:, 0] + log1p(mass))


def rivals_norm(table: Tensor) -> Tensor:
    """‖(z_j)_{j≠top}‖_8 / z_top with z = x - mean x over the possible classes, finite masks read as -inf."""
    table = with_masks(table)
    inside = possible(table)
    zero, one = torch.zeros_like(table), torch.ones_like(table[:, :1])
    gaps = torch.where(inside, torch.clamp(largest(table) - table, max=torch.finfo(table.dtype).max), zero)
    longest = largest(gaps)
    gaps = gaps / torch.where(longest == 0.0, one, longest)
    mean = gaps.sum(dim=1, keepdim=True) / inside.to(table.dtype).sum(dim=1, keepdim=True)
    shares = torch.where(inside, 1.0 - gaps / torch.where(longest == 0.0, one, mean), zero).scatter(
        1, winner(table), 0.0
    )
    shares = shares * shares
    shares = shares * shares
    shares = shares * shares
    return torch.sqrt(torch.sqrt(torch.sqrt(shares.sum(dim=1))))


class NamedScore(Fixed):
    """One of the scores that have a name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.compute = NAMED[name].torch_function()

    def forward(self, table: Tensor) -> Tensor:
        """One number per row."""
        return self.compute(table)

    def extra_repr(self) -> str:
        """The name."""
        return self.name


class RankerScore(Fixed):
    """The standardised features of `metacal.scores.learned`, for a learned score."""

    def __init__(self, ranker: Ranker) -> None:
        super().__init__()
        self.n_top = min(ranker.n_top, ranker.n_classes_)
        self.keep(means=ranker.means_, scales=ranker.scales_)

    def features(self, table: Tensor) -> Tensor:
        """Entropy, doubt and its logarithm, the gaps to the next logits, the largest logit, log Σ e^x."""
        leading = torch.topk(table, self.n_top, dim=1).values
        gaps = torch.clamp(leading[:, 1:] - leading[:, :1], min=-LARGEST_GAP)
        mass, moment = tail(table)
        unsure = mass / (1.0 + mass)
        columns = [
            log1p(mass) - moment / (1.0 + mass),
            unsure,
            torch.log(torch.clamp(unsure, min=float(np.exp(-LARGEST_GAP)))),
        ]
        ends = [leading[:, 0], leading[:, 0] + log1p(mass)]
        table = torch.cat([torch.stack(columns, dim=1), gaps, torch.stack(ends, dim=1)], dim=1)
        standard = (table - beside(self.means, table)) / beside(self.scales, table)
        return torch.clamp(standard, min=-FARTHEST, max=FARTHEST)


class LinearScore(RankerScore):
    """A logistic or pairwise ranker: features · coefficients."""

    def __init__(self, ranker: LinearRanker) -> None:
        super().__init__(ranker)
        self.keep(coefficients=ranker.coefficients_)

    def forward(self, table: Tensor) -> Tensor:
        """One number per row."""
        features = self.features(table)
        return (features * beside(self.coefficients, features)).sum(dim=1)


def score_module(score: str | Score) -> Fixed:
    """The module that computes a score: one with a name, or one of metacal's fitted rankers.

    Examples
    --------
    >>> score_module("margin")(torch.tensor([[3.0, 1.0, 0.0]]))
    tensor([-2.])
    >>> score_module(len)
    Traceback (most recent call last):
    metacal.errors.InputError: the score 'len' is code of your own and cannot be exported; use one of 'entropy', ...
    """
    if isinstance(score, str) and score in NAMED:
        return NamedScore(score)
    if (learned := learned_of(type(score))) is not None:
        module: Fixed = learned.torch_module()(score)
        return module
    names = ", ".join(map(repr, NAMED))
    raise InputError(
        f"the score {name_of(score)!r} is code of your own and cannot be exported; use one of {names}, or a fitted "
        f"{', '.join(LEARNED)}."
    )
