"""Base class of monitors: the capital of several wagers, and when it raises an alarm."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from metacal.certificates.subgroup_words import format_subgroup_name
from metacal.certificates.subgroups import Name
from metacal.errors import InputError
from metacal.formulas import Flags
from metacal.promises.sequential.wager import Capital, Wager
from metacal.rows.arrays import check_fraction

#: Share of δ for intervals around what was observed at calibration. The wagers have the rest.
INTERVAL_DELTA_SHARE = 0.25


class Monitor:
    """Base class of monitors, which bet a capital against a hypothesis.

    A subclass has a field `delta`, the probability of ever raising an alarm while the hypothesis
    is true, and a field `capital`. `capital` may be a mapping from `dataclasses.asdict`, from which
    the monitor continues.
    """

    delta: float
    capital: Capital | None
    #: Share of delta that is spent on the bets.
    betting_share: ClassVar[float] = 1.0
    #: Classes or groups that are monitored. Empty if all rows are.
    parts: tuple[Name, ...] = ()
    #: Predicted class of the monitored rows, if both predicted classes of a group are certified.
    called: Name | None = None

    def start_betting(self, *wagers: Wager) -> None:
        """Check delta, and start with these wagers unless a capital was given."""
        check_fraction("delta", self.delta)
        self.parts = tuple(self.parts)
        saved_capital: Any = self.capital
        if saved_capital is None:
            self.capital = Capital(wagers)
        elif isinstance(saved_capital, Mapping):
            self.capital = Capital(**saved_capital)

    @property
    def current_capital(self) -> Capital:
        """Capital, which exists once `start_betting` was called."""
        assert self.capital is not None
        return self.capital

    @property
    def log_evidence(self) -> float:
        """Logarithm of the evidence now."""
        return self.current_capital.log_now

    @property
    def log_peak(self) -> float:
        """Logarithm of the highest evidence so far."""
        return self.current_capital.log_peak

    @property
    def log_needed(self) -> float:
        """Logarithm of the evidence that raises an alarm."""
        return -math.log(self.betting_share * self.delta)

    @property
    def alarm(self) -> bool:
        """True if the evidence has ever been high enough for an alarm.

        An alarm is permanent. Start a new monitor after you have acted on it.
        """
        return self.log_peak >= self.log_needed

    @property
    def summary(self) -> str:
        """Description of the observed rows and of the values that are tolerated."""
        return f"{self.subgroup_text}: {self}" if self.parts else str(self)

    @property
    def subgroup_text(self) -> str:
        """First five monitored classes or groups, as text. Empty if all rows are monitored."""
        descriptions = [format_subgroup_name(name, self.called) for name in self.parts[:5]]
        if len(self.parts) > 5:
            descriptions.append("...")
        return ", ".join(descriptions)

    def find_monitored_rows(self, n_rows: int, parts: ArrayLike | None) -> Flags | slice:
        """Return an index of the rows that the monitor counts.

        Parameters
        ----------
        n_rows : int
            Number of rows.
        parts : array-like or None
            Class or group of each row. If both predicted classes of a group are certified, a
            second column contains the predicted class.

        Returns
        -------
        boolean array or slice
        """
        if not self.parts:
            return slice(None)
        in_group = self.find_group_rows(n_rows, parts)
        if self.called is None:
            return in_group
        return in_group & (np.asarray(parts)[:, 1].astype(str) == str(self.called))

    def find_group_rows(self, n_rows: int, parts: ArrayLike | None) -> Flags:
        """Return a mask of the rows of the monitored groups, whatever their prediction."""
        if parts is None or len(row_parts := np.atleast_1d(np.asarray(parts))) != n_rows:
            raise InputError(
                f"this monitor watches {self.subgroup_text}; give the class or group of each row."
            )
        row_groups = row_parts if self.called is None else row_parts[:, 0]
        return np.isin(row_groups.astype(str), np.array(self.parts).astype(str))
