"""Losses: how bad an answer is, a number from 0 to 1 for each row, from its truth and the answer
that was given.

What `mc.MaxRisk` promises about: `mc.ScoreGate(mc.MaxRisk(0.1)).fit(score,
loss=mc.losses.hamming(truth, answer))`. A new loss is one function of (truth, answer) with `@loss`
above it; any column of numbers from 0 to 1 will do as well. Whether it is 0 or 1 is said by its
type (`error` gives integers), whether it nearly always is by its docstring and
`MaxRisk(near_binary=True)`: never by the rows that are tested.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from metacal.errors import InputError
from metacal.formulas import Array, Codes, Flags, Float
from metacal.rows.score_columns import score_column

Function = TypeVar("Function", bound=Callable[..., Array])
#: Every loss by its name.
LOSSES: dict[str, Callable[..., Array]] = {}


def loss(function: Function) -> Function:
    """Enter a loss under the name of its function.

    >>> sorted(LOSSES)[:4]
    ['cost_matrix', 'error', 'false_labels', 'hamming']
    """
    if function.__name__ in LOSSES:
        raise InputError(f"there is a loss {function.__name__!r} already.")
    LOSSES[function.__name__] = function
    return function


@loss
def error(truth: ArrayLike, answer: ArrayLike) -> Codes:
    """1 where the answer is not the truth: integers, for which `MaxRisk` has exact tests.

    >>> error(["cat", "dog"], ["cat", "cat"])
    array([0, 1])
    """
    first, second = _alike(np.asarray(truth), np.asarray(answer))
    return np.asarray(first != second, dtype=np.intp)


@loss
def cost_matrix(truth: ArrayLike, answer: ArrayLike, costs: ArrayLike) -> Float:
    """The cost of each answer as a share of the largest: `costs[truth][answer]`, both numbers of
    classes from 0.

    >>> cost_matrix([0, 1, 1], [1, 0, 1], [[0, 1], [5, 0]])
    array([0.2, 1. , 0. ])
    """
    table = np.asarray(costs, dtype=np.float64)
    if table.ndim != 2 or not (table >= 0.0).all() or not 0.0 < table.max() < np.inf:
        raise InputError(
            "costs must be a table of numbers from 0 on, not all of them 0: costs[truth][answer]."
        )
    return np.asarray(table[np.asarray(truth), np.asarray(answer)] / table.max())


# ── several labels for each row ───────────────────────────────────────────────────────────────────


@loss
def hamming(truth: ArrayLike, answer: ArrayLike) -> Float:
    """The share of the labels that are wrong, of tables with a flag for each row and label.

    >>> hamming([[1, 0, 1, 0]], [[1, 1, 1, 1]])
    array([0.5])
    """
    true, given = _tables(truth, answer)
    return np.asarray((true != given).mean(axis=1))


@loss
def missed_labels(truth: ArrayLike, answer: ArrayLike) -> Float:
    """The share of the true labels that the answer lacks; 0 where there is none to miss.

    >>> missed_labels([[1, 0, 1], [0, 0, 0]], [[1, 1, 0], [1, 1, 1]])
    array([0.5, 0. ])
    """
    true, given = _tables(truth, answer)
    return _share(true & ~given, true, 0.0)


@loss
def false_labels(truth: ArrayLike, answer: ArrayLike, *, empty: float = 0.0) -> Float:
    """The share of the given labels that are false; `empty` says what an answer without any costs.

    >>> false_labels([[1, 0, 1], [1, 0, 0]], [[1, 1, 0], [0, 0, 0]], empty=1.0)
    array([0.5, 1. ])
    """
    true, given = _tables(truth, answer)
    return _share(given & ~true, given, empty)


@loss
def one_minus_f1(truth: ArrayLike, answer: ArrayLike) -> Float:
    """1 - F1 of the labels of each row; 0 where there are none and none are given.

    >>> one_minus_f1([[1, 1, 0], [0, 0, 0]], [[1, 0, 0], [0, 0, 0]]).round(3)
    array([0.333, 0.   ])
    """
    true, given = _tables(truth, answer)
    return _one_minus_f1((true & given).sum(axis=1), true.sum(axis=1) + given.sum(axis=1))


# ── text, fields, numbers, boxes, marks ───────────────────────────────────────────────────────────


@loss
def one_minus_token_f1(truth: Iterable[str], answer: Iterable[str]) -> Float:
    """1 - F1 of the words of two texts, counted with their number, whatever their case.

    Of answers of a word or two nearly every loss is 0 or 1: declare `near_binary`.

    >>> one_minus_token_f1(["the cat sat"], ["The cat"]).round(2)
    array([0.2])
    """
    pairs = (
        (Counter(a.casefold().split()), Counter(b.casefold().split()))
        for a, b in _pairs(truth, answer)
    )
    counted = [((true & given).total(), true.total() + given.total()) for true, given in pairs]
    return _one_minus_f1(*np.array(counted).reshape(-1, 2).T)


@loss
def wrong_fields(truth: Iterable[Any], answer: Iterable[Any]) -> Float:
    """The share of the fields of a JSON answer that are wrong, missing or made up, of all that
    either has.

    Objects, or their JSON text; a field inside a field counts by itself. An answer that is no JSON
    is all wrong. Where there are one or two fields, nearly every loss is 0 or 1: declare
    `near_binary`.

    >>> truth = {"name": "Ada", "born": {"year": 1815, "in": "London"}}
    >>> wrong_fields([truth], ['{"name": "Ada", "born": {"year": 1816}}'])
    array([0.66666667])
    """
    found: list[float] = []
    for true, given in _pairs(truth, answer):
        wanted, told = _fields(true), _fields(given)
        if wanted is None:
            raise InputError(
                f"row {len(found)}: the truth is no JSON object; got {str(true)[:60]!r}."
            )
        names = wanted.keys() | (told or {}).keys()
        wrong = (
            len(names)
            if told is None
            else sum(wanted.get(name, ...) != told.get(name, ...) for name in names)
        )
        found.append(wrong / len(names) if names else float(told is None))
    return np.array(found)


@loss
def marks(mark: ArrayLike, *, best: float = 1.0, worst: float = 0.0) -> Float:
    """What a judge's mark lacks of the best one: numbers, or as judges write them, "8/10" (of 1)
    and `pass`.

    >>> marks([5, 4, 1], best=5, worst=1), marks(["8/10", "fail"])
    (array([0.  , 0.25, 1.  ]), array([0.2, 1. ]))
    """
    if best == worst:
        raise InputError(f"best and worst must differ; got {best!r} for both.")
    lacking = (best - score_column(mark, name="mark").astype(np.float64)) / (best - worst)
    outside = np.flatnonzero(~((lacking >= 0.0) & (lacking <= 1.0)))
    if len(outside):
        shown = np.asarray(mark).tolist()[outside[0]]
        raise InputError(
            f"row {outside[0]}: the mark {shown!r} does not lie between {worst:g} and {best:g}."
        )
    return np.asarray(lacking)


def _alike(first: Array, second: Array) -> tuple[Array, Array]:
    if first.shape != second.shape:
        raise InputError(
            f"truth and answer must have the same shape; got {first.shape} and {second.shape}."
        )
    return first, second


def _tables(truth: ArrayLike, answer: ArrayLike) -> tuple[Flags, Flags]:
    """Flags for each row and label."""
    first, second = _alike(np.asarray(truth), np.asarray(answer))
    for table in (first, second):
        if table.ndim != 2 or not np.isin(table, (0, 1)).all():
            raise InputError(
                f"several labels are a table of 0 and 1, a row by label; got shape {table.shape}."
            )
    return first.astype(bool), second.astype(bool)


def _share(hit: Flags, of: Flags, nothing: float) -> Float:
    count = of.sum(axis=1)
    return np.where(count > 0, hit.sum(axis=1) / np.maximum(count, 1), nothing)


def _one_minus_f1(both: Array, total: Array) -> Float:
    return np.where(total > 0, 1.0 - 2.0 * both / np.maximum(total, 1), 0.0)


def _pairs(truth: Iterable[Any], answer: Iterable[Any]) -> list[tuple[Any, Any]]:
    first, second = list(truth), list(answer)
    if len(first) != len(second):
        raise InputError(
            f"there are {len(first)} truths but {len(second)} answers; give one each per row."
        )
    return list(zip(first, second, strict=True))


def _fields(value: Any) -> dict[tuple[str, ...], Any] | None:
    """The leaves of an object by the way to them; None where it is none."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    if not isinstance(value, Mapping):
        return None
    leaves: dict[tuple[str, ...], Any] = {}
    for name, entry in value.items():
        below = _fields(entry) if isinstance(entry, Mapping) and entry else None
        leaves |= (
            {(str(name),): entry}
            if below is None
            else {(str(name), *rest): leaf for rest, leaf in below.items()}
        )
    return leaves
