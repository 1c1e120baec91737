"""Conversion of Arrow columns to NumPy arrays.

Values are converted through Arrow's buffers and not through Python lists, except for text. Nulls
raise an `InputError`; rows are never dropped. pyarrow is imported inside the functions that need
it. The terms *table* and *side column* are those of `metacal.io.formats.arrow`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import NumberError, needs_extra
from metacal.io.opening import build_uneven_row_error, check_text_array_size, check_unpacked_size
from metacal.rows.arrays import find_first_true

# Categories of Arrow types, named as in `pyarrow.types`.
LIST_TYPES = ("list", "large_list", "fixed_size_list")
NUMBER_TYPES = ("floating", "integer", "boolean")
TEXT_TYPES = ("string", "large_string", "string_view")
_SCORE_TYPES = ("floating", "integer", "decimal", "null")


@dataclass(frozen=True)
class TableLayout:
    """Columns that make up a table, and the dtype of the resulting array.

    Attributes
    ----------
    columns : tuple of str
        Name of the list column, or of the columns with one column per class.

    list_size : int or None
        Length of the lists. None if there is one column per class.

    dtype : dtype
        Floating-point dtype of the table.
    """

    columns: tuple[str, ...]
    list_size: int | None
    dtype: np.dtype[Any]

    @property
    def has_list_column(self) -> bool:
        """Whether one column holds a list for each row."""
        return self.list_size is not None

    @property
    def n_classes(self) -> int:
        """Number of columns of the resulting array."""
        if self.list_size is None:
            return len(self.columns)
        return self.list_size

    @property
    def row_bytes(self) -> int:
        """Size in bytes of one row of the resulting array."""
        return self.n_classes * self.dtype.itemsize


def import_pyarrow(path: str) -> Any:
    """Import pyarrow, or raise an error that names the extra to install."""
    with needs_extra(f"reading or writing {path}", "parquet"):
        import pyarrow
    return pyarrow


def table_to_array(batch: Any, layout: TableLayout, path: str, first_row: int) -> NDArray[Any]:
    """Convert the table columns of a record batch to an array.

    Parameters
    ----------
    batch : pyarrow.RecordBatch
        Batch that contains the table columns.

    layout : Layout
        Layout of the table.

    path : str
        File name used in error messages.

    first_row : int
        Number of the first row of the batch, used in error messages.

    Returns
    -------
    array of shape (n_rows, n_classes)
        New C-ordered array.
    """
    if layout.has_list_column:
        return _convert_lists_to_table(batch.column(layout.columns[0]), layout, path, first_row)
    table = np.empty((batch.num_rows, len(layout.columns)), dtype=layout.dtype)
    for class_index, name in enumerate(layout.columns):
        class_column = combine_chunks(batch.column(name))
        check_no_nulls(class_column, name, path, first_row)
        table[:, class_index] = class_column.to_numpy(zero_copy_only=False)
    return table


def _convert_lists_to_table(
    column: Any, layout: TableLayout, path: str, first_row: int
) -> NDArray[Any]:
    """Convert a column of lists to an array with one row per list.

    The parameters are those of `table_to_array`.
    """
    column_name = layout.columns[0]
    n_classes = layout.n_classes
    list_array = combine_chunks(column)
    # Reject nulls first, because FixedSizeListArray.flatten() silently drops null rows.
    check_no_nulls(list_array, column_name, path, first_row)
    if not is_type(list_array.type, ("fixed_size_list",)):
        # Without nulls, differences of the offsets are the lengths of the lists.
        list_lengths = np.diff(list_array.offsets.to_numpy(zero_copy_only=False))
        invalid_row = find_first_true(list_lengths != n_classes)
        if invalid_row is not None:
            row_text = f"{path}: row {first_row + invalid_row} of column {column_name!r}"
            raise build_uneven_row_error(row_text, int(list_lengths[invalid_row]), n_classes)

    # flatten() respects slices, whereas the attribute .values ignores them.
    flat_entries = list_array.flatten()
    if flat_entries.null_count:
        invalid_row, class_index = divmod(_find_first_null(flat_entries), n_classes)
        raise NumberError(
            f"{path}: the list in row {first_row + invalid_row} of the column {column_name!r} has a"
            " null at"
            f" position {class_index}, and these {len(list_array):,} rows have"
            f" {flat_entries.null_count:,} nulls. Fill in the values, or drop these rows."
        )
    flat_values = flat_entries.to_numpy(zero_copy_only=False)
    table = flat_values.reshape(len(list_array), n_classes)
    return np.ascontiguousarray(table, dtype=layout.dtype)


def column_to_array(column: Any, name: str, path: str, file_size: int) -> NDArray[Any]:
    """Convert a validated side column to an array of integers, floats or text.

    Parameters
    ----------
    column : pyarrow.Array or pyarrow.ChunkedArray
        Column of numbers or text, possibly dictionary-encoded.

    name : str
        Column name used in error messages.

    path : str
        File name used in error messages.

    file_size : int
        Size in bytes of the file. It bounds the size of the result.

    Returns
    -------
    array of shape (n_rows,)
    """
    arrow_array = combine_chunks(column)
    check_no_nulls(arrow_array, name, path, 0)
    if is_type(arrow_array.type, ("dictionary",)):
        return _decode_dictionary(arrow_array, name, path, file_size)
    if is_type(arrow_array.type, TEXT_TYPES):
        texts = arrow_array.to_pylist()
        check_text_array_size(path, f"texts in column {name!r}", texts, file_size)
        return np.array(texts, dtype=np.str_)
    return np.ascontiguousarray(arrow_array.to_numpy(zero_copy_only=False))


def _decode_dictionary(arrow_array: Any, name: str, path: str, file_size: int) -> NDArray[Any]:
    """Convert a dictionary-encoded column to an array of its decoded values.

    The parameters are those of `column_to_array`.
    """
    dictionary_entries = arrow_array.dictionary
    entry_indices = arrow_array.indices.to_numpy(zero_copy_only=False)
    if dictionary_entries.null_count:
        # A null entry is an error only if a row refers to it.
        check_no_nulls(dictionary_entries.take(arrow_array.indices), name, path, 0)
        unused_value = "" if is_type(dictionary_entries.type, TEXT_TYPES) else 0
        dictionary_entries = dictionary_entries.fill_null(unused_value)
    decoded_entries = column_to_array(dictionary_entries, name, path, file_size)
    # Check the decoded size, because many references to a few long entries could exhaust memory.
    check_unpacked_size(path, len(entry_indices) * decoded_entries.itemsize, file_size)
    return decoded_entries[entry_indices]


def scores_to_array(column: Any, name: str, path: str) -> NDArray[np.floating[Any]]:
    """Convert a column of scores to an array, with NaN for nulls."""
    arrow_array = combine_chunks(column)
    arrow_type = arrow_array.type
    if not is_type(arrow_type, _SCORE_TYPES):
        raise NumberError(
            f"{path}: the column {name!r} holds {arrow_type}, but a score must be a number, or"
            " null if it is missing."
        )
    if not is_type(arrow_type, ("floating",)):
        arrow_array = arrow_array.cast("float64")
    return np.array(arrow_array.to_numpy(zero_copy_only=False), dtype=get_float_dtype(arrow_type))


def check_no_nulls(column: Any, name: str, path: str, first_row: int) -> None:
    """Raise InputError if a column contains nulls.

    Parameters
    ----------
    column : pyarrow.Array
        Column to check.

    name : str
        Column name used in the error message.

    path : str
        File name used in the error message.

    first_row : int
        Number of the first row of the column.
    """
    if not column.null_count:
        return
    row = first_row + _find_first_null(column)
    percentage = 100 * column.null_count / len(column)
    raise NumberError(
        f"{path}: row {row} of the column {name!r} is null, and {column.null_count:,} rows are"
        f" null in all ({percentage:.2g}% of these {len(column):,} rows). Fill in the values, or"
        " drop these rows."
    )


def _find_first_null(column: Any) -> int:
    """Return the index of the first null of a column that has at least one."""
    is_null = column.is_null().to_numpy(zero_copy_only=False)
    return int(np.flatnonzero(is_null)[0])


def combine_chunks(column: Any) -> Any:
    """Combine the chunks of a column into one pyarrow.Array."""
    if not hasattr(column, "combine_chunks"):
        return column
    combined_array = column.combine_chunks()
    # Some versions of pyarrow return a ChunkedArray with a single chunk.
    if hasattr(combined_array, "num_chunks"):
        return combined_array.combine_chunks()
    return combined_array


def get_float_dtype(arrow_type: Any) -> np.dtype[Any]:
    """Return the dtype of a floating-point Arrow type, and float64 for any other type."""
    if is_type(arrow_type, ("floating",)):
        return np.dtype(arrow_type.to_pandas_dtype())
    return np.dtype(np.float64)


def is_type(arrow_type: Any, categories: Sequence[str]) -> bool:
    """Check whether an Arrow type is in one of the categories of `pyarrow.types`."""
    import pyarrow.types

    for category in categories:
        is_category = getattr(pyarrow.types, f"is_{category}")
        if is_category(arrow_type):
            return True
    return False
