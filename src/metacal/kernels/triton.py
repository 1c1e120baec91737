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
#: Elements per thread of a tile that contains whole rows.
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
    layout = _Layout(block, max_register_classes=MAX_REGISTER_CLASSES, uses_double=needs_sums)
    # Triton needs some tensor and some number in place of missing arguments.
    unused_tensor = scores
    unused_number = 0.0
    was_launched = layout.launch(
        _score_kernel,
        block,
        scores=scores,
        predictions=unused_tensor if predictions_out is None else predictions_out,
        largest_mask=unused_number if largest_mask is None else largest_mask,
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

    unit_elements : int
        Common divisor of the number of classes and the row stride. Kernels receive both sizes in
        units of it.
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
        # Sizes are passed in units, so that the compiler sees that loads are aligned.
        self.unit_elements = math.gcd(n_classes, block.stride(0), 16)

    def launch(self, kernel: Any, block: Tensor, **kernel_arguments: Any) -> bool:
        """Start a kernel; return False if Triton cannot read the block or cannot run."""
        if not can_fuse(block):
            return False
        n_rows, n_classes = block.shape
        return launch_kernel(
            kernel,
            self.n_programs,
            block,
            **kernel_arguments,
            stride_in_units=block.stride(0) // self.unit_elements,
            n_rows=n_rows,
            classes_in_units=n_classes // self.unit_elements,
            IS_DOUBLE=block.dtype == torch.float64,
            UNIT_ELEMENTS=self.unit_elements,
            TILE_ROWS=self.tile_rows,
            TILE_COLUMNS=self.tile_columns,
            N_TILES=self.n_tiles,
            num_warps=self.n_warps,
        )


def launch_kernel(kernel: Any, n_programs: int, table: Tensor, **kernel_arguments: Any) -> bool:
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

    **kernel_arguments
        Other arguments of the kernel, including its compile-time constants.

    Returns
    -------
    bool
    """
    global is_available
    try:
        with torch.cuda.device_of(table):
            kernel[(n_programs,)](table, **kernel_arguments)
    except Exception as error:
        is_available = False
        warnings.warn(
            f"The fused kernels cannot run on this machine ({type(error).__name__}: {error})."
            " metacal uses plain torch instead, which is slower and returns the same results.",
            MetacalWarning,
            stacklevel=2,
        )
        return False
    return True


@jit
def _locate_rows(
    table,
    stride_in_units,
    n_rows,
    classes_in_units,
    UNIT_ELEMENTS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
):
    """Return row indices, row mask, row addresses, columns of a tile, and number of classes."""
    rows = tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    row_mask = rows < n_rows
    row_stride = stride_in_units * UNIT_ELEMENTS
    row_addresses = table + rows.to(tl.int64)[:, None] * row_stride
    columns = tl.arange(0, TILE_COLUMNS)
    n_classes = classes_in_units * UNIT_ELEMENTS
    return rows, row_mask, row_addresses, columns, n_classes


@jit
def _join_floats(high, low):
    """Add the two float32 terms of `_split_float` to obtain the float64."""
    return tl.full([], high, tl.float64) + tl.full([], low, tl.float64)


@jit
def _load_tile(row_addresses, row_mask, columns, n_classes, IS_DOUBLE: tl.constexpr):
    """Load a tile of logits in the working precision, with -inf outside of the table."""
    x = tl.load(
        row_addresses + columns[None, :],
        mask=row_mask[:, None] & (columns < n_classes)[None, :],
        other=float("-inf"),
    )
    return x.to(tl.float64 if IS_DOUBLE else tl.float32)


@jit
def _log1p(x):
    """Compute log(1 + x) without the rounding error of 1 + x (Kahan)."""
    y = 1.0 + x
    is_lost_in_rounding = y == 1.0
    rounded_x = tl.where(is_lost_in_rounding, 1.0, y - 1.0)
    return tl.where(is_lost_in_rounding, x, tl.log(y) * (x / rounded_x))


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
    LOG2_OF_E: tl.constexpr = 1.4426950408889634
    LOG_OF_2: tl.constexpr = 0.6931471805599453
    ROUNDING_OFFSET: tl.constexpr = 6755399441055744.0
    offset_n = u * LOG2_OF_E + ROUNDING_OFFSET
    n = offset_n - ROUNDING_OFFSET
    r = u - n * LOG_OF_2
    polynomial = r * 2.5100424157005067e-08 + 2.7620138719733994e-07
    polynomial = polynomial * r + 2.7557268378684192e-06
    polynomial = polynomial * r + 2.480152119021773e-05
    polynomial = polynomial * r + 0.00019841269863105968
    polynomial = polynomial * r + 0.0013888888917281794
    polynomial = polynomial * r + 0.008333333333330051
    polynomial = polynomial * r + 0.04166666666662399
    polynomial = polynomial * r + 0.16666666666666669
    polynomial = polynomial * r + 0.5000000000000001
    polynomial = polynomial * r + 1.0
    exp_r = polynomial * r + 1.0
    n_in_exponent_bits = offset_n.to(tl.int64, bitcast=True) << 52
    exp_u_bits = exp_r.to(tl.int64, bitcast=True) + n_in_exponent_bits
    return exp_u_bits.to(tl.float64, bitcast=True)


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
    MIN_EXPONENT: tl.constexpr = -700.0
    is_prediction = columns[None, :] == prediction[:, None]
    # The comparison is in the precision of the table, because comparing float64 takes long.
    is_omitted = is_prediction | (x - second_logit < MIN_EXPONENT)
    u = tl.where(is_omitted, second_logit, x).to(tl.float64) - second_logit.to(tl.float64)
    return tl.where(is_omitted, 0.0, _exp(u)), u


@jit
def _score_kernel(
    table,
    scores,
    predictions,
    largest_mask,
    stride_in_units,
    n_rows,
    classes_in_units,
    KIND: tl.constexpr,
    STORES_PREDICTIONS: tl.constexpr,
    FINDS_MASKS: tl.constexpr,
    IS_DOUBLE: tl.constexpr,
    UNIT_ELEMENTS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    N_TILES: tl.constexpr,
):
    """Compute one score per row.

    The first pass finds the largest and the second largest logit. The second pass sums e^u and u·e^u
    over the other classes, where u is the logit minus the second largest logit.
    """
    WORK_TYPE: tl.constexpr = tl.float64 if IS_DOUBLE else tl.float32
    LARGEST_INT32: tl.constexpr = 2147483647
    LOWEST_FLOAT64: tl.constexpr = -1.7976931348623157e308
    MIN_GAP: tl.constexpr = -800.0
    rows, row_mask, row_addresses, columns, n_classes = _locate_rows(
        table, stride_in_units, n_rows, classes_in_units, UNIT_ELEMENTS, TILE_ROWS, TILE_COLUMNS
    )
    x = _load_tile(row_addresses, row_mask, columns, n_classes, IS_DOUBLE)
    largest_per_column = x
    largest_index = tl.zeros([TILE_ROWS, TILE_COLUMNS], tl.int32) + columns[None, :]
    second_per_column = tl.full([TILE_ROWS, TILE_COLUMNS], float("-inf"), WORK_TYPE)
    invalid = _mark_invalid(
        x, tl.zeros([TILE_ROWS, TILE_COLUMNS], tl.int32), largest_mask, FINDS_MASKS
    )
    for tile_start in range(TILE_COLUMNS, N_TILES * TILE_COLUMNS, TILE_COLUMNS):
        x = _load_tile(row_addresses, row_mask, tile_start + columns, n_classes, IS_DOUBLE)
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
        tl.where(largest_per_column == largest[:, None], largest_index, LARGEST_INT32), axis=1
    )
    second = tl.max(
        tl.where(largest_index == prediction[:, None], second_per_column, largest_per_column),
        axis=1,
    )
    # A row with NaN, +inf, or every class masked has no score and an arbitrary prediction.
    is_valid = (has_invalid_logit == 0) & (largest < float("inf")) & (largest > float("-inf"))
    stored_prediction = tl.where(prediction < n_classes, prediction, 0).to(tl.int64)
    if KIND == "predicted":
        tl.store(scores + rows, stored_prediction, mask=row_mask)
    else:
        if STORES_PREDICTIONS:
            tl.store(predictions + rows, stored_prediction, mask=row_mask)
        is_only_class = second == float("-inf")
        gap = tl.where(is_only_class, float("-inf"), second.to(tl.float64) - largest.to(tl.float64))
        if KIND == "negative_margin":
            value = tl.maximum(gap, LOWEST_FLOAT64)
        else:
            reference = tl.where(is_only_class, 0.0, second)[:, None]
            if N_TILES > 1:
                x = _load_tile(row_addresses, row_mask, columns, n_classes, IS_DOUBLE)
            mass_per_column, u = _exp_relative_to_second(x, reference, columns, prediction)
            moment_per_column = mass_per_column * u
            for tile_start in range(TILE_COLUMNS, N_TILES * TILE_COLUMNS, TILE_COLUMNS):
                x = _load_tile(row_addresses, row_mask, tile_start + columns, n_classes, IS_DOUBLE)
                exp_u, u = _exp_relative_to_second(x, reference, tile_start + columns, prediction)
                mass_per_column += exp_u
                moment_per_column += exp_u * u
            mass_to_second = tl.sum(mass_per_column, axis=1)
            moment_to_second = tl.sum(moment_per_column, axis=1)
            # The sums are relative to the second largest logit. They are made relative to the largest.
            gap = tl.maximum(gap, MIN_GAP)
            scale = tl.where(is_only_class, 0.0, tl.exp(gap))
            moment = scale * (moment_to_second + gap * mass_to_second)
            mass = scale * mass_to_second
            if KIND == "entropy":
                value = _log1p(mass) - moment / (1.0 + mass)
            elif KIND == "one_minus_max_probability":
                value = mass / (1.0 + mass)
            else:
                value = -(largest.to(tl.float64) + _log1p(mass))
        tl.store(scores + rows, tl.where(is_valid, value, float("nan")), mask=row_mask)
