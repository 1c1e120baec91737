"""Atomic writing of tables to files."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metacal.display import EscapingStream, is_terminal
from metacal.errors import FileWriteError, ShapeError
from metacal.io.disk import DISK, build_temporary_path, input_error_if_write_fails
from metacal.io.formats import FORMATS, list_extensions

#: Access mode of new files, before the umask.
_NEW_FILE_MODE = 0o666


@contextlib.contextmanager
def open_atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary file that replaces `path` when the context ends without error.

    On any exception, including KeyboardInterrupt, the new file is removed and `path` is unchanged.
    A path that is not a regular file, such as a pipe or /dev/null, is yielded itself. A symbolic
    link remains a link.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with open_atomic_path(folder / "a.txt") as temporary_path:
    ...     _ = temporary_path.write_text("whole")
    >>> [item.name for item in folder.iterdir()]
    ['a.txt']
    """
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise FileWriteError(
            f"cannot write {os.fspath(path)}: the path is a folder. Pass a file name."
        )
    # `target` cannot be checked here, because the system invents a name for a pipe.
    is_special_file = os.path.exists(path) and not os.path.isfile(path)
    if is_special_file:
        yield Path(path)
        return
    temporary_path = Path(build_temporary_path(target))
    try:
        with input_error_if_write_fails(path):
            # os.open respects the umask, tempfile does not.
            os.close(os.open(temporary_path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, _NEW_FILE_MODE))
        yield temporary_path
        with input_error_if_write_fails(path):
            DISK.replace(str(temporary_path), str(target))
    finally:
        with contextlib.suppress(NotADirectoryError):
            temporary_path.unlink(missing_ok=True)


@contextlib.contextmanager
def open_table(
    path: str | os.PathLike[str],
    n_rows: int,
    *,
    class_names: Sequence[str | int] | None = None,
    format: str | None = None,
    compress: bool = False,
    part: str | None = None,
) -> Iterator[Callable[[Mapping[str, ArrayLike]], None]]:
    """Open a file for writing, and yield a function that appends a block of rows.

    The file appears when the context ends without an error.

    Parameters
    ----------
    path : path or "-"
        File to write; "-" is standard output. Rows in csv, tsv and jsonl go to standard output one
        by one, other formats when the table is complete.

    n_rows : int
        Total number of rows.

    class_names, format, compress
        See `write_table`.

    part : path, optional
        File to write instead of `path`, if another process moves it there. Messages still show
        `path`.

    Yields
    ------
    callable
        Takes a mapping of column names to arrays.

    Examples
    --------
    >>> with open_table("-", 3) as write:
    ...     write({"id": [1, 2], "accept": [True, False]})
    ...     write({"id": [3], "accept": [True]})
    id,accept
    1,true
    2,false
    3,true
    """
    suffix = get_output_suffix(path, format)
    create_writer = FORMATS[suffix].create_writer
    assert create_writer is not None
    with _open_target(path, suffix, unfinished_path=part) as target:
        with _input_error_if_file_write_fails(path, target):
            writer = create_writer(target, class_names, n_rows, compress)

        def write_block(columns: Mapping[str, ArrayLike]) -> None:
            arrays = _check_columns(columns, class_names)
            with _input_error_if_file_write_fails(path, target):
                writer.write(arrays)

        try:
            yield write_block
        except BaseException:
            # The incomplete file will be removed, so it is closed but not completed.
            with contextlib.suppress(Exception):
                close_incomplete_file = getattr(writer, "close_incomplete_file", writer.close)
                close_incomplete_file()
            raise
        with _input_error_if_file_write_fails(path, target):
            writer.close()


def _input_error_if_file_write_fails(
    path: str | os.PathLike[str], target: Any
) -> contextlib.AbstractContextManager[None]:
    """Return a context that explains write errors, unless the target is a text stream."""
    if isinstance(target, Path):
        return input_error_if_write_fails(path)
    return contextlib.nullcontext()


@contextlib.contextmanager
def _open_target(
    path: str | os.PathLike[str], suffix: str, unfinished_path: str | None
) -> Iterator[Any]:
    """Yield the destination of a writer: a temporary file or standard output.

    Parameters
    ----------
    path : path or "-"
        Final file.

    suffix : str
        Key of the format in `FORMATS`.

    unfinished_path : str or None
        Temporary file that another process moves to `path`, and removes after a failure.

    Yields
    ------
    Path or text stream
    """
    if unfinished_path is not None:
        yield Path(unfinished_path)
    elif os.fspath(path) != "-":
        with open_atomic_path(path) as temporary_path:
            yield temporary_path
    elif FORMATS[suffix].is_text:
        if is_terminal(sys.stdout):
            yield EscapingStream(sys.stdout)
        else:
            yield sys.stdout
    elif is_terminal(sys.stdout):
        raise FileWriteError(
            f"A {suffix} file cannot be printed to a terminal. Redirect standard output to a file"
            " or a pipe."
        )
    else:
        with tempfile.TemporaryDirectory(prefix="metacal-") as directory:
            temporary_path = Path(directory) / f"stdout{suffix}"
            yield temporary_path
            with temporary_path.open("rb") as file:
                shutil.copyfileobj(file, sys.stdout.buffer)
            sys.stdout.buffer.flush()


def get_output_suffix(path: str | os.PathLike[str], format: str | None = None) -> str:
    """Return the suffix that determines the format of an output file.

    Parameters
    ----------
    path : path or "-"
        Output file. Standard output is csv by default.

    format : str, optional
        Format, which takes precedence over the suffix of the path.

    Returns
    -------
    str

    Raises
    ------
    InputError
        If the format cannot be written.

    Examples
    --------
    >>> get_output_suffix("out.CSV"), get_output_suffix("-"), get_output_suffix("-", "parquet")
    ('.csv', '.csv', '.parquet')
    """
    if format is not None:
        suffix = f".{format.lower().lstrip('.')}"
    elif os.fspath(path) == "-":
        suffix = ".csv"
    else:
        suffix = Path(path).suffix.lower()
    writable_suffixes = list_extensions(writable=True)
    if suffix not in writable_suffixes:
        raise FileWriteError(
            f"cannot write {os.fspath(path)}: the file type {suffix!r} is not supported. End the"
            f" name in {', '.join(writable_suffixes)}."
        )
    return suffix


def write_table(
    path: str | os.PathLike[str],
    columns: Mapping[str, ArrayLike],
    *,
    class_names: Sequence[str | int] | None = None,
    format: str | None = None,
    compress: bool = False,
) -> None:
    """Write columns of equal length to a file.

    The suffix of the file determines the format.

    Parameters
    ----------
    path : path or "-"
        File to write; "-" is standard output. The file is never incomplete.

    columns : mapping of str to array
        1-D arrays, or 2-D arrays with one column per class. A 2-D array is one array in npz, and a
        column of lists of a fixed size in parquet and arrow. In csv and tsv, a 2-D array `probs`
        becomes the columns `probs_0` to `probs_{K-1}`, or `probs_cat`, `probs_dog` if `class_names`
        are given. In jsonl it becomes a list, or entries of these names.

    class_names : sequence, optional
        One name per column of every 2-D array. They are stored as `classes` in npz, and in the
        metadata of the schema in parquet and arrow.

    format : str, optional
        Format such as "csv" or "parquet", which takes precedence over the suffix. Standard output
        is csv by default.

    compress : bool, default=False
        Whether to compress an npz file. It is then about half as large, and takes several times as
        long to write.

    Raises
    ------
    InputError
        If the columns are not suitable or the file cannot be written.

    Examples
    --------
    >>> columns = {"id": [7, 8], "probs": [[0.25, 0.75], [1.0, 0.0]]}
    >>> write_table("-", columns, class_names=["cat", "dog"])
    id,probs_cat,probs_dog
    7,0.25,0.75
    8,1.0,0.0
    """
    arrays = _check_columns(columns, class_names)
    n_rows = len(next(iter(arrays.values())))
    with open_table(
        path, n_rows, class_names=class_names, format=format, compress=compress
    ) as write_block:
        write_block(arrays)


def _check_columns(
    columns: Mapping[str, ArrayLike], class_names: Sequence[str | int] | None
) -> dict[str, NDArray[Any]]:
    """Convert columns to arrays and check their shapes."""
    if not columns:
        raise ShapeError("columns must not be empty. Pass at least one column to write.")
    arrays = {name: _check_column(name, values) for name, values in columns.items()}
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise ShapeError(f"all columns must have the same length, but got {lengths}.")
    if class_names is None:
        return arrays
    for name, array in arrays.items():
        if array.ndim == 2 and array.shape[1] != len(class_names):
            raise ShapeError(
                f"the column {name!r} has {array.shape[1]} classes, but class_names has"
                f" {len(class_names)} names."
            )
    return arrays


def _check_column(name: object, values: ArrayLike) -> NDArray[Any]:
    """Convert a column to an array, and check its name, type and shape."""
    if not isinstance(name, str) or not name or "/" in name:
        raise ShapeError(f"a column name must be a non-empty string without '/', but got {name!r}.")
    array = np.asarray(values)
    if array.dtype == object:
        has_valid_type = all(isinstance(item, str) for item in array.ravel())
    else:
        has_valid_type = array.dtype.kind in "iubfU"
    if array.ndim not in (1, 2) or not has_valid_type:
        raise ShapeError(
            f"the column {name!r} must be a 1-D or 2-D array of numbers or strings, but it has"
            f" shape {array.shape} and type {array.dtype}."
        )
    return array


def check_output_directory(path: str | os.PathLike[str]) -> None:
    """Raise InputError if the directory of an output file does not exist.

    Call this before a long computation whose result is written to `path`.
    """
    with input_error_if_write_fails(path):
        os.stat(os.path.join(os.path.dirname(os.path.realpath(path)), "."))
