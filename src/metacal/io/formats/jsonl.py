"""JSON lines: an object per line, with a list of logits or an entry per class, and label and id
beside it.

Only the entries that are asked for are kept; the first line says which there are. A key may lead
into an entry, `judge.score` (`metacal.io.nested`). Blank lines are skipped, a line that is no
object is named by its number. Python's NaN and Infinity are numbers here, as its own writer makes
them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError, option
from metacal.formulas import Float
from metacal.io.artifact.messages import shown, without_duplicates
from metacal.io.column_selection import pick_columns
from metacal.io.columns import Columns
from metacal.io.formats.delimited import TextWriter
from metacal.io.nested import with_nested
from metacal.io.opening import NoRowsError, check_texts, uneven
from metacal.io.request import BESIDE, Request

#: A line of more bytes is no row: a file without line ends would fill the memory.
LONGEST_LINE = 1 << 26
#: One for all lines, as json.loads makes a decoder anew each time.
_DECODER = json.JSONDecoder(object_pairs_hook=without_duplicates)


def read(request: Request) -> Columns:
    """Read table, or scores, and what is beside it; an entry that a later row lacks is None
    there.
    """
    path, picked, columns, lines = request.path, None, dict[str, list[Any]](), list[int]()
    with open(request.source, "rb") as file:
        for number, plain in objects_in(path, file):
            row = nested_in(request, number, plain)
            if picked is None:
                lists = [name for name, value in row.items() if isinstance(value, list)]
                picked = pick_columns(request, list(row), lists)
                columns = {name: [] for name in picked.names}
            lines.append(number)
            for name, column in columns.items():
                column.append(row.get(name))
    if picked is None:
        raise NoRowsError(
            f"{path}: it holds no rows; give at least one, as a JSON object on a line."
        )
    correct = picked.beside.get("labels") if request.scores else None

    def typed(name: str) -> NDArray[Any]:
        return (
            _objects(columns[name]) if name == correct else _typed(path, lines, name, columns[name])
        )

    first = picked.table[0]
    if request.scores:
        table: Any = _objects(columns[first])
    elif picked.places is None:
        table = _table_of_lists(path, lines, first, columns[first])
    else:
        table = np.column_stack(
            [_numbers(path, lines, name, columns[name]) for name in picked.table]
        )
    return picked.columns(
        table, typed, columns.__getitem__, lines=lines if request.scores else None
    )


def _objects(values: Sequence[Any]) -> NDArray[Any]:
    """An array of these very values: lists among them stay lists."""
    return np.fromiter(values, dtype=object, count=len(values))


def objects_in(path: str, file: IO[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a file, each with the number of its line."""
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise InputError(
                f"{path}:{number}: this line has more than {LONGEST_LINE >> 20} MB; write one"
                " object per line, and one row per object."
            )
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if line.strip():
            yield number, parsed_object(path, number, line)


def nested_in(
    request: Request, number: int, row: dict[str, Any], *more: str | None
) -> dict[str, Any]:
    """The row with what nested keys lead to (`metacal.io.nested`); LineError where they lead to
    something else.
    """
    keys = (
        request.logits_key,
        *(getattr(request, key) for key in BESIDE.values()),
        *request.keep,
        *more,
    )
    keys += request.later_scores + request.flags
    try:
        return with_nested(row, keys)
    except InputError as error:
        raise LineError(request.path, number, str(error).removesuffix(".")) from None


class LineError(InputError):
    """A line that cannot be read: where it stands, and why."""

    def __init__(self, path: str, number: int, reason: str) -> None:
        super().__init__(f"{path}:{number}: {reason}.")
        self.reason = reason


def parsed_object(path: str, number: int, line: bytes) -> dict[str, Any]:
    """The object on a line, or LineError."""
    try:
        row = _DECODER.decode(line.decode(json.detect_encoding(line), "surrogatepass"))
        if isinstance(row, dict):
            return row
        advice = (
            "; an array of objects becomes lines by jq -c '.[]' FILE"
            if isinstance(row, list)
            else ""
        )
        reason = f"this line is {shown(row)}, not an object such as {{...}}{advice}"
    except UnicodeDecodeError:
        reason = "this is not UTF-8 text; save it as UTF-8"
    except KeyError as error:
        reason = f"the entry {str(error.args[0])[:80]!r} stands there twice; keep one"
    except RecursionError:
        reason = "this line is nested too deeply; write plain entries"
    except ValueError as error:
        said = " ".join(str(error).split())[:120]
        reason = (
            f"this line is not a JSON object of its own ({said}); write one object per line (jq -c"
            " '.' FILE does)"
        )
    raise LineError(path, number, reason)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _table_of_lists(path: str, lines: list[int], name: str, rows: list[Any]) -> Float:
    width = len(rows[0])
    for line, row in zip(lines, rows):
        if not isinstance(row, list):
            raise InputError(
                f"{path}:{line}: the entry {name!r} is {shown(row)}, not a list of numbers."
            )
        if len(row) != width:
            raise uneven(f"{path}:{line}: the entry {name!r}", len(row), width)
        bad = next((value for value in row if not _is_number(value)), 0.0)
        if not _is_number(bad):
            raise InputError(
                f"{path}:{line}: the entry {name!r} holds {shown(bad)}, which is not a number."
            )
    return _floats(path, rows)


def _numbers(path: str, lines: list[int], name: str, values: list[Any]) -> Float:
    for line, value in zip(lines, values):
        if not _is_number(value):
            what = (
                "is missing or null"
                if value is None
                else f"is {shown(value)}, which is not a number"
            )
            raise InputError(
                f"{path}:{line}: the entry {name!r} {what}; fix it, or say which entries are"
                f" classes with {option('classes')}."
            )
    return _floats(path, values)


def _floats(path: str, values: list[Any]) -> Float:
    try:
        return np.array(values, dtype=np.float64)
    except OverflowError:
        raise InputError(
            f"{path}: a whole number is too large to be a logit; write it as 1e30."
        ) from None


def _typed(path: str, lines: list[int], name: str, values: list[Any]) -> NDArray[Any]:
    """Labels or ids: whole numbers, floats, booleans or texts, all of one kind."""
    kinds = {bool: np.bool_, int: np.int64, float: np.float64, str: np.str_}
    kind = type(values[0])
    for line, value in zip(lines, values):
        if type(value) not in kinds:
            what = "is missing or null" if value is None else f"is {shown(value)}"
            raise InputError(
                f"{path}:{line}: {name!r} {what}; labels and ids must be numbers or texts, one per"
                " row."
            )
        if type(value) is not kind:
            raise InputError(
                f"{path}:{line}: {name!r} is {shown(value)} but the first row's is"
                f" {shown(values[0])}; write all as numbers, or all as texts."
            )
    if kind is str:
        check_texts(path, f"texts in {name!r}", values, sum(map(len, values)))
    try:
        return np.array(values, dtype=kinds[kind])
    except OverflowError:
        raise InputError(
            f"{path}: {name!r} holds a number beyond 64 bits; write such ids as texts."
        ) from None


class JsonLinesWriter(TextWriter):
    """An object per line; a 2-D `probs` is a list, or `probs_cat` … where the classes have names,
    as in csv.

    Strict JSON: what is not a finite number is null.
    """

    def write_block(self, columns: dict[str, NDArray[Any]]) -> None:
        """Add a few rows."""
        rows = zip(*map(_json_values, columns.values()))
        self.file.writelines(
            json.dumps(dict(zip(columns, row)), allow_nan=False) + "\n" for row in rows
        )

    def flat(self, columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Lists stay lists where the classes have no names."""
        return columns if self.class_names is None else super().flat(columns)


def _json_values(values: NDArray[Any]) -> list[Any]:
    if values.ndim == 2:
        return np.array(_json_values(values.ravel()), dtype=object).reshape(values.shape).tolist()
    found: list[Any] = values.tolist()
    if values.dtype.kind != "f":
        return found
    if values.dtype.itemsize < 8:  # their own shortest digits: 0.1, not 0.10000000149011612
        found = [float(str(value)) for value in values]
    return found if np.isfinite(values).all() else [v if math.isfinite(v) else None for v in found]
