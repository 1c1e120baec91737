# mypy: allow-untyped-calls, allow-untyped-decorators, allow-untyped-defs
# mypy: allow-incomplete-defs, allow-any-generics
# mypy: implicit-reexport
"""The fused form of the kernels on a device, in Triton: each row is read from device memory once.

`torch.py` asks for a statistic; None (or False) comes back where Triton cannot run, and the plain
form does the work.

A program has some rows, and goes through them a tile of columns at a time. A tile that holds whole
rows is read once.

Scores take their exponentials and sums in float64 whatever the table, as on the host: a decision
must not depend on where it was made, and the grid that scores are rounded to
(`metacal.kernels.grid`) is finer than float32.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metacal.errors import MetacalWarning

try:
    import triton
    import triton.language as tl

    jit = triton.jit
except ImportError:  # a build of torch without Triton: the plain form always works
    triton = tl = None

    def jit(function: Callable) -> Callable:
        """Leave the function as it is; without Triton it is never called."""
        return function


#: A row of up to this many classes is held in registers; longer ones are read twice or thrice, from
#: the cache.
WHOLE_ROW, WHOLE_ROW_SOFTMAX = 8192, 32768
#: Elements of a tile, and elements of it per thread; the same where a row takes several tiles.
#: Fastest on an H200.
TILE_ELEMENTS, THREAD_ELEMENTS = 1024, 32
LONG_TILE_ELEMENTS, LONG_THREAD_ELEMENTS = 2048, 8
LONG_WIDE_TILE_ELEMENTS = 256

works = triton is not None and os.environ.get("METACAL_KERNEL") != "numpy"


def can_fuse(block: Tensor) -> bool:
    """Whether Triton can walk the block: on CUDA (or interpreted), the entries of a row next to
    each other.
    """
    there = block.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"
    return works and there and block.stride(1) == 1 and block.stride(0) >= 0


def score(
    block: Tensor,
    kind: str,
    dtype: torch.dtype,
    top: Tensor | None = None,
    lowest: float | None = None,
) -> Tensor | None:
    """One score, or what is "predicted", per row. Predictions also go into `top`.

    With `lowest` the walk is careful: a row with a finite logit that is no higher has no score, nor
    has one that is no row of logits.
    """
    out = torch.empty(len(block), dtype=dtype, device=block.device)
    layout = _Layout(block, WHOLE_ROW, wide=kind not in ("predicted", "negative_margin"))
    arguments = (block, out, out if top is None else top, 0.0 if lowest is None else lowest)
    careful = {"TOP": top is not None, "CAREFUL": lowest is not None}
    return out if layout.launch(_score_kernel, *arguments, KIND=kind, **careful) else None


def _split(value: float) -> tuple[float, float]:
    """A float64 as two float32, since Triton passes numbers in single precision."""
    high = float(np.float32(value))
    return high, value - high


class _Layout:
    """How a block is cut into tiles: ROWS × COLS per program."""

    def __init__(
        self, block: Tensor, whole_row: int, wide: bool = False, many: bool = False
    ) -> None:
        n_rows, n_classes = block.shape
        width = 1 << (n_classes - 1).bit_length()
        wide = wide or block.dtype == torch.float64
        fits = width <= (whole_row // 2 if wide else whole_row)
        tile, per_thread = (
            (TILE_ELEMENTS, THREAD_ELEMENTS) if fits else (LONG_TILE_ELEMENTS, LONG_THREAD_ELEMENTS)
        )
        if many and not fits:  # many sums side by side take registers, too
            tile, per_thread = tile // 2, per_thread // 2
        if wide:  # float64 takes two registers each
            tile, per_thread = (
                (tile // 2 if fits else LONG_WIDE_TILE_ELEMENTS),
                max(1, per_thread // 2),
            )
        self.cols = width if fits else tile
        self.tiles = -(-n_classes // self.cols)
        self.rows = max(1, tile // self.cols)
        self.programs = -(-n_rows // self.rows)
        self.warps = min(32, max(1, self.rows * self.cols // (32 * per_thread)))
        # Sizes are passed in units of their common power of two: that is how the compiler learns
        # that loads align.
        self.unit = math.gcd(n_classes, block.stride(0), 16)

    def launch(self, kernel: Any, block: Tensor, *arguments: Any, **constants: Any) -> bool:
        """Start the kernel; False where Triton cannot walk the block, or cannot run (no compiler,
        say).
        """
        if not can_fuse(block):
            return False
        n_rows, n_classes = block.shape
        sizes = (block.stride(0) // self.unit, n_rows, n_classes // self.unit)
        shape = {"UNIT": self.unit, "ROWS": self.rows, "COLS": self.cols, "TILES": self.tiles}
        constants |= {"WIDE": block.dtype == torch.float64, **shape, "num_warps": self.warps}
        return launched(kernel, self.programs, block, *arguments, *sizes, **constants)


def launched(kernel: Any, programs: int, first: Tensor, *arguments: Any, **constants: Any) -> bool:
    """Start a kernel where `first` lies; False, with a warning, where Triton cannot, and never
    tried again.
    """
    global works
    try:
        with torch.cuda.device_of(first):
            kernel[(programs,)](first, *arguments, **constants)
    except Exception as error:
        works = False
        warnings.warn(
            f"the fused kernels do not run here ({type(error).__name__}: {error}); plain torch is"
            " used, which is slower and gives the same answers.",
            MetacalWarning,
            stacklevel=2,
        )
        return False
    return True


@jit
def _begin(
    table,
    stride_units,
    n_rows,
    class_units,
    UNIT: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """The program's rows, which of them there are, where each begins, the columns of a tile, and
    how many there are.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    start = table + rows.to(tl.int64)[:, None] * (stride_units * UNIT)
    return rows, rows < n_rows, start, tl.arange(0, COLS), class_units * UNIT


@jit
def _whole(high, low):
    """The float64 that was split in two float32."""
    return tl.full([], high, tl.float64) + tl.full([], low, tl.float64)


@jit
def _tile(start, inside, cols, n_classes, WIDE: tl.constexpr):
    """Columns `cols` of the program's rows in the working precision; -inf outside the table."""
    x = tl.load(
        start + cols[None, :],
        mask=inside[:, None] & (cols < n_classes)[None, :],
        other=float("-inf"),
    )
    return x.to(tl.float64 if WIDE else tl.float32)


@jit
def _log1p(x):
    """log(1 + x) without the rounding of 1 + x (Kahan)."""
    y = 1.0 + x
    return tl.where(y == 1.0, x, tl.log(y) * (x / tl.where(y == 1.0, 1.0, y - 1.0)))


@jit
def _exp(u):
    """e^u in float64 for -700 <= u <= 0, beside a sum of at least 1: 2^n·e^r, n being u/log 2
    rounded.

    Added to 1.5·2^52, a number is rounded, and its integer stands in the last bits; moved into the
    exponent's place there it is added to that of e^r. This is a polynomial through Chebyshev's
    points, 2e-17 off. Where n is large r is off by n·2e-17, and e^u is small. The library's
    function is for all u, and takes half as long again.
    """
    t = u * 1.4426950408889634 + 6755399441055744.0
    n = t - 6755399441055744.0
    r = u - n * 0.6931471805599453
    p = r * 2.5100424157005067e-08 + 2.7620138719733994e-07
    p = p * r + 2.7557268378684192e-06
    p = p * r + 2.480152119021773e-05
    p = p * r + 0.00019841269863105968
    p = p * r + 0.0013888888917281794
    p = p * r + 0.008333333333330051
    p = p * r + 0.04166666666662399
    p = p * r + 0.16666666666666669
    p = p * r + 0.5000000000000001
    p = p * r + 1.0
    p = p * r + 1.0
    bits = p.to(tl.int64, bitcast=True) + (t.to(tl.int64, bitcast=True) << 52)
    return bits.to(tl.float64, bitcast=True)


@jit
def _wrong(x, wrong, lowest, CAREFUL: tl.constexpr):
    """1 where there is NaN or, carefully, a finite logit that is no higher than the lowest; else
    what it was.
    """
    wrong = tl.where(x != x, 1, wrong)
    if CAREFUL:
        wrong = tl.where((x <= lowest) & (x > float("-inf")), 1, wrong)
    return wrong


@jit
def _beside_second(x, base, cols, winner):
    """e^u and u, the distance from the runner-up; 0 for the winner, and where e^u is nothing beside
    e^0.
    """
    # What does not count is decided in the precision of the table: comparing float64 takes long.
    beyond = (cols[None, :] == winner[:, None]) | (x - base < -700.0)
    u = tl.where(beyond, base, x).to(tl.float64) - base.to(tl.float64)
    return tl.where(beyond, 0.0, _exp(u)), u


@jit
def _score_kernel(
    table,
    out,
    tops,
    lowest,
    stride_units,
    n_rows,
    class_units,
    KIND: tl.constexpr,
    TOP: tl.constexpr,
    CAREFUL: tl.constexpr,
    WIDE: tl.constexpr,
    UNIT: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    TILES: tl.constexpr,
):
    """One score per row. First the winner and the runner-up, then the others' weight relative to
    the runner-up.
    """
    WORK: tl.constexpr = tl.float64 if WIDE else tl.float32
    rows, inside, start, cols, n_classes = _begin(
        table, stride_units, n_rows, class_units, UNIT, ROWS, COLS
    )
    x = _tile(start, inside, cols, n_classes, WIDE)
    best, place = x, tl.zeros([ROWS, COLS], tl.int32) + cols[None, :]
    following = tl.full([ROWS, COLS], float("-inf"), WORK)
    wrong = _wrong(x, tl.zeros([ROWS, COLS], tl.int32), lowest, CAREFUL)
    for first in range(COLS, TILES * COLS, COLS):
        x = _tile(start, inside, first + cols, n_classes, WIDE)
        wrong = _wrong(x, wrong, lowest, CAREFUL)
        higher = x > best
        following = tl.where(higher, best, tl.maximum(following, x))
        place = tl.where(higher, (first + cols)[None, :], place)
        best = tl.where(higher, x, best)
    bad = tl.max(wrong, axis=1)
    top = tl.max(best, axis=1)
    winner = tl.min(tl.where(best == top[:, None], place, 2147483647), axis=1)
    second = tl.max(tl.where(place == winner[:, None], following, best), axis=1)
    # A row with NaN, +inf or nothing above -inf: no score, and some column.
    legal = (bad == 0) & (top < float("inf")) & (top > float("-inf"))
    if KIND == "predicted":
        tl.store(out + rows, tl.where(winner < n_classes, winner, 0).to(tl.int64), mask=inside)
    else:
        if TOP:
            tl.store(tops + rows, tl.where(winner < n_classes, winner, 0).to(tl.int64), mask=inside)
        alone = second == float("-inf")
        gap = tl.where(alone, float("-inf"), second.to(tl.float64) - top.to(tl.float64))
        if KIND == "negative_margin":
            value = tl.maximum(gap, -1.7976931348623157e308)
        else:
            base = tl.where(alone, 0.0, second)[:, None]
            if TILES > 1:
                x = _tile(start, inside, cols, n_classes, WIDE)
            masses, u = _beside_second(x, base, cols, winner)
            tilts = masses * u
            for first in range(COLS, TILES * COLS, COLS):
                x = _tile(start, inside, first + cols, n_classes, WIDE)
                w, u = _beside_second(x, base, first + cols, winner)
                masses += w
                tilts += w * u
            mass = tl.sum(masses, axis=1)
            tilt = tl.sum(tilts, axis=1)
            gap = tl.maximum(gap, -800.0)
            scale = tl.where(alone, 0.0, tl.exp(gap))
            tilt = scale * (tilt + gap * mass)
            mass = scale * mass
            if KIND == "entropy":
                value = _log1p(mass) - tilt / (1.0 + mass)
            elif KIND == "doubt":
                value = mass / (1.0 + mass)
            else:
                value = -(top.to(tl.float64) + _log1p(mass))
        tl.store(out + rows, tl.where(legal, value, float("nan")), mask=inside)
