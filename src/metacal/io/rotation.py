"""Rotated log files: their names, their order, and the file that follows another.

Rotation appends a number or a date to the name of a log, as in `a.log.1` or `a-20260101.log`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from metacal.errors import InputError
from metacal.io.lines import LogFile, LogFileSystem

#: Number or date that log rotation adds to a file name.
_ROTATION_PATTERN = re.compile(r"[.-](?P<number_or_date>\d[\d_T-]*)")
#: Maximum number of digits of a rotation number. Longer digit strings are dates.
_MAX_NUMBER_DIGITS = 4


class RotationRank(NamedTuple):
    """Rank of a rotated log among logs of the same naming scheme, oldest first.

    Attributes
    ----------
    naming_scheme : int
        0 if the number or date is at the end of the name, 1 if it precedes the suffix.

    is_numbered : bool
        Whether the name contains a number, not a date.

    sort_key : int or str
        Negative number, or date.
    """

    naming_scheme: int
    is_numbered: bool
    sort_key: Any

    def has_same_scheme(self, other: RotationRank) -> bool:
        """Check whether two files are named by the same scheme."""
        is_same_place = self.naming_scheme == other.naming_scheme
        return is_same_place and self.is_numbered == other.is_numbered


class _AgeKey(NamedTuple):
    """Sort key of a rotated file: its modification time, then its rank."""

    modification_time_ns: int
    rank: RotationRank


@dataclass(frozen=True)
class Neighbour:
    """Open file in the directory of a log.

    Attributes
    ----------
    log : LogFile
        The file.

    rank : RotationRank or None
        Rank among the rotated files. None if the name is not that of a rotated file.
    """

    log: LogFile
    rank: RotationRank | None


@dataclass(frozen=True)
class NextLog:
    """Log that follows a given file, if there is one.

    Attributes
    ----------
    log : LogFile or None
        Log that was begun just after the given one. None if the given file is the last.

    file_was_removed : bool
        Whether the given file is no longer in the directory although rotated files of the same age
        or younger are. Files after it may have been removed too.
    """

    log: LogFile | None
    file_was_removed: bool


def iterate_neighbours(
    logs: LogFileSystem, path: str, *, only_rotated: bool
) -> Iterator[Neighbour]:
    """Open and yield the other readable files in the directory of a log.

    Parameters
    ----------
    logs : LogFileSystem
        Access to files.

    path : str
        Path of the log.

    only_rotated : bool
        Whether to yield only files that are named like rotated ones.

    Yields
    ------
    Neighbour
    """
    directory, base_name = os.path.split(path)
    for name in logs.list_directory_of(path):
        rank = get_rotation_rank(name, base_name)
        if name == base_name or (rank is None and only_rotated):
            continue
        # A file of another user may be unreadable, and a file may disappear.
        with suppress(InputError, OSError):
            log = logs.open(os.path.join(directory, name))
            if log is not None:
                yield Neighbour(log=log, rank=rank)


def find_next_rotated(logs: LogFileSystem, path: str, file: LogFile) -> NextLog:
    """Find the file that was rotated just after the given one.

    Files are ordered by modification time, because some systems number them from the oldest and
    others from the newest.

    Parameters
    ----------
    logs : LogFileSystem
        Access to files.

    path : str
        Path of the log.

    file : LogFile
        File that was read.

    Returns
    -------
    NextLog
    """
    log_by_age: dict[_AgeKey, LogFile] = {}
    for neighbour in iterate_neighbours(logs, path, only_rotated=True):
        assert neighbour.rank is not None
        age_key = _AgeKey(neighbour.log.modification_time_ns(), neighbour.rank)
        log_by_age[age_key] = neighbour.log

    for age_key, log in log_by_age.items():
        if log.identity == file.identity:
            return NextLog(log=_find_next_in_series(log_by_age, age_key), file_was_removed=False)
    return _find_next_of_missing_file(log_by_age, file.modification_time_ns())


def _find_next_in_series(log_by_age: Mapping[_AgeKey, LogFile], key: _AgeKey) -> LogFile | None:
    """Return the next younger log that is named by the same scheme, or None."""
    later_keys = [
        other_key
        for other_key in log_by_age
        if other_key.rank.has_same_scheme(key.rank) and other_key > key
    ]
    if not later_keys:
        return None
    return log_by_age[min(later_keys)]


def _find_next_of_missing_file(
    log_by_age: Mapping[_AgeKey, LogFile], modification_time_ns: int
) -> NextLog:
    """Find the log that follows a file which is not among the rotated logs.

    Only the modification time of such a file is known. It counts as removed if a rotated log is of
    the same age or younger.
    """
    later_keys = [key for key in log_by_age if key.modification_time_ns > modification_time_ns]
    next_log = log_by_age[min(later_keys)] if later_keys else None
    was_removed = any(key.modification_time_ns >= modification_time_ns for key in log_by_age)
    return NextLog(log=next_log, file_was_removed=was_removed)


def get_rotation_rank(name: str, base_name: str) -> RotationRank | None:
    """Return the age rank of a rotated log file, or None for other files.

    Return None for any other name.

    Parameters
    ----------
    name : str
        Name of the file.

    base_name : str
        Name of the log.

    Returns
    -------
    RotationRank or None

    Examples
    --------
    >>> sorted(["a.log.1", "a.log.3", "a.log.2"], key=lambda name: get_rotation_rank(name, "a.log"))
    ['a.log.3', 'a.log.2', 'a.log.1']
    >>> get_rotation_rank("a-20260101.log", "a.log") < get_rotation_rank("a-20260102.log", "a.log")
    True
    >>> get_rotation_rank("a.log.gz", "a.log") is None
    True
    """
    stem, suffix = os.path.splitext(base_name)
    # The number or date is at the end of the name, or precedes the suffix.
    naming_schemes = ((base_name, ""), (stem, suffix))
    for naming_scheme, (beginning, ending) in enumerate(naming_schemes):
        has_added_part = len(name) > len(beginning) + len(ending)
        if not (has_added_part and name.startswith(beginning) and name.endswith(ending)):
            continue
        match = _ROTATION_PATTERN.fullmatch(name, len(beginning), len(name) - len(ending))
        if match is None:
            continue
        number_or_date = match["number_or_date"]
        if number_or_date.isdigit() and len(number_or_date) <= _MAX_NUMBER_DIGITS:
            # The log with the highest number is the oldest.
            return RotationRank(naming_scheme, is_numbered=True, sort_key=-int(number_or_date))
        return RotationRank(naming_scheme, is_numbered=False, sort_key=number_or_date)
    return None
