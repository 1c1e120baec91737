# mypy: allow-untyped-calls, allow-untyped-decorators, allow-untyped-defs
# mypy: allow-incomplete-defs, allow-any-generics
"""Fused kernels in Triton of the softmax of tempered logits, its loss, and its variants.

As in `triton.py`, the functions return None or False if Triton cannot run. The namesakes in
`torch.py` are their definitions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from metacal.kernels import triton as fused
from metacal.kernels.triton import (
    WHOLE_ROW,
    WHOLE_ROW_SOFTMAX,
    _join_floats,
    _Layout,
    _load_tile,
    _locate_rows,
    _log1p,
    _split_float,
    jit,
    tl,
)

#: Rows of columns that one program sums.
_ROWS_PER_PROGRAM = 1024


def zero_gap(block: Tensor, inverse_temperature: float) -> float:
    """Return the gap at which e^{bd} is 0; smaller gaps are clipped to it, as in `numpy.py`."""
    return (-800.0 if block.dtype == torch.float64 else -100.0) / inverse_temperature


def tempered_loss(
    block: Tensor, labels: Tensor, weights: Tensor | None, inverse_temperature: float
) -> Tensor | None:
    """Sum the loss and its first three derivatives in b over rows."""
    layout = _Layout(block, WHOLE_ROW)
    program_sums = torch.empty((4, layout.programs), dtype=torch.float64, device=block.device)
    is_done = _launch_rows_kernel(
        layout, "losses", block, labels, weights, program_sums, inverse_temperature
    )
    return program_sums.sum(dim=1) if is_done else None


def temperature_statistics(
    block: Tensor, labels: Tensor, inverse_temperature: float
) -> Tensor | None:
    """Compute the columns of `kernels.columns`, shape (n_rows, 8)."""
    out = torch.empty((len(block), 8), dtype=torch.float64, device=block.device)
    layout = _Layout(block, WHOLE_ROW, many=True)
    is_done = _launch_rows_kernel(layout, "columns", block, labels, None, out, inverse_temperature)
    return out if is_done else None


def other_class_statistics(block: Tensor, inverse_temperature: float) -> Tensor | None:
    """Compute the columns of softmax(b·x) that `kernels.columns.curve_adjustment` needs, shape (n_rows, 4).

    They are the sum and the largest of the probabilities of the other classes, the number of
    possible classes, and the prediction.
    """
    out = torch.empty((len(block), 4), dtype=torch.float64, device=block.device)
    layout = _Layout(block, WHOLE_ROW)
    is_done = _launch_rows_kernel(layout, "rivals", block, out, None, out, inverse_temperature)
    return out if is_done else None


def _launch_rows_kernel(
    layout: _Layout,
    kind: str,
    block: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    out: Tensor,
    b: float,
) -> bool:
    """Start the kernel of sums over classes; return False if Triton cannot run.

    Parameters
    ----------
    layout : _Layout
        Division of the block.

    kind : {"losses", "columns", "rivals"}
        Statistics to compute.

    block : tensor of shape (n_rows, n_classes)
        Logits.

    labels : tensor of shape (n_rows,)
        True classes. Not used for "rivals".

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
    # Triton needs some tensor in place of missing weights.
    row_weights = labels if weights is None else weights
    return layout.launch(
        _rows_kernel,
        block,
        labels.contiguous(),
        row_weights.contiguous(),
        out,
        *_split_float(b),
        zero_gap(block, b),
        KIND=kind,
        WEIGHTED=weights is not None,
    )


def softmax(block: Tensor, inverse_temperature: float, out: Tensor) -> bool:
    """Write softmax(b·x) of each row into `out`; return False if Triton cannot run."""
    layout = _Layout(block, WHOLE_ROW_SOFTMAX)
    return layout.launch(
        _softmax_kernel, block, out, out, out, *_split_float(inverse_temperature), LIFT=False
    )


def softmax_with_adjustment(
    block: Tensor, inverse_temperature: float, columns: Tensor, winner: Tensor, out: Tensor
) -> bool:
    """Write p·scale + shift of each row, p = softmax(b·x), and `top` for the predicted class.

    Parameters
    ----------
    block : tensor of shape (n_rows, n_classes)
        Logits.

    inverse_temperature : float
        Inverse temperature b.

    columns : tensor of shape (3, n_rows)
        scale, shift and top.

    winner : tensor of int64 of shape (n_rows,)
        Predictions.

    out : tensor of shape (n_rows, n_classes)
        Buffer for the result.

    Returns
    -------
    bool
        False if Triton cannot run.
    """
    layout = _Layout(block, WHOLE_ROW_SOFTMAX)
    return layout.launch(
        _softmax_kernel,
        block,
        out,
        columns.contiguous(),
        winner.contiguous(),
        *_split_float(inverse_temperature),
        LIFT=True,
    )


def mixture_loss_sums(
    columns: Tensor, weights: Tensor | None, walked: float, b: float, uniform: float
) -> Tensor | None:
    """Compute `kernels.columns.mixture_loss_sums` in one launch instead of thirty.

    Parameters
    ----------
    columns, weights, walked, b, uniform
        As in `kernels.columns.mixture_loss_sums`.

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
    is_done = fused.launch_kernel(
        _sums_kernel,
        n_programs,
        columns,
        columns if weights is None else weights.contiguous(),
        program_sums,
        *_split_float(b),
        *_split_float(b - walked),
        *_split_float(uniform),
        n_rows,
        WEIGHTED=weights is not None,
        SERIES=b != walked,
        ROWS=_ROWS_PER_PROGRAM,
        num_warps=4,
    )
    return program_sums.sum(dim=1) if is_done else None


@jit
def _classify_logits(x, top):
    """Return masks of the largest logits and of possible classes, and d = x - top below 0."""
    d = x - top[:, None]
    return (
        tl.where(d == 0.0, 1, 0),
        tl.where(x > float("-inf"), 1, 0),
        tl.where(d < 0.0, d, float("-inf")),
    )


@jit
def _reduce_over_classes(tied, there, behind):
    """Return the numbers of largest logits and possible classes, and d of the second largest."""
    return tl.sum(tied, axis=1), tl.sum(there, axis=1), tl.max(behind, axis=1)


@jit
def _moments(x, top, b, floor, KIND: tl.constexpr):
    """Return w = e^{bd}, w·d, … w·d⁴, with d = x - top."""
    d = x - top[:, None]
    near = tl.maximum(d, floor)
    w = tl.exp(near * b)
    # The term of the largest logit, which is 1, is added at the end.
    if KIND != "losses":
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
    """Compute sums over the classes of each row, and the statistics of the given kind."""
    WORK: tl.constexpr = tl.float64 if WIDE else tl.float32
    rows, inside, start, cols, n_classes = _locate_rows(
        table, stride_units, n_rows, class_units, UNIT, ROWS, COLS
    )
    b64 = _join_floats(high, low)
    b = b64.to(WORK)
    x = _load_tile(start, inside, cols, n_classes, WIDE)
    best, place = x, tl.zeros([ROWS, COLS], tl.int32) + cols[None, :]
    for first in range(COLS, TILES * COLS, COLS):
        x = _load_tile(start, inside, first + cols, n_classes, WIDE)
        place = tl.where(x > best, (first + cols)[None, :], place)
        best = tl.maximum(best, x)
    top = tl.max(best, axis=1)
    winner = tl.min(tl.where(best == top[:, None], place, 2147483647), axis=1)
    if TILES > 1:
        x = _load_tile(start, inside, cols, n_classes, WIDE)
    tied, there, behind = _classify_logits(x, top)
    # Summing at once frees the registers of the tile.
    if TILES == 1:
        ties, possible, second = _reduce_over_classes(tied, there, behind)
    v0, v1, v2, v3, v4 = _moments(x, top, b, floor, KIND)
    if TILES > 1:
        for first in range(COLS, TILES * COLS, COLS):
            x = _load_tile(start, inside, first + cols, n_classes, WIDE)
            at_top, not_masked, lower = _classify_logits(x, top)
            tied += at_top
            there += not_masked
            behind = tl.maximum(behind, lower)
            w0, w1, w2, w3, w4 = _moments(x, top, b, floor, KIND)
            v0 += w0
            v1 += w1
            v2 += w2
            v3 += w3
            v4 += w4
        ties, possible, second = _reduce_over_classes(tied, there, behind)
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
            count = _load_weights(weights, rows, inside, WEIGHTED, ROWS)
            _store_program_sum(out, 0, count * (tl.log(total) - b64 * own), inside)
            _store_program_sum(out, 1, count * (m1 - own), inside)
            _store_program_sum(out, 2, count * (m2 - square), inside)
            _store_program_sum(out, 3, count * (m3 - m1 * (3.0 * m2 - 2.0 * square)), inside)
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
def _store_program_sum(parts, which, values, inside):
    """Store the sum of the rows of this program, for one of the sums."""
    at = parts + which * tl.num_programs(0) + tl.program_id(0)
    tl.store(at, tl.sum(tl.where(inside, values, 0.0), axis=0))


@jit
def _load_weights(weights, rows, inside, WEIGHTED: tl.constexpr, ROWS: tl.constexpr):
    """Return the weights of the rows."""
    # Triton compiles only one branch of an `if` of a constant.
    if WEIGHTED:
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
    """Compute p = softmax(b·x) or, with LIFT, the result of `softmax_with_adjustment`; masked classes stay 0."""
    WORK: tl.constexpr = tl.float64 if WIDE else tl.float32
    rows, inside, start, cols, n_classes = _locate_rows(
        table, stride_units, n_rows, class_units, UNIT, ROWS, COLS
    )
    there = out + rows.to(tl.int64)[:, None] * n_classes
    b = _join_floats(high, low).to(WORK)
    best = tl.full([ROWS, COLS], float("-inf"), WORK)
    for first in range(0, TILES * COLS, COLS):
        best = tl.maximum(best, _load_tile(start, inside, first + cols, n_classes, WIDE))
    top = tl.max(best, axis=1)
    sums = tl.zeros([ROWS, COLS], WORK)
    for first in range(0, TILES * COLS, COLS):
        sums += tl.exp(
            (_load_tile(start, inside, first + cols, n_classes, WIDE) - top[:, None]) * b
        )
    total = tl.sum(sums, axis=1)
    if LIFT:
        scale = tl.load(columns + rows, mask=inside, other=0.0).to(WORK)[:, None]
        shift = tl.load(columns + n_rows + rows, mask=inside, other=0.0).to(WORK)[:, None]
        first_place = tl.load(columns + 2 * n_rows + rows, mask=inside, other=0.0).to(WORK)[:, None]
        winner = tl.load(winners + rows, mask=inside, other=0)[:, None]
    for first in range(0, TILES * COLS, COLS):
        at = first + cols
        x = _load_tile(start, inside, at, n_classes, WIDE)
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
    """Sum -log q, its gradient and its curvature, by the formulas of `columns.mixture_loss_sums`."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < n
    at = columns + rows
    b, uniform = _join_floats(b_high, b_low), _join_floats(uniform_high, uniform_low)
    value = _log1p(tl.load(at, mask=inside, other=1.0))
    slope = tl.load(at + n, mask=inside, other=0.0)
    second = tl.load(at + 2 * n, mask=inside, other=0.0)
    own = tl.load(at + 5 * n, mask=inside, other=0.0)
    even = 1.0 / tl.load(at + 6 * n, mask=inside, other=1.0)
    if SERIES:
        step = _join_floats(step_high, step_low)
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
    count = _load_weights(weights, rows, inside, WEIGHTED, ROWS)
    bent = (b * b) * share * second - part - (part - share * part) * slope
    _store_program_sum(parts, 0, -count * tl.log(mixed), inside)
    _store_program_sum(parts, 1, -count * part, inside)
    _store_program_sum(parts, 2, count * away, inside)
    _store_program_sum(parts, 3, count * bent, inside)
    _store_program_sum(parts, 4, count * chance * even * slope * each * each, inside)
    _store_program_sum(parts, 5, count * away * away, inside)
