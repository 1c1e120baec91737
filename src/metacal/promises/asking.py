r"""Which rows are worth a label: error rates as far as they are known, where to ask, and how much is ahead.

Nothing here has to be right for a certificate to hold: whatever is fixed before a row is looked at is allowed
(`metacal.promises.evidence`). It decides how many labels it takes.

For a mean of independent errors with rates p_c in cells of share w_c, estimated from rows that are asked about with
probability π_c, labels times variance is (Σ w π)(Σ w p(1-p)/π), and is least where π is in proportion to √(p(1-p))
(Neyman 1934): the sure rows, of which hardly any is wrong, need few labels, those near the threshold many. But an error
in a cell with a small π costs 1/π, and where no error is expected anyway, even sampling wins. So designs from even to
Neyman's are compared by the growth of evidence that they promise for each label, and the best is taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metacal.promises.wagers import RAREST, Design, Float, Payoff, Wagers

#: The least probability with which a row that matters is asked about, in the designs that are compared.
FLOORS = (1.0, 0.6, 0.4, 0.25, 0.15)
#: How much of the limit the estimate may use where a goal is chosen: closer to it, evidence grows slowly.
_COMFORT = 0.7
#: How finely the margin by which a promise may be kept is told.
_MARGINS = 40


@dataclass(eq=False)
class ErrorRates:
    """Rows asked about and errors among them in each cell, with what is thought beforehand.

    Examples
    --------
    >>> rates = ErrorRates.of(np.full(4, 0.25), np.array([0.01, 0.01, 0.1, 0.3]), rows=20.0)
    >>> rates.add(np.array([0, 0, 1, 3, 3]), np.array([0, 0, 1, 0, 1]))
    >>> rates.errors.round(3)
    array([0.007, 0.141, 0.141, 0.357])
    """

    share: Float
    prior: Float
    prior_rows: Float
    asked: Float
    wrong: Float

    @classmethod
    def of(cls, share: Float, prior: Float, rows: float) -> ErrorRates:
        """What is thought beforehand, with the weight of so many rows in all."""
        return cls(share, prior, rows * share / share.sum(), np.zeros(len(share)), np.zeros(len(share)))

    def add(self, cells: NDArray[np.intp], wrong: NDArray[np.bool_]) -> None:
        """Take in answers."""
        self.asked += np.bincount(cells, minlength=len(self.share))
        self.wrong += np.bincount(cells, weights=wrong, minlength=len(self.share))

    @property
    def errors(self) -> Float:
        """The error rate of each cell, not falling as the score rises."""
        from scipy.optimize import isotonic_regression  # not worth a wait for those who never label

        rows = self.asked + self.prior_rows + 1e-9
        rates = (self.wrong + self.prior_rows * self.prior) / rows
        found = isotonic_regression(rates, weights=rows).x
        return np.asarray(np.clip(found, RAREST, 1.0 - RAREST))


def hoped_for(payoff: Payoff, rates: ErrorRates) -> Float:
    """The error rates of the cells as a bet at each threshold (rows) takes them: as estimated, if the promise is kept.

    A bet on a promise is for the case that it is kept, by an unknown margin. With r the rate that is limited, x =
    r/limit has the density 6 x (1 - x) beforehand and, afterwards, in proportion to that times the likelihood of as
    many rows as tell as much as those that were asked about. The cells' rates are scaled so that r is its mean: close
    to the estimate where that is certain, and never above the limit. Betting on the estimate itself takes up to a third
    more labels.

    Examples
    --------
    >>> payoff, share = Payoff.of_accuracy(2, 0.9), np.array([0.5, 0.5])
    >>> few, many = (ErrorRates.of(share, np.array([0.05, 0.25]), rows) for rows in (10.0, 10_000.0))
    >>> payoff.rates(share, hoped_for(payoff, few)).round(3), payoff.rates(share, hoped_for(payoff, many)).round(3)
    (array([0.051, 0.061]), array([0.05 , 0.099]))
    """
    errors, share = rates.errors, rates.share
    bad = np.clip(payoff.rates(share, errors), 1e-9, 1.0 - 1e-9)
    counted = np.maximum((share * (payoff.weight if payoff.counts_wrong else 1.0 - errors)).sum(axis=-1), 1e-9)
    rows = np.maximum(rates.asked + rates.prior_rows, 1e-9)
    variance = ((share * payoff.weight) ** 2 * errors * (1.0 - errors) / rows).sum(axis=1) / counted**2
    telling = bad * (1.0 - bad) / np.maximum(variance, 1e-12)
    margin = (np.arange(_MARGINS) + 0.5) / _MARGINS
    grid = margin * payoff.limit
    log_weight = np.log(margin * (1.0 - margin)) + telling[:, None] * (
        bad[:, None] * np.log(grid) + (1.0 - bad[:, None]) * np.log1p(-grid)
    )
    weight = np.exp(log_weight - log_weight.max(axis=1, keepdims=True))
    return payoff.scaled(share, errors, (weight @ grid) / weight.sum(axis=1))


class Outlook(NamedTuple):
    """A design, the labels it asks for a row that comes by, and the growth of the evidence for a threshold a row."""

    design: Design
    labels: float
    growth: float

    def rows_for(self, missing: float) -> float:
        """How many rows have to come by until the evidence has grown by so much; infinite where it does not grow."""
        return missing / self.growth if self.growth > 0.0 else math.inf

    def labels_for(self, missing: float) -> float:
        """How many labels that takes."""
        return self.labels * self.rows_for(missing)


def best_design(payoff: Payoff, threshold: int, rates: ErrorRates, missing: float, rows_left: int) -> Outlook:
    """The design by which a threshold needs the fewest labels, of those that the rows left allow for.

    Examples
    --------
    >>> rates = ErrorRates.of(np.full(10, 0.1), np.geomspace(0.0002, 0.2, 10), rows=1e6)
    >>> found = best_design(Payoff.of_accuracy(10, 0.95), 9, rates, missing=2.3, rows_left=10**6)
    >>> found.design.probability.round(2)[[0, 7, 9]], round(found.labels, 2)
    (array([0.15, 0.51, 1.  ]), 0.36)
    """
    share, own = rates.share, payoff.at(threshold)
    errors = hoped_for(own, rates)[0]
    spread = np.abs(own.weight[0]) * np.sqrt(errors * (1.0 - errors))
    matters = own.weight[0] != 0.0
    designs = Design(
        np.array([np.where(matters, np.clip(spread / spread.max(), floor, 1.0), 0.0) for floor in FLOORS]).repeat(2, 0),
        np.tile([np.zeros_like(errors), errors], (len(FLOORS), 1)),
    )
    _, growth = Wagers.of(own, designs).stakes(share * designs.chances(errors))
    found = [
        Outlook(Design(probability, guess), float(share @ probability), float(grows))
        for probability, guess, grows in zip(designs.probability, designs.guess, growth)
    ]
    enough = [one for one in found if one.rows_for(missing) <= rows_left]
    return min(enough, key=lambda one: one.labels_for(missing)) if enough else found[0]


def stakes_for(payoff: Payoff, design: Design, rates: ErrorRates) -> tuple[Float, Float]:
    """The stake of each threshold under a design, and the growth of the evidence that is hoped for, a row."""
    errors = hoped_for(payoff, rates)
    return Wagers.of(payoff, design).stakes(rates.share * design.chances(errors))


def even_rows(payoff: Payoff, rates: ErrorRates) -> Float:
    """How many rows, all asked about, let the logarithm of each threshold's capital grow by one."""
    design = Design(np.ones(len(rates.share)), np.zeros(len(rates.share)))
    _, growth = stakes_for(payoff, design, rates)
    return np.asarray(np.divide(1.0, growth, out=np.full(len(growth), np.inf), where=growth > 0.0))


def comfortable(payoff: Payoff, rates: ErrorRates) -> NDArray[np.bool_]:
    """The thresholds whose estimate leaves some of the limit unused: there evidence grows fast.

    Examples
    --------
    >>> rates = ErrorRates.of(np.full(4, 0.25), np.array([0.01, 0.02, 0.1, 0.3]), rows=1e6)
    >>> comfortable(Payoff.of_accuracy(4, 0.95), rates)
    array([ True,  True, False, False])
    """
    return np.asarray(payoff.rates(rates.share, rates.errors) <= _COMFORT * payoff.limit)
