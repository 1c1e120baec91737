"""Kernels in NumPy that read columns with one value per row, and no logits."""

from __future__ import annotations

import numpy as np

from metacal.formulas import Float
from metacal.kernels import columns as column_formulas

#: Number of rows that `bin_linearly` processes at a time.
_CHUNK_ROWS = 1 << 15


def mixture_loss_and_derivatives(
    row_statistics: Float,
    weights: Float | None,
    b_of_statistics: float,
    b: float,
    uniform_weight: float,
    start: int,
    stop: int,
) -> Float:
    """Compute `kernels.columns.mixture_loss_and_derivatives` over the rows from `start` up to `stop`.

    Parameters
    ----------
    row_statistics, weights, b_of_statistics, b, uniform_weight
        As in `kernels.columns.mixture_loss_and_derivatives`.

    start, stop : int
        Rows to sum.

    Returns
    -------
    array of shape (6,)
    """
    part_weights = None if weights is None else weights[start:stop]
    part_statistics = row_statistics[:, start:stop]
    return np.asarray(
        column_formulas.mixture_loss_and_derivatives(
            np, part_statistics, part_weights, b_of_statistics, b, uniform_weight
        )
    )


def confidence_log_odds(
    row_statistics: Float,
    b_of_statistics: float,
    b: float,
    uniform_weight: float,
    start: int,
    stop: int,
    out: Float,
) -> None:
    """Write `kernels.columns.confidence_log_odds` of the rows from `start` up to `stop`.

    Parameters
    ----------
    row_statistics, b_of_statistics, b, uniform_weight
        As in `kernels.columns.confidence_log_odds`.

    start, stop : int
        Rows to compute.

    out : array of shape (n_rows,)
        Buffer of all rows.
    """
    out[start:stop] = column_formulas.confidence_log_odds(
        np, row_statistics[:, start:stop], b_of_statistics, b, uniform_weight
    )


def bin_linearly(
    values: Float,
    is_correct: Float,
    weights: Float | None,
    grid_spacing: float,
    max_abs_value: float,
    first_index: int,
    n_points: int,
) -> Float:
    """Distribute the weight of each row over the two neighbouring points of an even grid.

    Parameters
    ----------
    values : array of shape (n_rows,)
        Values, clipped to [-max_abs_value, max_abs_value].

    is_correct : array of shape (n_rows,)
        Correctness of the rows.

    weights : array of shape (n_rows,) or None
        Row weights.

    grid_spacing : float
        Distance between grid points.

    max_abs_value : float
        Largest absolute value.

    first_index : int
        Point c of the grid is (first_index + c)·grid_spacing.

    n_points : int
        Number of grid points.

    Returns
    -------
    array of shape (2, n_points)
        Weights of all rows, and of correct rows, at the grid points.
    """
    sums = np.zeros((2, n_points))
    for start in range(0, len(values), _CHUNK_ROWS):
        rows = slice(start, start + _CHUNK_ROWS)
        positions = values[rows].clip(-max_abs_value, max_abs_value) / grid_spacing
        lower_points = np.floor(positions)
        upper_fractions = positions - lower_points
        lower_indices = (lower_points - first_index).astype(np.intp)
        row_weights = 1.0 if weights is None else weights[rows]
        correct_weights = row_weights * is_correct[rows]
        for sums_at_points, masses in zip(sums, (row_weights, correct_weights)):
            upper_masses = masses * upper_fractions
            sums_at_points += np.bincount(lower_indices, masses - upper_masses, n_points)
            sums_at_points[1:] += np.bincount(lower_indices, upper_masses, n_points)[:-1]
    return sums
