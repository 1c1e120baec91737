"""Search for the class columns of an unknown file, one column per class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from metacal.display import format_names
from metacal.formulas import Float
from metacal.io.class_columns import ClassColumnPattern
from metacal.io.column_facts import ColumnFacts
from metacal.io.inspection import AmbiguousFileError, Inspection, are_column_numbers
from metacal.io.request import CLASS_COLUMN_PREFIXES, DEFAULT_ID_NAMES

#: Maximum deviation from 1 of the sum of the probabilities in a row.
_SUM_TOLERANCE = 0.01
#: Minimum number of rows for comparing the agreement of columns and labels with chance.
_MIN_AGREEMENT_ROWS = 50
#: Number of standard errors by which the agreement must exceed the agreement by chance.
_N_STANDARD_ERRORS = 2.0
#: Pattern of columns whose whole names are the class names.
_BARE_PATTERN = ClassColumnPattern("", "")


@dataclass(frozen=True)
class ClassColumnGroup:
    """Class columns of a file.

    Attributes
    ----------
    column_names : list of str
        Names of the columns. Empty if there are no class columns.
    pattern : ClassColumnPattern
        Text around the name of the class in the names of the columns.
    reason : str
        Reason for taking the columns as classes.
    """

    column_names: list[str] = field(default_factory=list)
    pattern: ClassColumnPattern = _BARE_PATTERN
    reason: str = ""

    @property
    def class_names(self) -> list[str]:
        """Names of the classes."""
        return [str(self.pattern.find_class_name(name)) for name in self.column_names]

    @property
    def logits_key(self) -> str | None:
        """Option `logits_key` that selects the columns, or None if not required."""
        if self.pattern == _BARE_PATTERN:
            return None
        if self.pattern.prefix.endswith("_") and not self.pattern.suffix:
            return self.pattern.prefix.removesuffix("_")
        return str(self.pattern)


def find_label_pattern(
    labels: Sequence[str], column_names: Sequence[str]
) -> ClassColumnPattern | None:
    """Return the pattern that turns every label into the name of a column, or None.

    Examples
    --------
    >>> find_label_pattern(["cat", "dog"], ["p(dog)", "p(cat)", "age"])
    ClassColumnPattern(prefix='p(', suffix=')')
    >>> find_label_pattern(["cat", "dog"], ["p(dog)", "age"]) is None
    True
    """
    if len(labels) < 2:
        return None
    existing_names = set(column_names)
    first_label = labels[0]
    patterns = set()
    for name in column_names:
        start = name.find(first_label)
        while start >= 0:
            suffix = name[start + len(first_label) :]
            patterns.add(ClassColumnPattern(name[:start], suffix))
            start = name.find(first_label, start + 1)
    for pattern in sorted(patterns, key=lambda pattern: len(pattern.prefix + pattern.suffix)):
        if all(f"{pattern.prefix}{label}{pattern.suffix}" in existing_names for label in labels):
            return pattern
    return None


def find_class_column_group(
    inspection: Inspection, label_name: str | None, other_names: Sequence[str | None]
) -> ClassColumnGroup:
    """Find the class columns among the columns of numbers.

    Parameters
    ----------
    inspection : Inspection
        Columns and options.
    label_name : str or None
        Column of the labels.
    other_names : sequence of str or None
        Columns with another meaning.

    Returns
    -------
    ClassColumnGroup
        Without columns if there are no class columns.
    """
    excluded_names = {label_name, *other_names, *inspection.options.get("drop", ())}
    number_columns = []
    for facts in inspection.facts.values():
        if facts.is_number and facts.name not in excluded_names:
            number_columns.append(facts)
    number_names = [facts.name for facts in number_columns]

    requested_key = inspection.options.get("logits_key")
    if requested_key is not None:
        pattern = ClassColumnPattern.from_key(requested_key)
        group = _select_columns_of_pattern(pattern, number_names, "you named them")
        return group if len(group.column_names) > 1 else ClassColumnGroup()
    if label_name is not None and label_name in inspection.facts:
        label_texts = inspection.facts[label_name].distinct_texts
        pattern_of_labels = find_label_pattern(label_texts, number_names)
        if pattern_of_labels == _BARE_PATTERN:
            return _select_columns_named_by_labels(label_texts, number_columns)
        if pattern_of_labels is not None:
            return _select_columns_of_pattern(
                pattern_of_labels, number_names, "their names contain the labels"
            )
    prefix_group = _find_columns_with_common_prefix(number_columns)
    if prefix_group.column_names:
        return prefix_group
    if label_name is None or label_name not in inspection.facts:
        return ClassColumnGroup()
    return _find_numbered_columns(inspection.facts[label_name], number_columns)


def _select_columns_of_pattern(
    pattern: ClassColumnPattern, names: Sequence[str], reason: str
) -> ClassColumnGroup:
    """Return the columns whose names fit a pattern."""
    fitting_names = [name for name in names if pattern.find_class_name(name) is not None]
    return ClassColumnGroup(fitting_names, pattern, reason)


def _select_columns_named_by_labels(
    label_texts: Sequence[str], number_columns: Sequence[ColumnFacts]
) -> ClassColumnGroup:
    """Select the columns with names of labels, and other possible class columns."""
    named_columns = [facts for facts in number_columns if facts.name in label_texts]
    reason = "the labels name them"
    if is_probability_table(_stack_columns(named_columns)):
        return ClassColumnGroup([facts.name for facts in named_columns], _BARE_PATTERN, reason)
    class_column_names = []
    for facts in number_columns:
        if facts in named_columns or may_be_class(facts):
            class_column_names.append(facts.name)
    return ClassColumnGroup(class_column_names, _BARE_PATTERN, reason)


def may_be_class(facts: ColumnFacts) -> bool:
    """Check whether a column of numbers may hold the scores of a class."""
    if facts.has_name_of_index_or_id or facts.is_row_counter or facts.looks_like_row_ids:
        return False
    return not facts.has_score_word_in_name and not facts.looks_like_case_ids


def _find_columns_with_common_prefix(number_columns: Sequence[ColumnFacts]) -> ClassColumnGroup:
    """Return the largest group of columns whose names have a common prefix."""
    names_of_prefix: dict[str, list[str]] = {}
    for facts in number_columns:
        beginning, underscore, remainder = facts.name.partition("_")
        if remainder and not facts.has_name_of_index_or_id:
            names_of_prefix.setdefault(beginning + underscore, []).append(facts.name)
    known_prefixes = set(chain.from_iterable(CLASS_COLUMN_PREFIXES.values()))

    def count_columns(prefix: str) -> int:
        return len(names_of_prefix[prefix])

    for prefix in sorted(names_of_prefix, key=count_columns, reverse=True):
        prefixed_names = names_of_prefix[prefix]
        prefixed_columns = [facts for facts in number_columns if facts.name in prefixed_names]
        is_known_prefix = prefix in known_prefixes
        all_have_fractions = all(facts.has_fractions for facts in prefixed_columns)
        if len(prefixed_names) > 1 and (is_known_prefix or all_have_fractions):
            return ClassColumnGroup(
                prefixed_names, ClassColumnPattern(prefix), f"their names begin with {prefix!r}"
            )
    return ClassColumnGroup()


def _find_numbered_columns(
    label_facts: ColumnFacts, number_columns: Sequence[ColumnFacts]
) -> ClassColumnGroup:
    """Return all possible class columns if the labels are their numbers from 0."""
    if any(facts.has_score_word_in_name for facts in number_columns):
        # If one column is a score, the other columns of numbers are features, not classes.
        return ClassColumnGroup()
    possible_columns = [facts for facts in number_columns if may_be_class(facts)]
    possible_names = [facts.name for facts in possible_columns]
    has_numbers_as_names = sorted(possible_names) == sorted(
        str(number) for number in range(len(possible_names))
    )
    if len(possible_names) < 2 or not are_column_numbers(label_facts.values, len(possible_names)):
        return ClassColumnGroup()
    if not has_numbers_as_names and not all(facts.has_fractions for facts in possible_columns):
        return ClassColumnGroup()
    return ClassColumnGroup(possible_names, _BARE_PATTERN, "all other columns of numbers")


def record_class_columns(
    inspection: Inspection, group: ClassColumnGroup, label_name: str | None
) -> Float:
    """Record the class columns in the inspection, and return their values as a table.

    The columns that look like classes but are not are recorded too.

    Parameters
    ----------
    inspection : Inspection
        Receives the findings and the options of the readers.
    group : ClassColumnGroup
        The class columns.
    label_name : str or None
        Column of the labels.

    Returns
    -------
    array of shape (n_rows, n_classes)

    Raises
    ------
    AmbiguousFileError
        If the largest column agrees with the labels no more often than by chance.
    """
    class_columns = [inspection.facts[name] for name in group.column_names]
    table = _stack_columns(class_columns)
    # The readers find columns with these prefixes without the option `logits_key`.
    default_prefixes = ["", *CLASS_COLUMN_PREFIXES["logits"]]
    if is_probability_table(table):
        default_prefixes += CLASS_COLUMN_PREFIXES["probabilities"]
    has_default_names = group.pattern.prefix in default_prefixes and not group.pattern.suffix
    reader_options = {}
    if group.logits_key is not None and not has_default_names:
        reader_options["logits_key"] = group.logits_key
    inspection.add_finding(
        f"classes: {format_names(group.class_names)}", group.reason, reader_options=reader_options
    )
    # If `logits_key` is set, the class columns are known and need no test.
    has_key = "logits_key" in inspection.options
    if label_name in inspection.facts and not has_key:
        _check_agreement_exceeds_chance(group, inspection.facts[label_name], table)
    _record_columns_to_drop(inspection, group, label_name)
    return table


def _stack_columns(columns: Sequence[ColumnFacts]) -> Float:
    """Stack columns of numbers into a table with one column per class."""
    return np.stack([facts.values.astype(np.float64) for facts in columns], axis=1)


def _record_columns_to_drop(
    inspection: Inspection, group: ClassColumnGroup, label_name: str | None
) -> None:
    """Exclude columns that only look like class columns, with the option `drop`.

    Without this option the readers would read them as classes.
    """
    names_to_drop = set(inspection.options.get("drop", ()))
    used_names = {"", label_name, *group.column_names, *DEFAULT_ID_NAMES}
    for name in inspection.columns:
        if name not in used_names and group.pattern.find_class_name(name) is not None:
            names_to_drop.add(name)
    if not names_to_drop:
        return
    dropped_names = tuple(sorted(names_to_drop))
    inspection.options["drop"] = dropped_names
    inspection.add_finding(
        f"not classes: {format_names(dropped_names)}",
        "neither their names nor their values are those of classes",
    )


def _check_agreement_exceeds_chance(
    group: ClassColumnGroup, label_facts: ColumnFacts, table: Float
) -> None:
    """Raise AmbiguousFileError if predictions match the labels only by chance.

    Nothing is checked if there are too few rows, if all labels are equal, or if some label is neither
    a class nor the number of a column.

    Parameters
    ----------
    group : ClassColumnGroup
        The class columns.
    label_facts : ColumnFacts
        Column of the labels.
    table : array of shape (n_rows, n_classes)
        Values of the class columns.
    """
    index_of_label = _map_labels_to_columns(group, label_facts.distinct_texts)
    if index_of_label is None or len(table) < _MIN_AGREEMENT_ROWS:
        return
    # A missing label gets the index -1, which equals no predicted class.
    true_indices = np.array([index_of_label.get(text, -1) for text in label_facts.texts.tolist()])
    predicted_indices = np.nan_to_num(table, nan=-np.inf).argmax(axis=1)
    agreement = (true_indices == predicted_indices).mean()
    agreement_by_chance = _compute_agreement_by_chance(
        true_indices, predicted_indices, n_classes=len(group.column_names)
    )
    standard_error = np.sqrt(agreement_by_chance * (1.0 - agreement_by_chance) / len(table))
    max_chance_agreement = agreement_by_chance + _N_STANDARD_ERRORS * standard_error
    if agreement <= max_chance_agreement and len(label_facts.distinct_texts) > 1:
        raise AmbiguousFileError(
            f"The largest of the columns {format_names(group.column_names)} agrees with"
            f" {label_facts.name!r} in only {agreement:.0%} of the rows, no more often than by"
            " chance. Name the scores with --logits-key NAME, or name the labels with --label-key"
            " NAME."
        )


def _map_labels_to_columns(
    group: ClassColumnGroup, distinct_labels: Sequence[str]
) -> dict[str, int] | None:
    """Return the index of the class column for each label, keyed by label.

    The labels are the names of the classes or the numbers of the columns. The result is None if some
    label is neither.
    """
    index_of_class = {name: index for index, name in enumerate(group.class_names)}
    index_of_number = {str(index): index for index in range(len(group.column_names))}
    for index_of_label in (index_of_class, index_of_number):
        if set(distinct_labels) <= index_of_label.keys():
            return index_of_label
    return None


def _compute_agreement_by_chance(
    true_indices: NDArray[np.intp], predicted_indices: NDArray[np.intp], n_classes: int
) -> float:
    """Compute the expected agreement of labels with independent predictions.

    This is p_e in Cohen's kappa: the sum over the classes of the product of both frequencies.
    """
    agreement_by_chance = 0.0
    for index in range(n_classes):
        true_frequency = float((true_indices == index).mean())
        predicted_frequency = float((predicted_indices == index).mean())
        agreement_by_chance += true_frequency * predicted_frequency
    return agreement_by_chance


def is_probability_table(table: Float) -> bool:
    """Check whether all numbers are nonnegative and every row sums to about one."""
    is_nonnegative = (table >= 0.0).all()
    sums_to_one = (np.abs(table.sum(axis=1) - 1.0) < _SUM_TOLERANCE).all()
    return bool(is_nonnegative and sums_to_one)
