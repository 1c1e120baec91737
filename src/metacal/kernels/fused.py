"""The kernels in C, one pass over the block, the GIL released. Same answers as `numpy.py`, to
rounding.

They walk a block of any size, strip by strip where they sum, and pick rows themselves: besides what
their namesakes in `numpy.py` take, `rows` are the positions of the rows that count (all of them
when None).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import metacal.kernels._fused as _fused
from metacal.formulas import Array, Codes, Flags, Float
from metacal.kernels.columns import Curve
from metacal.kernels.grid import Grid

#: Positions of rows in a block, strictly within it; None: all rows.
Chosen = Codes | None


#: The scores, in the order in which the C code numbers them.
_SCORES = ("entropy", "doubt", "negative_margin", "free_energy")
#: What first_bad_row answers where no row is bad but some logit may stand for a mask.
_MAY_BE_MASKED = -2


#: What this processor can run, fastest first; the first is used.
instruction_sets = _fused.instruction_sets


def predicted(block: Array, *, rows: Chosen = None) -> Codes:
    """ŷ = argmax x, the lowest index on an exact tie."""
    out = np.empty(_count(block, rows), dtype=np.int64)
    _fused.predicted(_readable(block), rows, out)
    return out.astype(np.intp, copy=False)


def softmax(block: Array, inverse_temperature: float, out: Array, *, rows: Chosen = None) -> None:
    """Write softmax(b·x) of each row into `out`."""
    written = out if walkable(out) else np.empty(out.shape, dtype=out.dtype)
    _fused.softmax(_readable(block), rows, inverse_temperature, written)
    if written is not out:
        out[...] = written


def lifted_softmax(
    block: Array, inverse_temperature: float, uniform: float, curve: Curve, out: Array
) -> None:
    """Write (1 - ε)·softmax(b·x) + ε/K, the largest probability of each row through a curve, into
    `out`.
    """
    written = out if walkable(out) else np.empty(out.shape, dtype=out.dtype)
    _fused.lifted(_readable(block), inverse_temperature, uniform, curve.packed, written)
    if written is not out:
        out[...] = written


def inside(block: Array, least: float, most: float, out: Array) -> bool:
    """Bring the probabilities of rows of logits between the two, in place; False where the C code
    cannot walk them.
    """
    fits = walkable(out) and out.dtype.itemsize >= 4
    if fits:
        _fused.inside(_readable(block), least, most, out)
    return fits


def tempered_loss(
    block: Array,
    labels: Codes,
    weights: Float | None,
    inverse_temperature: float,
    *,
    rows: Chosen = None,
    ends: Codes | None = None,
) -> Float:
    """Sum over rows of the negative log-likelihood of softmax(b·x) and its first three derivatives
    in b.

    Where `ends` say that strip s has the rows from ends[s] up to ends[s + 1], each strip has its
    own four sums.
    """
    strips = np.array([0, len(labels)]) if ends is None else ends
    out, own = np.empty(4 * (len(strips) - 1)), _column(labels, np.int64)
    _fused.tempered_loss(
        _readable(block), rows, own, _column(weights), inverse_temperature, strips, out
    )
    return out if ends is None else out.reshape(-1, 4)


def mixed_rows(
    block: Array,
    labels: Codes,
    inverse_temperature: float,
    *,
    rows: Chosen = None,
    out: Float | None = None,
) -> Float:
    """What each row says of a temperature with a uniform part: eight numbers a row, as in
    `numpy.py`.

    A column lies together, which whoever works on columns gains from; `out` is the transpose of
    such columns.
    """
    out = np.empty((8, len(labels))).T if out is None else out
    _fused.mixed_rows(_readable(block), rows, _column(labels, np.int64), inverse_temperature, out.T)
    return out


def ranked_rows(
    block: Array,
    scores: Float,
    right: Flags,
    labels: Codes,
    *,
    score: str,
    grid: Grid,
    careful: bool = False,
) -> None:
    """Write the score of each row, on its grid, and whether its largest logit is the true class, in
    one walk.
    """
    kind, own = _SCORES.index(score), _column(labels, np.int64)
    _fused.ranked_rows(
        _readable(block), kind, careful, own, grid.dropped, grid.floor, scores, right
    )


def class_units(block: Array, accept: Flags, edges: Float, totals: Float, above: Any) -> None:
    """Add the probabilities of a block up in whole units, as `kernels.exact.class_units` does."""
    accept = np.ascontiguousarray(accept, dtype=bool)
    _fused.class_units(_readable(block), accept, edges, totals.reshape(-1), above.reshape(-1))


def rounded(values: Float, grid: Grid) -> Float:
    """The point of a grid nearest to each value, as `Grid.rounded` has it."""
    out = np.empty(len(values))
    _fused.rounded(_column(values), grid.dropped, grid.floor, out)
    return out


def mixed_log_odds(
    columns: Float, walked: float, b: float, uniform: float, first: int, last: int, out: Float
) -> None:
    """Write those of `kernels.columns.mixed_log_odds` of the rows from `first` up to `last`."""
    _fused.log_odds(columns, b - walked, uniform, first, last, out)


def on_grid(
    z: Float, right: Float, weights: Float | None, grid: float, reach: float, low: int, size: int
) -> Float:
    """Weights of rows, and of right ones, at the points (low + c)·grid beside each z, which is kept
    on average.
    """
    out = np.empty((2, size))
    _fused.on_grid(_column(z), _column(right), _column(weights), grid, reach, low, out.reshape(-1))
    return out


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
    out = np.empty(6)
    _fused.mixed_sums(_column(columns), _column(weights), b, b - walked, uniform, first, last, out)
    return out


def members(
    block: Array, labels: Codes, inverse_temperature: float, *, rows: Chosen = None
) -> Float:
    """The true class's probability under softmax(b·x), under softmax(x), and uniformly among the
    possible classes.
    """
    out = np.empty((len(labels), 3))
    _fused.members(
        _readable(block), rows, _column(labels, np.int64), inverse_temperature, out.reshape(-1)
    )
    return out


def looked_over(block: Array) -> tuple[int | None, bool]:
    """The first bad row, and whether some finite logit is so low that it may stand for a mask; in
    one pass.
    """
    found = _fused.first_bad_row(_readable(block))
    return (found if found >= 0 else None), found == _MAY_BE_MASKED


def ranked(scores: Float, flags: Flags) -> tuple[Float, Any, Any, Any] | None:
    """What `kernels.keys.ranked` gives; None where the last bit of some score is not free."""
    keys = np.empty(len(scores), dtype=np.int64)
    flags = np.ascontiguousarray(flags, dtype=bool)
    if not _fused.keys(_column(scores), flags, keys):
        return None
    return blocks(keys, in_order=False)


def blocks(keys: NDArray[np.int64], *, in_order: bool) -> tuple[Float, Any, Any, Any]:
    """The same of keys with their flag in the last bit, which are overwritten: sorted here, or in
    order already.
    """
    ranks, errors, wrong = (np.empty(len(keys), dtype=np.int64) for _ in range(3))
    n_blocks, n_wrong = _fused.blocks(keys, ranks, errors, wrong, in_order)
    return keys.view(np.float64)[:n_blocks], ranks[:n_blocks], errors[:n_blocks], wrong[:n_wrong]


def count_in_cells(
    scores: Float, flags: Flags, stretches: NDArray[np.int64], counts: Any, seen: Any
) -> None:
    """Add rows to the counts of their cells (`kernels.keys`), in place."""
    flags = np.ascontiguousarray(flags, dtype=bool)
    _fused.count_in_cells(_column(scores), flags, stretches.reshape(-1), counts, seen)


def _score(
    kind: int, block: Array, *, rows: Chosen = None, top: Codes | None = None, careful: bool = False
) -> Float:
    """One score per row; predicted columns go into `top`.

    Carefully, for a table not looked over yet, a row that has to be looked at (`looked_over` says
    why) gets no score.
    """
    out = np.empty(_count(block, rows))
    _fused.scores(_readable(block), rows, kind, careful, out, top)
    return out


entropy, doubt, negative_margin, free_energy = (
    partial(_score, kind) for kind in range(len(_SCORES))
)


def _count(block: Array, rows: Chosen) -> int:
    return len(block) if rows is None else len(rows)


def _column(values: Any, dtype: Any = np.float64) -> Any:
    """What the C code asks of labels and weights, of which every s-th may be given: side by side,
    and aligned.

    `ascontiguousarray` would let one pass whose bytes begin anywhere.
    """
    return None if values is None else np.require(values, dtype, ("C_CONTIGUOUS", "ALIGNED"))


def _readable(block: Array) -> Array:
    """A block whose rows the C code can walk: native floats side by side. A strip is small, so a
    copy is cheap.
    """
    if block.dtype.kind != "f" or block.dtype.itemsize > 8:
        block = block.astype(np.float64)
    elif not block.dtype.isnative:
        block = block.astype(block.dtype.newbyteorder("="))
    return block if walkable(block) else block.copy(order="C")


def walkable(block: Array) -> bool:
    """Whether the C code can walk the rows where they lie.

    NumPy calls an array contiguous wherever its bytes begin, and `ascontiguousarray` would leave
    such a one as it is; and it takes the strides of a table of one row, or one column, for
    anything.
    """
    step, inner = block.strides
    floats = block.dtype.kind == "f" and block.dtype.itemsize <= 8 and block.dtype.isnative
    return floats and block.flags.aligned and inner == block.itemsize and step % block.itemsize == 0
