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


#: Largest number of classes of a row whose sums are computed in registers. Longer rows are read
#: two or three times, from the cache.
MAX_REGISTER_CLASSES = 8192
#: Largest number of classes of a row whose softmax is computed in registers.
MAX_REGISTER_CLASSES_SOFTMAX = 32768
#: Elements of a tile that contains whole rows. This is the fastest size on an H200.
TILE_ELEMENTS = 1024
#: Elements of such a tile per thread.
THREAD_ELEMENTS = 32
#: Elements of a tile if a row needs several tiles.
LONG_TILE_ELEMENTS = 2048
#: Elements per thread if a row needs several tiles.
LONG_THREAD_ELEMENTS = 8
#: Elements of a float64 tile if a row needs several tiles.
LONG_DOUBLE_TILE_ELEMENTS = 256

#: Whether Triton is available and has not failed so far.
is_available = triton is not None and os.environ.get("METACAL_KERNEL") != "numpy"


def can_fuse(block: Tensor) -> bool:
    """Check whether Triton runs here and can read a block, whose rows must be contiguous."""
    is_interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    has_contiguous_rows = block.stride(1) == 1 and block.stride(0) >= 0
    return is_available and (block.is_cuda or is_interpreted) and has_contiguous_rows


def score(
    block: Tensor,
    kind: str,
    dtype: torch.dtype,
    predictions_out: Tensor | None = None,
    largest_mask: float | None = None,
) -> Tensor | None:
    """Compute one score per row, or the prediction of each row.

    Parameters
    ----------
    block : tensor of shape (n_rows, n_classes)
        Logits.

    kind : str
        Name of the score, or "predicted".

    dtype : torch.dtype
        Type of the result.

    predictions_out : tensor of int64 of shape (n_rows,), default=None
        Buffer for the predictions.

    largest_mask : float, default=None
        Largest finite number that may stand for a masked class. If given, rows with a finite logit
        of at most this value, and invalid rows, have the score NaN.

    Returns
    -------
    tensor of shape (n_rows,) or None
        None if Triton cannot run.
    """
    scores = torch.empty(len(block), dtype=dtype, device=block.device)
    needs_sums = kind not in ("predicted", "negative_margin")
    layout = _Layout(block, MAX_REGISTER_CLASSES, uses_double=needs_sums)
    # Triton needs some tensor and some number in place of missing arguments.
    was_launched = layout.launch(
        _score_kernel,
        block,
        scores,
        scores if predictions_out is None else predictions_out,
        0.0 if largest_mask is None else largest_mask,
        KIND=kind,
        STORES_PREDICTIONS=predictions_out is not None,
        FINDS_MASKS=largest_mask is not None,
    )
    return scores if was_launched else None


def _split_float(value: float) -> tuple[float, float]:
    """Split a float64 into two float32 terms, because Triton passes numbers as float32."""
    high = float(np.float32(value))
    return high, value - high


class _Layout:
    """Division of a block into programs, and of their rows into tiles.

    Parameters
    ----------
    block : tensor of shape (n_rows, n_classes)
        Logits.

    max_register_classes : int
        Largest number of classes of a row that is held in registers.

    uses_double : bool, default=False
        Whether the kernel computes in float64 for every type of block.

    has_many_sums : bool, default=False
        Whether the kernel needs registers for many sums per row.

    Attributes
    ----------
    tile_rows, tile_columns : int
        Shape of a tile.

    n_tiles : int
        Number of tiles of a row.

    n_programs, n_warps : int
        Number of programs, and number of warps per program.

    unit : int
        Common divisor of the sizes, in units of which they are passed.
    """

    def __init__(
        self,
        block: Tensor,
        max_register_classes: int,
        uses_double: bool = False,
        has_many_sums: bool = False,
    ) -> None:
        n_rows, n_classes = block.shape
        padded_classes = 1 << (n_classes - 1).bit_length()
        if block.dtype == torch.float64:
            uses_double = True
        # A float64 needs two registers.
        if uses_double:
            max_register_classes //= 2
        if padded_classes <= max_register_classes:
            tile_elements = TILE_ELEMENTS
            thread_elements = THREAD_ELEMENTS
            if uses_double:
                tile_elements //= 2
            self.tile_columns = padded_classes
        else:
            tile_elements = LONG_TILE_ELEMENTS
            thread_elements = LONG_THREAD_ELEMENTS
            if has_many_sums:
                tile_elements //= 2
                thread_elements //= 2
            if uses_double:
                tile_elements = LONG_DOUBLE_TILE_ELEMENTS
            self.tile_columns = tile_elements
        if uses_double:
            thread_elements = max(1, thread_elements // 2)
        self.n_tiles = -(-n_classes // self.tile_columns)
        self.tile_rows = max(1, tile_elements // self.tile_columns)
        self.n_programs = -(-n_rows // self.tile_rows)
        warp_elements = 32 * thread_elements
        self.n_warps = min(32, max(1, self.tile_rows * self.tile_columns // warp_elements))
        # The compiler sees from the factor `unit` that loads are aligned.
        self.unit = math.gcd(n_classes, block.stride(0), 16)

    def launch(self, kernel: Any, block: Tensor, *arguments: Any, **constants: Any) -> bool:
        """Start a kernel; return False if Triton cannot read the block or cannot run."""
        if not can_fuse(block):
            return False
        n_rows, n_classes = block.shape
        stride_units = block.stride(0) // self.unit
        class_units = n_classes // self.unit
        return launch_kernel(
            kernel,
            self.n_programs,
            block,
            *arguments,
            stride_units,
            n_rows,
            class_units,
            **constants,
            IS_DOUBLE=block.dtype == torch.float64,
            UNIT=self.unit,
            ROWS=self.tile_rows,
            COLUMNS=self.tile_columns,
            TILES=self.n_tiles,
            num_warps=self.n_warps,
        )


def launch_kernel(
    kernel: Any, n_programs: int, table: Tensor, *arguments: Any, **constants: Any
) -> bool:
    """Start a kernel on the device of its first argument.

    If Triton fails, warn, return False, and do not use Triton again.

    Parameters
    ----------
    kernel : triton kernel
        Kernel to start.

    n_programs : int
        Number of programs.

    table : tensor
        First argument of the kernel.

    *arguments
        Other arguments.

    **constants
        Compile-time constants.

    Returns
    -------
    bool
    """
    global is_available
    try:
        with torch.cuda.device_of(table):
            kernel[(n_programs,)](table, *arguments, **constants)
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
    COLUMNS: tl.constexpr,
):
    """Return row indices, row mask, row addresses, columns of a tile, and number of classes."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row_start = table + rows.to(tl.int64)[:, None] * (stride_units * UNIT)
    return rows, rows < n_rows, row_start, tl.arange(0, COLUMNS), class_units * UNIT


@jit
def _join_floats(high, low):
    """Add the two float32 terms of `_split_float` to obtain the float64."""
    return tl.full([], high, tl.float64) + tl.full([], low, tl.float64)


@jit
def _load_tile(row_start, is_row, columns, n_classes, IS_DOUBLE: tl.constexpr):
    """Load a tile of logits in the working precision, with -inf outside of the table."""
    x = tl.load(
        row_start + columns[None, :],
        mask=is_row[:, None] & (columns < n_classes)[None, :],
        other=float("-inf"),
    )
    return x.to(tl.float64 if IS_DOUBLE else tl.float32)


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
def _mark_invalid(x, invalid, largest_mask, FINDS_MASKS: tl.constexpr):
    """Set `invalid` to 1 where x is NaN or, with FINDS_MASKS, may stand for a mask."""
    invalid = tl.where(x != x, 1, invalid)
    if FINDS_MASKS:
        invalid = tl.where((x <= largest_mask) & (x > float("-inf")), 1, invalid)
    return invalid


@jit
def _exp_relative_to_second(x, second_logit, columns, prediction):
    """Return e^u and u, where u is a logit minus the second largest logit of its row.

    e^u is 0 for the predicted class, and where it is negligible.
    """
    # The comparison is in the precision of the table, because comparing float64 takes long.
    is_omitted = (columns[None, :] == prediction[:, None]) | (x - second_logit < -700.0)
    u = tl.where(is_omitted, second_logit, x).to(tl.float64) - second_logit.to(tl.float64)
    return tl.where(is_omitted, 0.0, _exp(u)), u


@jit
def _score_kernel(
    table,
    scores,
    predictions,
    largest_mask,
    stride_units,
    n_rows,
    class_units,
    KIND: tl.constexpr,
    STORES_PREDICTIONS: tl.constexpr,
    FINDS_MASKS: tl.constexpr,
    IS_DOUBLE: tl.constexpr,
    UNIT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILES: tl.constexpr,
):
    """Compute one score per row.

    The first pass finds the largest and the second largest logit. The second pass sums e^u and u·e^u
    over the other classes, where u is the logit minus the second largest logit.
    """
    WORK_TYPE: tl.constexpr = tl.float64 if IS_DOUBLE else tl.float32
    rows, is_row, row_start, columns, n_classes = _locate_rows(
        table, stride_units, n_rows, class_units, UNIT, ROWS, COLUMNS
    )
    x = _load_tile(row_start, is_row, columns, n_classes, IS_DOUBLE)
    largest_per_column = x
    largest_index = tl.zeros([ROWS, COLUMNS], tl.int32) + columns[None, :]
    second_per_column = tl.full([ROWS, COLUMNS], float("-inf"), WORK_TYPE)
    invalid = _mark_invalid(x, tl.zeros([ROWS, COLUMNS], tl.int32), largest_mask, FINDS_MASKS)
    for tile_start in range(COLUMNS, TILES * COLUMNS, COLUMNS):
        x = _load_tile(row_start, is_row, tile_start + columns, n_classes, IS_DOUBLE)
        invalid = _mark_invalid(x, invalid, largest_mask, FINDS_MASKS)
        is_larger = x > largest_per_column
        second_per_column = tl.where(
            is_larger, largest_per_column, tl.maximum(second_per_column, x)
        )
        largest_index = tl.where(is_larger, (tile_start + columns)[None, :], largest_index)
        largest_per_column = tl.where(is_larger, x, largest_per_column)
    has_invalid_logit = tl.max(invalid, axis=1)
    largest = tl.max(largest_per_column, axis=1)
    prediction = tl.min(
        tl.where(largest_per_column == largest[:, None], largest_index, 2147483647), axis=1
    )
    second = tl.max(
        tl.where(largest_index == prediction[:, None], second_per_column, largest_per_column),
        axis=1,
    )
    # A row with NaN, +inf, or every class masked has no score and an arbitrary prediction.
    is_valid = (has_invalid_logit == 0) & (largest < float("inf")) & (largest > float("-inf"))
    if KIND == "predicted":
        tl.store(
            scores + rows, tl.where(prediction < n_classes, prediction, 0).to(tl.int64), mask=is_row
        )
    else:
        if STORES_PREDICTIONS:
            tl.store(
                predictions + rows,
                tl.where(prediction < n_classes, prediction, 0).to(tl.int64),
                mask=is_row,
            )
        is_only_class = second == float("-inf")
        gap = tl.where(is_only_class, float("-inf"), second.to(tl.float64) - largest.to(tl.float64))
        if KIND == "negative_margin":
            value = tl.maximum(gap, -1.7976931348623157e308)
        else:
            reference = tl.where(is_only_class, 0.0, second)[:, None]
            if TILES > 1:
                x = _load_tile(row_start, is_row, columns, n_classes, IS_DOUBLE)
            partial_masses, u = _exp_relative_to_second(x, reference, columns, prediction)
            partial_moments = partial_masses * u
            for tile_start in range(COLUMNS, TILES * COLUMNS, COLUMNS):
                x = _load_tile(row_start, is_row, tile_start + columns, n_classes, IS_DOUBLE)
                term, u = _exp_relative_to_second(x, reference, tile_start + columns, prediction)
                partial_masses += term
                partial_moments += term * u
            mass = tl.sum(partial_masses, axis=1)
            moment = tl.sum(partial_moments, axis=1)
            gap = tl.maximum(gap, -800.0)
            scale = tl.where(is_only_class, 0.0, tl.exp(gap))
            moment = scale * (moment + gap * mass)
            mass = scale * mass
            if KIND == "entropy":
                value = _log1p(mass) - moment / (1.0 + mass)
            elif KIND == "one_minus_max_probability":
                value = mass / (1.0 + mass)
            else:
                value = -(largest.to(tl.float64) + _log1p(mass))
        tl.store(scores + rows, tl.where(is_valid, value, float("nan")), mask=is_row)
