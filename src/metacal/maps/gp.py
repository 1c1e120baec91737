"""Gaussian-process calibration: one smooth latent function applied to every logit, then softmax.

Wenger, Kjellström & Triebel, "Non-Parametric Calibration for Classification", AISTATS 2020. Where
this differs:

- The bound on the evidence is deterministic. The paper needs E log Σ exp f and expands it to second
  order; here E log Σ exp f <= log Σ exp(m + σ²/2), Jensen's inequality, which is exact in the limit
  of many rows, needs only the variance of each single logit, is concave in the variational mean and
  in the covariance together, and is a sum over rows. So Newton steps reach the maximum, at a
  thousand classes as at ten (the original does not converge there).
- Rows are centred first: f sees x minus the row's mean, so a constant added to a row changes
  nothing.
- The prior mean is the identity on *tempered* logits, b·x with b from temperature scaling. Where
  the data say nothing the map falls back on temperature scaling, not on the raw logits.
- The prediction is softmax of the posterior mean, no sampling.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Literal, NamedTuple

import numpy as np

from metacal.errors import ConvergenceWarning, InputError, warn_caller
from metacal.formulas import Codes, Float
from metacal.formulas.gp import gaussian_process
from metacal.kernels import gp as kernels
from metacal.maps.labelled import Labelled, Weights
from metacal.maps.map import Map, positive
from metacal.maps.temperature import fit_temperature
from metacal.rows import Rows

Centre = Literal["mean", "log_softmax"]

#: What the kernel is chosen among by the evidence: lengthscales as shares of the range of the
#: inducing inputs, variances in squared tempered logits.
_LENGTHSCALES = (0.2, 0.4, 0.8)
_VARIANCES = (0.02, 0.2, 2.0)
#: Entries of the table that the choice looks at.
_SAMPLE_ELEMENTS = 1 << 20
#: The inducing inputs leave out this share of the probability mass at either end.
_TAIL = 1e-3
#: Directions of the kernel with a smaller eigenvalue, relative to the largest, are left out.
_SMALLEST_EIGENVALUE = 1e-6
#: What may be left to gain of the bound, in nats over all rows: a thousandth of a posterior
#: standard deviation.
_TOLERANCE = 1e-6
#: The same while the kernel is being chosen.
_ROUGH = 1e-2
_MAX_PASSES = 50
#: Points on which f is written down while fitting, some 200 to a lengthscale: interpolation is off
#: by 3e-6 of it.
_GRID = 4096


@dataclass(frozen=True, eq=False)
class GaussianProcessMap(Map):
    """softmax(f(t)) with f(t) = t + Σ_m w_m exp(-½ ((t - z_m)/ℓ)²) on tempered logits t = b·(x -
    centre of the row).

    Attributes
    ----------
    inverse_temperature : float
        b > 0.
    lengthscale : float
        ℓ > 0, in tempered logits.
    inducing : array of shape (M,)
        The inducing inputs z, increasing, in tempered logits.
    weights : array of shape (M,)
        w = k(Z, Z)⁻¹ (E f(Z) - Z).
    centre : "mean" or "log_softmax"
        What is subtracted from a row: its mean, or its log-sum-exp.

    Examples
    --------
    >>> bump = GaussianProcessMap(1.0, 2.0, inducing=np.array([0.0, 4.0]), weights=np.array([0.0, 1.0]))
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
        """Raise unless the fields make a map."""
        positive("inverse_temperature", self.inverse_temperature)
        positive("lengthscale", self.lengthscale)
        if (
            self.inducing.ndim != 1
            or not len(self.inducing)
            or self.inducing.shape != self.weights.shape
        ):
            raise InputError(
                "inducing and weights must be flat arrays of one length; "
                f"got shapes {self.inducing.shape} and {self.weights.shape}."
            )
        if not (np.isfinite(self.inducing).all() and np.isfinite(self.weights).all()):
            raise InputError("inducing and weights must be finite.")
        if (np.diff(self.inducing) <= 0.0).any():
            raise InputError("inducing must be increasing.")
        if self.centre not in kernels.CENTRES:
            raise InputError(
                f"centre must be one of {', '.join(map(repr, kernels.CENTRES))}, got"
                f" {self.centre!r}."
            )

    @property
    def n_inducing(self) -> int:
        """How many inducing inputs there are."""
        return len(self.inducing)

    def latent(self, values: Float) -> Float:
        """The posterior mean f at tempered logits t."""
        return np.asarray(
            values + self.weights @ kernels.bumps(values, self.inducing, self.lengthscale)
        )

    @cached_property
    def preserves_accuracy(self) -> bool:
        """Whether f increases everywhere, so that no row's largest class can change.

        The slope is looked at on 4,096 points that reach eight lengthscales beyond the inducing
        inputs, where it is that of temperature scaling again, with an allowance for what may happen
        between two points.
        """
        return self.smallest_slope > 0.0

    @property
    def smallest_slope(self) -> float:
        """A lower bound on f'(t): one is temperature scaling, zero or less means the order of two
        classes may turn.
        """
        reach = 8.0 * self.lengthscale
        grid = np.linspace(self.inducing[0] - reach, self.inducing[-1] + reach, _GRID)
        bumps = kernels.bumps(grid, self.inducing, self.lengthscale)
        scaled = (grid - self.inducing[:, None]) / self.lengthscale
        slope = 1.0 - self.weights @ (scaled * bumps) / self.lengthscale
        bend = self.weights @ ((scaled * scaled - 1.0) * bumps) / self.lengthscale**2
        return float(slope.min() - 0.5 * (grid[1] - grid[0]) * np.abs(bend).max())


def fit_gp(
    rows: Rows,
    labels: Codes,
    weights: Weights = None,
    *,
    n_inducing: int = 10,
    centre: Centre = "mean",
) -> GaussianProcessMap:
    """Maximise the evidence bound over q(f(Z)), a normal distribution, for the best of nine
    kernels.

    With f ~ GP(t, s² exp(-½ (t - t')²/ℓ²)), q(f(Z)) = N(m, S) and the marginals m_j, σ_j² that
    follow,

        Σ_rows [m_y - log Σ_j exp(m_j + σ_j²/2)] - KL(q(f(Z)) ‖ p(f(Z)))

    is a lower bound on the evidence. Each pass over the table takes a Newton step in the mean and
    sets the covariance to its stationary value at the present probabilities. The M inducing inputs
    are evenly spaced where the probability mass is. Lengthscale and variance are those with the
    highest evidence (Laplace's approximation) on up to a million entries of the table; rows of a
    large table are thinned for that choice and for Newton's curvature, never for the bound and its
    gradient.

    Where fewer than two distinct logits occur there is nothing to learn and the map is temperature
    scaling's.
    """
    if (
        isinstance(n_inducing, bool)
        or not isinstance(n_inducing, int | np.integer)
        or not 2 <= n_inducing <= 200
    ):
        raise InputError(f"n_inducing must be a whole number from 2 to 200, got {n_inducing!r}.")
    if centre not in kernels.CENTRES:
        raise InputError(
            f"centre must be one of {', '.join(map(repr, kernels.CENTRES))}, got {centre!r}."
        )
    sample = Labelled(rows, labels, weights).usable()
    b = fit_temperature(*sample).inverse_temperature
    # Every s-th row, so that at most `_SAMPLE_ELEMENTS` entries are left; the table is not copied.
    step = -(-len(sample.rows) * sample.rows.n_classes // _SAMPLE_ELEMENTS)
    few = sample if step == 1 else sample.where(np.arange(len(sample.rows)) % step == 0)
    masses = partial(kernels.probability_mass, centre=centre, inverse_temperature=b)
    entries = few.rows.collect(masses, few.labels, few.weights)
    low, high = _mass_range(entries)
    if not high - low > 1e-6 * max(1.0, abs(low), abs(high)):
        return GaussianProcessMap(b, 1.0, np.array([low]), np.zeros(1), centre)
    inducing = np.linspace(low, high, n_inducing)
    some = _Data(few, few, b, centre)
    bases = [
        _basis(inducing, share * (high - low), variance)
        for share in _LENGTHSCALES
        for variance in _VARIANCES
    ]
    found = [_maximise(partial(_bound, some, basis), _prior(basis), _ROUGH) for basis in bases]
    best = int(np.argmax([_log_evidence(some, basis, q.mean) for basis, q in zip(bases, found)]))
    basis, rough = bases[best], found[best]
    everything = _Data(sample, few, b, centre)
    start = rough._replace(precision=everything.scale * rough.precision)
    posterior = _maximise(partial(_bound, everything, basis), start, _TOLERANCE)
    if not posterior.converged:
        warn_caller(
            f"Gaussian-process calibration did not converge in {_MAX_PASSES} passes; the map is the"
            " best one found.",
            ConvergenceWarning,
        )
    return GaussianProcessMap(
        b, basis.lengthscale, inducing, posterior.mean @ basis.projection, centre
    )


class _Posterior(NamedTuple):
    """q(v) = N(mean, precision⁻¹) of the whitened inducing variables; whether the bound has its
    maximum there.
    """

    mean: Float
    precision: Float
    converged: bool = True


class _Bound(NamedTuple):
    """The evidence bound at one q, and what the next step needs."""

    value: float
    gradient: Float
    curvature: Float
    precision: Float


class _Basis(NamedTuple):
    """The features a(t) of a sparse Gaussian process, whitened: f(t) = t + v·a(t) + the rest, with
    v ~ N(0, I).

    With the eigenvectors u_r and eigenvalues λ_r of the unit-variance kernel between the inducing
    inputs, a_r(t) = s u_r·k(Z, t) / √λ_r. Directions with λ_r near zero are left out, and the bound
    stays a bound: the inducing variables are then the projections u_r·f(Z).
    """

    lengthscale: float
    variance: float
    projection: Float
    grid: Float
    features: Float

    def moments(self, mass: Float) -> Float:
        """Σ mass · a aᵀ over the grid."""
        return np.asarray((self.features * mass) @ self.features.T)


class _Data(NamedTuple):
    """The rows, and those among them that Newton's curvature is taken from."""

    everything: Labelled
    some: Labelled
    inverse_temperature: float
    centre: Centre

    @property
    def scale(self) -> float:
        """How many times heavier all rows are than those for the curvature."""
        return self.everything.total / self.some.total

    def sums(self, curve: kernels.Curve, basis: _Basis) -> tuple[float, Float, Float, Float]:
        """The bound without its divergence, the masses of the true and of the expected classes, and
        Σ_rows Cov_π(a).

        In one pass where both look at the same rows.
        """
        if self.some is self.everything:
            found = self._sum(self.everything, curve, "evidence", "covariances")
        else:
            parts = (
                self._sum(self.everything, curve, "evidence"),
                self._sum(self.some, curve, "covariances"),
            )
            found = np.concatenate(parts)
        grid, size = len(curve.mean), len(basis.features)
        true, expected, within, mass = np.split(found[1:], np.cumsum([grid, grid, size * size]))
        curvature = self.scale * (basis.moments(mass) - within.reshape(size, size))
        return float(found[0]), true, expected, np.asarray(curvature)

    def _sum(self, sample: Labelled, curve: kernels.Curve, *which: str) -> Float:
        kernel = partial(
            kernels.sums,
            curve=curve,
            centre=self.centre,
            inverse_temperature=self.inverse_temperature,
            which=which,
        )
        return sample.rows.sum(kernel, sample.labels, sample.weights)


def _mass_range(entries: Float) -> tuple[float, float]:
    """Between which tempered logits all but 2 · 0.1% of the probability mass lies."""
    order = entries[:, 0].argsort(kind="stable")
    mass = np.cumsum(entries[order, 1])
    at = np.searchsorted(mass, mass[-1] * np.array([_TAIL, 1.0 - _TAIL]))
    low, high = entries[order[at], 0]
    return float(low), float(high)


def _basis(inducing: Float, lengthscale: float, variance: float) -> _Basis:
    values, vectors = np.linalg.eigh(kernels.bumps(inducing, inducing, lengthscale))
    kept = values > _SMALLEST_EIGENVALUE * values[-1]
    projection = np.sqrt(variance / values[kept])[:, None] * vectors[:, kept].T
    reach = 6.0 * lengthscale
    grid = np.linspace(inducing[0] - reach, inducing[-1] + reach, _GRID)
    features = projection @ kernels.bumps(grid, inducing, lengthscale)
    return _Basis(lengthscale, variance, projection, grid, np.asarray(features))


def _prior(basis: _Basis) -> _Posterior:
    size = len(basis.projection)
    return _Posterior(np.zeros(size), np.eye(size))


def _curve(basis: _Basis, mean: Float, covariance: Float) -> kernels.Curve:
    """f under q on the grid; Var f = s² - a·a + a·covariance·a."""
    shrink = covariance - np.eye(len(mean))
    variance = basis.variance + np.einsum("rg,rg->g", shrink @ basis.features, basis.features)
    centre, grid = mean @ basis.features, basis.grid
    lifted = centre + 0.5 * np.maximum(variance, 0.0)
    features = np.ascontiguousarray(basis.features.T)
    return kernels.Curve(float(grid[0]), float(grid[1] - grid[0]), features, centre, lifted)


def _bound(data: _Data, basis: _Basis, mean: Float, precision: Float) -> _Bound:
    """The evidence bound at q(v) = N(mean, precision⁻¹): one pass over the rows, one over those for
    the curvature.
    """
    covariance: Float = np.asarray(np.linalg.inv(precision), dtype=np.float64)
    value, true, expected, curvature = data.sums(_curve(basis, mean, covariance), basis)
    size, identity = len(mean), np.eye(len(mean))
    divergence = 0.5 * (np.trace(covariance) + mean @ mean - size + np.linalg.slogdet(precision)[1])
    gradient = np.asarray(basis.features @ (true - expected) - mean)
    return _Bound(
        float(value - divergence),
        gradient,
        curvature + identity,
        basis.moments(expected) + identity,
    )


def _log_evidence(data: _Data, basis: _Basis, mean: Float) -> float:
    """Laplace's approximation of the log evidence: log p(y | mean) - ½ mean·mean - ½ log det(I +
    curvature).

    Kernels are chosen by this, not by the bound, which charges a sure row σ²/2 for nothing and so
    prefers kernels that leave no freedom.
    """
    curve = _curve(basis, mean, np.zeros((len(mean), len(mean))))
    value, _, _, curvature = data.sums(replace(curve, lifted=curve.mean), basis)
    volume = np.linalg.slogdet(curvature + np.eye(len(mean)))[1]
    return float(value - 0.5 * mean @ mean - 0.5 * volume)


def _maximise(
    evaluate: Callable[[Float, Float], _Bound], start: _Posterior, tolerance: float
) -> _Posterior:
    """Newton steps in the mean, fixed-point steps in the precision, both halved until the bound
    does not fall.

    The problem is concave in (mean, covariance); the step in the precision is its natural gradient,
    so both are directions of ascent.
    """
    mean, precision, _ = start
    here = evaluate(mean, precision)
    for _ in range(_MAX_PASSES):
        step = np.linalg.solve(here.curvature, here.gradient)
        change = here.precision - precision
        # Half of each natural-gradient norm: what a full step gains to second order.
        inverse = np.linalg.solve(precision, change)
        to_gain = 0.5 * float(step @ here.gradient) + 0.25 * float(np.sum(inverse * inverse.T))
        if to_gain < tolerance:
            return _Posterior(mean + step, here.precision)
        length, there = 1.0, evaluate(mean + step, precision + change)
        while not there.value >= here.value - 1e-12 * abs(here.value) and length > 1e-6:
            length *= 0.5
            there = evaluate(mean + length * step, precision + length * change)
        mean, precision, here = mean + length * step, precision + length * change, there
    return _Posterior(mean, precision, converged=False)
