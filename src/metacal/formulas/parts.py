"""Maps made of maps: one after another, and a mixture."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from metacal.formulas.operations import Operations, formula


@formula
def composed(xp: Operations, fitted: Any, x: Any) -> Any:
    """then(log first(x)), a masked class masked for both."""
    seen = xp.maximum(xp.log(xp.part(fitted.first, x)), math.log(xp.finfo(x).tiny))
    return xp.part(fitted.then, xp.where(xp.possible(x), seen, -np.inf))


@formula
def lifted(xp: Operations, fitted: Any, x: Any) -> Any:
    """The same of a spline on a temperature with a uniform part, the usual pair: what kernels write
    at once.
    """
    return composed(xp, fitted, x)


@formula
def stack(xp: Operations, fitted: Any, x: Any) -> Any:
    """Σ_m w_m map_m(x)."""
    mixed = xp.part(fitted.members[0], x) * fitted.weights[0]
    for m in range(1, len(fitted.members)):
        mixed = mixed + xp.part(fitted.members[m], x) * fitted.weights[m]
    return mixed
