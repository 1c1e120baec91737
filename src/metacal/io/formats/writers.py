"""One class per kind of file, each of which takes a table block by block: `write(columns)` as often as needed, `close`.

Columns are 1-D arrays, or 2-D ones with a column per class; every block has the same names and types.
"""

from __future__ import annotations

import csv
import json
import math
import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError
from metacal.io.formats.arrow import CLASSES_KEY, pyarrow_for
from metacal.io.formats.formulas import escaped

Columns = dict[str, NDArray[Any]]
ClassNames = Sequence[str | int] | None

#: Cells turned into text in one go.
_BLOCK_CELLS = 1 << 17
#: Bytes of a column of an npz that are held in memory; more go to a temporary file beside it.
_SPOOL_BYTES = 1 << 25


class TableWriter(Protocol):
    """A file that is being written."""

    def write(self, columns: Columns) -> None:
        """Add rows."""

    def close(self) -> None:
        """Finish the file; it is whole from then on."""


class DelimitedWriter:
    """Text with a header; a 2-D `probs` becomes `probs_0` …, or `probs_cat` … where the classes have names.

    Text that a spreadsheet would run as a formula is escaped: see `metacal.io.formats.formulas`.
    """

    def __init__(self, file: IO[str], class_names: ClassNames, delimiter: str = ",", *, owned: bool = True) -> None:
        self.file, self.class_names, self.owned = file, class_names, owned
        self.writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        self.header: list[str] | None = None

    def write(self, columns: Columns) -> None:
        """Add rows."""
        flat = self._flat(columns)
        if self.header is None:
            self.header = list(flat)
            self.writer.writerow(map(escaped, flat))
        n_rows = len(next(iter(flat.values())))
        step = max(1, _BLOCK_CELLS // len(flat))
        for start in range(0, n_rows, step):
            self.writer.writerows(zip(*(_texts(values[start : start + step]) for values in flat.values())))

    def close(self) -> None:
        """Flush, and close what was opened for this."""
        self.file.flush()
        if self.owned:
            self.file.close()

    def _flat(self, columns: Columns) -> Columns:
        flat: Columns = {}
        for name, array in columns.items():
            ends = range(array.shape[1]) if self.class_names is None and array.ndim == 2 else self.class_names or ()
            parts = {name: array} if array.ndim == 1 else {f"{name}_{end}": array[:, k] for k, end in enumerate(ends)}
            for column, values in parts.items():
                if column in flat:
                    raise InputError(f"two columns would be called {column!r}; rename one of them.")
                flat[column] = values
        return flat


def _texts(values: NDArray[Any]) -> list[Any]:
    if values.dtype.kind == "b":
        return ["true" if value else "false" for value in values]
    # float16 and float32 keep their own shortest digits: 0.1, not 0.10000000149011612.
    if values.dtype.kind == "f" and values.dtype.itemsize < 8:
        return list(map(str, values))
    texts: list[Any] = values.tolist()
    return list(map(escaped, texts)) if values.dtype.kind == "U" else texts


class JsonLinesWriter:
    """An object per line; a 2-D `probs` is a list, or `probs_cat` … where the classes have names, as in csv.

    Strict JSON: what is not a finite number is null.
    """

    def __init__(self, file: IO[str], class_names: ClassNames, *, owned: bool = True) -> None:
        self.file, self.class_names, self.owned = file, class_names, owned

    def write(self, columns: Columns) -> None:
        """Add rows."""
        named = self.class_names is not None
        flat = DelimitedWriter(self.file, self.class_names)._flat(columns) if named else columns
        names = list(flat)
        n_rows = len(next(iter(flat.values())))
        step = max(1, _BLOCK_CELLS // len(flat))
        for start in range(0, n_rows, step):
            rows = zip(*(_json_values(values[start : start + step]) for values in flat.values()))
            self.file.writelines(json.dumps(dict(zip(names, row)), allow_nan=False) + "\n" for row in rows)

    def close(self) -> None:
        """Flush, and close what was opened for this."""
        self.file.flush()
        if self.owned:
            self.file.close()


def _json_values(values: NDArray[Any]) -> list[Any]:
    if values.ndim == 2:
        flat = _json_values(values.ravel())
        width = values.shape[1]
        return [flat[k : k + width] for k in range(0, len(flat), width)]
    found: list[Any] = values.tolist()
    if values.dtype.kind != "f":
        return found
    if values.dtype.itemsize < 8:  # their own shortest digits: 0.1, not 0.10000000149011612
        found = [float(str(value)) for value in values]
    return found if np.isfinite(values).all() else [v if math.isfinite(v) else None for v in found]


class NpzWriter:
    """One array per column, and the class names as `classes`. The same columns give the same bytes.

    An archive holds its arrays one after the other, so that blocks are set aside, in temporary files beside the
    archive where they are large, and put together in the end.
    """

    def __init__(self, path: Path, class_names: ClassNames, compress: bool = False) -> None:
        self.path, self.class_names, self.compress = path, class_names, compress
        self.only: Columns | None = None
        self.spools: dict[str, tuple[IO[bytes], NDArray[Any]]] = {}
        self.n_rows = 0

    def write(self, columns: Columns) -> None:
        """Add rows."""
        if self.class_names is not None and "classes" in columns:
            raise InputError("npz keeps class_names under 'classes'; give that column another name.")
        if self.n_rows == 0 and self.only is None:
            self.only = columns
        else:
            held, self.only = self.only, None
            for block in [*([held] if held is not None else []), columns]:
                self._set_aside(block)
        self.n_rows += len(next(iter(columns.values())))

    def _set_aside(self, columns: Columns) -> None:
        for name, array in columns.items():
            if name not in self.spools:
                spool: Any = tempfile.SpooledTemporaryFile(_SPOOL_BYTES, dir=str(self.path.parent))  # noqa: SIM115
                self.spools[name] = (spool, array[:0])
            self.spools[name][0].write(np.ascontiguousarray(array).tobytes())

    def abandon(self) -> None:
        """Let go of what was set aside, without putting the archive together."""
        for spool, _ in self.spools.values():
            spool.close()

    def close(self) -> None:
        """Put the archive together."""
        extra = {} if self.class_names is None else {"classes": np.asarray(self.class_names)}
        method = zipfile.ZIP_DEFLATED if self.compress else zipfile.ZIP_STORED
        with zipfile.ZipFile(self.path, "w", method) as archive:
            for name, array in {**(self.only or {}), **extra}.items() if not self.spools else ():
                with _member(archive, name, method) as member:
                    np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
            for name, (spool, like) in self.spools.items():
                spool.seek(0)
                with _member(archive, name, method) as member, spool:
                    np.lib.format.write_array_header_1_0(member, _described((self.n_rows, *like.shape[1:]), like.dtype))
                    shutil.copyfileobj(spool, member, 1 << 20)
            for name, array in extra.items() if self.spools else ():
                with _member(archive, name, method) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)


def _member(archive: zipfile.ZipFile, name: str, method: int) -> IO[bytes]:
    # A ZipInfo of its own carries the year 1980, not the clock: same columns, same bytes.
    entry = zipfile.ZipInfo(f"{name}.npy")
    entry.compress_type = method
    return archive.open(entry, "w", force_zip64=True)


def _described(shape: tuple[int, ...], dtype: np.dtype[Any]) -> dict[str, Any]:
    return {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}


class NpyWriter:
    """One structured array with a field per column: np.load("out.npy")["probs"]; it can be memory-mapped."""

    def __init__(self, path: Path, n_rows: int) -> None:
        self.path, self.n_rows, self.written = path, n_rows, 0
        self.file = path.open("wb")
        self.dtype: np.dtype[Any] | None = None

    def write(self, columns: Columns) -> None:
        """Add rows."""
        if self.dtype is None:
            self.dtype = np.dtype([(name, array.dtype, array.shape[1:]) for name, array in columns.items()])
            np.lib.format.write_array_header_2_0(self.file, _described((self.n_rows,), self.dtype))
        rows = np.empty(len(next(iter(columns.values()))), self.dtype)
        for name, array in columns.items():
            rows[name] = array
        rows.tofile(self.file)
        self.written += len(rows)

    def close(self) -> None:
        """Close the file."""
        self.file.close()
        if self.written != self.n_rows:
            raise InputError(f"{self.n_rows} rows were announced but {self.written} written.")


class _ArrowColumns:
    """What Parquet and Arrow share: columns as a record batch whose 2-D ones are lists of a fixed size."""

    def __init__(self, path: Path, class_names: ClassNames) -> None:
        self.pa = pyarrow_for(str(path))
        self.path, self.class_names = path, class_names
        self.writer: Any = None

    def write(self, columns: Columns) -> None:
        """Add rows."""
        batch = record_batch(self.pa, columns, self.class_names)
        if self.writer is None:
            self.writer = self._opened(batch.schema, columns)
        self.writer.write_batch(batch)

    def close(self) -> None:
        """Write the footer."""
        if self.writer is not None:
            self.writer.close()

    def _opened(self, schema: Any, columns: Columns) -> Any:
        raise NotImplementedError


def record_batch(pa: Any, columns: Columns, class_names: ClassNames) -> Any:
    """Columns as an Arrow record batch: 2-D ones are lists of a fixed size, the classes go into the schema's metadata.

    Examples
    --------
    >>> import pyarrow
    >>> record_batch(pyarrow, {"probs": np.array([[0.25, 0.75]])}, ["cat", "dog"]).schema.metadata
    {b'metacal.classes': b'["cat", "dog"]'}
    """
    arrays = []
    for array in columns.values():
        flat = _arrow_column(pa, np.ascontiguousarray(array).ravel())
        arrays.append(flat if array.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, array.shape[1]))
    schema = pa.schema([pa.field(name, kind.type) for name, kind in zip(columns, arrays)])
    if class_names is not None:
        schema = schema.with_metadata({CLASSES_KEY: json.dumps(list(class_names))})
    return pa.record_batch(arrays, schema=schema)


def _arrow_column(pa: Any, values: NDArray[Any]) -> Any:
    """A 1-D array as an Arrow column. `pa.array` would do, and import pandas at its first call: a quarter of a second.

    Examples
    --------
    >>> import pyarrow
    >>> _arrow_column(pyarrow, np.array(["a", "", "ñ"])).to_pylist()
    ['a', '', 'ñ']
    """
    n, kind = len(values), values.dtype.kind
    if kind == "U":
        words = [word.encode("utf-8") for word in values.tolist()]
        text = b"".join(words)
        if len(text) < 1 << 31:  # offsets are 32 bits wide
            ends = np.cumsum([0, *map(len, words)], dtype=np.int32)
            return pa.Array.from_buffers(pa.string(), n, [None, pa.py_buffer(ends), pa.py_buffer(text)])
    if kind == "b":
        return pa.Array.from_buffers(pa.bool_(), n, [None, pa.py_buffer(np.packbits(values, bitorder="little"))])
    if kind in "iuf" and values.dtype.isnative and values.itemsize <= 8:
        return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), n, [None, pa.py_buffer(values)])
    return pa.array(values)


class ParquetWriter(_ArrowColumns):
    """Lists of a fixed size; floats with their bytes split by significance, which zstd then packs well."""

    def _opened(self, schema: Any, columns: Columns) -> Any:
        import pyarrow.parquet as parquet

        split, words = [], []
        for name, array in columns.items():
            leaf = name if array.ndim == 1 else f"{name}.list.element"
            if array.dtype.kind == "f":
                split.append(leaf)
            elif array.dtype.kind == "U":
                words.append(leaf)
        return parquet.ParquetWriter(
            self.path, schema, compression="zstd", use_dictionary=words, use_byte_stream_split=split
        )

    def write(self, columns: Columns) -> None:
        """Add rows, as a row group of their own."""
        batch = record_batch(self.pa, columns, self.class_names)
        if self.writer is None:
            self.writer = self._opened(batch.schema, columns)
        self.writer.write_table(self.pa.Table.from_batches([batch]))


class ArrowWriter(_ArrowColumns):
    """The Arrow file format, which Feather version 2 is; not compressed, so that it can be memory-mapped."""

    def _opened(self, schema: Any, columns: Columns) -> Any:
        return self.pa.ipc.new_file(str(self.path), schema)
