"""What a long benchmark has done so far, kept on disk so that a killed run goes on where it was.

A journal is two files of JSON lines, a header and then one line per task in the order of the tasks:
`NAME.jsonl` holds what was computed, `NAME.seconds.jsonl` what was measured with a clock. At any
moment the first is a prefix of what it will be at the end, so a run that was killed, however often,
ends with the same bytes as one that was not. Times are never the same twice, which is why they live
apart.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, Self

from metacal.errors import InputError

Line = dict[str, Any]


class Entry(NamedTuple):
    """The answer to one task: what was computed, and the seconds it took, part by part."""

    computed: Line
    seconds: Line


class Journal:
    """The two files of one benchmark on one data set, opened to go on.

    Parameters
    ----------
    folder : Path
        Where they lie.
    name : str
        What they are called.
    header : dict
        The settings that decide every number. A journal of other settings is refused, not
        continued.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     with Journal(Path(folder), "made", {"seed": 0}) as journal:
    ...         journal.append(Entry({"run": 0, "ece": 0.01}, {"fit": 0.2}))
    ...     with Journal(Path(folder), "made", {"seed": 0}) as journal:
    ...         journal.done
    1
    """

    def __init__(self, folder: Path, name: str, header: Line) -> None:
        self._paths = folder / f"{name}.jsonl", folder / f"{name}.seconds.jsonl"
        self._header = header
        self._files: tuple[IO[bytes], ...] = ()
        self.done = 0

    def __enter__(self) -> Self:
        self._paths[0].parent.mkdir(parents=True, exist_ok=True)
        whole = [_whole_lines(path, self._header) for path in self._paths]
        self.done = max(0, min(len(lines) for lines in whole) - 1)
        for path, lines in zip(self._paths, whole):
            with open(path, "ab") as file:
                file.truncate(sum(map(len, lines[: self.done + 1])))
                if not lines:
                    file.write(_encoded(self._header))
        self._files = tuple(open(path, "ab") for path in self._paths)  # noqa: SIM115
        return self

    def append(self, entry: Entry) -> None:
        """Write the next task's answer, and see to it that it is on disk."""
        for file, line in zip(self._files, entry):
            file.write(_encoded(line))
            file.flush()
            os.fsync(file.fileno())
        self.done += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for file in self._files:
            file.close()


def read_journal(folder: Path, name: str) -> tuple[Line, list[Entry]]:
    """The header and all whole entries of a journal.

    Examples
    --------
    >>> read_journal(Path("no-such-folder"), "made")
    Traceback (most recent call last):
    metacal.errors.InputError: there is no run of made in no-such-folder; ...
    """
    paths = folder / f"{name}.jsonl", folder / f"{name}.seconds.jsonl"
    if not all(path.is_file() for path in paths):
        raise InputError(
            f"there is no run of {name} in {folder}; run the benchmark with -o {folder} first."
        )
    computed, seconds = (
        [_decoded(line, path) for line in _whole_lines(path, None)] for path in paths
    )
    if not computed:
        raise InputError(f"{paths[0]} is empty; run the benchmark again.")
    return computed[0], [Entry(*pair) for pair in zip(computed[1:], seconds[1:])]


def _whole_lines(path: Path, header: Line | None) -> list[bytes]:
    """The lines that were written to their end; the header among them must be the one that is asked
    for.
    """
    if not path.is_file():
        return []
    lines = path.read_bytes().splitlines(keepends=True)
    whole = [line for line in lines if line.endswith(b"\n")]
    if whole and header is not None and whole[0] != _encoded(header):
        old = _decoded(whole[0], path)
        differ = [key for key in {**header, **old} if header.get(key) != old.get(key)]
        told = ", ".join(
            f"{key} {_short(old.get(key))} there, {_short(header.get(key))} now" for key in differ
        )
        raise InputError(
            f"{path} is a run with other settings ({told}); give another folder with -o, or add"
            " --fresh."
        )
    return whole


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _encoded(line: Line) -> bytes:
    return (json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n").encode()


def _decoded(line: bytes, path: Path) -> Line:
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InputError(f"{path} is damaged; delete it and run the benchmark again.")
    return found
