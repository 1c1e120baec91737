# mypy: allow-untyped-calls, allow-untyped-decorators, allow-untyped-defs
# mypy: allow-incomplete-defs, allow-any-generics
"""Fused kernels in Triton of the ranking scores and the predictions of rows.

Exponentials and sums of scores are in float64 for every type of table, as on the host, because a
decision must not depend on the device, and the grid of the scores (`metacal.kernels.grid`) is finer
than float32.

As in `triton.py`, the functions return None or False if Triton cannot run.
"""

from __future__ import annotations

import torch
from torch import Tensor

from metacal.kernels import triton as fused
from metacal.kernels.triton import (
    _Layout,
    _load_tile,
    _locate_rows,
    _log1p,
    jit,
    tl,
)


def score(
    block: Tensor,
    kind: str,
    dtype: torch.dtype,
    predictions_out: Tensor | None = None,
    largest_mask: float | None = None,
) -> Tensor | None:
    """Compute one score per row, or the prediction of each row.

    Parameters
    ----------
    block : tensor of shape (n_rows, n_classes)
        Logits.

    kind : str
        Name of the score, or "predicted".

    dtype : torch.dtype
        Type of the result.

    predictions_out : tensor of int64 of shape (n_rows,), default=None
        Buffer for the predictions.

    largest_mask : float, default=None
        Largest finite number that may stand for a masked class. If given, rows with a finite logit
        of at most this value, and invalid rows, have the score NaN.

    Returns
    -------
    tensor of shape (n_rows,) or None
        None if Triton cannot run.
    """
    scores = torch.empty(len(block), dtype=dtype, device=block.device)
    was_launched = _launch_score_kernel(block, kind, scores, predictions_out, largest_mask)
    return scores if was_launched else None


def _launch_score_kernel(
    block: Tensor,
    kind: str,
    out: Tensor,
    predictions_out: Tensor | None,
    largest_mask: float | None,
) -> bool:
    """Launch the kernel that computes ranking scores.

    Parameters
    ----------
    block, kind, predictions_out, largest_mask
        As in `score`.

    out : tensor of shape (n_rows,)
        Buffer for the scores.

    Returns
    -------
    bool
        False if Triton cannot run.
    """
    needs_sums = kind not in ("predicted", "negative_margin")
    layout = _Layout(block, max_register_classes=fused.MAX_REGISTER_CLASSES, uses_double=needs_sums)
    # Triton does not accept None, so placeholders are passed for missing arguments.
    unused_tensor = out
    unused_number = 0.0
    return layout.launch(
        _score_kernel,
        block,
        out=out,
        predictions=unused_tensor if predictions_out is None else predictions_out,
        largest_mask=unused_number if largest_mask is None else largest_mask,
        KIND=kind,
        STORES_PREDICTIONS=predictions_out is not None,
        FINDS_MASKS=largest_mask is not None,
        STAGES=fused.PIPELINE_STAGES,
    )


@jit
def _exp(u):
    """Compute e^u in float64 for -700 <= u <= 0, as a term of a sum of at least 1.

    1. e^u = 2^n·e^r, where n is u / log 2 rounded to an integer.
    2. Adding 1.5·2^52 rounds a number, and leaves its integer in the last bits. Shifted by 52 bits,
       it is added to the exponent of e^r.
    3. e^r is a polynomial through Chebyshev points, with an error of 2e-17. If n is large, r has an
       error of n·2e-17, but e^u is small.

    The function of the library is valid for all u and takes 1.5 times as long.
    """
    LOG2_OF_E: tl.constexpr = 1.4426950408889634
    LOG_OF_2: tl.constexpr = 0.6931471805599453
    ROUNDING_OFFSET: tl.constexpr = 6755399441055744.0
    offset_n = u * LOG2_OF_E + ROUNDING_OFFSET
    n = offset_n - ROUNDING_OFFSET
    r = u - n * LOG_OF_2
    polynomial = r * 2.5100424157005067e-08 + 2.7620138719733994e-07
    polynomial = polynomial * r + 2.7557268378684192e-06
    polynomial = polynomial * r + 2.480152119021773e-05
    polynomial = polynomial * r + 0.00019841269863105968
    polynomial = polynomial * r + 0.0013888888917281794
    polynomial = polynomial * r + 0.008333333333330051
    polynomial = polynomial * r + 0.04166666666662399
    polynomial = polynomial * r + 0.16666666666666669
    polynomial = polynomial * r + 0.5000000000000001
    polynomial = polynomial * r + 1.0
    exp_r = polynomial * r + 1.0
    n_in_exponent_bits = offset_n.to(tl.int64, bitcast=True) << 52
    exp_u_bits = exp_r.to(tl.int64, bitcast=True) + n_in_exponent_bits
    return exp_u_bits.to(tl.float64, bitcast=True)


@jit
def _mark_invalid(x, invalid, largest_mask, FINDS_MASKS: tl.constexpr):
    """Set `invalid` to 1 where x is NaN or, with FINDS_MASKS, may stand for a mask."""
    invalid = tl.where(x != x, 1, invalid)
    if FINDS_MASKS:
        invalid = tl.where((x <= largest_mask) & (x > float("-inf")), 1, invalid)
    return invalid


@jit
def _exp_relative_to_second(x, second_logit, columns, prediction):
    """Return e^u and u, where u is a logit minus the second largest logit of its row.

    e^u is 0 for the predicted class, and where it is negligible.
    """
    MIN_EXPONENT: tl.constexpr = -700.0
    is_prediction = columns[None, :] == prediction[:, None]
    # The comparison is in the precision of the table, because comparing float64 takes long.
    is_omitted = is_prediction | (x - second_logit < MIN_EXPONENT)
    u = tl.where(is_omitted, second_logit, x).to(tl.float64) - second_logit.to(tl.float64)
    return tl.where(is_omitted, 0.0, _exp(u)), u


@jit
def _score_kernel(
    table,
    out,
    predictions,
    largest_mask,
    stride_in_units,
    n_rows,
    classes_in_units,
    KIND: tl.constexpr,
    STORES_PREDICTIONS: tl.constexpr,
    FINDS_MASKS: tl.constexpr,
    IS_DOUBLE: tl.constexpr,
    UNIT_ELEMENTS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    N_TILES: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Compute one score per row.

    The first pass finds the largest and the second largest logit. The second pass sums e^u and u·e^u
    over the other classes, where u is the logit minus the second largest logit.
    """
    WORK_TYPE: tl.constexpr = tl.float64 if IS_DOUBLE else tl.float32
    LARGEST_INT32: tl.constexpr = 2147483647
    rows, row_mask, row_addresses, columns, n_classes = _locate_rows(
        table, stride_in_units, n_rows, classes_in_units, UNIT_ELEMENTS, TILE_ROWS, TILE_COLUMNS
    )
    x = _load_tile(row_addresses, row_mask, columns, n_classes, IS_DOUBLE)
    largest_per_column = x
    largest_index = tl.zeros([TILE_ROWS, TILE_COLUMNS], tl.int32) + columns[None, :]
    second_per_column = tl.full([TILE_ROWS, TILE_COLUMNS], float("-inf"), WORK_TYPE)
    invalid = _mark_invalid(
        x, tl.zeros([TILE_ROWS, TILE_COLUMNS], tl.int32), largest_mask, FINDS_MASKS
    )
    for tile_start in tl.range(
        TILE_COLUMNS, N_TILES * TILE_COLUMNS, TILE_COLUMNS, num_stages=STAGES
    ):
        x = _load_tile(row_addresses, row_mask, tile_start + columns, n_classes, IS_DOUBLE)
        invalid = _mark_invalid(x, invalid, largest_mask, FINDS_MASKS)
        is_larger = x > largest_per_column
        second_per_column = tl.where(
            is_larger, largest_per_column, tl.maximum(second_per_column, x)
        )
        largest_index = tl.where(is_larger, (tile_start + columns)[None, :], largest_index)
        largest_per_column = tl.where(is_larger, x, largest_per_column)
    has_invalid_logit = tl.max(invalid, axis=1)
    largest = tl.max(largest_per_column, axis=1)
    prediction = tl.min(
        tl.where(largest_per_column == largest[:, None], largest_index, LARGEST_INT32), axis=1
    )
    second = tl.max(
        tl.where(largest_index == prediction[:, None], second_per_column, largest_per_column),
        axis=1,
    )
    # A row with NaN, +inf, or every class masked has no score and an arbitrary prediction.
    is_valid = (has_invalid_logit == 0) & (largest < float("inf")) & (largest > float("-inf"))
    stored_prediction = tl.where(prediction < n_classes, prediction, 0).to(tl.int64)
    if KIND == "predicted":
        tl.store(out + rows, stored_prediction, mask=row_mask)
    else:
        if STORES_PREDICTIONS:
            tl.store(predictions + rows, stored_prediction, mask=row_mask)
        sum_of_exp_u = tl.zeros([TILE_ROWS], tl.float64)
        sum_of_u_exp_u = sum_of_exp_u
        if KIND != "negative_margin":
            reference = tl.where(second == float("-inf"), 0.0, second)[:, None]
            if N_TILES > 1:
                x = _load_tile(row_addresses, row_mask, columns, n_classes, IS_DOUBLE)
            exp_u_per_column, u = _exp_relative_to_second(x, reference, columns, prediction)
            u_exp_u_per_column = exp_u_per_column * u
            for tile_start in tl.range(
                TILE_COLUMNS, N_TILES * TILE_COLUMNS, TILE_COLUMNS, num_stages=STAGES
            ):
                x = _load_tile(row_addresses, row_mask, tile_start + columns, n_classes, IS_DOUBLE)
                exp_u, u = _exp_relative_to_second(x, reference, tile_start + columns, prediction)
                exp_u_per_column += exp_u
                u_exp_u_per_column += exp_u * u
            sum_of_exp_u = tl.sum(exp_u_per_column, axis=1)
            sum_of_u_exp_u = tl.sum(u_exp_u_per_column, axis=1)
        value = _score_from_sums(KIND, largest, second, sum_of_exp_u, sum_of_u_exp_u)
        tl.store(out + rows, tl.where(is_valid, value, float("nan")), mask=row_mask)


@jit
def _score_from_sums(KIND: tl.constexpr, largest, second, sum_of_exp_u, sum_of_u_exp_u):
    """Compute a score from the sums of e^u and u·e^u relative to the second largest logit."""
    LOWEST_FLOAT64: tl.constexpr = -1.7976931348623157e308
    MIN_GAP: tl.constexpr = -800.0
    is_only_class = second == float("-inf")
    gap = tl.where(is_only_class, float("-inf"), second.to(tl.float64) - largest.to(tl.float64))
    if KIND == "negative_margin":
        value = tl.maximum(gap, LOWEST_FLOAT64)
    else:
        # The sums are made relative to the largest logit.
        gap = tl.maximum(gap, MIN_GAP)
        scale = tl.where(is_only_class, 0.0, tl.exp(gap))
        others_moment = scale * (sum_of_u_exp_u + gap * sum_of_exp_u)
        others_sum = scale * sum_of_exp_u
        if KIND == "entropy":
            value = _log1p(others_sum) - others_moment / (1.0 + others_sum)
        elif KIND == "one_minus_max_probability":
            value = others_sum / (1.0 + others_sum)
        else:
            value = -(largest.to(tl.float64) + _log1p(others_sum))
    return value


@jit
def _acceptance_code(value, is_valid, threshold_bits):
    """Return 1 for a score of at most the threshold, 0 for a larger one, and 2 for an invalid row."""
    threshold = tl.full([], threshold_bits, tl.int64).to(tl.float64, bitcast=True)
    return tl.where(is_valid, tl.where(value <= threshold, 1, 0), 2).to(tl.uint8)
