"""The only place that coerces logits and probabilities; labels and weights come from the modules of
these names.

Every check runs before any work starts, and every message says what came, what is needed and what
to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.errors import InputError, WrongTypeError, option, warn_caller
from metacal.formulas import Float
from metacal.formulas.logits import (
    find_finite_masks,
    replace_finite_masks,
    replace_zero_probabilities,
)
from metacal.formulas.operations import NUMPY
from metacal.rows.arrays import first_row, one_of, plain_array
from metacal.rows.arrays import on_host as on_host
from metacal.rows.arrays import refuse_masked as refuse_masked
from metacal.rows.arrays import row_weights as row_weights
from metacal.rows.labels import class_list as class_list
from metacal.rows.labels import columns_of as columns_of
from metacal.rows.labels import label_codes as label_codes
from metacal.rows.labels import two_classes as two_classes
from metacal.rows.stored import ConvertedTable, StoredTable, blocks_of

#: Elements looked at in one go: large enough for few calls, small enough to stay in the cache.
BLOCK_ELEMENTS = 1 << 17
#: The same where threads share the work, and the least table they are worth waking for.
_THREAD_ELEMENTS, _WORTH_THREADS = 1 << 20, 1 << 21

#: How far a row of probabilities may be from summing to one, by dtype of the table.
_SUM_TOLERANCE = {"bfloat16": 1e-2, "float16": 5e-3, "float32": 1e-4, "float64": 1e-4}
#: Whole numbers beyond this are not all doubles: two logits may fall together.
_LARGEST_WHOLE = 1 << 53


def logits_table(table: Any, *, executor: Executor | None = None) -> NDArray[Any]:
    """Return `table` as a 2-D floating array of logits, one row per item and one column per class.

    float16, float32 and float64 arrays pass through without a copy; integers and booleans become
    float64. -inf marks a class that is masked out and is legal; NaN, +inf and rows with every class
    masked are not. A finite number that stands for a mask (`finfo.min`, -1e9; the rule is in
    `metacal.formulas.logits`) is read as -inf, with a warning. A torch tensor on a GPU is checked
    there and stays there; a stored table is checked block by block and stays where it is stored.
    The threads of an `executor` share the look at a table.

    Examples
    --------
    >>> logits_table([[2, 0], [0, 1]]).dtype
    dtype('float64')
    >>> logits_table([0.2, 0.8])
    Traceback (most recent call last):
    metacal.errors.InputError: logits must be 2-D, one row per item and one column per class; got 1-D of shape (2,). ...
    """
    array: Any = _float_table(table, "logits")
    device = kernels.on_device(array)
    mask: float | None = None
    for span, (bad, low) in _looked_over(array, executor):
        if bad is not None:
            _raise_bad_logit(array, span.start + bad)
        if low and device:
            array, mask = kernels.device_kernels().with_masks(array)
        elif low and mask is None and (masked := find_finite_masks(array[span])) is not None:
            mask = float(array[span][masked][0])
    if mask is None:
        return array
    warn_caller(
        f"logits hold {mask:.9g}, which stands for a masked class: it is read as -inf, which"
        " says so."
    )
    if device:
        return array
    if isinstance(array, StoredTable) or isinstance(table, np.memmap):
        return ConvertedTable(array, replace_finite_masks, array.dtype)  # type: ignore[return-value]
    return np.concatenate(
        [replace_finite_masks(block) for _, block in blocks_of(array, BLOCK_ELEMENTS)]
    )


def is_one_score(table: Any) -> bool:
    """Whether there is one score for each row, as `decision_function` gives it: (n,) or (n, 1), for
    two classes.

    Examples
    --------
    >>> is_one_score([0.2, -1.3]), is_one_score(np.zeros((5, 1))), is_one_score(np.zeros((5, 2)))
    (True, True, False)
    """
    if isinstance(table, StoredTable) or hasattr(table, "toarray") or kernels.on_device(table):
        return False
    if isinstance(table, list | tuple):
        return bool(table) and all(isinstance(item, int | float | np.number) for item in table)
    try:
        shape = tuple(table.shape)
    except (
        AttributeError,
        TypeError,
        RuntimeError,
    ):  # no shape, or none to speak of: a nested tensor's
        return False
    plain = getattr(getattr(table, "dtype", None), "kind", "f") in "iubf"
    return plain and len(shape) in (1, 2) and shape[0] > 0 and shape[1:] in ((), (1,))


def two_columns(table: Any, kind: str) -> NDArray[Any]:
    """One score for each row as a table of two classes: [0, s] of log-odds s, [1 - p, p] of
    probabilities p.

    p is the probability of the second class, the positive one; of log-odds the second class is the
    larger logit where s > 0, as scikit-learn has it.

    Examples
    --------
    >>> two_columns([2.0, -1.0], "logits"), two_columns([[0.25]], "probabilities")
    (array([[ 0.,  2.], [ 0., -1.]]), array([[0.75, 0.25]]))
    """
    score = _as_float(plain_array(table, "scores").reshape(-1), "scores")
    if (
        kind == "probabilities"
        and (row := first_row(~((score >= 0.0) & (score <= 1.0)))) is not None
    ):
        raise InputError(
            f"probabilities must lie in [0, 1]; row {row} holds {score[row]}. If these are the"
            f" values of a decision_function, say so: {option('input', 'logits')}."
        )
    return np.column_stack(
        [1.0 - score if kind == "probabilities" else np.zeros_like(score), score]
    )


def _looked_over(
    array: Any, executor: Executor | None
) -> Iterator[tuple[slice, tuple[int | None, bool]]]:
    """The rows of each block, and what `kernels.looked_over` says of it; a device looks at all rows
    at once.
    """
    threads = (
        isinstance(executor, ThreadPoolExecutor)
        and array.shape[0] * array.shape[1] >= _WORTH_THREADS
    )
    step = max(1, (_THREAD_ELEMENTS if threads else BLOCK_ELEMENTS) // array.shape[1])
    if kernels.on_device(array):
        threads, step = False, len(array)
    spans = [slice(start, start + step) for start in range(0, len(array), step)]
    look = executor.map if threads and executor is not None else map
    yield from zip(spans, look(lambda span: kernels.looked_over(array[span]), spans))


def probability_table(table: Any, *, advice: str | None = None) -> NDArray[Any]:
    """Return `table` as a 2-D floating array whose rows are probability vectors; `advice` ends what
    is said otherwise.

    Examples
    --------
    >>> probability_table([[0.25, 0.75]]).shape
    (1, 2)
    >>> probability_table([[3.0, 0.5]])
    Traceback (most recent call last):
    metacal.errors.InputError: probabilities must lie in [0, 1]; row 0 holds 3.0. If these are logits, ...
    """
    array = _float_table(table, "probabilities")
    tolerance = _SUM_TOLERANCE[str(array.dtype).removeprefix("torch.")]
    blocks: Iterable[tuple[int, NDArray[Any]]] = blocks_of(array, BLOCK_ELEMENTS)
    if kernels.on_device(array):
        wrong = kernels.device_kernels().first_row_that_is_no_probability(array, tolerance)
        blocks = [] if wrong is None else [(wrong, on_host(array[wrong : wrong + 1]))]
    for start, block in blocks:
        low, high = block.min(axis=1), block.max(axis=1)
        if (row := first_row(~((low >= 0) & (high <= 1 + tolerance)))) is not None:
            value = low[row] if not low[row] >= 0 else high[row]
            raise InputError(
                f"probabilities must lie in [0, 1]; row {start + row} holds {float(value)}. "
                + (advice or f"If these are logits, say so: {option('input', 'logits')}.")
            )
        sums = block.sum(axis=1, dtype=np.float64)
        if (row := first_row(np.abs(sums - 1.0) > tolerance)) is not None:
            raise InputError(
                f"probabilities must sum to 1 in each row; row {start + row} sums to"
                f" {sums[row]:.6g}. "
                + (
                    advice
                    or f"Divide each row by its sum, or say {option('input', 'logits')} if these are logits."
                )
            )
    return array


def logits_from(
    table: Any,
    kind: str,
    *,
    by_rows: bool = False,
    executor: Executor | None = None,
    later: bool = False,
) -> NDArray[Any]:
    """Return logits from a table of `kind` "logits" or "probabilities"; nothing is guessed from the
    values.

    The logits of a probability vector are its logarithms, so that softmax gives it back. A
    probability of exactly zero is read as "too small to write down": the smaller of 2.2e-16 and the
    row's smallest positive entry, because a zero on a true class (a random forest's, say) would
    make every likelihood infinite.

    With `by_rows` probabilities in an array become logits when their rows are read, as those of a
    stored table do, and not all at once in a second table. Where it `may_wait`, `later` leaves the
    look at the values to whoever reads them.

    Examples
    --------
    >>> logits_from([[0.5, 0.5]], "probabilities")
    array([[-0.69314718, -0.69314718]])
    """
    if later and may_wait(table, kind):
        return _float_table(table, "logits")
    if kind == "logits":
        return logits_table(table, executor=executor)
    one_of("input", kind, "logits", "probabilities")
    array: Any = probability_table(table)
    if kernels.on_device(array):
        return kernels.device_kernels().log_probabilities(array)
    dtype = np.dtype(np.float64 if array.dtype == np.float64 else np.float32)
    if by_rows or isinstance(array, StoredTable) or isinstance(table, np.memmap):
        stored: Any = ConvertedTable(array, partial(_log_probabilities, dtype), dtype)
        return stored
    return _log_probabilities(dtype, array)


def may_wait(table: Any, kind: str) -> bool:
    """Whether the values of a table can be looked at while they are scored: the kernels of C and of
    a device do that.

    Examples
    --------
    >>> may_wait(np.zeros((2, 3)), "probabilities")
    False
    """
    return kind == "logits" and (kernels.takes_whole_blocks or kernels.on_device(table))


def _log_probabilities(dtype: np.dtype[Any], table: NDArray[Any]) -> NDArray[Any]:
    work = np.empty(table.shape, dtype)
    for start, block in blocks_of(table, BLOCK_ELEMENTS):
        wide = block.astype(dtype, copy=False)
        positive = wide if wide.min() > 0.0 else replace_zero_probabilities(NUMPY, wide)
        work[start : start + len(block)] = np.log(positive, dtype=np.float64)
    return work


def _float_table(table: Any, name: str) -> NDArray[Any]:
    if hasattr(table, "toarray"):
        raise InputError(f"{name} must be dense; got a sparse matrix. Call .toarray() on it.")
    stays = isinstance(table, StoredTable) or kernels.on_device(table)
    array: Any = table if stays else plain_array(table, name)
    shape = tuple(array.shape)
    if len(shape) != 2:
        raise InputError(
            f"{name} must be 2-D, one row per item and one column per class; got {len(shape)}-D of"
            f" shape {shape}. Reshape your data: a single row is x.reshape(1, -1). One score per"
            " row is enough for two classes alone."
        )
    if "complex" in str(array.dtype):
        raise InputError(f"{name} must be real numbers. Complex data not supported.")
    if isinstance(table, StoredTable):
        array = table if table.dtype.kind == "f" else ConvertedTable(table, _as_double, np.float64)
    else:
        array = kernels.device_kernels().float_table(array) if stays else _as_float(array, name)
    if shape[0] < 1:
        raise InputError(
            f"{name} is empty: Found array with 0 sample(s) (shape={shape}); at least 1 is"
            " required."
        )
    if shape[1] < 2:
        raise InputError(
            f"{name} needs at least 2 columns, one per class; got {shape[1]}: Found array with"
            f" {shape[1]} feature(s) (shape={shape}) while a minimum of 2 is required. One score"
            " per row is enough for two classes alone."
        )
    return array


def _as_double(block: NDArray[Any], name: str = "logits") -> Float:
    """Integers as doubles, where these can tell the largest of each row from its neighbours."""
    if block.dtype.kind in "iu" and block.dtype.itemsize == 8 and block.size:
        top = block if block.ndim == 1 else block.max(axis=1)
        too_large = (top >= _LARGEST_WHOLE) | (
            top < -_LARGEST_WHOLE if block.dtype.kind == "i" else False
        )
        if (row := first_row(too_large)) is not None:
            raise InputError(
                f"{name} are integers too large to be told apart as floats: the largest of row"
                f" {row} is {top[row]}, beyond 2^53. Subtract each row's largest, or divide all by"
                " a constant."
            )
    return block.astype(np.float64)


def _as_float(array: NDArray[Any], name: str) -> NDArray[Any]:
    if array.dtype.kind in "iub":
        return _as_double(array, name)
    if array.dtype.kind == "f" and array.dtype.itemsize <= 8:
        return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    if array.dtype.kind in "fOUST":
        try:
            with np.errstate(over="ignore"):
                return array.astype(np.float64)
        except (ValueError, TypeError, OverflowError) as error:
            raise WrongTypeError(
                f"{name} must be numbers; got an array of type {array.dtype} ({error})."
            ) from None
    raise InputError(f"{name} must be numbers; got an array of type {array.dtype}.")


def _raise_bad_logit(table: Any, row: int) -> None:
    values = on_host(table[row : row + 1])[0]
    where = (
        f"row {row} ({table.place(row)})" if hasattr(table, "place") else f"row {row}"
    )  # of several files
    for kind, bad in (("NaN", np.isnan(values)), ("infinity", np.isposinf(values))):
        if bad.any():
            raise InputError(
                f"logits must not contain NaN or +infinity; {where}, column {bad.argmax()} is"
                f" {kind}. Drop such rows or fix the model that made them (-inf, a masked class, is"
                " allowed)."
            )
    raise InputError(
        f"logits: {where} has -infinity in every column; at least one class must be possible."
    )


def label_codes_beside(labels: Any, table: Any, classes: NDArray[Any]) -> Any:
    """`label_codes`, on the device where the table is on one: column numbers are checked there,
    other labels here.
    """
    if not kernels.on_device(table):
        return label_codes(labels, len(table), classes)
    refuse_masked(labels, "labels")
    device = kernels.device_kernels()
    numbered = classes.dtype.kind in "iu" and np.array_equal(classes, np.arange(len(classes)))
    codes = device.label_codes(labels, table) if numbered else None
    return (
        codes
        if codes is not None
        else device.beside(label_codes(labels, len(table), classes), table)
    )


def room_for_probabilities(table: Any, out: Any = None) -> Any:
    """Return where probabilities of `table` go: `out`, checked, or a fresh table; float64 for
    float64, else float32.

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
        return (
            kernels.device_kernels().empty_probabilities(table)
            if device
            else np.empty(shape, dtype=dtype)
        )
    if device:
        there = kernels.on_device(out) and out.device == table.device
        fits = there and out.is_contiguous() and str(out.dtype) == f"torch.{dtype}"
    else:
        fits = type(out) in (np.ndarray, np.memmap) and out.flags.writeable and out.dtype == dtype
    if not fits or tuple(out.shape) != shape:
        kind = (
            f"contiguous {dtype} tensor on {table.device}" if device else f"writeable {dtype} array"
        )
        got = type(out).__name__
        if hasattr(out, "dtype") and hasattr(out, "shape"):
            still = (
                "read-only "
                if getattr(getattr(out, "flags", None), "writeable", True) is False
                else ""
            )
            got = f"a {still}{out.dtype} {got} of shape {tuple(out.shape)}"
        raise InputError(f"out must be a {kind} of shape {shape}, like the result; got {got}.")
    if _overlap(table, out):
        raise InputError(
            "out overlaps the table of logits, so that rows would be written over before they are"
            " read; pass another array, or exactly the same one to work in place."
        )
    return out


def _overlap(table: Any, out: Any) -> bool:
    """Whether the two lie partly on top of each other; the very same memory in the same order is no
    overlap.
    """
    while isinstance(table, StoredTable):
        table = getattr(table, "source", None)
    if kernels.on_device(out):
        return kernels.device_kernels().overlap(table, out)
    if any(step == 0 and size > 1 for step, size in zip(out.strides, out.shape)):
        return True
    return (
        isinstance(table, np.ndarray)
        and np.may_share_memory(table, out)
        and _memory(table) != _memory(out)
    )


def _memory(array: NDArray[Any]) -> tuple[Any, ...]:
    return array.__array_interface__["data"][0], array.strides, array.shape, array.dtype
