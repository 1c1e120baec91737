"""Inspection of an unknown file: the meaning of its columns, with reasons.

The readers use only the names of columns. This module also uses the values of the first rows, and
returns the options with which the readers find the same columns. If there is more than one
possible meaning, the result is a question to the user instead of a guess.

Terms used in this module:

- *truth columns*: labels, predictions or marks of correctness, see `metacal.io.truth_inspection`.
- *class column*: a column with the logits or probabilities of one class.
- *single score*: one number for each row, see `metacal.io.score_inspection`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.display import format_names
from metacal.errors import NoRowsError
from metacal.io.class_inspection import (
    ClassColumnGroup,
    find_class_column_group,
    is_probability_table,
    record_class_columns,
)
from metacal.io.column_facts import guess_positive_class
from metacal.io.first_rows import read_first_rows
from metacal.io.formats.item_lists import LINE_NAME_KEY, find_item_list_key
from metacal.io.inspection import (
    AmbiguousFileError,
    Inspection,
    are_column_numbers,
)
from metacal.io.request import (
    DEFAULT_CLASS_LIST_NAMES,
    DEFAULT_ID_NAMES,
    DEFAULT_LABEL_NAMES,
    DEFAULT_TABLE_NAMES,
)
from metacal.io.score_inspection import find_score_column, inspect_single_score
from metacal.io.truth_inspection import (
    TruthColumns,
    build_missing_truth_question,
    find_truth_columns,
    record_split_column,
)

#: Maximum deviation from 100 of the sum of the percentages in a row.
_PERCENT_TOLERANCE = 1.0


def inspect_file(path: str, **given_options: Any) -> Inspection:
    r"""Inspect the first rows of a file.

    Parameters
    ----------
    path : str
        File, folder or pattern to inspect. Of several files the first one is inspected.

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
        raise NoRowsError(f"{path}: the file has no rows. At least one row is required.")
    try:
        _record_meaning_of_columns(inspection)
    except AmbiguousFileError as error:
        inspection.question = str(error)
    return inspection


def _record_meaning_of_columns(inspection: Inspection) -> None:
    """Find and record the columns of labels, scores and ids.

    Raises
    ------
    AmbiguousFileError
        If the meaning of the columns is ambiguous. The findings until then are recorded.
    """
    record_split_column(inspection)
    list_column_name = _find_list_column(inspection)
    score_options = {"score_key", "correct_key", "prediction_key"}
    has_score_options = not score_options.isdisjoint(inspection.options)
    truth_columns = find_truth_columns(inspection)
    if list_column_name is not None and not has_score_options:
        _record_list_column(inspection, list_column_name, truth_columns)
    else:
        _record_class_or_score_columns(inspection, truth_columns)
    _record_ids_and_cases(inspection)


def _find_list_column(inspection: Inspection) -> str | None:
    """Return the column or array that holds several numbers in each row, or None.

    Raises
    ------
    AmbiguousFileError
        If there are several, and neither an option nor a default name selects one of them.
    """
    list_column_names = []
    for name, column in inspection.columns.items():
        if column.ndim == 2 and column.shape[1] > 1:
            list_column_names.append(name)
    if not list_column_names:
        return None
    if len(list_column_names) == 1:
        return list_column_names[0]

    requested_name = inspection.options.get("logits_key")
    if requested_name in list_column_names:
        return str(requested_name)
    default_names = _list_default_table_names()
    columns_with_default_name = [name for name in list_column_names if name in default_names]
    if len(columns_with_default_name) != 1:
        raise AmbiguousFileError(
            "Several columns may hold the logits or probabilities:"
            f" {format_names(list_column_names)}. Name one of them with --logits-key NAME."
        )
    return columns_with_default_name[0]


def _list_default_table_names() -> list[str]:
    """Return the default names of a table of logits or of probabilities."""
    default_names: list[str] = []
    for names_of_kind in DEFAULT_TABLE_NAMES.values():
        default_names.extend(names_of_kind)
    return default_names


def _record_list_column(
    inspection: Inspection, list_column_name: str, truth_columns: TruthColumns
) -> None:
    """Record the list column that holds the table, its input kind and its labels."""
    table = inspection.columns[list_column_name]
    n_classes = table.shape[1]
    inspection.add_finding(
        f"table: {list_column_name}",
        f"{n_classes} numbers in each row",
        reader_options={"logits_key": list_column_name},
        values_used_by_default=_list_default_table_names(),
    )
    _record_input_kind(inspection, table)
    _check_has_true_classes(inspection, truth_columns)
    if truth_columns.label_name is not None:
        _record_labels(inspection, truth_columns.label_name, n_classes)


def _record_class_or_score_columns(inspection: Inspection, truth_columns: TruthColumns) -> None:
    """Record the class columns or the single score of a file without lists."""
    options = inspection.options
    group = ClassColumnGroup()
    if options.get("score_key") is None and options.get("prediction_key") is None:
        other_names = [
            truth_columns.prediction_name,
            truth_columns.correctness_name,
            *DEFAULT_CLASS_LIST_NAMES,
        ]
        group = find_class_column_group(inspection, truth_columns.label_name, other_names)
    if group.column_names:
        _check_has_true_classes(inspection, truth_columns)
        table = record_class_columns(inspection, group, truth_columns.label_name)
        _record_input_kind(inspection, table)
        if truth_columns.label_name is not None:
            n_classes = len(group.column_names)
            _record_labels(inspection, truth_columns.label_name, n_classes, group.class_names)
        return

    score_name = None
    if truth_columns.label_name is not None or truth_columns.correctness_name is not None:
        score_name = find_score_column(inspection, truth_columns)
    elif options.get("labels") is None:
        raise build_missing_truth_question(inspection)
    if score_name is None or score_name not in inspection.facts:
        raise AmbiguousFileError(
            "No column was recognised as scores. The columns are"
            f" {format_names(inspection.columns)}. Name a column of lists with --logits-key NAME,"
            " or name one score for each prediction with --score-key NAME. A table of classes"
            " requires one column for each class."
        )
    if inspection.facts[score_name].numbers is None:
        raise AmbiguousFileError(
            f"{score_name!r} must hold numbers, but it holds"
            f" {format_names(inspection.facts[score_name].distinct_texts[:4])}. Name the score"
            " with --score-key NAME."
        )
    inspect_single_score(inspection, truth_columns, score_name)


def _check_has_true_classes(inspection: Inspection, truth_columns: TruthColumns) -> None:
    """Raise AmbiguousFileError if no file contains the true classes."""
    has_separate_label_file = inspection.options.get("labels") is not None
    if truth_columns.label_name is not None or has_separate_label_file:
        return
    if truth_columns.correctness_name is not None:
        raise AmbiguousFileError(
            "A table of classes requires the true class, but"
            f" {truth_columns.correctness_name!r} only marks correct rows. Name the true class with --label-key NAME, or name one score for"
            " each prediction with --score-key NAME."
        )
    raise build_missing_truth_question(inspection)


def _record_input_kind(inspection: Inspection, table: NDArray[Any]) -> None:
    """Record whether the table holds logits or probabilities, unless the user gave it."""
    if "input" in inspection.options:
        return
    finite_rows = table[np.isfinite(table).all(axis=1)]
    is_nonnegative = len(finite_rows) > 0 and finite_rows.min() >= 0.0
    if is_nonnegative and is_probability_table(finite_rows):
        inspection.add_finding(
            "input: probabilities",
            "every row lies in [0, 1] and sums to one",
            reader_options={"input": "probabilities"},
        )
        return
    if is_nonnegative and finite_rows.max() <= 1.0:
        raise AmbiguousFileError(
            "Every number lies between 0 and 1, but the rows do not sum to one. If the numbers"
            " are logits, pass --input logits. If they are probabilities of exclusive classes,"
            " divide each row by its sum and pass --input probabilities."
        )
    sums_to_100 = np.abs(finite_rows.sum(axis=1) - 100.0) < _PERCENT_TOLERANCE
    if is_nonnegative and sums_to_100.all():
        raise AmbiguousFileError(
            "Every row sums to 100. If the numbers are percentages, divide them by 100 and pass"
            " --input probabilities. Otherwise pass --input logits."
        )
    inspection.add_finding("input: logits", "some numbers lie outside [0, 1]")


def _record_labels(
    inspection: Inspection, label_name: str, n_classes: int, class_names: Sequence[str] = ()
) -> None:
    """Record the label column, and whether its labels are names or column numbers.

    Parameters
    ----------
    inspection : Inspection
        Receives the findings.

    label_name : str
        Column of the labels.

    n_classes : int
        Number of columns of the table.

    class_names : sequence of str, default=()
        Names of the classes, if there is one column per class.

    Raises
    ------
    AmbiguousFileError
        If some labels are neither.
    """
    facts = inspection.facts[label_name]
    inspection.column_of_role["labels"] = label_name
    has_class_list = "classes" in inspection.options or any(
        name in inspection.columns for name in DEFAULT_CLASS_LIST_NAMES
    )
    if has_class_list or set(facts.distinct_texts) <= set(class_names):
        reason = "its values are the names of the classes"
    elif are_column_numbers(facts.values, n_classes):
        reason = f"whole numbers from 0 to {n_classes - 1}: they count the columns"
    else:
        raise AmbiguousFileError(
            f"The labels in {label_name!r} ({format_names(facts.distinct_texts[:8])}) match neither"
            f" the names of the {n_classes} columns nor their numbers from 0. List the class of"
            " each column with --classes A,B,C, or name another column of labels with"
            " --label-key NAME."
        )
    inspection.add_finding(
        f"labels: {label_name}",
        reason,
        reader_options={"label_key": label_name},
        values_used_by_default=DEFAULT_LABEL_NAMES,
    )
    if n_classes == 2:
        _record_two_classes(inspection, list(class_names) or ["0", "1"])


def _record_two_classes(inspection: Inspection, class_names: list[str]) -> None:
    """Record the positive class of two, by its name or else the second class."""
    positive = inspection.options.get("positive") or guess_positive_class(class_names)
    if positive is None:
        positive = class_names[1]
    negative = class_names[1] if positive == class_names[0] else class_names[0]
    inspection.negative_and_positive = (negative, positive)


def _record_ids_and_cases(inspection: Inspection) -> None:
    """Record the column that groups rows into cases, or else the column of row ids.

    A case is a document, a conversation or the like to which several rows belong.
    """
    used_names = set(inspection.column_of_role.values())
    _find_case_and_group_columns(inspection, used_names)
    case_name = inspection.column_of_role.get("case")
    if case_name is not None and "id_key" not in inspection.options:
        _record_cases(inspection, case_name)
    else:
        _record_row_ids(inspection, used_names)


def _find_case_and_group_columns(inspection: Inspection, used_names: Collection[str]) -> None:
    """Find the columns with the roles "case" and "group".

    Parameters
    ----------
    inspection : Inspection
        Receives the column of each of the roles.

    used_names : collection of str
        Columns with another role.
    """
    for role, option in (("case", "case_key"), ("group", "group_key")):
        if option in inspection.options:
            inspection.column_of_role[role] = inspection.options[option]
    for name, facts in inspection.facts.items():
        if name in used_names:
            continue
        if facts.looks_like_field_names:
            inspection.column_of_role.setdefault("group", name)
        elif facts.looks_like_case_ids:
            inspection.column_of_role.setdefault("case", name)
    score_is_in_item_list = find_item_list_key(inspection.options.get("score_key")) is not None
    if score_is_in_item_list:
        inspection.column_of_role.setdefault("case", LINE_NAME_KEY)


def _record_row_ids(inspection: Inspection, used_names: Collection[str]) -> None:
    """Record the first unused column whose name and values are those of row ids."""
    for name, facts in inspection.facts.items():
        if facts.looks_like_row_ids and name not in used_names:
            inspection.column_of_role["ids"] = name
            inspection.add_finding(
                f"ids: {name}",
                "each row has its own",
                reader_options={"id_key": name},
                values_used_by_default=DEFAULT_ID_NAMES,
            )
            return


def _record_cases(inspection: Inspection, case_name: str) -> None:
    """Record the column with the case of each row.

    The rows of a case depend on each other. Therefore they are a cluster by default, which is the
    option `unit_key`. A promise about cases uses the option `case_key` instead.
    """
    facts = inspection.facts.get(case_name)
    if facts is None:
        if case_name == LINE_NAME_KEY:
            inspection.add_finding("cases: lines", "each line has a list of items")
        return
    counts_text = f"{len(facts.distinct_texts):,} values in {inspection.n_rows:,} rows"
    if not inspection.has_scored_items:
        inspection.add_finding(
            f"dependent rows: {case_name}",
            f"{counts_text}; rows of one value depend on each other, and one of each is tested",
            reader_options={"unit_key": case_name},
        )
        return
    cluster_options = {} if "case_key" in inspection.options else {"unit_key": case_name}
    inspection.add_finding(
        f"cases: {case_name}",
        f"{counts_text}; the rows of one value are the items of one case and depend on each other",
        reader_options=cluster_options,
    )
    _record_item_types(inspection)


def _record_item_types(inspection: Inspection) -> None:
    """Record the column with the role "group", which holds the item types."""
    type_column_name = inspection.column_of_role.get("group")
    if type_column_name not in inspection.facts:
        return
    item_types = inspection.facts[type_column_name].distinct_texts
    inspection.add_finding(
        f"item types: {type_column_name}",
        f"it holds the {len(item_types):,} names {format_names(item_types[:6])}",
    )
