"""A folder of results, one file for each file that was read: each takes its place whole, and
finished ones are kept.

What was made from what stands in `_metacal.journal` beside them: a record is written when a result
is whole and about to take its place, so that every file that was ever put there is known by its
length and time, and by its checksum. A file that is not known is somebody else's, or was edited: it
is never replaced. Whoever holds the journal's lock is alone at work in the folder: workers write
parts, and only the holder puts them in place. A run that was cut off and is started again leaves
alone every result that is the one last recorded and whose source, gate and options are as recorded,
and makes the others.

The name of a result follows from its source and stays: it is the source's own name with another
ending, or has a checksum of the source's path added where two sources have the same name. A source
that joins the others therefore renames nobody's result.

A source is known by its fingerprint, taken before it is read and compared after. The stamps of a
file (length, times, number) tell most changes without reading it. Not all: clocks tick, so that a
file which is written twice within a tick, to the same length, looks as if it had been written once.
A file that was written less than two seconds ago is therefore not settled, and its fingerprint
holds a checksum of its bytes too (Git calls such files racy). Whatever is written later than that
has another stamp.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from metacal.errors import ArtifactError, InputError
from metacal.io.disk import DISK, Disk, plain_write_errors
from metacal.io.journal import Journal, Record
from metacal.io.remote import (
    is_remote_file_gone,
    is_url,
    path_in,
    remote_fingerprint,
    without_query,
)

_Stamp = tuple[int, int]
#: A name that begins with "_" is no data to whoever reads the folder.
JOURNAL = "_metacal.journal"
#: A part that is being written: a dot, the result's name, twelve digits.
_PART = re.compile(r"\.(?P<name>.+?)\.[0-9a-f]{12}\.part(\..*)?")
#: From this age on a file has another stamp when it is written again, on every file system in use.
SETTLED_NS = 2_000_000_000
#: How often a source that changes while it is read is read anew.
TRIES = 3

Fingerprint = dict[str, Any]
_Result = TypeVar("_Result")


class ResultFolder:
    """An open folder of results, and what is known of them; nobody else works in it until it is
    closed.

    Parameters
    ----------
    folder : str
        It must be there.
    made_with : dict
        Whatever the results depend on besides their sources: the gate's checksum, the options. As
        JSON.
    disk : Disk, optional
        Where it lies.

    Examples
    --------
    >>> import tempfile
    >>> from metacal.io.disk import part_beside
    >>> folder = tempfile.mkdtemp()
    >>> source = f"{folder}/in.csv"
    >>> DISK.write(source, b"1,2")
    >>> with ResultFolder(folder, {"gate": "sha256:…"}) as results:
    ...     part = part_beside(f"{folder}/out.csv")
    ...     DISK.write(part, b"result")
    ...     results.finish("out.csv", source, fingerprint(source), part, {"n_rows": 1})["bytes"]
    6
    >>> with ResultFolder(folder, {"gate": "sha256:…"}) as results:
    ...     results.kept("out.csv", source)["n_rows"]
    1
    >>> with ResultFolder(folder, {"gate": "another"}) as results:
    ...     results.kept("out.csv", source) is None
    True
    """

    def __init__(self, folder: str, made_with: dict[str, Any], *, disk: Disk = DISK) -> None:
        self.folder, self.disk = folder.rstrip("/" + os.sep) or os.sep, disk
        self.made_with = json.loads(json.dumps(made_with))
        self.journal = Journal(self._path(JOURNAL), "apply", disk=disk)
        #: The last record of each result, and what it was made with.
        self.records: dict[str, tuple[Record, Any]] = {}
        #: Every length and time that a file of ours had under a name: the last one may not have
        #: taken its place.
        self._stamps: dict[str, set[_Stamp]] = {}
        #: Every checksum that a file of ours had under a name: a copy of the folder has other
        #: times.
        self._checksums: dict[str, set[str]] = {}
        self._current: Any = None

    def __enter__(self) -> Self:
        try:
            self.journal.__enter__()
        except ArtifactError as error:
            raise ArtifactError(
                f"{error} If there is no copy, remove it together with the results: all are then"
                " made again."
            ) from None
        for record in self.journal.records:
            self._take(record)
        return self

    def __exit__(self, *reason: object) -> None:
        self.journal.__exit__(*reason)

    def kept(self, name: str, source: str) -> Record | None:
        """The record of a result that needs no second making; None where it has to be made."""
        record, made_with = self.records.get(name, (None, None))
        if record is None or made_with != self.made_with or record["source"] != _whole_name(source):
            return None
        if record["n_rows"] and self._stamp(name) != (record["bytes"], record["written_ns"]):
            return None
        known = record["fingerprint"]
        return record if known is not None and is_unchanged(known, source, self.disk) else None

    def finish(
        self, name: str, source: str, known: Fingerprint | None, part: str | None, counts: Record
    ) -> Record:
        """Record a part and put it in its place; None: the source holds no rows, and a former
        result of it goes.
        """
        target = self._path(name)
        record = {"result": name, "source": _whole_name(source), "fingerprint": known, **counts}
        if part is None:
            if self._is_ours(name):
                self.disk.remove(target)
        else:
            self.refuse_foreign([name])
            stamp = self.disk.stamp(part)
            if stamp is None:
                raise InputError(
                    f"cannot write {target}: {part} is gone; did somebody else remove it?"
                )
            record |= {
                "bytes": stamp.bytes,
                "written_ns": stamp.written_ns,
                "checksum": self.disk.checksum(part),
            }
            if self._stamp(name) == (
                stamp.bytes,
                stamp.written_ns,
            ):  # it could be taken for the new one
                self.disk.remove(target)
        if self._current != self.made_with:
            self._add({"made_with": self.made_with})
        self._add(record)
        if part is not None:
            with plain_write_errors(target):
                self.disk.replace(part, target)
        return record

    def names_for(self, sources: Sequence[str], suffix: str) -> list[str]:
        """Return a name for the result of each source. A source whose result is recorded keeps its
        name.

        Raises
        ------
        InputError
            If a source is given twice, or if the name belongs to the result of another source that
            still exists and is not among these.

        Examples
        --------
        >>> import tempfile
        >>> with ResultFolder(tempfile.mkdtemp(), {}) as results:
        ...     results.names_for(["a/x.csv", "a/y.npz"], ".parquet")
        ['x.parquet', 'y.parquet']
        """
        recorded = self._recorded_names(suffix)
        names = [recorded.get(_whole_name(source)) for source in sources]
        recorded_here = {name.casefold() for name in names if name is not None}
        plain_names = Counter(plain_name(source, suffix).casefold() for source in sources)
        for index, source in enumerate(sources):
            if names[index] is not None:
                continue
            name = plain_name(source, suffix)
            if plain_names[name.casefold()] > 1 or name.casefold() in recorded_here:
                name = distinct_name(source, suffix)
            else:
                self._refuse_taken_name(name, source)
            names[index] = name
        chosen = [name for name in names if name is not None]
        source_of: dict[str, str] = {}
        for name, source in zip(chosen, sources, strict=True):
            key = name.casefold()  # Some file systems do not distinguish a.csv from A.csv.
            if key in source_of:
                raise InputError(f"{source_of[key]} and {source} are the same file; give it once.")
            source_of[key] = source
        return chosen

    def _recorded_names(self, suffix: str) -> dict[str | None, str]:
        """Return the names of recorded results with this ending, keyed by the full name of the
        source.
        """
        found: dict[str | None, str] = {}
        for name, (record, _) in self.records.items():
            source = record["source"]
            if source is not None and name in (
                plain_name(source, suffix),
                distinct_name(source, suffix),
            ):
                found[source] = name
        return found

    def _refuse_taken_name(self, name: str, source: str) -> None:
        """Raise if a file with this name is the result of another source that still exists."""
        for taken, (record, _) in self.records.items():
            owner = record["source"]
            is_other = owner is not None and _identity(owner) != _identity(source)
            if taken.casefold() != name.casefold() or not is_other or self._stamp(taken) is None:
                continue
            if not self._is_source_gone(owner):
                raise InputError(
                    f"{self._path(taken)} is the result of {owner}, and {source} has the same name."
                    " Give both sources in one call, which names their results apart, or write to"
                    " another folder."
                )

    def refuse_foreign(self, names: Iterable[str]) -> None:
        """Raise InputError if there is a file under one of these names that is not a result as it
        was put there.
        """
        foreign = [
            name for name in names if self.disk.exists(self._path(name)) and not self._is_ours(name)
        ]
        if foreign:
            more = f" (and {len(foreign) - 1:,} more)" if len(foreign) > 1 else ""
            raise InputError(
                f"{self._path(foreign[0])}{more} was not written by metacal apply, or was changed"
                " since; it is not replaced. Move or rename it, or write to another folder."
            )

    def orphans(self, present: Mapping[str, str]) -> tuple[list[str], list[str]]:
        """Return the results whose source is gone: those as they were made, and those edited since.

        `present` are the names of results and their sources.
        """
        sources = {_whole_name(source) for source in present.values()}
        names = [
            name
            for name, (record, _) in sorted(self.records.items())
            if name not in present
            and self._stamp(name) is not None
            and self._is_orphan(record, sources)
        ]
        as_made = [name for name in names if self._is_ours(name)]
        return as_made, [name for name in names if name not in as_made]

    def prune(self, names: Iterable[str]) -> None:
        """Remove results that are as they were made; others stay."""
        for name in names:
            if self._is_ours(name):
                self.disk.remove(self._path(name))
                self._add({"removed": name})

    def sweep(self, names: Iterable[str]) -> None:
        """Remove what killed runs and workers have left half written of these results and of
        recorded ones.
        """
        ours = {*names, *self.records, JOURNAL}
        for name in self.disk.names(self.folder):
            match = _PART.fullmatch(name)
            if match is not None and match["name"] in ours:
                self.disk.remove(self._path(name))

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def _stamp(self, name: str) -> _Stamp | None:
        """The length and time of what lies under a name."""
        stamp = self.disk.stamp(self._path(name))
        return None if stamp is None else (stamp.bytes, stamp.written_ns)

    def _is_ours(self, name: str) -> bool:
        """Return whether the file under a name is a result, unchanged since it was put there."""
        stamp = self._stamp(name)
        if stamp is None:
            return False
        if stamp in self._stamps.get(name, ()):
            return True
        checksums = self._checksums.get(name, set())
        return bool(checksums) and self.disk.checksum(self._path(name)) in checksums

    def _is_orphan(self, record: Record, sources: set[str | None]) -> bool:
        source = record["source"]
        if source is None or record["fingerprint"] is None:
            return False  # it came through a pipe, or nothing can be known of its source
        return source not in sources and self._is_source_gone(source)

    def _is_source_gone(self, source: str) -> bool:
        """Return whether a source no longer exists. One that cannot be reached is not gone."""
        try:
            return (
                is_remote_file_gone(source) if is_url(source) else self.disk.stamp(source) is None
            )
        except OSError:
            return False

    def _add(self, record: Record) -> None:
        self.journal.append(record)
        self._take(record)

    def _take(self, record: Record) -> None:
        if "made_with" in record:
            self._current = record["made_with"]
        elif "removed" in record:
            self.records.pop(record["removed"], None)
        else:
            self.records[record["result"]] = (record, self._current)
            if "bytes" in record:
                self._stamps.setdefault(record["result"], set()).add(
                    (record["bytes"], record["written_ns"])
                )
                self._checksums.setdefault(record["result"], set()).add(record["checksum"])


def make_folder(folder: str) -> None:
    """Make a folder, if it is not there."""
    try:
        os.makedirs(folder, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise InputError(
            f"{folder}: a file stands where the folder should be; choose another name."
        ) from None
    except OSError as error:
        raise InputError(f"cannot make the folder {folder} ({error.strerror}).") from None


def _whole_name(source: str) -> str | None:
    """What a source is called wherever the command is run; None for standard input."""
    if source == "-":
        return None
    return source if is_url(source) else os.path.abspath(source)


def _identity(source: str) -> str:
    """Return what two sources differ in: the full name, of a web address without its query."""
    return without_query(_whole_name(source) or source)


def plain_name(source: str, suffix: str) -> str:
    """Return the name of a source with another ending.

    Examples
    --------
    >>> plain_name("logs/x.csv", ".parquet")
    'x.parquet'
    """
    return f"{Path(path_in(source)).stem}{suffix}"


def distinct_name(source: str, suffix: str) -> str:
    """Return a name for the result of a source that no other source has, whatever folder it lies
    in.

    Examples
    --------
    >>> distinct_name("s3://logs/monday/x.csv", ".parquet"), distinct_name("s3://logs/friday/x.csv", ".parquet")
    ('x-....parquet', 'x-....parquet')
    """
    digest = hashlib.sha256(_identity(source).encode("utf-8", "surrogateescape")).hexdigest()
    return f"{Path(path_in(source)).stem}-{digest[:10]}{suffix}"


def fingerprint(source: str, disk: Disk = DISK) -> Fingerprint | None:
    """What tells a source from what may stand in its place later; None where nothing does.

    That is so of pipes, and behind a URL without checksums and dates.

    Examples
    --------
    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "a.csv")
    >>> DISK.write(path, b"1,2")
    >>> first = fingerprint(path)
    >>> is_unchanged(first, path)
    True
    >>> with open(path, "r+b") as file:
    ...     _ = file.write(b"1,3")
    >>> is_unchanged(first, path)
    False
    """
    now_ns = disk.now_ns()  # before the stamp: whatever comes after the stamp comes after this
    return _seen(source, disk, lambda stamp: not _is_settled(stamp, now_ns))


def is_unchanged(known: Fingerprint, source: str, disk: Disk = DISK) -> bool:
    """Whether the source is still the one with this fingerprint."""
    stamp = {name: value for name, value in known.items() if name != "checksum"}
    return _seen(source, disk, lambda now: now == stamp and "checksum" in known) == known


def _seen(source: str, disk: Disk, doubtful: Callable[[Fingerprint], bool]) -> Fingerprint | None:
    """The stamp of a source, with a checksum where the stamp alone is `doubtful`; None where there
    is neither.
    """
    if is_url(source):
        return remote_fingerprint(source)
    try:
        stamp = disk.stamp(source)
        known: Fingerprint | None = None if stamp is None else stamp._asdict()
        return {**known, "checksum": disk.checksum(source)} if known and doubtful(known) else known
    except OSError:
        return None  # whoever reads it says why


def read_unchanged(
    source: str, work: Callable[[], _Result], disk: Disk = DISK
) -> tuple[_Result, Fingerprint | None]:
    """What `work` makes of a source that was the same before and after it, and the source's
    fingerprint.

    Where the source has changed meanwhile the work is done again, whatever came of it.
    """
    for _ in range(TRIES):
        known = fingerprint(source, disk)
        try:
            result = work()
        except InputError:
            if known is None or is_unchanged(known, source, disk):
                raise
            continue
        if known is None:
            return result, None
        now_ns = disk.now_ns()
        if is_unchanged(known, source, disk):
            if "checksum" in known and _is_settled(
                known, now_ns
            ):  # its stamp alone tells from now on
                known = {name: value for name, value in known.items() if name != "checksum"}
            return result, known
    raise InputError(
        f"{source}: it changed while it was read, {TRIES} times; wait until it is written, and call"
        " again."
    )


def _is_settled(known: Fingerprint, now_ns: int) -> bool:
    return bool(now_ns - max(known["written_ns"], known["changed_ns"]) >= SETTLED_NS)
