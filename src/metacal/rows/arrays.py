"""Whatever holds numbers or names, as a plain NumPy array: lists, frames, tensors, memory views;
and sample weights.

What NumPy would read wrongly without a word is refused here: entries under a mask, numbers that are
not there yet (a tensor on the "meta" device), entries that are tables themselves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metacal.errors import InputError
from metacal.formulas import Flags, Float

#: A share of rows below this is a slip of the pen.
_SMALLEST_FRACTION = 1e-15

_NUMPY_FLOATS = ("torch.float16", "torch.float32", "torch.float64")
#: The largest weight lies between 2^-64 and 2^64, or all are multiplied by the power of two that
#: takes it there. No sum or square of such weights overflows or vanishes, and no weight that counts
#: rows or dollars is touched.
_LARGEST_POWER = 64
_UNMASK = {
    "logits": "write -inf where a class is masked out: logits.filled(-np.inf)",
    "probabilities": "write 0 where a class is masked out: probabilities.filled(0.0)",
}


def plain_array(values: Any, name: str) -> NDArray[Any]:
    """`values` as a plain array of whatever type and shape it has.

    Examples
    --------
    >>> plain_array([[1, 2], [3, 4]], "logits").shape
    (2, 2)
    >>> plain_array(np.ma.array([1, 2], mask=[0, 1]), "labels")
    Traceback (most recent call last):
    metacal.errors.InputError: labels is a masked array with 1 entry under the mask; leave such rows out.
    """
    if type(values) is np.ndarray:
        return values
    refuse_masked(values, name)
    if hasattr(values, "__next__"):
        raise InputError(
            f"{name} is a {type(values).__name__}, which can be read only once: pass list({name})."
        )
    if isinstance(values, set | frozenset | dict):
        raise InputError(
            f"{name} is a {type(values).__name__}, which has no order of rows: pass a list or an"
            " array."
        )
    try:
        return np.asarray(on_host(values, name))
    except InputError:
        raise
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        if "inhomogeneous" in str(error):
            raise InputError(
                f"{name} must be rectangular; the rows have different lengths."
            ) from None
        raise InputError(
            f"{name} cannot be read as an array ({error}); pass a NumPy array or a list of lists."
        ) from None


def first_row(flags: Flags) -> int | None:
    """The first row with a flag; None where no row has one.

    >>> first_row(np.array([False, True])), first_row(np.zeros(3, dtype=bool))
    (1, None)
    """
    return int(flags.argmax()) if flags.any() else None


def refuse_masked(values: Any, name: str) -> None:
    """Raise where entries are hidden under a mask: NumPy's functions would go on with the numbers
    beneath it.
    """
    parts = values if isinstance(values, list | tuple) else (values,)
    hidden = sum(
        int(np.ma.getmaskarray(part).sum()) for part in parts if isinstance(part, np.ma.MaskedArray)
    )
    if hidden:
        entries = "1 entry" if hidden == 1 else f"{hidden:,} entries"
        advice = _UNMASK.get(name, "leave such rows out")
        raise InputError(f"{name} is a masked array with {entries} under the mask; {advice}.")


def on_host(values: Any, name: str = "the tensor") -> Any:
    """A torch tensor as an array (bfloat16, which NumPy lacks, as float32); anything else as it is.

    Arrays of the array API that NumPy does not read by itself come by their own `get` (CuPy) or by
    DLPack.
    """
    if not hasattr(values, "detach"):
        if isinstance(values, np.ndarray) or not hasattr(values, "__array_namespace__"):
            return values
        return values.get() if hasattr(values, "get") else np.from_dlpack(values)
    try:
        tensor = values.detach().cpu()
        narrow = tensor.is_floating_point() and str(tensor.dtype) not in _NUMPY_FLOATS
        return (tensor.float() if narrow else tensor).resolve_conj().resolve_neg().numpy()
    except (TypeError, RuntimeError, NotImplementedError) as error:
        kind = f"{values.dtype} on {values.device}, layout {getattr(values, 'layout', 'unknown')}"
        raise InputError(
            f"{name} cannot be read from a torch tensor ({kind}): {str(error).splitlines()[0]} Pass"
            " a dense tensor of numbers on the CPU or a GPU; a quantised one after .dequantize()."
        ) from None


def row_weights(
    weights: ArrayLike | None, n_rows: int, *, name: str = "sample_weight"
) -> Float | None:
    """Return sample weights as float64, non-negative and not all zero, or None.

    Weights beyond all measure (all 1e308, all 5e-324) are scaled by a power of two: their ratios
    stay as they are, to the last bit.

    Examples
    --------
    >>> row_weights([1, 0], 2)
    array([1., 0.])
    >>> row_weights([1e308, 2.5e307], 2) < 2.0**64
    array([ True,  True])
    """
    if weights is None:
        return None
    array = plain_array(weights, name)
    try:
        if array.dtype.kind not in "biufO":
            raise TypeError
        with np.errstate(over="ignore"):
            array = array.astype(np.float64)
    except (ValueError, TypeError, OverflowError):
        raise InputError(
            f"{name} must be numbers, one per row; got an array of type {array.dtype}."
        ) from None
    if array.ndim == 0:
        array = np.full(n_rows, float(array))
    if array.shape != (n_rows,):
        raise InputError(
            f"{name} must have shape ({n_rows},), one weight per row; got {array.shape}."
        )
    if (row := first_row(~(np.isfinite(array) & (array >= 0.0)))) is not None:
        raise InputError(
            f"{name} must be finite and non-negative; row {row} has {float(array[row])}."
        )
    if not (array > 0).any():
        raise InputError(f"{name} is zero on every row; at least one row must count.")
    power = int(np.frexp(array.max())[1])
    ordinary = abs(power) <= _LARGEST_POWER
    return array if ordinary else np.ldexp(array, int(np.sign(power)) * _LARGEST_POWER - power)


def one_of(name: str, value: object, *choices: str) -> None:
    """Raise unless `value` is one of these words.

    Examples
    --------
    >>> one_of("input", "probs", "logits", "probabilities")
    Traceback (most recent call last):
    metacal.errors.InputError: input must be 'logits' or 'probabilities', got 'probs'.
    """
    if value not in choices:
        *first, last = map(repr, choices)
        raise InputError(f"{name} must be {', '.join(first)} or {last}, got {value!r}.")


def fraction(name: str, value: object) -> float:
    """Return `value` as a float strictly between 0 and 1, or raise.

    Examples
    --------
    >>> fraction("alpha", 0.05)
    0.05
    >>> fraction("alpha", 5)
    Traceback (most recent call last):
    metacal.errors.InputError: alpha must be strictly between 0 and 1, got 5; write 5% as 0.05.
    """
    if isinstance(value, bool | np.bool_) or not isinstance(
        value, int | float | np.integer | np.floating
    ):
        raise InputError(f"{name} must be a number strictly between 0 and 1, got {value!r}.")
    number = float(value)
    if not 0.0 < number < 1.0:
        hint = f"; write {number:g}% as {number / 100:g}" if 1.0 < number < 100.0 else ""
        raise InputError(f"{name} must be strictly between 0 and 1, got {value!r}{hint}.")
    if number < _SMALLEST_FRACTION:
        raise InputError(
            f"{name} must be at least {_SMALLEST_FRACTION:g} (and strictly between 0 and 1), got"
            f" {value!r}: no table has rows enough to speak of so small a share."
        )
    return number
