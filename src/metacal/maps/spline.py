"""Spline calibration: a monotone spline of the log-odds of the confidence.

The idea is that of Gupta, Rahimi, Ajanthan, Mensink, Sminchisescu & Hartley, "Calibration
of Neural Networks using Splines", ICLR 2021: recalibrate the predicted class by a smooth
curve, without bins. They differentiate a spline through the cumulative accuracy, which
need not be monotone. Here the curve is monotone by construction and fitted by penalised
likelihood.

`metacal.maps.averaged_spline` fits such a spline to log-odds that are almost calibrated
already.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError
from metacal.formulas import Codes, Float
from metacal.formulas import curves as formulas
from metacal.formulas.curves import spline
from metacal.formulas.logits import scale_logits
from metacal.formulas.operations import NUMPY
from metacal.kernels.columns import Curve
from metacal.maps.fitting.spline import compute_weighted_quantiles, fit_spline_slopes
from metacal.maps.labelled import LabelledRows, Weights
from metacal.maps.map import Map, check_count, check_positive
from metacal.maps.temperature import fit_temperature
from metacal.rows import Rows


@dataclass(frozen=True, eq=False)
class SplineMap(Map):
    """Top-label map that replaces the log-odds z of the confidence by a spline s(z).

    The predicted class gets σ(s(z)), and the other classes share the rest in proportion.
    Confidence and proportions are those of the tempered softmax(b x). The slope of s is
    linear between neighbouring knots and constant beyond the outer knots, and s(first
    knot) is the intercept. Because the slopes are non-negative, s never decreases. The
    predicted class stays the most probable one (see `TopLabelMap`), so every prediction is
    preserved.

    Examples
    --------
    >>> halved = SplineMap(np.array([0.0]), np.array([0.5]), 0.0)
    >>> halved(np.array([[3.0, 0.0]])).round(3)  # softmax(x / 2)
    array([[0.818, 0.182]])
    """

    knots: Float
    slopes: Float
    intercept: float
    inverse_temperature: float = 1.0

    preserves_accuracy = True
    derived = ("n_knots",)
    formula = staticmethod(spline)

    def check(self) -> None:
        """Raise InputError unless the knots increase and the slopes are valid."""
        is_flat = self.knots.ndim == 1 and len(self.knots) > 0
        has_valid_knots = (
            is_flat
            and self.slopes.shape == self.knots.shape
            and np.isfinite(self.knots).all()
            and (np.diff(self.knots) > 0.0).all()
        )
        if not has_valid_knots:
            raise InputError(
                "A spline must have strictly increasing knots, and one slope for each knot."
            )
        if not (np.isfinite(self.slopes) & (self.slopes >= 0.0)).all():
            raise InputError("The slopes of a spline must be finite and nonnegative.")
        if not (isinstance(self.intercept, int | float) and np.isfinite(self.intercept)):
            raise InputError(f"intercept must be a finite number, but got {self.intercept!r}.")
        check_positive("inverse_temperature", self.inverse_temperature)

    @property
    def n_knots(self) -> int:
        """Number of knots."""
        return len(self.knots)

    @cached_property
    def curve(self) -> Curve:
        """The spline s, in the form that the kernels use."""
        return Curve(self.knots, self.slopes, float(self.intercept))


# `Curve.value` sums in the order of the fused kernels, so that both give the same bits.
NUMPY.kernels[formulas.spline_value] = lambda xp, fitted, z: fitted.curve.value(z)


def fit_spline(
    rows: Rows, labels: Codes, weights: Weights = None, *, n_knots: int = 7, tempered: bool = True
) -> SplineMap:
    """Fit the probability of correctness by an increasing spline of the log-odds.

    The knots are quantiles of the log-odds z. With slopes g_1, ..., g_m >= 0 at the knots
    and c = s(first knot), the fit minimises::

        Σ w (log(1 + e^s(z)) - correct s(z))  +  ½ Σ (g_{i+1} - g_i)²
            +  ½ 0.01 (Σ (g_i - 1)² + (c - first knot)²)

    This is a convex problem in m + 1 parameters, solved by projected Newton steps. It takes
    O(n K) time once, O(n m²) time per step and O(n) memory.

    Parameters
    ----------
    rows : Rows
        Rows of logits.

    labels : array of int of shape (n_rows,)
        Column index of the true class of each row.

    weights : array of shape (n_rows,), optional
        Weight of each row.

    n_knots : int, default=7
        Number of knots.

    tempered : bool, default=True
        Whether to fit a temperature first. It determines how the other classes share the
        rest of the probability.

    Returns
    -------
    SplineMap
    """
    n_knots = check_count("n_knots", n_knots, usual=7)
    inverse_temperature = 1.0
    if tempered:
        inverse_temperature = fit_temperature(rows, labels, weights).inverse_temperature
    sample = LabelledRows(rows, labels, weights).drop_zero_weight_rows()
    log_odds = sample.rows.compute_column(partial(compute_tempered_log_odds, inverse_temperature))
    row_weights = sample.weights_or_ones
    knots = compute_weighted_quantiles(log_odds, row_weights, n_knots)
    identity_parameters = np.append(np.ones(len(knots)), knots[0])
    slopes_and_intercept = fit_spline_slopes(
        log_odds,
        correct=sample.compute_correctness(),
        weights=row_weights,
        knots=knots,
        prior_mean=identity_parameters,
        method_name="spline calibration",
    )
    return SplineMap(
        knots=knots,
        slopes=slopes_and_intercept[:-1],
        intercept=float(slopes_and_intercept[-1]),
        inverse_temperature=inverse_temperature,
    )


def confidence_log_odds(block: NDArray[Any]) -> Float:
    """Compute log(max p / (1 - max p)) of each row accurately, at most 700 in size."""
    return np.asarray(NUMPY.evaluate(formulas.confidence_log_odds, block)[:, 0])


def compute_tempered_log_odds(inverse_temperature: float, block: NDArray[Any]) -> Float:
    """Compute the log-odds of the confidence of the tempered softmax(b x)."""
    return confidence_log_odds(scale_logits(block, inverse_temperature))
