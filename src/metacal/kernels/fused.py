"""Kernels in C: one pass over the block, with the GIL released.

The results are those of `numpy.py`, apart from rounding. The kernels take blocks of any size and the
indices of the rows to use. In addition to the parameters of their namesakes in `numpy.py`, which
describe them, they have the parameter `rows`: indices of the rows to use, or None for all rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.formulas import Array, Codes, Flags, Float
from metacal.kernels import _fused
from metacal.kernels.columns import Curve
from metacal.kernels.fused_columns import as_column
from metacal.kernels.fused_columns import count_in_cells as count_in_cells
from metacal.kernels.fused_columns import hash_scores as hash_scores
from metacal.kernels.fused_columns import rank_keys as rank_keys
from metacal.kernels.fused_columns import try_to_rank_scores as try_to_rank_scores
from metacal.kernels.grid import Grid

#: Type of row indices in a block. None means all rows.
RowIndices = Codes | None

#: Names of the scores; the C code identifies a score by its index in this tuple.
_SCORE_NAMES = ("entropy", "one_minus_max_probability", "negative_margin", "free_energy")
#: Lower and upper limit that leave every probability unchanged.
_NO_LIMITS = (0.0, np.inf)
#: Return code of `_fused.first_bad_row` if all rows are valid and a logit may stand for a mask.
_MAY_BE_MASKED = -2

# The C extension has shorter names for these functions.
clip_rows = _fused.inside
write_mixture_or_curve = _fused.lifted
write_ensemble_label_probabilities = _fused.members
write_row_statistics = _fused.mixed_rows
write_mixture_loss_and_derivatives = _fused.mixed_sums
write_grid_weights = _fused.on_grid
write_rounded_scores_and_correctness = _fused.ranked_rows

#: Function that returns the instruction sets of this processor. The first one is used.
instruction_sets = _fused.instruction_sets


def predict_classes(block: Array, *, rows: RowIndices = None) -> Codes:
    """Return ŷ = argmax x of each row, the lowest index for ties."""
    predictions = np.empty(_count_rows(block, rows), dtype=np.int64)
    _fused.predicted(_as_readable(block), rows, predictions)
    return predictions.astype(np.intp, copy=False)


def softmax(
    block: Array, inverse_temperature: float, out: Array, *, rows: RowIndices = None
) -> None:
    """Write softmax(b·x) of each row into `out`."""
    write_block = partial(
        _fused.softmax, _as_readable(block), rows, inverse_temperature, *_NO_LIMITS
    )
    _write_probabilities(write_block, out)


def softmax_with_curve(
    block: Array, inverse_temperature: float, uniform_weight: float, curve: Curve, out: Array
) -> None:
    """Write (1 - ε)·softmax(b·x) + ε/K, with the largest probability mapped by a curve."""
    write_block = partial(
        write_mixture_or_curve,
        _as_readable(block),
        inverse_temperature,
        uniform_weight,
        curve.knots_slopes_heights,
        *_NO_LIMITS,
    )
    _write_probabilities(write_block, out)


def write_limited_probabilities(
    block: Array,
    inverse_temperature: float,
    uniform_weight: float,
    curve: Curve | None,
    limits: tuple[float, float],
    out: Array,
) -> None:
    """Write probabilities and clip them to two limits, in one pass.

    Parameters
    ----------
    block : array of shape (n_rows, n_classes)
        Logits x.

    inverse_temperature : float
        Inverse temperature b.

    uniform_weight : float
        Weight ε of the uniform distribution.

    curve : Curve or None
        Curve of the largest probability, as in `softmax_with_curve`.

    limits : tuple of float
        Smallest and largest probability of an unmasked class, if there are several.

    out : array of shape (n_rows, n_classes)
        Buffer for the result, possibly the block itself.
    """
    table = _as_readable(block)
    if curve is None and uniform_weight == 0.0:
        write_block = partial(_fused.softmax, table, None, inverse_temperature, *limits)
    else:
        packed_curve = None if curve is None else curve.knots_slopes_heights
        write_block = partial(
            write_mixture_or_curve,
            table,
            inverse_temperature,
            uniform_weight,
            packed_curve,
            *limits,
        )
    _write_probabilities(write_block, out)


def compute_confidences(
    block: Array,
    inverse_temperature: float,
    uniform_weight: float,
    curve: Curve | None,
    limits: tuple[float, float],
    dtype: type[np.floating[Any]],
    *,
    rows: RowIndices = None,
) -> Float:
    """Compute the probability of the predicted class of each row.

    Parameters
    ----------
    block, inverse_temperature, uniform_weight, curve, limits
        As in `write_limited_probabilities`.

    dtype : float32 or float64
        Type to which the probabilities are rounded.

    rows : array of int, default=None
        Indices of the rows to use.

    Returns
    -------
    array of float64
        The entries that `write_limited_probabilities` writes for the predicted classes.
    """
    confidences = np.empty(_count_rows(block, rows))
    _fused.confidences(
        _as_readable(block),
        rows,
        inverse_temperature,
        uniform_weight,
        None if curve is None else curve.knots_slopes_heights,
        *limits,
        dtype is np.float32,
        confidences,
    )
    return confidences


def _write_probabilities(write: Callable[[Array], None], out: Array) -> None:
    """Write into `out` in C, through a buffer if C cannot address `out`."""
    if is_readable_without_copy(out):
        write(out)
        return
    buffer = np.empty(out.shape, dtype=out.dtype)
    write(buffer)
    out[...] = buffer


def try_to_clip_in_place(
    block: Array, min_probability: float, max_probability: float, out: Array
) -> bool:
    """Clip the probabilities of a block in place.

    Parameters
    ----------
    block : array of shape (n_rows, n_classes)
        Logits.

    min_probability, max_probability : float
        Limits of the probabilities.

    out : array of shape (n_rows, n_classes)
        Probabilities.

    Returns
    -------
    bool
        False if the C code cannot read `out`. Nothing is changed then.
    """
    is_supported = is_readable_without_copy(out) and out.dtype.itemsize >= 4
    if is_supported:
        clip_rows(_as_readable(block), min_probability, max_probability, out)
    return is_supported


def tempered_loss_and_derivatives(
    block: Array,
    labels: Codes,
    weights: Float | None,
    inverse_temperature: float,
    *,
    rows: RowIndices = None,
    strip_ends: Codes | None = None,
) -> Float:
    """Sum the negative log-likelihood of softmax(b·x) and its first three derivatives in b.

    Parameters
    ----------
    block, labels, weights, inverse_temperature
        As in `numpy.py`.

    rows : array of int, default=None
        Indices of the rows to use.

    strip_ends : array of int of shape (n_strips + 1,), default=None
        Strip s has the rows from strip_ends[s] up to strip_ends[s + 1]. If given, each strip has its
        own sums. Otherwise all rows are summed.

    Returns
    -------
    array of shape (4,), or (n_strips, 4) with `strip_ends`
    """
    sums_all_rows = strip_ends is None
    if strip_ends is None:
        strip_ends = np.array([0, len(labels)])
    n_strips = len(strip_ends) - 1
    sums = np.empty(4 * n_strips)
    _fused.tempered_loss(
        _as_readable(block),
        rows,
        as_column(labels, np.int64),
        as_column(weights),
        inverse_temperature,
        strip_ends,
        sums,
    )
    return sums if sums_all_rows else sums.reshape(-1, 4)


def temperature_statistics(
    block: Array,
    labels: Codes,
    inverse_temperature: float,
    *,
    rows: RowIndices = None,
    out: Float | None = None,
) -> Float:
    """Compute the row statistics for a temperature with a uniform component.

    Parameters
    ----------
    block, labels, inverse_temperature
        As in `numpy.py`.

    rows : array of int, default=None
        Indices of the rows to use.

    out : array of shape (n_rows, 8), default=None
        Buffer, the transpose of an array whose rows are contiguous columns.

    Returns
    -------
    array of shape (n_rows, 8)
        The values of a column are contiguous, which makes work on columns faster.
    """
    if out is None:
        out = np.empty((8, len(labels))).T
    label_column = as_column(labels, np.int64)
    write_row_statistics(_as_readable(block), rows, label_column, inverse_temperature, out.T)
    return out


def write_scores_and_correctness(
    block: Array,
    scores: Float,
    is_correct: Flags,
    labels: Codes,
    *,
    score: str,
    grid: Grid,
    is_unvalidated: bool = False,
) -> None:
    """Write the ranking score, rounded to its grid, and the correctness of each row.

    Parameters
    ----------
    block : array of shape (n_rows, n_classes)
        Logits.

    scores : array of float64 of shape (n_rows,)
        Buffer for the scores.

    is_correct : array of bool of shape (n_rows,)
        Buffer for the correctness of the predictions.

    labels : array of int of shape (n_rows,)
        True classes.

    score : str
        Name of the score.

    grid : Grid
        Grid of the score.

    is_unvalidated : bool, default=False
        Whether the block has not been validated. Rows that `inspect_logits` would report
        have the score NaN.
    """
    write_rounded_scores_and_correctness(
        _as_readable(block),
        _SCORE_NAMES.index(score),
        is_unvalidated,
        as_column(labels, np.int64),
        grid.n_dropped_bits,
        grid.even_below,
        scores,
        is_correct,
    )


def add_probabilities_in_units(
    block: Array, is_accepted: Flags, edges: Float, class_sums: Float, cell_sums: NDArray[np.int64]
) -> None:
    """Add the probabilities of a block to sums without rounding error."""
    decisions = np.ascontiguousarray(is_accepted, dtype=bool)
    _fused.class_units(
        _as_readable(block), decisions, edges, class_sums.reshape(-1), cell_sums.reshape(-1)
    )


def round_to_grid(values: Float, grid: Grid) -> Float:
    """Round each value to the nearest grid point."""
    rounded_values = np.empty(len(values))
    _fused.rounded(as_column(values), grid.n_dropped_bits, grid.even_below, rounded_values)
    return rounded_values


def confidence_log_odds(
    columns: Float,
    b_of_statistics: float,
    b: float,
    uniform_weight: float,
    start: int,
    stop: int,
    out: Float,
) -> None:
    """Write `kernels.columns.confidence_log_odds` of the rows from `start` up to `stop`."""
    _fused.log_odds(columns, b - b_of_statistics, uniform_weight, start, stop, out)


def bin_linearly(
    values: Float,
    is_correct: Float,
    weights: Float | None,
    grid_spacing: float,
    max_abs_value: float,
    first_index: int,
    n_points: int,
) -> Float:
    """Distribute row weights linearly over the points of an even grid."""
    weight_pairs = np.empty((n_points, 2))
    write_grid_weights(
        as_column(values),
        as_column(is_correct),
        as_column(weights),
        grid_spacing,
        max_abs_value,
        first_index,
        weight_pairs.reshape(-1),
    )
    return np.ascontiguousarray(weight_pairs.T)


def mixture_loss_and_derivatives(
    columns: Float,
    weights: Float | None,
    b_of_statistics: float,
    b: float,
    uniform_weight: float,
    start: int,
    stop: int,
) -> Float:
    """Compute the loss of a mixture and its derivatives for a range of rows."""
    sums = np.empty(6)
    step = b - b_of_statistics
    write_mixture_loss_and_derivatives(
        as_column(columns), as_column(weights), b, step, uniform_weight, start, stop, sums
    )
    return sums


def ensemble_label_probabilities(
    block: Array, labels: Codes, inverse_temperature: float, *, rows: RowIndices = None
) -> Float:
    """Compute the three terms of ensemble temperature scaling for the true class."""
    probabilities = np.empty((len(labels), 3))
    label_column = as_column(labels, np.int64)
    flat_probabilities = probabilities.reshape(-1)
    write_ensemble_label_probabilities(
        _as_readable(block), rows, label_column, inverse_temperature, flat_probabilities
    )
    return probabilities


def inspect_logits(block: Array) -> tuple[int | None, bool]:
    """Find the first invalid row of a block, and whether it may contain masks."""
    row_or_code = _fused.first_bad_row(_as_readable(block))
    invalid_row = row_or_code if row_or_code >= 0 else None
    may_hold_masks = row_or_code == _MAY_BE_MASKED
    return invalid_row, may_hold_masks


def _score(
    score_index: int,
    block: Array,
    *,
    rows: RowIndices = None,
    predictions_out: Codes | None = None,
    is_unvalidated: bool = False,
) -> Float:
    """Compute one score per row.

    Parameters
    ----------
    score_index : int
        Index of the score in `_SCORE_NAMES`.

    block : array of shape (n_rows, n_classes)
        Logits.

    rows : array of int, default=None
        Indices of the rows to use.

    predictions_out : array of int64, default=None
        Buffer for the predictions.

    is_unvalidated : bool, default=False
        Whether the block has not been validated. Rows that `inspect_logits` would report
        have the score NaN.

    Returns
    -------
    array of float64
    """
    scores = np.empty(_count_rows(block, rows))
    _fused.scores(_as_readable(block), rows, score_index, is_unvalidated, scores, predictions_out)
    return scores


entropy, one_minus_max_probability, negative_margin, free_energy = (
    partial(_score, score_index) for score_index in range(len(_SCORE_NAMES))
)


def _count_rows(block: Array, rows: RowIndices) -> int:
    """Return the number of selected rows."""
    return len(block) if rows is None else len(rows)


def _as_readable(block: Array) -> Array:
    """Return a block that the C code can read, converted or copied if necessary."""
    if block.dtype.kind != "f" or block.dtype.itemsize > 8:
        block = block.astype(np.float64)
    elif not block.dtype.isnative:
        block = block.astype(block.dtype.newbyteorder("="))
    return block if is_readable_without_copy(block) else block.copy(order="C")


def is_readable_without_copy(block: Array) -> bool:
    """Check whether the C code can read the rows of a block without a copy.

    The flags of NumPy are not enough. It calls an array contiguous wherever its bytes start, and
    ignores the strides of a table with one row or one column.
    """
    dtype = block.dtype
    is_native_float = dtype.kind == "f" and dtype.itemsize <= 8 and dtype.isnative
    row_stride, column_stride = block.strides
    has_contiguous_rows = column_stride == block.itemsize and row_stride % block.itemsize == 0
    return is_native_float and block.flags.aligned and has_contiguous_rows
