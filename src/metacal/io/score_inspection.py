"""Inspection of a file with a single score.

A single score is one number for each row. It is the logit or the probability of the positive one of
two classes, or the confidence in a prediction that is correct or incorrect.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from metacal.display import format_names
from metacal.formulas import Float
from metacal.io.column_facts import ColumnFacts, guess_positive_class, split_words
from metacal.io.inspection import AmbiguousFileError, Inspection
from metacal.io.request import DEFAULT_CORRECT_NAMES, DEFAULT_LABEL_NAMES
from metacal.io.truth_inspection import PREDICTION_NAME_PATTERN, TruthColumns
from metacal.rows.score_columns import FLAG_OF_VERDICT

#: Typical names of score columns.
_SCORE_NAME_PATTERN = re.compile(
    r"(.*[_. ])?(score|mark|confidence|conf|prob|probability|proba|certainty|similarity|margin"
    r"|rating|grade|logprob|logit|likelihood|perplexity|entropy|distance|loss|uncertainty"
    r"|max[_ ]?prob|decision[_ ]?function|p)s?|(mean|min|sum)\(.*logprob.*\)",
    re.IGNORECASE,
)
#: Typical names of scores that are lower for more confident rows.
_UNCERTAINTY_NAME_PATTERN = re.compile(
    r"(.*[_. ])?(perplexity|entropy|distance|loss|uncertainty|nll)", re.IGNORECASE
)
#: Words in the names of probabilities.
_PROBABILITY_WORDS = frozenset(
    [
        "p",
        "pr",
        "prob",
        "probs",
        "proba",
        "probability",
        "probabilities",
        "probabilite",
        "probabilidad",
        "wahrscheinlichkeit",
        "risk",
        "chance",
        "likelihood",
    ]
)
#: Words in the names of scores that are no probabilities.
_LOGIT_WORDS = frozenset(["logit", "logits", "margin", "decision", "log", "odds"])
#: Smallest fraction of the predictions that a threshold of the score must reproduce.
_MIN_REPRODUCED_FRACTION = 0.98
#: Minimum number of rows for comparing the direction of a score with the truth.
_MIN_DIRECTION_ROWS = 50
#: Area under the ROC curve of a score without relation to the outcome.
_AREA_OF_RANDOM_SCORE = 0.5
#: Number of standard errors below the area of a random score at which a score counts as reversed.
_N_STANDARD_ERRORS = 3.0
#: Smallest rank correlation of two columns that order the rows in the same way.
_MIN_RANK_CORRELATION = 0.999


def find_score_column(inspection: Inspection, truth: TruthColumns) -> str | None:
    """Return the column of the single score, or None if there is none.

    Raise AmbiguousFileError if several columns can be the score.
    """
    requested_name = inspection.options.get("score_key") or inspection.options.get("logits_key")
    if requested_name is not None:
        return str(requested_name)
    candidates = _list_score_candidates(inspection, truth)
    for equally_likely_columns in _group_by_likelihood(candidates, truth.label_name):
        if not equally_likely_columns:
            continue
        if len(equally_likely_columns) == 1 or _have_same_order(equally_likely_columns):
            for facts in equally_likely_columns:
                if facts.lies_in_unit_interval:
                    return facts.name
            return equally_likely_columns[0].name
        column_names = [facts.name for facts in equally_likely_columns]
        raise AmbiguousFileError(
            f"Several columns may hold the score: {format_names(column_names)}. If one of them is"
            " the confidence of a prediction, name it with --score-key NAME. If one is the"
            " score of one of two classes, name it with --logits-key NAME."
        )
    return None


def _list_score_candidates(inspection: Inspection, truth: TruthColumns) -> list[ColumnFacts]:
    """List the numeric columns that are neither ids nor used for another purpose."""
    used_names = {
        truth.label_name,
        truth.correctness_name,
        truth.prediction_name,
        *inspection.options.get("drop", ()),
    }
    candidates = []
    for facts in inspection.facts.values():
        has_numbers = facts.numbers is not None and len(facts.finite_numbers) > 0
        has_other_use = facts.name in used_names or facts.looks_like_row_ids or facts.is_row_counter
        if has_numbers and not has_other_use and len(facts.distinct_texts) > 1:
            candidates.append(facts)
    return candidates


def _group_by_likelihood(
    candidates: Sequence[ColumnFacts], label_name: str | None
) -> list[list[ColumnFacts]]:
    """Split possible score columns into four groups, from most to least likely.

    The groups are the scores that are named after the labels, the other columns with the name of a
    score, the fractions between 0 and 1, and all other numbers. A column may be in several groups.
    """
    scores_named_after_labels = []
    columns_named_like_scores = []
    columns_of_fractions = []
    other_number_columns = []
    for facts in candidates:
        has_score_word = facts.has_score_word_in_name
        is_typical_score_name = _SCORE_NAME_PATTERN.fullmatch(facts.name) is not None
        if label_name is not None and has_score_word and facts.shares_word_with(label_name):
            scores_named_after_labels.append(facts)
        if is_typical_score_name or (has_score_word and not facts.has_name_of_index_or_id):
            columns_named_like_scores.append(facts)
        if facts.has_fractions and facts.lies_in_unit_interval:
            columns_of_fractions.append(facts)
        if not facts.has_name_of_index_or_id and facts.is_number:
            other_number_columns.append(facts)
    return [
        scores_named_after_labels,
        columns_named_like_scores,
        columns_of_fractions,
        other_number_columns,
    ]


def _have_same_order(group: Sequence[ColumnFacts]) -> bool:
    """Check whether all columns order the rows in the same way."""
    ranks = []
    for facts in group:
        assert facts.numbers is not None
        if not np.isfinite(facts.numbers).all():
            return False
        ranks.append(np.argsort(np.argsort(facts.numbers, kind="stable"), kind="stable"))
    return all(np.corrcoef(ranks[0], other)[0, 1] > _MIN_RANK_CORRELATION for other in ranks[1:])


def inspect_single_score(inspection: Inspection, truth: TruthColumns, score_name: str) -> None:
    """Determine the meaning of a single score and record it.

    Parameters
    ----------
    inspection : Inspection
        Receives the findings.
    truth : TruthColumns
        Columns that say what is correct.
    score_name : str
        Name of the score column.
    """
    options = inspection.options
    inspection.column_of_role["score"] = score_name
    if truth.correctness_name is not None:
        _record_confidence_score(inspection, truth.correctness_name, score_name)
        return
    label_name = truth.label_name
    assert label_name is not None
    facts = inspection.facts[label_name]
    has_score_option = "score_key" in options or "prediction_key" in options
    has_two_labels = len(facts.distinct_texts) == 2
    has_one_label = len(facts.distinct_texts) < 2
    if has_one_label:
        raise AmbiguousFileError(
            f"Every label in {label_name!r} is {facts.distinct_texts[0]!r}, so no row is incorrect."
            " Pass a file with rows of every class, or name another column of true classes with"
            " --label-key NAME."
        )
    if truth.prediction_name is not None:
        positive = None
        if has_two_labels and not has_score_option:
            positive = _find_predicted_class(inspection, truth, score_name)
        if positive is None:
            _record_compared_predictions(inspection, truth, score_name)
            return
        reason = f"{truth.prediction_name!r} is {positive!r} where {score_name!r} is high"
        _record_score_of_class(inspection, label_name, score_name, positive, reason)
        return
    if not has_two_labels:
        _ask_for_table_or_predictions(inspection, label_name, score_name)
    is_class_score = (
        not facts.holds_true_or_false
        or inspection.facts[score_name].shares_word_with(label_name)
        or _names_probability(score_name)
        or PREDICTION_NAME_PATTERN.fullmatch(score_name)
        or {"logits_key", "positive"} & options.keys()
    )
    if not is_class_score:
        raise AmbiguousFileError(
            f"{label_name!r} may hold true classes or correctness. For true classes, with"
            f" {score_name!r} as the score of one of two classes, pass --logits-key"
            f" {score_name} --label-key {label_name}. For correctness, pass --score-key"
            f" {score_name} --correct-key {label_name!r}."
        )
    positive, reason = _find_positive_class(inspection, label_name, score_name)
    _record_score_of_class(inspection, label_name, score_name, positive, reason)


def _names_probability(score_name: str) -> bool:
    """Check whether the name of a column contains a word for probability."""
    return bool(_PROBABILITY_WORDS.intersection(split_words(score_name)))


def _find_predicted_class(
    inspection: Inspection, truth: TruthColumns, score_name: str
) -> str | None:
    """Return the class that is predicted where the score is high, or None."""
    assert truth.label_name is not None
    assert truth.prediction_name is not None
    scores = inspection.facts[score_name].numbers
    assert scores is not None
    predicted = inspection.facts[truth.prediction_name].texts
    may_be_probability = inspection.facts[score_name].lies_in_unit_interval
    decision_threshold = 0.5 if may_be_probability else 0.0
    is_high = scores > decision_threshold
    if is_high.all() or not is_high.any():
        return None
    for label in inspection.facts[truth.label_name].distinct_texts:
        if ((predicted == label) == is_high).mean() >= _MIN_REPRODUCED_FRACTION:
            return label
    return None


def _find_positive_class(
    inspection: Inspection, label_name: str, score_name: str
) -> tuple[str, str]:
    """Return the class that a higher score favours, and the reason."""
    class_names = inspection.facts[label_name].distinct_texts
    requested_class = inspection.options.get("positive")
    if requested_class is not None:
        return str(requested_class), "you named it"
    named_values = [value for value in class_names if value.lower() in split_words(score_name)]
    if len(named_values) == 1 and not inspection.facts[label_name].is_number:
        return named_values[0], f"{score_name!r} names it"
    positive = guess_positive_class(class_names)
    if positive is None:
        raise AmbiguousFileError(
            f"Cannot tell which class a higher {score_name!r} favours. Pass --positive"
            f" {class_names[0]} or --positive {class_names[1]}."
        )
    return (
        positive,
        f"{positive!r} is the positive one of {class_names[0]!r} and {class_names[1]!r}",
    )


def _record_confidence_score(
    inspection: Inspection, correctness_name: str, score_name: str
) -> None:
    """Record a confidence score, and the column of correctness or of losses."""
    facts = inspection.facts[correctness_name]
    holds_losses = "loss_key" in inspection.options
    if not holds_losses:
        _check_correctness_values(facts)
    reader_options = {} if holds_losses else {"correct_key": correctness_name}
    inspection.column_of_role["correct"] = correctness_name
    _record_score(inspection, score_name, "one number for each answer")
    inspection.add_finding(
        f"correctness: {correctness_name}",
        "its entries say whether an answer is correct",
        reader_options=reader_options,
        values_used_by_default=DEFAULT_CORRECT_NAMES,
    )
    if not holds_losses:
        flags = [FLAG_OF_VERDICT.get(text.lower()) for text in facts.texts.tolist()]
        _ask_if_score_is_reversed(
            inspection,
            score_name,
            is_favoured=np.array([flag is True for flag in flags]),
            is_known=np.array([flag is not None for flag in flags]),
        )


def _check_correctness_values(facts: ColumnFacts) -> None:
    """Raise AmbiguousFileError unless a column has both true and false values."""
    if not facts.holds_true_or_false:
        raise AmbiguousFileError(
            f"Cannot tell which values of {facts.name!r} mean correct:"
            f" {format_names(facts.distinct_texts[:6])}. Write true or false."
        )
    if len(facts.distinct_texts) < 2:
        raise AmbiguousFileError(
            "Both correct and incorrect predictions are required, but every row of"
            f" {facts.name!r} is {facts.distinct_texts[0]!r}. Pass a file with both."
        )


def _record_compared_predictions(
    inspection: Inspection, truth: TruthColumns, score_name: str
) -> None:
    """Record a confidence score and its columns of predictions and labels."""
    assert truth.label_name is not None
    assert truth.prediction_name is not None
    inspection.column_of_role["predictions"] = truth.prediction_name
    inspection.column_of_role["labels"] = truth.label_name
    _record_score(inspection, score_name, "one number for each prediction")
    is_correct = (
        inspection.facts[truth.prediction_name].texts == inspection.facts[truth.label_name].texts
    )
    inspection.add_finding(
        f"correct: where {truth.prediction_name} equals {truth.label_name}",
        f"they hold the same classes, and are equal in {is_correct.mean():.0%} of the rows",
        reader_options={"prediction_key": truth.prediction_name, "label_key": truth.label_name},
    )
    _ask_if_score_is_reversed(inspection, score_name, is_favoured=is_correct)


def _record_score(inspection: Inspection, score_name: str, reason: str) -> None:
    """Record a confidence score, and whether lower scores mean more confidence."""
    inspection.add_finding(f"score: {score_name}", reason, reader_options={"score_key": score_name})
    has_direction = "higher_is" in inspection.options
    if not has_direction and _UNCERTAINTY_NAME_PATTERN.fullmatch(score_name):
        inspection.add_finding(
            "a higher score means less confidence",
            f"{score_name!r} is the name of an uncertainty",
            reader_options={"higher_is": "doubtful"},
        )


def _record_score_of_class(
    inspection: Inspection, label_name: str, score_name: str, positive: str, reason: str
) -> None:
    """Record a score for one of two classes.

    Parameters
    ----------
    inspection : Inspection
        Receives the findings.
    label_name : str
        Column of the labels, which has two distinct values.
    score_name : str
        Name of the score column.
    positive : str
        Class that a higher score favours.
    reason : str
        Reason for this class.
    """
    label_facts = inspection.facts[label_name]
    class_names = label_facts.distinct_texts
    if positive not in class_names:
        raise AmbiguousFileError(
            f"--positive must be one of the labels {format_names(class_names)}, but got {positive}."
        )
    first_class, second_class = class_names
    negative = second_class if positive == first_class else first_class
    inspection.negative_and_positive = (negative, positive)
    inspection.column_of_role["labels"] = label_name
    inspection.add_finding(
        f"score: {score_name}, of the class {positive!r}",
        reason,
        reader_options={"logits_key": score_name},
    )
    is_positive_by_default = label_facts.is_number and guess_positive_class(class_names) == positive
    if not is_positive_by_default:
        inspection.options.setdefault("positive", positive)
    _record_input_kind(inspection, inspection.facts[score_name])
    inspection.add_finding(
        f"labels: {label_name}",
        f"its values are {negative!r} and {positive!r}",
        reader_options={"label_key": label_name},
        values_used_by_default=DEFAULT_LABEL_NAMES,
    )
    _ask_if_score_is_reversed(inspection, score_name, is_favoured=label_facts.texts == positive)


def _record_input_kind(inspection: Inspection, facts: ColumnFacts) -> None:
    """Record whether the score of a class is a probability or a logit."""
    if "input" in inspection.options:
        return
    if facts.lies_in_unit_interval:
        inspection.add_finding(
            "input: probabilities",
            "every number lies in [0, 1]",
            reader_options={"input": "probabilities"},
        )
        return
    numbers = facts.finite_numbers
    has_logit_name = bool(_LOGIT_WORDS.intersection(split_words(facts.name)))
    if not has_logit_name and numbers.min() >= 0.0:
        raise AmbiguousFileError(
            f"{facts.name!r} lies between {numbers.min():g} and {numbers.max():g}, so it holds no"
            " probabilities. If the scores are percentages, divide them by 100. If they are"
            " log-odds, pass --input logits."
        )
    inspection.add_finding("input: logits", "some numbers lie outside [0, 1]")


def _ask_if_score_is_reversed(
    inspection: Inspection,
    score_name: str,
    *,
    is_favoured: NDArray[np.bool_],
    is_known: NDArray[np.bool_] | None = None,
) -> None:
    """Raise AmbiguousFileError if higher scores make the favoured outcome less likely.

    Parameters
    ----------
    inspection : Inspection
        Findings so far.
    score_name : str
        Name of the score column.
    is_favoured : array of bool of shape (n_rows,)
        Whether each row has the outcome that a higher score should make more likely.
    is_known : array of bool of shape (n_rows,), optional
        Whether the outcome of each row is known. By default all are.
    """
    scores = inspection.facts[score_name].numbers
    assert scores is not None
    is_usable_row = np.isfinite(scores)
    if is_known is not None:
        is_usable_row &= is_known
    has_direction_option = "higher_is" in inspection.options
    if is_usable_row.sum() < _MIN_DIRECTION_ROWS or has_direction_option:
        return
    if "positive" in inspection.options and inspection.options.get("label_key") is None:
        return
    area, standard_error = _compute_roc_area(scores[is_usable_row], is_favoured[is_usable_row])
    is_reversed = area + _N_STANDARD_ERRORS * standard_error < _AREA_OF_RANDOM_SCORE
    if not is_reversed:
        return
    is_score_of_class = (
        "labels" in inspection.column_of_role and "score_key" not in inspection.options
    )
    if is_score_of_class:
        assert inspection.negative_and_positive is not None
        negative, positive = inspection.negative_and_positive
        raise AmbiguousFileError(
            f"Rows of {positive!r} have a lower {score_name!r} than rows of {negative!r} (AUC"
            f" {area:.2f}). Name the class that a higher score favours with --positive"
            f" {negative!r}."
        )
    raise AmbiguousFileError(
        f"Correct predictions have a lower {score_name!r} than incorrect predictions (AUC"
        f" {area:.2f}). If a higher score means less confidence, pass --higher-is doubtful."
    )


def _compute_roc_area(scores: Float, is_favoured: NDArray[np.bool_]) -> tuple[float, float]:
    """Compute the area under the ROC curve, and the standard error for a random score.

    The area is the Mann-Whitney statistic divided by the number of pairs of a favoured row and
    another row. The standard error is that of independent scores without ties.
    """
    from scipy.stats import rankdata

    n_favoured = int(is_favoured.sum())
    n_others = len(scores) - n_favoured
    if n_favoured == 0 or n_others == 0:
        return _AREA_OF_RANDOM_SCORE, 0.0
    rank_sum = float(rankdata(scores)[is_favoured].sum())
    smallest_rank_sum = n_favoured * (n_favoured + 1) / 2.0
    area = (rank_sum - smallest_rank_sum) / (n_favoured * n_others)
    standard_error = float(np.sqrt((len(scores) + 1) / (12.0 * n_favoured * n_others)))
    return area, standard_error


def _ask_for_table_or_predictions(inspection: Inspection, label_name: str, score_name: str) -> None:
    """Ask for one score column per class or for a column of predictions."""
    for name, facts in inspection.facts.items():
        n_distinct = len(facts.distinct_texts)
        if name != label_name and not facts.is_number and 2 < n_distinct < inspection.n_rows / 2:
            raise AmbiguousFileError(
                "The file looks like a long table, with one row for each pair of an item and a"
                " class. Write one row for each item and one column for each class, for example"
                f" with pandas: pivot(index=..., columns={name!r}, values={score_name!r})."
            )
    n_labels = len(inspection.facts[label_name].distinct_texts)
    raise AmbiguousFileError(
        f"{label_name!r} has {n_labels} classes, but {score_name!r} is the only score. Add one"
        " score column for each class, or name the column of predictions with"
        " --prediction-key NAME."
    )
