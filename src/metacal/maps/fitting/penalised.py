"""Softmax regression with a penalty: the coefficients of an affine map, at one strength, at
several, or at the best.

What vector, matrix, Dirichlet and structured scaling share; they differ in the features, in whether
the matrix is full, and in the penalty. See `metacal.maps.affine`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Self

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from metacal.errors import InputError
from metacal.formulas import Codes, Float
from metacal.kernels import affine as kernels
from metacal.maps.fitting.crossvalidation import STRENGTHS, choose_strength
from metacal.maps.fitting.lbfgs import Minimum, minimise
from metacal.maps.labelled import Labelled
from metacal.maps.temperature import fit_temperature
from metacal.rows import Rows

#: The least penalty on any coefficient, and on the diagonal that `odir` leaves free, in rows: with
#: none at all a class that was never seen would get a slope without end.
_FLOOR, _FREE = 1e-3, 0.1
#: How much the mean loss may still fall: of the answer, and of the fits that only compare
#: strengths.
_TOLERANCE, _ROUGH = 1e-10, 1e-6
_ROUGH_STEPS = 100
#: Up to so many classes the Hessian of a diagonal matrix is inverted, from at least so many rows
#: (or two a class), anew after so many steps.
_MOST_CLASSES, _CURVATURE_ROWS, _FRESH = 1_500, 2_000, 15
#: With more classes than this a full matrix is given one of the strongest penalties: K(K - 1) rows'
#: worth and more.
_MANY_CLASSES, _STRONG = 300, STRENGTHS[:4]
#: Entries of the features of a full matrix that are made once and held: they are gone through
#: hundreds of times.
_HELD = 1 << 22
#: The least eigenvalue the preconditioner believes, as a part of their mean.
_LEAST = 0.1


def penalties(
    kind: str, shape: tuple[int, int], diagonal: float, strength: float, intercept: float
) -> tuple[Float, Float]:
    """The penalty Σ k (θ - t)² on the coefficients θ of tempered logits: k and t, of the given
    shape.

    It is added to the summed negative log-likelihood, so a strength λ counts in rows. With μ the
    intercept's strength:

    - `structured`: λK Σ (A_jj - d)² + λK(K-1) Σ_{i≠j} A_ij² + μK Σ c_j², around temperature scaling
      A = d·I;
    - `odir`: the same, with the diagonal left free (but for a tenth of a row). In Kull et al.'s
      terms, whose penalties go with the mean likelihood of n rows and with untempered logits,
      λ_Kull = λ T² K²(K-1)²/n and μ_Kull = μ K²/n;
    - `l2`: λ Σ A_ij² + μ Σ c_j², around zero. scikit-learn's C is 1/(2λ), with μ = 0.

    Examples
    --------
    >>> penalties("odir", (2, 3), diagonal=1.0, strength=2.0, intercept=1.0)[0]
    array([[0.1, 0.1, 0.1], [3. , 3. , 3. ]])
    """
    n_classes = shape[1]
    target = np.zeros(shape)
    strengths = np.empty(shape)
    own = _own(shape)
    if kind == "l2":
        strengths[:-1], strengths[-1] = strength, intercept
    else:
        strengths[:-1] = strength * n_classes * (n_classes - 1)
        strengths[own] = strength * n_classes if kind == "structured" else _FREE
        strengths[-1] = intercept * n_classes
        target[own] = diagonal
    return np.maximum(strengths, _FLOOR), target


@dataclass(frozen=True)
class Problem:
    """The penalised softmax regression of one kind of map: which features, which matrix, which
    penalty.
    """

    features: kernels.Features
    full: bool
    penalty: str
    intercept_regularisation: float | None = None
    #: Features are multiplied by this: by 1/T, or by 1 over their root mean square where T says
    #: nothing; None: find it.
    unit: float | None = None
    #: What the diagonal of temperature scaling is in that unit: 1, unless T says nothing.
    diagonal: float = 1.0
    #: The mean curvature at temperature scaling, and the eigenvalues and -vectors of its products
    #: of features.
    curvature: Float = field(default_factory=lambda: np.ones((4, 1)))
    spectrum: tuple[Float, Float] | None = None

    def __post_init__(self) -> None:
        if self.penalty not in (known := ("odir", "l2", "structured")):
            raise InputError(
                f"penalty must be one of {', '.join(map(repr, known))}; got {self.penalty!r}."
            )

    def solve(
        self,
        sample: Labelled,
        regularisation: float | None,
        n_folds: int,
        random_state: int | np.random.Generator,
    ) -> tuple[Float, float]:
        """The coefficients of the untempered features, and the strength of the penalty."""
        strength = None if regularisation is None else _strength("regularisation", regularisation)
        scaled, sample, start = self._prepared(sample)
        if strength is None:
            strength, start = choose_strength(
                sample,
                lambda part, tried, theta: (
                    scaled._minimum(part, tried, theta, _ROUGH, _ROUGH_STEPS).point
                ),
                lambda part, theta: float(scaled._sum(kernels.loss, part, theta)[0]),
                start,
                n_folds=n_folds,
                random_state=random_state,
                # The weakest penalties are slow with a full matrix, and with hundreds of classes
                # have nothing to learn.
                strengths=(
                    _STRONG if self.full and sample.rows.n_classes > _MANY_CLASSES else STRENGTHS
                ),
                patience=1 if self.full else 2,
            )
        minimum = scaled._minimum(sample, strength, start, _TOLERANCE)
        minimum.warn_unless_converged("matrix scaling" if self.full else "vector scaling")
        return scaled._of_features(minimum.point), strength

    def path(
        self, sample: Labelled, strengths: Sequence[float], tolerance: float
    ) -> dict[float, Float]:
        """The coefficients at each of these strengths: the strongest first, every fit starting from
        the one before.
        """
        scaled, sample, start = self._prepared(sample)
        found = {}
        for strength in sorted(strengths, reverse=True):
            start = scaled._minimum(sample, strength, start, tolerance).point
            found[strength] = scaled._of_features(start)
        return found

    def _prepared(self, sample: Labelled) -> tuple[Self, Labelled, Float]:
        """The problem in the units of these rows with its curvature there, the rows, and
        temperature scaling.
        """
        if self.intercept_regularisation is not None:
            _strength("intercept_regularisation", self.intercept_regularisation)
        if self.full:  # one strip to a block: a block keeps the K × K sums of all its strips
            sample = sample._replace(rows=sample.rows.replaced(block_rows=1))
        sample, n_classes = sample.usable(), sample.rows.n_classes
        scaled = self if self.unit is not None else self._scaled(sample)
        if self.full and len(sample.labels) * n_classes <= _HELD:
            table = np.empty((len(sample.labels), n_classes))
            sample.rows.fill(partial(kernels.write_features, features=scaled.features), table)
            sample = sample._replace(rows=Rows(table, block_rows=1, executor=sample.rows.executor))
            scaled = replace(scaled, features=kernels.given)
        start = np.zeros((n_classes + 1 if self.full else 2, n_classes))
        start[_own(start.shape)] = scaled.diagonal
        curvature = scaled._sum(kernels.curvature, sample, start) / sample.total
        spectrum = np.linalg.eigh(curvature[4:]) if self.full else None
        return replace(scaled, curvature=curvature[:4], spectrum=spectrum), sample, start

    def _of_features(self, theta: Float) -> Float:
        """The coefficients of the features as they are, from those of the tempered ones."""
        theta = theta.copy()
        theta[:-1] *= self.unit or 1.0
        return theta

    def _scaled(self, sample: Labelled) -> Self:
        """The problem in the units of these rows. One temperature, of all rows, serves every
        fold.
        """
        inverse_temperature = fit_temperature(*sample).inverse_temperature
        squares = sample.rows.sum(
            partial(kernels.squared_features, features=self.features), sample.weights
        )
        root_mean_square = float(np.sqrt(squares[0] / (sample.total * sample.rows.n_classes)))
        unit = max(inverse_temperature, 1.0 / root_mean_square if root_mean_square > 0.0 else 0.0)
        return replace(self, unit=unit, diagonal=inverse_temperature / unit)

    def _sum(self, kernel: Callable[..., Float], sample: Labelled, theta: Float) -> Float:
        fixed = partial(kernel, features=self.features, unit=self.unit or 1.0, theta=theta)
        return sample.rows.sum(fixed, sample.labels, sample.weights)

    def _minimum(
        self,
        sample: Labelled,
        strength: float,
        start: Float,
        tolerance: float,
        max_steps: int = 500,
    ) -> Minimum:
        intercept = (
            strength if self.intercept_regularisation is None else self.intercept_regularisation
        )
        weight, target = penalties(self.penalty, start.shape, self.diagonal, strength, intercept)
        weight /= sample.total

        def objective(theta: Float) -> tuple[float, Float]:
            sums = self._sum(kernels.loss_and_gradient, sample, theta)
            sums /= sample.total
            away = theta - target
            gradient = sums[1:].reshape(theta.shape)
            gradient += 2.0 * weight * away
            return float(sums[0] + np.vdot(weight * away, away)), gradient

        if self.full or start.shape[1] > _MOST_CLASSES:
            inverse = _Preconditioner(self.curvature, self.spectrum, 2.0 * weight)
            return minimise(objective, start, inverse, tolerance=tolerance, max_steps=max_steps)
        steps = 0
        while True:
            newton = self._newton(sample, start, 2.0 * weight)
            found = minimise(
                objective,
                start,
                newton,
                tolerance=tolerance,
                max_steps=min(_FRESH, max_steps - steps),
            )
            start, steps = found.point, steps + found.steps
            if found.converged or steps >= max_steps or found.steps < _FRESH:
                return replace(found, steps=steps)

    def _newton(self, sample: Labelled, theta: Float, ridge: Float) -> Callable[[Float], Float]:
        """Newton's own inverse Hessian at θ, from a part of the rows: with a diagonal matrix A it
        is small.
        """
        part = sample.every(max(1, len(sample.labels) // max(_CURVATURE_ROWS, 2 * theta.shape[1])))
        # In one block: the Hessian is as large as some thousand rows, and each strip would have one
        # of its own.
        block = part.rows.gathered()
        hessian = (
            kernels.whole_curvature(block, part.weights, self.features, self.unit or 1.0, theta)
            / part.total
        )
        hessian[np.diag_indices_from(hessian)] += ridge.ravel() + 1e-9 * hessian.diagonal().mean()
        factor = cho_factor(hessian)
        return lambda gradient: np.asarray(
            cho_solve(factor, gradient.ravel()).reshape(gradient.shape)
        )


class _Preconditioner:
    """An approximate inverse Hessian: blocks of a class's own coefficient and intercept, and of its
    other coefficients.

    The first two go together closely: the rows in which a class competes have its feature near one
    value, not near zero. Of the others, every class's block is taken to be a multiple of one matrix
    of feature products, so that one eigendecomposition inverts them all, whatever the strength.
    """

    def __init__(
        self, curvature: Float, spectrum: tuple[Float, Float] | None, ridge: Float
    ) -> None:
        self.own = _own(ridge.shape)
        self.slope = (curvature[0] + ridge[self.own]) * (1.0 + 1e-6)
        self.cross = curvature[1]
        self.mass = (curvature[2] + ridge[-1]) * (1.0 + 1e-6)
        self.determinant = self.slope * self.mass - self.cross**2
        if spectrum is not None:
            values, self.vectors = spectrum
            # Centred features have no curvature along (1, …, 1); without a class's own one they
            # have.
            values = np.maximum(values, _LEAST * values.mean())
            self.others = values[:, None] * (curvature[3] / max(values.sum(), 1e-300)) + ridge[0, 1]

    def __call__(self, gradient: Float) -> Float:
        own, last = gradient[self.own], gradient[-1]
        step = np.empty_like(gradient)
        if len(gradient) > 2:
            others = gradient[:-1].copy()
            others[self.own] = 0.0
            step[:-1] = self.vectors @ ((self.vectors.T @ others) / self.others)
        step[self.own] = (self.mass * own - self.cross * last) / self.determinant
        step[-1] = (self.slope * last - self.cross * own) / self.determinant
        return step


def _own(shape: tuple[int, ...]) -> tuple[Codes | int, Codes | slice]:
    """Where each class's own coefficient stands among the coefficients."""
    every = np.arange(shape[1])
    return (0, slice(None)) if shape[0] == 2 else (every, every)


def _strength(name: str, value: object) -> float:
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(
        value, bool
    )
    if not number or not 0.0 <= float(value) < np.inf:  # type: ignore[arg-type]
        raise InputError(
            f"{name} must be a finite number of at least 0, or None to choose it; got {value!r}."
        )
    return float(value)  # type: ignore[arg-type]
