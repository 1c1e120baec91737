# mypy: allow-untyped-calls, allow-untyped-decorators, allow-untyped-defs
# mypy: allow-incomplete-defs, allow-any-generics
"""The fused kernels of a softmax of tempered logits: its loss, with a uniform part, and with a
curve on top.

As in `triton.py` None, or False, comes back where Triton cannot run. What `torch.py` says of each
function in plain torch is what is meant.
"""

from __future__ import annotations

import torch
from torch import Tensor

from metacal.kernels import triton as fused
from metacal.kernels.triton import (
    WHOLE_ROW,
    WHOLE_ROW_SOFTMAX,
    _begin,
    _Layout,
    _log1p,
    _split,
    _tile,
    _whole,
    jit,
    tl,
)

#: Rows of the columns that one program adds up.
_ROWS_A_PROGRAM = 1024


def floor_of(block: Tensor, inverse_temperature: float) -> float:
    """Distances below this count as this: e^bd is zero there, as in `numpy.py`."""
    return (-800.0 if block.dtype == torch.float64 else -100.0) / inverse_temperature


def tempered_loss(
    block: Tensor, labels: Tensor, weights: Tensor | None, inverse_temperature: float
) -> Tensor | None:
    """Sum over rows of the loss and its first three derivatives in b."""
    layout = _Layout(block, WHOLE_ROW)
    parts = torch.empty((4, layout.programs), dtype=torch.float64, device=block.device)
    done = _walked(layout, "losses", block, labels, weights, parts, inverse_temperature)
    return parts.sum(dim=1) if done else None


def mixed_rows(block: Tensor, labels: Tensor, inverse_temperature: float) -> Tensor | None:
    """The eight columns of `mixed_rows`."""
    out = torch.empty((len(block), 8), dtype=torch.float64, device=block.device)
    layout = _Layout(block, WHOLE_ROW, many=True)
    return (
        out if _walked(layout, "columns", block, labels, None, out, inverse_temperature) else None
    )


def rivals(block: Tensor, inverse_temperature: float) -> Tensor | None:
    """Of softmax(b·x): the sum and the largest of all but the predicted class, the possible
    classes, the prediction.
    """
    out = torch.empty((len(block), 4), dtype=torch.float64, device=block.device)
    layout = _Layout(block, WHOLE_ROW)
    return out if _walked(layout, "rivals", block, out, None, out, inverse_temperature) else None


def _walked(
    layout: _Layout,
    kind: str,
    block: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    out: Tensor,
    b: float,
) -> bool:
    counts = labels if weights is None else weights
    arguments = (
        block,
        labels.contiguous(),
        counts.contiguous(),
        out,
        *_split(b),
        floor_of(block, b),
    )
    return layout.launch(_rows_kernel, *arguments, KIND=kind, WEIGHTED=weights is not None)


def softmax(block: Tensor, inverse_temperature: float, out: Tensor) -> bool:
    """Write softmax(b·x) of each row into `out`; say whether that was done."""
    layout = _Layout(block, WHOLE_ROW_SOFTMAX)
    return layout.launch(
        _softmax_kernel, block, out, out, out, *_split(inverse_temperature), LIFT=False
    )


def lift(
    block: Tensor, inverse_temperature: float, columns: Tensor, winner: Tensor, out: Tensor
) -> bool:
    """Write p·scale + shift of each row, p = softmax(b·x), and `top` for the winner; the columns
    are these three.
    """
    layout, columns = _Layout(block, WHOLE_ROW_SOFTMAX), columns.contiguous()
    numbers = _split(inverse_temperature)
    return layout.launch(
        _softmax_kernel, block, out, columns, winner.contiguous(), *numbers, LIFT=True
    )


def mixed_sums(
    columns: Tensor, weights: Tensor | None, walked: float, b: float, uniform: float
) -> Tensor | None:
    """The six sums of `kernels.columns.mixed_sums` in one launch: what is small is not worth
    thirty.
    """
    if not fused.can_fuse(columns):
        return None
    columns, n = columns.contiguous(), columns.shape[1]
    programs = -(-n // _ROWS_A_PROGRAM)
    parts = torch.empty((6, programs), dtype=torch.float64, device=columns.device)
    numbers = (*_split(b), *_split(b - walked), *_split(uniform))
    counts = columns if weights is None else weights.contiguous()
    shape = {"WEIGHTED": weights is not None, "SERIES": b != walked, "ROWS": _ROWS_A_PROGRAM}
    done = fused.launched(
        _sums_kernel, programs, columns, counts, parts, *numbers, n, **shape, num_warps=4
    )
    return parts.sum(dim=1) if done else None


@jit
def _places(x, top):
    """Where d = x - top is 0, where a class is possible, and d below the top."""
    d = x - top[:, None]
    return (
        tl.where(d == 0.0, 1, 0),
        tl.where(x > float("-inf"), 1, 0),
        tl.where(d < 0.0, d, float("-inf")),
    )


@jit
def _of_rows(tied, there, behind):
    """How many tie at the top, how many are possible, and d of the runner-up."""
    return tl.sum(tied, axis=1), tl.sum(there, axis=1), tl.max(behind, axis=1)


@jit
def _moments(x, top, b, floor, KIND: tl.constexpr):
    """With d = x - top: w = e^{bd}, w·d, … w·d⁴."""
    d = x - top[:, None]
    near = tl.maximum(d, floor)
    w = tl.exp(near * b)
    if KIND != "losses":  # the top's own, which is 1, is added at the end
        w = tl.where(d == 0.0, 0.0, w)
    w1 = w * near
    w2 = w1 * near
    w3 = w2 * near
    return w, w1, w2, w3, w3 * near


@jit
def _rows_kernel(
    table,
    labels,
    weights,
    out,
    high,
    low,
    floor,
    stride_units,
    n_rows,
    class_units,
    KIND: tl.constexpr,
    WEIGHTED: tl.constexpr,
    WIDE: tl.constexpr,
    UNIT: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    TILES: tl.constexpr,
):
    """Sums over the classes of each row at one inverse temperature, and what is wanted of them."""
    WORK: tl.constexpr = tl.float64 if WIDE else tl.float32
    rows, inside, start, cols, n_classes = _begin(
        table, stride_units, n_rows, class_units, UNIT, ROWS, COLS
    )
    b64 = _whole(high, low)
    b = b64.to(WORK)
    x = _tile(start, inside, cols, n_classes, WIDE)
    best, place = x, tl.zeros([ROWS, COLS], tl.int32) + cols[None, :]
    for first in range(COLS, TILES * COLS, COLS):
        x = _tile(start, inside, first + cols, n_classes, WIDE)
        place = tl.where(x > best, (first + cols)[None, :], place)
        best = tl.maximum(best, x)
    top = tl.max(best, axis=1)
    winner = tl.min(tl.where(best == top[:, None], place, 2147483647), axis=1)
    if TILES > 1:
        x = _tile(start, inside, cols, n_classes, WIDE)
    tied, there, behind = _places(x, top)
    if TILES == 1:  # at once: what is added up is not held any longer
        ties, possible, second = _of_rows(tied, there, behind)
    v0, v1, v2, v3, v4 = _moments(x, top, b, floor, KIND)
    if TILES > 1:
        for first in range(COLS, TILES * COLS, COLS):
            x = _tile(start, inside, first + cols, n_classes, WIDE)
            at_top, not_masked, lower = _places(x, top)
            tied += at_top
            there += not_masked
            behind = tl.maximum(behind, lower)
            w0, w1, w2, w3, w4 = _moments(x, top, b, floor, KIND)
            v0 += w0
            v1 += w1
            v2 += w2
            v3 += w3
            v4 += w4
        ties, possible, second = _of_rows(tied, there, behind)
    total = tl.sum(v0, axis=1).to(tl.float64)
    if KIND != "losses":
        tail = total + (ties - 1).to(tl.float64)
        total = 1.0 + tail
    if KIND == "rivals":
        into = out + rows * 4
        gap = tl.where(ties > 1, 0.0, second.to(tl.float64))
        tl.store(into, tail / total, mask=inside)
        tl.store(into + 1, tl.exp(gap * b.to(tl.float64)) / total, mask=inside)
        tl.store(into + 2, possible.to(tl.float64), mask=inside)
        tl.store(into + 3, winner.to(tl.float64), mask=inside)
    else:
        label = tl.load(labels + rows, mask=inside, other=0)
        true = tl.load(
            table + rows.to(tl.int64) * (stride_units * UNIT) + label, mask=inside, other=0.0
        )
        own = true.to(tl.float64) - top.to(tl.float64)
        m1 = tl.sum(v1, axis=1).to(tl.float64) / total
        m2 = tl.sum(v2, axis=1).to(tl.float64) / total
        m3 = tl.sum(v3, axis=1).to(tl.float64) / total
        m4 = tl.sum(v4, axis=1).to(tl.float64) / total
        square = m1 * m1
        if KIND == "losses":
            count = _counts(weights, rows, inside, WEIGHTED, ROWS)
            _add_up(out, 0, count * (tl.log(total) - b64 * own), inside)
            _add_up(out, 1, count * (m1 - own), inside)
            _add_up(out, 2, count * (m2 - square), inside)
            _add_up(out, 3, count * (m3 - m1 * (3.0 * m2 - 2.0 * square)), inside)
        else:
            into = out + rows * 8
            tl.store(into, tail, mask=inside)
            tl.store(into + 1, m1, mask=inside)
            tl.store(into + 2, m2 - square, mask=inside)
            tl.store(into + 3, m3 - m1 * (3.0 * m2 - 2.0 * square), mask=inside)
            fourth = m4 - 4.0 * m3 * m1 - 3.0 * m2 * m2 + 6.0 * square * (2.0 * m2 - square)
            tl.store(into + 4, fourth, mask=inside)
            tl.store(into + 5, own, mask=inside)
            tl.store(into + 6, possible.to(tl.float64), mask=inside)
            tl.store(into + 7, tl.where(winner == label, 1.0, 0.0).to(tl.float64), mask=inside)


@jit
def _add_up(parts, which, values, inside):
    """Store the sum of the program's rows among the parts of one of the sums."""
    at = parts + which * tl.num_programs(0) + tl.program_id(0)
    tl.store(at, tl.sum(tl.where(inside, values, 0.0), axis=0))


@jit
def _counts(weights, rows, inside, WEIGHTED: tl.constexpr, ROWS: tl.constexpr):
    """How much each row counts."""
    if WEIGHTED:  # in Triton, an `if` of a constant compiles one branch only
        count = tl.load(weights + rows, mask=inside, other=0.0)
    else:
        count = tl.full([ROWS], 1.0, tl.float64)
    return count


@jit
def _softmax_kernel(
    table,
    out,
    columns,
    winners,
    high,
    low,
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
    """p = softmax(b·x). With LIFT p·scale + shift, 0 for masked classes, `top` for the winner."""
    WORK: tl.constexpr = tl.float64 if WIDE else tl.float32
    rows, inside, start, cols, n_classes = _begin(
        table, stride_units, n_rows, class_units, UNIT, ROWS, COLS
    )
    there = out + rows.to(tl.int64)[:, None] * n_classes
    b = _whole(high, low).to(WORK)
    best = tl.full([ROWS, COLS], float("-inf"), WORK)
    for first in range(0, TILES * COLS, COLS):
        best = tl.maximum(best, _tile(start, inside, first + cols, n_classes, WIDE))
    top = tl.max(best, axis=1)
    sums = tl.zeros([ROWS, COLS], WORK)
    for first in range(0, TILES * COLS, COLS):
        sums += tl.exp((_tile(start, inside, first + cols, n_classes, WIDE) - top[:, None]) * b)
    total = tl.sum(sums, axis=1)
    if LIFT:
        scale = tl.load(columns + rows, mask=inside, other=0.0).to(WORK)[:, None]
        shift = tl.load(columns + n_rows + rows, mask=inside, other=0.0).to(WORK)[:, None]
        first_place = tl.load(columns + 2 * n_rows + rows, mask=inside, other=0.0).to(WORK)[:, None]
        winner = tl.load(winners + rows, mask=inside, other=0)[:, None]
    for first in range(0, TILES * COLS, COLS):
        at = first + cols
        x = _tile(start, inside, at, n_classes, WIDE)
        w = tl.exp((x - top[:, None]) * b) / total[:, None]
        if LIFT:
            w = tl.where(x == float("-inf"), 0.0, w * scale + shift)
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
    """-log q of each row, its gradient and curvature in (log b, ε), summed; the formulas are
    `mixed_sums`'.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < n
    at = columns + rows
    b, uniform = _whole(b_high, b_low), _whole(uniform_high, uniform_low)
    value = _log1p(tl.load(at, mask=inside, other=1.0))
    slope = tl.load(at + n, mask=inside, other=0.0)
    second = tl.load(at + 2 * n, mask=inside, other=0.0)
    own = tl.load(at + 5 * n, mask=inside, other=0.0)
    even = 1.0 / tl.load(at + 6 * n, mask=inside, other=1.0)
    if SERIES:
        step = _whole(step_high, step_low)
        third = tl.load(at + 3 * n, mask=inside, other=0.0)
        fourth = tl.load(at + 4 * n, mask=inside, other=0.0)
        value += step * (
            slope + step * (0.5 * second + step * (third / 6.0 + (step / 24.0) * fourth))
        )
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
    count = _counts(weights, rows, inside, WEIGHTED, ROWS)
    bent = (b * b) * share * second - part - (part - share * part) * slope
    _add_up(parts, 0, -count * tl.log(mixed), inside)
    _add_up(parts, 1, -count * part, inside)
    _add_up(parts, 2, count * away, inside)
    _add_up(parts, 3, count * bent, inside)
    _add_up(parts, 4, count * chance * even * slope * each * each, inside)
    _add_up(parts, 5, count * away * away, inside)
