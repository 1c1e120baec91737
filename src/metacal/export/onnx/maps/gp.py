"""Gaussian-process calibration: a sum of bumps on every tempered logit, then softmax."""

from __future__ import annotations

from metacal.export.onnx import rowwise
from metacal.export.onnx.graph import Arithmetic
from metacal.kernels.gp import REACH
from metacal.maps.gp import GaussianProcessMap


def gaussian_process(maths: Arithmetic, fitted: GaussianProcessMap, logits: str, n_classes: int) -> str:
    """softmax(t + Σ_m w_m exp(-½ ((t - z_m)/ℓ)²)), t = b·(x - centre of the row)."""
    tempered = maths("Mul", _centred(maths, logits, fitted.centre), fitted.inverse_temperature)
    reach = REACH * fitted.lengthscale
    near = maths.clipped(tempered, float(fitted.inducing[0]) - reach, float(fitted.inducing[-1]) + reach)
    scaled = maths("Div", near, fitted.lengthscale)
    latent = tempered
    for place, weight in zip(fitted.inducing / fitted.lengthscale, fitted.weights):
        away = maths("Sub", scaled, place)
        bump = maths("Exp", maths("Mul", maths("Mul", away, away), -0.5))
        latent = maths("Add", latent, maths("Mul", bump, weight))
    return maths.graph.softmax(latent)


def _centred(maths: Arithmetic, logits: str, centre: str) -> str:
    """The gaps d less their mean over the classes that are not masked, or less log Σ e^d."""
    gaps = rowwise.gaps(maths, logits)
    if centre == "log_softmax":
        return maths("Sub", gaps, maths("Log", maths.sum(maths("Exp", gaps))))
    return maths("Sub", gaps, rowwise.mean_of_possible(maths, gaps))
