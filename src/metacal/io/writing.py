"""Tables written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metacal.display import VisibleText, on_a_terminal
from metacal.errors import InputError
from metacal.io.disk import DISK, part_beside, plain_write_errors
from metacal.io.formats import FORMATS, endings


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a new, empty file beside `path` to write; it takes the place of `path` only when all
    went well.

    On any exception, KeyboardInterrupt included, the new file is removed and `path` is as it was.
    What is not a plain file (a pipe, /dev/null) is written directly; a symbolic link keeps pointing
    where it does.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with atomic_path(folder / "a.txt") as part:
    ...     _ = part.write_text("whole")
    >>> [item.name for item in folder.iterdir()]
    ['a.txt']
    """
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise InputError(f"cannot write {os.fspath(path)}: it is a folder; give a file name.")
    if os.path.exists(path) and not os.path.isfile(
        path
    ):  # not `target`: of a pipe the system makes up a name
        yield Path(path)
        return
    part = Path(part_beside(target))
    try:
        with plain_write_errors(path):
            # os.open honours the umask, which tempfile does not.
            os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        yield part
        with plain_write_errors(path):
            DISK.replace(str(part), str(target))
    finally:
        with contextlib.suppress(NotADirectoryError):
            part.unlink(missing_ok=True)


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
    """Give a function that adds rows to a file, block by block; the file appears when all went
    well.

    Parameters
    ----------
    path : path or "-"
        "-" is standard output: csv, tsv and jsonl row by row, any other format when it is whole.
    n_rows : int
        How many rows there will be.
    class_names, format, compress
        As in `write_table`.
    part : path, optional
        What is written in place of `path`, which somebody else will put there: messages still speak
        of `path`.

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
    suffix = table_suffix(path, format)
    with _target(path, suffix, part) as target:
        plain = (
            partial(plain_write_errors, path)
            if isinstance(target, Path)
            else contextlib.nullcontext
        )
        with plain():
            writer = FORMATS[suffix].write(target, class_names, n_rows, compress)  # type: ignore[misc]

        def write(columns: Mapping[str, ArrayLike]) -> None:
            arrays = _checked_columns(columns, class_names)
            with plain():
                writer.write(arrays)

        try:
            yield write
        except BaseException:
            # What cannot be finished need not be: the part is removed. But no file may stay open.
            with contextlib.suppress(Exception):
                getattr(writer, "abandon", writer.close)()
            raise
        with plain():
            writer.close()


@contextlib.contextmanager
def _target(path: str | os.PathLike[str], suffix: str, part: str | None) -> Iterator[Any]:
    """What a writer is given: a file that takes its place when it is whole, or standard output for
    text.
    """
    if part is not None:  # whoever puts it in its place sweeps away what was not finished
        yield Path(part)
    elif os.fspath(path) != "-":
        with atomic_path(path) as beside:
            yield beside
    elif FORMATS[suffix].begins == ():
        yield VisibleText(sys.stdout) if on_a_terminal(sys.stdout) else sys.stdout
    elif on_a_terminal(sys.stdout):
        raise InputError(
            f"a {suffix} file is not for the screen; redirect standard output to a file or a pipe."
        )
    else:
        with tempfile.TemporaryDirectory(prefix="metacal-") as folder:
            whole = Path(folder) / f"stdout{suffix}"
            yield whole
            with whole.open("rb") as file:
                shutil.copyfileobj(file, sys.stdout.buffer)
            sys.stdout.buffer.flush()


def table_suffix(path: str | os.PathLike[str], format: str | None = None) -> str:
    """The suffix that says how a table is written, or an error that lists those that are.

    Examples
    --------
    >>> table_suffix("out.CSV"), table_suffix("-"), table_suffix("-", "parquet")
    ('.csv', '.csv', '.parquet')
    """
    default = ".csv" if os.fspath(path) == "-" else Path(path).suffix.lower()
    suffix = default if format is None else f".{format.lower().lstrip('.')}"
    written = endings(written=True)
    if suffix not in written:
        raise InputError(
            f"cannot write {os.fspath(path)}: unknown file type {suffix!r}; end the name in"
            f" {', '.join(written)}."
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
    """Write named columns of equal length, by suffix: .npz, .csv, .tsv, .jsonl, .parquet, .arrow,
    ….

    Parameters
    ----------
    path : path or "-"
        Never left half written; "-" is standard output.
    columns : mapping of str to array
        1-D arrays, or 2-D ones with a column per class. In npz each is one array, in parquet and
        arrow a column (of lists of a fixed size); in csv and tsv a 2-D `probs` becomes `probs_0` …
        `probs_{K-1}`, or `probs_cat`, `probs_dog` when `class_names` are given; in jsonl a list, or
        the same names.
    class_names : sequence, optional
        One per column of every 2-D array; npz holds them as `classes`, parquet and arrow in the
        schema's metadata.
    format : str, optional
        "csv", "parquet", …: in place of the suffix. Standard output is csv when None.
    compress : bool
        Whether the npz is compressed: about half the size, several times slower.

    Examples
    --------
    >>> write_table("-", {"id": [7, 8], "probs": [[0.25, 0.75], [1.0, 0.0]]}, class_names=["cat", "dog"])
    id,probs_cat,probs_dog
    7,0.25,0.75
    8,1.0,0.0
    """
    arrays = _checked_columns(columns, class_names)
    n_rows = len(next(iter(arrays.values())))
    with open_table(
        path, n_rows, class_names=class_names, format=format, compress=compress
    ) as write:
        write(arrays)


def _checked_columns(
    columns: Mapping[str, ArrayLike], class_names: Sequence[str | int] | None
) -> dict[str, NDArray[Any]]:
    if not columns:
        raise InputError("there is nothing to write: columns is empty.")
    arrays = {name: _plain_array(name, values) for name, values in columns.items()}
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise InputError(f"all columns must have the same length, got {lengths}.")
    for name, array in arrays.items():
        if class_names is not None and array.ndim == 2 and array.shape[1] != len(class_names):
            raise InputError(
                f"column {name!r} has {array.shape[1]} classes but class_names has"
                f" {len(class_names)}."
            )
    return arrays


def _plain_array(name: object, values: ArrayLike) -> NDArray[Any]:
    if not isinstance(name, str) or not name or "/" in name:
        raise InputError(f"a column name must be a non-empty string without '/', got {name!r}.")
    array = np.asarray(values)
    texts = array.dtype == object and all(isinstance(item, str) for item in array.ravel())
    if array.ndim not in (1, 2) or not (texts or array.dtype.kind in "iubfU"):
        raise InputError(
            f"column {name!r} must be a 1-D or 2-D array of numbers or strings, "
            f"got shape {array.shape} of type {array.dtype}."
        )
    return array


def check_folder(path: str | os.PathLike[str]) -> None:
    """Raise unless there is a folder to write `path` to: better before the work than after it."""
    with plain_write_errors(path):
        os.stat(os.path.join(os.path.dirname(os.path.realpath(path)), "."))
