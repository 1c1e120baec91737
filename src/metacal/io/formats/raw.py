"""Arrays stored in a file as raw numbers, read by position.

Files are not memory-mapped, because a memory map ends the process with SIGBUS if another program
shortens the file. A read that returns too few bytes raises an error instead. While the pages of the
file are cached, the price is one copy into a buffer that stays in the processor's cache, a few
percent of the time of the computations that follow. Every read also compares the size and the
modification time of the file with those at opening, so that a table never mixes old and new
numbers.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from metacal.errors import FileContentError
from metacal.formulas import Codes
from metacal.io.opening import input_error_if_read_fails
from metacal.io.request import Request
from metacal.rows.stored import ConvertedTable, StoredTable

# Minimum mean distance of the requested rows, in bytes, at which they are read one by one.
_MIN_MEAN_DISTANCE_BYTES = 1 << 14


@dataclass(frozen=True)
class Conversion:
    """Conversion of stored numbers to a dtype that NumPy supports.

    Attributes
    ----------
    convert : callable
        Function that converts an array of stored numbers.

    dtype : dtype-like
        Dtype of the result.
    """

    convert: Callable[[NDArray[Any]], NDArray[Any]]
    dtype: Any


def view_as_writable_bytes(array: NDArray[Any]) -> memoryview:
    """Return a writable view of the bytes of a C-ordered array."""
    if not array.nbytes:
        return memoryview(b"")
    return array.reshape(-1).view(np.uint8).data


class RawFile:
    """Open file that is read by position.

    The file stays readable if its name is deleted. After unpickling, the file is opened again on
    the first read; its size and modification time must be unchanged.

    Parameters
    ----------
    path : str
        File to open.

    display_path : str
        File name used in error messages.

    Attributes
    ----------
    size : int
        Size in bytes.

    modified_ns : int
        Modification time in nanoseconds.
    """

    def __init__(self, path: str, display_path: str) -> None:
        self.path = path
        self.display_path = display_path
        self._descriptor = -1
        self._lock = threading.Lock()
        self.size, self.modified_ns = self._current_status()

    def __getstate__(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "display_path": self.display_path,
            "size": self.size,
            "modified_ns": self.modified_ns,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        # The file is opened on first use, because this process may not be able to access it.
        self.__dict__.update(state, _descriptor=-1, _lock=threading.Lock())

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def check_unchanged(self) -> None:
        """Raise InputError if the file was modified since it was opened."""
        if self._current_status() != (self.size, self.modified_ns):
            raise FileContentError(
                f"{self.display_path}: the file changed while it was read. Wait until the file is"
                " complete, and read it again."
            )

    def fill(self, array: NDArray[Any], offset: int) -> None:
        """Fill a C-ordered array with bytes of the file, starting at `offset`."""
        view = view_as_writable_bytes(array)
        n_filled = 0
        with input_error_if_read_fails(self.display_path):
            while n_filled < len(view):
                n_read = self._read_into(view[n_filled:], offset + n_filled)
                if n_read == 0:
                    break
                n_filled += n_read
        self.check_unchanged()
        if n_filled < len(view):
            raise FileContentError(
                f"{self.display_path}: the file is damaged or cut short. Copy the file again, or"
                " write it again."
            )

    def read_bytes(self, offset: int, count: int) -> bytes:
        """Return up to `count` bytes, starting at `offset`."""
        count = max(0, min(count, self.size - offset))
        if hasattr(os, "pread"):
            # os.pread needs one copy of the bytes, whereas fill and tobytes need two.
            with input_error_if_read_fails(self.display_path):
                content = os.pread(self._open_descriptor(), count, offset)
            if len(content) == count:
                self.check_unchanged()
                return content
        buffer = np.empty(count, dtype=np.uint8)
        self.fill(buffer, offset)
        return buffer.tobytes()

    def _current_status(self) -> tuple[int, int]:
        """Return the current size and modification time of the file."""
        status = os.fstat(self._open_descriptor())
        return status.st_size, status.st_mtime_ns

    def _open_descriptor(self) -> int:
        """Open the file unless it is open already, and return its descriptor."""
        if self._descriptor < 0:
            flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
            with self._lock, input_error_if_read_fails(self.display_path):
                # Another thread may have opened the file in the meantime.
                if self._descriptor < 0:
                    self._descriptor = os.open(self.path, flags)
        return self._descriptor

    def _read_into(self, view: memoryview, offset: int) -> int:
        """Read bytes at `offset` into a buffer and return their number."""
        descriptor = self._open_descriptor()
        if hasattr(os, "preadv"):
            return os.preadv(descriptor, [view], offset)
        # Windows has no positional read.
        with self._lock:
            os.lseek(descriptor, offset, os.SEEK_SET)
            content = os.read(descriptor, len(view))
        view[: len(content)] = content
        return len(content)


@dataclass(frozen=True)
class ArrayLocation:
    """Position and type of an array in a file.

    Attributes
    ----------
    shape : tuple of int
        Shape of the array.

    dtype : dtype
        Stored dtype, in either byte order.

    offset : int
        Position of the first element in the file.

    is_fortran_ordered : bool, default=False
        Whether the array is stored in Fortran order.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int
    is_fortran_ordered: bool = False

    @property
    def n_bytes(self) -> int:
        """Size of the array in bytes, as a Python integer that cannot overflow."""
        return math.prod(self.shape) * self.dtype.itemsize

    def read_array(self, fill: Callable[[NDArray[Any]], object]) -> NDArray[Any]:
        """Read the whole array.

        Parameters
        ----------
        fill : callable
            Function that fills a C-ordered array with the stored bytes.

        Returns
        -------
        array
            In native byte order.
        """
        stored_shape = self.shape[::-1] if self.is_fortran_ordered else self.shape
        array = np.empty(stored_shape, self.dtype)
        fill(array)
        if self.is_fortran_ordered:
            array = array.T
        if self.dtype.isnative or self.dtype.hasobject:
            return array
        return array.astype(self.dtype.newbyteorder("="))


class RawTable(StoredTable):
    """Table stored in C order in a file, whose rows are read on demand.

    Parameters
    ----------
    file : RawFile
        File that contains the table.

    location : ArrayLocation
        Position and type of the table.
    """

    def __init__(self, file: RawFile, location: ArrayLocation) -> None:
        n_rows, n_columns = location.shape
        super().__init__((n_rows, n_columns), location.dtype.newbyteorder("="))
        self.file = file
        self.stored_dtype = location.dtype
        self.offset = location.offset
        self.row_bytes = n_columns * location.dtype.itemsize

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return the rows from `start` up to but excluding `stop`, in native byte order."""
        rows = np.empty((max(0, stop - start), self.shape[1]), self.stored_dtype)
        self.file.fill(rows, self.offset + start * self.row_bytes)
        return self._to_native(rows)

    def _read_rows(self, rows: Codes) -> NDArray[Any]:
        """Read the rows with the given indices; read distant rows one by one."""
        if not self._are_rows_distant(rows):
            return super()._read_rows(rows)
        table = np.empty((len(rows), self.shape[1]), self.stored_dtype)
        for position, row in enumerate(rows.tolist()):
            self.file.fill(table[position], self.offset + row * self.row_bytes)
        return self._to_native(table)

    def _are_rows_distant(self, row_indices: Codes) -> bool:
        """Check whether row indices are valid and far apart on average."""
        if len(row_indices) == 0:
            return False
        first_row = int(row_indices.min())
        last_row = int(row_indices.max())
        has_valid_indices = first_row >= 0 and last_row < len(self)
        spread_bytes = (last_row - first_row) * self.row_bytes
        min_spread_bytes = _MIN_MEAN_DISTANCE_BYTES * len(row_indices)
        return has_valid_indices and spread_bytes >= min_spread_bytes

    def _to_native(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Convert rows to native byte order if necessary."""
        if rows.dtype.isnative:
            return rows
        return rows.astype(self.dtype)


def load_array(
    request: Request,
    file: RawFile,
    location: ArrayLocation,
    *,
    may_stay_in_file: bool = False,
    conversion: Conversion | None = None,
) -> NDArray[Any] | StoredTable:
    """Read an array from a file, or return a table that reads its rows on demand.

    Parameters
    ----------
    request : Request
        Determines how large a table must be to stay in its file.

    file : RawFile
        File that contains the array.

    location : ArrayLocation
        Position and type of the array.

    may_stay_in_file : bool, default=False
        Whether a large table may stay in its file. A table in Fortran order is always read as a
        whole, because its rows are not contiguous.

    conversion : Conversion or None, default=None
        Conversion of the stored numbers.

    Returns
    -------
    array or StoredTable
        If dtype or number of dimensions are not supported, an array of zeros that has the right
        shape but takes no memory. The validation that follows rejects it.
    """
    dtype = location.dtype
    is_extended_precision = dtype.kind == "f" and dtype.itemsize > 8
    if conversion is None and is_extended_precision:
        # Extended-precision floats depend on the platform, so they are converted to float64.
        conversion = Conversion(partial(np.asarray, dtype=np.float64), np.float64)

    n_dimensions = len(location.shape)
    is_supported = dtype.kind in "fiubU" and n_dimensions in (1, 2)
    if not is_supported:
        # Validation rejects the type or shape, so the array is not read.
        result_dtype = dtype if conversion is None else conversion.dtype
        return _build_zeros_without_memory(location.shape, result_dtype)

    has_contiguous_rows = n_dimensions == 2 and not location.is_fortran_ordered
    holds_numbers = dtype.kind != "U"
    if may_stay_in_file and has_contiguous_rows and holds_numbers:
        table_in_file: StoredTable = RawTable(file, location)
        if conversion is not None:
            table_in_file = ConvertedTable(table_in_file, conversion.convert, conversion.dtype)
        if request.keeps_table_in_file(table_in_file.nbytes, reader_holds_file_open=True):
            return table_in_file

    array = location.read_array(partial(file.fill, offset=location.offset))
    if conversion is None:
        return array
    return conversion.convert(array)


def _build_zeros_without_memory(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return a read-only array of zeros whose elements share one place in memory."""
    return np.broadcast_to(np.zeros((), dtype), shape)
