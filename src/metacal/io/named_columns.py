"""Columns that the user names, or that have a default name.

The term *role* is defined in `metacal.io.request`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

from metacal.display import format_names
from metacal.errors import ColumnError, InputError, InputKindError
from metacal.io.opening import MissingScoreColumnError
from metacal.io.request import (
    DEFAULT_ID_NAMES,
    DEFAULT_TABLE_NAMES,
    FIELDS_OPTIONAL_AFTER_FIT,
    REQUEST_FIELD_OF_ROLE,
    Request,
)
from metacal.spelling import format_option, format_option_name

#: Content of the column that a field of a `Request` names, for messages.
_CONTENT_OF_FIELD = {
    "logits_key": "its input",
    "label_key": "the labels",
    "group_key": "the groups",
}


class OtherInputKindError(InputKindError):
    """Error about probabilities instead of logits, or logits instead of probabilities."""


def find_column_of_each_role(
    request: Request, column_names: Collection[str], table_column_names: Collection[str] = ()
) -> dict[str, str]:
    """Find the column of each role by the requested name or by a default name.

    Parameters
    ----------
    request : Request
        Description of the wanted columns.

    column_names : collection of str
        Names of all columns.

    table_column_names : collection of str, default=()
        Columns of the table, which have no role.

    Returns
    -------
    dict of str to str
        Column name of each role that was found. The column with the role "labels" has no other
        role.
    """
    default_names = {"labels": request.default_label_names, "ids": DEFAULT_ID_NAMES}
    used_names = set(table_column_names)
    column_of_role: dict[str, str] = {}
    for role, request_field in REQUEST_FIELD_OF_ROLE.items():
        column_name = find_requested_column(
            request,
            column_names,
            request_field=request_field,
            default_names=default_names.get(role, ()),
            used_names=used_names,
        )
        if column_name is None:
            continue
        column_of_role[role] = column_name
        # Other roles may share a column, for example if the ids are the clusters.
        if role == "labels":
            used_names.add(column_name)
    return column_of_role


def advise_on_label_column(column: str) -> str:
    """Return the advice to name a column of labels, for use within a message."""
    return f"if it holds the labels, pass {format_option('label_key', column)}, "


def find_requested_column(
    request: Request,
    column_names: Collection[str],
    *,
    request_field: str,
    default_names: Sequence[str],
    used_names: Collection[str] = (),
) -> str | None:
    """Find one column by the requested name, or by a default name.

    Parameters
    ----------
    request : Request
        Description of the wanted columns.

    column_names : collection of str
        Names of all columns.

    request_field : str
        Field of the request with the name, such as "label_key". The user gave the name, or the gate
        that is applied remembers it from the calibration file.

    default_names : sequence of str
        Default names, used if the request has no name.

    used_names : collection of str, default=()
        Columns that are already in use.

    Returns
    -------
    str or None
        None if the request has no name and no column has a default name, or if the gate remembers a
        name that it does not need.

    Raises
    ------
    InputError
        If the named column is missing or in use, or if several columns have a default name. A
        missing score raises `MissingScoreColumnError`.
    """
    requested_name: str | None = getattr(request, request_field)
    is_named_by_gate = request_field in request.fields_set_by_gate
    if is_named_by_gate and requested_name not in column_names:
        if request_field in FIELDS_OPTIONAL_AFTER_FIT:
            return None
        raise build_missing_gate_column_error(request, column_names, request_field)
    if requested_name is not None:
        _check_requested_name(request, column_names, request_field, requested_name, used_names)
        return requested_name

    candidates = [name for name in default_names if name in column_names and name not in used_names]
    if len(candidates) > 1:
        raise ColumnError(
            f"{request.path}: the file has both {candidates[0]!r} and {candidates[1]!r}. Choose"
            f" one of them with {format_option(request.get_user_parameter(request_field))}."
        )
    if not candidates:
        return None
    return candidates[0]


def build_missing_gate_column_error(
    request: Request, column_names: Collection[str], request_field: str
) -> InputError:
    """Build the error for a file without a column that the gate was fitted on."""
    message = (
        f"{request.path}: the file has no column {getattr(request, request_field)!r}, from which"
        f" {request.gate_name} reads {_CONTENT_OF_FIELD[request_field]}. Its columns are"
        f" {format_names(column_names)}. If the column has another name, pass"
        f" {format_option(request.get_user_parameter(request_field))}."
    )
    if request.is_score_field(request_field):
        return MissingScoreColumnError(message)
    return ColumnError(message)


def _check_requested_name(
    request: Request,
    column_names: Collection[str],
    request_field: str,
    requested_name: str,
    used_names: Collection[str],
) -> None:
    """Raise InputError if a requested column is missing or already in use.

    Parameters
    ----------
    request : Request
        Description of the wanted columns.

    column_names : collection of str
        Names of all columns.

    request_field : str
        Field of the request with the name.

    requested_name : str
        Name of the column.

    used_names : collection of str
        Columns that are already in use.
    """
    option_name = format_option_name(request.get_user_parameter(request_field))
    if requested_name not in column_names:
        message = (
            f"{request.path}: {option_name} names {requested_name!r}, which the file does not"
            f" have. Its columns are {format_names(column_names)}."
        )
        if request.is_score_field(request_field):
            raise MissingScoreColumnError(message)
        raise ColumnError(message)
    if requested_name in used_names:
        raise ColumnError(
            f"{request.path}: {requested_name!r} already has another meaning. Name another column"
            f" with {option_name}."
        )


def build_missing_table_error(
    request: Request,
    item_kind: Literal["array", "column"],
    candidate_names: Collection[str],
    *,
    content_clause: str,
    advice_clause: str,
) -> InputError:
    """Build the error for a file without the requested table.

    Parameters
    ----------
    request : Request
        Description of the wanted columns.

    item_kind : {"array", "column"}
        Kind of the named items in the file.

    candidate_names : collection of str
        Names of the items that could be the table.

    content_clause : str
        Description of the content of the file, such as "it has 'x' and 'y'".

    advice_clause : str
        End of the sentence if the file does not hold the other kind of input either, such as
        "; name the table with logits_key.".

    Returns
    -------
    InputError
        An `OtherInputKindError` if the file holds the other kind of input.
    """
    expected_name = DEFAULT_TABLE_NAMES[request.input][0]
    problem = f"{request.path}: no {item_kind} {expected_name!r} found; {content_clause}"
    other_input = "probabilities" if request.input == "logits" else "logits"
    holds_other_input = any(name in candidate_names for name in DEFAULT_TABLE_NAMES[other_input])
    if holds_other_input:
        other_input_option = format_option("input", other_input)
        return OtherInputKindError(
            f"{problem}; to read its {other_input}, pass {other_input_option}."
        )
    return ColumnError(problem + advice_clause)
