"""Reading of a stream of rows as text, line by line: csv, tsv or JSON lines.

Columns are found as in a file of predictions. A cell may be empty, and an entry may be missing:

- A row without a label is a row whose label is not known yet.
- A line without numbers but with an id and a label gives the *late label* of an earlier row.

Every record is on a line of its own, except for the items of a list: the score key `fields[*].score`
reads a record from each element of the list `fields`.
"""

from __future__ import annotations

import csv
import math
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from metacal.display import format_names
from metacal.errors import FileContentError, InputError
from metacal.io.formats.item_lists import find_item_list_key, iterate_items
from metacal.io.formats.jsonl import (
    LineError,
    add_requested_entries,
    list_keys_named_by_request,
    parse_json_line,
)
from metacal.io.formats.text_cells import DELIMITER_NAMES, detect_delimiter, split_line
from metacal.io.request import DEFAULT_ID_NAMES, REQUEST_FIELD_OF_ROLE, Request
from metacal.io.stream_cells import (
    build_invalid_line_error,
    convert_cells_to_floats,
    parse_group,
    parse_identifier,
    parse_list,
    parse_score_value,
)
from metacal.io.stream_columns import (
    has_same_classes,
    map_names_to_cells,
    optional_cell,
    strip_line_start,
)
from metacal.io.stream_layout import StreamLayout, determine_layout
from metacal.rows.score_columns import compare_answers
from metacal.spelling import format_option

#: Supported formats of streams.
STREAM_FORMATS = ("csv", "tsv", "jsonl", "ndjson")
#: Delimiters of the stream formats that have a header.
_DELIMITERS = {"csv": ",", "tsv": "\t"}


class StreamRecord(NamedTuple):
    """Content of one line.

    Attributes
    ----------
    row : tuple of float or None
        Numbers of the row. None for a late label.

    label : object
        Label, or None. For a cascade with a flag per model, a tuple of flags.

    id : str or None
        Id of the row.

    probability : float or None
        Probability with which the row was sampled for labelling.

    group : str or None
        Group of the row.

    unit : str or None
        Cluster of the row, or its case if the promise is about cases.
    """

    row: tuple[float, ...] | None
    label: Any
    id: str | None
    probability: float | None
    group: str | None
    unit: str | None = None


@dataclass
class StreamReader:
    """Parser of the lines of a stream.

    Attributes
    ----------
    request : Request
        Description of the wanted columns: a table of classes, or scores. A cascade has several
        scores.

    stream_format : str
        Format of the stream, one of `STREAM_FORMATS`.

    probability_key : str or None
        Name of the sampling probability.

    header : list of str or None
        Names of the columns. For JSON lines, the names of the entries of the first object with a
        row. Pass `header` and `list_names` to continue in the middle of a file.

    list_names : list of str
        Names in the header whose values are lists.

    Examples
    --------
    >>> reader = StreamReader(Request("a.csv"), "csv", probability_key="p")
    >>> lines = [b"id,cat,dog,label,p", b"a,2.5,-1,,0.5", b"", b"b,0.5,3,dog,1", b"a,,,cat,"]
    >>> records = [reader.parse_line(number, line) for number, line in enumerate(lines, start=1)]
    >>> records[1].row, records[1].label, records[3].label
    ((2.5, -1.0), None, 'dog')
    >>> records[4].row, records[4].id, records[4].label  # a late label
    (None, 'a', 'cat')
    >>> StreamReader(Request("a.jsonl"), "jsonl").parse_line(1, b'{"id": 7, "label": "cat"}')[:3]
    (None, 'cat', '7')
    """

    request: Request
    stream_format: str
    probability_key: str | None = None
    header: list[str] | None = None
    list_names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._delimiter = _DELIMITERS.get(self.stream_format)
        self._knows_delimiter = False
        self._layout = StreamLayout()
        if self.header is not None:
            self._layout = self._determine_layout(self.header, self.list_names)

    def parse_records(self, line_number: int, content: bytes) -> list[StreamRecord]:
        """Parse one line into one record, or into one record per listed item.

        If the items have no id of their own, the id of an item is that of the line with the position
        of the item, such as "7[0]". A later line with the same id and list may have their labels.

        Parameters
        ----------
        line_number, content
            See `parse_line`.

        Returns
        -------
        list of StreamRecord
            A record for each item, or one record if the line has no list of items. Empty for a header
            and for a blank line.

        Raises
        ------
        LineError, HeaderError
            See `parse_line`.

        Examples
        --------
        >>> request = Request("a.jsonl", logits_key="fields[*].score", case_key="id", table_is_score_column=True)
        >>> reader = StreamReader(request, "jsonl")
        >>> records = reader.parse_records(1, b'{"id": 7, "fields": [{"score": 0.9}, {"score": 0.2}]}')
        >>> [(record.row, record.id, record.unit) for record in records]
        [((0.9,), '7[0]', '7'), ((0.2,), '7[1]', '7')]
        """
        is_json = self._delimiter is None
        item_list_key = None
        if is_json and self.request.table_is_score_column:
            score_key = self.request.logits_key
            item_list_key = find_item_list_key(score_key)
        is_blank_line = not content.strip(b"\0 \t\r\n")
        if item_list_key is None or is_blank_line:
            record = self.parse_line(line_number, content)
            return [] if record is None else [record]

        json_object = self._parse_json_line(line_number, content)
        items = self._list_items(json_object, item_list_key, line_number, content)
        if item_list_key not in json_object:
            return [self._parse_json_object(json_object)]
        records = [self._parse_json_object(item) for item in items]
        id_key = self.request.id_key
        has_id_per_item = id_key is not None and find_item_list_key(id_key) == item_list_key
        if has_id_per_item:
            return records
        return _append_positions_to_ids(records)

    def _list_items(
        self, json_object: dict[str, Any], item_list_key: str, line_number: int, content: bytes
    ) -> list[dict[str, Any]]:
        """List the items of a JSON object, each with the entries outside the list."""
        # The position of a line is not unique if files rotate, so its content is part of the name.
        line_name = f"{self.request.path}:{line_number}:{zlib.crc32(content):08x}"
        requested_keys = list_keys_named_by_request(self.request)
        try:
            return list(iterate_items(json_object, item_list_key, requested_keys, line_name))
        except InputError as error:
            raise LineError(self.request.path, line_number, str(error)) from None

    def parse_line(self, line_number: int, content: bytes) -> StreamRecord | None:
        """Parse one line.

        Parameters
        ----------
        line_number : int
            Line number. Number 1 is the beginning of another file.

        content : bytes
            Content of the line.

        Returns
        -------
        StreamRecord or None
            None for a header and for a blank line.

        Raises
        ------
        LineError
            If the line cannot be parsed.
        HeaderError
            If the columns of the header are not suitable.
        """
        content = strip_line_start(line_number, content)
        if not content.strip():
            return None
        if self._delimiter is None:
            return self._parse_json_object(self._parse_json_line(line_number, content))
        return self._parse_delimited_line(line_number, self._split_cells(content))

    def _parse_json_line(self, line_number: int, content: bytes) -> dict[str, Any]:
        """Parse a line of JSON, and add its requested nested entries."""
        content = strip_line_start(line_number, content)
        json_object = parse_json_line(self.request.path, line_number, content)
        return add_requested_entries(self.request, line_number, json_object, self.probability_key)

    def _parse_delimited_line(self, line_number: int, cells: list[str]) -> StreamRecord | None:
        """Convert a line of csv or tsv to a record, or use it as the header."""
        is_first_line = line_number == 1
        if is_first_line and cells == self.header:
            return None
        if self.header is None:
            self._adopt_header(cells)
            return None
        if is_first_line and not self._looks_like_row(cells, self.header):
            self._adopt_header(cells)
            return None
        if len(cells) != len(self.header):
            raise build_invalid_line_error(
                f"this line has {len(cells)} cells, but the header has {len(self.header)}"
            )
        return self._build_record(map_names_to_cells(self.header, cells))

    def _adopt_header(self, cells: list[str]) -> None:
        """Use the cells of a line as the header of the following lines.

        In a later file the header must have the same classes. Otherwise any broken first line would
        be taken for a header.
        """
        if self.header is None and cells[0].startswith("{"):
            raise FileContentError(
                f"{self.request.path}: the file looks like JSON, but it is read as"
                f" {self.stream_format}. Pass {format_option('format', 'jsonl')}."
            )
        layout = self._determine_layout(column_names=cells, list_names=[])
        is_later_header = self.header is not None
        if is_later_header and not has_same_classes(
            layout.table_column_names,
            previous_column_names=self._layout.table_column_names,
            class_names=self.request.classes or (),
        ):
            raise build_invalid_line_error(
                f"this line is neither a row nor a header with the columns {format_names(cells)}"
            )
        self._layout = layout
        self.header = cells

    def _looks_like_row(self, cells: list[str], header: list[str]) -> bool:
        """Check whether the first line of a later file is a row, not a header."""
        if len(cells) != len(header):
            return False
        try:
            self._parse_row(map_names_to_cells(header, cells), score_may_be_missing=False)
        except InputError:
            return False
        return set(cells) != set(header)

    def _split_cells(self, content: bytes) -> list[str]:
        """Split a line of csv or tsv into its cells."""
        try:
            line = content.decode("utf-8")
            if not self._knows_delimiter:
                self._delimiter = self._find_delimiter(line, str(self._delimiter))
                self._knows_delimiter = True
            return split_line(line, str(self._delimiter))
        except UnicodeDecodeError:
            raise build_invalid_line_error(
                "this line is not UTF-8 text; save the file as UTF-8"
            ) from None
        except (csv.Error, ValueError):
            raise build_invalid_line_error(
                f"this line is not valid {self.stream_format}; fix its quotes"
            ) from None

    def _find_delimiter(self, line: str, default_delimiter: str) -> str:
        """Return the delimiter of the header, or of a row in the middle of a file."""
        if self.header is None:
            return detect_delimiter(line, default_delimiter)
        for delimiter in (default_delimiter, *DELIMITER_NAMES):
            with suppress(csv.Error, ValueError):
                cells = split_line(line, delimiter)
                if cells == self.header or self._looks_like_row(cells, self.header):
                    return delimiter
        return default_delimiter

    def _parse_json_object(self, cells: dict[str, Any]) -> StreamRecord:
        """Parse a JSON object. The first one with a row determines the layout."""
        if self.header is None:
            self._adopt_layout_of_json_object(cells)
        record = self._build_record(cells)
        is_late_label = record.id is not None and record.label is not None
        if self.header is None and not is_late_label:
            raise build_invalid_line_error(
                "this object holds neither a row nor an id with a label; it has"
                f" {format_names(cells)}"
            )
        return record

    def _adopt_layout_of_json_object(self, cells: dict[str, Any]) -> None:
        """Set the header and the layout from a JSON object, unless the object has no row.

        An object without a row may be the late label of an earlier row. The layout is then
        determined by the next object that has one.
        """
        list_names = [name for name, value in cells.items() if isinstance(value, list)]
        may_have_row = bool(list_names) or self.request.logits_key in cells
        layout = StreamLayout()
        try:
            layout = self._determine_layout(column_names=list(cells), list_names=list_names)
        except InputError:
            if may_have_row:
                raise
        has_row = bool(layout.table_column_names)
        if has_row:
            self._layout = layout
            self.header = list(cells)
            self.list_names = list_names

    def _find_label(self, cells: dict[str, Any]) -> Any:
        """Return the label of a line, or None.

        For predictions that are compared with labels, return whether they are equal. For a cascade
        with a column of correctness per model, return a tuple with the flag of each model.
        """
        request = self.request
        label = self._find_value(cells, "labels", request.default_label_names)
        if request.prediction_key is not None and label is not None:
            label = self._compare_with_prediction(cells, label)
        is_correct_by_model = tuple(cells.get(name) for name in request.correctness_columns)
        if any(is_correct is not None for is_correct in is_correct_by_model):
            return is_correct_by_model
        return label

    def _build_record(self, cells: dict[str, Any]) -> StreamRecord:
        """Convert the cells of a line, keyed by column name, to a record."""
        request = self.request
        label = self._find_label(cells)
        row_id = parse_identifier("id", self._find_value(cells, "ids", DEFAULT_ID_NAMES))
        may_be_late_label = label is not None and row_id is not None
        return StreamRecord(
            row=self._parse_row(cells, score_may_be_missing=not may_be_late_label),
            label=label,
            id=row_id,
            probability=self._parse_probability(cells),
            group=parse_group(optional_cell(cells, request.group_key)),
            unit=self._parse_unit(cells),
        )

    def _parse_unit(self, cells: dict[str, Any]) -> str | None:
        """Return the cluster id of a row, or its case id if the promise is about cases."""
        if self.request.case_key is not None:
            return parse_identifier("case", optional_cell(cells, self.request.case_key))
        return parse_identifier("unit", optional_cell(cells, self.request.unit_key))

    def _compare_with_prediction(self, cells: dict[str, Any], label: Any) -> bool:
        """Return whether the prediction of a line equals its label."""
        prediction = optional_cell(cells, self.request.prediction_key)
        if prediction is None:
            raise build_invalid_line_error(
                "the label cannot be compared with a prediction, because"
                f" {self.request.prediction_key!r} is missing"
            )
        return bool(compare_answers([prediction], [label])[0])

    def _parse_probability(self, cells: dict[str, Any]) -> float | None:
        """Return the sampling probability of a row, or None if it is not given."""
        if self.probability_key is None:
            return None
        cell = cells.get(self.probability_key)
        if cell is None:
            return None
        return convert_cells_to_floats((self.probability_key,), [cell])[0]

    def _find_value(self, cells: dict[str, Any], role: str, default_names: tuple[str, ...]) -> Any:
        """Return the label or the id of a line, or None.

        In JSON lines the object that determined the layout may lack a label or an id that later
        objects have under a default name.
        """
        name = self._layout.column_of_role.get(
            role, getattr(self.request, REQUEST_FIELD_OF_ROLE[role])
        )
        if name is None and self._delimiter is None:
            for default_name in default_names:
                if default_name in cells and default_name not in self._layout.table_column_names:
                    return cells[default_name]
        return optional_cell(cells, name)

    def _determine_layout(self, column_names: list[str], list_names: list[str]) -> StreamLayout:
        """Determine the meaning of the columns. Raise HeaderError if that is not possible."""
        return determine_layout(
            self.request,
            column_names,
            list_names,
            has_header_line=self._delimiter is not None,
            probability_key=self.probability_key,
        )

    def _parse_row(
        self, cells: dict[str, Any], *, score_may_be_missing: bool
    ) -> tuple[float, ...] | None:
        """Return the numbers of a row, or None if the line holds no row.

        Parameters
        ----------
        cells : dict
            Cells of the line, keyed by column name.

        score_may_be_missing : bool
            Whether a line of scores without a score is a row with a missing score, which is NaN
            here and is rejected later. Otherwise it holds no row: a line with an id and a label
            but no score is the late label of an earlier row.

        Returns
        -------
        tuple of float or None
        """
        request = self.request
        number_columns = self._layout.table_column_names
        row_values = [cells.get(name) for name in number_columns]
        if all(value is None for value in row_values):
            if request.table_is_score_column and number_columns and score_may_be_missing:
                return (math.nan,) * len(number_columns)
            return None

        if self._layout.is_list_column:
            list_column = number_columns[0]
            row_values = parse_list(request.path, list_column, row_values[0])
            number_columns = (list_column,) * len(row_values)
        if request.table_is_score_column:
            row_values = [parse_score_value(value) for value in row_values]
        numbers = convert_cells_to_floats(number_columns, row_values)
        numbers = self._add_number_of_first_class(numbers)
        n_classes = len(request.classes or ())
        if n_classes and len(numbers) != n_classes:
            raise build_invalid_line_error(
                f"this row has {len(numbers)} numbers, but the gate was fitted on {n_classes}"
                " classes"
            )
        return numbers

    def _add_number_of_first_class(self, numbers: tuple[float, ...]) -> tuple[float, ...]:
        """Add the number of the first class if a row has only that of the second."""
        request = self.request
        has_two_classes = len(request.classes or ()) == 2
        is_single_score = len(numbers) == 1 and request.accepts_as_single_score(
            self._layout.table_column_names
        )
        if not has_two_classes or not is_single_score:
            return numbers
        if request.input == "probabilities":
            return 1.0 - numbers[0], numbers[0]
        return 0.0, numbers[0]


def _append_positions_to_ids(records: list[StreamRecord]) -> list[StreamRecord]:
    """Append the position in the line to the id of each record, as in "7[0]"."""
    renamed_records = []
    for position, record in enumerate(records):
        if record.id is None:
            renamed_records.append(record)
        else:
            renamed_records.append(record._replace(id=f"{record.id}[{position}]"))
    return renamed_records
