r"""A journal: what must not be lost, one record after the other, each on the disk before anything
is built on it.

A record is a line: the seal, a space, JSON. The seal is made from the record *and the seal before
it*, so that a line that was changed, moved or taken out is noticed; with a key it is a signature. A
tool's state is what follows from the records, in order: it may be kept elsewhere to save time,
never instead.

- *Durable.* `append` returns when the record is on the disk, or raises and the journal is as it
  was. A record is taken whole or not at all: what belongs together goes into one.
- *One writer.* Whoever opens a journal holds its lock until it is closed; a second one is told who
  that is. The lock belongs to the file, not to a name: it lies beside the file that symbolic links
  lead to, and the file itself is locked too, so that hard links share it. The lock dies with its
  process. A copy is another journal, with a lock of its own.
- *The last record.* A crash in the middle of `append` leaves a last line without its end, or with
  zeros where data was never written. If its seal fits nevertheless, the record is kept. If not,
  nobody can tell a torn record from a damaged one, so the line is saved beside the journal, cut
  off, and reported by a warning.
- *Damage.* A complete line whose seal does not fit was acknowledged, and was changed since. It is
  an error that names the line, wherever the line is, and nothing is changed. A file that is no
  journal is never changed either.

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

from metacal.errors import ArtifactError, InputError, option, warn_caller
from metacal.io.disk import DISK, Disk, plain_write_errors
from metacal.io.opening import plain_read_errors

#: The version of the lines; another one is refused.
VERSION = 1
#: Larger journals are refused unread: every tool writes them anew, shorter, long before.
MAX_BYTES = 1 << 30
#: A crash leaves zeros in whole sectors. A complete line with fewer of them was damaged in another
#: way.
_MIN_TORN_ZEROS = 16

Record = dict[str, Any]


class Seal:
    """What a record is sealed with: a checksum, which finds damage and careless edits; a key makes
    signatures.
    """

    def make(self, content: bytes) -> str:
        """The seal of these bytes, without spaces."""
        return hashlib.blake2b(content, digest_size=8).hexdigest()

    def fits(self, value: str, content: bytes) -> bool:
        """Whether it is the seal of these bytes."""
        return value == self.make(content)


@dataclass(frozen=True)
class _Rescued:
    """A record whose seal fits although its line is damaged, and the line as it should be."""

    record: Record
    line: bytes


class Journal:
    """An open journal: `records` are those that are there, `append` adds one.

    Parameters
    ----------
    path : str
        The file, made by the first record. It may be a symbolic link. Beside the file itself lies a
        lock, its name + ".lock".
    kind : str
        Which tool's it is: a journal of another kind is refused.
    seal : Seal, optional
        A key's signature in place of a checksum.
    disk : Disk, optional
        Where it lies.
    """

    def __init__(
        self, path: str, kind: str, *, seal: Seal | None = None, disk: Disk = DISK
    ) -> None:
        #: The name that was given, for messages, and the file itself, which every operation uses.
        self.path, self.file = path, path
        self.kind, self.disk = kind, disk
        self.seal = seal or Seal()
        self.records: list[Record] = []
        self._stack = ExitStack()
        #: How many bytes it has, and whether the disk has failed so that nothing can be added
        #: before a `rewrite`.
        self.size, self.broken = 0, False
        self._last, self._header = "", {"journal": kind, "version": VERSION}

    def __enter__(self) -> Self:
        self.file = self.disk.real_path(self.path)
        lock = f"{self.file}.lock"
        with ExitStack() as stack:
            with plain_write_errors(lock):
                stack.enter_context(self.disk.lock(lock))
            stack.enter_context(self.disk.lock_content(self.file))
            self._read()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *reason: object) -> None:
        self._stack.close()

    def append(self, record: Record) -> None:
        """Add a record, which lasts when this returns; InputError, and nothing is added, where it
        cannot be written.
        """
        if self.broken:
            raise InputError(
                f"cannot write {self.path}: the disk has failed before; call again once it is"
                " mended."
            )
        lines = [] if self.size else [self._line(self._header)]
        before = self._last
        lines.append(self._line(record))
        content = b"".join(lines)
        try:
            self.disk.append(self.file, content)
        except OSError as error:
            self._last = before if self.size else ""
            try:  # cut off what it has left; where that fails too, nothing more is written
                if self.disk.read(self.file) is not None:
                    self.disk.truncate(self.file, self.size)
            except OSError:
                self.broken = True
            raise InputError(
                f"cannot write {self.path}: {error.strerror or error}; nothing of this was"
                " recorded. Make room, and call again."
            ) from error
        self.size += len(content)
        self.records.append(json.loads(lines[-1].partition(b" ")[2]))

    def rewrite(self, records: Iterable[Record]) -> None:
        """Put these records in the place of all: a shorter way to the same state. Whole or not at
        all.

        Where an `append` has failed so that nothing more can be added, this makes it whole again.
        """
        self._last = ""
        lines = [self._line(self._header), *map(self._line, records)]
        content = b"".join(lines)
        # Where this fails, which of the two is there is not known; whoever opens it next will see.
        self.broken = True
        with plain_write_errors(self.path):
            self.disk.write(self.file, content)
        self.size, self.broken = len(content), False
        self.records = [json.loads(line.partition(b" ")[2]) for line in lines[1:]]

    def _line(self, record: Record) -> bytes:
        """Return a record as a line, sealed, and go on from its seal."""
        line = self._sealed(self._last, record)
        self._last = line.partition(b" ")[0].decode("ascii")
        return line

    def _sealed(self, last_seal: str, record: Record) -> bytes:
        """Return the line of a record that follows the line with this seal."""
        text = json.dumps(record, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode(
            "ascii"
        )
        seal = self.seal.make(last_seal.encode() + b" " + text)
        return seal.encode("ascii") + b" " + text + b"\n"

    def _read(self, *, mend: bool = True) -> None:
        """Read the records. If `mend`, repair or cut off a last line that a crash has left
        incomplete.
        """
        with plain_read_errors(self.path):
            if os.path.isfile(self.file) and os.path.getsize(self.file) > MAX_BYTES:
                raise ArtifactError(
                    f"{self.path}: it has more than {MAX_BYTES >> 20:,} MB, which no journal has."
                )
            content = self.disk.read(self.file) or b""
        self._last = ""
        found, size = self._sealed_records(content)
        tail = content[size:]
        rescued = self._rescue(tail)
        if rescued is not None:
            found.append(rescued.record)
        elif tail:
            self._check_is_torn(tail, len(found) + 1)
        if found and found[0] != self._header:
            raise ArtifactError(
                f"{self.path}: this is no journal of metacal {self.kind}, or of another version of"
                " metacal; give its own, or another name to begin anew."
            )
        self.records, self.size = found[1:], size
        if mend and rescued is not None:
            self._write_rescued(content[:size], tail, rescued.line)
        elif mend and tail:
            self._cut_off(tail)
        elif (
            tail.endswith(b"\n") and rescued is None
        ):  # a line without an end may be one that is being written
            warn_caller(f"{self.path}: the last record is damaged and does not count.")

    def _sealed_records(self, content: bytes) -> tuple[list[Record], int]:
        """Return the records up to the first line that does not fit, and how many bytes they
        take.
        """
        found: list[Record] = []
        size = 0
        while (end := content.find(b"\n", size)) >= 0:
            seal, _, text = content[size:end].partition(b" ")
            record = self._opened(seal, text)
            if record is None:
                break
            found.append(record)
            size = end + 1
        return found, size

    def _opened(self, seal: bytes, text: bytes) -> Record | None:
        """Return the record if its seal fits, and go on from that seal; None otherwise."""
        try:
            name = seal.decode("ascii")
            if not self.seal.fits(name, self._last.encode() + b" " + text):
                return None
            record = json.loads(text)
        except ValueError:
            return None
        if not isinstance(record, dict):
            return None
        self._last = name
        return record

    def _rescue(self, tail: bytes) -> _Rescued | None:
        """Return the record of a last line if all of it is whole but the bytes that no seal covers.

        These are the space before the record and the end of the line: both may be damaged, the
        latter missing.
        """
        start = tail.find(b"{")
        if start < 1:
            return None
        for end in (len(tail), len(tail) - 1):
            seal, text = tail[: start - 1], tail[start:end]
            record = self._opened(seal, text)
            if record is not None:
                return _Rescued(record, seal + b" " + text + b"\n")
        return None

    def _check_is_torn(self, tail: bytes, number: int) -> None:
        """Raise ArtifactError unless a crash in the middle of `append` can have left these last
        bytes.

        `number` is that of the line where they begin.
        """
        line = tail.partition(b"\n")[0]
        if number == 1:
            # Zeros may follow a beginning of the first line. Anything else is not ours to change.
            if self._sealed("", self._header).startswith(tail.rstrip(b"\0")):
                return
            if b"journal" not in line and b"version" not in line:
                raise ArtifactError(
                    f"{self.path}: this is no journal of metacal {self.kind}; give another name."
                )
            raise ArtifactError(f"{self.path}:1: {self._why_not(line.partition(b' ')[0])}")
        is_last_line = len(line) + 1 >= len(tail)
        is_complete = tail.endswith(b"\n") and tail.count(b"\0") < _MIN_TORN_ZEROS
        if is_complete or not is_last_line:
            raise ArtifactError(
                f"{self.path}:{number}: this record is damaged, was edited, or was signed with"
                f" another key. Bring the file back from a copy; the {number - 1:,} lines before it"
                " are whole."
            )

    def _write_rescued(self, whole: bytes, tail: bytes, line: bytes) -> None:
        """Write the last line as it was before it was damaged, or add the end that it lacks."""
        with plain_write_errors(self.path):
            if line.startswith(tail):
                self.disk.append(self.file, line[len(tail) :])
            else:
                self.disk.write(self.file, whole + line)
        self.size += len(line)
        if not line.startswith(tail):
            warn_caller(
                f"{self.path}: a byte beside the last record was damaged. The record itself is"
                " whole, as its seal shows; it was kept, and the line was mended. Check the disk."
            )

    def _cut_off(self, tail: bytes) -> None:
        """Save an incomplete last line beside the journal, cut it off, and report it."""
        with plain_write_errors(self.path):
            saved = self._save_tail(tail)
            self.disk.truncate(self.file, self.size)
        warn_caller(
            f"{self.path}: the last record is incomplete, most likely because a call was cut off"
            f" while it wrote it. It does not count; its {len(tail):,} bytes are now in {saved}. If"
            " that call had ended well, the disk has lost data: bring the journal back from a"
            " copy, or enter again what is missing."
        )

    def _save_tail(self, tail: bytes) -> str:
        """Save bytes that will be cut off under a new name beside the journal. Return the name."""
        number = 1
        while True:
            name = f"{self.file}.tail-{number}"
            existing = self.disk.read(name)
            if existing is None:
                self.disk.write(name, tail)
            if existing is None or existing == tail:  # the latter if a crash came before the cut
                return name
            number += 1

    def _why_not(self, seal: bytes) -> str:
        """What a first line that cannot be taken says of the key: a signature is longer than a
        checksum.
        """
        length, keyed = len(Seal().make(b"")), type(self.seal) is not Seal
        if len(seal) > length and seal.isalnum() and not keyed:
            return (
                "this journal is signed; give its key with every call:"
                f" {option('key', metavar='KEYFILE')}."
            )
        if len(seal) == length and keyed:
            return (
                "this journal was begun without a key; leave the key out, or begin anew with"
                " another file."
            )
        if keyed:
            return (
                "this record is damaged, was edited, or was signed with another key; give that, or"
                " bring back a copy."
            )
        return "this record is damaged or was edited; bring the file back from a copy."


def read_journal(path: str, kind: str, *, disk: Disk = DISK) -> list[Record]:
    """The records of a journal as they are now, whoever writes it; none where there is no
    journal.
    """
    journal = Journal(path, kind, disk=disk)
    journal.file = journal.disk.real_path(path)
    journal._read(mend=False)
    return journal.records
