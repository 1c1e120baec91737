"""Registry of ranking scores.

Each score with a name has one row here, and each learned score its class name. The command line,
saved files and the export read the registry. Modules are named as strings and imported on first
use, not even NumPy is imported here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from metacal.errors import InputError
from metacal.lazy import import_object

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from metacal.formulas import Float
    from metacal.kernels.grid import Grid

#: Function that returns the lowest and the highest value of a score for a number of classes.
ValueRange = Callable[[int], tuple[float, float]]


def get_unbounded_range(n_classes: int) -> tuple[float, float]:
    """Return the range of a score without bounds."""
    return -math.inf, math.inf


def get_entropy_range(n_classes: int) -> tuple[float, float]:
    """Return the range of an entropy, [0, log K]."""
    return 0.0, math.log(n_classes)


def get_error_probability_range(n_classes: int) -> tuple[float, float]:
    """Return the range of one minus the largest of K probabilities, [0, 1 - 1/K]."""
    return 0.0, 1.0 - 1.0 / n_classes


def get_non_positive_range(n_classes: int) -> tuple[float, float]:
    """Return the range of a score that is at most 0."""
    return -math.inf, 0.0


def get_non_negative_range(n_classes: int) -> tuple[float, float]:
    """Return the range of a score that is at least 0."""
    return 0.0, math.inf


@dataclass(frozen=True)
class NamedScore:
    """Score with a name, which can be saved and exported.

    Attributes
    ----------
    name : str
        Name in `MetaCal(score=...)`, on the command line and in files.
    formula : str
        "module:function" of the formula. formula(xp, x) returns a column, higher for less
        certain rows, and uses the operations of `metacal.formulas`. It is computed in NumPy, on
        a GPU, in an exported module and in ONNX.
    kernel : str
        "module:function" of a faster kernel. kernel(block of logits) returns one float64 per
        row, and NaN for a row with NaN or +inf or with every class masked. Empty means that the
        formula itself is used.
    replaces_finite_masks : bool
        Whether finite logits that stand for a mask are replaced by -inf first. False is only
        valid if the score, like a softmax, is the same without; an exported gate then saves a
        comparison.
    value_range : function
        Returns the lowest and the highest value for a number of classes.
    absolute_error : bool
        Whether rounding errors are absolute, as those of a sum of terms of either sign, and not
        relative to the score.
    needs_logits : bool
        Whether the score is meaningless for probabilities, which are logits up to a constant.
    unit : str
        Unit of the score, as a report names it beside a threshold.

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
    replaces_finite_masks: bool = True
    value_range: ValueRange = get_unbounded_range
    absolute_error: bool = False
    needs_logits: bool = False
    unit: str = ""

    @cached_property
    def compute_unrounded(self) -> Callable[[NDArray[Any]], Float]:
        """Kernel that computes the score before it is rounded."""
        if self.kernel:
            return import_object(self.kernel)
        formula_kernel = import_object("metacal.kernels:FormulaKernel")
        return formula_kernel(self.formula_function())

    def formula_function(self) -> Callable[..., Any]:
        """Import and return the formula."""
        return import_object(self.formula)

    @property
    def grid(self) -> Grid:
        """Grid to which the score is rounded."""
        grid_name = "ABSOLUTE_GRID" if self.absolute_error else "RELATIVE_GRID"
        return import_object(f"metacal.kernels.grid:{grid_name}")

    def __call__(self, block: NDArray[Any]) -> Float:
        """Compute the rounded score of each row, NaN for an invalid row."""
        round_to_grid = import_object("metacal.kernels:round_to_grid")
        return round_to_grid(self.compute_unrounded(block), self.grid)


def _score_with_kernel(name: str, formula: str, **properties: Any) -> NamedScore:
    """Build a score whose kernel has the name of its formula."""
    return NamedScore(
        name,
        formula=f"metacal.formulas.rowwise:{formula}",
        kernel=f"metacal.kernels:{formula}",
        replaces_finite_masks=False,
        **properties,
    )


_SCORES = (
    _score_with_kernel("entropy", "entropy", value_range=get_entropy_range, unit="nats"),
    _score_with_kernel(
        "max_probability",
        "one_minus_max_probability",
        value_range=get_error_probability_range,
        unit="1 - probability",
    ),
    _score_with_kernel(
        "margin",
        "negative_margin",
        value_range=get_non_positive_range,
        unit="difference of logits",
    ),
    NamedScore(
        "maxlogit_pnorm",
        formula="metacal.formulas.rowwise:maxlogit_pnorm",
        value_range=get_non_negative_range,
        unit="ratio of logits",
    ),
    _score_with_kernel(
        "energy",
        "free_energy",
        absolute_error=True,
        needs_logits=True,
        unit="nats",
    ),
)
#: Score name with which `fit` chooses the best of several scores.
AUTO_SCORE = "auto"
#: Scores by name.
NAMED: dict[str, NamedScore] = {score.name: score for score in _SCORES}
#: Class names of the learned scores in `metacal.scores.learned`.
LEARNED_SCORE_NAMES = ("LogisticRanker", "PairwiseRanker")


def get_delta_fractions_of_auto_scores(n_classes: int) -> dict[str, float]:
    """Return the scores among which `score="auto"` chooses, with their shares of delta.

    Entropy is rarely far from the best and has the largest share. The others are much better for
    a few networks, which a tenth of delta shows as well (docs/ranking.md has the numbers). For
    two classes all scores rank the rows alike.
    """
    if n_classes > 2:
        return {"entropy": 0.8, "margin": 0.1, "maxlogit_pnorm": 0.1}
    return {"entropy": 1.0}


def register_score(score: NamedScore) -> None:
    """Add a score of another package, which can then be chosen, saved and exported.

    It must be registered before a file that names it is loaded.

    Examples
    --------
    >>> register_score(NAMED["margin"])
    Traceback (most recent call last):
    metacal.errors.InputError: A score named 'margin' is already registered. Choose another name.
    """
    if score.name in NAMED or score.name in LEARNED_SCORE_NAMES or score.name == AUTO_SCORE:
        raise InputError(
            f"A score named {score.name!r} is already registered. Choose another name."
        )
    module, colon, function = score.formula.partition(":")
    if not (module and colon and function):
        raise InputError(
            f"The formula of the score {score.name!r} must have the form 'module:function', but"
            f" got {score.formula!r}."
        )
    NAMED[score.name] = score
