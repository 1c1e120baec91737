"""Intake of a monitor: from a source into the state and onto the disk.

One step takes the rows and labels that have arrived from the source, adds them to the monitor
state, and writes them to the journal. Only then does the next step begin. Everything that was
counted is therefore in the journal, and everything in the journal is counted once, whenever the
process ends. The next process that opens the journal gets the resulting state and the position from
which to read on. If the disk fails, the step is not finished: it is tried again, and nothing more
is read meanwhile. This includes the first record, so that a full disk does not stop a monitor at
its start.

`Intake` never waits, so that `tests/simulation` can drive it through simulated histories.
`metacal.cli.monitoring` repeats its steps and shows the status.
"""

from __future__ import annotations

import json
import time
from typing import Any, NamedTuple

from metacal.cli.line_source import LineSource
from metacal.cli.sources import TableSource
from metacal.errors import FileWriteError, InputError
from metacal.io.artifact.watch_journal import MonitorState, ReceivedBatch, state_record
from metacal.io.disk import DISK, Disk, input_error_if_write_fails, is_disk_full
from metacal.io.journal import Journal
from metacal.io.opening import input_error_if_read_fails

#: A smaller journal is not compacted, that is, its records are not replaced by a single state.
_MIN_JOURNAL_BYTES_TO_COMPACT = 1 << 24
#: Unreadable lines are only counted, and no longer stored, if their file has more bytes than this.
MAX_QUARANTINE_BYTES = 1 << 26


class NotRecordedError(FileWriteError):
    """Error about a batch that could not be written to disk and will be retried."""


class Quarantine:
    """File of unreadable lines, each stored once with its place and the reason.

    Parameters
    ----------
    path : str
        The file.
    disk : Disk, default=DISK
        File system.

    Attributes
    ----------
    write_offset : int
        Offset in the file at which the next lines will be written. The journal stores it before
        the lines are added, so that they are not added twice after a crash.
    """

    def __init__(self, path: str, disk: Disk = DISK) -> None:
        self.path = path
        self._disk = disk
        with input_error_if_read_fails(path):
            self.write_offset = len(disk.read(path) or b"")

    def add_lines(
        self, received_batch: ReceivedBatch, place: str, *, is_second_attempt: bool = False
    ) -> None:
        """Append the unreadable lines of a batch to the file.

        Parameters
        ----------
        received_batch : ReceivedBatch
            Content of the step.
        place : str
            Name of the source.
        is_second_attempt : bool, default=False
            Whether an earlier attempt failed, so that some of the lines may be in the file.
        """
        new_content = _encode_unreadable_lines(received_batch, place)
        if not new_content or self.write_offset > MAX_QUARANTINE_BYTES:
            return
        if is_second_attempt and self._finish_first_attempt(new_content):
            return
        self._disk.append(self.path, new_content)
        self.write_offset += len(new_content)

    def _finish_first_attempt(self, new_content: bytes) -> bool:
        """Find the content that an earlier attempt wrote, and remove an incomplete one.

        Returns
        -------
        bool
            Whether the file has all of `new_content`. Otherwise it must be written at
            `write_offset`, which is the end of the file.
        """
        file_content = self._disk.read(self.path) or b""
        content_of_first_attempt = file_content[self.write_offset :]
        if content_of_first_attempt.startswith(new_content):
            self.write_offset = len(file_content)
            return True
        is_incomplete = 0 < len(content_of_first_attempt) <= len(new_content)
        if is_incomplete:
            self._disk.truncate(self.path, self.write_offset)
        else:
            self.write_offset = len(file_content)
        return False


def _encode_unreadable_lines(received_batch: ReceivedBatch, place: str) -> bytes:
    """Encode the unreadable lines of a batch as JSON lines."""
    json_lines = []
    for unreadable_line in received_batch.unreadable_lines:
        line_entry = {
            "place": f"{place}:{unreadable_line.line_number}",
            "reason": unreadable_line.reason,
            "line": unreadable_line.text,
        }
        json_lines.append(json.dumps(line_entry).encode() + b"\n")
    return b"".join(json_lines)


class QuarantinePosition(NamedTuple):
    """Place in the quarantine file to which the unreadable lines of a journal record belong.

    Attributes
    ----------
    path : str
        The quarantine file.
    write_offset : int
        Offset in that file at which the lines are written.
    source_place : str
        Name of the source of the lines, in messages.
    """

    path: str
    write_offset: int
    source_place: str


class Intake:
    """Transfer of rows and labels from a source to the monitor state, batch by batch.

    Parameters
    ----------
    monitor_state : MonitorState
        Monitor state and positions of the sources: new, or read from the journal.
    source : LineSource or TableSource
        Source of rows and labels.
    journal : Journal or None
        Open journal. Without one, nothing is stored.
    quarantine : Quarantine or None
        File of unreadable lines.
    max_silence_seconds : float or None
        Seconds without input after which an alarm is raised.

    Attributes
    ----------
    n_silences : int
        How often that alarm was raised.
    """

    def __init__(
        self,
        monitor_state: MonitorState,
        source: LineSource | TableSource,
        journal: Journal | None,
        quarantine: Quarantine | None,
        max_silence_seconds: float | None,
    ) -> None:
        self.monitor_state = monitor_state
        self.source = source
        self.journal = journal
        self.quarantine = quarantine
        self.max_silence_seconds = max_silence_seconds
        self.n_silences = 0
        self._last_input_time = time.monotonic()
        self._was_silent = False
        # After a disk error, these attributes show which part of the batch is not stored yet.
        self._pending_record: dict[str, Any] | None = None
        self._is_pending_record_journalled = False
        self._has_last_write_failed = False
        self._has_journal_begun = False
        self._journal_bytes_to_compact = _MIN_JOURNAL_BYTES_TO_COMPACT
        try:
            self._begin_journal()
        except InputError as error:
            # `process_next_batch` tries again if the disk is full. Other errors would not go away.
            if not is_disk_full(error):
                raise

    @property
    def has_unrecorded_rows(self) -> bool:
        """Whether the latest rows are not in the journal because the disk failed."""
        return (
            self.journal is not None
            and self._pending_record is not None
            and not self._is_pending_record_journalled
        )

    def detect_silence(self) -> bool:
        """Return whether nothing has arrived for too long, and count each new silence."""
        is_silent = False
        if self.max_silence_seconds is not None:
            is_silent = time.monotonic() - self._last_input_time >= self.max_silence_seconds
        if is_silent and not self._was_silent:
            self.n_silences += 1
        self._was_silent = is_silent
        return is_silent

    def process_next_batch(self) -> bool:
        """Read the next batch of input, add it to the state, and store it in the journal.

        Returns
        -------
        bool
            Whether anything had arrived.

        Raises
        ------
        NotRecordedError
            If the disk fails. The next call tries again.
        """
        if not self._has_journal_begun:
            try:
                self._begin_journal()
            except InputError as error:
                raise NotRecordedError(str(error)) from error
        if self._pending_record is None and not self._prepare_next_record():
            return False
        try:
            self._store_pending_record()
        except InputError as error:
            self._has_last_write_failed = True
            raise NotRecordedError(str(error)) from error
        return True

    def acknowledge(self, reason: str) -> None:
        """Acknowledge the raised alarms, and store the new state in the journal."""
        self.monitor_state.watch.acknowledge(reason)
        if self.journal is not None:
            self.journal.rewrite([state_record(self.monitor_state)])

    def compact_journal(self) -> None:
        """Replace all records of the journal by a single record of the whole state."""
        if self.journal is not None and self._has_journal_begun and self._pending_record is None:
            self.journal.rewrite([state_record(self.monitor_state)])
            self._journal_bytes_to_compact = max(
                _MIN_JOURNAL_BYTES_TO_COMPACT, 3 * self.journal.size
            )

    def _begin_journal(self) -> None:
        """Begin a new journal, or finish the last step of an earlier run."""
        if self.journal is not None and not self.journal.records:
            self._append_record(self.journal, state_record(self.monitor_state))
        self._quarantine_lines_of_last_run()
        self._has_journal_begun = True

    def _prepare_next_record(self) -> bool:
        """Read a batch, and add it to the state. Return False if nothing has arrived."""
        received_batch = self.source.read_batch()
        if received_batch is None:
            return False
        has_input = received_batch.n_lines > 0 or len(received_batch.rows) > 0
        if has_input:
            self._last_input_time = time.monotonic()
            self._was_silent = False
        journal_record = self.monitor_state.add_batch(
            received_batch, source_name=self.source.name, source_position=self.source.state
        )
        if self.quarantine is not None:
            quarantine_position = QuarantinePosition(
                path=self.quarantine.path,
                write_offset=self.quarantine.write_offset,
                source_place=self.source.place,
            )
            journal_record["quarantine"] = list(quarantine_position)
        self._pending_record = journal_record
        self._is_pending_record_journalled = False
        return True

    def _append_record(self, journal: Journal, record: dict[str, Any]) -> None:
        """Append a record. If an earlier failure damaged the journal, rewrite all of it."""
        if journal.has_failed:
            journal.rewrite([*journal.records, record])
        else:
            journal.append(record)

    def _store_pending_record(self) -> None:
        """Write the pending record to the journal, and its unreadable lines to the quarantine."""
        assert self._pending_record is not None
        if self.journal is not None and not self._is_pending_record_journalled:
            self._append_record(self.journal, self._pending_record)
            self._is_pending_record_journalled = True
        if self.quarantine is not None:
            batch_of_record = self.monitor_state.last_batch
            assert batch_of_record is not None
            with input_error_if_write_fails(self.quarantine.path):
                self.quarantine.add_lines(
                    batch_of_record,
                    self.source.place,
                    is_second_attempt=self._has_last_write_failed,
                )
        self._pending_record = None
        self._has_last_write_failed = False
        if self.journal is not None and self.journal.size > self._journal_bytes_to_compact:
            self.compact_journal()

    def _quarantine_lines_of_last_run(self) -> None:
        """Store the unreadable lines of the last record, in case an earlier run was killed first."""
        last_batch = self.monitor_state.last_batch
        if self.journal is None or self.quarantine is None or last_batch is None:
            return
        stored_position = self.journal.records[-1].get("quarantine")
        if not stored_position:
            return
        position = QuarantinePosition(*stored_position)
        is_same_file = position.path == self.quarantine.path
        if is_same_file and position.write_offset <= self.quarantine.write_offset:
            self.quarantine.write_offset = position.write_offset
            with input_error_if_write_fails(position.path):
                self.quarantine.add_lines(last_batch, position.source_place, is_second_attempt=True)
