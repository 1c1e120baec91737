"""Two columns that a caller gives, a score for each row and whether it is right: the only place
that coerces them.

A score may be missing: None, NaN, or an infinity, which no threshold can be compared with in
earnest. Judges write marks as text, "8/10", "85%", and verdicts as words: both are read. Whether a
row is right may not be missing: it is true or false, 1 or 0, or a verdict in words, and nothing
else is guessed at.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError, spelled
from metacal.formulas import Flags
from metacal.rows.arrays import first_row, plain_array
from metacal.rows.labels import is_missing

#: How right and wrong are written, in any case.
WORDS: dict[str, bool] = {
    **dict.fromkeys(("true", "yes", "1", "pass", "passed", "right", "correct"), True),
    **dict.fromkeys(("false", "no", "0", "fail", "failed", "wrong", "incorrect"), False),
}
_WANTED = "true or false, 1 or 0, yes or no, pass or fail"

#: What a message calls a row.
Place = Callable[[int], str]


def numbered(row: int) -> str:
    """A row by its number, from 0."""
    return f"row {row}"


def score_column(
    values: Any, *, name: str = "score", place: Place = numbered
) -> NDArray[np.floating[Any]]:
    """One float per row; NaN where there is no finite number, which means that the row has no
    score.

    float32 and float16 stay what they are, everything else becomes float64.

    Examples
    --------
    >>> score_column([0.5, None, float("inf"), 1])
    array([0.5, nan, nan, 1. ])
    >>> score_column(["8/10", "85%", "fail", "0.5"])
    array([0.8 , 0.85, 0.  , 0.5 ])
    >>> score_column(["high", "low"])
    Traceback (most recent call last):
    metacal.errors.InputError: row 0: the score is 'high', which is no number; give numbers, and leave out ...
    """
    array = _flat(
        np.ma.filled(np.ma.asarray(values, dtype=object), np.nan) if np.ma.isMA(values) else values,
        name,
    )
    if array.dtype.kind in "OU":
        array = np.array(
            [_number(value, name, place(row)) for row, value in enumerate(array.tolist())],
            dtype=np.float64,
        )
    elif array.dtype.kind not in "biuf":
        raise _no_number(array[0] if len(array) else array.dtype, name, place(0))
    numbers = array.astype(array.dtype if array.dtype in (np.float32, np.float16) else np.float64)
    numbers[~np.isfinite(numbers)] = np.nan
    return numbers


def correct_column(values: Any, *, name: str = "correct", place: Place = numbered) -> Flags:
    """One boolean per row: whether it is right.

    Examples
    --------
    >>> correct_column([1, 0, 1]), correct_column(["yes", "No"])
    (array([ True, False,  True]), array([ True, False]))
    >>> correct_column([1, 0, 2])
    Traceback (most recent call last):
    metacal.errors.InputError: row 2: correct is 2; it must say right or wrong, as true or false, 1 or 0, yes or no, ...
    """
    array = _flat(values, name)
    if array.dtype.kind in "biuf" and bool(((array == 0) | (array == 1)).all()):
        return np.asarray(array == 1)
    return np.array(
        [_flag(value, name, place(row)) for row, value in enumerate(array.tolist())], dtype=np.bool_
    )


def loss_column(values: Any, *, name: str = "loss", place: Place = numbered) -> NDArray[Any]:
    """One number from 0, all right, to 1 per row: its loss. Of integers it stays integers: there is
    nothing between.

    Examples
    --------
    >>> loss_column([0, 0.25, "1/2"]), loss_column([0, 1])
    (array([0.  , 0.25, 0.5 ]), array([0, 1]))
    >>> loss_column([0.5, 3])
    Traceback (most recent call last):
    metacal.errors.InputError: row 1: the loss is 3.0; a loss lies between 0 and 1: divide by the most that one can be.
    >>> loss_column([True, False])
    Traceback (most recent call last):
    metacal.errors.InputError: row 0: the loss is True; give a number, 0 for a right row and 1 for a wrong one.
    """
    array = _flat(values, name)
    for row, value in enumerate(array.tolist() if array.dtype.kind in "bOU" else ()):
        if isinstance(value, bool) or (
            isinstance(value, str) and value.strip().lower() in WORDS.keys() - {"0", "1"}
        ):
            raise InputError(
                f"{place(row)}: the {name} is {value!r}; give a number, 0 for a right row and 1 for"
                " a wrong one."
            )
    losses = score_column(array, name=name, place=place).astype(np.float64)
    wrong = first_row(~((losses >= 0.0) & (losses <= 1.0)))
    if wrong is None:
        whole = array.dtype.kind != "f" and all(isinstance(value, int) for value in array.tolist())
        return losses.astype(np.intp) if whole else losses
    where, value = place(wrong), array.tolist()[wrong]
    if np.isnan(losses[wrong]):
        raise InputError(
            f"{where}: the {name} is missing; nobody knows how bad the row is, so leave it out."
        )
    raise InputError(
        f"{where}: the {name} is {value!r}; a loss lies between 0 and 1: divide by the most that"
        " one can be."
    )


def model_flags(values: Any, n_rows: int, name: str) -> tuple[Flags, Flags]:
    """Read a flag for each row and model of a cascade.

    Parameters
    ----------
    values : array of shape (n, m), (m, n) or (n,)
        True or false, 1 or 0, "yes" or "no". A row that lacks every entry is unknown.
    n_rows : int
    name : str
        What messages call the flags: "agrees" or "correct".

    Returns
    -------
    flags, known : boolean arrays of shape (n, m) and (n,)

    Examples
    --------
    >>> model_flags([[True, None, False]], 3, "agrees")[1]
    array([ True, False,  True])
    """
    table = np.array(values, dtype=object)
    table = (
        table[:, None]
        if table.ndim == 1
        else table.T
        if table.shape[0] != n_rows == table.shape[1]
        else table
    )
    if table.ndim != 2 or len(table) != n_rows:
        raise InputError(
            f"{name} must have an entry for each of {n_rows} rows and each model; got"
            f" {table.shape}."
        )
    known = np.array([not all(map(is_missing, row)) for row in table])
    flags, rows = np.zeros(table.shape, dtype=bool), np.flatnonzero(known)
    for j, column in enumerate(table.T):
        flags[rows, j] = correct_column(
            column[rows], name=name, place=lambda row: f"row {rows[row]}"
        )
    return flags, known


def score_and_correct(score: Any, correct: Any) -> tuple[NDArray[np.floating[Any]], Flags]:
    """Both columns, of the same rows.

    Examples
    --------
    >>> score_and_correct([0.5, None], ["yes"])
    Traceback (most recent call last):
    metacal.errors.InputError: there are 2 scores but 1 entries of correct; give one each per row.
    """
    scores, right = score_column(score), correct_column(correct)
    if scores.shape != right.shape:
        raise InputError(
            f"there are {len(scores)} scores but {len(right)} entries of correct; give one each per"
            " row."
        )
    return scores, right


def _flat(values: Any, name: str) -> NDArray[Any]:
    array = plain_array(values, name)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise InputError(
            f"{name} must have one entry per row; got shape {array.shape}. A table with a column"
            f" per class is for {spelled('MetaCal', 'metacal fit without --score-key')}."
        )
    return array


def _number(value: Any, name: str, where: str) -> float:
    if (
        isinstance(value, int | float | np.integer | np.floating)
        or type(value).__name__ == "Decimal"
    ):
        try:
            return float(value)
        except OverflowError:
            return np.inf
    mark = mark_of(value) if isinstance(value, str) else np.nan if is_missing(value) else None
    if mark is None:
        raise _no_number(value, name, where)
    return mark


def mark_of(text: str) -> float | None:
    """A mark as a judge writes it: a number, one of so many ("8/10"), a percentage, a verdict;
    None: it is none.
    """
    text = text.strip().lower()
    if text in WORDS:
        return float(WORDS[text])
    mark, slash, most = text.removesuffix("%").partition("/")
    if "_" in text or (slash and text.endswith("%")):
        return None
    try:
        return float(mark) / (float(most) if slash else 100.0 if text.endswith("%") else 1.0)
    except (ValueError, ZeroDivisionError):
        return None


def _no_number(value: Any, name: str, where: str) -> InputError:
    shown = repr(value.item() if isinstance(value, np.generic) else value)
    return InputError(
        f"{where}: the {name} is {shown[:60]}, which is no number; give numbers, and leave out what"
        " has none."
    )


def _flag(value: Any, name: str, where: str) -> bool:
    known = WORDS.get(str(value).strip().lower()) if isinstance(value, str | bool | int) else None
    if known is None and isinstance(value, float) and value in (0.0, 1.0):
        known = value == 1.0
    if known is not None:
        return known
    if is_missing(value) or (isinstance(value, str) and not value.strip()):
        raise InputError(
            f"{where}: {name} is missing; nobody knows whether the row is right, so label it or"
            " leave it out."
        )
    raise InputError(
        f"{where}: {name} is {repr(value)[:60]}; it must say right or wrong, as {_WANTED}."
    )


def is_table(score: Any) -> bool:
    """Whether scores are a table, with a column for each label."""
    return np.ndim(score) == 2 and np.shape(score)[1] > 1


def entries(score: Any, labels: Any = None) -> tuple[NDArray[Any], NDArray[Any]]:
    """A table of scores as one column, and the label of each of its entries: what the watch takes.

    Examples
    --------
    >>> entries([[0.9, 0.2], [0.4, 0.8]], ["name", "date"])
    (array([0.9, 0.2, 0.4, 0.8]), array(['name', 'date', 'name', 'date'], dtype='<U4'))
    """
    table = np.asarray(score)
    names = np.arange(table.shape[1]) if labels is None else np.asarray(labels)
    if names.shape != (table.shape[1],):
        raise InputError(f"groups must name the {table.shape[1]} labels; got shape {names.shape}.")
    return table.reshape(-1), np.tile(names, len(table))
