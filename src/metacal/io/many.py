"""Predictions in several files of one kind: a folder, a pattern or a list of paths, also behind a URL.

Each file is read as `read_predictions` reads one, in the order of their names (of a list: as given); they must agree on
the columns, the classes and on whether there are labels and ids. A table that is large in all stays in its files.
"""

from __future__ import annotations

import contextlib
import glob
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError, warn_caller
from metacal.io.columns import STREAM_BYTES
from metacal.io.opening import NoRowsError
from metacal.io.urls import Part, fetched, is_url, listed_behind
from metacal.rows.stored import JoinedTable

if TYPE_CHECKING:
    from metacal.io.predictions import Predictions

_Read = TypeVar("_Read")
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def parts_of(path: Paths, suffixes: Iterable[str]) -> list[Part] | None:
    """The files that a folder, a pattern, a URL or a list of these stands for, in order; None for one plain file.

    In a folder every file that metacal can read counts, those of inner folders too; names that begin with "_" or "."
    (`_SUCCESS`, checksums) do not, nor do pipes, sockets and devices, from which nothing may ever come.

    Examples
    --------
    >>> parts_of("val.npz", [".npz"]) is None
    True
    >>> parts_of("logs/*.parquet", [".parquet"])
    Traceback (most recent call last):
    metacal.errors.InputError: logs/*.parquet: no file has such a name.
    """
    if not isinstance(path, str | os.PathLike):
        if not path:
            raise InputError("give at least one file of predictions; the list is empty.")
        return [part for one in path for part in parts_of(one, suffixes) or [Part(os.fspath(one))]]
    text, known = os.fspath(path), tuple(suffixes)
    if is_url(text):
        return fetched(text, known)
    if os.path.isdir(text):
        return _in_folder(text, known)
    if text.endswith(("/", os.sep)):
        raise InputError(f"{text}: there is no such folder.")
    if glob.has_magic(text) and not os.path.exists(text):
        names = [name for name in glob.glob(text, recursive=True) if not os.path.isdir(name)]
        if not names:
            raise InputError(f"{text}: no file has such a name.")
        return _plain_files(names)
    return None


def _in_folder(folder: str, known: tuple[str, ...]) -> list[Part]:
    found = []
    for inner, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name[0] not in "._")
        readable = (name for name in names if name[0] not in "._" and Path(name).suffix.lower() in known)
        found += [os.path.join(inner, name) for name in readable]
    if not found:
        raise InputError(f"{folder}: there is no file of predictions in this folder; metacal reads {', '.join(known)}.")
    return _plain_files(found)


def _plain_files(names: Iterable[str]) -> list[Part]:
    """Those that are files, or links to nothing, of which reading will tell; whatever else has such a name is named."""
    parts = []
    for name in sorted(names):
        with contextlib.suppress(OSError):
            if not stat.S_ISREG(os.stat(name).st_mode):
                warn_caller(f"{name}: this is a pipe, a socket or a device; among several files it is left out.")
                continue
        parts.append(Part(name))
    if not parts:
        raise InputError("there are only pipes, sockets and devices of such a name; give a file.")
    return parts


def read_each(path: Paths, readers: Sequence[Callable[[], _Read]]) -> list[_Read]:
    """What each file that holds rows gives; those without contribute nothing, unless there are no others."""
    results = []
    for read in readers:
        with contextlib.suppress(NoRowsError):
            results.append(read())
    if not results:
        files = f"none of its {len(readers):,} files does" if len(readers) > 1 else "its only file does not"
        raise NoRowsError(f"{path}: it holds no rows ({files}); give at least one.")
    return results


def named_parts(path: Paths, suffixes: Iterable[str]) -> list[str] | None:
    """The same as `parts_of`, but what lies behind a URL stays there: its files are URLs too."""
    if not isinstance(path, str | os.PathLike):
        names = [name for one in path for name in named_parts(one, suffixes) or [os.fspath(one)]]
        return names or _names(parts_of(path, ()))
    text = os.fspath(path)
    return listed_behind(text, tuple(suffixes)) if is_url(text) else _names(parts_of(path, suffixes))


def _names(parts: Sequence[Part] | None) -> list[str] | None:
    return None if parts is None else [part.name for part in parts]


def large_in_all(parts: Sequence[Part]) -> bool:
    """Whether files are so large together that their tables stay there."""
    total = 0
    for part in parts:
        with contextlib.suppress(OSError):
            total += os.path.getsize(part.path)
    return total > STREAM_BYTES


def joined(path: str, parts: Sequence[Predictions]) -> Predictions:
    """Several files' predictions as one; raises, naming the file, where they are not of one kind."""
    first = parts[0]
    for other in parts[1:]:
        _check_alike(first, other)
    if len(parts) == 1:
        return first
    tables = [part.table for part in parts]
    names = [part.path for part in parts]
    table: Any = JoinedTable(tables, names)
    if all(isinstance(one, np.ndarray) for one in tables) and table.nbytes <= STREAM_BYTES:
        table = np.concatenate(tables)
    return type(first)(
        table,
        column([part.labels for part in parts]),
        column([part.ids for part in parts]),
        first.class_names,
        path,
        first.input,
        first.unused,
        first.places,
        tuple(dict.fromkeys(remark for part in parts for remark in part.remarks)),
        column([part.groups for part in parts]),
    )


def _check_alike(first: Predictions, other: Predictions) -> None:
    if other.table.shape[1] != first.table.shape[1]:
        raise InputError(
            f"{other.path}: it has {other.table.shape[1]} classes, {first.path} has {first.table.shape[1]}; "
            "files that are read together must have the same columns."
        )
    if other.class_names != first.class_names:
        raise InputError(
            f"{other.path}: its classes are not those of {first.path}, or in another order; name them with classes "
            "(--classes A,B,C), which chooses and orders the columns."
        )
    check_columns(first, other, {"labels": "labels", "ids": "ids", "groups": "groups"})


def check_columns(first: Any, other: Any, names: Mapping[str, str]) -> None:
    """Raise, naming the file, where one of two has a column that the other has not; `names` say what it is called."""
    for attribute, what in names.items():
        there, here = getattr(first, attribute) is not None, getattr(other, attribute) is not None
        if there != here:
            has, lacks = (first.path, other.path) if there else (other.path, first.path)
            raise InputError(f"{lacks}: it has no {what}, {has} has; files that are read together must agree.")


def column(columns: Sequence[NDArray[Any] | None]) -> NDArray[Any] | None:
    """Columns of several files, one below the other; None where there is none."""
    found = [column.ravel() for column in columns if column is not None]
    return np.concatenate(found) if found else None
