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
  torn record cannot be distinguished from a damaged one. The line is then saved beside the journal,
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

import hashlib
import json
import os
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Self

from metacal.errors import ArtifactError, FileWriteError, ForeignFileError, warn_caller
from metacal.io.disk import DISK, Disk, input_error_if_write_fails
from metacal.io.opening import input_error_if_read_fails
from metacal.spelling import format_option

#: Version of the line format. Journals of other versions are rejected.
VERSION = 1
#: Maximum size of a journal in bytes. Tools rewrite a journal long before it grows so large.
MAX_BYTES = 1 << 30
#: Minimum number of zero bytes after a crash, which leaves whole disk sectors of zeros.
_MIN_TORN_ZEROS = 16

Record = dict[str, Any]


class Seal:
    """Checksum of records, which reveals damage and careless edits.

    Subclasses may sign.
    """

    def compute(self, content: bytes) -> str:
        """Return the seal of the content. It has no spaces."""
        return hashlib.blake2b(content, digest_size=8).hexdigest()

    def matches(self, value: str, content: bytes) -> bool:
        """Check whether a seal belongs to the content."""
        return value == self.compute(content)


@dataclass(frozen=True)
class _RepairedLine:
    """Damaged line that could be repaired, because its seal is still valid.

    Attributes
    ----------
    record : dict
        Record of the line.

    line : bytes
        The line without the damage.
    """

    record: Record
    line: bytes


@dataclass(frozen=True)
class _JournalContent:
    """Content of a journal file.

    Attributes
    ----------
    valid_lines : bytes
        Beginning of the file, up to the first line without a valid seal.

    tail : bytes
        Rest of the file.

    repaired_line : _RepairedLine or None
        Repair of the tail, if that is possible.
    """

    valid_lines: bytes
    tail: bytes
    repaired_line: _RepairedLine | None


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
        is_new_journal = self.size == 0
        seal_before = "" if is_new_journal else self._last_seal
        lines = []
        if is_new_journal:
            lines.append(self._seal_next_record(self._header))
        record_line = self._seal_next_record(record)
        lines.append(record_line)
        new_content = b"".join(lines)
        try:
            self.disk.append(self.real_path, new_content)
        except OSError as error:
            self._last_seal = seal_before
            self._undo_append()
            raise FileWriteError(
                f"cannot write {self.path}: {error.strerror or error}. Nothing was recorded. Free"
                " some space on the disk, and call again."
            ) from error
        self.size += len(new_content)
        self.records.append(_parse_sealed_line(record_line))

    def rewrite(self, records: Iterable[Record]) -> None:
        """Replace all records atomically, typically by fewer that lead to the same state.

        This also repairs a journal to which nothing can be appended after a failure of the disk.
        """
        self._last_seal = ""
        lines = [self._seal_next_record(self._header)]
        for record in records:
            lines.append(self._seal_next_record(record))
        new_content = b"".join(lines)
        try:
            with input_error_if_write_fails(self.path):
                self.disk.write(self.real_path, new_content)
        except BaseException:
            # The file may have the old or the new content.
            self.has_failed = True
            raise
        self.has_failed = False
        self.size = len(new_content)
        self.records = [_parse_sealed_line(line) for line in lines[1:]]

    def _undo_append(self) -> None:
        """Truncate the file to its size before a failed append.

        If that fails too, the journal is marked as broken and accepts no more records.
        """
        try:
            if self.disk.read(self.real_path) is not None:
                self.disk.truncate(self.real_path, self.size)
        except OSError:
            self.has_failed = True

    def _seal_next_record(self, record: Record) -> bytes:
        """Return the line of the next record, and store its seal for the line after it."""
        line = self._build_sealed_line(self._last_seal, record)
        self._last_seal = line.partition(b" ")[0].decode("ascii")
        return line

    def _build_sealed_line(self, previous_seal: str, record: Record) -> bytes:
        """Return the line of a record. Its seal also covers the seal of the previous line."""
        text = json.dumps(record, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
        text_bytes = text.encode("ascii")
        seal = self.seal.compute(previous_seal.encode() + b" " + text_bytes)
        return seal.encode("ascii") + b" " + text_bytes + b"\n"

    def _read_records(self) -> _JournalContent:
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
        self._last_seal = ""
        records, valid_size = self._parse_lines(file_bytes)
        tail = file_bytes[valid_size:]
        repaired_line = self._repair_last_line(tail)
        if repaired_line is not None:
            records.append(repaired_line.record)
        elif tail:
            self._raise_unless_torn_append(tail, line_number=len(records) + 1)
        if records and records[0] != self._header:
            raise ForeignFileError(
                f"{self.path}: the file is not a journal of 'metacal {self.kind}', or another"
                " version of metacal wrote it. Pass the right journal, or pass another name to"
                " start again."
            )
        self.records = records[1:]
        self.size = valid_size
        return _JournalContent(file_bytes[:valid_size], tail, repaired_line)

    def _parse_lines(self, content: bytes) -> tuple[list[Record], int]:
        """Parse lines up to the first one without a valid seal.

        Returns
        -------
        records : list of dict
            Records of the valid lines, the header included.

        valid_size : int
            Size of the valid lines in bytes.
        """
        records: list[Record] = []
        valid_size = 0
        while True:
            line_end = content.find(b"\n", valid_size)
            if line_end < 0:
                return records, valid_size
            seal, _, text = content[valid_size:line_end].partition(b" ")
            record = self._parse_next_record(seal, text)
            if record is None:
                return records, valid_size
            records.append(record)
            valid_size = line_end + 1

    def _parse_next_record(self, seal: bytes, text: bytes) -> Record | None:
        """Parse the next record and store its seal. Return None if the seal is not valid."""
        try:
            seal_text = seal.decode("ascii")
            sealed_content = self._last_seal.encode() + b" " + text
            if not self.seal.matches(seal_text, sealed_content):
                return None
            record = json.loads(text)
        except ValueError:
            return None
        if not isinstance(record, dict):
            return None
        self._last_seal = seal_text
        return record

    def _repair_last_line(self, tail: bytes) -> _RepairedLine | None:
        """Repair a last line that is damaged only in the bytes that no seal covers.

        These are the space before the record, and the end of the line, which may also be missing.
        """
        text_start = tail.find(b"{")
        if text_start < 1:
            return None
        seal = tail[: text_start - 1]
        # The last byte is the end of the line, or that of the record if the end is missing.
        for text_end in (len(tail), len(tail) - 1):
            text = tail[text_start:text_end]
            record = self._parse_next_record(seal, text)
            if record is not None:
                return _RepairedLine(record=record, line=seal + b" " + text + b"\n")
        return None

    def _raise_unless_torn_append(self, tail: bytes, line_number: int) -> None:
        """Raise ArtifactError unless a crash during `append` can have left the tail.

        Parameters
        ----------
        tail : bytes
            End of the file, which has no valid seal.

        line_number : int
            Number of the line where the tail begins.
        """
        first_line = tail.partition(b"\n")[0]
        if line_number == 1:
            self._raise_unless_torn_header(tail, first_line)
            return
        is_last_line = len(first_line) + 1 >= len(tail)
        is_complete = tail.endswith(b"\n") and tail.count(b"\0") < _MIN_TORN_ZEROS
        if is_complete or not is_last_line:
            raise ArtifactError(
                f"{self.path}:{line_number}: this record is damaged, was edited, or was signed"
                f" with another key. Restore the file from a copy. The {line_number - 1:,} lines"
                " before this record are valid."
            )

    def _raise_unless_torn_header(self, tail: bytes, first_line: bytes) -> None:
        """Raise ArtifactError unless the file is the beginning of a header.

        Zeros may follow it.
        """
        if self._build_sealed_line("", self._header).startswith(tail.rstrip(b"\0")):
            return
        if b"journal" not in first_line and b"version" not in first_line:
            raise ForeignFileError(
                f"{self.path}: the file is not a journal of 'metacal {self.kind}'. Pass"
                " another name."
            )
        seal = first_line.partition(b" ")[0]
        raise ArtifactError(f"{self.path}:1: {self._explain_invalid_header(seal)}")

    def _repair(self, content: _JournalContent) -> None:
        """Repair or remove a last line that a crash has left incomplete."""
        if content.repaired_line is not None:
            self._write_repaired_line(content, content.repaired_line.line)
        elif content.tail:
            self._remove_tail(content.tail)

    def _write_repaired_line(self, content: _JournalContent, line: bytes) -> None:
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
                # An earlier process saved the line but crashed before it removed it.
                return saved_path
            tail_number += 1

    def _explain_invalid_header(self, seal: bytes) -> str:
        """Explain why the seal of the first line is not valid.

        A signature is longer than a checksum.
        """
        checksum_length = len(Seal().compute(b""))
        has_key = type(self.seal) is not Seal
        if len(seal) > checksum_length and seal.isalnum() and not has_key:
            return (
                "this journal is signed; give its key with every call:"
                f" {format_option('key', metavar='KEYFILE')}."
            )
        if len(seal) == checksum_length and has_key:
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


def _parse_sealed_line(line: bytes) -> Record:
    """Return the record of a line whose seal is known to be valid."""
    record: Record = json.loads(line.partition(b" ")[2])
    return record
