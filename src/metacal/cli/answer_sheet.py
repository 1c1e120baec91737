"""File format of the answer sheet that people fill in for `metacal label`.

The sheet is csv or tsv, so that any spreadsheet opens it. A sheet that comes back may be separated
by semicolons and may have a byte order mark, lines in another order, empty lines, or additional
columns. Only the row number of each line must stay.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from metacal.errors import LabellingError
from metacal.io.formats.text_cells import unescape_formula

#: Names of the columns of an answer sheet that hold the row number, the id and the prediction.
ROW, ID, PREDICTION = "row", "id", "prediction"


@dataclass(frozen=True)
class SheetSettings:
    """Settings of the answer sheet, which the first round fixes for all rounds.

    Attributes
    ----------
    shown_column : str or None, default=None
        Column of the pool that the sheet shows.
    shows_prediction : bool, default=False
        Whether the sheet shows the prediction of each row.
    batch_size : int or None, default=None
        Number of rows in the sheet. None selects the default of the certifier.
    """

    shown_column: str | None = None
    shows_prediction: bool = False
    batch_size: int | None = None

    @classmethod
    def from_dict(cls, stored_settings: Mapping[str, Any]) -> SheetSettings:
        """Read the settings from the first record of a journal. Missing ones get the default."""
        return cls(
            shown_column=stored_settings.get("show"),
            shows_prediction=stored_settings.get("show_prediction", False),
            batch_size=stored_settings.get("batch"),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as the journal stores them."""
        return {
            "show": self.shown_column,
            "show_prediction": self.shows_prediction,
            "batch": self.batch_size,
        }


@dataclass(frozen=True)
class AnswerLine:
    """Line of a sheet that has an answer.

    Attributes
    ----------
    line_number : int
        Number of the line in the file, from 1.
    row_index : int
        Index of the row in the pool.
    cell_by_column : mapping of str to str
        All cells of the line, keyed by column name.
    answer_text : str
        Content of the answer cell.
    """

    line_number: int
    row_index: int
    cell_by_column: Mapping[str, str]
    answer_text: str


def read_answer_lines(path: str, content: bytes, answer_column: str) -> list[AnswerLine]:
    """Parse a sheet and return the lines that have an answer.

    Parameters
    ----------
    path : str
        Name of the sheet in messages.
    content : bytes
        Content of the sheet.
    answer_column : str
        Name of the column to fill in.

    Returns
    -------
    list of AnswerLine

    Raises
    ------
    InputError
        If the sheet cannot be read. The message names the line.
    """
    cell_lines = _split_cells(path, content)
    if not cell_lines:
        raise LabellingError(
            f"{path}: the file is empty. Delete the file, and the next call writes it again."
        )
    column_names = [name.strip().lower() for name in cell_lines[0]]
    for name in (ROW, answer_column):
        if column_names.count(name) != 1:
            raise LabellingError(
                f"{path}:1: exactly one column must be named {name!r}, but the header has"
                f" {', '.join(map(repr, column_names[:10]))}. Restore the original header."
            )
    return _parse_lines(path, column_names, cell_lines[1:], answer_column)


def _split_cells(path: str, content: bytes) -> list[list[str]]:
    """Split a sheet into lines of cells, detecting the delimiter."""
    try:
        sheet_text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise LabellingError(
            f"{path}: the file is not UTF-8 text. Save it as CSV in UTF-8."
        ) from None
    # Some spreadsheets end lines with a single carriage return; newline=None translates it.
    text_file = io.StringIO(sheet_text, newline=None)
    delimiter = max(",;\t", key=text_file.readline().count)
    text_file.seek(0)
    try:
        return list(csv.reader(text_file, delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise LabellingError(
            f"{path}: the file is not {delimiter!r}-separated text ({error}). Save it as CSV."
        ) from None


def _parse_lines(
    path: str, column_names: Sequence[str], lines: list[list[str]], answer_column: str
) -> list[AnswerLine]:
    """Check each line below the header, and return those that have an answer.

    Parameters
    ----------
    path : str
        Name of the sheet in messages.
    column_names : sequence of str
        Names of the columns.
    lines : list of lists of str
        Cells of each line below the header.
    answer_column : str
        Name of the column to fill in.

    Returns
    -------
    list of AnswerLine
    """
    answer_lines = []
    line_number_by_row: dict[int, int] = {}
    first_line_below_header = 2
    for line_number, cells in enumerate(lines, start=first_line_below_header):
        is_empty_line = not any(cell.strip() for cell in cells)
        if is_empty_line:
            continue
        if len(cells) != len(column_names):
            raise LabellingError(
                f"{path}:{line_number}: the line has {len(cells)} cells, but the header has"
                f" {len(column_names)}. Correct the line."
            )
        cell_by_column = {}
        for column_name, cell in zip(column_names, cells):
            cell_by_column[column_name] = unescape_formula(cell.strip())
        try:
            row_index = int(strip_zero_decimals(cell_by_column[ROW]))
        except ValueError:
            raise LabellingError(
                f"{path}:{line_number}: the row number must be an integer, but got"
                f" {cell_by_column[ROW]!r}. Restore the original column."
            ) from None
        if row_index in line_number_by_row:
            raise LabellingError(
                f"{path}:{line_number}: row {row_index} occurs twice, first in line"
                f" {line_number_by_row[row_index]}. Remove one of the two lines."
            )
        line_number_by_row[row_index] = line_number
        answer_text = cell_by_column[answer_column]
        if answer_text:
            answer_lines.append(AnswerLine(line_number, row_index, cell_by_column, answer_text))
    return answer_lines


def strip_zero_decimals(cell: str) -> str:
    """Remove zero decimals, which pandas writes if a column has empty cells.

    Examples
    --------
    >>> strip_zero_decimals("7.0"), strip_zero_decimals("7.5"), strip_zero_decimals("cat")
    ('7', '7.5', 'cat')
    """
    integer_part, _, decimals = cell.partition(".")
    if integer_part.isdecimal() and decimals.strip("0") == "":
        return integer_part
    return cell
