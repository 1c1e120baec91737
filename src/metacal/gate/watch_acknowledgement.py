"""Acknowledgements of alarms, which divide a watch into armed periods.

An alarm is permanent until a person acknowledges it, with a reason. The acknowledgement ends an
*armed period*: all alarms of the watch begin again without evidence, and use only rows that arrive
later. A label that arrives after the acknowledgement for an earlier row is counted, but is no
evidence in the new period. The acknowledgement stays in the state of the watch.

**False alarms.** An acknowledgement may depend on everything before it, so the next period begins at
a stopping time. If nothing has changed since calibration, later rows are independent of it, and each
alarm of the new period is an e-process of its own. So each period raises a false alarm with
probability at most δ, however often alarms are acknowledged. In k periods the probability is at most
kδ. The bounds of the alarms on the promise and on unreadable lines also hold given everything before
the period. The other alarms compare rows with the calibration rows, which are the same in every
period, so their bounds are averages over calibration rows: a false alarm that comes from unlucky
calibration rows is likely to come back.

The tempting shortcut of resetting the evidence, but still using labels that arrive later, is not
valid: rows that caused the alarm would be used again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from metacal.errors import MonitoringError
from metacal.promises.sequential.alarms import Alarm
from metacal.promises.sequential.drift import UnreadableMonitor

#: Maximum number of characters in the reason of an acknowledgement.
MAX_REASON_LENGTH = 1000


@dataclass(frozen=True)
class AcknowledgedAlarm:
    """State of an alarm at its acknowledgement.

    Attributes
    ----------
    name : str
        Name of the alarm.
    first_row : int
        Number of rows in the stream when the alarm was raised.
    log_peak : float
        Logarithm of its highest evidence.
    descriptions : tuple of str
        Observed rows in words.
    """

    name: str
    first_row: int
    log_peak: float
    descriptions: tuple[str, ...]

    @classmethod
    def from_alarm(cls, alarm: Alarm, first_row: int) -> AcknowledgedAlarm:
        """Copy the name, the evidence and the descriptions of a raised alarm."""
        return cls(
            name=alarm.name,
            first_row=first_row,
            log_peak=alarm.log_highest_evidence,
            descriptions=alarm.descriptions,
        )


@dataclass(frozen=True)
class LineCounts:
    """Numbers of text lines and of unreadable lines."""

    n_lines: int = 0
    n_unreadable: int = 0

    def plus_monitors(self, monitors: Iterable[UnreadableMonitor]) -> LineCounts:
        """Return the sum of the line counts and the counts of some monitors."""
        n_lines = self.n_lines
        n_unreadable = self.n_unreadable
        for monitor in monitors:
            n_lines += monitor.n_lines
            n_unreadable += monitor.n_unreadable
        return LineCounts(n_lines=n_lines, n_unreadable=n_unreadable)


@dataclass(frozen=True)
class Acknowledgement:
    """Acknowledgement of raised alarms, which starts a new period of a watch.

    Attributes
    ----------
    time : str
        Time of the acknowledgement in UTC, such as "2026-03-01T09:30:00+00:00".
    reason : str
        What the person found and did.
    n_rows : int
        Number of rows in the stream. Only later rows are evidence in the next period.
    lines : LineCounts
        Numbers of lines in all periods so far.
    alarms : tuple of AcknowledgedAlarm
        Alarms that were raised.
    """

    time: str
    reason: str
    n_rows: int
    lines: LineCounts
    alarms: tuple[AcknowledgedAlarm, ...]

    @classmethod
    def from_raised_alarms(
        cls,
        alarms: Iterable[Alarm],
        n_rows_when_raised: Mapping[str, int],
        reason: str,
        time: datetime | None,
        n_rows: int,
        line_counts: LineCounts,
    ) -> Acknowledgement:
        """Acknowledge the raised alarms. Raise InputError if there are none, or no reason."""
        return cls(
            time=format_time(time),
            reason=check_reason(reason),
            n_rows=n_rows,
            lines=line_counts,
            alarms=collect_acknowledged_alarms(alarms, n_rows_when_raised),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the alarms that were raised."""
        return tuple(alarm.name for alarm in self.alarms)


def count_acknowledged_rows(acknowledgements: Sequence[Acknowledgement]) -> int:
    """Return the number of rows before the latest acknowledgement, 0 if there is none."""
    if not acknowledgements:
        return 0
    latest_acknowledgement = acknowledgements[-1]
    return latest_acknowledgement.n_rows


def count_acknowledged_lines(acknowledgements: Sequence[Acknowledgement]) -> LineCounts:
    """Return the numbers of lines before the latest acknowledgement."""
    if not acknowledgements:
        return LineCounts()
    latest_acknowledgement = acknowledgements[-1]
    return latest_acknowledgement.lines


def check_reason(reason: str) -> str:
    """Strip the reason of an acknowledgement, and check that it can be stored."""
    if not isinstance(reason, str):
        raise MonitoringError(f"reason must be a string, but got {type(reason).__name__}.")
    stripped_reason = reason.strip()
    is_empty = len(stripped_reason) == 0
    is_too_long = len(stripped_reason) > MAX_REASON_LENGTH
    if is_empty or is_too_long or not stripped_reason.isprintable():
        raise MonitoringError(
            f"reason must be one line of at most {MAX_REASON_LENGTH:,} characters, but got"
            f" {reason[:80]!r}. Describe the cause of the alarm and your response."
        )
    return stripped_reason


def format_time(time: datetime | None) -> str:
    """Format a time, by default the current time, in UTC with whole seconds.

    Examples
    --------
    >>> from datetime import timedelta, timezone
    >>> format_time(datetime(2026, 3, 1, 10, 30, tzinfo=timezone(timedelta(hours=1))))
    '2026-03-01T09:30:00+00:00'
    """
    if time is None:
        time = datetime.now(UTC)
    if time.tzinfo is None:
        raise MonitoringError(f"time must have a time zone, but got {time.isoformat()!r}.")
    return time.astimezone(UTC).isoformat(timespec="seconds")


def collect_acknowledged_alarms(
    alarms: Iterable[Alarm], n_rows_when_raised: Mapping[str, int]
) -> tuple[AcknowledgedAlarm, ...]:
    """Return the raised alarms, each with the number of rows when it was raised.

    Raises
    ------
    InputError
        If no alarm is raised.
    """
    raised_alarms = tuple(
        AcknowledgedAlarm.from_alarm(alarm, n_rows_when_raised[alarm.name])
        for alarm in alarms
        if alarm.raised
    )
    if not raised_alarms:
        raise MonitoringError(
            "No alarm was raised, so there is nothing to acknowledge. Run the monitor without an"
            " acknowledgement."
        )
    return raised_alarms
