"""softmax(A u + c) of features u of a row: centred logits (vector, matrix), log-probabilities
(Dirichlet, structured).

A masked class stays masked; as a feature of other classes it counts as the mean of the row's
others.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from metacal.formulas.operations import Operations, formula
from metacal.formulas.rowwise import gaps, mean_of_possible


@formula
def vector(xp: Operations, fitted: Any, x: Any) -> Any:
    """softmax(scale · u + bias), u centred."""
    possible = xp.possible(x)
    z = _centred(xp, x, possible)
    z *= fitted.scale
    return _masked_softmax(xp, fitted, z, possible)


@formula
def matrix(xp: Operations, fitted: Any, x: Any) -> Any:
    """softmax(matrix @ u + bias), u centred."""
    possible = xp.possible(x)
    return _masked_softmax(xp, fitted, _centred(xp, x, possible) @ fitted.matrix.T, possible)


@formula
def dirichlet(xp: Operations, fitted: Any, x: Any) -> Any:
    """softmax(matrix @ log p + bias)."""
    possible = xp.possible(x)
    features = _log_probabilities(xp, gaps(xp, x), possible)
    return _masked_softmax(xp, fitted, features @ fitted.matrix.T, possible)


@formula
def structured(xp: Operations, fitted: Any, x: Any) -> Any:
    """softmax(scale · log softmax(b·x) + bias)."""
    possible = xp.possible(x)
    z = _log_probabilities(xp, gaps(xp, x) * fitted.inverse_temperature, possible)
    z *= fitted.scale
    return _masked_softmax(xp, fitted, z, possible)


def _centred(xp: Operations, x: Any, possible: Any) -> Any:
    """x less the mean of the classes that are not masked."""
    return xp.where(possible, x - mean_of_possible(xp, x, possible), 0.0)


def _log_probabilities(xp: Operations, t: Any, possible: Any) -> Any:
    """log softmax(t)."""
    t -= xp.log(xp.sum(xp.exp(t)))
    return xp.where(possible, t, lambda: mean_of_possible(xp, t, possible))


def _masked_softmax(xp: Operations, fitted: Any, z: Any, possible: Any) -> Any:
    z += fitted.bias
    return xp.softmax(xp.where(possible, z, -np.inf))
