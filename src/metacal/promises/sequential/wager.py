r"""Evidence by betting: capital staked row by row against a hypothesis.

The hypothesis is that each payoff g_t has a conditional mean of at most zero, given all earlier
rows. Before g_t is observed, a stake λ_t is chosen, and the row multiplies the capital by
1 + λ_t g_t, which is never negative. If the hypothesis is true, the capital is a nonnegative
supermartingale that starts at 1, and P(the capital ever reaches 1/δ) <= δ (Ville 1939). The capital
is therefore evidence that you may inspect after every row.

**The stake** is Kelly's stake for the recent mean payoff: λ_t = Δ_t / (v_t s), clipped to the range
from `min_stake` to `max_stake`. Δ_t is the weighted mean of the payoffs *before* t, including a
first guess that counts as a few rows, v_t is the variance of a payoff under the hypothesis, and
s = Σw²/Σw over the weights w before t. The ratio s occurs because Kelly's stake is the mean of the
weighted payoffs w g over their mean square, about Δ Σw / (v Σw²). For 0/1 events against a limit m (g = x - m, v = m(1 - m)), the factor is the
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
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np

from metacal.certificates.stored_fields import stored_as
from metacal.errors import InputError
from metacal.formulas import Float
from metacal.promises.sequential.stretches import (
    compute_invested_share,
    compute_uninvested_share,
    split_into_stretches,
)

#: Length of the window of each gambler, in rows. None stands for all rows.
WINDOW_LENGTHS = (None, 3000, 600, 120)

# This finite number stands for the logarithm of zero capital, because JSON has no infinity.
_LOG_OF_ZERO_CAPITAL = -1e99


#: Largest share of the capital that a wager may lose on a single row.
MAX_LOST_CAPITAL_SHARE = 0.5

# Limits are clipped to this distance from 0 and 1, so that the variance of a payoff is positive.
_MIN_DISTANCE_FROM_0_AND_1 = 1e-12


class _GamblerState(NamedTuple):
    """State of one gambler between two rows.

    Attributes
    ----------
    previous_stretch_payoff_sum, previous_stretch_weight_sum : float
        Sums of the payoffs and weights of the rows of the previous stretch.
    stretch_payoff_sum, stretch_weight_sum : float
        Sums of the payoffs and weights of the rows of the current stretch.
    log_invested_capital : float
        Logarithm of the invested capital.
    """

    previous_stretch_payoff_sum: float = 0.0
    previous_stretch_weight_sum: float = 0.0
    stretch_payoff_sum: float = 0.0
    stretch_weight_sum: float = 0.0
    log_invested_capital: float = _LOG_OF_ZERO_CAPITAL

    def start_stretch(self, added_capital: float) -> _GamblerState:
        """Return the state at the start of the next stretch, with more capital invested."""
        return _GamblerState(
            previous_stretch_payoff_sum=self.stretch_payoff_sum,
            previous_stretch_weight_sum=self.stretch_weight_sum,
            stretch_payoff_sum=0.0,
            stretch_weight_sum=0.0,
            log_invested_capital=float(
                np.logaddexp(self.log_invested_capital, math.log(added_capital))
            ),
        )


class _GamblerResult(NamedTuple):
    """Result of betting the capital of one gambler on consecutive rows.

    Attributes
    ----------
    new_state : _GamblerState
        State after the last row.
    log_invested_capital : array
        Logarithm of the invested capital after each row.
    uninvested_capital : array
        Capital that is not yet invested at each row, for an initial capital of 1.
    """

    new_state: _GamblerState
    log_invested_capital: Float
    uninvested_capital: Float


# State of a gambler before the first row, as the tuple of numbers that a saved monitor contains.
_INITIAL_GAMBLER = tuple(_GamblerState())


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

    def expand_to_rows(self) -> _RowBets:
        """Broadcast each scalar to an array with one entry per row."""
        n_rows = len(self.payoffs)
        return _RowBets(
            *(np.full(n_rows, column) if isinstance(column, float) else column for column in self)
        )


class _RowBets(NamedTuple):
    """Bets with one entry per row in every column."""

    payoffs: Float
    weights: Float
    variance: Float
    min_stake: Float
    max_stake: Float

    def select_rows(self, rows: slice) -> _RowBets:
        """Return the bets on a slice of consecutive rows."""
        selects_all_rows = rows.start == 0 and rows.stop == len(self.payoffs)
        if selects_all_rows:
            return self
        return _RowBets(*(column[rows] for column in self))


def build_bets_on_mean_above(values: Float, limit: float, weights: Float | float = 1.0) -> Bets:
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
    clipped_limit = min(max(limit, _MIN_DISTANCE_FROM_0_AND_1), 1.0 - _MIN_DISTANCE_FROM_0_AND_1)
    is_limit_always_kept = limit >= 1.0
    if is_limit_always_kept:
        weights = 0.0
    return Bets(
        payoffs=weights * (values - clipped_limit),
        weights=weights,
        variance=clipped_limit * (1.0 - clipped_limit),
        min_stake=0.0,
        max_stake=MAX_LOST_CAPITAL_SHARE / clipped_limit,
    )


@dataclass
class Wager:
    """Capital of the gamblers who bet against one hypothesis.

    Parameters
    ----------
    n_imaginary_rows : float
        Number of imaginary earlier rows, from which the first mean payoff is computed.
    imaginary_payoff_sum : float
        Sum of the payoffs of the imaginary rows.
    n_rows : int
        Number of rows so far.
    weight_sum, squared_weight_sum : float
        Sum of the weights of the rows, and sum of the squared weights.
    gambler_states : tuple of tuple of float
        State of each gambler: sums of payoffs and weights in the previous and in the current
        stretch, and the logarithm of the invested capital.

    Examples
    --------
    >>> events = np.array([0.0, 1.0, 0.0, 1.0] * 10)
    >>> wager = Wager(n_imaginary_rows=1 / 0.1, imaginary_payoff_sum=1.0)
    >>> log_capital = wager.bet(build_bets_on_mean_above(events, limit=0.1))
    >>> bool(log_capital[-1] > 3.0), wager.n_rows
    (True, 40)
    """

    n_imaginary_rows: float = field(metadata=stored_as("guess"))
    imaginary_payoff_sum: float = field(default=0.0, metadata=stored_as("guess_gain"))
    n_rows: int = field(default=0, metadata=stored_as("rows"))
    weight_sum: float = field(default=0.0, metadata=stored_as("weights"))
    squared_weight_sum: float = field(default=0.0, metadata=stored_as("squares"))
    gambler_states: tuple[tuple[float, ...], ...] = field(
        default=(_INITIAL_GAMBLER,) * len(WINDOW_LENGTHS), metadata=stored_as("gamblers")
    )

    def __post_init__(self) -> None:
        self.gambler_states = tuple(tuple(map(float, gambler)) for gambler in self.gambler_states)
        n_numbers = len(_INITIAL_GAMBLER)
        if len(self.gambler_states) != len(WINDOW_LENGTHS) or any(
            len(gambler) != n_numbers for gambler in self.gambler_states
        ):
            raise InputError(
                f"A wager must have {len(WINDOW_LENGTHS)} gamblers with {n_numbers} numbers each."
            )
        if self.n_rows < 0 or not self.n_imaginary_rows > 0.0:
            raise InputError(
                "A wager must have a nonnegative number of rows, and the weight of its first"
                " guess must be positive."
            )

    @property
    def payoff_sum(self) -> float:
        """Sum of the payoffs of all rows."""
        # The first gambler has no window, so its current stretch contains all rows.
        return _GamblerState(*self.gambler_states[0]).stretch_payoff_sum

    def restart(self) -> Wager:
        """Return a wager with the same imaginary rows and no observed rows."""
        return Wager(
            n_imaginary_rows=self.n_imaginary_rows,
            imaginary_payoff_sum=self.imaginary_payoff_sum,
        )

    def bet(self, bets: Bets) -> Float:
        """Bet on consecutive rows, and return the logarithm of the capital after each row.

        The capital is the mean of the gamblers' capitals, each of which starts at 1.
        """
        n_rows = len(bets.payoffs)
        row_bets = bets.expand_to_rows()
        weight_sums = _compute_running_sums(row_bets.weights, initial_sum=self.weight_sum)
        squared_weight_sums = _compute_running_sums(
            np.square(row_bets.weights), initial_sum=self.squared_weight_sum
        )
        # A weighted payoff has Σw²/Σw times the variance, estimated from the earlier rows. Adding 1
        # to both sums avoids dividing by zero.
        variance_factors = (squared_weight_sums[:-1] + 1.0) / (weight_sums[:-1] + 1.0)
        log_invested_by_gambler = []
        total_uninvested_capital = np.zeros(n_rows)
        new_gambler_states = []
        for state_numbers, window_length in zip(self.gambler_states, WINDOW_LENGTHS, strict=True):
            result = self._bet_as_gambler(
                _GamblerState(*state_numbers),
                row_bets,
                variance_factors,
                window_length=window_length,
            )
            new_gambler_states.append(tuple(result.new_state))
            log_invested_by_gambler.append(result.log_invested_capital)
            total_uninvested_capital += result.uninvested_capital
        self.n_rows += n_rows
        self.weight_sum = float(weight_sums[-1])
        self.squared_weight_sum = float(squared_weight_sums[-1])
        self.gambler_states = tuple(new_gambler_states)
        # Invested capital is stored as a logarithm, because it can overflow. Idle capital cannot.
        log_total_capital = log_sum_exp(
            np.array(log_invested_by_gambler), nonlogarithmic_term=total_uninvested_capital
        )
        n_gamblers = len(WINDOW_LENGTHS)
        return log_total_capital - math.log(n_gamblers)

    def _bet_as_gambler(
        self,
        state: _GamblerState,
        bets: _RowBets,
        variance_factors: Float,
        *,
        window_length: int | None,
    ) -> _GamblerResult:
        """Bet on consecutive rows with the stakes of one gambler.

        Parameters
        ----------
        state : _GamblerState
            State of the gambler before the first row.
        bets : _RowBets
            Bets on the rows.
        variance_factors : array
            Factor Σw²/Σw of the variance of a payoff, from the weights before each row.
        window_length : int or None
            Number of rows of a stretch of the gambler. None stands for all rows.

        Returns
        -------
        _GamblerResult
        """
        n_rows = len(bets.payoffs)
        log_invested_capital = np.empty(n_rows)
        uninvested_capital = np.zeros(n_rows)
        has_window = window_length is not None
        # A gambler invests more capital at the start of each stretch, which is as long as a window.
        for part in split_into_stretches(
            n_rows, n_earlier_rows=self.n_rows, stretch_length=window_length
        ):
            if part.contains_start_of_stretch:
                newly_invested_capital = compute_invested_share(
                    part.stretch_number, has_window=has_window
                )
                state = state.start_stretch(newly_invested_capital)
            state, log_invested_capital[part.rows] = self._bet_within_stretch(
                state, bets.select_rows(part.rows), variance_factors[part.rows]
            )
            if has_window:
                uninvested_capital[part.rows] = compute_uninvested_share(part.stretch_number)
        return _GamblerResult(
            new_state=state,
            log_invested_capital=log_invested_capital,
            uninvested_capital=uninvested_capital,
        )

    def _bet_within_stretch(
        self, state: _GamblerState, bets: _RowBets, variance_factors: Float
    ) -> tuple[_GamblerState, Float]:
        """Bet on the rows of one stretch, with Kelly stakes for the mean payoff so far.

        Parameters
        ----------
        state : _GamblerState
            State of the gambler before the first row.
        bets : _RowBets
            Bets on the rows.
        variance_factors : array
            Factor Σw²/Σw of the variance of a payoff, from the weights before each row.

        Returns
        -------
        state : _GamblerState
            State after the last row.
        log_invested_capital : array
            Logarithm of the invested capital after each row.
        """
        # Each array of running sums has one extra entry, the sum before the first row.
        payoff_sums = _compute_running_sums(bets.payoffs, initial_sum=state.stretch_payoff_sum)
        weight_sums = _compute_running_sums(bets.weights, initial_sum=state.stretch_weight_sum)
        payoff_sums_before_row = payoff_sums[:-1]
        weight_sums_before_row = weight_sums[:-1]
        # The mean payoff is over imaginary rows, the previous stretch, and this stretch so far.
        mean_payoffs_before_row = (
            state.previous_stretch_payoff_sum + payoff_sums_before_row + self.imaginary_payoff_sum
        ) / (state.previous_stretch_weight_sum + weight_sums_before_row + self.n_imaginary_rows)
        kelly_stakes = mean_payoffs_before_row / (bets.variance * variance_factors)
        stakes = np.clip(kelly_stakes, bets.min_stake, bets.max_stake)
        log_growth_factors = np.log1p(stakes * bets.payoffs)
        log_invested_capital = _compute_running_sums(
            log_growth_factors, initial_sum=state.log_invested_capital
        )
        new_state = _GamblerState(
            previous_stretch_payoff_sum=state.previous_stretch_payoff_sum,
            previous_stretch_weight_sum=state.previous_stretch_weight_sum,
            stretch_payoff_sum=float(payoff_sums[-1]),
            stretch_weight_sum=float(weight_sums[-1]),
            log_invested_capital=float(log_invested_capital[-1]),
        )
        return new_state, log_invested_capital[1:]


def _compute_running_sums(values: Float, *, initial_sum: float) -> Float:
    """Return the cumulative sums of the values, starting with the initial sum."""
    return np.cumsum(np.concatenate(([initial_sum], values)))


def log_sum_exp(log_terms: Float, *, nonlogarithmic_term: Float | float = 0.0) -> Float:
    """Compute log(Σ exp(log_terms) + nonlogarithmic_term) by column, stably."""
    offset = np.maximum(log_terms.max(axis=0), 0.0)
    scaled_sum = np.exp(log_terms - offset).sum(axis=0) + nonlogarithmic_term * np.exp(-offset)
    return np.asarray(offset + np.log(scaled_sum))


@dataclass
class Capital:
    """Total capital of several wagers, and the highest value that it reached.

    Parameters
    ----------
    wagers : tuple of Wager
        Wagers, each with a fixed share of the capital.
    log_merged_evidence : float
        Logarithm of the evidence of merged monitors, which multiplies the capital.
    log_evidence, log_highest_evidence : float
        Logarithm of the evidence now, and at its highest.
    """

    wagers: tuple[Wager, ...]
    log_merged_evidence: float = field(default=0.0, metadata=stored_as("log_before"))
    log_evidence: float = field(default=0.0, metadata=stored_as("log_now"))
    log_highest_evidence: float = field(default=0.0, metadata=stored_as("log_peak"))

    def __post_init__(self) -> None:
        self.wagers = tuple(
            wager if isinstance(wager, Wager) else Wager(**wager) for wager in self.wagers
        )
        if any(
            math.isnan(value)
            for value in (self.log_merged_evidence, self.log_evidence, self.log_highest_evidence)
        ):
            raise InputError("evidence must be a number, but it is NaN.")

    def bet(self, bets: Sequence[Bets], shares: Sequence[float] | None = None) -> Float:
        """Bet with all wagers, and return the logarithm of the evidence after each row.

        Parameters
        ----------
        bets : sequence of Bets
            Bets of each wager.
        shares : sequence of float, optional
            Share of the capital of each wager. By default all shares are equal.

        Returns
        -------
        array
            Logarithm of the evidence after each row: total capital times merged evidence.
        """
        n_wagers = len(bets)
        if shares is None:
            shares = [1.0 / n_wagers] * n_wagers
        log_capitals = []
        for wager, wager_bets, share in zip(self.wagers, bets, shares):
            log_growth = wager.bet(wager_bets)
            log_capitals.append(log_growth + math.log(share))
        log_total_capital = log_capitals[0]
        if n_wagers > 1:
            log_total_capital = log_sum_exp(np.array(log_capitals))
        log_evidence = self.log_merged_evidence + log_total_capital
        has_rows = len(log_evidence) > 0
        if has_rows:
            self.log_evidence = float(log_evidence[-1])
            self.log_highest_evidence = max(self.log_highest_evidence, float(log_evidence.max()))
        return log_evidence

    def multiply_with(self, other: Self) -> Self:
        """Return the product of two capitals that bet on different rows.

        The product continues with new wagers.

        *Proof that the product is valid.*

        1. Order all rows of both by their time of arrival. Each row multiplies one of the two
           capitals by a factor. Under the hypothesis, the mean of the factor is at most one, given
           everything before on both sides.
        2. The product is therefore a supermartingale too, and starts at one.
        3. The product is inspected when it is formed, so its peak is its value at that time. It is
           not valid to multiply the two peaks, or to keep one of them: a peak that one capital
           reached alone counts for its own δ. ∎
        """
        log_product = self.log_evidence + other.log_evidence
        restarted_wagers = tuple(wager.restart() for wager in self.wagers)
        # A capital starts at 1, so the logarithm of its peak is never below 0.
        log_highest_evidence = max(0.0, log_product)
        return type(self)(
            wagers=restarted_wagers,
            log_merged_evidence=log_product,
            log_evidence=log_product,
            log_highest_evidence=log_highest_evidence,
        )
