# mypy: allow-subclassing-any, allow-untyped-calls
"""The ranking scores as modules: a table of logits in, one number per row out, higher = less sure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from metacal.errors import InputError
from metacal.export.torch.maps import Fixed, beside
from metacal.formulas import rowwise
from metacal.formulas.logits import read_masks
from metacal.formulas.torch import TORCH
from metacal.scores import NAMED, Score, name_of
from metacal.scores.learned import FARTHEST, LARGEST_GAP, LinearRanker, Ranker, feature_grid
from metacal.scores.registry import LEARNED, learned_of

if TYPE_CHECKING:
    from metacal.estimators.boosted import BoostedRanker


class NamedScore(Fixed):
    """One of the scores that have a name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.formula, self.reads_masks = NAMED[name].formula_function(), NAMED[name].reads_masks

    def forward(self, table: Tensor) -> Tensor:
        """One number per row."""
        return self.formula(TORCH, read_masks(TORCH, table) if self.reads_masks else table)[:, 0]

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
        unsure = rowwise.doubt(TORCH, table)
        table = torch.cat(
            [
                rowwise.entropy(TORCH, table),
                unsure,
                torch.log(torch.clamp(unsure, min=float(np.exp(-LARGEST_GAP)))),
                gaps,
                leading[:, :1],
                -rowwise.free_energy(TORCH, table),
            ],
            dim=1,
        )
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
        return learned.torch_module()(score)
    names = ", ".join(map(repr, NAMED))
    raise InputError(
        f"the score {name_of(score)!r} is code of your own and cannot be exported; use one of {names}, or a fitted "
        f"{', '.join(LEARNED)}."
    )


class BoostedScore(RankerScore):
    """A boosted ranker: the sum of what its trees say, a hair of doubt to break ties.

    The trees lie side by side in padded tables; a leaf points at itself, so walking as many steps as the deepest tree
    has levels brings every row to its leaf in every tree.
    """

    def __init__(self, ranker: BoostedRanker) -> None:
        from metacal.estimators.boosted import TIE_BREAK

        super().__init__(ranker)
        self.tie_break = TIE_BREAK
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
        return beside(self.start, features) + value[at].sum(dim=1) + self.tie_break * features[:, 2]


def _settled_cut(ranker: Ranker, column: int, cut: float) -> float:
    """Where a tree cuts a standardised feature, moved into the middle between two values that the feature can have.

    Python's features lie on a grid, those of a module do not: as with a threshold, the middle decides for both.
    """
    grid, mean, scale = feature_grid(column), float(ranker.means_[column]), float(ranker.scales_[column])
    nearest = float(grid.rounded([cut * scale + mean])[0])
    middle = grid.settled(nearest) if (nearest - mean) / scale <= cut else grid.just_below(nearest)
    return (middle - mean) / scale
