"""Validation of probability tables, and confidence and correctness of their rows.

Terms used in this module:

- *confidence*: the largest probability of a row.
- *top class*: the class with the largest probability, which is the prediction.
- *correctness*: 1 if the top class is the true class and 0 if not. If m classes share the largest
  probability, correctness is 1/m if the true class is one of them.

A table is validated and reduced in one pass over blocks of rows. Read as unsigned integers, the
floats in [0, 1] keep their order, while negative numbers and NaN become larger than 1.0. One integer
maximum per row therefore gives the confidence and checks the range.

Arguments in the wrong order are recognised by their shape and type. (labels, proba) is a flat
array before a table, and (correct, confidence) is an array of 0 and 1 before an array of fractions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from metacal.errors import CombinationError, NumberError, ShapeError
from metacal.formulas import Array, Codes, Flags, Float
from metacal.rows import validate
from metacal.rows.arrays import as_plain_array

#: Number of elements per block of rows, which stays in the cache between its maxima and its sums.
_BLOCK_ELEMENTS = 1 << 17

#: Largest distance of a row sum from 1 that passes the fast check, by the bytes of one number.
_FAST_SUM_TOLERANCE = {2: 2e-3, 4: 5e-5, 8: 5e-5}

#: Largest probability that two classes can share: one half plus the tolerance of the row sum.
_MAX_TIED_CONFIDENCE = 0.51

#: Advice in the error about a table that does not hold probabilities.
_ADVICE = (
    "Metrics take probabilities: of logits, pass their softmax, scipy.special.softmax(logits,"
    " axis=1), or what a calibrator makes of them, metacal.TemperatureScaling().fit(logits,"
    " labels).predict_proba(new_logits); rows that are not normalised, divided by their sums."
)


@dataclass(frozen=True, eq=False)
class TopLabel:
    """Confidence and correctness of the top class of each row.

    It unpacks as ``confidence, correct``.

    Attributes
    ----------
    confidence : array of float64 of shape (n_rows,)
        Largest probability of each row.

    correct : array of float64 of shape (n_rows,)
        1 if only the true class has the largest probability, 1/m if the true class shares it with
        m - 1 other classes, and 0 otherwise.
    """

    confidence: Float
    correct: Float

    def __iter__(self) -> Iterator[Float]:
        return iter((self.confidence, self.correct))

    def __len__(self) -> int:
        return len(self.confidence)


@dataclass(frozen=True, eq=False)
class CheckedTable:
    """Validated probability table or subset of one, with labels and row maxima.

    Attributes
    ----------
    full_table : array of shape (n_all_rows, n_classes)
        The table that the caller passed. It is never copied.

    label_codes : array of int of shape (n_rows,)
        Column of the true class of each row of the subset.

    row_maxima : array of shape (n_rows,)
        Largest probability of each row of the subset.

    row_mask : array of bool of shape (n_all_rows,), default=None
        Mask of the rows of `full_table` in the subset. None stands for all rows.
    """

    full_table: Array
    label_codes: Codes
    row_maxima: Array
    row_mask: Flags | None = None

    def __len__(self) -> int:
        return len(self.label_codes)

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return int(self.full_table.shape[1])

    @property
    def table(self) -> Array:
        """Rows of the subset as one table. A proper subset is copied."""
        if self.row_mask is None:
            return self.full_table
        return self.full_table[self.row_mask]

    def subset(self, is_selected: Flags) -> CheckedTable:
        """Select rows by a mask, without a copy of the table."""
        if is_selected.all():
            return self
        mask_of_full_table = is_selected
        if self.row_mask is not None:
            mask_of_full_table = self.row_mask.copy()
            mask_of_full_table[self.row_mask] = is_selected
        return CheckedTable(
            full_table=self.full_table,
            label_codes=self.label_codes[is_selected],
            row_maxima=self.row_maxima[is_selected],
            row_mask=mask_of_full_table,
        )

    def rows(self, start: int, stop: int) -> Array:
        """Return the probabilities of the rows from `start` to `stop` - 1 of the subset."""
        if self.row_mask is None:
            return self.full_table[start:stop]
        return self.full_table[self._row_indices[start:stop]]

    def blocks(self) -> Iterator[tuple[int, Array]]:
        """Yield consecutive blocks of rows, each with the index of its first row."""
        block_rows = max(1, _BLOCK_ELEMENTS // self.n_classes)
        for start in range(0, len(self), block_rows):
            yield start, self.rows(start, start + block_rows)

    @property
    def true_probability(self) -> Float:
        """Probability of the true class of each row."""
        return self._label_probability.astype(np.float64)

    def top_label(self) -> TopLabel:
        """Compute the confidence and the correctness of each row."""
        label_is_top = self._label_probability == self.row_maxima
        correct = label_is_top.astype(np.float64)
        max_tied_confidence = self.row_maxima.dtype.type(_MAX_TIED_CONFIDENCE)
        may_be_tied = label_is_top & (self.row_maxima <= max_tied_confidence)
        possibly_tied_rows = np.flatnonzero(may_be_tied)
        n_block_rows = max(1, _BLOCK_ELEMENTS // self.n_classes)
        for start in range(0, len(possibly_tied_rows), n_block_rows):
            block_rows = possibly_tied_rows[start : start + n_block_rows]
            block = self.full_table[self._row_indices[block_rows]]
            is_top_class = block == self.row_maxima[block_rows, None]
            # In most blocks no row has a tie, so each row has exactly one top class.
            if np.count_nonzero(is_top_class) > len(block_rows):
                n_top_classes = is_top_class.sum(axis=1)
                correct[block_rows] /= n_top_classes
        # A row sum within tolerance of 1 allows a probability slightly above 1.
        confidence = np.minimum(self.row_maxima.astype(np.float64), 1.0)
        return TopLabel(confidence, correct)

    @cached_property
    def _label_probability(self) -> Array:
        """Probability of the true class of each row, in the type of the table."""
        return self.full_table[self._row_indices, self.label_codes]

    @cached_property
    def _row_indices(self) -> Codes:
        """Index in `full_table` of each row of the subset."""
        if self.row_mask is None:
            return np.arange(len(self.full_table))
        return np.flatnonzero(self.row_mask)


def top_label(
    proba: ArrayLike, labels: ArrayLike, *, classes: Sequence[Any] | None = None
) -> TopLabel:
    """Compute the confidence of each row and whether its top class is the true class.

    A row whose largest probability is tied among m classes counts 1/m if the true class is one of
    them and 0 otherwise. This is the expectation under random tie breaking. A uniform row (the
    output for a rejected row) therefore counts 1/K.

    Parameters
    ----------
    proba : array of shape (n, K)
        Probabilities. float16, float32 and float64 are read without a copy.

    labels : array of shape (n,)
        True classes, as column numbers or as names in `classes`.

    classes : sequence, default=None
        Class of each column.

    Returns
    -------
    TopLabel

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
    """Validate a probability table and its labels, and find the largest probabilities.

    Parameters
    ----------
    proba, labels, classes
        As in `top_label`. For two classes, `proba` may also be the probability of the positive
        class alone.

    Returns
    -------
    CheckedTable

    Raises
    ------
    InputError
        If the table does not hold probabilities, or the labels do not fit its columns.
    """
    raise_if_labels_come_first(proba, labels)
    table: Any = proba
    row_maxima = None
    if type(proba) in (np.ndarray, np.memmap):
        row_maxima = _compute_maxima_if_valid(proba)
    if row_maxima is None:
        # The full validation handles other forms of input, and raises specific errors.
        if validate.has_one_score_per_row(proba):
            proba = validate.scores_to_two_columns(proba, "probabilities")
        table = validate.check_probabilities(proba, advice=_ADVICE)
        row_maxima = table.max(axis=1)
    n_classes = table.shape[1]
    column_classes: Any = classes
    if classes is None and n_classes == 2:
        column_classes = validate.find_two_classes(labels)
    class_names = validate.check_classes(column_classes, n_classes)
    label_codes = validate.encode_labels(labels, len(table), class_names)
    return CheckedTable(table, label_codes, row_maxima)


def read_top_label(
    proba: ArrayLike, labels: ArrayLike, *, classes: Sequence[Any] | None = None
) -> TopLabel:
    """Read confidence and correctness from a table with labels or from two columns.

    Parameters
    ----------
    proba : array of shape (n, K) or (n,)
        Probability table, or the confidence of each row.

    labels : array of shape (n,)
        True classes, or the correctness of each row.

    classes : sequence, default=None
        Class of each column of a table.

    Returns
    -------
    TopLabel

    Raises
    ------
    InputError
        If an argument is invalid.

    Examples
    --------
    >>> read_top_label([[0.75, 0.25], [0.5, 0.5]], [0, 1]).confidence
    array([0.75, 0.5 ])
    >>> read_top_label([0.75, 0.5], [1, 0.5]).correct
    array([1. , 0.5])
    >>> read_top_label([0.5, 2.0], [1, 0])
    Traceback (most recent call last):
    metacal.errors.NumberError: confidence must lie in [0, 1], but row 1 holds 2.0. Get both ...
    """
    if len(get_shape_or_empty(proba)) != 1:
        return top_label(proba, labels, classes=classes)
    raise_if_labels_come_first(proba, labels)
    if classes is not None:
        raise CombinationError(
            "classes has no effect, because confidence and correct are 1-D columns without"
            " classes. Leave out classes."
        )
    columns = {
        "confidence": read_number_column(proba, "confidence"),
        "correct": read_number_column(labels, "correct"),
    }
    raise_if_correct_comes_first(np.asarray(proba), np.asarray(labels), "confidence")
    check_same_length(**columns)
    for name, column in columns.items():
        raise_if_any(
            (column < 0.0) | (column > 1.0),
            column,
            requirement=f"{name} must lie in [0, 1]",
            advice="Get both columns from a probability table by top_label(proba, labels).",
        )
    return TopLabel(**columns)


def read_number_column(values: ArrayLike, name: str) -> Float:
    """Convert values to a flat float64 array without NaN, or raise InputError."""
    array = as_plain_array(values, name)
    if array.ndim != 1 or array.dtype.kind not in "biuf" or not len(array):
        raise ShapeError(
            f"{name} must be a 1-D array of numbers with at least one row, but got an array of"
            f" type {array.dtype} and shape {array.shape}."
        )
    column = array.astype(np.float64)
    is_missing = np.isnan(column)
    if is_missing.any():
        raise NumberError(
            f"{name} must not contain NaN, but row {int(is_missing.argmax())} is NaN. Drop the"
            " rows with NaN first."
        )
    return column


def read_bool_column(values: ArrayLike, name: str) -> Flags:
    """Convert values that are 0 or 1 to a flat boolean array, or raise InputError.

    Examples
    --------
    >>> read_bool_column([1, 0], "accept")
    array([ True, False])
    >>> read_bool_column([0.5], "correct")
    Traceback (most recent call last):
    metacal.errors.NumberError: correct must be True or False in each row, but row 0 holds 0.5. ...
    """
    column = read_number_column(values, name)
    raise_if_any(
        (column != 0.0) & (column != 1.0),
        column,
        requirement=f"{name} must be True or False in each row",
        advice="To compute correctness, pass logits.argmax(axis=1) == labels.",
    )
    return np.asarray(column == 1.0, dtype=np.bool_)


def raise_if_any(is_invalid: Flags, column: Float, *, requirement: str, advice: str) -> None:
    """Raise InputError that shows the first invalid row, if there is one."""
    if is_invalid.any():
        first_row = int(is_invalid.argmax())
        raise NumberError(f"{requirement}, but row {first_row} holds {column[first_row]}. {advice}")


def check_same_length(**columns: Array) -> None:
    """Raise InputError unless all columns have the same number of rows."""
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        length_list = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise ShapeError(f"All columns must have the same number of rows, but {length_list}.")


def raise_if_labels_come_first(proba: ArrayLike, labels: ArrayLike) -> None:
    """Raise InputError if a flat array of labels comes before the probability table.

    Examples
    --------
    >>> raise_if_labels_come_first([0, 1], [[0.9, 0.1], [0.2, 0.8]])
    Traceback (most recent call last):
    metacal.errors.CombinationError: proba and labels are swapped, because the first argument ...
    """
    proba_shape = get_shape_or_empty(proba)
    labels_shape = get_shape_or_empty(labels)
    if len(labels_shape) == 2 and len(proba_shape) == 1:
        raise CombinationError(
            f"proba and labels are swapped, because the first argument has shape {proba_shape}"
            f" and the second has shape {labels_shape}. Pass the table of probabilities first,"
            " then the true classes."
        )


def raise_if_correct_comes_first(values: Array, correct: Array, name: str) -> None:
    """Raise InputError if 0/1 values come before fractions, as if swapped.

    Examples
    --------
    >>> raise_if_correct_comes_first(np.array([1, 0]), np.array([0.9, 0.3]), "confidence")
    Traceback (most recent call last):
    metacal.errors.CombinationError: confidence and correct are swapped, because the first ...
    """
    is_first_binary = values.dtype.kind in "biu" and bool(np.isin(values, (0, 1)).all())
    if not is_first_binary or correct.dtype.kind != "f":
        return
    is_fraction = ~np.isin(correct, (0.0, 1.0))
    if is_fraction.any():
        row = int(is_fraction.argmax())
        raise CombinationError(
            f"{name} and correct are swapped, because the first argument holds only 0 and 1, and"
            f" the second holds fractions (row {row}: {correct[row]}). Pass {name}"
            " first, then correct."
        )


def get_shape_or_empty(values: ArrayLike) -> tuple[int, ...]:
    """Return the shape of `values`, or () if they are not an array.

    The error is left to the function that reads the values next.
    """
    try:
        return np.shape(values)
    except Exception:
        return ()


def _compute_maxima_if_valid(table: Any) -> Array | None:
    """Compute the row maxima, or return None if a row may not be a probability vector."""
    item_size = table.dtype.itemsize
    is_plain_float = table.dtype.kind == "f" and item_size <= 8 and table.dtype.isnative
    if not is_plain_float or table.ndim != 2:
        return None
    n_rows, n_classes = table.shape
    if n_rows == 0 or n_classes < 2:
        return None

    # The bits of floats in [0, 1], read as unsigned integers, have the order of the floats.
    # The bits of NaN, negative numbers and numbers above 1 are larger integers.
    unsigned_type = np.dtype(f"u{item_size}")
    table_bits = table.view(unsigned_type)
    bits_of_one = np.ones(1, table.dtype).view(unsigned_type)[0]
    bits_of_maxima = np.empty(n_rows, unsigned_type)
    ones = np.ones(n_classes, table.dtype)
    n_block_rows = max(1, _BLOCK_ELEMENTS // n_classes)
    for start in range(0, n_rows, n_block_rows):
        stop = start + n_block_rows
        block = table[start:stop]
        bits_of_block_maxima = bits_of_maxima[start:stop]
        table_bits[start:stop].max(axis=1, out=bits_of_block_maxima)
        has_invalid_entry = bits_of_block_maxima.max() > bits_of_one
        if has_invalid_entry:
            return None
        if table.dtype == np.float16:
            # NumPy has no fast matrix product for float16.
            row_sums = block.sum(axis=1, dtype=np.float32)
        else:
            row_sums = block @ ones
        largest_sum_error = np.abs(row_sums - 1).max()
        if largest_sum_error > _FAST_SUM_TOLERANCE[item_size]:
            return None
    return bits_of_maxima.view(table.dtype)
