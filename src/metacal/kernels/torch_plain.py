# mypy: allow-untyped-calls
"""The plain form of the kernels on a device: chunked torch, in float64 where it counts. It says what is meant."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from metacal.kernels.uniform import cumulants

#: Elements that are worked on at a time.
CHUNK_ELEMENTS = 1 << 22
#: e^d is zero below these, as in `numpy.py`.
ZERO = {torch.float64: -800.0, torch.float32: -100.0}
_LOWEST = -float(np.finfo(np.float64).max)


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


def around_winner(block: Tensor) -> tuple[Tensor, Tensor]:
    """d (clamped) and e^d with the top entry's e^d set to zero: what surrounds the winner."""
    gaps = distances(block, torch.float64).clamp_(min=ZERO[torch.float64])
    return gaps, gaps.exp().scatter_(1, predicted(block)[:, None], 0.0)


def of_legal_rows(values: Tensor, top: Tensor) -> Tensor:
    """NaN where the largest logit is not finite (it is NaN where any is): no row of logits, no score."""
    return torch.where(torch.isfinite(top), values, math.nan)


def entropy(block: Tensor) -> Tensor:
    """Entropy of softmax(x)."""
    gaps, weights = around_winner(block)
    mass = weights.sum(dim=1)
    values = torch.log1p(mass) - weights.mul_(gaps).sum(dim=1) / (1.0 + mass)
    return of_legal_rows(values, block.amax(dim=1))


def doubt(block: Tensor) -> Tensor:
    """1 - max p."""
    mass = around_winner(block)[1].sum(dim=1)
    return of_legal_rows(mass / (1.0 + mass), block.amax(dim=1))


def margin(block: Tensor) -> Tensor:
    """Second largest logit minus the largest."""
    top = block.topk(2, dim=1).values.to(torch.float64)
    return of_legal_rows((top[:, 1] - top[:, 0]).clamp_(min=_LOWEST), block.amax(dim=1))


def energy(block: Tensor) -> Tensor:
    """-logsumexp(x)."""
    top, mass = block.amax(dim=1).to(torch.float64), around_winner(block)[1].sum(dim=1)
    return of_legal_rows(-(top + torch.log1p(mass)), top)


def rivals_norm(block: Tensor) -> Tensor:
    """The eighth norm of the rivals beside the winner."""
    possible = block > -math.inf
    gaps = distances(block, torch.float64).neg_().clamp_(max=-_LOWEST)
    gaps = torch.where(possible, gaps, 0.0)
    longest = gaps.amax(dim=1, keepdim=True)
    gaps = torch.where(longest == 0.0, 0.0, gaps / longest)
    mean = gaps.sum(dim=1, keepdim=True) / possible.sum(dim=1, keepdim=True)
    shares = torch.where(possible, 1.0 - torch.where(longest == 0.0, 0.0, gaps / mean), 0.0)
    shares = shares.scatter_(1, predicted(block)[:, None], 0.0).square_().square_().square_()
    return of_legal_rows(shares.sum(dim=1).sqrt_().sqrt_().sqrt_(), block.amax(dim=1))


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
