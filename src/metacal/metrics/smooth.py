"""Smooth ECE: residuals smoothed by a reflected Gaussian kernel.

The method is that of Błasiok & Nakkiran (2023).

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
from metacal.metrics.binning import GroupSums, Statistic, Weights
from metacal.metrics.toplabel import TopLabel

#: Number of cells of the mesh on [0, 1], which adds at most (1 / cells)² / 4 to the kernel's variance.
MESH_CELLS = 4096
#: Smallest number of mesh cells per bandwidth of the kernel, for an error of at most 1 in 2,000.
_MIN_CELLS_PER_BANDWIDTH = 16

#: Factors (πk)²/2, with which smoothing multiplies cosine coefficient k by exp(-σ² (πk)²/2).
_HALF_SQUARED_FREQUENCIES = 0.5 * (np.pi * np.arange(MESH_CELLS + 1)) ** 2
#: Tolerances of the fixed point. The second one, for resamples, is far below their variation.
_SAMPLE_TOLERANCE = 1e-8
_RESAMPLE_TOLERANCE = 1e-6
#: Largest number of steps of the secant search.
_MAX_STEPS = 60


def build_smooth_ece_statistic(top_labels: TopLabel) -> Statistic:
    """Build the statistic of the smooth ECE."""
    n_rows = len(top_labels)
    sum_on_fine_mesh = _make_mesh_sum_function(top_labels, n_cells=MESH_CELLS)
    sample_sums = sum_on_fine_mesh(np.ones((1, n_rows)))
    sample_coefficients = _compute_cosine_coefficients(sample_sums, n_rows)
    (fixed_point_of_sample,) = _find_fixed_points(sample_coefficients)
    smooth_ece_of_sample = float(fixed_point_of_sample)
    # The bandwidth at the fixed point is the smooth ECE itself.
    cells_per_bandwidth = MESH_CELLS * smooth_ece_of_sample
    n_halvings = int(np.log2(max(cells_per_bandwidth / _MIN_CELLS_PER_BANDWIDTH, 1.0)))
    n_coarse_cells = MESH_CELLS >> n_halvings
    sum_on_coarse_mesh = _make_mesh_sum_function(top_labels, n_cells=n_coarse_cells)

    def compute_smooth_ece(row_weights: Weights) -> Float:
        # The random signs of a wild bootstrap can give a far smaller error than the sample,
        # and therefore a smaller bandwidth.
        first_resample = row_weights[0]
        are_weights_random_signs = first_resample.min() < 0
        is_one_resample = len(row_weights) == 1
        needs_fine_mesh = is_one_resample or are_weights_random_signs
        sum_on_mesh = sum_on_fine_mesh if needs_fine_mesh else sum_on_coarse_mesh
        node_sums = np.ascontiguousarray(sum_on_mesh(row_weights))
        cosine_coefficients = _compute_cosine_coefficients(node_sums, n_rows)
        return _find_fixed_points(cosine_coefficients, first_guess=smooth_ece_of_sample)

    return compute_smooth_ece


def _make_mesh_sum_function(top_labels: TopLabel, n_cells: int) -> GroupSums:
    """Prepare the sums of the residuals at the nodes of a mesh on [0, 1].

    Each residual is divided linearly between the two nodes next to its confidence.
    """
    positions = top_labels.confidence * n_cells
    left_nodes = np.minimum(positions.astype(np.intp), n_cells - 1)
    fraction_at_right_node = positions - left_nodes
    residuals = top_labels.correct - top_labels.confidence
    row_indices = np.arange(len(top_labels))
    return GroupSums(
        groups=np.concatenate((left_nodes, left_nodes + 1)),
        n_groups=n_cells + 1,
        values=np.concatenate(
            (residuals * (1.0 - fraction_at_right_node), residuals * fraction_at_right_node)
        ),
        entry_rows=np.concatenate((row_indices, row_indices)),
    )


def _compute_cosine_coefficients(node_sums: Float, n_rows: int) -> Float:
    """Compute the cosine coefficients of the density of residuals on the mesh."""
    n_cells = node_sums.shape[1] - 1
    density = node_sums * (n_cells / n_rows)
    # Reflection doubles the density at the two ends of the interval.
    density[:, [0, -1]] *= 2.0
    mirrored_density = np.concatenate((density, density[:, -2:0:-1]), axis=1)
    return np.ascontiguousarray(np.fft.rfft(mirrored_density).real)


def _compute_smece(cosine_coefficients: Float, bandwidths: Float) -> Float:
    """Compute smECE_σ of each resample at its own bandwidth σ."""
    n_cells = cosine_coefficients.shape[1] - 1
    # A wide kernel removes the high frequencies, so a coarser mesh is precise enough.
    cells_per_bandwidth = n_cells * bandwidths
    n_halvings_of_resample = np.ceil(
        np.log2(np.maximum(cells_per_bandwidth / _MIN_CELLS_PER_BANDWIDTH, 1.0))
    )
    smece = np.empty(len(bandwidths))
    for n_halvings in np.unique(n_halvings_of_resample):
        resamples = np.flatnonzero(n_halvings_of_resample == n_halvings)
        n_coarse_nodes = (n_cells >> int(n_halvings)) + 1
        smece[resamples] = _integrate_smoothed_density(
            cosine_coefficients[resamples, :n_coarse_nodes], bandwidths[resamples], n_cells=n_cells
        )
    return smece


def _integrate_smoothed_density(low_coefficients: Float, bandwidths: Float, n_cells: int) -> Float:
    """Integrate the absolute smoothed density of residuals over a coarser mesh.

    Parameters
    ----------
    low_coefficients : array of shape (n_resamples, n_coarse_cells + 1)
        The first cosine coefficients, as many as the coarser mesh has nodes.

    bandwidths : array of shape (n_resamples,)
        Bandwidth σ of each resample.

    n_cells : int
        Number of cells of the mesh from which the coefficients were computed.

    Returns
    -------
    array of shape (n_resamples,)
    """
    n_coarse_nodes = low_coefficients.shape[1]
    n_coarse_cells = n_coarse_nodes - 1
    exponents = _HALF_SQUARED_FREQUENCIES[:n_coarse_nodes] * -(bandwidths[:, None] ** 2)
    smoothed_coefficients = low_coefficients * np.exp(exponents)
    # The inverse transform divides by the number of its points, 2 n_coarse_cells, although the
    # coefficients are sums over 2 n_cells points. Its values are therefore too large by the factor
    # n_cells / n_coarse_cells. The cell width 1 / n_coarse_cells of the trapezoidal rule and this
    # factor together are a division by n_cells.
    scaled_mirrored_density = np.fft.irfft(smoothed_coefficients, 2 * n_coarse_cells)
    scaled_heights = np.abs(scaled_mirrored_density[:, :n_coarse_nodes])
    half_of_end_heights = 0.5 * (scaled_heights[:, 0] + scaled_heights[:, -1])
    trapezoidal_sum = scaled_heights.sum(axis=1) - half_of_end_heights
    return np.asarray(trapezoidal_sum / n_cells)


def _find_fixed_points(cosine_coefficients: Float, first_guess: float | None = None) -> Float:
    """Solve smECE_σ = σ for σ, for each resample.

    Parameters
    ----------
    cosine_coefficients : array of shape (n_resamples, n_nodes)
        Cosine coefficients of the residuals of each resample.

    first_guess : float, default=None
        Smooth ECE of the sample, which is near that of its resamples. It saves half of the
        transforms.

    Returns
    -------
    array of shape (n_resamples,)
    """
    n_cells = cosine_coefficients.shape[1] - 1
    # Coefficient 0 is the sum of the mirrored density over 2 n_cells nodes. Smoothing does not change
    # it, so the absolute mean residual is a lower bound of smECE_σ for every σ.
    mean_residuals = cosine_coefficients[:, 0] / (2 * n_cells)
    lower_bound = np.abs(mean_residuals)
    if first_guess is None:
        tolerance = _SAMPLE_TOLERANCE
        first_sigma = lower_bound.copy()
    else:
        tolerance = _RESAMPLE_TOLERANCE
        first_sigma = np.maximum(first_guess, lower_bound)
    search = _SecantSearch.from_first_sigma(
        cosine_coefficients, first_sigma, lower_bound, tolerance
    )
    for _ in range(_MAX_STEPS):
        if not len(search.active_resamples):
            break
        search.take_step()
    return search.solution


@dataclass(eq=False)
class _SecantSearch:
    """Secant search for the fixed points of several resamples, kept inside brackets.

    Attributes
    ----------
    cosine_coefficients : array of shape (n_resamples, n_nodes)
        Cosine coefficients.

    tolerance : float
        Width of the bracket at which a resample is solved.

    low, high : array of shape (n_resamples,)
        Bracket of each fixed point.

    solution : array of shape (n_resamples,)
        Best value so far.

    last_sigma, last_excess : array of shape (n_resamples,)
        Last bandwidth of each resample, and smECE_σ - σ at this bandwidth.

    sigma : array of shape (n_resamples,)
        Next bandwidth of each resample.

    active_resamples : array of int
        Indices of the resamples that are not solved.
    """

    cosine_coefficients: Float
    tolerance: float
    low: Float
    high: Float
    solution: Float
    last_sigma: Float
    last_excess: Float
    sigma: Float
    active_resamples: Codes

    @classmethod
    def from_first_sigma(
        cls, cosine_coefficients: Float, first_sigma: Float, lower_bound: Float, tolerance: float
    ) -> _SecantSearch:
        """Build the brackets from the first bandwidth of each resample and its smECE_σ.

        Parameters
        ----------
        cosine_coefficients : array of shape (n_resamples, n_nodes)
            Cosine coefficients.

        first_sigma : array of shape (n_resamples,)
            First bandwidth of each resample.

        lower_bound : array of shape (n_resamples,)
            Lower bound of each fixed point.

        tolerance : float
            Width of the bracket at which a resample is solved.

        Returns
        -------
        _SecantSearch
        """
        first_excess = _compute_smece(cosine_coefficients, first_sigma) - first_sigma
        first_smece = np.maximum(first_sigma + first_excess, lower_bound)
        # The fixed point lies between any σ and its smECE_σ.
        low = np.minimum(first_sigma, first_smece)
        high = np.maximum(first_sigma, first_smece)
        return cls(
            cosine_coefficients=cosine_coefficients,
            tolerance=tolerance,
            low=low,
            high=high,
            solution=high.copy(),
            last_sigma=first_sigma,
            last_excess=first_excess,
            sigma=np.where(first_sigma > lower_bound, 0.5 * (low + high), high),
            active_resamples=np.flatnonzero(high - low > tolerance),
        )

    def take_step(self) -> None:
        """Evaluate the active resamples, shrink their brackets and choose the next σ."""
        active = self.active_resamples
        sigma = self.sigma[active]
        excess = _compute_smece(self.cosine_coefficients[active], sigma) - sigma
        smece = sigma + excess
        # The fixed point lies between σ and smECE_σ, and in the bracket so far.
        is_sigma_too_low = excess > 0.0
        high = np.where(is_sigma_too_low, np.minimum(self.high[active], smece), sigma)
        low = np.where(is_sigma_too_low, sigma, np.maximum(self.low[active], smece))
        midpoint = 0.5 * (low + high)

        slope = (excess - self.last_excess[active]) / (sigma - self.last_sigma[active])
        has_valid_slope = slope < 0.0
        secant_sigma = sigma - excess / np.where(has_valid_slope, slope, -1.0)
        is_inside_bracket = (low < secant_sigma) & (secant_sigma < high)
        takes_secant = has_valid_slope & is_inside_bracket

        self.low[active] = low
        self.high[active] = high
        self.solution[active] = midpoint
        self.last_sigma[active] = sigma
        self.last_excess[active] = excess
        self.sigma[active] = np.where(takes_secant, secant_sigma, midpoint)
        is_unsolved = high - low > self.tolerance
        self.active_resamples = active[is_unsolved]
