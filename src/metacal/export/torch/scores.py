# mypy: allow-subclassing-any, allow-untyped-calls
"""The ranking scores as modules: a table of logits in, one number per row out, higher = less sure."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from metacal.errors import InputError
from metacal.export.torch.fixed import Fixed, beside, largest, log1p
from metacal.scores import NAMED, Score, name_of
from metacal.scores.learned import (
    _FARTHEST,
    _LARGEST_GAP,
    _TIE_BREAK,
    BoostedRanker,
    LogisticRanker,
    PairwiseRanker,
    Ranker,
    feature_grid,
)

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


_NAMED = {"entropy": entropy, "max_probability": doubt, "margin": negative_margin, "energy": free_energy}


class NamedScore(Fixed):
    """One of the scores that have a name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, table: Tensor) -> Tensor:
        """One number per row."""
        return _NAMED[self.name](table)

    def extra_repr(self) -> str:
        """The name."""
        return self.name


class _RankerScore(Fixed):
    """The standardised features of `metacal.scores.learned`, for a learned score."""

    def __init__(self, ranker: Ranker) -> None:
        super().__init__()
        self.n_top = min(ranker.n_top, ranker.n_classes_)
        self.keep(means=ranker.means_, scales=ranker.scales_)

    def features(self, table: Tensor) -> Tensor:
        """Entropy, doubt and its logarithm, the gaps to the next logits, the largest logit, log Σ e^x."""
        leading = torch.topk(table, self.n_top, dim=1).values
        gaps = torch.clamp(leading[:, 1:] - leading[:, :1], min=-_LARGEST_GAP)
        mass, moment = tail(table)
        unsure = mass / (1.0 + mass)
        columns = [
            log1p(mass) - moment / (1.0 + mass),
            unsure,
            torch.log(torch.clamp(unsure, min=float(np.exp(-_LARGEST_GAP)))),
        ]
        ends = [leading[:, 0], leading[:, 0] + log1p(mass)]
        table = torch.cat([torch.stack(columns, dim=1), gaps, torch.stack(ends, dim=1)], dim=1)
        standard = (table - beside(self.means, table)) / beside(self.scales, table)
        return torch.clamp(standard, min=-_FARTHEST, max=_FARTHEST)


class LinearScore(_RankerScore):
    """A logistic or pairwise ranker: features · coefficients."""

    def __init__(self, ranker: LogisticRanker | PairwiseRanker) -> None:
        super().__init__(ranker)
        self.keep(coefficients=ranker.coefficients_)

    def forward(self, table: Tensor) -> Tensor:
        """One number per row."""
        features = self.features(table)
        return (features * beside(self.coefficients, features)).sum(dim=1)


class BoostedScore(_RankerScore):
    """A boosted ranker: the sum of what its trees say, a hair of doubt to break ties.

    The trees lie side by side in padded tables; a leaf points at itself, so walking as many steps as the deepest tree
    has levels brings every row to its leaf in every tree.
    """

    def __init__(self, ranker: BoostedRanker) -> None:
        super().__init__(ranker)
        trees = [stage[0].nodes for stage in ranker.model_._predictors]
        self.width = max(len(nodes) for nodes in trees)
        self.depth = int(max(nodes["depth"].max() for nodes in trees))
        shape = (len(trees), self.width)
        feature, child = np.zeros(shape, dtype=np.int64), np.zeros((*shape, 2), dtype=np.int64)
        cut, value = np.zeros(shape), np.zeros(shape)
        for t, nodes in enumerate(trees):
            leaf, here = nodes["is_leaf"].astype(bool), t * self.width + np.arange(len(nodes))
            own = slice(0, len(nodes))
            feature[t, own] = np.where(leaf, 0, nodes["feature_idx"])
            cuts = zip(nodes["feature_idx"], nodes["num_threshold"])
            cut[t, own] = np.where(leaf, np.inf, [_settled_cut(ranker, int(i), float(at)) for i, at in cuts])
            value[t, own] = nodes["value"]
            child[t, own, 0] = np.where(leaf, here, t * self.width + nodes["left"])
            child[t, own, 1] = np.where(leaf, here, t * self.width + nodes["right"])
        self.keep(feature=feature.ravel(), cut=cut.ravel(), value=value.ravel())
        self.keep(left=child[:, :, 0].ravel(), right=child[:, :, 1].ravel())
        self.keep(roots=self.width * np.arange(len(trees)), start=float(ranker.model_._baseline_prediction.ravel()[0]))

    def forward(self, table: Tensor) -> Tensor:
        """One number per row."""
        features = self.features(table)
        left, right, feature = (beside(buffer, features) for buffer in (self.left, self.right, self.feature))
        cut, value = beside(self.cut, features), beside(self.value, features)
        at = beside(self.roots, features).unsqueeze(0) + torch.zeros_like(features[:, :1], dtype=torch.int64)
        for _ in range(self.depth):
            seen = torch.gather(features, 1, feature[at])
            at = torch.where(seen <= cut[at], left[at], right[at])
        return beside(self.start, features) + value[at].sum(dim=1) + _TIE_BREAK * features[:, 2]


def _settled_cut(ranker: Ranker, column: int, cut: float) -> float:
    """Where a tree cuts a standardised feature, moved into the middle between two values that the feature can have.

    Python's features lie on a grid, those of a module do not: as with a threshold, the middle decides for both.
    """
    grid, mean, scale = feature_grid(column), float(ranker.means_[column]), float(ranker.scales_[column])
    nearest = float(grid.rounded([cut * scale + mean])[0])
    middle = grid.settled(nearest) if (nearest - mean) / scale <= cut else grid.just_below(nearest)
    return (middle - mean) / scale


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
    if isinstance(score, LogisticRanker | PairwiseRanker):
        return LinearScore(score)
    if isinstance(score, BoostedRanker):
        return BoostedScore(score)
    names: Any = ", ".join(map(repr, NAMED))
    raise InputError(
        f"the score {name_of(score)!r} is code of your own and cannot be exported; use one of {names}, or a fitted "
        "ranker of metacal.scores.learned."
    )
