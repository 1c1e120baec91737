"""The only place that coerces logits, probabilities and labels.

Every check runs before any work starts, and every message says what came, what is needed and what to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metacal import kernels
from metacal.errors import InputError
from metacal.stored import ConvertedTable, StoredTable

#: Elements looked at in one go: large enough for few calls, small enough to stay in the cache.
BLOCK_ELEMENTS = 1 << 17

#: How far a row of probabilities may be from summing to one, by dtype of the table.
_SUM_TOLERANCE = {np.dtype(np.float16): 5e-3, np.dtype(np.float32): 1e-4, np.dtype(np.float64): 1e-4}
_BFLOAT16_SUM = 1e-2


class _NotNumbers(InputError, TypeError):
    """A table of something else; scikit-learn expects a TypeError here."""


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
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        raise InputError(f"{name} must be a number strictly between 0 and 1, got {value!r}.")
    number = float(value)
    if not 0.0 < number < 1.0:
        hint = f"; write {number:g}% as {number / 100:g}" if 1.0 < number < 100.0 else ""
        raise InputError(f"{name} must be strictly between 0 and 1, got {value!r}{hint}.")
    return number


def logits_table(table: Any, *, name: str = "logits") -> NDArray[Any]:
    """Return `table` as a 2-D floating array of logits, one row per item and one column per class.

    float16, float32 and float64 arrays pass through without a copy; integers and booleans become float64. -inf marks
    a class that is masked out and is legal; NaN, +inf and rows with every class masked are not. A torch tensor on a
    GPU is checked there and stays there; a stored table is checked block by block and stays where it is stored.

    Examples
    --------
    >>> logits_table([[2, 0], [0, 1]]).dtype
    dtype('float64')
    >>> logits_table([0.2, 0.8])
    Traceback (most recent call last):
    metacal.errors.InputError: logits must be 2-D, one row per item and one column per class; got 1-D of shape (2,). ...
    """
    if kernels.on_device(table):
        return _device_logits(table, name)  # type: ignore[no-any-return]
    array = _float_table(table, name)
    for start, block in _blocks(array):
        if kernels.first_bad_row(block) is not None:
            _raise_bad_logit(start, block, name)
    return array


def probability_table(table: Any, *, name: str = "probabilities") -> NDArray[Any]:
    """Return `table` as a 2-D floating array whose rows are probability vectors.

    Examples
    --------
    >>> probability_table([[0.25, 0.75]]).shape
    (1, 2)
    >>> probability_table([[3.0, 0.5]])
    Traceback (most recent call last):
    metacal.errors.InputError: probabilities must lie in [0, 1]; row 0 holds 3.0. If these are logits, ...
    """
    if kernels.on_device(table):
        return _device_probabilities(table, name)  # type: ignore[no-any-return]
    array = _float_table(table, name)
    tolerance = _SUM_TOLERANCE[array.dtype]
    for start, block in _blocks(array):
        _check_probabilities(start, block, tolerance, name)
    return array


def _check_probabilities(start: int, block: NDArray[Any], tolerance: float, name: str) -> None:
    low, high = block.min(axis=1), block.max(axis=1)
    bad = ~((low >= 0) & (high <= 1 + tolerance))
    if bad.any():
        row = int(bad.argmax())
        value = low[row] if not low[row] >= 0 else high[row]
        raise InputError(
            f"{name} must lie in [0, 1]; row {start + row} holds {float(value)}. "
            "If these are logits, say so: input='logits' (on the command line: --input logits)."
        )
    sums = block.sum(axis=1, dtype=np.float64)
    off = np.abs(sums - 1.0) > tolerance
    if off.any():
        row = int(off.argmax())
        raise InputError(
            f"{name} must sum to 1 in each row; row {start + row} sums to {sums[row]:.6g}. "
            "Normalise the rows, or pass logits with input='logits'."
        )


def logits_from(table: Any, kind: str) -> NDArray[Any]:
    """Return logits from a table of `kind` "logits" or "probabilities"; nothing is guessed from the values.

    The logits of a probability vector are its logarithms, so that softmax gives it back. A probability of exactly zero
    is read as "too small to write down": the smaller of 2.2e-16 and the row's smallest positive entry, because a zero
    on a true class (a random forest's, say) would make every likelihood infinite.

    Examples
    --------
    >>> logits_from([[0.5, 0.5]], "probabilities")
    array([[-0.69314718, -0.69314718]])
    """
    if kind == "logits":
        return logits_table(table)
    if kind != "probabilities":
        raise InputError(f"input must be 'logits' or 'probabilities', got {kind!r}.")
    array: Any = probability_table(table)
    if kernels.on_device(array):
        return kernels.device_kernels().log_probabilities(array)  # type: ignore[no-any-return]
    dtype = np.dtype(np.float64 if array.dtype == np.float64 else np.float32)
    if isinstance(array, StoredTable) or isinstance(table, np.memmap):
        stored: Any = ConvertedTable(array, partial(_log_probabilities, dtype), dtype)
        return stored  # type: ignore[no-any-return]
    return _log_probabilities(dtype, array)


def _log_probabilities(dtype: np.dtype[Any], table: NDArray[Any]) -> NDArray[Any]:
    work = table.astype(dtype)
    for _, block in _blocks(work):
        zero = block <= 0.0
        if zero.any():
            smallest = np.where(zero, np.inf, block).min(axis=1, keepdims=True)
            np.copyto(block, np.minimum(smallest, np.finfo(np.float64).eps), where=zero)
        # In double and rounded once: single-precision logarithms differ from one runtime to the next.
        np.copyto(block, np.log(block, dtype=np.float64), casting="same_kind")
    return work


def class_list(classes: Sequence[Any] | NDArray[Any] | None, n_classes: int) -> NDArray[Any]:
    """Return the class labels in column order: `classes` checked, or 0 … K-1 when None.

    Examples
    --------
    >>> class_list(None, 3)
    array([0, 1, 2])
    >>> class_list(["cat", "dog"], 2)
    array(['cat', 'dog'], dtype='<U3')
    """
    if classes is None:
        return np.arange(n_classes)
    array = np.asarray(classes)
    if array.dtype == object and all(isinstance(item, str) for item in array.ravel()):
        array = array.astype(np.str_)
    if array.ndim != 1 or array.dtype.kind not in "iubU":
        raise InputError(f"classes must be a flat list of integers or of strings, got {_shown(classes)}.")
    if len(array) != n_classes:
        raise InputError(
            f"classes names {len(array)} classes but the table has {n_classes} columns; "
            "give one name per column, in column order."
        )
    if len(np.unique(array)) != len(array):
        raise InputError(f"classes must not repeat a name, got {_shown(classes)}.")
    return array


def label_codes(labels: Any, n_rows: int, classes: NDArray[Any]) -> NDArray[np.intp]:
    """Return for each label the column of its class.

    Labels are integers, strings, or floats without a fraction (as a csv gives them), one per row.

    Examples
    --------
    >>> label_codes(["dog", "cat"], 2, class_list(["cat", "dog"], 2))
    array([1, 0])
    >>> label_codes([0, 3], 2, class_list(None, 3))
    Traceback (most recent call last):
    metacal.errors.InputError: labels must be classes 0..2 (3 columns); row 1 has label 3. ...
    """
    array = _flat_labels(labels, n_rows)
    numbered = classes.dtype.kind in "iu"
    if numbered and array.dtype.kind == "f":
        whole = np.isfinite(array) & (array == np.floor(array))
        if not whole.all():
            row = int((~whole).argmax())
            raise InputError(
                f"labels must be class numbers, not continuous values; row {row} has label {float(array[row])}."
            )
        array = _within_64_bits(array)
    if numbered and array.dtype.kind == "U":
        raise InputError(
            f"labels are strings (row 0: {str(array[0])!r}) but no class order was given; "
            "pass classes=[...] with one name per column, in column order."
        )
    if not numbered and classes.dtype.kind != array.dtype.kind:
        raise InputError(
            f"labels are of type {array.dtype} but classes of type {classes.dtype}; give both the same type."
        )
    codes, unknown = columns_of(array, classes)
    if unknown is not None:
        _raise_unknown_label(array, unknown, classes)
    return codes.astype(np.intp, copy=False)


def room_for_probabilities(table: Any, out: Any = None) -> Any:
    """Return where probabilities of `table` go: `out`, checked, or a fresh table; float64 for float64, else float32.

    Examples
    --------
    >>> room_for_probabilities(np.zeros((2, 3), dtype=np.float16)).dtype
    dtype('float32')
    >>> room_for_probabilities(np.zeros((2, 3)), out=np.empty((3, 3)))
    Traceback (most recent call last):
    metacal.errors.InputError: out must be a writeable float64 array of shape (2, 3), like the result; got a float64 ...
    """
    shape, device = tuple(table.shape), kernels.on_device(table)
    dtype = "float64" if str(table.dtype) in ("float64", "torch.float64") else "float32"
    if out is None:
        return kernels.device_kernels().empty_probabilities(table) if device else np.empty(shape, dtype=dtype)
    if device:
        there = kernels.on_device(out) and out.device == table.device
        fits = there and out.is_contiguous() and str(out.dtype) == f"torch.{dtype}"
    else:
        fits = isinstance(out, np.ndarray) and out.flags.writeable and out.dtype == dtype
    if not fits or tuple(out.shape) != shape:
        kind = f"contiguous {dtype} tensor on {table.device}" if device else f"writeable {dtype} array"
        got = f"a {out.dtype} one of shape {tuple(out.shape)}" if hasattr(out, "dtype") else type(out).__name__
        raise InputError(f"out must be a {kind} of shape {shape}, like the result; got {got}.")
    return out


def label_codes_beside(labels: Any, table: Any, classes: NDArray[Any]) -> Any:
    """`label_codes`, on the device where the table is on one: column numbers are checked there, other labels here."""
    if not kernels.on_device(table):
        return label_codes(labels, len(table), classes)
    device = kernels.device_kernels()
    numbered = classes.dtype.kind in "iu" and np.array_equal(classes, np.arange(len(classes)))
    codes = device.label_codes(labels, table) if numbered else None
    return codes if codes is not None else device.beside(label_codes(labels, len(table), classes), table)


def columns_of(labels: NDArray[Any], classes: NDArray[Any]) -> tuple[NDArray[np.intp], int | None]:
    """The column of each label, and the first row whose label is no class (None when all are).

    Examples
    --------
    >>> columns_of(np.array(["dog", "cow"]), np.array(["cat", "dog"]))
    (array([1, 1]), 1)
    """
    if labels.dtype.kind in "iu" and classes.dtype.kind in "iu" and len(labels):
        columns = np.array_equal(classes, np.arange(len(classes)))
        if columns and labels.min() >= 0 and labels.max() < len(classes):
            return labels.astype(np.intp, copy=False), None
    order = np.argsort(classes, kind="stable")
    codes = order[np.minimum(np.searchsorted(classes, labels, sorter=order), len(classes) - 1)]
    unknown = np.flatnonzero(classes[codes] != labels)
    return codes.astype(np.intp, copy=False), int(unknown[0]) if len(unknown) else None


def row_weights(weights: ArrayLike | None, n_rows: int) -> NDArray[np.float64] | None:
    """Return sample weights as float64, non-negative and not all zero, or None.

    Examples
    --------
    >>> row_weights([1, 0], 2)
    array([1., 0.])
    """
    if weights is None:
        return None
    array = np.asarray(on_host(weights), dtype=np.float64)
    if array.ndim == 0:
        array = np.full(n_rows, float(array))
    if array.shape != (n_rows,):
        raise InputError(f"sample_weight must have shape ({n_rows},), one weight per row; got {array.shape}.")
    if not np.isfinite(array).all() or (array < 0).any():
        raise InputError("sample_weight must be finite and non-negative.")
    if not (array > 0).any():
        raise InputError("sample_weight is zero on every row; at least one row must count.")
    return array


def _float_table(table: Any, name: str) -> NDArray[Any]:
    if hasattr(table, "toarray"):
        raise InputError(f"{name} must be dense; got a sparse matrix. Call .toarray() on it.")
    if isinstance(table, StoredTable):
        _check_size(table.shape, name)
        stored: Any = table if table.dtype.kind == "f" else ConvertedTable(table, _as_double, np.float64)
        return stored  # type: ignore[no-any-return]
    try:
        array = np.asarray(on_host(table))
    except ValueError:
        raise InputError(f"{name} must be a rectangular table; the rows have different lengths.") from None
    _check_two_dimensions(array.shape, name)
    if array.dtype.kind == "c":
        raise InputError(f"{name} must be real numbers. Complex data not supported.")
    array = _as_float(array, name)
    _check_size(array.shape, name)
    return array


def _check_two_dimensions(shape: tuple[int, ...], name: str) -> None:
    if len(shape) != 2:
        raise InputError(
            f"{name} must be 2-D, one row per item and one column per class; got {len(shape)}-D of shape {shape}."
            " Reshape your data: a single row is x.reshape(1, -1); binary scores s are np.column_stack([0 * s, s])."
        )


def _check_size(shape: tuple[int, ...], name: str) -> None:
    n_rows, n_classes = shape
    if n_rows < 1:
        raise InputError(f"{name} is empty: Found array with 0 sample(s) (shape={shape}); at least 1 is required.")
    if n_classes < 2:
        raise InputError(
            f"{name} needs at least 2 columns, one per class; got {n_classes}: "
            f"Found array with {n_classes} feature(s) (shape={shape}) while a minimum of 2 is required. "
            "Binary scores s become two columns by np.column_stack([0 * s, s])."
        )


def _device_table(table: Any, name: str) -> Any:
    _check_two_dimensions(tuple(table.shape), name)
    if table.is_complex():
        raise InputError(f"{name} must be real numbers. Complex data not supported.")
    _check_size(tuple(table.shape), name)
    return kernels.device_kernels().float_table(table)


def _device_logits(table: Any, name: str) -> Any:
    """The checks of `logits_table` where the tensor lies; of a bad table one row comes to the host, for the message."""
    table = _device_table(table, name)
    row = kernels.device_kernels().first_bad_row(table)
    if row is not None:
        _raise_bad_logit(row, on_host(table[row : row + 1]), name)
    return table


def _device_probabilities(table: Any, name: str) -> Any:
    table = _device_table(table, name)
    tolerance = next((t for dtype, t in _SUM_TOLERANCE.items() if str(table.dtype) == f"torch.{dtype}"), _BFLOAT16_SUM)
    row = kernels.device_kernels().first_row_that_is_no_probability(table, tolerance)
    if row is not None:
        _check_probabilities(row, on_host(table[row : row + 1]), tolerance, name)
    return table


def on_host(table: Any) -> Any:
    """A torch tensor as an array (bfloat16, which NumPy lacks, as float32); anything else as it is."""
    if not hasattr(table, "detach"):
        return table
    tensor = table.detach().cpu()
    return tensor.float().numpy() if "bfloat16" in str(tensor.dtype) else tensor.numpy()


def _as_double(block: NDArray[Any]) -> NDArray[np.float64]:
    return block.astype(np.float64)


def _as_float(array: NDArray[Any], name: str) -> NDArray[Any]:
    if array.dtype.kind in "iub":
        return array.astype(np.float64)
    if array.dtype.kind == "f" and array.dtype.itemsize <= 8:
        return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    if array.dtype.kind in "fOUS":
        try:
            return array.astype(np.float64)
        except (ValueError, TypeError) as error:
            raise _NotNumbers(f"{name} must be numbers; got an array of type {array.dtype} ({error}).") from None
    raise InputError(f"{name} must be numbers; got an array of type {array.dtype}.")


def _blocks(array: NDArray[Any]) -> Iterator[tuple[int, NDArray[Any]]]:
    step = max(1, BLOCK_ELEMENTS // array.shape[1])
    for start in range(0, len(array), step):
        yield start, array[start : start + step]


def _raise_bad_logit(start: int, block: NDArray[Any], name: str) -> None:
    for kind, bad in (("NaN", np.isnan(block)), ("infinity", np.isposinf(block))):
        if bad.any():
            row, column = np.argwhere(bad)[0]
            raise InputError(
                f"{name} must not contain NaN or +infinity; row {start + row}, column {column} is {kind}. "
                "Drop such rows or mend the model that made them (-inf, a masked class, is allowed)."
            )
    row = int(np.isneginf(block.max(axis=1)).argmax())
    raise InputError(f"{name}: row {start + row} has -infinity in every column; at least one class must be possible.")


def _flat_labels(labels: Any, n_rows: int) -> NDArray[Any]:
    try:
        array = np.asarray(on_host(labels))
    except ValueError:
        raise InputError("labels must be a flat list, one label per row.") from None
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise InputError(
            f"labels must be 1-D, one label per row; got shape {array.shape}. One-hot labels: labels.argmax(axis=1)."
        )
    if len(array) != n_rows:
        raise InputError(f"there are {n_rows} rows but {len(array)} labels; each row needs one label.")
    if array.dtype == object:
        array = _plain_labels(array)
    if array.dtype.kind == "S":
        array = array.astype(np.str_)
    if array.dtype.kind not in "iubfU":
        raise InputError(f"labels must be integers or strings, got type {array.dtype}.")
    return array.astype(np.int64) if array.dtype.kind == "b" else array


def _plain_labels(array: NDArray[Any]) -> NDArray[Any]:
    missing = [row for row, item in enumerate(array) if item is None or item != item]
    if missing:
        raise InputError(f"labels are missing in {len(missing)} rows, the first is row {missing[0]}.")
    if all(isinstance(item, str) for item in array):
        return array.astype(np.str_)
    if all(isinstance(item, int | np.integer) for item in array):
        return _within_64_bits(array)
    raise InputError("labels must be all integers or all strings, not a mixture of types.")


def _within_64_bits(labels: NDArray[Any]) -> NDArray[np.int64]:
    """Whole numbers as int64. What does not fit wraps on one processor, saturates on another and raises elsewhere."""
    beyond = ~((labels >= -(2.0**63)) & (labels < 2.0**63)).astype(bool)
    if beyond.any():
        row = int(beyond.argmax())
        raise InputError(f"labels must be integers of 64 bits; row {row} has label {labels[row]}.")
    return labels.astype(np.int64)


def _raise_unknown_label(labels: NDArray[Any], row: int, classes: NDArray[Any]) -> None:
    count = len(classes)
    label = labels[row].item()
    if np.array_equal(classes, np.arange(count)):
        hint = (
            "Labels that count from 1: labels - 1."
            if labels.min() == 1 and labels.max() == count
            else ("Other labels: pass classes=[...] with one entry per column, in column order.")
        )
        raise InputError(
            f"labels must be classes 0..{count - 1} ({count} columns); row {row} has label {label}. {hint}"
        )
    raise InputError(f"label {label!r} of row {row} is not among the {count} classes ({_shown(classes)}).")


def _shown(values: object) -> str:
    text = repr(np.asarray(values, dtype=object).tolist())
    return text if len(text) <= 80 else text[:77] + "..."
