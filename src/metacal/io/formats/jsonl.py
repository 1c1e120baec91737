"""Reader and writer of JSON Lines: one JSON object per line.

The logits of a row are either one list or one entry per class. The first line determines which
entries are read. A dotted key such as `judge.score` refers to an entry of a nested object, see
`metacal.io.nested`. Blank lines are skipped. NaN and Infinity are accepted as numbers when reading,
because Python's json module writes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import FileContentError, InputError, LabelError, NoRowsError, NumberError
from metacal.formulas import Float
from metacal.io.artifact.messages import describe_json, object_without_duplicates
from metacal.io.column_selection import ColumnSelection, select_columns
from metacal.io.columns import Columns
from metacal.io.formats.first_rows import FirstRows, cells_to_array
from metacal.io.formats.item_lists import expand_item_lists, find_item_list_key, iterate_items
from metacal.io.nested import add_nested_entries
from metacal.io.opening import build_uneven_row_error, check_text_array_size
from metacal.io.request import REQUEST_FIELD_OF_ROLE, Request
from metacal.io.responses import find_response_entries
from metacal.spelling import format_option

#: Maximum number of bytes in a line, which bounds the memory of a file without line breaks.
MAX_LINE_BYTES = 1 << 26
#: Largest number of characters of a key, and of the message of the JSON parser, in an error.
_MAX_SHOWN_KEY = 80
_MAX_PARSER_MESSAGE = 120

_UTF8_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

# All lines share a decoder, because json.loads would create one per line.
_DECODER = json.JSONDecoder(object_pairs_hook=object_without_duplicates)

# dtype of an array of labels or ids, by the Python type of its JSON values.
_LABEL_DTYPES: dict[type, Any] = {
    bool: np.bool_,
    int: np.int64,
    float: np.float64,
    str: np.str_,
}


def read(request: Request) -> Columns:
    """Read the requested entries of a JSON Lines file.

    Parameters
    ----------
    request : Request
        Entries to read.

    Returns
    -------
    Columns

    Raises
    ------
    NoRowsError
        If there are no rows.

    InputError
        If a line is not a JSON object, or an entry is missing or invalid.
    """
    entries = _read_entries(request)
    if request.table_is_score_column:
        return _build_score_columns(entries)

    selection = entries.selection
    if selection.has_column_per_class:
        class_columns = [
            entries.convert_number_column(name) for name in selection.table_column_names
        ]
        table = np.column_stack(class_columns)
    else:
        (list_column_name,) = selection.table_column_names
        table = entries.convert_list_column(list_column_name)
    return selection.build_columns(
        table,
        read_array=entries.convert_label_column,
        read_kept_values=entries.values_by_name.__getitem__,
    )


def _build_score_columns(entries: _Entries) -> Columns:
    """Return the columns of a file of scores.

    Scores, labels and predictions keep their JSON types, because their texts and truth values are
    converted later. All other columns are converted here.
    """
    selection = entries.selection
    score_column_name = selection.table_column_names[0]
    unconverted_names = [
        selection.column_of_role.get("labels"),
        selection.column_of_role.get("predictions"),
    ]

    def read_array(column_name: str) -> NDArray[Any]:
        if column_name in unconverted_names:
            return _convert_to_object_array(entries.values_by_name[column_name])
        return entries.convert_label_column(column_name)

    return selection.build_columns(
        _convert_to_object_array(entries.values_by_name[score_column_name]),
        read_array=read_array,
        read_kept_values=entries.values_by_name.__getitem__,
        line_numbers=entries.line_numbers,
    )


def read_first_rows(request: Request, max_rows: int) -> FirstRows:
    """Read the first objects of a JSON lines file.

    Entries of nested objects become columns. If each object has a list of scored items, each item
    becomes a row.
    """
    with open(request.path_to_open, "rb") as file:
        numbered_objects = islice(iterate_objects(request.path, file), max_rows)
        objects = [_flatten_object(item) for _, item in numbered_objects]
    first_rows = expand_item_lists(objects)[:max_rows]
    distinct_names = dict.fromkeys(name for row in first_rows for name in row)
    array_by_name = {}
    for name in distinct_names:
        array_by_name[name] = cells_to_array([row.get(name) for row in first_rows])
    return FirstRows("JSON, an object for each row", array_by_name)


def _flatten_object(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of nested objects, keyed by their paths.

    For a response of a language model, add the mean log-probability of its tokens and its text.
    """
    row = dict(_iterate_leaves(item))
    for name in list(row):
        if name.rpartition(".")[2] == "choices":
            row.update(find_response_entries(item, name.removesuffix("choices")))
    return row


def _iterate_leaves(item: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of each innermost entry of a JSON object.

    The path of a nested entry is written as in "a.b".
    """
    for name, value in item.items():
        if isinstance(value, Mapping):
            yield from _iterate_leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _read_entries(request: Request) -> _Entries:
    """Read the requested entries of all lines, with None for missing entries."""
    selection: ColumnSelection | None = None
    values_by_name: dict[str, list[Any]] = {}
    line_numbers = []
    with open(request.path_to_open, "rb") as file:
        for line_number, row in _iterate_rows(request, file):
            if selection is None:
                list_names = [name for name, value in row.items() if isinstance(value, list)]
                selection = select_columns(request, list(row), list_names)
                values_by_name = {name: [] for name in selection.all_column_names}
            line_numbers.append(line_number)
            for name, values in values_by_name.items():
                values.append(row.get(name))
    if selection is None:
        raise NoRowsError(
            f"{request.path}: the file has no rows. At least one row is required, as a JSON"
            " object on one line."
        )
    return _Entries(
        path=request.path,
        selection=selection,
        values_by_name=values_by_name,
        line_numbers=line_numbers,
    )


def _iterate_rows(request: Request, file: IO[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the line number and the entries of each row of a file.

    A row is a line of the file. If the score belongs to items, as `fields[*].score` does, a row is
    an item of the list `fields` in a line.
    """
    list_key = None
    if request.table_is_score_column:
        score_key = request.logits_key
        list_key = find_item_list_key(score_key)
    for line_number, json_object in iterate_objects(request.path, file):
        row = add_requested_entries(request, line_number, json_object)
        has_line_score = request.logits_key in json_object
        if list_key is None or has_line_score:
            yield line_number, row
            continue
        try:
            line_name = f"{request.path}:{line_number}"
            for item in iterate_items(
                row, list_key, list_keys_named_by_request(request), line_name
            ):
                yield line_number, item
        except InputError as error:
            raise LineError(request.path, line_number, str(error)) from None


def _convert_to_object_array(values: Sequence[Any]) -> NDArray[Any]:
    """Convert values to a 1-D array of objects, with each list as one element."""
    return np.fromiter(values, dtype=object, count=len(values))


def iterate_objects(path: str, file: IO[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Iterate over the line numbers and JSON objects of a file.

    Parameters
    ----------
    path : str
        File name used in error messages.

    file : binary stream
        File to read.

    Yields
    ------
    line_number : int
        Number of the line, starting with 1.

    json_object : dict

    Raises
    ------
    InputError
        If a line is too long or is not a JSON object.
    """
    line_number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        line_number += 1
        if len(line) > MAX_LINE_BYTES:
            raise FileContentError(
                f"{path}:{line_number}: the line has more than {MAX_LINE_BYTES >> 20} MB. Write"
                " each row as one JSON object on its own line."
            )
        if line_number == 1:
            line = line.removeprefix(_UTF8_BYTE_ORDER_MARK)
        if line.strip():
            yield line_number, parse_json_line(path, line_number, line)


def add_requested_entries(
    request: Request, line_number: int, row: dict[str, Any], *extra_keys: str | None
) -> dict[str, Any]:
    """Add the nested entries that the requested keys refer to.

    Parameters
    ----------
    request : Request
        Requested keys.

    line_number : int
        Line number used in the error message.

    row : dict
        JSON object of the line.

    *extra_keys : str or None
        Further keys.

    Returns
    -------
    dict
        The entries of `row` and the nested entries by their dotted key.

    Raises
    ------
    LineError
        If a dotted key leads to an unsupported value.
    """
    try:
        return add_nested_entries(row, [*list_keys_named_by_request(request), *extra_keys])
    except InputError as error:
        raise LineError(request.path, line_number, str(error).removesuffix(".")) from None


def list_keys_named_by_request(request: Request) -> list[str | None]:
    """Return the keys of the entries to read, with None for keys not given."""
    role_keys = [getattr(request, field_name) for field_name in REQUEST_FIELD_OF_ROLE.values()]
    return [
        request.logits_key,
        *role_keys,
        *request.kept_names,
        *request.later_score_columns,
        *request.correctness_columns,
    ]


class LineError(FileContentError):
    """Error about a line that cannot be read.

    Parameters
    ----------
    path : str
        File name.

    line_number : int
        Line number.

    reason : str
        Description of the problem, without a full stop.
    """

    def __init__(self, path: str, number: int, reason: str) -> None:
        super().__init__(f"{path}:{number}: {reason}.")
        self.reason = reason


def parse_json_line(path: str, line_number: int, line: bytes) -> dict[str, Any]:
    """Parse a line that contains one JSON object.

    Parameters
    ----------
    path : str
        File name used in the error message.

    line_number : int
        Line number used in the error message.

    line : bytes
        Content of the line.

    Returns
    -------
    dict

    Raises
    ------
    LineError
        If the line is not a JSON object.
    """
    try:
        text = line.decode(json.detect_encoding(line), "surrogatepass")
        parsed_value = _DECODER.decode(text)
        if isinstance(parsed_value, dict):
            return parsed_value
        hint = ""
        if isinstance(parsed_value, list):
            hint = "; an array of objects becomes lines by jq -c '.[]' FILE"
        reason = f"this line is {describe_json(parsed_value)}, not an object such as {{...}}{hint}"
    except UnicodeDecodeError:
        reason = "this line is not UTF-8 text; save the file as UTF-8"
    except KeyError as error:
        reason = f"the entry {str(error.args[0])[:_MAX_SHOWN_KEY]!r} occurs twice; keep one"
    except RecursionError:
        reason = "this line is nested too deeply; write each value as a plain number or string"
    except ValueError as error:
        parser_message = " ".join(str(error).split())[:_MAX_PARSER_MESSAGE]
        reason = (
            f"this line is not one complete JSON object ({parser_message}); write one object"
            " per line (for example with jq -c '.' FILE)"
        )
    raise LineError(path, line_number, reason)


@dataclass(frozen=True)
class _Entries:
    """Requested entries of all lines of a file.

    Attributes
    ----------
    path : str
        File name used in error messages.

    selection : ColumnSelection
        Names of the requested entries.

    values_by_name : dict of str to list
        Values of each entry, one per row. None if the row lacks the entry.

    line_numbers : list of int
        Line number of each row.
    """

    path: str
    selection: ColumnSelection
    values_by_name: dict[str, list[Any]]
    line_numbers: list[int]

    def convert_list_column(self, name: str) -> Float:
        """Convert an entry that holds lists of numbers to an array, one row per list."""
        lists = self.values_by_name[name]
        first_length = len(lists[0])
        for line_number, row in zip(self.line_numbers, lists):
            if not isinstance(row, list):
                raise NumberError(
                    f"{self.path}:{line_number}: the entry {name!r} must be a list of numbers,"
                    f" but it is {describe_json(row)}."
                )
            if len(row) != first_length:
                entry_text = f"{self.path}:{line_number}: the entry {name!r}"
                raise build_uneven_row_error(entry_text, len(row), first_length)
            for value in row:
                if not _is_number(value):
                    raise NumberError(
                        f"{self.path}:{line_number}: the entry {name!r} must hold only numbers,"
                        f" but it holds {describe_json(value)}."
                    )
        return self._convert_to_float_array(lists)

    def convert_number_column(self, name: str) -> Float:
        """Convert an entry that holds numbers to an array."""
        column_values = self.values_by_name[name]
        for line_number, value in zip(self.line_numbers, column_values):
            if _is_number(value):
                continue
            problem = f"is {describe_json(value)}, which is not a number"
            if value is None:
                problem = "is missing or null"
            raise NumberError(
                f"{self.path}:{line_number}: the entry {name!r} {problem}. Correct the entry, or"
                f" list the class entries with {format_option('classes')}."
            )
        return self._convert_to_float_array(column_values)

    def convert_label_column(self, name: str) -> NDArray[Any]:
        """Convert labels or ids, which must all have the same type, to an array."""
        column_values = self.values_by_name[name]
        self._check_label_types(name, column_values)
        label_type = type(column_values[0])
        if label_type is str:
            n_characters = sum(map(len, column_values))
            check_text_array_size(self.path, f"texts in {name!r}", column_values, n_characters)
        try:
            return np.array(column_values, dtype=_LABEL_DTYPES[label_type])
        except OverflowError:
            raise LabelError(
                f"{self.path}: {name!r} holds a number that does not fit into 64 bits. Write such"
                " ids as strings."
            ) from None

    def _check_label_types(self, name: str, values: Sequence[Any]) -> None:
        """Raise InputError unless all labels or ids have the same supported type."""
        first_value = values[0]
        for line_number, value in zip(self.line_numbers, values):
            if type(value) not in _LABEL_DTYPES:
                problem = "is missing or null" if value is None else f"is {describe_json(value)}"
                raise LabelError(
                    f"{self.path}:{line_number}: {name!r} {problem}, but labels and ids must be"
                    " numbers or strings, one per row."
                )
            if type(value) is not type(first_value):
                raise LabelError(
                    f"{self.path}:{line_number}: {name!r} is {describe_json(value)}, but in the"
                    f" first row it is {describe_json(first_value)}. Write all values as numbers,"
                    " or write all as strings."
                )

    def _convert_to_float_array(self, values: list[Any]) -> Float:
        """Convert checked numbers to an array of float64."""
        try:
            return np.array(values, dtype=np.float64)
        except OverflowError:
            raise NumberError(
                f"{self.path}: an integer is too large for a logit. Write it as a floating-point"
                " number, such as 1e30."
            ) from None


def _is_number(value: Any) -> bool:
    """Check whether a JSON value is a number; a boolean is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)
