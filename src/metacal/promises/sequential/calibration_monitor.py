r"""Monitor of the calibration of accepted, labelled rows.

No calibrator is perfect, so the hypothesis has an allowance. Let c be the confidence. In each bin
of the confidence, given all rows before, the mean of (incorrect - (1 - c)) is at most o (not
overconfident), and the mean of (correct - c) is at most u (not underconfident). There are four bins, and all rows as one more bin, because a gap at one
level of confidence may hide an opposite gap at another. Half of the capital bets on all rows and
half on the four bins. Each share is divided equally between the two directions. Gaps may differ
within a bin, so the stake must not depend on the confidence of a row. It is capped by the most that
any row of the bin can lose.

*Allowance.* It is the tolerance τ, or the gap that the calibration rows allow if that is larger. If
n of them are in the bin and their confidence exceeds their accuracy by ĝ on average, then the true
mean gap lies within ĝ ± t, where t = √(2vL/n) + 2L/(3n), v is the variance of being correct and
L = log(10 · 4/δ) for ten sides. This fails on any side with probability at most δ/4 (Bernstein
1924). The map was fitted on the same rows, which changes ĝ and the true gap alike, to first order.
So o = max(τ, ĝ + t) and u = max(τ, t - ĝ), and the wagers have 3δ/4. A bin without calibration rows
allows everything. For a calibrator without calibration rows the tolerance alone is tested.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from metacal.certificates.stored_fields import stored_as
from metacal.errors import InputError, ShapeError
from metacal.formulas import Float
from metacal.promises.sequential.monitor_base import INTERVAL_DELTA_FRACTION, Monitor
from metacal.promises.sequential.monitored_rows import compute_sampling_weights
from metacal.promises.sequential.profile import (
    CONFIDENCE_BIN_STARTS,
    ConfidenceBin,
    Profile,
    assign_confidence_bins,
)
from metacal.promises.sequential.wager import MAX_LOST_CAPITAL_SHARE, Bets, Capital, Wager
from metacal.rows.arrays import check_fraction

#: Default tolerance. Calibration gaps of this size are usual after a fit on a few thousand rows.
DEFAULT_TOLERANCE = 0.02
#: Allowed calibration gaps are clipped to this value, which no row can exceed.
_MAX_GAP = 2.0
#: Bets assume at least this confidence, because the variance of a lower one shrinks the stakes.
_MIN_CONFIDENCE_FOR_VARIANCE = 0.9

_N_CONFIDENCE_BINS = len(CONFIDENCE_BIN_STARTS)
#: Two shares of the capital, for bets on overconfidence and on underconfidence of all rows.
_ALL_ROWS_CAPITAL_SHARES = [0.25, 0.25]
#: Two shares of the capital, for bets on overconfidence and on underconfidence in one bin.
_BIN_CAPITAL_SHARES = [0.5 / _N_CONFIDENCE_BINS / 2.0] * 2
_CAPITAL_SHARE_OF_EACH_WAGER = _ALL_ROWS_CAPITAL_SHARES + _BIN_CAPITAL_SHARES * _N_CONFIDENCE_BINS
# Two wagers bet on the calibration gaps of all rows, and two on those of each confidence bin.
_N_WAGERS = len(_CAPITAL_SHARE_OF_EACH_WAGER)


class CalibrationGaps(NamedTuple):
    """Largest differences between mean confidence and accuracy, in both directions.

    Attributes
    ----------
    overconfidence : float
        Largest mean confidence minus accuracy.
    underconfidence : float
        Largest accuracy minus mean confidence.
    """

    overconfidence: float
    underconfidence: float


@dataclass
class CalibrationMonitor(Monitor):
    """Evidence that the confidence of accepted rows is too high or too low.

    Parameters
    ----------
    tolerance : float, default=0.02
        Gap between confidence and accuracy that raises no alarm.
    delta : float, default=0.05
        Probability of ever raising a false alarm.
    least_probability : float, default=1.0
        Smallest probability with which a row is selected for labelling.
    allowances : tuple of (float, float)
        Allowed gaps o and u of all rows, and then of each bin. By default the tolerance.
    n_rows, n_correct : int
        Number of accepted, labelled rows so far, and of correct rows among them.
    confidence_sum : float
        Sum of the confidence of the accepted, labelled rows.
    capital : Capital, optional
        Evidence so far.

    Examples
    --------
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
    allowances: tuple[tuple[float, float], ...] = field(default=(), metadata=stored_as("allowed"))
    n_rows: int = field(default=0, metadata=stored_as("rows"))
    n_correct: int = field(default=0, metadata=stored_as("right"))
    confidence_sum: float = field(default=0.0, metadata=stored_as("confidence"))
    capital: Capital | None = None

    betting_delta_fraction: ClassVar[float] = 1.0 - INTERVAL_DELTA_FRACTION

    def __post_init__(self) -> None:
        check_fraction("tolerance", self.tolerance)
        n_allowed_gaps = 1 + _N_CONFIDENCE_BINS
        if self.allowances:
            # Pairs of allowed gaps are lists in saved files, so they are converted to tuples.
            self.allowances = tuple((over, under) for over, under in self.allowances)
        else:
            self.allowances = ((self.tolerance, self.tolerance),) * n_allowed_gaps
        are_gaps_in_range = all(
            0.0 < min(allowance) <= max(allowance) <= _MAX_GAP for allowance in self.allowances
        )
        if len(self.allowances) != n_allowed_gaps or not are_gaps_in_range:
            raise InputError(
                "The allowed gaps must be two numbers for all rows, and two numbers for each"
                " confidence bin."
            )
        # Each wager begins with 1/tolerance imaginary rows whose gap is twice the tolerance.
        wagers = []
        for _ in range(_N_WAGERS):
            wager = Wager(n_imaginary_rows=1.0 / self.tolerance, imaginary_payoff_sum=1.0)
            wagers.append(wager)
        self.initialize_capital(*wagers)

    @property
    def allowed_gaps(self) -> tuple[CalibrationGaps, ...]:
        """Tolerated calibration gaps of all rows, followed by those of each bin."""
        return tuple(CalibrationGaps(*allowance) for allowance in self.allowances)

    @classmethod
    def from_profile(
        cls, profile: Profile | None, delta: float, tolerance: float, least_probability: float = 1.0
    ) -> Self:
        """Build a monitor that tolerates the calibration gaps of the calibration rows.

        Parameters
        ----------
        profile : Profile or None
            Summary of the calibration rows. None if there are none.
        delta : float
            Probability of ever raising a false alarm.
        tolerance : float
            Gap that is allowed in any case.
        least_probability : float, default=1.0
            Smallest probability with which a row is selected for labelling.

        Returns
        -------
        CalibrationMonitor
        """
        if profile is None or not profile.confidence_bin_counts:
            return cls(tolerance=tolerance, delta=delta, least_probability=least_probability)
        # The bounds, one for each wager, share their part of delta equally (Bonferroni).
        log_inverse_level = math.log(_N_WAGERS / (INTERVAL_DELTA_FRACTION * delta))
        all_bins = profile.confidence_bins
        single_bins = [(confidence_bin,) for confidence_bin in all_bins]
        tolerated_gaps = []
        for confidence_bins in [all_bins, *single_bins]:
            gap_bounds = _bound_calibration_gaps(confidence_bins, log_inverse_level)
            allowed_gaps = CalibrationGaps(
                overconfidence=max(tolerance, gap_bounds.overconfidence),
                underconfidence=max(tolerance, gap_bounds.underconfidence),
            )
            tolerated_gaps.append(allowed_gaps)
        return cls(
            tolerance=tolerance,
            delta=delta,
            least_probability=least_probability,
            allowances=tuple(tolerated_gaps),
        )

    def update(
        self, confidence: ArrayLike, correct: ArrayLike, probability: ArrayLike | None = None
    ) -> Self:
        """Update the evidence with accepted rows, in the order in which labels arrive.

        Parameters
        ----------
        confidence : array-like of float
            Confidence of each row.
        correct : array-like of bool
            True for each correct prediction.
        probability : array-like of float, optional
            Probability with which each row was selected for labelling.
        """
        confidences = np.atleast_1d(np.asarray(confidence, dtype=np.float64))
        is_correct = np.atleast_1d(np.asarray(correct, dtype=bool))
        are_probabilities = ((confidences >= 0.0) & (confidences <= 1.0)).all()
        if confidences.shape != is_correct.shape or not are_probabilities:
            raise ShapeError(
                "Expected one confidence between 0 and 1 and one boolean for each row."
            )
        n_rows = len(confidences)
        sampling_weights = compute_sampling_weights(probability, n_rows, self.least_probability)
        gaps = confidences - is_correct
        bin_of_row = assign_confidence_bins(confidences)
        overall_allowed_gaps, *allowed_gaps_by_bin = self.allowed_gaps
        bets = _build_bets_on_gaps(
            gaps, sampling_weights, bin_start=0.0, allowed_gaps=overall_allowed_gaps
        )
        for bin_index, bin_start in enumerate(CONFIDENCE_BIN_STARTS):
            is_in_bin = bin_of_row == bin_index
            bets += _build_bets_on_gaps(
                gaps,
                sampling_weights * is_in_bin,
                bin_start=bin_start,
                allowed_gaps=allowed_gaps_by_bin[bin_index],
            )
        self.current_capital.bet(bets, shares=_CAPITAL_SHARE_OF_EACH_WAGER)
        self.n_rows += n_rows
        self.n_correct += int(is_correct.sum())
        # `np.cumsum` adds row by row, so the sum does not depend on how rows arrive in batches.
        confidence_sums = np.cumsum(np.concatenate(([self.confidence_sum], confidences)))
        self.confidence_sum = float(confidence_sums[-1])
        return self

    def restart(self) -> Self:
        """Return a copy of the monitor with its evidence reset, for later rows."""
        return replace(self, n_rows=0, n_correct=0, confidence_sum=0.0, capital=None)

    def __str__(self) -> str:
        if not self.n_rows:
            return "no accepted row has a label yet"
        mean_confidence = 100.0 * self.confidence_sum / self.n_rows
        accuracy = 100.0 * self.n_correct / self.n_rows
        allowed_gaps_of_all_rows = self.allowed_gaps[0]
        return (
            f"confidence {mean_confidence:.2f}%, accuracy {accuracy:.2f}% on {self.n_rows:,} rows;"
            f" {allowed_gaps_of_all_rows.overconfidence:.2%} over is tolerated"
        )


def _bound_calibration_gaps(
    confidence_bins: tuple[ConfidenceBin, ...], log_inverse_level: float
) -> CalibrationGaps:
    """Compute upper bounds on overconfidence and underconfidence in the given bins.

    The bounds are ĝ + t and t - ĝ of the module docstring, where `log_inverse_level` is L.
    """
    n_rows = sum(confidence_bin.n_rows for confidence_bin in confidence_bins)
    if n_rows == 0:
        return CalibrationGaps(overconfidence=_MAX_GAP, underconfidence=_MAX_GAP)
    n_correct = sum(confidence_bin.n_correct for confidence_bin in confidence_bins)
    confidence_sum = sum(confidence_bin.confidence_sum for confidence_bin in confidence_bins)
    accuracy = n_correct / n_rows
    mean_confidence = confidence_sum / n_rows
    variance = max(accuracy * (1.0 - accuracy), mean_confidence * (1.0 - mean_confidence))
    bernstein_margin = math.sqrt(
        2.0 * variance * log_inverse_level / n_rows
    ) + 2.0 * log_inverse_level / (3.0 * n_rows)
    return CalibrationGaps(
        overconfidence=min(_MAX_GAP, mean_confidence - accuracy + bernstein_margin),
        underconfidence=min(_MAX_GAP, accuracy - mean_confidence + bernstein_margin),
    )


def _build_bets_on_gaps(
    gaps: Float, weights: Float, *, bin_start: float, allowed_gaps: CalibrationGaps
) -> list[Bets]:
    """Build the bets that a confidence bin is overconfident and underconfident.

    Parameters
    ----------
    gaps : array
        Confidence of each row, minus 1 if it is correct.
    weights : array
        Sampling weight of each row, 0 outside of the bin.
    bin_start : float
        Smallest confidence of the bin.
    allowed_gaps : CalibrationGaps
        Largest mean gaps that the hypothesis of calibration allows in the bin.

    Returns
    -------
    list of Bets
    """
    # The variance may be approximate, because it only scales the stakes. The variance used here is
    # that of a correctness flag with the confidence in the middle of the bin.
    mid_bin_confidence = 0.5 * (1.0 + max(bin_start, _MIN_CONFIDENCE_FOR_VARIANCE))
    approximate_variance = mid_bin_confidence * (1.0 - mid_bin_confidence)
    # A bet on overconfidence loses most if a row with the confidence `bin_start` is correct.
    max_overconfidence_loss = 1.0 - bin_start + allowed_gaps.overconfidence
    max_underconfidence_loss = 1.0 + allowed_gaps.underconfidence
    overconfidence_bets = Bets(
        payoffs=weights * (gaps - allowed_gaps.overconfidence),
        weights=weights,
        variance=approximate_variance,
        min_stake=0.0,
        max_stake=MAX_LOST_CAPITAL_SHARE / max_overconfidence_loss,
    )
    underconfidence_bets = Bets(
        payoffs=weights * (-gaps - allowed_gaps.underconfidence),
        weights=weights,
        variance=approximate_variance,
        min_stake=0.0,
        max_stake=MAX_LOST_CAPITAL_SHARE / max_underconfidence_loss,
    )
    return [overconfidence_bets, underconfidence_bets]
