"""Inspection of an unknown file: the meaning of its columns, with reasons.

The readers use only the names of columns. This module also uses the values of the first rows, and
returns the options with which the readers find the same columns. If there is more than one
possible meaning, the result is a question to the user instead of a guess.

Terms used in this module:

- *truth*: the columns that say what is correct, see `metacal.io.truth_inspection`.
- *class column*: a column with the logits or probabilities of one class.
- *single score*: one number for each row, see `metacal.io.score_inspection`.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from metacal.io.column_facts import choose_positive
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
    check_split,
    find_truth_columns,
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
        _inspect(inspection)
    except AmbiguousFileError as question:
        inspection.question = str(question)
    return inspection


def _inspect(inspection: Inspection) -> None:
    """Determine the truth and the table or score, and record them."""
    check_split(inspection)
    table_name = _find_table(inspection)
    wants_score = {"score_key", "correct_key", "prediction_key"} & inspection.options.keys()
    truth = find_truth_columns(inspection)
    if table_name is not None and not wants_score:
        _inspect_table_column(inspection, table_name, truth)
    else:
        _inspect_flat_columns(inspection, truth)
    _record_ids_and_cases(inspection)


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
            f"Several columns may hold the logits or probabilities: {format_names(table_names)}."
            " Name one of them with --logits-key NAME."
        )
    return default_tables[0]


def _default_table_names() -> list[str]:
    """Return the default names of a table of logits or of probabilities."""
    default_names: list[str] = []
    for names_of_kind in DEFAULT_TABLE_NAMES.values():
        default_names.extend(names_of_kind)
    return default_names


def _inspect_table_column(inspection: Inspection, table_name: str, truth: TruthColumns) -> None:
    """Record the findings for a file with a column or array of lists."""
    table = inspection.columns[table_name]
    n_classes = table.shape[1]
    inspection.add_finding(
        f"table: {table_name}",
        f"{n_classes} numbers in each row",
        reader_options={"logits_key": table_name},
        values_used_by_default=_default_table_names(),
    )
    _inspect_input_kind(inspection, table)
    _check_has_labels(inspection, truth)
    _inspect_labels(inspection, truth.label_name, n_classes)


def _inspect_flat_columns(inspection: Inspection, truth: TruthColumns) -> None:
    """Inspect a file without a 2-D table: one column per class, or a single score."""
    options = inspection.options
    group = ClassColumnGroup()
    if options.get("score_key") is None and options.get("prediction_key") is None:
        other_names = [truth.prediction_name, truth.correctness_name, *DEFAULT_CLASS_LIST_NAMES]
        group = find_class_column_group(inspection, truth.label_name, other_names)
    if group.names:
        _check_has_labels(inspection, truth)
        table = record_class_columns(inspection, group, truth.label_name)
        _inspect_input_kind(inspection, table)
        _inspect_labels(inspection, truth.label_name, len(group.names), group.class_names)
        return

    score_name = None
    if truth.label_name is not None or truth.correctness_name is not None:
        score_name = find_score_column(inspection, truth)
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
    inspect_single_score(inspection, truth, score_name)


def _check_has_labels(inspection: Inspection, truth: TruthColumns) -> None:
    """Ask for the true classes if a table of classes has none."""
    if truth.label_name is not None or inspection.options.get("labels") is not None:
        return
    if truth.correctness_name is not None:
        raise AmbiguousFileError(
            f"A table of classes requires the true class, but {truth.correctness_name!r} only marks"
            " correct rows. Name the true class with --label-key NAME, or name one score for"
            " each prediction with --score-key NAME."
        )
    raise build_missing_truth_question(inspection)


def _inspect_input_kind(inspection: Inspection, table: NDArray[Any]) -> None:
    """Determine whether a table holds logits or probabilities."""
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


def _inspect_labels(
    inspection: Inspection, label_name: str | None, n_classes: int, class_names: Sequence[str] = ()
) -> None:
    """Determine whether the labels are class names or column numbers.

    Parameters
    ----------
    inspection : Inspection
        Receives the findings.

    label_name : str or None
        Column of the labels. Nothing is done if they are in another file.

    n_classes : int
        Number of columns of the table.

    class_names : sequence of str, default=()
        Names of the classes, if there is one column per class.
    """
    if label_name is None:
        return
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
    """Record which of two classes is positive: by its name, or else the second."""
    positive = inspection.options.get("positive") or choose_positive(class_names)
    if positive is None:
        positive = class_names[1]
    negative = class_names[1] if positive == class_names[0] else class_names[0]
    inspection.two_classes = (negative, positive)


def _record_cases(inspection: Inspection, case_name: str) -> None:
    """Record the column of the cases, and for scores of items that of their types.

    By default the rows of a case are a cluster. A promise about cases replaces this option.
    """
    facts = inspection.facts.get(case_name)
    if facts is None:
        if case_name == LINE_NAME_KEY:
            inspection.add_finding("cases: lines", "each line has a list of items")
        return
    counts = f"{len(facts.distinct_texts):,} values in {inspection.n_rows:,} rows"
    if not inspection.has_scored_items:
        inspection.add_finding(
            f"dependent rows: {case_name}",
            f"{counts}; rows of one value depend on each other, and one of each is tested",
            reader_options={"unit_key": case_name},
        )
        return
    options = {} if "case_key" in inspection.options else {"unit_key": case_name}
    inspection.add_finding(
        f"cases: {case_name}",
        f"{counts}; the rows of one value are the items of one case and depend on each other",
        reader_options=options,
    )
    type_name = inspection.column_of_role.get("group")
    if type_name in inspection.facts:
        type_names = inspection.facts[type_name].distinct_texts
        inspection.add_finding(
            f"item types: {type_name}",
            f"it holds the {len(type_names):,} names {format_names(type_names[:6])}",
        )


def _record_ids_and_cases(inspection: Inspection) -> None:
    """Record the columns with ids of rows, and with documents or cases of rows."""
    used_names = set(inspection.column_of_role.values())
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
    if find_item_list_key(inspection.options.get("score_key")) is not None:
        inspection.column_of_role.setdefault("case", LINE_NAME_KEY)
    case_name = inspection.column_of_role.get("case")
    if case_name is not None and "id_key" not in inspection.options:
        _record_cases(inspection, case_name)
        return
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
