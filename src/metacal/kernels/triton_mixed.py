# mypy: allow-untyped-calls, allow-untyped-decorators, allow-untyped-defs
# mypy: allow-incomplete-defs, allow-any-generics
"""Fused Triton kernels of the loss and the row statistics of tempered logits.

As in `triton.py`, the functions return None or False if Triton cannot run. The functions of the
same names in `torch.py` define the results.
"""

from __future__ import annotations

import torch
from torch import Tensor

from metacal.kernels.triton import (
    MAX_REGISTER_CLASSES,
    _join_floats,
    _Layout,
    _load_tile,
    _locate_rows,
    _split_float,
    jit,
    tl,
)


def underflow_gap(block: Tensor, inverse_temperature: float) -> float:
    """Return the gap d below which e^{bd} underflows to 0, in the precision of the block."""
    underflow_exponent = -800.0 if block.dtype == torch.float64 else -100.0
    return underflow_exponent / inverse_temperature


def tempered_loss_and_derivatives(
    block: Tensor, labels: Tensor, weights: Tensor | None, inverse_temperature: float
) -> Tensor | None:
    """Sum the negative log-likelihood of softmax(b·x) and its first three derivatives in b."""
    layout = _Layout(block, max_register_classes=MAX_REGISTER_CLASSES)
    program_sums = torch.empty((4, layout.n_programs), dtype=torch.float64, device=block.device)
    was_launched = _launch_row_statistics_kernel(
        layout,
        "loss_sums",
        block,
        labels=labels,
        weights=weights,
        out=program_sums,
        b=inverse_temperature,
    )
    return program_sums.sum(dim=1) if was_launched else None


def temperature_statistics(
    block: Tensor, labels: Tensor, inverse_temperature: float
) -> Tensor | None:
    """Compute the statistics of `numpy.temperature_statistics`, shape (n_rows, 8)."""
    # The columns are stored contiguously for later passes.
    columns = torch.empty((8, len(block)), dtype=torch.float64, device=block.device)
    layout = _Layout(block, max_register_classes=MAX_REGISTER_CLASSES, has_many_sums=True)
    was_launched = _launch_row_statistics_kernel(
        layout,
        "temperature_statistics",
        block,
        labels=labels,
        weights=None,
        out=columns,
        b=inverse_temperature,
    )
    return columns.T if was_launched else None


def _launch_row_statistics_kernel(
    layout: _Layout,
    kind: str,
    block: Tensor,
    *,
    labels: Tensor,
    weights: Tensor | None,
    out: Tensor,
    b: float,
) -> bool:
    """Launch the kernel of row statistics, or return False if Triton cannot run.

    Parameters
    ----------
    layout : _Layout
        Division of the block.

    kind : {"loss_sums", "temperature_statistics"}
        Statistics to compute: the sums of `tempered_loss_and_derivatives`, or the columns of
        `temperature_statistics`.

    block : tensor of shape (n_rows, n_classes)
        Logits.

    labels : tensor of shape (n_rows,)
        True classes.

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
    # Triton does not accept None, so another tensor is passed if there are no weights.
    unused_tensor = out
    b_high, b_low = _split_float(b)
    return layout.launch(
        _row_statistics_kernel,
        block,
        labels=labels.contiguous(),
        weights=unused_tensor if weights is None else weights.contiguous(),
        out=out,
        b_high=b_high,
        b_low=b_low,
        underflow_gap=underflow_gap(block, b),
        KIND=kind,
        HAS_WEIGHTS=weights is not None,
    )


@jit
def _classify_logits(x, largest):
    """Return masks of largest logits and possible classes."""
    is_largest = tl.where(x == largest[:, None], 1, 0)
    is_possible = tl.where(x > float("-inf"), 1, 0)
    return is_largest, is_possible


@jit
def _weighted_gap_powers(x, largest, b, underflow_gap, KIND: tl.constexpr):
    """Return w = e^{bd}, w·d, …, w·d⁴, with the gap d = x - largest."""
    gap = x - largest[:, None]
    d = tl.maximum(gap, underflow_gap)
    w = tl.exp(d * b)
    # The term of the largest logit, which is 1, is added at the end.
    if KIND != "loss_sums":
        w = tl.where(gap == 0.0, 0.0, w)
    wd1 = w * d
    wd2 = wd1 * d
    wd3 = wd2 * d
    wd4 = wd3 * d
    return w, wd1, wd2, wd3, wd4


@jit
def _row_statistics_kernel(
    table,
    labels,
    weights,
    out,
    b_high,
    b_low,
    underflow_gap,
    stride_in_units,
    n_rows,
    classes_in_units,
    KIND: tl.constexpr,
    HAS_WEIGHTS: tl.constexpr,
    IS_DOUBLE: tl.constexpr,
    UNIT_ELEMENTS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    N_TILES: tl.constexpr,
):
    """Compute statistics of each row from sums over its classes."""
    WORK_TYPE: tl.constexpr = tl.float64 if IS_DOUBLE else tl.float32
    LARGEST_INT32: tl.constexpr = 2147483647
    rows, row_mask, row_addresses, columns, n_classes = _locate_rows(
        table, stride_in_units, n_rows, classes_in_units, UNIT_ELEMENTS, TILE_ROWS, TILE_COLUMNS
    )
    b_double = _join_floats(b_high, b_low)
    b = b_double.to(WORK_TYPE)
    x = _load_tile(row_addresses, row_mask, columns, n_classes, IS_DOUBLE)
    largest_per_column = x
    largest_index = tl.zeros([TILE_ROWS, TILE_COLUMNS], tl.int32) + columns[None, :]
    for tile_start in range(TILE_COLUMNS, N_TILES * TILE_COLUMNS, TILE_COLUMNS):
        x = _load_tile(row_addresses, row_mask, tile_start + columns, n_classes, IS_DOUBLE)
        largest_index = tl.where(
            x > largest_per_column, (tile_start + columns)[None, :], largest_index
        )
        largest_per_column = tl.maximum(largest_per_column, x)
    largest = tl.max(largest_per_column, axis=1)
    prediction = tl.min(
        tl.where(largest_per_column == largest[:, None], largest_index, LARGEST_INT32), axis=1
    )
    if N_TILES > 1:
        x = _load_tile(row_addresses, row_mask, columns, n_classes, IS_DOUBLE)
    is_largest, is_possible = _classify_logits(x, largest)
    # Summing at once frees the registers of the tile.
    if N_TILES == 1:
        n_largest = tl.sum(is_largest, axis=1)
        n_possible = tl.sum(is_possible, axis=1)
    sum0_per_column, sum1_per_column, sum2_per_column, sum3_per_column, sum4_per_column = (
        _weighted_gap_powers(x, largest, b, underflow_gap, KIND)
    )
    if N_TILES > 1:
        for tile_start in range(TILE_COLUMNS, N_TILES * TILE_COLUMNS, TILE_COLUMNS):
            x = _load_tile(row_addresses, row_mask, tile_start + columns, n_classes, IS_DOUBLE)
            tile_is_largest, tile_is_possible = _classify_logits(x, largest)
            is_largest += tile_is_largest
            is_possible += tile_is_possible
            w, wd1, wd2, wd3, wd4 = _weighted_gap_powers(x, largest, b, underflow_gap, KIND)
            sum0_per_column += w
            sum1_per_column += wd1
            sum2_per_column += wd2
            sum3_per_column += wd3
            sum4_per_column += wd4
        n_largest = tl.sum(is_largest, axis=1)
        n_possible = tl.sum(is_possible, axis=1)
    total = tl.sum(sum0_per_column, axis=1).to(tl.float64)
    if KIND != "loss_sums":
        others_sum = total + (n_largest - 1).to(tl.float64)
        total = 1.0 + others_sum
    label = tl.load(labels + rows, mask=row_mask, other=0)
    label_logit = tl.load(
        table + rows.to(tl.int64) * (stride_in_units * UNIT_ELEMENTS) + label,
        mask=row_mask,
        other=0.0,
    )
    label_gap = label_logit.to(tl.float64) - largest.to(tl.float64)
    mean_gap = tl.sum(sum1_per_column, axis=1).to(tl.float64) / total
    mean_gap2 = tl.sum(sum2_per_column, axis=1).to(tl.float64) / total
    mean_gap3 = tl.sum(sum3_per_column, axis=1).to(tl.float64) / total
    mean_gap4 = tl.sum(sum4_per_column, axis=1).to(tl.float64) / total
    squared_mean = mean_gap * mean_gap
    variance = mean_gap2 - squared_mean
    third_cumulant = mean_gap3 - mean_gap * (3.0 * mean_gap2 - 2.0 * squared_mean)
    if KIND == "loss_sums":
        weight = _load_weights(weights, rows, row_mask, HAS_WEIGHTS, TILE_ROWS)
        _store_program_sum(out, 0, weight * (tl.log(total) - b_double * label_gap), row_mask)
        _store_program_sum(out, 1, weight * (mean_gap - label_gap), row_mask)
        _store_program_sum(out, 2, weight * variance, row_mask)
        _store_program_sum(out, 3, weight * third_cumulant, row_mask)
    else:
        row_out = out + rows
        fourth_cumulant = (
            mean_gap4
            - 4.0 * mean_gap3 * mean_gap
            - 3.0 * mean_gap2 * mean_gap2
            + 6.0 * squared_mean * (2.0 * mean_gap2 - squared_mean)
        )
        is_correct = tl.where(prediction == label, 1.0, 0.0).to(tl.float64)
        tl.store(row_out, others_sum, mask=row_mask)
        tl.store(row_out + n_rows, mean_gap, mask=row_mask)
        tl.store(row_out + 2 * n_rows, variance, mask=row_mask)
        tl.store(row_out + 3 * n_rows, third_cumulant, mask=row_mask)
        tl.store(row_out + 4 * n_rows, fourth_cumulant, mask=row_mask)
        tl.store(row_out + 5 * n_rows, label_gap, mask=row_mask)
        tl.store(row_out + 6 * n_rows, n_possible.to(tl.float64), mask=row_mask)
        tl.store(row_out + 7 * n_rows, is_correct, mask=row_mask)


@jit
def _store_program_sum(program_sums, sum_index, values, row_mask):
    """Store the sum of the values of this program's rows."""
    address = program_sums + sum_index * tl.num_programs(0) + tl.program_id(0)
    tl.store(address, tl.sum(tl.where(row_mask, values, 0.0), axis=0))


@jit
def _load_weights(weights, rows, row_mask, HAS_WEIGHTS: tl.constexpr, N_ROWS: tl.constexpr):
    """Load the weights of rows, which are 1 if there are no weights."""
    # Triton compiles only one branch of an `if` of a constant.
    if HAS_WEIGHTS:
        row_weights = tl.load(weights + rows, mask=row_mask, other=0.0)
    else:
        row_weights = tl.full([N_ROWS], 1.0, tl.float64)
    return row_weights
