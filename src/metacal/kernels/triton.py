# mypy: allow-untyped-calls, allow-untyped-decorators, allow-untyped-defs
# mypy: allow-incomplete-defs, allow-any-generics
# mypy: implicit-reexport
"""Fused kernels of scores in Triton: each row is read from device memory once.

The functions return None or False if Triton cannot run. `torch.py` then uses its plain
implementation.

A *program* processes a few rows, one *tile* of columns at a time. A tile that contains whole rows is
read once.

Exponentials and sums of scores are in float64 for every type of table, as on the host, because a
decision must not depend on the device, and the grid of the scores (`metacal.kernels.grid`) is finer
than float32.
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
except ImportError:
    # Some builds of torch have no Triton.
    triton = tl = None

    def jit(function: Callable) -> Callable:
        """Return the function unchanged; without Triton it is never called."""
        return function


#: Largest number of classes of a row that is held in registers, for sums and for a softmax. Longer
#: rows are read two or three times, from the cache.
WHOLE_ROW = 8192
WHOLE_ROW_SOFTMAX = 32768
#: Elements of a tile, and per thread. These are the fastest sizes on an H200.
TILE_ELEMENTS = 1024
THREAD_ELEMENTS = 32
#: The same if a row needs several tiles, and the tile of such a row in float64.
LONG_TILE_ELEMENTS = 2048
LONG_THREAD_ELEMENTS = 8
LONG_WIDE_TILE_ELEMENTS = 256

#: Whether Triton is available and has not failed so far.
is_available = triton is not None and os.environ.get("METACAL_KERNEL") != "numpy"


def can_fuse(block: Tensor) -> bool:
    """Check whether Triton can read a block: on CUDA or interpreted, with contiguous rows."""
    is_interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    has_contiguous_rows = block.stride(1) == 1 and block.stride(0) >= 0
    return is_available and (block.is_cuda or is_interpreted) and has_contiguous_rows


def score(
    block: Tensor,
    kind: str,
    dtype: torch.dtype,
    top: Tensor | None = None,
    lowest: float | None = None,
) -> Tensor | None:
    """Compute one score, or the prediction, of each row.

    Parameters
    ----------
    block : tensor of shape (n_rows, n_classes)
        Logits.

    kind : str
        Name of the score, or "predicted".

    dtype : torch.dtype
        Type of the result.

    top : tensor of int64 of shape (n_rows,), default=None
        Buffer for the predictions.

    lowest : float, default=None
        If given, rows with a finite logit of at most this value, and invalid rows, have no score.

    Returns
    -------
    tensor of shape (n_rows,) or None
        None if Triton cannot run.
    """
    out = torch.empty(len(block), dtype=dtype, device=block.device)
    layout = _Layout(block, WHOLE_ROW, wide=kind not in ("predicted", "negative_margin"))
    is_done = layout.launch(
        _score_kernel,
        block,
        out,
        out if top is None else top,
        0.0 if lowest is None else lowest,
        KIND=kind,
        TOP=top is not None,
        CAREFUL=lowest is not None,
    )
    return out if is_done else None


def _split_float(value: float) -> tuple[float, float]:
    """Split a float64 into two float32, because Triton passes numbers in single precision."""
    high = float(np.float32(value))
    return high, value - high


class _Layout:
    """Division of a block into programs and tiles of ROWS × COLS.

    Parameters
    ----------
    block : tensor of shape (n_rows, n_classes)
        The block.

    whole_row : int
        Largest number of classes of a row in registers.

    wide : bool, default=False
        Whether the kernel computes in float64.

    many : bool, default=False
        Whether the kernel has many sums per row.
    """

    def __init__(
        self, block: Tensor, whole_row: int, wide: bool = False, many: bool = False
    ) -> None:
        n_rows, n_classes = block.shape
        width = 1 << (n_classes - 1).bit_length()
        wide = wide or block.dtype == torch.float64
        fits = width <= (whole_row // 2 if wide else whole_row)
        tile = TILE_ELEMENTS if fits else LONG_TILE_ELEMENTS
        per_thread = THREAD_ELEMENTS if fits else LONG_THREAD_ELEMENTS
        # Many sums need registers, too.
        if many and not fits:
            tile //= 2
            per_thread //= 2
        # A float64 needs two registers.
        if wide:
            tile = tile // 2 if fits else LONG_WIDE_TILE_ELEMENTS
            per_thread = max(1, per_thread // 2)
        self.cols = width if fits else tile
        self.tiles = -(-n_classes // self.cols)
        self.rows = max(1, tile // self.cols)
        self.programs = -(-n_rows // self.rows)
        self.warps = min(32, max(1, self.rows * self.cols // (32 * per_thread)))
        # Sizes are passed in units of their common power of two, which shows the compiler that
        # loads are aligned.
        self.unit = math.gcd(n_classes, block.stride(0), 16)

    def launch(self, kernel: Any, block: Tensor, *arguments: Any, **constants: Any) -> bool:
        """Start a kernel; return False if Triton cannot read the block or cannot run."""
        if not can_fuse(block):
            return False
        n_rows, n_classes = block.shape
        sizes = (block.stride(0) // self.unit, n_rows, n_classes // self.unit)
        shape = {"UNIT": self.unit, "ROWS": self.rows, "COLS": self.cols, "TILES": self.tiles}
        constants |= {"WIDE": block.dtype == torch.float64, **shape, "num_warps": self.warps}
        return launch_kernel(kernel, self.programs, block, *arguments, *sizes, **constants)


def launch_kernel(
    kernel: Any, programs: int, first: Tensor, *arguments: Any, **constants: Any
) -> bool:
    """Start a kernel on the device of `first`.

    If Triton fails, warn, return False, and never try again.
    """
    global is_available
    try:
        with torch.cuda.device_of(first):
            kernel[(programs,)](first, *arguments, **constants)
    except Exception as error:
        is_available = False
        warnings.warn(
            f"the fused kernels do not run here ({type(error).__name__}: {error}); plain torch is"
            " used, which is slower and gives the same answers.",
            MetacalWarning,
            stacklevel=2,
        )
        return False
    return True


@jit
def _locate_rows(
    table,
    stride_units,
    n_rows,
    class_units,
    UNIT: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """Return row indices, row mask, row addresses, column indices and number of classes."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    start = table + rows.to(tl.int64)[:, None] * (stride_units * UNIT)
    return rows, rows < n_rows, start, tl.arange(0, COLS), class_units * UNIT


@jit
def _join_floats(high, low):
    """Join the two float32 of `_split_float` to a float64."""
    return tl.full([], high, tl.float64) + tl.full([], low, tl.float64)


@jit
def _load_tile(start, inside, cols, n_classes, WIDE: tl.constexpr):
    """Load columns of the rows in the working precision, -inf outside of the table."""
    x = tl.load(
        start + cols[None, :],
        mask=inside[:, None] & (cols < n_classes)[None, :],
        other=float("-inf"),
    )
    return x.to(tl.float64 if WIDE else tl.float32)


@jit
def _log1p(x):
    """Compute log(1 + x) without the rounding error of 1 + x (Kahan)."""
    y = 1.0 + x
    return tl.where(y == 1.0, x, tl.log(y) * (x / tl.where(y == 1.0, 1.0, y - 1.0)))


@jit
def _exp(u):
    """Compute e^u in float64 for -700 <= u <= 0, as a term of a sum of at least 1.

    1. e^u = 2^n·e^r, where n is u / log 2 rounded to an integer.
    2. Adding 1.5·2^52 rounds a number, and leaves its integer in the last bits. Shifted by 52 bits,
       it is added to the exponent of e^r.
    3. e^r is a polynomial through Chebyshev points, with an error of 2e-17. If n is large, r has an
       error of n·2e-17, but e^u is small.

    The function of the library is valid for all u and takes 1.5 times as long.
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
def _mark_invalid(x, wrong, lowest, CAREFUL: tl.constexpr):
    """Set `wrong` to 1 where x is NaN or, with CAREFUL, finite and at most `lowest`."""
    wrong = tl.where(x != x, 1, wrong)
    if CAREFUL:
        wrong = tl.where((x <= lowest) & (x > float("-inf")), 1, wrong)
    return wrong


@jit
def _exp_relative_to_second(x, base, cols, winner):
    """Return e^u and u, where u is the distance from the second largest logit.

    e^u is 0 for the predicted class, and where it is negligible.
    """
    # The comparison is in the precision of the table, because comparing float64 takes long.
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
    """Compute one score per row.

    The first pass finds the largest and the second largest logit, the second pass the sums of e^u of
    the other classes relative to the second largest logit.
    """
    WORK: tl.constexpr = tl.float64 if WIDE else tl.float32
    rows, inside, start, cols, n_classes = _locate_rows(
        table, stride_units, n_rows, class_units, UNIT, ROWS, COLS
    )
    x = _load_tile(start, inside, cols, n_classes, WIDE)
    best, place = x, tl.zeros([ROWS, COLS], tl.int32) + cols[None, :]
    following = tl.full([ROWS, COLS], float("-inf"), WORK)
    wrong = _mark_invalid(x, tl.zeros([ROWS, COLS], tl.int32), lowest, CAREFUL)
    for first in range(COLS, TILES * COLS, COLS):
        x = _load_tile(start, inside, first + cols, n_classes, WIDE)
        wrong = _mark_invalid(x, wrong, lowest, CAREFUL)
        higher = x > best
        following = tl.where(higher, best, tl.maximum(following, x))
        place = tl.where(higher, (first + cols)[None, :], place)
        best = tl.where(higher, x, best)
    bad = tl.max(wrong, axis=1)
    top = tl.max(best, axis=1)
    winner = tl.min(tl.where(best == top[:, None], place, 2147483647), axis=1)
    second = tl.max(tl.where(place == winner[:, None], following, best), axis=1)
    # A row with NaN, +inf, or every class masked has no score and an arbitrary prediction.
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
                x = _load_tile(start, inside, cols, n_classes, WIDE)
            masses, u = _exp_relative_to_second(x, base, cols, winner)
            tilts = masses * u
            for first in range(COLS, TILES * COLS, COLS):
                x = _load_tile(start, inside, first + cols, n_classes, WIDE)
                w, u = _exp_relative_to_second(x, base, first + cols, winner)
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
            elif KIND == "one_minus_max_probability":
                value = mass / (1.0 + mass)
            else:
                value = -(top.to(tl.float64) + _log1p(mass))
        tl.store(out + rows, tl.where(legal, value, float("nan")), mask=inside)
