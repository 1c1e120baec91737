"""Delimited text: csv and tsv with a header, and lists with one label per line.

Text that a spreadsheet would take for a formula is written so that it does not, and read back. A
class called `=HYPERLINK(...)` in a csv becomes a formula when somebody opens the file. A text cell
that begins with one of `=+-@`, with their full-width forms, or with a tab or a line break gets an
apostrophe in front, as spreadsheets themselves write it
(https://owasp.org/www-community/attacks/CSV_Injection). Numbers stay numbers. Reading takes one
apostrophe away where such a character follows it; a text that looks escaped already gets one more,
so that every text comes back as it was.
"""

from __future__ import annotations

import contextlib
import csv
import os
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError, option
from metacal.io.column_selection import Picked, pick_columns
from metacal.io.columns import Columns
from metacal.io.named_columns import labels_are_in, one_of
from metacal.io.opening import SAVE_AS_NPZ, NoRowsError, check_texts, uneven
from metacal.io.request import LABEL_KEYS, ClassNames, Request
from metacal.rows.labels import is_whole

_FORMULA_BEGINS = "=+-@\t\r\n＝＋－＠"
#: Cells turned into text in one go.
_BLOCK_CELLS = 1 << 17


def read(request: Request, delimiter: str = ",") -> Columns:
    """Read a table with a header, a column per class or one column of lists; or a column of
    scores.
    """
    path, lines = request.path, None
    with text_in(path, request.source) as file:
        header, lists, delimiter = header_of(path, file, delimiter)
        picked = pick_columns(request, header, lists)
        cells = _Cells(request, picked, file, delimiter, header)
        first = cells.column(picked.table[0])
        if request.scores:
            table: Any = np.fromiter(map(_score, first), dtype=object, count=len(first))
            lines = [line for line, _ in cells.lines()]
        elif picked.places is None:
            table = lists_of_numbers(path, picked.table[0], first)
        else:
            table = np.stack([*map(cells.column, picked.table)], axis=1)
    typed = lambda name: _typed(path, name, cells.column(name))  # noqa: E731
    return picked.columns(table, typed, lambda name: _values(cells.column(name)), lines=lines)


read_tabs = partial(read, delimiter="\t")


@contextlib.contextmanager
def text_in(path: str, source: str) -> Iterator[IO[str]]:
    """The text of a file, from its beginning; InputError where it is none, or no table."""
    try:
        with open(source, encoding="utf-8-sig", newline="") as file:
            yield file
    except UnicodeDecodeError:
        raise InputError(
            f"{path}: this is not UTF-8 text; save it as UTF-8, or {SAVE_AS_NPZ}."
        ) from None
    except csv.Error as error:
        raise InputError(f"{path}: this is not text in columns ({error}).") from None


def delimiter_of(file: IO[str], usual: str = ",") -> str:
    """What separates the columns: the usual mark where the header has it, else the one that stands
    there most often.

    Examples
    --------
    >>> import io
    >>> delimiter_of(io.StringIO("cat;dog;label")), delimiter_of(io.StringIO("cat,dog;s,label"))
    (';', ',')
    """
    header = file.readline()
    file.seek(0)
    return usual if usual in header else max((usual, ",", ";", "\t", "|"), key=header.count)


def _values(cells: NDArray[Any]) -> list[Any]:
    """Numbers, None where a cell is empty; all of them texts where one is neither. 007 is a
    text.
    """
    texts = [unescaped(cell.strip()) for cell in cells]
    numbers = [int(text) if is_whole(text) else _score(text) for text in texts]
    padded = any(text[:1] == "0" and text.isdigit() and text != "0" for text in texts)
    return texts if padded or any(isinstance(number, str) for number in numbers) else numbers


def _score(cell: str) -> Any:
    """The number that a cell holds, None where it is empty, and the text itself where it is no
    number.
    """
    text = cell.strip()
    return float(text) if is_number(text) else text or None


def header_of(path: str, file: IO[str], usual: str) -> tuple[list[str], list[str], str]:
    """The names of the columns, those whose first cell is a list, and what separates them; the rows
    are still there.
    """
    delimiter = delimiter_of(file, usual)
    reader = csv.reader(file, delimiter=delimiter)
    header = [unescaped(name.strip()) for name in next(reader, [])]
    if not header:
        raise InputError(f"{path}: there is no header; the first line must name the columns.")
    counted = header == [str(k) for k in range(len(header))]
    if not counted and all(map(is_number, header)):
        raise InputError(
            f"{path}:1: the first line holds numbers; put a line with the names of the columns"
            " first."
        )
    first = next((row for row in reader if row), None)
    if first is None:
        raise NoRowsError(f"{path}: it holds no rows; give at least one.")
    file.seek(0)
    next(csv.reader(file, delimiter=delimiter))
    return (
        header,
        [name for name, cell in zip(header, first) if cell.lstrip()[:1] in ("[", "(")],
        delimiter,
    )


class _Cells:
    """The cells below the header, parsed in one pass of NumPy's own reader: 1e6 x 10 cells in about
    4 s, where csv and float() take 5 to 8. Neighbours of one kind are one field: a field per column
    takes time quadratic in columns.
    """

    def __init__(
        self, request: Request, picked: Picked, file: IO[str], delimiter: str, header: list[str]
    ) -> None:
        self.path, self.file, self.delimiter, self.header = request.path, file, delimiter, header
        self.place = {name: k for k, name in enumerate(header)}
        self.places, self.label = (
            picked.places or (),
            None if request.scores else picked.beside.get("labels"),
        )
        kind = np.zeros(len(header), dtype=bool)
        kind[list(self.places)] = True
        starts = [0, *(np.flatnonzero(np.diff(kind)) + 1).tolist()]
        stops = [*starts[1:], len(header)]
        plan = [
            (f"f{start}", np.float64 if kind[start] else object, (stop - start,))
            for start, stop in zip(starts, stops)
        ]
        #: Of each column, where its field begins.
        self.first = np.repeat(starts, np.subtract(stops, starts))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore", UserWarning
                )  # "input contained no data": we say so ourselves
                self.rows: NDArray[Any] = np.loadtxt(
                    file, dtype=plan, delimiter=delimiter, comments=None, quotechar='"', ndmin=1
                )
        except ValueError as error:
            self._raise_bad_cell()
            raise InputError(
                f"{self.path}: {' '.join(str(error).split())[:200].rstrip('.')}."
            ) from None
        if self.label is not None and not all(map(str.strip, self.column(self.label))):
            self._raise_bad_cell()

    def column(self, name: str) -> NDArray[Any]:
        """The cells of a column, top to bottom."""
        first = int(self.first[self.place[name]])
        return self.rows[f"f{first}"][:, self.place[name] - first]

    def lines(self) -> Iterator[tuple[int, list[str]]]:
        """Every row below the header once more, slowly, with the number of its line."""
        self.file.seek(0)
        reader = csv.reader(self.file, delimiter=self.delimiter)
        next(reader)
        line = reader.line_num + 1
        for row in reader:
            if row:
                yield line, row
            line = reader.line_num + 1

    def _raise_bad_cell(self) -> None:
        """Search for the first bad cell and say where it is."""
        path, header = self.path, self.header
        needed = sorted({*self.places, *(() if self.label is None else (self.place[self.label],))})
        for line, row in self.lines():
            if len(row) != len(header):
                at = min(len(row), len(header)) + 1
                raise InputError(
                    f"{path}:{line}:{at}: this line has {len(row)} cells but the header has"
                    f" {len(header)}."
                )
            for k in needed:
                text, cell = row[k].strip(), f"{path}:{line}:{k + 1}: column {header[k]!r}"
                if not text:
                    raise InputError(f"{cell} is empty; fill it in or drop the line.")
                if header[k] != self.label and not is_number(text):
                    labels = "" if self.label is not None else labels_are_in(header[k])
                    raise InputError(
                        f"{cell} holds {text[:40]!r}, which is not a number; mend it, {labels}or"
                        f" say which columns are classes with {option('classes')}."
                    )


def lists_of_numbers(
    path: str, name: str, cells: Sequence[str] | NDArray[Any]
) -> NDArray[np.float64]:
    """Parse cells such as "[0.1, 2.3]", or "[0.1 2.3]" as NumPy prints them, all of one length.

    Examples
    --------
    >>> lists_of_numbers("a.csv", "logits", ["[0.5, 2]", "[1 -inf]"])
    array([[ 0.5,  2. ], [ 1. , -inf]])
    """
    plain = [" ".join(cell.strip().strip("[]()").replace(",", " ").splitlines()) for cell in cells]
    with contextlib.suppress(ValueError, UserWarning), warnings.catch_warnings(action="error"):
        numbers = np.loadtxt(plain, comments=None, ndmin=2)
        if len(numbers) == len(plain):  # an empty one is left out
            return numbers
    width = len(plain[0].split())
    for row, cell in enumerate(plain):
        words = cell.split()
        bad = next((word for word in words if not is_number(word)), None)
        if bad is not None:
            cut = (
                " (NumPy cuts long arrays when it prints them: write a column per class)"
                if "..." in bad
                else ""
            )
            raise InputError(
                f"{path}: row {row} of column {name!r} holds {bad[:40]!r}, which is not a"
                f" number{cut}."
            )
        if len(words) != width:
            raise uneven(f"{path}: row {row} of column {name!r}", len(words), width)
    raise InputError(
        f"{path}: column {name!r} cannot be read as lists of numbers; write a column per class."
    )


def line_cells(line: str, delimiter: str) -> list[str]:
    """The cells of one line, or csv.Error.

    Examples
    --------
    >>> line_cells("a, b ,'=1", ",")
    ['a', 'b', '=1']
    """
    (cells,) = csv.reader([line], delimiter=delimiter, strict=True)
    return [unescaped(cell.strip()) for cell in cells]


def read_labels(request: Request, ending: str) -> NDArray[Any]:
    """Read one label per line, or the column of labels of a table with a header."""
    path, delimiter = request.path, "\t" if ending == ".tsv" else ","
    with text_in(path, request.source) as file:
        lines = (
            [[line.strip()] for line in file]
            if ending == ".txt"
            else [*csv.reader(file, delimiter=delimiter)]
        )
    while lines and not any(lines[-1]):
        lines.pop()
    header = [name.strip() for name in lines[0]] if lines else []
    named = one_of(request, header, "label_key", LABEL_KEYS)
    if named is None and len(header) > 1:
        raise InputError(
            f"{path}:1: which column holds the labels? Say so with {option('label_key')}."
        )
    column = 0 if named is None else header.index(named)
    texts = [row[column].strip() if column < len(row) else "" for row in lines[named is not None :]]
    if "" in texts:
        line = texts.index("") + 1 + (named is not None)
        raise InputError(
            f"{path}:{line}:{column + 1}: the label is missing; fill it in or drop the row"
            " everywhere."
        )
    return _typed(path, header[column] if named else "label", texts)


def is_number(text: str) -> bool:
    """Whether float() takes it, and it is written as numbers are."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def _typed(path: str, name: str, cells: NDArray[Any] | Sequence[str]) -> NDArray[Any]:
    """Return cells as integers if all are written as such, as floats if all are like 3.0, and as
    text otherwise.
    """
    plain = [unescaped(cell.strip()) for cell in cells]
    check_texts(
        path,
        f"texts in column {name!r}",
        plain,
        os.path.getsize(path) if os.path.exists(path) else 0,
    )
    texts = np.array(plain, dtype=np.str_)
    with contextlib.suppress(ValueError, OverflowError):
        numbers = texts.astype(np.int64)
        if np.array_equal(numbers.astype(np.str_), texts):  # 007 is a name, not a number
            return numbers
    if np.char.endswith(texts, ".0").all() and all(map(is_number, texts)):
        return texts.astype(np.float64)
    return texts


def _looks_like_one(text: str) -> bool:
    return text.lstrip("'")[:1] in _FORMULA_BEGINS and text.strip("'") != ""


def escaped(text: str) -> str:
    """Return the text as a cell that no spreadsheet runs.

    Examples
    --------
    >>> escaped("=1+1"), escaped("-0.5"), escaped("cat"), escaped("'=1+1")
    ("'=1+1", '-0.5', 'cat', "''=1+1")
    """
    if not _looks_like_one(text) or (text[:1] in "+-" and is_number(text) and text.strip() == text):
        return text
    return f"'{text}"


def unescaped(text: str) -> str:
    """Return the text that `escaped` was given.

    Examples
    --------
    >>> unescaped("'=1+1"), unescaped("''=1+1"), unescaped("'tis"), unescaped("-0.5")
    ('=1+1', "'=1+1", "'tis", '-0.5')
    """
    return text[1:] if text.startswith("'") and _looks_like_one(text) else text


class TextWriter:
    """Rows as lines of text, to a file of their own or to a stream that stays open."""

    def __init__(
        self, target: Path | IO[str], class_names: ClassNames | None, n_rows: int, compress: bool
    ) -> None:
        self.owned, self.class_names, self.begun = isinstance(target, Path), class_names, False
        self.file = (
            target.open("w", encoding="utf-8", newline="") if isinstance(target, Path) else target
        )

    def write(self, columns: dict[str, NDArray[Any]]) -> None:
        """Add rows."""
        flat = self.flat(columns)
        step = max(1, _BLOCK_CELLS // len(flat))
        for start in range(0, max(1, len(next(iter(flat.values())))), step):
            self.write_block({name: values[start : start + step] for name, values in flat.items()})
            self.begun = True

    def write_block(self, columns: dict[str, NDArray[Any]]) -> None:
        """Add a few rows."""
        raise NotImplementedError

    def close(self) -> None:
        """Flush, and close what was opened for this."""
        self.file.flush()
        if self.owned:
            self.file.close()

    def flat(self, columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Columns of one entry a row: a 2-D `probs` becomes `probs_0` …, or `probs_cat` … where
        classes have names.
        """
        flat: dict[str, NDArray[Any]] = {}
        for name, array in columns.items():
            ends = (
                [""]
                if array.ndim == 1
                else [f"_{end}" for end in self.class_names or range(array.shape[1])]
            )
            for end, values in zip(ends, np.atleast_2d(array.T)):
                if name + end in flat:
                    raise InputError(
                        f"two columns would be called {name + end!r}; rename one of them."
                    )
                flat[name + end] = values
        return flat


class DelimitedWriter(TextWriter):
    """Text with a header; what a spreadsheet would run as a formula is escaped."""

    delimiter = ","

    def write_block(self, columns: dict[str, NDArray[Any]]) -> None:
        """Add a few rows."""
        writer = csv.writer(self.file, delimiter=self.delimiter, lineterminator="\n")
        if not self.begun:
            writer.writerow(map(escaped, columns))
        writer.writerows(zip(*map(_texts, columns.values())))


class TabsWriter(DelimitedWriter):
    """The same, separated by tabs."""

    delimiter = "\t"


def _texts(values: NDArray[Any]) -> list[Any]:
    if values.dtype.kind == "b":
        return ["true" if value else "false" for value in values]
    # float16 and float32 keep their own shortest digits: 0.1, not 0.10000000149011612.
    if values.dtype.kind == "f" and values.dtype.itemsize < 8:
        return list(map(str, values))
    texts: list[Any] = values.tolist()
    return list(map(escaped, texts)) if values.dtype.kind in "UO" else texts
