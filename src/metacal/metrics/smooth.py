"""Smooth ECE: the residuals smoothed by a reflected Gaussian whose width equals the answer (Błasiok & Nakkiran 2023).

    smECE_σ = ∫₀¹ | (1/n) Σ_i K_σ(t, conf_i) (c_i - conf_i) | dt,      smECE = smECE_σ* at the σ* with smECE_σ* = σ*

K_σ is the Gaussian on the line folded back into [0, 1] at both ends. Folding turns the smoothing into a product in the
cosine basis: coefficient k shrinks by exp(-σ²π²k²/2). Residuals are split linearly over a mesh (first-order exact) and
one cosine transform per σ does the rest. smECE_σ falls as σ grows (the kernels form a semigroup and contract L1), so
the fixed point is unique and lies between any σ and its own smECE_σ.
"""

from __future__ import annotations

import numpy as np

from metacal.metrics.binning import Statistic, Weights, per_resample
from metacal.metrics.toplabel import FloatColumn, TopLabel

#: Cells of the mesh on [0, 1]; the mesh widens the kernel by at most (1 / cells)² / 4 in variance.
MESH_CELLS = 4096

_HALF_SQUARED_FREQUENCIES = 0.5 * (np.pi * np.arange(MESH_CELLS + 1)) ** 2
#: Of the answer; of a resample's, whose spread is a thousand times larger.
_TOLERANCE, _TOLERANCE_OF_RESAMPLE = 1e-8, 1e-6
_MAX_STEPS = 60


def smooth_ece_statistic(top: TopLabel) -> Statistic:
    """Smooth ECE as a function of row weights."""
    residuals = _MeshResiduals(top)
    usual = _fixed_point(residuals.cosines(np.ones(len(top), dtype=np.intp)))
    return per_resample(lambda weights: _fixed_point(residuals.cosines(weights), usual))


def smooth_ece_at(top: TopLabel, bandwidth: float) -> float:
    """Smooth ECE at one given σ, for looking at the fixed point from outside."""
    cosines = _MeshResiduals(top).cosines(np.ones(len(top), dtype=np.intp))
    return _smoothed_area(cosines, bandwidth)


class _MeshResiduals:
    """The residuals c - conf spread over the mesh, ready to be summed under any row weights."""

    def __init__(self, top: TopLabel) -> None:
        place = top.confidence * MESH_CELLS
        left = np.minimum(place.astype(np.intp), MESH_CELLS - 1)
        share = place - left
        residual = top.correct - top.confidence
        self._left, self._to_left, self._to_right = left, residual * (1.0 - share), residual * share

    def cosines(self, weights: Weights) -> FloatColumn:
        """Cosine coefficients of the weighted residual density."""
        nodes = np.bincount(self._left, weights * self._to_left, MESH_CELLS + 1)
        nodes[1:] += np.bincount(self._left, weights * self._to_right, MESH_CELLS)
        density = nodes * (MESH_CELLS / len(weights))
        density[[0, -1]] *= 2.0  # half of what sits on a wall is folded back onto it
        return np.ascontiguousarray(np.fft.rfft(np.concatenate((density, density[-2:0:-1]))).real)


def _smoothed_area(cosines: FloatColumn, bandwidth: float) -> float:
    cells = MESH_CELLS
    while cells * bandwidth > 16.0:  # a wide kernel leaves nothing in the high frequencies: a coarser mesh is as good
        cells //= 2
    shrunk = cosines[: cells + 1] * np.exp(_HALF_SQUARED_FREQUENCIES[: cells + 1] * -(bandwidth**2))
    density = np.abs(np.fft.irfft(shrunk, 2 * cells)[: cells + 1])
    return float((density.sum() - 0.5 * (density[0] + density[-1])) / MESH_CELLS)


def _fixed_point(cosines: FloatColumn, guess: float | None = None) -> float:
    """Solve smECE_σ = σ by the secant rule, kept inside the bracket that the falling map itself gives.

    A resample's answer is near that of the whole sample: with it as a guess, half of the transforms are saved.
    """
    # |mean residual| survives every bandwidth, so it bounds the answer from below.
    before = least = abs(float(cosines[0])) / (2 * MESH_CELLS)
    tolerance = _TOLERANCE if guess is None else _TOLERANCE_OF_RESAMPLE
    if guess is not None and guess > least:
        before = guess
    before_excess = _smoothed_area(cosines, before) - before
    low, high = sorted((before, max(before + before_excess, least)))
    if high - low <= tolerance:
        return high
    sigma = 0.5 * (low + high) if before > least else high
    for _ in range(_MAX_STEPS):
        excess = _smoothed_area(cosines, sigma) - sigma
        if excess > 0.0:
            low, high = sigma, min(high, sigma + excess)
        else:
            low, high = max(low, sigma + excess), sigma
        if high - low <= tolerance:
            break
        slope = (excess - before_excess) / (sigma - before)
        before, before_excess = sigma, excess
        sigma = sigma - excess / slope if slope < 0.0 else high
        if not low < sigma < high:
            sigma = 0.5 * (low + high)
    return 0.5 * (low + high)
