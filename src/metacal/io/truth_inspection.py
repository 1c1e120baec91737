"""Search for the truth column of an unknown file.

The *truth column* holds the true classes, or marks correct and incorrect rows. See
`metacal.io.file_inspection`, which determines the meaning of the other columns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from metacal.display import format_names
from metacal.errors import InputError
from metacal.io.inspection import (
    CORRECTNESS_NAME_PATTERN,
    AmbiguousFileError,
    Inspection,
    contains_only,
    is_text,
)
from metacal.io.request import CLASS_KEYS, CORRECT_KEYS, LABEL_KEYS, LABEL_NAME_PATTERN


def find_truth_column(inspection: Inspection) -> str | None:
    """Return the truth column, or None if the labels are in another file."""
    options = inspection.options
    option_value = options.get("label_key") or options.get("correct_key") or options.get("loss_key")
    if option_value is not None:
        _check_column_exists(inspection, option_value)
        inspection.add_finding(f"truth: {option_value}", "you said so")
        return str(option_value)
    if options.get("labels") is not None:
        return None
    return _guess_truth_column(inspection)


def _check_column_exists(inspection: Inspection, column_name: str) -> None:
    """Raise InputError if the inspected file has no column of the given name."""
    if column_name not in inspection.columns:
        raise InputError(
            f"{inspection.path}: there is no column {column_name!r}; it has"
            f" {format_names(list(inspection.columns))}."
        )


def _guess_truth_column(inspection: Inspection) -> str:
    """Return the truth column by its name, or else by its values.

    Raises AmbiguousFileError if no column, or more than one, can be the truth column.
    """
    candidates = []
    for name, column in inspection.columns.items():
        if column.ndim == 1 and name not in CLASS_KEYS:
            candidates.append(name)

    names_of_labels = _match_column_names(candidates, LABEL_KEYS, LABEL_NAME_PATTERN)
    names_of_correctness = _match_column_names(candidates, CORRECT_KEYS, CORRECTNESS_NAME_PATTERN)
    matching_names = names_of_labels or names_of_correctness
    if len(matching_names) > 1:
        raise AmbiguousFileError(
            f"which of {format_names(matching_names)} holds the truth? Say --label-key NAME, or"
            " --correct-key NAME."
        )
    if not matching_names:
        matching_names = _find_columns_of_class_names(inspection, candidates)
    if len(matching_names) != 1:
        raise AmbiguousFileError(
            f"which column says what was right? It has {format_names(inspection.columns)}. Say"
            " --label-key NAME for true classes, --correct-key NAME for right and wrong, or give a"
            " file of labels with --labels."
        )
    return matching_names[0]


def _match_column_names(
    candidates: Sequence[str], default_names: Sequence[str], name_pattern: re.Pattern[str]
) -> list[str]:
    """Return the candidates with a default name, or else those that match a pattern."""
    default_candidates = [name for name in default_names if name in candidates]
    if default_candidates:
        return default_candidates
    return [name for name in candidates if name_pattern.fullmatch(name)]


def _find_columns_of_class_names(inspection: Inspection, candidates: Sequence[str]) -> list[str]:
    """Return the text columns whose values are names of other columns.

    A name may lack the prefix of its column.
    """
    possible_classes = set(candidates)
    for name in candidates:
        _, separator, name_after_prefix = name.partition("_")
        if separator:
            possible_classes.add(name_after_prefix)

    column_names = []
    for name in candidates:
        column = inspection.columns[name]
        if is_text(column) and contains_only(column, possible_classes):
            column_names.append(name)
    return column_names
