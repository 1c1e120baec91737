"""Ranking scores h(x): how unsure the classifier is of each row. Higher means less sure.

A score looks at one row of *uncalibrated* logits at a time and at no label: that is what lets the certificate and the
base calibrator share all calibration rows. Entropy is the paper's choice and the default.

**A score is a rounded number** (`kernels.grid`): the functions here round what the kernels compute, so that rows whose
scores are equal in mathematics are equal on every processor and in every runtime. What is certified, ranked, compared
and reported above this module is the rounded number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError
from metacal.kernels.grid import RELATIVE, Grid
from metacal.rows.rows import Rows
from metacal.scores.registry import NAMED as NAMED
from metacal.scores.registry import NamedScore, without_end

#: A score maps a block of logits (n × K) to one number per row.
Score = Callable[[NDArray[Any]], NDArray[np.float64]]


class CheckedScore:
    """A caller's own score: its answer is checked before anything is built on it, and rounded like any other."""

    def __init__(self, score: Score) -> None:
        self.score = score
        self.grid = grid_of(score)

    def __call__(self, block: NDArray[Any]) -> NDArray[np.float64]:
        """One number per row."""
        return self.grid.rounded(self.unrounded(block))

    def unrounded(self, block: NDArray[Any]) -> NDArray[np.float64]:
        """What the function says, checked."""
        values = np.asarray(self.score(block), dtype=np.float64)
        if values.shape != (len(block),):
            raise InputError(
                f"the score {name_of(self.score)!r} must return one number per row, shape ({len(block)},); "
                f"it returned shape {values.shape}."
            )
        if np.isnan(values).any():
            raise InputError(f"the score {name_of(self.score)!r} returned NaN; every row needs a number.")
        return values


def resolve(score: str | Score) -> NamedScore | CheckedScore:
    """Return the score function for a name, or the callable itself, checked at each call.

    Examples
    --------
    >>> resolve("margin")(np.array([[3.0, 1.0, 0.0]]))
    array([-2.])
    >>> resolve("entrpy")
    Traceback (most recent call last):
    metacal.errors.InputError: score must be one of 'entropy', 'max_probability', 'margin', 'maxlogit_pnorm', 'energy' or ...
    """
    if isinstance(score, str):
        if score not in NAMED:
            names = ", ".join(map(repr, NAMED))
            raise InputError(f"score must be one of {names} or a callable; got {score!r}.")
        return NAMED[score]
    if not callable(score):
        raise InputError(f"score must be a name or a callable of a block of logits; got {type(score).__name__}.")
    return score if isinstance(score, NamedScore | CheckedScore) else CheckedScore(score)


def reach(score: str, n_classes: int) -> tuple[float, float]:
    """The lowest and the highest value that a score can take on rows of so many classes; infinite where it has no end.

    Entropy lies in [0, log K], one minus the largest probability in [0, 1 - 1/K], minus a margin is never positive.

    Examples
    --------
    >>> reach("max_probability", 4), reach("margin", 4), reach("energy", 4)
    ((0.0, 0.75), (-inf, 0.0), (-inf, inf))
    """
    return NAMED[score].reach(n_classes) if score in NAMED else without_end(n_classes)


def needs_logits(score: str | Score) -> bool:
    """Whether a score says nothing on probabilities.

    Examples
    --------
    >>> needs_logits("energy"), needs_logits("entropy"), needs_logits(len)
    (True, False, False)
    """
    return isinstance(score, str) and score in NAMED and NAMED[score].needs_logits


def name_of(score: str | Score) -> str:
    """How a certificate names the score.

    Examples
    --------
    >>> name_of("entropy"), name_of(np.linalg.norm)
    ('entropy', 'norm')
    """
    return score if isinstance(score, str) else getattr(score, "__name__", type(score).__name__)


def grid_of(score: str | Score) -> Grid:
    """The grid that a score lies on: that of its name, or what a learned score calls its `grid`.

    Examples
    --------
    >>> grid_of("energy").floor, grid_of("margin") == grid_of(len)
    (1.0, True)
    """
    found = NAMED[score].grid if isinstance(score, str) else getattr(score, "grid", RELATIVE)
    return found if isinstance(found, Grid) else RELATIVE


def score_rows(rows: Rows, score: str | Score) -> NDArray[np.float64]:
    """h(x) of every row, as one column. It is rounded as a whole: block by block would cost more calls than arithmetic.

    Examples
    --------
    >>> score_rows(Rows(np.array([[0.0, 0.0], [2.0, 0.0]])), "max_probability").round(3)
    array([0.5  , 0.119])
    """
    return resolve(score).grid.rounded(unrounded(rows, score))


def unrounded(rows: Rows, score: str | Score) -> NDArray[np.float64]:
    """What this machine computes for every row, before it is a score. For recognising what older versions have left."""
    return rows.collect(resolve(score).unrounded)
