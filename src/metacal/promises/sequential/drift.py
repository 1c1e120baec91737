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

from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from metacal.certificates.certificate import Certificate
from metacal.certificates.number_format import format_percent
from metacal.certificates.stored_fields import stored_as
from metacal.certificates.subgroups import Name
from metacal.errors import InputError, TooFewRowsError
from metacal.formulas import Codes, Float
from metacal.promises.sequential.monitor_base import INTERVAL_DELTA_FRACTION, Monitor
from metacal.promises.sequential.profile import (
    Profile,
    generate_uniform_numbers,
)
from metacal.promises.sequential.wager import (
    MAX_LOST_CAPITAL_SHARE,
    Bets,
    Capital,
    Wager,
    build_bets_on_mean_above,
)
from metacal.rows.arrays import check_fraction
from metacal.statistics.levels import local_level, uniform_order_statistic_quantiles

#: Tolerated share of unreadable lines, unless the user sets another one.
DEFAULT_UNREADABLE_LIMIT = 0.01
#: A wager on scores begins as if this many rows without a drift had arrived.
_N_IMAGINARY_SCORES = 50.0
#: Event rates are raised to at least this rate for the imaginary rows of a wager. The wager begins
#: with one imaginary event among 1/rate rows, so at most 100 rows are imaginary.
_MIN_IMAGINARY_EVENT_RATE = 0.01
#: Smallest variance of a payoff. A stake is divided by it, so it must not be 0.
_MIN_PAYOFF_VARIANCE = 1e-12


def _count_rows_without_score(certificate: Certificate) -> int:
    """Return the number of calibration rows without a score, which are rejected."""
    n_missing = 0
    for note in certificate.notes:
        if note.kind == "rows_without_score":
            n_missing += int(dict(note.facts)["missing"])
    return n_missing


@dataclass
class AbstentionMonitor(Monitor):
    """Evidence that rows are rejected more or less often than at calibration.

    Parameters
    ----------
    n_calibration_rows, n_accepted_calibration_rows : int
        Number of calibration rows, and of accepted calibration rows.
    delta : float, default=0.05
        Probability of ever raising a false alarm.
    subgroup_names : tuple of str or int, optional
        Classes or groups that are monitored. Empty if all rows are.
    n_rows, n_rejected : int
        Number of new rows so far, and of rejected new rows.
    capital : Capital, optional
        Evidence so far.
    predicted_class : str or int, optional
        Predicted class of the monitored rows, if both predicted classes of a group are certified.

    Examples
    --------
    >>> monitor = AbstentionMonitor(
    ...     n_calibration_rows=5000, n_accepted_calibration_rows=4500
    ... )
    >>> [round(bound, 3) for bound in monitor.expected_rejection_rates]
    [0.085, 0.117]
    >>> monitor.update(([True] * 9 + [False]) * 100).alarm, monitor.update([False, True] * 100).alarm
    (False, True)
    """

    n_calibration_rows: int = field(metadata=stored_as("n_rows"))
    n_accepted_calibration_rows: int = field(metadata=stored_as("n_accepted"))
    delta: float = 0.05
    subgroup_names: tuple[Name, ...] = field(default=(), metadata=stored_as("parts"))
    n_rows: int = field(default=0, metadata=stored_as("rows"))
    n_rejected: int = field(default=0, metadata=stored_as("rejected"))
    capital: Capital | None = None
    predicted_class: Name | None = field(
        default=None, metadata=stored_as("called", is_optional=True)
    )

    betting_delta_fraction: ClassVar[float] = 1.0 - INTERVAL_DELTA_FRACTION

    def __post_init__(self) -> None:
        if (
            not (0 <= self.n_accepted_calibration_rows <= self.n_calibration_rows)
            or self.n_calibration_rows < 1
        ):
            raise InputError(
                "The number of accepted rows must not exceed the number of rows, but got"
                f" {self.n_accepted_calibration_rows} of {self.n_calibration_rows}."
            )
        lowest_rate, highest_rate = self.expected_rejection_rates
        wager_on_more_rejections = Wager(
            n_imaginary_rows=1.0 / max(highest_rate, _MIN_IMAGINARY_EVENT_RATE),
            imaginary_payoff_sum=1.0,
        )
        wager_on_fewer_rejections = Wager(
            n_imaginary_rows=1.0 / max(1.0 - lowest_rate, _MIN_IMAGINARY_EVENT_RATE),
            imaginary_payoff_sum=1.0,
        )
        self.initialize_capital(wager_on_more_rejections, wager_on_fewer_rejections)

    @classmethod
    def from_certificate(cls, certificate: Certificate, delta: float = 0.05) -> tuple[Self, ...]:
        """Build a rejection-rate monitor for each threshold of a certificate.

        The monitors share delta equally. For a cascade, a rejected row is one that the first model
        does not answer, because the interval is about the thresholds of one score.
        """
        if certificate.stages is not None:
            first_stage = certificate.stages.models[0]
            return (
                cls(
                    n_calibration_rows=certificate.n_rows,
                    n_accepted_calibration_rows=first_stage.n_rows,
                    delta=delta,
                ),
            )
        if certificate.subgroups is None:
            traffic = certificate.traffic
            # `traffic` counts only rows with a score. Rows without a score are always rejected.
            n_rows = traffic.n_rows + _count_rows_without_score(certificate)
            return (
                cls(
                    n_calibration_rows=n_rows,
                    n_accepted_calibration_rows=traffic.n_accepted,
                    delta=delta,
                ),
            )
        accepting_subgroups = []
        for subgroup in certificate.subgroups.items:
            if subgroup.status != "always rejected" and subgroup.n_rows > 0:
                accepting_subgroups.append(subgroup)
        delta_per_subgroup = delta / max(1, len(accepting_subgroups))
        monitors = []
        for subgroup in accepting_subgroups:
            monitor = cls(
                n_calibration_rows=subgroup.n_rows,
                n_accepted_calibration_rows=subgroup.n_accepted,
                delta=delta_per_subgroup,
                subgroup_names=subgroup.names,
                predicted_class=subgroup.predicted_class,
            )
            monitors.append(monitor)
        return tuple(monitors)

    @property
    def expected_rejection_rates(self) -> tuple[float, float]:
        """Confidence interval of the rejection rate of new rows without drift.

        The lower bounds L_m of the acceptance rate and L_{n-m} of the rejection rate hold at all
        thresholds at once. Each of them fails with probability δ/8.
        """
        n_accepted = self.n_accepted_calibration_rows
        n_rejected = self.n_calibration_rows - n_accepted
        error_probability_per_bound = INTERVAL_DELTA_FRACTION * self.delta / 2.0
        pointwise_level = local_level(n=self.n_calibration_rows, delta=error_probability_per_bound)
        lower_bounds = uniform_order_statistic_quantiles(
            ranks=np.array([n_accepted, n_rejected]),
            n=self.n_calibration_rows,
            level=pointwise_level,
        )
        lowest_acceptance_rate, lowest_rejection_rate = lower_bounds.tolist()
        highest_rejection_rate = 1.0 - lowest_acceptance_rate
        return lowest_rejection_rate, highest_rejection_rate

    def update(self, accepted: ArrayLike, row_subgroups: ArrayLike | None = None) -> Self:
        """Update the evidence with new decisions, in the order in which they were made.

        Parameters
        ----------
        accepted : array-like of bool
            True for each accepted row.
        row_subgroups : array-like, optional
            Class or group of each row. A monitor of one class or group counts only its own rows.
        """
        is_accepted = np.atleast_1d(np.asarray(accepted, dtype=bool))
        is_accepted = is_accepted[self.select_monitored_rows(len(is_accepted), row_subgroups)]
        if len(is_accepted) == 0:
            return self
        lowest_rejection_rate, highest_rejection_rate = self.expected_rejection_rates
        highest_acceptance_rate = 1.0 - lowest_rejection_rate
        rejections = (~is_accepted).astype(np.float64)
        acceptances = is_accepted.astype(np.float64)
        self.current_capital.bet(
            [
                build_bets_on_mean_above(rejections, limit=highest_rejection_rate),
                build_bets_on_mean_above(acceptances, limit=highest_acceptance_rate),
            ]
        )
        self.n_rows += len(is_accepted)
        self.n_rejected += int((~is_accepted).sum())
        return self

    def restart(self) -> Self:
        """Return a copy of the monitor with its evidence reset, for later rows."""
        return replace(self, n_rows=0, n_rejected=0, capital=None)

    def __str__(self) -> str:
        rate_text = "none"
        if self.n_rows:
            rate_text = format_percent(round(self.n_rejected / self.n_rows, 4))
        lowest_text, highest_text = (
            format_percent(round(rate, 4)) for rate in self.expected_rejection_rates
        )
        return (
            f"{rate_text} of {self.n_rows:,} rows rejected; {lowest_text} to {highest_text} is"
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
    bin_counts : tuple of int
        Number of new rows in each bin of the score.
    capital : Capital, optional
        Evidence so far.
    n_rows_before_restart : int, default=0
        Number of rows before the monitor was restarted. It selects the random numbers that break
        ties.

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
    bin_counts: tuple[int, ...] = field(default=(), metadata=stored_as("counts"))
    capital: Capital | None = None
    n_rows_before_restart: int = field(
        default=0, metadata=stored_as("first_position", is_optional=True)
    )

    def __post_init__(self) -> None:
        n_edges = len(self.profile.bin_edges)
        if n_edges < 1:
            raise TooFewRowsError(
                f"The {self.profile.n_rows} calibration rows of the profile are too few to"
                " describe the distribution of the scores. Fit the gate on more rows."
            )
        n_bins = n_edges + 1
        self.bin_counts = tuple(int(count) for count in self.bin_counts)
        has_no_bin_counts = len(self.bin_counts) == 0
        if has_no_bin_counts:
            self.bin_counts = (0,) * n_bins
        if len(self.bin_counts) != n_bins or min(self.bin_counts) < 0:
            raise InputError("The monitor of the score must have one count for each bin.")
        wager_on_shift = Wager(n_imaginary_rows=_N_IMAGINARY_SCORES)
        wager_on_spread = Wager(n_imaginary_rows=_N_IMAGINARY_SCORES)
        self.initialize_capital(wager_on_shift, wager_on_spread)

    @property
    def n_rows(self) -> int:
        """Number of new rows so far."""
        return sum(self.bin_counts)

    @property
    def _signed_bin_positions(self) -> Float:
        """Position of each bin, from -1 for the most certain rows to 1 for the least certain."""
        return np.linspace(-1.0, 1.0, len(self.bin_counts))

    def update(self, scores: ArrayLike) -> Self:
        """Update the evidence with the scores of new rows, in the order of their arrival."""
        new_scores = np.atleast_1d(np.asarray(scores, dtype=np.float64))
        first_position = self.n_rows_before_restart + self.n_rows
        tie_breakers = generate_uniform_numbers(
            first_position=first_position, n_positions=len(new_scores)
        )
        bin_of_row = self.profile.assign_bins(new_scores, tie_breakers)
        old_bin_counts = np.array(self.bin_counts)
        # Without drift, the bin of each row is drawn from a Pólya urn (`sequential.profile`).
        bin_probabilities = _compute_polya_urn_probabilities(
            bin_of_row, urn_counts=self.profile.initial_urn_counts + old_bin_counts
        )
        # The mean position reveals a shift of the scores, and the mean square a change of spread.
        position_of_bin = self._signed_bin_positions
        extremeness_of_bin = 2.0 * position_of_bin**2 - 1.0
        bets_on_shift = _build_bets_on_bin_values(position_of_bin, bin_of_row, bin_probabilities)
        bets_on_spread = _build_bets_on_bin_values(
            extremeness_of_bin, bin_of_row, bin_probabilities
        )
        self.current_capital.bet([bets_on_shift, bets_on_spread])
        new_bin_counts = np.bincount(bin_of_row, minlength=len(old_bin_counts))
        self.bin_counts = tuple((old_bin_counts + new_bin_counts).tolist())
        return self

    @property
    def shift(self) -> float:
        """Change of the mean score bin: 0 for none, 1 if all rows are the least certain."""
        if not self.n_rows:
            return 0.0
        new_shares = np.array(self.bin_counts) / self.n_rows
        initial_urn_counts = self.profile.initial_urn_counts
        calibration_shares = initial_urn_counts / initial_urn_counts.sum()
        return float(self._signed_bin_positions @ (new_shares - calibration_shares))

    def restart(self) -> Self:
        """Return a copy of the monitor with its evidence reset, for later rows.

        Its ties are broken by other random numbers than those of this monitor.
        """
        return replace(
            self,
            bin_counts=(),
            capital=None,
            n_rows_before_restart=self.n_rows_before_restart + self.n_rows,
        )

    def __str__(self) -> str:
        direction = "less" if self.shift > 0.0 else "more"
        return (
            f"{self.n_rows:,} scores, {abs(self.shift):.3f} {direction} confident on average (0: no"
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
    n_lines, n_unreadable : int
        Number of lines so far, and of unreadable lines.
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
    n_lines: int = field(default=0, metadata=stored_as("lines"))
    n_unreadable: int = field(default=0, metadata=stored_as("unreadable"))
    capital: Capital | None = None

    def __post_init__(self) -> None:
        check_fraction("limit", self.limit)
        if not 0 <= self.n_unreadable <= self.n_lines:
            raise InputError(
                "The number of unreadable lines must not exceed the number of lines, but got"
                f" {self.n_unreadable} of {self.n_lines}."
            )
        self.initialize_capital(Wager(n_imaginary_rows=1.0 / self.limit, imaginary_payoff_sum=1.0))

    def update(self, unreadable: ArrayLike) -> Self:
        """Update the evidence with a flag for each new line, true if it is unreadable."""
        is_unreadable = np.atleast_1d(np.asarray(unreadable, dtype=bool))
        bets = build_bets_on_mean_above(is_unreadable.astype(np.float64), limit=self.limit)
        self.current_capital.bet([bets])
        self.n_lines += len(is_unreadable)
        self.n_unreadable += int(is_unreadable.sum())
        return self

    def restart(self) -> Self:
        """Return a copy of the monitor with its evidence reset, for later lines."""
        return replace(self, n_lines=0, n_unreadable=0, capital=None)

    def __str__(self) -> str:
        share_text = ""
        if self.n_unreadable:
            share_text = f" ({format_percent(round(self.n_unreadable / self.n_lines, 4))})"
        return (
            f"{self.n_unreadable:,} of {self.n_lines:,} lines could not be read{share_text}; up to"
            f" {format_percent(self.limit)} is tolerated"
        )


def _compute_polya_urn_probabilities(bin_of_row: Codes, *, urn_counts: Codes) -> Float:
    """Compute the bin probabilities of a Pólya urn before each draw.

    The bin of a row is that of a random ball. The ball is then put back, with another one of the
    same bin.

    Parameters
    ----------
    bin_of_row : array of int of shape (n_rows,)
        Index of the bin of each row, in the order of the draws.
    urn_counts : array of int of shape (n_bins,)
        Number of balls of each bin before the first row.

    Returns
    -------
    array of shape (n_rows, n_bins)

    Examples
    --------
    >>> _compute_polya_urn_probabilities(np.array([1, 0]), urn_counts=np.array([1, 1])).round(2)
    array([[0.5 , 0.5 ],
           [0.33, 0.67]])
    """
    all_bins = np.arange(len(urn_counts))
    bin_indicators = (bin_of_row[:, None] == all_bins).astype(np.int64)
    n_drawn_before_row = np.cumsum(bin_indicators, axis=0) - bin_indicators
    urn_counts_before_row = urn_counts + n_drawn_before_row
    urn_size_before_row = urn_counts_before_row.sum(axis=1, keepdims=True)
    return np.asarray(urn_counts_before_row / urn_size_before_row)


def _build_bets_on_bin_values(
    bin_values: Float, bin_of_row: Codes, bin_probabilities_by_row: Float
) -> Bets:
    """Build bets that the mean bin value is above or below its expected value.

    Parameters
    ----------
    bin_values : array of shape (n_bins,)
        Value of the function in each bin.
    bin_of_row : array of int of shape (n_rows,)
        Index of the bin of each row.
    bin_probabilities_by_row : array of shape (n_rows, n_bins)
        Probability of each bin under the hypothesis, before the row is observed.

    Returns
    -------
    Bets
    """
    bin_axis = 1
    expected_value_of_row = (bin_probabilities_by_row * bin_values).sum(axis=bin_axis)
    expected_square_of_row = (bin_probabilities_by_row * bin_values**2).sum(axis=bin_axis)
    variances = expected_square_of_row - expected_value_of_row**2
    largest_losses = np.maximum(
        bin_values.max() - expected_value_of_row, expected_value_of_row - bin_values.min()
    )
    max_stakes = MAX_LOST_CAPITAL_SHARE / largest_losses
    return Bets(
        payoffs=bin_values[bin_of_row] - expected_value_of_row,
        weights=1.0,
        variance=np.maximum(variances, _MIN_PAYOFF_VARIANCE),
        min_stake=-max_stakes,
        max_stake=max_stakes,
    )
