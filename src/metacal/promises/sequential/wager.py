r"""Wagers: money staked row after row against a hypothesis, whose growth is evidence that may be
looked at at any time.

A hypothesis says of each coming row that a payoff g_t is at most zero on average, given all rows
before. Whoever doubts it stakes λ_t, fixed before g_t is seen: the capital is multiplied by 1 + λ_t
g_t, never below 0. While the hypothesis is true the capital is a nonnegative supermartingale that
begins at 1, and P(it ever reaches 1/δ) <= δ (Ville 1939).

**The stake** is Kelly's for the mean payoff seen lately: λ_t = Δ_t / (v_t s), between `low` and
`high`, where Δ_t is the weighted mean of the payoffs *before* t with a first guess that counts as a
few rows, v_t the variance of a payoff under the hypothesis, and s the mean weight. For 0/1 events
against a limit m (g = x - m, v = m(1 - m)) the factor is the likelihood ratio q/m or (1-q)/(1-m) at
the plug-in rate q = m + Δ.

**When will it break?** Four gamblers share the capital. One looks back on all rows; the others on
the last 3,000, 600 and 120 (to twice as many: whole stretches of that length and the one that
runs), for after a long good time an average over all of it notices nothing. Each of these three
puts 1/2 of its money to work in the first stretch and 1/(2k(k+1)) more at the start of the k-th;
the rest lies idle, so that losses in good times never ruin what a break later needs.

*Proof.* λ_t depends on earlier rows alone, so each gambler's working capital is a supermartingale
between two payments; a payment moves idle money, which neither grows nor shrinks, into it; the
shares of the payments sum to one: 1/2 and Σ_k 1/(2k(k+1)) = 1/2. Sums with fixed weights of
supermartingales are supermartingales. ∎

The sums are taken in the order of the rows, with what was there before as their first term, so that
rows taken one by one, in batches or after a restart give the same numbers.

References
----------
Ville, "Étude critique de la notion de collectif", 1939. Kelly, "A new interpretation of information
rate", 1956. Waudby-Smith & Ramdas, "Estimating means of bounded random variables by betting",
JRSS-B 2024. Shin, Ramdas & Rinaldo, "E-detectors: a nonparametric framework for sequential change
detection", 2024.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from metacal.certificates.subgroup_words import side_of
from metacal.certificates.subgroups import Name
from metacal.errors import InputError, option
from metacal.formulas import Codes, Flags, Float
from metacal.rows.arrays import check_fraction

#: How far back each gambler looks, in rows; 0: on all.
WINDOWS = (0, 3000, 600, 120)
#: What each has: payoffs and weights of the stretch before and of the one that runs, and the
#: logarithm of its money: of none a number far below any, as JSON has no infinity.
_FRESH = (0.0, 0.0, 0.0, 0.0, -1e99)
#: The most that is staked, of what a single payoff could take.
MOST = 0.5


class Play(NamedTuple):
    """What is bet on, row by row.

    `gain` is the payoff g_t, weight included; `weight` says how much the row counts in the mean (0:
    not at all); `spread` is the variance of an unweighted payoff under the hypothesis; the stake is
    kept between `low` and `high`. One number stands for all rows.
    """

    gain: Float
    weight: Float | float
    spread: Float | float
    low: Float | float
    high: Float | float


def above(values: Float, limit: float, weights: Float | float = 1.0) -> Play:
    """A play against "the mean is at most the limit", for values in [0, 1]; a limit of one cannot
    be beaten.

    With weights w in [0, 1] the payoff is w (x - m): of a row that was labelled with probability π
    give π_min/π.
    """
    m, w = min(max(limit, 1e-12), 1.0 - 1e-12), weights if limit < 1.0 else 0.0
    return Play(w * (values - m), w, m * (1.0 - m), 0.0, MOST / m)


def sampling_weights(probability: ArrayLike | None, n: int, least: float) -> Float:
    """How much each of n labelled rows counts: the least probability of being labelled over its
    own.

    >>> sampling_weights([0.1, 0.5], 2, 0.1), sampling_weights(None, 2, 0.1)
    (array([1. , 0.2]), array([1., 1.]))
    """
    if probability is None:
        return np.ones(n)
    chance = np.atleast_1d(np.asarray(probability, dtype=np.float64))
    if chance.shape != (n,) or not ((chance > 0.0) & (chance <= 1.0)).all():
        raise InputError(
            f"probability must be one number for each of the {n} rows, above 0 and at most 1."
        )
    if n and chance.min() < least:
        raise InputError(
            f"a row had been chosen with probability {chance.min():g}, below the least probability"
            f" {least:g} that was said beforehand; begin again with a lower one:"
            f" {option('least_probability', metavar='P')}."
        )
    return np.asarray(least / chance)


class Together(NamedTuple):
    """Rows of whole units: the unit of each row, 0, 1, …; one row of each, drawn at random; what
    sums are divided by.

    That is the number of a unit's rows, labelled or not, where a unit counts as one, and the same
    number for all where each row does; 0 where a unit counts by the mean of its labelled rows.
    """

    codes: Codes
    drawn: Flags
    sizes: Float

    def of(self, rows: Flags | slice) -> Together:
        """The same of some of the rows."""
        return self._replace(codes=self.codes[rows], drawn=self.drawn[rows])

    def summed(self, values: Float, weights: Float) -> tuple[Float, Float]:
        """A value and a weight for each unit that has rows with a weight: their mean, and their sum
        over its size.

        >>> units = Together(np.array([0, 0, 1]), np.array([True, False, True]), np.array([4.0, 1.0]))
        >>> units.summed(np.array([1.0, 0.0, 1.0]), np.ones(3))
        (array([0.5, 1. ]), array([0.5, 1. ]))
        """
        total = np.bincount(self.codes, weights, len(self.sizes))
        there = total > 0.0
        means = np.bincount(self.codes, weights * values, len(self.sizes))[there] / total[there]
        return (
            means,
            np.divide(total, self.sizes, out=np.ones(len(total)), where=self.sizes > 0.0)[there],
        )


@dataclass
class Wager:
    """The gamblers' money on one hypothesis, and what they remember. `guess` rows were seen
    beforehand, so to speak, with payoffs of `guess_gain` in all.

    >>> events = np.array([0.0, 1.0, 0.0, 1.0] * 10)
    >>> wager = Wager(guess=1 / 0.1, guess_gain=1.0)
    >>> path = wager.bet(above(events, 0.1))
    >>> bool(path[-1] > 3.0), wager.rows
    (True, 40)
    """

    guess: float
    guess_gain: float = 0.0
    rows: int = 0
    weights: float = 0.0
    squares: float = 0.0
    gamblers: tuple[tuple[float, ...], ...] = (_FRESH,) * len(WINDOWS)

    def __post_init__(self) -> None:
        self.gamblers = tuple(tuple(map(float, one)) for one in self.gamblers)
        if len(self.gamblers) != len(WINDOWS) or any(
            len(one) != len(_FRESH) for one in self.gamblers
        ):
            raise InputError(f"a wager has {len(WINDOWS)} gamblers, of {len(_FRESH)} numbers each.")
        if self.rows < 0 or not self.guess > 0.0:
            raise InputError(
                "a wager has seen no fewer than 0 rows, and its first guess counts as more than 0."
            )

    def bet(self, play: Play) -> Float:
        """Bet on rows in the order they came; the logarithm of the money after each."""
        n = len(play.gain)
        columns = [np.full(n, column) if isinstance(column, float) else column for column in play]
        _, weight, *_ = columns
        sums = np.cumsum(np.concatenate(([self.weights], weight)))
        squares = np.cumsum(np.concatenate(([self.squares], weight**2)))
        # The mean weight of the rows before each, Σw²/Σw, one row of weight one thought of
        # beforehand.
        scale = (squares[:-1] + 1.0) / (sums[:-1] + 1.0)
        working, idle, gamblers = np.empty((len(WINDOWS), n)), np.zeros(n), []
        for k, (window, state) in enumerate(zip(WINDOWS, self.gamblers)):
            gamblers.append(self._one(columns, scale, window, state, working[k], idle))
        self.rows, self.weights, self.squares = self.rows + n, float(sums[-1]), float(squares[-1])
        self.gamblers = tuple(gamblers)
        return log_sum(working, idle) - math.log(len(WINDOWS))

    def _one(
        self,
        play: Sequence[Float],
        scale: Float,
        window: int,
        state: tuple[float, ...],
        path: Float,
        idle: Float,
    ) -> tuple[float, ...]:
        """One gambler, stretch by stretch: its path, its idle money on top of the others', what it
        is left with.
        """
        n, at = len(path), 0
        before_gain, before_weight, gain, weight, money = state
        while at < n:
            row = self.rows + at
            stretch, within = divmod(row, window) if window else (0, row)
            if within == 0:
                paid = (
                    1.0
                    if not window
                    else 0.5
                    if stretch == 0
                    else 0.5 / (stretch * (stretch + 1.0))
                )
                money = float(np.logaddexp(money, math.log(paid)))
                before_gain, before_weight, gain, weight = gain, weight, 0.0, 0.0
            part = slice(at, min(n, at + window - within) if window else n)
            payoff, counts, spread, low, high = (column[part] for column in play)
            gains = np.cumsum(np.concatenate(([gain], payoff)))
            weights = np.cumsum(np.concatenate(([weight], counts)))
            mean = (before_gain + gains[:-1] + self.guess_gain) / (
                before_weight + weights[:-1] + self.guess
            )
            stake = np.clip(mean / (spread * scale[part]), low, high)
            monies = np.cumsum(np.concatenate(([money], np.log1p(stake * payoff))))
            path[part] = monies[1:]
            if window:  # what it has still to put to work: 1/2 less Σ_{k <= stretch} 1/(2k(k+1))
                idle[part] += 0.5 / (stretch + 1.0)
            gain, weight, money, at = (
                float(gains[-1]),
                float(weights[-1]),
                float(monies[-1]),
                part.stop,
            )
        return before_gain, before_weight, gain, weight, money


def log_sum(logs: Float, plain: Float | float = 0.0) -> Float:
    """log(Σ exp(logs) + plain) of each column, without overflow."""
    largest = logs.max(axis=0)
    capped = np.maximum(largest, 0.0)
    return np.asarray(capped + np.log(np.exp(logs - capped).sum(axis=0) + plain * np.exp(-capped)))


@dataclass
class Capital:
    """Several wagers of fixed shares, looked at together: their sum, and the highest it ever was.

    `log_before` is evidence from elsewhere, a factor: that of monitors which were merged into this
    one.
    """

    wagers: tuple[Wager, ...]
    log_before: float = 0.0
    log_now: float = 0.0
    log_peak: float = 0.0

    def __post_init__(self) -> None:
        self.wagers = tuple(one if isinstance(one, Wager) else Wager(**one) for one in self.wagers)
        if any(math.isnan(value) for value in (self.log_before, self.log_now, self.log_peak)):
            raise InputError("evidence must be a number.")

    def bet(self, plays: Sequence[Play], shares: Sequence[float] | None = None) -> Float:
        """One play for each wager, of the same rows; the logarithm of the capital after each
        row.
        """
        given = [1.0 / len(plays)] * len(plays) if shares is None else shares
        paths = [
            wager.bet(play) + math.log(share)
            for wager, play, share in zip(self.wagers, plays, given)
        ]
        path: Float = self.log_before + (log_sum(np.array(paths)) if len(paths) > 1 else paths[0])
        if len(path):
            self.log_now, self.log_peak = float(path[-1]), max(self.log_peak, float(path.max()))
        return path

    def merged(self, other: Self) -> Self:
        """One capital from two that saw different rows: their product, and wagers that begin anew.

        *Proof that it is valid.* Order all rows of both by the time they came. Each row changes one
        of the two by a factor whose mean, given everything before on both sides, is at most one
        under the hypothesis; the product therefore is a supermartingale too, begun at one. It is
        looked at when merged: its peak is its value then. What either had reached alone before
        counts for that one's own δ, and is not carried over. ∎
        """
        both = self.log_now + other.log_now
        fresh = tuple(Wager(one.guess, one.guess_gain) for one in self.wagers)
        return type(self)(fresh, both, both, max(0.0, both))


class Monitor:
    """What every monitor has: its `delta`, the chance of ever raising an alarm while all is as it
    should be, and the capital that is bet against what it watches.

    A capital that was saved as a mapping, as `dataclasses.asdict` makes it, goes on from there.
    """

    delta: float
    capital: Capital | None
    #: The share of delta that the bets have.
    of_bets: ClassVar[float] = 1.0
    #: The class or group that is watched, several where they are pooled; empty: all rows.
    parts: tuple[Name, ...] = ()
    #: Where groups have two sides: the class that the rows which are watched are called by.
    called: Name | None = None

    def begin(self, *wagers: Wager) -> None:
        """Check delta, and begin with these wagers unless there is a capital already."""
        check_fraction("delta", self.delta)
        self.parts = tuple(self.parts)
        saved: Any = self.capital
        self.capital = (
            Capital(wagers)
            if saved is None
            else Capital(**saved)
            if isinstance(saved, Mapping)
            else saved
        )

    @property
    def money(self) -> Capital:
        """The capital, which is there once it has begun."""
        assert self.capital is not None
        return self.capital

    @property
    def log_evidence(self) -> float:
        return self.money.log_now

    @property
    def log_peak(self) -> float:
        return self.money.log_peak

    @property
    def log_needed(self) -> float:
        """The logarithm of the evidence that is an alarm."""
        return -math.log(self.of_bets * self.delta)

    @property
    def alarm(self) -> bool:
        """Whether the evidence has ever reached what is needed. It stays: begin anew after you have
        acted.
        """
        return self.log_peak >= self.log_needed

    @property
    def seen(self) -> str:
        """What was seen, and what is no reason for an alarm."""
        return f"{self.watched}: {self}" if self.parts else str(self)

    @property
    def watched(self) -> str:
        """The first few classes or groups; empty: all rows."""
        shown = [side_of(name, self.called) for name in self.parts[:5]]
        return ", ".join(shown if len(self.parts) < 6 else [*shown, "..."])

    def own(self, n: int, parts: ArrayLike | None) -> Flags | slice:
        """Those of n rows that belong to the class or group that is watched, or to this side of it;
        all where none is.

        `parts` has the class or group of each row, and what it is called where groups have two
        sides.
        """
        if not self.parts:
            return slice(None)
        if self.called is None:
            return self.among(n, parts)
        return self.among(n, parts) & (np.asarray(parts)[:, 1].astype(str) == str(self.called))

    def among(self, n: int, parts: ArrayLike | None) -> Flags:
        """The same, on both sides of a group."""
        if parts is None or len(names := np.atleast_1d(np.asarray(parts))) != n:
            raise InputError(
                f"this monitor watches {self.watched}; give the class or group of each row."
            )
        groups = names if self.called is None else names[:, 0]
        return np.isin(groups.astype(str), np.array(self.parts).astype(str))
