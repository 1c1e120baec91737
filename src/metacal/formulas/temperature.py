"""Formulas of temperature scaling and its extensions.

All are built from softmax(b x), where b = 1/T is the inverse temperature: with one
temperature, with a uniform component, as an ensemble, or with a temperature per row.
"""

from __future__ import annotations

from typing import Any

from metacal.formulas.operations import Operations, formula
from metacal.formulas.rowwise import (
    compute_gaps,
    entropy,
    mean_over_unmasked,
    negative_margin,
    uniform_probabilities,
)

#: Upper limit of the margin and the norm used as features of a row.
MAX_FEATURE_LOGIT = 100.0
#: Limit on standardised features, so that an outlier does not get an extreme temperature.
MAX_STANDARDISED_FEATURE = 3.0
#: Limit on the size of log b(x), so that no temperature is zero or infinite.
MAX_LOG_INVERSE_TEMPERATURE = 300.0
#: Lower limit of the tempered logits in the norm, so that the sum of squares is finite.
_MIN_LOGIT = -1e100
#: Lower limit of the tempered logits in the norm, in single precision.
_MIN_LOGIT_SINGLE_PRECISION = -1e15


@formula
def tempered_softmax(xp: Operations, x: Any, inverse_temperature: Any) -> Any:
    """Compute softmax(b x)."""
    return xp.softmax(compute_gaps(xp, x) * inverse_temperature)


@formula
def temperature(xp: Operations, fitted: Any, x: Any) -> Any:
    """Compute softmax(b x) with the fitted inverse temperature b."""
    return tempered_softmax(xp, x, fitted.inverse_temperature)


@formula
def uniform_temperature(xp: Operations, fitted: Any, x: Any) -> Any:
    """Compute (1 - e) softmax(b x) + e / K, the second term over unmasked classes."""
    tempered_p = tempered_softmax(xp, x, fitted.inverse_temperature)
    return tempered_p * (1.0 - fitted.uniform) + uniform_probabilities(xp, x) * fitted.uniform


@formula
def ensemble(xp: Operations, fitted: Any, x: Any) -> Any:
    """Compute w1 softmax(b x) + w2 softmax(x) + w3 / K over the unmasked classes."""
    tempered_weight = fitted.weights[0]
    softmax_weight = fitted.weights[1]
    uniform_weight = fitted.weights[2]
    mixture = tempered_softmax(xp, x, fitted.inverse_temperature) * tempered_weight
    mixture = mixture + tempered_softmax(xp, x, 1.0) * softmax_weight
    return mixture + uniform_probabilities(xp, x) * uniform_weight


@formula
def local_temperature(xp: Operations, fitted: Any, x: Any) -> Any:
    """Compute softmax(b(x) x) with the inverse temperature b(x) of each row."""
    gaps = compute_gaps(xp, x)
    return xp.softmax(gaps * compute_local_inverse_temperature(xp, fitted, gaps))


def compute_local_inverse_temperature(xp: Operations, fitted: Any, gaps: Any) -> Any:
    """Compute the inverse temperature b(x) of each row.

    log b(x) is linear in the standardised features of the row, and clipped.

    Parameters
    ----------
    xp : Operations
        Array operations of the runtime.

    fitted : LocalTemperatureMap
        Fitted map.

    gaps : table of shape (n_rows, n_classes)
        Logits minus the largest logit of the row.

    Returns
    -------
    column of shape (n_rows, 1)
    """
    log_b = fitted.coefficients[0]
    features = compute_local_features(xp, gaps * fitted.inverse_temperature)
    for i, feature in enumerate(features):
        standardised_feature = (feature - fitted.means[i]) / fitted.scales[i]
        clipped_feature = xp.clip(
            standardised_feature, -MAX_STANDARDISED_FEATURE, MAX_STANDARDISED_FEATURE
        )
        log_b = log_b + clipped_feature * fitted.coefficients[i + 1]
    return xp.exp(xp.clip(log_b, -MAX_LOG_INVERSE_TEMPERATURE, MAX_LOG_INVERSE_TEMPERATURE))


def compute_local_features(xp: Operations, tempered_logits: Any) -> tuple[Any, Any, Any]:
    """Compute the features of each row on which its local temperature depends.

    Parameters
    ----------
    xp : Operations
        Array operations of the runtime.

    tempered_logits : table of shape (n_rows, n_classes)
        Logits times the inverse temperature of all rows.

    Returns
    -------
    entropy, log_margin, log_norm : columns of shape (n_rows, 1)
        Entropy of the softmax, log(1 + margin), and log(1 + norm), where the norm is the
        standard deviation of the unmasked entries of the row.
    """
    is_unmasked = xp.find_unmasked(tempered_logits)
    min_logit = _MIN_LOGIT
    if xp.finfo(tempered_logits).max <= -_MIN_LOGIT:
        min_logit = _MIN_LOGIT_SINGLE_PRECISION
    bounded_logits = xp.where(is_unmasked, xp.maximum(tempered_logits, min_logit), tempered_logits)
    mean = mean_over_unmasked(xp, bounded_logits, is_unmasked)
    centred_logits = xp.where(is_unmasked, bounded_logits - mean, 0.0)
    sum_of_squares = xp.sum(centred_logits * centred_logits)
    norm = xp.sqrt(sum_of_squares / xp.count_true(is_unmasked, tempered_logits))
    margin = -negative_margin(xp, tempered_logits)
    return (
        entropy(xp, tempered_logits),
        xp.log1p(xp.minimum(margin, MAX_FEATURE_LOGIT)),
        xp.log1p(xp.minimum(norm, MAX_FEATURE_LOGIT)),
    )
