# mypy: allow-untyped-calls, allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-any-generics
"""The kernels on a device: blocks are torch tensors, and so are the answers. Nothing is copied to the host here.

Each statistic comes twice. The plain form is chunked torch in float64 and says what is meant, as `numpy.py` does on the
host. The fused form, in Triton, reads each row from device memory once; it runs on CUDA wherever Triton can.

Fused scores of float16, bfloat16 and float32 tables add e^(x - second largest) in float32 and finish each row in
float64. The sum starts at one, so it is good to about 1e-7 relative however confident the row; float64 tables are
worked on in float64 throughout.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metacal.errors import MetacalWarning

try:
    import triton
    import triton.language as tl

    jit = triton.jit
except ImportError:  # a build of torch without Triton: the plain form always works
    triton = None

    def jit(function: Callable) -> Callable:
        """Leave the function as it is; without Triton it is never called."""
        return function


#: Elements that the plain form works on at a time.
CHUNK_ELEMENTS = 1 << 22
#: A row of up to this many classes is held in registers; longer ones are read twice or thrice, from the cache.
WHOLE_ROW, WHOLE_ROW_SOFTMAX = 8192, 32768
#: Elements of a tile, and elements of it per thread.
TILE_ELEMENTS, THREAD_ELEMENTS = 4096, 32

_PREDICTED, _ENTROPY, _DOUBT, _MARGIN, _ENERGY = range(5)
#: e^d is zero below these, as in `numpy.py`.
_ZERO = {torch.float64: -800.0, torch.float32: -100.0}
_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_LOWEST = -float(np.finfo(np.float64).max)

_triton_works = triton is not None and os.environ.get("METACAL_KERNEL") != "numpy"


# --- the interface of numpy.py -------------------------------------------------------------------------------------


def predicted(block: Tensor) -> Tensor:
    """ŷ = argmax x, the lowest index on an exact tie."""
    return _score(block, _PREDICTED, _plain_predicted, torch.int64)


def entropy(block: Tensor) -> Tensor:
    """Entropy of softmax(x), without cancellation."""
    return _score(block, _ENTROPY, _plain_entropy)


def doubt(block: Tensor) -> Tensor:
    """1 - max p, without cancellation."""
    return _score(block, _DOUBT, _plain_doubt)


def negative_margin(block: Tensor) -> Tensor:
    """Second largest logit minus the largest; the most negative float where every other class is masked."""
    return _score(block, _MARGIN, _plain_margin)


def free_energy(block: Tensor) -> Tensor:
    """-logsumexp(x)."""
    return _score(block, _ENERGY, _plain_energy)


def softmax(block: Tensor, inverse_temperature: float, out: Tensor) -> None:
    """Write softmax(b·x) of each row into `out`."""
    if _can_fuse(block) and out.is_contiguous():
        layout = _Layout(block, WHOLE_ROW_SOFTMAX)
        high, low = _split(inverse_temperature)
        if layout.launch(_softmax_kernel, block, out, high, low):
            return
    for rows in _chunks(block):
        gaps = _gaps(block[rows], _work_type(block))
        gaps.mul_(inverse_temperature).exp_()
        torch.div(gaps, gaps.sum(dim=1, keepdim=True), out=out[rows])


def tempered_loss(block: Tensor, labels: Tensor, weights: Tensor | None, inverse_temperature: float) -> Tensor:
    """Sum over rows of the negative log-likelihood of softmax(b·x) and its first three derivatives in b, in float64."""
    if _can_fuse(block):
        layout = _Layout(block, WHOLE_ROW)
        parts = torch.empty((4, layout.programs), dtype=torch.float64, device=block.device)
        high, low = _split(inverse_temperature)
        floor = _ZERO[_work_type(block)] / inverse_temperature
        counts = labels if weights is None else weights
        arguments = (block, labels.contiguous(), counts.contiguous(), parts, high, low, floor)
        if layout.launch(_loss_kernel, *arguments, WEIGHTED=weights is not None):
            return parts.sum(dim=1)
    total = torch.zeros(4, dtype=torch.float64, device=block.device)
    for rows in _chunks(block):
        total += _plain_loss(block[rows], labels[rows], None if weights is None else weights[rows], inverse_temperature)
    return total


def correct(block: Tensor, labels: Tensor) -> Tensor:
    """Whether the largest logit is the true class."""
    return predicted(block) == labels


def label_is_possible(block: Tensor, labels: Tensor) -> Tensor:
    """Whether the true class of each row is not masked."""
    return block.gather(1, labels[:, None])[:, 0] > -math.inf


def spread(block: Tensor) -> Tensor:
    """Largest minus smallest finite logit of each row."""
    found = [_plain_spread(block[rows]) for rows in _chunks(block)]
    return torch.cat(found)


# --- between host and device ---------------------------------------------------------------------------------------


def beside(values: Any, table: Tensor) -> Tensor:
    """An array or a tensor as a tensor on the table's device."""
    if isinstance(values, Tensor):
        return values.detach().to(table.device)
    array = np.ascontiguousarray(values)
    return torch.from_numpy(array if array.flags.writeable else array.copy()).to(table.device)


def joined(parts: list[Tensor]) -> NDArray[Any]:
    """The parts one after another as one array on the host."""
    found: NDArray[Any] = (parts[0] if len(parts) == 1 else torch.cat(parts)).cpu().numpy()
    return found


def added(parts: list[Tensor]) -> NDArray[Any]:
    """The sum of the parts, in their order, as an array on the host."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    found: NDArray[Any] = total.cpu().numpy()
    return found


def kept_rows(block: Tensor, keep: NDArray[np.bool_]) -> Tensor:
    """The rows of a block where `keep` is true; the block itself where that is all of them."""
    if keep.all():
        return block
    return block.index_select(0, torch.from_numpy(np.flatnonzero(keep)).to(block.device))


def empty_probabilities(table: Tensor) -> Tensor:
    """An unwritten table of the same shape: float64 for float64, float32 for every other type."""
    return torch.empty(table.shape, dtype=_work_type(table), device=table.device)


def label_codes(labels: Any, table: Tensor) -> Tensor | None:
    """Labels that are already column numbers, checked on the device; None where a closer look is needed."""
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


def first_bad_row(table: Tensor) -> int | None:
    """The first row whose largest logit is NaN or infinite; None when there is none. One pass, one flag to the host."""
    bad = ~torch.isfinite(table.amax(dim=1))
    return int(bad.to(torch.uint8).argmax()) if bool(bad.any()) else None


def first_row_that_is_no_probability(table: Tensor, tolerance: float) -> int | None:
    """The first row with an entry outside [0, 1] or with a sum that is not one."""
    for rows in _chunks(table):
        block = table[rows]
        sums = block.sum(dim=1, dtype=torch.float64)
        good = (block.amin(dim=1) >= 0) & (block.amax(dim=1) <= 1 + tolerance) & ((sums - 1).abs() <= tolerance)
        if not bool(good.all()):
            return int(rows.start) + int((~good).to(torch.uint8).argmax())
    return None


def log_probabilities(table: Tensor) -> Tensor:
    """log p, with zeros read as the smaller of 2.2e-16 and the row's smallest positive entry."""
    out = empty_probabilities(table)
    for rows in _chunks(table):
        block = out[rows].copy_(table[rows])
        zero = block <= 0.0
        smallest = torch.where(zero, math.inf, block).amin(dim=1, keepdim=True)
        smallest = smallest.clamp(max=float(np.finfo(np.float64).eps))
        torch.where(zero, smallest, block, out=block)
        block.log_()
    return out


# --- the plain form ------------------------------------------------------------------------------------------------


def _work_type(block: Tensor) -> torch.dtype:
    return torch.float64 if block.dtype == torch.float64 else torch.float32


def _chunks(block: Tensor) -> Iterator[slice]:
    step = max(1, CHUNK_ELEMENTS // block.shape[1])
    for start in range(0, len(block), step):
        yield slice(start, min(start + step, len(block)))


def _gaps(block: Tensor, dtype: torch.dtype) -> Tensor:
    """d = x - max x of each row, a fresh tensor."""
    gaps = block.to(dtype, copy=True)
    return gaps.sub_(gaps.amax(dim=1, keepdim=True))


def _score(block: Tensor, kind: int, plain: Callable[[Tensor], Tensor], dtype: torch.dtype = torch.float64) -> Tensor:
    if _can_fuse(block):
        out = torch.empty(len(block), dtype=dtype, device=block.device)
        if _Layout(block, WHOLE_ROW).launch(_score_kernel, block, out, KIND=kind):
            return out
    return torch.cat([plain(block[rows]) for rows in _chunks(block)])


def _plain_predicted(block: Tensor) -> Tensor:
    # argmax of torch may return any of several equal entries; the comparison's first True is the lowest index.
    return (block == block.amax(dim=1, keepdim=True)).to(torch.uint8).argmax(dim=1)


def _tail(block: Tensor) -> tuple[Tensor, Tensor]:
    """d (clamped) and e^d with the top entry's e^d set to zero: what surrounds the winner."""
    gaps = _gaps(block, torch.float64).clamp_(min=_ZERO[torch.float64])
    return gaps, gaps.exp().scatter_(1, _plain_predicted(block)[:, None], 0.0)


def _plain_entropy(block: Tensor) -> Tensor:
    gaps, weights = _tail(block)
    mass = weights.sum(dim=1)
    return torch.log1p(mass) - weights.mul_(gaps).sum(dim=1) / (1.0 + mass)


def _plain_doubt(block: Tensor) -> Tensor:
    mass = _tail(block)[1].sum(dim=1)
    return mass / (1.0 + mass)


def _plain_margin(block: Tensor) -> Tensor:
    top = block.topk(2, dim=1).values.to(torch.float64)
    return (top[:, 1] - top[:, 0]).clamp_(min=_LOWEST)


def _plain_energy(block: Tensor) -> Tensor:
    mass = _tail(block)[1].sum(dim=1)
    return -(block.amax(dim=1).to(torch.float64) + torch.log1p(mass))


def _plain_spread(block: Tensor) -> Tensor:
    gaps = _gaps(block, torch.float64)
    return -torch.where(gaps > -math.inf, gaps, 0.0).amin(dim=1)


def _plain_loss(block: Tensor, labels: Tensor, weights: Tensor | None, inverse_temperature: float) -> Tensor:
    gaps = _gaps(block, _work_type(block))
    own = gaps.gather(1, labels[:, None])[:, 0].to(torch.float64)
    gaps.clamp_(min=_ZERO[gaps.dtype] / inverse_temperature)
    terms = gaps.mul(inverse_temperature).exp_()
    s0 = terms.sum(dim=1).to(torch.float64)
    m1, m2, m3 = (terms.mul_(gaps).sum(dim=1).to(torch.float64) / s0 for _ in range(3))
    variance = m2 - m1 * m1
    third = m3 - m1 * (3.0 * m2 - 2.0 * m1 * m1)
    rows = torch.stack([torch.log(s0) - inverse_temperature * own, m1 - own, variance, third])
    return (rows if weights is None else rows * weights).sum(dim=1)


# --- the fused form ------------------------------------------------------------------------------------------------


def _can_fuse(block: Tensor) -> bool:
    """Whether Triton can walk the block: on CUDA (or interpreted), the entries of a row next to each other."""
    there = block.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"
    return _triton_works and there and block.stride(1) == 1 and block.stride(0) >= 0


def _split(value: float) -> tuple[float, float]:
    """A float64 as two float32, since Triton passes numbers in single precision."""
    high = float(np.float32(value))
    return high, value - high


class _Layout:
    """How a block is cut into tiles: ROWS × COLS per program."""

    def __init__(self, block: Tensor, whole_row: int) -> None:
        n_rows, n_classes = block.shape
        width = 1 << (n_classes - 1).bit_length()
        wide = block.dtype == torch.float64
        tile = TILE_ELEMENTS // 2 if wide else TILE_ELEMENTS
        self.cols = width if width <= (whole_row // 2 if wide else whole_row) else tile
        self.tiles = -(-n_classes // self.cols)
        self.rows = max(1, tile // self.cols)
        self.programs = -(-n_rows // self.rows)
        # Longer rows keep several running values per element, and float64 takes two registers each.
        per_thread = THREAD_ELEMENTS // 2 if wide or self.tiles > 1 else THREAD_ELEMENTS
        self.warps = min(32, max(1, self.rows * self.cols // (32 * per_thread)))
        # Sizes are passed in units of their common power of two: that is how the compiler learns that loads align.
        self.unit = math.gcd(n_classes, block.stride(0), 16)

    def launch(self, kernel: Any, block: Tensor, *arguments: Any, **constants: Any) -> bool:
        """Start the kernel; False, with a warning, where Triton cannot (no compiler, say), and never tried again."""
        global _triton_works
        n_rows, n_classes = block.shape
        sizes = (block.stride(0) // self.unit, n_rows, n_classes // self.unit)
        shape = {"UNIT": self.unit, "ROWS": self.rows, "COLS": self.cols, "TILES": self.tiles}
        wide = {"WIDE": block.dtype == torch.float64}
        try:
            with torch.cuda.device_of(block):
                kernel[(self.programs,)](block, *arguments, *sizes, **constants, **wide, **shape, num_warps=self.warps)
        except Exception as error:
            _triton_works = False
            warnings.warn(
                f"the fused kernels do not run here ({type(error).__name__}: {error}); plain torch is used, which is "
                "slower and gives the same answers.",
                MetacalWarning,
                stacklevel=2,
            )
            return False
        return True


@jit
def _tile(start, inside, cols, n_classes, WIDE: tl.constexpr):
    """Columns `cols` of the program's rows in the working precision; -inf outside the table."""
    x = tl.load(start + cols[None, :], mask=inside[:, None] & (cols < n_classes)[None, :], other=float("-inf"))
    return x.to(tl.float64 if WIDE else tl.float32)


@jit
def _log1p(x):
    """log(1 + x) without the rounding of 1 + x (Kahan)."""
    y = 1.0 + x
    return tl.where(y == 1.0, x, tl.log(y) * (x / tl.where(y == 1.0, 1.0, y - 1.0)))


@jit
def _score_kernel(
    table,
    out,
    stride_units,
    n_rows,
    class_units,
    KIND: tl.constexpr,
    WIDE: tl.constexpr,
    UNIT: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    TILES: tl.constexpr,
):
    """One score per row. First the winner and the runner-up, then the others' weight relative to the runner-up."""
    WORK: tl.constexpr = tl.float64 if WIDE else tl.float32
    ZERO: tl.constexpr = -800.0 if WIDE else -100.0
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < n_rows
    n_classes = class_units * UNIT
    start = table + rows.to(tl.int64)[:, None] * (stride_units * UNIT)
    cols = tl.arange(0, COLS)
    if TILES == 1:
        x = _tile(start, inside, cols, n_classes, WIDE)
        top = tl.max(x, axis=1)
        winner = tl.min(tl.where(x == top[:, None], cols[None, :], 2147483647), axis=1)
        second = tl.max(tl.where(cols[None, :] == winner[:, None], float("-inf"), x), axis=1)
    else:
        best = tl.full([ROWS, COLS], float("-inf"), WORK)
        following = tl.full([ROWS, COLS], float("-inf"), WORK)
        place = tl.zeros([ROWS, COLS], tl.int32)
        for first in range(0, TILES * COLS, COLS):
            x = _tile(start, inside, first + cols, n_classes, WIDE)
            higher = x > best
            following = tl.where(higher, best, tl.maximum(following, x))
            place = tl.where(higher, (first + cols)[None, :], place)
            best = tl.where(higher, x, best)
        top = tl.max(best, axis=1)
        winner = tl.min(tl.where(best == top[:, None], place, 2147483647), axis=1)
        second = tl.max(tl.where(place == winner[:, None], following, best), axis=1)
    if KIND == 0:
        tl.store(out + rows, winner.to(tl.int64), mask=inside)
    else:
        alone = second == float("-inf")
        gap = tl.where(alone, float("-inf"), second.to(tl.float64) - top.to(tl.float64))
        if KIND == 3:
            value = tl.maximum(gap, -1.7976931348623157e308)
        else:
            base = tl.where(alone, 0.0, second)
            if TILES == 1:
                u = tl.minimum(tl.maximum(x - base[:, None], ZERO), 0.0)
                w = tl.where(cols[None, :] == winner[:, None], 0.0, tl.exp(u))
                mass = tl.sum(w, axis=1)
                tilt = tl.sum(w * u, axis=1)
            else:
                masses = tl.zeros([ROWS, COLS], WORK)
                tilts = tl.zeros([ROWS, COLS], WORK)
                for first in range(0, TILES * COLS, COLS):
                    x = _tile(start, inside, first + cols, n_classes, WIDE)
                    u = tl.minimum(tl.maximum(x - base[:, None], ZERO), 0.0)
                    w = tl.where((first + cols)[None, :] == winner[:, None], 0.0, tl.exp(u))
                    masses += w
                    tilts += w * u
                mass = tl.sum(masses, axis=1)
                tilt = tl.sum(tilts, axis=1)
            gap = tl.maximum(gap, -800.0)
            scale = tl.where(alone, 0.0, tl.exp(gap))
            mass = mass.to(tl.float64)
            tilt = scale * (tilt.to(tl.float64) + gap * mass)
            mass = scale * mass
            if KIND == 1:
                value = _log1p(mass) - tilt / (1.0 + mass)
            elif KIND == 2:
                value = mass / (1.0 + mass)
            else:
                value = -(top.to(tl.float64) + _log1p(mass))
        tl.store(out + rows, value, mask=inside)


@jit
def _loss_kernel(
    table,
    labels,
    weights,
    parts,
    high,
    low,
    floor,
    stride_units,
    n_rows,
    class_units,
    WEIGHTED: tl.constexpr,
    WIDE: tl.constexpr,
    UNIT: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    TILES: tl.constexpr,
):
    """The tempered loss and its derivatives, summed over the program's rows."""
    WORK: tl.constexpr = tl.float64 if WIDE else tl.float32
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < n_rows
    n_classes = class_units * UNIT
    start = table + rows.to(tl.int64)[:, None] * (stride_units * UNIT)
    cols = tl.arange(0, COLS)
    b64 = tl.full([], high, tl.float64) + tl.full([], low, tl.float64)
    b = b64.to(WORK)
    if TILES == 1:
        x = _tile(start, inside, cols, n_classes, WIDE)
        top = tl.max(x, axis=1)
        d = tl.maximum(x - top[:, None], floor)
        w = tl.exp(d * b)
        s0 = tl.sum(w, axis=1)
        w = w * d
        s1 = tl.sum(w, axis=1)
        w = w * d
        s2 = tl.sum(w, axis=1)
        s3 = tl.sum(w * d, axis=1)
    else:
        best = tl.full([ROWS, COLS], float("-inf"), WORK)
        for first in range(0, TILES * COLS, COLS):
            best = tl.maximum(best, _tile(start, inside, first + cols, n_classes, WIDE))
        top = tl.max(best, axis=1)
        v0 = tl.zeros([ROWS, COLS], WORK)
        v1 = tl.zeros([ROWS, COLS], WORK)
        v2 = tl.zeros([ROWS, COLS], WORK)
        v3 = tl.zeros([ROWS, COLS], WORK)
        for first in range(0, TILES * COLS, COLS):
            x = _tile(start, inside, first + cols, n_classes, WIDE)
            d = tl.maximum(x - top[:, None], floor)
            w = tl.exp(d * b)
            v0 += w
            w = w * d
            v1 += w
            w = w * d
            v2 += w
            v3 += w * d
        s0 = tl.sum(v0, axis=1)
        s1 = tl.sum(v1, axis=1)
        s2 = tl.sum(v2, axis=1)
        s3 = tl.sum(v3, axis=1)
    label = tl.load(labels + rows, mask=inside, other=0)
    true = tl.load(table + rows.to(tl.int64) * (stride_units * UNIT) + label, mask=inside, other=0.0)
    own = true.to(tl.float64) - top.to(tl.float64)
    total = s0.to(tl.float64)
    m1 = s1.to(tl.float64) / total
    m2 = s2.to(tl.float64) / total
    m3 = s3.to(tl.float64) / total
    if WEIGHTED:  # noqa: SIM108 - in Triton an if of a constant leaves one branch out
        count = tl.load(weights + rows, mask=inside, other=0.0)
    else:
        count = tl.full([ROWS], 1.0, tl.float64)
    programs = tl.num_programs(0)
    out = parts + tl.program_id(0)
    third = m3 - m1 * (3.0 * m2 - 2.0 * m1 * m1)
    tl.store(out, tl.sum(tl.where(inside, count * (tl.log(total) - b64 * own), 0.0), axis=0))
    tl.store(out + programs, tl.sum(tl.where(inside, count * (m1 - own), 0.0), axis=0))
    tl.store(out + 2 * programs, tl.sum(tl.where(inside, count * (m2 - m1 * m1), 0.0), axis=0))
    tl.store(out + 3 * programs, tl.sum(tl.where(inside, count * third, 0.0), axis=0))


@jit
def _softmax_kernel(
    table,
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
    """softmax(b·x): one read and one write of rows that fit in registers."""
    WORK: tl.constexpr = tl.float64 if WIDE else tl.float32
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < n_rows
    n_classes = class_units * UNIT
    start = table + rows.to(tl.int64)[:, None] * (stride_units * UNIT)
    there = out + rows.to(tl.int64)[:, None] * n_classes
    cols = tl.arange(0, COLS)
    b = (tl.full([], high, tl.float64) + tl.full([], low, tl.float64)).to(WORK)
    if TILES == 1:
        x = _tile(start, inside, cols, n_classes, WIDE)
        w = tl.exp((x - tl.max(x, axis=1)[:, None]) * b)
        w = w / tl.sum(w, axis=1)[:, None]
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
            w = tl.exp((_tile(start, inside, at, n_classes, WIDE) - top[:, None]) * b) / total[:, None]
            tl.store(there + at[None, :], w, mask=inside[:, None] & (at < n_classes)[None, :])
