"""Directory of results: one result file for each source file.

The directory holds a journal, `_metacal.journal`, with a record of each result. A record is
appended when a result is complete, just before it is moved to its place. Therefore every file that
was ever put there is known by its size, time and checksum. A file that is not known was written or
edited by somebody else, and is never replaced.

The process that holds the lock of the journal is the only one that works in the directory. Workers
write temporary files, and only this process moves them to their places. If a run is interrupted,
the next run keeps every result that is still the recorded one and whose source, gate and options
are as recorded.

The name of a result depends only on its source. It is the name of the source with another suffix,
plus a checksum of the path if two sources have the same name. An additional source therefore never
renames an existing result.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from metacal.errors import ArtifactError, FileWriteError
from metacal.io.disk import DISK, Disk, input_error_if_write_fails
from metacal.io.journal import Journal
from metacal.io.journal_lines import Record
from metacal.io.remote import is_remote_file_gone, is_url
from metacal.io.result_names import (
    build_distinct_result_name,
    build_short_result_name,
    get_full_source_name,
    get_source_identity,
)
from metacal.io.source_fingerprint import Fingerprint, has_fingerprint

#: Name of the journal. It begins with "_", so that readers of the directory skip it.
JOURNAL = "_metacal.journal"
#: Pattern of the names of temporary files, such as `.out.csv.0123456789ab.part.csv`.
_TEMPORARY_NAME_PATTERN = re.compile(r"\.(?P<name>.+?)\.[0-9a-f]{12}\.part(\..*)?")

#: Size in bytes and modification time in nanoseconds.
_SizeAndTime = tuple[int, int]


@dataclass(frozen=True)
class OrphanedResults:
    """Results whose source no longer exists.

    Attributes
    ----------
    unchanged : list of str
        Results that are as they were written.

    edited : list of str
        Results that were changed since.
    """

    unchanged: list[str]
    edited: list[str]


@dataclass(frozen=True)
class RecordedResult:
    """Result that the journal of a directory records.

    Attributes
    ----------
    record : dict
        Record of the result in the journal.

    settings : dict
        What the result depends on besides its source, see `ResultFolder`.
    """

    record: Record
    settings: Any


class ResultFolder:
    """Open directory of results. No other process can open it at the same time.

    Parameters
    ----------
    folder : str
        Existing directory.

    settings : dict
        What the results depend on besides their sources, such as the checksum of the gate and the
        options. It must be representable as JSON.

    disk : Disk, optional
        File system.

    Examples
    --------
    >>> import tempfile
    >>> from metacal.io.disk import build_temporary_path
    >>> from metacal.io.source_fingerprint import compute_fingerprint
    >>> folder = tempfile.mkdtemp()
    >>> source = f"{folder}/in.csv"
    >>> DISK.write(source, b"1,2")
    >>> with ResultFolder(folder, {"gate": "sha256:…"}) as results:
    ...     temporary_path = build_temporary_path(f"{folder}/out.csv")
    ...     DISK.write(temporary_path, b"result")
    ...     record = results.record_and_move(
    ...         "out.csv", source, compute_fingerprint(source), temporary_path, counts={"n_rows": 1}
    ...     )
    ...     record["bytes"]
    6
    >>> with ResultFolder(folder, {"gate": "sha256:…"}) as results:
    ...     results.find_current_record("out.csv", source)["n_rows"]
    1
    >>> with ResultFolder(folder, {"gate": "another"}) as results:
    ...     results.find_current_record("out.csv", source) is None
    True
    """

    def __init__(self, folder: str, settings: dict[str, Any], *, disk: Disk = DISK) -> None:
        self.folder = folder.rstrip("/" + os.sep) or os.sep
        self.disk = disk
        # The given settings are converted to JSON values before they are compared.
        # The journal returns settings as JSON values, for example lists instead of tuples.
        self.settings = json.loads(json.dumps(settings))
        self.journal = Journal(self._path_of_result(JOURNAL), "apply", disk=disk)
        #: Last record of each result, keyed by the name of the result.
        self.records: dict[str, RecordedResult] = {}
        #: Size and modification time of every file that was written, keyed by the name of the result.
        self._known_sizes_and_times: dict[str, set[_SizeAndTime]] = {}
        #: Checksum of every file that was written, keyed by the name of the result.
        #: The checksum identifies the file in a copied directory, where modification times differ.
        self._known_checksums: dict[str, set[str]] = {}
        self._last_recorded_settings: Any = None

    def __enter__(self) -> Self:
        try:
            self.journal.__enter__()
        except ArtifactError as error:
            raise type(error)(
                f"{error} If you have no copy, remove the file and the results: all results"
                " are then computed again."
            ) from None
        for record in self.journal.records:
            self._update_from_record(record)
        return self

    def __exit__(self, *reason: object) -> None:
        self.journal.__exit__(*reason)

    def find_current_record(self, name: str, source: str) -> Record | None:
        """Return the record of an up-to-date result, or None if it must be computed."""
        if name not in self.records:
            return None
        recorded_result = self.records[name]
        record = recorded_result.record
        if recorded_result.settings != self.settings:
            return None
        if record["source"] != get_full_source_name(source):
            return None
        has_file = bool(record["n_rows"])
        if has_file and self._read_size_and_time(name) != _get_recorded_size_and_time(record):
            return None
        source_fingerprint = record["fingerprint"]
        if source_fingerprint is None:
            return None
        if not has_fingerprint(source_fingerprint, source, self.disk):
            return None
        return record

    def record_and_move(
        self,
        name: str,
        source: str,
        source_fingerprint: Fingerprint | None,
        temporary_path: str | None,
        counts: Record,
    ) -> Record:
        """Record a complete result, and rename its temporary file to its final name.

        Parameters
        ----------
        name : str
            Name of the result.

        source : str
            Path or URL of the source.

        source_fingerprint : dict or None
            Fingerprint of the source.

        temporary_path : str or None
            Temporary file with the result. None if the source has no rows; a former result of the
            source is then removed.

        counts : dict
            Numbers to record, among them "n_rows".

        Returns
        -------
        dict
            The record.
        """
        target = self._path_of_result(name)
        record = {
            "result": name,
            "source": get_full_source_name(source),
            "fingerprint": source_fingerprint,
            **counts,
        }
        if temporary_path is None:
            if self._is_unchanged_result(name):
                self.disk.remove(target)
        else:
            self.check_no_foreign_files([name])
            record |= self._describe_temporary_file(temporary_path, target)
            looks_like_new_file = self._read_size_and_time(name) == _get_recorded_size_and_time(
                record
            )
            if looks_like_new_file:
                # After a crash, an old file of the same size and time would pass for the new one.
                self.disk.remove(target)

        if self._last_recorded_settings != self.settings:
            self._append_record({"made_with": self.settings})
        self._append_record(record)
        if temporary_path is not None:
            with input_error_if_write_fails(target):
                self.disk.replace(temporary_path, target)
        return record

    def choose_names(self, sources: Sequence[str], suffix: str) -> list[str]:
        """Choose a name for the result of each source. Recorded results keep their names.

        Parameters
        ----------
        sources : sequence of str
            Paths and URLs.

        suffix : str
            Suffix of the results.

        Returns
        -------
        list of str
            Names in the order of the sources.

        Raises
        ------
        InputError
            If a source is given twice, or if a name belongs to the result of another source that
            still exists and is not among these.

        Examples
        --------
        >>> import tempfile
        >>> with ResultFolder(tempfile.mkdtemp(), {}) as results:
        ...     results.choose_names(["a/x.csv", "a/y.npz"], ".parquet")
        ['x.parquet', 'y.parquet']
        """
        recorded_names = self._find_recorded_names(suffix)
        reused_names = set()
        for source in sources:
            recorded_name = recorded_names.get(get_full_source_name(source))
            if recorded_name is not None:
                reused_names.add(recorded_name.casefold())
        n_sources_of_name = Counter(
            build_short_result_name(source, suffix).casefold() for source in sources
        )

        result_names = []
        for source in sources:
            result_name = recorded_names.get(get_full_source_name(source))
            if result_name is None:
                result_name = build_short_result_name(source, suffix)
                folded_name = result_name.casefold()
                is_shared_name = n_sources_of_name[folded_name] > 1
                if is_shared_name or folded_name in reused_names:
                    result_name = build_distinct_result_name(source, suffix)
                else:
                    self._check_name_is_free(result_name, source)
            result_names.append(result_name)
        _check_distinct(result_names, sources)
        return result_names

    def check_no_foreign_files(self, names: Iterable[str]) -> None:
        """Raise InputError if one of the files exists and is not an unchanged result."""
        foreign_names = []
        for name in names:
            if self.disk.exists(self._path_of_result(name)) and not self._is_unchanged_result(name):
                foreign_names.append(name)
        if not foreign_names:
            return
        more_names = ""
        if len(foreign_names) > 1:
            more_names = f" (and {len(foreign_names) - 1:,} more)"
        raise FileWriteError(
            f"{self._path_of_result(foreign_names[0])}{more_names} was not written by 'metacal"
            " apply',"
            " or was changed afterwards. metacal does not overwrite such a file. Move or rename"
            " it, or write to another folder."
        )

    def find_orphans(self, source_of_result: Mapping[str, str]) -> OrphanedResults:
        """Find the results whose source no longer exists.

        Parameters
        ----------
        source_of_result : mapping of str to str
            Names of the current results and their sources. They are not orphans.

        Returns
        -------
        OrphanedResults
        """
        current_sources = {get_full_source_name(source) for source in source_of_result.values()}
        unchanged_names = []
        edited_names = []
        for name in sorted(self.records):
            if name in source_of_result or self._read_size_and_time(name) is None:
                continue
            if not self._is_orphan(self.records[name].record, current_sources):
                continue
            if self._is_unchanged_result(name):
                unchanged_names.append(name)
            else:
                edited_names.append(name)
        return OrphanedResults(unchanged=unchanged_names, edited=edited_names)

    def prune(self, names: Iterable[str]) -> None:
        """Remove results, except those that were edited after they were written."""
        for name in names:
            if self._is_unchanged_result(name):
                self.disk.remove(self._path_of_result(name))
                self._append_record({"removed": name})

    def remove_leftovers(self, names: Iterable[str]) -> None:
        """Remove the temporary files of processes that were killed.

        They belong to the given results or to recorded ones.
        """
        known_names = {*names, *self.records, JOURNAL}
        for name in self.disk.list_names(self.folder):
            match = _TEMPORARY_NAME_PATTERN.fullmatch(name)
            if match is not None and match["name"] in known_names:
                self.disk.remove(self._path_of_result(name))

    def _path_of_result(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def _describe_temporary_file(self, temporary_path: str, target: str) -> Record:
        """Return the entries of a record that describe a temporary file.

        These are its size, its modification time and its checksum.
        """
        stamp = self.disk.read_stamp(temporary_path)
        if stamp is None:
            raise FileWriteError(
                f"cannot write {target}: the temporary file {temporary_path} no longer exists."
                " Check whether another process removed it."
            )
        return {
            "bytes": stamp.bytes,
            "written_ns": stamp.written_ns,
            "checksum": self.disk.checksum(temporary_path),
        }

    def _find_recorded_names(self, suffix: str) -> dict[str | None, str]:
        """Return the names of the recorded results with a suffix, keyed by source."""
        recorded_names: dict[str | None, str] = {}
        for name, recorded_result in self.records.items():
            source = recorded_result.record["source"]
            if source is None:
                continue
            if name in (
                build_short_result_name(source, suffix),
                build_distinct_result_name(source, suffix),
            ):
                recorded_names[source] = name
        return recorded_names

    def _check_name_is_free(self, name: str, source: str) -> None:
        """Raise InputError if the name belongs to the result of another existing source."""
        for recorded_name, recorded_result in self.records.items():
            recorded_source = recorded_result.record["source"]
            if recorded_source is None or recorded_name.casefold() != name.casefold():
                continue
            if get_source_identity(recorded_source) == get_source_identity(source):
                continue
            is_result_missing = self._read_size_and_time(recorded_name) is None
            if is_result_missing or self._is_source_gone(recorded_source):
                continue
            raise FileWriteError(
                f"{source} would overwrite {self._path_of_result(recorded_name)}, the result of"
                f" {recorded_source}, because both sources have the same name. Pass both sources"
                " in one call, so that their results have different names, or write to another"
                " folder."
            )

    def _read_size_and_time(self, name: str) -> _SizeAndTime | None:
        """Return the size and modification time of a file, or None if it is missing."""
        stamp = self.disk.read_stamp(self._path_of_result(name))
        if stamp is None:
            return None
        return stamp.bytes, stamp.written_ns

    def _is_unchanged_result(self, name: str) -> bool:
        """Check whether a file is a result that has not changed since it was written."""
        size_and_time = self._read_size_and_time(name)
        if size_and_time is None:
            return False
        if size_and_time in self._known_sizes_and_times.get(name, ()):
            return True
        known_checksums = self._known_checksums.get(name)
        if not known_checksums:
            return False
        return self.disk.checksum(self._path_of_result(name)) in known_checksums

    def _is_orphan(self, record: Record, current_sources: set[str | None]) -> bool:
        """Check whether the source of a recorded result no longer exists."""
        source = record["source"]
        if source is None or record["fingerprint"] is None:
            # A pipe cannot be found again, and without a fingerprint a source cannot be recognised.
            return False
        return source not in current_sources and self._is_source_gone(source)

    def _is_source_gone(self, source: str) -> bool:
        """Check whether a source no longer exists. An unreachable source is not gone."""
        if is_url(source):
            return is_remote_file_gone(source)
        try:
            return self.disk.read_stamp(source) is None
        except OSError:
            return False

    def _append_record(self, record: Record) -> None:
        """Append a record to the journal, and update the recorded results with it."""
        self.journal.append(record)
        self._update_from_record(record)

    def _update_from_record(self, record: Record) -> None:
        """Update the recorded results with one record of the journal.

        A record holds the settings of the results that follow it, the name of a removed result, or
        the description of a result.
        """
        is_settings_record = "made_with" in record
        if is_settings_record:
            self._last_recorded_settings = record["made_with"]
            return
        is_removal_record = "removed" in record
        if is_removal_record:
            self.records.pop(record["removed"], None)
            return
        result_name = record["result"]
        self.records[result_name] = RecordedResult(
            record=record, settings=self._last_recorded_settings
        )
        has_result_file = "bytes" in record
        if has_result_file:
            size_and_time = (record["bytes"], record["written_ns"])
            self._known_sizes_and_times.setdefault(result_name, set()).add(size_and_time)
            self._known_checksums.setdefault(result_name, set()).add(record["checksum"])


def make_folder(folder: str) -> None:
    """Create a directory if it does not exist."""
    try:
        os.makedirs(folder, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise FileWriteError(
            f"{folder}: a file with this name exists, so the folder cannot be created. Choose"
            " another folder name."
        ) from None
    except OSError as error:
        raise FileWriteError(f"cannot create the folder {folder} ({error.strerror}).") from None


def _get_recorded_size_and_time(record: Record) -> _SizeAndTime:
    """Return the size and modification time that a record holds."""
    return record["bytes"], record["written_ns"]


def _check_distinct(result_names: Sequence[str], sources: Sequence[str]) -> None:
    """Raise InputError if two sources have the same result name.

    Some file systems do not distinguish a.csv from A.csv, so the letter case is ignored.
    """
    source_of_name: dict[str, str] = {}
    for name, source in zip(result_names, sources, strict=True):
        folded_name = name.casefold()
        if folded_name in source_of_name:
            raise FileWriteError(
                f"{source_of_name[folded_name]} and {source} are the same file. Pass this file"
                " once."
            )
        source_of_name[folded_name] = source
