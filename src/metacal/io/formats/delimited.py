"""Reader of csv and tsv files with a header.

The table of logits or probabilities has either one column per class, or a single column whose cells
hold lists of numbers.
"""

from __future__ import annotations

import contextlib
import csv
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import FileContentError, NoRowsError, NumberError
from metacal.io.column_selection import ColumnSelection, select_columns
from metacal.io.columns import Columns
from metacal.io.formats.first_rows import FirstRows, cells_to_array
from metacal.io.formats.text_cells import (
    DELIMITER_NAMES,
    detect_delimiter,
    is_number,
    parse_labels,
    parse_localized_numbers,
    parse_number_lists,
    parse_number_or_text,
    parse_numbers_or_texts,
    unescape_formula,
)
from metacal.io.named_columns import advise_on_label_column
from metacal.io.opening import SAVE_AS_NPZ_ADVICE
from metacal.io.request import Request
from metacal.spelling import format_option

# Maximum number of characters that an error message quotes from a cell or a parser.
_MAX_QUOTED = 40
_MAX_PARSER_MESSAGE = 200


def read(request: Request, delimiter: str = ",") -> Columns:
    """Read the requested columns of a csv file.

    Parameters
    ----------
    request : Request
        Columns to read.

    delimiter : str, default=","
        Usual delimiter of the format. Another one is detected from the header.

    Returns
    -------
    Columns

    Raises
    ------
    InputError
        If the file is not a table in UTF-8, or a requested column is missing or invalid.
    """
    path = request.path
    line_numbers = None
    with open_text(path, request.path_to_open) as file:
        header = read_header(path, file, default_delimiter=delimiter)
        selection = select_columns(request, header.column_names, header.list_columns)
        cells = _parse_cells(request, selection, file, header)
        first_cells = cells.column(selection.table_names[0])
        if request.reads_scores:
            table: Any = _parse_scores(first_cells)
            line_numbers = [line_number for line_number, _ in cells.iterate_numbered_rows()]
        elif selection.has_column_per_class:
            table = np.stack([cells.column(name) for name in selection.table_names], axis=1)
        else:
            table = parse_number_lists(path, selection.table_names[0], first_cells)

    def read_labels_or_ids(name: str) -> NDArray[Any]:
        return parse_labels(path, name, cells.column(name))

    def read_values(name: str) -> list[Any]:
        return parse_numbers_or_texts(cells.column(name))

    return selection.build_columns(
        table, read_labels_or_ids, read_values, line_numbers=line_numbers
    )


def _parse_scores(cells: NDArray[Any]) -> NDArray[Any]:
    """Convert the cells of a score column to numbers, or to texts such as 8/10."""
    scores = np.fromiter(map(parse_number_or_text, cells), dtype=object, count=len(cells))
    if not any(isinstance(score, str) for score in scores):
        return scores
    numbers = parse_localized_numbers(cells)
    return scores if numbers is None else numbers


read_tsv = partial(read, delimiter="\t")


def read_first_rows(request: Request, max_rows: int, delimiter: str = ",") -> FirstRows:
    """Read the first rows of delimited text.

    Parameters
    ----------
    request : Request
        Request for the file.

    max_rows : int
        Maximum number of rows to read.

    delimiter : str, default=","
        Delimiter that is used if the header contains it.

    Returns
    -------
    FirstRows
    """
    with open_text(request.path, request.path_to_open) as file:
        header = read_header(request.path, file, default_delimiter=delimiter)
        nonempty_rows = (row for row in csv.reader(file, delimiter=header.delimiter) if row)
        first_rows = list(islice(nonempty_rows, max_rows))

    array_by_name = {}
    for name, cells in zip(header.column_names, zip(*first_rows)):
        array_by_name[name] = cells_to_array(list(cells))
    delimiter_name = DELIMITER_NAMES[header.delimiter]
    return FirstRows(f"text, columns separated by {delimiter_name}", array_by_name)


read_first_rows_of_tsv = partial(read_first_rows, delimiter="\t")


@contextlib.contextmanager
def open_text(path: str, source: str) -> Iterator[IO[str]]:
    """Open a UTF-8 text file. Raise InputError if its content is not a table of text.

    Parameters
    ----------
    path : str
        File name used in error messages.

    source : str
        File to open.

    Yields
    ------
    text stream
    """
    try:
        with open(source, encoding="utf-8-sig", newline="") as file:
            yield file
    except UnicodeDecodeError:
        raise FileContentError(
            f"{path}: the file is not UTF-8 text. Save it as UTF-8, or {SAVE_AS_NPZ_ADVICE}."
        ) from None
    except csv.Error as error:
        raise FileContentError(
            f"{path}: the file is not text in columns ({error}). Write it again as CSV."
        ) from None


@dataclass(frozen=True)
class Header:
    """Header of delimited text.

    Attributes
    ----------
    column_names : list of str
        Names of the columns.

    list_columns : list of str
        Names of the columns whose first cell is a list.

    delimiter : str
        Delimiter of the columns.
    """

    column_names: list[str]
    list_columns: list[str]
    delimiter: str


def read_header(path: str, file: IO[str], default_delimiter: str) -> Header:
    """Read the header of delimited text, and detect the delimiter and list columns.

    Parameters
    ----------
    path : str
        File name used in error messages.

    file : text stream
        File to read. Afterwards its position is behind the header.

    default_delimiter : str
        Usual delimiter of the format.

    Returns
    -------
    Header

    Raises
    ------
    InputError
        If there is no header, or it consists of numbers other than 0, 1, 2, ...

    NoRowsError
        If there are no rows below the header.
    """
    delimiter = detect_delimiter(file.readline(), default_delimiter)
    file.seek(0)
    reader = csv.reader(file, delimiter=delimiter)
    column_names = [unescape_formula(name.strip()) for name in next(reader, [])]
    if not column_names:
        raise FileContentError(
            f"{path}: the file has no header. The first line must name the columns."
        )
    column_numbers = [str(index) for index in range(len(column_names))]
    if column_names != column_numbers and all(map(is_number, column_names)):
        raise FileContentError(
            f"{path}:1: the first line holds numbers, but it must name the columns. Add a header"
            " before it."
        )
    first_row = next((row for row in reader if row), None)
    if first_row is None:
        raise NoRowsError(f"{path}: the file has no rows. At least one row is required.")
    list_columns = []
    for name, cell in zip(column_names, first_row):
        if cell.lstrip().startswith(("[", "(")):
            list_columns.append(name)
    # Move back to the first line below the header, which may span several lines.
    file.seek(0)
    next(csv.reader(file, delimiter=delimiter))
    return Header(column_names=column_names, list_columns=list_columns, delimiter=delimiter)


def _parse_cells(
    request: Request,
    selection: ColumnSelection,
    file: IO[str],
    header: Header,
) -> _Cells:
    """Parse the cells below the header.

    Parameters
    ----------
    request : Request
        Columns to read.

    selection : ColumnSelection
        Names and positions of the requested columns.

    file : text stream
        File whose position is behind the header.

    header : Header
        Column names and delimiter.

    Returns
    -------
    _Cells
    """
    label_column = None
    if not request.reads_scores:
        label_column = selection.role_names.get("labels")
    return _Cells(
        path=request.path,
        file=file,
        header=header.column_names,
        delimiter=header.delimiter,
        class_columns=selection.class_column_positions or (),
        label_column=label_column,
    )


class _Cells:
    """Cells of a file below its header.

    They are parsed in one pass by `np.loadtxt`: 10^6 rows of 10 columns take about 4 s, while the
    csv module and float() take 5 to 8 s. Neighbouring columns of one type form one field of the
    structured dtype, because the time grows quadratically with the number of fields.

    Parameters
    ----------
    path : str
        File name used in error messages.

    file : text stream
        File whose position is behind the header.

    header : sequence of str
        Column names.

    delimiter : str
        Delimiter of the columns.

    class_columns : sequence of int
        Indices of the columns that are parsed as numbers.

    label_column : str or None
        Name of the label column, in which no cell may be empty.
    """

    def __init__(
        self,
        *,
        path: str,
        file: IO[str],
        header: Sequence[str],
        delimiter: str,
        class_columns: Sequence[int],
        label_column: str | None,
    ) -> None:
        self.path = path
        self.file = file
        self.header = header
        self.delimiter = delimiter
        self.class_columns = class_columns
        self.label_column = label_column
        self._column_index = {name: index for index, name in enumerate(header)}

        is_class_column = np.zeros(len(header), dtype=bool)
        is_class_column[list(class_columns)] = True
        # Consecutive class columns, and other consecutive columns, are one field of the dtype.
        later_field_starts = np.flatnonzero(np.diff(is_class_column)) + 1
        field_starts = [0, *later_field_starts.tolist()]
        field_stops = [*field_starts[1:], len(header)]
        field_lengths = np.subtract(field_stops, field_starts)
        #: Index of the first column of the field to which each column belongs.
        self._field_start_of_column = np.repeat(field_starts, field_lengths)
        fields = []
        for start, stop in zip(field_starts, field_stops):
            cell_type = np.float64 if is_class_column[start] else object
            fields.append((f"f{start}", cell_type, (stop - start,)))
        self.records = self._parse_fields(fields)

        if label_column is not None and not all(map(str.strip, self.column(label_column))):
            self._raise_for_invalid_cell()

    def column(self, name: str) -> NDArray[Any]:
        """Return the cells of a column."""
        column_index = self._column_index[name]
        field_start = int(self._field_start_of_column[column_index])
        return self.records[f"f{field_start}"][:, column_index - field_start]

    def iterate_numbered_rows(self) -> Iterator[tuple[int, list[str]]]:
        """Read the rows below the header again, and yield line numbers and cells."""
        self.file.seek(0)
        reader = csv.reader(self.file, delimiter=self.delimiter)
        next(reader)
        line_number = reader.line_num + 1
        for row in reader:
            if row:
                yield line_number, row
            line_number = reader.line_num + 1

    def _load_fields(self, fields: list[Any]) -> NDArray[Any]:
        """Load the rest of the file into an array with the given dtype fields."""
        with warnings.catch_warnings():
            # loadtxt warns about missing rows, which are reported when the header is read.
            warnings.simplefilter("ignore", UserWarning)
            return np.loadtxt(
                self.file,
                dtype=fields,
                delimiter=self.delimiter,
                comments=None,
                quotechar='"',
                ndmin=1,
            )

    def _parse_localized(self, fields: list[Any]) -> dict[str, NDArray[Any]] | None:
        """Parse class columns with decimal commas or percent signs; None if that fails."""
        self.file.seek(0)
        next(csv.reader(self.file, delimiter=self.delimiter))
        try:
            text_fields = [(name, object, shape) for name, _, shape in fields]
            texts = self._load_fields(text_fields)
        except ValueError:
            return None
        records: dict[str, NDArray[Any]] = {}
        for name, cell_type, _ in fields:
            records[name] = texts[name]
            if cell_type is object:
                continue
            number_columns = []
            for cell_texts in texts[name].T:
                numbers = parse_localized_numbers(cell_texts)
                if numbers is None or np.isnan(numbers).any():
                    return None
                number_columns.append(numbers)
            records[name] = np.stack(number_columns, axis=1)
        return records

    def _parse_fields(self, fields: list[Any]) -> NDArray[Any] | dict[str, NDArray[Any]]:
        """Parse the rest of the file into arrays of the given dtype fields."""
        try:
            return self._load_fields(fields)
        except ValueError as error:
            localized_records = self._parse_localized(fields)
            if localized_records is not None:
                return localized_records
            self._raise_for_invalid_cell()
            message = " ".join(str(error).split())[:_MAX_PARSER_MESSAGE].rstrip(".")
            raise FileContentError(f"{self.path}: {message}.") from None

    def _raise_for_invalid_cell(self) -> None:
        """Raise InputError for the first invalid cell, with its line and column number."""
        required_columns = set(self.class_columns)
        if self.label_column is not None:
            required_columns.add(self._column_index[self.label_column])

        n_columns = len(self.header)
        for line_number, row in self.iterate_numbered_rows():
            if len(row) != n_columns:
                column_number = min(len(row), n_columns) + 1
                raise FileContentError(
                    f"{self.path}:{line_number}:{column_number}: the line has {len(row)} cells,"
                    f" but the header has {n_columns}."
                )
            for column_index in sorted(required_columns):
                self._check_cell(line_number, column_index, row[column_index].strip())

    def _check_cell(self, line_number: int, column_index: int, text: str) -> None:
        """Raise InputError if a required cell is empty or a class column is not a number."""
        name = self.header[column_index]
        cell = f"{self.path}:{line_number}:{column_index + 1}: column {name!r}"
        if not text:
            raise NumberError(f"{cell} is empty. Fill in the cell, or drop the line.")
        if name != self.label_column and not is_number(text):
            label_hint = advise_on_label_column(name) if self.label_column is None else ""
            raise NumberError(
                f"{cell} must be a number, but it is {text[:_MAX_QUOTED]!r}. Correct the cell,"
                f" {label_hint}or list the class columns with {format_option('classes')}."
            )
