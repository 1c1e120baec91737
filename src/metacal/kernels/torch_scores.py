# mypy: allow-untyped-calls
"""Ranking scores, predictions and acceptance of rows on a device.

As in `torch.py`, each function runs as one fused kernel if Triton is available, and otherwise in
plain torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from metacal.formulas import rowwise
from metacal.formulas.logits import LARGEST_FINITE_MASK
from metacal.formulas.torch import TORCH
from metacal.kernels import triton_acceptance
from metacal.kernels import triton_scores as fused
from metacal.kernels.grid import Grid
from metacal.kernels.torch_chunks import iterate_chunks, predict_chunk

#: Scores that a single kernel in Triton computes.
FUSED_SCORES = (
    rowwise.entropy,
    rowwise.one_minus_max_probability,
    rowwise.negative_margin,
    rowwise.free_energy,
)
#: Acceptance code of an accepted row.
ACCEPTED = 1
#: Acceptance code of a row that is invalid, or that has to be searched for finite masks.
MISSING_SCORE = 2
_LOWEST_FLOAT = -float(np.finfo(np.float64).max)


def predict_classes(block: Tensor) -> Tensor:
    """Return ŷ = argmax x of each row, the lowest index for ties."""
    predictions = fused.score(block, "predicted", torch.int64)
    if predictions is not None:
        return predictions
    return torch.cat([predict_chunk(block[rows]) for rows in iterate_chunks(block)])


def score_by_formula(
    block: Tensor,
    formula: Callable[..., Tensor],
    *,
    predictions_out: Tensor | None = None,
    is_unvalidated: bool = False,
) -> Tensor:
    """Compute a score by its formula in float64.

    Parameters
    ----------
    block : tensor of shape (n_rows, n_classes)
        Logits.

    formula : callable
        Formula of the score.

    predictions_out : tensor of int64 of shape (n_rows,), default=None
        Buffer for the predictions.

    is_unvalidated : bool, default=False
        Whether the block has not been validated. Rows that may contain a finite mask then have the score NaN.

    Returns
    -------
    tensor of float64 of shape (n_rows,)
        NaN for rows whose largest logit is not finite.
    """
    if formula in FUSED_SCORES:
        largest_mask = LARGEST_FINITE_MASK if is_unvalidated else None
        fused_scores = fused.score(
            block, formula.__name__, torch.float64, predictions_out, largest_mask
        )
        if fused_scores is not None:
            return fused_scores
    scores = []
    for rows in iterate_chunks(block):
        chunk = block[rows]
        chunk_scores = formula(TORCH, chunk.to(torch.float64))[:, 0]
        is_valid = torch.isfinite(chunk.amax(dim=1))
        if is_unvalidated:
            may_be_mask = (chunk <= LARGEST_FINITE_MASK) & (chunk > -math.inf)
            is_valid &= ~may_be_mask.any(dim=1)
        scores.append(torch.where(is_valid, chunk_scores, math.nan))
    if predictions_out is not None:
        predictions_out.copy_(predict_classes(block))
    return torch.cat(scores)


def acceptance_codes(
    block: Tensor,
    formula: Callable[..., Tensor],
    threshold: float,
    *,
    is_unvalidated: bool = False,
) -> Tensor:
    """Compare the score of each row with a threshold, and mark the rows without a score.

    Parameters
    ----------
    block, formula, is_unvalidated
        As in `score_by_formula`.

    threshold : float
        Largest score of an accepted row, between two points of the grid of scores.

    Returns
    -------
    tensor of uint8 of shape (n_rows,)
        `ACCEPTED`, 0 for a rejected row, or `MISSING_SCORE` for a row without a score.
    """
    if formula in FUSED_SCORES:
        largest_mask = LARGEST_FINITE_MASK if is_unvalidated else None
        codes = triton_acceptance.acceptance_codes(block, formula.__name__, threshold, largest_mask)
        if codes is not None:
            return codes
    scores = score_by_formula(block, formula, is_unvalidated=is_unvalidated)
    return compare_with_threshold(scores, threshold)


acceptance_codes.reads_tensors = True  # type: ignore[attr-defined]


def compare_with_threshold(scores: Tensor, threshold: float) -> Tensor:
    """Return the acceptance codes of rows with the given scores."""
    missing_score_codes = MISSING_SCORE * torch.isnan(scores).to(torch.uint8)
    return missing_score_codes + (scores <= threshold).to(torch.uint8)


def round_to_grid(values: Tensor, grid: Grid) -> Tensor:
    """Round each value to the nearest grid point, as `Grid.round` does."""
    just_below_half_step = (1 << (grid.n_dropped_bits - 1)) - 1
    bit_patterns = values.view(torch.int64)
    is_negative = bit_patterns < 0
    shifted_patterns = bit_patterns + just_below_half_step + is_negative
    result = (shifted_patterns & (-1 << grid.n_dropped_bits)).view(torch.float64)
    result = result.clamp(min=_LOWEST_FLOAT, max=-_LOWEST_FLOAT)
    n_steps = values / grid.step
    nearest = n_steps.round()
    is_rounded_up_tie = nearest - n_steps == 0.5
    small_result = (nearest - is_rounded_up_tie.to(nearest.dtype)) * grid.step
    result = torch.where(values.abs() < grid.even_below, small_result, result)
    return torch.where(torch.isfinite(values), result, values)


def score_and_correctness(
    block: Tensor, labels: Tensor, *, score: Callable[..., Tensor], is_unvalidated: bool = False
) -> Tensor:
    """Compute the unrounded score and the correctness of each row in one pass.

    Parameters
    ----------
    block : tensor of shape (n_rows, n_classes)
        Logits.

    labels : tensor of int64 of shape (n_rows,)
        True classes.

    score : callable
        Kernel of the score.

    is_unvalidated : bool, default=False
        Whether the block has not been validated.

    Returns
    -------
    tensor of float64 of shape (n_rows, 2)
    """
    predictions = torch.empty(len(block), dtype=torch.int64, device=block.device)
    scores = score(block, predictions_out=predictions, is_unvalidated=is_unvalidated)
    return torch.stack([scores, (predictions == labels).to(torch.float64)], dim=1)


score_and_correctness.reads_tensors = True  # type: ignore[attr-defined]
