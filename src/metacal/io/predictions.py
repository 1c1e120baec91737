"""Predictions read from files: validated tables of logits or probabilities.

If a file has one column per class, every column without another meaning is a class. Columns that do
not look like classes (`metacal.io.strays`) are left out with a warning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.display import format_names
from metacal.errors import (
    ClassMismatchError,
    InputError,
    MissingLabelsError,
    ShapeError,
    warn_caller,
)
from metacal.io.columns import Columns
from metacal.io.input_paths import Paths
from metacal.io.opening import advise_on_single_score
from metacal.io.reading import read_columns
from metacal.io.request import DEFAULT_TABLE_NAMES, LABEL_NAME_PATTERN, ClassNames, Request
from metacal.rows.arrays import check_choice
from metacal.rows.labels import advise_on_label_table, as_class_names
from metacal.rows.validate import scores_to_two_columns
from metacal.spelling import format_option


@dataclass(frozen=True, eq=False)
class Predictions(Columns):
    """Predictions of a file.

    Attributes
    ----------
    input : {"logits", "probabilities"}
        Content of the table.
    """

    input: str = "logits"

    @property
    def labels_count_columns(self) -> bool:
        """Whether the labels are column numbers from 0 although the classes have names."""
        if self.class_names is None or self.labels is None:
            return False
        return isinstance(self.class_names[0], str) and self.labels.dtype.kind in "iubf"

    def require_truth(self) -> NDArray[Any]:
        """Return the labels. Raise InputError with advice if the file has none."""
        if self.labels is not None:
            return self.labels
        self.raise_if_gate_label_column_missing("label_key")
        other_columns = ""
        if self.unused_names:
            other_columns = f"; the file also holds {format_names(self.unused_names)}"
        suggested_name = None
        for name in (*self.unused_names, *(self.class_names or ())):
            if LABEL_NAME_PATTERN.fullmatch(str(name)):
                suggested_name = str(name)
                break
        raise MissingLabelsError(
            f"{self.path}: no labels found{other_columns}. Store the labels as 'labels', name"
            f" their column with {format_option('label_key', suggested_name)}, or pass a file of"
            f" labels with {format_option('labels')}."
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
    keep: Sequence[str] | None = (),
    of_gate: ClassNames | None = None,
    stream: bool | None = None,
    unpack_limit: int | None = None,
) -> Predictions:
    r"""Read predictions from a file.

    Columns are found by name, and pickles are never read.

    Parameters
    ----------
    path : path, sequence of paths, or table in memory
        A file, a directory, a pattern such as "logs/*.parquet", a URL that fsspec supports, or a
        list of these. Several files are read as one table, in the order of their names. "-" is
        standard input. A table in memory is a Dataset of Hugging Face, an Arrow table, or a data
        frame of polars or pandas.

        Files in npz, safetensors and pt hold arrays named `logits` (or `probabilities`, `probs`),
        and optionally `labels` (`label`, `y`), `id` and `classes`. An npy file holds only the
        table, or records with these names.

        Files in csv, tsv, jsonl, parquet, arrow and feather have one row per item. The columns
        `label` (`labels`, `y`) and `id` have a role. The table is a column `logits` of lists, or
        else the columns that begin with `logits_`, or else all other columns. A single column
        `prob` or `probability` is the probability of the second of two classes.

    labels : path or sequence of paths, optional
        Files with only labels, which replace any labels in `path`: .npy, or .csv, .tsv or .txt with
        one label per line. There is one file for all tables, or one for each.

    logits_key, label_key, id_key : str, optional
        Other names of the table, the labels and the ids. If there is one column per class,
        `logits_key="z"` selects the columns that begin with `z_`, and `logits_key="p(*)"` those
        that are named `p(cat)`, `p(dog)` and so on.

    group_key, unit_key : str, optional
        Names of the groups, for a promise per group, and of the clusters of dependent rows.

    input : {"logits", "probabilities"}, default="logits"
        Content of the table.

    classes : sequence, optional
        Class names in column order. If there is one column per class, they select and order the
        columns.

    format : str, optional
        File format, for example "csv" or "parquet". By default the first bytes of the file
        determine it, or else its name. Text may be separated by commas, semicolons, tabs or bars,
        and may be compressed (.csv.gz).

    drop : sequence of str, default=()
        Columns that are not classes.

    keep : sequence of str or None, default=()
        Columns to copy to the results. They are not classes either. None stands for all columns
        except the table.

    of_gate : sequence, optional
        Classes of a gate. If there is one column per class, the columns with these names are
        selected in this order, and other columns are left out.

    stream : bool, optional
        Whether the table of an .npy, safetensors or Parquet file stays in the file and is read
        block by block in every pass. This bounds the memory. It is slower for Parquet, which is
        decoded in every pass. By default a table stays in its file if it is larger than 256 MiB.

    unpack_limit : int, optional
        Number of bytes to which a compressed file may decompress. It is checked before memory is
        allocated. The default is the environment variable METACAL_UNPACK_LIMIT, or else 2 GiB or 20
        times the size of the file, whichever is more.

    Returns
    -------
    Predictions

    Raises
    ------
    InputError
        If the file cannot be read, lacks a named column, or has unsuitable shapes.

    See Also
    --------
    apply : Apply a gate to files.
    load_gate : Load a saved gate as a frozen value.

    Examples
    --------
    >>> import os, tempfile
    >>> from pathlib import Path
    >>> path = os.path.join(tempfile.mkdtemp(), "val.csv")
    >>> _ = Path(path).write_text("cat,dog,label\n2.5,-1,cat\n0.5,3,dog\n")
    >>> predictions = read_predictions(path)
    >>> predictions.table.shape, predictions.class_names, predictions.labels.tolist()
    ((2, 2), ('cat', 'dog'), ['cat', 'dog'])
    >>> read_predictions("predictions.xlsx")
    Traceback (most recent call last):
    metacal.errors.FileContentError: predictions.xlsx: metacal does not read '.xlsx' files, ...
    """
    check_choice("input", input, *DEFAULT_TABLE_NAMES)
    requested_classes = None
    if classes is not None:
        requested_classes = tuple(classes)
    request = Request(
        "",
        input=input,
        logits_key=logits_key,
        label_key=label_key,
        classes=requested_classes,
        id_key=id_key,
        group_key=group_key,
        unit_key=unit_key,
        format=format,
        stream=stream,
        excluded_columns=tuple(drop),
        kept_names=tuple(keep or ()),
        keeps_other_columns=keep is None,
        gate_classes=of_gate,
    )
    return read_requested_predictions(path, request, labels=labels, unpack_limit=unpack_limit)


def read_requested_predictions(
    path: Paths,
    request: Request,
    *,
    labels: Paths | None = None,
    unpack_limit: int | None = None,
) -> Predictions:
    """Read the predictions that a request describes; see `read_predictions`."""
    columns = read_columns(
        path, request, _check_and_convert, unpack_limit=unpack_limit, labels=labels
    )
    return Predictions(**vars(columns), input=request.input)


def _check_and_convert(request: Request, columns: Columns) -> Columns:
    """Check the shapes of the columns, and leave out columns that are not classes."""
    columns = _expand_single_score(request, columns)
    _check_columns_fit_together(request, columns)
    flat_columns: dict[str, Any] = {}
    for role, column in columns.array_of_role.items():
        flat_columns[role] = column.ravel()
    columns = replace(
        columns,
        **flat_columns,
        missing_label_column=request.find_missing_label_column(columns),
        keeps_all_columns=request.keeps_other_columns,
    )
    if request.classes is not None:
        return replace(columns, class_names=request.classes)
    return _leave_out_stray_columns(columns)


def _leave_out_stray_columns(columns: Columns) -> Columns:
    """Leave out columns that do not look like classes, with a warning."""
    class_names = columns.class_names
    if class_names is None or not columns.has_column_per_class or columns.labels is None:
        return columns
    # Without column names, no column can be recognised as a stray column.
    from metacal.io.strays import find_stray_columns

    strays = find_stray_columns(class_names, columns.labels, columns.table)
    for warning in strays.warnings:
        warn_caller(warning)
    if strays.excluded_indices:
        class_indices = [
            index for index in range(len(class_names)) if index not in strays.excluded_indices
        ]
        columns = columns.select_table_columns(class_indices)
    excluded_names = [str(class_names[index]) for index in strays.excluded_indices]
    return replace(
        columns,
        unused_names=(*columns.unused_names, *excluded_names),
        remarks=tuple(strays.warnings),
    )


def _expand_single_score(request: Request, columns: Columns) -> Columns:
    """Convert the score of the second of two classes to a table of both classes."""
    table = columns.table
    has_one_column = table.ndim == 1 or (table.ndim == 2 and table.shape[1] == 1)
    class_names = columns.class_names or ()
    may_be_single_score = request.accepts_score_of_any_name or request.accepts_as_single_score(
        class_names
    )
    is_numeric = table.dtype.kind in "fiu"
    if not (has_one_column and may_be_single_score and is_numeric):
        return columns
    try:
        two_class_table = scores_to_two_columns(np.asarray(table), request.input)
    except InputError as error:
        raise type(error)(f"{request.path}: {error}") from None
    return replace(columns, table=two_class_table, class_names=None)


def _check_columns_fit_together(request: Request, columns: Columns) -> None:
    """Raise InputError if the table and the other columns do not fit together."""
    table = columns.table
    if table.ndim != 2 or table.dtype.kind not in "fiub":
        hint = ""
        if table.ndim == 1:
            hint = advise_on_single_score()
        raise ShapeError(
            f"{request.path}: the table of {request.input} must be numeric, with one row per item"
            f" and one column per class, but it has shape {table.shape} and type {table.dtype}."
            f" Convert or reshape the table, and save it again.{hint}"
        )
    for role, column in columns.array_of_role.items():
        _check_role_column(request, role, column, n_rows=len(table))
    _check_class_names(request, columns)


def _check_role_column(request: Request, role: str, column: NDArray[Any], n_rows: int) -> None:
    """Raise InputError if a column does not have one value for each row.

    Parameters
    ----------
    request : Request
        Request with the path of the file.

    role : str
        Role of the column.

    column : array
        Values of the column.

    n_rows : int
        Number of rows of the table.
    """
    if column.shape in ((n_rows,), (n_rows, 1)):
        return
    hint = ""
    if column.ndim == 2:
        hint = f" {advise_on_label_table(column)}"
    if column.shape == (n_rows + 1,):
        hint = (
            " If the labels start with a header, name the column with"
            f" {format_option('label_key')}."
        )
    raise ShapeError(
        f"{request.path}: {role} must have one entry for each of the {n_rows} rows, but the shape"
        f" is {column.shape}.{hint}"
    )


def _check_class_names(request: Request, columns: Columns) -> None:
    """Raise InputError if the requested classes do not fit the table."""
    stored_class_list = None if columns.has_column_per_class else columns.class_names
    if (
        request.classes is not None
        and stored_class_list is not None
        and as_class_names(request.classes) != stored_class_list
    ):
        raise ClassMismatchError(
            f"{request.path}: the file stores the classes in the order"
            f" {format_names(stored_class_list)}, which differs from the classes that you"
            " pass. Pass the same classes, or none."
        )
    class_names = columns.class_names
    if request.classes is not None:
        class_names = request.classes
    n_columns = columns.table.shape[1]
    if class_names is not None and len(class_names) != n_columns:
        raise ClassMismatchError(
            f"{request.path}: the table has {n_columns} columns, but you pass {len(class_names)}"
            " class names. Pass one name per column."
        )
