"""Reading of one file of any format, or of several files as one.

Several files are read in the order of their names, or of the list in which they are given. They
must have the same classes and the same roles. A table that is large in total stays in its files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import (
    ClassMismatchError,
    ColumnError,
    CombinationError,
    FileContentError,
    NoRowsError,
    ShapeError,
)
from metacal.io.columns import Columns
from metacal.io.formats import FORMATS
from metacal.io.input_paths import Paths, build_request_of_each_file, list_input_files
from metacal.io.opening import limit_unpacked_size
from metacal.io.remote import get_suffix
from metacal.io.request import (
    FIELDS_OPTIONAL_AFTER_FIT,
    REQUEST_FIELD_OF_ROLE,
    STREAM_BYTES,
    Request,
)
from metacal.io.source_file import open_source
from metacal.rows.stored import JoinedTable
from metacal.spelling import format_option

#: Suffixes of files that hold only labels.
_LABEL_FILE_SUFFIXES = (".npy", ".csv", ".tsv", ".txt")

#: Function that checks and converts the columns of one file.
ColumnsConverter = Callable[[Request, Columns], Columns]


def read_columns(
    path: Paths,
    request: Request,
    check_and_convert: ColumnsConverter,
    *,
    unpack_limit: int | None,
    labels: Paths | None = None,
) -> Columns:
    """Read the requested columns from one or more files and concatenate them.

    Parameters
    ----------
    path : path, sequence of paths, or table in memory
        What to read.

    request : Request
        Description of the wanted columns. Its path is ignored.

    check_and_convert : callable
        Checks and converts the columns of each file.

    unpack_limit : int or None
        Number of bytes to which a file may decompress.

    labels : path or sequence of paths, optional
        Files with the labels: one for all files, or one for each. The `label_key` of the request
        then refers to these files.

    Returns
    -------
    Columns

    Raises
    ------
    InputError
        If a file cannot be read, or if the files do not fit together.
    """
    if not isinstance(path, str | os.PathLike):
        # The Arrow reader is imported here, because files of other formats do not need it.
        from metacal.io.formats.arrow import InMemoryBatches, is_table_in_memory, read_batches

        if is_table_in_memory(path):
            memory_request = replace(request, path="the table")
            return check_and_convert(
                memory_request, read_batches(memory_request, InMemoryBatches(path))
            )

    table_request = request
    label_requests: list[Request] = []
    if labels is not None:
        table_request = replace(request, label_key=None)
    table_requests = build_request_of_each_file(table_request, list_input_files(path, FORMATS))
    if labels is not None:
        label_paths = list_input_files(labels, _LABEL_FILE_SUFFIXES)
        label_requests = build_request_of_each_file(replace(request, format=None), label_paths)
    n_files = len(table_requests)
    if len(label_requests) not in (0, 1, n_files):
        raise CombinationError(
            "Expected as many files of labels as files of predictions, but got"
            f" {len(label_requests)} and {n_files}."
        )
    has_stream_option = request.stream is not None
    if n_files > 1 and not has_stream_option and _sum_sizes(table_requests) > STREAM_BYTES:
        table_requests = [replace(table_request, stream=True) for table_request in table_requests]

    label_request_per_file: Sequence[Request | None] = [None] * n_files
    has_label_file_per_file = len(label_requests) == n_files
    if has_label_file_per_file:
        label_request_per_file = label_requests
    with limit_unpacked_size(unpack_limit):
        columns_of_files = _read_files(table_requests, label_request_per_file, check_and_convert)
        if not columns_of_files:
            raise NoRowsError(
                f"{path}: none of the {n_files:,} files has rows. At least one row is required."
            )
        columns = _concatenate(str(path), columns_of_files)
        shares_one_label_file = len(label_requests) == 1 and n_files > 1
        if shares_one_label_file:
            labelled_columns = replace(columns, labels=_read_label_file(label_requests[0]))
            columns = check_and_convert(replace(request, path=columns.path), labelled_columns)
    return columns


def _sum_sizes(requests: Sequence[Request]) -> int:
    """Return the total size in bytes of the files that exist."""
    paths = [request.path_to_open for request in requests]
    return sum(os.path.getsize(path) for path in paths if os.path.exists(path))


def _read_files(
    table_requests: Sequence[Request],
    label_requests: Sequence[Request | None],
    check_and_convert: ColumnsConverter,
) -> list[Columns]:
    """Read the files, and skip files without rows if there are several files."""
    columns_of_files = []
    for table_request, label_request in zip(table_requests, label_requests, strict=True):
        try:
            columns_of_files.append(_read_file(table_request, label_request, check_and_convert))
        except NoRowsError:
            if len(table_requests) == 1:
                raise
    return columns_of_files


def _read_file(
    request: Request, label_request: Request | None, check_and_convert: ColumnsConverter
) -> Columns:
    """Read one file, and its labels from a second file if there is one."""
    if label_request is not None and label_request.path == request.path == "-":
        raise CombinationError(
            "The table and the labels cannot both come from standard input. Save one of them as"
            " a file."
        )
    with open_source(request) as source_file:
        columns = FORMATS[source_file.suffix].read(source_file.request)
    _check_requested_columns_exist(request, columns)
    _check_kept_columns(request, columns)
    if columns.table.ndim and len(columns.table) == 0:
        raise NoRowsError(f"{request.path}: the file has no rows. At least one row is required.")
    if label_request is not None:
        columns = replace(columns, labels=_read_label_file(label_request))
    return check_and_convert(request, columns)


def _check_requested_columns_exist(request: Request, columns: Columns) -> None:
    """Raise InputError if a file without column names lacks a requested column.

    Readers of files with column names raise this error themselves.
    """
    missing_names: list[str | None] = []
    for role in ("groups", "units", "cases"):
        request_field = REQUEST_FIELD_OF_ROLE[role]
        is_named_by_gate = request_field in request.fields_set_by_gate
        is_optional = is_named_by_gate and request_field in FIELDS_OPTIONAL_AFTER_FIT
        if role not in columns.array_of_role and not is_optional:
            missing_names.append(getattr(request, request_field))
    missing_names.extend(name for name in request.kept_names if name not in columns.kept)
    for name in missing_names:
        if name is not None:
            raise ColumnError(
                f"{request.path}: the file holds one array without column names, so it has no"
                f" column {name!r}."
            )


def _check_kept_columns(request: Request, columns: Columns) -> None:
    """Raise InputError if a copied column does not have one value per row."""
    for name, column in columns.kept.items():
        n_rows = len(columns.table)
        if column.shape != (n_rows,):
            raise ShapeError(
                f"{request.path}: a column to keep must have one value for each of the {n_rows:,}"
                f" rows, but {name!r} has shape {column.shape}."
            )


def _read_label_file(request: Request) -> NDArray[Any]:
    """Read a file that holds only labels."""
    from metacal.io.formats.label_files import read_labels

    path = request.path
    name_suffix = get_suffix(path)
    unsupported_format_error = FileContentError(
        f"{path}: the file type is not supported for labels. Pass .npy, or pass .csv, .tsv or"
        " .txt with one label per line."
    )
    is_standard_input = path == "-"
    if name_suffix not in _LABEL_FILE_SUFFIXES and not is_standard_input:
        raise unsupported_format_error
    try:
        with open_source(request) as source_file:
            if source_file.suffix in (".csv", ".tsv"):
                return read_labels(source_file.request, name_suffix)
            if source_file.suffix != ".npy":
                raise unsupported_format_error
            # The labels are the only array of the file, which a reader returns as the table.
            label_array_request = Request(
                path, copy_path=source_file.request.path_to_open, stream=False
            )
            return np.asarray(FORMATS[".npy"].read(label_array_request).table)
    except NoRowsError as error:
        # An empty label file is an error, because the table has rows.
        raise FileContentError(str(error)) from None


def _concatenate(path: str, columns_of_files: Sequence[Columns]) -> Columns:
    """Concatenate the columns of several files.

    Raise InputError if they do not fit together.
    """
    first_columns = columns_of_files[0]
    for other_columns in columns_of_files[1:]:
        _check_same_columns(first_columns, other_columns)
    if len(columns_of_files) == 1:
        return first_columns

    array_of_role: dict[str, Any] = {}
    for role in first_columns.array_of_role:
        array_of_role[role] = np.concatenate(
            [file_columns.array_of_role[role] for file_columns in columns_of_files]
        )
    kept_columns = {}
    unused_names = list(first_columns.unused_names)
    for name in first_columns.kept:
        if all(name in file_columns.kept for file_columns in columns_of_files):
            kept_columns[name] = np.concatenate(
                [file_columns.kept[name] for file_columns in columns_of_files]
            )
        else:
            unused_names.append(name)
    remarks = [remark for file_columns in columns_of_files for remark in file_columns.remarks]
    return replace(
        first_columns,
        path=path,
        table=_concatenate_tables(columns_of_files),
        line_numbers=None,
        remarks=tuple(dict.fromkeys(remarks)),
        kept=kept_columns,
        unused_names=tuple(unused_names),
        **array_of_role,
    )


def _concatenate_tables(columns_of_files: Sequence[Columns]) -> Any:
    """Concatenate tables in memory.

    A table that is large or stored becomes a `JoinedTable`.
    """
    tables: list[Any] = [file_columns.table for file_columns in columns_of_files]
    if tables[0].ndim != 2:
        return np.concatenate(tables)
    joined_table = JoinedTable(tables, [file_columns.path for file_columns in columns_of_files])
    all_in_memory = all(isinstance(table, np.ndarray) for table in tables)
    if all_in_memory and joined_table.nbytes <= STREAM_BYTES:
        return np.concatenate(tables)
    return joined_table


def _check_same_columns(first_columns: Columns, other_columns: Columns) -> None:
    """Raise InputError if two files differ in their classes or roles."""
    is_score_file = first_columns.table.ndim == 1
    if not is_score_file and other_columns.table.shape[1] != first_columns.table.shape[1]:
        raise ClassMismatchError(
            f"{other_columns.path} has {other_columns.table.shape[1]} classes, but"
            f" {first_columns.path} has {first_columns.table.shape[1]}. Files that are read"
            " together must have the same columns."
        )
    if other_columns.class_names != first_columns.class_names:
        raise ClassMismatchError(
            f"{other_columns.path} and {first_columns.path} have different classes, or the"
            " same classes in a different order. Choose and order the columns with"
            f" {format_option('classes')}."
        )
    for role in REQUEST_FIELD_OF_ROLE:
        first_has_role = role in first_columns.array_of_role
        other_has_role = role in other_columns.array_of_role
        if first_has_role == other_has_role:
            continue
        complete_path, incomplete_path = first_columns.path, other_columns.path
        if other_has_role:
            complete_path, incomplete_path = other_columns.path, first_columns.path
        role_name = role
        if is_score_file and role == "labels":
            role_name = "column of correctness"
        raise ColumnError(
            f"{incomplete_path} has no {role_name}, but {complete_path} has one. Files that are"
            " read together must have the same columns. Add the column, or read the files"
            " separately."
        )
