"""Logistic model that makes the scores of several item types comparable.

Scores of different types mean different things: 0.8 may be nearly always right for a date, and a
guess for an address. The model converts the safety of an item to its *harmless log-odds*, the
estimated log-odds that the item is harmless. It is fitted on pilot cases, which are not tested, so a
bad fit costs accepted items, but no validity.

If all scores lie between 0 and 1, their log-odds are used, because a logistic regression on
probabilities cannot distinguish 0.99 from 0.999. On receipts this accepts 0.45 of the items in place
of 0.41, and 0.24 in place of 0.22 if the limit is strict (300 cases and a limit of 0.1, 1,000 and 0.02).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from scipy.special import expit, logit

from metacal.certification.case_items import CLEAR_EVERY_ITEM, CLEAR_NO_ITEM, CaseItems
from metacal.formulas import Codes, Flags, Float

# Mean and standard deviation to which the feature of each type is rescaled before the fit.
# Both values are typical of log-odds, so that the priors suit scores in any unit.
_TYPICAL_LOG_ODDS_MEAN = 2.0
_TYPICAL_LOG_ODDS_STD = 2.0

# Prior standard deviations of the intercept and the slope of one item type.
# The mean of the prior is the fit to the items of all types.
_PRIOR_STD_OF_INTERCEPT_AND_SLOPE = (1.5, 0.5)

# Prior standard deviations if the user declares that all types have the same scale.
# In a simulation with 30 types of the same scale, the narrow prior accepts 56% of the items.
# The prior for types with different scales accepts 52% of the items.
_SAME_SCALE_PRIOR_STD = (0.3, 0.1)

# Weak prior of the fit to all types, so that the fit exists even if no item is harmful.
_COMMON_PRIOR_INTERCEPT = 0.0
_COMMON_PRIOR_SLOPE = 0.5
_COMMON_PRIOR_STD = 3.0

# Log-odds are clipped to those of the probabilities 1e-6 and 1 - 1e-6.
_LARGEST_LOG_ODDS = float(logit(1.0 - 1e-6))

# Lower bound on the slope, so that the log-odds rise with the safety.
_MIN_SLOPE = 0.05

# Maximum number of Newton steps, and maximum change of a coefficient per step.
_MAX_NEWTON_STEPS = 25
_LARGEST_NEWTON_STEP = 2.0

# Newton's method stops if the largest change of a coefficient is below this tolerance.
_NEWTON_TOLERANCE = 1e-10

# Smallest denominator, to avoid a division by zero.
_TINY = 1e-300


class SafetyUnit(Enum):
    """Unit of the safety, which determines the feature of the logistic model."""

    ARBITRARY = "arbitrary"
    PROBABILITY = "probability"
    NEGATED_PROBABILITY = "negated probability"


@dataclass(frozen=True, eq=False)
class HarmlessnessModel:
    """Logistic model of the probability that an item is harmless, for each item type.

    Attributes
    ----------
    intercepts, slopes : array of float of shape (n_types,)
        The harmless log-odds of an item of type j are intercepts[j] + slopes[j] * feature, where the
        feature is a function of the safety that depends on its unit. Every slope is positive.

    type_has_pilot_items : array of bool of shape (n_types,)
        Whether the cases that the model was fitted on have an item of each type.

    safety_unit : SafetyUnit, default=SafetyUnit.ARBITRARY
        For ARBITRARY, the feature is the safety. For PROBABILITY, it is the log-odds of the safety.
        For NEGATED_PROBABILITY, it is -logit(-safety).
    """

    intercepts: Float
    slopes: Float
    type_has_pilot_items: Flags
    safety_unit: SafetyUnit = SafetyUnit.ARBITRARY

    @property
    def n_types(self) -> int:
        """Number of item types."""
        return len(self.slopes)

    def compute_harmless_log_odds(self, safety: Float, types: Codes) -> Float:
        """Compute the log-odds that each item is harmless."""
        features = _convert_safety_to_feature(safety, self.safety_unit)
        return self.intercepts[types] + self.slopes[types] * features

    def convert_log_odds_to_safety(self, harmless_log_odds: float | Float) -> Float:
        """Compute the safety of each type that corresponds to given log-odds.

        The items of a type with higher log-odds are those whose safety is above the returned one.
        The log-odds may be one number, or one for each type.
        """
        features = (harmless_log_odds - self.intercepts) / self.slopes
        if self.safety_unit is SafetyUnit.ARBITRARY:
            return features
        if self.safety_unit is SafetyUnit.NEGATED_PROBABILITY:
            safety = -expit(-features)
        else:
            safety = expit(features)
        # Features at the clipping bounds correspond to cutoffs that accept no item or every item.
        clears_no_item = features >= _LARGEST_LOG_ODDS
        clears_every_item = features < -_LARGEST_LOG_ODDS
        safety[clears_no_item] = CLEAR_NO_ITEM
        safety[clears_every_item] = CLEAR_EVERY_ITEM
        return safety


def fit_harmlessness_model(items: CaseItems, *, same_scale: bool) -> HarmlessnessModel:
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
    HarmlessnessModel
    """
    safety_unit = _find_safety_unit(items.safety)
    features = _convert_safety_to_feature(items.safety, safety_unit)
    means, stds = _compute_mean_and_std_by_type(features, items, same_scale=same_scale)
    rescaled_features = (
        _TYPICAL_LOG_ODDS_STD * (features - means[items.types]) / stds[items.types]
    ) + _TYPICAL_LOG_ODDS_MEAN
    rescaled_coefficients = _fit_coefficients_by_type(
        rescaled_features, items, same_scale=same_scale
    )
    rescaled_intercepts = rescaled_coefficients[:, 0]
    rescaled_slopes = rescaled_coefficients[:, 1]
    # Convert the coefficients from the rescaled features to the original features.
    slopes = rescaled_slopes * _TYPICAL_LOG_ODDS_STD / stds
    intercepts = rescaled_intercepts + rescaled_slopes * _TYPICAL_LOG_ODDS_MEAN - slopes * means
    n_items_by_type = np.bincount(items.types, minlength=items.n_types)
    return HarmlessnessModel(
        intercepts=intercepts,
        slopes=slopes,
        type_has_pilot_items=n_items_by_type > 0,
        safety_unit=safety_unit,
    )


def _fit_coefficients_by_type(features: Float, items: CaseItems, *, same_scale: bool) -> Float:
    """Fit a logistic regression per item type, with a prior fitted to all types.

    Returns
    -------
    array of float of shape (n_types, 2)
        Intercept and slope of each type. A type without items has those of all types.
    """
    is_harmless = ~items.is_harmful
    common_coefficients = _fit_logistic(
        features,
        is_harmless,
        prior_mean=np.array([_COMMON_PRIOR_INTERCEPT, _COMMON_PRIOR_SLOPE]),
        prior_std=np.full(2, _COMMON_PRIOR_STD),
    )
    prior_std = np.array(_SAME_SCALE_PRIOR_STD if same_scale else _PRIOR_STD_OF_INTERCEPT_AND_SLOPE)
    coefficients = np.tile(common_coefficients, (items.n_types, 1))
    for type_code in np.unique(items.types):
        is_of_type = items.types == type_code
        coefficients[type_code] = _fit_logistic(
            features[is_of_type],
            is_harmless[is_of_type],
            prior_mean=common_coefficients,
            prior_std=prior_std,
        )
    return coefficients


def _find_safety_unit(safety: Float) -> SafetyUnit:
    """Determine whether the safety is a probability or a negated probability."""
    if len(safety) == 0:
        return SafetyUnit.ARBITRARY
    if safety.min() >= 0.0 and safety.max() <= 1.0:
        return SafetyUnit.PROBABILITY
    if safety.min() >= -1.0 and safety.max() <= 0.0:
        return SafetyUnit.NEGATED_PROBABILITY
    return SafetyUnit.ARBITRARY


def _convert_safety_to_feature(safety: Float, safety_unit: SafetyUnit) -> Float:
    """Convert the safety of items to the feature of the logistic model."""
    if safety_unit is SafetyUnit.ARBITRARY:
        return safety
    if safety_unit is SafetyUnit.PROBABILITY:
        log_odds = logit(np.clip(safety, 0.0, 1.0))
    else:
        log_odds = -logit(np.clip(-safety, 0.0, 1.0))
    return np.clip(log_odds, -_LARGEST_LOG_ODDS, _LARGEST_LOG_ODDS)


def _compute_mean_and_std_by_type(
    features: Float, items: CaseItems, *, same_scale: bool
) -> tuple[Float, Float]:
    """Compute the mean and standard deviation of the feature per item type.

    If all types have one scale, they share the mean and the standard deviation of all items.
    """
    common_mean = 0.0
    common_std = 0.0
    if len(features) > 0:
        common_mean = float(features.mean())
        common_std = float(features.std())
    if not common_std > 0.0:
        common_std = 1.0
    means = np.full(items.n_types, common_mean)
    stds = np.full(items.n_types, common_std)
    if same_scale:
        return means, stds
    for type_code in np.unique(items.types):
        features_of_type = features[items.types == type_code]
        means[type_code] = features_of_type.mean()
        # A type with equal scores has no spread, so the standard deviation of all types is used.
        if features_of_type.std() > 0.0:
            stds[type_code] = features_of_type.std()
    return means, stds


def _fit_logistic(
    features: Float, is_harmless: Flags, prior_mean: Float, prior_std: Float
) -> Float:
    """Fit P(harmless) = sigmoid(intercept + slope * feature) with a normal prior.

    Returns
    -------
    array of float of shape (2,)
        Intercept and slope. The slope is at least `_MIN_SLOPE`.
    """
    coefficients = _maximize_posterior(features, is_harmless, prior_mean, prior_std)
    fitted_slope = coefficients[1]
    if fitted_slope < _MIN_SLOPE:
        coefficients = _maximize_posterior(
            features, is_harmless, prior_mean, prior_std, fixed_slope=_MIN_SLOPE
        )
    return coefficients


def _maximize_posterior(
    features: Float,
    is_harmless: Flags,
    prior_mean: Float,
    prior_std: Float,
    fixed_slope: float | None = None,
) -> Float:
    """Fit a logistic regression with a normal prior by Newton's method.

    If `fixed_slope` is given, only the intercept is fitted.
    """
    design = np.column_stack([np.ones(len(features)), features])
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
        # Large Newton steps are shortened, so that the first iterations do not overshoot.
        largest_change = max(np.abs(newton_step).max(), _TINY)
        newton_step *= min(1.0, _LARGEST_NEWTON_STEP / largest_change)
        coefficients += newton_step
        if np.abs(newton_step).max() < _NEWTON_TOLERANCE:
            break
    return coefficients
