"""Formulas of a few statistics per row, without the logits themselves.

One pass over the table computes the statistics, so the formulas need no further pass. They work on
arrays and tensors, because NumPy and torch have the operations under the same names: `library` is
`numpy` or `torch`.

**Temperature with a uniform component.** The probability of the true class is q = (1 - ε)·p + ε·u,
where p = softmax(b·x)_y and u is one over the number of possible classes. The columns of
`temperature_statistics`, computed at one inverse temperature, determine q for any ε and for other inverse
temperatures nearby.

**Curve of the confidence.** Let q = (1 - ε)·softmax(b·x) + ε/K. The predicted class gets probability σ(s(z)),
where s is the curve and z the log-odds of the largest entry of q. The other classes share the rest
in proportion to q, so each of them is its entry of q times one number per row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Indices of the columns of `temperature_statistics`, where d = x - max x are the gaps of a row.
#: `OTHERS_SUM` is the sum of e^{bd} over all classes but the predicted class.
#: The next four columns are the cumulants of d under softmax(b·x).
#: `LABEL_GAP` is d of the true class, and `N_POSSIBLE` the number of unmasked classes.
(
    OTHERS_SUM,
    MEAN_GAP,
    GAP_VARIANCE,
    THIRD_CUMULANT,
    FOURTH_CUMULANT,
    LABEL_GAP,
    N_POSSIBLE,
    IS_CORRECT,
) = range(8)
#: Smallest ratio of the predicted class's probability to any other, so that there is no tie.
MIN_PREDICTION_RATIO = 1.0 + 1e-6
#: Largest exponent of `exp` that does not overflow.
MAX_EXPONENT = 700.0


def cumulants(m1: Any, m2: Any, m3: Any, m4: Any) -> tuple[Any, Any, Any, Any]:
    """Compute the first four cumulants from the first four moments.

    Returns
    -------
    mean, variance, third, fourth
        The third cumulant is the third central moment.

    Examples
    --------
    >>> cumulants(0.5, 0.5, 0.5, 0.5)  # a fair coin
    (0.5, 0.25, 0.0, -0.125)
    """
    squared_mean = m1 * m1
    variance = m2 - squared_mean
    third_cumulant = m3 - m1 * (3.0 * m2 - 2.0 * squared_mean)
    fourth_cumulant = (
        m4 - 4.0 * m3 * m1 - 3.0 * m2 * m2 + 6.0 * squared_mean * (2.0 * m2 - squared_mean)
    )
    return m1, variance, third_cumulant, fourth_cumulant


def log_partition(library: Any, row_statistics: Any, b_change: Any) -> tuple[Any, Any, Any]:
    """Compute log Σ e^{bd} and its first two derivatives in b, for each row.

    The cumulants are the derivatives of the log partition function. The result is its Taylor
    series, with an error of fifth order in the change of b. Far below the largest logit the series
    may be negative, so the value and the second derivative are clipped at 0.

    Parameters
    ----------
    library : module
        `numpy` or `torch`.

    row_statistics : array or tensor of shape (8, n_rows)
        Columns of `temperature_statistics`.

    b_change : float, or array of shape (n_rows,)
        b minus the inverse temperature at which the columns were computed.

    Returns
    -------
    log_sum_exp, first_derivative, second_derivative : arrays of shape (n_rows,)
    """
    log_sum_exp = library.log1p(row_statistics[OTHERS_SUM])
    mean = row_statistics[MEAN_GAP]
    variance = row_statistics[GAP_VARIANCE]
    if isinstance(b_change, float) and b_change == 0.0:
        return log_sum_exp, mean, variance
    third_cumulant = row_statistics[THIRD_CUMULANT]
    fourth_cumulant = row_statistics[FOURTH_CUMULANT]
    log_sum_exp = log_sum_exp + b_change * (
        mean
        + b_change
        * (0.5 * variance + b_change * (third_cumulant / 6.0 + (b_change / 24.0) * fourth_cumulant))
    )
    first_derivative = mean + b_change * (
        variance + b_change * (0.5 * third_cumulant + (b_change / 6.0) * fourth_cumulant)
    )
    second_derivative = variance + b_change * (third_cumulant + (0.5 * b_change) * fourth_cumulant)
    return log_sum_exp.clip(0.0), first_derivative, second_derivative.clip(0.0)


def mixture_loss_and_derivatives(
    library: Any,
    row_statistics: Any,
    weights: Any,
    b_of_statistics: float,
    b: float,
    uniform_weight: float,
) -> Any:
    """Sum the loss -log q over rows, with its gradient in (log b, ε) and its curvature.

    With a = log b, g = d log p / da, h = d²log p / da² and r = (1 - ε) p / q::

        L_a = -r g
        L_aa = -r h - r (1 - r) g²
        L_e = (p - u) / q
        L_ee = L_e²
        L_ae = p u g / q²

    Parameters
    ----------
    library : module
        `numpy` or `torch`.

    row_statistics : array or tensor of shape (8, n_rows)
        Columns of `temperature_statistics`.

    weights : array or tensor of shape (n_rows,) or None
        Row weights.

    b_of_statistics : float
        Inverse temperature at which the columns were computed, near b.

    b : float
        Inverse temperature.

    uniform_weight : float
        Weight ε of the uniform distribution.

    Returns
    -------
    array or tensor of shape (6,)
        L, L_a, L_e, L_aa, L_ae, L_ee.
    """
    label_gap = row_statistics[LABEL_GAP]
    uniform_probability = 1.0 / row_statistics[N_POSSIBLE]
    log_sum_exp, mean_gap, gap_variance = log_partition(
        library, row_statistics, b_change=b - b_of_statistics
    )
    softmax_p = library.exp(b * label_gap - log_sum_exp)
    mixture_p = (1.0 - uniform_weight) * softmax_p + uniform_weight * uniform_probability
    inverse_mixture_p = 1.0 / mixture_p
    log_p_slope = b * (label_gap - mean_gap)
    softmax_share = (1.0 - uniform_weight) * softmax_p * inverse_mixture_p
    share_times_slope = softmax_share * log_p_slope
    loss = -library.log(mixture_p)
    slope_in_log_b = -share_times_slope
    slope_in_weight = (softmax_p - uniform_probability) * inverse_mixture_p
    curvature_in_log_b = (
        (b * b) * softmax_share * gap_variance
        - share_times_slope
        - (share_times_slope - softmax_share * share_times_slope) * log_p_slope
    )
    mixed_derivative = (
        softmax_p * uniform_probability * log_p_slope * inverse_mixture_p * inverse_mixture_p
    )
    curvature_in_weight = slope_in_weight * slope_in_weight
    row_terms = (
        loss,
        slope_in_log_b,
        slope_in_weight,
        curvature_in_log_b,
        mixed_derivative,
        curvature_in_weight,
    )
    if weights is None:
        return library.stack([term.sum() for term in row_terms])
    return library.stack([(term * weights).sum() for term in row_terms])


def confidence_log_odds(
    library: Any, row_statistics: Any, b_of_statistics: float, b: float, uniform_weight: float
) -> Any:
    """Compute log(max q / (1 - max q)) of each row without cancellation, for ε above 0.

    Parameters
    ----------
    library, row_statistics, b_of_statistics, b, uniform_weight
        As in `mixture_loss_and_derivatives`.

    Returns
    -------
    array or tensor of shape (n_rows,)
    """
    uniform_probability = 1.0 / row_statistics[N_POSSIBLE]
    log_sum_exp, _, _ = log_partition(library, row_statistics, b_change=b - b_of_statistics)
    largest_p = (1.0 - uniform_weight) * library.exp(
        -log_sum_exp
    ) + uniform_weight * uniform_probability
    others_p = -(1.0 - uniform_weight) * library.expm1(-log_sum_exp) + uniform_weight * (
        1.0 - uniform_probability
    )
    return library.log(largest_p) - library.log(others_p)


@dataclass(frozen=True, eq=False)
class Curve:
    """Quadratic spline s with a piecewise-linear slope, constant beyond the outer knots.

    Attributes
    ----------
    knots : array of shape (n_knots,)
        Knots in increasing order.

    slopes : array of shape (n_knots,)
        Slope of s at each knot.

    intercept : float
        s at the first knot.

    Examples
    --------
    >>> curve = Curve(np.array([0.0, 2.0]), np.array([1.0, 0.0]), 0.5)
    >>> curve.value(np.array([-1.0, 1.0, 3.0]))
    array([-0.5 ,  1.25,  1.5 ])
    """

    knots: NDArray[np.float64]
    slopes: NDArray[np.float64]
    intercept: float

    @cached_property
    def heights(self) -> NDArray[np.float64]:
        """Value of the spline at each knot."""
        rises = 0.5 * (self.slopes[1:] + self.slopes[:-1]) * np.diff(self.knots)
        return self.intercept + np.append(0.0, np.cumsum(rises))

    @cached_property
    def knots_slopes_heights(self) -> NDArray[np.float64]:
        """Knots, slopes and heights in one array, for the C kernel."""
        return np.concatenate([self.knots, self.slopes, self.heights])

    @cached_property
    def packed_pieces(self) -> NDArray[np.float64]:
        """Array that encodes the curve for the Triton kernels.

        Four numbers of each piece between two knots follow: left knot, width, slope at the left knot,
        and half of the change of the slope per unit of length. The kernels in Triton read these.
        """
        widths = np.diff(self.knots)
        half_slope_changes = 0.5 * np.diff(self.slopes) / widths
        numbers_beyond_outer_knots = [
            self.knots[0],
            self.knots[-1],
            self.heights[0],
            self.slopes[0],
            self.slopes[-1],
        ]
        numbers_of_pieces = np.column_stack(
            [self.knots[:-1], widths, self.slopes[:-1], half_slope_changes]
        )
        return np.append(numbers_beyond_outer_knots, numbers_of_pieces)

    def value(self, z: Any) -> Any:
        """Evaluate the curve at z. The result is NaN where z is NaN."""
        knots = self.knots
        slopes = self.slopes
        result = self.heights[0] + slopes[0] * (z - knots[0]).clip(None, 0.0)
        for piece in range(len(knots) - 1):
            width = knots[piece + 1] - knots[piece]
            distance = (z - knots[piece]).clip(0.0, width)
            half_slope_change = 0.5 * (slopes[piece + 1] - slopes[piece]) / width
            result = result + distance * (slopes[piece] + half_slope_change * distance)
        return result + slopes[-1] * (z - knots[-1]).clip(0.0, None)


@dataclass(frozen=True, eq=False)
class RowMap:
    """Map that a kernel can evaluate in one pass over the logits.

    The map is (1 - ε)·softmax(b·x) + ε/K. With a curve, the largest probability is then mapped by
    the curve, as in `compute_curve_factors`.

    Attributes
    ----------
    inverse_temperature : float
        Inverse temperature b.

    uniform_weight : float
        Weight ε of the uniform distribution.

    curve : Curve or None
        Curve of the log-odds of the largest probability.
    """

    inverse_temperature: float
    uniform_weight: float = 0.0
    curve: Curve | None = None


def compute_curve_factors(
    library: Any,
    others_p: Any,
    second_p: Any,
    uniform_probability: Any,
    uniform_weight: float,
    curve_value: Callable[[Any], Any],
) -> tuple[Any, Any, Any]:
    """Compute the factors with which a curve rescales the probabilities of each row.

    The probabilities p = softmax(b·x) are first mixed with the uniform distribution. The predicted
    class then gets the probability σ(s(z)), where z is the log-odds of its mixed probability and s
    the curve. The other classes become p·scale + shift, and the predicted class becomes
    `prediction_p`, which never falls below another class.

    Parameters
    ----------
    library : module
        `numpy` or `torch`.

    others_p, second_p : array or tensor of shape (n_rows,)
        Sum and largest of the entries of p of the other classes.

    uniform_probability : array or tensor of shape (n_rows,)
        One over the number of possible classes.

    uniform_weight : float
        Weight ε of the uniform distribution.

    curve_value : callable
        Function that evaluates the curve s.

    Returns
    -------
    scale, shift, prediction_p : arrays or tensors of shape (n_rows,)
    """
    mixed_complement = (1.0 - uniform_weight) * others_p + uniform_weight * (
        1.0 - uniform_probability
    )
    mixed_prediction_p = (1.0 - uniform_weight) * (
        1.0 - others_p
    ) + uniform_weight * uniform_probability
    log_odds = library.log(mixed_prediction_p) - library.log(mixed_complement)
    new_log_odds = curve_value(log_odds)
    # The predicted class must have at least `min_odds` times the probability of all other classes
    # together, so that it has more than the second largest class.
    mixed_second_p = (1.0 - uniform_weight) * second_p + uniform_weight * uniform_probability
    min_odds = MIN_PREDICTION_RATIO * mixed_second_p / mixed_complement
    is_only_class = mixed_complement == 0.0
    max_complement = 1.0 / (1.0 + min_odds)
    exponent = library.clip(new_log_odds, -MAX_EXPONENT, MAX_EXPONENT)
    new_complement = 1.0 / (1.0 + library.exp(exponent))
    negative_exponent = library.clip(-new_log_odds, -MAX_EXPONENT, MAX_EXPONENT)
    prediction_p = 1.0 / (1.0 + library.exp(negative_exponent))
    is_too_large = new_complement > max_complement
    prediction_p = library.where(is_too_large, min_odds * max_complement, prediction_p)
    new_complement = library.where(is_too_large, max_complement, new_complement)
    # The only possible class of a row keeps probability 1. In such a row `others_p` is 0, so that
    # 1 + others_p is an array of ones, and 0 · others_p an array of zeros, as `where` needs them.
    divisor = library.where(is_only_class, 1.0 + others_p, mixed_complement)
    complement_factor = library.where(is_only_class, 0.0 * others_p, new_complement / divisor)
    scale = (1.0 - uniform_weight) * complement_factor
    shift = uniform_weight * uniform_probability * complement_factor
    return scale, shift, library.where(is_only_class, 1.0 + others_p, prediction_p)
