"""Ranking scores h(x): how unsure the classifier is of each row. Higher means less sure.

A score looks at one row of *uncalibrated* logits at a time and at no label: that is what lets the
certificate and the base calibrator share all calibration rows. Entropy is the paper's choice and
the default.

**A score is a rounded number** (`kernels.grid`): the functions here round what the kernels compute,
so that rows whose scores are equal in mathematics are equal on every processor and in every
runtime. What is certified, ranked, compared and reported above this module is the rounded number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.errors import InputError
from metacal.formulas import Codes, Float
from metacal.kernels.grid import RELATIVE, Grid
from metacal.rows import Rows
from metacal.scores.registry import NAMED as NAMED
from metacal.scores.registry import NamedScore
from metacal.scores.registry import register_score as register_score

#: A score maps a block of logits (n × K) to one number per row.
Score = Callable[[NDArray[Any]], Float]


class CheckedScore:
    """A caller's own score: its answer is checked before anything is built on it, and rounded like
    any other.
    """

    def __init__(self, score: Score) -> None:
        self.score = score
        self.grid = grid_of(score)

    def __call__(self, block: NDArray[Any]) -> Float:
        """One number per row."""
        return self.grid.rounded(self.unrounded(block))

    def unrounded(self, block: NDArray[Any]) -> Float:
        """What the function says, checked."""
        values = np.asarray(self.score(block), dtype=np.float64)
        if values.shape != (len(block),):
            raise InputError(
                f"the score {name_of(self.score)!r} must return one number per row, shape"
                f" ({len(block)},); it returned shape {values.shape}."
            )
        if np.isnan(values).any():
            raise InputError(
                f"the score {name_of(self.score)!r} returned NaN; every row needs a number."
            )
        return values


def resolve(score: str | Score) -> NamedScore | CheckedScore:
    """Return the score function for a name, or the callable itself, checked at each call.

    Examples
    --------
    >>> resolve("margin")(np.array([[3.0, 1.0, 0.0]]))
    array([-2.])
    >>> resolve("entrpy")
    Traceback (most recent call last):
    metacal.errors.InputError: score must be one of 'entropy', 'max_probability', 'margin', ...
    """
    if isinstance(score, str):
        if score not in NAMED:
            names = ", ".join(map(repr, NAMED))
            raise InputError(f"score must be one of {names} or a callable; got {score!r}.")
        return NAMED[score]
    if not callable(score):
        raise InputError(
            f"score must be a name or a callable of a block of logits; got {type(score).__name__}."
        )
    return score if isinstance(score, NamedScore | CheckedScore) else CheckedScore(score)


def needs_logits(score: str | Score) -> bool:
    """Whether a score says nothing on probabilities."""
    return isinstance(score, str) and score in NAMED and NAMED[score].needs_logits


def name_of(score: str | Score) -> str:
    """How a certificate names the score."""
    return score if isinstance(score, str) else getattr(score, "__name__", type(score).__name__)


def grid_of(score: str | Score) -> Grid:
    """The grid that a score lies on: that of its name, or what a learned score calls its `grid`."""
    found = NAMED[score].grid if isinstance(score, str) else getattr(score, "grid", RELATIVE)
    return found if isinstance(found, Grid) else RELATIVE


class Ranked:
    """Of a block of logits and its labels: the unrounded score of each row, and whether its largest
    logit is right.

    Examples
    --------
    >>> Ranked("margin")(np.array([[3.0, 1.0], [0.0, 2.0]]), np.array([0, 0]))
    array([[-2.,  1.], [-2.,  0.]])
    """

    def __init__(self, score: str | Score) -> None:
        self.unrounded = resolve(score).unrounded
        self.walks_blocks = bool(getattr(self.unrounded, "walks_blocks", False))

    def __call__(self, block: NDArray[Any], labels: Codes, **chosen: Any) -> Float:
        """Two columns; a kernel finds both in one walk, and picks the rows that are `chosen`
        itself.
        """
        found = np.empty((len(labels), 2))
        top = np.empty(len(labels), dtype=np.intp)
        found[:, 0] = ranked_block(self.unrounded, block, top, **chosen)
        found[:, 1] = top == labels
        return found


def ranked(rows: Rows, score: str | Score, codes: Codes) -> tuple[Rows, Any, Any]:
    """The rows, looked over, the score of each and whether its largest logit is the true class: one
    walk for all.

    The C kernel writes both where they belong. Of a table on a device both stay there, if the score
    is computed there.

    Examples
    --------
    >>> ranked(Rows(np.array([[3.0, 1.0], [0.0, 2.0]])), "margin", np.array([0, 0]))[1:]
    (array([-2., -2.]), array([ True, False]))
    """
    kernel, grid = resolve(score).unrounded, grid_of(score)
    if rows.on_device and kernels.reads_tensors(kernel):
        device = kernels.device_kernels()
        walk = partial(device.ranked, score=kernel)
        rows, both = _carefully(
            rows, lambda here, how: here.collect(partial(walk, **how), codes, there=True)
        )
        return rows, device.rounded(both[:, 0].contiguous(), grid), both[:, 1] > 0.0
    if rows.in_place and isinstance(kernel, kernels.FormulaKernel) and kernel.host is not None:
        in_c = partial(kernels.active.ranked_rows, score=kernel.formula.__name__, grid=grid)
        room, right = np.empty(len(rows)), np.empty(len(rows), dtype=bool)
        rows, values = _carefully(
            rows, lambda at, how: at.fill(partial(in_c, **how), room, right, codes, whole=True)
        )
        return rows, values, right
    rows, both = collected(rows, Ranked(score), codes)
    return rows, grid.rounded(both[:, 0]), both[:, 1] > 0.0


def _carefully(rows: Rows, walk: Callable[[Rows, dict[str, bool]], Any]) -> tuple[Rows, Any]:
    """The rows, looked over, and the scores that a walk gives them.

    A kernel looks while it walks: carefully, it gives no score to a row that is none, or that may
    have masks. Only then does the look take a walk of its own.
    """
    if rows.unseen:
        found = walk(rows, {"careful": True})
        if not math.isnan(float(found.min())):  # which is NaN where any is
            return rows.looked_over(found_fine=True), found
        rows = rows.looked_over()
    return rows, walk(rows, {})


def ranked_block(unrounded: Any, block: NDArray[Any], top: Codes, **chosen: Any) -> Float:
    """The unrounded scores of a block; its predictions are written to `top`."""
    if (
        getattr(unrounded, "walks_blocks", False)
        and top.dtype == np.int64
        and top.flags.c_contiguous
    ):
        return unrounded(block, top=top, **chosen)
    top[...] = kernels.predicted(block, **chosen)
    return unrounded(block, **chosen)


def score_rows(rows: Rows, score: str | Score) -> Float:
    """h(x) of every row, as one column, rounded as a whole: block by block would cost more calls
    than arithmetic.
    """
    found = resolve(score)
    return np.asarray(kernels.rounded(collected(rows, found.unrounded)[1], found.grid))


def collected(rows: Rows, fn: Any, *columns: NDArray[Any]) -> tuple[Rows, Float]:
    """The rows, looked over, and what a function that scores says of them."""
    if not kernels.walks_blocks(fn, rows.table):
        rows = rows.looked_over()
    return _carefully(
        rows, lambda here, how: here.collect(partial(fn, **how) if how else fn, *columns)
    )
