"""A stream of rows as text, line by line as it comes: csv, tsv or JSON lines, from a file that may grow or from a pipe.

What is what is told as in any file of predictions: columns of classes or a list, `label`, `id`. A cell may be empty: a
row without a label is one whose label is not known (yet), a row without logits says the label of an earlier id. Every
record stands on a line of its own.
"""

from __future__ import annotations

import csv
import hashlib
import os
import select
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from metacal.errors import InputError
from metacal.files.delimited import lists_of_numbers
from metacal.files.formulas import unescaped
from metacal.files.jsonl import LONGEST_LINE, parsed_object
from metacal.files.opening import check_head, plain_read_errors
from metacal.files.request import ID_KEYS, Picked, Request, listed, one_of, pick_columns, pick_scores

#: What text streams are called.
KINDS = ("csv", "tsv", "jsonl", "ndjson")
#: Bytes asked for at a time, and seconds between two looks at a file that may grow.
_BYTES, _PAUSE = 1 << 18, 0.2


class Record(NamedTuple):
    """One line: numbers of the row or None, its label, id, sampling probability and group where there are any."""

    line: int
    row: tuple[float, ...] | None
    label: Any
    id: str | int | None
    probability: float | None
    group: str | int | None


@dataclass
class Lines:
    """The lines of a file or of standard input as they come; with `follow` the end of a file is not the end."""

    path: str
    follow: bool = False
    number: int = 0
    _rest: bytes = b""
    _ended: bool = False

    def __post_init__(self) -> None:
        self.piped = self.path == "-"
        if self.piped:
            self._file = sys.stdin.fileno()
        else:
            if not (self.follow and os.path.isfile(self.path) and not os.path.getsize(self.path)):
                check_head(self.path, ())  # a log that is to grow may still be empty
            with plain_read_errors(self.path):
                self._file = os.open(self.path, os.O_RDONLY)

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *reason: object) -> None:
        if not self.piped:
            os.close(self._file)

    def batches(self) -> Iterator[list[tuple[int, bytes]]]:
        """Lists of lines with their numbers, without their ends; an empty list where nothing has come for a while."""
        while not self._ended:
            content = self._read()
            if content is None:
                yield []
                continue
            *whole, self._rest = (self._rest + content).split(b"\n")
            if not content:
                self._ended = True
                whole, self._rest = ([self._rest] if self._rest else []), b""
            if len(self._rest) > LONGEST_LINE:
                raise InputError(f"{self.path}:{self.number + 1}: this line has more than {LONGEST_LINE >> 20} MB.")
            found = [(self.number + k, line.rstrip(b"\r")) for k, line in enumerate(whole, 1)]
            self.number += len(whole)
            yield found

    def _read(self) -> bytes | None:
        """Some bytes; b"" at the end, None where there are none for now."""
        if self.piped and os.name == "posix" and not select.select([self._file], [], [], _PAUSE)[0]:
            return None
        content = os.read(self._file, _BYTES)
        if not content and self.follow and not self.piped:
            time.sleep(_PAUSE)
            return None
        return content


@dataclass
class Reader:
    """Makes records of lines: for a table of classes, or with `request.scores` for a column of scores.

    `digest` is a fingerprint of all records so far, one after the other.

    Examples
    --------
    >>> reader = Reader(Request("a.csv"), "csv", probability_key="p")
    >>> lines = [b"id,cat,dog,label,p", b"a,2.5,-1,,0.5", b"", b"b,0.5,3,dog,1", b"a,,,cat,"]
    >>> found = [reader.read(k, line) for k, line in enumerate(lines, 1)]
    >>> found[1].row, found[1].label, found[3].label, found[4].row, found[4].id, reader.records
    ((2.5, -1.0), None, 'dog', None, 'a', 3)
    """

    request: Request
    kind: str
    probability_key: str | None = None
    group_key: str | None = None
    records: int = 0
    digest: str = ""
    _header: list[str] | None = None
    _picked: Picked | None = None
    _names: dict[str, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"{self.request.path}: a stream is text: {', '.join(KINDS)}; not {self.kind!r}.")

    def read(self, line: int, content: bytes) -> Record | None:
        """The record on a line; None for a header and for a blank line."""
        if line == 1:
            content = content.removeprefix(b"\xef\xbb\xbf")
        if not content.strip():
            return None
        delimited = self.kind in ("csv", "tsv")
        cells = self._cells(line, content) if delimited else parsed_object(self.request.path, line, content)
        if cells is None:
            return None
        record = self._record(line, cells)
        self.records += 1
        self.digest = hashlib.blake2b(self.digest.encode() + content, digest_size=16).hexdigest()
        return record

    def _cells(self, line: int, content: bytes) -> dict[str, Any] | None:
        delimiter = "\t" if self.kind == "tsv" else ","
        try:
            (cells,) = csv.reader([content.decode("utf-8")], delimiter=delimiter, strict=True)
        except UnicodeDecodeError:
            raise InputError(f"{self.request.path}:{line}: this is not UTF-8 text; save it as UTF-8.") from None
        except (csv.Error, ValueError):
            raise InputError(f"{self.request.path}:{line}: this is no line of {self.kind}; mend its quotes.") from None
        plain = [unescaped(cell.strip()) for cell in cells]
        if self._header is None:
            self._header = plain
            return None
        if len(plain) != len(self._header):
            raise InputError(
                f"{self.request.path}:{line}: this line has {len(plain)} cells but the header has {len(self._header)}."
            )
        return {name: cell or None for name, cell in zip(self._header, plain)}

    def _record(self, line: int, cells: dict[str, Any]) -> Record:
        names = self._names or self._name(line, cells)
        get = {what: None if name is None else cells.get(name) for what, name in names.items()}
        probability = self._number(line, self.probability_key or "", get["probability"])
        return Record(
            line,
            self._row(line, cells),
            get["label"],
            self._plain(line, "id", get["id"]),
            probability,
            self._plain(line, "group", get["group"]),
        )

    def _name(self, line: int, cells: dict[str, Any]) -> dict[str, str | None]:
        """Which entry is what, by the first record that has a row in it."""
        header = list(cells) if self._header is None else self._header
        path, known = self.request.path, list(header)
        for key, flag in ((self.probability_key, "--probability-key"), (self.group_key, "--group-key")):
            if key is not None and key not in known and self._header is not None:
                raise InputError(f"{path}: there is no column {key!r} as {flag} says; it has {listed(known)}.")
        aside = tuple(name for name in (self.probability_key, self.group_key) if name is not None)
        here = [name for name in header if name not in aside]
        if self.request.scores:
            score, label, ids = pick_scores(self.request, here)
            columns = [score]
        else:
            lists = [name for name in here if isinstance(cells[name], list) or str(cells[name] or "")[:1] in ("[", "(")]
            self._picked = pick_columns(self.request, here, lists)
            columns = [here[k] for k in self._picked.columns]
            label, ids = (None if k is None else here[k] for k in (self._picked.label, self._picked.ids))
        if self._header is None:  # the label of a row may stand in later objects only
            rest = [name for name in cells if name not in columns]
            label = label or self.request.label_key or ("label" if "label" not in rest else None)
            ids = ids or self.request.id_key or one_of(self.request, rest, None, ID_KEYS, "id_key")
        self._columns = columns
        self._names = {"label": label, "id": ids, "probability": self.probability_key, "group": self.group_key}
        return self._names

    @property
    def class_names(self) -> tuple[str | int, ...] | None:
        """What the columns are called, where each is a class."""
        return None if self._picked is None else self._picked.names

    def _row(self, line: int, cells: dict[str, Any]) -> tuple[float, ...] | None:
        values = [cells.get(name) for name in self._columns]
        if all(value is None for value in values):
            return (float("nan"),) if self.request.scores and cells.get(str(self._names["label"])) is None else None
        if self._picked is not None and self._picked.names is None:
            (value,) = values
            if isinstance(value, str):
                return tuple(lists_of_numbers(self.request.path, self._columns[0], [value])[0].tolist())
            if not isinstance(value, list):
                raise InputError(f"{self.request.path}:{line}: the entry {self._columns[0]!r} is no list of numbers.")
            values = value
        numbers = [self._number(line, name, value) for name, value in zip(_repeated(self._columns), values)]
        missing = next((name for name, number in zip(self._columns, numbers) if number is None), None)
        if None in numbers:
            raise InputError(f"{self.request.path}:{line}: column {missing!r} is empty; fill in all classes or none.")
        return tuple(number for number in numbers if number is not None)

    def _number(self, line: int, name: str, value: Any) -> float | None:
        if value is None:
            return None
        try:
            if isinstance(value, bool) or "_" in str(value):
                raise ValueError
            return float(value)
        except (TypeError, ValueError):
            raise InputError(
                f"{self.request.path}:{line}: {name!r} holds {str(value)[:40]!r}, which is not a number."
            ) from None

    def _plain(self, line: int, what: str, value: Any) -> str | int | None:
        if value is None or (isinstance(value, str | int) and not isinstance(value, bool)):
            return value[:200] if isinstance(value, str) else value
        raise InputError(f"{self.request.path}:{line}: the {what} {str(value)[:40]!r} is neither text nor a number.")


def _repeated(names: list[str]) -> Iterator[str]:
    while True:
        yield from names
