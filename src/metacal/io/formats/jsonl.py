"""Read JSON lines: an object per line, with a list of logits or an entry per class, and label and id beside it.

Only the entries that are asked for are kept; the first line says which there are. Blank lines are skipped, a line that
is no object is named by its number. Python's NaN and Infinity are numbers here, as its own writer makes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError
from metacal.io.columns import Found, Picked, Request, listed, pick_columns
from metacal.io.limits import check_texts
from metacal.io.opening import NoRowsError

#: A line of more bytes is no row: a file without line ends would fill the memory.
LONGEST_LINE = 1 << 26
_LONGEST_SHOWN = 40

#: The rows of a file, each with the number of its line.
Lines = Iterator[tuple[int, dict[str, Any]]]


class Entries(NamedTuple):
    """What was read: the number of each line, the entries that were asked for as columns, the first row's names."""

    lines: list[int]
    columns: dict[str, list[Any]]
    header: list[str]


def read_jsonl(request: Request) -> Found:
    """Read table, labels and ids."""
    picks: list[Picked] = []

    def wanted(first: dict[str, Any]) -> list[str]:
        header, lists = list(first), [name for name, value in first.items() if _is_list(value)]
        picks.append(pick_columns(request, header, lists))
        return [header[k] for k in (*picks[0].columns, *picks[0].beside) if k is not None]

    found = read_entries(request, wanted)
    (picked,) = picks
    table = _table(request, found, [found.header[k] for k in picked.columns], of_lists=picked.names is None)
    labels, ids, groups = (
        None
        if place is None
        else typed_entries(request.path, found.lines, name := found.header[place], found.columns[name])
        for place in picked.beside
    )
    places = None if picked.names is None else tuple(picked.columns)
    return Found(table, labels, ids, groups, picked.names, picked.unused(found.header), places)


def read_entries(request: Request, wanted: Callable[[dict[str, Any]], Sequence[str]]) -> Entries:
    """The entries that `wanted` names when it sees the first row; one that a later row lacks is None there."""
    columns: dict[str, list[Any]] = {}
    header: list[str] = []
    lines: list[int] = []
    with open(request.source, "rb") as file:
        for number, row in _rows(request.path, file):
            if not lines:
                header, columns = list(row), {name: [] for name in wanted(row)}
            lines.append(number)
            for name, column in columns.items():
                column.append(row.get(name))
    if not lines:
        raise NoRowsError(f"{request.path}: it holds no rows; give at least one, as a JSON object on a line.")
    return Entries(lines, columns, header)


def _table(request: Request, found: Entries, names: list[str], *, of_lists: bool) -> NDArray[np.float64]:
    path, lines = request.path, found.lines
    if of_lists:
        return _table_of_lists(path, lines, names[0], found.columns[names[0]])
    if len(names) < request.fewest_columns:
        raise InputError(
            f"{path}: found {len(names)} class(es) among the entries {listed(found.header)}; there must be at least "
            "2, or one entry 'logits' with a list."
        )
    return np.column_stack([_numbers(path, lines, name, found.columns[name]) for name in names])


def _rows(path: str, file: IO[bytes]) -> Lines:
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise InputError(
                f"{path}:{number}: this line has more than {LONGEST_LINE >> 20} MB; write one object per line, and "
                "one row per object."
            )
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if line.strip():
            yield number, parsed_object(path, number, line)


class LineError(InputError):
    """A line that cannot be read: where it stands, and why."""

    def __init__(self, path: str, number: int, reason: str) -> None:
        super().__init__(f"{path}:{number}: {reason}.")
        self.reason = reason


def parsed_object(path: str, number: int, line: bytes) -> dict[str, Any]:
    """The object on a line, or LineError."""
    try:
        row = json.loads(line, object_pairs_hook=_without_duplicates)
    except UnicodeDecodeError:
        raise LineError(path, number, "this is not UTF-8 text; save it as UTF-8") from None
    except _TwiceError as error:
        raise LineError(path, number, f"the entry {str(error)[:80]!r} stands there twice; keep one") from None
    except RecursionError:
        raise LineError(path, number, "this line is nested too deeply; write plain entries") from None
    except ValueError as error:
        said = " ".join(str(error).split())[:120]
        raise LineError(
            path,
            number,
            f"this is no JSON object on a line of its own ({said}); write one object per line (jq -c '.' FILE does)",
        ) from None
    if isinstance(row, dict):
        return row
    advice = "; an array of objects becomes lines by jq -c '.[]' FILE" if isinstance(row, list) else ""
    raise LineError(path, number, f"this line is {_shown(row)}, not an object such as {{...}}{advice}")


class _TwiceError(Exception):
    """A name stands twice in an object."""


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        raise _TwiceError(next(name for name, _ in pairs if name in seen or seen.add(name)))  # type: ignore[func-returns-value]
    return found


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _table_of_lists(path: str, lines: list[int], name: str, rows: list[Any]) -> NDArray[np.float64]:
    width = len(rows[0])
    for line, row in zip(lines, rows):
        if not _is_list(row):
            raise InputError(f"{path}:{line}: the entry {name!r} is {_shown(row)}, not a list of numbers.")
        if len(row) != width:
            raise InputError(
                f"{path}:{line}: the entry {name!r} has {len(row)} numbers but the first row has {width}; every row "
                "needs one number per class."
            )
        bad = next((value for value in row if not _is_number(value)), 0.0)
        if not _is_number(bad):
            raise InputError(f"{path}:{line}: the entry {name!r} holds {_shown(bad)}, which is not a number.")
    return _floats(path, rows)


def _numbers(path: str, lines: list[int], name: str, values: list[Any]) -> NDArray[np.float64]:
    for line, value in zip(lines, values):
        if not _is_number(value):
            what = "is missing or null" if value is None else f"is {_shown(value)}, which is not a number"
            raise InputError(
                f"{path}:{line}: the entry {name!r} {what}; mend it, or say which entries are classes with classes "
                "(--classes)."
            )
    return _floats(path, values)


def _floats(path: str, values: list[Any]) -> NDArray[np.float64]:
    try:
        return np.array(values, dtype=np.float64)
    except OverflowError:
        raise InputError(f"{path}: a whole number is too large to be a logit; write it as 1e30.") from None


def typed_entries(path: str, lines: list[int], name: str, values: list[Any]) -> NDArray[Any]:
    """Labels or ids: whole numbers, floats, booleans or texts, all of one kind."""
    kinds = {bool: np.bool_, int: np.int64, float: np.float64, str: np.str_}
    kind = type(values[0])
    for line, value in zip(lines, values):
        if type(value) not in kinds:
            what = "is missing or null" if value is None else f"is {_shown(value)}"
            raise InputError(f"{path}:{line}: {name!r} {what}; labels and ids must be numbers or texts, one per row.")
        if type(value) is not kind:
            raise InputError(
                f"{path}:{line}: {name!r} is {_shown(value)} but the first row's is {_shown(values[0])}; write all "
                "as numbers, or all as texts."
            )
    if kind is str:
        check_texts(path, f"texts in {name!r}", values, sum(map(len, values)))
    try:
        return np.array(values, dtype=kinds[kind])
    except OverflowError:
        raise InputError(f"{path}: {name!r} holds a number beyond 64 bits; write such ids as texts.") from None


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = json.dumps(value)
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 3] + "..."
