"""Buffers of a thread, and the conversion of float16 into one of them.

A block of logits fits into the cache of a core. Each thread keeps a few buffers of the size of a
block, because page faults of new arrays would take longer than the arithmetic.
"""

from __future__ import annotations

import threading
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.formulas import Array

#: Largest size in bytes of a buffer that a thread keeps.
_MAX_BUFFER_BYTES = 1 << 21
#: Number of places by which the fraction of a float16 is shifted to become that of a float32.
_FLOAT16_TO_FLOAT32_SHIFT = np.int32(13)
#: Mask of the sign, exponent and fraction bits of a shifted float16.
_SHIFTED_FLOAT16_MASK = np.int32(-1879056384)
#: Factor that corrects for the different exponent biases of float16 and float32.
_EXPONENT_CORRECTION = np.float32(2.0**112)
#: Result of converting the infinity of float16. NaN gives larger results.
_WIDENED_INFINITY = np.float32(65536.0)


class ThreadBuffers(threading.local):
    """Buffers of one thread, which the next block overwrites.

    A kernel must not return a buffer.

    Attributes
    ----------
    memory_by_name : dict of str to array of bytes
        Memory of each buffer.
    """

    def __init__(self) -> None:
        self.memory_by_name: dict[str, NDArray[np.uint8]] = {}

    def get_array(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an uninitialised contiguous array in the buffer of this name."""
        dtype = np.dtype(dtype)
        n_bytes = prod(shape) * dtype.itemsize
        if n_bytes > _MAX_BUFFER_BYTES:
            return np.empty(shape, dtype=dtype)
        memory = self.memory_by_name.get(name)
        if memory is None or memory.nbytes < n_bytes:
            memory = np.empty(n_bytes, dtype=np.uint8)
            self.memory_by_name[name] = memory
        return memory[:n_bytes].view(dtype).reshape(shape)


thread_buffers = ThreadBuffers()


def widen_float16(block: Array) -> Array:
    """Convert float16 to float32, and return arrays of other types unchanged.

    The conversion is exact and takes a quarter of the time of NumPy's. Sign, exponent and fraction
    are moved to their places in a float32, and a product corrects the exponent, also of subnormal
    numbers. Only infinities and NaN become finite numbers from 65536 on, and are replaced.
    """
    if block.dtype != np.float16 or not block.size:
        return block
    float16_bits = np.ascontiguousarray(block).view(np.int16)
    float32_bits = thread_buffers.get_array("widened float16", block.shape, np.int32)
    np.copyto(float32_bits, float16_bits)
    float32_bits <<= _FLOAT16_TO_FLOAT32_SHIFT
    float32_bits &= _SHIFTED_FLOAT16_MASK
    values = float32_bits.view(np.float32)
    values *= _EXPONENT_CORRECTION
    if (
        values.min(initial=0.0) <= -_WIDENED_INFINITY
        or values.max(initial=0.0) >= _WIDENED_INFINITY
    ):
        magnitudes = np.abs(values)
        values[magnitudes == _WIDENED_INFINITY] *= np.float32(np.inf)
        values[magnitudes > _WIDENED_INFINITY] = np.nan
    return values
