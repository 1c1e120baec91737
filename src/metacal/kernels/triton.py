# mypy: allow-untyped-calls, allow-untyped-decorators, allow-untyped-defs
# mypy: allow-incomplete-defs, allow-any-generics
# mypy: implicit-reexport
"""Launch of the fused Triton kernels.

The kernels are in the other modules named `triton_*`. Their functions return None or False if
Triton cannot run. `torch.py` then uses its plain implementation.

A *program* processes a few rows, one *tile* of columns at a time. A tile that contains whole rows is
read once.
"""

from __future__ import annotations

import math
import os
import struct
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
        """Return the function unchanged, in place of `triton.jit`."""
        return function


#: Largest number of classes of a row whose sums are computed in registers.
#: Longer rows are read from the cache two or three times.
MAX_REGISTER_CLASSES = 8192
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
#: Number of tiles of a long row that are loaded at the same time.
PIPELINE_STAGES = 4
#: Number of tiles of a long row that the acceptance kernel loads at the same time.
ACCEPTANCE_STAGES = 1
#: Largest number of registers per thread of a kernel that writes a table. With fewer registers, more
#: rows are in flight.
MAX_REGISTERS = 96
#: Largest number of registers per thread of such a kernel if a row needs several tiles.
LONG_MAX_REGISTERS = 128

#: Whether Triton is available and has not failed so far.
is_available = triton is not None and os.environ.get("METACAL_KERNEL") != "numpy"


def can_fuse(block: Tensor) -> bool:
    """Check whether Triton is available and can read a block."""
    has_contiguous_rows = block.stride(1) == 1 and block.stride(0) >= 0
    if not is_available or not has_contiguous_rows:
        return False
    return block.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"


def float_bits(value: float) -> int:
    """Return the bits of a float64 as an integer.

    Triton would pass the number itself as float32.
    """
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    return int(bits)


def limit_registers(n_tiles: int) -> dict[str, int]:
    """Return the launch option that limits the registers of a thread on CUDA."""
    if torch.version.cuda is None:
        return {}
    return {"maxnreg": MAX_REGISTERS if n_tiles == 1 else LONG_MAX_REGISTERS}


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
        """Launch a kernel, or return False if Triton cannot run or read the block."""
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
    """Launch a kernel on the device of its first argument.

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
