"""Readers of .npz and .npy files, and the writer of .npz files.

A large .npy table stays in its file. Sizes that a header claims are compared with the size of the
file before memory is allocated.
"""

from __future__ import annotations

import io
import os
import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from metacal.display import format_names
from metacal.errors import FileContentError
from metacal.io.column_selection import select_arrays
from metacal.io.columns import Columns
from metacal.io.formats.raw import ArrayLocation, RawFile, load_array, view_as_writable_bytes
from metacal.io.opening import SAVE_AS_NPZ_ADVICE, check_unpacked_size
from metacal.io.request import Request

if TYPE_CHECKING:
    from metacal.io.formats.first_rows import FirstRows

# Number of bytes to read for an .npy header, which NumPy limits to 10,000 bytes.
_HEADER_BYTES = 1 << 16

# Number of bytes to decompress at a time, small enough for the processor cache.
_CHUNK_BYTES = 1 << 18

# Number of bytes to copy at a time from a temporary file to an archive.
_COPY_BYTES = 1 << 20

# Maximum number of dimensions that all versions of NumPy support.
_MAX_DIMENSIONS = 32

# Number of bytes of a column to buffer in memory before a temporary file is used.
_SPOOL_BYTES = 1 << 25


def read_npz(request: Request) -> Columns:
    """Read the requested arrays of an .npz file.

    Parameters
    ----------
    request : Request
        Arrays to read.

    Returns
    -------
    Columns

    Raises
    ------
    InputError
        If the archive is not an .npz file, a requested array is missing or contains Python
        objects, or the arrays exceed the unpacking limit.
    """
    path = request.path
    with zipfile.ZipFile(request.path_to_open) as archive:
        members = _find_array_members(archive, path)
        locations = {}
        for name, member in members.items():
            with archive.open(member) as member_file:
                locations[name] = read_npy_header(member_file)

        description_of_array = {
            name: f"{location.shape} {location.dtype}" for name, location in locations.items()
        }
        selection = select_arrays(request, description_of_array)
        if request.keeps_other_columns:
            table_location = locations[selection.table_name]
            column_shape = table_location.shape[:1]
            used_names = (*selection.table_column_names, selection.class_list_name)
            row_array_names = []
            for name, location in locations.items():
                if location.shape == column_shape and name not in used_names:
                    row_array_names.append(name)
            selection = selection.with_kept_columns(row_array_names)
        array_names = list(selection.all_column_names)
        if selection.class_list_name is not None:
            array_names.append(selection.class_list_name)

        for name in array_names:
            _check_header(
                path,
                locations[name],
                array_text=f"array {name!r}",
                n_stored_bytes=members[name].file_size,
            )
        total_bytes = sum(locations[name].n_bytes for name in array_names)
        check_unpacked_size(path, total_bytes, os.path.getsize(request.path_to_open))
        arrays = {
            name: _read_member(archive, members[name], locations[name]) for name in array_names
        }
    return selection.build_columns(
        table=arrays[selection.table_name], read_array=arrays.__getitem__
    )


def _find_array_members(archive: zipfile.ZipFile, path: str) -> dict[str, zipfile.ZipInfo]:
    """Return the array members of an archive by array name.

    Raise InputError if the archive has members but none of them is an array.
    """
    file_names = []
    members = {}
    for member in archive.infolist():
        file_names.append(member.filename)
        if member.filename.endswith(".npy"):
            members[member.filename.removesuffix(".npy")] = member
    if file_names and not members:
        raise FileContentError(
            f"{path}: the file is a zip archive, but not an npz file (it holds"
            f" {format_names(file_names)}); {SAVE_AS_NPZ_ADVICE}."
        )
    return members


def _read_member(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, location: ArrayLocation
) -> NDArray[Any]:
    """Read the array in an archive member, and verify its checksum."""

    def fill(array: NDArray[Any]) -> None:
        view = view_as_writable_bytes(array)
        n_filled = 0
        member_file: Any
        with archive.open(member) as member_file:
            member_file.read(location.offset)
            while n_filled < len(view):
                n_read = member_file.readinto(view[n_filled : n_filled + _CHUNK_BYTES])
                if not n_read:
                    raise EOFError(
                        f"the member {member.filename} ends after {n_filled:,} of {len(view):,}"
                        " bytes"
                    )
                n_filled += n_read
            # zipfile verifies the checksum when the end of the member is reached.
            member_file.read(1)

    return location.read_array(fill)


def read_npy_header(file: IO[bytes]) -> ArrayLocation:
    r"""Read the header of an .npy file.

    Parameters
    ----------
    file : binary stream
        File at its beginning. Afterwards its position is behind the header.

    Returns
    -------
    ArrayLocation

    Raises
    ------
    ValueError
        If the header is not valid.

    Examples
    --------
    >>> text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (10, 2)}".ljust(63) + b"\n"
    >>> read_npy_header(io.BytesIO(b"\x93NUMPY\x01\x00" + bytes([64, 0]) + text))
    ArrayLocation(shape=(10, 2), dtype=dtype('float32'), offset=74, is_fortran_ordered=False)
    """
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"version {version[0]}.{version[1]} of the .npy format is not supported")
    if version == (1, 0):
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
    else:
        shape, is_fortran, dtype = np.lib.format.read_array_header_2_0(file)

    if any(isinstance(length, bool) or length < 0 for length in shape):
        raise ValueError(f"the shape {shape} is not valid")
    if len(shape) > _MAX_DIMENSIONS:
        raise ValueError(f"arrays of {len(shape)} dimensions are not supported")
    if version == (3, 0) and dtype.names is not None:
        # Version 3.0 stores field names in UTF-8, but NumPy's public reader decodes latin-1.
        dtype.names = tuple(name.encode("latin-1").decode("utf-8") for name in dtype.names)
    return ArrayLocation(
        shape=tuple(shape), dtype=dtype, offset=file.tell(), is_fortran_ordered=bool(is_fortran)
    )


def _check_header(
    path: str, location: ArrayLocation, *, array_text: str, n_stored_bytes: int
) -> None:
    """Check that an array is not a pickle and fits into the stored bytes.

    Parameters
    ----------
    path : str
        File name used in error messages.

    location : ArrayLocation
        Position and type that the header claims.

    array_text : str
        Description of the array used in error messages.

    n_stored_bytes : int
        Size in bytes of the file or archive member, including the header.

    Raises
    ------
    InputError
        If the array contains Python objects, which NumPy stores as a pickle.

    ValueError
        If the array is larger than the stored bytes.
    """
    if location.dtype.hasobject:
        raise FileContentError(
            f"{path}: {array_text} holds Python objects (a pickle), which metacal does not"
            " read. Save plain numbers: np.savez('predictions.npz',"
            " logits=np.stack(list(logits)).astype('f4'), labels=labels)."
        )
    if location.offset + location.n_bytes > n_stored_bytes:
        raise ValueError(
            f"{array_text} should have {location.n_bytes:,} bytes (shape {location.shape} of"
            f" {location.dtype}), but it has {n_stored_bytes:,}"
        )


def read_npy(request: Request) -> Columns:
    """Read an .npy file: a table, or the requested fields of a structured array.

    Parameters
    ----------
    request : Request
        Fields to read. A large table stays in its file, a structured array does not.

    Returns
    -------
    Columns

    Raises
    ------
    InputError
        If the file contains Python objects, has no score column although scores are requested,
        or contains a structured array that is not one-dimensional.
    """
    file = RawFile(request.path_to_open, request.path)
    location = read_npy_header(io.BytesIO(file.read_bytes(0, _HEADER_BYTES)))
    _check_header(request.path, location, array_text="it", n_stored_bytes=file.size)
    has_named_fields = location.dtype.fields is not None
    if has_named_fields:
        return _read_structured(request, file, location)
    if request.table_is_score_column:
        raise FileContentError(
            f"{request.path}: the file holds a single array, which has no column names. Save the"
            " columns with np.savez('scores.npz', score=score, correct=correct)."
        )
    table = load_array(request, file, location, may_stay_in_file=True)
    return Columns(path=request.path, table=table)


def _read_structured(request: Request, file: RawFile, location: ArrayLocation) -> Columns:
    """Read the requested fields of a structured array."""
    if len(location.shape) != 1:
        raise FileContentError(
            f"{request.path}: records must be a 1-D array with one entry per row, but the array"
            f" has shape {location.shape}."
        )
    record_dtype = location.dtype
    field_types = {name: str(record_dtype[name]) for name in record_dtype.names or ()}
    # A field has one entry per row, so no field can be the list of class names.
    selection = select_arrays(request, field_types).without_class_list()
    records = location.read_array(partial(file.fill, offset=location.offset))

    def read_field(name: str) -> NDArray[Any]:
        # A field of a structured array may be neither contiguous nor aligned.
        field_values = np.ascontiguousarray(records[name])
        if field_values.dtype.kind == "f" and field_values.itemsize > 8:
            return field_values.astype(np.float64)
        return field_values

    return selection.build_columns(table=read_field(selection.table_name), read_array=read_field)


def read_first_rows_of_npz(request: Request, max_rows: int) -> FirstRows:
    """Read the first rows of the arrays in an .npz file, leaving out scalars."""
    from metacal.io.formats.first_rows import FirstRows

    array_by_name = {}
    with np.load(request.path_to_open, allow_pickle=False) as archive:
        for name in archive.files:
            array = archive[name]
            if array.ndim:
                array_by_name[name] = array[:max_rows]
    return FirstRows("NumPy arrays", array_by_name)


def read_first_rows_of_npy(request: Request, max_rows: int) -> FirstRows:
    """Read the first rows of an .npy file: a table, or records with named fields."""
    from metacal.io.formats.first_rows import FirstRows

    array = np.load(request.path_to_open, mmap_mode="r", allow_pickle=False)[:max_rows]
    field_names = array.dtype.names
    array_by_name = {"logits": array}
    if field_names is not None:
        array_by_name = {name: array[name] for name in field_names}
    return FirstRows("a NumPy array", array_by_name)


@dataclass(frozen=True)
class _SpooledColumn:
    """Column whose blocks are collected until the archive is written.

    Attributes
    ----------
    file : binary stream
        Temporary file with the values so far. Small files are kept in memory.

    row_shape : tuple of int
        Shape of one row.

    dtype : dtype
        Dtype of the values.
    """

    file: IO[bytes]
    row_shape: tuple[int, ...]
    dtype: np.dtype[Any]


class NpzWriter:
    """Writer of .npz files with one array per column and the class names as `classes`.

    The same columns result in the same bytes. The members of a zip archive are written one after
    the other. Blocks of rows are therefore collected, in temporary files next to the archive if
    they are large, and the archive is written on closing.

    Parameters
    ----------
    path : Path
        File to write.

    class_names : sequence of str or int, or None
        Class names in column order.

    n_rows : int
        Number of rows that will be written.

    compress : bool
        Whether to compress the arrays.
    """

    def __init__(
        self, path: Path, class_names: Sequence[str | int] | None, n_rows: int, compress: bool
    ) -> None:
        self.path = path
        self.class_names = class_names
        self.n_rows = n_rows
        self.n_written = 0
        self.compression = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
        # Columns that were written in one block are not copied to a temporary file.
        self.whole_columns: dict[str, NDArray[Any]] = {}
        self.spooled_columns: dict[str, _SpooledColumn] = {}

    def write(self, columns: dict[str, NDArray[Any]]) -> None:
        """Append a block of rows."""
        if self.class_names is not None and "classes" in columns:
            raise FileContentError(
                "An npz file stores class_names under the name 'classes', which is already a"
                " column. Rename the column 'classes'."
            )
        for name, array in to_fixed_width_text(columns).items():
            if len(array) == self.n_rows:
                self.whole_columns[name] = array
            else:
                self._spool(name, array)
        self.n_written += len(next(iter(columns.values())))

    def close_incomplete_file(self) -> None:
        """Delete the temporary files without writing the archive."""
        for column in self.spooled_columns.values():
            column.file.close()

    def close(self) -> None:
        """Write all collected columns to the archive and close it."""
        if self.n_written != self.n_rows:
            raise FileContentError(
                f"Expected {self.n_rows} rows, as announced, but got {self.n_written}."
            )
        arrays = dict(self.whole_columns)
        if self.class_names is not None:
            arrays["classes"] = np.asarray(self.class_names)
        with zipfile.ZipFile(self.path, "w", self.compression) as archive:
            for name, column in self.spooled_columns.items():
                self._write_spooled(archive, name, column)
            for name, array in arrays.items():
                with self._open_member(archive, name) as member:
                    np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)

    def _spool(self, name: str, array: NDArray[Any]) -> None:
        """Append a block of a column to its temporary file."""
        if name not in self.spooled_columns:
            directory = str(self.path.parent)
            spool_file: Any = tempfile.SpooledTemporaryFile(_SPOOL_BYTES, dir=directory)  # noqa: SIM115
            self.spooled_columns[name] = _SpooledColumn(
                file=spool_file, row_shape=array.shape[1:], dtype=array.dtype
            )
        self.spooled_columns[name].file.write(np.ascontiguousarray(array).tobytes())

    def _write_spooled(self, archive: zipfile.ZipFile, name: str, column: _SpooledColumn) -> None:
        """Copy a collected column to the archive, and delete its temporary file."""
        header = {
            "descr": np.lib.format.dtype_to_descr(column.dtype),
            "fortran_order": False,
            "shape": (self.n_rows, *column.row_shape),
        }
        column.file.seek(0)
        with self._open_member(archive, name) as member, column.file:
            np.lib.format.write_array_header_1_0(member, header)
            shutil.copyfileobj(column.file, member, _COPY_BYTES)

    def _open_member(self, archive: zipfile.ZipFile, name: str) -> IO[bytes]:
        """Open a new member of the archive for writing."""
        # A new ZipInfo has the fixed date 1980-01-01, so equal columns give equal bytes.
        member = zipfile.ZipInfo(f"{name}.npy")
        member.compress_type = self.compression
        return archive.open(member, "w", force_zip64=True)


def to_fixed_width_text(columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Convert columns of text objects to NumPy's fixed-width text dtype."""
    return {
        name: array.astype(np.str_) if array.dtype == object else array
        for name, array in columns.items()
    }
