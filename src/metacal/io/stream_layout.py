"""Meaning of the columns of a stream, determined from its header."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from metacal.display import format_names
from metacal.errors import ClassMismatchError, ColumnError, InputError
from metacal.io.column_selection import ColumnSelection, select_columns
from metacal.io.named_columns import find_column_of_each_role
from metacal.io.request import REQUEST_FIELD_OF_ROLE, Request


class HeaderError(ColumnError):
    """Error about a header that does not determine the meaning of the columns."""


@dataclass(frozen=True)
class StreamLayout:
    """Meaning of the columns of a stream.

    Attributes
    ----------
    table_column_names : tuple of str
        Columns with the numbers of a row. Empty if there are only late labels.

    is_list_column : bool
        Whether the table is one column of lists.

    column_of_role : mapping of str to str
        Column name of each role.
    """

    table_column_names: tuple[str, ...] = ()
    is_list_column: bool = False
    column_of_role: Mapping[str, str] = field(default_factory=dict)


def determine_layout(
    request: Request,
    header: list[str],
    list_names: list[str],
    *,
    has_header_line: bool,
    probability_key: str | None,
) -> StreamLayout:
    """Determine the meaning of the columns of a stream.

    Parameters
    ----------
    request : Request
        Description of the wanted columns.

    header : list of str
        Names of the columns, or of the entries of a JSON object.

    list_names : list of str
        Names in the header whose values are lists.

    has_header_line : bool
        Whether the stream is csv or tsv. Every column is then in the header. A JSON object may
        lack entries that later objects have.

    probability_key : str or None
        Name of the sampling probability.

    Raises
    ------
    HeaderError
        If the columns are not suitable.
    """
    if has_header_line and probability_key is not None and probability_key not in header:
        raise HeaderError(
            f"{request.path}: --probability-key names {probability_key!r}, which the file does"
            f" not have. Its columns are {format_names(header)}."
        )
    column_names = [name for name in header if name != probability_key]
    try:
        return _select_columns(request, column_names, list_names, has_header_line)
    except InputError as error:
        raise HeaderError(str(error)) from None


def _select_columns(
    request: Request, column_names: list[str], list_names: list[str], has_header_line: bool
) -> StreamLayout:
    """Select the columns of the rows, or only labels and ids in a file of late labels."""
    if has_header_line:
        # Every cell of csv or tsv is text, so a column of lists is recognised by its name.
        possible_list_names = (request.logits_key, *request.default_table_names)
        list_names = [name for name in column_names if name in possible_list_names]
    else:
        request = _drop_missing_keys(request, column_names)

    column_of_role = find_column_of_each_role(request, column_names)
    layout_of_late_labels = StreamLayout(column_of_role=column_of_role)
    may_hold_late_labels = "labels" in column_of_role and "ids" in column_of_role
    lacks_score_column = request.table_is_score_column and request.logits_key not in column_names
    if may_hold_late_labels and lacks_score_column:
        return layout_of_late_labels

    selection = select_columns(request, column_names, list_names, min_classes=0)
    class_columns = selection.table_column_names
    n_required_columns = _find_required_number_of_columns(request, selection)
    if n_required_columns is not None and len(class_columns) != n_required_columns:
        if may_hold_late_labels:
            return layout_of_late_labels
        raise ClassMismatchError(
            f"{request.path}: the gate was fitted on {n_required_columns} classes"
            f" ({format_names(request.classes or ())}), but the file has"
            f" {len(class_columns)} columns of classes"
            f" ({format_names(class_columns)})."
        )
    if has_header_line:
        _check_cascade_columns(request, column_names)
    return StreamLayout(
        table_column_names=class_columns + request.later_score_columns,
        is_list_column=not selection.has_column_per_class and not request.table_is_score_column,
        column_of_role=dict(selection.column_of_role),
    )


def _check_cascade_columns(request: Request, column_names: list[str]) -> None:
    """Raise ColumnError if a column about a later model of a cascade is missing."""
    required_names = {*request.later_score_columns, *request.correctness_columns}
    missing_names = required_names - set(column_names)
    if missing_names:
        raise ColumnError(
            f"{request.path}: the file has no column {min(missing_names)!r}. Its columns are"
            f" {format_names(column_names)}."
        )


def _drop_missing_keys(request: Request, column_names: list[str]) -> Request:
    """Remove the keys of columns that the first object lacks.

    Later objects may have them under default names.
    """
    missing_keys: dict[str, Any] = {}
    for key in REQUEST_FIELD_OF_ROLE.values():
        if getattr(request, key) not in column_names:
            missing_keys[key] = None
    return replace(request, **missing_keys)


def _find_required_number_of_columns(request: Request, selection: ColumnSelection) -> int | None:
    """Return the number of class columns that the gate requires, or None if any."""
    if not selection.has_column_per_class:
        return None
    if request.accepts_as_single_score(selection.table_column_names):
        return 1
    if not request.classes:
        return None
    return len(request.classes)
