"""The two columns most calibration metrics need: how sure the top class is, and whether it is
right.

A probability table is validated and reduced in one blocked sweep: read as unsigned integers, the
floats of [0, 1] keep their order while negative numbers and NaN come out larger than 1.0, so one
integer maximum per row gives the confidence and the range check together.

Arguments in the wrong order are told apart by shape and type, and named in the error: (labels,
proba) is a flat array of classes before a table, and (correct, confidence) is yes and no before
fractions; nothing else looks like that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from metacal.errors import InputError
from metacal.formulas import Array, Codes, Flags, Float
from metacal.rows import validate
from metacal.rows.arrays import plain_array

#: Elements per block: the block stays in the cache between the maximum and the sum.
_BLOCK_ELEMENTS = 1 << 17

#: Row sums this close to one pass without a second look; anything else is put before `validate`.
_QUICK_SUM_TOLERANCE = {2: 2e-3, 4: 5e-5, 8: 5e-5}

#: Two classes cannot both hold more than half (plus what the sum tolerance lends them).
_TIES_POSSIBLE_BELOW = 0.51


#: What helps where a table is none of probabilities.
_ADVICE = (
    "Metrics take probabilities: of logits, pass their softmax, scipy.special.softmax(logits,"
    " axis=1), or what a calibrator makes of them, metacal.TemperatureScaling().fit(logits,"
    " labels).predict_proba(new_logits); rows that are not normalised, divided by their sums."
)


@dataclass(frozen=True, eq=False)
class TopLabel:
    """Confidence and correctness of the top class, one entry per row; unpacks as ``confidence,
    correct``.

    Attributes
    ----------
    confidence : float64 array
        The largest probability of the row.
    correct : float64 array
        1 if the true class holds it alone, 0 if it does not hold it, 1/m if it shares it with m - 1
        others.
    """

    confidence: Float
    correct: Float

    def __iter__(self) -> Iterator[Float]:
        return iter((self.confidence, self.correct))

    def __len__(self) -> int:
        return len(self.confidence)


@dataclass(frozen=True, eq=False)
class CheckedTable:
    """A validated probability table, or some of its rows, with the labels as column numbers and the
    row maxima.

    Attributes
    ----------
    whole : array
        The table as it came; never copied.
    codes, top : arrays
        The true column and the largest probability of each row that counts.
    keep : boolean array or None
        Which rows of `whole` count; all when None.
    """

    whole: Array
    codes: Codes
    top: Array
    keep: Flags | None = None

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def n_classes(self) -> int:
        """Columns."""
        return int(self.whole.shape[1])

    @property
    def table(self) -> Array:
        """The rows that count as one table: a copy where only some do; `blocks` needs less
        memory.
        """
        return self.whole if self.keep is None else self.whole[self.keep]

    def subset(self, keep: Flags) -> CheckedTable:
        """Some rows of a whole table, which is not copied."""
        return (
            self if keep.all() else CheckedTable(self.whole, self.codes[keep], self.top[keep], keep)
        )

    def rows(self, start: int, stop: int) -> Array:
        """Rows `start` to `stop` of those that count; the same blocks, to the bit, as of a copy of
        them.
        """
        return self.whole[start:stop] if self.keep is None else self.whole[self._places[start:stop]]

    def blocks(self) -> Iterator[tuple[int, Array]]:
        """Yield blocks of the rows that count, each with the number of its first row."""
        step = max(1, _BLOCK_ELEMENTS // self.n_classes)
        for start in range(0, len(self), step):
            yield start, self.rows(start, start + step)

    @property
    def true_probability(self) -> Float:
        """Probability given to the true class of each row."""
        return self._at_label.astype(np.float64)

    def top_label(self) -> TopLabel:
        """Return the confidence and correctness columns; ties of the top probability share one
        count.
        """
        holds = self._at_label == self.top
        correct = holds.astype(np.float64)
        doubtful = np.flatnonzero(holds & (self.top <= self.top.dtype.type(_TIES_POSSIBLE_BELOW)))
        step = max(1, _BLOCK_ELEMENTS // self.n_classes)
        for start in range(0, len(doubtful), step):
            rows = doubtful[start : start + step]
            equal = self.whole[self._places[rows]] == self.top[rows, None]
            # One equal entry per row is the top itself: counting the block at once mostly settles
            # it.
            if np.count_nonzero(equal) > len(rows):
                correct[rows] /= equal.sum(axis=1)
        return TopLabel(np.minimum(self.top.astype(np.float64), 1.0), correct)

    @cached_property
    def _at_label(self) -> Array:
        return self.whole[self._places, self.codes]

    @cached_property
    def _places(self) -> Codes:
        """Where in the whole table each row is."""
        return np.arange(len(self.whole)) if self.keep is None else np.flatnonzero(self.keep)


def top_label(
    proba: ArrayLike, labels: ArrayLike, *, classes: Sequence[Any] | None = None
) -> TopLabel:
    """Confidence of the top class and whether it is the true one.

    A row whose top probability is tied among m classes counts 1/m if the true class is among them
    and 0 otherwise: the expectation under random tie breaking. A uniform row (what a rejected row
    looks like) therefore counts 1/K.

    Parameters
    ----------
    proba : array of shape (n, K)
        Probabilities; float16, float32 and float64 are read in place.
    labels : array of shape (n,)
        The true classes: column numbers, or names when `classes` lists the names in column order.
    classes : sequence, optional
        The class of each column.

    Examples
    --------
    >>> top = top_label([[0.75, 0.25], [0.5, 0.5]], [0, 1])
    >>> top.confidence, top.correct
    (array([0.75, 0.5 ]), array([1. , 0.5]))
    """
    return checked_table(proba, labels, classes=classes).top_label()


def checked_table(
    proba: ArrayLike, labels: ArrayLike, *, classes: Sequence[Any] | None = None
) -> CheckedTable:
    """Validate a probability table and its labels, keeping the row maxima found on the way."""
    refuse_labels_first(proba, labels)
    table: Any = proba
    top = _quick_maxima(proba) if type(proba) in (np.ndarray, np.memmap) else None
    if top is None:
        # Anything out of the ordinary, P(positive) alone too: the full checks raise with the right
        # words, or accept.
        given = (
            validate.two_columns(proba, "probabilities") if validate.is_one_score(proba) else proba
        )
        table = validate.probability_table(given, advice=_ADVICE)
        top = table.max(axis=1)
    own = validate.two_classes(labels) if classes is None and table.shape[1] == 2 else classes
    names = validate.class_list(own, table.shape[1])
    return CheckedTable(table, validate.label_codes(labels, len(table), names), top)


def top_columns(
    proba: ArrayLike, labels: ArrayLike, *, classes: Sequence[Any] | None = None
) -> TopLabel:
    """Confidence and correctness, from a table and its labels or as two flat columns that are there
    already.

    Examples
    --------
    >>> top_columns([[0.75, 0.25], [0.5, 0.5]], [0, 1]).confidence, top_columns([0.75, 0.5], [1, 0.5]).correct
    (array([0.75, 0.5 ]), array([1. , 0.5]))
    >>> top_columns([0.5, 2.0], [1, 0])
    Traceback (most recent call last):
    metacal.errors.InputError: confidence must lie in [0, 1]; row 1 holds 2.0. ...
    """
    if len(shape_of(proba)) != 1:
        return top_label(proba, labels, classes=classes)
    refuse_labels_first(proba, labels)
    if classes is not None:
        raise InputError(
            "classes name the columns of a table; two flat columns, confidence and correct, have"
            " none."
        )
    columns = {
        "confidence": number_column(proba, "confidence"),
        "correct": number_column(labels, "correct"),
    }
    refuse_correct_first(np.asarray(proba), np.asarray(labels), "confidence")
    same_length(**columns)
    for name, column in columns.items():
        advice = "Get both columns from a probability table by top_label(proba, labels)."
        refuse_where((column < 0.0) | (column > 1.0), column, f"{name} must lie in [0, 1]", advice)
    return TopLabel(**columns)


def number_column(values: ArrayLike, name: str) -> Float:
    """Return `values` as a float64 column of at least one row, without NaN."""
    array = plain_array(values, name)
    if array.ndim != 1 or array.dtype.kind not in "biuf" or not len(array):
        raise InputError(
            f"{name} must be a flat array of numbers, one per row and at least one row; "
            f"got type {array.dtype} of shape {array.shape}."
        )
    column = array.astype(np.float64)
    missing = np.isnan(column)
    if missing.any():
        raise InputError(
            f"{name} must not hold NaN; row {int(missing.argmax())} does. Drop such rows first."
        )
    return column


def same_length(**columns: Array) -> None:
    """Raise unless all columns have the same number of rows."""
    if len({len(column) for column in columns.values()}) > 1:
        came = ", ".join(f"{name} has {len(column)}" for name, column in columns.items())
        raise InputError(f"all columns need the same number of rows; {came}.")


def refuse_labels_first(proba: ArrayLike, labels: ArrayLike) -> None:
    """Raise when a flat array of classes comes before a table.

    Examples
    --------
    >>> refuse_labels_first([0, 1], [[0.9, 0.1], [0.2, 0.8]])
    Traceback (most recent call last):
    metacal.errors.InputError: proba and labels are the other way round: the first argument has shape (2,) and the ...
    """
    first, second = shape_of(proba), shape_of(labels)
    if len(second) == 2 and len(first) == 1:
        raise InputError(
            f"proba and labels are the other way round: the first argument has shape {first} and"
            f" the second {second}. Metrics take (proba, labels): the table of probabilities first,"
            " then the true classes."
        )


def shape_of(values: ArrayLike) -> tuple[int, ...]:
    """The shape of what may be no array at all: who reads it next says what is wrong with it."""
    try:
        return np.shape(values)
    except Exception:
        return ()


def refuse_correct_first(values: Array, correct: Array, name: str) -> None:
    """Raise when whole 0/1 numbers or booleans come first and fractions where they should be.

    Examples
    --------
    >>> refuse_correct_first(np.array([1, 0]), np.array([0.9, 0.3]), "confidence")
    Traceback (most recent call last):
    metacal.errors.InputError: confidence and correct are the other way round: the first argument holds only 0 and 1 ...
    """
    yes_or_no = values.dtype.kind in "biu" and bool(np.isin(values, (0, 1)).all())
    if yes_or_no and correct.dtype.kind == "f" and not np.isin(correct, (0.0, 1.0)).all():
        row = int((~np.isin(correct, (0.0, 1.0))).argmax())
        raise InputError(
            f"{name} and correct are the other way round: the first argument holds only 0 and 1"
            f" (whole numbers), the second fractions (row {row}: {correct[row]}). The order is"
            f" ({name}, correct)."
        )


def _quick_maxima(table: Any) -> Array | None:
    """Row maxima if the array can be read in place and every row is plainly a probability vector,
    else None.
    """
    size = table.dtype.itemsize
    plain = table.dtype.kind == "f" and size <= 8 and table.dtype.isnative
    if not plain or table.ndim != 2 or not len(table) or table.shape[1] < 2:
        return None
    unsigned = np.dtype(f"u{size}")
    bits = table.view(unsigned)
    one = np.ones(1, table.dtype).view(unsigned)[0]
    ones = np.ones(table.shape[1], table.dtype)
    top = np.empty(len(table), unsigned)
    step = max(1, _BLOCK_ELEMENTS // table.shape[1])
    for start in range(0, len(table), step):
        block, tops = table[start : start + step], top[start : start + step]
        bits[start : start + step].max(axis=1, out=tops)
        if tops.max() > one:
            return None
        sums = block.sum(axis=1, dtype=np.float32) if size == 2 else block @ ones
        if np.abs(sums - 1).max() > _QUICK_SUM_TOLERANCE[size]:
            return None
    return top.view(table.dtype)


def bool_column(values: ArrayLike, name: str) -> Flags:
    """Return `values` as a boolean column; numbers must be 0 or 1.

    Examples
    --------
    >>> bool_column([1, 0], "accept")
    array([ True, False])
    >>> bool_column([0.5], "correct")
    Traceback (most recent call last):
    metacal.errors.InputError: correct must be True or False in each row; row 0 holds 0.5. ...
    """
    column = number_column(values, name)
    advice = "For correctness that is logits.argmax(axis=1) == labels."
    refuse_where(
        (column != 0.0) & (column != 1.0),
        column,
        f"{name} must be True or False in each row",
        advice,
    )
    return np.asarray(column == 1.0, dtype=np.bool_)


def refuse_where(bad: Flags, column: Float, must: str, advice: str) -> None:
    """Raise where some row is bad, with the first of them."""
    if bad.any():
        row = int(bad.argmax())
        raise InputError(f"{must}; row {row} holds {column[row]}. {advice}")
