"""Formulas of temperature scaling and its extensions.

All are built from softmax(b x), where b = 1/T is the inverse temperature: with one
temperature, with a uniform component, as an ensemble, or with a temperature per row.
"""

from __future__ import annotations

from typing import Any

from metacal.formulas.operations import Operations, formula
from metacal.formulas.rowwise import (
    entropy,
    gaps,
    mean_over_unmasked,
    negative_margin,
    uniform_probabilities,
)

#: Upper limit of the margin and the norm used as features of a row.
LARGEST_LOGIT = 100.0
#: Limit on standardised features, so that an outlying row gets no outlying temperature.
FARTHEST = 3.0
#: Limit on the size of log b(x), so that no temperature is zero or infinite.
LARGEST_LOG = 300.0
#: Lower limit of the tempered logits in the norm, so that the sum of squares is finite.
_LOWEST_LOGIT = -1e100
_LOWEST_LOGIT_SINGLE_PRECISION = -1e15


@formula
def tempered_softmax(xp: Operations, x: Any, inverse_temperature: Any) -> Any:
    """Compute softmax(b x)."""
    return xp.softmax(gaps(xp, x) * inverse_temperature)


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
    """Compute softmax(b(x) x) with the inverse temperature b(x) of `local_inverse`."""
    d = gaps(xp, x)
    return xp.softmax(d * local_inverse(xp, fitted, d))


def local_inverse(xp: Operations, fitted: Any, d: Any) -> Any:
    """Compute the inverse temperature b(x) of each row.

    log b(x) is linear in the standardised features of the row, and clipped.

    Parameters
    ----------
    xp : Operations
        Array operations of the runtime.

    fitted : LocalTemperatureMap
        Fitted map.

    d : table of shape (n_rows, n_classes)
        Logits minus the largest logit of the row.

    Returns
    -------
    column of shape (n_rows, 1)
    """
    log_b = fitted.coefficients[0]
    features = local_features(xp, d * fitted.inverse_temperature)
    for i, feature in enumerate(features):
        z = xp.clip((feature - fitted.means[i]) / fitted.scales[i], -FARTHEST, FARTHEST)
        log_b = log_b + z * fitted.coefficients[i + 1]
    return xp.exp(xp.clip(log_b, -LARGEST_LOG, LARGEST_LOG))


def local_features(xp: Operations, t: Any) -> tuple[Any, Any, Any]:
    """Compute the features of each row on which its local temperature depends.

    Parameters
    ----------
    xp : Operations
        Array operations of the runtime.

    t : table of shape (n_rows, n_classes)
        Tempered logits.

    Returns
    -------
    entropy, log_margin, log_norm : columns of shape (n_rows, 1)
        Entropy of softmax(t), log(1 + margin of t), and log(1 + norm of t), where the
        norm is the standard deviation of the unmasked entries of the row.
    """
    unmasked = xp.unmasked(t)
    lowest_logit = _LOWEST_LOGIT
    if xp.finfo(t).max <= -_LOWEST_LOGIT:
        lowest_logit = _LOWEST_LOGIT_SINGLE_PRECISION
    bounded_t = xp.where(unmasked, xp.maximum(t, lowest_logit), t)
    mean = mean_over_unmasked(xp, bounded_t, unmasked)
    centred_t = xp.where(unmasked, bounded_t - mean, 0.0)
    norm = xp.sqrt(xp.sum(centred_t * centred_t) / xp.count(unmasked, t))
    margin = -negative_margin(xp, t)
    return (
        entropy(xp, t),
        xp.log1p(xp.minimum(margin, LARGEST_LOGIT)),
        xp.log1p(xp.minimum(norm, LARGEST_LOGIT)),
    )
