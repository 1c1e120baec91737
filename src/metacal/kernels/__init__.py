"""Statistics of one block of rows: the only code that touches every logit. One interface, three
implementations.

`numpy.py` is the definition and always works; `fused.py` calls the C extension, where it was built.
Which one runs is settled at import: the C kernel if it is there, unless the environment variable
METACAL_KERNEL says "numpy". A block that is a torch tensor on a GPU goes to `torch.py` instead,
which is loaded when the first one arrives.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial, wraps
from importlib import import_module
from inspect import signature
from types import ModuleType
from typing import Any

import numpy as np

from metacal.errors import InputError
from metacal.formulas import Array, Codes, Flags, Float, rowwise
from metacal.formulas.operations import NUMPY
from metacal.formulas.probabilities import probability_limits
from metacal.kernels import numpy as definition
from metacal.kernels.columns import mixed_log_odds as _mixed_log_odds

KERNEL_VARIABLE = "METACAL_KERNEL"
#: Rows of columns that are worked on at a time: a quarter of a millisecond for C, which is worth a
#: thread.
_PART = 1 << 15

_NOT_BUILT = (
    "the C kernel is not built on Windows, whose compiler lacks the vector types it is written in"
    if sys.platform == "win32"
    else (
        "the C kernel was not built (no compiler when metacal was installed, or a wheel without"
        " it?)"
    )
)


def _choose(wanted: str) -> tuple[ModuleType, str]:
    """The module to use, and why."""
    if wanted not in ("auto", "numpy", "fused"):
        raise InputError(f"{KERNEL_VARIABLE} must be auto, numpy or fused, got {wanted!r}.")
    if wanted == "numpy":
        return definition, f"{KERNEL_VARIABLE}=numpy asks for it"
    try:
        from metacal.kernels import fused
    except ImportError as error:
        if wanted == "fused":
            raise InputError(
                f"{KERNEL_VARIABLE}=fused, but the C kernel is not built ({error})."
            ) from None
        return definition, _NOT_BUILT
    return (
        fused,
        f"the C kernel is built; this processor runs {', '.join(fused.instruction_sets())}",
    )


active, reason = _choose(os.environ.get(KERNEL_VARIABLE, "auto"))
#: Whether its functions take blocks of any size; NumPy's want strips, whose intermediate results
#: stay in the cache.
takes_whole_blocks = hasattr(active, "walkable")


def on_device(table: Any) -> bool:
    """Whether a table, block or column is a torch tensor on a GPU. torch itself is not imported to
    find out.
    """
    return (
        type(table).__module__.partition(".")[0] == "torch"
        and hasattr(table, "detach")
        and bool(table.is_cuda)
    )


def device_kernels() -> ModuleType:
    """The kernels for tensors; only called when there is one, so that torch is there."""
    return import_module("metacal.kernels.torch")


def _in_parts(
    pool: ThreadPoolExecutor | None, task: Callable[[int, int], Any], n: int
) -> list[Any]:
    """task(first, last) of each part of n rows, in order; each thread of a pool gets neighbouring
    parts: few are woken and waited for.

    Examples
    --------
    >>> with ThreadPoolExecutor(2) as pool:
    ...     _in_parts(pool, lambda first, last: last - first, 70_000)
    [32768, 32768, 4464]
    """
    parts = [(first, min(first + _PART, n)) for first in range(0, n, _PART)]
    if pool is None or len(parts) < 2:
        return [task(*part) for part in parts]
    each = -(-len(parts) // pool._max_workers)
    stretches = [parts[first : first + each] for first in range(0, len(parts), each)]
    return [
        found
        for answers in pool.map(lambda own: [task(*part) for part in own], stretches)
        for found in answers
    ]


def mixed_sums(
    columns: Any,
    weights: Any,
    walked: float,
    b: float,
    uniform: float,
    pool: ThreadPoolExecutor | None = None,
) -> Float:
    """The sums of `columns.mixed_sums` over columns of `mixed_rows`, wherever these lie; six
    numbers on the host.

    Rows are added up in parts of a fixed size, which threads share: the bits are those of one
    thread.
    """
    if on_device(columns):
        return device_kernels().mixed_sums(columns, weights, walked, b, uniform).cpu().numpy()
    sums = (active if columns.flags.c_contiguous else definition).mixed_sums
    return np.asarray(
        sum(_in_parts(pool, partial(sums, columns, weights, walked, b, uniform), columns.shape[1]))
    )


def mixed_log_odds(
    columns: Any, walked: float, b: float, uniform: float, pool: ThreadPoolExecutor | None = None
) -> Float:
    """The log-odds of `columns.mixed_log_odds` of each row, on the host."""
    if on_device(columns):
        return np.asarray(
            _mixed_log_odds(device_kernels().torch, columns, walked, b, uniform).cpu()
        )
    write, odds = (
        (active if columns.flags.c_contiguous else definition).mixed_log_odds,
        np.empty(columns.shape[1]),
    )
    _in_parts(pool, partial(write, columns, walked, b, uniform, out=odds), len(odds))
    return odds


def reads_tensors(function: Callable[..., Any]) -> bool:
    """Whether a function of a block takes tensors as well as arrays: the kernels, also with
    arguments filled in.
    """
    return getattr(getattr(function, "func", function), "reads_tensors", False)


def walks_blocks(function: Callable[..., Any], table: Any) -> bool:
    """Whether a function takes blocks of this table whole: any number of rows, and which of them
    count, at one call.

    Such a function gives the same bits whatever block its rows come in; it takes `rows`, the
    positions that count, and, if it sums, the `ends` of strips. The C kernels do, also with
    arguments filled in, where they need not copy: of a table that is stored blocks are made on
    purpose.

    Examples
    --------
    >>> walks_blocks(np.sum, np.zeros((2, 3)))
    False
    """
    function = getattr(function, "func", function)
    if not getattr(function, "walks_blocks", False):
        return False
    return active.walkable(table) if isinstance(table, np.ndarray) else not on_device(table)


def _for_either(host: Callable[..., Any]) -> Any:
    """The kernel `host` for arrays, its namesake in torch.py for tensors. One that takes `rows`
    walks blocks.
    """
    name = host.__name__

    @wraps(host)
    def kernel(block: Any, *arguments: Any, **keywords: Any) -> Any:
        if isinstance(block, np.ndarray) or not on_device(block):
            return host(block, *arguments, **keywords)
        return getattr(device_kernels(), name)(block, *arguments, **keywords)

    kernel.__module__ = __name__  # so that it pickles by the name it is found under
    kernel.reads_tensors = True  # type: ignore[attr-defined]
    kernel.walks_blocks = "rows" in signature(host).parameters  # type: ignore[attr-defined]
    return kernel


@_for_either
def label_is_possible(block: Array, labels: Codes) -> Flags:
    """Whether the true class of each row is not masked."""
    return np.asarray(block[np.arange(len(block)), labels] > -np.inf)


@_for_either
def mixed_softmax(block: Array, inverse_temperature: float, uniform: float, out: Array) -> None:
    """Write (1 - ε)·softmax(b·x) + ε/K of each row into `out`, K the number of classes that are not
    masked.
    """
    write_mixed(block, inverse_temperature, 1.0 - uniform, uniform, out)


def write_mixed(
    block: Array,
    inverse_temperature: float,
    share: float,
    uniform: float,
    out: Array,
    other: Any = None,
) -> None:
    """Write w·softmax(b·x) + ε/K of each row into `out`, and add what else there is; no prediction
    is lost.
    """
    possible = block > -np.inf if np.fmin.reduce(block, axis=None) == -np.inf else None  # NaN aside
    winner = active.predicted(block)
    active.softmax(block, inverse_temperature, out)
    out *= out.dtype.type(share)
    if other is not None:
        out += other
    if possible is None:
        out += out.dtype.type(uniform / block.shape[1])
    else:
        out += possible * (uniform / possible.sum(axis=1, keepdims=True)).astype(out.dtype)
    keep_winner(winner, out)


def keep_winner(winner: Codes, out: Array) -> None:
    """Where rounding has tied a row's predicted class with a lower column, lift it by the smallest
    step.
    """
    lines = np.flatnonzero(out.argmax(axis=1) != winner)
    if len(lines):
        out[lines, winner[lines]] = np.nextafter(out[lines].max(axis=1), out.dtype.type(2.0))


@_for_either
def put_inside(out: Array, block: Array, possible: Flags | None = None) -> None:
    """What `formulas.probabilities` says, in place; `possible` where the block has been written over."""
    least, most = probability_limits(np.finfo(out.dtype))
    if possible is None and takes_whole_blocks and active.inside(block, least, most, out):
        return
    if not out.size or (out.min() >= least and out.max() <= most):
        return
    flags = block > -np.inf if possible is None else possible
    several = flags.sum(axis=1, keepdims=True) > 1
    np.copyto(out, least, where=(out < least) & flags & several)
    np.copyto(out, most, where=(out > most) & several)


@dataclass(frozen=True)
class FormulaKernel:
    """A score by its formula, in float64: of arrays here, by the kernel in its stead if there is
    one; of tensors where they lie.

    Examples
    --------
    >>> FormulaKernel(rowwise.rivals_norm)(np.array([[2.0, 1.0, 0.0], [1.0, np.nan, 0.0]]))
    array([ 1., nan])
    """

    formula: Callable[..., Any]
    host: Callable[..., Float] | None = None

    reads_tensors = True

    @property
    def walks_blocks(self) -> bool:
        """Whether it takes blocks of any size."""
        return self.host is not None and takes_whole_blocks

    def __call__(self, block: Any, **how: Any) -> Any:
        """One number per row, NaN for one with NaN or +inf, or with every class masked."""
        if not isinstance(block, np.ndarray) and on_device(block):
            return device_kernels().of_formula(block, self.formula, **how)
        if self.host is not None:
            return self.host(block, **how)
        found = NUMPY.evaluate(self.formula, np.asarray(block, dtype=np.float64))[:, 0]
        legal = np.isfinite(block.max(axis=1))
        return found if legal.all() else np.where(legal, found, np.nan)


def _fast(formula: Callable[..., Any], host: Callable[..., Any]) -> FormulaKernel:
    """A score that has a kernel, which stands in place of its formula in NumPy, too."""
    NUMPY.kernels[formula] = lambda xp, table: host(table)[:, None]
    return FormulaKernel(formula, host)


entropy = _fast(rowwise.entropy, active.entropy)
doubt = _fast(rowwise.doubt, active.doubt)
negative_margin = _fast(rowwise.negative_margin, active.negative_margin)
free_energy = _fast(rowwise.free_energy, active.free_energy)
spread = FormulaKernel(rowwise.spread)
rounded = _for_either(active.rounded)
predicted = _for_either(active.predicted)
softmax = _for_either(active.softmax)
lifted_softmax = _for_either(active.lifted_softmax)
tempered_loss = _for_either(active.tempered_loss)
mixed_rows = _for_either(active.mixed_rows)
members = active.members
members.walks_blocks = takes_whole_blocks
looked_over = _for_either(active.looked_over)
