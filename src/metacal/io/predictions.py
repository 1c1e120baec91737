"""Read a table of predictions from a file: npz, npy, csv, tsv.

A reader only finds the arrays and checks their shapes; `metacal.validate` judges the values. A new kind of file is one
function from `Request` to `Found`, entered in `READERS` by its suffix.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError
from metacal.io.delimited import read_delimited, read_text_labels
from metacal.io.opening import SAVE_AS_NPZ, check_head, damaged
from metacal.io.request import TABLE_KEYS, ClassNames, Found, Request, as_class_names, listed, pick_keys

_READ_ERRORS = (ValueError, OSError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error, MemoryError)


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a file of predictions holds.

    Attributes
    ----------
    table : array of shape (n, K)
        Logits or probabilities as stored; an .npy file stays on disk as a memory map.
    labels : array of shape (n,) or None
    ids : array of shape (n,) or None
    class_names : tuple or None
        In column order. Names that are all whole numbers are integers.
    path : str
        Where it was read from; "-" is standard input.
    input : "logits" or "probabilities"
    unused : tuple of str
        Arrays or columns of the file that were left aside.
    """

    table: NDArray[Any]
    labels: NDArray[Any] | None
    ids: NDArray[Any] | None
    class_names: ClassNames | None
    path: str
    input: str
    unused: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.table)

    @property
    def classes(self) -> ClassNames | None:
        """The class order that the labels speak of, or None where they number the columns 0 … K-1."""
        names_are_text = self.class_names is not None and isinstance(self.class_names[0], str)
        labels_are_numbers = self.labels is not None and self.labels.dtype.kind in "iubf"
        return None if names_are_text and labels_are_numbers else self.class_names

    def require_labels(self) -> NDArray[Any]:
        """Return the labels, or raise with advice when the file has none."""
        if self.labels is not None:
            return self.labels
        also = f"; it also holds {listed(self.unused)}" if self.unused else ""
        raise InputError(
            f"{self.path}: there are no labels here{also}. Store them as 'labels', name them with label_key "
            "(--label-key), or give a file of labels with labels (--labels)."
        )


class FileKind(NamedTuple):
    """How one kind of file is read, and the bytes it begins with: () for text, None for anything but a pickle."""

    read: Callable[[Request], Found]
    begins: tuple[bytes, ...] | None


def read_predictions(
    path: str | os.PathLike[str],
    *,
    labels: str | os.PathLike[str] | None = None,
    logits_key: str | None = None,
    label_key: str | None = None,
    input: str = "logits",
    classes: Sequence[str | int] | None = None,
) -> Predictions:
    r"""Read predictions from an .npz, .npy, .csv or .tsv file; nothing is guessed and nothing is unpickled.

    Parameters
    ----------
    path : path or "-"
        "-" reads csv from standard input. npz: arrays `logits` (or `probabilities`, `probs`), and if you like `labels`
        (`label`, `y`), `id`, `classes`. npy: the table alone, memory-mapped. csv, tsv: a header, then one row per item;
        `label` (`labels`, `y`) and `id` are taken out, every other column is a class.
    labels : path, optional
        A second file with the labels, in place of any labels in `path`: .npy, or .csv, .tsv, .txt with one per line.
    logits_key, label_key : str, optional
        Other names for the table and for the labels. In csv and tsv `logits_key="z"` takes the columns `z_…`.
    input : "logits" or "probabilities"
        What the table holds.
    classes : sequence, optional
        The classes in column order. In csv and tsv they choose and order the columns of these names.

    Examples
    --------
    >>> import tempfile
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
    if labels is not None and os.fspath(labels) == os.fspath(path) == "-":
        raise InputError("the table and the labels cannot both come from standard input; put one of them in a file.")
    own_label_key = label_key if labels is None else None
    wanted = tuple(classes) if classes is not None else None
    request = Request(os.fspath(path), input, logits_key, own_label_key, wanted)
    found = _reader(request.path)(request)
    if labels is not None:
        found = replace(found, labels=_read_labels(os.fspath(labels), label_key))
    _check_shapes(request, found)
    names = found.class_names if wanted is None else wanted
    return Predictions(found.table, found.labels, found.ids, names, request.path, input, found.unused)


def _check_shapes(request: Request, found: Found) -> None:
    path, table = request.path, found.table
    if table.ndim != 2 or table.dtype.kind not in "fiub":
        raise InputError(
            f"{path}: the table of {request.input} must be numbers with one row per item and one column per class; "
            f"got shape {table.shape} of type {table.dtype}. Reshape or convert it and save it again."
        )
    if len(table) == 0:
        raise InputError(f"{path}: it holds no rows; give at least one.")
    for what, column in (("labels", found.labels), ("ids", found.ids)):
        if column is not None and column.shape not in ((len(table),), (len(table), 1)):
            hint = " One-hot labels: store labels.argmax(axis=1)." if column.ndim == 2 else ""
            if column.shape == (len(table) + 1,):
                hint = " If the labels begin with a header, name it with label_key (--label-key)."
            raise InputError(f"{path}: there are {len(table)} rows but {what} of shape {column.shape}; one each.{hint}")
    names = request.classes if request.classes is not None else found.class_names
    if names is not None and len(names) != table.shape[1]:
        raise InputError(f"{path}: the table has {table.shape[1]} columns but there are {len(names)} class names.")


def _reader(path: str) -> Callable[[Request], Found]:
    if path == "-":
        return read_delimited
    if os.path.isdir(path):
        raise InputError(f"{path}: this is a folder; give a file in it.")
    suffix = Path(path).suffix.lower()
    if suffix in (".pkl", ".pickle", ".p", ".joblib"):
        raise InputError(f"{path}: a pickle can run any code when it is read, so it never is; {SAVE_AS_NPZ}.")
    if suffix not in READERS:
        known = ", ".join(sorted(READERS))
        raise InputError(f"{path}: cannot read {suffix or 'nameless'!r} files; metacal reads {known}; {SAVE_AS_NPZ}.")
    check_head(path, READERS[suffix].begins)
    return READERS[suffix].read


def _read_npz(request: Request) -> Found:
    path = request.path
    try:
        with zipfile.ZipFile(path) as archive:
            members = [name for name in archive.namelist() if name.endswith(".npy")]
            headers = {name.removesuffix(".npy"): _npy_header(archive, name) for name in members}
            foreign = [name for name in archive.namelist() if not name.endswith(".npy")]
        if foreign and not members:
            raise InputError(f"{path}: this zip archive is not an npz (it holds {listed(foreign)}); {SAVE_AS_NPZ}.")
        keys = pick_keys(request, {name: f"{shape} {dtype}" for name, (shape, dtype) in headers.items()})
        for key in keys:
            if key is not None and headers[key][1].hasobject:
                raise InputError(_objects(path, f"array {key!r}"))
        with np.load(path, allow_pickle=False) as arrays:
            table = arrays[keys[0]]
            labels, ids, classes = (None if key is None else arrays[key] for key in keys[1:])
    except InputError:
        raise
    except _READ_ERRORS as error:
        raise InputError(damaged(path, error)) from error
    names = None if classes is None else as_class_names(classes)
    if names is not None and request.classes is not None and as_class_names(request.classes) != names:
        raise InputError(f"{path}: its own class order is {listed(names)}; give the same classes, or none.")
    return Found(table, labels, ids, names, tuple(name for name in headers if name not in keys))


def _npy_header(archive: zipfile.ZipFile, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    with archive.open(name) as member:
        version = np.lib.format.read_magic(member)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(member)
    return shape, dtype


def _read_npy(request: Request) -> Found:
    return Found(_mapped(request.path))


def _mapped(path: str) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except _READ_ERRORS as error:
        if "object" in str(error).lower():
            raise InputError(_objects(path, "it")) from None
        raise InputError(damaged(path, error)) from error
    return array


def _objects(path: str, what: str) -> str:
    return (
        f"{path}: {what} holds Python objects, a pickle inside, which is never read; "
        "save plain numbers: np.savez('predictions.npz', logits=np.stack(list(logits)).astype('f4'), labels=labels)."
    )


def _read_labels(path: str, label_key: str | None) -> NDArray[Any]:
    if Path(path).suffix.lower() != ".npy":
        return read_text_labels(path, label_key)
    check_head(path, (b"\x93NUMPY",))
    return _mapped(path)


#: One function per kind of file; a new kind is one more entry.
READERS: dict[str, FileKind] = {
    ".npz": FileKind(_read_npz, (b"PK\x03\x04", b"PK\x05\x06")),
    ".npy": FileKind(_read_npy, (b"\x93NUMPY",)),
    ".csv": FileKind(read_delimited, ()),
    ".tsv": FileKind(read_delimited, ()),
}
