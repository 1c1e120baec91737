"""Reader of csv and tsv files with a header.

The table of logits or probabilities has either one column per class, or a single column whose cells
hold lists of numbers.
"""

from __future__ import annotations

import contextlib
import csv
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metacal.errors import FileContentError, NoRowsError, NumberError
from metacal.io.column_selection import select_columns
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
        selection = select_columns(request, header.column_names, header.list_column_names)
        required_label_column = None
        if not request.table_is_score_column:
            required_label_column = selection.column_of_role.get("labels")
        cells = _Cells(
            path=path,
            file=file,
            column_names=header.column_names,
            delimiter=header.delimiter,
            number_column_indices=selection.class_column_positions or (),
            label_column_name=required_label_column,
        )
        if request.table_is_score_column:
            score_column_name = selection.table_column_names[0]
            table: Any = _parse_scores(cells.column(score_column_name))
            line_numbers = [line_number for line_number, _ in cells.iterate_numbered_rows()]
        elif selection.has_column_per_class:
            class_columns = [cells.column(name) for name in selection.table_column_names]
            table = np.stack(class_columns, axis=1)
        else:
            (list_column_name,) = selection.table_column_names
            table = parse_number_lists(path, list_column_name, cells.column(list_column_name))

    def read_labels_or_ids(column_name: str) -> NDArray[Any]:
        return parse_labels(path, column_name, cells.column(column_name))

    def read_kept_values(column_name: str) -> list[Any]:
        return parse_numbers_or_texts(cells.column(column_name))

    return selection.build_columns(
        table, read_labels_or_ids, read_kept_values, line_numbers=line_numbers
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
    for name, column_cells in zip(header.column_names, zip(*first_rows)):
        array_by_name[name] = cells_to_array(list(column_cells))
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

    list_column_names : list of str
        Names of the columns whose first cell is a list.

    delimiter : str
        Delimiter of the columns.
    """

    column_names: list[str]
    list_column_names: list[str]
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
    list_column_names = []
    for name, cell in zip(column_names, first_row):
        if cell.lstrip().startswith(("[", "(")):
            list_column_names.append(name)
    # Move back to the first line below the header, which may span several lines.
    file.seek(0)
    next(csv.reader(file, delimiter=delimiter))
    return Header(
        column_names=column_names, list_column_names=list_column_names, delimiter=delimiter
    )


class _CellField(NamedTuple):
    """Field of a structured dtype, for consecutive columns of one type.

    Attributes
    ----------
    name : str
        Name of the field: "f" and the index of its first column.

    cell_type : type
        `np.float64` for columns of numbers, `object` for columns of text.

    shape : tuple of int
        Number of columns.
    """

    name: str
    cell_type: type
    shape: tuple[int]


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

    column_names : sequence of str
        Column names of the header.

    delimiter : str
        Delimiter of the columns.

    number_column_indices : sequence of int
        Indices of the columns that are parsed as numbers.

    label_column_name : str or None
        Name of the label column, in which no cell may be empty.
    """

    def __init__(
        self,
        *,
        path: str,
        file: IO[str],
        column_names: Sequence[str],
        delimiter: str,
        number_column_indices: Sequence[int],
        label_column_name: str | None,
    ) -> None:
        self.path = path
        self.file = file
        self.column_names = column_names
        self.delimiter = delimiter
        self.number_column_indices = number_column_indices
        self.label_column_name = label_column_name
        self._index_of_column = {name: index for index, name in enumerate(column_names)}

        is_number_column = np.zeros(len(column_names), dtype=bool)
        is_number_column[list(number_column_indices)] = True
        # Consecutive columns of the same kind share one field of the dtype.
        later_field_starts = np.flatnonzero(np.diff(is_number_column)) + 1
        field_starts = [0, *later_field_starts.tolist()]
        field_stops = [*field_starts[1:], len(column_names)]
        field_lengths = np.subtract(field_stops, field_starts)
        #: Index of the first column of the field to which each column belongs.
        self._field_start_of_column = np.repeat(field_starts, field_lengths)
        cell_fields = []
        for start, stop in zip(field_starts, field_stops):
            cell_type = np.float64 if is_number_column[start] else object
            cell_fields.append(_CellField(f"f{start}", cell_type, (stop - start,)))
        self._cells_of_field = self._parse_fields(cell_fields)

        if label_column_name is not None and not all(
            map(str.strip, self.column(label_column_name))
        ):
            self._raise_for_invalid_cell()

    def column(self, name: str) -> NDArray[Any]:
        """Return the cells of a column."""
        column_index = self._index_of_column[name]
        field_start = int(self._field_start_of_column[column_index])
        return self._cells_of_field[f"f{field_start}"][:, column_index - field_start]

    def iterate_numbered_rows(self) -> Iterator[tuple[int, list[str]]]:
        """Reread the rows below the header, and yield line numbers and cells."""
        self.file.seek(0)
        reader = csv.reader(self.file, delimiter=self.delimiter)
        next(reader)
        line_number = reader.line_num + 1
        for row in reader:
            if row:
                yield line_number, row
            line_number = reader.line_num + 1

    def _load_records(self, cell_fields: list[_CellField]) -> NDArray[np.void]:
        """Load the rest of the file into a structured array with the given fields."""
        with warnings.catch_warnings():
            # loadtxt warns about missing rows, which are reported when the header is read.
            warnings.simplefilter("ignore", UserWarning)
            return np.loadtxt(
                self.file,
                dtype=np.dtype(cell_fields),
                delimiter=self.delimiter,
                comments=None,
                quotechar='"',
                ndmin=1,
            )

    def _parse_fields(self, cell_fields: list[_CellField]) -> Mapping[str, NDArray[Any]]:
        """Parse the rest of the file into one 2-D array per field, keyed by field name."""
        try:
            records = self._load_records(cell_fields)
        except ValueError as error:
            localized_cells = self._parse_localized_fields(cell_fields)
            if localized_cells is not None:
                return localized_cells
            self._raise_for_invalid_cell()
            message = " ".join(str(error).split())[:_MAX_PARSER_MESSAGE].rstrip(".")
            raise FileContentError(f"{self.path}: {message}.") from None
        return {cell_field.name: records[cell_field.name] for cell_field in cell_fields}

    def _parse_localized_fields(
        self, cell_fields: list[_CellField]
    ) -> dict[str, NDArray[Any]] | None:
        """Parse numbers with decimal commas or percent signs.

        Returns
        -------
        dict of str to array, or None
            The cells of each field, keyed by field name. None if some cells are no such numbers.
        """
        self.file.seek(0)
        next(csv.reader(self.file, delimiter=self.delimiter))
        text_fields = [cell_field._replace(cell_type=object) for cell_field in cell_fields]
        try:
            text_records = self._load_records(text_fields)
        except ValueError:
            return None
        cells_of_field: dict[str, NDArray[Any]] = {}
        for cell_field in cell_fields:
            texts = text_records[cell_field.name]
            if cell_field.cell_type is object:
                cells_of_field[cell_field.name] = texts
                continue
            number_columns = []
            for column_texts in texts.T:
                numbers = parse_localized_numbers(column_texts)
                if numbers is None or np.isnan(numbers).any():
                    return None
                number_columns.append(numbers)
            cells_of_field[cell_field.name] = np.stack(number_columns, axis=1)
        return cells_of_field

    def _raise_for_invalid_cell(self) -> None:
        """Raise InputError for the first invalid cell, with its line and column number.

        The cells of the columns of numbers must be numbers. The cells of the label column must not be
        empty.
        """
        required_column_indices = set(self.number_column_indices)
        if self.label_column_name is not None:
            required_column_indices.add(self._index_of_column[self.label_column_name])

        n_columns = len(self.column_names)
        for line_number, row in self.iterate_numbered_rows():
            if len(row) != n_columns:
                column_number = min(len(row), n_columns) + 1
                raise FileContentError(
                    f"{self.path}:{line_number}:{column_number}: the line has {len(row)} cells,"
                    f" but the header has {n_columns}."
                )
            for column_index in sorted(required_column_indices):
                self._check_required_cell(line_number, column_index, row[column_index].strip())

    def _check_required_cell(self, line_number: int, column_index: int, text: str) -> None:
        """Raise InputError if a required cell is empty or has no valid number."""
        column_name = self.column_names[column_index]
        cell_position = f"{self.path}:{line_number}:{column_index + 1}: column {column_name!r}"
        if not text:
            raise NumberError(f"{cell_position} is empty. Fill in the cell, or drop the line.")
        if column_name != self.label_column_name and not is_number(text):
            label_hint = ""
            if self.label_column_name is None:
                label_hint = advise_on_label_column(column_name)
            raise NumberError(
                f"{cell_position} must be a number, but it is {text[:_MAX_QUOTED]!r}. Correct the"
                f" cell, {label_hint}or list the class columns with {format_option('classes')}."
            )
