"""The kernels in NumPy: the definition of every per-row statistic.

A block is a small 2-D array of logits (n × K, any floating dtype). Written with `d_j = x_j - max x`, so that nothing
overflows and adding a constant to a row changes nothing; -inf (a masked class) contributes exactly zero.

Scores are computed in float64 whatever the table: a decision must not depend on how the logits were stored. Softmax and
the temperature's loss, which nothing is decided by, work in the table's own precision (float16 in float32), with sums
over rows in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]

#: e^d is zero in float64 (float32) below these: smaller exponents are clamped here, which keeps 0 · (-inf) = NaN out.
_ZERO = {np.dtype(np.float64): -800.0, np.dtype(np.float32): -100.0}


def _work_type(block: NDArray[Any]) -> np.dtype[Any]:
    return np.dtype(np.float64 if block.dtype == np.float64 else np.float32)


def _gaps(block: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """d = x - max x of each row, a fresh contiguous array."""
    gaps = np.empty(block.shape, dtype=dtype)
    np.subtract(block, block.max(axis=1, keepdims=True), out=gaps, dtype=dtype)
    return gaps


def _tail(block: NDArray[Any]) -> tuple[Float, Float]:
    """Return d (clamped) and e^d with the top entry's e^d set to zero: what surrounds the winner."""
    gaps = _gaps(block, np.dtype(np.float64))
    np.maximum(gaps, _ZERO[gaps.dtype], out=gaps)
    weights = np.exp(gaps)
    weights[np.arange(len(gaps)), block.argmax(axis=1)] = 0.0
    return gaps, weights


def predicted(block: NDArray[Any]) -> NDArray[np.intp]:
    """ŷ = argmax x, the lowest index on an exact tie."""
    return np.asarray(block.argmax(axis=1))


def entropy(block: NDArray[Any]) -> Float:
    """Entropy of softmax(x): log1p(S) - Σ_{j≠top} e^{d_j} d_j / (1 + S), with S = Σ_{j≠top} e^{d_j}.

    Leaving the winner out of S keeps full precision for confident rows, whose 1 - max p is lost in rounding otherwise.
    """
    gaps, weights = _tail(block)
    mass = weights.sum(axis=1)
    return np.asarray(np.log1p(mass) - np.einsum("ij,ij->i", weights, gaps) / (1.0 + mass))


def doubt(block: NDArray[Any]) -> Float:
    """1 - max p = S / (1 + S), without cancellation."""
    mass = _tail(block)[1].sum(axis=1)
    return np.asarray(mass / (1.0 + mass))


def negative_margin(block: NDArray[Any]) -> Float:
    """Second largest logit minus the largest; the most negative float where every other class is masked."""
    second = np.partition(_gaps(block, np.dtype(np.float64)), -2, axis=1)[:, -2]
    return np.maximum(second, -np.finfo(np.float64).max)


def free_energy(block: NDArray[Any]) -> Float:
    """-logsumexp(x)."""
    mass = _tail(block)[1].sum(axis=1)
    return np.asarray(-(block.max(axis=1).astype(np.float64) + np.log1p(mass)))


def softmax(block: NDArray[Any], inverse_temperature: float, out: NDArray[Any]) -> None:
    """Write softmax(b·x) of each row into `out`."""
    work = _gaps(block, _work_type(block))
    work *= work.dtype.type(inverse_temperature)
    np.exp(work, out=work)
    np.divide(work, work.sum(axis=1, keepdims=True), out=out, casting="same_kind")


def tempered_loss(
    block: NDArray[Any], labels: NDArray[np.intp], weights: Float | None, inverse_temperature: float
) -> Float:
    """Sum over rows of the negative log-likelihood of softmax(b·x) and its first three derivatives in b.

    With m_k the k-th moment of d under softmax(b·x): L = log Σ e^{bd} - b·d_y, L' = m_1 - d_y, L'' = Var(d),
    L''' = the third central moment. Rows come back as (L, L', L'', L''').
    """
    gaps = _gaps(block, _work_type(block))
    own = gaps[np.arange(len(gaps)), labels].astype(np.float64)
    np.maximum(gaps, gaps.dtype.type(_ZERO[gaps.dtype] / inverse_temperature), out=gaps)
    terms = gaps * gaps.dtype.type(inverse_temperature)
    np.exp(terms, out=terms)
    s0 = terms.sum(axis=1).astype(np.float64)
    moments = []
    for _ in range(3):
        terms *= gaps
        moments.append(terms.sum(axis=1) / s0)
    m1, m2, m3 = moments
    variance = m2 - m1 * m1
    third = m3 - m1 * (3.0 * m2 - 2.0 * m1 * m1)
    rows = np.stack([np.log(s0) - inverse_temperature * own, m1 - own, variance, third])
    if weights is not None:
        rows *= weights
    return np.asarray(rows.sum(axis=1))
