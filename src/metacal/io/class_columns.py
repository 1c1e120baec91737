"""Columns of a table of classes: one column of lists, or one per class.

The terms *table* and *single score* are defined in `metacal.io.request`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from metacal.display import format_names
from metacal.errors import ColumnError, warn_caller
from metacal.io.named_columns import (
    build_missing_gate_column_error,
    build_missing_table_error,
    find_requested_column,
)
from metacal.io.opening import single_score_parameter
from metacal.io.request import (
    CLASS_COLUMN_PREFIXES,
    DEFAULT_ID_NAMES,
    DEFAULT_LABEL_NAMES,
    SINGLE_SCORE_NAMES,
    ClassNames,
    Request,
)
from metacal.rows.labels import as_class_names
from metacal.spelling import format_option


def find_list_column(
    request: Request, header: Sequence[str], list_column_names: Collection[str]
) -> str | None:
    """Return the name of the list column that holds the logits or scores, or None.

    Raises
    ------
    InputError
        If there are columns of lists but it is not clear which of them is the table.
    """
    if request.logits_key is not None:
        if request.logits_key in list_column_names:
            return request.logits_key
        return None

    list_name_set = set(list_column_names)
    list_columns_in_order = [name for name in header if name in list_name_set]
    table_column_name = find_requested_column(
        request,
        list_columns_in_order,
        request_field="logits_key",
        default_names=request.default_table_names,
    )
    if table_column_name is not None or not list_column_names:
        return table_column_name
    advice_clause = (
        f", of which {format_names(list_column_names)} hold lists; name the column of"
        f" {request.input} with {format_option('logits_key')}."
    )
    raise build_missing_table_error(
        request,
        "column",
        list_column_names,
        content_clause=f"it has {format_names(header)}",
        advice_clause=advice_clause,
    )


class ClassColumnPattern(NamedTuple):
    """Prefix and suffix around the class name in the names of class columns.

    Examples
    --------
    >>> ClassColumnPattern.from_key("p(*)").find_class_name("p(cat)")
    'cat'
    >>> ClassColumnPattern.from_key("p").find_class_name("p_cat")
    'cat'
    >>> ClassColumnPattern.from_key("p").find_class_name("probability") is None
    True
    """

    prefix: str
    suffix: str = ""

    @classmethod
    def from_key(cls, logits_key: str) -> ClassColumnPattern:
        """Return the pattern of a key, in which "*" stands for the name of a class."""
        prefix, star, suffix = logits_key.partition("*")
        if not star:
            return cls(f"{logits_key}_")
        return cls(prefix, suffix)

    def __str__(self) -> str:
        return f"{self.prefix}*{self.suffix}"

    def find_class_name(self, column_name: str) -> str | None:
        """Return the class that the name of a column refers to, or None."""
        n_class_characters = len(column_name) - len(self.prefix) - len(self.suffix)
        if n_class_characters < 1:
            return None
        if not column_name.startswith(self.prefix) or not column_name.endswith(self.suffix):
            return None
        return column_name[len(self.prefix) :][:n_class_characters]


def list_class_column_patterns(request: Request) -> tuple[ClassColumnPattern, ...]:
    """Return the patterns that the names of class columns may have."""
    if request.logits_key is None:
        return tuple(map(ClassColumnPattern, CLASS_COLUMN_PREFIXES[request.input]))
    return (ClassColumnPattern.from_key(request.logits_key),)


def find_class_names(
    column_names: Sequence[str], patterns: Sequence[ClassColumnPattern]
) -> ClassNames:
    """Return the class name of each column, using the first pattern that fits all."""
    for pattern in patterns:
        class_names = [pattern.find_class_name(name) for name in column_names]
        if None not in class_names:
            return as_class_names([str(name) for name in class_names])
    return as_class_names(column_names)


def find_columns_of_known_classes(
    request: Request, header: Sequence[str], patterns: Sequence[ClassColumnPattern]
) -> list[str]:
    """Return the columns named after the classes of the request or of the gate.

    Parameters
    ----------
    request : Request
        Description of the wanted columns, with the classes.

    header : sequence of str
        Names of all columns.

    patterns : sequence of ClassColumnPattern
        Patterns that the name of a column may have.

    Returns
    -------
    list of str
        One column per class, in the order of the classes. Empty if no column is named after a
        class.

    Raises
    ------
    InputError
        If only some of the classes have a column.
    """
    column_of_class = _map_classes_to_columns(request, header, patterns)
    known_classes = request.classes or request.gate_classes or ()
    class_names = [str(name) for name in known_classes]
    missing_names = [name for name in class_names if name not in column_of_class]
    if len(missing_names) == len(class_names):
        return []
    if missing_names:
        raise ColumnError(
            f"{request.path}: the file has no columns for the classes"
            f" {format_names(missing_names)}. Its columns are {format_names(header)}."
        )
    uses_gate_classes = request.classes is None
    if uses_gate_classes:
        _warn_of_new_classes(request, header, patterns, class_names)
    return [column_of_class[name] for name in class_names]


def _map_classes_to_columns(
    request: Request, header: Sequence[str], patterns: Sequence[ClassColumnPattern]
) -> dict[str, str]:
    """Map each possible class name to the column that is named after it.

    Unless the user gave a `logits_key`, which contains a prefix, a column may also have the bare name
    of a class.
    """
    column_of_class: dict[str, str] = {}
    if request.logits_key is None:
        column_of_class.update((name, name) for name in header)
    for pattern in patterns:
        for column_name in header:
            class_name = pattern.find_class_name(column_name)
            if class_name is not None:
                column_of_class[class_name] = column_name
    return column_of_class


def _warn_of_new_classes(
    request: Request,
    header: Sequence[str],
    patterns: Sequence[ClassColumnPattern],
    gate_classes: Collection[str],
) -> None:
    """Warn about columns that look like classes but are unknown to the gate.

    They may be classes that the classifier has learned since the gate was fitted.
    """
    new_class_columns = []
    for name in header:
        possible_classes = {pattern.find_class_name(name) for pattern in patterns} - {None}
        is_excluded = name in request.excluded_columns or name in request.kept_names
        if possible_classes and not is_excluded and not possible_classes & set(gate_classes):
            new_class_columns.append(name)
    if new_class_columns and request.logits_key is not None:
        warn_caller(
            f"{request.path}: the columns {format_names(new_class_columns)} look like classes, but"
            f" {request.gate_name or 'the gate'} does not have these classes. If the classifier"
            " has new classes, fit the gate again. Otherwise leave out the columns with"
            f" {format_option('drop')}."
        )


def find_columns_of_unknown_classes(
    request: Request,
    header: Sequence[str],
    patterns: Sequence[ClassColumnPattern],
    columns_with_role: Iterable[str],
) -> list[str]:
    """Find the class columns by their names when the class names are unknown.

    These are the columns that fit a pattern, or a single score, or all columns without another
    meaning.

    Parameters
    ----------
    request : Request
        Description of the wanted columns.

    header : sequence of str
        Names of all columns.

    patterns : sequence of ClassColumnPattern
        Patterns of the names of class columns, in order of preference.

    columns_with_role : iterable of str
        Names of the columns of labels, ids and the like.

    Returns
    -------
    list of str

    Raises
    ------
    InputError
        If the requested columns are missing, or if the remaining columns may not all be classes.
    """
    excluded_names = {"", *columns_with_role, *request.excluded_columns, *request.kept_names}
    if request.id_key is not None:
        excluded_names.update(DEFAULT_ID_NAMES)
    candidates = [name for name in header if name not in excluded_names]

    matching_columns = _find_matching_columns(request, candidates, patterns)
    if matching_columns:
        return matching_columns
    score_column_name = _find_single_score_column(request, candidates)
    if score_column_name is not None:
        return [score_column_name]
    if "logits_key" in request.fields_set_by_gate:
        raise build_missing_gate_column_error(request, header, "logits_key")
    if request.logits_key is not None:
        raise ColumnError(
            f"{request.path}: the file has no column {request.logits_key!r} of lists, and no"
            f" columns with names like '{patterns[0]}'. Its columns are {format_names(header)}."
        )
    _check_columns_may_be_classes(request, candidates)
    return candidates


def _find_matching_columns(
    request: Request, candidates: Sequence[str], patterns: Sequence[ClassColumnPattern]
) -> list[str]:
    """Return the columns that match the first pattern with enough matches."""
    # If the user named the prefix in `logits_key`, a single matching column is enough.
    min_columns = 1
    if request.logits_key is None:
        min_columns = 2
    for pattern in patterns:
        column_names = [name for name in candidates if pattern.find_class_name(name) is not None]
        if len(column_names) >= min_columns:
            return column_names
    return []


def _find_single_score_column(request: Request, candidates: Sequence[str]) -> str | None:
    """Return the column with one score for two classes, or None if there is none.

    The user names it with `logits_key`, or it has one of the names in `SINGLE_SCORE_NAMES`.
    """
    if not request.accepts_score_of_any_name:
        return None
    if request.logits_key is not None:
        if request.logits_key in candidates:
            return request.logits_key
        return None
    columns_with_score_name = set(candidates) & set(SINGLE_SCORE_NAMES[request.input])
    if len(columns_with_score_name) != 1:
        return None
    return columns_with_score_name.pop()


def _check_columns_may_be_classes(request: Request, candidates: Sequence[str]) -> None:
    """Raise InputError if some class columns may be labels or unrelated columns."""
    for name in candidates:
        if name in DEFAULT_LABEL_NAMES:
            raise ColumnError(
                f"{request.path}: the column {name!r} may be a class or a label. List the classes"
                f" with {format_option('classes')}."
            )
    # A single score and an unrelated column look like the columns of two classes.
    n_gate_classes = len(request.gate_classes or ())
    if n_gate_classes == 2 and len(candidates) > 1:
        raise ColumnError(
            f"{request.path}: no column has the name of a class of the gate. The columns are"
            f" {format_names(candidates)}. Name the score of the second class with"
            f" {single_score_parameter()}, or list the columns of both classes with"
            f" {format_option('classes')}."
        )
