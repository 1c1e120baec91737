"""Formulas of maps that are built from other maps: composition and mixture."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from metacal.formulas.operations import Operations, formula


@formula
def composed(xp: Operations, fitted: Any, x: Any) -> Any:
    """Compute then(log first(x)). A class masked in x is masked for both maps."""
    smallest_log = math.log(xp.finfo(x).tiny)
    log_p = xp.maximum(xp.log(xp.apply_map(fitted.first, x)), smallest_log)
    return xp.apply_map(fitted.then, xp.where(xp.find_unmasked(x), log_p, -np.inf))


@formula
def spline_after_uniform(xp: Operations, fitted: Any, x: Any) -> Any:
    """Compute `composed` for a spline after uniform temperature scaling.

    The default calibrator has this form. It is a separate formula so that a runtime can
    register a kernel that computes both maps in one pass.
    """
    return composed(xp, fitted, x)


@formula
def stack(xp: Operations, fitted: Any, x: Any) -> Any:
    """Compute the mixture sum_m w_m map_m(x)."""
    mixture = xp.apply_map(fitted.members[0], x) * fitted.weights[0]
    for m in range(1, len(fitted.members)):
        mixture = mixture + xp.apply_map(fitted.members[m], x) * fitted.weights[m]
    return mixture
