"""Scale on which items of several types are comparable.

Scores of different types mean different things: 0.8 may be nearly always right for a date, and a
guess for an address. A scale gives each item a *merit*, an estimated log-odds that it is harmless. It
is fitted on cases that certify nothing, so a bad fit costs accepted items, but no validity.

If all scores lie between 0 and 1, their log-odds are used, because a logistic regression on
probabilities cannot distinguish 0.99 from 0.999. On receipts this accepts 0.45 of the items in place
of 0.41, and 0.24 in place of 0.22 if the limit is strict (300 cases and a limit of 0.1, 1,000 and 0.02).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit, logit

from metacal.certification.case_items import CaseItems
from metacal.formulas import Codes, Flags, Float

# Standardised safety has this mean and this standard deviation within each type.
_STANDARD_MEAN = 2.0
_STANDARD_STD = 2.0

# Standard deviations of the normal prior of the intercept and of the slope of a type. The prior mean
# is the fit to all types together.
_PRIOR_STD = (1.5, 0.5)

# The same if the user declares that the types have one scale. With 30 types on one scale this accepts
# 0.56 of the items in place of 0.52.
_SAME_SCALE_PRIOR_STD = (0.3, 0.1)

# The fit to all types together has a weak prior, so that it exists if no item is harmful.
_COMMON_INTERCEPT = 0.0
_COMMON_SLOPE = 0.5
_COMMON_PRIOR_STD = 3.0

# Probabilities nearer to 0 or 1 than one in a million are treated alike.
_LARGEST_LOG_ODDS = float(logit(1.0 - 1e-6))

# Smallest slope, because merit must rise with safety.
_MIN_SLOPE = 0.05

_N_NEWTON_STEPS = 25
_LARGEST_NEWTON_STEP = 2.0


@dataclass(frozen=True, eq=False)
class TypeScale:
    """Scale from safety to merit for each type.

    Attributes
    ----------
    intercepts, slopes : array of float of shape (n_types,)
        Merit of an item of type j is intercepts[j] + slopes[j] * value, where the value is the safety
        or its log-odds. Every slope is positive.

    is_fitted : array of bool of shape (n_types,)
        Whether the cases that the scale was fitted on have an item of each type.

    probability_sign : float, default=0.0
        0 if the values are the safety. 1 if they are the log-odds of the safety. -1 if the safety is
        a negated probability, and the values are the negated log-odds of the probability.
    """

    intercepts: Float
    slopes: Float
    is_fitted: Flags
    probability_sign: float = 0.0

    @property
    def n_types(self) -> int:
        """Number of types."""
        return len(self.slopes)

    def compute_merit(self, safety: Float, types: Codes) -> Float:
        """Compute the merit of items."""
        values = _convert_to_values(safety, self.probability_sign)
        return self.intercepts[types] + self.slopes[types] * values

    def convert_to_safety(self, merit: float | Float) -> Float:
        """Convert a merit, or one for each type, to a cut of each type.

        The items of a type whose safety is above its cut are those of higher merit.
        """
        values = (merit - self.intercepts) / self.slopes
        if self.probability_sign == 0.0:
            return values
        cuts = self.probability_sign * expit(self.probability_sign * values)
        # All safeties beyond the largest log-odds have the same merit, so none of them is higher.
        cuts[values >= _LARGEST_LOG_ODDS] = np.inf
        cuts[values < -_LARGEST_LOG_ODDS] = -np.inf
        return cuts


def build_identity_scale(n_types: int) -> TypeScale:
    """Build the scale on which merit is safety."""
    return TypeScale(
        intercepts=np.zeros(n_types), slopes=np.ones(n_types), is_fitted=np.ones(n_types, bool)
    )


def fit_type_scale(items: CaseItems, *, same_scale: bool) -> TypeScale:
    """Fit the scale by a logistic regression for each type, shrunk to that of all types.

    Parameters
    ----------
    items : CaseItems
        Labelled items of the pilot cases.

    same_scale : bool
        Whether the safety of all types has one scale, because one model computes it. It is then
        standardised by one mean and standard deviation, and the fits of the types are nearly equal.

    Returns
    -------
    TypeScale
    """
    probability_sign = _find_probability_sign(items.safety)
    values = _convert_to_values(items.safety, probability_sign)
    means, stds = _compute_moments(values, items, same_scale=same_scale)
    standardised = _STANDARD_STD * (values - means[items.types]) / stds[items.types]
    standardised += _STANDARD_MEAN
    is_harmless = ~items.is_harmful
    common = _fit_logistic(
        standardised,
        is_harmless,
        prior_mean=np.array([_COMMON_INTERCEPT, _COMMON_SLOPE]),
        prior_std=np.full(2, _COMMON_PRIOR_STD),
    )
    coefficients = np.tile(common, (items.n_types, 1))
    prior_std = np.array(_SAME_SCALE_PRIOR_STD if same_scale else _PRIOR_STD)
    is_fitted = np.bincount(items.types, minlength=items.n_types) > 0
    for code in np.flatnonzero(is_fitted):
        is_of_type = items.types == code
        coefficients[code] = _fit_logistic(
            standardised[is_of_type], is_harmless[is_of_type], common, prior_std
        )
    slopes = coefficients[:, 1] * _STANDARD_STD / stds
    intercepts = coefficients[:, 0] + coefficients[:, 1] * _STANDARD_MEAN - slopes * means
    return TypeScale(
        intercepts=intercepts,
        slopes=slopes,
        is_fitted=is_fitted,
        probability_sign=probability_sign,
    )


def _find_probability_sign(safety: Float) -> float:
    """Return 1 if all safeties are probabilities, -1 if they are negated ones, and 0 otherwise."""
    if len(safety) == 0:
        return 0.0
    for sign in (1.0, -1.0):
        probabilities = sign * safety
        if probabilities.min() >= 0.0 and probabilities.max() <= 1.0:
            return sign
    return 0.0


def _convert_to_values(safety: Float, probability_sign: float) -> Float:
    """Return the safety, or its log-odds if it is a probability."""
    if probability_sign == 0.0:
        return safety
    log_odds = logit(np.clip(probability_sign * safety, 0.0, 1.0))
    return probability_sign * np.clip(log_odds, -_LARGEST_LOG_ODDS, _LARGEST_LOG_ODDS)


def _compute_moments(values: Float, items: CaseItems, *, same_scale: bool) -> tuple[Float, Float]:
    """Compute the mean and the standard deviation of the values of each type."""
    all_mean = float(values.mean()) if len(values) else 0.0
    all_std = float(values.std()) if len(values) else 0.0
    if not all_std > 0.0:
        all_std = 1.0
    means = np.full(items.n_types, all_mean)
    stds = np.full(items.n_types, all_std)
    if same_scale:
        return means, stds
    for code in range(items.n_types):
        values_of_type = values[items.types == code]
        if len(values_of_type) == 0:
            continue
        means[code] = values_of_type.mean()
        # The spread of a type with equal scores is unknown, so that of all types is used.
        if values_of_type.std() > 0.0:
            stds[code] = values_of_type.std()
    return means, stds


def _fit_logistic(values: Float, is_harmless: Flags, prior_mean: Float, prior_std: Float) -> Float:
    """Fit P(harmless) = sigmoid(intercept + slope * value) with a normal prior.

    Returns
    -------
    array of float of shape (2,)
        Intercept and slope. The slope is at least `_MIN_SLOPE`.
    """
    coefficients = _maximize_posterior(values, is_harmless, prior_mean, prior_std, slope=None)
    if coefficients[1] < _MIN_SLOPE:
        coefficients = _maximize_posterior(
            values, is_harmless, prior_mean, prior_std, slope=_MIN_SLOPE
        )
    return coefficients


def _maximize_posterior(
    values: Float,
    is_harmless: Flags,
    prior_mean: Float,
    prior_std: Float,
    slope: float | None,
) -> Float:
    """Maximize the posterior by Newton's method, with a fixed slope if one is given."""
    design = np.column_stack([np.ones(len(values)), values])
    precision = 1.0 / prior_std**2
    coefficients = prior_mean.astype(np.float64).copy()
    if slope is not None:
        coefficients[1] = slope
    for _ in range(_N_NEWTON_STEPS):
        probability = expit(design @ coefficients)
        gradient = design.T @ (is_harmless - probability)
        gradient -= precision * (coefficients - prior_mean)
        weights = probability * (1.0 - probability)
        curvature = design.T @ (design * weights[:, None]) + np.diag(precision)
        if slope is None:
            step = np.linalg.solve(curvature, gradient)
        else:
            step = np.array([gradient[0] / curvature[0, 0], 0.0])
        # A bounded step keeps the first iterations from overshooting.
        step *= min(1.0, _LARGEST_NEWTON_STEP / max(np.abs(step).max(), 1e-300))
        coefficients += step
        if np.abs(step).max() < 1e-10:
            break
    return coefficients
