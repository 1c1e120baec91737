"""Detection of columns that are not classes, in a file with one column per class.

Such a file may also have columns for an index, a time or a data split. A *stray column* is a column
that was not assigned a role and that does not look like a class, judging by its name or its
numbers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.display import format_names
from metacal.io.request import LABEL_NAME_PATTERN, ClassNames
from metacal.rows.plausibility import draw_sample
from metacal.spelling import format_option

#: Names of columns that are often stored beside predictions.
NON_CLASS_NAME_PATTERN = re.compile(
    r"unnamed: ?\d+(_level_\d+)?|(__index_)?level_\d+(__)?|index|idx|row"
    r"|(row|sample|item|image|line)[_ ]?(nr|no|num|number|index|idx)"
    r"|(.+[_ ])?(id|ids|uuid|guid|key|hash)|(.+[_"
    r" ])?(time|timestamp|date|datetime|latency|duration|elapsed|runtime)"
    r"|.+_(s|ms|us|ns|sec|secs|seconds|minutes|time|date)|split|(.+_)?fold|partition|subset|is_(train|test|val|valid)"
    r"|(.+_)?weights?|seed|epoch|step|batch|length|n_tokens|count|confidence|score|margin|entropy|loss|accept(ed)?|correct",
    re.IGNORECASE,
)
#: Minimum number of rows for the test of whole numbers, which few rows pass by chance.
_MIN_ROWS = 20
#: Maximum number of classes that a message lists.
_MAX_LISTED_CLASSES = 10


@dataclass(frozen=True)
class StrayColumns:
    """Columns of a table that are probably not classes.

    Attributes
    ----------
    excluded_indices : list of int
        Positions of the columns to leave out of the table.

    warnings : list of str
        Messages about the stray columns, including those that stay in the table.
    """

    excluded_indices: list[int]
    warnings: list[str]


def find_stray_columns(class_names: ClassNames, labels: NDArray[Any], table: Any) -> StrayColumns:
    """Find the columns of a table that are probably not classes.

    If the labels are class names, a stray column is excluded. If the labels are column numbers, it
    is only reported, because excluding it would change the classes of the columns after it.

    Parameters
    ----------
    class_names : tuple
        Name of each column of the table.

    labels : array of shape (n_rows,)
        Labels: class names, or column numbers from 0.

    table : array or StoredTable of shape (n_rows, n_classes)
        The table.

    Returns
    -------
    StrayColumns

    Examples
    --------
    >>> labels = np.array(["cat", "dog"])
    >>> table = np.array([[1.5, 0.2, 0.1], [0.1, 2.3, 0.4]])
    >>> strays = find_stray_columns(("cat", "dog", "latency_s"), labels, table)
    >>> strays.excluded_indices
    [2]
    >>> strays.warnings
    ["Column 'latency_s' is left out, because no label names it and it does not look like a class. ..."]
    >>> find_stray_columns(("cat", "dog"), labels, table[:, :2])
    StrayColumns(excluded_indices=[], warnings=[])
    """
    has_number_labels = isinstance(class_names[0], str) and labels.dtype.kind in "iubf"
    label_values = set(np.unique(labels).tolist())
    unlabelled_indices = set()
    for index, name in enumerate(class_names):
        label = index if has_number_labels else name
        if label not in label_values:
            unlabelled_indices.add(index)

    candidates = unlabelled_indices
    if has_number_labels:
        # A stray column shifts the numbers of the classes after it, so its own number may be a label.
        candidates = set(range(len(class_names)))
    indices_with_other_name = {
        index for index in candidates if _is_unlike_class_name(class_names[index])
    }
    indices_with_whole_numbers: set[int] = set()
    if candidates:
        indices_with_whole_numbers = _find_whole_number_columns(table)

    stray_index_set = unlabelled_indices & (indices_with_other_name | indices_with_whole_numbers)
    if has_number_labels:
        stray_index_set |= indices_with_other_name & indices_with_whole_numbers
    if unlabelled_indices:
        stray_index_set |= indices_with_other_name
    n_classes_left = len(class_names) - len(stray_index_set)
    if not stray_index_set or n_classes_left <= 1:
        return StrayColumns(excluded_indices=[], warnings=[])

    stray_indices = sorted(stray_index_set)
    if has_number_labels:
        warning = _describe_doubtful_columns(class_names, stray_indices, unlabelled_indices)
        return StrayColumns(excluded_indices=[], warnings=[warning])
    warning = _describe_excluded_columns(class_names, stray_indices)
    return StrayColumns(excluded_indices=stray_indices, warnings=[warning])


def _is_unlike_class_name(name: str | int) -> bool:
    """Check whether a column name is typical of something other than a class."""
    name_text = str(name)
    is_non_class_name = NON_CLASS_NAME_PATTERN.fullmatch(name_text) is not None
    return is_non_class_name or LABEL_NAME_PATTERN.fullmatch(name_text) is not None


def _find_whole_number_columns(table: Any) -> set[int]:
    """Return the columns of whole numbers, if most other columns hold fractions."""
    sample_rows = draw_sample(table)
    if len(sample_rows) < _MIN_ROWS or not np.isfinite(sample_rows).all():
        return set()
    has_only_whole_numbers = (sample_rows == np.rint(sample_rows)).all(axis=0)
    is_varying_column = np.ptp(sample_rows, axis=0) > 0
    is_whole_number_column = has_only_whole_numbers & is_varying_column
    # If most columns hold whole numbers, the scores themselves are whole.
    has_mostly_whole_columns = is_whole_number_column.mean() > 0.5
    if has_mostly_whole_columns:
        return set()
    return set(np.flatnonzero(is_whole_number_column).tolist())


def _describe_excluded_columns(class_names: ClassNames, stray_indices: Sequence[int]) -> str:
    """Build the warning about columns that are left out of the table."""
    stray_names = [class_names[index] for index in stray_indices]
    advice_for_classes = f"list all classes with {format_option('classes')}."
    label_name = _find_label_name(stray_names)
    if label_name is not None:
        advice_for_classes += f" If {_advise_on_labels(label_name)}."
    if len(stray_names) > 1:
        return (
            f"Columns {format_names(stray_names)} are left out, because no label names them and they do"
            f" not look like classes. If they are classes, {advice_for_classes}"
        )
    return (
        f"Column {format_names(stray_names)} is left out, because no label names it and it does not"
        f" look like a class. If it is a class, {advice_for_classes}"
    )


def _describe_doubtful_columns(
    class_names: ClassNames, stray_indices: Sequence[int], unlabelled_indices: Collection[int]
) -> str:
    """Build the warning about columns that stay in the table but may not be classes."""
    stray_names = [class_names[index] for index in stray_indices]
    are_all_unlabelled = all(index in unlabelled_indices for index in stray_indices)
    if len(stray_names) > 1:
        first_clause = f"Columns {format_names(stray_names)} are read as classes"
        reason_for_doubt = "they do not look like classes"
        if are_all_unlabelled:
            reason_for_doubt = "no label names them"
    else:
        first_clause = f"Column {format_names(stray_names)} is read as a class"
        reason_for_doubt = "it does not look like a class"
        if are_all_unlabelled:
            reason_for_doubt = "no label names it"

    label_advice = ""
    label_name = _find_label_name(stray_names)
    if label_name is not None:
        label_advice = f" If {_advise_on_labels(label_name)}."

    classes_to_list = None
    other_names = [
        str(name) for index, name in enumerate(class_names) if index not in stray_indices
    ]
    has_comma = any("," in name for name in other_names)
    if len(other_names) <= _MAX_LISTED_CLASSES and not has_comma:
        classes_to_list = ",".join(other_names)
    return (
        f"{first_clause}, but {reason_for_doubt}.{label_advice} To leave out other columns, list the classes with"
        f" {format_option('classes', metavar=classes_to_list)}. If the labels have another name, pass"
        f" {format_option('label_key')}."
    )


def _find_label_name(names: Sequence[str | int]) -> str | None:
    """Return the first name that is typical of a column of labels."""
    for name in names:
        if LABEL_NAME_PATTERN.fullmatch(str(name)):
            return str(name)
    return None


def _advise_on_labels(label_name: str) -> str:
    """Return a clause that advises the user to name the label column."""
    return f"{label_name!r} holds the labels, pass {format_option('label_key', label_name)}"
