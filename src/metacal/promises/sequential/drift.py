r"""Drift: are as many rows rejected as at calibration, are scores spread alike, can lines be read,
is confidence right?

None of it says that a promise is broken: only that the rows are not those that it was made for. All
but the last need no label, so they speak first; look at labelled rows when they do.

**The abstention rate.** At calibration m of n rows were accepted, by a threshold that was chosen on
those rows. The band of equal local levels holds at every threshold at once, so whatever rule chose
it: P(accept) lies in [L_m, 1 - L_{n-m}] but for a chance of δ/4 (`statistics.levels`). Two
wagers of half the capital each, that the rate of rejections is above the interval and that it is
below, reach 4/(3δ) with probability at most 3δ/4 if it is inside.

**The score's distribution.** `sequential.profile` says with which probability u_t(b) the next row
falls into each of 20 bins, exactly. For a function φ of the bin, φ - Σ_b u_t(b) φ(b) then has mean
zero given all rows before. Two wagers of half the capital each bet on it, up or down: on φ = the
place of the bin from -1 to 1 (are rows less sure?), and on its square (are more of them at the
ends?). This is a conformal test martingale (Vovk, Gammerman & Shafer, "Algorithmic learning in a
random world", 2nd ed. 2022, ch. 8) on binned ranks.

**Unreadable lines.** A few broken lines are no reason for an alarm: a limit says how many. The
hypothesis is that each line, given all lines before, cannot be read with probability at most the
limit; a wager bets on the next line.

**Calibration**, on accepted, labelled rows: is a confidence of 98% still as good as it was? No
calibrator is perfect, so the hypothesis is one with an allowance: of the rows whose confidence lies
in a bin, the mean of (wrong - (1 - c)), c the confidence, is at most o given all rows before (not
overconfident), and that of (right - c) at most u (not underconfident). Four bins, and all rows as
one, as a gap at one level of confidence may hide an opposite one at another: half of the capital
bets on all rows, half on the bins, each half shared by the two sides. Within a bin gaps may differ,
so that the stake must not depend on a row's own confidence: it is capped by the most that any row
of the bin can lose.

*What is allowed*: the tolerance τ, or what the calibration rows themselves allow, whichever is
more. If n of them lay in the bin with a mean gap ĝ of confidence over right answers, the true mean
of the gap lies within ĝ ± t, t = √(2vL/n)
+ 2L/(3n), v the variance of being right, L = log(10 sides · 4/δ), but for a chance of δ/4 over all sides (Bernstein
1924; that the map was fitted on the same rows changes ĝ and the true gap alike, to first order): o
= max(τ, ĝ + t), u = max(τ, t - ĝ), and the wagers have 3δ/4. A bin without calibration rows allows
everything. Without any (a calibrator alone) the tolerance is what is tested.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from metacal.certificates.certificate import Certificate
from metacal.certificates.counts import OPTIONAL
from metacal.certificates.number_format import format_percent
from metacal.certificates.subgroups import Name
from metacal.errors import InputError
from metacal.formulas import Codes, Float
from metacal.promises.sequential.monitor_base import Monitor
from metacal.promises.sequential.profile import (
    CONFIDENCE_BIN_STARTS,
    Profile,
    assign_confidence_bins,
    uniform_numbers_at_positions,
)
from metacal.promises.sequential.wager import (
    MAX_LOSS,
    Bets,
    Capital,
    Wager,
    bet_on_mean_above,
    compute_sampling_weights,
)
from metacal.rows.arrays import check_fraction
from metacal.statistics.levels import local_level, order_statistic_quantiles

#: The share of unreadable lines that is no reason for an alarm.
DEFAULT_UNREADABLE_LIMIT = 0.01
#: The share of δ that the intervals for what was at calibration take: 4/(3 delta) is an alarm then.
_INTERVAL = 0.25
#: Rows that the first guess of a drift of the scores, none, counts as.
_GUESS_ROWS = 50.0

#: A gap that a fit on a few thousand rows leaves.
DEFAULT_TOLERANCE = 0.02
#: Shares of the capital: all rows, then each bin; of each, the two sides.
_SHARES = [0.25] * 2 + [0.5 / len(CONFIDENCE_BIN_STARTS) / 2.0] * (2 * len(CONFIDENCE_BIN_STARTS))


@dataclass
class AbstentionMonitor(Monitor):
    """Evidence that the share of rejected rows has left what it was at calibration: `n_accepted` of
    `n_rows`.

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
    called: Name | None = field(default=None, metadata=OPTIONAL)

    betting_share: ClassVar[float] = 1.0 - _INTERVAL

    def __post_init__(self) -> None:
        if not 0 <= self.n_accepted <= self.n_rows or self.n_rows < 1:
            raise InputError(f"{self.n_accepted} of {self.n_rows} rows cannot have been accepted.")
        low, high = self.interval
        guesses = (1.0 / max(high, 0.01), 1.0 / max(1.0 - low, 0.01))
        self.start_betting(*(Wager(guess=guess, guess_gain=1.0) for guess in guesses))

    @classmethod
    def from_certificate(cls, certificate: Certificate, delta: float = 0.05) -> tuple[Self, ...]:
        """One monitor, or one for each class or group that has its own threshold, which share
        delta.

        Of a cascade the rows that its first model leaves: the interval holds at every threshold of
        one score.
        """
        if certificate.stages is not None:
            return (cls(certificate.n_rows, certificate.stages.items[0].n_rows, delta),)
        if certificate.parts is None:
            return (cls(certificate.traffic.n_rows, certificate.traffic.n_accepted, delta),)
        known = [
            part
            for part in certificate.parts.items
            if part.status != "always rejected" and part.n_rows
        ]
        share = delta / max(1, len(known))
        return tuple(
            cls(part.n_rows, part.n_accepted, share, part.names, called=part.called)
            for part in known
        )

    @property
    def interval(self) -> tuple[float, float]:
        """What the rate of rejections lies in while the source is that of the calibration rows."""
        level = local_level(self.n_rows, _INTERVAL * self.delta / 2.0)
        ranks = np.array([self.n_accepted, self.n_rows - self.n_accepted])
        accepted, rejected = order_statistic_quantiles(ranks, self.n_rows, level).tolist()
        return rejected, 1.0 - accepted

    def update(self, accepted: ArrayLike, parts: ArrayLike | None = None) -> Self:
        kept = np.atleast_1d(np.asarray(accepted, dtype=bool))
        kept = kept[self.find_monitored_rows(len(kept), parts)]
        if len(kept):
            low, high = self.interval
            sides = ((~kept, high), (kept, 1.0 - low))
            self.current_capital.bet(
                [bet_on_mean_above(events.astype(np.float64), limit) for events, limit in sides]
            )
            self.rows += len(kept)
            self.rejected += int((~kept).sum())
        return self

    def __str__(self) -> str:
        low, high = self.interval
        now = format_percent(round(self.rejected / self.rows, 4)) if self.rows else "none"
        expected = (
            f"{format_percent(round(low, 4))} to {format_percent(round(high, 4))} is expected"
        )
        return f"{now} of {self.rows:,} rows rejected; {expected}"


@dataclass
class ScoreMonitor(Monitor):
    """Evidence that scores are distributed differently than those of the calibration rows.

    >>> from metacal.promises.sequential.profile import build_profile
    >>> from metacal.certification.ranking import Ranking
    >>> random = np.random.default_rng(0)
    >>> monitor = ScoreMonitor(build_profile(Ranking.from_scores(random.normal(size=5000), np.ones(5000, dtype=bool))))
    >>> monitor.update(random.normal(size=2000)).alarm, monitor.update(random.normal(0.3, size=1000)).alarm
    (False, True)
    """

    profile: Profile
    delta: float = 0.05
    counts: tuple[int, ...] = ()
    capital: Capital | None = None

    def __post_init__(self) -> None:
        if len(self.profile.edges) < 1:
            raise InputError(
                f"{self.profile.n_rows} calibration rows are too few to know how scores are spread."
            )
        self.counts = tuple(map(int, self.counts)) or (0,) * (len(self.profile.edges) + 1)
        if len(self.counts) != len(self.profile.edges) + 1 or min(self.counts) < 0:
            raise InputError("there must be one count for each bin of the score.")
        self.start_betting(Wager(guess=_GUESS_ROWS), Wager(guess=_GUESS_ROWS))

    @property
    def rows(self) -> int:
        return sum(self.counts)

    def update(self, scores: ArrayLike) -> Self:
        given = np.atleast_1d(np.asarray(scores, dtype=np.float64))
        bins = self.profile.assign_bins(given, uniform_numbers_at_positions(self.rows, len(given)))
        single = (bins[:, None] == np.arange(len(self.counts))).astype(np.int64)
        seen = np.cumsum(single, axis=0) - single + np.array(self.counts)
        chance = (self.profile.prior_bin_counts + seen) / (
            self.profile.n_rows + 1.0 + seen.sum(axis=1)
        )[:, None]
        place = np.linspace(-1.0, 1.0, len(self.counts))
        self.current_capital.bet(
            [_play(values, bins, chance) for values in (place, 2.0 * place**2 - 1.0)]
        )
        self.counts = tuple((np.array(self.counts) + single.sum(axis=0)).tolist())
        return self

    @property
    def shift(self) -> float:
        """How far the mean place among the calibration scores has moved: 0 none, 1 all are the
        least sure.
        """
        if not self.rows:
            return 0.0
        place, before = np.linspace(-1.0, 1.0, len(self.counts)), self.profile.prior_bin_counts
        return float(place @ (np.array(self.counts) / self.rows - before / before.sum()))

    def __str__(self) -> str:
        which = "less" if self.shift > 0.0 else "more"
        return (
            f"{self.rows:,} scores, {abs(self.shift):.3f} {which} sure on average (0: no change, 1:"
            " all at one end)"
        )


@dataclass
class UnreadableMonitor(Monitor):
    """Evidence that more than a share of the lines, `limit`, cannot be read: `unreadable` of
    `lines` so far.

    >>> monitor = UnreadableMonitor()
    >>> monitor.update([True] + [False] * 199).alarm, monitor.update([True, False] * 10).alarm
    (False, True)
    >>> print(monitor)
    11 of 220 lines could not be read (5%); up to 1% is tolerated
    """

    limit: float = DEFAULT_UNREADABLE_LIMIT
    delta: float = 0.05
    lines: int = 0
    unreadable: int = 0
    capital: Capital | None = None

    def __post_init__(self) -> None:
        check_fraction("limit", self.limit)
        if not 0 <= self.unreadable <= self.lines:
            raise InputError(
                f"{self.unreadable} of {self.lines} lines cannot have been unreadable."
            )
        self.start_betting(Wager(guess=1.0 / self.limit, guess_gain=1.0))

    def update(self, unreadable: ArrayLike) -> Self:
        events = np.atleast_1d(np.asarray(unreadable, dtype=bool))
        self.current_capital.bet([bet_on_mean_above(events.astype(np.float64), self.limit)])
        self.lines += len(events)
        self.unreadable += int(events.sum())
        return self

    def __str__(self) -> str:
        share = (
            f" ({format_percent(round(self.unreadable / self.lines, 4))})"
            if self.unreadable
            else ""
        )
        seen = f"{self.unreadable:,} of {self.lines:,} lines could not be read{share}"
        return f"{seen}; up to {format_percent(self.limit)} is tolerated"


@dataclass
class CalibrationMonitor(Monitor):
    """Evidence that the confidence of accepted rows is off by more than is allowed, on either side.

    `allowed` are o and u of all rows and of each bin; (τ, τ) where nothing is known. `rows`
    accepted ones have a label so far, `right` of them are right, `confidence` is the sum of theirs;
    `least_probability` as of `PromiseMonitor`.

    >>> random, confidence = np.random.default_rng(0), np.full(1000, 0.95)
    >>> monitor = CalibrationMonitor()
    >>> monitor.update(confidence, random.random(1000) < 0.95).alarm
    False
    >>> monitor.update(confidence, random.random(1000) < 0.85).alarm
    True
    """

    tolerance: float = DEFAULT_TOLERANCE
    delta: float = 0.05
    least_probability: float = 1.0
    allowed: tuple[tuple[float, float], ...] = ()
    rows: int = 0
    right: int = 0
    confidence: float = 0.0
    capital: Capital | None = None

    betting_share: ClassVar[float] = 1.0 - _INTERVAL

    def __post_init__(self) -> None:
        check_fraction("tolerance", self.tolerance)
        even = (self.tolerance, self.tolerance)
        self.allowed = tuple((over, under) for over, under in self.allowed) or (even,) * (
            1 + len(CONFIDENCE_BIN_STARTS)
        )
        sound = all(0.0 < min(one) <= max(one) <= 2.0 for one in self.allowed)
        if len(self.allowed) != 1 + len(CONFIDENCE_BIN_STARTS) or not sound:
            raise InputError(
                "what is allowed is a gap to either side, of all rows and of each bin of the"
                " confidence."
            )
        # The first guess is a gap of as much again as is tolerated, held with the weight of
        # 1/tolerance rows.
        self.start_betting(*(Wager(guess=1.0 / self.tolerance, guess_gain=1.0) for _ in _SHARES))

    @classmethod
    def from_profile(
        cls, profile: Profile | None, delta: float, tolerance: float, least_probability: float = 1.0
    ) -> Self:
        """A monitor that allows what the calibration rows do, where their confidence is known."""
        if profile is None or not profile.by_confidence:
            return cls(tolerance, delta, least_probability)
        log = math.log(len(_SHARES) / (_INTERVAL * delta))
        sides = [
            _allowed(profile.by_confidence, log),
            *(_allowed((own,), log) for own in profile.by_confidence),
        ]
        wide = tuple((max(tolerance, over), max(tolerance, under)) for over, under in sides)
        return cls(tolerance, delta, least_probability, wide)

    def update(
        self, confidence: ArrayLike, correct: ArrayLike, probability: ArrayLike | None = None
    ) -> Self:
        """Take in accepted, labelled rows: their confidence and whether they were right;
        `probability` as elsewhere.
        """
        sure = np.atleast_1d(np.asarray(confidence, dtype=np.float64))
        right = np.atleast_1d(np.asarray(correct, dtype=bool))
        if sure.shape != right.shape or not ((sure >= 0.0) & (sure <= 1.0)).all():
            raise InputError("give one confidence between 0 and 1 and one flag for each row.")
        weight = compute_sampling_weights(probability, len(sure), self.least_probability)
        gap, bins = sure - right, assign_confidence_bins(sure)
        inside = [(0.0, np.ones(len(sure), dtype=bool))] + [
            (low, bins == k) for k, low in enumerate(CONFIDENCE_BIN_STARTS)
        ]
        plays = []
        for (low, here), (over, under) in zip(inside, self.allowed, strict=True):
            # About the variance of being right, of rows with at least this confidence: only the
            # stake depends on it.
            own, middle = weight * here, 0.5 * (1.0 + max(low, 0.9))
            for gain, loss in ((gap - over, 1.0 - low + over), (-gap - under, 1.0 + under)):
                plays.append(Bets(own * gain, own, middle * (1.0 - middle), 0.0, MAX_LOSS / loss))
        self.current_capital.bet(plays, _SHARES)
        self.rows += len(sure)
        self.right += int(right.sum())
        # In the order of the rows: the same sum whatever the batches.
        self.confidence = float(np.cumsum(np.concatenate(([self.confidence], sure)))[-1])
        return self

    def __str__(self) -> str:
        if not self.rows:
            return "no accepted row has a label yet"
        sure, right = 100.0 * self.confidence / self.rows, 100.0 * self.right / self.rows
        seen = f"confidence {sure:.2f}%, accuracy {right:.2f}% on {self.rows:,} rows"
        return f"{seen}; {self.allowed[0][0]:.2%} over is tolerated"


def _allowed(bins: tuple[tuple[int, int, float], ...], log: float) -> tuple[float, float]:
    """How far confidence may lie above and below the share of right rows, as the rows of these bins
    have it.
    """
    rows = sum(own[0] for own in bins)
    if not rows:
        return 2.0, 2.0
    of_right, mean = sum(own[1] for own in bins) / rows, sum(own[2] for own in bins) / rows
    spread = max(share * (1.0 - share) for share in (of_right, mean))
    reach = math.sqrt(2.0 * spread * log / rows) + 2.0 * log / (3.0 * rows)
    return min(2.0, mean - of_right + reach), min(2.0, of_right - mean + reach)


def _play(values: Float, bins: Codes, chance: Float) -> Bets:
    """A play on a function of the bin, up or down, whose mean under the urn is taken off."""
    mean = (chance * values).sum(axis=1)
    spread = np.maximum((chance * values**2).sum(axis=1) - mean**2, 1e-12)
    most = MAX_LOSS / np.maximum(values.max() - mean, mean - values.min())
    return Bets(values[bins] - mean, 1.0, spread, -most, most)
