# mypy: allow-untyped-calls
"""Calibrated probabilities of rows on a device, and the decision on each row.

As in `torch.py`, each function runs as one fused kernel if Triton is available. The plain
implementation in torch, `_map_chunk`, is the definition.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from metacal.formulas.logits import LARGEST_FINITE_MASK
from metacal.formulas.probabilities import probability_limits
from metacal.kernels import triton_decisions as fused
from metacal.kernels.columns import Curve, RowMap, compute_curve_factors
from metacal.kernels.torch_chunks import iterate_chunks, work_type
from metacal.kernels.torch_scores import (
    ACCEPTED,
    FUSED_SCORES,
    MISSING_SCORE,
    compare_with_threshold,
    score_by_formula,
)
from metacal.kernels.triton_decisions import DecisionBuffers


def softmax(block: Tensor, inverse_temperature: float, out: Tensor) -> None:
    """Write softmax(b·x) of each row into `out`."""
    _write(block, RowMap(inverse_temperature), out, with_limits=False)


def mixture_softmax(
    block: Tensor, inverse_temperature: float, uniform_weight: float, out: Tensor
) -> None:
    """Write (1 - ε)·softmax(b·x) + ε/K of each row into `out`."""
    _write(block, RowMap(inverse_temperature, uniform_weight), out, with_limits=False)


def softmax_with_curve(
    block: Tensor, inverse_temperature: float, uniform_weight: float, curve: Curve, out: Tensor
) -> None:
    """Write (1 - ε)·softmax(b·x) + ε/K, with the largest probability mapped by a curve."""
    _write(block, RowMap(inverse_temperature, uniform_weight, curve), out, with_limits=False)


def write_probabilities(block: Tensor, row_map: RowMap, out: Tensor) -> None:
    """Write the final probabilities of a map into `out`, none of them 0 or 1.

    Parameters
    ----------
    block : tensor of shape (n_rows, n_classes)
        Valid logits.

    row_map : RowMap
        Map.

    out : tensor of shape (n_rows, n_classes)
        Buffer for the result, which may be the block itself.
    """
    _write(block, row_map, out, with_limits=True)


def write_probabilities_if_valid(block: Tensor, row_map: RowMap, out: Tensor) -> bool:
    """Validate logits and write their final probabilities in the same pass.

    Parameters
    ----------
    block, row_map, out
        As in `write_probabilities`, but `out` is not the block.

    Returns
    -------
    bool
        False if a row is invalid or may contain finite masks, or if the logits could not be
        validated in the same pass. The content of `out` is then undefined.
    """
    needs_inspection = torch.zeros(1, dtype=torch.int32, device=block.device)
    was_launched = fused.try_to_write_probabilities(
        block,
        row_map,
        out,
        largest_mask=LARGEST_FINITE_MASK,
        needs_inspection=needs_inspection,
    )
    return was_launched and int(needs_inspection) == 0


def decide_rows(
    block: Tensor,
    row_map: RowMap,
    formula: Callable[..., Tensor],
    threshold: float,
    out: Tensor,
    *,
    rejected_are_uniform: bool,
) -> DecisionBuffers:
    """Write final probabilities and decide on each row, in one pass if possible.

    Parameters
    ----------
    block, row_map, out
        As in `write_probabilities`.

    formula : callable
        Formula of the ranking score.

    threshold : float
        Largest score of an accepted row, between two points of the grid of scores.

    rejected_are_uniform : bool
        Whether rejected rows have the same probability in every class. Rows without a score always
        have.

    Returns
    -------
    DecisionBuffers
    """
    if formula in FUSED_SCORES:
        buffers = DecisionBuffers.allocate(block, out.dtype)
        if fused.try_to_write_decisions(
            block,
            row_map,
            out,
            buffers,
            score=formula.__name__,
            threshold=threshold,
            rejected_are_uniform=rejected_are_uniform,
        ):
            return buffers
    predictions = torch.empty(len(block), dtype=torch.int64, device=block.device)
    scores = score_by_formula(block, formula, predictions_out=predictions)
    codes = compare_with_threshold(scores, threshold)
    write_probabilities(block, row_map, out)
    has_no_score = codes == MISSING_SCORE
    equal_p = 1.0 / block.shape[1]
    confidence = out.gather(1, predictions[:, None])[:, 0].masked_fill_(has_no_score, equal_p)
    is_uniform_row = codes != ACCEPTED if rejected_are_uniform else has_no_score
    for rows in iterate_chunks(block):
        out[rows].masked_fill_(is_uniform_row[rows, None], equal_p)
    return DecisionBuffers(
        scores=scores, predictions=predictions, confidence=confidence, acceptance_codes=codes
    )


def _write(block: Tensor, row_map: RowMap, out: Tensor, *, with_limits: bool) -> None:
    """Write the probabilities of a map, with or without limits, into `out`."""
    if fused.try_to_write_probabilities(block, row_map, out, with_limits=with_limits):
        return
    for rows in iterate_chunks(block):
        out[rows] = _map_chunk(block[rows], row_map, with_limits=with_limits)


def _map_chunk(chunk: Tensor, row_map: RowMap, *, with_limits: bool) -> Tensor:
    """Compute the probabilities of a chunk of rows.

    Parameters
    ----------
    chunk : tensor of shape (n_rows, n_classes)
        Logits.

    row_map : RowMap
        Map.

    with_limits : bool
        Whether to keep the probabilities of possible classes away from 0 and 1.

    Returns
    -------
    tensor of shape (n_rows, n_classes)
        NaN in every possible class of a row with NaN, +inf, or every class masked.
    """
    is_possible = chunk != -math.inf
    n_possible = is_possible.sum(dim=1, keepdim=True)
    largest = chunk.amax(dim=1, keepdim=True)
    is_largest = chunk == largest
    dtype = work_type(chunk)
    other_exponentials = chunk.to(dtype, copy=True).sub_(largest.to(dtype))
    predictions = is_largest.to(torch.uint8).argmax(dim=1, keepdim=True)
    # The sum omits the predicted class to avoid cancellation in confident rows.
    other_exponentials.mul_(row_map.inverse_temperature).exp_().scatter_(1, predictions, 0.0)
    exp_sum_of_others = other_exponentials.sum(dim=1, keepdim=True, dtype=torch.float64)
    exp_sum_of_others = torch.where(torch.isfinite(largest), exp_sum_of_others, math.nan)
    factors = _row_factors(other_exponentials, exp_sum_of_others, n_possible, row_map)
    scale, shift, prediction_p = (factor.to(dtype) for factor in factors)
    p = other_exponentials.mul_(scale)
    if row_map.uniform_weight != 0.0:
        p.addcmul_(is_possible.to(dtype), shift)
    if row_map.curve is None:
        # Rounding must not tie the predicted class with a class whose logit is smaller.
        next_smaller_p = torch.nextafter(prediction_p, torch.zeros_like(prediction_p))
        p = torch.where(is_largest, prediction_p, torch.minimum(p, next_smaller_p))
    else:
        p.masked_fill_(~is_possible, 0.0)
    p.scatter_(1, predictions, prediction_p)
    return limit_chunk(p, is_possible, n_possible) if with_limits else p


def _row_factors(
    other_exponentials: Tensor, others_sum: Tensor, n_possible: Tensor, row_map: RowMap
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the factors that convert the exponentials of each row to probabilities.

    Parameters
    ----------
    other_exponentials : tensor of shape (n_rows, n_classes)
        e^{b·(x - max x)} of each class, but 0 for the predicted class.

    others_sum : tensor of shape (n_rows, 1)
        Sum of the exponentials.

    n_possible : tensor of shape (n_rows, 1)
        Number of possible classes.

    row_map : RowMap
        Map.

    Returns
    -------
    scale, shift, prediction_p : tensors of shape (n_rows, 1)
        The other classes become exponential·scale + shift, and the predicted class `prediction_p`.
    """
    uniform_weight = row_map.uniform_weight
    uniform_probability = 1.0 / n_possible.to(torch.float64)
    total = 1.0 + others_sum
    if row_map.curve is None:
        scale = (1.0 - uniform_weight) / total
        shift = uniform_weight * uniform_probability
        return scale, shift, scale + shift
    second_largest = other_exponentials.amax(dim=1, keepdim=True).to(torch.float64)
    scale, shift, prediction_p = compute_curve_factors(
        torch,
        others_sum / total,
        second_largest / total,
        uniform_probability,
        uniform_weight,
        row_map.curve.value,
    )
    return scale / total, shift, prediction_p


def limit_chunk(p: Tensor, is_possible: Tensor, n_possible: Tensor) -> Tensor:
    """Limit probabilities as `formulas.probabilities.limit_probabilities` does.

    Parameters
    ----------
    p : tensor of shape (n_rows, n_classes)
        Probabilities.

    is_possible : tensor of bool of shape (n_rows, n_classes)
        Whether each class is not masked. It is overwritten.

    n_possible : tensor of shape (n_rows, 1)
        Number of possible classes.

    Returns
    -------
    tensor of shape (n_rows, n_classes)
    """
    smallest, largest = probability_limits(torch.finfo(p.dtype))
    # The limits do not apply to masked classes or to the only possible class of a row.
    is_limited = is_possible.logical_and_(n_possible > 1)
    return torch.where(is_limited, p.clamp(smallest, largest), p)
