# mypy: allow-subclassing-any, allow-untyped-calls
"""The score that boosted trees have learned, as a module: all trees walked side by side."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from metacal.estimators.boosted import TIE_BREAK, BoostedRanker
from metacal.export.torch.maps import beside
from metacal.export.torch.scores import RankerScore
from metacal.scores.learned import Ranker, feature_grid


class BoostedScore(RankerScore):
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
        return beside(self.start, features) + value[at].sum(dim=1) + TIE_BREAK * features[:, 2]


def _settled_cut(ranker: Ranker, column: int, cut: float) -> float:
    """Where a tree cuts a standardised feature, moved into the middle between two values that the feature can have.

    Python's features lie on a grid, those of a module do not: as with a threshold, the middle decides for both.
    """
    grid, mean, scale = feature_grid(column), float(ranker.means_[column]), float(ranker.scales_[column])
    nearest = float(grid.rounded([cut * scale + mean])[0])
    middle = grid.settled(nearest) if (nearest - mean) / scale <= cut else grid.just_below(nearest)
    return (middle - mean) / scale
