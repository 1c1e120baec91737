"""Losses: a number from 0 to 1 for each row, from the truth and the answer.

`mc.MaxRisk` limits the mean loss of accepted rows, for example with
`mc.ScoreGate(mc.MaxRisk(0.1)).fit(score, loss=mc.losses.hamming(truth, answer))`. Any column of
numbers from 0 to 1 is a valid loss. To add a loss to this module, decorate a function of (truth,
answer) with `@loss`.

`MaxRisk` has exact tests for losses that are only 0 or 1. The type of the column decides which test
is used: `error` returns integers. If nearly all losses are 0 or 1, pass
`MaxRisk(near_binary=True)`; the docstring of a loss states when to do so. The tested rows must not
decide.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from metacal.errors import InputError, NumberError, ShapeError
from metacal.formulas import Array, Codes, Flags, Float
from metacal.rows.score_columns import check_scores

Function = TypeVar("Function", bound=Callable[..., Array])
#: All losses by name.
LOSSES: dict[str, Callable[..., Array]] = {}


def loss(function: Function) -> Function:
    """Register a function as a loss under its name, which must be new.

    >>> sorted(LOSSES)[:4]
    ['cost_matrix', 'error', 'false_labels', 'hamming']
    """
    if function.__name__ in LOSSES:
        raise InputError(
            f"A loss named {function.__name__!r} is already registered. Choose another name."
        )
    LOSSES[function.__name__] = function
    return function


@loss
def error(truth: ArrayLike, answer: ArrayLike) -> Codes:
    """Return 1 where the answer differs from the truth, else 0, as integers.

    >>> error(["cat", "dog"], ["cat", "cat"])
    array([0, 1])
    """
    true_values = np.asarray(truth)
    given_values = np.asarray(answer)
    _check_same_shape(true_values, given_values)
    return np.asarray(true_values != given_values, dtype=np.intp)


@loss
def cost_matrix(truth: ArrayLike, answer: ArrayLike, costs: ArrayLike) -> Float:
    """Return the cost of each answer as a fraction of the largest cost.

    Parameters
    ----------
    truth, answer : array of int of shape (n,)
        True and given classes, numbered from 0.

    costs : array of shape (K, K)
        Costs that are not negative, ``costs[truth][answer]``.

    Returns
    -------
    array of float64 of shape (n,)

    Examples
    --------
    >>> cost_matrix([0, 1, 1], [1, 0, 1], [[0, 1], [5, 0]])
    array([0.2, 1. , 0. ])
    """
    cost_table = np.asarray(costs, dtype=np.float64)
    is_valid = cost_table.ndim == 2 and (cost_table >= 0.0).all()
    if not is_valid or not 0.0 < cost_table.max() < np.inf:
        raise InputError(
            "costs must be a table of nonnegative numbers, costs[truth][prediction], and at"
            " least one number must be positive."
        )
    row_costs = cost_table[np.asarray(truth), np.asarray(answer)]
    return np.asarray(row_costs / cost_table.max())


# ── losses of several labels per row ───────────────────────────────────────────────────────────────────


@loss
def hamming(truth: ArrayLike, answer: ArrayLike) -> Float:
    """Return the fraction of wrong labels of each row, from tables of 0 and 1.

    >>> hamming([[1, 0, 1, 0]], [[1, 1, 1, 1]])
    array([0.5])
    """
    true_labels, given_labels = _read_label_tables(truth, answer)
    return np.asarray((true_labels != given_labels).mean(axis=1))


@loss
def missed_labels(truth: ArrayLike, answer: ArrayLike) -> Float:
    """Return the fraction of true labels that the answer lacks, 0 if there are none.

    >>> missed_labels([[1, 0, 1], [0, 0, 0]], [[1, 1, 0], [1, 1, 1]])
    array([0.5, 0. ])
    """
    true_labels, given_labels = _read_label_tables(truth, answer)
    return _compute_label_fraction(true_labels & ~given_labels, true_labels, empty=0.0)


@loss
def false_labels(truth: ArrayLike, answer: ArrayLike, *, empty: float = 0.0) -> Float:
    """Return the fraction of given labels that are false.

    Parameters
    ----------
    truth, answer : array of shape (n, n_labels)
        Tables of 0 and 1.

    empty : float, default=0.0
        Loss of an answer without labels.

    Returns
    -------
    array of float64 of shape (n,)

    Examples
    --------
    >>> false_labels([[1, 0, 1], [1, 0, 0]], [[1, 1, 0], [0, 0, 0]], empty=1.0)
    array([0.5, 1. ])
    """
    true_labels, given_labels = _read_label_tables(truth, answer)
    return _compute_label_fraction(given_labels & ~true_labels, given_labels, empty=empty)


@loss
def one_minus_f1(truth: ArrayLike, answer: ArrayLike) -> Float:
    """Return 1 - F1 of the labels of each row, 0 if there are no labels at all.

    >>> one_minus_f1([[1, 1, 0], [0, 0, 0]], [[1, 0, 0], [0, 0, 0]]).round(3)
    array([0.333, 0.   ])
    """
    true_labels, given_labels = _read_label_tables(truth, answer)
    n_common = (true_labels & given_labels).sum(axis=1)
    n_total = true_labels.sum(axis=1) + given_labels.sum(axis=1)
    return _compute_one_minus_f1(n_common, n_total)


# ── losses of texts, JSON fields and marks ───────────────────────────────────────────────────────────


@loss
def one_minus_token_f1(truth: Iterable[str], answer: Iterable[str]) -> Float:
    """Return 1 - F1 of the words of two texts, ignoring case.

    If answers have one or two words, nearly every loss is 0 or 1: pass `near_binary` to `MaxRisk`.

    >>> one_minus_token_f1(["the cat sat"], ["The cat"]).round(2)
    array([0.2])
    """
    n_common_words = []
    word_counts = []
    for true_text, given_text in _pair_rows(truth, answer):
        true_words = Counter(true_text.casefold().split())
        given_words = Counter(given_text.casefold().split())
        n_common_words.append((true_words & given_words).total())
        word_counts.append(true_words.total() + given_words.total())
    return _compute_one_minus_f1(n_common=np.array(n_common_words), n_total=np.array(word_counts))


@loss
def wrong_fields(truth: Iterable[Any], answer: Iterable[Any]) -> Float:
    """Return the fraction of JSON fields that are wrong, missing or invented.

    The fraction is of all fields that the truth or the answer has. A field inside a field counts by
    itself. An answer that is not a JSON object has loss 1. If there are one or two fields, nearly
    every loss is 0 or 1: pass `near_binary` to `MaxRisk`.

    Parameters
    ----------
    truth, answer : iterable
        Objects, or their JSON text.

    Returns
    -------
    array of float64 of shape (n,)

    Raises
    ------
    InputError
        If a truth is not a JSON object.

    Examples
    --------
    >>> truth = {"name": "Ada", "born": {"year": 1815, "in": "London"}}
    >>> wrong_fields([truth], ['{"name": "Ada", "born": {"year": 1816}}'])
    array([0.66666667])
    """
    row_losses: list[float] = []
    for row, (true_object, given_object) in enumerate(_pair_rows(truth, answer)):
        true_fields = _flatten_fields(true_object)
        if true_fields is None:
            raise NumberError(
                f"Row {row}: the truth must be a JSON object, but got {str(true_object)[:60]!r}."
            )
        row_losses.append(_compute_wrong_field_fraction(true_fields, _flatten_fields(given_object)))
    return np.array(row_losses)


@loss
def marks(mark: ArrayLike, *, best: float = 1.0, worst: float = 0.0) -> Float:
    """Return the distance of a judge's mark from the best one, as a fraction.

    Parameters
    ----------
    mark : array of shape (n,)
        Numbers, or texts such as "8/10" and "pass".

    best, worst : float
        Marks with loss 0 and loss 1.

    Returns
    -------
    array of float64 of shape (n,)

    Raises
    ------
    InputError
        If `best` equals `worst`, or a mark is outside their range.

    Examples
    --------
    >>> marks([5, 4, 1], best=5, worst=1), marks(["8/10", "fail"])
    (array([0.  , 0.25, 1.  ]), array([0.2, 1. ]))
    """
    if best == worst:
        raise InputError(f"best and worst must differ, but both are {best!r}.")
    mark_values = check_scores(mark, name="mark").astype(np.float64)
    distances = (best - mark_values) / (best - worst)
    outside_rows = np.flatnonzero(~((distances >= 0.0) & (distances <= 1.0)))
    if len(outside_rows):
        first_outside_row = outside_rows[0]
        given_mark = np.asarray(mark).tolist()[first_outside_row]
        raise NumberError(
            f"Row {first_outside_row}: the mark must lie between {worst:g} and {best:g}, but got"
            f" {given_mark!r}."
        )
    return np.asarray(distances)


def _check_same_shape(true_values: Array, given_values: Array) -> None:
    """Raise InputError if truth and answer have different shapes."""
    if true_values.shape != given_values.shape:
        raise ShapeError(
            f"truth and answer must have the same shape, but got {true_values.shape} and"
            f" {given_values.shape}."
        )


def _read_label_tables(truth: ArrayLike, answer: ArrayLike) -> tuple[Flags, Flags]:
    """Return both tables as boolean arrays of shape (n_rows, n_labels)."""
    true_labels = np.asarray(truth)
    given_labels = np.asarray(answer)
    _check_same_shape(true_labels, given_labels)
    for table in (true_labels, given_labels):
        if table.ndim != 2 or not np.isin(table, (0, 1)).all():
            raise ShapeError(
                "Several labels per row must form a table of 0 and 1 with one column per label,"
                f" but got an array of shape {table.shape}."
            )
    return true_labels.astype(bool), given_labels.astype(bool)


def _compute_label_fraction(is_counted: Flags, is_label: Flags, *, empty: float) -> Float:
    """Divide the counted labels of each row by its labels, `empty` if it has none."""
    n_labels = is_label.sum(axis=1)
    n_counted = is_counted.sum(axis=1)
    return np.where(n_labels > 0, n_counted / np.maximum(n_labels, 1), empty)


def _compute_one_minus_f1(n_common: Array, n_total: Array) -> Float:
    """Compute 1 - F1 from the common items and both sizes, 0 if both are empty."""
    return np.where(n_total > 0, 1.0 - 2.0 * n_common / np.maximum(n_total, 1), 0.0)


def _pair_rows(truth: Iterable[Any], answer: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Return the pair (truth, answer) of each row."""
    truths = list(truth)
    answers = list(answer)
    if len(truths) != len(answers):
        raise ShapeError(
            f"Expected one answer for each truth, but got {len(truths)} truths and {len(answers)}"
            " answers."
        )
    return list(zip(truths, answers, strict=True))


def _compute_wrong_field_fraction(
    true_fields: dict[tuple[str, ...], Any], given_fields: dict[tuple[str, ...], Any] | None
) -> float:
    """Compute the fraction of fields that differ, 1 without a parsed answer."""
    if given_fields is None:
        return 1.0
    paths = true_fields.keys() | given_fields.keys()
    if not paths:
        return 0.0
    missing_value = object()
    n_wrong_fields = 0
    for path in paths:
        true_value = true_fields.get(path, missing_value)
        given_value = given_fields.get(path, missing_value)
        if true_value != given_value:
            n_wrong_fields += 1
    return n_wrong_fields / len(paths)


def _flatten_fields(value: Any) -> dict[tuple[str, ...], Any] | None:
    """Return the leaves of a JSON object by path, or None for any other value."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    if not isinstance(value, Mapping):
        return None
    leaves: dict[tuple[str, ...], Any] = {}
    for name, entry in value.items():
        nested_leaves = None
        if isinstance(entry, Mapping) and entry:
            nested_leaves = _flatten_fields(entry)
        if nested_leaves is None:
            leaves[(str(name),)] = entry
            continue
        for path, leaf in nested_leaves.items():
            leaves[(str(name), *path)] = leaf
    return leaves
