r"""Is a confidence of 98% still right 98 times in a hundred? An alarm on accepted, labelled rows.

No calibrator is perfect, so the hypothesis is one with a tolerance τ: given the confidence c of an accepted row and all
rows before, it is wrong with probability at most 1 - c + τ (not overconfident), and right with probability at most c +
τ (not underconfident). Each is a wager against a limit that belongs to the row. As a gap at one level of confidence may
hide an opposite gap at another, half of the capital bets on all rows and half on four bins of the confidence, each half
shared by the two sides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metacal.errors import InputError
from metacal.promises.sequential.wager import Alarmed, Capital, Wager, above, as_capital, sampling_weights
from metacal.rows.validate import fraction

Column = NDArray[np.float64]

#: Where the bins of the confidence begin.
BINS = (0.0, 0.8, 0.95, 0.99)
#: A gap that a fit on a few thousand rows leaves.
TOLERANCE = 0.02
#: Shares of the capital: all rows, then each bin; of each, the two sides.
_SHARES = [0.25] * 2 + [0.5 / len(BINS) / 2.0] * (2 * len(BINS))
#: The first guess is a gap of as much again as is tolerated, held with the weight of one over the tolerance rows.
_GUESS_GAIN = 1.0


@dataclass
class CalibrationMonitor(Alarmed):
    """Evidence that the confidence of accepted rows is off by more than the tolerance, on either side.

    Parameters
    ----------
    tolerance : float
        The gap between confidence and the chance of being right that is no reason for an alarm.
    delta : float
        The chance of ever raising an alarm while no gap is larger.
    least_probability : float
        As of `PromiseMonitor`.
    rows, right, confidence : int, int, float
        Accepted rows with a label so far, the right ones among them, and the sum of their confidences.

    Examples
    --------
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
        fraction("delta", self.delta)
        self.capital = as_capital(self.capital)
        if self.capital is None:
            first = [Wager(guess=1.0 / self.tolerance, guess_gain=_GUESS_GAIN) for _ in _SHARES]
            self.capital = Capital(tuple(first))

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
        bins = np.searchsorted(BINS, sure, side="right") - 1
        inside = [np.ones(len(sure), dtype=bool)] + [bins == k for k in range(len(BINS))]
        plays = [above(events, limits, weight * here) for here in inside for events, limits in sides]
        assert self.capital is not None
        self.capital.bet(plays, _SHARES)
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
