# mypy: allow-untyped-calls, allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-any-generics
"""The fused kernels of a temperature with a uniform part, and of the curve on top of it: what a gate's base is made of.

As in `triton.py` None, or False, comes back where Triton could not run after all. What `torch.py` says of each function
in plain torch is what is meant.
"""

from __future__ import annotations

import torch
from torch import Tensor

from metacal.kernels import triton as fused
from metacal.kernels.triton import WHOLE_ROW, WHOLE_ROW_SOFTMAX, _Layout, _log1p, _split, _tile, jit

try:
    import triton.language as tl
except ImportError:  # as in triton.py
    tl = None

#: Rows of the columns that one program adds up.
_ROWS_A_PROGRAM = 1024


def mixed_rows(block: Tensor, labels: Tensor, inverse_temperature: float, floor: float) -> Tensor | None:
    """The eight columns of `mixed_rows`; exponents below `floor` count as it."""
    out = torch.empty((len(block), 8), dtype=torch.float64, device=block.device)
    high, low = _split(inverse_temperature)
    arguments = (block, labels.contiguous(), out, high, low, floor)
    return out if _Layout(block, WHOLE_ROW, many=True).launch(_rows_kernel, *arguments, LIFT=False) else None


def rivals(block: Tensor, inverse_temperature: float, floor: float) -> Tensor | None:
    """Of softmax(b·x): the sum and the largest of all but the predicted class, the possible classes, the prediction."""
    out = torch.empty((len(block), 4), dtype=torch.float64, device=block.device)
    high, low = _split(inverse_temperature)
    layout = _Layout(block, WHOLE_ROW)
    return out if layout.launch(_rows_kernel, block, out, out, high, low, floor, LIFT=True) else None


def lift(block: Tensor, inverse_temperature: float, columns: Tensor, winner: Tensor, out: Tensor) -> bool:
    """Write p·scale + shift of each row, p = softmax(b·x), and `top` for the winner; the columns are these three."""
    high, low = _split(inverse_temperature)
    layout = _Layout(block, WHOLE_ROW_SOFTMAX)
    return layout.launch(_lift_kernel, block, columns.contiguous(), winner.contiguous(), out, high, low)


def mixed_sums(columns: Tensor, weights: Tensor | None, walked: float, b: float, uniform: float) -> Tensor | None:
    """The six sums of `kernels.uniform.mixed_sums` in one launch: what is small is not worth thirty."""
    columns, n = columns.contiguous(), columns.shape[1]
    programs = -(-n // _ROWS_A_PROGRAM)
    parts = torch.empty((6, programs), dtype=torch.float64, device=columns.device)
    numbers = (*_split(b), *_split(b - walked), *_split(uniform))
    counts = columns if weights is None else weights.contiguous()
    shape = {"WEIGHTED": weights is not None, "SERIES": b != walked, "ROWS": _ROWS_A_PROGRAM}
    done = fused.launched(_sums_kernel, programs, columns, counts, parts, *numbers, n, **shape, num_warps=4)
    return parts.sum(dim=1) if done else None


@jit
def _rows_kernel(
    table,
    labels,
    out,
    high,
    low,
    floor,
    stride_units,
    n_rows,
    class_units,
    LIFT: tl.constexpr,
    WIDE: tl.constexpr,
    UNIT: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    TILES: tl.constexpr,
):
    """A few numbers of each row at one inverse temperature."""
    WORK: tl.constexpr = tl.float64 if WIDE else tl.float32
    NONE: tl.constexpr = 2147483647
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < n_rows
    n_classes = class_units * UNIT
    start = table + rows.to(tl.int64)[:, None] * (stride_units * UNIT)
    cols = tl.arange(0, COLS)
    b = (tl.full([], high, tl.float64) + tl.full([], low, tl.float64)).to(WORK)
    if TILES == 1:
        x = _tile(start, inside, cols, n_classes, WIDE)
        top = tl.max(x, axis=1)
        winner = tl.min(tl.where(x == top[:, None], cols[None, :], NONE), axis=1)
        d = x - top[:, None]
        ties = tl.sum(tl.where(d == 0.0, 1, 0), axis=1)
        possible = tl.sum(tl.where(x > float("-inf"), 1, 0), axis=1)
        second = tl.max(tl.where(d < 0.0, d, float("-inf")), axis=1)
        near = tl.maximum(d, floor)
        w = tl.where(d == 0.0, 0.0, tl.exp(near * b))
        s0 = tl.sum(w, axis=1)
        w = w * near
        s1 = tl.sum(w, axis=1)
        w = w * near
        s2 = tl.sum(w, axis=1)
        w = w * near
        s3 = tl.sum(w, axis=1)
        s4 = tl.sum(w * near, axis=1)
    else:
        best = tl.full([ROWS, COLS], float("-inf"), WORK)
        place = tl.zeros([ROWS, COLS], tl.int32)
        for first in range(0, TILES * COLS, COLS):
            x = _tile(start, inside, first + cols, n_classes, WIDE)
            place = tl.where(x > best, (first + cols)[None, :], place)
            best = tl.maximum(best, x)
        top = tl.max(best, axis=1)
        winner = tl.min(tl.where(best == top[:, None], place, NONE), axis=1)
        tied = tl.zeros([ROWS, COLS], tl.int32)
        there = tl.zeros([ROWS, COLS], tl.int32)
        behind = tl.full([ROWS, COLS], float("-inf"), WORK)
        v0 = tl.zeros([ROWS, COLS], WORK)
        v1 = tl.zeros([ROWS, COLS], WORK)
        v2 = tl.zeros([ROWS, COLS], WORK)
        v3 = tl.zeros([ROWS, COLS], WORK)
        v4 = tl.zeros([ROWS, COLS], WORK)
        for first in range(0, TILES * COLS, COLS):
            x = _tile(start, inside, first + cols, n_classes, WIDE)
            d = x - top[:, None]
            tied += tl.where(d == 0.0, 1, 0)
            there += tl.where(x > float("-inf"), 1, 0)
            behind = tl.maximum(behind, tl.where(d < 0.0, d, float("-inf")))
            near = tl.maximum(d, floor)
            w = tl.where(d == 0.0, 0.0, tl.exp(near * b))
            v0 += w
            w = w * near
            v1 += w
            w = w * near
            v2 += w
            w = w * near
            v3 += w
            v4 += w * near
        ties = tl.sum(tied, axis=1)
        possible = tl.sum(there, axis=1)
        second = tl.max(behind, axis=1)
        s0 = tl.sum(v0, axis=1)
        s1 = tl.sum(v1, axis=1)
        s2 = tl.sum(v2, axis=1)
        s3 = tl.sum(v3, axis=1)
        s4 = tl.sum(v4, axis=1)
    tail = s0.to(tl.float64) + (ties - 1).to(tl.float64)
    total = 1.0 + tail
    if LIFT:
        into = out + rows * 4
        gap = tl.where(ties > 1, 0.0, second.to(tl.float64))
        tl.store(into, tail / total, mask=inside)
        tl.store(into + 1, tl.exp(gap * b.to(tl.float64)) / total, mask=inside)
        tl.store(into + 2, possible.to(tl.float64), mask=inside)
        tl.store(into + 3, winner.to(tl.float64), mask=inside)
    else:
        label = tl.load(labels + rows, mask=inside, other=0)
        true = tl.load(table + rows.to(tl.int64) * (stride_units * UNIT) + label, mask=inside, other=0.0)
        m1 = s1.to(tl.float64) / total
        m2 = s2.to(tl.float64) / total
        m3 = s3.to(tl.float64) / total
        m4 = s4.to(tl.float64) / total
        square = m1 * m1
        into = out + rows * 8
        tl.store(into, tail, mask=inside)
        tl.store(into + 1, m1, mask=inside)
        tl.store(into + 2, m2 - square, mask=inside)
        tl.store(into + 3, m3 - m1 * (3.0 * m2 - 2.0 * square), mask=inside)
        fourth = m4 - 4.0 * m3 * m1 - 3.0 * m2 * m2 + 6.0 * square * (2.0 * m2 - square)
        tl.store(into + 4, fourth, mask=inside)
        tl.store(into + 5, true.to(tl.float64) - top.to(tl.float64), mask=inside)
        tl.store(into + 6, possible.to(tl.float64), mask=inside)
        tl.store(into + 7, tl.where(winner == label, 1.0, 0.0).to(tl.float64), mask=inside)


@jit
def _lift_kernel(
    table,
    columns,
    winners,
    out,
    high,
    low,
    stride_units,
    n_rows,
    class_units,
    WIDE: tl.constexpr,
    UNIT: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    TILES: tl.constexpr,
):
    """p·scale + shift where p = softmax(b·x); 0 for masked classes, `top` for the winner."""
    WORK: tl.constexpr = tl.float64 if WIDE else tl.float32
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < n_rows
    n_classes = class_units * UNIT
    start = table + rows.to(tl.int64)[:, None] * (stride_units * UNIT)
    there = out + rows.to(tl.int64)[:, None] * n_classes
    cols = tl.arange(0, COLS)
    b = (tl.full([], high, tl.float64) + tl.full([], low, tl.float64)).to(WORK)
    scale = tl.load(columns + rows, mask=inside, other=0.0).to(WORK)[:, None]
    shift = tl.load(columns + n_rows + rows, mask=inside, other=0.0).to(WORK)[:, None]
    first_place = tl.load(columns + 2 * n_rows + rows, mask=inside, other=0.0).to(WORK)[:, None]
    winner = tl.load(winners + rows, mask=inside, other=0)[:, None]
    if TILES == 1:
        x = _tile(start, inside, cols, n_classes, WIDE)
        w = tl.exp((x - tl.max(x, axis=1)[:, None]) * b)
        w = w / tl.sum(w, axis=1)[:, None] * scale + shift
        w = tl.where(x == float("-inf"), 0.0, w)
        w = tl.where(cols[None, :] == winner, first_place, w)
        tl.store(there + cols[None, :], w, mask=inside[:, None] & (cols < n_classes)[None, :])
    else:
        best = tl.full([ROWS, COLS], float("-inf"), WORK)
        for first in range(0, TILES * COLS, COLS):
            best = tl.maximum(best, _tile(start, inside, first + cols, n_classes, WIDE))
        top = tl.max(best, axis=1)
        sums = tl.zeros([ROWS, COLS], WORK)
        for first in range(0, TILES * COLS, COLS):
            sums += tl.exp((_tile(start, inside, first + cols, n_classes, WIDE) - top[:, None]) * b)
        total = tl.sum(sums, axis=1)
        for first in range(0, TILES * COLS, COLS):
            at = first + cols
            x = _tile(start, inside, at, n_classes, WIDE)
            w = tl.exp((x - top[:, None]) * b) / total[:, None] * scale + shift
            w = tl.where(x == float("-inf"), 0.0, w)
            w = tl.where(at[None, :] == winner, first_place, w)
            tl.store(there + at[None, :], w, mask=inside[:, None] & (at < n_classes)[None, :])


@jit
def _sums_kernel(
    columns,
    weights,
    parts,
    b_high,
    b_low,
    step_high,
    step_low,
    uniform_high,
    uniform_low,
    n,
    WEIGHTED: tl.constexpr,
    SERIES: tl.constexpr,
    ROWS: tl.constexpr,
):
    """-log q of each row, its gradient and curvature in (log b, ε), summed; the formulas are `mixed_sums`'."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < n
    at = columns + rows
    b = tl.full([], b_high, tl.float64) + tl.full([], b_low, tl.float64)
    uniform = tl.full([], uniform_high, tl.float64) + tl.full([], uniform_low, tl.float64)
    value = _log1p(tl.load(at, mask=inside, other=1.0))
    slope = tl.load(at + n, mask=inside, other=0.0)
    second = tl.load(at + 2 * n, mask=inside, other=0.0)
    own = tl.load(at + 5 * n, mask=inside, other=0.0)
    even = 1.0 / tl.load(at + 6 * n, mask=inside, other=1.0)
    if SERIES:
        step = tl.full([], step_high, tl.float64) + tl.full([], step_low, tl.float64)
        third = tl.load(at + 3 * n, mask=inside, other=0.0)
        fourth = tl.load(at + 4 * n, mask=inside, other=0.0)
        value += step * (slope + step * (0.5 * second + step * (third / 6.0 + (step / 24.0) * fourth)))
        slope += step * (second + step * (0.5 * third + (step / 6.0) * fourth))
        second += step * (third + (0.5 * step) * fourth)
        value = tl.maximum(value, 0.0)
        second = tl.maximum(second, 0.0)
    chance = tl.exp(b * own - value)
    mixed = (1.0 - uniform) * chance + uniform * even
    each = 1.0 / mixed
    slope = b * (own - slope)
    share = (1.0 - uniform) * chance * each
    away = (chance - even) * each
    part = share * slope
    if WEIGHTED:  # noqa: SIM108 - in Triton an if of a constant leaves one branch out
        count = tl.load(weights + rows, mask=inside, other=0.0)
    else:
        count = tl.full([ROWS], 1.0, tl.float64)
    programs = tl.num_programs(0)
    out = parts + tl.program_id(0)
    bent = (b * b) * share * second - part - (part - share * part) * slope
    tl.store(out, tl.sum(tl.where(inside, -count * tl.log(mixed), 0.0), axis=0))
    tl.store(out + programs, tl.sum(tl.where(inside, -count * part, 0.0), axis=0))
    tl.store(out + 2 * programs, tl.sum(tl.where(inside, count * away, 0.0), axis=0))
    tl.store(out + 3 * programs, tl.sum(tl.where(inside, count * bent, 0.0), axis=0))
    tl.store(out + 4 * programs, tl.sum(tl.where(inside, count * chance * even * slope * each * each, 0.0), axis=0))
    tl.store(out + 5 * programs, tl.sum(tl.where(inside, count * away * away, 0.0), axis=0))
