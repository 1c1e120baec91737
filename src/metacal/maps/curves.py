"""Piecewise curves of a probability, and the maps that are built from them.

**One-vs-rest** maps have one curve per class. The curve of class k maps the probability of
the class to the frequency with which it is the true class. For more than two classes, the
K values are divided by their sum. Two classes need one curve, that of the second class.
Isotonic regression, histogram binning and BBQ differ only in how they fit the curve; all
give a `PiecewiseMap`.

**Top-label** maps have one curve, which maps the confidence to the probability that the
prediction is correct. The other classes share the rest in proportion. Gupta & Ramdas,
"Top-label calibration and multiclass-to-binary reductions", ICLR 2022; unlike theirs, one
curve serves all predicted classes. It applies to tempered probabilities softmax(b x),
because an over-confident network also distributes the rest too unevenly.

A curve is either piecewise linear ("linear") or a step function ("step"), whose pieces
include their right end.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.errors import InputError
from metacal.formulas import Float
from metacal.formulas import curves as formulas
from metacal.formulas.operations import NUMPY, Operations
from metacal.formulas.temperature import tempered_softmax
from metacal.maps.map import Map, TemperedMap

#: Number of rounding errors by which the knots of a step function are shifted up.
#: The shift assigns a probability that equals a knot to the same step in every runtime.
_SHIFT_IN_ROUNDING_ERRORS = 8.0
#: Largest relative rounding error of a double.
_UNIT_ROUNDOFF = 2.0**-53
#: Largest shift of a knot, as a fraction of the distance to the next knot.
_MAX_SHIFT_FRACTION = 0.25


class OneVsRestMap(Map):
    """Map with one curve per class, or one curve for two classes."""

    preserves_accuracy = False

    @property
    def n_classes(self) -> int:
        """Number of classes the map was fitted for."""
        return 2 if self.n_curves == 1 else self.n_curves

    @property
    @abstractmethod
    def n_curves(self) -> int:
        """Number of curves: one per class, or one for two classes."""


class CurvesMap(TemperedMap):
    """Map with concatenated curves, as the formula `evaluate_curves` reads them."""

    knots: Float
    values: Float
    offsets: NDArray[np.int64]
    interpolation: str

    derived: tuple[str, ...] = (
        "offsets",
        "rounding_tolerant_knots",
        "slopes_after_knots",
        "max_knots",
    )

    def check(self) -> None:
        """Raise InputError unless the fields are valid curves on [0, 1]."""
        super().check()
        if self.interpolation not in ("linear", "step"):
            raise InputError(
                f"interpolation must be 'linear' or 'step', but got {self.interpolation!r}."
            )
        self._check_shapes()
        self._check_knots_and_values()

    def _check_shapes(self) -> None:
        """Raise InputError unless offsets, knots and values have matching shapes."""
        knots = self.knots
        values = self.values
        offsets = self.offsets
        is_flat = offsets.ndim == 1 and len(offsets) >= 2
        if not is_flat or offsets[0] != 0 or (np.diff(offsets) < 1).any():
            raise InputError(
                "offsets must start at 0 and increase, with one entry more than there are curves."
            )
        if knots.shape != (offsets[-1],) or values.shape != knots.shape:
            raise InputError(
                f"knots and values must both have {offsets[-1]} entries, but got arrays of shape"
                f" {knots.shape} and {values.shape}."
            )

    def _check_knots_and_values(self) -> None:
        """Raise InputError unless each curve is valid on [0, 1]."""
        knots = self.knots
        values = self.values
        is_step = self.interpolation == "step"
        first_knots_of_curves = self.offsets[:-1]
        has_predecessor = np.ones(len(knots), dtype=bool)
        has_predecessor[first_knots_of_curves] = False
        later_indices = np.flatnonzero(has_predecessor)
        knot = knots[later_indices]
        previous_knot = knots[later_indices - 1]
        # Two knots may be zero, because the first step may contain only the probability 0.
        is_repeated_zero_knot = (knot == 0.0) & (previous_knot == 0.0) & is_step
        is_valid_successor = (knot > previous_knot) | is_repeated_zero_knot
        are_knots_in_range = ((knots >= 0.0) & (knots <= 1.0)).all()
        if not are_knots_in_range or not is_valid_successor.all():
            raise InputError("The knots of a curve must lie in [0, 1] and increase strictly.")
        if not ((values >= 0.0) & (values <= 1.0)).all():
            raise InputError("The values of a curve must lie in [0, 1].")
        decreases = values[later_indices] < values[later_indices - 1]
        if not is_step and decreases.any():
            raise InputError("The values of an increasing curve must not decrease.")

    @cached_property
    def rounding_tolerant_knots(self) -> Float:
        """Knots, shifted so that rounding errors cannot change the step of a probability.

        A probability up to and including a knot belongs to the step before it. The knots of a
        step function are therefore shifted up by more than the rounding error of a
        probability, but by no more than a quarter of the distance to the next knot. The knots
        of a linear curve are unchanged.

        Examples
        --------
        >>> steps = TopLabelMap(np.array([0.0, 0.5]), np.array([0.6, 0.8]), "step")
        >>> bool(steps.rounding_tolerant_knots[1] > 0.5)
        True
        """
        if self.interpolation == "linear":
            return self.knots
        with np.errstate(divide="ignore", invalid="ignore"):
            relative_error = _UNIT_ROUNDOFF * (1.0 + np.abs(np.log(self.knots)))
            shifted_knots = self.knots * (1.0 + _SHIFT_IN_ROUNDING_ERRORS * relative_error)
        shifted_knots = np.where(self.knots > 0.0, shifted_knots, 0.0)
        distance_to_next = np.append(np.diff(self.knots), np.inf)
        last_knots_of_curves = self.offsets[1:] - 1
        distance_to_next[last_knots_of_curves] = np.inf
        highest_allowed_knots = self.knots + _MAX_SHIFT_FRACTION * distance_to_next
        limited_knots = np.minimum(shifted_knots, highest_allowed_knots)
        return np.asarray(np.where(distance_to_next > 0.0, limited_knots, self.knots))

    @cached_property
    def slopes_after_knots(self) -> Float:
        """Slope from each knot to the next, zero after the last knot of a curve."""
        piece_width = np.diff(self.knots)
        slopes = np.zeros(len(self.knots))
        slopes[:-1] = np.diff(self.values) / np.where(piece_width > 0.0, piece_width, 1.0)
        slopes[self.offsets[1:] - 1] = 0.0
        return slopes

    @property
    def max_knots(self) -> int:
        """Largest number of knots of a curve."""
        return int(np.diff(self.offsets).max())


class OneCurveMap(CurvesMap):
    """Map with one curve for all classes."""

    @cached_property
    def offsets(self) -> NDArray[np.int64]:  # type: ignore[override]
        """Start and end of the curve in `knots`."""
        return np.array([0, len(self.knots)])


@dataclass(frozen=True, eq=False)
class PiecewiseMap(OneVsRestMap, CurvesMap):
    """One-vs-rest map q_k = curve_k(p_k) with p = softmax(b x), normalised to sum 1.

    Curve k has the knots `knots[offsets[k]:offsets[k + 1]]` and the corresponding `values`.
    If all q_k of a row are zero, the result is p. A masked class keeps probability zero.
    A single curve means two classes: it gives the probability of the second class.

    Examples
    --------
    >>> halves = PiecewiseMap(np.array([0.0, 0.5]), np.array([0.2, 0.9]), np.array([0, 2]), "step")
    >>> halves(np.array([[0.0, 2.0], [2.0, 0.0]])).round(3)
    array([[0.1, 0.9], [0.8, 0.2]])
    """

    knots: Float
    values: Float
    offsets: NDArray[np.int64]
    interpolation: str
    inverse_temperature: float = 1.0

    derived = (*CurvesMap.derived, "n_curves")
    formula = staticmethod(formulas.piecewise)

    @property
    def n_curves(self) -> int:
        """Number of curves: one per class, or one for two classes."""
        return len(self.offsets) - 1


@dataclass(frozen=True, eq=False)
class TopLabelMap(OneCurveMap):
    """Top-label map: the predicted class gets curve(max p), where p = softmax(b x).

    Class j gets its share p_j / (1 - max p) of the rest. The probability of the predicted
    class is always at least a millionth larger than that of the second class, so every
    prediction is preserved.

    Examples
    --------
    >>> steps = TopLabelMap(np.array([0.0, 0.9]), np.array([0.6, 0.8]), "step")
    >>> steps(np.log([[0.95, 0.04, 0.01], [0.5, 0.3, 0.2]])).round(3)
    array([[0.8 , 0.16, 0.04], [0.6 , 0.24, 0.16]])
    """

    knots: Float
    values: Float
    interpolation: str
    inverse_temperature: float = 1.0

    preserves_accuracy = True
    formula = staticmethod(formulas.top_label)


def get_one_vs_rest_columns(table: NDArray[Any]) -> NDArray[Any]:
    """Return the columns with a curve: all, or only the second of two classes."""
    return table[:, 1:] if table.shape[1] == 2 else table


def softmax(block: NDArray[Any], inverse_temperature: float = 1.0) -> Float:
    """Compute softmax(b x) of each row in float64.

    Curves must not depend on the precision in which the logits are stored.
    """
    probabilities = np.empty(block.shape)
    kernels.softmax(np.asarray(block, dtype=np.float64), inverse_temperature, probabilities)
    return probabilities


def evaluate_curve(knots: Float, values: Float, interpolation: str, points: Float) -> Float:
    """Evaluate one curve, which is constant beyond its outer knots.

    Parameters
    ----------
    knots, values : arrays of shape (n_knots,)
        The curve.

    interpolation : {"linear", "step"}
        Kind of curve.

    points : array
        Points at which to evaluate.

    Returns
    -------
    array of the shape of `points`

    Examples
    --------
    >>> knots, values = np.array([0.0, 1.0]), np.array([0.2, 0.6])
    >>> evaluate_curve(knots, values, "linear", np.array([0.5])).round(3)
    array([0.4])
    """
    if interpolation == "linear":
        return np.asarray(np.interp(points, knots, values))
    return np.asarray(values[np.searchsorted(knots[1:], points, side="left")])


def _evaluate_curves(_xp: Operations, fitted: CurvesMap, points: Float) -> Float:
    """Evaluate curve k at column k of the points.

    Curve k has the knots and values from `offsets[k]` to `offsets[k + 1]`.
    """
    knots = fitted.rounding_tolerant_knots
    values = fitted.values
    n_curves = len(fitted.offsets) - 1
    if n_curves == 1:
        return evaluate_curve(knots, values, fitted.interpolation, points)
    curve_values = np.empty(points.shape, order="F")
    for k, (start, stop) in enumerate(pairwise(fitted.offsets)):
        curve_values[:, k] = evaluate_curve(
            knots[start:stop], values[start:stop], fitted.interpolation, points[:, k]
        )
    return curve_values


def _compute_tempered_softmax(
    _xp: Operations, x: NDArray[Any], inverse_temperature: float
) -> Float:
    """Compute the formula `tempered_softmax` with the softmax kernel."""
    return softmax(x, inverse_temperature)


NUMPY.kernels[formulas.evaluate_curves] = _evaluate_curves
NUMPY.kernels[tempered_softmax] = _compute_tempered_softmax
