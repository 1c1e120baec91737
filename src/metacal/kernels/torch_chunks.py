"""Division of a tensor into chunks of rows, for the plain kernels in torch.

A chunk bounds the memory of temporary tensors. It is as large as possible, because every operation
on a chunk starts a kernel on the device.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

#: Number of elements of a chunk of rows, whose temporary float64 tensors take 256 MB each.
CHUNK_ELEMENTS = 1 << 25


def work_type(block: Tensor) -> torch.dtype:
    """Return float64 for float64 logits, else float32."""
    return torch.float64 if block.dtype == torch.float64 else torch.float32


def iterate_chunks(block: Tensor) -> Iterator[slice]:
    """Yield the slices of rows that divide a block into chunks."""
    chunk_rows = max(1, CHUNK_ELEMENTS // block.shape[1])
    for start in range(0, len(block), chunk_rows):
        yield slice(start, min(start + chunk_rows, len(block)))


def predict_chunk(block: Tensor) -> Tensor:
    """Return the predictions of a chunk of rows, the lowest index for ties."""
    # `torch.argmax` may return any of several tied classes, so the first tied class is searched.
    return (block == block.amax(dim=1, keepdim=True)).to(torch.uint8).argmax(dim=1)
