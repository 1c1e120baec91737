# mypy: allow-untyped-calls, allow-untyped-decorators, allow-untyped-defs
# mypy: allow-incomplete-defs, allow-any-generics
"""Kernels for torch tensors on a device; the results stay on the device.

Each statistic has two implementations. The fused one (the modules `triton_*`) reads each row from
device memory once. It runs on CUDA if Triton is available, and returns None or False otherwise.
The plain one, in torch and in chunks of rows, is the definition, as `numpy.py` is on the host. The
parameters are described in `numpy.py`.

Scores and decisions are in `torch_scores.py`, probabilities in `torch_decisions.py`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metacal.formulas import Array, Codes, Flags
from metacal.formulas.logits import (
    LARGEST_FINITE_MASK,
    replace_finite_masks_formula,
    replace_zero_probabilities,
)
from metacal.formulas.torch import TORCH
from metacal.kernels import triton_acceptance
from metacal.kernels import triton_columns as fused_columns
from metacal.kernels import triton_mixed as fused_row_statistics
from metacal.kernels.columns import (
    GAP_VARIANCE,
    LABEL_GAP,
    MEAN_GAP,
    OTHERS_SUM,
    THIRD_CUMULANT,
    cumulants,
)
from metacal.kernels.columns import mixture_loss_and_derivatives as plain_mixture_loss
from metacal.kernels.torch_chunks import iterate_chunks, predict_chunk, work_type
from metacal.kernels.torch_decisions import decide_rows as decide_rows
from metacal.kernels.torch_decisions import limit_chunk
from metacal.kernels.torch_decisions import mixture_softmax as mixture_softmax
from metacal.kernels.torch_decisions import softmax as softmax
from metacal.kernels.torch_decisions import softmax_with_curve as softmax_with_curve
from metacal.kernels.torch_decisions import write_probabilities as write_probabilities
from metacal.kernels.torch_decisions import (
    write_probabilities_if_valid as write_probabilities_if_valid,
)
from metacal.kernels.torch_scores import ACCEPTED as ACCEPTED
from metacal.kernels.torch_scores import MISSING_SCORE as MISSING_SCORE
from metacal.kernels.torch_scores import acceptance_codes as acceptance_codes
from metacal.kernels.torch_scores import predict_classes as predict_classes
from metacal.kernels.torch_scores import round_to_grid as round_to_grid
from metacal.kernels.torch_scores import score_and_correctness as score_and_correctness
from metacal.kernels.torch_scores import score_by_formula as score_by_formula

_INTEGER_TYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def _gaps(block: Tensor, dtype: torch.dtype) -> Tensor:
    """Compute the gaps d = x - max x of each row in a new tensor."""
    gaps = block.to(dtype, copy=True)
    return gaps.sub_(gaps.amax(dim=1, keepdim=True))


def tempered_loss_and_derivatives(
    block: Tensor, labels: Tensor, weights: Tensor | None, inverse_temperature: float
) -> Tensor:
    """Sum the negative log-likelihood of softmax(b·x) and its first three derivatives in b."""
    fused_sums = fused_row_statistics.tempered_loss_and_derivatives(
        block, labels, weights, inverse_temperature
    )
    if fused_sums is not None:
        return fused_sums
    columns = temperature_statistics(block, labels, inverse_temperature).T
    loss = torch.log1p(columns[OTHERS_SUM]) - inverse_temperature * columns[LABEL_GAP]
    row_derivatives = torch.stack(
        [
            loss,
            columns[MEAN_GAP] - columns[LABEL_GAP],
            columns[GAP_VARIANCE],
            columns[THIRD_CUMULANT],
        ]
    )
    if weights is not None:
        row_derivatives = row_derivatives * weights
    return row_derivatives.sum(dim=1)


def temperature_statistics(block: Tensor, labels: Tensor, inverse_temperature: float) -> Tensor:
    """Compute the statistics of each row that determine its loss at nearby temperatures."""
    fused_statistics = fused_row_statistics.temperature_statistics(
        block, labels, inverse_temperature
    )
    if fused_statistics is not None:
        return fused_statistics
    chunks = []
    for rows in iterate_chunks(block):
        gaps = _gaps(block[rows], work_type(block))
        label_gaps = gaps.gather(1, labels[rows, None])[:, 0]
        n_possible = (gaps > -math.inf).sum(dim=1)
        is_largest = gaps == 0.0
        gaps.clamp_(min=fused_row_statistics.underflow_gap(block, inverse_temperature))
        terms = gaps.mul(inverse_temperature).exp_().masked_fill_(is_largest, 0.0)
        n_other_largest = is_largest.sum(dim=1) - 1
        others_sum = terms.sum(dim=1, dtype=torch.float64) + n_other_largest
        moments = []
        for _ in range(4):
            moment_sum = terms.mul_(gaps).sum(dim=1, dtype=torch.float64)
            moments.append(moment_sum / (1.0 + others_sum))
        is_correct = predict_chunk(block[rows]) == labels[rows]
        columns = (others_sum, *cumulants(*moments), label_gaps, n_possible, is_correct)
        chunks.append(torch.stack([column.to(torch.float64) for column in columns], dim=1))
    return torch.cat(chunks)


def mixture_loss_and_derivatives(
    columns: Tensor, weights: Tensor | None, b_of_statistics: float, b: float, uniform_weight: float
) -> Tensor:
    """Compute the loss of a mixture and its derivatives on a device.

    Parameters
    ----------
    columns, weights, b_of_statistics, b, uniform_weight
        As in `kernels.columns.mixture_loss_and_derivatives`.

    Returns
    -------
    tensor of shape (6,)
    """
    fused_sums = fused_columns.mixture_loss_and_derivatives(
        columns, weights, b_of_statistics, b, uniform_weight
    )
    if fused_sums is not None:
        return fused_sums
    return plain_mixture_loss(torch, columns, weights, b_of_statistics, b, uniform_weight)


def label_is_possible(block: Tensor, labels: Tensor) -> Tensor:
    """Return a mask of the rows whose true class is not masked."""
    return block.gather(1, labels[:, None])[:, 0] > -math.inf


def move_to_device_of(values: Any, table: Tensor) -> Tensor:
    """Convert an array or a tensor to a tensor on the device of a table."""
    if isinstance(values, Tensor):
        return values.detach().to(table.device)
    array = np.require(values, requirements=["C_CONTIGUOUS", "ALIGNED"])
    if not array.flags.writeable:
        array = array.copy()
    return torch.from_numpy(array).to(table.device)


def concatenate(parts: list[Tensor]) -> Tensor:
    """Concatenate tensors on their device."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def clip_probabilities(out: Tensor, block: Tensor, is_possible: Tensor | None = None) -> None:
    """Clip probabilities in place as `formulas.probabilities` does.

    `is_possible` is needed if the block has been overwritten.
    """
    for rows in iterate_chunks(block):
        is_possible_chunk = (
            block[rows] > -math.inf if is_possible is None else is_possible[rows].clone()
        )
        n_possible = is_possible_chunk.sum(dim=1, keepdim=True)
        out[rows] = limit_chunk(out[rows], is_possible_chunk, n_possible)


def copy_rows(table: Tensor, row_indices: Codes) -> Tensor:
    """Copy the rows with the given indices into a new tensor."""
    return table.index_select(0, torch.from_numpy(row_indices).to(table.device))


def fill_rows(table: Tensor, row_mask: Flags, value: float) -> None:
    """Set all entries of the rows that a mask selects to one value."""
    indices = torch.from_numpy(np.flatnonzero(row_mask)).to(table.device)
    table.index_fill_(0, indices, value)


def empty_probabilities(table: Tensor) -> Tensor:
    """Allocate a tensor for the probabilities of a table of logits."""
    return torch.empty(table.shape, dtype=work_type(table), device=table.device)


def overlaps_partially(table: Any, out: Tensor) -> bool:
    """Check whether two tables overlap in memory without being the same view."""
    if not isinstance(table, Tensor) or table.device != out.device:
        return False
    table_start, table_stop = _memory_range(table)
    out_start, out_stop = _memory_range(out)
    if table_stop <= out_start or out_stop <= table_start:
        return False
    has_same_layout = table.stride() == out.stride() and table.dtype == out.dtype
    return not (table_start == out_start and has_same_layout)


def _memory_range(table: Tensor) -> tuple[int, int]:
    """Return the first address of a tensor, and the address after its last entry."""
    last_entry = sum((size - 1) * stride for size, stride in zip(table.shape, table.stride()))
    start = table.data_ptr()
    return start, start + (1 + last_entry) * table.element_size()


def move_valid_column_numbers(labels: Any, table: Tensor) -> Tensor | None:
    """Move class indices to the device, or return None if a label is not one."""
    if isinstance(labels, np.ndarray) and labels.dtype.kind in "iu":
        labels = labels.astype(np.int64, copy=False)
    elif not isinstance(labels, Tensor) or labels.dtype not in _INTEGER_TYPES:
        return None
    if tuple(labels.shape) != tuple(table.shape[:1]):
        return None
    codes = move_to_device_of(labels, table).to(torch.int64)
    smallest, largest = torch.stack(torch.aminmax(codes)).tolist()
    is_valid = smallest >= 0 and largest < table.shape[1]
    return codes if is_valid else None


def as_float_table(table: Tensor) -> Tensor:
    """Detach a table from its gradients, and convert it to floats if necessary."""
    table = table.detach()
    if table.dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        return table
    return table.to(torch.float32 if table.is_floating_point() else torch.float64)


def inspect_logits(table: Tensor) -> tuple[int | None, bool]:
    """Return the first invalid row of a table, and whether logits may stand for masks.

    Unlike on the host, -inf counts as a possible mask.
    """
    # At an infinite threshold every valid row is accepted, so other codes mark rows to inspect.
    codes = triton_acceptance.acceptance_codes(
        table, "negative_margin", threshold=math.inf, largest_mask=LARGEST_FINITE_MASK
    )
    if codes is not None and not bool((codes == MISSING_SCORE).any()):
        return None, False
    smallest, largest = torch.aminmax(table, dim=1)
    is_invalid = ~torch.isfinite(largest)
    may_hold_masks = (smallest <= LARGEST_FINITE_MASK).any()
    # Both flags are copied to the host as one number, to wait for the device only once.
    two_flags = int(2 * is_invalid.any() + may_hold_masks)
    has_invalid_row = bool(two_flags & 2)
    invalid_row = int(is_invalid.to(torch.uint8).argmax()) if has_invalid_row else None
    return invalid_row, bool(two_flags & 1)


def replace_finite_masks(table: Tensor) -> tuple[Tensor, float | None]:
    """Replace finite numbers that stand for a mask by -inf, and return one such number.

    The table is copied only if it contains such numbers. `formulas.logits` defines the rule.
    """
    result = table
    mask_value = None
    for rows in iterate_chunks(table):
        values = table[rows].to(torch.float64)
        is_replaced = replace_finite_masks_formula(TORCH, values) == -math.inf
        is_finite_mask = (values > -math.inf) & is_replaced
        if not bool(is_finite_mask.any()):
            continue
        if mask_value is None:
            result = table.clone()
            mask_value = float(values[is_finite_mask][0])
        result[rows] = result[rows].masked_fill(is_finite_mask, -math.inf)
    return result, mask_value


def find_invalid_probability_row(table: Tensor, tolerance: float) -> int | None:
    """Return the index of the first row that is no probability vector, or None."""
    for rows in iterate_chunks(table):
        chunk = table[rows]
        sums = chunk.sum(dim=1, dtype=torch.float64)
        is_in_range = (chunk.amin(dim=1) >= 0) & (chunk.amax(dim=1) <= 1 + tolerance)
        is_valid = is_in_range & ((sums - 1).abs() <= tolerance)
        if not bool(is_valid.all()):
            return int(rows.start) + int((~is_valid).to(torch.uint8).argmax())
    return None


def log_probabilities(table: Tensor) -> Tensor:
    """Return log p, with zeros replaced as in `metacal.rows.validate.read_logits`."""
    out = empty_probabilities(table)
    for rows in iterate_chunks(table):
        positive_p = replace_zero_probabilities(TORCH, table[rows].to(out.dtype))
        out[rows] = positive_p.to(torch.float64).log()
    return out


def take_entries(table: Tensor, columns: Codes) -> Array:
    """Return the entry of each row in the given column, as an array on the host."""
    column_indices = torch.from_numpy(np.ascontiguousarray(columns)).to(table.device)
    return table.gather(1, column_indices[:, None])[:, 0].cpu().numpy()
