"""Search for the columns of labels, predictions and correctness in an unknown file.

These are the *labels* (the true classes), the *predictions* that are compared with them, or a column
of *correctness* that marks each row as correct or incorrect. Evidence is used in the order of its
strength: names such as "truth", values that name the class columns, names that a score refers to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from metacal.display import format_names
from metacal.errors import ColumnError
from metacal.io.class_inspection import find_label_pattern
from metacal.io.column_facts import ColumnFacts, guess_positive_class, split_words
from metacal.io.inspection import CORRECTNESS_NAME_PATTERN, AmbiguousFileError, Inspection
from metacal.io.request import (
    DEFAULT_CLASS_LIST_NAMES,
    DEFAULT_CORRECT_NAMES,
    DEFAULT_LABEL_NAMES,
    LABEL_NAME_PATTERN,
)

#: Names that belong to the truth even if another column is called "label".
_TRUTH_NAME_PATTERN = re.compile(
    r"(.*[_. ])?(gold|truth|ground[_ ]?truth|gt|actual|observed|obs|reference|expected|human|manual)"
    r"([_. ](label|labels|class|value|answer))?|(true|y)[_ ](label|labels|class|true)",
    re.IGNORECASE,
)
#: Further names of labels.
_OTHER_LABEL_NAME_PATTERN = re.compile(r"outcome|klasse|classe|clase|response", re.IGNORECASE)
#: Typical names of predictions.
PREDICTION_NAME_PATTERN = re.compile(
    r"(.*[_. ])?(pred|predict|predicted|prediction|predictions)([_. ].*)?|(.*[_. ])?y[_ ]?(pred|hat)"
    r"|(model|output|result|response)[_. ](label|class|answer|output)|scored[_ ]?labels?|answer|output"
    r"|top[_ ]?1|.*message\.content",
    re.IGNORECASE,
)
#: Names of columns that say to which part of the data set a row belongs.
_SPLIT_NAME_PATTERN = re.compile(r"(data)?[_ ]?(split|partition|subset|set)", re.IGNORECASE)


@dataclass(frozen=True)
class TruthColumns:
    """Columns of labels, predictions and correctness.

    Attributes
    ----------
    label_name : str or None
        Column of the true classes.
    correctness_name : str or None
        Column that marks each row as correct or incorrect, or holds its loss.
    prediction_name : str or None
        Column of the predictions, in the words of the labels.
    reason : str
        Reason for the choice of the labels.
    """

    label_name: str | None = None
    correctness_name: str | None = None
    prediction_name: str | None = None
    reason: str = ""


def find_truth_columns(inspection: Inspection) -> TruthColumns:
    """Find the columns of labels, predictions and correctness.

    Raise AmbiguousFileError if more than one column can hold the labels.
    """
    options = inspection.options
    for name in ("label_key", "correct_key", "loss_key", "prediction_key"):
        if options.get(name) is not None:
            _check_column_exists(inspection, options[name])
    correctness_name = options.get("correct_key") or options.get("loss_key")
    if correctness_name is not None:
        return TruthColumns(correctness_name=correctness_name, reason="you named it")
    prediction_names = _list_prediction_names(inspection)
    requested_label_name = options.get("label_key")
    has_separate_label_file = options.get("labels") is not None
    if requested_label_name is not None:
        label_name, reason = requested_label_name, "you named it"
    elif has_separate_label_file:
        return TruthColumns()
    else:
        correctness_name = _find_correctness_name(inspection)
        label_name, reason = _find_label_name(inspection, prediction_names, correctness_name)
    return TruthColumns(
        label_name=label_name,
        correctness_name=correctness_name,
        prediction_name=_find_prediction_name(inspection, label_name, prediction_names),
        reason=reason,
    )


def build_missing_truth_question(inspection: Inspection) -> AmbiguousFileError:
    """Build the question about a file without labels and without correctness."""
    return AmbiguousFileError(
        "No column was recognised as the true class. The columns are"
        f" {format_names(inspection.columns)}. Name the true classes with --label-key NAME, a"
        " column of correctness with --correct-key NAME, or a separate file of labels with"
        " --labels FILE."
    )


def record_split_column(inspection: Inspection) -> None:
    """Record the column that splits the data set, such as "split" or "subset".

    Raise AmbiguousFileError if it marks rows for training.
    """
    for name, facts in inspection.facts.items():
        if _SPLIT_NAME_PATTERN.fullmatch(name) is None or facts.is_number:
            continue
        inspection.column_of_role["split"] = name
        training_values = [text for text in facts.distinct_texts if text.lower() == "train"]
        if training_values:
            raise AmbiguousFileError(
                f"The column {name!r} marks some rows as {training_values[0]!r}, but rows that"
                " the classifier was trained on cannot be used. Pass a file without these rows."
            )


def _check_column_exists(inspection: Inspection, column_name: str) -> None:
    """Raise InputError if the inspected file has no column of the given name."""
    if column_name not in inspection.columns:
        raise ColumnError(
            f"{inspection.path}: the file has no column {column_name!r}. Its columns are"
            f" {format_names(list(inspection.columns))}."
        )


def _list_prediction_names(inspection: Inspection) -> list[str]:
    """Return the columns that have the name of a prediction and are not probabilities."""
    requested_name = inspection.options.get("prediction_key")
    if requested_name is not None:
        return [requested_name]
    prediction_names = []
    for name, facts in inspection.facts.items():
        if PREDICTION_NAME_PATTERN.fullmatch(name) and not facts.has_fractions:
            prediction_names.append(name)
    return prediction_names


def _find_correctness_name(inspection: Inspection) -> str | None:
    """Return the name of the column that marks rows as correct, or None."""
    candidates = []
    for name, facts in inspection.facts.items():
        has_typical_name = CORRECTNESS_NAME_PATTERN.fullmatch(name) is not None
        may_hold_correctness = facts.holds_true_or_false or name in DEFAULT_CORRECT_NAMES
        if has_typical_name and may_hold_correctness and not _is_subject_of_score(inspection, name):
            candidates.append(name)
    default_names = [name for name in candidates if name in DEFAULT_CORRECT_NAMES]
    candidates = default_names or candidates
    if len(candidates) > 1:
        raise AmbiguousFileError(
            f"Several columns may mark correct rows: {format_names(candidates)}. Name one of them"
            " with --correct-key NAME."
        )
    return next(iter(candidates), None)


def _is_subject_of_score(inspection: Inspection, name: str) -> bool:
    """Check whether a score is named after a column, for example p_churn after churn."""
    return any(
        facts.name != name
        and facts.numbers is not None
        and facts.has_score_word_in_name
        and not facts.has_name_of_index_or_id
        and facts.shares_word_with(name)
        for facts in inspection.facts.values()
    )


def _find_label_name(
    inspection: Inspection, prediction_names: Sequence[str], correctness_name: str | None
) -> tuple[str | None, str]:
    """Return the name of the label column, or None, and the reason."""
    excluded_names = {
        *prediction_names,
        *DEFAULT_CLASS_LIST_NAMES,
        *inspection.options.get("drop", ()),
    }
    candidates = []
    for name, facts in inspection.facts.items():
        if name not in excluded_names and name != correctness_name and not _is_score(facts):
            candidates.append(facts)
    candidates = _drop_copies(candidates)

    is_narrowed = False
    for evidence in _list_evidence_for_labels(inspection, prediction_names):
        supported_candidates = [facts for facts in candidates if evidence.supports(facts)]
        if len(supported_candidates) == 1:
            return supported_candidates[0].name, evidence.reason
        if supported_candidates:
            candidates = supported_candidates
            is_narrowed = True
    if is_narrowed and correctness_name is None:
        candidate_names = [facts.name for facts in candidates]
        raise AmbiguousFileError(
            f"Several columns may hold the true classes: {format_names(candidate_names)}. Name one"
            " of them"
            " with --label-key NAME."
        )
    return None, ""


def _is_score(facts: ColumnFacts) -> bool:
    """Check whether a column holds fractions, which cannot be labels."""
    return facts.numbers is not None and facts.has_fractions


def _drop_copies(candidates: Sequence[ColumnFacts]) -> list[ColumnFacts]:
    """Drop columns that repeat the values of an earlier column, such as label.1."""
    distinct_columns: list[ColumnFacts] = []
    for facts in candidates:
        if not any(np.array_equal(facts.texts, other.texts) for other in distinct_columns):
            distinct_columns.append(facts)
    return distinct_columns


class _Evidence(NamedTuple):
    """Test for a column of labels, and the reason to show if one column passes it."""

    supports: Callable[[ColumnFacts], bool]
    reason: str


def _list_evidence_for_labels(
    inspection: Inspection, prediction_names: Sequence[str]
) -> list[_Evidence]:
    """Return the tests that find the column of labels, the most reliable first."""
    predicted_value_sets = [set(inspection.facts[name].distinct_texts) for name in prediction_names]
    number_names = [facts.name for facts in inspection.facts.values() if facts.is_number]

    def shares_predicted_values(facts: ColumnFacts) -> bool:
        distinct_values = set(facts.distinct_texts)
        return any(
            len(distinct_values) >= 2 and distinct_values <= predicted
            for predicted in predicted_value_sets
        )

    def names_class_columns(facts: ColumnFacts) -> bool:
        n_values = len(facts.distinct_texts)
        if not 2 <= n_values <= len(number_names) or facts.has_name_of_index_or_id:
            return False
        other_names = [name for name in number_names if name != facts.name]
        return find_label_pattern(facts.distinct_texts, other_names) is not None

    def has_default_label_name(facts: ColumnFacts) -> bool:
        return facts.name.lower() in DEFAULT_LABEL_NAMES

    def is_subject_of_score(facts: ColumnFacts) -> bool:
        return _is_subject_of_score(inspection, facts.name)

    def has_value_in_name_of_score(facts: ColumnFacts) -> bool:
        return _has_value_in_name_of_score(inspection, facts)

    return [
        _Evidence(_build_name_test(_TRUTH_NAME_PATTERN), "its name"),
        _Evidence(has_default_label_name, "its name"),
        _Evidence(_build_name_test(LABEL_NAME_PATTERN), "its name"),
        _Evidence(_build_name_test(_OTHER_LABEL_NAME_PATTERN), "its name"),
        _Evidence(shares_predicted_values, "its values are those of the predictions"),
        _Evidence(names_class_columns, "its values are in the names of other columns"),
        _Evidence(is_subject_of_score, "a score has its name"),
        _Evidence(has_value_in_name_of_score, "a score has the name of one of its values"),
        _Evidence(_has_yes_and_no, "the only column of two values such as yes and no"),
    ]


def _has_value_in_name_of_score(inspection: Inspection, facts: ColumnFacts) -> bool:
    """Check whether a score is named after one of two values, as p_good after good."""
    label_values = {text.lower() for text in facts.distinct_texts}
    if len(label_values) != 2 or facts.is_number:
        return False
    return any(
        other.has_score_word_in_name
        and other.is_number
        and label_values.intersection(split_words(other.name))
        for other in inspection.facts.values()
    )


def _has_yes_and_no(facts: ColumnFacts) -> bool:
    """Check whether a column has a positive and a negative value, such as yes and no."""
    distinct_values = facts.distinct_texts
    has_positive_value = (
        len(distinct_values) == 2 and guess_positive_class(distinct_values) is not None
    )
    return has_positive_value and not facts.has_name_of_index_or_id


def _build_name_test(pattern: re.Pattern[str]) -> Callable[[ColumnFacts], bool]:
    """Return a function that matches the whole name of a column with a pattern."""
    return lambda facts: pattern.fullmatch(facts.name) is not None


def _find_prediction_name(
    inspection: Inspection, label_name: str | None, prediction_names: Sequence[str]
) -> str | None:
    """Return the column of predictions that the labels can be compared with, or None.

    Its values equal the labels in some rows, but not in all.
    """
    if label_name is None or label_name not in inspection.facts:
        return None
    label_facts = inspection.facts[label_name]
    candidates = list(prediction_names)
    is_marked_as_truth = _TRUTH_NAME_PATTERN.fullmatch(label_name) is not None
    if is_marked_as_truth:
        # Beside a column such as gold_label, a column "label" is the prediction.
        candidates += [name for name in DEFAULT_LABEL_NAMES if name in inspection.facts]
    possible_names = []
    for name in candidates:
        if name == label_name:
            continue
        is_equal_to_label = inspection.facts[name].texts == label_facts.texts
        if is_equal_to_label.any() and not is_equal_to_label.all():
            possible_names.append(name)
    if len(possible_names) > 1:
        raise AmbiguousFileError(
            f"Several columns may hold the predictions: {format_names(possible_names)}. Name one of"
            " them with --prediction-key NAME."
        )
    return next(iter(possible_names), None)
