"""Inspection of an unknown file: the meaning of its columns, with reasons.

The readers use only the names of columns. This module also uses the values of the first rows, and
returns the options with which the readers find the same columns. If there is more than one
possible meaning, the result is a question to the user instead of a guess.

Terms used in this module:

- *truth column*: the column with the true classes, or with marks for correct and incorrect rows.
- *class column*: a column with the logits or probabilities of one class.
- *single score*: one number for each row, see `metacal.io.score_inspection`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.display import format_names
from metacal.errors import InputError
from metacal.formulas import Float
from metacal.io.first_rows import read_first_rows
from metacal.io.inspection import (
    CORRECTNESS_NAME_PATTERN,
    AmbiguousFileError,
    Inspection,
    are_column_numbers,
    contains_only,
    has_non_class_name,
    is_row_counter,
    is_text,
)
from metacal.io.request import (
    CLASS_COLUMN_PREFIXES,
    CLASS_KEYS,
    ID_KEYS,
    LABEL_KEYS,
    TABLE_KEYS,
)
from metacal.io.score_inspection import (
    SCORE_NAME_PATTERN,
    inspect_single_score,
    parse_text_scores,
)
from metacal.io.truth_inspection import find_truth_column

#: Maximum deviation from 1 of the sum of the probabilities in a row.
_SUM_TOLERANCE = 0.01
#: Maximum deviation from 100 of the sum of the percentages in a row.
_PERCENT_TOLERANCE = 1.0


@dataclass(frozen=True)
class _ClassColumns:
    """Names of the class columns and their common prefix."""

    names: list[str]
    prefix: str = ""

    @property
    def class_names(self) -> list[str]:
        """Names without the prefix."""
        return [name.removeprefix(self.prefix) for name in self.names]


def inspect_file(path: str, **given_options: Any) -> Inspection:
    r"""Inspect the first rows of a file.

    Parameters
    ----------
    path : str
        File to inspect.

    **given_options
        Parameters of the readers that the user gave. They are not questioned.

    Returns
    -------
    Inspection

    Raises
    ------
    InputError
        If the file cannot be read or has no rows.

    Examples
    --------
    >>> import os, tempfile
    >>> from pathlib import Path
    >>> file = os.path.join(tempfile.mkdtemp(), "val.csv")
    >>> _ = Path(file).write_text("id;p_cat;p_dog;truth\n7;0.9;0.1;cat\n8;0.2;0.8;dog\n")
    >>> inspection = inspect_file(file)
    >>> inspection.options, inspection.question
    ({'logits_key': 'p', 'input': 'probabilities', 'label_key': 'truth'}, None)
    """
    first_rows = read_first_rows(path, given_options.get("format"))
    inspection = Inspection(path, first_rows.description, first_rows.columns, given_options)
    if not any(len(column) for column in first_rows.columns.values()):
        raise InputError(f"{path}: it holds no rows; give at least one.")
    try:
        _inspect(inspection)
    except AmbiguousFileError as question:
        inspection.question = str(question)
    return inspection


def _inspect(inspection: Inspection) -> None:
    """Determine the truth column and the table or score, and record them."""
    truth_name = find_truth_column(inspection)
    table_name = _find_table(inspection)
    if table_name is None or "score_key" in inspection.options:
        _inspect_flat_columns(inspection, truth_name)
        return

    table = inspection.columns[table_name]
    n_classes = table.shape[1]
    inspection.add_finding(
        f"table: {table_name}",
        f"{n_classes} numbers in each row",
        options={"logits_key": table_name},
        default_values=_default_table_names(),
    )
    _inspect_input_kind(inspection, table)
    _inspect_labels(inspection, truth_name, n_classes)


def _find_table(inspection: Inspection) -> str | None:
    """Return the name of the column or array that holds several numbers in each row."""
    table_names = []
    for name, column in inspection.columns.items():
        if column.ndim == 2 and column.shape[1] > 1:
            table_names.append(name)
    if len(table_names) <= 1:
        return next(iter(table_names), None)

    requested_name = inspection.options.get("logits_key")
    if requested_name in table_names:
        return str(requested_name)
    default_names = _default_table_names()
    default_tables = [name for name in table_names if name in default_names]
    if len(default_tables) != 1:
        raise AmbiguousFileError(
            f"which of {format_names(table_names)} holds the logits or probabilities? Say --logits-key"
            " NAME."
        )
    return default_tables[0]


def _default_table_names() -> list[str]:
    """Return the default names of a table of logits or of probabilities."""
    default_names: list[str] = []
    for names_of_kind in TABLE_KEYS.values():
        default_names.extend(names_of_kind)
    return default_names


def _inspect_flat_columns(inspection: Inspection, truth_name: str | None) -> None:
    """Inspect a file without a 2-D table: one column per class, or a single score."""
    options = inspection.options
    other_names = {truth_name, *CLASS_KEYS, *options.get("drop", ())}
    flat_columns: dict[str, NDArray[Any]] = {}
    number_columns: dict[str, Float] = {}
    for name, column in inspection.columns.items():
        if column.ndim != 1 or name in other_names:
            continue
        flat_columns[name] = column
        if column.dtype.kind in "fiu":
            number_columns[name] = column.astype(np.float64)

    class_columns = _find_class_columns(inspection, truth_name, list(number_columns))
    if options.get("score_key") is None and len(class_columns.names) > 1:
        table = np.stack([number_columns[name] for name in class_columns.names], axis=1)
        _inspect_class_columns(inspection, truth_name, class_columns, table)
        return

    score_columns = {**number_columns, **parse_text_scores(flat_columns)}
    score_name = _find_score_column(inspection, list(score_columns), list(number_columns))
    if score_name is None or truth_name is None:
        raise AmbiguousFileError(
            f"where are the scores? It has {format_names(inspection.columns)}. A table of classes has a"
            " column per class, or one of lists (--logits-key NAME); one number for each answer is"
            " named with --score-key NAME."
        )
    inspect_single_score(inspection, truth_name, score_name, score_columns[score_name])


def _find_score_column(
    inspection: Inspection, score_candidates: Sequence[str], number_names: Sequence[str]
) -> str | None:
    """Return the column that the user named as score, or the only possible one."""
    options = inspection.options
    requested_name = options.get("score_key") or options.get("logits_key")
    if requested_name in score_candidates:
        return str(requested_name)
    score_names = [name for name in score_candidates if SCORE_NAME_PATTERN.fullmatch(name)]
    if not score_names:
        score_names = [name for name in number_names if not has_non_class_name(name)]
    if len(score_names) != 1:
        return None
    return score_names[0]


def _find_class_columns(
    inspection: Inspection, truth_name: str | None, number_names: list[str]
) -> _ClassColumns:
    """Find the class columns among the columns of numbers.

    Class columns share a prefix, or the labels name them, or the labels are their numbers.

    Parameters
    ----------
    inspection : Inspection
        Columns and options.

    truth_name : str or None
        Name of the truth column.

    number_names : list of str
        Names of the columns of numbers.

    Returns
    -------
    _ClassColumns
        Without names if there are no class columns.
    """
    requested_prefix = inspection.options.get("logits_key")
    if requested_prefix is None:
        names_of_prefix = _group_by_prefix(number_names)
    else:
        prefix = f"{requested_prefix}_"
        names_of_prefix = {prefix: [name for name in number_names if name.startswith(prefix)]}
    prefixes_by_size = sorted(names_of_prefix, key=lambda prefix: -len(names_of_prefix[prefix]))
    for prefix in prefixes_by_size:
        if len(names_of_prefix[prefix]) > 1:
            return _ClassColumns(names_of_prefix[prefix], prefix)
    if requested_prefix is not None or truth_name is None:
        return _ClassColumns([])
    return _ClassColumns(_find_labelled_columns(inspection, truth_name, number_names))


def _find_labelled_columns(
    inspection: Inspection, truth_name: str, number_names: list[str]
) -> list[str]:
    """Return the class columns that the labels refer to, by name or by number."""
    labels = inspection.columns[truth_name]
    possible_classes = []
    for name in number_names:
        if not has_non_class_name(name) and not is_row_counter(inspection.columns[name]):
            possible_classes.append(name)
    if is_text(labels):
        label_values = set(map(str, np.unique(labels)))
        if not label_values <= set(number_names):
            return []
        class_names = label_values | set(possible_classes)
        return [name for name in number_names if name in class_names]

    column_numbers = [str(number) for number in range(len(possible_classes))]
    has_numbered_columns = sorted(possible_classes) == sorted(column_numbers)
    # Labels 0 and 1 in a column such as "correct" are not column numbers.
    may_be_classes = has_numbered_columns or not CORRECTNESS_NAME_PATTERN.fullmatch(truth_name)
    if may_be_classes and are_column_numbers(labels, len(possible_classes)):
        return possible_classes
    return []


def _group_by_prefix(names: list[str]) -> dict[str, list[str]]:
    """Group column names by their beginning, up to and including the first underscore."""
    names_of_prefix: dict[str, list[str]] = {}
    for name in names:
        beginning, underscore, remainder = name.partition("_")
        if remainder and not has_non_class_name(name):
            names_of_prefix.setdefault(beginning + underscore, []).append(name)
    return names_of_prefix


def _inspect_class_columns(
    inspection: Inspection, truth_name: str | None, class_columns: _ClassColumns, table: Float
) -> None:
    """Record the findings for a file with one column per class.

    Parameters
    ----------
    inspection : Inspection
        Receives the findings.

    truth_name : str or None
        Name of the truth column.

    class_columns : _ClassColumns
        Names of the class columns.

    table : array of shape (n_rows, n_classes)
        Values of the class columns.
    """
    prefix = class_columns.prefix
    class_names = class_columns.class_names
    if prefix:
        reason = f"their names begin with {prefix!r}"
    elif truth_name is not None and is_text(inspection.columns[truth_name]):
        reason = "the labels name them"
    else:
        reason = "all other columns of numbers"

    default_prefixes = ["", *CLASS_COLUMN_PREFIXES["logits"]]
    if _is_probability_table(table):
        default_prefixes += CLASS_COLUMN_PREFIXES["probabilities"]
    prefix_options = {}
    if prefix not in default_prefixes:
        prefix_options["logits_key"] = prefix.removesuffix("_")
    inspection.add_finding(f"classes: {format_names(class_names)}", reason, options=prefix_options)

    _inspect_input_kind(inspection, table)
    _exclude_other_columns(inspection, truth_name, class_columns)
    _inspect_labels(inspection, truth_name, len(class_names), class_names)


def _exclude_other_columns(
    inspection: Inspection, truth_name: str | None, class_columns: _ClassColumns
) -> None:
    """Record the columns that the readers must not use as classes."""
    excluded_names = set(inspection.options.get("drop", ()))
    if not class_columns.prefix:
        used_names = {"", truth_name, *class_columns.names, *ID_KEYS}
        excluded_names |= inspection.columns.keys() - used_names
    if not excluded_names:
        return
    dropped_names = tuple(sorted(excluded_names))
    inspection.options["drop"] = dropped_names
    inspection.add_finding(
        f"left out: {format_names(dropped_names)}",
        "neither their names nor their numbers look like classes",
    )


def _inspect_input_kind(inspection: Inspection, table: NDArray[Any]) -> None:
    """Determine whether a table holds logits or probabilities."""
    if "input" in inspection.options:
        return
    finite_rows = table[np.isfinite(table).all(axis=1)]
    is_nonnegative = len(finite_rows) > 0 and finite_rows.min() >= 0.0
    if not is_nonnegative:
        inspection.add_finding(
            "input: logits", "the rows are not probabilities: some numbers lie outside [0, 1]"
        )
        return
    if _is_probability_table(finite_rows):
        inspection.add_finding(
            "input: probabilities",
            "every row lies in [0, 1] and sums to one",
            options={"input": "probabilities"},
        )
        return
    if finite_rows.max() <= 1.0:
        raise AmbiguousFileError(
            "every number lies between 0 and 1, but rows do not sum to one. Are these probabilities"
            " of classes that exclude each other? Divide each row by its sum, and say --input"
            " probabilities; or say --input logits."
        )
    if (np.abs(finite_rows.sum(axis=1) - 100.0) < _PERCENT_TOLERANCE).all():
        raise AmbiguousFileError(
            "every row sums to 100. Are these percentages? Divide them by 100, and say --input"
            " probabilities; or say --input logits."
        )
    inspection.add_finding(
        "input: logits", "the rows are not probabilities: some numbers lie outside [0, 1]"
    )


def _is_probability_table(table: NDArray[Any]) -> bool:
    """Check whether all numbers are nonnegative and every row sums to about one."""
    is_nonnegative = (table >= 0.0).all()
    sums_to_one = (np.abs(table.sum(axis=1) - 1.0) < _SUM_TOLERANCE).all()
    return bool(is_nonnegative and sums_to_one)


def _inspect_labels(
    inspection: Inspection, truth_name: str | None, n_classes: int, class_names: Sequence[str] = ()
) -> None:
    """Determine whether the labels are class names or column numbers.

    Parameters
    ----------
    inspection : Inspection
        Receives the findings.

    truth_name : str or None
        Name of the truth column. Nothing is done if it is None.

    n_classes : int
        Number of columns of the table.

    class_names : sequence of str, default=()
        Names of the classes, if there is one column per class.
    """
    if truth_name is None:
        return
    labels = inspection.columns[truth_name]
    if CORRECTNESS_NAME_PATTERN.fullmatch(truth_name) and truth_name not in LABEL_KEYS:
        raise AmbiguousFileError(
            f"{truth_name!r} seems to say right or wrong, and a table of classes needs the true"
            " class. Name it with --label-key, or name one score for each answer with --score-key."
        )
    has_class_list = "classes" in inspection.options or any(
        name in inspection.columns for name in CLASS_KEYS
    )
    if are_column_numbers(labels, n_classes):
        reason = f"whole numbers from 0 to {n_classes - 1}: they count the columns"
    elif has_class_list or contains_only(labels, class_names):
        reason = "its entries are names of classes"
    else:
        examples = format_names(np.unique(labels)[:8].tolist())
        raise AmbiguousFileError(
            f"{truth_name!r} holds {examples}, which are not the {n_classes} columns, nor their"
            " numbers from 0. Which column is which class? Say --classes A,B,C in the order of the"
            " columns, or --label-key NAME."
        )
    inspection.add_finding(
        f"labels: {truth_name}",
        reason,
        options={"label_key": truth_name},
        default_values=LABEL_KEYS,
    )
