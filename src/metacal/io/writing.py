"""Tables written whole or not at all."""

from __future__ import annotations

import contextlib
import csv
import os
import stat
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metacal.errors import InputError

#: Cells turned into text in one go.
_BLOCK_CELLS = 1 << 17


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a new, empty file beside `path` to write; it takes the place of `path` only when all went well.

    On any exception, KeyboardInterrupt included, the new file is removed and `path` is as it was. What is not a plain
    file (a pipe, /dev/null) is written directly; a symbolic link keeps pointing where it does.

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
    if target.exists() and not target.is_file():
        yield target
        return
    # The suffix stays last: writers that look at it (np.savez appends .npz) must find it.
    part = target.with_name(f".{target.name}.{uuid.uuid4().hex[:12]}.part{target.suffix}")
    try:
        with plain_write_errors(path):
            # os.open honours the umask, which tempfile does not.
            os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        yield part
        with plain_write_errors(path):
            with part.open("r+b") as file:
                os.fsync(file.fileno())
            if target.exists():
                part.chmod(stat.S_IMODE(target.stat().st_mode))
            part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def write_table(
    path: str | os.PathLike[str],
    columns: Mapping[str, ArrayLike],
    *,
    class_names: Sequence[str | int] | None = None,
    compress: bool = False,
) -> None:
    """Write named columns of equal length as .npz, .csv or .tsv, by suffix; "-" is csv on standard output.

    Parameters
    ----------
    path : path or "-"
        Never left half written.
    columns : mapping of str to array
        1-D arrays, or 2-D ones with a column per class. In npz each is one array; in csv and tsv a 2-D `probs` becomes
        `probs_0` … `probs_{K-1}`, or `probs_cat`, `probs_dog` when `class_names` are given.
    class_names : sequence, optional
        One per column of every 2-D array; npz holds them as `classes`.
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
    if os.fspath(path) == "-":
        _write_delimited(sys.stdout, arrays, class_names, ",")
        return
    suffix = Path(path).suffix.lower()
    if suffix not in WRITERS:
        raise InputError(
            f"cannot write {os.fspath(path)}: unknown file type {suffix!r}; "
            f"end the name in {', '.join(sorted(WRITERS))}."
        )
    with atomic_path(path) as part, plain_write_errors(path):
        WRITERS[suffix](part, arrays, class_names, compress)


def _write_npz(
    path: Path, arrays: dict[str, NDArray[Any]], class_names: Sequence[str | int] | None, compress: bool
) -> None:
    if class_names is not None:
        if "classes" in arrays:
            raise InputError("npz keeps class_names under 'classes'; give that column another name.")
        arrays = {**arrays, "classes": np.asarray(class_names)}
    with path.open("wb") as file:
        # Not np.savez(file, **arrays): a column may be called 'file'.
        _save_zip(file, arrays, compress)


def _save_zip(file: IO[bytes], arrays: dict[str, NDArray[Any]], compress: bool) -> None:
    import zipfile

    method = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, array in arrays.items():
            # A ZipInfo of its own carries the year 1980, not the clock: same columns, same bytes.
            entry = zipfile.ZipInfo(f"{name}.npy")
            entry.compress_type = method
            with archive.open(entry, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def _write_csv(
    path: Path, arrays: dict[str, NDArray[Any]], class_names: Sequence[str | int] | None, compress: bool
) -> None:
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    with path.open("w", encoding="utf-8", newline="") as file:
        _write_delimited(file, arrays, class_names, delimiter)


#: One function per kind of file; a new kind is one more entry.
WRITERS: dict[str, Callable[[Path, dict[str, NDArray[Any]], Sequence[str | int] | None, bool], None]] = {
    ".npz": _write_npz,
    ".csv": _write_csv,
    ".tsv": _write_csv,
}


def _write_delimited(
    file: IO[str], arrays: dict[str, NDArray[Any]], class_names: Sequence[str | int] | None, delimiter: str
) -> None:
    flat: dict[str, NDArray[Any]] = {}
    for name, array in arrays.items():
        suffixes = range(array.shape[1]) if class_names is None and array.ndim == 2 else class_names or ()
        parts = {name: array} if array.ndim == 1 else {f"{name}_{end}": array[:, k] for k, end in enumerate(suffixes)}
        for column, values in parts.items():
            if column in flat:
                raise InputError(f"two columns would be called {column!r}; rename one of them.")
            flat[column] = values
    writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
    writer.writerow(flat)
    n_rows = len(next(iter(flat.values())))
    step = max(1, _BLOCK_CELLS // len(flat))
    for start in range(0, n_rows, step):
        writer.writerows(zip(*(_texts(values[start : start + step]) for values in flat.values())))


def _texts(values: NDArray[Any]) -> list[Any]:
    if values.dtype.kind == "b":
        return ["true" if value else "false" for value in values]
    # float16 and float32 keep their own shortest digits: 0.1, not 0.10000000149011612.
    if values.dtype.kind == "f" and values.dtype.itemsize < 8:
        return list(map(str, values))
    texts: list[Any] = values.tolist()
    return texts


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
            raise InputError(f"column {name!r} has {array.shape[1]} classes but class_names has {len(class_names)}.")
    return arrays


def _plain_array(name: object, values: ArrayLike) -> NDArray[Any]:
    if not isinstance(name, str) or not name or "/" in name:
        raise InputError(f"a column name must be a non-empty string without '/', got {name!r}.")
    array = np.asarray(values)
    if array.dtype == object and all(isinstance(item, str) for item in array.ravel()):
        array = array.astype(np.str_)
    if array.ndim not in (1, 2) or array.dtype.kind not in "iubfU":
        raise InputError(
            f"column {name!r} must be a 1-D or 2-D array of numbers or strings, "
            f"got shape {array.shape} of type {array.dtype}."
        )
    return array


@contextlib.contextmanager
def plain_write_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn what the system says about a file that cannot be written into one line."""
    shown = os.fspath(path)
    try:
        yield
    except FileNotFoundError:
        parent = os.path.dirname(shown) or "."
        raise InputError(f"cannot write {shown}: there is no folder {parent}; create it first.") from None
    except OSError as error:
        raise InputError(f"cannot write {shown}: {error.strerror or error}.") from error
