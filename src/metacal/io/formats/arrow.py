"""Arrow columns as NumPy arrays, through their buffers and never through Python lists; a null is refused, not dropped.

A table is one column of lists (list, large_list or fixed-size list, all of one length) or one column per class.
pyarrow is imported inside the functions that need it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError, MissingExtraError
from metacal.io.columns import (
    TWO_COLUMNS,
    ClassNames,
    Picked,
    Request,
    as_class_names,
    labels_are_in,
    listed,
    pick_columns,
)
from metacal.io.limits import check_texts, check_unpacked

#: Under this key of the schema's metadata the classes are kept, as JSON, in column order.
CLASSES_KEY = b"metacal.classes"


class Layout(NamedTuple):
    """Where in the file table, labels and ids lie, and what the table will be as an array."""

    columns: tuple[str, ...]
    #: Length of the lists; None where there is a column per class.
    width: int | None
    dtype: np.dtype[Any]
    names: ClassNames | None
    label: str | None
    ids: str | None
    groups: str | None
    unused: tuple[str, ...]
    #: Which columns of the file the classes are; None where one column has them all.
    places: tuple[int, ...] | None = None

    @property
    def n_classes(self) -> int:
        """Columns of the table."""
        return len(self.columns) if self.width is None else self.width


def pyarrow_for(path: str) -> Any:
    """Import pyarrow, or say what to install."""
    try:
        import pyarrow
    except ImportError:
        raise MissingExtraError(f"reading or writing {path}", "parquet") from None
    return pyarrow


def pick(request: Request, schema: Any) -> tuple[Picked, tuple[str, ...]]:
    """Choose the columns by name and type; what pandas stored as its index is no column."""
    import pyarrow.types as kinds

    shown = [name for name in schema.names if not name.startswith("__index_level_")]
    lists = [field.name for field in schema if _is_list(field.type) and _is_number(field.type.value_type)]
    picked = pick_columns(request, shown, lists)
    for place in picked.columns if picked.names is not None else ():
        kind = schema.field(shown[place]).type
        if not _is_number(kind):
            what = f"lists of {kind.value_type}" if _is_list(kind) else str(kind)
            labels = "" if picked.label is not None or _is_list(kind) else labels_are_in(shown[place])
            raise InputError(
                f"{request.path}: column {shown[place]!r} holds {what}, not numbers; {labels}say which columns are "
                "classes with classes (--classes), or name the column of lists or the prefix of the columns with "
                "logits_key (--logits-key)."
            )
    if picked.names is not None and len(picked.columns) < request.fewest_columns:
        raise InputError(
            f"{request.path}: found {len(picked.columns)} class column(s) among {listed(shown)}; there must be at "
            f"least 2, or one column 'logits' of lists.{TWO_COLUMNS if picked.columns else ''}"
        )
    for name in (None if place is None else shown[place] for place in picked.beside):
        if name is not None and not _is_flat(kinds, schema.field(name).type):
            raise InputError(
                f"{request.path}: column {name!r} holds {schema.field(name).type}; labels, ids and groups must be "
                "integers or strings."
            )
    return picked, tuple(shown)


def layout(request: Request, schema: Any, first_width: int) -> Layout:
    """Describe what is read; `first_width` is the length of the first list, where the type does not say it."""
    picked, shown = pick(request, schema)
    columns = tuple(shown[place] for place in picked.columns)
    label, ids, groups = (None if place is None else shown[place] for place in picked.beside)
    names, width = picked.names, None
    if names is None:
        kind = schema.field(columns[0]).type
        width = getattr(kind, "list_size", first_width)
        width = first_width if width < 0 else width
        dtype = _dtype(kind.value_type)
        names = _stored_classes(schema)
    else:
        kinds = {_dtype(schema.field(name).type) for name in columns}
        dtype = kinds.pop() if len(kinds) == 1 else np.dtype(np.float64)
    places = None if width is not None else tuple(picked.columns)
    return Layout(columns, width, dtype, names, label, ids, groups, picked.unused(shown), places)


def table_of(batch: Any, found: Layout, path: str, start: int) -> NDArray[Any]:
    """The table's rows of a record batch, a fresh C-ordered array; `start` is its first row's number in the file."""
    if found.width is not None:
        return _from_lists(batch.column(found.columns[0]), found, path, start)
    rows = np.empty((batch.num_rows, len(found.columns)), dtype=found.dtype)
    for k, name in enumerate(found.columns):
        column = _joined(batch.column(name))
        refuse_nulls(column, name, path, start)
        rows[:, k] = column.to_numpy(zero_copy_only=False)
    return rows


def column_of(column: Any, name: str, path: str, held: int) -> NDArray[Any]:
    """A validated column of labels or ids as an array of integers, floats or strings; `held`: bytes of the file."""
    import pyarrow as pa
    import pyarrow.types as kinds

    flat = _joined(column)
    refuse_nulls(flat, name, path, 0)
    if kinds.is_dictionary(flat.type):
        # Each entry is decoded once: a few long ones, pointed at by many rows, would fill any memory.
        entries, places = flat.dictionary, flat.indices.to_numpy(zero_copy_only=False)
        if entries.null_count and len(places):
            refuse_nulls(entries.take(flat.indices), name, path, 0)
        if not len(places):
            entries = entries.slice(0, 0)
        filler = "" if _is_text(kinds, entries.type) else 0
        known = column_of(entries.fill_null(filler) if entries.null_count else entries, name, path, held)
        check_unpacked(path, len(places) * known.itemsize, held)
        found: NDArray[Any] = known[places]
        return found
    if _is_text(kinds, flat.type):
        texts = flat.to_pylist()
        check_texts(path, f"texts in column {name!r}", texts, held)
        # An empty array of strings has no width; NumPy would call it '<U0' and then truncate.
        return np.array(texts, dtype=np.str_) if texts else np.empty(0, "<U1")
    values = flat.to_numpy(zero_copy_only=False)
    if values.dtype.kind not in "iubf":
        raise InputError(f"{path}: column {name!r} holds {flat.type}; labels and ids must be integers or strings.")
    return np.ascontiguousarray(values) if isinstance(flat, pa.Array) else values


def score_column_of(column: Any, name: str, path: str) -> NDArray[np.floating[Any]]:
    """A column of scores: NaN where it is null."""
    import pyarrow as pa
    import pyarrow.types as kinds

    flat = _joined(column)
    kind = flat.type
    if not (kinds.is_floating(kind) or kinds.is_integer(kind) or kinds.is_decimal(kind) or kinds.is_null(kind)):
        raise InputError(f"{path}: column {name!r} holds {kind}, not numbers; a score is a number, or null for none.")
    numbers = flat if kinds.is_floating(kind) else flat.cast(pa.float64())
    return np.array(numbers.to_numpy(zero_copy_only=False), dtype=_dtype(kind))


def _from_lists(column: Any, found: Layout, path: str, start: int) -> NDArray[Any]:
    import pyarrow.types as kinds

    lists, name = _joined(column), found.columns[0]
    # FixedSizeListArray.flatten drops null rows without a word and .values ignores slices: nulls go first.
    refuse_nulls(lists, name, path, start)
    if not kinds.is_fixed_size_list(lists.type):
        _refuse_ragged(lists, found, path, start)
    values = lists.flatten()
    if values.null_count:
        row, at = divmod(int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0]), found.n_classes)
        raise InputError(
            f"{path}: row {start + row} of column {name!r} has a null in place {at}; there are "
            f"{values.null_count:,} nulls in these {len(lists):,} rows. Fill them in or drop the rows; metacal drops "
            "none."
        )
    flat = values.to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(flat.reshape(len(lists), found.n_classes), dtype=found.dtype)


def _refuse_ragged(lists: Any, found: Layout, path: str, start: int) -> None:
    # Offsets of a slice begin where the slice does; a list array without nulls has no gaps between its lists.
    lengths = np.diff(lists.offsets.to_numpy(zero_copy_only=False))
    wrong = lengths != found.n_classes
    if wrong.any():
        row = int(wrong.argmax())
        raise InputError(
            f"{path}: row {start + row} of column {found.columns[0]!r} has {int(lengths[row])} numbers but the first "
            f"row has {found.n_classes}; every row needs one number per class."
        )


def refuse_nulls(column: Any, name: str, path: str, start: int) -> None:
    """Raise with the first null's row; `start` is the number of the column's first row."""
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        share = f" ({100 * column.null_count / len(column):.2g}% of these {len(column):,} rows)"
        raise InputError(
            f"{path}: row {start + row} of column {name!r} is null, as are {column.null_count:,} in all{share}; fill "
            "them in or drop the rows; metacal drops none."
        )


def _joined(column: Any) -> Any:
    if not hasattr(column, "combine_chunks"):
        return column
    joined = column.combine_chunks()
    return joined.combine_chunks() if hasattr(joined, "num_chunks") else joined


def _stored_classes(schema: Any) -> ClassNames | None:
    stored = (schema.metadata or {}).get(CLASSES_KEY)
    if stored is None:
        return None
    try:
        names = json.loads(stored)
        return as_class_names(names) if isinstance(names, list) and names else None
    except (ValueError, RecursionError):
        return None


def _dtype(kind: Any) -> np.dtype[Any]:
    import pyarrow.types as kinds

    return np.dtype(kind.to_pandas_dtype()) if kinds.is_floating(kind) else np.dtype(np.float64)


def _is_list(kind: Any) -> bool:
    import pyarrow.types as kinds

    return bool(kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind))


def _is_number(kind: Any) -> bool:
    import pyarrow.types as kinds

    return bool(kinds.is_floating(kind) or kinds.is_integer(kind) or kinds.is_boolean(kind))


def _is_text(kinds: Any, kind: Any) -> bool:
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind))


def _is_flat(kinds: Any, kind: Any) -> bool:
    if kinds.is_dictionary(kind):
        kind = kind.value_type
    return _is_number(kind) or _is_text(kinds, kind)


def needed(found: Layout) -> Sequence[str]:
    """The 1-D columns to read beside the table."""
    return [name for name in dict.fromkeys((found.label, found.ids, found.groups)) if name is not None]
