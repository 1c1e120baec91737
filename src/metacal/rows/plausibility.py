"""Tables that are not quite what they are said to be. Nothing is guessed: what looks odd is said,
and goes on.

A few hundred rows are looked at, whatever the size of the table: a slip in saving a table is in all
of its rows.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metacal.errors import option, warn_caller
from metacal.formulas import Float
from metacal.rows.arrays import on_host
from metacal.rows.executors import within

#: Most rows and most numbers that are looked at, in this many stretches of neighbouring rows: of a
#: table that stays in its file only the blocks around them are read.
_ROWS, _ELEMENTS, _STRETCHES = 512, 1 << 16, 4
#: Fewer rows than this may be whole numbers, or alike, by chance or for the sake of an example.
_FEWEST_ROWS = 20
#: How far a row of probabilities may be from summing to one: more where each of many was rounded to
#: two digits.
_SUM_TOLERANCE, _ROUNDED, _MOST_ROUNDED = 0.01, 0.005, 0.05
#: What probabilities never exceed, nor their logarithms, but for rounding.
_ABOVE_ONE = 1.0 + 1e-6
#: A floor is a lowest value that at least this share of the rows reaches, to within so much.
_FLOOR_SHARE, _FLOOR_TOLERANCE = 0.05, 1e-3

#: What a table of logits may look like in their place.
Suspected = Literal["probabilities", "one-hot", "whole numbers", "alike", "floor"]
#: What is said of it.
_REMARKS: dict[Suspected, str] = {
    "probabilities": (
        "the rows are taken for logits, but every one lies in [0, 1] and sums to one, as"
        " probabilities do: if they are, say {probabilities}."
    ),
    "one-hot": (
        "every row is a single 1 among zeros: these are decisions, which do not say how sure the"
        " classifier is. Give its scores from before the argmax."
    ),
    "whole numbers": (
        "every logit is a whole number: rows tie, and what was rounded away is lost. Give the"
        " scores from before rounding; counts of votes become probabilities when each row is"
        " divided by its sum: say {probabilities} then."
    ),
    "alike": (
        "all rows are alike: nothing tells a right answer from a wrong one. Look at how the table"
        " was made: one row may have been saved again and again."
    ),
    "floor": (
        "the logits are log-probabilities with a floor: many rows share the lowest value,"
        " {lowest:.6g}, and what was cut off there is lost. Give logits, or logarithms that are not"
        " clipped (log_softmax); or the probabilities themselves, with {probabilities}."
    ),
}


class Suspicion(NamedTuple):
    """What a table looks like; `lowest` is the value of a floor."""

    kind: Suspected
    lowest: float | None = None

    @property
    def remark(self) -> str:
        """What is said of it."""
        return _REMARKS[self.kind].format(
            lowest=self.lowest or 0.0, probabilities=option("input", "probabilities")
        )


def suspicion_of(sample: NDArray[Any]) -> Suspicion | None:
    """What is odd about some rows that are said to be logits, if anything.

    Rows with NaN or +inf are not judged: checks that come later refuse them.

    Examples
    --------
    >>> suspicion_of(np.array([[0.2, 0.8], [0.7, 0.3]])).kind
    'probabilities'
    >>> suspicion_of(np.array([[2.5, 0.8], [-1.7, 0.3]])) is None
    True
    """
    high = sample.max(initial=-np.inf)
    if not sample.size or not high < np.inf:  # no columns, NaN: others refuse them
        return None
    many = len(sample) >= _FEWEST_ROWS
    if many and _alike(sample):
        return Suspicion("alike")
    sums_to_one = high <= _ABOVE_ONE and _sums_to_one(sample)
    whole = _whole(sample)
    if sums_to_one:
        return Suspicion("one-hot" if whole else "probabilities")
    if whole and many:
        return Suspicion("whole numbers")
    return _floor(sample) if many and high <= _SUM_TOLERANCE else None


def warn_of_suspicion(table: Any, input: str = "logits") -> Suspicion | None:
    """Look at a few rows of a table of logits, warn of what is odd, and return it."""
    if input != "logits" or _unquestioned.get():
        return None
    found = suspicion_in(table)
    if found is not None:
        warn_caller(found.remark)
    return found


def suspicion_in(table: Any) -> Suspicion | None:
    """What is odd about a table of logits, if anything; two rows are enough to clear most
    tables.
    """
    first = _as_array(table[0:2])
    if (
        len(first) == 2
        and first.max(initial=-np.inf) > _ABOVE_ONE
        and not _whole(first)
        and not _alike(first)
    ):
        return None
    return suspicion_of(sample_of(table))


def unquestioned() -> AbstractContextManager[None]:
    """Within this no table is looked at: it was made here (logarithms of probabilities), or looked
    at before.

    Examples
    --------
    >>> with unquestioned():
    ...     print(warn_of_suspicion(np.array([[0.2, 0.8], [0.7, 0.3]])))
    None
    """
    return within(_unquestioned, True)


_unquestioned: ContextVar[bool] = ContextVar("metacal_unquestioned", default=False)


def sample_of(table: Any) -> Float:
    """A few rows of a table as an array: all of a short one, else some from its beginning, its
    middle and its end.
    """
    n, n_columns = table.shape
    most = int(np.clip(_ELEMENTS // max(1, n_columns), _FEWEST_ROWS, _ROWS))
    if n <= most:
        return _as_array(table[0:n])
    each = most // _STRETCHES
    starts = [k * (n - each) // (_STRETCHES - 1) for k in range(_STRETCHES)]
    return np.concatenate([_as_array(table[start : start + each]) for start in starts])


def _as_array(rows: Any) -> Float:
    return np.asarray(on_host(rows), dtype=np.float64)


def _sums_to_one(sample: Float) -> bool:
    tolerance = _SUM_TOLERANCE + min(_ROUNDED * sample.shape[1], _MOST_ROUNDED)
    return bool(sample.min() >= -1e-6 and (np.abs(sample.sum(axis=1) - 1.0) <= tolerance).all())


def _whole(sample: Float) -> bool:
    """Whether every entry is a whole number; -inf, which marks a masked class, is as good as
    one.
    """
    return bool((sample[0] == np.rint(sample[0])).all() and (sample == np.rint(sample)).all())


def _alike(sample: Float) -> bool:
    return bool((sample[1] == sample[0]).all() and (sample == sample[0]).all())


def _floor(sample: Float) -> Suspicion | None:
    """Logarithms of clipped probabilities: exponentials that sum to one but for the floor, which
    many rows touch.
    """
    finite = sample > -np.inf
    low = float(sample.min(where=finite, initial=0.0))
    sums = np.exp(sample).sum(axis=1)
    lifted = 1.0 + _SUM_TOLERANCE + sample.shape[1] * np.exp(low)
    if not ((sums >= 1.0 - _SUM_TOLERANCE) & (sums <= lifted)).all():
        return None
    at_floor = finite & (sample <= low + _FLOOR_TOLERANCE)
    if at_floor.any(axis=1).mean() < _FLOOR_SHARE:
        return None
    return Suspicion("floor", low)
