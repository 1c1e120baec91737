"""Predictions: a table of logits or probabilities read from files, its shapes checked in one place for all kinds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError, warn_caller
from metacal.io.columns import BESIDE, LABEL_LIKE, TABLE_KEYS, TWO_COLUMNS, Columns, Request, as_class_names, listed
from metacal.io.many import Paths
from metacal.io.reading import read_columns
from metacal.io.strays import remarks_on_columns
from metacal.rows.labels import several_labels


@dataclass(frozen=True, eq=False)
class Predictions(Columns):
    """What a file of predictions holds: the fields of `Columns`, and what the table is.

    Attributes
    ----------
    input : "logits" or "probabilities"
    """

    input: str = "logits"

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


def read_predictions(
    path: Paths,
    *,
    labels: Paths | None = None,
    logits_key: str | None = None,
    label_key: str | None = None,
    id_key: str | None = None,
    group_key: str | None = None,
    unit_key: str | None = None,
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
    group_key, unit_key : str, optional
        The names of the rows' groups, for a promise per group, and of the units that rows belong to.
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
    >>> import os, tempfile
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
    request = Request(
        "",
        input,
        logits_key,
        label_key,
        None if classes is None else tuple(classes),
        id_key,
        group_key,
        unit_key,
        stream=stream,
    )
    found = read_columns(path, request, _finished, labels=labels, format=format, unpack_limit=unpack_limit)
    return Predictions(**vars(found), input=input)


def _finished(request: Request, found: Columns) -> Columns:
    """A table that is one, with columns of the same rows and names for its classes."""
    for role in ("groups", "units"):
        name = getattr(request, BESIDE[role])
        if name is not None and getattr(found, role) is None:
            raise InputError(f"{request.path}: it holds one array without names, and so no {name!r}.")
    found = _two_classes(request, found)
    _check_shapes(request, found)
    flat = {role: getattr(found, role).ravel() for role in ("groups", "units") if getattr(found, role) is not None}
    if request.classes is not None:
        return replace(found, class_names=request.classes, **flat)
    remarks: list[str] = []
    if found.class_names is not None and found.places is not None and found.labels is not None:
        remarks = remarks_on_columns(found.class_names, found.labels.ravel(), found.table)
    for remark in remarks:
        warn_caller(f"{request.path}: {remark}")
    return replace(found, remarks=tuple(remarks), **flat)


def _two_classes(request: Request, found: Columns) -> Columns:
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


def _check_shapes(request: Request, found: Columns) -> None:
    path, table = request.path, found.table
    if table.ndim != 2 or table.dtype.kind not in "fiub":
        raise InputError(
            f"{path}: the table of {request.input} must be numbers with one row per item and one column per class; "
            f"got shape {table.shape} of type {table.dtype}. Reshape or convert it and save it again."
            f"{TWO_COLUMNS if table.ndim == 1 else ''}"
        )
    for what in BESIDE:
        column = getattr(found, what)
        if column is not None and column.shape not in ((len(table),), (len(table), 1)):
            hint = f" {several_labels(column)}" if column.ndim == 2 else ""
            if column.shape == (len(table) + 1,):
                hint = " If the labels begin with a header, name it with label_key (--label-key)."
            raise InputError(f"{path}: there are {len(table)} rows but {what} of shape {column.shape}; one each.{hint}")
    own = found.class_names if found.places is None else None
    if own is not None and request.classes is not None and as_class_names(request.classes) != own:
        raise InputError(f"{path}: its own class order is {listed(own)}; give the same classes, or none.")
    names = request.classes if request.classes is not None else found.class_names
    if names is not None and len(names) != table.shape[1]:
        raise InputError(f"{path}: the table has {table.shape[1]} columns but there are {len(names)} class names.")
