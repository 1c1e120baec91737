"""A folder of results, one file for each file that was read: each takes its place whole, and finished ones are kept.

What was made from what stands in `_metacal.journal` beside them: a record is written when a result is whole and about
to take its place, so that every file that was ever put there is known by its length and time. Whoever holds the
journal's lock is alone at work in the folder: workers write parts, and only the holder puts them in place. A run that
was cut off and is started again leaves alone every result that is the one last recorded and whose source, gate and
options are as recorded, and makes the others.

A source is known by its fingerprint, taken before it is read and compared after. The stamps of a file (length, times,
number) tell most changes without reading it. Not all: clocks tick, so that a file which is written twice within a tick,
to the same length, looks as if it had been written once. A file that was written less than two seconds ago is therefore
not settled, and its fingerprint holds a checksum of its bytes too (Git calls such files racy). Whatever is written
later than that has another stamp.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from metacal.errors import ArtifactError, InputError
from metacal.io.disk import DISK, Disk, plain_write_errors
from metacal.io.journal import Journal, Record
from metacal.io.many import is_gone, is_url, mark_of, path_in

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
    """An open folder of results, and what is known of them; nobody else works in it until it is closed.

    Parameters
    ----------
    folder : str
        It must be there.
    made_with : dict
        Whatever the results depend on besides their sources: the gate's checksum, the options. As JSON.
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
        #: Every length and time that a file of ours had under a name: the last one may not have taken its place.
        self._stamps: dict[str, set[_Stamp]] = {}
        self._current: Any = None

    def __enter__(self) -> Self:
        try:
            self.journal.__enter__()
        except ArtifactError as error:
            raise ArtifactError(f"{error} Without it every result is made again.") from None
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

    def finish(self, name: str, source: str, known: Fingerprint | None, part: str | None, counts: Record) -> Record:
        """Record a part and put it in its place; None: the source holds no rows, and a former result of it goes."""
        target = self._path(name)
        record = {"result": name, "source": _whole_name(source), "fingerprint": known, **counts}
        if part is None:
            if self._is_ours(name):
                self.disk.remove(target)
        else:
            stamp = self.disk.stamp(part)
            if stamp is None:
                raise InputError(f"cannot write {target}: {part} is gone; did somebody else remove it?")
            record |= {"bytes": stamp.bytes, "written_ns": stamp.written_ns}
            if self._stamp(name) == (stamp.bytes, stamp.written_ns):  # it could be taken for the new one
                self.disk.remove(target)
        if self._current != self.made_with:
            self._add({"made_with": self.made_with})
        self._add(record)
        if part is not None:
            with plain_write_errors(target):
                self.disk.replace(part, target)
        return record

    def orphans(self, present: Mapping[str, str]) -> tuple[list[str], list[str]]:
        """Results whose source is gone, or has its result under another name: as they were made, and edited since.

        `present` are the names of results and their sources.
        """
        name_of = {_whole_name(source): name for name, source in present.items()}
        names = [
            name
            for name, (record, _) in sorted(self.records.items())
            if name not in present and self._stamp(name) is not None and self._is_orphan(record, name_of)
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
        """Remove what killed runs and workers have left half written of these results and of recorded ones."""
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
        """Whether what lies under a name is a result that was put there, as it was."""
        return self._stamp(name) in self._stamps.get(name, ())

    def _is_orphan(self, record: Record, name_of: dict[str | None, str]) -> bool:
        source = record["source"]
        if source is None or record["fingerprint"] is None:
            return False  # it came through a pipe, or nothing can be known of its source
        if source in name_of:
            return Path(name_of[source]).suffix == Path(record["result"]).suffix
        try:
            return is_gone(source) if is_url(source) else self.disk.stamp(source) is None
        except OSError:
            return False  # not reached is not gone

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
                self._stamps.setdefault(record["result"], set()).add((record["bytes"], record["written_ns"]))


def make_folder(folder: str) -> None:
    """Make a folder, if it is not there."""
    try:
        os.makedirs(folder, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise InputError(f"{folder}: a file stands where the folder should be; choose another name.") from None
    except OSError as error:
        raise InputError(f"cannot make the folder {folder} ({error.strerror}).") from None


def _whole_name(source: str) -> str | None:
    """What a source is called wherever the command is run; None for standard input."""
    if source == "-":
        return None
    return source if is_url(source) else os.path.abspath(source)


def result_names(sources: Sequence[str], suffix: str) -> list[str]:
    """A name for the result of each source: its own with another ending, numbered where two would be the same.

    Examples
    --------
    >>> result_names(["a/x.csv", "a/y.npz"], ".parquet"), result_names(["a/x.csv", "b/x.csv"], ".csv")
    (['x.parquet', 'y.parquet'], ['000000-x.csv', '000001-x.csv'])
    """
    names = [f"{Path(path_in(source)).stem}{suffix}" for source in sources]
    if len({name.casefold() for name in names}) == len(names):  # some file systems do not tell a.csv from A.csv
        return names
    return [f"{i:06d}-{name}" for i, name in enumerate(names)]


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
    """The stamp of a source, with a checksum where the stamp alone is `doubtful`; None where there is neither."""
    if is_url(source):
        return mark_of(source)
    try:
        stamp = disk.stamp(source)
        known: Fingerprint | None = None if stamp is None else stamp._asdict()
        return {**known, "checksum": disk.checksum(source)} if known and doubtful(known) else known
    except OSError:
        return None  # whoever reads it says why


def read_unchanged(source: str, work: Callable[[], _Result], disk: Disk = DISK) -> tuple[_Result, Fingerprint | None]:
    """What `work` makes of a source that was the same before and after it, and the source's fingerprint.

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
            if "checksum" in known and _is_settled(known, now_ns):  # its stamp alone tells from now on
                known = {name: value for name, value in known.items() if name != "checksum"}
            return result, known
    raise InputError(
        f"{source}: it changed while it was read, {TRIES} times; wait until it is written, and call again."
    )


def _is_settled(known: Fingerprint, now_ns: int) -> bool:
    return bool(now_ns - max(known["written_ns"], known["changed_ns"]) >= SETTLED_NS)
