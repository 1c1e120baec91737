"""Statistics of one block of rows: the only code that reads every logit.

There is one interface with three implementations. `numpy.py` is the definition and always works.
`fused.py` calls the C extension if it was built. The choice is made at import: the C kernels if they
are available, unless the environment variable METACAL_KERNEL is "numpy". Blocks that are torch
tensors on a GPU are passed to `torch.py`, which is imported when the first one arrives.

Terms used in this package:

- *block*: consecutive rows of logits, shape (n_rows, n_classes).
- *possible class*: a class of a row that is not masked, that is, whose logit is not -inf.
- *takes whole blocks*: such a kernel takes blocks of any size and the indices of the rows to use,
  and no bit of its result depends on the size of the block.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial, wraps
from importlib import import_module
from inspect import signature
from types import ModuleType
from typing import Any

import numpy as np

from metacal.formulas import Array, Codes, Flags, Float, rowwise
from metacal.formulas.operations import NUMPY
from metacal.formulas.probabilities import probability_limits
from metacal.kernels import numpy as numpy_kernels
from metacal.kernels.choice import KERNEL_VARIABLE, choose_kernels
from metacal.kernels.columns import confidence_log_odds as _confidence_log_odds_formula
from metacal.kernels.row_ranges import run_on_row_ranges

host_kernels, reason_for_kernels = choose_kernels(os.environ.get(KERNEL_VARIABLE, "auto"))
#: Whether the C kernels are used, which take blocks of any size.
#: The NumPy kernels need blocks whose intermediate results fit into the cache.
uses_c_kernels = hasattr(host_kernels, "is_readable_without_copy")


def is_device_tensor(table: Any) -> bool:
    """Check whether an object is a torch tensor on a GPU, without importing torch."""
    if type(table).__module__.partition(".")[0] != "torch":
        return False
    return hasattr(table, "detach") and bool(table.is_cuda)


@cache
def device_kernels() -> ModuleType:
    """Import and return the kernels for torch tensors."""
    return import_module("metacal.kernels.torch")


def mixture_loss_and_derivatives(
    row_statistics: Any,
    weights: Any,
    b_of_statistics: float,
    b: float,
    uniform_weight: float,
    pool: ThreadPoolExecutor | None = None,
) -> Float:
    """Sum the loss of uniform temperature scaling and its derivatives over rows.

    The rows are added in parts of a fixed size, so the bits do not depend on the number of threads.

    Parameters
    ----------
    row_statistics : array or tensor of shape (8, n_rows)
        Columns of `temperature_statistics`.

    weights : array or tensor of shape (n_rows,) or None
        Row weights.

    b_of_statistics : float
        Inverse temperature at which the statistics were computed.

    b : float
        Inverse temperature, near `b_of_statistics`.

    uniform_weight : float
        Weight of the uniform distribution.

    pool : ThreadPoolExecutor, default=None
        Pool of threads.

    Returns
    -------
    array of shape (6,)
    """
    if is_device_tensor(row_statistics):
        device_sums = device_kernels().mixture_loss_and_derivatives(
            row_statistics, weights, b_of_statistics, b, uniform_weight
        )
        return device_sums.cpu().numpy()
    kernels = host_kernels if row_statistics.flags.c_contiguous else numpy_kernels
    sum_row_range = partial(
        kernels.mixture_loss_and_derivatives,
        row_statistics,
        weights,
        b_of_statistics,
        b,
        uniform_weight,
    )
    return np.asarray(sum(run_on_row_ranges(pool, sum_row_range, row_statistics.shape[1])))


def confidence_log_odds(
    row_statistics: Any,
    b_of_statistics: float,
    b: float,
    uniform_weight: float,
    pool: ThreadPoolExecutor | None = None,
) -> Float:
    """Compute the log-odds of the confidence of each row as an array on the host.

    Parameters
    ----------
    row_statistics, b_of_statistics, b, uniform_weight, pool
        As in `mixture_loss_and_derivatives`.

    Returns
    -------
    array of shape (n_rows,)
    """
    if is_device_tensor(row_statistics):
        torch = device_kernels().torch
        return np.asarray(
            _confidence_log_odds_formula(
                torch, row_statistics, b_of_statistics, b, uniform_weight
            ).cpu()
        )
    # Columns must be contiguous, because the C kernel would otherwise copy them.
    kernels = host_kernels if row_statistics.flags.c_contiguous else numpy_kernels
    log_odds = np.empty(row_statistics.shape[1])
    write_row_range = partial(
        kernels.confidence_log_odds,
        row_statistics,
        b_of_statistics,
        b,
        uniform_weight,
        out=log_odds,
    )
    run_on_row_ranges(pool, write_row_range, len(log_odds))
    return log_odds


def reads_tensors(function: Callable[..., Any]) -> bool:
    """Check whether a function of a block takes tensors as well as arrays."""
    return getattr(getattr(function, "func", function), "reads_tensors", False)


def can_pass_whole_blocks(function: Callable[..., Any], table: Any) -> bool:
    """Check whether a function takes whole blocks of a table.

    Such a function takes `rows`, the indices of the rows to use, and if it computes sums, the
    `strip_ends`. The C kernels do so for arrays that they can read without a copy, and for stored
    tables, whose blocks are always new arrays.

    Examples
    --------
    >>> can_pass_whole_blocks(np.sum, np.zeros((2, 3)))
    False
    """
    function = getattr(function, "func", function)
    if not getattr(function, "takes_whole_blocks", False):
        return False
    if isinstance(table, np.ndarray):
        return bool(host_kernels.is_readable_without_copy(table))
    return not is_device_tensor(table)


def _dispatch_to_device(host_kernel: Callable[..., Any]) -> Any:
    """Return a kernel that also accepts tensors on a device.

    It calls `host_kernel` for arrays, and the function of the same name in `kernels/torch.py` for
    tensors. A kernel with a parameter `rows` takes whole blocks.
    """
    name = host_kernel.__name__

    @wraps(host_kernel)
    def kernel(block: Any, *arguments: Any, **keywords: Any) -> Any:
        if isinstance(block, np.ndarray) or not is_device_tensor(block):
            return host_kernel(block, *arguments, **keywords)
        return getattr(device_kernels(), name)(block, *arguments, **keywords)

    # Pickle looks up the kernel by its name in this module.
    kernel.__module__ = __name__
    kernel.reads_tensors = True  # type: ignore[attr-defined]
    takes_row_indices = "rows" in signature(host_kernel).parameters
    kernel.takes_whole_blocks = takes_row_indices  # type: ignore[attr-defined]
    return kernel


@_dispatch_to_device
def label_is_possible(block: Array, labels: Codes) -> Flags:
    """Return whether the true class of each row is not masked."""
    return np.asarray(block[np.arange(len(block)), labels] > -np.inf)


@_dispatch_to_device
def mixture_softmax(
    block: Array, inverse_temperature: float, uniform_weight: float, out: Array
) -> None:
    """Write (1 - ε)·softmax(b·x) + ε/K of each row into `out`.

    K is the number of possible classes of the row.

    Parameters
    ----------
    block : array of shape (n_rows, n_classes)
        Logits x.

    inverse_temperature : float
        Inverse temperature b.

    uniform_weight : float
        Weight ε of the uniform distribution.

    out : array of shape (n_rows, n_classes)
        Buffer for the result.
    """
    write_mixture(block, inverse_temperature, 1.0 - uniform_weight, uniform_weight, out)


def write_mixture(
    block: Array,
    inverse_temperature: float,
    softmax_weight: float,
    uniform_weight: float,
    out: Array,
    extra_term: Any = None,
) -> None:
    """Write w·softmax(b·x) + ε/K plus an extra term, and preserve all predictions.

    Parameters
    ----------
    block : array of shape (n_rows, n_classes)
        Logits x.

    inverse_temperature : float
        Inverse temperature b.

    softmax_weight : float
        Weight w of the softmax.

    uniform_weight : float
        Weight ε of the uniform distribution over the possible classes.

    out : array of shape (n_rows, n_classes)
        Buffer for the result.

    extra_term : array of shape (n_rows, n_classes), default=None
        Term to add.
    """
    # `fmin` ignores NaN, so -inf is found even if the block contains NaN.
    has_masked_classes = np.fmin.reduce(block, axis=None) == -np.inf
    if has_masked_classes:
        # The mask is computed first, because `out` may be the block itself.
        is_possible = block > -np.inf
    predictions = host_kernels.predict_classes(block)
    host_kernels.softmax(block, inverse_temperature, out)
    out *= out.dtype.type(softmax_weight)
    if extra_term is not None:
        out += extra_term
    if has_masked_classes:
        n_possible = is_possible.sum(axis=1, keepdims=True)
        out += is_possible * (uniform_weight / n_possible).astype(out.dtype)
    else:
        out += out.dtype.type(uniform_weight / block.shape[1])
    ensure_predictions_are_largest(predictions, out)


def ensure_predictions_are_largest(predictions: Codes, out: Array) -> None:
    """Break ties that rounding has caused, in favour of the predicted class.

    Its probability becomes the next floating-point number above the largest one.
    """
    changed_rows = np.flatnonzero(out.argmax(axis=1) != predictions)
    if len(changed_rows):
        largest = out[changed_rows].max(axis=1)
        next_larger_values = np.nextafter(largest, out.dtype.type(2.0))
        out[changed_rows, predictions[changed_rows]] = next_larger_values


def try_writing_clipped_probabilities(
    block: Any,
    inverse_temperature: float,
    out: Any,
    *,
    uniform_weight: float = 0.0,
    curve: Any = None,
) -> bool:
    """Write clipped probabilities in one pass over the block.

    The result is that of `mixture_softmax` or `softmax_with_curve`, then `clip_probabilities`.

    Parameters
    ----------
    block : array or tensor of shape (n_rows, n_classes)
        Logits.

    inverse_temperature : float
        Inverse temperature b.

    out : array or tensor of shape (n_rows, n_classes)
        Buffer for the result, possibly the block itself.

    uniform_weight : float, default=0.0
        Weight ε of the uniform distribution.

    curve : Curve, default=None
        Curve of the largest probability.

    Returns
    -------
    bool
        False if no kernel supports the block. Nothing is written then.
    """
    if not uses_c_kernels or not isinstance(block, np.ndarray):
        return False
    limits = probability_limits(np.finfo(out.dtype))
    host_kernels.write_limited_probabilities(
        block, inverse_temperature, uniform_weight, curve, limits, out
    )
    return True


def try_computing_confidences(
    block: Any,
    inverse_temperature: float,
    *,
    uniform_weight: float = 0.0,
    curve: Any = None,
    rows: Codes | None = None,
) -> Float | None:
    """Compute the probability of the predicted class of each row.

    Parameters
    ----------
    block, inverse_temperature, uniform_weight, curve
        As in `try_writing_clipped_probabilities`.

    rows : array of int, default=None
        Indices of the rows to use, by default all.

    Returns
    -------
    array of shape (n_rows,) or None
        The entries that `try_writing_clipped_probabilities` writes for the predicted classes. None
        if no kernel supports the block.
    """
    if not uses_c_kernels or not isinstance(block, np.ndarray):
        return None
    dtype = np.float64 if block.dtype == np.float64 else np.float32
    limits = probability_limits(np.finfo(dtype))
    confidences: Float = host_kernels.compute_confidences(
        block, inverse_temperature, uniform_weight, curve, limits, dtype, rows=rows
    )
    return confidences


@_dispatch_to_device
def clip_probabilities(out: Array, block: Array, is_possible: Flags | None = None) -> None:
    """Clip probabilities in place as `formulas.probabilities` does.

    Parameters
    ----------
    out : array of shape (n_rows, n_classes)
        Probabilities.

    block : array of shape (n_rows, n_classes)
        Logits.

    is_possible : array of bool of shape (n_rows, n_classes), default=None
        Possible classes, needed if the block has been overwritten.
    """
    smallest, largest = probability_limits(np.finfo(out.dtype))
    if (
        is_possible is None
        and uses_c_kernels
        and host_kernels.try_to_clip_in_place(block, smallest, largest, out)
    ):
        return
    is_within_limits = not out.size or (out.min() >= smallest and out.max() <= largest)
    if is_within_limits:
        return
    if is_possible is None:
        is_possible = block > -np.inf
    has_several_classes = is_possible.sum(axis=1, keepdims=True) > 1
    np.copyto(out, smallest, where=(out < smallest) & is_possible & has_several_classes)
    np.copyto(out, largest, where=(out > largest) & has_several_classes)


@dataclass(frozen=True)
class FormulaKernel:
    """Score defined by a formula, computed in float64.

    Tensors are scored on their device. Arrays are scored by the formula, or by a faster kernel.

    Attributes
    ----------
    formula : callable
        The formula.

    host_kernel : callable or None
        Faster kernel for arrays.

    Examples
    --------
    >>> FormulaKernel(rowwise.maxlogit_pnorm)(np.array([[2.0, 1.0, 0.0], [1.0, np.nan, 0.0]]))
    array([ 1., nan])
    """

    formula: Callable[..., Any]
    host_kernel: Callable[..., Float] | None = None

    reads_tensors = True

    @property
    def takes_whole_blocks(self) -> bool:
        """Whether the kernel takes blocks of any size."""
        return self.host_kernel is not None and uses_c_kernels

    def __call__(self, block: Any, **options: Any) -> Any:
        """Return the score of each row, NaN for a row with NaN, +inf, or every class masked."""
        if not isinstance(block, np.ndarray) and is_device_tensor(block):
            return device_kernels().score_by_formula(block, self.formula, **options)
        if self.host_kernel is not None:
            return self.host_kernel(block, **options)
        scores = NUMPY.evaluate(self.formula, np.asarray(block, dtype=np.float64))[:, 0]
        is_valid = np.isfinite(block.max(axis=1))
        return scores if is_valid.all() else np.where(is_valid, scores, np.nan)


def _replace_formula(formula: Callable[..., Any], host: Callable[..., Any]) -> FormulaKernel:
    """Build the kernel of a formula, and register it for NumPy arrays."""
    NUMPY.kernels[formula] = lambda xp, table: host(table)[:, None]
    return FormulaKernel(formula, host)


entropy = _replace_formula(rowwise.entropy, host_kernels.entropy)
one_minus_max_probability = _replace_formula(
    rowwise.one_minus_max_probability, host_kernels.one_minus_max_probability
)
negative_margin = _replace_formula(rowwise.negative_margin, host_kernels.negative_margin)
free_energy = _replace_formula(rowwise.free_energy, host_kernels.free_energy)
spread = FormulaKernel(rowwise.spread)
round_to_grid = _dispatch_to_device(host_kernels.round_to_grid)
predict_classes = _dispatch_to_device(host_kernels.predict_classes)
softmax = _dispatch_to_device(host_kernels.softmax)
softmax_with_curve = _dispatch_to_device(host_kernels.softmax_with_curve)
tempered_loss_and_derivatives = _dispatch_to_device(host_kernels.tempered_loss_and_derivatives)
temperature_statistics = _dispatch_to_device(host_kernels.temperature_statistics)
ensemble_label_probabilities = host_kernels.ensemble_label_probabilities
ensemble_label_probabilities.takes_whole_blocks = uses_c_kernels
inspect_logits = _dispatch_to_device(host_kernels.inspect_logits)
