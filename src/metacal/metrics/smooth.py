"""Smooth ECE: the residuals smoothed by a reflected Gaussian whose width equals the answer (Błasiok
& Nakkiran 2023).

    smECE_σ = ∫₀¹ | (1/n) Σ_i K_σ(t, conf_i) (c_i - conf_i) | dt,      smECE = smECE_σ* at the σ*
    with smECE_σ* = σ*

K_σ is the Gaussian on the line folded back into [0, 1] at both ends. Folding turns the smoothing
into a product in the cosine basis: coefficient k shrinks by exp(-σ²π²k²/2). Residuals are split
linearly over a mesh (first-order exact) and one cosine transform per σ does the rest. smECE_σ falls
as σ grows (the kernels form a semigroup and contract L1), so the fixed point is unique and lies
between any σ and its own smECE_σ.
"""

from __future__ import annotations

import numpy as np

from metacal.formulas import Float
from metacal.metrics.binning import CodeSums, Statistic, Weights
from metacal.metrics.toplabel import TopLabel

#: Cells of the mesh on [0, 1]; the mesh widens the kernel by at most (1 / cells)² / 4 in variance.
MESH_CELLS = 4096
#: Cells that a kernel's width takes up at least where the mesh is made coarser for it: its width is
#: then right to 1 in 2,000. For a batch of resamples, whose spread is some hundred times larger,
#: that is as good; it moves their answers by a millionth.
_CELLS_A_WIDTH = 16

_HALF_SQUARED_FREQUENCIES = 0.5 * (np.pi * np.arange(MESH_CELLS + 1)) ** 2
#: Of the answer; of a resample's, whose spread is a thousand times larger.
_TOLERANCE, _TOLERANCE_OF_RESAMPLE = 1e-8, 1e-6
_MAX_STEPS = 60


def smooth_ece_statistic(top: TopLabel) -> Statistic:
    """Smooth ECE as a function of row weights."""
    finest = _mesh_nodes(top)
    usual = float(_fixed_points(_cosines(finest(np.ones((1, len(top)))), len(top)))[0])
    # How often the mesh may be made half as fine for a kernel of this width.
    halvings = int(np.log2(max(MESH_CELLS * usual / _CELLS_A_WIDTH, 1.0)))
    coarser = _mesh_nodes(top, MESH_CELLS >> halvings)

    def statistic(batch: Weights) -> Float:
        # Signs ask what chance alone would give, which may be far less than the error of these
        # rows.
        exact = len(batch) == 1 or batch[0].min() < 0
        nodes = np.ascontiguousarray((finest if exact else coarser)(batch))
        return _fixed_points(_cosines(nodes, len(top)), usual)

    return statistic


def _mesh_nodes(top: TopLabel, cells: int = MESH_CELLS) -> CodeSums:
    """The residuals c - conf spread over the nodes of the mesh, ready to be summed under row
    weights.
    """
    place = top.confidence * cells
    left = np.minimum(place.astype(np.intp), cells - 1)
    share = place - left
    residual = top.correct - top.confidence
    rows = np.arange(len(top))
    return CodeSums(
        np.concatenate((left, left + 1)),
        cells + 1,
        np.concatenate((residual * (1.0 - share), residual * share)),
        np.concatenate((rows, rows)),
    )


def _cosines(nodes: Float, n_rows: int) -> Float:
    """Cosine coefficients of the density of residuals, in units of the mesh."""
    density = nodes * ((nodes.shape[1] - 1) / n_rows)
    density[:, [0, -1]] *= 2.0  # half of what sits on a wall is folded back onto it
    return np.ascontiguousarray(
        np.fft.rfft(np.concatenate((density, density[:, -2:0:-1]), axis=1)).real
    )


def _smoothed_areas(cosines: Float, bandwidth: Float) -> Float:
    """smECE_σ of each row of coefficients at its own σ."""
    mesh = cosines.shape[1] - 1
    # A wide kernel leaves nothing in the high frequencies: a coarser mesh is as good.
    halvings = np.ceil(np.log2(np.maximum(mesh * bandwidth / 16.0, 1.0)))
    areas = np.empty(len(bandwidth))
    for halving in np.unique(halvings):
        chosen = np.flatnonzero(halvings == halving)
        cells = mesh >> int(halving)
        exponents = _HALF_SQUARED_FREQUENCIES[: cells + 1] * -(bandwidth[chosen, None] ** 2)
        density = np.abs(
            np.fft.irfft(cosines[chosen, : cells + 1] * np.exp(exponents), 2 * cells)[
                :, : cells + 1
            ]
        )
        areas[chosen] = (density.sum(axis=1) - 0.5 * (density[:, 0] + density[:, -1])) / mesh
    return areas


def _fixed_points(cosines: Float, guess: float | None = None) -> Float:
    """Solve smECE_σ = σ for each row by the secant rule, kept inside the bracket that the falling
    map itself gives.

    A resample's answer is near that of the whole sample: with it as a guess, half of the transforms
    are saved.
    """
    # |mean residual| survives every bandwidth, so it bounds the answer from below.
    least = np.abs(cosines[:, 0]) / (2 * (cosines.shape[1] - 1))
    tolerance = _TOLERANCE if guess is None else _TOLERANCE_OF_RESAMPLE
    before = least.copy() if guess is None else np.maximum(guess, least)
    before_excess = _smoothed_areas(cosines, before) - before
    other = np.maximum(before + before_excess, least)
    low, high = np.minimum(before, other), np.maximum(before, other)
    found: Float = high.copy()  # of a row that starts within the tolerance
    sigma = np.where(before > least, 0.5 * (low + high), high)
    live = np.flatnonzero(high - low > tolerance)
    for _ in range(_MAX_STEPS):
        if not len(live):
            break
        at = sigma[live]
        excess = _smoothed_areas(cosines[live], at) - at
        too_low = excess > 0.0
        high[live] = np.where(too_low, np.minimum(high[live], at + excess), at)
        low[live] = np.where(too_low, at, np.maximum(low[live], at + excess))
        found[live] = 0.5 * (low[live] + high[live])
        slope = (excess - before_excess[live]) / (at - before[live])
        before[live], before_excess[live] = at, excess
        secant = at - excess / np.where(slope < 0.0, slope, -1.0)
        inside = (slope < 0.0) & (low[live] < secant) & (secant < high[live])
        sigma[live] = np.where(inside, secant, found[live])
        live = live[high[live] - low[live] > tolerance]
    return found
