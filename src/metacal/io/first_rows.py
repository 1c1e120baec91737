"""First rows of a file of any format, used to guess the meaning of its columns."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.io.formats.delimited import open_text, read_header
from metacal.io.formats.feather import ArrowFile
from metacal.io.formats.jsonl import iterate_objects
from metacal.io.formats.parquet import ParquetFile
from metacal.io.predictions import read_predictions
from metacal.io.request import Request
from metacal.io.source_file import SourceFile, open_source

#: Maximum number of rows to read.
_MAX_ROWS = 2000
_DELIMITER_NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}


@dataclass(frozen=True)
class FirstRows:
    """First rows of a file.

    Attributes
    ----------
    description : str
        Kind of the file in words.

    columns : dict of str to array
        First rows of each column.
    """

    description: str
    columns: dict[str, NDArray[Any]]


def read_first_rows(path: str, format: str | None) -> FirstRows:
    """Read the first rows of a file of any format.

    Parameters
    ----------
    path : str
        File to read.

    format : str or None
        File format, for example "csv". None if the file determines it.

    Returns
    -------
    FirstRows
    """
    with open_source(Request(path, format=format)) as source_file:
        read_format = _READERS.get(source_file.suffix, _read_arrow)
        return read_format(source_file)


def _read_delimited(source_file: SourceFile) -> FirstRows:
    """Read the first rows of delimited text."""
    request = source_file.request
    delimiter = ","
    if source_file.suffix == ".tsv":
        delimiter = "\t"
    with open_text(request.path, request.path_to_open) as file:
        header = read_header(request.path, file, default_delimiter=delimiter)
        nonempty_rows = (row for row in csv.reader(file, delimiter=header.delimiter) if row)
        rows = list(islice(nonempty_rows, _MAX_ROWS))

    columns = {}
    for name, cells in zip(header.column_names, zip(*rows)):
        columns[name] = _to_array(list(cells))
    compression = _compression_prefix(source_file)
    delimiter_name = _DELIMITER_NAMES[header.delimiter]
    return FirstRows(f"{compression}text, columns separated by {delimiter_name}", columns)


def _read_json_lines(source_file: SourceFile) -> FirstRows:
    """Read the first objects of a JSON lines file.

    Entries of nested objects become columns.
    """
    request = source_file.request
    with open(request.path_to_open, "rb") as file:
        numbered_objects = islice(iterate_objects(request.path, file), _MAX_ROWS)
        rows = [dict(_flatten(item)) for _, item in numbered_objects]

    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: _to_array([row.get(name) for row in rows]) for name in names}
    compression = _compression_prefix(source_file)
    return FirstRows(f"{compression}JSON, an object for each row", columns)


def _read_npz(source_file: SourceFile) -> FirstRows:
    """Read the first rows of the arrays in an .npz file, leaving out scalars."""
    columns = {}
    with np.load(source_file.request.path_to_open, allow_pickle=False) as archive:
        for name in archive.files:
            array = archive[name]
            if array.ndim:
                columns[name] = array[:_MAX_ROWS]
    return FirstRows("NumPy arrays", columns)


def _read_npy(source_file: SourceFile) -> FirstRows:
    """Read the first rows of an .npy file: a table, or records with named fields."""
    array = np.load(source_file.request.path_to_open, mmap_mode="r", allow_pickle=False)[:_MAX_ROWS]
    field_names = array.dtype.names
    columns = {"logits": array}
    if field_names is not None:
        columns = {name: array[name] for name in field_names}
    return FirstRows("a NumPy array", columns)


def _read_tensors(source_file: SourceFile) -> FirstRows:
    """Read the first rows of a safetensors or torch file with the default names."""
    predictions = read_predictions(source_file.request.path_to_open)
    columns = {"logits": np.asarray(predictions.table)[:_MAX_ROWS]}
    if predictions.labels is not None:
        columns["labels"] = predictions.labels[:_MAX_ROWS]
    return FirstRows(f"tensors ({source_file.suffix[1:]})", columns)


def _read_parquet(source_file: SourceFile) -> FirstRows:
    """Read the first rows of a Parquet file."""
    return _read_record_batches(ParquetFile(source_file.request))


def _read_arrow(source_file: SourceFile) -> FirstRows:
    """Read the first rows of an Arrow or Feather file."""
    return _read_record_batches(ArrowFile(source_file.request))


def _read_record_batches(file: ParquetFile | ArrowFile) -> FirstRows:
    """Read the first record batch of a file."""
    columns = {}
    first_batch = next(iter(file.iterate_batches(file.schema.names, _MAX_ROWS)), None)
    if first_batch is not None:
        for name, values in first_batch.slice(0, _MAX_ROWS).to_pydict().items():
            columns[name] = _to_array(values)
    return FirstRows(file.kind, columns)


_READERS: dict[str, Callable[[SourceFile], FirstRows]] = {
    ".csv": _read_delimited,
    ".tsv": _read_delimited,
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".npz": _read_npz,
    ".npy": _read_npy,
    ".safetensors": _read_tensors,
    ".pt": _read_tensors,
    ".pth": _read_tensors,
    ".parquet": _read_parquet,
    ".pq": _read_parquet,
}


def _compression_prefix(source_file: SourceFile) -> str:
    """Return the word that describes the compression of a file, or an empty string."""
    if source_file.is_compressed:
        return "compressed "
    return ""


def _flatten(item: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the entries of an object.

    The key of a nested entry is its path, as in "a.b".
    """
    for name, value in item.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _to_array(values: list[Any]) -> NDArray[Any]:
    """Convert cells to an array of integers, floats, rows of floats, or texts.

    Missing cells become NaN, or an empty text.
    """
    cells = [_parse_list(value) for value in values]
    is_missing = [cell is None or cell == "" for cell in cells]
    has_float_or_list = any(isinstance(cell, float | list) for cell in cells)
    number_types: list[Any] = [np.float64]
    if not has_float_or_list and not any(is_missing):
        number_types = [np.int64, np.float64]

    for number_type in number_types:
        with suppress(ValueError, TypeError, OverflowError):
            numbers = [np.nan if cell in (None, "") else cell for cell in cells]
            return np.array(numbers, dtype=number_type)
    return np.array(["" if cell is None else str(cell) for cell in cells])


def _parse_list(value: Any) -> Any:
    """Parse a cell that holds a list in the notation of JSON or NumPy.

    Other cells are returned unchanged.
    """
    if not isinstance(value, str) or not value.strip().startswith("["):
        return value
    try:
        return [
            float(number_text)
            for number_text in value.strip().strip("[]").replace(",", " ").split()
        ]
    except ValueError:
        return value
