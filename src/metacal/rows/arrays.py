"""Whatever holds numbers or names, as a plain NumPy array: lists, frames, tensors, memory views.

What NumPy would read wrongly without a word is refused here: entries under a mask, numbers that are not there yet (a
tensor on the "meta" device), entries that are tables themselves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError

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
        raise InputError(f"{name} is a {type(values).__name__}, which can be read only once: pass list({name}).")
    if isinstance(values, set | frozenset | dict):
        raise InputError(f"{name} is a {type(values).__name__}, which has no order of rows: pass a list or an array.")
    try:
        return np.asarray(on_host(values, name))
    except InputError:
        raise
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        if "inhomogeneous" in str(error):
            raise InputError(f"{name} must be rectangular; the rows have different lengths.") from None
        raise InputError(
            f"{name} cannot be read as an array ({error}); pass a NumPy array or a list of lists."
        ) from None


def refuse_masked(values: Any, name: str) -> None:
    """Raise where entries are hidden under a mask: NumPy's functions would go on with the numbers beneath it."""
    parts = values if isinstance(values, list | tuple) else (values,)
    hidden = sum(int(np.ma.getmaskarray(part).sum()) for part in parts if isinstance(part, np.ma.MaskedArray))
    if hidden:
        entries = "1 entry" if hidden == 1 else f"{hidden:,} entries"
        advice = _UNMASK.get(name, "leave such rows out")
        raise InputError(f"{name} is a masked array with {entries} under the mask; {advice}.")


def on_host(values: Any, name: str = "the tensor") -> Any:
    """A torch tensor as an array (bfloat16, which NumPy lacks, as float32); anything else as it is."""
    if not hasattr(values, "detach"):
        return values
    try:
        tensor = values.detach().cpu()
        narrow = tensor.is_floating_point() and str(tensor.dtype) not in _NUMPY_FLOATS
        return (tensor.float() if narrow else tensor).resolve_conj().resolve_neg().numpy()
    except (TypeError, RuntimeError, NotImplementedError) as error:
        kind = f"{values.dtype} on {values.device}, layout {getattr(values, 'layout', 'unknown')}"
        raise InputError(
            f"{name} cannot be read from a torch tensor ({kind}): {str(error).splitlines()[0]} "
            "Pass a dense tensor of numbers on the CPU or a GPU; a quantised one after .dequantize()."
        ) from None


_NUMPY_FLOATS = ("torch.float16", "torch.float32", "torch.float64")
