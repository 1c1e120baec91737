"""Formula of Gaussian-process calibration.

The map adds a weighted sum of Gaussian bumps, one per inducing input, to each tempered
logit, and applies softmax.
"""

from __future__ import annotations

from typing import Any

from metacal.formulas.operations import Operations, formula
from metacal.formulas.rowwise import compute_gaps, mean_over_unmasked

#: Distance in lengthscales beyond which a bump is zero, because e^(-40²/2) underflows.
BUMP_RADIUS = 40.0


@formula
def gaussian_process(xp: Operations, fitted: Any, x: Any) -> Any:
    """Compute softmax(f(t)) with f of `latent` and t = b (x - centre of the row)."""
    t = center_rows(xp, x, fitted.centre) * fitted.inverse_temperature
    return xp.softmax(latent(xp, fitted, t))


@formula
def latent(xp: Operations, fitted: Any, t: Any) -> Any:
    """Compute f(t) = t + sum_m w_m exp(-½ ((t - z_m) / lengthscale)²)."""
    bump_radius = BUMP_RADIUS * fitted.lengthscale
    lowest_t = fitted.inducing[0] - bump_radius
    highest_t = fitted.inducing[-1] + bump_radius
    scaled_t = xp.clip(t, lowest_t, highest_t) / fitted.lengthscale
    value = t
    for m in range(fitted.n_inducing):
        scaled_distance = scaled_t - fitted.inducing[m] / fitted.lengthscale
        bump = xp.exp(scaled_distance * scaled_distance * -0.5)
        value = value + bump * fitted.weights[m]
    return value


def center_rows(xp: Operations, x: Any, centre: str) -> Any:
    """Subtract the centre of each row from its logits.

    Parameters
    ----------
    xp : Operations
        Array operations of the runtime.

    x : table of shape (n_rows, n_classes)
        Logits.

    centre : {"mean", "log_softmax"}
        Whether to subtract the mean of the unmasked logits or their log-sum-exp.

    Returns
    -------
    table of shape (n_rows, n_classes)
    """
    gaps = compute_gaps(xp, x)
    if centre == "log_softmax":
        return gaps - xp.log(xp.sum(xp.exp(gaps)))
    return gaps - mean_over_unmasked(xp, gaps, xp.find_unmasked(gaps))
