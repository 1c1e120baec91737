"""Reader of files with only labels, one per line or in a column of a table."""

from __future__ import annotations

import csv
from typing import Any

from numpy.typing import NDArray

from metacal.errors import ColumnError, FileContentError
from metacal.io.formats.delimited import open_text
from metacal.io.formats.text_cells import parse_labels
from metacal.io.named_columns import find_requested_column
from metacal.io.request import DEFAULT_LABEL_NAMES, Request
from metacal.spelling import format_option


def read_labels(request: Request, name_suffix: str) -> NDArray[Any]:
    """Read labels from lines of text, or from the label column of a table.

    Parameters
    ----------
    request : Request
        File to read and, optionally, the name of the label column.

    name_suffix : {".txt", ".csv", ".tsv"}
        File name extension. A .txt file has one label per line.

    Returns
    -------
    array of shape (n_rows,)

    Raises
    ------
    InputError
        If a label is missing, or the label column is ambiguous.
    """
    path = request.path
    label_rows = _read_label_rows(request, name_suffix)
    first_row = []
    if label_rows:
        first_row = [cell.strip() for cell in label_rows[0]]
    label_column = find_requested_column(
        request, first_row, request_field="label_key", default_names=DEFAULT_LABEL_NAMES
    )
    if label_column is None and len(first_row) > 1:
        raise ColumnError(
            f"{path}:1: several columns may hold the labels. Name one of them with"
            f" {format_option('label_key')}."
        )

    n_header_lines = 0
    column_index = 0
    if label_column is not None:
        n_header_lines = 1
        column_index = first_row.index(label_column)

    labels = []
    for line_number, row in enumerate(label_rows[n_header_lines:], start=n_header_lines + 1):
        label = ""
        if column_index < len(row):
            label = row[column_index].strip()
        if not label:
            raise FileContentError(
                f"{path}:{line_number}:{column_index + 1}: the label is missing. Fill in the"
                " label, or drop the row from all files."
            )
        labels.append(label)
    return parse_labels(path, label_column or "label", labels)


def _read_label_rows(request: Request, name_suffix: str) -> list[list[str]]:
    """Read the rows of a label file without the empty rows at its end."""
    with open_text(request.path, request.path_to_open) as file:
        if name_suffix == ".txt":
            label_rows = [[line.strip()] for line in file]
        else:
            delimiter = "\t" if name_suffix == ".tsv" else ","
            label_rows = list(csv.reader(file, delimiter=delimiter))
    while label_rows and not any(label_rows[-1]):
        label_rows.pop()
    return label_rows
