"""Importance weights of calibration rows under a distribution shift.

The *source* is the distribution of the calibration rows. The *target* is the distribution of future
rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from metacal.certificates.design import Weights
from metacal.errors import ClassMismatchError, WeightsError
from metacal.formulas import Codes, Float
from metacal.rows import validate
from metacal.rows.arrays import check_row_weights


@dataclass(frozen=True, eq=False)
class Importance:
    """Weights of the calibration rows if future rows have another distribution.

    Attributes
    ----------
    weights : array-like of shape (n_rows,)
        Ratio of the target density to the source density for each row, up to a common factor.

    largest : float, optional
        Largest weight that any row can have. By default, the largest weight of these rows is used.
        Future rows may weigh more, so the promise is then called approximate.

    estimated : bool, default=False
        Whether the weights are estimates. The promise is then called approximate.

    Examples
    --------
    >>> Importance([1.0, 3.0], largest=4.0).compute_keep_probabilities(2)
    array([0.25, 0.75])
    """

    weights: ArrayLike
    largest: float | None = None
    estimated: bool = False

    @classmethod
    def from_importance_argument(cls, importance: Importance | ArrayLike) -> Importance:
        """Convert the `importance` argument to an `Importance` object."""
        if isinstance(importance, Importance):
            return importance
        return cls(importance)

    @classmethod
    def of_labels(
        cls,
        labels: ArrayLike,
        target: Mapping[Any, float],
        source: Mapping[Any, float] | None = None,
    ) -> Self:
        """Compute the weights of a known label shift.

        The rows of a class are assumed to be alike in both distributions: p(x | y) does not change.

        Parameters
        ----------
        labels : array-like of shape (n_rows,)
            Label of each calibration row.

        target : mapping from label to float
            Share of each class among future rows.

        source : mapping from label to float, optional
            Share of each class in the source of the calibration rows. By default, the shares of the
            labels are used, and the weights are estimates.

        Returns
        -------
        Importance

        Raises
        ------
        InputError
            If a class has no share or an invalid one, or if no row has a class of the target.

        Examples
        --------
        >>> source, target = {"cat": 0.5, "dog": 0.5}, {"cat": 0.8, "dog": 0.2}
        >>> importance = Importance.of_labels(["cat", "dog", "dog"], target, source)
        >>> np.asarray(importance.weights).tolist(), importance.estimated
        ([1.6, 0.4, 0.4], False)
        """
        row_labels = np.asarray(labels)
        sorted_classes, class_codes, n_rows_by_class = np.unique(
            row_labels, return_inverse=True, return_counts=True
        )
        observed_classes = sorted_classes.tolist()
        weights_are_estimated = source is None
        if source is None:
            observed_shares = n_rows_by_class / len(row_labels)
            source = dict(zip(observed_classes, observed_shares.tolist()))

        class_weights = np.array(
            [
                _compute_class_weight(class_name, target_shares=target, source_shares=source)
                for class_name in observed_classes
            ]
        )
        _check_target_classes_occur(target, observed_classes=observed_classes)
        return cls(
            weights=class_weights[class_codes.reshape(-1)],
            largest=float(class_weights.max()),
            estimated=weights_are_estimated,
        )

    @classmethod
    def from_unlabelled(
        cls,
        logits: ArrayLike,
        labels: ArrayLike,
        new_logits: ArrayLike,
        *,
        classes: Sequence[Any] | None = None,
        input: str = "logits",
    ) -> Self:
        """Estimate the weights of a label shift from unlabelled rows of the target.

        Black box shift estimation (Lipton et al. 2018): let C_ij be the share of calibration rows
        that are of class j and predicted as i, and μ_i the share of new rows predicted as i. The
        weights w solve C w = μ by non-negative least squares. They are estimates, so the certificate
        is called approximate.

        Parameters
        ----------
        logits : array-like of shape (n_rows, n_classes)
            Logits of the calibration rows.

        labels : array-like of shape (n_rows,)
            Labels of the calibration rows.

        new_logits : array-like of shape (n_new_rows, n_classes)
            Logits of unlabelled rows of the target.

        classes : sequence, optional
            Class names in the order of the columns.

        input : str, default="logits"
            Meaning of the columns, as in `MetaCal`.

        Returns
        -------
        Importance

        Raises
        ------
        InputError
            If the tables have different numbers of columns, or every weight is 0.

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> def draw(n, share):
        ...     y = (rng.random(n) < share).astype(int)
        ...     return np.eye(2)[y] * 3.0 + rng.normal(size=(n, 2)), y
        >>> logits, labels = draw(4000, 0.5)
        >>> importance = Importance.from_unlabelled(logits, labels, draw(4000, 0.8)[0])
        >>> weights = importance.weights
        >>> round(float(weights[labels == 1].mean() / weights[labels == 0].mean()))
        4
        """
        # `scipy.optimize` is imported here, because it is slow to import and rarely needed.
        from scipy.optimize import nnls

        calibration_table = validate.read_logits(logits, input)
        new_table = validate.read_logits(new_logits, input)
        n_classes = calibration_table.shape[1]
        if new_table.shape[1] != n_classes:
            raise ClassMismatchError(
                f"logits and new_logits must have the same number of columns, but got {n_classes}"
                f" and {new_table.shape[1]}. Pass logits of the same classifier."
            )
        class_names = validate.check_classes(classes, n_classes)
        label_codes = validate.encode_labels(labels, len(calibration_table), class_names)

        predicted_codes = np.asarray(calibration_table).argmax(axis=1)
        confusion_shares = _compute_confusion_shares(predicted_codes, label_codes, n_classes)
        new_predicted_codes = np.asarray(new_table).argmax(axis=1)
        n_new_rows_by_prediction = np.bincount(new_predicted_codes, minlength=n_classes)
        new_prediction_shares = n_new_rows_by_prediction / len(new_table)
        class_weights, _residual_norm = nnls(confusion_shares, new_prediction_shares)
        row_weights = class_weights[label_codes]
        if not row_weights.any():
            raise ClassMismatchError(
                "The classifier predicts none of the calibration classes for the new rows. Check"
                " that both tables come from the same classifier, with the same order of"
                " classes."
            )
        return cls(weights=row_weights, largest=float(row_weights.max()), estimated=True)

    @property
    def weights_origin(self) -> Weights:
        """Origin of the weights, as a certificate records it."""
        if self.estimated:
            return "estimated"
        if self.largest is None:
            return "unbounded"
        return "given"

    def compute_keep_probabilities(self, n_rows: int) -> Float:
        """Compute the probability that rejection sampling keeps each row."""
        row_weights = check_row_weights(self.weights, n_rows, name="importance")
        assert row_weights is not None
        largest_observed_weight = row_weights.max()
        max_weight = float(largest_observed_weight)
        if self.largest is not None:
            max_weight = float(self.largest)
        if not largest_observed_weight <= max_weight < np.inf:
            raise WeightsError(
                f"largest must not be less than the largest weight, {largest_observed_weight:g},"
                f" but got {max_weight:g}."
            )
        return row_weights / max_weight


def _compute_class_weight(
    class_name: Any, target_shares: Mapping[Any, float], source_shares: Mapping[Any, float]
) -> float:
    """Compute the ratio of the target share to the source share of one class."""
    for shares_name, shares in (("target", target_shares), ("source", source_shares)):
        if class_name not in shares:
            raise WeightsError(
                f"{shares_name} has no entry for the label {class_name!r}. Pass the share of"
                " every label."
            )
    target_share = target_shares[class_name]
    source_share = source_shares[class_name]
    if not source_share > 0.0 or not target_share >= 0.0:
        raise WeightsError(
            f"The source share of the label {class_name!r} must be positive. Only a target share"
            " may be 0."
        )
    return target_share / source_share


def _compute_confusion_shares(predicted_codes: Codes, label_codes: Codes, n_classes: int) -> Float:
    """Compute the share of rows with each pair of predicted and true class.

    Entry (i, j) is the share of all rows that are predicted as i and are of class j.
    """
    confusion_shares = np.zeros((n_classes, n_classes))
    share_of_one_row = 1.0 / len(label_codes)
    np.add.at(confusion_shares, (predicted_codes, label_codes), share_of_one_row)
    return confusion_shares


def _check_target_classes_occur(
    target_shares: Mapping[Any, float], observed_classes: Sequence[Any]
) -> None:
    """Raise an error if a class of the target distribution has no row."""
    observed_class_set = set(observed_classes)
    for class_name, share in target_shares.items():
        if share > 0.0 and class_name not in observed_class_set:
            raise WeightsError(
                f"The target distribution contains the label {class_name!r}, but no calibration"
                " row has this label. Add calibration rows with this label."
            )
