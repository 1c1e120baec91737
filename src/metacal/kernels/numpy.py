"""The kernels in NumPy: the definition of every per-row statistic.

A block is a small 2-D array of logits (n × K, any floating dtype). Written with `d_j = x_j - max
x`, so that nothing overflows and adding a constant to a row changes nothing; -inf (a masked class)
contributes exactly zero. A row that is no row of logits (NaN, +inf, every class masked) has the
score NaN, which nothing accepts, and some predicted column.

Scores are computed in float64 whatever the table: a decision must not depend on how the logits were
stored. Softmax and the temperature's loss, which nothing is decided by, work in the table's own
precision (float16 in float32), with sums over rows in float64.

A block is small enough for a core's cache, so what counts is the number of NumPy calls that walk
it, and where they write: each thread keeps a few arrays of a block's size to work in (fresh ones
cost more than the arithmetic, by page faults), and nothing is clamped or masked before it turns out
to be needed.
"""

from __future__ import annotations

import threading
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.formulas import Array, Codes, Float
from metacal.formulas.logits import LARGEST_FINITE_MASK
from metacal.kernels import columns as definition
from metacal.kernels.columns import Curve, cumulants, lifted
from metacal.kernels.grid import Grid

#: e^d is zero in float64 (float32) below these: smaller exponents are clamped here, which keeps 0 ·
#: (-inf) = NaN out.
_ZERO = {np.dtype(np.float64): -800.0, np.dtype(np.float32): -100.0}
#: float16 as integers: where a number may stand for a mask, and -inf.
_HALF_LOWEST_ORDINARY, _HALF_MINUS_INFINITY_BITS = np.array(
    [LARGEST_FINITE_MASK, -np.inf], np.float16
).view(np.uint16)
#: The bits of a float16 that a float32 has too, once they are moved there; what infinity becomes on
#: the way.
_HALF_SHIFT, _HALF_BITS, _HALF_SCALE = np.int32(13), np.int32(-1879056384), np.float32(2.0**112)
_HALF_INFINITY = np.float32(65536.0)


#: Rows of columns worked on at a time.
_CHUNK = 1 << 15
#: Rows of at most this many classes are laid out as columns.
_SHORT_ROW = 128
#: Bytes of the largest array that a thread keeps to work in.
_LARGEST_KEPT = 1 << 21


class Workplace(threading.local):
    """Arrays that are written over by the next block: a kernel must not return one of them."""

    def __init__(self) -> None:
        self.kept: dict[str, NDArray[np.uint8]] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """An unwritten contiguous array; the same memory for the same name."""
        dtype = np.dtype(dtype)
        size = prod(shape) * dtype.itemsize
        if size > _LARGEST_KEPT:
            return np.empty(shape, dtype=dtype)
        kept = self.kept.get(name)
        if kept is None or kept.nbytes < size:
            kept = self.kept[name] = np.empty(size, dtype=np.uint8)
        return kept[:size].view(dtype).reshape(shape)


workplace = Workplace()


def _work_type(block: Array) -> np.dtype[Any]:
    return np.dtype(np.float64 if block.dtype.itemsize == 8 else np.float32)  # of either byte order


def _floats(block: Array) -> Array:
    """A block of numbers that NumPy is quick to work on: float16 as float32, any other as it is.

    Exactly, by moving bits: a quarter of the time of NumPy's own conversion.

    Sign, exponent and fraction are moved to where a float32 has them; the product mends the
    exponent, subnormal numbers included. Infinities and NaN alone come out finite, from 65536 on.
    """
    if block.dtype != np.float16 or not block.size:
        return block
    halves = np.ascontiguousarray(block).view(np.int16)
    bits = workplace.array("halves", block.shape, np.int32)
    np.copyto(bits, halves)
    bits <<= _HALF_SHIFT
    bits &= _HALF_BITS
    found = bits.view(np.float32)
    found *= _HALF_SCALE
    if found.min(initial=0.0) <= -_HALF_INFINITY or found.max(initial=0.0) >= _HALF_INFINITY:
        size = np.abs(found)
        found[size == _HALF_INFINITY] *= np.float32(np.inf)
        found[size > _HALF_INFINITY] = np.nan
    return found


@np.errstate(
    invalid="ignore", over="ignore"
)  # inf - inf, in a row that is none; a gap beyond the range is -inf
def _gaps_and_top(block: Array, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """d = x - max x of each row, in an array to work in, and max x."""
    block = _floats(block)
    gaps = workplace.array("gaps", block.shape, dtype)
    top = block.max(axis=1, keepdims=True)
    if block.dtype == dtype:
        return np.subtract(block, top, out=gaps), top
    np.copyto(gaps, block)
    gaps -= top.astype(dtype)
    return gaps, top


def _laid_out(block: Array, labels: Codes) -> tuple[Array, int, Float]:
    """d in an array to work in, the axis along which its classes lie, and d of each row's true
    class in float64.

    Short rows are laid out as columns: NumPy adds long rows to one another fast, and the entries of
    short ones slowly.
    """
    dtype = _work_type(block)
    if block.shape[1] > _SHORT_ROW:
        axis = 1
        gaps, top = _gaps_and_top(block, dtype)
    else:
        axis = 0
        gaps = workplace.array("gaps", block.shape[::-1], dtype)
        np.copyto(gaps, block.T)
        top = gaps.max(axis=0)
        gaps -= top
    own = block[np.arange(len(block)), labels].astype(np.float64)
    own -= top.reshape(-1)
    return gaps, axis, own


def _exp(exponents: Array) -> Array:
    """e^exponents, in another array to work in."""
    terms = workplace.array("terms", exponents.shape, exponents.dtype)
    np.exp(exponents, out=terms)
    return terms


def _tail(block: Array) -> tuple[Float, Float, Float]:
    """Return d, e^d with the top entry's e^d set to zero (what surrounds the winner), and the
    largest logits.
    """
    gaps, top = _gaps_and_top(block, np.dtype(np.float64))
    weights = _exp(gaps)
    weights[np.arange(len(gaps)), predicted(block)] = 0.0
    return gaps, weights, top[:, 0].astype(np.float64)


def _of_legal_rows(values: Float, top: Float) -> Float:
    """NaN where the largest logit is not finite (it is NaN where any is): no row of logits, no
    score.
    """
    legal = np.isfinite(top)
    return values if legal.all() else np.where(legal, values, np.nan)


def rounded(values: Any, grid: Grid) -> Float:
    """The points of a grid nearest to a column of values."""
    return grid.rounded(values)


def predicted(block: Array) -> Codes:
    """ŷ = argmax x, the lowest index on an exact tie."""
    return np.asarray(_floats(block).argmax(axis=1))


def entropy(block: Array) -> Float:
    """Entropy of softmax(x): log1p(S) - Σ_{j≠top} e^{d_j} d_j / (1 + S), with S = Σ_{j≠top}
    e^{d_j}.

    Leaving the winner out of S keeps full precision for confident rows, whose 1 - max p is lost in
    rounding otherwise.
    """
    gaps, weights, top = _tail(block)
    mass = weights.sum(axis=1)
    with np.errstate(invalid="ignore"):
        moment = np.einsum("ij,ij->i", weights, gaps)
    if np.isnan(moment).any():  # a masked class: 0 · (-inf) must be 0
        np.maximum(gaps, _ZERO[gaps.dtype], out=gaps)
        moment = np.einsum("ij,ij->i", weights, gaps)
    return _of_legal_rows(np.log1p(mass) - moment / (1.0 + mass), top)


def doubt(block: Array) -> Float:
    """1 - max p = S / (1 + S), without cancellation."""
    _, weights, top = _tail(block)
    mass = weights.sum(axis=1)
    return _of_legal_rows(mass / (1.0 + mass), top)


@np.errstate(invalid="ignore", over="ignore")  # a gap beyond the range is -inf
def negative_margin(block: Array) -> Float:
    """Second largest logit minus the largest; the most negative float where every other class is
    masked.
    """
    block = _floats(block)
    others = workplace.array("gaps", block.shape, block.dtype)
    np.copyto(others, block)
    at, winner = np.arange(len(block)), block.argmax(axis=1)
    others[at, winner] = -np.inf
    top, second = block[at, winner].astype(np.float64), others.max(axis=1).astype(np.float64)
    second -= top
    return _of_legal_rows(np.maximum(second, -np.finfo(np.float64).max), top)


@np.errstate(invalid="ignore")  # inf - inf, in a row that is none
def free_energy(block: Array) -> Float:
    """-logsumexp(x)."""
    _, weights, top = _tail(block)
    return _of_legal_rows(-(top + np.log1p(weights.sum(axis=1))), top)


@np.errstate(invalid="ignore", over="ignore")  # a gap beyond the range is -inf
def softmax(block: Array, inverse_temperature: float, out: Array) -> None:
    """Write softmax(b·x) of each row into `out`."""
    dtype = _work_type(block)
    direct = out.dtype == dtype and out.flags.c_contiguous
    if direct and block.dtype == dtype:
        work = np.subtract(block, block.max(axis=1, keepdims=True), out=out)
    else:
        work, _ = _gaps_and_top(block, dtype)
    work *= dtype.type(inverse_temperature)
    work = np.exp(work, out=out if direct else work)
    np.divide(work, work.sum(axis=1, keepdims=True), out=out, casting="same_kind")


def lifted_softmax(
    block: Array, inverse_temperature: float, uniform: float, curve: Curve, out: Array
) -> None:
    """Write (1 - ε)·softmax(b·x) + ε/K, the largest probability of each row through a curve, into
    `out`.
    """
    masked = block == -np.inf if np.fmin.reduce(block, axis=None) == -np.inf else None  # NaN aside
    possible = (
        np.full(len(block), block.shape[1])
        if masked is None
        else block.shape[1] - masked.sum(axis=1)
    )
    line, winner = np.arange(len(block)), predicted(block)
    softmax(block, inverse_temperature, out)
    out[line, winner] = 0.0
    rest, second = out.sum(axis=1, dtype=np.float64), out.max(axis=1).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):  # a class alone
        scale, shift, top = lifted(np, rest, second, 1.0 / possible, uniform, curve.value)
    out *= scale[:, None].astype(out.dtype)
    out += shift[:, None].astype(out.dtype)
    if masked is not None:
        out[masked] = 0.0
    out[line, winner] = top


def tempered_loss(
    block: Array, labels: Codes, weights: Float | None, inverse_temperature: float
) -> Float:
    """Sum over rows of the negative log-likelihood of softmax(b·x) and its first three derivatives
    in b.

    With m_k the k-th moment of d under softmax(b·x): L = log Σ e^{bd} - b·d_y, L' = m_1 - d_y, L''
    = Var(d), L''' = the third central moment. Rows come back as (L, L', L'', L'''). The moments are
    summed as those of z = b·d.
    """
    exponents, classes, own = _laid_out(block, labels)
    exponents *= exponents.dtype.type(inverse_temperature)
    terms = _exp(exponents)
    s0 = terms.sum(axis=classes).astype(np.float64)
    s1 = _times(terms, exponents).sum(axis=classes)
    if np.isnan(s1).any():  # a masked class: 0 · (-inf) must be 0
        np.maximum(exponents, exponents.dtype.type(_ZERO[exponents.dtype]), out=exponents)
        s1 = _times(_exp(exponents), exponents).sum(axis=classes)
    m1 = s1 / (s0 * inverse_temperature)
    m2, m3 = (
        _times(terms, exponents).sum(axis=classes) / (s0 * inverse_temperature**power)
        for power in (2, 3)
    )
    third = m3 - m1 * (3.0 * m2 - 2.0 * m1 * m1)
    rows = np.stack([np.log(s0) - inverse_temperature * own, m1 - own, m2 - m1 * m1, third])
    return np.asarray((rows if weights is None else rows * weights).sum(axis=1))


def mixed_rows(block: Array, labels: Codes, inverse_temperature: float) -> Float:
    """What each row says of a temperature with a uniform part: eight columns, one row per row.

    With d = x - max x: the tail Σ e^{bd} - 1 without cancellation; the first four cumulants of d
    under softmax(b·x); d of the true class; how many classes are not masked; whether the largest
    logit is the true class.
    """
    gaps, classes, own = _laid_out(block, labels)
    possible: Any = block.shape[1]
    if gaps.min() == -np.inf:
        possible = (gaps > -np.inf).sum(axis=classes)
        np.maximum(gaps, gaps.dtype.type(_ZERO[gaps.dtype] / inverse_temperature), out=gaps)
    gaps *= gaps.dtype.type(inverse_temperature)
    terms = _exp(gaps)
    top = gaps == 0.0
    terms[top] = 0.0
    tail = terms.sum(axis=classes).astype(np.float64) + (top.sum(axis=classes) - 1)
    moments = (
        _times(terms, gaps).sum(axis=classes) / ((1.0 + tail) * inverse_temperature**power)
        for power in (1, 2, 3, 4)
    )
    found = np.empty((8, len(block)))
    for column, values in enumerate(
        (tail, *cumulants(*moments), own, possible, predicted(block) == labels)
    ):
        found[column] = values
    return found.T


def members(block: Array, labels: Codes, inverse_temperature: float) -> Float:
    """The true class's probability under softmax(b·x), under softmax(x), and uniformly among the
    possible classes.

    Three columns, one row per row: what ensemble temperature scaling mixes.
    """
    gaps, classes, own = _laid_out(block, labels)
    possible: Any = (gaps > -np.inf).sum(axis=classes) if gaps.min() == -np.inf else block.shape[1]
    plain = np.exp(own) / _exp(gaps).sum(axis=classes)
    gaps *= gaps.dtype.type(inverse_temperature)
    tempered = np.exp(inverse_temperature * own) / _exp(gaps).sum(axis=classes)
    return np.stack([tempered, plain, np.where(own > -np.inf, 1.0 / possible, 0.0)], axis=1)


def looked_over(block: Array) -> tuple[int | None, bool]:
    """The first row with NaN or +inf, or with every class masked, and whether some finite logit may
    stand for a mask.

    (It is so low that it may: `formulas.logits`.)
    """
    half = block.view(np.uint16) if block.dtype == np.float16 else None
    # float16 by its exponent bits: NumPy's float16 arithmetic is sixty times slower.
    if half is None or ((half & 0x7C00) == 0x7C00).any():
        legal = np.isfinite(block.max(axis=1))
        if not legal.all():
            return int(legal.argmin()), False
    if half is not None:
        return None, bool(
            ((half >= _HALF_LOWEST_ORDINARY) & (half < _HALF_MINUS_INFINITY_BITS)).any()
        )
    low = block.min(initial=0.0) <= LARGEST_FINITE_MASK
    return None, bool(low and ((block <= LARGEST_FINITE_MASK) & (block > -np.inf)).any())


def mixed_sums(
    columns: Float,
    weights: Float | None,
    walked: float,
    b: float,
    uniform: float,
    first: int,
    last: int,
) -> Float:
    """The sums of `kernels.columns.mixed_sums` over the rows from `first` up to `last`."""
    own = None if weights is None else weights[first:last]
    return np.asarray(definition.mixed_sums(np, columns[:, first:last], own, walked, b, uniform))


def mixed_log_odds(
    columns: Float, walked: float, b: float, uniform: float, first: int, last: int, out: Float
) -> None:
    """Write those of `kernels.columns.mixed_log_odds` of the rows from `first` up to `last`."""
    out[first:last] = definition.mixed_log_odds(np, columns[:, first:last], walked, b, uniform)


def _times(terms: Array, factors: Array) -> Array:
    with np.errstate(invalid="ignore"):
        np.multiply(terms, factors, out=terms)
    return terms


def on_grid(
    z: Float, right: Float, weights: Float | None, grid: float, reach: float, low: int, size: int
) -> Float:
    """Weights of rows, and of right ones, at the points (low + c)·grid beside each z, which is kept
    on average.
    """
    sums = np.zeros((2, size))
    for start in range(0, len(z), _CHUNK):
        rows = slice(start, start + _CHUNK)
        place = z[rows].clip(-reach, reach) / grid
        cell = np.floor(place)
        part = place - cell
        at = (cell - low).astype(np.intp)
        own = 1.0 if weights is None else weights[rows]
        for total, w in zip(sums, (own, own * right[rows])):
            beyond = w * part
            total += np.bincount(at, w - beyond, size)
            total[1:] += np.bincount(at, beyond, size)[:-1]
    return sums
