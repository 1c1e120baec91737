"""What every promise is: from two columns, ranking score and whether the prediction is right, to a `Certificate`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError
from metacal.kernels.grid import RELATIVE
from metacal.promises.certificate import Certificate, Guarantee, Quantity, accepts

Scores = NDArray[np.float64]
Flags = NDArray[np.bool_]
SAME_SOURCE = "new rows come from the same source as the calibration rows, which the classifier was not trained on"
RANKED = "accuracy falls as the score rises: accepting more never makes the accepted rows more accurate"


@runtime_checkable
class Constraint(Protocol):
    """What `MetaCal` needs of a promise."""

    def split(self, correct: Flags) -> tuple[Flags, Flags]:
        """The rows that choose the threshold and the rows that fit the base calibrator."""
        ...

    def certify(self, scores: Scores, correct: Flags) -> Certificate:
        """The threshold and its certificate."""
        ...


class Parameters:
    """`get_params` / `set_params` for a dataclass, so that scikit-learn can clone it and search over it."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def set_params(self, **params: Any) -> Self:
        """Change arguments in place, checked as in the constructor."""
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                raise InputError(f"{type(self).__name__} has no parameter {name!r}; it has {', '.join(known)}.")
            setattr(self, name, value)
        type(self)(**self.get_params())
        return self


class AllRows(Parameters):
    """The score looks at no label, so threshold and calibrator may both use every row."""

    def split(self, correct: Flags) -> tuple[Flags, Flags]:
        """All rows for both purposes."""
        everything = np.ones(len(correct), dtype=bool)
        return everything, everything


def describe(
    scores: Scores,
    correct: Flags,
    threshold: float,
    *,
    quantity: Quantity,
    target: float,
    delta: float | None,
    guarantee: Guarantee,
    rule: str,
    assumptions: tuple[str, ...],
    notes: tuple[str, ...] = (),
    max_miscoverage: float | None = None,
) -> Certificate:
    """A certificate for `threshold`, settled, with what the calibration rows look like under it.

    The scores are grid points: settling the threshold moves it past none of them.
    """
    threshold = RELATIVE.settled(threshold)
    accept = accepts(scores, threshold)
    return Certificate(
        quantity=quantity,
        target=target,
        delta=delta,
        guarantee=guarantee,
        threshold=threshold,
        rule=rule,
        n_rows=len(scores),
        n_correct=int(correct.sum()),
        n_accepted=int(accept.sum()),
        n_correct_accepted=int((accept & correct).sum()),
        highest_accepted=float(scores[accept].max()) if accept.any() else None,
        lowest_rejected=float(scores[~accept].min()) if not accept.all() else None,
        assumptions=assumptions,
        notes=notes,
        max_miscoverage=max_miscoverage,
    )


def require_some_correct(correct: Flags) -> None:
    """Raise when the classifier got every calibration row wrong."""
    if not correct.any():
        raise InputError(
            f"no calibration row is classified correctly (n_samples={len(correct)}): nothing can be promised. "
            "Check that the labels and the columns use the same class order."
        )


def columns(scores: Any, correct: Any) -> tuple[Scores, Flags]:
    """The two columns a constraint sees, checked; the scores on the grid, where `metacal.scores.named` puts its own."""
    scores, correct = np.asarray(scores, dtype=np.float64), np.asarray(correct)
    if scores.ndim != 1 or scores.shape != correct.shape or correct.dtype != bool:
        raise InputError(
            f"certify needs one score and one boolean per row; got shapes {scores.shape} and {correct.shape} "
            f"({correct.dtype})."
        )
    if np.isnan(scores).any():
        raise InputError("certify needs a score for every row; some are NaN.")
    require_some_correct(correct)
    return RELATIVE.rounded(scores), correct
