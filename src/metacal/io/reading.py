"""Read what is asked for from a file, whichever kind it is, or from several of one kind as one.

Several files are read in the order of their names (of a list: as given); they must agree on the
columns, the classes and on what stands beside the table. A table that is large in all stays in its
files.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError, option
from metacal.io.columns import Columns
from metacal.io.formats import FORMATS, endings
from metacal.io.formats.arrow import InMemory, is_in_memory, read_batches
from metacal.io.many import Paths, fetched, files_of, suffix_of
from metacal.io.opening import (
    SAVE_AS_NPZ,
    NoRowsError,
    check_head,
    check_unpacked,
    decoding,
    plain_read_errors,
    unpacking,
)
from metacal.io.request import BESIDE, STREAM_BYTES, Request
from metacal.rows.stored import JoinedTable

#: What a file of labels alone may be.
_LABEL_ENDINGS = (".npy", ".csv", ".tsv", ".txt")

#: Checks what was read of one file, and makes of it what was asked for.
Finish = Callable[[Request, Columns], Columns]


def read_columns(
    path: Paths,
    request: Request,
    finish: Finish,
    *,
    unpack_limit: int | None,
    labels: Paths | None = None,
) -> Columns:
    """What files hold of what is asked for, `finish`ed file by file, one below the other.

    `labels` is a second file with the labels, for several files one for all or as many in the same
    order; the request's `label_key` is then about it.
    """
    if is_in_memory(path):
        one = replace(request, path="the table")
        return finish(one, read_batches(one, InMemory(path)))
    parts = fetched(
        request if labels is None else replace(request, label_key=None), files_of(path, FORMATS)
    )
    beside = (
        []
        if labels is None
        else fetched(replace(request, format=None), files_of(labels, _LABEL_ENDINGS))
    )
    if len(beside) > 1 and len(beside) != len(parts):
        raise InputError(
            f"there are {len(parts)} files of predictions and {len(beside)} of labels; give one"
            " each."
        )
    if len(parts) > 1 and request.stream is None:  # so large together that their tables stay there?
        sizes = (os.path.getsize(part.source) for part in parts if os.path.exists(part.source))
        parts = (
            [replace(part, stream=True) for part in parts] if sum(sizes) > STREAM_BYTES else parts
        )
    of_each = [None] * len(parts) if len(beside) != len(parts) else beside
    results = []
    with unpacking(unpack_limit):
        for part, answers in zip(parts, of_each, strict=True):
            with contextlib.suppress(NoRowsError) if len(parts) > 1 else contextlib.nullcontext():
                results.append(_read_one(part, finish, answers))
        if not results:
            raise NoRowsError(
                f"{path}: it holds no rows (none of its {len(parts):,} files does); give at least"
                " one."
            )
        columns = _joined(str(path), results)
        if len(beside) == 1 < len(parts):
            labelled = replace(columns, labels=_read_labels(beside[0]))
            columns = finish(replace(request, path=columns.path), labelled)
    return columns


def _read_one(request: Request, finish: Finish, answers: Request | None) -> Columns:
    if answers is not None and answers.path == request.path == "-":
        raise InputError(
            "the table and the labels cannot both come from standard input; put one of them in a"
            " file."
        )
    with opened(request) as (source, ending, _):
        columns = FORMATS[ending].read(source)
    _check_there(request, columns)
    if columns.table.ndim and len(columns.table) == 0:
        raise NoRowsError(f"{request.path}: it holds no rows; give at least one.")
    return finish(
        request, columns if answers is None else replace(columns, labels=_read_labels(answers))
    )


def _check_there(request: Request, columns: Columns) -> None:
    """Raise where something named is missing, as in a file of one array, or what is kept is not one
    value a row.
    """
    named = [(request.group_key, columns.groups), (request.unit_key, columns.units)]
    for name, found in (*named, *((name, columns.kept.get(name)) for name in request.keep)):
        if name is not None and found is None:
            raise InputError(
                f"{request.path}: it holds one array without names, and so no {name!r}."
            )
    for name, held in columns.kept.items():
        if held.shape != (len(columns.table),):
            raise InputError(
                f"{request.path}: {name!r} has the shape {held.shape}; what is kept must be one"
                f" value for each of the {len(columns.table):,} rows."
            )


@contextlib.contextmanager
def opened(request: Request) -> Iterator[tuple[Request, str, str]]:
    """The request with a file that its reader can open, the ending that names its kind, and what
    was done to it.

    A file is known by its first bytes, and by its name where these say nothing. Standard input and
    pipes are copied to a file first; what is compressed (.csv.gz) is unpacked into a copy, and so
    is a JSON array, an object on each line. Whatever a decoder says in here of a file that is no
    text becomes one line.
    """
    path, format, done = request.path, request.format, ""
    named = (
        f".{format.lower().lstrip('.')}"
        if format is not None
        else ""
        if path == "-"
        else suffix_of(path)
    )
    if named in (".pkl", ".pickle", ".p", ".joblib"):
        raise InputError(
            f"{path}: a pickle can run any code when it is read, so metacal never reads one;"
            f" {SAVE_AS_NPZ}."
        )
    with contextlib.ExitStack() as stack:

        def copied(fill: Callable[[Request, str], None], ending: str = ".csv") -> Request:
            room = stack.enter_context(tempfile.TemporaryDirectory(prefix="metacal-"))
            copy = os.path.join(room, f"copy{ending}")
            fill(request, copy)
            return replace(request, file=copy, lasting=False)

        # Read once alone: standard input, a named pipe, or what the shell puts for <(...).
        if request.file is None and (
            path == "-" or (os.path.exists(path) and not os.path.isfile(path))
        ):
            request = copied(_drain, named or ".csv")
        if named == ".gz":
            check_head(request.source, None, shown=path)
        head = _head(request.source)
        if head.startswith(b"\x1f\x8b") and (named in _TEXT or named == ".gz"):
            named, done = (
                suffix_of(path.removesuffix(".gz")) if named == ".gz" else named,
                "compressed ",
            )
            request = copied(_unpack)
            head = _head(request.source)
        ending = named if format is not None else ending_of(named, head)
        if ending not in FORMATS:
            known = ", ".join(sorted(FORMATS))
            raise InputError(
                f"{path}: cannot read {named or 'nameless'!r} files; metacal reads {known};"
                f" {SAVE_AS_NPZ}."
            )
        check_head(request.source, FORMATS[ending].begins, shown=path)
        start = head.lstrip(_SPACE)
        if ending == ".jsonl" and start[:1] == b"[" and start[1:].lstrip(_SPACE)[:1] == b"{":
            request = copied(_as_lines)
        if FORMATS[ending].begins != ():
            stack.enter_context(decoding(path))
        yield request, ending, done


#: Endings of text; a file without an ending, or with one of the others, is told by what it holds.
_TEXT = (*endings(text=True), ".txt", ".json", ".dat", ".data", "")
#: What may stand before the first character of text.
_SPACE = b"\xef\xbb\xbf \r\n\t"


def ending_of(named: str, head: bytes) -> str:
    """The ending of what begins so, whatever its name ends in.

    Examples
    --------
    >>> ending_of(".csv", b"PAR1"), ending_of("", b'{"score": 1}'), ending_of(".txt", b"cat,dog")
    ('.parquet', '.jsonl', '.csv')
    """
    known = FORMATS.get(named)
    if known is not None and known.begins and head.startswith(known.begins):
        return named
    if (known is not None and known.begins is not None) or named in _TEXT:
        for ending in (".npy", ".npz", ".parquet", ".arrow"):
            if head.startswith(FORMATS[ending].begins or ()):
                return ending
    if named not in _TEXT:
        return named
    start = head.lstrip(_SPACE)
    if start[:1] == b"{" or (start[:1] == b"[" and start[1:].lstrip(_SPACE)[:1] == b"{"):
        return ".ndjson" if named == ".ndjson" and start[:1] == b"{" else ".jsonl"
    return named if named in FORMATS else ".csv"


def _head(source: str) -> bytes:
    """The first bytes; none where there is no such file, which is said later."""
    try:
        with open(source, "rb") as file:
            return file.read(1024)
    except OSError:
        return b""


def _unpack(request: Request, copy: str) -> None:
    """Copy compressed text, as long as the limit allows."""
    held, size = os.path.getsize(request.source), 0
    plain = plain_read_errors(request.path)
    with (
        open(copy, "wb") as file,
        plain,
        decoding(request.path),
        gzip.open(request.source) as packed,
    ):
        while block := packed.read(1 << 20):
            size += len(block)
            check_unpacked(request.path, size, held)
            file.write(block)


def _as_lines(request: Request, copy: str) -> None:
    """Copy a JSON array, an object on each line."""
    with decoding(request.path), open(request.source, encoding="utf-8-sig") as file:
        rows = json.load(file)
    with open(copy, "w", encoding="utf-8") as lines:
        lines.writelines(json.dumps(row) + "\n" for row in rows)


def _drain(request: Request, copy: str) -> None:
    """Copy what can be read once alone."""
    with open(copy, "wb") as file, contextlib.ExitStack() as stack:
        if request.path != "-":
            pipe: Any = stack.enter_context(open(request.path, "rb"))
        else:  # what stands in for standard input may have text alone
            pipe = getattr(sys.stdin, "buffer", None) or io.BytesIO(sys.stdin.read().encode())
        shutil.copyfileobj(pipe, file)


def _read_labels(request: Request) -> NDArray[Any]:
    """The labels of a file of their own."""
    from metacal.io.formats.delimited import read_labels

    path, ending = request.path, suffix_of(request.path)
    wrong = InputError(
        f"{path}: labels are read from .npy, or from .csv, .tsv or .txt with one per line."
    )
    if ending not in _LABEL_ENDINGS and path != "-":
        raise wrong
    try:
        with opened(request) as (one, kind, _):
            if kind in (".csv", ".tsv"):
                return read_labels(one, ending)
            if kind != ".npy":
                raise wrong
            return np.asarray(
                FORMATS[kind].read(Request(path, file=one.source, stream=False)).table
            )
    except (
        NoRowsError
    ) as error:  # a table with rows is at hand: this is no part that may be left out
        raise InputError(str(error)) from None


def _joined(path: str, parts: Sequence[Columns]) -> Columns:
    """Several files as one; raises, naming the file, where they are not of one kind."""
    first = parts[0]
    for other in parts[1:]:
        _check_alike(first, other)
    if len(parts) == 1:
        return first
    tables: list[Any] = [part.table for part in parts]
    table: Any = (
        JoinedTable(tables, [part.path for part in parts]) if first.table.ndim == 2 else None
    )
    if table is None or (
        all(isinstance(one, np.ndarray) for one in tables) and table.nbytes <= STREAM_BYTES
    ):
        table = np.concatenate(tables)
    beside: dict[str, Any] = {
        role: np.concatenate([part.beside[role] for part in parts]) for role in first.beside
    }
    beside["kept"] = {
        name: np.concatenate([part.kept[name] for part in parts]) for name in first.kept
    }
    remarks = tuple(dict.fromkeys(remark for part in parts for remark in part.remarks))
    return replace(first, path=path, table=table, lines=None, remarks=remarks, **beside)


def _check_alike(first: Columns, other: Columns) -> None:
    scores = first.table.ndim == 1
    if not scores and other.table.shape[1] != first.table.shape[1]:
        raise InputError(
            f"{other.path}: it has {other.table.shape[1]} classes, {first.path} has"
            f" {first.table.shape[1]}; files that are read together must have the same columns."
        )
    if other.class_names != first.class_names:
        raise InputError(
            f"{other.path}: its classes are not those of {first.path}, or in another order; name"
            f" them with {option('classes')}, which chooses and orders the columns."
        )
    for role in BESIDE:
        there = role in first.beside
        if there != (role in other.beside):
            what = "column that says right or wrong" if scores and role == "labels" else role
            has, lacks = (first.path, other.path) if there else (other.path, first.path)
            raise InputError(
                f"{lacks}: it has no {what}, {has} has; files that are read together must agree."
            )
