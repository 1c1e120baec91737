"""Rows with the label and the weight of each: what every map is fitted on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from metacal import kernels
from metacal.errors import InputError, warn_caller
from metacal.formulas import Codes, Flags
from metacal.formulas import Float as Float
from metacal.rows import Rows
from metacal.rows.arrays import on_host
from metacal.rows.stored import StoredTable

#: Column numbers.

#: None: every row counts as one.
Weights = Float | None


class Labelled(NamedTuple):
    """Rows, their labels (column numbers) and weights.

    Examples
    --------
    >>> some = Labelled(Rows(np.zeros((4, 2))), np.array([0, 1, 1, 0]), np.array([1.0, 0.0, 2.0, 1.0])).counted()
    >>> len(some.rows), some.labels, some.total
    (3, array([0, 1, 0]), 4.0)
    """

    rows: Rows
    labels: Codes
    weights: Weights = None

    @property
    def total(self) -> float:
        """How many rows these stand for: the sum of the weights."""
        return float(len(self.labels) if self.weights is None else self.weights.sum())

    @property
    def counts(self) -> Float:
        """The weights, 1 where there are none."""
        return np.ones(len(self.labels)) if self.weights is None else self.weights

    def correct(self) -> Float:
        """1 where the largest logit's class is the label, else 0."""
        return np.asarray(self.rows.collect(kernels.predicted) == self.labels, dtype=np.float64)

    def every(self, step: int) -> Labelled:
        """Every `step`-th row of this sample, without copying the table."""
        if step == 1:
            return self
        weights = None if self.weights is None else self.weights[::step]
        return Labelled(self.rows.every(step), self.labels[::step], weights)

    def picked(self, positions: Codes) -> Labelled:
        """Return the rows at these positions, which rise."""
        if len(positions) == len(self.rows):
            return self
        weights = None if self.weights is None else self.weights[positions]
        return Labelled(self.rows.picked(positions), self.labels[positions], weights)

    def where(self, used: Flags) -> Labelled:
        """The rows of this sample where `used` is true, without copying the table."""
        return Labelled(
            self.rows.where(used),
            self.labels[used],
            None if self.weights is None else self.weights[used],
        )

    def counted(self) -> Labelled:
        """Without the rows of weight zero."""
        return (
            self
            if self.weights is None or (self.weights > 0.0).all()
            else self.where(self.weights > 0.0)
        )

    def usable(self) -> Labelled:
        """Without the rows of weight zero and those whose true class is masked."""
        used = self.rows.collect(kernels.label_is_possible, self.labels)
        if not used.all():
            if not used.any():
                raise no_possible_truth()
            warn_masked(int((~used).sum()), len(used))
        if self.weights is not None:
            used = used & (on_host(self.weights) > 0.0)
        return self if used.all() else self.where(used)

    def beside(self) -> Labelled:
        """Labels and weights where the table lies, so that they are brought there once and not once
        a pass.
        """
        return Labelled(self.rows, self.rows.column(self.labels), self.rows.column(self.weights))

    def in_memory(self) -> Labelled:
        """The same rows, read once and kept where they come from files: who goes through them goes
        often.
        """
        table = self.rows.table
        if not isinstance(table, StoredTable) or not table.may_hold(len(self.labels)):
            return self
        return self._replace(rows=Rows(self.rows.gathered()))


def no_possible_truth() -> InputError:
    """What is raised where no true class is possible."""
    return InputError(
        "the true class has logit -inf in every row; there is nothing to fit a temperature on."
    )


def warn_masked(left: int, n_rows: int) -> None:
    """Say that rows are left out because their true class is masked."""
    warn_caller(
        f"{left} of {n_rows} rows have a true class whose logit is -inf; no temperature gives it"
        " any probability, so these rows are left out of the temperature fit."
    )
