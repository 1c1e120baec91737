"""The one registry of ranking scores: a row says everything that other rooms need to know of a
score.

The scores that have a name and those that are learned stand here; what can be chosen on the command
line, saved and exported is read from these rows. Nothing is imported before it is asked for, not
even NumPy: this module knows the names of rooms above it and never the rooms themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from metacal.errors import InputError
from metacal.lazy import found

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from metacal.formulas import Float
    from metacal.kernels.grid import Grid

#: The lowest and the highest value that a score can take on rows of so many classes.
Reach = Callable[[int], tuple[float, float]]


def without_end(n_classes: int) -> tuple[float, float]:
    """Any number."""
    return -math.inf, math.inf


def up_to_log(n_classes: int) -> tuple[float, float]:
    """[0, log K]: an entropy."""
    return 0.0, math.log(n_classes)


def up_to_doubt(n_classes: int) -> tuple[float, float]:
    """[0, 1 - 1/K]: what is left beside the largest of K probabilities."""
    return 0.0, 1.0 - 1.0 / n_classes


def not_positive(n_classes: int) -> tuple[float, float]:
    """No more than 0: minus a distance."""
    return -math.inf, 0.0


def not_negative(n_classes: int) -> tuple[float, float]:
    """No less than 0."""
    return 0.0, math.inf


@dataclass(frozen=True)
class NamedScore:
    """A score that has a name, and can therefore be saved and exported: what its kernel computes,
    on the grid.

    Attributes
    ----------
    name : str
        In `MetaCal(score=...)`, on the command line, in files.
    formula : str
        "module:function", formula(xp, x) -> a column, higher = less sure, over the operations of
        `metacal.formulas`: computed in NumPy, on a GPU, in an exported module and in ONNX.
    kernel : str
        "module:function" of a faster way to the same, kernel(block of logits, n × K) -> one float64
        per row; NaN for a row with NaN or +inf, or with every class masked. Empty: the formula
        itself.
    reads_masks : bool
        Whether finite logits that stand for a mask are made -inf first, as Python does with every
        table; False only where they are the same to the score, as to a softmax, which saves
        exported gates a look.
    reach : function
        n_classes -> the lowest and the highest value there is; infinite where there is no end.
    absolute_error : bool
        Whether rounding errors are absolute, as those of a sum of terms of either sign, and not
        relative to the score.
    needs_logits : bool
        Whether the score of probabilities, which are logits less a constant, says nothing.

    Examples
    --------
    >>> import numpy as np
    >>> rows = np.log(np.array([[0.5, 0.3, 0.2], [0.2, 0.3, 0.5]]))
    >>> first, second = NAMED["entropy"](rows)
    >>> bool(first == second)
    True
    """

    name: str
    formula: str
    kernel: str = ""
    reads_masks: bool = True
    reach: Reach = without_end
    absolute_error: bool = False
    needs_logits: bool = False

    @cached_property
    def unrounded(self) -> Callable[[NDArray[Any]], Float]:
        """The kernel: what a machine computes, before it is a score."""
        if self.kernel:
            return found(self.kernel)
        return found("metacal.kernels:FormulaKernel")(self.formula_function())

    def formula_function(self) -> Callable[..., Any]:
        """The formula."""
        return found(self.formula)

    @property
    def grid(self) -> Grid:
        """What the score is rounded to."""
        return found(f"metacal.kernels.grid:{'ABSOLUTE' if self.absolute_error else 'RELATIVE'}")

    def __call__(self, block: NDArray[Any]) -> Float:
        """One number per row; NaN for a row with NaN or +inf, or with every class masked."""
        return found("metacal.kernels:rounded")(self.unrounded(block), self.grid)


def _named(name: str, formula: str, *, fused: bool = True, **more: Any) -> NamedScore:
    kernel = f"metacal.kernels:{formula}" if fused else ""
    return NamedScore(
        name, f"metacal.formulas.rowwise:{formula}", kernel, reads_masks=not fused, **more
    )


_NAMED = (
    _named("entropy", "entropy", reach=up_to_log),
    _named("max_probability", "doubt", reach=up_to_doubt),
    _named("margin", "negative_margin", reach=not_positive),
    _named("maxlogit_pnorm", "rivals_norm", fused=False, reach=not_negative),
    _named("energy", "free_energy", absolute_error=True, needs_logits=True),
)
#: In place of a score: the best of `candidates`, which share delta.
AUTO = "auto"
#: Every score that has a name, by it.
NAMED: dict[str, NamedScore] = {row.name: row for row in _NAMED}
#: The scores that are learned, by their classes in `metacal.scores.learned`.
LEARNED = ("LogisticRanker", "PairwiseRanker")


def candidates(n_classes: int) -> dict[str, float]:
    """The scores that `score="auto"` chooses among, and the share of delta that each has.

    Entropy is hardly ever far from the best and has most of it; the others win by much on a few
    networks, which a tenth of delta shows too (docs/ranking.md has the numbers). For two classes
    all of them rank alike.
    """
    return (
        {"entropy": 0.8, "margin": 0.1, "maxlogit_pnorm": 0.1}
        if n_classes > 2
        else {"entropy": 1.0}
    )


def register_score(score: NamedScore) -> None:
    """Add a score that lives outside metacal: it is chosen, saved and exported by its name from
    then on.

    Whoever loads a file that names it has to register it first.

    Examples
    --------
    >>> register_score(NAMED["margin"])
    Traceback (most recent call last):
    metacal.errors.InputError: there is a score 'margin' already.
    """
    if score.name in NAMED or score.name in LEARNED or score.name == AUTO:
        raise InputError(f"there is a score {score.name!r} already.")
    module, colon, function = score.formula.partition(":")
    if not (module and colon and function):
        raise InputError(
            f"the formula of the score {score.name!r} must be 'module:function', got"
            f" {score.formula!r}."
        )
    NAMED[score.name] = score
