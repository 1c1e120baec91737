# mypy: allow-untyped-calls, allow-untyped-decorators, allow-untyped-defs
# mypy: allow-incomplete-defs, allow-any-generics
"""Fused kernels in Triton of the softmax of tempered logits, its loss, and its variants.

As in `triton.py`, the functions return None or False if Triton cannot run. The functions of the
same names in `torch.py` define the results.
"""

from __future__ import annotations

import torch
from torch import Tensor

from metacal.kernels import triton as fused
from metacal.kernels.triton import (
    MAX_REGISTER_CLASSES,
    MAX_REGISTER_CLASSES_SOFTMAX,
    _join_floats,
    _Layout,
    _load_tile,
    _locate_rows,
    _log1p,
    _split_float,
    jit,
    tl,
)

#: Number of rows that one program of the kernel `_sums_kernel` adds up.
_ROWS_PER_PROGRAM = 1024


def zero_gap(block: Tensor, inverse_temperature: float) -> float:
    """Return the gap d below which e^{bd} underflows to 0, in the precision of the block."""
    zero_exponent = -800.0 if block.dtype == torch.float64 else -100.0
    return zero_exponent / inverse_temperature


def tempered_loss(
    block: Tensor, labels: Tensor, weights: Tensor | None, inverse_temperature: float
) -> Tensor | None:
    """Sum the negative log-likelihood and its first three derivatives in b over rows."""
    layout = _Layout(block, MAX_REGISTER_CLASSES)
    program_sums = torch.empty((4, layout.n_programs), dtype=torch.float64, device=block.device)
    was_launched = _launch_rows_kernel(
        layout, "losses", block, labels, weights, program_sums, inverse_temperature
    )
    return program_sums.sum(dim=1) if was_launched else None


def temperature_statistics(
    block: Tensor, labels: Tensor, inverse_temperature: float
) -> Tensor | None:
    """Compute the statistics of `numpy.temperature_statistics`, shape (n_rows, 8)."""
    out = torch.empty((len(block), 8), dtype=torch.float64, device=block.device)
    layout = _Layout(block, MAX_REGISTER_CLASSES, has_many_sums=True)
    was_launched = _launch_rows_kernel(
        layout, "columns", block, labels, None, out, inverse_temperature
    )
    return out if was_launched else None


def other_class_statistics(block: Tensor, inverse_temperature: float) -> Tensor | None:
    """Compute the columns of softmax(b·x) that `kernels.columns.curve_adjustment` needs, shape (n_rows, 4).

    Returns
    -------
    tensor of shape (n_rows, 4) or None
        Sum and largest of the probabilities of the other classes, number of possible classes, and
        prediction. None if Triton cannot run.
    """
    out = torch.empty((len(block), 4), dtype=torch.float64, device=block.device)
    layout = _Layout(block, MAX_REGISTER_CLASSES)
    was_launched = _launch_rows_kernel(layout, "others", block, out, None, out, inverse_temperature)
    return out if was_launched else None


def _launch_rows_kernel(
    layout: _Layout,
    kind: str,
    block: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    out: Tensor,
    b: float,
) -> bool:
    """Start the kernel that computes statistics of rows; return False if Triton cannot run.

    Parameters
    ----------
    layout : _Layout
        Division of the block.

    kind : {"losses", "columns", "others"}
        Statistics to compute: sums of `tempered_loss`, columns of `temperature_statistics`, or
        columns of `other_class_statistics`.

    block : tensor of shape (n_rows, n_classes)
        Logits.

    labels : tensor of shape (n_rows,)
        True classes. Not used for "others".

    weights : tensor of shape (n_rows,) or None
        Row weights.

    out : tensor
        Buffer for the result.

    b : float
        Inverse temperature.

    Returns
    -------
    bool
    """
    # Triton needs some tensor in place of missing weights.
    row_weights = labels if weights is None else weights
    return layout.launch(
        _rows_kernel,
        block,
        labels.contiguous(),
        row_weights.contiguous(),
        out,
        *_split_float(b),
        zero_gap(block, b),
        KIND=kind,
        WEIGHTED=weights is not None,
    )


def softmax(block: Tensor, inverse_temperature: float, out: Tensor) -> bool:
    """Write softmax(b·x) of each row into `out`; return False if Triton cannot run."""
    layout = _Layout(block, MAX_REGISTER_CLASSES_SOFTMAX)
    return layout.launch(
        _softmax_kernel, block, out, out, out, *_split_float(inverse_temperature), ADJUSTS=False
    )


def softmax_with_adjustment(
    block: Tensor, inverse_temperature: float, adjustment: Tensor, predictions: Tensor, out: Tensor
) -> bool:
    """Write scale·softmax(b·x) + shift, with a given probability of the predicted class.

    Parameters
    ----------
    block : tensor of shape (n_rows, n_classes)
        Logits.

    inverse_temperature : float
        Inverse temperature b.

    adjustment : tensor of shape (3, n_rows)
        Scale, shift, and probability of the predicted class.

    predictions : tensor of int64 of shape (n_rows,)
        Predicted classes.

    out : tensor of shape (n_rows, n_classes)
        Buffer for the result.

    Returns
    -------
    bool
        False if Triton cannot run.
    """
    layout = _Layout(block, MAX_REGISTER_CLASSES_SOFTMAX)
    return layout.launch(
        _softmax_kernel,
        block,
        out,
        adjustment.contiguous(),
        predictions.contiguous(),
        *_split_float(inverse_temperature),
        ADJUSTS=True,
    )


def mixture_loss_sums(
    columns: Tensor, weights: Tensor | None, expansion_b: float, b: float, uniform: float
) -> Tensor | None:
    """Compute `columns.mixture_loss_sums` in one launch instead of thirty.

    Parameters
    ----------
    columns, weights, expansion_b, b, uniform
        As in `kernels.columns.mixture_loss_sums`.

    Returns
    -------
    tensor of shape (6,) or None
        None if Triton cannot run.
    """
    if not fused.can_fuse(columns):
        return None
    columns = columns.contiguous()
    n_rows = columns.shape[1]
    n_programs = -(-n_rows // _ROWS_PER_PROGRAM)
    program_sums = torch.empty((6, n_programs), dtype=torch.float64, device=columns.device)
    was_launched = fused.launch_kernel(
        _sums_kernel,
        n_programs,
        columns,
        columns if weights is None else weights.contiguous(),
        program_sums,
        *_split_float(b),
        *_split_float(b - expansion_b),
        *_split_float(uniform),
        n_rows,
        WEIGHTED=weights is not None,
        EXPANDS=b != expansion_b,
        ROWS=_ROWS_PER_PROGRAM,
        num_warps=4,
    )
    return program_sums.sum(dim=1) if was_launched else None


@jit
def _classify_logits(x, largest):
    """Return masks of largest logits and possible classes, and the gaps of the other logits."""
    gap = x - largest[:, None]
    is_largest = tl.where(gap == 0.0, 1, 0)
    is_possible = tl.where(x > float("-inf"), 1, 0)
    other_gap = tl.where(gap < 0.0, gap, float("-inf"))
    return is_largest, is_possible, other_gap


@jit
def _reduce_over_classes(is_largest, is_possible, other_gap):
    """Return the numbers of largest logits and possible classes, and the second largest gap."""
    n_largest = tl.sum(is_largest, axis=1)
    n_possible = tl.sum(is_possible, axis=1)
    second_gap = tl.max(other_gap, axis=1)
    return n_largest, n_possible, second_gap


@jit
def _moments(x, largest, b, zero_gap, KIND: tl.constexpr):
    """Return w = e^{bd}, w·d, …, w·d⁴, with the gap d = x - largest."""
    gap = x - largest[:, None]
    d = tl.maximum(gap, zero_gap)
    w = tl.exp(d * b)
    # The term of the largest logit, which is 1, is added at the end.
    if KIND != "losses":
        w = tl.where(gap == 0.0, 0.0, w)
    w1 = w * d
    w2 = w1 * d
    w3 = w2 * d
    return w, w1, w2, w3, w3 * d


@jit
def _rows_kernel(
    table,
    labels,
    weights,
    out,
    b_high,
    b_low,
    zero_gap,
    stride_units,
    n_rows,
    class_units,
    KIND: tl.constexpr,
    WEIGHTED: tl.constexpr,
    IS_DOUBLE: tl.constexpr,
    UNIT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILES: tl.constexpr,
):
    """Compute statistics of each row from sums over its classes."""
    WORK_TYPE: tl.constexpr = tl.float64 if IS_DOUBLE else tl.float32
    rows, is_row, row_start, columns, n_classes = _locate_rows(
        table, stride_units, n_rows, class_units, UNIT, ROWS, COLUMNS
    )
    b_double = _join_floats(b_high, b_low)
    b = b_double.to(WORK_TYPE)
    x = _load_tile(row_start, is_row, columns, n_classes, IS_DOUBLE)
    largest_per_column = x
    largest_index = tl.zeros([ROWS, COLUMNS], tl.int32) + columns[None, :]
    for tile_start in range(COLUMNS, TILES * COLUMNS, COLUMNS):
        x = _load_tile(row_start, is_row, tile_start + columns, n_classes, IS_DOUBLE)
        largest_index = tl.where(
            x > largest_per_column, (tile_start + columns)[None, :], largest_index
        )
        largest_per_column = tl.maximum(largest_per_column, x)
    largest = tl.max(largest_per_column, axis=1)
    prediction = tl.min(
        tl.where(largest_per_column == largest[:, None], largest_index, 2147483647), axis=1
    )
    if TILES > 1:
        x = _load_tile(row_start, is_row, columns, n_classes, IS_DOUBLE)
    is_largest, is_possible, other_gap = _classify_logits(x, largest)
    # Summing at once frees the registers of the tile.
    if TILES == 1:
        n_largest, n_possible, second_gap = _reduce_over_classes(is_largest, is_possible, other_gap)
    v0, v1, v2, v3, v4 = _moments(x, largest, b, zero_gap, KIND)
    if TILES > 1:
        for tile_start in range(COLUMNS, TILES * COLUMNS, COLUMNS):
            x = _load_tile(row_start, is_row, tile_start + columns, n_classes, IS_DOUBLE)
            tile_is_largest, tile_is_possible, tile_other_gap = _classify_logits(x, largest)
            is_largest += tile_is_largest
            is_possible += tile_is_possible
            other_gap = tl.maximum(other_gap, tile_other_gap)
            w0, w1, w2, w3, w4 = _moments(x, largest, b, zero_gap, KIND)
            v0 += w0
            v1 += w1
            v2 += w2
            v3 += w3
            v4 += w4
        n_largest, n_possible, second_gap = _reduce_over_classes(is_largest, is_possible, other_gap)
    total = tl.sum(v0, axis=1).to(tl.float64)
    if KIND != "losses":
        tail = total + (n_largest - 1).to(tl.float64)
        total = 1.0 + tail
    if KIND == "others":
        row_out = out + rows * 4
        largest_other_gap = tl.where(n_largest > 1, 0.0, second_gap.to(tl.float64))
        tl.store(row_out, tail / total, mask=is_row)
        tl.store(row_out + 1, tl.exp(largest_other_gap * b.to(tl.float64)) / total, mask=is_row)
        tl.store(row_out + 2, n_possible.to(tl.float64), mask=is_row)
        tl.store(row_out + 3, prediction.to(tl.float64), mask=is_row)
    else:
        label = tl.load(labels + rows, mask=is_row, other=0)
        label_logit = tl.load(
            table + rows.to(tl.int64) * (stride_units * UNIT) + label, mask=is_row, other=0.0
        )
        label_gap = label_logit.to(tl.float64) - largest.to(tl.float64)
        m1 = tl.sum(v1, axis=1).to(tl.float64) / total
        m2 = tl.sum(v2, axis=1).to(tl.float64) / total
        m3 = tl.sum(v3, axis=1).to(tl.float64) / total
        m4 = tl.sum(v4, axis=1).to(tl.float64) / total
        squared_mean = m1 * m1
        if KIND == "losses":
            weight = _load_weights(weights, rows, is_row, WEIGHTED, ROWS)
            _store_program_sum(out, 0, weight * (tl.log(total) - b_double * label_gap), is_row)
            _store_program_sum(out, 1, weight * (m1 - label_gap), is_row)
            _store_program_sum(out, 2, weight * (m2 - squared_mean), is_row)
            _store_program_sum(out, 3, weight * (m3 - m1 * (3.0 * m2 - 2.0 * squared_mean)), is_row)
        else:
            row_out = out + rows * 8
            tl.store(row_out, tail, mask=is_row)
            tl.store(row_out + 1, m1, mask=is_row)
            tl.store(row_out + 2, m2 - squared_mean, mask=is_row)
            tl.store(row_out + 3, m3 - m1 * (3.0 * m2 - 2.0 * squared_mean), mask=is_row)
            fourth_cumulant = (
                m4 - 4.0 * m3 * m1 - 3.0 * m2 * m2 + 6.0 * squared_mean * (2.0 * m2 - squared_mean)
            )
            tl.store(row_out + 4, fourth_cumulant, mask=is_row)
            tl.store(row_out + 5, label_gap, mask=is_row)
            tl.store(row_out + 6, n_possible.to(tl.float64), mask=is_row)
            is_correct = tl.where(prediction == label, 1.0, 0.0).to(tl.float64)
            tl.store(row_out + 7, is_correct, mask=is_row)


@jit
def _store_program_sum(program_sums, sum_index, values, is_row):
    """Store the sum of the values of this program's rows."""
    address = program_sums + sum_index * tl.num_programs(0) + tl.program_id(0)
    tl.store(address, tl.sum(tl.where(is_row, values, 0.0), axis=0))


@jit
def _load_weights(weights, rows, is_row, WEIGHTED: tl.constexpr, ROWS: tl.constexpr):
    """Load the weights of rows, which are 1 if there are no weights."""
    # Triton compiles only one branch of an `if` of a constant.
    if WEIGHTED:
        row_weights = tl.load(weights + rows, mask=is_row, other=0.0)
    else:
        row_weights = tl.full([ROWS], 1.0, tl.float64)
    return row_weights


@jit
def _softmax_kernel(
    table,
    out,
    adjustment,
    predictions,
    b_high,
    b_low,
    stride_units,
    n_rows,
    class_units,
    ADJUSTS: tl.constexpr,
    IS_DOUBLE: tl.constexpr,
    UNIT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILES: tl.constexpr,
):
    """Compute softmax(b·x) or, with ADJUSTS, the result of `softmax_with_adjustment`.

    Masked classes keep probability 0.
    """
    WORK_TYPE: tl.constexpr = tl.float64 if IS_DOUBLE else tl.float32
    rows, is_row, row_start, columns, n_classes = _locate_rows(
        table, stride_units, n_rows, class_units, UNIT, ROWS, COLUMNS
    )
    row_out = out + rows.to(tl.int64)[:, None] * n_classes
    b = _join_floats(b_high, b_low).to(WORK_TYPE)
    largest_per_column = tl.full([ROWS, COLUMNS], float("-inf"), WORK_TYPE)
    for tile_start in range(0, TILES * COLUMNS, COLUMNS):
        x = _load_tile(row_start, is_row, tile_start + columns, n_classes, IS_DOUBLE)
        largest_per_column = tl.maximum(largest_per_column, x)
    largest = tl.max(largest_per_column, axis=1)
    sum_per_column = tl.zeros([ROWS, COLUMNS], WORK_TYPE)
    for tile_start in range(0, TILES * COLUMNS, COLUMNS):
        x = _load_tile(row_start, is_row, tile_start + columns, n_classes, IS_DOUBLE)
        sum_per_column += tl.exp((x - largest[:, None]) * b)
    total = tl.sum(sum_per_column, axis=1)
    if ADJUSTS:
        scale = tl.load(adjustment + rows, mask=is_row, other=0.0).to(WORK_TYPE)[:, None]
        shift = tl.load(adjustment + n_rows + rows, mask=is_row, other=0.0).to(WORK_TYPE)[:, None]
        new_p = tl.load(adjustment + 2 * n_rows + rows, mask=is_row, other=0.0).to(WORK_TYPE)
        prediction_p = new_p[:, None]
        prediction = tl.load(predictions + rows, mask=is_row, other=0)[:, None]
    for tile_start in range(0, TILES * COLUMNS, COLUMNS):
        tile_columns = tile_start + columns
        x = _load_tile(row_start, is_row, tile_columns, n_classes, IS_DOUBLE)
        p = tl.exp((x - largest[:, None]) * b) / total[:, None]
        if ADJUSTS:
            p = tl.where(x == float("-inf"), 0.0, p * scale + shift)
            p = tl.where(tile_columns[None, :] == prediction, prediction_p, p)
        is_entry = is_row[:, None] & (tile_columns < n_classes)[None, :]
        tl.store(row_out + tile_columns[None, :], p, mask=is_entry)


@jit
def _sums_kernel(
    columns,
    weights,
    program_sums,
    b_high,
    b_low,
    step_high,
    step_low,
    uniform_high,
    uniform_low,
    n_rows,
    WEIGHTED: tl.constexpr,
    EXPANDS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Sum -log q with its gradient and curvature, as `columns.mixture_loss_sums` does."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = rows < n_rows
    column_address = columns + rows
    b = _join_floats(b_high, b_low)
    uniform = _join_floats(uniform_high, uniform_low)
    log_sum = _log1p(tl.load(column_address, mask=is_row, other=1.0))
    mean_gap = tl.load(column_address + n_rows, mask=is_row, other=0.0)
    variance = tl.load(column_address + 2 * n_rows, mask=is_row, other=0.0)
    label_gap = tl.load(column_address + 5 * n_rows, mask=is_row, other=0.0)
    u = 1.0 / tl.load(column_address + 6 * n_rows, mask=is_row, other=1.0)
    if EXPANDS:
        step = _join_floats(step_high, step_low)
        third_cumulant = tl.load(column_address + 3 * n_rows, mask=is_row, other=0.0)
        fourth_cumulant = tl.load(column_address + 4 * n_rows, mask=is_row, other=0.0)
        log_sum += step * (
            mean_gap
            + step
            * (0.5 * variance + step * (third_cumulant / 6.0 + (step / 24.0) * fourth_cumulant))
        )
        mean_gap += step * (
            variance + step * (0.5 * third_cumulant + (step / 6.0) * fourth_cumulant)
        )
        variance += step * (third_cumulant + (0.5 * step) * fourth_cumulant)
        log_sum = tl.maximum(log_sum, 0.0)
        variance = tl.maximum(variance, 0.0)
    p = tl.exp(b * label_gap - log_sum)
    q = (1.0 - uniform) * p + uniform * u
    inverse_q = 1.0 / q
    g = b * (label_gap - mean_gap)
    r = (1.0 - uniform) * p * inverse_q
    loss_e = (p - u) * inverse_q
    r_g = r * g
    row_weights = _load_weights(weights, rows, is_row, WEIGHTED, ROWS)
    loss_aa = (b * b) * r * variance - r_g - (r_g - r * r_g) * g
    _store_program_sum(program_sums, 0, -row_weights * tl.log(q), is_row)
    _store_program_sum(program_sums, 1, -row_weights * r_g, is_row)
    _store_program_sum(program_sums, 2, row_weights * loss_e, is_row)
    _store_program_sum(program_sums, 3, row_weights * loss_aa, is_row)
    _store_program_sum(program_sums, 4, row_weights * p * u * g * inverse_q * inverse_q, is_row)
    _store_program_sum(program_sums, 5, row_weights * loss_e * loss_e, is_row)
