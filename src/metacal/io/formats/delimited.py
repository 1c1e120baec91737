"""Read tables and labels from delimited text: csv, tsv, and lists with one label per line."""

from __future__ import annotations

import csv
import io
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError
from metacal.io.columns import (
    LABEL_KEYS,
    TWO_COLUMNS,
    Found,
    Request,
    labels_are_in,
    listed,
    one_of,
    pick_columns,
    whole_numbers,
)
from metacal.io.formats.formulas import unescaped
from metacal.io.limits import check_texts
from metacal.io.opening import SAVE_AS_NPZ, NoRowsError, check_head
from metacal.io.urls import Part, suffix_of

#: Cells with a list in each that are parsed in one go.
_LISTS_AT_ONCE = 4096


def read_delimited(request: Request) -> Found:
    """Read a table with a header, a column per class or one column of lists; "-" is standard input."""
    delimiter = request.delimiter or ","
    try:
        with _open_text(request.source) as file:
            return _read_table(request, file, delimiter)
    except UnicodeDecodeError:
        raise InputError(f"{request.path}: this is not UTF-8 text; save it as UTF-8, or {SAVE_AS_NPZ}.") from None
    except csv.Error as error:
        raise InputError(f"{request.path}: this is not {delimiter!r}-separated text ({error}).") from None


def _read_table(request: Request, file: IO[str], delimiter: str) -> Found:
    header, lists = _header(request, file, delimiter)
    picked = pick_columns(request, header, lists)
    columns, label = picked.columns, picked.label
    if picked.names is not None and len(columns) < request.fewest_columns:
        raise InputError(
            f"{request.path}:1: found {len(columns)} class column(s) in {listed(header)}; there must be "
            f"at least 2, separated by {'tabs' if delimiter != ',' else 'commas'}, or one column 'logits' of lists."
            f"{_one_column(header, delimiter) if len(columns) == 1 else ''}"
        )
    numeric = columns if picked.names is not None else []
    try:
        cells = _Cells(file, delimiter, numeric, len(header))
    except ValueError as error:
        _raise_bad_cell(request.path, file, delimiter, header, numeric, label)
        raise InputError(f"{request.path}: {' '.join(str(error).split())[:200].rstrip('.')}.") from None
    if label is not None and not all(map(str.strip, cells.column(label))):
        _raise_bad_cell(request.path, file, delimiter, header, numeric, label)
    if picked.names is None:
        table = lists_of_numbers(request.path, header[columns[0]], cells.column(columns[0]))
    else:
        table = cells.table(columns)
    labels, ids, groups = (
        None if k is None else _typed(request.path, header[k], cells.column(k)) for k in picked.beside
    )
    places = None if picked.names is None else tuple(columns)
    return Found(table, labels, ids, groups, picked.names, picked.unused(header), places)


def _one_column(header: list[str], delimiter: str) -> str:
    """What to do about a table with a single class column."""
    other = next((mark for mark in ";\t|," if len(header) == 1 and mark in header[0] and mark != delimiter), None)
    if other is None:
        return TWO_COLUMNS
    if other == "\t":
        return " The columns are separated by tabs: name the file .tsv, or say format='tsv' (--format tsv)."
    return f" The columns are separated by {other!r}: write {delimiter!r} instead."


def delimited_columns(
    request: Request, wanted: Callable[[Sequence[str]], Sequence[str]]
) -> tuple[dict[str, list[str]], list[int]]:
    """The cells of the columns that `wanted` names of those in the header, as text, and the number of each line."""
    delimiter = request.delimiter or ","
    try:
        with _open_text(request.source) as file:
            header = _header(request, file, delimiter)[0]
            places = {name: header.index(name) for name in wanted(header)}
            file.seek(0)
            reader = csv.reader(file, delimiter=delimiter)
            next(reader)
            return _cells_of(request.path, reader, places, len(header))
    except UnicodeDecodeError:
        raise InputError(f"{request.path}: this is not UTF-8 text; save it as UTF-8.") from None
    except csv.Error as error:
        raise InputError(f"{request.path}: this is not {delimiter!r}-separated text ({error}).") from None


def _cells_of(path: str, reader: Any, places: dict[str, int], width: int) -> tuple[dict[str, list[str]], list[int]]:
    cells: dict[str, list[str]] = {name: [] for name in places}
    lines = []
    line = reader.line_num + 1
    for row in reader:
        if row and len(row) != width:
            raise InputError(f"{path}:{line}: this line has {len(row)} cells but the header has {width}.")
        if row:
            lines.append(line)
            for name, place in places.items():
                cells[name].append(row[place].strip())
        line = reader.line_num + 1
    return cells, lines


def texts_or_numbers(path: str, name: str, cells: Sequence[str]) -> NDArray[Any]:
    """A column of labels or ids: whole numbers if all are written as such, texts otherwise."""
    return _typed(path, name, cells)


def lists_of_numbers(path: str, name: str, cells: Sequence[str] | NDArray[Any]) -> NDArray[np.float64]:
    """Parse cells such as "[0.1, 2.3]", or "[0.1 2.3]" as NumPy prints them, all of one length.

    Examples
    --------
    >>> lists_of_numbers("a.csv", "logits", ["[0.5, 2]", "[1 -inf]"])
    array([[ 0.5,  2. ], [ 1. , -inf]])
    """
    if not len(cells):
        return np.empty((0, 0))
    plain = [cell.strip().strip("[]()").replace(",", " ") for cell in cells]
    width = len(plain[0].split())
    parts = []
    for start in range(0, len(plain), _LISTS_AT_ONCE):
        some = plain[start : start + _LISTS_AT_ONCE]
        numbers = _numbers(" ".join(some))
        # Two rows that are wrong in opposite directions would cancel: every row is counted.
        if numbers is None or any(len(cell.split()) != width for cell in some):
            _raise_bad_list(path, name, start, cells[start : start + _LISTS_AT_ONCE], width)
        parts.append(numbers)
    return np.concatenate(parts).reshape(len(plain), width)  # type: ignore[arg-type]


def _numbers(text: str) -> NDArray[np.float64] | None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # how NumPy says that it could not read to the end
        try:
            return np.fromstring(text, dtype=np.float64, sep=" ")
        except (DeprecationWarning, ValueError):
            return None


def _raise_bad_list(path: str, name: str, start: int, cells: Sequence[str] | NDArray[Any], width: int) -> None:
    for row, cell in enumerate(cells, start):
        words = cell.strip().strip("[]()").replace(",", " ").split()
        bad = next((word for word in words if not _is_number(word)), None)
        if bad is not None:
            cut = " (NumPy cuts long arrays when it prints them: write a column per class)" if "..." in bad else ""
            raise InputError(f"{path}: row {row} of column {name!r} holds {bad[:40]!r}, which is not a number{cut}.")
        if len(words) != width:
            raise InputError(
                f"{path}: row {row} of column {name!r} has {len(words)} numbers but the first row has {width}; every "
                "row needs one number per class."
            )
    raise InputError(f"{path}: column {name!r} cannot be read as lists of numbers; write a column per class.")


def read_text_labels(labels: Part, label_key: str | None) -> NDArray[Any]:
    """Read one label per line, or the column of labels of a table with a header; "-" is standard input."""
    path, suffix = labels.name, suffix_of(labels.name)
    if suffix not in (".csv", ".tsv", ".txt") and path != "-":
        raise InputError(f"{path}: labels are read from .npy, or from .csv, .tsv or .txt with one per line.")
    if path != "-":
        check_head(labels.path, (), shown=path)
    delimiter = "\t" if suffix == ".tsv" else ","
    try:
        with _open_text(labels.path) as file:
            lines = (
                [[line.strip()] for line in file] if suffix == ".txt" else list(csv.reader(file, delimiter=delimiter))
            )
    except (UnicodeDecodeError, csv.Error):
        raise InputError(f"{path}: this is not UTF-8 text; save the labels as UTF-8, one per line.") from None
    while lines and not any(lines[-1]):
        lines.pop()
    header = [name.strip() for name in lines[0]] if lines else []
    named = one_of(Request(path), header, label_key, LABEL_KEYS, "label_key")
    if named is None and len(header) > 1:
        raise InputError(f"{path}:1: which column holds the labels? Say so with label_key (--label-key).")
    column = 0 if named is None else header.index(named)
    texts = [row[column].strip() if column < len(row) else "" for row in lines[named is not None :]]
    if "" in texts:
        line = texts.index("") + 1 + (named is not None)
        raise InputError(f"{path}:{line}:{column + 1}: the label is missing; fill it in or drop the row everywhere.")
    return _typed(path, header[column] if named else "label", texts)


def _open_text(path: str) -> IO[str]:
    if path != "-":
        return open(path, encoding="utf-8-sig", newline="")
    raw = getattr(sys.stdin, "buffer", None)
    # Held whole, for a bad cell is searched for from the beginning.
    return io.StringIO(sys.stdin.read() if raw is None else raw.read().decode("utf-8-sig"), newline="")


def _header(request: Request, file: IO[str], delimiter: str) -> tuple[list[str], list[str]]:
    """The names of the columns, and those of them whose first cell is a list."""
    reader = csv.reader(file, delimiter=delimiter)
    header = [unescaped(name.strip()) for name in next(reader, [])]
    if not header:
        raise InputError(f"{request.path}: there is no header; the first line must name the columns.")
    counted = header == [str(k) for k in range(len(header))]
    if not counted and all(map(_is_number, header)):
        raise InputError(
            f"{request.path}:1: the first line holds numbers; put a line with the names of the columns first."
        )
    first = next((row for row in reader if row), None)
    if first is None:
        raise NoRowsError(f"{request.path}: it holds no rows; give at least one.")
    file.seek(0)
    next(csv.reader(file, delimiter=delimiter))
    return header, [name for name, cell in zip(header, first) if cell.lstrip()[:1] in ("[", "(")]


class _Cells:
    """The cells below the header, parsed in one pass of NumPy's own reader: 1e6 x 10 cells in about 4 s, where csv and
    float() take 5 to 8. Neighbours of one kind are one field: a field per column takes time quadratic in columns.
    """

    def __init__(self, file: IO[str], delimiter: str, numeric: Sequence[int], n_columns: int) -> None:
        kind = np.zeros(n_columns, dtype=bool)
        kind[list(numeric)] = True
        starts = [0, *(np.flatnonzero(np.diff(kind)) + 1).tolist()]
        stops = [*starts[1:], n_columns]
        plan = [
            (f"f{start}", np.float64 if kind[start] else object, (stop - start,)) for start, stop in zip(starts, stops)
        ]
        #: Of each column, where its field begins.
        self.first = np.repeat(starts, np.subtract(stops, starts))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # "input contained no data": we say so ourselves
            self.rows: NDArray[Any] = np.loadtxt(
                file, dtype=plan, delimiter=delimiter, comments=None, quotechar='"', ndmin=1
            )

    def column(self, k: int) -> NDArray[Any]:
        """The cells of a column, top to bottom."""
        first = int(self.first[k])
        cells: NDArray[Any] = self.rows[f"f{first}"][:, k - first]
        return cells

    def table(self, columns: Sequence[int]) -> NDArray[np.float64]:
        """The columns, in this order, side by side."""
        first = int(self.first[columns[0]])
        together = self.rows[f"f{first}"]
        if list(columns) == list(range(first, first + together.shape[1])):
            return np.ascontiguousarray(together)
        table = np.empty((len(self.rows), len(columns)))
        for at, k in enumerate(columns):
            table[:, at] = self.column(k)
        return table


def _raise_bad_cell(
    path: str, file: IO[str], delimiter: str, header: list[str], columns: list[int], label: int | None
) -> None:
    """Search the text again, slowly, for the first bad cell and say where it is."""
    file.seek(0)
    reader = csv.reader(file, delimiter=delimiter)
    next(reader)
    needed = sorted({*columns} if label is None else {*columns, label})
    line = reader.line_num + 1
    for row in reader:
        if row and len(row) != len(header):
            at = min(len(row), len(header)) + 1
            raise InputError(f"{path}:{line}:{at}: this line has {len(row)} cells but the header has {len(header)}.")
        for k in needed if row else ():
            text = row[k].strip()
            if not text:
                raise InputError(f"{path}:{line}:{k + 1}: column {header[k]!r} is empty; fill it in or drop the line.")
            if k != label and not _is_number(text):
                labels = "" if label is not None else labels_are_in(header[k])
                raise InputError(
                    f"{path}:{line}:{k + 1}: column {header[k]!r} holds {text[:40]!r}, which is not a number; mend it, "
                    f"{labels}or say which columns are classes with classes (--classes)."
                )
        line = reader.line_num + 1


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def _typed(path: str, name: str, cells: NDArray[Any] | Sequence[str]) -> NDArray[Any]:
    """Return cells as integers if all are written as such, as floats if all are like 3.0, and as text otherwise."""
    plain = [unescaped(cell.strip()) for cell in cells]
    check_texts(path, f"texts in column {name!r}", plain, os.path.getsize(path) if os.path.exists(path) else 0)
    texts = np.array(plain, dtype=np.str_)
    numbers = whole_numbers(texts)
    if numbers is not None:
        return numbers
    if np.char.endswith(texts, ".0").all() and all(map(_is_number, texts)):
        return texts.astype(np.float64)
    return texts
