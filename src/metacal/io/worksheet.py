"""The file that goes to whoever labels: rows to label with an empty column, and the same file when it comes back.

It is csv or tsv, which every spreadsheet opens; what comes back may be separated by semicolons, have a byte order mark,
lines in another order, lines left empty, or columns of its own. What may not change is which row a line is about.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError
from metacal.io.formats.delimited import DelimitedWriter, TabsWriter, unescaped

#: The columns that say which row a line is about, and what the classifier says of it.
ROW, ID, PREDICTION = "row", "id", "prediction"


@dataclass(frozen=True)
class Line:
    """A line that has been filled in: its number in the file, the row, what it says of it, and the answer."""

    number: int
    row: int
    known: Mapping[str, str]
    answer: str


def asked_text(columns: Mapping[str, NDArray[Any]], answer: str, delimiter: str = ",") -> bytes:
    """Rows to label as the content of a file: these columns, and an empty one for the answer.

    Examples
    --------
    >>> print(asked_text({"row": np.array([7, 2]), "text": np.array(["=1", "two"])}, "label").decode())
    row,text,label
    7,'=1,
    2,two,
    <BLANKLINE>
    """
    text = io.StringIO()
    writer = TabsWriter(text) if delimiter == "\t" else DelimitedWriter(text)
    writer.write({**columns, answer: np.full(len(columns[ROW]), "")})
    return text.getvalue().encode()


def read_asked(path: str, raw: bytes, answer: str) -> list[Line]:
    """The lines of a file's content that have an answer; InputError, with the line, where one cannot be read."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: this is not UTF-8 text; save it as csv in UTF-8.") from None
    file = io.StringIO(text, newline=None)  # some spreadsheets still end lines with a carriage return alone
    delimiter = max(",;\t", key=file.readline().count)
    file.seek(0)
    try:
        lines = list(csv.reader(file, delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise InputError(f"{path}: this is not {delimiter!r}-separated text ({error}); save it as csv.") from None
    if not lines:
        raise InputError(f"{path}: it is empty; take it away, and it is written again.")
    names = [name.strip().lower() for name in lines[0]]
    for name in (ROW, answer):
        if names.count(name) != 1:
            raise InputError(
                f"{path}:1: there must be one column {name!r}, as it was written; there are "
                f"{', '.join(map(repr, names[:10]))}."
            )
    return _filled(path, names, lines[1:], answer)


def whole_number(cell: str) -> str:
    """A number without decimals that say nothing: a column with empty cells comes back from pandas as 7.0.

    Examples
    --------
    >>> whole_number("7.0"), whole_number("7.5"), whole_number("cat")
    ('7', '7.5', 'cat')
    """
    whole, _, decimals = cell.partition(".")
    return whole if whole.isdecimal() and decimals.strip("0") == "" else cell


def _filled(path: str, names: Sequence[str], lines: list[list[str]], answer: str) -> list[Line]:
    found, first = [], dict[int, int]()
    for number, cells in enumerate(lines, start=2):
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(names):
            raise InputError(f"{path}:{number}: {len(cells)} cells where the header has {len(names)}; mend the line.")
        values = {name: unescaped(cell.strip()) for name, cell in zip(names, cells)}
        try:
            row = int(whole_number(values[ROW]))
        except ValueError:
            raise InputError(
                f"{path}:{number}: the row is {values[ROW]!r}, no number; leave that column as it was."
            ) from None
        if row in first:
            raise InputError(f"{path}:{number}: row {row} stands there twice, before in line {first[row]}; keep one.")
        first[row] = number
        if values[answer]:
            found.append(Line(number, row, values, values[answer]))
    return found
