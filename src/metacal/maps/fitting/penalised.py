"""Penalised softmax regression: the fit of the affine maps.

Vector, matrix, Dirichlet and structured scaling share this fit. They differ in their features,
in whether the coefficient matrix is full or diagonal, and in the penalty. See
`metacal.maps.affine`.

The coefficients are an array theta of shape (2, K) for a diagonal matrix (scales, then
intercepts) and (K + 1, K) for a full one (the transposed matrix, then intercepts). While
fitting, they refer to features multiplied by the *feature scale*, usually the inverse
temperature.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, Self

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from metacal.errors import InputError
from metacal.formulas import Float
from metacal.kernels import affine as kernels
from metacal.maps.fitting.crossvalidation import STRENGTHS, choose_strength
from metacal.maps.fitting.lbfgs import Minimum, Objective, Preconditioner, minimise_by_lbfgs
from metacal.maps.fitting.penalties import (
    PENALTIES,
    StrengthSelection,
    build_penalty,
    check_strength,
    get_diagonal_index,
)
from metacal.maps.fitting.preconditioner import BlockPreconditioner
from metacal.maps.fitting.regression_fit import RegressionFit
from metacal.maps.labelled import LabelledRows
from metacal.maps.temperature import fit_temperature
from metacal.rows import Rows

#: Possible decrease of the mean loss at which the final fit stops.
_TOLERANCE = 1e-10
#: Possible decrease of the mean loss at which a fit stops that only compares strengths.
_COMPARISON_TOLERANCE = 1e-6
#: Largest number of steps of a fit that only compares strengths.
_MAX_COMPARISON_STEPS = 100
#: Number of strengths without improvement after which the comparison ends.
_FULL_MATRIX_PATIENCE = 1
_DIAGONAL_PATIENCE = 2
#: Ridge that keeps a Hessian positive definite despite rounding, relative to its mean diagonal.
_RELATIVE_ROUNDING_RIDGE = 1e-9
#: Rows of the result of `kernels.sum_curvatures` that hold one curvature per class. Those of a full
#: matrix are followed by the table of feature products.
_CLASS_CURVATURE_ROWS = slice(0, 4)
_FEATURE_PRODUCT_ROWS = slice(4, None)
#: Largest number of classes for which the Hessian of a diagonal matrix is inverted.
_MAX_CLASSES_TO_INVERT = 1_500
#: Smallest number of rows from which the Hessian of a diagonal matrix is computed.
_MIN_HESSIAN_ROWS = 2_000
#: Number of steps after which the Hessian is computed again.
_STEPS_PER_HESSIAN = 15
#: Number of classes above which a full matrix is only fitted with strong penalties.
_MANY_CLASSES = 300
_STRONG_STRENGTHS = STRENGTHS[:4]
#: Largest size of a table of features that is held in memory instead of recomputed.
_MAX_HELD_ENTRIES = 1 << 22
#: Number of rows per block that is rounded up to the smallest possible block.
_SMALLEST_BLOCK = 1


@dataclass(frozen=True)
class SoftmaxRegression:
    """Penalised softmax regression for one kind of affine map.

    Attributes
    ----------
    compute_features : function
        Returns the features of a block of logits, and the mask of masked classes.

    has_full_matrix : bool
        Whether the coefficient matrix is full. Otherwise it is diagonal.

    penalty : {"odir", "l2", "structured"}
        Kind of penalty.

    intercept_regularisation : float or None
        Strength of the penalty on the intercepts. None means that of the coefficients.

    feature_scale : float or None
        Factor on the features: the inverse temperature, or one over the root mean square of
        the features if that is larger. None means that it is determined from the rows.

    temperature_scaling_diagonal : float
        Diagonal coefficient of temperature scaling for scaled features. It is 1 if the
        feature scale is the inverse temperature.

    curvature_of_classes : array of shape (3, n_classes) or (4, n_classes)
        Mean curvature of each class at temperature scaling, for the preconditioner.

    eigenvalues_and_vectors : tuple of arrays or None
        Eigenvalues and eigenvectors of the mean feature products of a full matrix.
    """

    compute_features: kernels.ComputeFeatures
    has_full_matrix: bool
    penalty: str
    intercept_regularisation: float | None = None
    feature_scale: float | None = None
    temperature_scaling_diagonal: float = 1.0
    curvature_of_classes: Float = field(default_factory=lambda: np.ones((4, 1)))
    eigenvalues_and_vectors: tuple[Float, Float] | None = None

    def __post_init__(self) -> None:
        if self.penalty not in PENALTIES:
            raise InputError(
                f"penalty must be one of {', '.join(map(repr, PENALTIES))}, but got"
                f" {self.penalty!r}."
            )

    def solve(self, sample: LabelledRows, selection: StrengthSelection) -> RegressionFit:
        """Fit the coefficients at a given strength of the penalty, or at the best one.

        Parameters
        ----------
        sample : LabelledRows
            Rows with labels.

        selection : StrengthSelection
            Strength of the penalty, or how to choose it.

        Returns
        -------
        RegressionFit
        """
        if selection.regularisation is not None:
            check_strength("regularisation", selection.regularisation)
        regression, usable_sample, start = self._prepare_regression(sample)
        if selection.regularisation is None:
            strength, start = regression._choose_strength(usable_sample, start, selection)
        else:
            strength = float(selection.regularisation)
        minimum = regression._minimise(usable_sample, strength, start, tolerance=_TOLERANCE)
        minimum.warn_unless_converged(
            "matrix scaling" if self.has_full_matrix else "vector scaling"
        )
        return RegressionFit(regression._convert_to_unscaled_features(minimum.point), strength)

    def solve_path(
        self, sample: LabelledRows, strengths: Sequence[float], tolerance: float
    ) -> list[RegressionFit]:
        """Fit the coefficients at several strengths, each fit starting from the last.

        Parameters
        ----------
        sample : LabelledRows
            Rows with labels.

        strengths : sequence of float
            Strengths of the penalty.

        tolerance : float
            Possible decrease of the mean loss at which a fit stops.

        Returns
        -------
        list of RegressionFit
            Fit at each strength, strongest first.
        """
        regression, usable_sample, theta = self._prepare_regression(sample)
        fits = []
        for strength in sorted(strengths, reverse=True):
            minimum = regression._minimise(
                usable_sample, strength, start=theta, tolerance=tolerance
            )
            theta = minimum.point
            fits.append(RegressionFit(regression._convert_to_unscaled_features(theta), strength))
        return fits

    def _choose_strength(
        self, sample: LabelledRows, start: Float, selection: StrengthSelection
    ) -> tuple[float, Float]:
        """Choose the strength and a starting point by cross-validation."""

        def fit_theta(training: LabelledRows, strength: float, start_theta: Float) -> Float:
            minimum = self._minimise(
                training,
                strength,
                start_theta,
                tolerance=_COMPARISON_TOLERANCE,
                max_steps=_MAX_COMPARISON_STEPS,
            )
            return minimum.point

        def sum_loss(test: LabelledRows, theta: Float) -> float:
            (total_loss,) = self._sum_over_rows(kernels.sum_loss, test, theta)
            return float(total_loss)

        # Weak penalties on a full matrix are slow, and never help with hundreds of classes.
        strengths: Sequence[float] = STRENGTHS
        if self.has_full_matrix and sample.rows.n_classes > _MANY_CLASSES:
            strengths = _STRONG_STRENGTHS
        patience = _FULL_MATRIX_PATIENCE if self.has_full_matrix else _DIAGONAL_PATIENCE
        return choose_strength(
            sample,
            fit=fit_theta,
            sum_loss=sum_loss,
            start=start,
            n_folds=selection.n_folds,
            random_state=selection.random_state,
            strengths=strengths,
            patience=patience,
        )

    def _prepare_regression(self, sample: LabelledRows) -> _PreparedRegression:
        """Drop unusable rows, and determine the feature scale and the curvature.

        Returns
        -------
        _PreparedRegression
        """
        if self.intercept_regularisation is not None:
            check_strength("intercept_regularisation", self.intercept_regularisation)
        if self.has_full_matrix:
            # Each block returns a K × K table of sums, so blocks are as small as possible.
            sample = replace(sample, rows=sample.rows.copy_with(block_rows=_SMALLEST_BLOCK))
        sample = sample.drop_unusable_rows()
        scaled_regression = self
        if self.feature_scale is None:
            scaled_regression = self._with_feature_scale(sample)
        n_entries = len(sample.labels) * sample.rows.n_classes
        if self.has_full_matrix and n_entries <= _MAX_HELD_ENTRIES:
            sample = scaled_regression._precompute_features(sample)
            scaled_regression = replace(
                scaled_regression, compute_features=kernels.copy_precomputed_features
            )
        theta = scaled_regression._make_temperature_scaling_theta(sample.rows.n_classes)
        regression = scaled_regression._with_curvature_at(sample, theta)
        return _PreparedRegression(regression, sample, start=theta)

    def _make_temperature_scaling_theta(self, n_classes: int) -> Float:
        """Return the coefficients of temperature scaling for scaled features."""
        n_theta_rows = n_classes + 1 if self.has_full_matrix else 2
        theta = np.zeros((n_theta_rows, n_classes))
        theta[get_diagonal_index(theta.shape)] = self.temperature_scaling_diagonal
        return theta

    def _with_curvature_at(self, sample: LabelledRows, theta: Float) -> Self:
        """Return the regression with the mean curvature of the loss at some coefficients."""
        curvature_sums = self._sum_over_rows(kernels.sum_curvatures, sample, theta)
        mean_curvatures = curvature_sums / sample.total_weight
        curvature_of_classes = mean_curvatures[_CLASS_CURVATURE_ROWS]
        eigenvalues_and_vectors = None
        if self.has_full_matrix:
            feature_products = mean_curvatures[_FEATURE_PRODUCT_ROWS]
            eigenvalues_and_vectors = np.linalg.eigh(feature_products)
        return replace(
            self,
            curvature_of_classes=curvature_of_classes,
            eigenvalues_and_vectors=eigenvalues_and_vectors,
        )

    def _precompute_features(self, sample: LabelledRows) -> LabelledRows:
        """Replace the logits of a sample by their features."""
        feature_table = np.empty((len(sample.labels), sample.rows.n_classes))
        sample.rows.fill_columns(
            partial(kernels.write_features, compute_features=self.compute_features), feature_table
        )
        rows = Rows(feature_table, block_rows=_SMALLEST_BLOCK, executor=sample.rows.executor)
        return replace(sample, rows=rows)

    def _with_feature_scale(self, sample: LabelledRows) -> Self:
        """Return the regression with a feature scale determined from these rows."""
        inverse_temperature = fit_temperature(
            sample.rows, sample.labels, sample.weights
        ).inverse_temperature
        (sum_of_squares,) = sample.rows.sum(
            partial(kernels.sum_squared_features, compute_features=self.compute_features),
            sample.weights,
        )
        total_entry_weight = sample.total_weight * sample.rows.n_classes
        root_mean_square = float(np.sqrt(sum_of_squares / total_entry_weight))
        feature_scale = inverse_temperature
        if root_mean_square > 0.0:
            feature_scale = max(inverse_temperature, 1.0 / root_mean_square)
        return replace(
            self,
            feature_scale=feature_scale,
            temperature_scaling_diagonal=inverse_temperature / feature_scale,
        )

    @property
    def _known_feature_scale(self) -> float:
        """Feature scale, after `_with_feature_scale` has determined it if it was None."""
        return self.feature_scale or 1.0

    def _convert_to_unscaled_features(self, theta: Float) -> Float:
        """Convert coefficients of scaled features to coefficients of the features."""
        theta = theta.copy()
        theta[:-1] *= self._known_feature_scale
        return theta

    def _sum_over_rows(
        self, kernel: Callable[..., Float], sample: LabelledRows, theta: Float
    ) -> Float:
        """Sum the values of a kernel over the rows of a sample."""
        block_kernel = partial(
            kernel,
            compute_features=self.compute_features,
            feature_scale=self._known_feature_scale,
            theta=theta,
        )
        return sample.rows.sum(block_kernel, sample.labels, sample.weights)

    def _minimise(
        self,
        sample: LabelledRows,
        strength: float,
        start: Float,
        tolerance: float,
        max_steps: int = 500,
    ) -> Minimum:
        """Minimise the penalised mean loss.

        Parameters
        ----------
        sample : LabelledRows
            Rows with labels.

        strength : float
            Strength of the penalty.

        start : array
            Coefficients to start from.

        tolerance : float
            Possible decrease of the mean loss at which to stop.

        max_steps : int, default=500
            Largest number of steps.

        Returns
        -------
        Minimum
        """
        intercept_strength = self.intercept_regularisation
        if intercept_strength is None:
            intercept_strength = strength
        penalty = build_penalty(
            self.penalty,
            start.shape,
            diagonal=self.temperature_scaling_diagonal,
            strength=strength,
            intercept_strength=intercept_strength,
        )
        # The penalty refers to the summed loss, and the objective to the mean loss.
        shrinkage_targets = penalty.targets
        shrinkage_strengths = penalty.strengths / sample.total_weight

        def compute_objective(theta: Float) -> tuple[float, Float]:
            loss_and_gradient = self._sum_over_rows(kernels.sum_loss_and_gradient, sample, theta)
            loss_and_gradient /= sample.total_weight
            mean_loss = loss_and_gradient[0]
            gradient = loss_and_gradient[1:].reshape(theta.shape)
            deviation = theta - shrinkage_targets
            gradient += 2.0 * shrinkage_strengths * deviation
            penalised_loss = mean_loss + np.vdot(shrinkage_strengths * deviation, deviation)
            return float(penalised_loss), gradient

        ridge = 2.0 * shrinkage_strengths
        n_classes = start.shape[1]
        if self.has_full_matrix or n_classes > _MAX_CLASSES_TO_INVERT:
            precondition = BlockPreconditioner(
                self.curvature_of_classes, self.eigenvalues_and_vectors, ridge
            )
            return minimise_by_lbfgs(
                compute_objective, start, precondition, tolerance=tolerance, max_steps=max_steps
            )
        return self._minimise_with_hessian(
            compute_objective,
            sample,
            start=start,
            ridge=ridge,
            tolerance=tolerance,
            max_steps=max_steps,
        )

    def _minimise_with_hessian(
        self,
        objective: Objective,
        sample: LabelledRows,
        start: Float,
        ridge: Float,
        tolerance: float,
        max_steps: int,
    ) -> Minimum:
        """Minimise an objective with its inverse Hessian as preconditioner.

        Parameters
        ----------
        objective : function
            Penalised mean loss with its gradient.

        sample, start, tolerance, max_steps
            See `_minimise`.

        ridge : array
            Second derivatives of the penalty.

        Returns
        -------
        Minimum
        """
        n_steps = 0
        while True:
            remaining_steps = max_steps - n_steps
            minimum = minimise_by_lbfgs(
                objective,
                start,
                self._make_newton_preconditioner(sample, start, ridge),
                tolerance=tolerance,
                max_steps=min(_STEPS_PER_HESSIAN, remaining_steps),
            )
            start = minimum.point
            n_steps += minimum.n_steps
            has_stopped_early = minimum.n_steps < _STEPS_PER_HESSIAN
            if minimum.converged or n_steps >= max_steps or has_stopped_early:
                return replace(minimum, n_steps=n_steps)

    def _make_newton_preconditioner(
        self, sample: LabelledRows, theta: Float, ridge: Float
    ) -> Preconditioner:
        """Return a function that multiplies a gradient by the inverse Hessian at theta.

        The Hessian of a diagonal matrix is small, so a subsample of the rows determines it.
        """
        n_classes = theta.shape[1]
        n_hessian_rows = max(_MIN_HESSIAN_ROWS, 2 * n_classes)
        stride = max(1, len(sample.labels) // n_hessian_rows)
        subsample = sample.every_nth_row(stride)
        # Several blocks would each need memory for a Hessian, so the rows form one block.
        block = subsample.rows.to_array()
        hessian_sum = kernels.sum_hessian_of_diagonal_model(
            block,
            subsample.weights,
            compute_features=self.compute_features,
            feature_scale=self._known_feature_scale,
            theta=theta,
        )
        hessian = hessian_sum / subsample.total_weight
        on_diagonal = np.diag_indices_from(hessian)
        rounding_ridge = _RELATIVE_ROUNDING_RIDGE * hessian.diagonal().mean()
        hessian[on_diagonal] += ridge.ravel() + rounding_ridge
        cholesky_factor = cho_factor(hessian)

        def multiply_by_inverse(gradient: Float) -> Float:
            newton_step = cho_solve(cholesky_factor, gradient.ravel())
            return np.asarray(newton_step.reshape(gradient.shape))

        return multiply_by_inverse


class _PreparedRegression(NamedTuple):
    """Regression whose scale and curvature are known, with the rows to fit it to.

    Attributes
    ----------
    regression : SoftmaxRegression
        Regression with feature scale and curvature.

    sample : LabelledRows
        Usable rows, possibly with precomputed features.

    start : array
        Coefficients of temperature scaling.
    """

    regression: SoftmaxRegression
    sample: LabelledRows
    start: Float
