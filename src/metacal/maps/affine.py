"""Affine maps softmax(A u + c): vector, matrix, Dirichlet and structured scaling.

- **Vector and matrix scaling**: u are the centred logits, and A is diagonal or full. Guo,
  Pleiss, Sun & Weinberger, "On Calibration of Modern Neural Networks", ICML 2017.
- **Dirichlet calibration**: u are log-probabilities, and A is full. Kull, Perello-Nieto,
  Kängsepp, Silva Filho, Song & Flach, "Beyond temperature scaling: Obtaining well-calibrated
  multiclass probabilities with Dirichlet calibration", NeurIPS 2019. The penalties `odir` and
  `l2` are theirs. The logarithms are those of the softmax in float64, without clipping.
- **Structured scaling**: u are tempered log-probabilities, and A is diagonal and shrunk
  towards temperature scaling. Berta, Holzmüller, Jordan & Bach, "Structured Matrix Scaling for
  Multi-Class Calibration", 2025. The penalty `structured` is that of their SVS with the ridge
  penalty of strength 1. Here cross-validation chooses the strength, and the temperature is the
  plain one.

There are three deliberate deviations:

1. The logits are centred in each row. A constant added to a row, or logits given as
   log-probabilities, change nothing.
2. Penalties refer to tempered logits and are measured in rows (`build_penalty` in
   `metacal.maps.fitting.penalties`). A strength means the same for logits of any scale and for
   any number of rows.
3. Every coefficient has a penalty of at least 1/1000 of a row. The fit has one finite solution
   even if the likelihood has no maximum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from metacal.errors import InputError
from metacal.formulas import Codes, Float
from metacal.formulas import affine as formulas
from metacal.kernels import affine as kernels
from metacal.maps.fitting.offsets import fit_class_offsets
from metacal.maps.fitting.penalised import SoftmaxRegression
from metacal.maps.fitting.penalties import StrengthSelection
from metacal.maps.labelled import LabelledRows, Weights
from metacal.maps.map import Map, TemperedMap
from metacal.maps.temperature import fit_temperature
from metacal.rows import Rows


class AffineMap(Map):
    """Softmax of an affine function of features of a row."""

    bias: Float
    regularisation: float

    preserves_accuracy = False
    ends_in_softmax = True

    @property
    def n_classes(self) -> int:
        """Number of classes the map was fitted for."""
        return len(self.bias)

    def check(self) -> None:
        """Raise InputError unless the parameters have valid shapes and values."""
        n_classes = self.n_classes
        # A map has either a scale or a matrix.
        self._check_parameter("scale", (n_classes,))
        self._check_parameter("matrix", (n_classes, n_classes))
        self._check_parameter("bias", (n_classes,))
        strength = self.regularisation
        if not (isinstance(strength, int | float) and 0.0 <= strength < np.inf):
            raise InputError(
                f"regularisation must be a finite nonnegative number, but got {strength!r}."
            )

    def _check_parameter(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise InputError if the map has the parameter and it is not valid."""
        parameter = getattr(self, name, None)
        if parameter is None:
            return
        if parameter.shape != shape or self.n_classes < 2 or not np.isfinite(parameter).all():
            raise InputError(
                f"{name} must be an array of {' × '.join(map(str, shape))} finite numbers with at"
                " least 2 columns."
            )


@dataclass(frozen=True, eq=False)
class VectorMap(AffineMap):
    """Vector scaling: softmax(scale * u + bias), where u are the centred logits.

    Each class has its own scale and bias.

    Examples
    --------
    >>> fitted = VectorMap(scale=np.array([0.5, 0.5]), bias=np.array([0.0, 1.0]))
    >>> fitted(np.array([[2.0, 0.0]])).round(3)
    array([[0.5, 0.5]])
    """

    scale: Float
    bias: Float
    regularisation: float = 0.0

    formula = staticmethod(formulas.vector)


@dataclass(frozen=True, eq=False)
class MatrixMap(AffineMap):
    """Matrix scaling: softmax(matrix @ u + bias), where u are the centred logits.

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
    """Dirichlet calibration: softmax(matrix @ log p + bias), p = softmax(logits).

    Examples
    --------
    >>> DirichletMap(matrix=0.5 * np.eye(2), bias=np.zeros(2))(np.log([[0.8, 0.2]])).round(3)
    array([[0.667, 0.333]])
    """

    formula = staticmethod(formulas.dirichlet)


@dataclass(frozen=True, eq=False)
class StructuredMap(TemperedMap, AffineMap):
    """Structured scaling: softmax(scale * log softmax(b x) + bias) with b = 1/T > 0.

    If all scales are one and all biases zero, this is temperature scaling.

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


def fit_vector_scaling(
    rows: Rows,
    labels: Codes,
    weights: Weights = None,
    *,
    penalty: str = "structured",
    regularisation: float | None = None,
    intercept_regularisation: float | None = None,
    n_folds: int = 3,
    random_state: int | np.random.Generator = 0,
) -> VectorMap:
    """Fit vector scaling by penalised maximum likelihood.

    Parameters
    ----------
    rows : Rows
        Rows of logits.

    labels : array of int of shape (n_rows,)
        Column index of the true class of each row.

    weights : array of shape (n_rows,), optional
        Weight of each row.

    penalty : {"structured", "odir", "l2", "offsets"}, default="structured"
        Penalty on the coefficients:

        - "structured" shrinks towards temperature scaling;
        - "odir" penalises only the intercepts;
        - "l2" shrinks towards zero;
        - "offsets" fits one scale for all classes and normally distributed intercepts, whose
          variance has the largest evidence. It has no further options.

    regularisation : float, optional
        Strength of the penalty in rows. None means that cross-validation chooses it. 0 gives
        the method of Guo et al.

    intercept_regularisation : float, optional
        Strength of the penalty on the intercepts. None means `regularisation`.

    n_folds : int, default=3
        Number of folds of the cross-validation.

    random_state : int or numpy.random.Generator, default=0
        Seed of the folds.

    Returns
    -------
    VectorMap

    Examples
    --------
    >>> logits = np.log([[0.8, 0.2]] * 10) + [0.0, 1.0]  # biased towards the second class
    >>> fit = fit_vector_scaling(Rows(logits), np.array([0] * 8 + [1] * 2), regularisation=0.0)
    >>> fit(logits[:1]).round(3)
    array([[0.8, 0.2]])

    The second and the third class are mistaken for each other:

    >>> logits = np.log([[0.8, 0.1, 0.1]] * 600)
    >>> labels = np.array([0] * 480 + [1] * 96 + [2] * 24)
    >>> fit_vector_scaling(Rows(logits), labels, penalty="offsets")(logits[:1]).round(2)
    array([[0.8 , 0.16, 0.04]])
    """
    sample = LabelledRows(rows, labels, weights)
    if penalty == "offsets":
        fitted_offsets = fit_class_offsets(sample.drop_unusable_rows())
        return VectorMap(
            scale=np.full(rows.n_classes, fitted_offsets.scale),
            bias=fitted_offsets.offsets,
            regularisation=fitted_offsets.strength,
        )
    regression = SoftmaxRegression(
        compute_features=kernels.compute_centred_logits,
        has_full_matrix=False,
        penalty=penalty,
        intercept_regularisation=intercept_regularisation,
    )
    selection = StrengthSelection(
        regularisation=regularisation, n_folds=n_folds, random_state=random_state
    )
    regression_fit = regression.solve(sample, selection)
    return VectorMap(
        scale=regression_fit.scale,
        bias=regression_fit.intercepts,
        regularisation=regression_fit.strength,
    )


def fit_matrix_scaling(
    rows: Rows,
    labels: Codes,
    weights: Weights = None,
    *,
    penalty: str = "structured",
    regularisation: float | None = None,
    intercept_regularisation: float | None = None,
    n_folds: int = 3,
    random_state: int | np.random.Generator = 0,
) -> MatrixMap:
    """Fit matrix scaling by penalised maximum likelihood.

    The K² + K coefficients overfit easily. With fewer than about 50 rows per class, expect
    little improvement on temperature scaling.

    Parameters
    ----------
    rows, labels, weights, regularisation, intercept_regularisation, n_folds, random_state
        See `fit_vector_scaling`.

    penalty : {"structured", "odir", "l2"}, default="structured"
        "odir", the off-diagonal and intercept penalty of Kull et al., leaves the diagonal
        free. "structured" also penalises the diagonal, towards temperature scaling, because
        log p is never positive and an unpenalised slope of an unseen class has no maximum.

    Returns
    -------
    MatrixMap

    Examples
    --------
    >>> logits = np.array([[2.0, 0.0], [0.0, 2.0]] * 10)  # the classes are swapped
    >>> fit = fit_matrix_scaling(Rows(logits), np.array([1, 0] * 9 + [0, 1]), regularisation=0.0)
    >>> fit(logits[:2]).round(3)
    array([[0.1, 0.9], [0.9, 0.1]])
    """
    regression = SoftmaxRegression(
        compute_features=kernels.compute_centred_logits,
        has_full_matrix=True,
        penalty=penalty,
        intercept_regularisation=intercept_regularisation,
    )
    selection = StrengthSelection(
        regularisation=regularisation, n_folds=n_folds, random_state=random_state
    )
    regression_fit = regression.solve(LabelledRows(rows, labels, weights), selection)
    return MatrixMap(
        matrix=regression_fit.matrix,
        bias=regression_fit.intercepts,
        regularisation=regression_fit.strength,
    )


def fit_dirichlet_calibration(
    rows: Rows,
    labels: Codes,
    weights: Weights = None,
    *,
    penalty: str = "structured",
    regularisation: float | None = None,
    intercept_regularisation: float | None = None,
    n_folds: int = 3,
    random_state: int | np.random.Generator = 0,
) -> DirichletMap:
    """Fit Dirichlet calibration by penalised maximum likelihood.

    Parameters
    ----------
    rows, labels, weights, penalty, regularisation, intercept_regularisation, n_folds, random_state
        See `fit_matrix_scaling`.

    Returns
    -------
    DirichletMap
    """
    regression = SoftmaxRegression(
        compute_features=kernels.compute_log_softmax,
        has_full_matrix=True,
        penalty=penalty,
        intercept_regularisation=intercept_regularisation,
    )
    selection = StrengthSelection(
        regularisation=regularisation, n_folds=n_folds, random_state=random_state
    )
    regression_fit = regression.solve(LabelledRows(rows, labels, weights), selection)
    return DirichletMap(
        matrix=regression_fit.matrix,
        bias=regression_fit.intercepts,
        regularisation=regression_fit.strength,
    )


def fit_structured_scaling(
    rows: Rows,
    labels: Codes,
    weights: Weights = None,
    *,
    regularisation: float | None = None,
    n_folds: int = 3,
    random_state: int | np.random.Generator = 0,
) -> StructuredMap:
    """Fit a temperature, then structured scaling of the tempered log-probabilities.

    The second fit minimises the negative log-likelihood of
    softmax(a * log softmax(x / T) + c) plus λK Σ ((a_j - 1)² + c_j²). A strong penalty λ gives
    temperature scaling, none gives vector scaling.

    Parameters
    ----------
    rows, labels, weights, n_folds, random_state
        See `fit_vector_scaling`.

    regularisation : float, optional
        Strength λ. None means that cross-validation chooses it.

    Returns
    -------
    StructuredMap
    """
    sample = LabelledRows(rows, labels, weights).drop_unusable_rows()
    inverse_temperature = fit_temperature(
        sample.rows, sample.labels, sample.weights
    ).inverse_temperature
    regression = _make_structured_regression(inverse_temperature)
    selection = StrengthSelection(
        regularisation=regularisation, n_folds=n_folds, random_state=random_state
    )
    regression_fit = regression.solve(sample, selection)
    return StructuredMap(
        inverse_temperature=inverse_temperature,
        scale=regression_fit.scale,
        bias=regression_fit.intercepts,
        regularisation=regression_fit.strength,
    )


def fit_structured_path(
    sample: LabelledRows, strengths: Sequence[float], tolerance: float
) -> dict[float, StructuredMap]:
    """Fit structured scaling at several strengths, each fit starting from the last."""
    sample = sample.drop_unusable_rows()
    inverse_temperature = fit_temperature(
        sample.rows, sample.labels, sample.weights
    ).inverse_temperature
    regression = _make_structured_regression(inverse_temperature)
    map_by_strength = {}
    for fit in regression.solve_path(sample, strengths, tolerance):
        map_by_strength[fit.strength] = StructuredMap(
            inverse_temperature=inverse_temperature,
            scale=fit.scale,
            bias=fit.intercepts,
            regularisation=fit.strength,
        )
    return map_by_strength


def fit_dirichlet_path(
    sample: LabelledRows, strengths: Sequence[float], tolerance: float
) -> dict[float, DirichletMap]:
    """Fit Dirichlet calibration with the structured penalty at several strengths."""
    regression = SoftmaxRegression(
        compute_features=kernels.compute_log_softmax, has_full_matrix=True, penalty="structured"
    )
    map_by_strength = {}
    for fit in regression.solve_path(sample, strengths, tolerance):
        map_by_strength[fit.strength] = DirichletMap(
            matrix=fit.matrix, bias=fit.intercepts, regularisation=fit.strength
        )
    return map_by_strength


def _make_structured_regression(inverse_temperature: float) -> SoftmaxRegression:
    """Return the regression on tempered log-probabilities."""
    compute_features = partial(kernels.compute_log_softmax, inverse_temperature=inverse_temperature)
    return SoftmaxRegression(
        compute_features=compute_features,
        has_full_matrix=False,
        penalty="structured",
        feature_scale=1.0,
    )
