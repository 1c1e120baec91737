"""Base class of monitors, which raise an alarm if their bets win enough."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from metacal.certificates.subgroup_words import format_subgroup_name
from metacal.certificates.subgroups import Name
from metacal.errors import GroupsError, InputError
from metacal.formulas import Flags
from metacal.promises.sequential.wager import Capital, Wager
from metacal.rows.arrays import check_fraction

#: Fraction of δ for confidence intervals of calibration rates. Wagers have the rest of δ.
INTERVAL_DELTA_FRACTION = 0.25

#: Logarithms are clipped to this value before `math.exp`, which would overflow at 709.8.
MAX_LOG_OF_FINITE_NUMBER = 700.0
# Column indices in the array that contains the group and the predicted class of each row.
_GROUP_COLUMN = 0
_PREDICTED_CLASS_COLUMN = 1
# A text about a monitor lists at most this many classes or groups.
_MAX_DESCRIBED_SUBGROUPS = 5


class Monitor:
    """Base class of monitors, which bet a capital against a hypothesis.

    A subclass has a field `delta`, the probability of ever raising an alarm while the hypothesis
    is true, and a field `capital`. `capital` may be a mapping from `dataclasses.asdict`, from which
    the monitor continues.
    """

    delta: float
    capital: Capital | None
    #: Fraction of delta that bounds the false alarms of the bets.
    betting_delta_fraction: ClassVar[float] = 1.0
    #: Names of the monitored classes or groups. Empty if all rows are monitored.
    subgroup_names: tuple[Name, ...] = ()
    #: Predicted class of the monitored rows, if a group may have a threshold for each predicted
    #: class. The names in `subgroup_names` are then those of groups.
    predicted_class: Name | None = None

    def initialize_capital(self, *initial_wagers: Wager) -> None:
        """Set the capital from the given wagers, or restore a saved capital."""
        check_fraction("delta", self.delta)
        self.subgroup_names = tuple(self.subgroup_names)
        saved_capital: Any = self.capital
        if saved_capital is None:
            self.capital = Capital(initial_wagers)
        elif isinstance(saved_capital, Mapping):
            self.capital = Capital(**saved_capital)

    @property
    def current_capital(self) -> Capital:
        """Capital, which exists after `initialize_capital` was called."""
        assert self.capital is not None
        return self.capital

    @property
    def log_evidence(self) -> float:
        """Logarithm of the current evidence."""
        return self.current_capital.log_evidence

    @property
    def log_highest_evidence(self) -> float:
        """Logarithm of the highest evidence so far."""
        return self.current_capital.log_highest_evidence

    @property
    def log_evidence_for_alarm(self) -> float:
        """Logarithm of the evidence that raises an alarm."""
        return -math.log(self.betting_delta_fraction * self.delta)

    @property
    def alarm(self) -> bool:
        """True if the evidence has ever been high enough for an alarm.

        An alarm is permanent. After you have acted on it, go on with `restart`.
        """
        return self.log_highest_evidence >= self.log_evidence_for_alarm

    def restart(self) -> Self:
        """Return a copy of the monitor with its evidence reset, for later rows.

        The new monitor has a delta of its own: it raises a false alarm with probability at most
        `delta`. Do not call `update` of it with labels of rows that this monitor has counted.
        """
        raise NotImplementedError

    @property
    def summary(self) -> str:
        """Description of the observed rows and of the values that are tolerated."""
        return f"{self.subgroup_text}: {self}" if self.subgroup_names else str(self)

    @property
    def subgroup_text(self) -> str:
        """First monitored classes or groups as text. Empty if all rows are monitored."""
        described_names = self.subgroup_names[:_MAX_DESCRIBED_SUBGROUPS]
        descriptions = [
            format_subgroup_name(name, self.predicted_class) for name in described_names
        ]
        if len(self.subgroup_names) > _MAX_DESCRIBED_SUBGROUPS:
            descriptions.append("...")
        return ", ".join(descriptions)

    @property
    def monitors_predicted_class_in_groups(self) -> bool:
        """Whether the monitored rows are those of some groups with one predicted class.

        The array `row_subgroups` then has two columns: the group and the predicted class of each
        row. Otherwise it has one entry per row, its class or its group.
        """
        return self.predicted_class is not None

    def select_monitored_rows(self, n_rows: int, row_subgroups: ArrayLike | None) -> Flags | slice:
        """Return an index of the rows that the monitor counts.

        Parameters
        ----------
        n_rows : int
            Number of rows.
        row_subgroups : array-like or None
            Class or group of each row. If both predicted classes of a group are certified, a
            second column contains the predicted class.

        Returns
        -------
        boolean array or slice
        """
        if not self.subgroup_names:
            return slice(None)
        is_in_subgroup = self.select_rows_of_either_predicted_class(n_rows, row_subgroups)
        if not self.monitors_predicted_class_in_groups:
            return is_in_subgroup
        predicted_class_of_row = np.asarray(row_subgroups)[:, _PREDICTED_CLASS_COLUMN].astype(str)
        return is_in_subgroup & (predicted_class_of_row == str(self.predicted_class))

    def select_rows_of_either_predicted_class(
        self, n_rows: int, row_subgroups: ArrayLike | None
    ) -> Flags:
        """Return a mask of the rows in the monitored groups, for any predicted class.

        Without groups, the mask is that of the rows of the monitored classes.
        """
        subgroup_columns = None
        if row_subgroups is not None:
            subgroup_columns = np.atleast_1d(np.asarray(row_subgroups))
        if subgroup_columns is None or len(subgroup_columns) != n_rows:
            raise GroupsError(
                f"This monitor watches {self.subgroup_text}, so it requires the class or group of"
                " each row. Pass it for each row."
            )
        subgroup_of_row = subgroup_columns
        if self.monitors_predicted_class_in_groups:
            subgroup_of_row = subgroup_columns[:, _GROUP_COLUMN]
        monitored_names = np.array(self.subgroup_names)
        return np.isin(subgroup_of_row.astype(str), monitored_names.astype(str))


def check_flags(values: ArrayLike, name: str) -> Flags:
    """Convert values to a boolean array. Raise InputError if they are not booleans."""
    array = np.atleast_1d(np.asarray(values))
    if array.size and (array.dtype != np.bool_ or array.ndim != 1):
        raise InputError(
            f"{name} must have one boolean per row, but got an array of {array.dtype}."
        )
    return array.astype(np.bool_, copy=False).ravel()
