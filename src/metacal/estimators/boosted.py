"""BoostedRanker: a learned ranking score of scikit-learn's trees. The other rankers are in `metacal.scores.learned`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier

from metacal.formulas import Flags, Float
from metacal.scores.learned import Ranker, feature_grid

#: How much the doubt of a row counts beside the score of its region, which trees make constant.
TIE_BREAK = 1e-4


@dataclass(eq=False)
class BoostedRanker(Ranker):
    """The log-odds of being wrong, by gradient-boosted trees (scikit-learn's HistGradientBoostingClassifier).

    The score never falls where entropy, doubt or a gap rises with all else equal. Trees give whole regions one score;
    within a region doubt decides, by a hair, because ties are accepted or rejected together.

    Parameters
    ----------
    n_trees, max_leaves, learning_rate : int, int, float
        The size of the model; small, because errors are few.
    random_state : int
        Passed to scikit-learn.
    n_top, input, classes
        See `Ranker`.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> (train_x, train_y), (rest_x, rest_y) = mc.ranking.split_rows(data.logits, data.labels, share=0.2)
    >>> score = BoostedRanker(n_trees=20).fit(train_x, train_y)(rest_x)
    >>> bool(mc.metrics.auroc(score, rest_x.argmax(axis=1) == rest_y) > 0.9)
    True
    """

    n_trees: int = 50
    max_leaves: int = 3
    learning_rate: float = 0.1
    random_state: int = 0

    def _learn(self, features: Float, wrong: Flags) -> None:
        model = HistGradientBoostingClassifier(
            max_iter=self.n_trees,
            max_leaf_nodes=self.max_leaves,
            learning_rate=self.learning_rate,
            min_samples_leaf=60,
            l2_regularization=10.0,
            monotonic_cst=[1] * (features.shape[1] - 2) + [0, 0],
            early_stopping=False,
            random_state=self.random_state,
        )
        self.model_ = model.fit(features, wrong)

    def _features(self, block: NDArray[Any]) -> Float:
        """The features on their grids: trees cut between values, and must not cut between equal ones."""
        features = super()._features(block)
        for column in range(features.shape[1]):
            features[:, column] = feature_grid(column).rounded(features[:, column])
        return features

    def _score(self, features: Float) -> Float:
        # Column 2 is log(1 - max p), standardised: strictly increasing in doubt.
        return np.asarray(self.model_.decision_function(features) + TIE_BREAK * features[:, 2])
