r"""Journal: a durable, append-only log of records.

The state of a tool follows from the records of its journal, in order. A tool may store its state
elsewhere to save time, but never instead.

A record is a line: the seal, a space, and JSON. The *seal* is a checksum of the record and of the
seal before it. It reveals lines that were changed, moved or removed. With a key the seal is a
signature.

- *Durability.* `append` returns when the record is on the disk. If it raises an error, the journal
  is as it was before. A record is added completely or not at all, so put data that belong together
  into one record.
- *Single writer.* An open journal holds a lock until it is closed, and a second process gets an
  error that names the first. The lock belongs to the file, not to a name: the lock file is beside
  the file that symbolic links lead to, and the file itself is locked too, so that hard links share
  the lock. The lock ends with its process. A copy of a journal has its own lock.
- *Last record.* A crash during `append` leaves a last line that is incomplete, or that has zeros
  where data was never written. If its seal is valid nevertheless, the record is kept. Otherwise a
  incomplete record cannot be distinguished from a damaged one. The line is then saved beside the journal,
  removed from the journal, and reported by a warning.
- *Damage.* A complete line with an invalid seal was once acknowledged, and was changed since. This
  is an error that gives the line number, for any line of the file, and nothing is changed. A file
  that is not a journal is never changed either.

Examples
--------
>>> import os, tempfile
>>> path = os.path.join(tempfile.mkdtemp(), "labels.journal")
>>> with Journal(path, "label") as journal:
...     journal.append({"rows": [3, 1], "right": [True, False]})
...     journal.append({"rows": [7], "right": [True]})
>>> with Journal(path, "label") as journal:
...     [record["rows"] for record in journal.records]
[[3, 1], [7]]
>>> with Journal(path, "label") as first, Journal(path, "label") as second:
...     pass
Traceback (most recent call last):
metacal.errors.BusyError: ...labels.journal is in use by process ...
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Self

from metacal.errors import ArtifactError, FileWriteError, ForeignFileError, warn_caller
from metacal.io.disk import DISK, Disk, input_error_if_write_fails
from metacal.io.journal_lines import CHECKSUM_LENGTH, JournalContent, Record, Seal, SealedLine
from metacal.io.opening import input_error_if_read_fails
from metacal.spelling import format_option

#: Version of the line format. Journals of other versions are rejected.
VERSION = 1
#: Maximum size of a journal in bytes. Tools rewrite a journal long before it grows so large.
MAX_BYTES = 1 << 30
#: Minimum number of zero bytes in a line that a crash has damaged.
#: A crash leaves whole disk sectors of zeros.
_MIN_ZEROS_AFTER_CRASH = 16


class Journal:
    """Journal that is open for reading and appending.

    Parameters
    ----------
    path : str
        File of the journal, created with the first record. It may be a symbolic link. The lock file
        is beside the file that the link leads to, with ".lock" appended to its name.

    kind : str
        Name of the tool. A journal of another tool is rejected.

    seal : Seal, optional
        Signature with a key. The default is a checksum.

    disk : Disk, optional
        File system.

    Attributes
    ----------
    records : list of dict
        All records, in order.

    real_path : str
        Path with symbolic links resolved. `path` is used only in messages.

    size : int
        Size of the valid content in bytes.

    has_failed : bool
        Whether the disk has failed, so that nothing can be appended before a `rewrite`.
    """

    def __init__(
        self, path: str, kind: str, *, seal: Seal | None = None, disk: Disk = DISK
    ) -> None:
        self.path = path
        self.real_path = path
        self.kind = kind
        self.disk = disk
        self.seal = seal or Seal()
        self.records: list[Record] = []
        self.size = 0
        self.has_failed = False
        self._header = {"journal": kind, "version": VERSION}
        self._last_seal = ""
        self._locks = ExitStack()

    def __enter__(self) -> Self:
        self.real_path = self.disk.real_path(self.path)
        lock_path = f"{self.real_path}.lock"
        with ExitStack() as stack:
            with input_error_if_write_fails(lock_path):
                stack.enter_context(self.disk.lock(lock_path))
            stack.enter_context(self.disk.lock_content(self.real_path))
            self._repair(self._read_records())
            self._locks = stack.pop_all()
        return self

    def __exit__(self, *reason: object) -> None:
        self._locks.close()

    def append(self, record: Record) -> None:
        """Append a record durably. Raise InputError, and append nothing, if that fails."""
        if self.has_failed:
            raise FileWriteError(
                f"cannot write {self.path}: an earlier write to this file failed. Repair the"
                " disk, and call again."
            )
        seal_before_append = self._last_seal
        if self.size == 0:
            new_lines = self._seal_records([self._header, record], previous_seal="")
        else:
            new_lines = self._seal_records([record], previous_seal=seal_before_append)
        new_content = b"".join(line.content for line in new_lines)
        self._last_seal = new_lines[-1].seal
        try:
            self.disk.append(self.real_path, new_content)
        except OSError as error:
            self._last_seal = seal_before_append
            self._truncate_to_valid_size()
            raise FileWriteError(
                f"cannot write {self.path}: {error.strerror or error}. Nothing was recorded. Free"
                " some space on the disk, and call again."
            ) from error
        self.size += len(new_content)
        self.records.append(new_lines[-1].record)

    def rewrite(self, records: Iterable[Record]) -> None:
        """Replace all records of the journal atomically.

        This also repairs a journal to which nothing can be appended after a failure of the disk.
        """
        new_lines = self._seal_records([self._header, *records], previous_seal="")
        new_content = b"".join(line.content for line in new_lines)
        self._last_seal = new_lines[-1].seal
        try:
            with input_error_if_write_fails(self.path):
                self.disk.write(self.real_path, new_content)
        except BaseException:
            # After a failed write, the file may have the old or the new content.
            self.has_failed = True
            raise
        self.has_failed = False
        self.size = len(new_content)
        record_lines = new_lines[1:]
        self.records = [line.record for line in record_lines]

    def _truncate_to_valid_size(self) -> None:
        """Remove the bytes of a failed append from the end of the file.

        If that fails too, the journal is marked as broken and accepts no more records.
        """
        try:
            if self.disk.read(self.real_path) is not None:
                self.disk.truncate(self.real_path, self.size)
        except OSError:
            self.has_failed = True

    def _seal_records(self, records: Iterable[Record], previous_seal: str) -> list[SealedLine]:
        """Build the lines of records, each with a seal that covers the previous seal.

        Parameters
        ----------
        records : iterable of dict
            Records in the order of their lines.

        previous_seal : str
            Seal of the line before the first record. It is empty at the beginning of the file.

        Returns
        -------
        list of SealedLine
        """
        lines = []
        for record in records:
            text = json.dumps(record, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
            text_bytes = text.encode("ascii")
            seal = self.seal.compute(previous_seal.encode() + b" " + text_bytes)
            line_content = seal.encode("ascii") + b" " + text_bytes + b"\n"
            # The record is parsed again, so that it equals the record that a reader finds.
            lines.append(SealedLine(json.loads(text), seal, line_content))
            previous_seal = seal
        return lines

    def _read_records(self) -> JournalContent:
        """Read the records and return the content, whose last line may be incomplete.

        Raises
        ------
        ArtifactError
            If the file is not a journal of this tool, or if it is damaged in a way that a crash
            cannot explain.
        """
        with input_error_if_read_fails(self.path):
            if os.path.isfile(self.real_path) and os.path.getsize(self.real_path) > MAX_BYTES:
                raise ArtifactError(
                    f"{self.path}: a journal may have at most {MAX_BYTES >> 20:,} MB, but this"
                    " file is larger."
                )
            file_bytes = self.disk.read(self.real_path) or b""
        valid_lines = self._parse_valid_lines(file_bytes)
        records = [line.record for line in valid_lines]
        last_seal = valid_lines[-1].seal if valid_lines else ""
        valid_size = sum(len(line.content) for line in valid_lines)
        tail = file_bytes[valid_size:]
        repaired_line = self._repair_last_line(tail, previous_seal=last_seal)
        if repaired_line is not None:
            records.append(repaired_line.record)
            last_seal = repaired_line.seal
        elif tail:
            self._raise_unless_crash_explains_tail(tail, line_number=len(records) + 1)
        if records and records[0] != self._header:
            raise ForeignFileError(
                f"{self.path}: the file is not a journal of 'metacal {self.kind}', or another"
                " version of metacal wrote it. Pass the right journal, or pass another name to"
                " start again."
            )
        self.records = records[1:]
        self.size = valid_size
        self._last_seal = last_seal
        return JournalContent(file_bytes[:valid_size], tail, repaired_line)

    def _parse_valid_lines(self, content: bytes) -> list[SealedLine]:
        """Parse the lines from the header up to the first one without a valid seal."""
        lines: list[SealedLine] = []
        previous_seal = ""
        line_start = 0
        while True:
            newline_position = content.find(b"\n", line_start)
            if newline_position < 0:
                return lines
            seal, _, text = content[line_start:newline_position].partition(b" ")
            line = self._parse_line(seal, text, previous_seal)
            if line is None:
                return lines
            lines.append(line)
            previous_seal = line.seal
            line_start = newline_position + 1

    def _parse_line(self, seal: bytes, text: bytes, previous_seal: str) -> SealedLine | None:
        """Parse the seal and the text of a line. Return None if the seal is not valid.

        Parameters
        ----------
        seal : bytes
            Seal as stored.

        text : bytes
            Record as JSON.

        previous_seal : str
            Seal of the line before this one.

        Returns
        -------
        SealedLine or None
        """
        try:
            seal_text = seal.decode("ascii")
            sealed_content = previous_seal.encode() + b" " + text
            if not self.seal.matches(seal_text, sealed_content):
                return None
            record = json.loads(text)
        except ValueError:
            return None
        if not isinstance(record, dict):
            return None
        return SealedLine(record, seal_text, seal + b" " + text + b"\n")

    def _repair_last_line(self, tail: bytes, previous_seal: str) -> SealedLine | None:
        """Repair a last line in which only the space or the newline is damaged.

        No seal covers the space before the record and the newline, which may also be missing.
        Return None if the line cannot be repaired.
        """
        text_start = tail.find(b"{")
        if text_start < 1:
            return None
        seal = tail[: text_start - 1]
        text_without_newline = tail[text_start:]
        text_with_damaged_newline = tail[text_start:-1]
        for text in (text_without_newline, text_with_damaged_newline):
            line = self._parse_line(seal, text, previous_seal)
            if line is not None:
                return line
        return None

    def _raise_unless_crash_explains_tail(self, tail: bytes, line_number: int) -> None:
        """Raise ArtifactError unless a crash during `append` explains the end of the file.

        Parameters
        ----------
        tail : bytes
            End of the file, which has no valid seal.

        line_number : int
            Number of the line where the tail begins.
        """
        first_line = tail.partition(b"\n")[0]
        if line_number == 1:
            self._raise_unless_incomplete_header(tail, first_line)
            return
        has_more_lines = len(first_line) + 1 < len(tail)
        has_gap_of_zeros = tail.count(b"\0") >= _MIN_ZEROS_AFTER_CRASH
        is_complete_line = tail.endswith(b"\n") and not has_gap_of_zeros
        if is_complete_line or has_more_lines:
            raise ArtifactError(
                f"{self.path}:{line_number}: this record is damaged, was edited, or was signed"
                f" with another key. Restore the file from a copy. The {line_number - 1:,} lines"
                " before this record are valid."
            )

    def _raise_unless_incomplete_header(self, tail: bytes, first_line: bytes) -> None:
        """Raise ArtifactError unless the file is the beginning of a header.

        Zeros may follow it.
        """
        header_line = self._seal_records([self._header], previous_seal="")[0]
        is_incomplete_header = header_line.content.startswith(tail.rstrip(b"\0"))
        if is_incomplete_header:
            return
        contains_header_key = any(key.encode() in first_line for key in self._header)
        if not contains_header_key:
            raise ForeignFileError(
                f"{self.path}: the file is not a journal of 'metacal {self.kind}'. Pass"
                " another name."
            )
        seal = first_line.partition(b" ")[0]
        raise ArtifactError(f"{self.path}:1: {self._explain_invalid_header(seal)}")

    def _repair(self, content: JournalContent) -> None:
        """Repair or remove a last line that a crash has left incomplete."""
        if content.repaired_line is not None:
            self._write_repaired_line(content, content.repaired_line.content)
        elif content.tail:
            self._remove_tail(content.tail)

    def _write_repaired_line(self, content: JournalContent, line: bytes) -> None:
        """Complete the last line, or replace it if a byte of it is damaged."""
        is_only_incomplete = line.startswith(content.tail)
        with input_error_if_write_fails(self.path):
            if is_only_incomplete:
                self.disk.append(self.real_path, line[len(content.tail) :])
            else:
                self.disk.write(self.real_path, content.valid_lines + line)
        self.size += len(line)
        if not is_only_incomplete:
            warn_caller(
                f"{self.path}: a byte next to the last record was damaged and has been repaired."
                " The record is valid. Check the disk."
            )

    def _remove_tail(self, tail: bytes) -> None:
        """Save an incomplete last line beside the journal, remove it, and report it."""
        with input_error_if_write_fails(self.path):
            saved_path = self._save_tail(tail)
            self.disk.truncate(self.real_path, self.size)
        warn_caller(
            f"{self.path}: the last record is incomplete and does not count. Its {len(tail):,}"
            f" bytes are now in {saved_path}. If the call that wrote the record was interrupted,"
            " nothing else is lost. Otherwise restore the journal from a copy, or enter the"
            " missing labels again."
        )

    def _save_tail(self, tail: bytes) -> str:
        """Save an incomplete line to a new file beside the journal, and return its path."""
        tail_number = 1
        while True:
            saved_path = f"{self.real_path}.tail-{tail_number}"
            existing_content = self.disk.read(saved_path)
            if existing_content is None:
                self.disk.write(saved_path, tail)
                return saved_path
            if existing_content == tail:
                # An earlier process saved the line, but crashed before the line was removed.
                return saved_path
            tail_number += 1

    def _explain_invalid_header(self, seal: bytes) -> str:
        """Explain why the seal of the first line is not valid.

        A signature is longer than a checksum.
        """
        has_key = self.seal.uses_key
        is_longer_than_checksum = len(seal) > CHECKSUM_LENGTH
        if is_longer_than_checksum and seal.isalnum() and not has_key:
            return (
                "this journal is signed; give its key with every call:"
                f" {format_option('key', metavar='KEYFILE')}."
            )
        if len(seal) == CHECKSUM_LENGTH and has_key:
            return (
                "this journal was begun without a key; leave the key out, or begin anew with"
                " another file."
            )
        if has_key:
            return (
                "this record is damaged, was edited, or was signed with another key; give that, or"
                " bring back a copy."
            )
        return "this record is damaged or was edited; bring the file back from a copy."


def read_journal(path: str, kind: str, *, disk: Disk = DISK) -> list[Record]:
    """Read the records of a journal that another process may append to.

    Parameters
    ----------
    path : str
        File of the journal.

    kind : str
        Name of the tool.

    disk : Disk, optional
        File system.

    Returns
    -------
    list of dict
        Empty if there is no journal.
    """
    journal = Journal(path, kind, disk=disk)
    journal.real_path = journal.disk.real_path(path)
    content = journal._read_records()
    # Another process may still be writing the last line.
    if content.repaired_line is None and content.tail.endswith(b"\n"):
        warn_caller(f"{path}: the last record is damaged and does not count.")
    return journal.records
