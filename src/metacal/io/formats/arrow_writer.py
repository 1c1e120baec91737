"""Conversion of NumPy arrays to Arrow record batches, for the Arrow writers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.io.formats.arrow_columns import import_pyarrow
from metacal.io.formats.arrow_metadata import build_classes_metadata

# Exclusive upper bound on the bytes of a `pyarrow.string` column, whose offsets have 32 bits.
_MAX_STRING_BYTES = 1 << 31


class ArrowColumnsWriter:
    """Base class of the writers of Parquet and Arrow files.

    Parameters
    ----------
    path : Path
        File to write.

    class_names : sequence of str or int, or None
        Class names, stored in the metadata of the schema.

    n_rows : int
        Ignored; Arrow files need not know the number of rows in advance.

    compress : bool
        Ignored; each format has a fixed compression.
    """

    def __init__(
        self, path: Path, class_names: Sequence[str | int] | None, n_rows: int, compress: bool
    ) -> None:
        self.pa = import_pyarrow(str(path))
        self.path = path
        self.class_names = class_names
        self.file: Any = None

    def write(self, columns: dict[str, NDArray[Any]]) -> None:
        """Append a block of rows. In a Parquet file, the block is one row group."""
        batch = build_record_batch(self.pa, columns, self.class_names)
        if self.file is None:
            self.file = self.open_file(batch.schema, columns)
        self.file.write(self.pa.Table.from_batches([batch]))

    def close(self) -> None:
        """Write the footer and close the file."""
        if self.file is not None:
            self.file.close()

    def open_file(self, schema: Any, columns: dict[str, NDArray[Any]]) -> Any:
        """Create pyarrow's writer for the file.

        Parameters
        ----------
        schema : pyarrow.Schema
            Schema of the file.

        columns : dict of str to array
            First block of columns.

        Returns
        -------
        object with the methods `write(table)` and `close()`
        """
        raise NotImplementedError


def build_record_batch(
    pa: Any, columns: dict[str, NDArray[Any]], class_names: Sequence[str | int] | None
) -> Any:
    """Convert named arrays to an Arrow record batch.

    Parameters
    ----------
    pa : module
        The module pyarrow.

    columns : dict of str to array of shape (n_rows,) or (n_rows, n_classes)
        Columns by name. A 2-D array becomes a column of fixed-size lists.

    class_names : sequence of str or int, or None
        Class names to store in the metadata of the schema.

    Returns
    -------
    pyarrow.RecordBatch

    Examples
    --------
    >>> import pyarrow
    >>> columns = {"probs": np.array([[0.25, 0.75]])}
    >>> build_record_batch(pyarrow, columns, ["cat", "dog"]).schema.metadata
    {b'metacal.classes': b'["cat", "dog"]', b'metacal.classes.crc32': b'2c9e6562'}
    """
    arrow_arrays = {}
    for name, array in columns.items():
        arrow_array = _convert_to_arrow_array(pa, np.ascontiguousarray(array).ravel())
        if array.ndim == 2:
            arrow_array = pa.FixedSizeListArray.from_arrays(arrow_array, array.shape[1])
        arrow_arrays[name] = arrow_array

    fields = [pa.field(name, arrow_array.type) for name, arrow_array in arrow_arrays.items()]
    schema = pa.schema(fields)
    if class_names is not None:
        schema = schema.with_metadata(build_classes_metadata(class_names))
    return pa.record_batch(list(arrow_arrays.values()), schema=schema)


def _convert_to_arrow_array(pa: Any, values: NDArray[Any]) -> Any:
    """Convert a 1-D array to a pyarrow.Array.

    `pa.array` is only the fallback, because its first call imports pandas, which takes a quarter
    of a second.

    Examples
    --------
    >>> import pyarrow
    >>> _convert_to_arrow_array(pyarrow, np.array(["a", "", "ñ"])).to_pylist()
    ['a', '', 'ñ']
    """
    dtype_kind = values.dtype.kind
    n_values = len(values)
    # Without a validity bitmap, no value is null.
    validity_bitmap = None
    if dtype_kind in "UO":
        encoded_texts = [text.encode("utf-8") for text in values.tolist()]
        joined_texts = b"".join(encoded_texts)
        if len(joined_texts) < _MAX_STRING_BYTES:
            offsets = np.cumsum([0, *map(len, encoded_texts)], dtype=np.int32)
            text_buffers = [validity_bitmap, pa.py_buffer(offsets), pa.py_buffer(joined_texts)]
            return pa.Array.from_buffers(pa.string(), n_values, text_buffers)
    if dtype_kind == "b":
        packed_bits = np.packbits(values, bitorder="little")
        bit_buffers = [validity_bitmap, pa.py_buffer(packed_bits)]
        return pa.Array.from_buffers(pa.bool_(), n_values, bit_buffers)
    has_arrow_layout = values.dtype.isnative and values.itemsize <= 8
    if dtype_kind in "iuf" and has_arrow_layout:
        arrow_type = pa.from_numpy_dtype(values.dtype)
        number_buffers = [validity_bitmap, pa.py_buffer(values)]
        return pa.Array.from_buffers(arrow_type, n_values, number_buffers)
    return pa.array(values)
