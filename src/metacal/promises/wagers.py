r"""Wagers on rows that are labelled with known probability: what each threshold's promise wins or loses on a row.

The scores are cut into cells by thresholds t_1 < t_2 < … < t_C = ∞; threshold j accepts the cells up to j. With e = 1
for a row whose prediction is wrong, a promise at threshold j is broken iff a payoff that is linear in e has a negative
mean:

- coverage accuracy >= β:  Z_j = 1{h <= t_j} · (1 - β - e),
- miscoverage <= α:        Z_j = (α - 1{h > t_j}) · (1 - e),

both of the form Z_j = base_j(cell) - weight_j(cell) · e. A row in cell c is *asked* about with probability π_c, fixed
before the row is looked at, and a guess f_c of its error, fixed as well, takes the place of what nobody asked:

    ê = f_c + 1{asked} · (e - f_c) / π_c,        E[ê | score, e] = e,

so base - weight · ê has the mean of Z_j, whatever the guess and the probabilities are (Horvitz & Thompson 1952; Robins,
Rotnitzky & Zhao 1994). It takes one of three values: the row was not asked about, was right, was wrong. None of them is
below a number that the design fixes, and that bounds the stake λ: 1 + λ Z never reaches zero. A cell with π = 0 is
harmless where its weight is zero; any other threshold sits such a design out, λ = 0.

Stakes maximise the expected growth E log(1 + λ Z) under error rates estimated from rows before (Kelly 1956; growth-rate
optimal e-values, Grünwald, de Heide & Koolen 2024).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]

#: What can happen to a row that comes by; the first axis of all that follows.
UNASKED, RIGHT, WRONG = 0, 1, 2
#: No error rate is taken to be zero: a stake that trusts it would be ruined by one error.
RAREST = 1e-6
#: The most that is staked, of what a single row could take.
_MOST = 0.95
#: Halvings of the range of stakes: finer than any estimate behind them.
_HALVINGS = 20


@dataclass(frozen=True, eq=False)
class Payoff:
    """base - weight · e for each threshold (rows) and cell (columns), and the limit that is promised.

    Examples
    --------
    >>> Payoff.of_accuracy(2, 0.75).base
    array([[0.25, 0.  ],
           [0.25, 0.25]])
    >>> Payoff.of_miscoverage(2, 0.25).base
    array([[ 0.25, -0.75],
           [ 0.25,  0.25]])
    """

    base: Float
    weight: Float
    limit: float
    counts_wrong: bool

    @classmethod
    def of_accuracy(cls, n_cells: int, beta: float) -> Payoff:
        """Accepted rows are right at least beta of the time: of those that count, at most 1 - beta are wrong."""
        accepted = np.tri(n_cells)
        return cls((1.0 - beta) * accepted, accepted, 1.0 - beta, True)

    @classmethod
    def of_miscoverage(cls, n_cells: int, alpha: float) -> Payoff:
        """At most alpha of the right rows are rejected."""
        gain = alpha - (1.0 - np.tri(n_cells))
        return cls(gain, gain, alpha, False)

    def at(self, threshold: int) -> Payoff:
        """That of one threshold alone."""
        one = slice(threshold, threshold + 1)
        return Payoff(self.base[one], self.weight[one], self.limit, self.counts_wrong)

    def rates(self, share: Float, errors: Float) -> Float:
        """What is limited, for each threshold, where the cells have these shares of the rows and these error rates.

        Examples
        --------
        >>> Payoff.of_accuracy(2, 0.9).rates(np.array([0.5, 0.5]), np.array([0.02, 0.2])).round(3)
        array([0.02, 0.11])
        >>> Payoff.of_miscoverage(2, 0.1).rates(np.array([0.5, 0.5]), np.array([0.02, 0.2])).round(3)
        array([0.449, 0.   ])
        """
        mean = (share * (self.base - self.weight * errors)).sum(axis=1)
        counted = (share * (self.weight if self.counts_wrong else 1.0 - errors)).sum(axis=-1)
        return np.asarray(self.limit - mean / np.maximum(counted, 1e-300))

    def scaled(self, share: Float, errors: Float, rates: Float) -> Float:
        """Error rates of the cells, for each threshold (rows), that are alike but give what is limited these rates.

        Examples
        --------
        >>> promise, share = Payoff.of_miscoverage(2, 0.1), np.array([0.5, 0.5])
        >>> found = promise.scaled(share, np.array([0.02, 0.6]), np.array([0.09, 0.09]))
        >>> float(promise.rates(share, found)[0].round(3)), found[0].round(3)
        (0.09, array([0.02 , 0.903]))
        """
        if self.counts_wrong:
            factor = rates / np.maximum(self.rates(share, errors), 1e-300)
            return np.clip(factor[:, None] * errors, RAREST, 1.0 - RAREST)
        rejected = self.base < 0.0
        right = share * (1.0 - errors)
        accepted, turned_away = (right * ~rejected).sum(axis=1), (right * rejected).sum(axis=1)
        factor = rates * accepted / np.maximum((1.0 - rates) * turned_away, 1e-300)
        scaled = 1.0 - np.minimum(factor[:, None], 1e6) * (1.0 - errors)
        return np.clip(np.where(rejected, scaled, errors), RAREST, 1.0 - RAREST)


@dataclass(frozen=True, eq=False)
class Design:
    """With which probability a row of each cell is asked about, and the error that is guessed for the others."""

    probability: Float
    guess: Float

    def chances(self, errors: Float) -> Float:
        """The chance of each outcome (first axis) in each cell (last axis), where so many of its rows are wrong."""
        asked, errors = np.broadcast_arrays(self.probability, errors)
        return np.stack([1.0 - asked, asked * (1.0 - errors), asked * errors])


@dataclass(frozen=True, eq=False)
class Wagers:
    """What each outcome pays: values[outcome, threshold, cell]; the lowest for each threshold; who takes part.

    Examples
    --------
    >>> plain = Wagers.of(Payoff.of_accuracy(2, 0.75), Design(np.array([0.5, 0.0]), np.zeros(2)))
    >>> plain.values[:, 0, 0], plain.takes_part
    (array([ 0.25,  0.25, -1.75]), array([ True, False]))
    """

    values: Float
    lowest: Float
    takes_part: NDArray[np.bool_]

    @classmethod
    def of(cls, payoff: Payoff, design: Design) -> Wagers:
        """The three values of base - weight · ê; with several designs (rows) for one threshold, those of each."""
        probability, guess = np.atleast_2d(design.probability), np.atleast_2d(design.guess)
        inverse = np.divide(1.0, probability, out=np.zeros_like(probability), where=probability > 0.0)
        guessed = np.stack([guess, guess * (1.0 - inverse), guess + (1.0 - guess) * inverse])
        values = payoff.base - payoff.weight * guessed
        takes_part = ~((payoff.weight != 0.0) & (probability == 0.0)).any(axis=1)
        # Where everybody is asked nobody is left unasked: what that would pay is no risk.
        possible = np.stack([probability < 1.0, probability > 0.0, probability > 0.0])
        lowest = np.where(possible, values, np.inf).min(axis=(0, 2))
        return cls(values, np.minimum(lowest, -1e-12), takes_part)

    def stakes(self, mix: Float) -> tuple[Float, Float]:
        """The stakes that let the capital grow fastest, and the growth of its logarithm a row, for each threshold.

        `mix` is how often each outcome comes in each cell, of all rows: for all thresholds, or for each on its own.

        Examples
        --------
        >>> plain = Wagers.of(Payoff.of_accuracy(1, 0.9), Design(np.ones(1), np.zeros(1)))
        >>> stake, growth = plain.stakes(np.array([[0.0], [0.95], [0.05]]))
        >>> stake.round(3), growth.round(4)
        (array([0.556]), array([0.0167]))
        """
        mix = mix if mix.ndim == 3 else mix[:, None, :]
        low, high = np.zeros(len(self.lowest)), np.where(self.takes_part, -_MOST / self.lowest, 0.0)
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            slope = (mix * self.values / (1.0 + middle[:, None] * self.values)).sum(axis=(0, 2))
            rising = slope > 0.0
            low, high = np.where(rising, middle, low), np.where(rising, high, middle)
        growth = (mix * np.log1p(low[:, None] * self.values)).sum(axis=(0, 2))
        return low, growth
