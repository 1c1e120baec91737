"""A softmax of scaled logits: one temperature, with a uniform part, an ensemble of them, one for
each row.
"""

from __future__ import annotations

from typing import Any

from metacal.formulas.operations import Operations, formula
from metacal.formulas.rowwise import entropy, even, gaps, mean_of_possible, negative_margin

#: Margins and norms beyond this many log-odds count as this many.
LARGEST_LOGIT = 100.0
#: Standardised features are cut off here, so that a row unlike all others gets no temperature
#: unlike all others.
FARTHEST = 3.0
#: log b(x) is cut off here: no temperature is zero or infinite.
LARGEST_LOG = 300.0
#: Tempered logits below this count as this in the norm: their squares can be summed, also in single
#: precision.
_LOWEST, _LOWEST_SINGLE = -1e100, -1e15


@formula
def tempered(xp: Operations, x: Any, inverse_temperature: Any) -> Any:
    """softmax(b·x)."""
    return xp.softmax(gaps(xp, x) * inverse_temperature)


@formula
def temperature(xp: Operations, fitted: Any, x: Any) -> Any:
    """softmax(b·x)."""
    return tempered(xp, x, fitted.inverse_temperature)


@formula
def uniform_temperature(xp: Operations, fitted: Any, x: Any) -> Any:
    """(1 - ε)·softmax(b·x) + ε/K, the last over the classes that are not masked."""
    plain = tempered(xp, x, fitted.inverse_temperature)
    return plain * (1.0 - fitted.uniform) + even(xp, x) * fitted.uniform


@formula
def ensemble(xp: Operations, fitted: Any, x: Any) -> Any:
    """w1·softmax(b·x) + w2·softmax(x) + w3/K, the last over the classes that are not masked."""
    first, second, third = (fitted.weights[i] for i in range(3))
    mixed = tempered(xp, x, fitted.inverse_temperature) * first + tempered(xp, x, 1.0) * second
    return mixed + even(xp, x) * third


@formula
def local_temperature(xp: Operations, fitted: Any, x: Any) -> Any:
    """softmax(b(x)·x), log b(x) linear in three standardised features of the row, and cut off."""
    d = gaps(xp, x)
    return xp.softmax(d * local_inverse(xp, fitted, d))


def local_inverse(xp: Operations, fitted: Any, d: Any) -> Any:
    """b(x) of the gaps d = x - max x."""
    log_b = fitted.coefficients[0]
    for i, feature in enumerate(local_features(xp, d * fitted.inverse_temperature)):
        standard = xp.clip((feature - fitted.means[i]) / fitted.scales[i], -FARTHEST, FARTHEST)
        log_b = log_b + standard * fitted.coefficients[i + 1]
    return xp.exp(xp.clip(log_b, -LARGEST_LOG, LARGEST_LOG))


def local_features(xp: Operations, t: Any) -> tuple[Any, Any, Any]:
    """The entropy of softmax(t), log(1 + margin of t), log(1 + root mean square of t about its
    mean).
    """
    possible = xp.possible(t)
    lowest = _LOWEST if xp.finfo(t).max > -_LOWEST else _LOWEST_SINGLE
    within = xp.where(possible, xp.maximum(t, lowest), t)
    centred = xp.where(possible, within - mean_of_possible(xp, within, possible), 0.0)
    norm = xp.sqrt(xp.sum(centred * centred) / xp.count(possible, t))
    margin = -negative_margin(xp, t)
    return (
        entropy(xp, t),
        xp.log1p(xp.minimum(margin, LARGEST_LOGIT)),
        xp.log1p(xp.minimum(norm, LARGEST_LOGIT)),
    )
