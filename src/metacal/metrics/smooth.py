"""Smooth ECE: residuals smoothed by a reflected Gaussian kernel (Błasiok & Nakkiran 2023).

    smECE_σ = ∫₀¹ | (1/n) Σ_i K_σ(t, conf_i) (c_i - conf_i) | dt

The smooth ECE is smECE_σ* at the σ* with smECE_σ* = σ*. K_σ is the Gaussian kernel reflected at 0
and 1.

The computation has three steps:

1. The residuals c - conf are distributed linearly over the nodes of a mesh (exact to first order).
2. In the cosine basis, smoothing with the reflected kernel multiplies coefficient k by
   exp(-σ²π²k²/2). One cosine transform per σ gives the smoothed density.
3. smECE_σ decreases with σ, because the kernels form a semigroup and contract the L1 norm. The
   fixed point is therefore unique, and lies between any σ and its smECE_σ. A secant search finds
   it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metacal.formulas import Codes, Float
from metacal.metrics.binning import CodeSums, Statistic, Weights
from metacal.metrics.toplabel import TopLabel

#: Number of cells of the mesh on [0, 1]. The mesh increases the variance of the kernel by at most
#: (1 / cells)² / 4.
MESH_CELLS = 4096
#: Smallest width of the kernel, in cells, on a mesh that was made coarser. The width is then right
#: to 1 in 2,000. This changes the values of resamples by a millionth, which is some hundred times
#: less than they vary.
_MIN_CELLS_PER_WIDTH = 16

_HALF_SQUARED_FREQUENCIES = 0.5 * (np.pi * np.arange(MESH_CELLS + 1)) ** 2
#: Tolerance of the fixed point for the sample, and for resamples, which vary a thousand times more.
_SAMPLE_TOLERANCE = 1e-8
_RESAMPLE_TOLERANCE = 1e-6
_MAX_STEPS = 60


def smooth_ece_statistic(top: TopLabel) -> Statistic:
    """Prepare the smooth ECE as a statistic of row weights."""
    n_rows = len(top)
    fine_mesh = _mesh_nodes(top)
    sample_nodes = fine_mesh(np.ones((1, n_rows)))
    sample_value = float(_find_fixed_points(_cosines(sample_nodes, n_rows))[0])
    cells_per_width = MESH_CELLS * sample_value
    n_halvings = int(np.log2(max(cells_per_width / _MIN_CELLS_PER_WIDTH, 1.0)))
    coarse_mesh = _mesh_nodes(top, MESH_CELLS >> n_halvings)

    def statistic(batch: Weights) -> Float:
        # Random signs give the error of chance alone, which can be far smaller than the error of
        # the sample. The coarse mesh would be too coarse for it.
        has_signs = batch[0].min() < 0
        mesh = fine_mesh if len(batch) == 1 or has_signs else coarse_mesh
        nodes = np.ascontiguousarray(mesh(batch))
        return _find_fixed_points(_cosines(nodes, n_rows), sample_value)

    return statistic


def _mesh_nodes(top: TopLabel, cells: int = MESH_CELLS) -> CodeSums:
    """Distribute the residuals over the two nodes next to each confidence, ready to be summed."""
    positions = top.confidence * cells
    left_nodes = np.minimum(positions.astype(np.intp), cells - 1)
    right_shares = positions - left_nodes
    residuals = top.correct - top.confidence
    rows = np.arange(len(top))
    return CodeSums(
        codes=np.concatenate((left_nodes, left_nodes + 1)),
        n_codes=cells + 1,
        values=np.concatenate((residuals * (1.0 - right_shares), residuals * right_shares)),
        row=np.concatenate((rows, rows)),
    )


def _cosines(nodes: Float, n_rows: int) -> Float:
    """Compute the cosine coefficients of the density of residuals, in units of the mesh."""
    n_cells = nodes.shape[1] - 1
    density = nodes * (n_cells / n_rows)
    # Reflection doubles the density at the two ends of the interval.
    density[:, [0, -1]] *= 2.0
    mirrored = np.concatenate((density, density[:, -2:0:-1]), axis=1)
    return np.ascontiguousarray(np.fft.rfft(mirrored).real)


def _smoothed_areas(cosines: Float, bandwidth: Float) -> Float:
    """Compute smECE_σ of each row of coefficients at its own bandwidth σ."""
    n_cells = cosines.shape[1] - 1
    # A wide kernel removes the high frequencies, so a coarser mesh is as good.
    n_halvings = np.ceil(np.log2(np.maximum(n_cells * bandwidth / 16.0, 1.0)))
    areas = np.empty(len(bandwidth))
    for n_halvings_here in np.unique(n_halvings):
        rows = np.flatnonzero(n_halvings == n_halvings_here)
        n_coarse_cells = n_cells >> int(n_halvings_here)
        n_nodes = n_coarse_cells + 1
        exponents = _HALF_SQUARED_FREQUENCIES[:n_nodes] * -(bandwidth[rows, None] ** 2)
        smoothed_cosines = cosines[rows, :n_nodes] * np.exp(exponents)
        density = np.abs(np.fft.irfft(smoothed_cosines, 2 * n_coarse_cells)[:, :n_nodes])
        # Trapezoidal rule.
        areas[rows] = (density.sum(axis=1) - 0.5 * (density[:, 0] + density[:, -1])) / n_cells
    return areas


def _find_fixed_points(cosines: Float, guess: float | None = None) -> Float:
    """Solve smECE_σ = σ for each row of coefficients.

    Parameters
    ----------
    cosines : array of shape (n_resamples, n_nodes)
        Cosine coefficients of the residuals of each resample.

    guess : float, default=None
        Smooth ECE of the sample, which is near that of its resamples. It saves half of the
        transforms.

    Returns
    -------
    array of shape (n_resamples,)
    """
    n_cells = cosines.shape[1] - 1
    # The absolute mean residual does not depend on the bandwidth, so it is a lower bound.
    lower_bound = np.abs(cosines[:, 0]) / (2 * n_cells)
    if guess is None:
        tolerance = _SAMPLE_TOLERANCE
        first_sigma = lower_bound.copy()
    else:
        tolerance = _RESAMPLE_TOLERANCE
        first_sigma = np.maximum(guess, lower_bound)
    search = _SecantSearch.start(cosines, first_sigma, lower_bound, tolerance)
    for _ in range(_MAX_STEPS):
        if not len(search.active_rows):
            break
        search.step()
    return search.solution


@dataclass(eq=False)
class _SecantSearch:
    """Secant search for the fixed points of several rows, kept inside a bracket.

    Attributes
    ----------
    cosines : array of shape (n_resamples, n_nodes)
        Cosine coefficients.

    tolerance : float
        Width of the bracket at which a row is solved.

    low, high : array of shape (n_resamples,)
        Bracket of each fixed point.

    solution : array of shape (n_resamples,)
        Best value so far.

    last_sigma, last_excess : array of shape (n_resamples,)
        Last bandwidth of each row, and smECE_σ - σ at this bandwidth.

    sigma : array of shape (n_resamples,)
        Next bandwidth of each row.

    active_rows : array of int
        Rows that are not solved.
    """

    cosines: Float
    tolerance: float
    low: Float
    high: Float
    solution: Float
    last_sigma: Float
    last_excess: Float
    sigma: Float
    active_rows: Codes

    @classmethod
    def start(
        cls, cosines: Float, first_sigma: Float, lower_bound: Float, tolerance: float
    ) -> _SecantSearch:
        """Build the bracket from a first bandwidth and its smECE_σ.

        Parameters
        ----------
        cosines : array of shape (n_resamples, n_nodes)
            Cosine coefficients.

        first_sigma : array of shape (n_resamples,)
            First bandwidth of each row.

        lower_bound : array of shape (n_resamples,)
            Lower bound of each fixed point.

        tolerance : float
            Width of the bracket at which a row is solved.

        Returns
        -------
        _SecantSearch
        """
        first_excess = _smoothed_areas(cosines, first_sigma) - first_sigma
        other_end = np.maximum(first_sigma + first_excess, lower_bound)
        low = np.minimum(first_sigma, other_end)
        high = np.maximum(first_sigma, other_end)
        return cls(
            cosines=cosines,
            tolerance=tolerance,
            low=low,
            high=high,
            solution=high.copy(),
            last_sigma=first_sigma,
            last_excess=first_excess,
            sigma=np.where(first_sigma > lower_bound, 0.5 * (low + high), high),
            active_rows=np.flatnonzero(high - low > tolerance),
        )

    def step(self) -> None:
        """Evaluate smECE_σ of the active rows, shrink their brackets and choose the next σ."""
        rows = self.active_rows
        sigma = self.sigma[rows]
        excess = _smoothed_areas(self.cosines[rows], sigma) - sigma
        area = sigma + excess
        is_too_low = excess > 0.0
        high = np.where(is_too_low, np.minimum(self.high[rows], area), sigma)
        low = np.where(is_too_low, sigma, np.maximum(self.low[rows], area))
        midpoint = 0.5 * (low + high)

        slope = (excess - self.last_excess[rows]) / (sigma - self.last_sigma[rows])
        secant_sigma = sigma - excess / np.where(slope < 0.0, slope, -1.0)
        is_inside = (slope < 0.0) & (low < secant_sigma) & (secant_sigma < high)

        self.low[rows] = low
        self.high[rows] = high
        self.solution[rows] = midpoint
        self.last_sigma[rows] = sigma
        self.last_excess[rows] = excess
        self.sigma[rows] = np.where(is_inside, secant_sigma, midpoint)
        self.active_rows = rows[high - low > self.tolerance]
