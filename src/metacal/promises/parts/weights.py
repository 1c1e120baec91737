"""Importance: how much more often such a row comes where the gate will be used than where its rows were drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metacal.errors import InputError
from metacal.rows import validate
from metacal.rows.arrays import row_weights


@dataclass(frozen=True, eq=False)
class Importance:
    """How much each calibration row counts where new rows come from somewhere else: in proportion to target / source.

    Attributes
    ----------
    weights : array of shape (n,)
        Up to a common factor.
    largest : float, optional
        The largest weight that any row can have; the largest here when None.
    estimated : bool
        Whether the weights are estimates, so that what is promised is approximate.

    Examples
    --------
    >>> Importance([1.0, 3.0], largest=4.0).shares(2)
    array([0.25, 0.75])
    """

    weights: ArrayLike
    largest: float | None = None
    estimated: bool = False

    @classmethod
    def of_labels(
        cls, labels: ArrayLike, target: Mapping[Any, float], source: Mapping[Any, float] | None = None
    ) -> Self:
        """Known label shift: each class with its share in the target and in the source of the calibration rows.

        Given a class its rows are alike in both: p(x | y) does not change. Without `source` its shares are taken from
        the labels, and the weights are then estimates.

        Examples
        --------
        >>> found = Importance.of_labels(["cat", "dog", "dog"], {"cat": 0.8, "dog": 0.2}, {"cat": 0.5, "dog": 0.5})
        >>> np.asarray(found.weights).tolist(), found.estimated
        ([1.6, 0.4, 0.4], False)
        """
        given = np.asarray(labels)
        names, codes, counts = np.unique(given, return_inverse=True, return_counts=True)
        known = source if source is not None else dict(zip(names.tolist(), (counts / len(given)).tolist()))
        ratios = []
        for name in names.tolist():
            if name not in target or name not in known:
                raise InputError(f"label {name!r} has no share in {'target' if name not in target else 'source'}.")
            if not known[name] > 0.0 or not target[name] >= 0.0:
                raise InputError(f"the shares of label {name!r} must be positive, or 0 in the target alone.")
            ratios.append(target[name] / known[name])
        if missing := [name for name, share in target.items() if share > 0.0 and name not in set(names.tolist())]:
            raise InputError(f"no calibration row has the label {missing[0]!r}, which the target has; bring some.")
        table = np.array(ratios)
        return cls(table[codes.reshape(-1)], float(table.max()), estimated=source is None)

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
        """Label shift estimated from unlabelled rows of the target (black box shift estimation, Lipton et al. 2018).

        With C_ij the share of calibration rows of class j that are predicted as i, and μ_i the share of new rows
        predicted as i: C w = μ, solved by non-negative least squares. The weights are estimates, and the certificate is
        called approximate.

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> def draw(n, share):
        ...     y = (rng.random(n) < share).astype(int)
        ...     return np.eye(2)[y] * 3.0 + rng.normal(size=(n, 2)), y
        >>> logits, labels = draw(4000, 0.5)
        >>> found = Importance.from_unlabelled(logits, labels, draw(4000, 0.8)[0])
        >>> round(float(found.weights[labels == 1].mean() / found.weights[labels == 0].mean()))
        4
        """
        from scipy.optimize import nnls  # not worth a wait for those who never estimate

        table, new = validate.logits_from(logits, input), validate.logits_from(new_logits, input)
        if table.shape[1] != new.shape[1]:
            raise InputError(
                f"logits have {table.shape[1]} columns and new_logits {new.shape[1]}; give the same classes."
            )
        n_classes = table.shape[1]
        codes = validate.label_codes(labels, len(table), validate.class_list(classes, n_classes))
        joint = np.zeros((n_classes, n_classes))
        np.add.at(joint, (np.asarray(table).argmax(axis=1), codes), 1.0 / len(codes))
        share = np.bincount(np.asarray(new).argmax(axis=1), minlength=n_classes) / len(new)
        weights, _ = nnls(joint, share)
        if not weights[codes].any():
            raise InputError("no class of the calibration rows is found among the new rows; are they of the same kind?")
        return cls(weights[codes], float(weights[codes].max()), estimated=True)

    def shares(self, n_rows: int) -> NDArray[np.float64]:
        """The probability with which each row is kept."""
        weights = row_weights(self.weights, n_rows, name="importance")
        assert weights is not None
        largest = float(weights.max()) if self.largest is None else float(self.largest)
        if not weights.max() <= largest < np.inf:
            raise InputError(
                f"largest must be a number that no weight exceeds; got {largest:g}, and a weight of {weights.max():g}."
            )
        return weights / largest
