"""Formulas of the maps that apply an affine function to each row, then softmax.

Each map computes softmax(A u + c), where u is a feature vector of the row. Vector and
matrix scaling use the centred logits as features; Dirichlet calibration and structured
scaling use the log-probabilities.

A masked class keeps probability zero. Where it is a feature of the other classes, it
takes the mean of the row's unmasked features.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from metacal.formulas.operations import Operations, formula
from metacal.formulas.rowwise import compute_gaps, mean_over_unmasked


@formula
def vector(xp: Operations, fitted: Any, x: Any) -> Any:
    """Compute softmax(scale * u + bias), where u are the centred logits."""
    is_unmasked = xp.find_unmasked(x)
    z = _center_logits(xp, x, is_unmasked)
    z *= fitted.scale
    return _softmax_with_bias(xp, fitted, z, is_unmasked)


@formula
def matrix(xp: Operations, fitted: Any, x: Any) -> Any:
    """Compute softmax(matrix @ u + bias), where u are the centred logits."""
    is_unmasked = xp.find_unmasked(x)
    centred_logits = _center_logits(xp, x, is_unmasked)
    return _softmax_with_bias(xp, fitted, centred_logits @ fitted.matrix.T, is_unmasked)


@formula
def dirichlet(xp: Operations, fitted: Any, x: Any) -> Any:
    """Compute softmax(matrix @ log p + bias), where p = softmax(x)."""
    is_unmasked = xp.find_unmasked(x)
    log_p = _log_softmax(xp, compute_gaps(xp, x), is_unmasked)
    return _softmax_with_bias(xp, fitted, log_p @ fitted.matrix.T, is_unmasked)


@formula
def structured(xp: Operations, fitted: Any, x: Any) -> Any:
    """Compute softmax(scale * log p + bias), where p = softmax(b x)."""
    is_unmasked = xp.find_unmasked(x)
    z = _log_softmax(xp, compute_gaps(xp, x) * fitted.inverse_temperature, is_unmasked)
    z *= fitted.scale
    return _softmax_with_bias(xp, fitted, z, is_unmasked)


def _center_logits(xp: Operations, x: Any, is_unmasked: Any) -> Any:
    """Subtract the mean of each row's unmasked logits; masked classes become zero."""
    return xp.where(is_unmasked, x - mean_over_unmasked(xp, x, is_unmasked), 0.0)


def _log_softmax(xp: Operations, t: Any, is_unmasked: Any) -> Any:
    """Compute log softmax(t), with the row mean in place of masked classes.

    `t` is overwritten. Its largest entry in each row must be zero.
    """
    t -= xp.log(xp.sum(xp.exp(t)))
    return xp.where(is_unmasked, t, lambda: mean_over_unmasked(xp, t, is_unmasked))


def _softmax_with_bias(xp: Operations, fitted: Any, z: Any, is_unmasked: Any) -> Any:
    """Compute softmax(z + bias), with probability zero for masked classes."""
    z += fitted.bias
    return xp.softmax(xp.where(is_unmasked, z, -np.inf))
