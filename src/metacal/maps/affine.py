"""Affine maps, softmax(A u + c): vector and matrix scaling, Dirichlet calibration and structured
scaling.

- **Vector and matrix scaling**: u are the centred logits, A is diagonal or full. Guo, Pleiss, Sun &
  Weinberger, "On Calibration of Modern Neural Networks", ICML 2017.
- **Dirichlet calibration**: u are log-probabilities, A is full. Kull, Perello-Nieto, Kängsepp,
  Silva Filho, Song & Flach, "Beyond temperature scaling: Obtaining well-calibrated multiclass
  probabilities with Dirichlet calibration", NeurIPS 2019, whose penalties `odir` and `l2` are. The
  logarithms are taken of the softmax itself, in float64: nothing is clipped.
- **Structured scaling**: u are tempered log-probabilities, A is diagonal, drawn towards temperature
  scaling. Berta, Holzmüller, Jordan & Bach, "Structured Matrix Scaling for Multi-Class
  Calibration", 2025, whose penalty `structured` is: their SVS with the ridge penalty, whose
  strength is 1. Here cross-validation chooses it, and the temperature is the plain one.

Three deviations, all deliberate. The logits are centred in each row, so that a constant added to a
row, or logits given as log-probabilities, change nothing. Penalties are measured on tempered logits
and in rows (`penalties` of `fitting.penalised`, where the fit is), so that a strength means the
same on logits of any scale and on any number of rows. And every coefficient carries at least a
penalty of 1/1000 of a row, so that the fit has one finite answer even where the likelihood has
none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from metacal.errors import InputError
from metacal.formulas import Codes, Flags, Float
from metacal.formulas import affine as formulas
from metacal.kernels import affine as kernels
from metacal.maps.fitting.penalised import Problem
from metacal.maps.labelled import Labelled, Weights
from metacal.maps.map import Map, TemperedMap
from metacal.maps.temperature import fit_temperature
from metacal.rows import Rows

#: Standard deviations of offsets of which evidence chooses one; steps to each mode; what holds a
#: scale that has none.
_SPREADS, _NEWTON_STEPS, _LEAST_PRECISION = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2), 30, 1e-3


class AffineMap(Map):
    """softmax of an affine function of features of a row."""

    bias: Float
    regularisation: float

    preserves_accuracy = False
    ends_in_softmax = True

    @property
    def n_classes(self) -> int:
        """The number of classes the map was fitted for."""
        return len(self.bias)

    def check(self) -> None:
        """Raise unless the arrays are finite, with an entry for each class, and the strength is a
        number.
        """
        n = self.n_classes
        for name, shape in {"scale": (n,), "matrix": (n, n), "bias": (n,)}.items():
            array = getattr(self, name, None)  # there is a scale or a matrix
            if array is not None and (
                array.shape != shape or n < 2 or not np.isfinite(array).all()
            ):
                raise InputError(
                    f"{name} must be {' × '.join(map(str, shape))} finite numbers, at least 2 in a"
                    " row."
                )
        strength = self.regularisation
        if not (isinstance(strength, int | float) and 0.0 <= strength < np.inf):
            raise InputError(
                f"regularisation must be a finite number of at least 0, got {strength!r}."
            )


@dataclass(frozen=True, eq=False)
class VectorMap(AffineMap):
    """softmax(scale · u + bias), a scale and a bias for each class; u are the logits less their
    mean.

    Examples
    --------
    >>> VectorMap(scale=np.array([0.5, 0.5]), bias=np.array([0.0, 1.0]))(np.array([[2.0, 0.0]])).round(3)
    array([[0.5, 0.5]])
    """

    scale: Float
    bias: Float
    regularisation: float = 0.0

    formula = staticmethod(formulas.vector)


@dataclass(frozen=True, eq=False)
class MatrixMap(AffineMap):
    """softmax(matrix @ u + bias); u are the logits less their mean.

    Examples
    --------
    >>> swap = np.array([[0.0, 1.0], [1.0, 0.0]])
    >>> MatrixMap(matrix=swap, bias=np.zeros(2))(np.array([[1.0, 0.0]])).round(3)
    array([[0.269, 0.731]])
    """

    matrix: Float
    bias: Float
    regularisation: float = 0.0

    formula = staticmethod(formulas.matrix)


class DirichletMap(MatrixMap):
    """softmax(matrix @ log p + bias), where p = softmax(logits).

    Examples
    --------
    >>> DirichletMap(matrix=0.5 * np.eye(2), bias=np.zeros(2))(np.log([[0.8, 0.2]])).round(3)
    array([[0.667, 0.333]])
    """

    formula = staticmethod(formulas.dirichlet)


@dataclass(frozen=True, eq=False)
class StructuredMap(TemperedMap, AffineMap):
    """softmax(scale · log softmax(b·x) + bias) with the inverse temperature b = 1/T > 0.

    Scales of one and biases of zero are temperature scaling.

    Examples
    --------
    >>> fit = StructuredMap(inverse_temperature=0.5, scale=np.ones(2), bias=np.zeros(2))
    >>> fit(np.array([[2.0, 0.0]])).round(3)
    array([[0.731, 0.269]])
    """

    inverse_temperature: float
    scale: Float
    bias: Float
    regularisation: float = 0.0

    formula = staticmethod(formulas.structured)


def _fit_affine(
    made: Callable[..., AffineMap],
    features: kernels.Features,
    full: bool,
    rows: Rows,
    labels: Codes,
    weights: Weights = None,
    *,
    penalty: str = "structured",
    regularisation: float | None = None,
    intercept_regularisation: float | None = None,
    n_folds: int = 3,
    random_state: int | np.random.Generator = 0,
) -> AffineMap:
    """Minimise the negative log-likelihood of softmax(A u + bias) plus a penalty (see `penalties`).

    With `regularisation=None` its strength is chosen by cross-validation; 0 is Guo et al.'s own
    vector scaling. With `odir` (off-diagonal and intercept, Kull et al.'s) a diagonal matrix has
    only its intercept penalised. The default, `structured`, draws towards temperature scaling and
    holds the diagonal, too: log p is never positive, so a slope left free has no end for a class
    that was never seen. The K² + K coefficients of a full matrix overfit easily: with fewer than
    about 50 rows per class expect little beyond temperature scaling.

    Examples
    --------
    >>> logits = np.log([[0.8, 0.2]] * 10) + [0.0, 1.0]                   # biased towards the second class
    >>> fit = fit_vector(Rows(logits), np.array([0] * 8 + [1] * 2), regularisation=0.0)
    >>> fit(logits[:1]).round(3)
    array([[0.8, 0.2]])
    >>> logits = np.array([[2.0, 0.0], [0.0, 2.0]] * 10)                  # the classes are swapped
    >>> fit = fit_matrix(Rows(logits), np.array([1, 0] * 9 + [0, 1]), regularisation=0.0)
    >>> fit(logits[:2]).round(3)
    array([[0.1, 0.9], [0.9, 0.1]])
    """
    if penalty == "offsets" and not full:
        return _fit_offsets(Labelled(rows, labels, weights).usable())
    problem = Problem(features, full, penalty, intercept_regularisation)
    theta, strength = problem.solve(
        Labelled(rows, labels, weights), regularisation, n_folds, random_state
    )
    return made(theta[:-1].T if full else theta[0], theta[-1], strength)


fit_vector = partial(_fit_affine, VectorMap, kernels.centred, False)
fit_matrix = partial(_fit_affine, MatrixMap, kernels.centred, True)
fit_dirichlet = partial(_fit_affine, DirichletMap, kernels.log_probabilities, True)


def _fit_offsets(sample: Labelled) -> VectorMap:
    """softmax(b·u + c) with one scale and c_j ~ N(0, σ²): the mode at the σ with the largest
    evidence (Laplace).

    >>> logits = np.log([[0.8, 0.1, 0.1]] * 600)                          # the second and third class are mistaken
    >>> fit = fit_vector(Rows(logits), np.array([0] * 480 + [1] * 96 + [2] * 24), penalty="offsets")
    >>> fit(logits[:1]).round(2)
    array([[0.8 , 0.16, 0.04]])
    """
    u, masked = kernels.centred(sample.rows.on_host().gathered())
    u = u if masked is None else np.where(masked, 0.0, u)
    b = fit_temperature(*sample).inverse_temperature
    theta, fits = np.append(np.zeros(u.shape[1]), 1.0), []
    for spread in _SPREADS:
        precision = np.append(np.full(u.shape[1], spread**-2.0), _LEAST_PRECISION)
        for _ in range(_NEWTON_STEPS):
            loss, gradient, hessian = _offsets_at(theta, b * u, masked, sample, precision)
            step = np.linalg.solve(hessian, gradient)
            share = 1.0
            while (
                share > 1e-3
                and _offsets_at(theta - share * step, b * u, masked, sample, precision)[0] > loss
            ):
                share *= 0.5
            theta = theta - share * step
            if gradient @ step < 1e-9 * sample.total:
                break
        loss, _, hessian = _offsets_at(theta, b * u, masked, sample, precision)
        evidence = -loss - u.shape[1] * np.log(spread) - 0.5 * np.linalg.slogdet(hessian)[1]
        fits.append((evidence, spread, theta))
    _, spread, theta = max(fits, key=lambda fit: fit[0])
    return VectorMap(np.full(u.shape[1], b * theta[-1]), theta[:-1], 0.5 / spread**2)


def _offsets_at(
    theta: Float, u: Float, masked: Flags | None, sample: Labelled, precision: Float
) -> tuple[float, Float, Float]:
    """The penalised negative log-likelihood of softmax(s·u + c) at θ = (c, s), its gradient and
    Hessian.
    """
    w, at = sample.counts, np.arange(len(u))
    z = theta[-1] * u + theta[:-1]
    z = z if masked is None else np.where(masked, -np.inf, z)
    z -= z.max(axis=1, keepdims=True)
    p = np.exp(z)
    total = p.sum(axis=1)
    p /= total[:, None]
    off = theta - np.append(np.zeros(u.shape[1]), 1.0)
    loss = float(w @ (np.log(total) - z[at, sample.labels]) + 0.5 * precision @ off**2)
    mean = (p * u).sum(axis=1)
    gradient = np.append(
        w @ p - np.bincount(sample.labels, w, u.shape[1]), w @ (mean - u[at, sample.labels])
    )
    hessian = np.empty((len(theta), len(theta)))
    hessian[:-1, :-1] = np.diag(w @ p) - (p * w[:, None]).T @ p
    hessian[-1, :-1] = hessian[:-1, -1] = w @ (p * (u - mean[:, None]))
    hessian[-1, -1] = w @ ((p * u * u).sum(axis=1) - mean**2)
    return loss, gradient + precision * off, hessian + np.diag(precision)


def dirichlet_path(
    sample: Labelled, strengths: Sequence[float], tolerance: float
) -> dict[float, DirichletMap]:
    """Dirichlet calibration with the structured penalty at each of these strengths, each fit
    starting from the last.
    """
    found = Problem(kernels.log_probabilities, True, "structured").path(
        sample, strengths, tolerance
    )
    return {
        at: DirichletMap(matrix=theta[:-1].T, bias=theta[-1], regularisation=at)
        for at, theta in found.items()
    }


def fit_structured(
    rows: Rows,
    labels: Codes,
    weights: Weights = None,
    *,
    regularisation: float | None = None,
    n_folds: int = 3,
    random_state: int | np.random.Generator = 0,
) -> StructuredMap:
    """Fit T; then minimise Σ NLL of softmax(a · log softmax(x/T) + c), plus λK Σ ((a_j - 1)² +
    c_j²).

    A strong penalty λ gives temperature scaling, none gives vector scaling. With
    `regularisation=None` cross-validation chooses λ: classes get what their rows can support.
    """
    sample = Labelled(rows, labels, weights).usable()
    problem, b = _structured(sample)
    theta, strength = problem.solve(sample, regularisation, n_folds, random_state)
    return StructuredMap(b, scale=theta[0], bias=theta[1], regularisation=strength)


def structured_path(
    sample: Labelled, strengths: Sequence[float], tolerance: float
) -> dict[float, StructuredMap]:
    """Structured scaling at each of these strengths, for less than the price of single fits."""
    sample = sample.usable()
    problem, b = _structured(sample)
    found = problem.path(sample, strengths, tolerance)
    return {
        at: StructuredMap(b, scale=theta[0], bias=theta[1], regularisation=at)
        for at, theta in found.items()
    }


def _structured(sample: Labelled) -> tuple[Problem, float]:
    """The regression on tempered log-probabilities, and the inverse temperature."""
    b = fit_temperature(*sample).inverse_temperature
    features = partial(kernels.log_probabilities, inverse_temperature=b)
    return Problem(features, full=False, penalty="structured", unit=1.0), b
