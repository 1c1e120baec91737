"""Variational inference for the sparse Gaussian process of `metacal.maps.gp`.

The latent function is f(t) = t + v·a(t) + rest with whitened inducing variables v ~ N(0, I).
The posterior is approximated by q(v) = N(mean, precision⁻¹). The approximation maximises a
lower bound on the evidence, whose parts are sums over the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from metacal.formulas import Float
from metacal.kernels import gp as kernels
from metacal.maps.labelled import LabelledRows

#: Eigenvalue of the kernel matrix, relative to the largest, below which a direction is omitted.
_MIN_EIGENVALUE = 1e-6
#: Number of points at which f is tabulated; the relative interpolation error is 3e-6.
_N_GRID_POINTS = 4096
#: Distance of the grid's ends from the inducing inputs, in lengthscales.
_GRID_MARGIN = 6.0
#: Largest number of passes over the table.
MAX_PASSES = 50
#: A step is accepted if the bound decreases by no more than this fraction, a rounding error.
_RELATIVE_ROUNDING_ERROR = 1e-12
#: Smallest fraction of a step that is tried.
_MIN_STEP_FRACTION = 1e-6


@dataclass(frozen=True)
class VariationalPosterior:
    """Normal distribution q(v) = N(mean, precision⁻¹) of the inducing variables.

    Attributes
    ----------
    mean : array of shape (n_features,)

    precision : array of shape (n_features, n_features)

    converged : bool
        Whether the bound has its maximum there.
    """

    mean: Float
    precision: Float
    converged: bool = True


@dataclass(frozen=True)
class EvidenceBound:
    """Evidence bound at a posterior, with the quantities for the next step.

    Attributes
    ----------
    value : float
        The bound.

    gradient_in_mean : array of shape (n_features,)
        Gradient in the mean.

    curvature_in_mean : array of shape (n_features, n_features)
        Negative Hessian in the mean.

    optimal_precision : array of shape (n_features, n_features)
        Precision with the highest bound if the probabilities of the classes were fixed.
    """

    value: float
    gradient_in_mean: Float
    curvature_in_mean: Float
    optimal_precision: Float


@dataclass(frozen=True)
class InducingBasis:
    """Whitened features a(t) of a sparse Gaussian process, tabulated on a grid.

    With the eigenvectors u_r and eigenvalues λ_r of the unit-variance kernel between the
    inducing inputs, a_r(t) = s u_r·k(Z, t) / √λ_r. Directions with λ_r near zero are omitted.
    The bound stays a bound, because the inducing variables are then the projections u_r·f(Z).

    Attributes
    ----------
    lengthscale, variance : float
        Parameters of the kernel.

    projection : array of shape (n_features, n_inducing)
        Weights of the kernel functions in each feature.

    grid : array of shape (n_points,)
        Evenly spaced points.

    features : array of shape (n_features, n_points)
        Features at these points.
    """

    lengthscale: float
    variance: float
    projection: Float
    grid: Float
    features: Float

    def sum_outer_products(self, weight_of_point: Float) -> Float:
        """Compute Σ_g weight_g a_g a_gᵀ over the grid points g."""
        return np.asarray((self.features * weight_of_point) @ self.features.T)


@dataclass(frozen=True)
class _LikelihoodSums:
    """Sums over the rows from which the bound and its derivatives follow.

    An entry of the table lies between two grid points, which share its weight. `observed`
    weights count the entry of the true class of each row, `expected` weights count every
    entry times its probability.

    Attributes
    ----------
    expected_log_likelihood : float
        The bound without the divergence from the prior.

    observed_weight_of_point, expected_weight_of_point : arrays of shape (n_points,)
        Weight of the true classes and expected weight of all classes at each grid point.

    feature_covariance : array of shape (n_features, n_features)
        Σ_rows Cov(a) under the current probabilities.
    """

    expected_log_likelihood: float
    observed_weight_of_point: Float
    expected_weight_of_point: Float
    feature_covariance: Float


@dataclass(frozen=True)
class EvidenceData:
    """Rows of the evidence bound, and rows for the curvature of Newton's method.

    Attributes
    ----------
    sample : LabelledRows
        Rows of the bound and its gradient.

    curvature_sample : LabelledRows
        Rows of the curvature: the same, or some of them.

    inverse_temperature : float
        Inverse temperature.

    centre : {"mean", "log_softmax"}
        Centre of a row.
    """

    sample: LabelledRows
    curvature_sample: LabelledRows
    inverse_temperature: float
    centre: str

    @property
    def scale_to_all_rows(self) -> float:
        """Total weight of all rows divided by that of the curvature rows."""
        return self.sample.total_weight / self.curvature_sample.total_weight

    def sum_over_rows(
        self, process: kernels.TabulatedProcess, basis: InducingBasis
    ) -> _LikelihoodSums:
        """Sum the parts of the bound, in one pass if both samples are the same."""
        if self.curvature_sample is self.sample:
            packed_sums = self._sum_kernel(self.sample, process, ("evidence", "covariances"))
        else:
            evidence_sums = self._sum_kernel(self.sample, process, ("evidence",))
            covariance_sums = self._sum_kernel(self.curvature_sample, process, ("covariances",))
            packed_sums = np.concatenate([evidence_sums, covariance_sums])
        n_points = len(process.mean)
        n_features = len(basis.features)
        sizes = [1, n_points, n_points, n_features * n_features, n_points]
        (
            expected_log_likelihood,
            observed_weight_of_point,
            expected_weight_of_point,
            sum_of_mean_products,
            curvature_weight_of_point,
        ) = np.split(packed_sums, np.cumsum(sizes[:-1]))
        # The covariance of the features a in a row is Cov(a) = E[a aᵀ] - E[a] E[a]ᵀ.
        sum_of_mean_products = sum_of_mean_products.reshape(n_features, n_features)
        sum_of_second_moments = basis.sum_outer_products(curvature_weight_of_point)
        covariance_sum = sum_of_second_moments - sum_of_mean_products
        return _LikelihoodSums(
            expected_log_likelihood=float(expected_log_likelihood[0]),
            observed_weight_of_point=observed_weight_of_point,
            expected_weight_of_point=expected_weight_of_point,
            feature_covariance=np.asarray(self.scale_to_all_rows * covariance_sum),
        )

    def _sum_kernel(
        self,
        sample: LabelledRows,
        process: kernels.TabulatedProcess,
        requested_sums: tuple[str, ...],
    ) -> Float:
        """Sum the kernel `bound_sums` over the rows of a sample."""
        kernel = partial(
            kernels.bound_sums,
            process=process,
            centre=self.centre,
            inverse_temperature=self.inverse_temperature,
            requested_sums=requested_sums,
        )
        return sample.rows.sum(kernel, sample.labels, sample.weights)


def build_basis(inducing: Float, lengthscale: float, variance: float) -> InducingBasis:
    """Build the whitened features of a kernel."""
    eigenvalues, eigenvectors = np.linalg.eigh(
        kernels.basis_functions(inducing, inducing, lengthscale)
    )
    is_used = eigenvalues > _MIN_EIGENVALUE * eigenvalues[-1]
    scale = np.sqrt(variance / eigenvalues[is_used])
    projection = scale[:, None] * eigenvectors[:, is_used].T
    margin = _GRID_MARGIN * lengthscale
    grid = np.linspace(inducing[0] - margin, inducing[-1] + margin, _N_GRID_POINTS)
    features = projection @ kernels.basis_functions(grid, inducing, lengthscale)
    return InducingBasis(
        lengthscale=lengthscale,
        variance=variance,
        projection=projection,
        grid=grid,
        features=np.asarray(features),
    )


def make_prior_posterior(basis: InducingBasis) -> VariationalPosterior:
    """Return the prior N(0, I) as a starting point."""
    n_features = len(basis.projection)
    return VariationalPosterior(mean=np.zeros(n_features), precision=np.eye(n_features))


def tabulate_latent(
    basis: InducingBasis, mean: Float, covariance: Float
) -> kernels.TabulatedProcess:
    """Tabulate mean and variance of the latent function under q on a grid.

    The variance of f is s² - a·a + a·covariance·a.
    """
    covariance_change = covariance - np.eye(len(mean))
    variance_change = np.einsum("rg,rg->g", covariance_change @ basis.features, basis.features)
    variance = basis.variance + variance_change
    mean_function = mean @ basis.features
    return kernels.TabulatedProcess(
        first_point=float(basis.grid[0]),
        step=float(basis.grid[1] - basis.grid[0]),
        features=np.ascontiguousarray(basis.features.T),
        mean=mean_function,
        mean_plus_half_variance=mean_function + 0.5 * np.maximum(variance, 0.0),
    )


def compute_bound(
    data: EvidenceData, basis: InducingBasis, mean: Float, precision: Float
) -> EvidenceBound:
    """Compute the evidence bound at q(v) = N(mean, precision⁻¹).

    Parameters
    ----------
    data : EvidenceData
        Rows with labels.

    basis : InducingBasis
        Features of the kernel.

    mean, precision : arrays
        Parameters of q.

    Returns
    -------
    EvidenceBound
    """
    covariance: Float = np.asarray(np.linalg.inv(precision), dtype=np.float64)
    likelihood = data.sum_over_rows(tabulate_latent(basis, mean, covariance), basis)
    observed_weight = likelihood.observed_weight_of_point
    expected_weight = likelihood.expected_weight_of_point
    n_features = len(mean)
    prior_precision = np.eye(n_features)
    _, log_determinant = np.linalg.slogdet(precision)
    divergence_from_prior = 0.5 * (
        np.trace(covariance) + mean @ mean - n_features + log_determinant
    )
    return EvidenceBound(
        value=float(likelihood.expected_log_likelihood - divergence_from_prior),
        gradient_in_mean=np.asarray(basis.features @ (observed_weight - expected_weight) - mean),
        curvature_in_mean=likelihood.feature_covariance + prior_precision,
        optimal_precision=basis.sum_outer_products(expected_weight) + prior_precision,
    )


def compute_laplace_evidence(data: EvidenceData, basis: InducingBasis, mean: Float) -> float:
    """Compute Laplace's approximation of the log evidence of a kernel.

    It is log p(y | mean) - ½ mean·mean - ½ log det(I + curvature). Kernels are compared by
    this and not by the bound. The bound subtracts σ²/2 for a confident row without reason and
    therefore prefers kernels without freedom.
    """
    n_features = len(mean)
    latent_curve = tabulate_latent(basis, mean, np.zeros((n_features, n_features)))
    mean_curve = replace(latent_curve, mean_plus_half_variance=latent_curve.mean)
    likelihood = data.sum_over_rows(mean_curve, basis)
    posterior_precision = likelihood.feature_covariance + np.eye(n_features)
    _, log_determinant = np.linalg.slogdet(posterior_precision)
    log_likelihood = likelihood.expected_log_likelihood
    return float(log_likelihood - 0.5 * mean @ mean - 0.5 * log_determinant)


def maximise_bound(
    evaluate: Callable[[Float, Float], EvidenceBound],
    start: VariationalPosterior,
    tolerance: float,
) -> VariationalPosterior:
    """Maximise the evidence bound over the mean and the precision.

    The problem is concave in (mean, covariance), and the step in the precision is its natural
    gradient. So both are directions of ascent. They are halved until the bound does not
    decrease.

    Parameters
    ----------
    evaluate : function
        Returns the bound at a mean and a precision.

    start : VariationalPosterior
        Point to start from.

    tolerance : float
        Remaining gain at which to stop.

    Returns
    -------
    VariationalPosterior
    """
    mean = start.mean
    precision = start.precision
    bound = evaluate(mean, precision)
    for _ in range(MAX_PASSES):
        mean_step = np.linalg.solve(bound.curvature_in_mean, bound.gradient_in_mean)
        precision_step = bound.optimal_precision - precision
        # A second-order expansion estimates by how much a full step increases the bound.
        relative_precision_step = np.linalg.solve(precision, precision_step)
        mean_gain = 0.5 * float(mean_step @ bound.gradient_in_mean)
        precision_gain = 0.25 * float(np.sum(relative_precision_step * relative_precision_step.T))
        if mean_gain + precision_gain < tolerance:
            return VariationalPosterior(mean + mean_step, bound.optimal_precision)
        step_fraction = 1.0
        new_bound = evaluate(mean + mean_step, precision + precision_step)
        min_accepted_value = bound.value - _RELATIVE_ROUNDING_ERROR * abs(bound.value)
        while not new_bound.value >= min_accepted_value and step_fraction > _MIN_STEP_FRACTION:
            step_fraction *= 0.5
            trial_mean = mean + step_fraction * mean_step
            trial_precision = precision + step_fraction * precision_step
            new_bound = evaluate(trial_mean, trial_precision)
        mean = mean + step_fraction * mean_step
        precision = precision + step_fraction * precision_step
        bound = new_bound
    return VariationalPosterior(mean, precision, converged=False)
