"""Scale on which items of several types are comparable.

Scores of different types mean different things: 0.8 may be nearly always right for a date, and a
guess for an address. A scale converts the safety of an item to its *harmless log-odds*, the estimated
log-odds that the item is harmless. It is fitted on pilot cases, which are not tested, so a bad fit
costs accepted items, but no validity.

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

# Mean and standard deviation of the standardised values within each type.
_STANDARD_MEAN = 2.0
_STANDARD_STD = 2.0

# Standard deviations of the normal prior of the intercept and of the slope of a type.
# The prior mean is the fit to all types together.
_PRIOR_STD_OF_INTERCEPT_AND_SLOPE = (1.5, 0.5)

# Standard deviations of the same prior if the user declares that all types have one scale.
# With 30 types on one scale, this accepts 0.56 of the items instead of 0.52.
_SAME_SCALE_PRIOR_STD = (0.3, 0.1)

# The fit to all types together has a weak prior, so that it exists if no item is harmful.
_COMMON_PRIOR_INTERCEPT = 0.0
_COMMON_PRIOR_SLOPE = 0.5
_COMMON_PRIOR_STD = 3.0

# Probabilities nearer to 0 or 1 than one in a million are treated alike.
_LARGEST_LOG_ODDS = float(logit(1.0 - 1e-6))

# Smallest slope, because the harmless log-odds must rise with the safety.
_MIN_SLOPE = 0.05

# Largest number of Newton steps, and largest change of a coefficient in one step.
_MAX_NEWTON_STEPS = 25
_LARGEST_NEWTON_STEP = 2.0

# Newton's method ends if no coefficient changes by this much.
_NEWTON_TOLERANCE = 1e-10

# Smallest denominator, to avoid a division by zero.
_TINY = 1e-300

# Value of `TypeScale.probability_sign` if the safety is not a probability.
_NOT_A_PROBABILITY = 0.0


@dataclass(frozen=True, eq=False)
class TypeScale:
    """Scale that converts safety to harmless log-odds for each item type.

    Attributes
    ----------
    intercepts, slopes : array of float of shape (n_types,)
        The harmless log-odds of an item of type j are intercepts[j] + slopes[j] * value, where the
        value is the safety or its log-odds. Every slope is positive.

    is_fitted : array of bool of shape (n_types,)
        Whether the cases that the scale was fitted on have an item of each type.

    probability_sign : float, default=0.0
        0 if the values are the safety. 1 if they are the log-odds of the safety. -1 if the safety is
        a negated probability, and the values are the negated log-odds of the probability.
    """

    intercepts: Float
    slopes: Float
    is_fitted: Flags
    probability_sign: float = _NOT_A_PROBABILITY

    @property
    def n_types(self) -> int:
        """Number of types."""
        return len(self.slopes)

    def compute_harmless_log_odds(self, safety: Float, types: Codes) -> Float:
        """Compute the log-odds that each item is harmless."""
        item_values = _convert_to_values(safety, self.probability_sign)
        return self.intercepts[types] + self.slopes[types] * item_values

    def convert_to_safety(self, harmless_log_odds: float | Float) -> Float:
        """Convert harmless log-odds to the safety cutoff of each type.

        The items of a type whose safety is above its cutoff are those with higher log-odds. The
        log-odds may be one number, or one for each type.
        """
        cutoff_values = (harmless_log_odds - self.intercepts) / self.slopes
        if self.probability_sign == _NOT_A_PROBABILITY:
            return cutoff_values
        cutoffs = self.probability_sign * expit(self.probability_sign * cutoff_values)
        # Log-odds are clipped, so beyond the largest ones no item has higher log-odds.
        cutoffs[cutoff_values >= _LARGEST_LOG_ODDS] = np.inf
        cutoffs[cutoff_values < -_LARGEST_LOG_ODDS] = -np.inf
        return cutoffs


def build_identity_scale(n_types: int) -> TypeScale:
    """Build the scale on which the harmless log-odds are the safety."""
    return TypeScale(
        intercepts=np.zeros(n_types), slopes=np.ones(n_types), is_fitted=np.ones(n_types, bool)
    )


def fit_type_scale(items: CaseItems, *, same_scale: bool) -> TypeScale:
    """Fit one logistic regression per item type, shrunk towards that of all types.

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
    item_values = _convert_to_values(items.safety, probability_sign)
    means, stds = _compute_moments(item_values, items, same_scale=same_scale)
    standardised_values = _STANDARD_STD * (item_values - means[items.types]) / stds[items.types]
    standardised_values += _STANDARD_MEAN
    coefficients = _fit_coefficients_by_type(standardised_values, items, same_scale=same_scale)
    standardised_intercepts = coefficients[:, 0]
    standardised_slopes = coefficients[:, 1]
    slopes = standardised_slopes * _STANDARD_STD / stds
    intercepts = standardised_intercepts + standardised_slopes * _STANDARD_MEAN - slopes * means
    n_items_by_type = np.bincount(items.types, minlength=items.n_types)
    return TypeScale(
        intercepts=intercepts,
        slopes=slopes,
        is_fitted=n_items_by_type > 0,
        probability_sign=probability_sign,
    )


def _fit_coefficients_by_type(values: Float, items: CaseItems, *, same_scale: bool) -> Float:
    """Fit a logistic regression for each item type, with a prior from all types.

    Returns
    -------
    array of float of shape (n_types, 2)
        Intercept and slope of each type. A type without items has those of all types.
    """
    is_harmless = ~items.is_harmful
    common_coefficients = _fit_logistic(
        values,
        is_harmless,
        prior_mean=np.array([_COMMON_PRIOR_INTERCEPT, _COMMON_PRIOR_SLOPE]),
        prior_std=np.full(2, _COMMON_PRIOR_STD),
    )
    prior_std = np.array(_SAME_SCALE_PRIOR_STD if same_scale else _PRIOR_STD_OF_INTERCEPT_AND_SLOPE)
    coefficients = np.tile(common_coefficients, (items.n_types, 1))
    for type_code in np.unique(items.types):
        is_of_type = items.types == type_code
        coefficients[type_code] = _fit_logistic(
            values[is_of_type],
            is_harmless[is_of_type],
            prior_mean=common_coefficients,
            prior_std=prior_std,
        )
    return coefficients


def _find_probability_sign(safety: Float) -> float:
    """Find whether the safety is a probability (1), a negated one (-1) or neither (0)."""
    if len(safety) == 0:
        return _NOT_A_PROBABILITY
    for sign in (1.0, -1.0):
        signed_safety = sign * safety
        if signed_safety.min() >= 0.0 and signed_safety.max() <= 1.0:
            return sign
    return _NOT_A_PROBABILITY


def _convert_to_values(safety: Float, probability_sign: float) -> Float:
    """Return the safety, or its log-odds if it is a probability."""
    if probability_sign == _NOT_A_PROBABILITY:
        return safety
    log_odds = logit(np.clip(probability_sign * safety, 0.0, 1.0))
    return probability_sign * np.clip(log_odds, -_LARGEST_LOG_ODDS, _LARGEST_LOG_ODDS)


def _compute_moments(values: Float, items: CaseItems, *, same_scale: bool) -> tuple[Float, Float]:
    """Compute the mean and the standard deviation of the values of each type."""
    common_mean = 0.0
    common_std = 0.0
    if len(values) > 0:
        common_mean = float(values.mean())
        common_std = float(values.std())
    if not common_std > 0.0:
        common_std = 1.0
    means = np.full(items.n_types, common_mean)
    stds = np.full(items.n_types, common_std)
    if same_scale:
        return means, stds
    for type_code in np.unique(items.types):
        values_of_type = values[items.types == type_code]
        means[type_code] = values_of_type.mean()
        # The spread of a type with equal scores is unknown, so that of all types is used.
        if values_of_type.std() > 0.0:
            stds[type_code] = values_of_type.std()
    return means, stds


def _fit_logistic(values: Float, is_harmless: Flags, prior_mean: Float, prior_std: Float) -> Float:
    """Fit P(harmless) = sigmoid(intercept + slope * value) with a normal prior.

    Returns
    -------
    array of float of shape (2,)
        Intercept and slope. The slope is at least `_MIN_SLOPE`.
    """
    coefficients = _maximize_posterior(values, is_harmless, prior_mean, prior_std)
    fitted_slope = coefficients[1]
    if fitted_slope < _MIN_SLOPE:
        coefficients = _maximize_posterior(
            values, is_harmless, prior_mean, prior_std, fixed_slope=_MIN_SLOPE
        )
    return coefficients


def _maximize_posterior(
    values: Float,
    is_harmless: Flags,
    prior_mean: Float,
    prior_std: Float,
    fixed_slope: float | None = None,
) -> Float:
    """Fit a logistic regression with a normal prior by Newton's method.

    If `fixed_slope` is given, only the intercept is fitted.
    """
    design = np.column_stack([np.ones(len(values)), values])
    prior_precision = 1.0 / prior_std**2
    coefficients = prior_mean.astype(np.float64).copy()
    if fixed_slope is not None:
        coefficients[1] = fixed_slope
    for _ in range(_MAX_NEWTON_STEPS):
        probabilities = expit(design @ coefficients)
        gradient = design.T @ (is_harmless - probabilities)
        gradient -= prior_precision * (coefficients - prior_mean)
        variances = probabilities * (1.0 - probabilities)
        negative_hessian = design.T @ (design * variances[:, None]) + np.diag(prior_precision)
        if fixed_slope is None:
            newton_step = np.linalg.solve(negative_hessian, gradient)
        else:
            intercept_step = gradient[0] / negative_hessian[0, 0]
            newton_step = np.array([intercept_step, 0.0])
        # A bounded step keeps the first iterations from overshooting.
        largest_change = max(np.abs(newton_step).max(), _TINY)
        newton_step *= min(1.0, _LARGEST_NEWTON_STEP / largest_change)
        coefficients += newton_step
        if np.abs(newton_step).max() < _NEWTON_TOLERANCE:
            break
    return coefficients
