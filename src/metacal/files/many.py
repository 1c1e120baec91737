"""Predictions in several files of one kind: a folder, a pattern or a list of paths, also behind a URL.

Each file is read as `read_predictions` reads one, in the order of their names (of a list: as given); they must agree on
the columns, the classes and on whether there are labels and ids. A table that is large in all stays in its files.
"""

from __future__ import annotations

import atexit
import contextlib
import glob
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError, MissingExtraError
from metacal.files.request import STREAM_BYTES
from metacal.rows.joined import JoinedTable

if TYPE_CHECKING:
    from metacal.files.predictions import Predictions

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def parts_of(path: Paths, suffixes: Iterable[str]) -> list[str] | None:
    """The files that a folder, a pattern, a URL or a list of these stands for, in order; None for one plain file.

    In a folder every file that metacal can read counts, those of inner folders too; names that begin with "_" or "."
    (`_SUCCESS`, checksums) do not.

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
        return [name for one in path for name in parts_of(one, suffixes) or [os.fspath(one)]]
    text, known = os.fspath(path), tuple(suffixes)
    if is_url(text):
        return _fetched(text, known)
    if os.path.isdir(text):
        return _in_folder(text, known)
    if text.endswith(("/", os.sep)):
        raise InputError(f"{text}: there is no such folder.")
    if glob.has_magic(text) and not os.path.exists(text):
        found = sorted(name for name in glob.glob(text, recursive=True) if os.path.isfile(name))
        if not found:
            raise InputError(f"{text}: no file has such a name.")
        return found
    return None


def is_url(path: str) -> bool:
    """Whether a path is one of fsspec's: s3://bucket/logs.

    Examples
    --------
    >>> is_url("s3://bucket/val.npz"), is_url("val.npz"), is_url("-")
    (True, False, False)
    """
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", path) is not None


def _in_folder(folder: str, known: tuple[str, ...]) -> list[str]:
    found = []
    for inner, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name[0] not in "._")
        readable = (name for name in names if name[0] not in "._" and Path(name).suffix.lower() in known)
        found += [os.path.join(inner, name) for name in readable]
    if not found:
        raise InputError(f"{folder}: there is no file of predictions in this folder; metacal reads {', '.join(known)}.")
    return sorted(found)


def named_parts(path: Paths, suffixes: Iterable[str]) -> list[str] | None:
    """The same as `parts_of`, but what lies behind a URL stays there: its files are URLs too."""
    if not isinstance(path, str | os.PathLike):
        return [name for one in path for name in named_parts(one, suffixes) or [os.fspath(one)]] or parts_of(path, ())
    text = os.fspath(path)
    if not is_url(text):
        return parts_of(path, suffixes)
    system, names = _behind(text, tuple(suffixes))
    return [str(system.unstrip_protocol(name)) for name in names]


def mark_of(url: str) -> dict[str, Any] | None:
    """What tells a file behind a URL from another in its place: its length and a checksum or a date; None for neither.

    Examples
    --------
    >>> import fsspec
    >>> fsspec.filesystem("memory").pipe("/mark/x.csv", b"1,2")
    >>> mark_of("memory://mark/x.csv")["bytes"]
    3
    """
    with _plain_errors(url) as fsspec:
        system, inside = fsspec.core.url_to_fs(url)
        info = system.info(inside)
    marks = {name: str(info[name]) for name in _MARKS if info.get(name) is not None}
    return {"path": url, "bytes": info.get("size"), **marks} if marks else None


#: What filesystems call a checksum, or when a file was written.
_MARKS = ("ETag", "etag", "md5Hash", "content_md5", "mtime", "LastModified", "last_modified", "updated", "created")


def _fetched(url: str, known: tuple[str, ...]) -> list[str]:
    """Copies of the files behind a URL, in a folder that is deleted when Python ends."""
    folder = tempfile.mkdtemp(prefix="metacal-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return fetched(url, known, folder)


def fetched(url: str, known: tuple[str, ...], folder: str) -> list[str]:
    """Copies of the files behind a URL, in a folder."""
    system, names = _behind(url, known)
    copies = [os.path.join(folder, f"{i:06d}-{Path(name).name}") for i, name in enumerate(names)]
    with _plain_errors(url):
        for name, copy in zip(names, copies):
            system.get_file(name, copy)
    return copies


def _behind(url: str, known: tuple[str, ...]) -> tuple[Any, list[str]]:
    """The filesystem of a URL, and the files there that it stands for, by name."""
    with _plain_errors(url) as fsspec:
        system, inside = fsspec.core.url_to_fs(url)
        names = system.glob(inside) if glob.has_magic(inside) else [inside]
        if len(names) == 1 and system.isdir(names[0]):
            names = [name for name in system.find(names[0]) if not Path(name).name.startswith((".", "_"))]
            names = [name for name in names if Path(name).suffix.lower() in known]
        if not names or not (len(names) > 1 or system.exists(names[0])):
            raise InputError(f"{url}: there is no such file.")
    return system, sorted(names)


@contextlib.contextmanager
def _plain_errors(url: str) -> Iterator[Any]:
    """fsspec, and what it says in one line."""
    try:
        import fsspec
    except ImportError:
        raise MissingExtraError(f"reading {url}", "url") from None
    try:
        yield fsspec
    except InputError:
        raise
    except (OSError, ImportError, ValueError) as error:
        raise InputError(f"{url}: cannot be read ({error}).") from None


def large_in_all(paths: Sequence[str]) -> bool:
    """Whether files are so large together that their tables stay there."""
    total = 0
    for path in paths:
        with contextlib.suppress(OSError):
            total += os.path.getsize(path)
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
