r"""Drift without labels: are as many rows rejected as at calibration, are their scores spread alike, can lines be read?

Neither says that a promise is broken: only that the rows are not those that it was made for. Both need no label, so
they speak first; look at labelled rows when they do.

**The abstention rate.** At calibration m of n rows were accepted, by a threshold that was chosen on those rows. The
band of equal local levels holds at every threshold at once, so whatever rule chose it: P(accept) lies in [L_m, 1 -
L_{n-m}] but for a chance of δ/4 (`promises.rules.levels`). Two wagers of half the capital each, that the rate of
rejections is above the interval and that it is below, reach 4/(3δ) with probability at most 3δ/4 if it is inside.

**The score's distribution.** `sequential.profile` says with which probability u_t(b) the next row falls into each
of 20 bins, exactly. For a function φ of the bin, φ - Σ_b u_t(b) φ(b) then has mean zero given all rows before. Two
wagers of half the capital each bet on it, up or down: on φ = the place of the bin from -1 to 1 (are rows less sure?),
and on its square (are more of them at the ends?). This is a conformal test martingale (Vovk, Gammerman & Shafer,
"Algorithmic learning in a random world", 2nd ed. 2022, ch. 8) on binned ranks.

**Unreadable lines.** A few broken lines are no reason for an alarm: a limit says how many. The hypothesis is that each
line, given all lines before, cannot be read with probability at most the limit; a wager bets on the next line.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metacal.errors import InputError
from metacal.promises.certificate import Certificate
from metacal.promises.parts.part import Name
from metacal.promises.rules.levels import local_level, quantiles_at
from metacal.promises.sequential.profile import Profile, as_profile, drawn_from_positions
from metacal.promises.sequential.wager import MOST, Alarmed, Capital, Play, Wager, above, as_capital
from metacal.promises.shares import percent
from metacal.rows.validate import fraction

Column = NDArray[np.float64]

#: The share of unreadable lines that is no reason for an alarm.
MOST_UNREADABLE = 0.01
#: The share of δ that the interval for the rate at calibration takes.
_INTERVAL = 0.25
#: Rows that the first guess of a drift of the scores, none, counts as.
_GUESS_ROWS = 50.0


@dataclass
class AbstentionMonitor:
    """Evidence that the share of rejected rows has left what it was at calibration.

    Parameters
    ----------
    n_rows, n_accepted : int
        At calibration.
    delta : float
        The chance of ever raising an alarm while the rate of rejections is what it was.
    parts : tuple of str or int, optional
        The class or group that is watched, where each has its own threshold.
    rows, rejected : int
        Rows so far, and those of them that were rejected.

    Examples
    --------
    >>> monitor = AbstentionMonitor(n_rows=5000, n_accepted=4500)
    >>> [round(bound, 3) for bound in monitor.interval]
    [0.085, 0.117]
    >>> monitor.update(([True] * 9 + [False]) * 100).alarm, monitor.update([False, True] * 100).alarm
    (False, True)
    """

    n_rows: int
    n_accepted: int
    delta: float = 0.05
    parts: tuple[Name, ...] = ()
    rows: int = 0
    rejected: int = 0
    capital: Capital | None = None

    def __post_init__(self) -> None:
        self.parts = tuple(self.parts)
        fraction("delta", self.delta)
        if not 0 <= self.n_accepted <= self.n_rows or self.n_rows < 1:
            raise InputError(f"{self.n_accepted} of {self.n_rows} rows cannot have been accepted.")
        self.capital = as_capital(self.capital)
        if self.capital is None:
            low, high = self.interval
            guesses = [1.0 / max(high, 0.01), 1.0 / max(1.0 - low, 0.01)]
            self.capital = Capital(tuple(Wager(guess=guess, guess_gain=1.0) for guess in guesses))

    @classmethod
    def of(cls, certificate: Certificate, delta: float = 0.05) -> tuple[Self, ...]:
        """One monitor, or one for each class or group that has its own threshold, which share delta."""
        if certificate.parts is None:
            return (cls(certificate.traffic.n_rows, certificate.traffic.n_accepted, delta),)
        known = [part for part in certificate.parts.items if part.status != "always rejected" and part.n_rows]
        share = delta / max(1, len(known))
        return tuple(cls(part.n_rows, part.n_accepted, share, part.names) for part in known)

    @property
    def interval(self) -> tuple[float, float]:
        """What the rate of rejections lies in while the source is that of the calibration rows."""
        level = local_level(self.n_rows, _INTERVAL * self.delta / 2.0)
        ranks = np.array([self.n_accepted, self.n_rows - self.n_accepted])
        accepted, rejected = quantiles_at(ranks, self.n_rows, level).tolist()
        return rejected, 1.0 - accepted

    @property
    def alarm(self) -> bool:
        """Whether the evidence has ever reached 4/(3 delta). It stays."""
        assert self.capital is not None
        return self.capital.log_peak >= self.log_needed

    @property
    def log_needed(self) -> float:
        """The logarithm of the evidence that is an alarm."""
        return -math.log((1.0 - _INTERVAL) * self.delta)

    def update(self, accepted: ArrayLike, parts: ArrayLike | None = None) -> Self:
        """Take in rows, labelled or not, in the order they came."""
        kept = np.atleast_1d(np.asarray(accepted, dtype=bool))
        if self.parts:
            if parts is None or len(names := np.atleast_1d(np.asarray(parts))) != len(kept):
                raise InputError("give the class or group of each row.")
            kept = kept[np.isin(names.astype(str), np.array(self.parts).astype(str))]
        if len(kept):
            assert self.capital is not None
            low, high = self.interval
            more, fewer = (~kept).astype(np.float64), kept.astype(np.float64)
            sides = ((more, high), (fewer, 1.0 - low))
            self.capital.bet([above(events, np.full(len(kept), limit)) for events, limit in sides])
            self.rows += len(kept)
            self.rejected += int((~kept).sum())
        return self

    def __str__(self) -> str:
        low, high = self.interval
        now = percent(round(self.rejected / self.rows, 4)) if self.rows else "nothing yet"
        return (
            f"{now} rejected of {self.rows:,} rows; {percent(round(low, 4))} to {percent(round(high, 4))} is as before"
        )


@dataclass
class ScoreMonitor(Alarmed):
    """Evidence that scores are spread otherwise than those of the calibration rows.

    Examples
    --------
    >>> from metacal.promises.sequential.profile import profile_of
    >>> from metacal.promises.sample import Ranking
    >>> random = np.random.default_rng(0)
    >>> monitor = ScoreMonitor(profile_of(Ranking.of(random.normal(size=5000), np.ones(5000, dtype=bool))))
    >>> monitor.update(random.normal(size=2000)).alarm, monitor.update(random.normal(0.3, size=1000)).alarm
    (False, True)
    """

    profile: Profile
    delta: float = 0.05
    counts: tuple[int, ...] = ()
    capital: Capital | None = None

    def __post_init__(self) -> None:
        fraction("delta", self.delta)
        self.profile = as_profile(self.profile)
        if len(self.profile.edges) < 1:
            raise InputError(f"{self.profile.n_rows} calibration rows are too few to know how scores are spread.")
        self.counts = tuple(map(int, self.counts)) or (0,) * (len(self.profile.edges) + 1)
        if len(self.counts) != len(self.profile.edges) + 1 or min(self.counts) < 0:
            raise InputError("there must be one count for each bin of the score.")
        self.capital = as_capital(self.capital)
        if self.capital is None:
            self.capital = Capital((Wager(guess=_GUESS_ROWS), Wager(guess=_GUESS_ROWS)))

    @property
    def rows(self) -> int:
        """Rows so far."""
        return sum(self.counts)

    def update(self, scores: ArrayLike) -> Self:
        """Take in the scores of rows, labelled or not, in the order they came."""
        given = np.atleast_1d(np.asarray(scores, dtype=np.float64))
        if not len(given):
            return self
        bins = self.profile.bins(given, drawn_from_positions(self.rows, len(given)))
        single = (bins[:, None] == np.arange(len(self.counts))).astype(np.int64)
        seen = np.cumsum(single, axis=0) - single + np.array(self.counts)
        chance = (self.profile.urn + seen) / (self.profile.n_rows + 1.0 + seen.sum(axis=1))[:, None]
        place = np.linspace(-1.0, 1.0, len(self.counts))
        assert self.capital is not None
        self.capital.bet([_play(values, bins, chance) for values in (place, 2.0 * place**2 - 1.0)])
        self.counts = tuple((np.array(self.counts) + single.sum(axis=0)).tolist())
        return self

    @property
    def shift(self) -> float:
        """How far the mean place among the calibration scores has moved: 0 none, 1 all are the least sure."""
        if not self.rows:
            return 0.0
        place, before = np.linspace(-1.0, 1.0, len(self.counts)), self.profile.urn
        return float(place @ (np.array(self.counts) / self.rows - before / before.sum()))

    def __str__(self) -> str:
        which = "less" if self.shift > 0.0 else "more"
        return f"{self.rows:,} scores, {abs(self.shift):.3f} {which} sure on average (0: as before, 1: all at one end)"


@dataclass
class UnreadableMonitor(Alarmed):
    """Evidence that more than a share of the lines cannot be read.

    Parameters
    ----------
    limit : float
        The share that is no reason for an alarm.
    delta : float
        The chance of ever raising an alarm while there are no more.
    lines, unreadable : int
        Lines so far, and those of them that could not be read.

    Examples
    --------
    >>> monitor = UnreadableMonitor()
    >>> monitor.update([True] + [False] * 199).alarm, monitor.update([True, False] * 10).alarm
    (False, True)
    >>> print(monitor)
    11 of 220 lines could not be read (5%); 1% is no reason for an alarm
    """

    limit: float = MOST_UNREADABLE
    delta: float = 0.05
    lines: int = 0
    unreadable: int = 0
    capital: Capital | None = None

    def __post_init__(self) -> None:
        fraction("limit", self.limit)
        fraction("delta", self.delta)
        if not 0 <= self.unreadable <= self.lines:
            raise InputError(f"{self.unreadable} of {self.lines} lines cannot have been unreadable.")
        self.capital = as_capital(self.capital)
        if self.capital is None:
            self.capital = Capital((Wager(guess=1.0 / self.limit, guess_gain=1.0),))

    def update(self, unreadable: ArrayLike) -> Self:
        """Take in lines in the order they came: which of them could not be read."""
        events = np.atleast_1d(np.asarray(unreadable, dtype=bool))
        if len(events):
            assert self.capital is not None
            self.capital.bet([above(events.astype(np.float64), np.full(len(events), self.limit))])
            self.lines += len(events)
            self.unreadable += int(events.sum())
        return self

    def __str__(self) -> str:
        share = f" ({percent(round(self.unreadable / self.lines, 4))})" if self.unreadable else ""
        return (
            f"{self.unreadable:,} of {self.lines:,} lines could not be read{share}; {percent(self.limit)} is no reason "
            "for an alarm"
        )


def _play(values: Column, bins: NDArray[np.intp], chance: Column) -> Play:
    """A play on a function of the bin, up or down, whose mean under the urn is taken off."""
    mean = (chance * values).sum(axis=1)
    spread = np.maximum((chance * values**2).sum(axis=1) - mean**2, 1e-12)
    most = MOST / np.maximum(values.max() - mean, mean - values.min())
    return Play(values[bins] - mean, np.ones(len(bins)), spread, -most, most)
