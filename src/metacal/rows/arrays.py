"""Conversion of arguments to NumPy arrays, and validation of arguments.

Lists, frames, tensors and memory views are accepted. Input that NumPy would misread without an error
is rejected: masked entries, tensors without values (on the "meta" device), and nested tables.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metacal.errors import InputError, NumberError, ShapeError, WeightsError, WrongTypeError
from metacal.formulas import Flags, Float

#: Integers beyond this limit may be equal after conversion to float64.
_MAX_EXACT_INTEGER = 1 << 53
#: Smallest valid fraction. A smaller value is probably a mistake.
_MIN_FRACTION = 1e-15

_NUMPY_FLOATS = ("torch.float16", "torch.float32", "torch.float64")
#: Largest absolute value of the binary exponent of the largest weight.
#: More extreme weights are scaled by a power of two, so that squares neither overflow nor vanish.
_MAX_WEIGHT_EXPONENT = 64
#: Advice about masked entries, by the name of the argument.
_UNMASK_ADVICE_BY_NAME = {
    "logits": "Write -inf where a class is masked out: logits.filled(-np.inf)",
    "probabilities": "Write 0 where a class is masked out: probabilities.filled(0.0)",
}


def as_plain_array(values: Any, name: str) -> NDArray[Any]:
    """Convert array-like values to a NumPy array of their type and shape.

    Parameters
    ----------
    values : array-like
        Values.

    name : str
        Name of the argument in messages.

    Returns
    -------
    array

    Raises
    ------
    InputError
        If the values cannot be converted, or some are masked.

    Examples
    --------
    >>> as_plain_array([[1, 2], [3, 4]], "logits").shape
    (2, 2)
    >>> as_plain_array(np.ma.array([1, 2], mask=[0, 1]), "labels")
    Traceback (most recent call last):
    metacal.errors.NumberError: labels is a masked array with 1 entry masked. Leave such rows out.
    """
    if type(values) is np.ndarray:
        return values
    raise_if_masked(values, name)
    class_name = type(values).__name__
    if hasattr(values, "__next__"):
        raise NumberError(
            f"{name} is a {class_name}, which can be read only once. Pass list({name}) instead."
        )
    if isinstance(values, set | frozenset | dict):
        raise NumberError(
            f"{name} is a {class_name}, whose rows have no order. Pass a list or an array."
        )
    try:
        return np.asarray(to_numpy(values, name))
    except InputError:
        raise
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        if "inhomogeneous" in str(error):
            raise ShapeError(
                f"{name} must be rectangular, but its rows have different lengths. Pass rows"
                " of equal length."
            ) from None
        raise NumberError(
            f"{name} cannot be read as an array ({error}). Pass a NumPy array or a list of lists."
        ) from None


def find_first_true(flags: Flags) -> int | None:
    """Return the index of the first true flag, or None if there is none.

    >>> find_first_true(np.array([False, True])), find_first_true(np.zeros(3, dtype=bool))
    (1, None)
    """
    return int(flags.argmax()) if flags.any() else None


def raise_if_masked(values: Any, name: str) -> None:
    """Raise InputError if entries are masked.

    Most functions of NumPy would use the numbers under the mask.
    """
    arrays = values if isinstance(values, list | tuple) else (values,)
    n_masked = 0
    for array in arrays:
        if isinstance(array, np.ma.MaskedArray):
            n_masked += int(np.ma.getmaskarray(array).sum())
    if n_masked:
        entries_text = "1 entry" if n_masked == 1 else f"{n_masked:,} entries"
        advice = _UNMASK_ADVICE_BY_NAME.get(name, "Leave such rows out")
        raise NumberError(f"{name} is a masked array with {entries_text} masked. {advice}.")


def to_numpy(values: Any, name: str = "the tensor") -> Any:
    """Convert a tensor or another device array to NumPy, and keep other values.

    bfloat16, which NumPy does not have, becomes float32. Arrays of the array API that NumPy cannot
    read are converted by their method `get` (CuPy) or by DLPack.

    Parameters
    ----------
    values : object
        Tensor, array or other value.

    name : str, default="the tensor"
        Name in messages.

    Returns
    -------
    object

    Raises
    ------
    InputError
        If a tensor cannot be converted.
    """
    if not hasattr(values, "detach"):
        if isinstance(values, np.ndarray) or not hasattr(values, "__array_namespace__"):
            return values
        return values.get() if hasattr(values, "get") else np.from_dlpack(values)
    try:
        tensor = values.detach().cpu()
        if tensor.is_floating_point() and str(tensor.dtype) not in _NUMPY_FLOATS:
            tensor = tensor.float()
        return tensor.resolve_conj().resolve_neg().numpy()
    except (TypeError, RuntimeError, NotImplementedError) as error:
        layout = getattr(values, "layout", "unknown")
        raise NumberError(
            f"{name} cannot be read from a torch tensor ({values.dtype} on {values.device},"
            f" layout {layout}): {str(error).splitlines()[0]} Pass a dense tensor of numbers on"
            " the CPU or a GPU. For a quantised tensor, call .dequantize() first."
        ) from None


def check_row_weights(
    weights: ArrayLike | None, n_rows: int, *, name: str = "sample_weight"
) -> Float | None:
    """Validate sample weights.

    Extremely large or small weights (all 1e308, all 5e-324) are multiplied by a power of two, which
    does not change their ratios.

    Parameters
    ----------
    weights : array-like of shape (n_rows,), float or None
        Weights.

    n_rows : int
        Number of rows.

    name : str, default="sample_weight"
        Name of the argument in messages.

    Returns
    -------
    array of float64 of shape (n_rows,) or None
        None if there are no weights.

    Raises
    ------
    InputError
        If a weight is negative or not finite, or all weights are 0.

    Examples
    --------
    >>> check_row_weights([1, 0], 2)
    array([1., 0.])
    >>> check_row_weights([1e308, 2.5e307], 2) < 2.0**64
    array([ True,  True])
    """
    if weights is None:
        return None
    array = _weights_as_float(as_plain_array(weights, name), name)
    if array.ndim == 0:
        array = np.full(n_rows, float(array))
    if array.shape != (n_rows,):
        raise WeightsError(
            f"{name} must have one weight for each of the {n_rows} rows, but got an array of"
            f" shape {array.shape}."
        )
    invalid_row = find_first_true(~(np.isfinite(array) & (array >= 0.0)))
    if invalid_row is not None:
        raise WeightsError(
            f"{name} must be finite and nonnegative, but row {invalid_row} has"
            f" {float(array[invalid_row])}."
        )
    if not (array > 0).any():
        raise WeightsError(
            f"{name} is zero for every row, but at least one weight must be positive."
        )
    largest_exponent = int(np.frexp(array.max())[1])
    if abs(largest_exponent) <= _MAX_WEIGHT_EXPONENT:
        return array
    # The weights are scaled by a power of two, which has no rounding error.
    target_exponent = int(np.sign(largest_exponent)) * _MAX_WEIGHT_EXPONENT
    return np.ldexp(array, target_exponent - largest_exponent)


def convert_integers_to_double(block: NDArray[Any], name: str = "logits") -> Float:
    """Convert integers to float64 if the largest of each row stays exact."""
    if block.dtype.kind in "iu" and block.dtype.itemsize == 8 and block.size:
        largest = block if block.ndim == 1 else block.max(axis=1)
        is_too_large: Flags = largest >= _MAX_EXACT_INTEGER
        if block.dtype.kind == "i":
            is_too_large = is_too_large | (largest < -_MAX_EXACT_INTEGER)
        invalid_row = find_first_true(is_too_large)
        if invalid_row is not None:
            raise NumberError(
                f"{name} are integers that are too large to be exact as floats: the largest of"
                f" row {invalid_row} is {largest[invalid_row]}, above 2^53. Subtract the largest"
                " integer of each"
                " row, or divide all by a constant."
            )
    return block.astype(np.float64)


def as_native_floats(array: NDArray[Any], name: str) -> NDArray[Any]:
    """Convert an array to floats of at most 64 bits in native byte order."""
    dtype_kind = array.dtype.kind
    if dtype_kind in "iub":
        return convert_integers_to_double(array, name)
    if dtype_kind == "f" and array.dtype.itemsize <= 8:
        if array.dtype.isnative:
            return array
        return array.astype(array.dtype.newbyteorder("="))
    if dtype_kind in "fOUST":
        try:
            with np.errstate(over="ignore"):
                return array.astype(np.float64)
        except (ValueError, TypeError, OverflowError) as error:
            raise WrongTypeError(
                f"{name} must be numbers, but got an array of type {array.dtype} ({error})."
            ) from None
    raise NumberError(f"{name} must be numbers, but got an array of type {array.dtype}.")


def _weights_as_float(array: NDArray[Any], name: str) -> Float:
    """Convert weights to float64; raise InputError if they are not numbers."""
    try:
        if array.dtype.kind not in "biufO":
            raise TypeError
        with np.errstate(over="ignore"):
            return array.astype(np.float64)
    except (ValueError, TypeError, OverflowError):
        raise WeightsError(
            f"{name} must have one number per row, but got an array of type {array.dtype}."
        ) from None


def check_choice(name: str, value: object, *choices: str) -> None:
    """Raise InputError unless `value` is one of the choices.

    Examples
    --------
    >>> check_choice("input", "probs", "logits", "probabilities")
    Traceback (most recent call last):
    metacal.errors.InputError: input must be 'logits' or 'probabilities', but got 'probs'.
    """
    if value not in choices:
        *first_choices, last_choice = map(repr, choices)
        raise InputError(
            f"{name} must be {', '.join(first_choices)} or {last_choice}, but got {value!r}."
        )


def check_fraction(name: str, value: object) -> float:
    """Validate a fraction strictly between 0 and 1, and return it as a float.

    Examples
    --------
    >>> check_fraction("alpha", 0.05)
    0.05
    >>> check_fraction("alpha", 5)
    Traceback (most recent call last):
    metacal.errors.InputError: alpha must be strictly between 0 and 1, but got 5. Write 5% as 0.05.
    """
    is_number = isinstance(value, int | float | np.integer | np.floating)
    if not is_number or isinstance(value, bool | np.bool_):
        raise InputError(f"{name} must be a number strictly between 0 and 1, but got {value!r}.")
    fraction = float(value)  # type: ignore[arg-type]
    if not 0.0 < fraction < 1.0:
        hint = f". Write {fraction:g}% as {fraction / 100:g}" if 1.0 < fraction < 100.0 else ""
        raise InputError(f"{name} must be strictly between 0 and 1, but got {value!r}{hint}.")
    if fraction < _MIN_FRACTION:
        raise InputError(
            f"{name} must be at least {_MIN_FRACTION:g} and less than 1, but got {value!r}. No"
            " data set is large enough for a smaller value."
        )
    return fraction
