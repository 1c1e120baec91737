"""Rows with their labels and weights, on which every map is fitted."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from metacal import kernels
from metacal.errors import InputError, LabelError, warn_caller
from metacal.formulas import Codes, Flags
from metacal.formulas import Float as Float
from metacal.rows import Rows
from metacal.rows.arrays import to_numpy
from metacal.rows.stored import StoredTable

#: Weights of the rows. None means that every row has weight one.
Weights = Float | None


@dataclass(frozen=True)
class LabelledRows:
    """Rows of logits with the label and the weight of each row.

    Attributes
    ----------
    rows : Rows
        Rows of logits.

    labels : array of int of shape (n_rows,)
        Column index of the true class of each row.

    weights : array of shape (n_rows,) or None
        Weight of each row. None means that every row has weight one.

    Examples
    --------
    >>> weights = np.array([1.0, 0.0, 2.0, 1.0])
    >>> sample = LabelledRows(Rows(np.zeros((4, 2))), np.array([0, 1, 1, 0]), weights)
    >>> sample = sample.drop_zero_weight_rows()
    >>> len(sample.rows), sample.labels, sample.total_weight
    (3, array([0, 1, 0]), 4.0)
    """

    rows: Rows
    labels: Codes
    weights: Weights = None

    @property
    def total_weight(self) -> float:
        """Sum of the row weights, or the number of rows if there are no weights."""
        if self.weights is None:
            return float(len(self.labels))
        return float(self.weights.sum())

    @property
    def weights_or_ones(self) -> Float:
        """Array of row weights, which are one if no weights were given."""
        if self.weights is None:
            return np.ones(len(self.labels))
        return self.weights

    def compute_correctness(self) -> Float:
        """Return 1.0 for each row whose largest logit is the true class, else 0.0."""
        predictions = self.rows.compute_column(kernels.predict_classes)
        return np.asarray(predictions == self.labels, dtype=np.float64)

    def every_nth_row(self, n: int) -> LabelledRows:
        """Return every n-th row, without copying the table."""
        if n == 1:
            return self
        weights = None if self.weights is None else self.weights[::n]
        return LabelledRows(self.rows.take_every(n), self.labels[::n], weights)

    def take(self, positions: Codes) -> LabelledRows:
        """Return the rows at the given increasing positions."""
        if len(positions) == len(self.rows):
            return self
        weights = None if self.weights is None else self.weights[positions]
        return LabelledRows(self.rows.take(positions), self.labels[positions], weights)

    def select(self, mask: Flags) -> LabelledRows:
        """Return the rows for which the mask is true, without copying the table."""
        weights = None if self.weights is None else self.weights[mask]
        return LabelledRows(self.rows.select(mask), self.labels[mask], weights)

    def drop_zero_weight_rows(self) -> LabelledRows:
        """Return the rows with positive weight."""
        if self.weights is None or (self.weights > 0.0).all():
            return self
        return self.select(self.weights > 0.0)

    def drop_unusable_rows(self) -> LabelledRows:
        """Return the rows with positive weight whose true class is not masked.

        Raises
        ------
        InputError
            If the true class of every row is masked.

        Warns
        -----
        MetacalWarning
            If the true class of some rows is masked.
        """
        is_usable = self.rows.compute_column(kernels.label_is_possible, self.labels)
        if not is_usable.all():
            if not is_usable.any():
                raise build_all_labels_masked_error()
            warn_masked_labels(int((~is_usable).sum()), len(is_usable))
        if self.weights is not None:
            is_usable = is_usable & (to_numpy(self.weights) > 0.0)
        if is_usable.all():
            return self
        return self.select(is_usable)

    def move_labels_to_device_of_logits(self) -> LabelledRows:
        """Copy labels and weights to the device of the logits, once for all passes."""
        return LabelledRows(
            rows=self.rows,
            labels=self.rows.move_column_to_device(self.labels),
            weights=self.rows.move_column_to_device(self.weights),
        )

    def load_into_memory(self) -> LabelledRows:
        """Copy a table on disk into memory if it fits."""
        table = self.rows.table
        if not isinstance(table, StoredTable) or not table.fits_in_memory(len(self.labels)):
            return self
        return replace(self, rows=Rows(self.rows.to_array()))


def build_all_labels_masked_error() -> InputError:
    """Build the error for a table in which every true class is masked."""
    return LabelError(
        "The logit of the true class is -inf in every row, so no temperature can be fitted."
        " Check that the labels match the columns."
    )


def warn_masked_labels(n_masked: int, n_rows: int) -> None:
    """Warn that rows whose true class is masked are not used for fitting."""
    warn_caller(
        f"In {n_masked} of {n_rows} rows, the logit of the true class is -inf, so its probability"
        " is 0 at every temperature. These rows are left out of the temperature fit."
    )
