"""Penalties of the softmax regression, see `metacal.maps.fitting.penalised`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metacal.errors import InputError
from metacal.formulas import Codes, Float

#: Kinds of penalty.
PENALTIES = ("odir", "l2", "structured")
#: Smallest penalty on a coefficient, in rows. It keeps the slope of an unseen class finite.
_MIN_STRENGTH = 1e-3
#: Weak penalty, in rows, on the diagonal that the penalty `odir` leaves free.
_FREE_DIAGONAL_STRENGTH = 0.1


@dataclass(frozen=True)
class StrengthSelection:
    """Given strength of the penalty, or the cross-validation that chooses it.

    Attributes
    ----------
    regularisation : float or None
        Strength of the penalty, or None to choose it by cross-validation.

    n_folds : int
        Number of folds of the cross-validation.

    random_state : int or numpy.random.Generator
        Seed of the folds.
    """

    regularisation: float | None
    n_folds: int
    random_state: int | np.random.Generator


@dataclass(frozen=True)
class QuadraticPenalty:
    """Penalty Σ k (theta - t)² on coefficients theta.

    Attributes
    ----------
    strengths : array of the shape of the coefficients
        Strength k of each coefficient.

    targets : array of the shape of the coefficients
        Value t towards which each coefficient is shrunk.
    """

    strengths: Float
    targets: Float


def build_penalty(
    kind: str,
    shape: tuple[int, int],
    diagonal: float,
    strength: float,
    intercept_strength: float,
) -> QuadraticPenalty:
    """Build the quadratic penalty Σ k (theta - t)² on the coefficients theta.

    The penalty is added to the summed negative log-likelihood of tempered features, so a
    strength λ is measured in rows. With μ the strength of the intercept:

    - `structured`: λK Σ (A_jj - d)² + λK(K-1) Σ_{i≠j} A_ij² + μK Σ c_j², which shrinks towards
      temperature scaling A = d I;
    - `odir`: the same with a free diagonal (except for a tenth of a row). Kull et al. use the
      mean likelihood of n rows and untempered logits; their strengths are
      λ_Kull = λ T² K²(K-1)² / n and μ_Kull = μ K² / n;
    - `l2`: λ Σ A_ij² + μ Σ c_j². scikit-learn's C is 1 / (2λ), with μ = 0.

    Parameters
    ----------
    kind : {"structured", "odir", "l2"}
        Kind of penalty.

    shape : tuple of int
        Shape of the coefficients.

    diagonal : float
        Diagonal d of temperature scaling.

    strength, intercept_strength : float
        Strengths λ of the coefficients and μ of the intercepts.

    Returns
    -------
    QuadraticPenalty

    Examples
    --------
    >>> penalty = build_penalty("odir", (2, 3), diagonal=1.0, strength=2.0, intercept_strength=1.0)
    >>> penalty.strengths
    array([[0.1, 0.1, 0.1], [3. , 3. , 3. ]])
    """
    n_classes = shape[1]
    matrix_rows = slice(None, -1)
    intercept_row = -1
    targets = np.zeros(shape)
    strengths = np.empty(shape)
    if kind == "l2":
        strengths[matrix_rows] = strength
        strengths[intercept_row] = intercept_strength
        return QuadraticPenalty(np.maximum(strengths, _MIN_STRENGTH), targets)
    on_diagonal = get_diagonal_index(shape)
    strengths[matrix_rows] = strength * n_classes * (n_classes - 1)
    strengths[on_diagonal] = _FREE_DIAGONAL_STRENGTH
    if kind == "structured":
        strengths[on_diagonal] = strength * n_classes
    strengths[intercept_row] = intercept_strength * n_classes
    targets[on_diagonal] = diagonal
    return QuadraticPenalty(np.maximum(strengths, _MIN_STRENGTH), targets)


def get_diagonal_index(shape: tuple[int, ...]) -> tuple[Codes | int, Codes | slice]:
    """Return the index of the diagonal coefficients in an array of coefficients."""
    n_coefficients, n_classes = shape
    if n_coefficients == 2:
        return 0, slice(None)
    every_class = np.arange(n_classes)
    return every_class, every_class


def check_strength(name: str, value: object) -> None:
    """Raise InputError unless `value` is a finite non-negative number."""
    is_number = isinstance(value, int | float | np.integer | np.floating)
    is_number = is_number and not isinstance(value, bool)
    if not is_number or not 0.0 <= float(value) < np.inf:  # type: ignore[arg-type]
        raise InputError(
            f"{name} must be a finite nonnegative number, or None to choose it automatically, but"
            f" got {value!r}."
        )
