r"""Drift: are as many rows rejected as at calibration, are scores spread alike, can lines be read, is confidence right?

None of it says that a promise is broken: only that the rows are not those that it was made for. All but the last need
no label, so they speak first; look at labelled rows when they do.

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

**Calibration**, on accepted, labelled rows: is a confidence of 98% still right 98 times in a hundred? No calibrator is
perfect, so the hypothesis is one with a tolerance τ: given the confidence c of an accepted row and all rows before, it
is wrong with probability at most 1 - c + τ (not overconfident), and right with probability at most c + τ (not
underconfident). Each is a wager against a limit that belongs to the row. As a gap at one level of confidence may hide
an opposite gap at another, half of the capital bets on all rows and half on four bins of the confidence, each half
shared by the two sides.
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
from metacal.promises.sequential.profile import Profile, drawn_from_positions
from metacal.promises.sequential.wager import MOST, Capital, Monitor, Play, Wager, above, sampling_weights
from metacal.promises.words import percent
from metacal.rows.arrays import fraction

Column = NDArray[np.float64]

#: The share of unreadable lines that is no reason for an alarm.
MOST_UNREADABLE = 0.01
#: The share of δ that the interval for the rate at calibration takes.
_INTERVAL = 0.25
#: Rows that the first guess of a drift of the scores, none, counts as.
_GUESS_ROWS = 50.0

#: Where the bins of the confidence begin.
CONFIDENCES = (0.0, 0.8, 0.95, 0.99)
#: A gap that a fit on a few thousand rows leaves.
TOLERANCE = 0.02
#: Shares of the capital: all rows, then each bin; of each, the two sides.
_SHARES = [0.25] * 2 + [0.5 / len(CONFIDENCES) / 2.0] * (2 * len(CONFIDENCES))
#: The first guess is a gap of as much again as is tolerated, held with the weight of one over the tolerance rows.
_GUESS_GAIN = 1.0


@dataclass
class AbstentionMonitor(Monitor):
    """Evidence that the share of rejected rows has left what it was at calibration: `n_accepted` of `n_rows`.

    `rows` so far, of which `rejected` were.

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
        if not 0 <= self.n_accepted <= self.n_rows or self.n_rows < 1:
            raise InputError(f"{self.n_accepted} of {self.n_rows} rows cannot have been accepted.")
        low, high = self.interval
        guesses = (1.0 / max(high, 0.01), 1.0 / max(1.0 - low, 0.01))
        self.begin(*(Wager(guess=guess, guess_gain=1.0) for guess in guesses))

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
    def log_needed(self) -> float:
        """The interval has its share of delta: 4/(3 delta) is an alarm."""
        return -math.log((1.0 - _INTERVAL) * self.delta)

    def update(self, accepted: ArrayLike, parts: ArrayLike | None = None) -> Self:
        kept = np.atleast_1d(np.asarray(accepted, dtype=bool))
        kept = kept[self.own(len(kept), parts)]
        if len(kept):
            low, high = self.interval
            more, fewer = (~kept).astype(np.float64), kept.astype(np.float64)
            sides = ((more, high), (fewer, 1.0 - low))
            self.money.bet([above(events, np.full(len(kept), limit)) for events, limit in sides])
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
class ScoreMonitor(Monitor):
    """Evidence that scores are spread otherwise than those of the calibration rows.

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
        if len(self.profile.edges) < 1:
            raise InputError(f"{self.profile.n_rows} calibration rows are too few to know how scores are spread.")
        self.counts = tuple(map(int, self.counts)) or (0,) * (len(self.profile.edges) + 1)
        if len(self.counts) != len(self.profile.edges) + 1 or min(self.counts) < 0:
            raise InputError("there must be one count for each bin of the score.")
        self.begin(Wager(guess=_GUESS_ROWS), Wager(guess=_GUESS_ROWS))

    @property
    def rows(self) -> int:
        return sum(self.counts)

    def update(self, scores: ArrayLike) -> Self:
        given = np.atleast_1d(np.asarray(scores, dtype=np.float64))
        if not len(given):
            return self
        bins = self.profile.bins(given, drawn_from_positions(self.rows, len(given)))
        single = (bins[:, None] == np.arange(len(self.counts))).astype(np.int64)
        seen = np.cumsum(single, axis=0) - single + np.array(self.counts)
        chance = (self.profile.urn + seen) / (self.profile.n_rows + 1.0 + seen.sum(axis=1))[:, None]
        place = np.linspace(-1.0, 1.0, len(self.counts))
        self.money.bet([_play(values, bins, chance) for values in (place, 2.0 * place**2 - 1.0)])
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
class UnreadableMonitor(Monitor):
    """Evidence that more than a share of the lines, `limit`, cannot be read: `unreadable` of `lines` so far.

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
        if not 0 <= self.unreadable <= self.lines:
            raise InputError(f"{self.unreadable} of {self.lines} lines cannot have been unreadable.")
        self.begin(Wager(guess=1.0 / self.limit, guess_gain=1.0))

    def update(self, unreadable: ArrayLike) -> Self:
        events = np.atleast_1d(np.asarray(unreadable, dtype=bool))
        if len(events):
            self.money.bet([above(events.astype(np.float64), np.full(len(events), self.limit))])
            self.lines += len(events)
            self.unreadable += int(events.sum())
        return self

    def __str__(self) -> str:
        share = f" ({percent(round(self.unreadable / self.lines, 4))})" if self.unreadable else ""
        return (
            f"{self.unreadable:,} of {self.lines:,} lines could not be read{share}; {percent(self.limit)} is no reason "
            "for an alarm"
        )


@dataclass
class CalibrationMonitor(Monitor):
    """Evidence that the confidence of accepted rows is off by more than the tolerance, on either side.

    `rows` accepted ones have a label so far, `right` of them are right, `confidence` is the sum of theirs;
    `least_probability` as of `PromiseMonitor`.

    >>> random, confidence = np.random.default_rng(0), np.full(1000, 0.95)
    >>> monitor = CalibrationMonitor()
    >>> monitor.update(confidence, random.random(1000) < 0.95).alarm
    False
    >>> monitor.update(confidence, random.random(1000) < 0.85).alarm
    True
    """

    tolerance: float = TOLERANCE
    delta: float = 0.05
    least_probability: float = 1.0
    rows: int = 0
    right: int = 0
    confidence: float = 0.0
    capital: Capital | None = None

    def __post_init__(self) -> None:
        fraction("tolerance", self.tolerance)
        self.begin(*(Wager(guess=1.0 / self.tolerance, guess_gain=_GUESS_GAIN) for _ in _SHARES))

    def update(self, confidence: ArrayLike, correct: ArrayLike, probability: ArrayLike | None = None) -> Self:
        """Take in accepted, labelled rows: their confidence and whether they were right; `probability` as elsewhere."""
        sure = np.atleast_1d(np.asarray(confidence, dtype=np.float64))
        right = np.atleast_1d(np.asarray(correct, dtype=bool))
        if sure.shape != right.shape or not ((sure >= 0.0) & (sure <= 1.0)).all():
            raise InputError("give one confidence between 0 and 1 and one flag for each row.")
        if not len(sure):
            return self
        weight = sampling_weights(probability, len(sure), self.least_probability)
        hit = right.astype(np.float64)
        sides = ((1.0 - hit, 1.0 - sure + self.tolerance), (hit, sure + self.tolerance))
        bins = np.searchsorted(CONFIDENCES, sure, side="right") - 1
        inside = [np.ones(len(sure), dtype=bool)] + [bins == k for k in range(len(CONFIDENCES))]
        plays = [above(events, limits, weight * here) for here in inside for events, limits in sides]
        self.money.bet(plays, _SHARES)
        self.rows += len(sure)
        self.right += int(right.sum())
        # In the order of the rows: the same sum whatever the batches.
        self.confidence = float(np.cumsum(np.concatenate(([self.confidence], sure)))[-1])
        return self

    @property
    def gap(self) -> float | None:
        """Mean confidence less the share of right ones; None without rows. Rows count alike."""
        return (self.confidence - self.right) / self.rows if self.rows else None

    def __str__(self) -> str:
        if not self.rows:
            return "no accepted row has a label yet"
        sure, right = 100.0 * self.confidence / self.rows, 100.0 * self.right / self.rows
        return (
            f"confidence {sure:.2f}%, right {right:.2f}% of {self.rows:,} accepted rows; tolerance {self.tolerance:.2%}"
        )


def _play(values: Column, bins: NDArray[np.intp], chance: Column) -> Play:
    """A play on a function of the bin, up or down, whose mean under the urn is taken off."""
    mean = (chance * values).sum(axis=1)
    spread = np.maximum((chance * values**2).sum(axis=1) - mean**2, 1e-12)
    most = MOST / np.maximum(values.max() - mean, mean - values.min())
    return Play(values[bins] - mean, np.ones(len(bins)), spread, -most, most)
