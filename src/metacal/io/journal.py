r"""A journal: what must not be lost, one record after the other, each on the disk before anything is built on it.

A record is a line: the seal, a space, JSON. The seal is made from the record *and the seal before it*, so that a line
that was changed, moved or taken out is noticed; with a key it is a signature. A tool's state is what follows from the
records, in order: it may be kept elsewhere to save time, never instead.

- *Durable.* `append` returns when the record is on the disk, or raises and the journal is as it was. A record is taken
  whole or not at all: what belongs together goes into one.
- *One writer.* Whoever opens a journal holds the lock beside it until it is closed; a second one is told who that is.
  The lock dies with its process.
- *Torn.* A last line without its end, or with the zeros that a file system leaves where data was never written, comes
  from a crash in the middle of `append`, which had not returned: it is cut off. Anything else that does not fit is an
  error that names the line; nothing is guessed.

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
from typing import Any, Self

from metacal.errors import ArtifactError, InputError, option
from metacal.io.disk import DISK, Disk, plain_write_errors
from metacal.io.opening import plain_read_errors

#: The version of the lines; another one is refused.
VERSION = 1
#: Larger journals are refused unread: every tool writes them anew, shorter, long before.
MAX_BYTES = 1 << 30

Record = dict[str, Any]


class Seal:
    """What a record is sealed with: a checksum, which finds damage and careless edits; a key makes signatures."""

    def make(self, content: bytes) -> str:
        """The seal of these bytes, without spaces."""
        return hashlib.blake2b(content, digest_size=8).hexdigest()

    def fits(self, value: str, content: bytes) -> bool:
        """Whether it is the seal of these bytes."""
        return value == self.make(content)


class Journal:
    """An open journal: `records` are those that are there, `append` adds one.

    Parameters
    ----------
    path : str
        The file, made by the first record; beside it lies `path` + ".lock".
    kind : str
        Which tool's it is: a journal of another kind is refused.
    seal : Seal, optional
        A key's signature in place of a checksum.
    disk : Disk, optional
        Where it lies.
    """

    def __init__(self, path: str, kind: str, *, seal: Seal | None = None, disk: Disk = DISK) -> None:
        self.path, self.kind, self.disk = path, kind, disk
        self.seal = seal or Seal()
        self.records: list[Record] = []
        self._stack = ExitStack()
        #: How many bytes it has, and whether the disk has failed so that nothing can be added before a `rewrite`.
        self.size, self.broken = 0, False
        self._last, self._header = "", {"journal": kind, "version": VERSION}

    def __enter__(self) -> Self:
        lock = f"{self.path}.lock"
        with ExitStack() as stack:
            with plain_write_errors(lock):
                stack.enter_context(self.disk.lock(lock))
            self._read()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *reason: object) -> None:
        self._stack.close()

    def append(self, record: Record) -> None:
        """Add a record, which lasts when this returns; InputError, and nothing is added, where it cannot be written."""
        if self.broken:
            raise InputError(f"cannot write {self.path}: the disk has failed before; call again once it is mended.")
        lines = [] if self.size else [self._line(self._header)]
        before = self._last
        lines.append(self._line(record))
        content = b"".join(lines)
        try:
            self.disk.append(self.path, content)
        except OSError as error:
            self._last = before if self.size else ""
            try:  # cut off what it has left; where that fails too, nothing more is written
                if self.disk.read(self.path) is not None:
                    self.disk.truncate(self.path, self.size)
            except OSError:
                self.broken = True
            raise InputError(
                f"cannot write {self.path}: {error.strerror or error}; nothing of this was recorded. Make room, and "
                "call again."
            ) from error
        self.size += len(content)
        self.records.append(json.loads(lines[-1].partition(b" ")[2]))

    def rewrite(self, records: Iterable[Record]) -> None:
        """Put these records in the place of all: a shorter way to the same state. Whole or not at all.

        Where an `append` has failed so that nothing more can be added, this makes it whole again.
        """
        self._last = ""
        lines = [self._line(self._header), *map(self._line, records)]
        content = b"".join(lines)
        self.broken = True  # where this fails, which of the two is there is not known; whoever opens it next will see
        with plain_write_errors(self.path):
            self.disk.write(self.path, content)
        self.size, self.broken = len(content), False
        self.records = [json.loads(line.partition(b" ")[2]) for line in lines[1:]]

    def _line(self, record: Record) -> bytes:
        """A record as a line, sealed."""
        text = json.dumps(record, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")
        self._last = self.seal.make(self._last.encode() + b" " + text)
        return self._last.encode("ascii") + b" " + text + b"\n"

    def _read(self, *, mend: bool = True) -> None:
        with plain_read_errors(self.path):
            if os.path.isfile(self.path) and os.path.getsize(self.path) > MAX_BYTES:
                raise ArtifactError(f"{self.path}: it has more than {MAX_BYTES >> 20:,} MB, which no journal has.")
            content = self.disk.read(self.path) or b""
        whole = _untorn(content)
        lines = whole.splitlines(keepends=True)
        found = [self._checked(line, number) for number, line in enumerate(lines, start=1)]
        if found and found[0] != self._header:
            raise ArtifactError(
                f"{self.path}: this is no journal of metacal {self.kind}, or of another version of metacal; give its "
                "own, or another name to begin anew."
            )
        if mend and len(whole) < len(content):
            with plain_write_errors(self.path):
                self.disk.truncate(self.path, len(whole))
        self.records, self.size = found[1:], len(whole)

    def _checked(self, line: bytes, number: int) -> Record:
        seal, _, text = line[:-1].partition(b" ")
        try:
            fits = self.seal.fits(seal.decode("ascii"), self._last.encode() + b" " + text)
            record = json.loads(text) if fits else None
        except ValueError:
            record = None
        if not isinstance(record, dict) and number == 1:
            if b"journal" not in line and b"version" not in line:
                raise ArtifactError(f"{self.path}: this is no journal of metacal {self.kind}; give another name.")
            raise ArtifactError(f"{self.path}:1: {self._why_not(seal)}")
        if not isinstance(record, dict):
            raise ArtifactError(
                f"{self.path}:{number}: this record is damaged, was edited, or was signed with another key. Bring the "
                f"file back from a copy; the {number - 1:,} lines before it are whole."
            )
        self._last = seal.decode("ascii")
        return record

    def _why_not(self, seal: bytes) -> str:
        """What a first line that cannot be taken says of the key: a signature is longer than a checksum."""
        length, keyed = len(Seal().make(b"")), type(self.seal) is not Seal
        if len(seal) > length and seal.isalnum() and not keyed:
            return f"this journal is signed; give its key with every call: {option('key', metavar='KEYFILE')}."
        if len(seal) == length and keyed:
            return "this journal was begun without a key; leave the key out, or begin anew with another file."
        if keyed:
            return (
                "this record is damaged, was edited, or was signed with another key; give that, or bring back a copy."
            )
        return "this record is damaged or was edited; bring the file back from a copy."


def read_journal(path: str, kind: str) -> list[Record]:
    """The records of a journal as they are now, whoever writes it; none where there is no journal."""
    journal = Journal(path, kind)
    journal._read(mend=False)
    return journal.records


def _untorn(content: bytes) -> bytes:
    r"""What is left without a last line that a crash has torn.

    Examples
    --------
    >>> _untorn(b"one\ntwo\nthr"), _untorn(b"one\n\0\0\0\n"), _untorn(b"one\ntwo\n")
    (b'one\ntwo\n', b'one\n', b'one\ntwo\n')
    """
    whole = content[: content.rfind(b"\n") + 1]
    while b"\0" in whole[whole.rfind(b"\n", 0, -1) + 1 :]:
        whole = whole[: whole.rfind(b"\n", 0, -1) + 1]
    return whole
