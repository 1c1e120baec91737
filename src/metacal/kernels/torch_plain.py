# mypy: allow-untyped-calls
"""The plain form of the kernels on a device: chunked torch, in float64 where it counts. It says what is meant."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from metacal.formulas.torch import TORCH
from metacal.kernels.uniform import cumulants

#: Elements that are worked on at a time.
CHUNK_ELEMENTS = 1 << 22
#: e^d is zero below these, as in `numpy.py`.
ZERO = {torch.float64: -800.0, torch.float32: -100.0}


def work_type(block: Tensor) -> torch.dtype:
    """The precision that logits are worked on in."""
    return torch.float64 if block.dtype == torch.float64 else torch.float32


def chunks(block: Tensor) -> Iterator[slice]:
    """Rows that are worked on at a time."""
    step = max(1, CHUNK_ELEMENTS // block.shape[1])
    for start in range(0, len(block), step):
        yield slice(start, min(start + step, len(block)))


def distances(block: Tensor, dtype: torch.dtype) -> Tensor:
    """d = x - max x of each row, a fresh tensor."""
    gaps = block.to(dtype, copy=True)
    return gaps.sub_(gaps.amax(dim=1, keepdim=True))


def predicted(block: Tensor) -> Tensor:
    """ŷ = argmax x, the lowest index on an exact tie."""
    # argmax of torch may return any of several equal entries; the comparison's first True is the lowest index.
    return (block == block.amax(dim=1, keepdim=True)).to(torch.uint8).argmax(dim=1)


def score(block: Tensor, formula: Callable[..., Tensor]) -> Tensor:
    """A score by its formula; NaN where the largest logit is not finite (it is NaN where any is): no row of logits."""
    found = formula(TORCH, block.to(torch.float64))[:, 0]
    return torch.where(torch.isfinite(block.amax(dim=1)), found, math.nan)


def spread(block: Tensor) -> Tensor:
    """Largest minus smallest finite logit."""
    gaps = distances(block, torch.float64)
    return -torch.where(gaps > -math.inf, gaps, 0.0).amin(dim=1)


def mixed(block: Tensor, labels: Tensor, inverse_temperature: float) -> Tensor:
    """The eight columns of `mixed_rows`."""
    gaps = distances(block, work_type(block))
    own = gaps.gather(1, labels[:, None])[:, 0].to(torch.float64)
    possible, top = (gaps > -math.inf).sum(dim=1), gaps == 0.0
    gaps.clamp_(min=ZERO[gaps.dtype] / inverse_temperature)
    terms = gaps.mul(inverse_temperature).exp_().masked_fill_(top, 0.0)
    tail = terms.sum(dim=1, dtype=torch.float64) + (top.sum(dim=1) - 1)
    moments = (terms.mul_(gaps).sum(dim=1, dtype=torch.float64) / (1.0 + tail) for _ in range(4))
    columns = tail, *cumulants(*moments), own, possible, predicted(block) == labels
    return torch.stack([column.to(torch.float64) for column in columns], dim=1)


def loss(block: Tensor, labels: Tensor, weights: Tensor | None, inverse_temperature: float) -> Tensor:
    """The sum over rows of the loss and its first three derivatives in b."""
    rows = torch.stack(loss_rows(block, labels, inverse_temperature))
    return (rows if weights is None else rows * weights).sum(dim=1)


def loss_rows(block: Tensor, labels: Tensor, inverse_temperature: float) -> list[Tensor]:
    """The loss of each row and its first three derivatives in b."""
    gaps = distances(block, work_type(block))
    own = gaps.gather(1, labels[:, None])[:, 0].to(torch.float64)
    gaps.clamp_(min=ZERO[gaps.dtype] / inverse_temperature)
    terms = gaps.mul(inverse_temperature).exp_()
    s0 = terms.sum(dim=1).to(torch.float64)
    m1, m2, m3 = (terms.mul_(gaps).sum(dim=1).to(torch.float64) / s0 for _ in range(3))
    variance = m2 - m1 * m1
    third = m3 - m1 * (3.0 * m2 - 2.0 * m1 * m1)
    return [torch.log(s0) - inverse_temperature * own, m1 - own, variance, third]
