"""Gaussian-process calibration: a sum of bumps on every tempered logit, then softmax."""

from __future__ import annotations

from typing import Any

from metacal.formulas.operations import Operations, formula
from metacal.formulas.rowwise import gaps, mean_of_possible

#: A bump is exactly zero beyond this many lengthscales: e^(-40²/2) underflows.
REACH = 40.0


@formula
def gaussian_process(xp: Operations, fitted: Any, x: Any) -> Any:
    """softmax(t + Σ_m w_m exp(-½ ((t - z_m)/ℓ)²)), t = b·(x - centre of the row)."""
    return xp.softmax(
        latent(xp, fitted, centred(xp, x, fitted.centre) * fitted.inverse_temperature)
    )


@formula
def latent(xp: Operations, fitted: Any, t: Any) -> Any:
    """t + Σ_m w_m exp(-½ ((t - z_m)/ℓ)²)."""
    reach = REACH * fitted.lengthscale
    near = xp.clip(t, fitted.inducing[0] - reach, fitted.inducing[-1] + reach) / fitted.lengthscale
    for m in range(fitted.n_inducing):
        away = near - fitted.inducing[m] / fitted.lengthscale
        t = t + xp.exp(away * away * -0.5) * fitted.weights[m]
    return t


def centred(xp: Operations, x: Any, centre: str) -> Any:
    """The gaps d less their mean over the classes that are not masked, or less log Σ e^d."""
    d = gaps(xp, x)
    return d - (
        xp.log(xp.sum(xp.exp(d)))
        if centre == "log_softmax"
        else mean_of_possible(xp, d, xp.possible(d))
    )
