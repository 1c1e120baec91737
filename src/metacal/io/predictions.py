"""Predictions: a table of logits or probabilities read from files, its shapes checked in one place
for all kinds.

Where a file has a column per class, every column that is not known to be something else is a class,
but for strays (`metacal.io.strays`), which are left out with a warning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from metacal.display import listed
from metacal.errors import InputError, option, warn_caller
from metacal.io.columns import Columns
from metacal.io.many import Paths
from metacal.io.named_columns import OtherKindError
from metacal.io.opening import two_columns_hint
from metacal.io.reading import read_columns
from metacal.io.request import LABEL_NAME_PATTERN, TABLE_KEYS, ClassNames, Request
from metacal.io.strays import strays_among
from metacal.rows.arrays import one_of
from metacal.rows.labels import as_class_names, several_labels
from metacal.rows.plausibility import suspicion_in
from metacal.rows.validate import class_list, label_codes, two_columns

if TYPE_CHECKING:
    from metacal.gate import Gate


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
        """Whether the labels are numbers beside classes that have names: they count the columns,
        from 0.
        """
        named = self.class_names is not None and isinstance(self.class_names[0], str)
        return named and self.labels is not None and self.labels.dtype.kind in "iubf"

    def require_truth(self) -> NDArray[Any]:
        """Return the labels, or raise with advice when the file has none."""
        if self.labels is not None:
            return self.labels
        also = f"; it also holds {listed(self.unused)}" if self.unused else ""
        held = map(str, (*self.unused, *(self.class_names or ())))
        likely = next((name for name in held if LABEL_NAME_PATTERN.fullmatch(name)), None)
        raise InputError(
            f"{self.path}: there are no labels here{also}. Store them as 'labels', name them with "
            f"{option('label_key', likely)}, or give a file of labels with {option('labels')}."
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
    drop: Sequence[str] = (),
    keep: Sequence[str] = (),
    of_gate: ClassNames | None = None,
    stream: bool | None = None,
    unpack_limit: int | None = None,
) -> Predictions:
    r"""Read predictions from a file; nothing is guessed from values and nothing is unpickled.

    Parameters
    ----------
    path : path, or several
        A file, a folder, a pattern such as "logs/*.parquet", a list of these, or a URL that fsspec
        knows; several files are read as one table, in the order of their names. "-" is standard
        input. Or a table in memory: a Dataset of Hugging Face, an Arrow table, a frame of polars or
        pandas.

        npz, safetensors, pt: arrays or tensors `logits` (or `probabilities`, `probs`), and if you
        like `labels` (`label`, `y`), `id`, `classes`. npy: the table alone, or records with these
        names. csv, tsv, jsonl, parquet, arrow, feather: one row per item; `label` (`labels`, `y`)
        and `id` are taken out; a column `logits` of lists is the table, else the columns
        `logits_…`, else every other column is a class. One column of probabilities alone, `prob` or
        `probability`, is that of the second of two classes.
    labels : path, optional
        A second file with the labels, in place of any labels in `path`: .npy, or .csv, .tsv, .txt
        with one per line. For several files one for all, or as many in the same order.
    logits_key, label_key, id_key : str, optional
        Other names for the table, the labels and the ids. Where there is a column per class
        `logits_key="z"` takes the columns `z_…`.
    group_key, unit_key : str, optional
        The names of the rows' groups, for a promise per group, and of the units that rows belong
        to.
    input : "logits" or "probabilities"
        What the table holds.
    classes : sequence, optional
        The classes in column order. Where there is a column per class they choose and order these.
    format : str, optional
        What the file is: "csv", "parquet", …; when None what it begins with says so, or its name.
        Text may be separated by commas, semicolons, tabs or bars, and compressed (.csv.gz).
    drop : sequence of str
        Columns that are no classes.
    keep : sequence of str
        Columns to pass on to the results, which are no classes either.
    of_gate : sequence, optional
        The classes of a gate. Where there is a column per class those that bear their names are
        taken, in this order, and others are left out; elsewhere they say nothing.
    stream : bool, optional
        Whether the table of an .npy, safetensors or Parquet file stays there and is read block by
        block each time it is gone through: in bounded memory, and for Parquet, which is decoded
        each time, slower. None: if it is larger than 256 MiB.
    unpack_limit : int, optional
        Bytes that a compressed file may unpack to, checked before memory is taken. None: what the
        environment variable METACAL_UNPACK_LIMIT says, else 2 GiB, or 20 times the size of the file
        where that is more.

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
    one_of("input", input, *TABLE_KEYS)
    own = None if classes is None else tuple(classes)
    names = Request("", input, logits_key, label_key, own, id_key, group_key, unit_key)
    request = replace(
        names,
        format=format,
        stream=stream,
        aside=tuple(drop),
        keep=tuple(keep),
        gate_classes=of_gate,
    )
    columns = read_columns(path, request, _finished, unpack_limit=unpack_limit, labels=labels)
    return Predictions(**vars(columns), input=input)


def _finished(request: Request, columns: Columns) -> Columns:
    """A table that is one, with columns of the same rows and names for its classes."""
    columns = _two_classes(request, columns)
    _check_shapes(request, columns)
    flat: dict[str, Any] = {role: column.ravel() for role, column in columns.beside.items()}
    columns = replace(columns, **flat)
    if request.classes is not None:
        return replace(columns, class_names=request.classes)
    if columns.class_names is None or columns.places is None or columns.labels is None:
        return columns
    strays, remarks = strays_among(columns.class_names, columns.labels, columns.table)
    for remark in remarks:
        warn_caller(remark)
    unused = (*columns.unused, *(str(columns.class_names[k]) for k in strays))
    if strays:
        columns = columns.in_order([k for k in range(len(columns.class_names)) if k not in strays])
    return replace(columns, unused=unused, remarks=tuple(remarks))


def _two_classes(request: Request, columns: Columns) -> Columns:
    """The two columns of a classifier of two classes, where a file has one score for the second
    alone.
    """
    table = columns.table
    alone = table.ndim == 1 or (table.ndim == 2 and table.shape[1] == 1)
    named = request.allows_single_score or request.is_single_score(columns.class_names or ())
    if not named or not alone or table.dtype.kind not in "fiu":
        return columns
    try:
        two = two_columns(np.asarray(table), request.input)
    except InputError as error:
        raise InputError(f"{request.path}: {error}") from None
    return replace(columns, table=two, class_names=None, score_column=request.logits_key)


def _check_shapes(request: Request, columns: Columns) -> None:
    path, table = request.path, columns.table
    if table.ndim != 2 or table.dtype.kind not in "fiub":
        raise InputError(
            f"{path}: the table of {request.input} must be numbers with one row per item and one"
            f" column per class; got shape {table.shape} of type {table.dtype}. Reshape or convert"
            f" it and save it again.{two_columns_hint() if table.ndim == 1 else ''}"
        )
    for what, column in columns.beside.items():
        if column.shape not in ((len(table),), (len(table), 1)):
            hint = f" {several_labels(column)}" if column.ndim == 2 else ""
            if column.shape == (len(table) + 1,):
                hint = f" If the labels begin with a header, name it with {option('label_key')}."
            raise InputError(
                f"{path}: there are {len(table)} rows but {what} of shape {column.shape}; there"
                f" must be one for each row.{hint}"
            )
    own = columns.class_names if columns.places is None else None
    if own is not None and request.classes is not None and as_class_names(request.classes) != own:
        raise InputError(
            f"{path}: its own class order is {listed(own)}; give the same classes, or none."
        )
    names = request.classes if request.classes is not None else columns.class_names
    if names is not None and len(names) != table.shape[1]:
        raise InputError(
            f"{path}: the table has {table.shape[1]} columns but there are {len(names)} class"
            " names."
        )


def read_for_gate(
    gate: Gate,
    fitted: str,
    path: Paths,
    *,
    classes: Sequence[str | int] | None = None,
    **options: Any,
) -> Predictions:
    """Predictions as a gate wants them: as many columns, of the same kind, in the order of its
    classes.

    Parameters
    ----------
    gate, fitted : Gate, str
        And what messages call it: its file.
    path, classes, **options
        As in `read_predictions`. Where the classes are not given, those of the gate choose their
        columns in text; the one score of a gate of two classes is called as it was where the gate
        was fitted.
    """
    own = tuple(gate.classes.tolist())
    options["logits_key"] = options.get("logits_key") or gate.source.score_column
    shown, kind = str(path), gate.source.input
    # The classes choose their columns among others; a file that says its own class order is checked
    # below.
    chooses = own if classes is None else None
    try:
        predictions = read_predictions(
            path, classes=classes, of_gate=chooses, **{"input": kind, **options}
        )
    except OtherKindError:
        other = "logits" if kind == "probabilities" else "probabilities"
        raise InputError(
            f"{shown} holds {other}, but {fitted} was fitted on {kind}; give {kind} of the same"
            f" classifier, or fit again on its {other}."
        ) from None
    if predictions.table.shape[1] != len(own):
        raise InputError(
            f"{shown} has {predictions.table.shape[1]} columns but {fitted} was fitted on"
            f" {len(own)}; give predictions of the same classifier."
        )
    _question(gate, fitted, predictions)
    if chooses and predictions.places is not None and predictions.class_names == own:
        # The columns were taken in the gate's order; labels that are numbers count them as they
        # stand in the file.
        as_stored = np.argsort(np.argsort(predictions.places)).tolist()
        predictions = replace(predictions, labels=_renumbered(predictions, as_stored))
    order = order_of_classes(predictions.class_names, own, shown, fitted)
    if order is None:
        return predictions
    return replace(predictions.in_order(order), labels=_renumbered(predictions, order))


def order_of_classes(
    names: ClassNames | None, own: ClassNames, held: str, fitted: str
) -> list[int] | None:
    """Which of the columns called `names` is each of a gate's `own` classes; None where they stand
    as they should.

    Columns without names, and names of another kind than the gate's (column numbers beside words),
    are taken in order. `held` and `fitted` are what messages call the rows and the gate.

    Examples
    --------
    >>> order_of_classes(("dog", "cat"), ("cat", "dog"), "new.csv", "cal.json")
    [1, 0]
    >>> order_of_classes(("dog", "cow"), ("cat", "dog"), "new.csv", "cal.json")
    Traceback (most recent call last):
    metacal.errors.InputError: new.csv has the classes 'dog', 'cow' but cal.json was fitted on 'cat', 'dog'; ...
    """
    if names is None or type(names[0]) is not type(own[0]) or names == own:
        return None
    if sorted(map(str, names)) != sorted(map(str, own)):
        raise InputError(
            f"{held} has the classes {listed(names)} but {fitted} was fitted on {listed(own)}; "
            "give predictions of the same classifier."
        )
    return [names.index(name) for name in own]


def _question(gate: Gate, fitted: str, predictions: Predictions) -> None:
    """Warn where the rows look like something else than what the gate was fitted on, by its
    certificate's notes.
    """
    if gate.source.input != "logits":
        return
    notes = () if gate.certificate is None else gate.certificate.notes
    known = {dict(note.facts)["looks"] for note in notes if note.kind == "suspicion"}
    odd = suspicion_in(predictions.table)
    if odd is not None and odd.kind in known:
        return
    if odd is not None and odd.kind == "probabilities":
        warn_caller(
            f"{predictions.path}: every row lies in [0, 1] and sums to one, as probabilities do,"
            f" but {fitted} was fitted on logits: what it says of these rows means nothing. Give"
            f" logits, or fit on probabilities with {option('input', 'probabilities')}."
        )
    elif odd is not None:
        warn_caller(f"{predictions.path}: {odd.remark}")
    elif "probabilities" in known:
        warn_caller(
            f"{fitted} was fitted on rows that look like probabilities read as logits, and"
            f" {predictions.path} holds other rows: what it says of them means nothing. Fit again,"
            f" with {option('input', 'probabilities')} or on logits."
        )


def _renumbered(predictions: Predictions, order: list[int]) -> NDArray[Any] | None:
    """Labels that number the file's columns, in the new order of the columns; others stay as they
    are.
    """
    if not predictions.labels_count_columns:
        return predictions.labels
    codes = label_codes(predictions.labels, len(predictions), class_list(None, len(order)))
    return np.argsort(order)[codes]
