"""Monitors of drift that need no labels: rejections, scores and unreadable lines.

An alarm of these monitors does not refute the promise. It shows that the new rows differ from the
rows for which the promise was made. They need no labels, so they can react first.

**Abstention rate.** At calibration m of n rows were accepted, by a threshold that was chosen on the
same rows. The band of equal local levels (`statistics.levels`) holds at every threshold at once,
whatever rule chose it: P(accept) lies in [L_m, 1 - L_{n-m}] with probability 1 - δ/4. Two wagers of
half the capital each bet that the rejection rate is above, and that it is below the interval. If
the rate is inside, their capital reaches 4/(3δ) with probability at most 3δ/4.

**Distribution of the score.** `sequential.profile` gives the exact probability u_t(b) that the next
row falls into each of 20 bins. For a function φ of the bin, φ - Σ_b u_t(b) φ(b) therefore has mean
zero, given all rows before. Two wagers of half the capital each bet on it, in either direction: one
on φ = the position of the bin from -1 to 1 (rows are less certain), one on its square (more rows
are at the ends). This is a conformal test martingale (Vovk, Gammerman & Shafer, "Algorithmic
learning in a random world", 2nd ed. 2022, ch. 8) on binned ranks.

**Unreadable lines.** The hypothesis is that each line is unreadable with at most a given
probability, given all lines before. A wager bets on the next line.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from metacal.certificates.certificate import Certificate
from metacal.certificates.number_format import format_percent
from metacal.certificates.stored_fields import OPTIONAL
from metacal.certificates.subgroups import Name
from metacal.errors import InputError
from metacal.formulas import Codes, Float
from metacal.promises.sequential.monitor_base import INTERVAL_DELTA_SHARE, Monitor
from metacal.promises.sequential.profile import (
    Profile,
    uniform_numbers_at_positions,
)
from metacal.promises.sequential.wager import (
    MAX_LOSS,
    Bets,
    Capital,
    Wager,
    bet_on_mean_above,
)
from metacal.rows.arrays import check_fraction
from metacal.statistics.levels import local_level, order_statistic_quantiles

#: Default of the tolerated share of unreadable lines.
DEFAULT_UNREADABLE_LIMIT = 0.01
#: Number of rows that the first guess of the score's drift, no drift, counts as.
_N_GUESS_ROWS = 50.0
#: Smallest rate that a first guess of a rate is derived from.
_MIN_GUESS_RATE = 0.01


@dataclass
class AbstentionMonitor(Monitor):
    """Evidence that rows are rejected more or less often than at calibration.

    Parameters
    ----------
    n_rows, n_accepted : int
        Number of calibration rows, and of accepted ones.
    delta : float, default=0.05
        Probability of ever raising a false alarm.
    parts : tuple of str or int, optional
        Classes or groups that are monitored. Empty if all rows are.
    rows, rejected : int
        Number of new rows so far, and of rejected ones.
    capital : Capital, optional
        Evidence so far.
    called : str or int, optional
        Predicted class of the monitored rows, if both predicted classes of a group are certified.

    Examples
    --------
    >>> monitor = AbstentionMonitor(n_rows=5000, n_accepted=4500)
    >>> [round(bound, 3) for bound in monitor.expected_rejection_rates]
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

    betting_share: ClassVar[float] = 1.0 - INTERVAL_DELTA_SHARE

    def __post_init__(self) -> None:
        if not 0 <= self.n_accepted <= self.n_rows or self.n_rows < 1:
            raise InputError(f"{self.n_accepted} of {self.n_rows} rows cannot have been accepted.")
        lowest_rate, highest_rate = self.expected_rejection_rates
        more_rejections = Wager(guess=1.0 / max(highest_rate, _MIN_GUESS_RATE), guess_gain=1.0)
        fewer_rejections = Wager(
            guess=1.0 / max(1.0 - lowest_rate, _MIN_GUESS_RATE), guess_gain=1.0
        )
        self.start_betting(more_rejections, fewer_rejections)

    @classmethod
    def from_certificate(cls, certificate: Certificate, delta: float = 0.05) -> tuple[Self, ...]:
        """Build a monitor, or one for each class or group that has its own threshold.

        The monitors share delta equally. For a cascade, a rejected row is one that the first model
        does not answer, because the interval is about the thresholds of one score.
        """
        if certificate.stages is not None:
            first_stage = certificate.stages.items[0]
            return (cls(certificate.n_rows, first_stage.n_rows, delta),)
        if certificate.subgroups is None:
            return (cls(certificate.traffic.n_rows, certificate.traffic.n_accepted, delta),)
        subgroups = [
            subgroup
            for subgroup in certificate.subgroups.items
            if subgroup.status != "always rejected" and subgroup.n_rows
        ]
        subgroup_delta = delta / max(1, len(subgroups))
        return tuple(
            cls(
                n_rows=subgroup.n_rows,
                n_accepted=subgroup.n_accepted,
                delta=subgroup_delta,
                parts=subgroup.names,
                called=subgroup.predicted_class,
            )
            for subgroup in subgroups
        )

    @property
    def expected_rejection_rates(self) -> tuple[float, float]:
        """Interval of the rejection rate, if new rows come from the source of calibration rows."""
        level = local_level(self.n_rows, INTERVAL_DELTA_SHARE * self.delta / 2.0)
        ranks = np.array([self.n_accepted, self.n_rows - self.n_accepted])
        quantiles = order_statistic_quantiles(ranks, self.n_rows, level)
        lowest_acceptance_rate, lowest_rejection_rate = quantiles.tolist()
        return lowest_rejection_rate, 1.0 - lowest_acceptance_rate

    def update(self, accepted: ArrayLike, parts: ArrayLike | None = None) -> Self:
        """Update the evidence with new decisions, in the order in which they were made.

        Parameters
        ----------
        accepted : array-like of bool
            True for each accepted row.
        parts : array-like, optional
            Class or group of each row. A monitor of one class or group counts only its own rows.
        """
        is_accepted = np.atleast_1d(np.asarray(accepted, dtype=bool))
        is_accepted = is_accepted[self.find_monitored_rows(len(is_accepted), parts)]
        if len(is_accepted):
            lowest_rate, highest_rate = self.expected_rejection_rates
            rejections = (~is_accepted).astype(np.float64)
            acceptances = is_accepted.astype(np.float64)
            self.current_capital.bet(
                [
                    bet_on_mean_above(rejections, highest_rate),
                    bet_on_mean_above(acceptances, 1.0 - lowest_rate),
                ]
            )
            self.rows += len(is_accepted)
            self.rejected += int((~is_accepted).sum())
        return self

    def __str__(self) -> str:
        rate_text = "none"
        if self.rows:
            rate_text = format_percent(round(self.rejected / self.rows, 4))
        lowest_text, highest_text = (
            format_percent(round(rate, 4)) for rate in self.expected_rejection_rates
        )
        return (
            f"{rate_text} of {self.rows:,} rows rejected; {lowest_text} to {highest_text} is"
            " expected"
        )


@dataclass
class ScoreMonitor(Monitor):
    """Evidence that scores are distributed differently than at calibration.

    Parameters
    ----------
    profile : Profile
        Summary of the calibration rows.
    delta : float, default=0.05
        Probability of ever raising a false alarm.
    counts : tuple of int
        Number of new rows in each bin of the score.
    capital : Capital, optional
        Evidence so far.

    Examples
    --------
    >>> from metacal.promises.sequential.profile import build_profile
    >>> from metacal.certification.ranking import Ranking
    >>> random = np.random.default_rng(0)
    >>> ranking = Ranking.from_scores(random.normal(size=5000), np.ones(5000, dtype=bool))
    >>> monitor = ScoreMonitor(build_profile(ranking))
    >>> monitor.update(random.normal(size=2000)).alarm
    False
    >>> monitor.update(random.normal(0.3, size=1000)).alarm
    True
    """

    profile: Profile
    delta: float = 0.05
    counts: tuple[int, ...] = ()
    capital: Capital | None = None

    def __post_init__(self) -> None:
        n_edges = len(self.profile.edges)
        if n_edges < 1:
            raise InputError(
                f"{self.profile.n_rows} calibration rows are too few to know how scores are spread."
            )
        n_bins = n_edges + 1
        self.counts = tuple(map(int, self.counts)) or (0,) * n_bins
        if len(self.counts) != n_bins or min(self.counts) < 0:
            raise InputError("there must be one count for each bin of the score.")
        self.start_betting(Wager(guess=_N_GUESS_ROWS), Wager(guess=_N_GUESS_ROWS))

    @property
    def rows(self) -> int:
        """Number of new rows so far."""
        return sum(self.counts)

    @property
    def _bin_positions(self) -> Float:
        """Position of each bin from -1, the most certain rows, to 1."""
        return np.linspace(-1.0, 1.0, len(self.counts))

    def update(self, scores: ArrayLike) -> Self:
        """Update the evidence with the scores of new rows, in the order of their arrival."""
        new_scores = np.atleast_1d(np.asarray(scores, dtype=np.float64))
        tie_breakers = uniform_numbers_at_positions(self.rows, len(new_scores))
        bins = self.profile.assign_bins(new_scores, tie_breakers)
        bin_indicators = (bins[:, None] == np.arange(len(self.counts))).astype(np.int64)
        counts_before = np.cumsum(bin_indicators, axis=0) - bin_indicators + np.array(self.counts)
        n_rows_before = counts_before.sum(axis=1)
        # The probabilities are those of the urn in the docstring of `sequential.profile`.
        urn_sizes = (self.profile.n_rows + 1.0 + n_rows_before)[:, None]
        bin_probabilities = (self.profile.prior_bin_counts + counts_before) / urn_sizes
        positions = self._bin_positions
        squared_positions = 2.0 * positions**2 - 1.0
        self.current_capital.bet(
            [
                _bet_on_bin_values(bin_values, bins, bin_probabilities)
                for bin_values in (positions, squared_positions)
            ]
        )
        self.counts = tuple((np.array(self.counts) + bin_indicators.sum(axis=0)).tolist())
        return self

    @property
    def shift(self) -> float:
        """Change of the mean bin position: 0 for none, 1 if all rows are the least certain."""
        if not self.rows:
            return 0.0
        calibration_counts = self.profile.prior_bin_counts
        new_shares = np.array(self.counts) / self.rows
        return float(
            self._bin_positions @ (new_shares - calibration_counts / calibration_counts.sum())
        )

    def __str__(self) -> str:
        direction = "less" if self.shift > 0.0 else "more"
        return (
            f"{self.rows:,} scores, {abs(self.shift):.3f} {direction} sure on average (0: no"
            " change, 1: all at one end)"
        )


@dataclass
class UnreadableMonitor(Monitor):
    """Evidence that more lines of a stream are unreadable than tolerated.

    Parameters
    ----------
    limit : float, default=0.01
        Tolerated share of unreadable lines.
    delta : float, default=0.05
        Probability of ever raising a false alarm.
    lines, unreadable : int
        Number of lines so far, and of unreadable ones.
    capital : Capital, optional
        Evidence so far.

    Examples
    --------
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
        """Update the evidence with new lines; `unreadable` is True for each unreadable line."""
        is_unreadable = np.atleast_1d(np.asarray(unreadable, dtype=bool))
        self.current_capital.bet([bet_on_mean_above(is_unreadable.astype(np.float64), self.limit)])
        self.lines += len(is_unreadable)
        self.unreadable += int(is_unreadable.sum())
        return self

    def __str__(self) -> str:
        share_text = ""
        if self.unreadable:
            share_text = f" ({format_percent(round(self.unreadable / self.lines, 4))})"
        return (
            f"{self.unreadable:,} of {self.lines:,} lines could not be read{share_text}; up to"
            f" {format_percent(self.limit)} is tolerated"
        )


def _bet_on_bin_values(bin_values: Float, bins: Codes, bin_probabilities: Float) -> Bets:
    """Build bets that a function of the bin differs from its mean, in either direction.

    Parameters
    ----------
    bin_values : array of shape (n_bins,)
        Value of the function in each bin.
    bins : array of shape (n_rows,)
        Bin of each row.
    bin_probabilities : array of shape (n_rows, n_bins)
        Probability of each bin under the hypothesis, before the row is observed.

    Returns
    -------
    Bets
    """
    means = (bin_probabilities * bin_values).sum(axis=1)
    second_moments = (bin_probabilities * bin_values**2).sum(axis=1)
    largest_losses = np.maximum(bin_values.max() - means, means - bin_values.min())
    max_stakes = MAX_LOSS / largest_losses
    return Bets(
        payoffs=bin_values[bins] - means,
        weights=1.0,
        variance=np.maximum(second_moments - means**2, 1e-12),
        min_stake=-max_stakes,
        max_stake=max_stakes,
    )
