# mypy: allow-untyped-calls, allow-untyped-decorators, allow-untyped-defs
# mypy: allow-incomplete-defs, allow-any-generics
"""The kernels on a device: blocks are torch tensors, and so are the answers. Nothing is copied to
the host here.

Each statistic comes twice. The fused form (`triton.py`, `triton_mixed.py`) reads each row from
device memory once; it runs on CUDA wherever Triton can, and says nothing (None, False) elsewhere.
The plain form, chunked torch in float64 where it counts, says what is meant, as `numpy.py` does on
the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metacal.formulas import Array, Codes, Flags, rowwise
from metacal.formulas.logits import (
    LARGEST_FINITE_MASK,
    replace_finite_masks_formula,
    replace_zero_probabilities,
)
from metacal.formulas.probabilities import limit_probabilities
from metacal.formulas.torch import TORCH
from metacal.kernels import triton as fused
from metacal.kernels import triton_mixed as fused_mixed
from metacal.kernels.columns import MEAN, OWN, TAIL, THIRD, VARIANCE, Curve, cumulants, lifted
from metacal.kernels.columns import mixed_sums as plain_mixed_sums
from metacal.kernels.grid import Grid

#: Elements that are worked on at a time in plain torch.
CHUNK_ELEMENTS = 1 << 22
_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_LOWEST = -float(np.finfo(np.float64).max)
#: The scores that are fused, by their names.
_FUSED = (rowwise.entropy, rowwise.doubt, rowwise.negative_margin, rowwise.free_energy)


def _work_type(block: Tensor) -> torch.dtype:
    """The precision that logits are worked on in."""
    return torch.float64 if block.dtype == torch.float64 else torch.float32


def _chunks(block: Tensor) -> Iterator[slice]:
    """Rows that are worked on at a time."""
    step = max(1, CHUNK_ELEMENTS // block.shape[1])
    for start in range(0, len(block), step):
        yield slice(start, min(start + step, len(block)))


def _distances(block: Tensor, dtype: torch.dtype) -> Tensor:
    """d = x - max x of each row, a fresh tensor."""
    gaps = block.to(dtype, copy=True)
    return gaps.sub_(gaps.amax(dim=1, keepdim=True))


# --- the interface of numpy.py -------------------------------------------------------------------------------------


def predicted(block: Tensor) -> Tensor:
    """ŷ = argmax x, the lowest index on an exact tie."""
    found = fused.score(block, "predicted", torch.int64)
    return (
        torch.cat([_predicted(block[rows]) for rows in _chunks(block)]) if found is None else found
    )


def _predicted(block: Tensor) -> Tensor:
    # argmax of torch may return any of several equal entries; the comparison's first True is the
    # lowest index.
    return (block == block.amax(dim=1, keepdim=True)).to(torch.uint8).argmax(dim=1)


def of_formula(
    block: Tensor,
    formula: Callable[..., Tensor],
    *,
    top: Tensor | None = None,
    careful: bool = False,
) -> Tensor:
    """A score by its formula, in float64; NaN where the largest logit is not finite: no row of
    logits.

    Predictions go into `top`. Carefully, rows with what may be a mask have no score.
    """
    if formula in _FUSED:
        found = fused.score(
            block, formula.__name__, torch.float64, top, LARGEST_FINITE_MASK if careful else None
        )
        if found is not None:
            return found
    parts = []
    for rows in _chunks(block):
        part = block[rows]
        score = formula(TORCH, part.to(torch.float64))[:, 0]
        legal = torch.isfinite(part.amax(dim=1))
        if careful:
            legal &= ~((part <= LARGEST_FINITE_MASK) & (part > -math.inf)).any(dim=1)
        parts.append(torch.where(legal, score, math.nan))
    if top is not None:
        top.copy_(predicted(block))
    return torch.cat(parts)


def softmax(block: Tensor, inverse_temperature: float, out: Tensor) -> None:
    """Write softmax(b·x) of each row into `out`."""
    if out.is_contiguous() and fused_mixed.softmax(block, inverse_temperature, out):
        return
    for rows in _chunks(block):
        gaps = _distances(block[rows], _work_type(block))
        gaps.mul_(inverse_temperature).exp_()
        torch.div(gaps, gaps.sum(dim=1, keepdim=True), out=out[rows])


def tempered_loss(
    block: Tensor, labels: Tensor, weights: Tensor | None, inverse_temperature: float
) -> Tensor:
    """Sum over rows of the negative log-likelihood of softmax(b·x) and its first three derivatives
    in b, in float64.
    """
    found = fused_mixed.tempered_loss(block, labels, weights, inverse_temperature)
    if found is not None:
        return found
    columns = mixed_rows(block, labels, inverse_temperature).T
    loss = torch.log1p(columns[TAIL]) - inverse_temperature * columns[OWN]
    rows = torch.stack([loss, columns[MEAN] - columns[OWN], columns[VARIANCE], columns[THIRD]])
    return (rows if weights is None else rows * weights).sum(dim=1)


def mixed_rows(block: Tensor, labels: Tensor, inverse_temperature: float) -> Tensor:
    """What each row says of a temperature with a uniform part: eight columns, as in `numpy.py`, in
    float64.
    """
    found = fused_mixed.mixed_rows(block, labels, inverse_temperature)
    if found is not None:
        return found
    parts = []
    for rows in _chunks(block):
        gaps = _distances(block[rows], _work_type(block))
        own = gaps.gather(1, labels[rows, None])[:, 0]
        possible, top = (gaps > -math.inf).sum(dim=1), gaps == 0.0
        gaps.clamp_(min=fused_mixed.floor_of(block, inverse_temperature))
        terms = gaps.mul(inverse_temperature).exp_().masked_fill_(top, 0.0)
        tail = terms.sum(dim=1, dtype=torch.float64) + (top.sum(dim=1) - 1)
        moments = (
            terms.mul_(gaps).sum(dim=1, dtype=torch.float64) / (1.0 + tail) for _ in range(4)
        )
        columns = tail, *cumulants(*moments), own, possible, _predicted(block[rows]) == labels[rows]
        parts.append(torch.stack([column.to(torch.float64) for column in columns], dim=1))
    return torch.cat(parts)


def mixed_sums(
    columns: Tensor, weights: Tensor | None, walked: float, b: float, uniform: float
) -> Tensor:
    """The sums of `kernels.columns` over columns that lie on a device, one after another."""
    found = fused_mixed.mixed_sums(columns, weights, walked, b, uniform)
    return plain_mixed_sums(torch, columns, weights, walked, b, uniform) if found is None else found


def mixed_softmax(block: Tensor, inverse_temperature: float, uniform: float, out: Tensor) -> None:
    """Write (1 - ε)·softmax(b·x) + ε/K of each row into `out`, K the number of classes that are not
    masked.
    """
    for rows in _chunks(block):
        part, found = block[rows], out[rows]
        winner, possible = _predicted(part), part > -math.inf
        share = uniform / possible.sum(dim=1, keepdim=True).to(torch.float64)
        softmax(part, inverse_temperature, found)
        found.mul_(1.0 - uniform).add_(possible * share.to(found.dtype))
        lost = (_predicted(found) != winner).nonzero()[:, 0]
        top = found[lost].amax(dim=1) if len(lost) else found[:0, 0]
        found[lost, winner[lost]] = torch.nextafter(top, torch.full_like(top, 2.0))


def lifted_softmax(
    block: Tensor, inverse_temperature: float, uniform: float, curve: Curve, out: Tensor
) -> None:
    """Write (1 - ε)·softmax(b·x) + ε/K, the largest probability of each row through a curve, into
    `out`.
    """
    columns = fused_mixed.rivals(block, inverse_temperature) if out.is_contiguous() else None
    if columns is not None:
        rest, second, possible, winner = columns.T
        moved = torch.stack(lifted(torch, rest, second, 1.0 / possible, uniform, curve.value))
        if fused_mixed.lift(block, inverse_temperature, moved, winner.to(torch.int64), out):
            return
    for rows in _chunks(block):
        part, found = block[rows], out[rows]
        winner, masked = _predicted(part)[:, None], part == -math.inf
        softmax(part, inverse_temperature, found)
        found.scatter_(1, winner, 0.0)
        rest, second = found.sum(dim=1, dtype=torch.float64), found.amax(dim=1).to(torch.float64)
        even = 1.0 / (~masked).sum(dim=1)
        scale, shift, top = lifted(torch, rest, second, even, uniform, curve.value)
        found.mul_(scale[:, None].to(found.dtype)).add_(
            shift[:, None].to(found.dtype)
        ).masked_fill_(masked, 0.0)
        found.scatter_(1, winner, top[:, None].to(found.dtype))


def rounded(values: Tensor, grid: Grid) -> Tensor:
    """`Grid.rounded` where the column lies."""
    half = 1 << (grid.dropped - 1)
    patterns = values.view(torch.int64)
    found = ((patterns + (half - 1) + (patterns < 0)) & (-1 << grid.dropped)).view(torch.float64)
    found = found.clamp(min=_LOWEST, max=-_LOWEST)
    steps = values / grid.step
    nearest = steps.round()
    near_zero = (nearest - (nearest - steps == 0.5).to(nearest.dtype)) * grid.step
    found = torch.where(values.abs() < grid.floor, near_zero, found)
    return torch.where(torch.isfinite(values), found, values)


def ranked(
    block: Tensor, labels: Tensor, *, score: Callable[..., Tensor], careful: bool = False
) -> Tensor:
    """The unrounded score of each row, and whether the largest logit is the true class: two
    columns, one walk.
    """
    top = torch.empty(len(block), dtype=torch.int64, device=block.device)
    values = score(block, top=top, careful=careful)
    return torch.stack([values, (top == labels).to(torch.float64)], dim=1)


ranked.reads_tensors = True  # type: ignore[attr-defined]


def label_is_possible(block: Tensor, labels: Tensor) -> Tensor:
    """Whether the true class of each row is not masked."""
    return block.gather(1, labels[:, None])[:, 0] > -math.inf


# --- between host and device ---------------------------------------------------------------------------------------


def beside(values: Any, table: Tensor) -> Tensor:
    """An array or a tensor as a tensor on the table's device."""
    if isinstance(values, Tensor):
        return values.detach().to(table.device)
    array = np.require(values, requirements=["C_CONTIGUOUS", "ALIGNED"])
    return torch.from_numpy(array if array.flags.writeable else array.copy()).to(table.device)


def laid(parts: list[Tensor]) -> Tensor:
    """The parts one after another, where they lie."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def put_inside(out: Tensor, block: Tensor, possible: Tensor | None = None) -> None:
    """What `formulas.probabilities` says, in place; `possible` where the block has been written over."""
    for rows in _chunks(block):
        seen = block[rows] if possible is None else torch.where(possible[rows], 0.0, -torch.inf)
        out[rows] = limit_probabilities(TORCH, seen, out[rows])


def chosen_rows(table: Tensor, chosen: Codes) -> Tensor:
    """Some rows of a table, as a table of their own."""
    return table.index_select(0, torch.from_numpy(chosen).to(table.device))


def fill_rows(table: Tensor, rows: Flags, value: float) -> None:
    """Set whole rows to one value."""
    table.index_fill_(0, torch.from_numpy(np.flatnonzero(rows)).to(table.device), value)


def empty_probabilities(table: Tensor) -> Tensor:
    """An unwritten table of the same shape: float64 for float64, float32 for every other type."""
    return torch.empty(table.shape, dtype=_work_type(table), device=table.device)


def overlap(table: Any, out: Tensor) -> bool:
    """Whether two contiguous tables lie partly on top of each other; the very same memory is no
    overlap.
    """
    if not isinstance(table, Tensor) or table.device != out.device:
        return False
    spans = [
        (t.data_ptr(), t.data_ptr() + (1 + _reach(t)) * t.element_size()) for t in (table, out)
    ]
    apart = spans[0][1] <= spans[1][0] or spans[1][1] <= spans[0][0]
    same = (
        table.data_ptr() == out.data_ptr()
        and table.stride() == out.stride()
        and table.dtype == out.dtype
    )
    return not (apart or same)


def _reach(table: Tensor) -> int:
    """The distance of the last entry from the first, in entries."""
    return sum((size - 1) * step for size, step in zip(table.shape, table.stride()))


def label_codes(labels: Any, table: Tensor) -> Tensor | None:
    """Labels that are already column numbers, checked on the device; None where a closer look is
    needed.
    """
    if isinstance(labels, np.ndarray) and labels.dtype.kind in "iu":
        labels = labels.astype(np.int64, copy=False)
    elif not isinstance(labels, Tensor) or labels.dtype not in _WHOLE:
        return None
    if tuple(labels.shape) != tuple(table.shape[:1]):
        return None
    found = beside(labels, table).to(torch.int64)
    low, high = torch.stack(torch.aminmax(found)).tolist()
    return found if low >= 0 and high < table.shape[1] else None


def float_table(table: Tensor) -> Tensor:
    """Without a history of gradients, and of a floating type; no copy where it has one already."""
    table = table.detach()
    if table.dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        return table
    return table.to(torch.float32 if table.is_floating_point() else torch.float64)


def inspect_logits(table: Tensor) -> tuple[int | None, bool]:
    """The first bad row, and whether some logit is so low that it may stand for a mask; -inf
    counts, too. One pass.
    """
    low, top = torch.aminmax(table, dim=1)
    bad = ~torch.isfinite(top)
    flags = int(2 * bad.any() + (low <= LARGEST_FINITE_MASK).any())  # one number to the host
    return (int(bad.to(torch.uint8).argmax()) if flags & 2 else None), bool(flags & 1)


def with_masks(table: Tensor) -> tuple[Tensor, float | None]:
    """The table with -inf where a finite number stands for a mask (`formulas.logits`), and such a
    number, if any.
    """
    masked, example = table, None
    for rows in _chunks(table):
        values = table[rows].to(torch.float64)
        found = (values > -math.inf) & (replace_finite_masks_formula(TORCH, values) == -math.inf)
        if bool(found.any()):
            if example is None:
                masked, example = table.clone(), float(values[found][0])
            masked[rows] = masked[rows].masked_fill(found, -math.inf)
    return masked, example


def first_row_that_is_no_probability(table: Tensor, tolerance: float) -> int | None:
    """The first row with an entry outside [0, 1] or with a sum that is not one."""
    for rows in _chunks(table):
        block = table[rows]
        sums = block.sum(dim=1, dtype=torch.float64)
        good = (
            (block.amin(dim=1) >= 0)
            & (block.amax(dim=1) <= 1 + tolerance)
            & ((sums - 1).abs() <= tolerance)
        )
        if not bool(good.all()):
            return int(rows.start) + int((~good).to(torch.uint8).argmax())
    return None


def log_probabilities(table: Tensor) -> Tensor:
    """log p, with zeros read as the smaller of 2.2e-16 and the row's smallest positive entry."""
    out = empty_probabilities(table)
    for rows in _chunks(table):
        out[rows] = (
            replace_zero_probabilities(TORCH, table[rows].to(out.dtype)).to(torch.float64).log()
        )
    return out


def own_entries(table: Tensor, columns: Codes) -> Array:
    """One entry of each row, at its column, brought to the host."""
    at = torch.from_numpy(np.ascontiguousarray(columns)).to(table.device)
    return table.gather(1, at[:, None])[:, 0].cpu().numpy()
