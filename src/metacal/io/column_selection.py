"""Selection of columns by name: the table, the roles, and the class names.

Readers of whole files, of batches and of streams select with the same rules. The terms *table*,
*role* and *single score* are defined in `metacal.io.request`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from metacal.display import format_names
from metacal.errors import ColumnError, InputError
from metacal.io.class_columns import (
    find_class_names,
    find_columns_of_known_classes,
    find_columns_of_unknown_classes,
    find_list_column,
    list_class_column_patterns,
)
from metacal.io.columns import Columns
from metacal.io.named_columns import (
    build_missing_table_error,
    find_column_of_each_role,
    find_requested_column,
)
from metacal.io.opening import advise_on_single_score, build_kept_column
from metacal.io.request import DEFAULT_CLASS_LIST_NAMES, ClassNames, Request
from metacal.rows.labels import as_class_names
from metacal.spelling import format_option

#: Number of arrays that a message describes, and length of each description.
_MAX_DESCRIBED_ARRAYS = 8
_MAX_DESCRIPTION_LENGTH = 80


@dataclass(frozen=True)
class ColumnSelection:
    """Names of the selected columns or arrays.

    Attributes
    ----------
    table_column_names : tuple of str
        Columns of the table: one per class, or one column of lists, array or score.

    column_of_role : mapping of str to str
        Column name of each role.

    unused_names : tuple of str
        Names that were not selected.

    class_names : tuple or None
        Class names, if there is one column per class.

    class_column_positions : tuple of int or None
        Positions of the class columns in the file, if there is one column per class.

    class_list_name : str or None
        Name of the array that holds the class names.

    kept_names : tuple of str
        Columns to copy to the results.

    path : str
        Name of the file in messages.
    """

    table_column_names: tuple[str, ...]
    column_of_role: Mapping[str, str]
    unused_names: tuple[str, ...] = ()
    class_names: ClassNames | None = None
    class_column_positions: tuple[int, ...] | None = None
    class_list_name: str | None = None
    kept_names: tuple[str, ...] = ()
    path: str = ""

    @property
    def table_name(self) -> str:
        """Name of the array or column that is the whole table."""
        return self.table_column_names[0]

    @property
    def has_column_per_class(self) -> bool:
        """Whether the table has one column per class instead of a column of lists."""
        return self.class_column_positions is not None

    def without_class_list(self) -> ColumnSelection:
        """Return a copy without an array of class names."""
        return replace(self, class_list_name=None)

    def without_kept_columns(self) -> ColumnSelection:
        """Return a copy that copies no columns to the results."""
        return replace(self, kept_names=(), unused_names=(*self.unused_names, *self.kept_names))

    def with_kept_columns(self, names: Collection[str]) -> ColumnSelection:
        """Return a copy that also copies the given columns to the results."""
        return replace(
            self,
            kept_names=(*self.kept_names, *names),
            unused_names=tuple(name for name in self.unused_names if name not in names),
        )

    @property
    def side_column_names(self) -> list[str]:
        """Names of the columns to read besides the table, without duplicates."""
        return list(dict.fromkeys((*self.column_of_role.values(), *self.kept_names)))

    @property
    def all_column_names(self) -> list[str]:
        """Names of all columns to read, the table first, without duplicates."""
        return list(dict.fromkeys((*self.table_column_names, *self.side_column_names)))

    def build_columns(
        self,
        table: Any,
        read_array: Callable[[str], Any],
        read_kept_values: Callable[[str], list[Any]] | None = None,
        *,
        class_names: ClassNames | None = None,
        line_numbers: Sequence[int] | None = None,
    ) -> Columns:
        """Read the remaining columns, and return them with the table as `Columns`.

        Parameters
        ----------
        table : array or StoredTable
            The table.

        read_array : callable
            Takes a column name and returns the column as an array.

        read_kept_values : callable, optional
            Takes the name of a kept column and returns the list of its values, with None for missing
            values. If it is not given, kept columns are read with `read_array`.

        class_names : tuple, optional
            Class names stored in the file.

        line_numbers : sequence of int, optional
            Line number of each row.

        Returns
        -------
        Columns
        """
        if self.class_list_name is not None:
            class_names = as_class_names(read_array(self.class_list_name))
        elif class_names is None:
            class_names = self.class_names

        kept_columns = {}
        for name in self.kept_names:
            if read_kept_values is None:
                kept_columns[name] = read_array(name)
            else:
                kept_columns[name] = build_kept_column(read_kept_values(name))

        # The roles are names of attributes of `Columns`, for example "labels".
        array_of_role = {role: read_array(name) for role, name in self.column_of_role.items()}
        return Columns(
            self.path,
            table,
            **array_of_role,
            class_names=class_names,
            unused_names=self.unused_names,
            class_column_positions=self.class_column_positions,
            column_of_role=self.column_of_role,
            kept=kept_columns,
            line_numbers=line_numbers,
        )


def select_arrays(request: Request, description_of_array: Mapping[str, str]) -> ColumnSelection:
    """Select the requested arrays from named arrays.

    Parameters
    ----------
    request : Request
        Description of the wanted columns.

    description_of_array : mapping of str to str
        Description of each array, such as its shape, keyed by its name. Messages show it.

    Returns
    -------
    ColumnSelection

    Raises
    ------
    InputError
        If there is no table, if a named array is missing, or if two arrays have default names of
        the same role.

    Examples
    --------
    >>> selection = select_arrays(Request("a.npz"), {"logits": "(5, 3)", "y": "(5,)", "seed": "()"})
    >>> selection.table_column_names, selection.column_of_role, selection.unused_names
    (('logits',), {'labels': 'y'}, ('seed',))
    """
    table_array_name = find_requested_column(
        request,
        description_of_array,
        request_field="logits_key",
        default_names=request.default_table_names,
    )
    if table_array_name is None:
        raise _build_missing_array_error(request, description_of_array)

    class_list_name = None
    if not request.table_is_score_column:
        for default_name in DEFAULT_CLASS_LIST_NAMES:
            if default_name in description_of_array:
                class_list_name = default_name
                break
    column_of_role = find_column_of_each_role(request, description_of_array, [table_array_name])
    _check_kept_columns_exist(request, description_of_array)
    kept_names = tuple(dict.fromkeys(request.kept_names))
    used_names = {table_array_name, class_list_name, *column_of_role.values(), *kept_names}
    return ColumnSelection(
        table_column_names=(table_array_name,),
        column_of_role=column_of_role,
        unused_names=tuple(name for name in description_of_array if name not in used_names),
        class_list_name=class_list_name,
        kept_names=kept_names,
        path=request.path,
    )


def _build_missing_array_error(
    request: Request, description_of_array: Mapping[str, str]
) -> InputError:
    """Build the error for a file of named arrays without an array of logits or scores."""
    descriptions = []
    for name, description in list(description_of_array.items())[:_MAX_DESCRIBED_ARRAYS]:
        short_name = name[:_MAX_DESCRIPTION_LENGTH]
        descriptions.append(f"{short_name} {description[:_MAX_DESCRIPTION_LENGTH]}")
    content_text = ", ".join(descriptions) or "nothing"
    n_more_arrays = len(description_of_array) - len(descriptions)
    if n_more_arrays > 0:
        content_text += f" and {n_more_arrays} more"

    label_advice = ""
    if "labels" not in find_column_of_each_role(request, description_of_array):
        label_advice = f" and the labels, if any, with {format_option('label_key')}"
    advice_clause = f"; name the table with {format_option('logits_key')}{label_advice}."
    return build_missing_table_error(
        request,
        "array",
        description_of_array,
        content_clause=f"it holds {content_text}",
        advice_clause=advice_clause,
    )


def select_columns(
    request: Request,
    header: Sequence[str],
    list_column_names: Collection[str] = (),
    *,
    min_classes: int = 2,
) -> ColumnSelection:
    """Select the requested columns: a score, a column of lists, or class columns.

    Parameters
    ----------
    request : Request
        Description of the wanted columns.

    header : sequence of str
        Names of all columns.

    list_column_names : collection of str, default=()
        Names of the columns that hold a list of numbers in each row. If the table is one of them,
        the result has no class names.

    min_classes : int, default=2
        Smallest number of class columns. A single score is accepted regardless.

    Returns
    -------
    ColumnSelection

    Raises
    ------
    InputError
        If a column name occurs twice, if a named column is missing, or if there are too few class
        columns.

    Examples
    --------
    >>> selection = select_columns(Request("a.csv"), ["id", "logits_cat", "logits_dog", "label"])
    >>> selection.table_column_names, selection.column_of_role, selection.class_names
    (('logits_cat', 'logits_dog'), {'labels': 'label', 'ids': 'id'}, ('cat', 'dog'))
    >>> select_columns(Request("a.csv"), ["logits", "label"], list_column_names={"logits"}).table_column_names
    ('logits',)
    >>> request = Request("judge.csv", logits_key="mark", table_is_score_column=True)
    >>> selection = select_columns(request, ["id", "mark", "ok"])
    >>> selection.table_column_names, selection.column_of_role
    (('mark',), {'labels': 'ok', 'ids': 'id'})
    """
    _check_unique_names(request, header)
    if request.table_is_score_column:
        table_column_name = find_requested_column(
            request, header, request_field="logits_key", default_names=()
        )
    else:
        table_column_name = find_list_column(request, header, list_column_names)
    if table_column_name is None:
        return _select_class_columns(request, header, min_classes)

    column_of_role = find_column_of_each_role(request, header, [table_column_name])
    _check_kept_columns_exist(request, header)
    kept_names = _list_columns_to_keep(request, header, [table_column_name])
    return ColumnSelection(
        table_column_names=(table_column_name,),
        column_of_role=column_of_role,
        unused_names=_list_unused_names(
            request, header, [table_column_name, *column_of_role.values(), *kept_names]
        ),
        kept_names=kept_names,
        path=request.path,
    )


def _select_class_columns(
    request: Request, header: Sequence[str], min_classes: int
) -> ColumnSelection:
    """Select the requested columns from a file with one column per class."""
    patterns = list_class_column_patterns(request)
    table_column_names = find_columns_of_known_classes(request, header, patterns)
    column_of_role = find_column_of_each_role(request, header, table_column_names)
    if not table_column_names:
        table_column_names = find_columns_of_unknown_classes(
            request, header, patterns, column_of_role.values()
        )
    if len(table_column_names) < min_classes and not request.accepts_as_single_score(
        table_column_names
    ):
        raise _build_too_few_classes_error(request, header, table_column_names)

    _check_kept_columns_exist(request, header)
    kept_names = _list_columns_to_keep(request, header, table_column_names)
    position_of_name = {name: position for position, name in enumerate(header)}
    return ColumnSelection(
        table_column_names=tuple(table_column_names),
        column_of_role=column_of_role,
        unused_names=_list_unused_names(
            request, header, [*table_column_names, *column_of_role.values(), *kept_names]
        ),
        class_names=find_class_names(table_column_names, patterns),
        class_column_positions=tuple(position_of_name[name] for name in table_column_names),
        kept_names=kept_names,
        path=request.path,
    )


def _check_unique_names(request: Request, header: Sequence[str]) -> None:
    """Raise InputError if a column name occurs twice.

    One unnamed column is allowed, because pandas writes its index that way. Excluded columns may
    repeat.
    """
    last_position = {name: position for position, name in enumerate(header)}
    for position, name in enumerate(header):
        if last_position[name] == position or name in request.excluded_columns:
            continue
        problem = "has several columns without a name"
        if name:
            problem = f"repeats the column {name!r}"
        raise ColumnError(f"{request.path}: the header {problem}. Give every column a unique name.")


def _build_too_few_classes_error(
    request: Request, header: Sequence[str], table_column_names: Sequence[str]
) -> InputError:
    """Build the error for a file with fewer class columns than required."""
    hint = ""
    if table_column_names:
        hint = advise_on_single_score()
    return ColumnError(
        f"{request.path}: at least 2 class columns, or one column 'logits' of lists, are"
        f" required, but {len(table_column_names)} class column(s) were found among"
        f" {format_names(header)}.{hint}"
    )


def _list_columns_to_keep(
    request: Request, header: Sequence[str], table_column_names: Collection[str]
) -> tuple[str, ...]:
    """Return the columns to copy to the results, as requested or all other columns."""
    if not request.keeps_other_columns:
        return tuple(dict.fromkeys(request.kept_names))
    columns_besides_table = [
        name for name in header if name != "" and name not in table_column_names
    ]
    return tuple(dict.fromkeys(columns_besides_table))


def _check_kept_columns_exist(request: Request, names: Collection[str]) -> None:
    """Raise InputError if the file lacks a column that the user wants to keep."""
    for name in request.kept_names:
        if name not in names:
            raise ColumnError(
                f"{request.path}: keep names the column {name!r}, which the file does not have."
                f" Its columns are {format_names(names)}."
            )


def _list_unused_names(
    request: Request, header: Sequence[str], used_names: Collection[str]
) -> tuple[str, ...]:
    """Return the names of columns that are neither used nor copied to the results."""
    used_or_kept_names = {*used_names, *request.kept_names}
    return tuple(name for name in header if name not in used_or_kept_names)
