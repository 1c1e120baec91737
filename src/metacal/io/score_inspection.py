"""Inspection of a file with a single score.

A single score is one number for each row. Its meaning is ambiguous: it is either the logit or the
probability of the second of two classes, or a confidence score of an answer that is correct or
incorrect.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.display import format_names
from metacal.formulas import Float
from metacal.io.inspection import CORRECTNESS_NAME_PATTERN, AmbiguousFileError, Inspection, is_text
from metacal.io.request import CORRECT_KEYS, LABEL_KEYS
from metacal.rows.score_columns import VERDICTS, parse_score_text

#: Typical names of score columns.
SCORE_NAME_PATTERN = re.compile(
    r"(.*[_."
    r" ])?(score|mark|confidence|conf|prob|probability|proba|certainty|similarity|margin|rating|grade|logprob"
    r"|logit|likelihood|perplexity|entropy|distance|loss|uncertainty|max[_ ]?prob|p)s?",
    re.IGNORECASE,
)
#: Typical names of scores that are lower for more confident rows.
_UNCERTAINTY_NAME_PATTERN = re.compile(
    r"(.*[_. ])?(perplexity|entropy|distance|loss|uncertainty|nll)", re.IGNORECASE
)
#: Typical names of columns of predictions.
_PREDICTION_NAME_PATTERN = re.compile(
    r"pred(iction|icted)?([_ ](label|class))?|y[_ ]?pred|answer|output|top1", re.IGNORECASE
)
#: Typical names of columns of probabilities.
_PROBABILITY_NAME_PATTERN = re.compile(
    r"(.*[_. ])?(prob|probability|proba|p)([_ .].*)?", re.IGNORECASE
)


def parse_text_scores(columns: Mapping[str, NDArray[Any]]) -> dict[str, Float]:
    """Return as numbers the text columns of scores such as 8/10 or 85%."""
    score_columns = {}
    for name, column in columns.items():
        if not is_text(column) or not SCORE_NAME_PATTERN.fullmatch(name):
            continue
        scores = [parse_score_text(str(value)) for value in column.tolist()]
        if all(score is not None for score in scores):
            score_columns[name] = np.array(scores, dtype=np.float64)
    return score_columns


def inspect_single_score(
    inspection: Inspection, truth_name: str, score_name: str, scores: Float
) -> None:
    """Determine the meaning of a single score and record it.

    Parameters
    ----------
    inspection : Inspection
        Receives the findings.

    truth_name : str
        Name of the truth column.

    score_name : str
        Name of the score column.

    scores : array of shape (n_rows,)
        Values of the score.
    """
    options = inspection.options
    user_named_score = "score_key" in options or "correct_key" in options
    marks_correctness = CORRECTNESS_NAME_PATTERN.fullmatch(truth_name) is not None
    if user_named_score or marks_correctness:
        _record_confidence_score(inspection, truth_name, score_name)
        return

    labels = inspection.columns[truth_name]
    has_flags = _holds_flags(labels)
    if not has_flags:
        _check_is_not_prediction_column(inspection, truth_name, score_name)
        _check_is_not_long_table(inspection, truth_name, score_name)
    has_probability_name = _PROBABILITY_NAME_PATTERN.fullmatch(score_name) is not None
    if len(np.unique(labels)) == 2 and (has_probability_name or not has_flags):
        _record_score_of_second_class(inspection, truth_name, score_name, scores)
        return
    raise AmbiguousFileError(
        f"is {truth_name!r} the true class, and {score_name!r} a score for the second of two"
        f" classes (--logits-key {score_name} --label-key {truth_name}), or does it say whether an"
        f" answer was right (--score-key {score_name} --correct-key {truth_name})?"
    )


def _holds_flags(labels: NDArray[Any]) -> bool:
    """Check whether every label is a spelling of true or false."""
    spellings = {str(label).strip().lower() for label in labels.tolist()}
    return spellings <= set(VERDICTS)


def _check_is_not_prediction_column(
    inspection: Inspection, truth_name: str, score_name: str
) -> None:
    """Ask for a column of correctness if the file has a column of predictions."""
    for name in inspection.columns:
        if _PREDICTION_NAME_PATTERN.fullmatch(name):
            raise AmbiguousFileError(
                f"{name!r} seems to be the answer, {truth_name!r} the truth and {score_name!r} how"
                f" sure it is: add a column that says whether {name!r} is right, and name it with"
                " --correct-key."
            )


def _check_is_not_long_table(inspection: Inspection, truth_name: str, score_name: str) -> None:
    """Ask for a wide table if the file has one row for each item and class."""
    repetitive_names = []
    has_more_than_two_values = False
    for name, column in inspection.columns.items():
        if name == truth_name or not is_text(column):
            continue
        n_distinct = len(np.unique(column))
        if n_distinct < len(column) / 2:
            repetitive_names.append(name)
            has_more_than_two_values = has_more_than_two_values or n_distinct > 2
    if has_more_than_two_values:
        raise AmbiguousFileError(
            "this looks like a long table, a row for each item and class. Make one row of each"
            f" item, a column for each class: pandas' pivot(index=...,"
            f" columns={repetitive_names[0]!r}, values={score_name!r})."
        )


def _record_confidence_score(inspection: Inspection, truth_name: str, score_name: str) -> None:
    """Record a confidence score, and a truth column of correct and incorrect answers."""
    labels = inspection.columns[truth_name]
    if not _holds_flags(labels) and "loss_key" not in inspection.options:
        examples = format_names(np.unique(labels)[:6].tolist())
        raise AmbiguousFileError(
            f"{truth_name!r} holds {examples}: which of them is right? Write true or false."
        )
    inspection.add_finding(
        f"score: {score_name}", "one number for each answer", options={"score_key": score_name}
    )
    inspection.add_finding(
        f"right or wrong: {truth_name}",
        "its entries say yes or no",
        options={"correct_key": truth_name},
        default_values=CORRECT_KEYS,
    )
    has_direction = "higher_is" in inspection.options
    if not has_direction and _UNCERTAINTY_NAME_PATTERN.fullmatch(score_name):
        inspection.add_finding(
            "higher is doubtful",
            f"{score_name!r} is lower where an answer is surer",
            options={"higher_is": "doubtful"},
        )


def _record_score_of_second_class(
    inspection: Inspection, truth_name: str, score_name: str, scores: Float
) -> None:
    """Record a score for one of two classes, and determine the positive class.

    Parameters
    ----------
    inspection : Inspection
        Receives the findings.

    truth_name : str
        Name of the truth column, which has two distinct values.

    score_name : str
        Name of the score column.

    scores : array of shape (n_rows,)
        Values of the score.
    """
    inspection.add_finding(
        f"score: {score_name}",
        "one number for the second of two classes",
        options={"logits_key": score_name},
    )
    if ((scores >= 0.0) & (scores <= 1.0)).all():
        inspection.add_finding(
            "input: probabilities",
            "every number lies in [0, 1]",
            options={"input": "probabilities"},
        )

    labels = inspection.columns[truth_name]
    negative_class, positive_class = np.unique(labels).tolist()
    words_of_name = re.split(r"[_. ]", score_name.lower())
    names_negative_class = str(negative_class).lower() in words_of_name
    names_positive_class = str(positive_class).lower() in words_of_name
    names_one_class = names_negative_class != names_positive_class
    if names_one_class and isinstance(positive_class, str):
        if names_negative_class:
            negative_class, positive_class = positive_class, negative_class
        inspection.options.setdefault("positive", positive_class)

    inspection.add_finding(
        f"labels: {truth_name}",
        f"two values; {score_name!r} is taken for the score of {positive_class!r}, not"
        f" {negative_class!r}",
        options={"label_key": truth_name},
        default_values=LABEL_KEYS,
    )
    if is_text(labels) and "positive" not in inspection.options:
        raise AmbiguousFileError(
            f"which class is {score_name!r} about? Say --positive {negative_class}, or --positive"
            f" {positive_class}."
        )
