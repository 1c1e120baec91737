"""Columns that the user names, or that have a default name.

The term *role* is defined in `metacal.io.request`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

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
from metacal.spelling import choose_spelling, format_option

#: Meaning in messages of the columns that a gate reads.
_MEANINGS = {
    "logits_key": "its input",
    "label_key": "the labels",
    "group_key": "the groups",
}


class OtherInputKindError(InputKindError):
    """Error about probabilities instead of logits, or logits instead of probabilities."""


def find_column_of_each_role(
    request: Request, column_names: Collection[str], table_column_names: Collection[str] = ()
) -> dict[str, str]:
    """Find the column of each role by its given or default name.

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
    excluded_names = set(table_column_names)
    column_of_role: dict[str, str] = {}
    for role, request_field in REQUEST_FIELD_OF_ROLE.items():
        name = find_requested_column(
            request,
            column_names,
            request_field=request_field,
            default_names=default_names.get(role, ()),
            used_names=excluded_names,
        )
        if name is None:
            continue
        column_of_role[role] = name
        if role == "labels":
            excluded_names.add(name)
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
    """Find one column by the name that the user gave, or by a default name.

    Parameters
    ----------
    request : Request
        Description of the wanted columns.

    column_names : collection of str
        Names of all columns.

    request_field : str
        Field of the request with the name that the user gave.

    default_names : sequence of str
        Default names, used if the user gave none.

    used_names : collection of str, default=()
        Columns that are already in use.

    Returns
    -------
    str or None
        None if the user gave no name and no column has a default name, or if a gate remembers a name
        that it does not need.

    Raises
    ------
    InputError
        If the named column is missing or in use, or if several columns have a default name. A
        missing score raises `MissingScoreColumnError`.
    """
    given_name = getattr(request, request_field)
    is_remembered = request_field in request.fields_set_by_gate
    if is_remembered and given_name not in column_names:
        if request_field in FIELDS_OPTIONAL_AFTER_FIT:
            return None
        raise build_missing_gate_column_error(request, column_names, request_field)
    if given_name is not None:
        _check_named_column(request, column_names, request_field, used_names)
        return str(given_name)

    candidates = [name for name in default_names if name in column_names and name not in used_names]
    if len(candidates) > 1:
        raise ColumnError(
            f"{request.path}: the file has both {candidates[0]!r} and {candidates[1]!r}. Choose"
            f" one of them with {format_option(request.user_parameter_name(request_field))}."
        )
    if not candidates:
        return None
    return candidates[0]


def build_missing_gate_column_error(
    request: Request, column_names: Collection[str], request_field: str
) -> InputError:
    """Build the error about a missing column that the gate was fitted on."""
    message = (
        f"{request.path}: the file has no column {getattr(request, request_field)!r}, from which"
        f" {request.gate_name} reads {_MEANINGS[request_field]}. Its columns are"
        f" {format_names(column_names)}. If the column has another name, pass"
        f" {format_option(request.user_parameter_name(request_field))}."
    )
    if request.reads_scores and request_field == "logits_key":
        return MissingScoreColumnError(message)
    return ColumnError(message)


def _check_named_column(
    request: Request, column_names: Collection[str], request_field: str, used_names: Collection[str]
) -> None:
    """Raise InputError if the column that the user named is missing or already in use.

    Parameters
    ----------
    request : Request
        Description of the wanted columns.

    column_names : collection of str
        Names of all columns.

    request_field : str
        Field of the request with the name that the user gave.

    used_names : collection of str
        Columns that are already in use.
    """
    given_name = getattr(request, request_field)
    parameter = request.user_parameter_name(request_field)
    parameter_text = choose_spelling(parameter, "--" + parameter.replace("_", "-"))
    if given_name not in column_names:
        message = (
            f"{request.path}: {parameter_text} names {given_name!r}, which the file does not"
            f" have. Its columns are {format_names(column_names)}."
        )
        if request.reads_scores and request_field == "logits_key":
            raise MissingScoreColumnError(message)
        raise ColumnError(message)
    if given_name in used_names:
        raise ColumnError(
            f"{request.path}: {given_name!r} already has another meaning. Name another column"
            f" with {parameter_text}."
        )


def build_missing_table_error(
    request: Request, item_kind: str, names: Collection[str], content: str, advice: str
) -> InputError:
    """Build the error for a file without the requested table.

    Parameters
    ----------
    request : Request
        Description of the wanted columns.

    item_kind : {"array", "column"}
        Kind of the named items in the file.

    names : collection of str
        Names that could be the table.

    content : str
        Description of the content of the file.

    advice : str
        What the user can do if the file does not hold the other kind of input either.

    Returns
    -------
    InputError
        An `OtherInputKindError` if the file holds the other kind of input.
    """
    other_input = next(kind for kind in DEFAULT_TABLE_NAMES if kind != request.input)
    problem = (
        f"{request.path}: no {item_kind} {DEFAULT_TABLE_NAMES[request.input][0]!r} found; {content}"
    )
    if any(name in names for name in DEFAULT_TABLE_NAMES[other_input]):
        solution = format_option("input", other_input)
        return OtherInputKindError(f"{problem}; to read its {other_input}, pass {solution}.")
    return ColumnError(problem + advice)
