"""Kernels in NumPy: the definition of every statistic of a row.

A block is a small array of logits, shape (n_rows, n_classes), of any floating type. The formulas use
the *gaps* d_j = x_j - max x, so that nothing overflows and adding a constant to a row changes
nothing. A masked class (-inf) contributes exactly 0. An invalid row (NaN, +inf, or every class
masked) has the score NaN, which is never accepted, and an arbitrary prediction.

Scores are computed in float64 for every type of table, because a decision must not depend on how the
logits were stored. Softmax and the loss of a temperature do not affect decisions. They use the
precision of the table (float32 for float16), with sums over rows in float64.

A block fits into the cache of a core, so the number of NumPy calls and the buffers matter. Nothing
is clipped or masked before it turns out to be necessary.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from metacal.formulas import Array, Codes, Float
from metacal.formulas.logits import LARGEST_FINITE_MASK
from metacal.kernels.buffers import thread_buffers, widen_float16
from metacal.kernels.columns import Curve, compute_curve_factors, cumulants
from metacal.kernels.grid import Grid
from metacal.kernels.numpy_columns import bin_linearly as bin_linearly
from metacal.kernels.numpy_columns import confidence_log_odds as confidence_log_odds
from metacal.kernels.numpy_columns import (
    mixture_loss_and_derivatives as mixture_loss_and_derivatives,
)

#: Exponents below which exp is 0, by type. Smaller exponents are clipped, because 0 · (-inf) is NaN.
_UNDERFLOW_EXPONENT = {np.dtype(np.float64): -800.0, np.dtype(np.float32): -100.0}

# Bits of float16 numbers: of the largest one that may stand for a mask, and of -inf.
_BITS_OF_LARGEST_MASK, _BITS_OF_MINUS_INFINITY = np.array(
    [LARGEST_FINITE_MASK, -np.inf], np.float16
).view(np.uint16)
_FLOAT16_EXPONENT_BITS = 0x7C00

#: Largest number of classes of a block that is transposed before its rows are summed.
_MAX_TRANSPOSED_CLASSES = 128


def _work_type(block: Array) -> np.dtype[Any]:
    """Return float64 for blocks of float64 (of either byte order), else float32."""
    return np.dtype(np.float64 if block.dtype.itemsize == 8 else np.float32)


# Warnings are suppressed, because invalid rows give inf - inf and large gaps overflow to -inf.
@np.errstate(invalid="ignore", over="ignore")
def _gaps_and_largest(block: Array, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Compute the gaps d = x - max x of each row, and max x as a column.

    The gaps are in a buffer that the next call overwrites.
    """
    block = widen_float16(block)
    gaps = thread_buffers.get_array("gaps", block.shape, dtype)
    largest = block.max(axis=1, keepdims=True)
    if block.dtype == dtype:
        return np.subtract(block, largest, out=gaps), largest
    np.copyto(gaps, block)
    gaps -= largest.astype(dtype)
    return gaps, largest


def _gaps_by_class_axis(block: Array, labels: Codes) -> tuple[Array, int, Float]:
    """Compute the gaps of a block, transposed if its rows are short.

    NumPy adds long rows to each other fast, and the entries of short rows slowly.

    Returns
    -------
    gaps : array
        Gaps in a buffer.

    class_axis : int
        Axis of the classes.

    label_gaps : array of float64 of shape (n_rows,)
        Gap of the true class of each row.
    """
    dtype = _work_type(block)
    if block.shape[1] > _MAX_TRANSPOSED_CLASSES:
        class_axis = 1
        gaps, largest = _gaps_and_largest(block, dtype)
    else:
        class_axis = 0
        gaps = thread_buffers.get_array("gaps", block.shape[::-1], dtype)
        np.copyto(gaps, block.T)
        largest = gaps.max(axis=0)
        gaps -= largest
    label_gaps = block[np.arange(len(block)), labels].astype(np.float64)
    label_gaps -= largest.reshape(-1)
    return gaps, class_axis, label_gaps


def _exp_in_buffer(exponents: Array) -> Array:
    """Compute exp in a buffer that the next call overwrites."""
    exponentials = thread_buffers.get_array("terms", exponents.shape, exponents.dtype)
    np.exp(exponents, out=exponentials)
    return exponentials


def _gaps_without_prediction(block: Array) -> tuple[Float, Float, Float]:
    """Compute gaps to the largest logits, their exponentials, and the largest logits.

    The exponential of the predicted class is set to 0. All results are float64.
    """
    gaps, largest = _gaps_and_largest(block, np.dtype(np.float64))
    exponentials = _exp_in_buffer(gaps)
    exponentials[np.arange(len(gaps)), predict_classes(block)] = 0.0
    return gaps, exponentials, largest[:, 0].astype(np.float64)


def _nan_for_invalid_rows(values: Float, largest: Float) -> Float:
    """Replace the scores of rows whose largest logit is not finite by NaN."""
    is_valid = np.isfinite(largest)
    return values if is_valid.all() else np.where(is_valid, values, np.nan)


def round_to_grid(values: Any, grid: Grid) -> Float:
    """Return the nearest grid point of each value."""
    return grid.round(values)


def predict_classes(block: Array) -> Codes:
    """Return ŷ = argmax x of each row, the lowest index for ties."""
    return np.asarray(widen_float16(block).argmax(axis=1))


def entropy(block: Array) -> Float:
    """Compute the entropy of softmax(x) of each row.

    It is log1p(S) - Σ_{j≠ŷ} e^{d_j} d_j / (1 + S), where S = Σ_{j≠ŷ} e^{d_j}. S excludes the
    predicted class, so that confident rows keep full precision. With it, 1 - max p would be lost in
    rounding.
    """
    gaps, exponentials, largest = _gaps_without_prediction(block)
    exp_sum_of_others = exponentials.sum(axis=1)
    with np.errstate(invalid="ignore"):
        exp_moment_of_others = np.einsum("ij,ij->i", exponentials, gaps)
    if np.isnan(exp_moment_of_others).any():
        # The term of a masked class is 0, but 0 · (-inf) gives NaN.
        np.maximum(gaps, _UNDERFLOW_EXPONENT[gaps.dtype], out=gaps)
        exp_moment_of_others = np.einsum("ij,ij->i", exponentials, gaps)
    return _nan_for_invalid_rows(
        np.log1p(exp_sum_of_others) - exp_moment_of_others / (1.0 + exp_sum_of_others), largest
    )


def one_minus_max_probability(block: Array) -> Float:
    """Compute 1 - max p = S / (1 + S) of each row without cancellation."""
    _, exponentials, largest = _gaps_without_prediction(block)
    exp_sum_of_others = exponentials.sum(axis=1)
    return _nan_for_invalid_rows(exp_sum_of_others / (1.0 + exp_sum_of_others), largest)


@np.errstate(invalid="ignore", over="ignore")
def negative_margin(block: Array) -> Float:
    """Compute the second largest logit minus the largest of each row.

    It is the most negative float if every other class is masked.
    """
    block = widen_float16(block)
    other_logits = thread_buffers.get_array("other logits", block.shape, block.dtype)
    np.copyto(other_logits, block)
    rows = np.arange(len(block))
    predictions = block.argmax(axis=1)
    other_logits[rows, predictions] = -np.inf
    largest = block[rows, predictions].astype(np.float64)
    gap_of_second = other_logits.max(axis=1).astype(np.float64)
    gap_of_second -= largest
    lowest_float = -np.finfo(np.float64).max
    return _nan_for_invalid_rows(np.maximum(gap_of_second, lowest_float), largest)


@np.errstate(invalid="ignore")
def free_energy(block: Array) -> Float:
    """Compute -logsumexp(x) of each row."""
    _, exponentials, largest = _gaps_without_prediction(block)
    return _nan_for_invalid_rows(-(largest + np.log1p(exponentials.sum(axis=1))), largest)


@np.errstate(invalid="ignore", over="ignore")
def softmax(block: Array, inverse_temperature: float, out: Array) -> None:
    """Write softmax(b·x) of each row into `out`."""
    dtype = _work_type(block)
    can_compute_in_out = out.dtype == dtype and out.flags.c_contiguous
    if can_compute_in_out and block.dtype == dtype:
        exponents = np.subtract(block, block.max(axis=1, keepdims=True), out=out)
    else:
        exponents, _ = _gaps_and_largest(block, dtype)
    exponents *= dtype.type(inverse_temperature)
    exponentials = np.exp(exponents, out=out if can_compute_in_out else exponents)
    np.divide(exponentials, exponentials.sum(axis=1, keepdims=True), out=out, casting="same_kind")


def softmax_with_curve(
    block: Array, inverse_temperature: float, uniform_weight: float, curve: Curve, out: Array
) -> None:
    """Write (1 - ε)·softmax(b·x) + ε/K, with the largest probability mapped by a curve.

    Parameters
    ----------
    block : array of shape (n_rows, n_classes)
        Logits x.

    inverse_temperature : float
        Inverse temperature b.

    uniform_weight : float
        Weight ε of the uniform distribution.

    curve : Curve
        Curve of the log-odds of the largest probability.

    out : array of shape (n_rows, n_classes)
        Buffer for the result.
    """
    n_possible = np.full(len(block), block.shape[1])
    # `fmin` ignores NaN, so -inf is found even if the block contains NaN.
    has_masked_classes = np.fmin.reduce(block, axis=None) == -np.inf
    if has_masked_classes:
        is_masked = block == -np.inf
        n_possible = block.shape[1] - is_masked.sum(axis=1)
    rows = np.arange(len(block))
    predictions = predict_classes(block)
    softmax(block, inverse_temperature, out)
    out[rows, predictions] = 0.0
    exp_sum_of_others = out.sum(axis=1, dtype=np.float64)
    second_largest = out.max(axis=1).astype(np.float64)
    # Warnings are suppressed, because a row with one possible class leads to a division by 0.
    with np.errstate(divide="ignore", invalid="ignore"):
        scale, shift, prediction_p = compute_curve_factors(
            np, exp_sum_of_others, second_largest, 1.0 / n_possible, uniform_weight, curve.value
        )
    out *= scale[:, None].astype(out.dtype)
    out += shift[:, None].astype(out.dtype)
    if has_masked_classes:
        out[is_masked] = 0.0
    out[rows, predictions] = prediction_p


def tempered_loss_and_derivatives(
    block: Array, labels: Codes, weights: Float | None, inverse_temperature: float
) -> Float:
    """Sum the negative log-likelihood of softmax(b·x) and its first three derivatives in b.

    Let m_k be the k-th moment of d under softmax(b·x). Then L = log Σ e^{bd} - b·d_y,
    L' = m_1 - d_y, L'' = Var(d), and L''' is the third central moment. The moments are computed from
    those of z = b·d.

    Parameters
    ----------
    block : array of shape (n_rows, n_classes)
        Logits.

    labels : array of int of shape (n_rows,)
        True classes.

    weights : array of shape (n_rows,) or None
        Row weights.

    inverse_temperature : float
        Inverse temperature b.

    Returns
    -------
    array of shape (4,)
        L, L', L'', L'''.
    """
    exponents, class_axis, label_gaps = _gaps_by_class_axis(block, labels)
    exponents *= exponents.dtype.type(inverse_temperature)
    terms = _exp_in_buffer(exponents)
    total = terms.sum(axis=class_axis).astype(np.float64)
    first_sum = _multiply_in_place(terms, exponents).sum(axis=class_axis)
    if np.isnan(first_sum).any():
        # The term of a masked class is 0, but 0 · (-inf) gives NaN.
        lowest_exponent = exponents.dtype.type(_UNDERFLOW_EXPONENT[exponents.dtype])
        np.maximum(exponents, lowest_exponent, out=exponents)
        first_sum = _multiply_in_place(_exp_in_buffer(exponents), exponents).sum(axis=class_axis)
    second_sum = _multiply_in_place(terms, exponents).sum(axis=class_axis)
    second_moment = second_sum / (total * inverse_temperature**2)
    third_sum = _multiply_in_place(terms, exponents).sum(axis=class_axis)
    third_moment = third_sum / (total * inverse_temperature**3)
    mean = first_sum / (total * inverse_temperature)
    row_derivatives = np.stack(
        [
            np.log(total) - inverse_temperature * label_gaps,
            mean - label_gaps,
            second_moment - mean * mean,
            third_moment - mean * (3.0 * second_moment - 2.0 * mean * mean),
        ]
    )
    if weights is not None:
        row_derivatives = row_derivatives * weights
    return np.asarray(row_derivatives.sum(axis=1))


def temperature_statistics(block: Array, labels: Codes, inverse_temperature: float) -> Float:
    """Compute the row statistics for a temperature with a uniform component.

    Parameters
    ----------
    block : array of shape (n_rows, n_classes)
        Logits.

    labels : array of int of shape (n_rows,)
        True classes.

    inverse_temperature : float
        Inverse temperature b.

    Returns
    -------
    array of shape (n_rows, 8)
        Σ e^{bd} - 1 without cancellation, the first four cumulants of d under softmax(b·x), d of the
        true class, the number of possible classes, and whether the prediction is correct.
    """
    gaps, class_axis, label_gaps = _gaps_by_class_axis(block, labels)
    n_possible: Any = block.shape[1]
    if gaps.min() == -np.inf:
        n_possible = (gaps > -np.inf).sum(axis=class_axis)
        lowest_gap = gaps.dtype.type(_UNDERFLOW_EXPONENT[gaps.dtype] / inverse_temperature)
        np.maximum(gaps, lowest_gap, out=gaps)
    exponents = gaps
    exponents *= exponents.dtype.type(inverse_temperature)
    terms = _exp_in_buffer(exponents)
    # The sum omits the largest logit, whose term is 1.
    is_largest = exponents == 0.0
    terms[is_largest] = 0.0
    n_other_largest = is_largest.sum(axis=class_axis) - 1
    exp_sum_of_others = terms.sum(axis=class_axis).astype(np.float64) + n_other_largest
    moments = []
    for power in (1, 2, 3, 4):
        # Each multiplication by b·d raises the power by one: terms = e^{bd}·(bd)^power.
        moment_sum = _multiply_in_place(terms, exponents).sum(axis=class_axis)
        moments.append(moment_sum / ((1.0 + exp_sum_of_others) * inverse_temperature**power))
    is_correct = predict_classes(block) == labels
    statistics = (exp_sum_of_others, *cumulants(*moments), label_gaps, n_possible, is_correct)
    # The columns are stored contiguously for later passes.
    columns = np.empty((len(statistics), len(block)))
    for column, values in zip(columns, statistics):
        column[:] = values
    return columns.T


def ensemble_label_probabilities(block: Array, labels: Codes, inverse_temperature: float) -> Float:
    """Compute the true-class probability of each member of the temperature ensemble.

    Parameters
    ----------
    block, labels, inverse_temperature
        As in `temperature_statistics`.

    Returns
    -------
    array of shape (n_rows, 3)
        Probability under softmax(b·x), under softmax(x), and under the uniform distribution over the
        possible classes.
    """
    gaps, class_axis, label_gaps = _gaps_by_class_axis(block, labels)
    n_possible: Any = block.shape[1]
    if gaps.min() == -np.inf:
        n_possible = (gaps > -np.inf).sum(axis=class_axis)
    plain_p = np.exp(label_gaps) / _exp_in_buffer(gaps).sum(axis=class_axis)
    exponents = gaps
    exponents *= exponents.dtype.type(inverse_temperature)
    label_terms = np.exp(inverse_temperature * label_gaps)
    tempered_p = label_terms / _exp_in_buffer(exponents).sum(axis=class_axis)
    uniform_p = np.where(label_gaps > -np.inf, 1.0 / n_possible, 0.0)
    return np.stack([tempered_p, plain_p, uniform_p], axis=1)


def inspect_logits(block: Array) -> tuple[int | None, bool]:
    """Find the first invalid row of a block, and whether a logit may stand for a mask.

    Returns
    -------
    invalid_row : int or None
        First row with NaN or +inf, or with every class masked.

    may_hold_masks : bool
        Whether a finite logit is so low that it may stand for a mask (`formulas.logits`).
    """
    # The bits of float16 are inspected, because NumPy's float16 arithmetic is sixty times slower.
    float16_bits = block.view(np.uint16) if block.dtype == np.float16 else None
    may_be_invalid = float16_bits is None or bool(
        ((float16_bits & _FLOAT16_EXPONENT_BITS) == _FLOAT16_EXPONENT_BITS).any()
    )
    if may_be_invalid:
        is_valid = np.isfinite(block.max(axis=1))
        if not is_valid.all():
            return int(is_valid.argmin()), False
    if float16_bits is not None:
        # The bit patterns of negative floats increase with their absolute value.
        may_be_mask = (float16_bits >= _BITS_OF_LARGEST_MASK) & (
            float16_bits < _BITS_OF_MINUS_INFINITY
        )
        return None, bool(may_be_mask.any())
    if block.min(initial=0.0) > LARGEST_FINITE_MASK:
        return None, False
    may_be_mask = (block <= LARGEST_FINITE_MASK) & (block > -np.inf)
    return None, bool(may_be_mask.any())


def _multiply_in_place(terms: Array, factors: Array) -> Array:
    """Multiply `terms` by `factors` in place, and return `terms`."""
    with np.errstate(invalid="ignore"):
        np.multiply(terms, factors, out=terms)
    return terms
