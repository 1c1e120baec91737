"""Gaussian-process calibration: a smooth function of each logit, then softmax.

Wenger, Kjellström & Triebel, "Non-Parametric Calibration for Classification", AISTATS 2020.
There are four deviations from the paper:

- The bound on the evidence is deterministic. The paper needs E log Σ exp f and expands it to
  second order. Here Jensen's inequality, E log Σ exp f <= log Σ exp(m + σ²/2), gives a bound
  that is exact in the limit of many rows, needs only the variance of each single logit, is
  jointly concave in the variational mean and covariance, and is a sum over rows. So Newton
  steps reach the maximum, with a thousand classes as with ten (the original does not converge
  there).
- Rows are centred first: f is applied to x minus the mean of the row, so a constant added to
  a row changes nothing.
- The prior mean is the identity on *tempered* logits b x, with b from temperature scaling.
  Where there are no data, the map equals temperature scaling, not the raw logits.
- The prediction is the softmax of the posterior mean, without sampling.

The variational fit is in `metacal.maps.fitting.variational`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Literal

import numpy as np

from metacal.errors import ConvergenceWarning, InputError, warn_caller
from metacal.formulas import Codes, Float
from metacal.formulas.gp import gaussian_process
from metacal.kernels import gp as kernels
from metacal.maps.fitting.variational import (
    MAX_PASSES,
    EvidenceData,
    InducingBasis,
    VariationalPosterior,
    build_basis,
    compute_bound,
    compute_laplace_evidence,
    make_prior_posterior,
    maximise_bound,
)
from metacal.maps.labelled import LabelledRows, Weights
from metacal.maps.map import Map, check_positive
from metacal.maps.temperature import fit_temperature
from metacal.rows import Rows

Centre = Literal["mean", "log_softmax"]

#: Lengthscales of the compared kernels, as fractions of the range of the inducing inputs.
_LENGTHSCALE_FRACTIONS = (0.2, 0.4, 0.8)
#: Largest number of inducing inputs.
_MAX_INDUCING = 200
#: Smallest range of the tempered logits, relative to their size, for which a curve is fitted.
_MIN_RELATIVE_RANGE = 1e-6
#: Variances of the compared kernels, in squared tempered logits.
_VARIANCES = (0.02, 0.2, 2.0)
#: Number of table entries used to compare the kernels.
_MAX_SAMPLE_ENTRIES = 1 << 20
#: Fraction of the probability mass beyond the inducing inputs on either side.
_TAIL_MASS = 1e-3
#: Remaining gain of the bound, in nats over all rows, at which the final fit stops.
_TOLERANCE = 1e-6
#: Remaining gain of the bound at which a fit stops that only compares kernels.
_COMPARISON_TOLERANCE = 1e-2
#: Number of points at which the slope of the latent function is checked.
_N_SLOPE_POINTS = 4096
#: Distance from the inducing inputs, in lengthscales, at which the slope is one again.
_SLOPE_MARGIN = 8.0


@dataclass(frozen=True, eq=False)
class GaussianProcessMap(Map):
    """Gaussian-process map softmax(f(t)) of tempered, centred logits t.

    The latent function is f(t) = t + Σ_m w_m exp(-½ ((t - z_m) / lengthscale)²).

    Attributes
    ----------
    inverse_temperature : float
        Inverse temperature b > 0.
    lengthscale : float
        Lengthscale of the kernel, in tempered logits.
    inducing : array of shape (n_inducing,)
        Increasing inducing inputs z, in tempered logits.
    weights : array of shape (n_inducing,)
        Weights w = k(Z, Z)⁻¹ (E f(Z) - Z).
    centre : {"mean", "log_softmax"}
        Whether the mean or the log-sum-exp of a row is subtracted from it.

    Examples
    --------
    >>> inducing, weights = np.array([0.0, 4.0]), np.array([0.0, 1.0])
    >>> bump = GaussianProcessMap(1.0, 2.0, inducing=inducing, weights=weights)
    >>> bump(np.array([[4.0, -4.0]])).round(5)
    array([[9.9988e-01, 1.2000e-04]])
    >>> bump.latent(bump.inducing).round(3)
    array([0.135, 5.   ])
    """

    inverse_temperature: float
    lengthscale: float
    inducing: Float
    weights: Float
    centre: Centre = "mean"

    derived = ("n_inducing",)
    formula = staticmethod(gaussian_process)
    ends_in_softmax = True

    def check(self) -> None:
        """Raise InputError unless the fields are valid."""
        check_positive("inverse_temperature", self.inverse_temperature)
        check_positive("lengthscale", self.lengthscale)
        inducing = self.inducing
        weights = self.weights
        is_flat = inducing.ndim == 1 and len(inducing) > 0
        if not is_flat or inducing.shape != weights.shape:
            raise InputError(
                "inducing and weights must be 1-D arrays of the same length, but got shapes"
                f" {inducing.shape} and {weights.shape}."
            )
        if not (np.isfinite(inducing).all() and np.isfinite(weights).all()):
            raise InputError("inducing and weights must contain only finite numbers.")
        if (np.diff(inducing) <= 0.0).any():
            raise InputError("inducing must be sorted in increasing order.")
        _check_centre(self.centre)

    @property
    def n_inducing(self) -> int:
        """Number of inducing inputs."""
        return len(self.inducing)

    def latent(self, values: Float) -> Float:
        """Compute the posterior mean f at tempered logits."""
        basis_values = kernels.basis_functions(values, self.inducing, self.lengthscale)
        return np.asarray(values + self.weights @ basis_values)

    @cached_property
    def preserves_accuracy(self) -> bool:
        """Whether f increases everywhere, so that no prediction can change."""
        return self.smallest_slope > 0.0

    @property
    def smallest_slope(self) -> float:
        """Lower bound on the slope f'(t) of the latent function.

        The slope is computed on 4,096 points, which extend eight lengthscales beyond the
        inducing inputs, where it is one again. An allowance covers the values between two
        points.
        """
        margin = _SLOPE_MARGIN * self.lengthscale
        lowest_point = self.inducing[0] - margin
        highest_point = self.inducing[-1] + margin
        points = np.linspace(lowest_point, highest_point, _N_SLOPE_POINTS)
        basis_values = kernels.basis_functions(points, self.inducing, self.lengthscale)
        scaled_distance = (points - self.inducing[:, None]) / self.lengthscale
        slope = 1.0 - self.weights @ (scaled_distance * basis_values) / self.lengthscale
        scaled_second_derivative = (scaled_distance * scaled_distance - 1.0) * basis_values
        curvature = self.weights @ scaled_second_derivative / self.lengthscale**2
        half_spacing = 0.5 * (points[1] - points[0])
        max_decrease_between_points = half_spacing * np.abs(curvature).max()
        return float(slope.min() - max_decrease_between_points)


def fit_gaussian_process(
    rows: Rows,
    labels: Codes,
    weights: Weights = None,
    *,
    n_inducing: int = 10,
    centre: Centre = "mean",
) -> GaussianProcessMap:
    """Fit a sparse Gaussian process by variational inference.

    With f ~ GP(t, s² exp(-½ (t - t')² / lengthscale²)), q(f(Z)) = N(m, S) and its marginals
    m_j, σ_j², the function

        Σ_rows [m_y - log Σ_j exp(m_j + σ_j²/2)] - KL(q(f(Z)) ‖ p(f(Z)))

    is a lower bound on the evidence. Each pass over the table takes a Newton step in the mean
    and sets the covariance to its stationary value at the current probabilities. The inducing
    inputs are evenly spaced where the probability mass is. Lengthscale and variance are those
    with the highest evidence (Laplace's approximation) on up to a million entries of the
    table. A large table is thinned for that choice and for Newton's curvature, never for the
    bound and its gradient.

    If there are fewer than two distinct logits, the map equals temperature scaling.

    Parameters
    ----------
    rows : Rows
        Rows of logits.

    labels : array of int of shape (n_rows,)
        Column index of the true class of each row.

    weights : array of shape (n_rows,), optional
        Weight of each row.

    n_inducing : int, default=10
        Number of inducing inputs, from 2 to 200.

    centre : {"mean", "log_softmax"}, default="mean"
        Whether the mean or the log-sum-exp of a row is subtracted from it.

    Returns
    -------
    GaussianProcessMap
    """
    is_integer = isinstance(n_inducing, int | np.integer) and not isinstance(n_inducing, bool)
    if not is_integer or not 2 <= n_inducing <= _MAX_INDUCING:
        raise InputError(
            f"n_inducing must be an integer between 2 and {_MAX_INDUCING}, but got {n_inducing!r}."
        )
    _check_centre(centre)
    sample = LabelledRows(rows, labels, weights).drop_unusable_rows()
    inverse_temperature = fit_temperature(
        sample.rows, sample.labels, sample.weights
    ).inverse_temperature
    subsample = _select_every_nth_row(sample)
    compute_masses = partial(
        kernels.probability_mass, centre=centre, inverse_temperature=inverse_temperature
    )
    logits_and_masses = subsample.rows.compute_column(
        compute_masses, subsample.labels, subsample.weights
    )
    lowest_logit, highest_logit = _find_mass_range(logits_and_masses)
    size_of_logits = max(1.0, abs(lowest_logit), abs(highest_logit))
    logits_vary = highest_logit - lowest_logit > _MIN_RELATIVE_RANGE * size_of_logits
    if not logits_vary:
        return GaussianProcessMap(
            inverse_temperature=inverse_temperature,
            lengthscale=1.0,
            inducing=np.array([lowest_logit]),
            weights=np.zeros(1),
            centre=centre,
        )

    inducing = np.linspace(lowest_logit, highest_logit, n_inducing)
    subsample_data = EvidenceData(subsample, subsample, inverse_temperature, centre)
    all_data = EvidenceData(sample, subsample, inverse_temperature, centre)
    basis, subsample_posterior = _choose_kernel(subsample_data, inducing)
    start_posterior = replace(
        subsample_posterior, precision=all_data.scale_to_all_rows * subsample_posterior.precision
    )
    posterior = maximise_bound(partial(compute_bound, all_data, basis), start_posterior, _TOLERANCE)
    if not posterior.converged:
        warn_caller(
            f"Gaussian-process calibration did not converge within {MAX_PASSES} passes. The best"
            " map so far is used.",
            ConvergenceWarning,
        )
    return GaussianProcessMap(
        inverse_temperature=inverse_temperature,
        lengthscale=basis.lengthscale,
        inducing=inducing,
        weights=posterior.mean @ basis.projection,
        centre=centre,
    )


def _check_centre(centre: str) -> None:
    """Raise InputError unless the name of the centre is known."""
    if centre not in kernels.CENTRES:
        raise InputError(
            f"centre must be one of {', '.join(map(repr, kernels.CENTRES))}, but got {centre!r}."
        )


def _select_every_nth_row(sample: LabelledRows) -> LabelledRows:
    """Return every n-th row, so that few enough table entries remain."""
    n_entries = len(sample.rows) * sample.rows.n_classes
    stride = math.ceil(n_entries / _MAX_SAMPLE_ENTRIES)
    if stride == 1:
        return sample
    return sample.select(np.arange(len(sample.rows)) % stride == 0)


def _find_mass_range(logits_and_masses: Float) -> tuple[float, float]:
    """Find the range of tempered logits that contains nearly all probability mass.

    Parameters
    ----------
    logits_and_masses : array of shape (n_entries, 2)
        Tempered logit and probability mass of each entry.

    Returns
    -------
    low, high : float
    """
    tempered_logits = logits_and_masses[:, 0]
    rising_order = tempered_logits.argsort(kind="stable")
    cumulative_mass = np.cumsum(logits_and_masses[rising_order, 1])
    cumulative_levels = cumulative_mass[-1] * np.array([_TAIL_MASS, 1.0 - _TAIL_MASS])
    positions = np.searchsorted(cumulative_mass, cumulative_levels)
    low, high = tempered_logits[rising_order[positions]]
    return float(low), float(high)


def _choose_kernel(
    data: EvidenceData, inducing: Float
) -> tuple[InducingBasis, VariationalPosterior]:
    """Fit every kernel roughly and return the one with the highest evidence."""
    input_range = float(inducing[-1] - inducing[0])
    candidates = []
    evidences = []
    for lengthscale_fraction in _LENGTHSCALE_FRACTIONS:
        for variance in _VARIANCES:
            basis = build_basis(inducing, lengthscale_fraction * input_range, variance)
            posterior = maximise_bound(
                partial(compute_bound, data, basis),
                make_prior_posterior(basis),
                _COMPARISON_TOLERANCE,
            )
            candidates.append((basis, posterior))
            evidences.append(compute_laplace_evidence(data, basis, posterior.mean))
    best_candidate = int(np.argmax(evidences))
    return candidates[best_candidate]
