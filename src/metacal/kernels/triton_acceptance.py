# mypy: allow-untyped-calls, allow-untyped-decorators, allow-untyped-defs
# mypy: allow-incomplete-defs, allow-any-generics
"""Fused kernel in Triton of the acceptance of rows, without storing their scores.

A score that decides on a row has to be computed in float64 (`triton_scores.py`), which takes longer
than reading the row. But most scores are far from the threshold. The kernel therefore computes an
approximate score of each row in float32, in one sweep. Only rows whose approximate score h is near
the threshold are computed in float64.

The error of h is below 2^-7·s + 2^-95 for rows of at most 2^20 classes, where s = h for the entropy
and for 1 - max p, and s = T/(1 + T) for the free energy. Here m is the largest logit, m_2 the second
largest, T the sum of e^d and M the sum of d·e^d over all classes but the predicted one, where
d = x - m <= 0. The sums are computed relative to a reference r (`triton_sweep.py`), which is m or at
most m_2.

1. Each term e^(x - r) has a relative error of at most 2^-15, from the rounding of an exponent of at
   most 150. Smaller terms are 0. If r = m, this changes T and M by less than 2^-95. If r <= m_2, the
   term of m_2 is at least 1, so the relative change of T is less than 2^-95.
2. A column of a tile adds at most 2^10 terms, and the columns are added in pairs. The relative error of
   a sum of terms of one sign, with the one of its terms, is therefore below 2^-13.
3. M is the sum of e^d·(x - r) plus (r - m)·T, so its error is at most 2^-13·(|M| + 2·|r - m|·T). If
   r <= m_2, then m - r = (m - m_2) + (m_2 - r). The first part is at most |M|/T, and the second one
   at most 30·log 2 < 21 (`MAX_POWER`). The error is at most 2^-13·(3·|M| + 42·T).
4. The entropy is log(1 + T) - M/(1 + T). Neither part is negative, and the first one is at least
   T/(1 + T). So its relative error is at most 2^-13·44 < 2^-7.5, and below the margin of 2^-7. The
   probability T/(1 + T) has the relative error of T. The free energy -(m + log(1 + T)) has at most
   the error of log(1 + T), which is 2^-13·T/(1 + T). The logarithm of the rounded sum 1 + T would not
   do: it loses all digits of T near 2^-53, where an entropy is 40 times as large.

A relative margin alone would not suffice for thresholds near 0, because of the terms that step 1
omits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from metacal.kernels import triton as fused
from metacal.kernels.triton import _Layout, _load_tile, _locate_rows, _log1p, float_bits, jit, tl
from metacal.kernels.triton_scores import (
    _acceptance_code,
    _exp_relative_to_second,
    _score_from_sums,
)
from metacal.kernels.triton_sweep import summarise_rows, summarise_tile

#: Largest number of columns of a tile of the rows that are computed in float64.
_EXACT_TILE_COLUMNS = 256


def acceptance_codes(
    block: Tensor, score: str, threshold: float, largest_mask: float | None = None
) -> Tensor | None:
    """Compare the score of each row with a threshold without storing the score.

    Parameters
    ----------
    block : tensor of shape (n_rows, n_classes)
        Logits.

    score : str
        Name of the score.

    threshold : float
        Largest score of an accepted row.

    largest_mask : float, default=None
        Largest finite number that may stand for a masked class. If given, rows with a finite logit
        of at most this value have no score.

    Returns
    -------
    tensor of uint8 of shape (n_rows,) or None
        Codes as in `kernels.torch.acceptance_codes`, None if Triton cannot run.
    """
    codes = torch.empty(len(block), dtype=torch.uint8, device=block.device)
    layout = _Layout(block, max_register_classes=fused.MAX_REGISTER_CLASSES)
    was_launched = layout.launch(
        _acceptance_kernel,
        block,
        codes=codes,
        # Triton does not accept None, so a placeholder is passed for a missing argument.
        largest_mask=0.0 if largest_mask is None else largest_mask,
        threshold_bits=float_bits(threshold),
        KIND=score,
        FINDS_MASKS=largest_mask is not None,
        EXACT_TILE_COLUMNS=min(layout.tile_columns, _EXACT_TILE_COLUMNS),
        STAGES=fused.ACCEPTANCE_STAGES,
    )
    return codes if was_launched else None


@jit
def _sum_in_double(
    row_addresses,
    row_mask,
    n_classes,
    second,
    prediction,
    IS_DOUBLE: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    PADDED_CLASSES: tl.constexpr,
):
    """Return Σ e^u and Σ u·e^u over the other classes in float64, as `_score_from_sums` needs them."""
    columns = tl.arange(0, TILE_COLUMNS)
    reference = tl.where(second == float("-inf"), 0.0, second)[:, None]
    exp_u_per_column = tl.zeros([TILE_ROWS, TILE_COLUMNS], tl.float64)
    u_exp_u_per_column = exp_u_per_column
    for tile_start in tl.range(0, PADDED_CLASSES, TILE_COLUMNS):
        x = _load_tile(row_addresses, row_mask, tile_start + columns, n_classes, IS_DOUBLE)
        exp_u, u = _exp_relative_to_second(x, reference, tile_start + columns, prediction)
        exp_u_per_column += exp_u
        u_exp_u_per_column += exp_u * u
    return tl.sum(exp_u_per_column, axis=1), tl.sum(u_exp_u_per_column, axis=1)


@jit
def _approximate_score(KIND: tl.constexpr, largest, others_sum, others_moment):
    """Compute a score from float32 sums, and the number to which its error is proportional."""
    other_p = others_sum / (1.0 + others_sum)
    if KIND == "one_minus_max_probability":
        score = other_p
        error_scale = score
    elif KIND == "entropy":
        score = _log1p(others_sum) - others_moment / (1.0 + others_sum)
        error_scale = score
    else:
        score = -(largest.to(tl.float64) + _log1p(others_sum))
        error_scale = other_p
    return score, error_scale


@jit
def _acceptance_kernel(
    table,
    codes,
    largest_mask,
    threshold_bits,
    stride_in_units,
    n_rows,
    classes_in_units,
    KIND: tl.constexpr,
    FINDS_MASKS: tl.constexpr,
    EXACT_TILE_COLUMNS: tl.constexpr,
    IS_DOUBLE: tl.constexpr,
    UNIT_ELEMENTS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    N_TILES: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Compare the score of each row with the threshold."""
    LOG2_OF_E: tl.constexpr = 1.4426950408889634
    LOG_OF_2: tl.constexpr = 0.6931471805599453
    # This margin times `error_scale` is larger than the error of the approximate score, see the
    # docstring of the module.
    MARGIN: tl.constexpr = 0.0078125
    ROUNDING_MARGIN: tl.constexpr = 9.1e-13
    SMALLEST_MARGIN: tl.constexpr = 8e-28
    rows, row_mask, row_addresses, columns, n_classes = _locate_rows(
        table, stride_in_units, n_rows, classes_in_units, UNIT_ELEMENTS, TILE_ROWS, TILE_COLUMNS
    )
    b_log2 = tl.full([], LOG2_OF_E, tl.float32)
    if N_TILES == 1:
        x = _load_tile(row_addresses, row_mask, columns, n_classes, IS_DOUBLE)
        largest, prediction, second, others_sum, moment, _, lowest = summarise_tile(
            x, columns, b_log2, tl.float32, KIND == "entropy", False, FINDS_MASKS
        )
    else:
        largest, prediction, second, others_sum, moment, _, lowest = summarise_rows(
            row_addresses,
            row_mask,
            columns,
            n_classes,
            b_log2,
            tl.float32,
            KIND == "entropy",
            False,
            FINDS_MASKS,
            IS_DOUBLE,
            TILE_ROWS,
            TILE_COLUMNS,
            N_TILES,
            STAGES,
        )
    # A row with NaN, +inf, or every class masked has no score.
    is_valid = (others_sum == others_sum) & (largest < float("inf")) & (largest > float("-inf"))
    if FINDS_MASKS:
        is_valid &= ~(lowest <= largest_mask)
    threshold = tl.full([], threshold_bits, tl.int64).to(tl.float64, bitcast=True)
    if KIND == "negative_margin":
        no_sum = tl.zeros([TILE_ROWS], tl.float64)
        score = _score_from_sums(KIND, largest, second, no_sum, no_sum)
    else:
        score, scale = _approximate_score(
            KIND, largest, others_sum.to(tl.float64), moment.to(tl.float64) * LOG_OF_2
        )
        margin = MARGIN * scale + ROUNDING_MARGIN * tl.abs(score) + SMALLEST_MARGIN
        needs_exact_score = row_mask & is_valid & (tl.abs(score - threshold) <= margin)
        if tl.max(tl.where(needs_exact_score, 1, 0), axis=0) > 0:
            sum_of_exp_u, sum_of_u_exp_u = _sum_in_double(
                row_addresses,
                row_mask,
                n_classes,
                second,
                prediction,
                IS_DOUBLE,
                TILE_ROWS,
                EXACT_TILE_COLUMNS,
                N_TILES * TILE_COLUMNS,
            )
            exact_score = _score_from_sums(KIND, largest, second, sum_of_exp_u, sum_of_u_exp_u)
            score = tl.where(needs_exact_score, exact_score, score)
    tl.store(codes + rows, _acceptance_code(score, is_valid, threshold_bits), mask=row_mask)
