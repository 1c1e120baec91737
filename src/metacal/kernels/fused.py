"""The kernels in C, one pass over the block, the GIL released. Same answers as `numpy.py`, to rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.kernels import _fused

Float = NDArray[np.float64]

_ENTROPY, _DOUBT, _MARGIN, _ENERGY = range(4)
#: What the C code asks of labels and weights; `ascontiguousarray` would let one pass whose bytes begin anywhere.
_COLUMN: Any = ("C_CONTIGUOUS", "ALIGNED")
#: What first_bad_row answers where no row is bad but some logit may stand for a mask.
_MAY_BE_MASKED = -2


def instruction_sets() -> list[str]:
    """What this processor can run, fastest first; the first is used."""
    return _fused.instruction_sets()


def predicted(block: NDArray[Any]) -> NDArray[np.intp]:
    """ŷ = argmax x, the lowest index on an exact tie."""
    out = np.empty(len(block), dtype=np.int64)
    _fused.predicted(_readable(block), out)
    return out.astype(np.intp, copy=False)


def entropy(block: NDArray[Any]) -> Float:
    """Entropy of softmax(x), without cancellation."""
    return _score(block, _ENTROPY)


def doubt(block: NDArray[Any]) -> Float:
    """1 - max p, without cancellation."""
    return _score(block, _DOUBT)


def negative_margin(block: NDArray[Any]) -> Float:
    """Second largest logit minus the largest."""
    return _score(block, _MARGIN)


def free_energy(block: NDArray[Any]) -> Float:
    """-logsumexp(x)."""
    return _score(block, _ENERGY)


def softmax(block: NDArray[Any], inverse_temperature: float, out: NDArray[Any]) -> None:
    """Write softmax(b·x) of each row into `out`."""
    written = out if _walkable(out) else np.empty(out.shape, dtype=out.dtype)
    _fused.softmax(_readable(block), inverse_temperature, written)
    if written is not out:
        out[...] = written


def tempered_loss(
    block: NDArray[Any], labels: NDArray[np.intp], weights: Float | None, inverse_temperature: float
) -> Float:
    """Sum over rows of the negative log-likelihood of softmax(b·x) and its first three derivatives in b."""
    out = np.empty(4)
    labels = np.require(labels, np.int64, _COLUMN)
    weights = None if weights is None else np.require(weights, np.float64, _COLUMN)
    _fused.tempered_loss(_readable(block), labels, weights, inverse_temperature, out)
    return out


def tempered_rows(block: NDArray[Any], labels: NDArray[np.intp], inverse_temperature: float) -> Float:
    """The negative log-likelihood of softmax(b·x) and its first two derivatives in b, row by row: three columns."""
    out = np.empty((len(block), 3))
    labels = np.require(labels, np.int64, _COLUMN)
    _fused.tempered_rows(_readable(block), labels, inverse_temperature, out.reshape(-1))
    return out


def members(block: NDArray[Any], labels: NDArray[np.intp], inverse_temperature: float) -> Float:
    """The true class's probability under softmax(b·x), under softmax(x), and uniformly among the possible classes."""
    out = np.empty((len(block), 3))
    labels = np.require(labels, np.int64, _COLUMN)
    _fused.members(_readable(block), labels, inverse_temperature, out.reshape(-1))
    return out


def first_bad_row(block: NDArray[Any]) -> int | None:
    """The first row with NaN or +inf, or with every class masked; None when there is none."""
    found = _fused.first_bad_row(_readable(block))
    return None if found < 0 else found


def looked_over(block: NDArray[Any]) -> tuple[int | None, bool]:
    """The first bad row, and whether some finite logit is so low that it may stand for a mask; in one pass."""
    found = _fused.first_bad_row(_readable(block))
    return (found if found >= 0 else None), found == _MAY_BE_MASKED


def _score(block: NDArray[Any], kind: int) -> Float:
    out = np.empty(len(block))
    _fused.scores(_readable(block), kind, out)
    return out


def _readable(block: NDArray[Any]) -> NDArray[Any]:
    """A block whose rows the C code can walk: native floats side by side. A strip is small, so a copy is cheap."""
    if block.dtype.kind != "f" or block.dtype.itemsize > 8:
        block = block.astype(np.float64)
    elif not block.dtype.isnative:
        block = block.astype(block.dtype.newbyteorder("="))
    return block if _walkable(block) else block.copy(order="C")


def _walkable(block: NDArray[Any]) -> bool:
    """Whether the C code can walk the rows where they lie.

    NumPy calls an array contiguous wherever its bytes begin, and `ascontiguousarray` would leave such a one as it is;
    and it takes the strides of a table of one row, or one column, for anything.
    """
    step, inner = block.strides
    return block.flags.aligned and inner == block.itemsize and step % block.itemsize == 0
