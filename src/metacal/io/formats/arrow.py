"""Reader of the requested columns from Arrow record batches.

The batches come from a Parquet file, an Arrow file or a table in memory.

Terms used in this module:

- *table*: the logits or probabilities. The table is either one list column (list, large_list or
  fixed_size_list, with lists of equal length) or one column per class.
- *side columns*: the other requested columns, such as labels and ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import FileContentError, NoRowsError, NumberError
from metacal.io.column_selection import ColumnSelection, select_columns
from metacal.io.columns import Columns
from metacal.io.formats.arrow_columns import (
    LIST_TYPES,
    NUMBER_TYPES,
    TEXT_TYPES,
    TableLayout,
    check_no_nulls,
    column_to_array,
    get_float_dtype,
    import_pyarrow,
    is_type,
    scores_to_array,
    table_to_array,
)
from metacal.io.formats.arrow_metadata import read_class_names
from metacal.io.named_columns import advise_on_label_column
from metacal.io.opening import check_unpacked_size
from metacal.io.request import Request
from metacal.rows.stored import StoredTable
from metacal.spelling import format_option

# Maximum size of a decoded batch when a whole file is read.
_BATCH_BYTES = 1 << 22
_BATCH_ROWS = 1 << 16

# Assumed size in bytes of a value of a side column or of a score.
_SIDE_COLUMN_BYTES = 8

# Minimum size in bytes of a table in memory when the unpacking limit is checked.
_MIN_IN_MEMORY_BYTES = 1 << 30

# Prefix of the columns in which pandas stores its index.
_PANDAS_INDEX_PREFIX = "__index_level_"


class BatchSource:
    """Base class of the sources of Arrow record batches.

    Parameters
    ----------
    schema : pyarrow.Schema
        Schema of the batches.

    n_rows : int
        Total number of rows.

    n_stored_bytes : int
        Size in bytes of the source before decoding. It bounds how much the source may unpack to.
    """

    kind = "a table in memory"

    def __init__(self, schema: Any, n_rows: int, n_stored_bytes: int) -> None:
        self.schema = schema
        self.n_rows = n_rows
        self.n_stored_bytes = n_stored_bytes

    def iterate_batches(self, names: Sequence[str], rows: int) -> Iterable[Any]:
        """Iterate over validated record batches of the named columns.

        Parameters
        ----------
        names : sequence of str
            Columns to read.

        rows : int
            Largest number of rows per batch. Sources with fixed batches ignore it.

        Returns
        -------
        iterable of pyarrow.RecordBatch
        """
        raise NotImplementedError

    def open_stored_table(self, layout: TableLayout) -> StoredTable | None:
        """Return a table that reads its rows on demand, or None if not supported."""
        return None


class InMemoryBatches(BatchSource):
    """Source of record batches for a table in memory.

    Parameters
    ----------
    table_like : pyarrow.Table, pyarrow.RecordBatch, polars or pandas frame, or Hugging Face dataset
        Table to read.
    """

    def __init__(self, table_like: Any) -> None:
        pa = import_pyarrow("a table in memory")
        if _is_hugging_face_dataset(table_like):
            table_like = _hugging_face_to_arrow(table_like)
        if isinstance(table_like, pa.RecordBatch):
            self.table = pa.Table.from_batches([table_like])
        else:
            self.table = pa.table(table_like)
        n_bytes = max(self.table.nbytes, _MIN_IN_MEMORY_BYTES)
        super().__init__(self.table.schema, self.table.num_rows, n_bytes)

    def iterate_batches(self, names: Sequence[str], rows: int) -> Iterable[Any]:
        """Split the named columns into record batches of at most `rows` rows."""
        return self.table.select(names).to_batches(max_chunksize=rows)


def _hugging_face_to_arrow(dataset: Any) -> Any:
    """Convert a Hugging Face dataset to an Arrow table."""
    is_dataset_dict = hasattr(dataset, "values")
    if is_dataset_dict:
        raise FileContentError(
            f"Expected one data set, but got several ({', '.join(dataset)}). Pass one of them."
        )
    return dataset.with_format("arrow")[:]


def _is_hugging_face_dataset(candidate: Any) -> bool:
    """Check whether an object is a `datasets.Dataset` or `datasets.DatasetDict`."""
    return hasattr(candidate, "with_format")


def is_table_in_memory(candidate: Any) -> bool:
    """Check whether an object is a table in memory that `InMemoryBatches` supports."""
    return hasattr(candidate, "__arrow_c_stream__") or _is_hugging_face_dataset(candidate)


def read_batches(request: Request, source: BatchSource) -> Columns:
    """Read the requested columns of a file from its record batches.

    Parameters
    ----------
    request : Request
        Columns to read. It also determines whether a large table stays in its file.

    source : Batches
        Source of the record batches.

    Returns
    -------
    Columns

    Raises
    ------
    NoRowsError
        If there are no rows.

    InputError
        If a requested column is missing, has an unsupported type or contains nulls.
    """
    path = request.path
    if source.n_rows == 0:
        raise NoRowsError(f"{path}: the file has no rows. At least one row is required.")
    selection = select_arrow_columns(request, source.schema)
    if request.table_is_score_column:
        return _read_score_columns(source, selection, path)

    layout = determine_table_layout(selection, source, path)
    stored_table = None
    if request.keeps_table_in_file(source.n_rows * layout.row_bytes):
        stored_table = source.open_stored_table(layout)
    table: NDArray[Any] | StoredTable
    if stored_table is None:
        table, side_columns = _read_table_and_side_columns(source, selection, layout, path)
    else:
        table = stored_table
        if request.keeps_other_columns:
            # All columns together may be larger than memory.
            selection = selection.without_kept_columns()
        side_columns = _read_columns(source, selection.side_column_names, path)

    class_names = None
    if layout.has_list_column:
        class_names = read_class_names(source.schema, path)
    return selection.build_columns(
        table,
        read_array=side_columns.read_array,
        read_kept_values=side_columns.read_list,
        class_names=class_names,
    )


@dataclass(frozen=True)
class _ColumnChunks:
    """Columns read from a source, as a list of record batches.

    Attributes
    ----------
    record_batches : list of pyarrow.RecordBatch
        Batches in row order.

    source : Batches
        Source of the batches.

    path : str
        File name used in error messages.
    """

    record_batches: list[Any]
    source: BatchSource
    path: str

    def read_chunks(self, name: str) -> Any:
        """Return a column as a pyarrow.ChunkedArray."""
        import pyarrow as pa

        arrow_type = self.source.schema.field(name).type
        chunks = [record_batch.column(name) for record_batch in self.record_batches]
        return pa.chunked_array(chunks, type=arrow_type)

    def read_array(self, name: str) -> NDArray[Any]:
        """Return a column of numbers or text as an array. Raise InputError for nulls."""
        return column_to_array(self.read_chunks(name), name, self.path, self.source.n_stored_bytes)

    def read_list(self, name: str) -> list[Any]:
        """Return a column as a list of Python objects, with None for nulls."""
        values: list[Any] = self.read_chunks(name).to_pylist()
        return values


def _read_score_columns(source: BatchSource, selection: ColumnSelection, path: str) -> Columns:
    """Read a column of scores and the side columns."""
    column_chunks = _read_columns(source, selection.all_column_names, path)
    score_name = selection.table_column_names[0]
    scores = scores_to_array(column_chunks.read_chunks(score_name), score_name, path)
    return selection.build_columns(
        scores, read_array=column_chunks.read_array, read_kept_values=column_chunks.read_list
    )


def _read_columns(source: BatchSource, names: Sequence[str], path: str) -> _ColumnChunks:
    """Read the side columns with the given names."""
    row_bytes = _SIDE_COLUMN_BYTES * len(names)
    check_unpacked_size(path, source.n_rows * row_bytes, source.n_stored_bytes)
    record_batches = []
    for _, record_batch in _iterate_batches(source, names, row_bytes):
        record_batches.append(record_batch.select(names))
    return _ColumnChunks(record_batches=record_batches, source=source, path=path)


def _read_table_and_side_columns(
    source: BatchSource, selection: ColumnSelection, layout: TableLayout, path: str
) -> tuple[NDArray[Any], _ColumnChunks]:
    """Read the table into an array, and the side columns into record batches.

    Parameters
    ----------
    source : Batches
        Source of the record batches.

    selection : ColumnSelection
        Names of the table and side columns.

    layout : Layout
        Layout of the table.

    path : str
        File name used in error messages.

    Returns
    -------
    table : array of shape (n_rows, n_classes)

    side_columns : _ColumnChunks
    """
    # Check the claimed size before the allocation, because a tiny file can claim a huge table.
    row_bytes = layout.row_bytes + _SIDE_COLUMN_BYTES * len(selection.side_column_names)
    check_unpacked_size(path, source.n_rows * row_bytes, source.n_stored_bytes)
    table = np.empty((source.n_rows, layout.n_classes), layout.dtype)
    side_batches = []
    for start, record_batch in _iterate_batches(source, selection.all_column_names, row_bytes):
        stop = start + record_batch.num_rows
        table[start:stop] = table_to_array(record_batch, layout, path, start)
        side_batches.append(record_batch.select(selection.side_column_names))
    return table, _ColumnChunks(record_batches=side_batches, source=source, path=path)


def _iterate_batches(
    source: BatchSource, names: Sequence[str], row_bytes: int
) -> Iterator[tuple[int, Any]]:
    """Yield each record batch with the number of its first row.

    Raise ValueError or EOFError if the number of rows differs from the one in the metadata.
    """
    if not names:
        return
    batch_rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(1, row_bytes)))
    start = 0
    for record_batch in source.iterate_batches(names, batch_rows):
        if start + record_batch.num_rows > source.n_rows:
            raise ValueError("the file holds more rows than its header states")
        yield start, record_batch
        start += record_batch.num_rows
    if start != source.n_rows:
        raise EOFError(f"the file ends at row {start} of {source.n_rows}")


def select_arrow_columns(request: Request, schema: Any) -> ColumnSelection:
    """Select the requested columns of a schema and check their types.

    Parameters
    ----------
    request : Request
        Columns to read.

    schema : pyarrow.Schema
        Schema of the table. Index columns of pandas are ignored.

    Returns
    -------
    ColumnSelection

    Raises
    ------
    InputError
        If a requested column is missing or has an unsupported type.
    """
    column_names = [name for name in schema.names if not name.startswith(_PANDAS_INDEX_PREFIX)]
    list_columns = []
    for field in schema:
        if is_type(field.type, LIST_TYPES) and is_type(field.type.value_type, NUMBER_TYPES):
            list_columns.append(field.name)

    selection = select_columns(request, column_names, list_columns)
    if selection.has_column_per_class:
        _check_class_columns(selection, schema, request.path)
    _check_side_columns(selection, schema, request.path)
    return selection


def _check_class_columns(selection: ColumnSelection, schema: Any, path: str) -> None:
    """Raise InputError unless every class column is numeric."""
    for name in selection.table_column_names:
        arrow_type = schema.field(name).type
        if is_type(arrow_type, NUMBER_TYPES):
            continue
        is_list = is_type(arrow_type, LIST_TYPES)
        content_text = f"lists of {arrow_type.value_type}" if is_list else str(arrow_type)
        label_hint = ""
        if "labels" not in selection.column_of_role and not is_list:
            label_hint = advise_on_label_column(name)
        raise NumberError(
            f"{path}: the column {name!r} must hold numbers, but it holds {content_text};"
            f" {label_hint}list the class columns with {format_option('classes')}, or name the"
            f" column of lists or the prefix of the columns with {format_option('logits_key')}."
        )


def _check_side_columns(selection: ColumnSelection, schema: Any, path: str) -> None:
    """Raise InputError unless labels, ids and groups are numbers or text."""
    for name in selection.column_of_role.values():
        arrow_type = schema.field(name).type
        value_type = arrow_type
        if is_type(arrow_type, ("dictionary",)):
            value_type = arrow_type.value_type
        if not is_type(value_type, NUMBER_TYPES + TEXT_TYPES):
            raise NumberError(
                f"{path}: the column {name!r} holds {arrow_type}, but labels, ids and groups must"
                " be integers or strings."
            )


def determine_table_layout(
    selection: ColumnSelection, source: BatchSource, path: str
) -> TableLayout:
    """Determine the layout of the table.

    Parameters
    ----------
    selection : ColumnSelection
        Names of the table columns.

    source : Batches
        Source of the record batches. The first row is read if the type does not contain the
        length of the lists.

    path : str
        File name used in error messages.

    Returns
    -------
    Layout
    """
    arrow_types = [source.schema.field(name).type for name in selection.table_column_names]
    if selection.has_column_per_class:
        distinct_dtypes = {get_float_dtype(arrow_type) for arrow_type in arrow_types}
        table_dtype = np.dtype(np.float64)
        if len(distinct_dtypes) == 1:
            table_dtype = distinct_dtypes.pop()
        return TableLayout(columns=selection.table_column_names, list_size=None, dtype=table_dtype)

    (list_column_name,) = selection.table_column_names
    (list_type,) = arrow_types
    list_size = getattr(list_type, "list_size", -1)
    is_variable_size_type = list_size < 0
    if is_variable_size_type:
        list_size = _read_first_list_size(source, list_column_name, path)
    return TableLayout(
        columns=(list_column_name,),
        list_size=list_size,
        dtype=get_float_dtype(list_type.value_type),
    )


def _read_first_list_size(source: BatchSource, name: str, path: str) -> int:
    """Return the length of the first list in a column, or 0 if there are no rows."""
    for record_batch in source.iterate_batches([name], 1):
        if record_batch.num_rows:
            list_column = record_batch.column(name)
            check_no_nulls(list_column.slice(0, 1), name, path, 0)
            return len(list_column[0])
    return 0
