"""Can the stream still be read? An alarm on the share of lines that cannot.

A few broken lines are no reason for an alarm: a limit says how many. The hypothesis is that each line, given all lines
before, cannot be read with probability at most the limit; whoever doubts it bets on the next line
(`metacal.promises.wager`), so the alarm may be looked at after every line.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from metacal.errors import InputError
from metacal.promises.shares import percent
from metacal.promises.wager import Capital, Wager, above, as_capital
from metacal.rows.validate import fraction

#: The share of unreadable lines that is no reason for an alarm.
MOST_UNREADABLE = 0.01


@dataclass
class UnreadableMonitor:
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

    @property
    def alarm(self) -> bool:
        """Whether the evidence has ever reached 1/delta. It stays."""
        assert self.capital is not None
        return self.capital.log_peak >= self.log_needed

    @property
    def log_needed(self) -> float:
        """The logarithm of the evidence that is an alarm."""
        return -math.log(self.delta)

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
