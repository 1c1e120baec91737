"""Scorers of calibrated classifiers, for use in searches and cross-validation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import column_or_1d

from metacal.rows import validate
from metacal.rows.arrays import as_plain_array

if TYPE_CHECKING:
    from metacal.estimators.classifier import CalibratedClassifier


@dataclass(frozen=True)
class SelectiveUtility:
    """Scorer for P(accepted and correct) - wrong_cost · P(accepted and incorrect).

    A rejected row counts 0. It is worth accepting a row if its probability of being correct is
    above wrong_cost / (1 + wrong_cost) (Chow 1970).

    Parameters
    ----------
    wrong_cost : float, default=1.0
        Cost of an incorrect prediction, relative to the gain of a correct one.

    Examples
    --------
    >>> SelectiveUtility(wrong_cost=9.0)  # accept if the probability is above 90%
    SelectiveUtility(wrong_cost=9.0)
    """

    wrong_cost: float = 1.0

    def __call__(
        self,
        classifier: CalibratedClassifier,
        X: Any,
        y: Any,
        sample_weight: ArrayLike | None = None,
    ) -> float:
        """Compute the mean utility of the predictions on labelled rows.

        Parameters
        ----------
        classifier : CalibratedClassifier
            Fitted classifier.
        X : array-like
            Features.
        y : array-like of shape (n_rows,)
            Labels.
        sample_weight : array-like of shape (n_rows,) or None, default=None
            Weight of each row.

        Returns
        -------
        float
        """
        accept = classifier.accepts(X)
        # A frame with one column would be compared with every prediction.
        labels = column_or_1d(as_plain_array(y, "labels"))
        is_correct = classifier.predict(X) == labels
        prediction_utilities = np.where(is_correct, 1.0, -float(self.wrong_cost))
        utilities = np.where(accept, prediction_utilities, 0.0)
        weights = validate.check_row_weights(sample_weight, len(utilities))
        return float(np.average(utilities, weights=weights))


def coverage(classifier: CalibratedClassifier, X: Any, y: Any = None) -> float:
    """Return the fraction of accepted rows, to compare gates with the same promise.

    It does not compare different promises, because the loosest promise always has the largest
    coverage.
    """
    return float(classifier.accepts(X).mean())
