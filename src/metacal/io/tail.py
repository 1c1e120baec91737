"""Reader of the lines of a log file that is still being written.

A *rotation* moves a log file away, or copies and truncates it, so that a new file takes its place.
A file is identified by its device and inode, and by the bytes just before the position up to which
it was read. This distinguishes the following cases, while a file is followed and after a restart:

- *The file has grown*: reading continues.
- *The file was renamed* (`mv log log.1`): the old file is read to its end. The end has come when
  the new file has content, because the writer then uses the new file. Files that were rotated in
  between are read in order.
- *The file was truncated* (`cp log log.1; : > log`): reading continues in the copy, if there is
  one, and then in the new content.
- *The file was written again with the same beginning*: reading continues.
- *The file is missing*: this is a *gap*, which is counted and reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from metacal.errors import FileReadError, InputError
from metacal.io.formats.jsonl import MAX_LINE_BYTES
from metacal.io.lines import (
    MAX_DIGEST_BYTES,
    PAUSE_SECONDS,
    READ_BYTES,
    Line,
    LineSplitter,
    LogFile,
    LogFileSystem,
    Position,
)
from metacal.io.rotation import NextLog, find_next_rotated, iterate_neighbours


@dataclass(frozen=True)
class _ReadResult:
    """Lines of one attempt to read, and whether another attempt can return more.

    Attributes
    ----------
    lines : list of Line
        Lines to return.

    should_read_again : bool
        Whether to read again at once if there are no lines.
    """

    lines: list[Line]
    should_read_again: bool


class Tail:
    """Reader that returns the lines of a log file as they are written.

    Parameters
    ----------
    path : str
        Log file.

    follow : bool, default=False
        Whether to wait for more lines at the end of the file. Otherwise `ended` becomes true.

    resume_from : Position, optional
        Position at which an earlier `Tail` stopped.

    return_incomplete_line : bool, default=False
        Whether to return a last line without an end, if the file is not followed.

    logs : LogFileSystem, optional
        Access to files.

    max_line_length : int, optional
        Largest length of a line.

    Attributes
    ----------
    n_gaps : int
        Number of times that lines may have been lost before they were read.

    ended : bool
        Whether the end of a file that is not followed was reached.

    notes : list of str
        Messages for the user. The caller removes them from the list.
    """

    def __init__(
        self,
        path: str,
        *,
        follow: bool = False,
        resume_from: Position | None = None,
        return_incomplete_line: bool = False,
        logs: LogFileSystem | None = None,
        max_line_length: int = MAX_LINE_BYTES,
    ) -> None:
        self.path = path
        self.follow = follow
        self.return_incomplete_line = return_incomplete_line
        self.n_gaps = 0
        self.ended = False
        self.notes: list[str] = []
        self._log_file_system = logs or LogFileSystem()
        self._max_line_length = max_line_length
        #: Position to resume from when a file is opened.
        self._resume_position = resume_from
        self._file: LogFile | None = None
        self._modification_time_ns = 0
        self._last_note = ""
        #: Whether a newer log existed when the end of the open log was last reached.
        self._was_rotated_at_last_end = False
        self._go_to_offset(0)

    def read(self) -> list[Line]:
        """Return the lines that have arrived, all from one file, without waiting."""
        while True:
            file = self._file or self._open_log()
            if file is None:
                return []
            try:
                modification_time_ns = file.modification_time_ns()
                n_known_bytes = len(self._last_read_bytes)
                known_offset = self._read_offset - n_known_bytes
                content = file.read(known_offset, n_known_bytes + READ_BYTES)
            except OSError as error:
                # A disk or a network drive may become available again.
                return self._handle_read_error(error)

            was_truncated = not content.startswith(self._last_read_bytes)
            if was_truncated:
                read_result = _ReadResult(self._handle_truncation(file), should_read_again=True)
            else:
                self._modification_time_ns = modification_time_ns
                new_bytes = content[n_known_bytes:]
                if new_bytes:
                    read_result = _ReadResult(self._split_lines(new_bytes), should_read_again=True)
                else:
                    read_result = self._handle_end_of_file(file)
            if read_result.lines or not read_result.should_read_again:
                return read_result.lines

    def wait(self) -> None:
        """Sleep until new lines may have arrived."""
        time.sleep(PAUSE_SECONDS)

    @property
    def position(self) -> Position | None:
        """Position after the last returned line, or None before a file is open."""
        if self._file is None:
            return self._resume_position
        return Position.in_file(
            self._file,
            offset=self._read_offset - self._splitter.n_buffered_bytes,
            bytes_before_offset=self._last_returned_bytes,
            modification_time_ns=self._modification_time_ns,
            line_number=self._splitter.last_line_number,
            is_inside_long_line=self._splitter.is_inside_long_line,
        )

    @property
    def has_incomplete_line(self) -> bool:
        """Whether the last line is still incomplete."""
        return self._splitter.n_buffered_bytes > 0

    def _go_to_offset(
        self,
        offset: int,
        *,
        line_number: int = 0,
        bytes_before: bytes = b"",
        is_inside_long_line: bool = False,
    ) -> None:
        """Continue reading at an offset of the file.

        Parameters
        ----------
        offset : int
            Offset of the next byte to read.

        line_number : int, default=0
            Number of the last line.

        bytes_before : bytes, default=b""
            Bytes just before the offset.

        is_inside_long_line : bool, default=False
            Whether the offset lies within a line that is too long.
        """
        self._splitter = LineSplitter(
            last_line_number=line_number,
            is_inside_long_line=is_inside_long_line,
            max_line_bytes=self._max_line_length,
        )
        self._read_offset = offset
        #: Last bytes before `_read_offset`, which change if the file is truncated or rewritten.
        self._last_read_bytes = bytes_before
        #: Bytes just before the end of the last line that was returned, which identify `position`.
        self._last_returned_bytes = bytes_before

    def _split_lines(self, new_bytes: bytes) -> list[Line]:
        """Return the lines that end in new bytes of the file."""
        lines = self._splitter.feed(new_bytes)
        # The buffered incomplete line may have begun before the new bytes.
        n_incomplete_line_bytes = min(self._splitter.n_buffered_bytes, len(new_bytes))
        bytes_of_complete_lines = new_bytes[: len(new_bytes) - n_incomplete_line_bytes]
        if bytes_of_complete_lines or lines:
            bytes_until_last_line_end = self._last_read_bytes + bytes_of_complete_lines
            self._last_returned_bytes = bytes_until_last_line_end[-MAX_DIGEST_BYTES:]
        self._read_offset += len(new_bytes)
        self._last_read_bytes = (self._last_read_bytes + new_bytes)[-MAX_DIGEST_BYTES:]
        return lines

    def _flush_incomplete_line(self, fault: str) -> list[Line]:
        """Return an incomplete line whose end will never arrive, if there is one."""
        lines = self._splitter.flush(fault)
        if lines:
            self._last_returned_bytes = self._last_read_bytes
        return lines

    def _handle_read_error(self, error: OSError) -> list[Line]:
        """Close the file and retry later, or raise InputError if it is not followed."""
        message = f"{self.path}: the file cannot be read: {error.strerror or error}"
        if not self.follow:
            raise FileReadError(f"{message}.") from error
        self._add_note(f"{message}; trying again.")
        self._resume_position = self.position
        self._file = None
        return []

    def _add_note(self, note: str) -> None:
        """Add a message unless it equals the last message."""
        if note != self._last_note:
            self.notes.append(note)
        self._last_note = note

    def _add_gap(self, reason: str) -> None:
        """Count and report a gap in the lines that were read."""
        self.n_gaps += 1
        self.notes.append(
            f"{self.path}: {reason}; what had been written to it since cannot be seen."
        )

    def _open_log(self) -> LogFile | None:
        """Open the log, or resume at an earlier position. Return None if it is missing."""
        current_file = self._open_current_file()
        if self._resume_position is not None:
            return self._resume_at_position(current_file, self._resume_position)
        if current_file is None:
            if not self.follow:
                raise FileReadError(
                    f"{self.path}: the file does not exist. Check the name and the folder."
                )
            self._add_note(f"{self.path} is not there; waiting for it.")
        self._file = current_file
        return current_file

    def _open_current_file(self) -> LogFile | None:
        """Open the file at the path of the log, or return None if it is missing."""
        try:
            return self._log_file_system.open(self.path)
        except InputError as error:
            if not self.follow:
                raise
            self._add_note(f"{error} Waiting.")
            return None

    def _resume_at_position(
        self, current_file: LogFile | None, position: Position
    ) -> LogFile | None:
        """Open the file that an earlier position refers to, and go to that position."""
        file = self._find_file_of_position(current_file, position)
        self._resume_position = None
        if file is None:
            self._add_gap("it was moved away or cut off while nobody read it")
            # The file may have been truncated, rewritten, and then renamed.
            self._file = self._find_other_log(lambda log: log.identity == position.identity)
            return self._file or self._open_log()
        self._file = file
        self._modification_time_ns = position.modification_time_ns
        n_digest_bytes = position.n_digest_bytes
        self._go_to_offset(
            position.offset,
            line_number=position.line_number,
            bytes_before=file.read(position.offset - n_digest_bytes, n_digest_bytes),
            is_inside_long_line=position.is_inside_long_line,
        )
        return file

    def _find_file_of_position(
        self, current_file: LogFile | None, position: Position
    ) -> LogFile | None:
        """Return the file of a position, or else a file with the same bytes before it."""
        rewritten_file = None
        if current_file is not None and position.matches(current_file):
            if current_file.identity == position.identity:
                return current_file
            if position.offset > 0:
                rewritten_file = current_file

        renamed_file = self._find_other_log(
            lambda log: log.identity == position.identity and position.matches(log)
        )
        # A copy takes precedence because a new log may begin with the same header.
        return (
            renamed_file
            or self._find_copy_of_truncated_log(position, current_file)
            or rewritten_file
        )

    def _find_other_log(
        self, matches: Callable[[LogFile], bool], *, only_rotated: bool = False
    ) -> LogFile | None:
        """Return the least recently modified file of the directory that matches."""
        neighbours = iterate_neighbours(self._log_file_system, self.path, only_rotated=only_rotated)
        matching_logs = [neighbour.log for neighbour in neighbours if matches(neighbour.log)]
        return min(matching_logs, key=lambda log: log.modification_time_ns(), default=None)

    def _find_copy_of_truncated_log(
        self, position: Position, current_file: LogFile | None
    ) -> LogFile | None:
        """Return the copy that was made before the file was truncated.

        It is named like a rotated log and is younger than the position. An earlier log, which may
        begin with the same header, is older.
        """
        if position.offset == 0:
            return None
        current_identity = None
        if current_file is not None:
            current_identity = current_file.identity

        def is_copy(log: LogFile) -> bool:
            if log.identity == current_identity:
                return False
            is_later = log.modification_time_ns() > position.modification_time_ns
            return is_later and position.matches(log)

        return self._find_other_log(is_copy, only_rotated=True)

    def _handle_truncation(self, file: LogFile) -> list[Line]:
        """Continue in the copy of a truncated log, or at the beginning of the log.

        Return the incomplete last line from before the truncation, if its end is lost. The next
        call then goes to the beginning of the file.
        """
        position = Position.in_file(
            file,
            offset=self._read_offset,
            bytes_before_offset=self._last_read_bytes,
            modification_time_ns=self._modification_time_ns,
        )
        copied_log = self._find_copy_of_truncated_log(position, file)
        if copied_log is not None:
            self._file = copied_log
            return []
        incomplete_lines = self._flush_incomplete_line("the file was cut off within this line")
        if incomplete_lines:
            return incomplete_lines
        self._add_gap("it was cut off")
        self._go_to_offset(0)
        return []

    def _handle_end_of_file(self, file: LogFile) -> _ReadResult:
        """Stop at the end of the log, or continue with the next file after a rotation."""
        next_log = self._find_next_log(file)
        if next_log.log is None:
            self._was_rotated_at_last_end = False
            last_lines = self._end_if_not_following()
            return _ReadResult(last_lines, should_read_again=False)

        if not self._was_rotated_at_last_end:
            # Read once more, because lines may have been added just before the rotation.
            self._was_rotated_at_last_end = True
            return _ReadResult(lines=[], should_read_again=True)
        incomplete_lines = self._flush_incomplete_line(
            "the file was moved away before the end of this line had come"
        )
        if incomplete_lines:
            return _ReadResult(incomplete_lines, should_read_again=True)
        if next_log.file_was_removed:
            self._add_gap("it was removed from the folder while it was read")
        self._go_to_next_file(next_log.log)
        return _ReadResult(lines=[], should_read_again=True)

    def _end_if_not_following(self) -> list[Line]:
        """Set `ended` unless the file is followed, and return its incomplete last line."""
        if self.follow:
            return []
        self.ended = True
        if self.return_incomplete_line:
            return self._splitter.flush()
        return []

    def _find_next_log(self, file: LogFile) -> NextLog:
        """Find the log that follows a rotated file, unless that file may still grow."""
        current_file = self._open_current_file()
        if current_file is not None and current_file.identity == file.identity:
            return NextLog(log=None, file_was_removed=False)
        next_rotated = find_next_rotated(self._log_file_system, self.path, file)
        if next_rotated.log is None and current_file is not None and current_file.size():
            return replace(next_rotated, log=current_file)
        return next_rotated

    def _go_to_next_file(self, next_file: LogFile) -> None:
        """Continue reading in the next log file.

        Reading continues at the same offset if the next file has the same bytes before it, and
        otherwise at the beginning.
        """
        self._file = next_file
        self._was_rotated_at_last_end = False
        has_same_last_bytes = False
        if self._read_offset > 0:
            n_known_bytes = len(self._last_read_bytes)
            next_file_bytes = next_file.read(self._read_offset - n_known_bytes, n_known_bytes)
            has_same_last_bytes = next_file_bytes == self._last_read_bytes
        if not has_same_last_bytes:
            self._go_to_offset(0)
