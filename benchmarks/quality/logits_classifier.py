# mypy: allow-subclassing-any
"""A classifier whose features are the logits already: what scikit-learn's calibration asks for
around a bare table.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin


class LogitsClassifier(ClassifierMixin, BaseEstimator):
    """`decision_function` is the table itself; of two classes their difference, as scikit-learn has
    it.

    Examples
    --------
    >>> LogitsClassifier(2).fit(np.zeros((2, 2)), np.array([0, 1])).decision_function(np.array([[0.0, 3.0]]))
    array([3.])
    """

    def __init__(self, n_classes: int) -> None:
        self.n_classes = n_classes

    def fit(self, X: NDArray[Any], y: NDArray[Any]) -> Self:
        """Nothing to learn: every class is known."""
        self.classes_ = np.arange(self.n_classes)
        self.n_features_in_ = self.n_classes
        return self

    def decision_function(self, X: NDArray[Any]) -> NDArray[Any]:
        """The logits."""
        return np.asarray(X[:, 1] - X[:, 0] if self.n_classes == 2 else X)

    def predict(self, X: NDArray[Any]) -> NDArray[Any]:
        """The largest."""
        return np.asarray(self.classes_[X.argmax(axis=1)])
