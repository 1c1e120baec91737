# mypy: allow-untyped-calls, allow-untyped-decorators, allow-untyped-defs
# mypy: allow-incomplete-defs, allow-any-generics
"""Fused kernel in Triton of the loss that `columns.py` computes from row statistics.

As in `triton.py`, the function returns None if Triton cannot run.
"""

from __future__ import annotations

import torch
from torch import Tensor

from metacal.kernels import triton as fused
from metacal.kernels.triton import _join_floats, _log1p, _split_float, jit, tl
from metacal.kernels.triton_mixed import _load_weights, _store_program_sum

#: Number of rows that one program adds up.
_ROWS_PER_PROGRAM = 1024


def mixture_loss_and_derivatives(
    columns: Tensor, weights: Tensor | None, b_of_statistics: float, b: float, uniform_weight: float
) -> Tensor | None:
    """Compute `columns.mixture_loss_and_derivatives` in one launch instead of thirty.

    Parameters
    ----------
    columns, weights, b_of_statistics, b, uniform_weight
        As in `kernels.columns.mixture_loss_and_derivatives`.

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
    unused_tensor = columns
    b_high, b_low = _split_float(b)
    step_high, step_low = _split_float(b - b_of_statistics)
    uniform_high, uniform_low = _split_float(uniform_weight)
    was_launched = fused.launch_kernel(
        _mixture_loss_kernel,
        n_programs,
        columns,
        weights=unused_tensor if weights is None else weights.contiguous(),
        program_sums=program_sums,
        b_high=b_high,
        b_low=b_low,
        step_high=step_high,
        step_low=step_low,
        uniform_high=uniform_high,
        uniform_low=uniform_low,
        n_rows=n_rows,
        HAS_WEIGHTS=weights is not None,
        HAS_STEP=b != b_of_statistics,
        PROGRAM_ROWS=_ROWS_PER_PROGRAM,
        num_warps=4,
    )
    return program_sums.sum(dim=1) if was_launched else None


@jit
def _mixture_loss_kernel(
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
    HAS_WEIGHTS: tl.constexpr,
    HAS_STEP: tl.constexpr,
    PROGRAM_ROWS: tl.constexpr,
):
    """Sum -log q with its gradient and curvature, as `columns.mixture_loss_and_derivatives` does."""
    rows = tl.program_id(0) * PROGRAM_ROWS + tl.arange(0, PROGRAM_ROWS)
    row_mask = rows < n_rows
    column_address = columns + rows
    b = _join_floats(b_high, b_low)
    uniform_weight = _join_floats(uniform_high, uniform_low)
    log_sum = _log1p(tl.load(column_address, mask=row_mask, other=1.0))
    mean_gap = tl.load(column_address + n_rows, mask=row_mask, other=0.0)
    variance = tl.load(column_address + 2 * n_rows, mask=row_mask, other=0.0)
    label_gap = tl.load(column_address + 5 * n_rows, mask=row_mask, other=0.0)
    uniform_p = 1.0 / tl.load(column_address + 6 * n_rows, mask=row_mask, other=1.0)
    if HAS_STEP:
        step = _join_floats(step_high, step_low)
        third_cumulant = tl.load(column_address + 3 * n_rows, mask=row_mask, other=0.0)
        fourth_cumulant = tl.load(column_address + 4 * n_rows, mask=row_mask, other=0.0)
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
    softmax_p = tl.exp(b * label_gap - log_sum)
    mixture_p = (1.0 - uniform_weight) * softmax_p + uniform_weight * uniform_p
    inverse_mixture_p = 1.0 / mixture_p
    log_p_slope = b * (label_gap - mean_gap)
    softmax_share = (1.0 - uniform_weight) * softmax_p * inverse_mixture_p
    loss_slope_in_uniform = (softmax_p - uniform_p) * inverse_mixture_p
    share_times_slope = softmax_share * log_p_slope
    row_weights = _load_weights(weights, rows, row_mask, HAS_WEIGHTS, PROGRAM_ROWS)
    loss_curvature_in_log_b = (
        (b * b) * softmax_share * variance
        - share_times_slope
        - (share_times_slope - softmax_share * share_times_slope) * log_p_slope
    )
    _store_program_sum(program_sums, 0, -row_weights * tl.log(mixture_p), row_mask)
    _store_program_sum(program_sums, 1, -row_weights * share_times_slope, row_mask)
    _store_program_sum(program_sums, 2, row_weights * loss_slope_in_uniform, row_mask)
    _store_program_sum(program_sums, 3, row_weights * loss_curvature_in_log_b, row_mask)
    _store_program_sum(
        program_sums,
        4,
        row_weights * softmax_p * uniform_p * log_p_slope * inverse_mixture_p * inverse_mixture_p,
        row_mask,
    )
    _store_program_sum(
        program_sums, 5, row_weights * loss_slope_in_uniform * loss_slope_in_uniform, row_mask
    )
