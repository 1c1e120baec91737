r"""Evidence by betting: capital staked row by row against a hypothesis.

The hypothesis is that each payoff g_t has a conditional mean of at most zero, given all earlier
rows. Before g_t is observed, a stake λ_t is chosen, and the row multiplies the capital by
1 + λ_t g_t, which is never negative. If the hypothesis is true, the capital is a nonnegative
supermartingale that starts at 1, and P(the capital ever reaches 1/δ) <= δ (Ville 1939). The capital
is therefore evidence that you may inspect after every row.

**The stake** is Kelly's stake for the recent mean payoff: λ_t = Δ_t / (v_t s), clipped to the range
from `min_stake` to `max_stake`. Δ_t is the weighted mean of the payoffs *before* t, including a
first guess that counts as a few rows, v_t is the variance of a payoff under the hypothesis, and s is
the mean weight. For 0/1 events against a limit m (g = x - m, v = m(1 - m)), the factor is the
likelihood ratio q/m or (1-q)/(1-m) at the plug-in rate q = m + Δ.

**Unknown time of change.** Four gamblers share the capital. The first estimates the mean payoff from
all rows. The others use a window of the last 3,000, 600 and 120 rows, because an average over a long
good period hides a later change. Time is divided into stretches of the length of the window, and a
gambler uses the current stretch and the one before it. Each of these three gamblers invests 1/2 of
its capital in the first stretch and 1/(2k(k+1)) more at the start of the k-th later stretch. The
rest stays idle, so that losses in good periods do not use up the capital that a later change needs.

*Proof.*

1. λ_t depends on earlier rows only, so the invested capital of each gambler is a supermartingale
   between two investments.
2. An investment moves idle capital, which neither grows nor shrinks, to the invested capital.
3. The invested shares sum to one: 1/2 and Σ_k 1/(2k(k+1)) = 1/2.
4. Sums of supermartingales with fixed weights are supermartingales. ∎

All sums run in the order of the rows, and start from the stored sum. Rows that arrive one by one, in
batches or after a restart therefore give the same numbers.

References
----------
Ville, "Étude critique de la notion de collectif", 1939. Kelly, "A new interpretation of information
rate", 1956. Waudby-Smith & Ramdas, "Estimating means of bounded random variables by betting",
JRSS-B 2024. Shin, Ramdas & Rinaldo, "E-detectors: a nonparametric framework for sequential change
detection", 2024.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from metacal.errors import InputError, format_option
from metacal.formulas import Codes, Flags, Float

#: Length of the window of each gambler, in rows. 0 stands for all rows.
WINDOWS = (0, 3000, 600, 120)

# Initial state of a gambler: sum of payoffs and of weights in the previous stretch, the same sums in
# the current stretch, and the logarithm of the invested capital. JSON has no infinity, so the
# logarithm of zero is a very small number.
_INITIAL_GAMBLER = (0.0, 0.0, 0.0, 0.0, -1e99)

#: Largest share of the capital that a single payoff may lose.
MAX_LOSS = 0.5


class Bets(NamedTuple):
    """Payoffs of consecutive rows, and the terms on which a wager bets on them.

    A float stands for the same value in every row.

    Attributes
    ----------
    payoffs : array
        Payoff g_t of each row, multiplied by its weight.
    weights : array or float
        Weight of each row in the mean payoff. 0 excludes the row.
    variance : array or float
        Variance of an unweighted payoff under the hypothesis.
    min_stake, max_stake : array or float
        Range of the stake.
    """

    payoffs: Float
    weights: Float | float
    variance: Float | float
    min_stake: Float | float
    max_stake: Float | float


def bet_on_mean_above(values: Float, limit: float, weights: Float | float = 1.0) -> Bets:
    """Build bets against the hypothesis that a mean is at most a limit.

    Parameters
    ----------
    values : array
        Observations in [0, 1].
    limit : float
        Largest mean under the hypothesis. A limit of 1 is never violated, so nothing is bet.
    weights : array or float, default=1.0
        Weights w in [0, 1]. The payoff is w (x - limit). If a row was labelled with probability π,
        its weight is π_min/π.

    Returns
    -------
    Bets
    """
    clipped_limit = min(max(limit, 1e-12), 1.0 - 1e-12)
    if limit >= 1.0:
        weights = 0.0
    return Bets(
        payoffs=weights * (values - clipped_limit),
        weights=weights,
        variance=clipped_limit * (1.0 - clipped_limit),
        min_stake=0.0,
        max_stake=MAX_LOSS / clipped_limit,
    )


def compute_sampling_weights(
    probability: ArrayLike | None, n_rows: int, least_probability: float
) -> Float:
    """Compute the weight of each labelled row: least probability over its own probability.

    >>> compute_sampling_weights([0.1, 0.5], 2, 0.1), compute_sampling_weights(None, 2, 0.1)
    (array([1. , 0.2]), array([1., 1.]))
    """
    if probability is None:
        return np.ones(n_rows)
    probabilities = np.atleast_1d(np.asarray(probability, dtype=np.float64))
    has_valid_range = ((probabilities > 0.0) & (probabilities <= 1.0)).all()
    if probabilities.shape != (n_rows,) or not has_valid_range:
        raise InputError(
            f"probability must be one number for each of the {n_rows} rows, above 0 and at most 1."
        )
    if n_rows and probabilities.min() < least_probability:
        raise InputError(
            f"a row had been chosen with probability {probabilities.min():g}, below the least"
            f" probability {least_probability:g} that was said beforehand; begin again with a lower"
            f" one: {format_option('least_probability', metavar='P')}."
        )
    return np.asarray(least_probability / probabilities)


class UnitMembership(NamedTuple):
    """Cluster of each row, for rows of complete clusters.

    Attributes
    ----------
    unit_index : array of int
        Index of the cluster of each row: 0, 1, ...
    is_drawn : boolean array
        True for one random row of each cluster.
    divisors : array of float
        Divisor of the sum over the rows of each cluster. It is the number of rows of the cluster,
        labelled or not, if every cluster counts the same, and one number for all clusters if every
        row counts the same. It is 0 if a cluster counts by the mean of its labelled rows.
    """

    unit_index: Codes
    is_drawn: Flags
    divisors: Float

    def select(self, rows: Flags | slice) -> UnitMembership:
        """Return the membership of the selected rows."""
        return self._replace(unit_index=self.unit_index[rows], is_drawn=self.is_drawn[rows])

    def average_by_unit(self, values: Float, weights: Float) -> tuple[Float, Float]:
        """Compute the weighted mean and the total weight of each cluster.

        The total weight is divided by the divisor of the cluster. Clusters without weight are left
        out.

        >>> is_drawn = np.array([True, False, True])
        >>> membership = UnitMembership(np.array([0, 0, 1]), is_drawn, np.array([4.0, 1.0]))
        >>> membership.average_by_unit(np.array([1.0, 0.0, 1.0]), np.ones(3))
        (array([0.5, 1. ]), array([0.5, 1. ]))
        """
        n_units = len(self.divisors)
        weight_sums = np.bincount(self.unit_index, weights, n_units)
        value_sums = np.bincount(self.unit_index, weights * values, n_units)
        has_weight = weight_sums > 0.0
        means = value_sums[has_weight] / weight_sums[has_weight]
        unit_weights = np.divide(
            weight_sums, self.divisors, out=np.ones(n_units), where=self.divisors > 0.0
        )
        return means, unit_weights[has_weight]


@dataclass
class Wager:
    """Capital of the gamblers who bet against one hypothesis.

    Parameters
    ----------
    guess : float
        Number of rows that the first guess of the mean payoff counts as.
    guess_gain : float
        Sum of the payoffs of these rows.
    rows : int
        Rows so far.
    weights, squares : float
        Sum of the weights of the rows, and of their squares.
    gamblers : tuple of tuple of float
        State of each gambler: sums of payoffs and weights in the previous and in the current
        stretch, and the logarithm of the invested capital.

    Examples
    --------
    >>> events = np.array([0.0, 1.0, 0.0, 1.0] * 10)
    >>> wager = Wager(guess=1 / 0.1, guess_gain=1.0)
    >>> log_capital = wager.bet(bet_on_mean_above(events, 0.1))
    >>> bool(log_capital[-1] > 3.0), wager.rows
    (True, 40)
    """

    guess: float
    guess_gain: float = 0.0
    rows: int = 0
    weights: float = 0.0
    squares: float = 0.0
    gamblers: tuple[tuple[float, ...], ...] = (_INITIAL_GAMBLER,) * len(WINDOWS)

    def __post_init__(self) -> None:
        self.gamblers = tuple(tuple(map(float, gambler)) for gambler in self.gamblers)
        n_numbers = len(_INITIAL_GAMBLER)
        if len(self.gamblers) != len(WINDOWS) or any(
            len(gambler) != n_numbers for gambler in self.gamblers
        ):
            raise InputError(f"a wager has {len(WINDOWS)} gamblers, of {n_numbers} numbers each.")
        if self.rows < 0 or not self.guess > 0.0:
            raise InputError(
                "a wager has seen no fewer than 0 rows, and its first guess counts as more than 0."
            )

    def bet(self, bets: Bets) -> Float:
        """Bet on consecutive rows and return the logarithm of the capital after each."""
        n_rows = len(bets.payoffs)
        columns = Bets(
            *(np.full(n_rows, column) if isinstance(column, float) else column for column in bets)
        )
        weight_sums = _cumulative_sums(self.weights, columns.weights)
        square_sums = _cumulative_sums(self.squares, np.square(columns.weights))
        # The mean weight is Σw²/Σw. One imaginary row of weight one avoids a division by zero.
        mean_weights = (square_sums[:-1] + 1.0) / (weight_sums[:-1] + 1.0)
        log_invested = np.empty((len(WINDOWS), n_rows))
        idle_capital = np.zeros(n_rows)
        new_gamblers = []
        for index, (window, gambler) in enumerate(zip(WINDOWS, self.gamblers)):
            new_gamblers.append(
                self._bet_as_gambler(
                    columns,
                    mean_weights,
                    window=window,
                    gambler=gambler,
                    log_invested=log_invested[index],
                    idle_capital=idle_capital,
                )
            )
        self.rows += n_rows
        self.weights = float(weight_sums[-1])
        self.squares = float(square_sums[-1])
        self.gamblers = tuple(new_gamblers)
        return log_sum_exp(log_invested, idle_capital) - math.log(len(WINDOWS))

    def _bet_as_gambler(
        self,
        bets: Bets,
        mean_weights: Float,
        *,
        window: int,
        gambler: tuple[float, ...],
        log_invested: Float,
        idle_capital: Float,
    ) -> tuple[float, ...]:
        """Bet the capital of one gambler on consecutive rows.

        Parameters
        ----------
        bets : Bets
            Bets with one entry per row in every column.
        mean_weights : array
            Mean weight of the rows before each row.
        window : int
            Length of a stretch of the gambler. 0 stands for all rows.
        gambler : tuple of float
            State before the first row.
        log_invested : array
            Output: logarithm of the invested capital after each row.
        idle_capital : array
            Output: the idle capital of the gambler is added to each row.

        Returns
        -------
        tuple of float
            State after the last row.
        """
        n_rows = len(log_invested)
        previous_payoff, previous_weight, payoff_sum, weight_sum, log_capital = gambler
        start = 0
        while start < n_rows:
            row = self.rows + start
            stretch, offset = divmod(row, window) if window else (0, row)
            if offset == 0:
                log_capital = float(
                    np.logaddexp(log_capital, math.log(_invested_share(window, stretch)))
                )
                previous_payoff, previous_weight = payoff_sum, weight_sum
                payoff_sum = 0.0
                weight_sum = 0.0
            stop = min(n_rows, start + window - offset) if window else n_rows
            block = slice(start, stop)
            payoffs, weights, variance, min_stake, max_stake = (column[block] for column in bets)  # type: ignore[index]
            payoff_sums = _cumulative_sums(payoff_sum, payoffs)
            weight_sums = _cumulative_sums(weight_sum, weights)
            mean_payoffs = (previous_payoff + payoff_sums[:-1] + self.guess_gain) / (
                previous_weight + weight_sums[:-1] + self.guess
            )
            stakes = np.clip(mean_payoffs / (variance * mean_weights[block]), min_stake, max_stake)
            log_capitals = _cumulative_sums(log_capital, np.log1p(stakes * payoffs))
            log_invested[block] = log_capitals[1:]
            if window:
                # The gambler has not invested 1/2 - Σ_{k <= stretch} 1/(2k(k+1)) yet.
                idle_capital[block] += 0.5 / (stretch + 1.0)
            payoff_sum = float(payoff_sums[-1])
            weight_sum = float(weight_sums[-1])
            log_capital = float(log_capitals[-1])
            start = stop
        return previous_payoff, previous_weight, payoff_sum, weight_sum, log_capital


def _invested_share(window: int, stretch: int) -> float:
    """Return the share of its capital that a gambler invests at the start of a stretch."""
    if not window:
        return 1.0
    if stretch == 0:
        return 0.5
    return 0.5 / (stretch * (stretch + 1.0))


def _cumulative_sums(initial_sum: float, values: Any) -> Float:
    """Return the initial sum, followed by the running sums after each value."""
    return np.cumsum(np.concatenate(([initial_sum], values)))


def log_sum_exp(logs: Float, extra: Float | float = 0.0) -> Float:
    """Compute log(Σ exp(logs) + extra) of each column without overflow."""
    offset = np.maximum(logs.max(axis=0), 0.0)
    scaled_sum = np.exp(logs - offset).sum(axis=0) + extra * np.exp(-offset)
    return np.asarray(offset + np.log(scaled_sum))


@dataclass
class Capital:
    """Total capital of several wagers, and the highest value that it reached.

    Parameters
    ----------
    wagers : tuple of Wager
        Wagers, each with a fixed share of the capital.
    log_before : float
        Logarithm of the evidence of merged monitors, which multiplies the capital.
    log_now, log_peak : float
        Logarithm of the capital now, and at its highest.
    """

    wagers: tuple[Wager, ...]
    log_before: float = 0.0
    log_now: float = 0.0
    log_peak: float = 0.0

    def __post_init__(self) -> None:
        self.wagers = tuple(
            wager if isinstance(wager, Wager) else Wager(**wager) for wager in self.wagers
        )
        if any(math.isnan(value) for value in (self.log_before, self.log_now, self.log_peak)):
            raise InputError("evidence must be a number.")

    def bet(self, bets: Sequence[Bets], shares: Sequence[float] | None = None) -> Float:
        """Bet with all wagers on the same rows.

        Parameters
        ----------
        bets : sequence of Bets
            Bets of each wager.
        shares : sequence of float, optional
            Share of the capital of each wager. By default all shares are equal.

        Returns
        -------
        array
            Logarithm of the total capital after each row.
        """
        if shares is None:
            shares = [1.0 / len(bets)] * len(bets)
        log_capitals = [
            wager.bet(wager_bets) + math.log(share)
            for wager, wager_bets, share in zip(self.wagers, bets, shares)
        ]
        log_total = log_capitals[0]
        if len(log_capitals) > 1:
            log_total = log_sum_exp(np.array(log_capitals))
        log_total = self.log_before + log_total
        if len(log_total):
            self.log_now = float(log_total[-1])
            self.log_peak = max(self.log_peak, float(log_total.max()))
        return log_total

    def merge_with(self, other: Self) -> Self:
        """Return the product of two capitals that bet on different rows.

        The wagers of the result start anew.

        *Proof that the product is valid.*

        1. Order all rows of both by their time of arrival. Each row multiplies one of the two
           capitals by a factor. Under the hypothesis, the mean of the factor is at most one, given
           everything before on both sides.
        2. The product is therefore a supermartingale too, and starts at one.
        3. The product is inspected when it is formed, so its peak is its value at that time. It is
           not valid to multiply the two peaks, or to keep one of them: a peak that one capital
           reached alone counts for its own δ. ∎
        """
        log_product = self.log_now + other.log_now
        new_wagers = tuple(Wager(wager.guess, wager.guess_gain) for wager in self.wagers)
        return type(self)(
            wagers=new_wagers,
            log_before=log_product,
            log_now=log_product,
            log_peak=max(0.0, log_product),
        )
