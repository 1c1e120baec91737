"""Validation of columns of scores, correctness and losses.

A score may be missing: None, NaN, or an infinity, which cannot be compared with a threshold. Scores
may be written as text, such as "8/10" and "85%", or as verdicts ("pass"). Correctness may not be
missing. It is true or false, 1 or 0, or a verdict.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError, NumberError, ShapeError
from metacal.formulas import Flags
from metacal.rows.arrays import as_plain_array, find_first_true
from metacal.rows.labels import is_missing
from metacal.spelling import choose_spelling

#: Accepted spellings of true and false, lower case.
FLAG_OF_VERDICT: dict[str, bool] = {
    **dict.fromkeys(("true", "yes", "1", "pass", "passed", "right", "correct"), True),
    **dict.fromkeys(("false", "no", "0", "fail", "failed", "wrong", "incorrect"), False),
    # Databases and localised spreadsheets export these spellings.
    **dict.fromkeys(("y", "t", "ja", "wahr", "oui", "vrai", "si", "sí", "verdadero"), True),
    **dict.fromkeys(("n", "f", "nein", "falsch", "non", "faux", "falso"), False),
}
#: Accepted spellings of true and false, without the numbers 0 and 1.
_VERDICTS_IN_WORDS = FLAG_OF_VERDICT.keys() - {"0", "1"}
_REQUIRED_SPELLINGS = "true or false, 1 or 0, yes or no, pass or fail"
#: Largest number of characters of a value in a message.
_MAX_SHOWN_LENGTH = 60

#: Function from the index of a row to its name in messages.
RowNamer = Callable[[int], str]


def describe_row(row: int) -> str:
    """Return the name of a row in messages: its number from 0."""
    return f"row {row}"


def check_scores(
    values: Any, *, name: str = "score", get_row_name: RowNamer = describe_row
) -> NDArray[np.floating[Any]]:
    """Validate a column of scores.

    Parameters
    ----------
    values : array-like of shape (n,) or (n, 1)
        Numbers, texts such as "8/10", or missing values.

    name : str, default="score"
        Name of the column in messages.

    get_row_name : callable, default=describe_row
        Function that returns the name of a row in messages.

    Returns
    -------
    array of float of shape (n,)
        float32 and float16 keep their type, others become float64. NaN means that the row has no
        score.

    Raises
    ------
    InputError
        If a value is not a number.

    Examples
    --------
    >>> check_scores([0.5, None, float("inf"), 1])
    array([0.5, nan, nan, 1. ])
    >>> check_scores(["8/10", "85%", "fail", "0.5"])
    array([0.8 , 0.85, 0.  , 0.5 ])
    >>> check_scores(["high", "low"])
    Traceback (most recent call last):
    metacal.errors.NumberError: row 0: the score must be a number, but it is 'high'. Leave out ...
    """
    if np.ma.isMA(values):
        values = np.ma.filled(np.ma.asarray(values, dtype=object), np.nan)
    array = _flatten(values, name)
    are_objects_or_texts = array.dtype.kind in "OU"
    are_numbers = array.dtype.kind in "biuf"
    if are_objects_or_texts:
        numbers = [
            _parse_number(value, name, get_row_name(row))
            for row, value in enumerate(array.tolist())
        ]
        array = np.array(numbers, dtype=np.float64)
    elif not are_numbers:
        invalid_value = array[0] if len(array) else array.dtype
        raise _build_number_error(invalid_value, name, get_row_name(0))
    is_short_float = array.dtype in (np.float32, np.float16)
    scores = array.astype(array.dtype if is_short_float else np.float64)
    scores[~np.isfinite(scores)] = np.nan
    return scores


def check_correctness(
    values: Any, *, name: str = "correct", get_row_name: RowNamer = describe_row
) -> Flags:
    """Validate a column of correctness.

    Parameters
    ----------
    values : array-like of shape (n,) or (n, 1)
        Booleans, 0 and 1, or verdicts such as "yes".

    name : str, default="correct"
        Name of the column in messages.

    get_row_name : callable, default=describe_row
        Function that returns the name of a row in messages.

    Returns
    -------
    array of bool of shape (n,)

    Raises
    ------
    InputError
        If a value is missing or none of these.

    Examples
    --------
    >>> check_correctness([1, 0, 1]), check_correctness(["yes", "No"])
    (array([ True, False,  True]), array([ True, False]))
    >>> check_correctness([1, 0, 2])
    Traceback (most recent call last):
    metacal.errors.NumberError: row 2: correct must mark whether the row is correct, but it is ...
    """
    array = _flatten(values, name)
    if array.dtype.kind in "biuf" and bool(((array == 0) | (array == 1)).all()):
        return np.asarray(array == 1)
    flags = [
        _parse_flag(value, name, get_row_name(row)) for row, value in enumerate(array.tolist())
    ]
    return np.array(flags, dtype=np.bool_)


def find_missing_labels(values: NDArray[Any]) -> Flags:
    """Return whether each value of a column of labels is None, NaN or an empty text.

    >>> find_missing_labels(np.array([True, None, "no", " "], dtype=object))
    array([False,  True, False,  True])
    """
    if values.dtype.kind in "biu":
        return np.zeros(len(values), dtype=bool)
    if values.dtype.kind == "f":
        return np.asarray(np.isnan(values))
    return np.array(
        [is_missing(value) or str(value).strip() == "" for value in values.tolist()], dtype=bool
    )


def check_known_correctness(
    values: Any, *, name: str = "correct", get_row_name: RowNamer = describe_row
) -> tuple[Flags, Flags]:
    """Validate a column of correctness that may have missing entries.

    Parameters
    ----------
    values : array-like of shape (n,) or (n, 1)
        Booleans, 0 and 1, verdicts such as "yes", or missing values.

    name : str, default="correct"
        Name of the column in messages.

    get_row_name : callable, default=describe_row
        Function that returns the name of a row in messages.

    Returns
    -------
    is_correct, is_known : array of bool of shape (n,)
        Entries that are not known are not correct.

    Raises
    ------
    InputError
        If a value is neither missing nor one of these.

    Examples
    --------
    >>> check_known_correctness([1, None, "no"])
    (array([ True, False, False]), array([ True, False,  True]))
    """
    if np.ma.isMA(values):
        values = np.ma.filled(np.ma.asarray(values, dtype=object), None)
    array = _flatten(values, name)
    is_known = ~find_missing_labels(array)
    known_rows = np.flatnonzero(is_known)
    is_correct = np.zeros(len(array), dtype=np.bool_)

    def get_known_row_name(index: int) -> str:
        return get_row_name(int(known_rows[index]))

    is_correct[known_rows] = check_correctness(
        array[known_rows], name=name, get_row_name=get_known_row_name
    )
    return is_correct, is_known


def compare_answers(
    answers: Any, labels: Any, *, name: str = "label", get_row_name: RowNamer = describe_row
) -> Flags:
    """Compare answers with labels. An answer is correct if it equals the label.

    Parameters
    ----------
    answers, labels : array-like of shape (n,) or (n, 1)
        Numbers, booleans or texts. The number 1.0 equals the text "1", and spaces around a text are
        ignored.

    name : str, default="label"
        Name of the column of labels in messages.

    get_row_name : callable, default=describe_row
        Function that returns the name of a row in messages.

    Returns
    -------
    array of bool of shape (n,)
        A missing answer is incorrect.

    Raises
    ------
    InputError
        If a label is missing.

    Examples
    --------
    >>> compare_answers(["cat", "dog ", None], ["cat", "dog", "cat"])
    array([ True,  True, False])
    >>> compare_answers(["1", "0", "n/a"], [1.0, 1.0, 0.0])
    array([ True, False, False])
    """
    answer_texts = [_format_answer(value) for value in _flatten(answers, "answer").tolist()]
    label_texts = [_format_answer(value) for value in _flatten(labels, name).tolist()]
    if "" in label_texts:
        row_name = get_row_name(label_texts.index(""))
        raise NumberError(
            f"{row_name}: {name!r} is empty. Fill in the value, or leave out the row."
        )
    return np.array(
        [answer == label for answer, label in zip(answer_texts, label_texts, strict=True)],
        dtype=np.bool_,
    )


def _format_answer(value: Any) -> str:
    """Return an answer as text, with one spelling for each number and boolean."""
    if is_missing(value):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def check_losses(
    values: Any, *, name: str = "loss", get_row_name: RowNamer = describe_row
) -> NDArray[Any]:
    """Validate a column of losses from 0 (correct) to 1.

    Parameters
    ----------
    values : array-like of shape (n,) or (n, 1)
        Numbers, or texts such as "1/2".

    name : str, default="loss"
        Name of the column in messages.

    get_row_name : callable, default=describe_row
        Function that returns the name of a row in messages.

    Returns
    -------
    array of shape (n,)
        Integers stay integers, which means that there is no loss between 0 and 1. Other numbers
        become float64.

    Raises
    ------
    InputError
        If a loss is missing, a verdict, or outside of [0, 1].

    Examples
    --------
    >>> check_losses([0, 0.25, "1/2"]), check_losses([0, 1])
    (array([0.  , 0.25, 0.5 ]), array([0, 1]))
    >>> check_losses([0.5, 3])
    Traceback (most recent call last):
    metacal.errors.NumberError: row 1: the loss must lie between 0 and 1, but it is 3.0. Divide ...
    >>> check_losses([True, False])
    Traceback (most recent call last):
    metacal.errors.NumberError: row 0: the loss must be a number, but it is True. Write 0 for a ...
    """
    array = _flatten(values, name)
    _raise_if_verdict(array, name, get_row_name)
    losses = check_scores(array, name=name, get_row_name=get_row_name).astype(np.float64)
    invalid_row = find_first_true(~((losses >= 0.0) & (losses <= 1.0)))
    if invalid_row is None:
        are_integers = array.dtype.kind != "f" and all(
            isinstance(value, int) for value in array.tolist()
        )
        return losses.astype(np.intp) if are_integers else losses
    row_name = get_row_name(invalid_row)
    if np.isnan(losses[invalid_row]):
        raise NumberError(
            f"{row_name}: the {name} is missing. Fill in the value, or leave out the row."
        )
    value = array.tolist()[invalid_row]
    raise NumberError(
        f"{row_name}: the {name} must lie between 0 and 1, but it is {value!r}. Divide all losses"
        " by their largest possible value."
    )


def check_known_losses(
    values: Any, *, name: str = "loss", get_row_name: RowNamer = describe_row
) -> tuple[NDArray[Any], Flags]:
    """Validate a column of losses that may have missing entries.

    Parameters
    ----------
    values, name, get_row_name
        See `check_losses`.

    Returns
    -------
    losses : array of shape (n,)
        Losses that are not known are 1.
    is_known : array of bool of shape (n,)

    Raises
    ------
    InputError
        If a known loss is a verdict, or outside of [0, 1].

    Examples
    --------
    >>> check_known_losses([0.5, None])
    (array([0.5, 1. ]), array([ True, False]))
    """
    array = _flatten(values, name)
    is_known = ~find_missing_labels(array)
    known_rows = np.flatnonzero(is_known)
    known_losses = check_losses(
        array[known_rows],
        name=name,
        get_row_name=lambda index: get_row_name(int(known_rows[index])),
    )
    losses = np.ones(len(array), dtype=known_losses.dtype)
    losses[known_rows] = known_losses
    return losses, is_known


def _raise_if_verdict(array: NDArray[Any], name: str, get_row_name: RowNamer) -> None:
    """Raise InputError if a loss is a boolean or a verdict in words.

    A verdict "pass" would be read as 1, but stands for the loss 0.
    """
    if array.dtype.kind not in "bOU":
        return
    for row, value in enumerate(array.tolist()):
        is_verdict = isinstance(value, str) and value.strip().lower() in _VERDICTS_IN_WORDS
        if isinstance(value, bool) or is_verdict:
            raise NumberError(
                f"{get_row_name(row)}: the {name} must be a number, but it is {value!r}. Write 0"
                " for a correct row and 1 for an incorrect row."
            )


def check_scores_and_correctness(
    score: Any, correct: Any
) -> tuple[NDArray[np.floating[Any]], Flags]:
    """Validate a column of scores and a column of correctness of the same rows.

    Examples
    --------
    >>> check_scores_and_correctness([0.5, None], ["yes"])
    Traceback (most recent call last):
    metacal.errors.ShapeError: score and correct must have the same length, but got 2 and 1 entries.
    """
    scores = check_scores(score)
    is_correct = check_correctness(correct)
    if scores.shape != is_correct.shape:
        raise ShapeError(
            f"score and correct must have the same length, but got {len(scores)} and"
            f" {len(is_correct)} entries."
        )
    return scores, is_correct


def _flatten(values: Any, name: str) -> NDArray[Any]:
    """Convert values of shape (n,) or (n, 1) to a flat array."""
    array = as_plain_array(values, name)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise ShapeError(
            f"{name} must have one entry per row, but got an array of shape {array.shape}. For a"
            " table with one column per class, use"
            f" {choose_spelling('MetaCal', 'metacal fit without --score-key')}."
        )
    return array


def _parse_number(value: Any, name: str, row_name: str) -> float:
    """Parse a number or a mark as a float, and a missing value as NaN."""
    is_number = isinstance(value, int | float | np.integer | np.floating)
    if is_number or type(value).__name__ == "Decimal":
        try:
            return float(value)
        except OverflowError:
            return np.inf
    if isinstance(value, str):
        score = parse_score_text(value)
        if score is not None:
            return score
    elif is_missing(value):
        return np.nan
    raise _build_number_error(value, name, row_name)


def parse_score_text(text: str) -> float | None:
    """Parse a number, fraction ("8/10"), percentage or verdict, else return None."""
    text = text.strip().lower()
    if text in FLAG_OF_VERDICT:
        return float(FLAG_OF_VERDICT[text])
    is_percentage = text.endswith("%")
    numerator, slash, denominator = text.removesuffix("%").partition("/")
    # Python accepts underscores in numbers.
    if "_" in text or (slash and is_percentage):
        return None
    try:
        if slash:
            return float(numerator) / float(denominator)
        return float(numerator) / (100.0 if is_percentage else 1.0)
    except (ValueError, ZeroDivisionError):
        return None


def _build_number_error(value: Any, name: str, row_name: str) -> InputError:
    """Build the error about a score that is not a number."""
    plain_value = value.item() if isinstance(value, np.generic) else value
    return NumberError(
        f"{row_name}: the {name} must be a number, but it is"
        f" {repr(plain_value)[:_MAX_SHOWN_LENGTH]}. Leave out rows without a number."
    )


def _parse_flag(value: Any, name: str, row_name: str) -> bool:
    """Return a value as a boolean; raise InputError if it is missing or not a flag."""
    flag = None
    if isinstance(value, str | bool | int):
        flag = FLAG_OF_VERDICT.get(str(value).strip().lower())
    elif isinstance(value, float) and value in (0.0, 1.0):
        flag = value == 1.0
    if flag is not None:
        return flag
    if is_missing(value) or (isinstance(value, str) and not value.strip()):
        raise NumberError(
            f"{row_name}: {name} is missing. Mark whether the row is correct, or leave out the row."
        )
    raise NumberError(
        f"{row_name}: {name} must mark whether the row is correct, but it is"
        f" {repr(value)[:_MAX_SHOWN_LENGTH]}. Write {_REQUIRED_SPELLINGS}."
    )
