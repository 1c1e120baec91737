"""Read a table of predictions from a file, whichever kind it is.

A reader only finds the arrays and checks their shapes; `rows.validate` judges the values. A new kind of file is one
function from `Request` to `Found`, entered in `READERS` by its suffix.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError, warn_caller
from metacal.io import many
from metacal.io.columns import LABEL_LIKE, TABLE_KEYS, TWO_COLUMNS, ClassNames, Found, Request, listed
from metacal.io.formats.delimited import read_delimited, read_text_labels
from metacal.io.formats.feather import read_arrow
from metacal.io.formats.jsonl import read_jsonl
from metacal.io.formats.numpy import read_npy, read_npz, whole_npy
from metacal.io.formats.parquet import read_parquet
from metacal.io.formats.tensors import read_safetensors, read_torch
from metacal.io.limits import unpacking
from metacal.io.many import Paths
from metacal.io.opening import SAVE_AS_NPZ, NoRowsError, check_head
from metacal.io.strays import remarks_on_columns
from metacal.io.urls import Part, suffix_of
from metacal.rows.labels import several_labels
from metacal.rows.stored import StoredTable


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a file of predictions holds.

    Attributes
    ----------
    table : array or StoredTable of shape (n, K)
        Logits or probabilities as stored. A large table of an .npy, safetensors or Parquet file stays there, as a
        `StoredTable`: the estimators and `Rows` take it as it is, np.asarray(table) reads all of it.
    labels : array of shape (n,) or None
    ids : array of shape (n,) or None
    class_names : tuple or None
        In column order. Names that are all whole numbers are integers. Labels are names among them, or numbers that
        count the columns from 0.
    path : str
        Where it was read from; "-" is standard input.
    input : "logits" or "probabilities"
    unused : tuple of str
        Arrays or columns of the file that were left aside.
    places : tuple of int or None
        Where there is a column per class: which columns of the file these are.
    remarks : tuple of str
        What was warned about: columns that are classes by their place alone, and may be none.
    groups : array of shape (n,) or None
        The group of each row, where one was asked for.
    """

    table: NDArray[Any] | StoredTable
    labels: NDArray[Any] | None
    ids: NDArray[Any] | None
    class_names: ClassNames | None
    path: str
    input: str
    unused: tuple[str, ...] = ()
    places: tuple[int, ...] | None = None
    remarks: tuple[str, ...] = ()
    groups: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.table)

    @property
    def labels_count_columns(self) -> bool:
        """Whether the labels are numbers beside classes that have names: they count the columns, from 0."""
        named = self.class_names is not None and isinstance(self.class_names[0], str)
        return named and self.labels is not None and self.labels.dtype.kind in "iubf"

    def require_labels(self) -> NDArray[Any]:
        """Return the labels, or raise with advice when the file has none."""
        if self.labels is not None:
            return self.labels
        also = f"; it also holds {listed(self.unused)}" if self.unused else ""
        held = map(str, (*self.unused, *(self.class_names or ())))
        likely = next((name for name in held if LABEL_LIKE.fullmatch(name)), None)
        name = f"label_key={likely!r} (--label-key {likely})" if likely else "label_key (--label-key)"
        raise InputError(
            f"{self.path}: there are no labels here{also}. Store them as 'labels', name them with {name}, or give a "
            "file of labels with labels (--labels)."
        )


class FileKind(NamedTuple):
    """How one kind of file is read, and the bytes it begins with: () for text, None for anything but a pickle."""

    read: Callable[[Request], Found]
    begins: tuple[bytes, ...] | None


def read_predictions(
    path: Paths,
    *,
    labels: Paths | None = None,
    logits_key: str | None = None,
    label_key: str | None = None,
    id_key: str | None = None,
    group_key: str | None = None,
    input: str = "logits",
    classes: Sequence[str | int] | None = None,
    format: str | None = None,
    stream: bool | None = None,
    unpack_limit: int | None = None,
) -> Predictions:
    r"""Read predictions from a file; nothing is guessed from values and nothing is unpickled.

    Parameters
    ----------
    path : path, or several
        A file, a folder, a pattern such as "logs/*.parquet", a list of these, or a URL that fsspec knows; several files
        are read as one table, in the order of their names. "-" is standard input.

        npz, safetensors, pt: arrays or tensors `logits` (or `probabilities`, `probs`), and if you like `labels`
        (`label`, `y`), `id`, `classes`. npy: the table alone, or records with these names. csv, tsv, jsonl, parquet,
        arrow, feather: one row per item; `label` (`labels`, `y`) and `id` are taken out; a column `logits` of lists is
        the table, else the columns `logits_…`, else every other column is a class. One column of probabilities alone,
        `prob` or `probability`, is that of the second of two classes.
    labels : path, optional
        A second file with the labels, in place of any labels in `path`: .npy, or .csv, .tsv, .txt with one per line.
        For several files one for all, or as many in the same order.
    logits_key, label_key, id_key : str, optional
        Other names for the table, the labels and the ids. Where there is a column per class `logits_key="z"` takes the
        columns `z_…`.
    group_key : str, optional
        The name of the rows' groups, for a promise per group.
    input : "logits" or "probabilities"
        What the table holds.
    classes : sequence, optional
        The classes in column order. Where there is a column per class they choose and order these.
    format : str, optional
        What the file is, where its name does not say: "csv", "parquet", … Standard input is csv when None.
    stream : bool, optional
        Whether the table of an .npy, safetensors or Parquet file stays there and is read block by block each time it
        is gone through: in bounded memory, and for Parquet, which is decoded each time, slower. None: if it is larger
        than 256 MiB.
    unpack_limit : int, optional
        Bytes that a compressed file may unpack to, checked before memory is taken. None: what the environment variable
        METACAL_UNPACK_LIMIT says, else 2 GiB, or 20 times the size of the file where that is more.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> path = os.path.join(tempfile.mkdtemp(), "val.csv")
    >>> _ = Path(path).write_text("cat,dog,label\n2.5,-1,cat\n0.5,3,dog\n")
    >>> found = read_predictions(path)
    >>> found.table.shape, found.class_names, found.labels.tolist()
    ((2, 2), ('cat', 'dog'), ['cat', 'dog'])
    >>> read_predictions("predictions.xlsx")
    Traceback (most recent call last):
    metacal.errors.InputError: predictions.xlsx: cannot read '.xlsx' files; ...
    """
    if input not in TABLE_KEYS:
        raise InputError(f"input must be 'logits' or 'probabilities', got {input!r}.")
    options: dict[str, Any] = {"logits_key": logits_key, "label_key": label_key, "id_key": id_key, "input": input}
    options |= {"classes": classes, "format": format, "unpack_limit": unpack_limit, "group_key": group_key}
    parts = many.parts_of(path, READERS)
    if parts is None:
        assert isinstance(path, str | os.PathLike)
        return _read_one(Part(os.fspath(path)), labels=_one_labels_file(labels), stream=stream, **options)
    stream = True if stream is None and many.large_in_all(parts) else stream
    beside = None if labels is None else many.parts_of(labels, LABEL_SUFFIXES)
    if beside is None:
        readers = [partial(_read_one, part, stream=stream, **options) for part in parts]
        found = many.joined(str(path), many.read_each(path, readers))
        return found if labels is None else _labelled(found, _one_labels_file(labels), label_key)
    if len(beside) != len(parts):
        raise InputError(f"there are {len(parts)} files of predictions and {len(beside)} of labels; give one each.")
    pairs = zip(parts, beside, strict=True)
    readers = [partial(_read_one, part, labels=one, stream=stream, **options) for part, one in pairs]
    return many.joined(str(path), many.read_each(path, readers))


def _one_labels_file(labels: Paths | None) -> Part | None:
    if labels is None or isinstance(labels, str | os.PathLike):
        return None if labels is None else Part(os.fspath(labels))
    raise InputError("one file of predictions takes one file of labels.")


def _labelled(found: Predictions, labels: Part | None, label_key: str | None) -> Predictions:
    """Several files' predictions with the labels of one file."""
    assert labels is not None
    column = _read_labels(labels, label_key)
    _check_shapes(Request(found.path, found.input), Found(found.table, column, class_names=found.class_names))
    return replace(found, labels=column)


def _read_one(
    part: Part,
    *,
    labels: Part | None = None,
    logits_key: str | None,
    label_key: str | None,
    id_key: str | None,
    group_key: str | None,
    input: str,
    classes: Sequence[str | int] | None,
    format: str | None,
    stream: bool | None,
    unpack_limit: int | None,
) -> Predictions:
    if labels is not None and labels.name == part.name == "-":
        raise InputError("the table and the labels cannot both come from standard input; put one of them in a file.")
    own_label_key = label_key if labels is None else None
    wanted = tuple(classes) if classes is not None else None
    request = Request(
        part.name, input, logits_key, own_label_key, wanted, id_key, group_key, part.copy, lasting=True, stream=stream
    )
    with unpacking(unpack_limit), opened(request, format) as (read, request):
        found = read(request)
    if group_key is not None and found.groups is None:
        raise InputError(f"{request.path}: it holds one array without names, and so no {group_key!r}.")
    if found.table.ndim and len(found.table) == 0:
        raise NoRowsError(f"{request.path}: it holds no rows; give at least one.")
    if labels is not None:
        found = replace(found, labels=_read_labels(labels, label_key))
    found = _two_classes(request, found)
    _check_shapes(request, found)
    names = found.class_names if wanted is None else wanted
    remarks: tuple[str, ...] = ()
    if wanted is None and names is not None and found.places is not None and found.labels is not None:
        remarks = tuple(remarks_on_columns(names, found.labels.ravel(), found.table))
        for remark in remarks:
            warn_caller(f"{request.path}: {remark}")
    groups = None if found.groups is None else found.groups.ravel()
    return Predictions(
        found.table, found.labels, found.ids, names, request.path, input, found.unused, found.places, remarks, groups
    )


def _two_classes(request: Request, found: Found) -> Found:
    """The two columns of a classifier of two classes, where a file has the probability of the second alone."""
    table = found.table
    alone = table.ndim == 1 or (table.ndim == 2 and table.shape[1] == 1)
    if request.input != "probabilities" or not alone or table.dtype.kind != "f":
        return found
    second = np.asarray(table).reshape(len(table), 1)
    beyond = ~((second >= 0.0) & (second <= 1.0))[:, 0]  # written so that NaN fails too
    if beyond.any():
        row = int(beyond.argmax())
        raise InputError(
            f"{request.path}: row {row} has the probability {second[row, 0]:g}; one column of probabilities must lie "
            "between 0 and 1. For a score of another kind name it with score_key (--score-key)."
        )
    return replace(found, table=np.concatenate([1.0 - second, second], axis=1), class_names=None)


def _check_shapes(request: Request, found: Found) -> None:
    path, table = request.path, found.table
    if table.ndim != 2 or table.dtype.kind not in "fiub":
        raise InputError(
            f"{path}: the table of {request.input} must be numbers with one row per item and one column per class; "
            f"got shape {table.shape} of type {table.dtype}. Reshape or convert it and save it again."
            f"{TWO_COLUMNS if table.ndim == 1 else ''}"
        )
    for what, column in (("labels", found.labels), ("ids", found.ids), ("groups", found.groups)):
        if column is not None and column.shape not in ((len(table),), (len(table), 1)):
            hint = f" {several_labels(column)}" if column.ndim == 2 else ""
            if column.shape == (len(table) + 1,):
                hint = " If the labels begin with a header, name it with label_key (--label-key)."
            raise InputError(f"{path}: there are {len(table)} rows but {what} of shape {column.shape}; one each.{hint}")
    names = request.classes if request.classes is not None else found.class_names
    if names is not None and len(names) != table.shape[1]:
        raise InputError(f"{path}: the table has {table.shape[1]} columns but there are {len(names)} class names.")


@contextlib.contextmanager
def opened(request: Request, format: str | None) -> Iterator[tuple[Callable[[Request], Found], Request]]:
    """The reader for this file, and the request with what is to be opened; standard input is copied to a file."""
    path = request.path
    suffix = suffix_of(path) if format is None else f".{format.lower().lstrip('.')}"
    if path == "-" and (format is None or suffix == ".csv"):
        yield read_delimited, request
        return
    if suffix in (".pkl", ".pickle", ".p", ".joblib"):
        raise InputError(f"{path}: a pickle can run any code when it is read, so it never is; {SAVE_AS_NPZ}.")
    if suffix not in READERS:
        known = ", ".join(sorted(READERS))
        raise InputError(f"{path}: cannot read {suffix or 'nameless'!r} files; metacal reads {known}; {SAVE_AS_NPZ}.")
    kind = READERS[suffix]
    request = replace(request, delimiter=_DELIMITERS.get(suffix))
    if request.file is not None or (path != "-" and not _is_pipe(path)):
        check_head(request.source, kind.begins, shown=path)
        yield kind.read, request
        return
    with tempfile.TemporaryDirectory(prefix="metacal-") as folder:
        copy = os.path.join(folder, f"stdin{suffix}")
        with open(copy, "wb") as file, _bytes_of(path) as pipe:
            shutil.copyfileobj(pipe, file)
        check_head(copy, kind.begins, shown=path)
        yield kind.read, replace(request, file=copy, lasting=False)


def _is_pipe(path: str) -> bool:
    """Whether a path can be read only once: a named pipe, or what the shell puts for <(...)."""
    return os.path.exists(path) and not os.path.isfile(path)


def _bytes_of(path: str) -> contextlib.AbstractContextManager[IO[bytes]]:
    return contextlib.nullcontext(sys.stdin.buffer) if path == "-" else open(path, "rb")


def _read_labels(labels: Part, label_key: str | None) -> NDArray[Any]:
    if suffix_of(labels.name) != ".npy":
        try:
            return read_text_labels(labels, label_key)
        except NoRowsError as error:  # a table with rows is at hand: this is no part that may be left out
            raise InputError(str(error)) from None
    check_head(labels.path, (b"\x93NUMPY",), shown=labels.name)
    return whole_npy(labels.name, labels.path)


#: An Arrow stream begins with a continuation mark; streams written before Arrow 0.15 are not read.
_STREAM = (b"\xff\xff\xff\xff",)
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
#: What a file of labels alone may be.
LABEL_SUFFIXES = (".npy", ".csv", ".tsv", ".txt")

#: One function per kind of file; a new kind is one more entry.
READERS: dict[str, FileKind] = {
    ".npz": FileKind(read_npz, (b"PK\x03\x04", b"PK\x05\x06")),
    ".npy": FileKind(read_npy, (b"\x93NUMPY",)),
    ".csv": FileKind(read_delimited, ()),
    ".tsv": FileKind(read_delimited, ()),
    ".jsonl": FileKind(read_jsonl, ()),
    ".ndjson": FileKind(read_jsonl, ()),
    ".parquet": FileKind(read_parquet, (b"PAR1",)),
    ".pq": FileKind(read_parquet, (b"PAR1",)),
    ".arrow": FileKind(read_arrow, (b"ARROW1", *_STREAM)),
    ".arrows": FileKind(read_arrow, (b"ARROW1", *_STREAM)),
    ".feather": FileKind(read_arrow, (b"ARROW1", *_STREAM)),
    ".safetensors": FileKind(read_safetensors, None),
    ".pt": FileKind(read_torch, (b"PK\x03\x04",)),
    ".pth": FileKind(read_torch, (b"PK\x03\x04",)),
}
