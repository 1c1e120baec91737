"""Arrow columns as NumPy arrays, through their buffers and never through Python lists; a null is
refused, not dropped.

A table is one column of lists (list, large_list or fixed-size list, all of one length) or one
column per class. pyarrow is imported inside the functions that need it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError, needs_extra, option
from metacal.io.column_selection import Picked, pick_columns
from metacal.io.columns import Columns
from metacal.io.named_columns import labels_are_in
from metacal.io.opening import NoRowsError, check_texts, check_unpacked, uneven
from metacal.io.request import ClassNames, Request
from metacal.rows.arrays import first_row
from metacal.rows.labels import as_class_names
from metacal.rows.stored import StoredTable

#: Under this key of the schema's metadata the classes are kept, as JSON, in column order.
CLASSES_KEY = b"metacal.classes"
#: Under this key the CRC-32 of the classes' JSON text is kept. Neither format has a checksum of its
#: metadata.
CLASSES_CHECKSUM_KEY = b"metacal.classes.crc32"
#: Bytes of a decoded batch where all of a file is read, and rows at most: fewer batches are quicker
#: where there is a column per class.
_BATCH_BYTES, _BATCH_ROWS = 1 << 22, 1 << 16
#: Kinds of types, as `pyarrow.types` calls them.
_LISTS = ("list", "large_list", "fixed_size_list")
_NUMBERS = ("floating", "integer", "boolean")
_TEXTS = ("string", "large_string", "string_view")


class Layout(NamedTuple):
    """The columns of a table, and what it will be as an array."""

    columns: tuple[str, ...]
    #: Length of the lists; None where there is a column per class.
    width: int | None
    dtype: np.dtype[Any]

    @property
    def n_classes(self) -> int:
        """Columns of the table."""
        return len(self.columns) if self.width is None else self.width

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of the table."""
        return self.n_classes * self.dtype.itemsize


class Batches:
    """What has a schema and gives record batches: a file, or a batch in memory; rows, and the bytes
    that they take.
    """

    kind = "a table in memory"

    def __init__(self, schema: Any, n_rows: int, held: int) -> None:
        self.schema, self.n_rows, self.held = schema, n_rows, held

    def batches(self, names: Sequence[str], rows: int) -> Iterable[Any]:
        """These columns, in validated batches of at most so many rows where that can be chosen."""
        raise NotImplementedError

    def stored(self, layout: Layout) -> StoredTable | None:
        """The table as one that stays where it is; None where it cannot."""
        return None


class InMemory(Batches):
    """A table that is in memory: Arrow's own, a frame of polars or pandas, a Dataset of Hugging
    Face.
    """

    def __init__(self, given: Any) -> None:
        pa = pyarrow_for("a table in memory")
        if hasattr(given, "with_format"):
            if hasattr(given, "values"):
                raise InputError(
                    f"these are several datasets ({', '.join(given)}); give one of them."
                )
            given = given.with_format("arrow")[:]
        self.table = (
            pa.Table.from_batches([given]) if isinstance(given, pa.RecordBatch) else pa.table(given)
        )
        super().__init__(self.table.schema, self.table.num_rows, max(self.table.nbytes, 1 << 30))

    def batches(self, names: Sequence[str], rows: int) -> Iterable[Any]:
        """These columns."""
        return self.table.select(names).to_batches(max_chunksize=rows)


def is_in_memory(given: Any) -> bool:
    """Whether this is a table in memory, and no name of a file."""
    return hasattr(given, "__arrow_c_stream__") or hasattr(given, "with_format")


def pyarrow_for(path: str) -> Any:
    """Import pyarrow, or say what to install."""
    with needs_extra(f"reading or writing {path}", "parquet"):
        import pyarrow
    return pyarrow


def read_batches(request: Request, source: Batches) -> Columns:
    """Read what is asked for, in one pass; a table over 256 MiB stays where it can, unless the
    request says more.
    """
    import pyarrow as pa

    path, n_rows, schema = request.path, source.n_rows, source.schema
    if not n_rows:
        raise NoRowsError(f"{path}: it holds no rows; give at least one.")
    picked = pick(request, schema)
    layout = (
        Layout(picked.table, None, np.dtype(np.float64))
        if request.scores
        else layout_of(picked, source, path)
    )
    stays = not request.scores and request.stays(n_rows * layout.row_bytes)
    table: Any = source.stored(layout) if stays else None
    names = picked.names if table is None else picked.others
    # Runs of one value pack to next to nothing: the rows that are claimed are compared with the
    # limit.
    row_bytes = 8 * len(picked.others) + (layout.row_bytes if table is None else 0)
    check_unpacked(path, n_rows * row_bytes, source.held)
    whole = table is None and not request.scores
    if whole:
        table = np.empty((n_rows, layout.n_classes), layout.dtype)
    beside, start = [], 0
    for batch in (
        source.batches(names, max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(1, row_bytes))))
        if names
        else ()
    ):
        if start + batch.num_rows > n_rows:
            raise ValueError("it holds more rows than it says")
        if whole:
            table[start : start + batch.num_rows] = table_of(batch, layout, path, start)
        beside.append(batch.select(picked.others if whole else names))
        start += batch.num_rows
    if names and start != n_rows:
        raise EOFError(f"it ends at row {start} of {n_rows}")

    def chunks(name: str) -> Any:
        return pa.chunked_array(
            [batch.column(name) for batch in beside], type=schema.field(name).type
        )

    def column(name: str) -> NDArray[Any]:
        return column_of(chunks(name), name, path, source.held)

    class_names = None if layout.width is None else stored_classes(schema, path)
    if request.scores:
        table = _scores(chunks(picked.table[0]), picked.table[0], path)
    return picked.columns(
        table, column, lambda name: chunks(name).to_pylist(), class_names=class_names
    )


def pick(request: Request, schema: Any) -> Picked:
    """Choose the columns by name and type; what pandas stored as its index is no column."""
    shown = [name for name in schema.names if not name.startswith("__index_level_")]
    lists = [
        one.name
        for one in schema
        if _holds(one.type, *_LISTS) and _holds(one.type.value_type, *_NUMBERS)
    ]
    picked = pick_columns(request, shown, lists)
    for name in picked.table if picked.places is not None else ():
        kind = schema.field(name).type
        if not _holds(kind, *_NUMBERS):
            listed = _holds(kind, *_LISTS)
            what = f"lists of {kind.value_type}" if listed else str(kind)
            labels = "" if "labels" in picked.beside or listed else labels_are_in(name)
            raise InputError(
                f"{request.path}: column {name!r} holds {what}, not numbers; {labels}say which"
                f" columns are classes with {option('classes')}, or name the column of lists or the"
                f" prefix of the columns with {option('logits_key')}."
            )
    for name in picked.beside.values():
        kind = schema.field(name).type
        if not _holds(kind.value_type if _holds(kind, "dictionary") else kind, *_NUMBERS, *_TEXTS):
            raise InputError(
                f"{request.path}: column {name!r} holds {kind}; labels, ids and groups must be"
                " integers or strings."
            )
    return picked


def layout_of(picked: Picked, source: Batches, path: str) -> Layout:
    """Describe the table; the length of its lists is that of the first where the type does not say
    it.
    """
    kinds = {name: source.schema.field(name).type for name in picked.table}
    if picked.places is not None:
        types = set(map(_dtype, kinds.values()))
        return Layout(picked.table, None, types.pop() if len(types) == 1 else np.dtype(np.float64))
    ((name, kind),) = kinds.items()
    width = getattr(kind, "list_size", -1)
    if width < 0:
        first = next((batch for batch in source.batches([name], 1) if batch.num_rows), None)
        if first is not None:
            refuse_nulls(first.column(name).slice(0, 1), name, path, 0)
        width = 0 if first is None else len(first.column(name)[0])
    return Layout((name,), width, _dtype(kind.value_type))


def table_of(batch: Any, layout: Layout, path: str, start: int) -> NDArray[Any]:
    """The table's rows of a record batch, a fresh C-ordered array; `start` is its first row's
    number in the file.
    """
    if layout.width is not None:
        return _from_lists(batch.column(layout.columns[0]), layout, path, start)
    rows = np.empty((batch.num_rows, len(layout.columns)), dtype=layout.dtype)
    for k, name in enumerate(layout.columns):
        column = joined(batch.column(name))
        refuse_nulls(column, name, path, start)
        rows[:, k] = column.to_numpy(zero_copy_only=False)
    return rows


def column_of(column: Any, name: str, path: str, held: int) -> NDArray[Any]:
    """A validated column of labels or ids as an array of integers, floats or strings; `held`: bytes
    of the file.
    """
    flat = joined(column)
    refuse_nulls(flat, name, path, 0)
    if _holds(flat.type, "dictionary"):
        # Each entry is decoded once: a few long ones, pointed at by many rows, would fill any
        # memory.
        entries, places = flat.dictionary, flat.indices.to_numpy(zero_copy_only=False)
        if entries.null_count:
            refuse_nulls(entries.take(flat.indices), name, path, 0)
        filler = "" if _holds(entries.type, *_TEXTS) else 0
        known = column_of(
            entries.fill_null(filler) if entries.null_count else entries, name, path, held
        )
        check_unpacked(path, len(places) * known.itemsize, held)
        return known[places]
    if _holds(flat.type, *_TEXTS):
        texts = flat.to_pylist()
        check_texts(path, f"texts in column {name!r}", texts, held)
        return np.array(texts, dtype=np.str_)
    return np.ascontiguousarray(flat.to_numpy(zero_copy_only=False))


def _scores(column: Any, name: str, path: str) -> NDArray[np.floating[Any]]:
    """A column of scores: NaN where it is null."""
    flat = joined(column)
    kind = flat.type
    if not _holds(kind, "floating", "integer", "decimal", "null"):
        raise InputError(
            f"{path}: column {name!r} holds {kind}, not numbers; a score is a number, or null for"
            " none."
        )
    numbers = flat if _holds(kind, "floating") else flat.cast("float64")
    return np.array(numbers.to_numpy(zero_copy_only=False), dtype=_dtype(kind))


def _from_lists(column: Any, layout: Layout, path: str, start: int) -> NDArray[Any]:
    lists, name = joined(column), layout.columns[0]
    # FixedSizeListArray.flatten drops null rows without a word and .values ignores slices: nulls go
    # first.
    refuse_nulls(lists, name, path, start)
    if not _holds(lists.type, "fixed_size_list"):
        # Offsets of a slice begin where the slice does; a list array without nulls has no gaps
        # between its lists.
        lengths = np.diff(lists.offsets.to_numpy(zero_copy_only=False))
        if (row := first_row(lengths != layout.n_classes)) is not None:
            raise uneven(
                f"{path}: row {start + row} of column {name!r}", int(lengths[row]), layout.n_classes
            )
    values = lists.flatten()
    if values.null_count:
        row, at = divmod(
            int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0]),
            layout.n_classes,
        )
        raise InputError(
            f"{path}: row {start + row} of column {name!r} has a null in place {at}; there are"
            f" {values.null_count:,} nulls in these {len(lists):,} rows. Fill them in or drop the"
            " rows; metacal drops none."
        )
    flat = values.to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(flat.reshape(len(lists), layout.n_classes), dtype=layout.dtype)


def refuse_nulls(column: Any, name: str, path: str, start: int) -> None:
    """Raise with the first null's row; `start` is the number of the column's first row."""
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        share = f" ({100 * column.null_count / len(column):.2g}% of these {len(column):,} rows)"
        raise InputError(
            f"{path}: row {start + row} of column {name!r} is null, as are {column.null_count:,} in"
            f" all{share}; fill them in or drop the rows; metacal drops none."
        )


def joined(column: Any) -> Any:
    """A column as one array, whichever way it is divided."""
    if not hasattr(column, "combine_chunks"):
        return column
    once = column.combine_chunks()
    return once.combine_chunks() if hasattr(once, "num_chunks") else once


def stored_classes(schema: Any, path: str) -> ClassNames | None:
    """Return the class names in the schema's metadata, or None if there are none.

    Raise InputError if they do not match the checksum that metacal stores with them.
    """
    metadata = schema.metadata or {}
    classes_json = metadata.get(CLASSES_KEY, b"null")
    stored_checksum = metadata.get(CLASSES_CHECKSUM_KEY)
    if stored_checksum is not None and stored_checksum != classes_checksum(classes_json):
        raise InputError(
            f"{path}: the file is damaged: the class names in its metadata do not match their"
            " checksum; copy or write it again."
        )
    try:
        names = json.loads(classes_json)
        return as_class_names(names) if isinstance(names, list) and names else None
    except (ValueError, RecursionError):
        return None


def classes_checksum(classes_json: bytes) -> bytes:
    """Return the CRC-32 of a text as eight hexadecimal digits.

    Examples
    --------
    >>> classes_checksum(b'["cat", "dog"]')
    b'2c9e6562'
    """
    return b"%08x" % zlib.crc32(classes_json)


def _dtype(kind: Any) -> np.dtype[Any]:
    return np.dtype(kind.to_pandas_dtype() if _holds(kind, "floating") else np.float64)


def _holds(kind: Any, *what: str) -> bool:
    """Whether an Arrow type is one of these, as `pyarrow.types` calls them."""
    import pyarrow.types as kinds

    return any(getattr(kinds, f"is_{name}")(kind) for name in what)


class ArrowColumnsWriter:
    """What Parquet and Arrow share: columns as a record batch whose 2-D ones are lists of a fixed
    size.
    """

    def __init__(
        self, path: Path, class_names: Sequence[str | int] | None, n_rows: int, compress: bool
    ) -> None:
        self.pa = pyarrow_for(str(path))
        self.path, self.class_names = path, class_names
        self.file: Any = None

    def write(self, columns: dict[str, NDArray[Any]]) -> None:
        """Add rows, in Parquet as a row group of their own."""
        batch = record_batch(self.pa, columns, self.class_names)
        if self.file is None:
            self.file = self.opened(batch.schema, columns)
        self.file.write(self.pa.Table.from_batches([batch]))

    def close(self) -> None:
        """Write the footer."""
        if self.file is not None:
            self.file.close()

    def opened(self, schema: Any, columns: dict[str, NDArray[Any]]) -> Any:
        """The library's own writer."""
        raise NotImplementedError


def record_batch(
    pa: Any, columns: dict[str, NDArray[Any]], class_names: Sequence[str | int] | None
) -> Any:
    """Columns as an Arrow record batch: 2-D ones are lists of a fixed size, the classes go into the
    schema's metadata.

    Examples
    --------
    >>> import pyarrow
    >>> record_batch(pyarrow, {"probs": np.array([[0.25, 0.75]])}, ["cat", "dog"]).schema.metadata
    {b'metacal.classes': b'["cat", "dog"]', b'metacal.classes.crc32': b'2c9e6562'}
    """
    arrays = []
    for array in columns.values():
        flat = _arrow_column(pa, np.ascontiguousarray(array).ravel())
        arrays.append(
            flat if array.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, array.shape[1])
        )
    schema = pa.schema([pa.field(name, kind.type) for name, kind in zip(columns, arrays)])
    if class_names is not None:
        classes_json = json.dumps(list(class_names)).encode()
        checksum = classes_checksum(classes_json)
        schema = schema.with_metadata({CLASSES_KEY: classes_json, CLASSES_CHECKSUM_KEY: checksum})
    return pa.record_batch(arrays, schema=schema)


def _arrow_column(pa: Any, values: NDArray[Any]) -> Any:
    """A 1-D array as an Arrow column. `pa.array` would do, and import pandas at its first call: a
    quarter of a second.

    Examples
    --------
    >>> import pyarrow
    >>> _arrow_column(pyarrow, np.array(["a", "", "ñ"])).to_pylist()
    ['a', '', 'ñ']
    """
    n, kind = len(values), values.dtype.kind
    if kind in "UO":
        words = [word.encode("utf-8") for word in values.tolist()]
        text = b"".join(words)
        if len(text) < 1 << 31:  # offsets are 32 bits wide
            ends = np.cumsum([0, *map(len, words)], dtype=np.int32)
            return pa.Array.from_buffers(
                pa.string(), n, [None, pa.py_buffer(ends), pa.py_buffer(text)]
            )
    if kind == "b":
        return pa.Array.from_buffers(
            pa.bool_(), n, [None, pa.py_buffer(np.packbits(values, bitorder="little"))]
        )
    if kind in "iuf" and values.dtype.isnative and values.itemsize <= 8:
        return pa.Array.from_buffers(
            pa.from_numpy_dtype(values.dtype), n, [None, pa.py_buffer(values)]
        )
    return pa.array(values)
