"""Validation and conversion of logits and probabilities.

All checks run before any work starts. Messages state the value received, the requirement and the
fix. Labels are validated in `metacal.rows.labels` and weights in `metacal.rows.arrays`; their
functions are available here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metacal import errors, kernels
from metacal.errors import warn_caller
from metacal.formulas.logits import (
    find_finite_masks,
    replace_finite_masks,
    replace_zero_probabilities,
)
from metacal.formulas.operations import NUMPY
from metacal.rows.arrays import (
    as_native_floats,
    as_plain_array,
    check_choice,
    convert_integers_to_double,
    find_first_true,
)
from metacal.rows.arrays import check_row_weights as check_row_weights
from metacal.rows.arrays import raise_if_masked as raise_if_masked
from metacal.rows.arrays import to_numpy as to_numpy
from metacal.rows.binary import find_two_classes as find_two_classes
from metacal.rows.binary import has_one_score_per_row as has_one_score_per_row
from metacal.rows.binary import scores_to_two_columns as scores_to_two_columns
from metacal.rows.labels import check_classes as check_classes
from metacal.rows.labels import encode_labels as encode_labels
from metacal.rows.labels import find_indices_of_names as find_indices_of_names
from metacal.rows.output_buffer import get_probability_buffer as get_probability_buffer
from metacal.rows.stored import ConvertedTable, StoredTable, iterate_blocks
from metacal.spelling import format_option

#: Elements per block of a validation pass. A block fits into the cache.
BLOCK_ELEMENTS = 1 << 17
#: Number of elements per block if threads share a pass, and smallest table that they share.
_THREAD_BLOCK_ELEMENTS = 1 << 20
_MIN_THREADED_ELEMENTS = 1 << 21

#: Largest distance of the sum of a row of probabilities from 1, by type of the table.
_SUM_TOLERANCE_BY_DTYPE = {"bfloat16": 1e-2, "float16": 5e-3, "float32": 1e-4, "float64": 1e-4}


def check_logits(table: Any, *, executor: Executor | None = None) -> NDArray[Any]:
    """Validate a table of logits.

    float16, float32 and float64 arrays are not copied. Integers and booleans become float64. -inf
    marks a masked class and is valid. NaN, +inf and rows with every class masked are invalid. A
    finite number that stands for a mask (`finfo.min`, -1e9; the rule is in
    `metacal.formulas.logits`) is replaced by -inf, with a warning. A torch tensor on a GPU is
    validated there and stays there. A stored table is validated block by block and stays stored.

    Parameters
    ----------
    table : array-like of shape (n, K)
        One row per item and one column per class.

    executor : Executor, default=None
        Pool of threads that share the work.

    Returns
    -------
    array, StoredTable or tensor of shape (n, K)

    Raises
    ------
    InputError
        If the table is invalid.

    Examples
    --------
    >>> check_logits([[2, 0], [0, 1]]).dtype
    dtype('float64')
    >>> check_logits([0.2, 0.8])
    Traceback (most recent call last):
    metacal.errors.ShapeError: logits must be 2-D with one row per item and one column per ...
    """
    array: Any = _read_float_table(table, "logits")
    if kernels.is_device_tensor(array):
        return _check_logits_on_device(array)
    masked_logit = _find_masked_logit(array, executor)
    if masked_logit is None:
        return array
    _warn_about_masked_logit(masked_logit)
    if isinstance(array, StoredTable) or isinstance(table, np.memmap):
        return ConvertedTable(array, replace_finite_masks, array.dtype)  # type: ignore[return-value]
    converted_blocks = []
    for _, block in iterate_blocks(array, BLOCK_ELEMENTS):
        converted_blocks.append(replace_finite_masks(block))
    return np.concatenate(converted_blocks)


def _check_logits_on_device(tensor: Any) -> Any:
    """Validate a tensor of logits, and replace masked logits by -inf."""
    invalid_row, may_hold_finite_masks = kernels.inspect_logits(tensor)
    if invalid_row is not None:
        _raise_invalid_logit(tensor, invalid_row)
    if not may_hold_finite_masks:
        return tensor
    converted_tensor, masked_logit = kernels.device_kernels().replace_finite_masks(tensor)
    if masked_logit is not None:
        _warn_about_masked_logit(masked_logit)
    return converted_tensor


def _find_masked_logit(array: Any, executor: Executor | None) -> float | None:
    """Return the first finite number that stands for a masked class, or None.

    Raises
    ------
    InputError
        If a row of the table is invalid.
    """
    masked_logit: float | None = None
    for inspection in _inspect_blocks(array, executor):
        block_slice = inspection.block_slice
        if inspection.invalid_row_in_block is not None:
            _raise_invalid_logit(array, block_slice.start + inspection.invalid_row_in_block)
        if masked_logit is None and inspection.may_hold_finite_masks:
            is_masked = find_finite_masks(array[block_slice])
            if is_masked is not None:
                masked_logits = array[block_slice][is_masked]
                masked_logit = float(masked_logits[0])
    return masked_logit


def _warn_about_masked_logit(masked_logit: float) -> None:
    """Warn that a finite number is read as the logit of a masked class."""
    warn_caller(
        f"The logits hold {masked_logit:.9g}, which metacal reads as -inf (a masked class). Write"
        " -inf to avoid this warning."
    )


class _BlockInspection(NamedTuple):
    """Result of the inspection of a block of logits.

    Attributes
    ----------
    block_slice : slice
        Rows of the table in the block.

    invalid_row_in_block : int or None
        Index of the first invalid row within the block.

    may_hold_finite_masks : bool
        Whether a finite number may stand for a masked class.
    """

    block_slice: slice
    invalid_row_in_block: int | None
    may_hold_finite_masks: bool


def _inspect_blocks(array: Any, executor: Executor | None) -> Iterator[_BlockInspection]:
    """Inspect the logits of each block, by threads if the executor has them."""
    n_rows, n_classes = array.shape

    def inspect_block(block_slice: slice) -> _BlockInspection:
        invalid_row, may_hold_finite_masks = kernels.inspect_logits(array[block_slice])
        return _BlockInspection(block_slice, invalid_row, may_hold_finite_masks)

    map_blocks: Callable[..., Iterator[_BlockInspection]] = map
    elements_per_block = BLOCK_ELEMENTS
    if isinstance(executor, ThreadPoolExecutor) and n_rows * n_classes >= _MIN_THREADED_ELEMENTS:
        map_blocks = executor.map
        elements_per_block = _THREAD_BLOCK_ELEMENTS
    rows_per_block = max(1, elements_per_block // n_classes)
    block_starts = range(0, n_rows, rows_per_block)
    block_slices = [slice(start, start + rows_per_block) for start in block_starts]
    return map_blocks(inspect_block, block_slices)


def check_probabilities(table: Any, *, advice: str | None = None) -> NDArray[Any]:
    """Validate a table whose rows are probability vectors.

    Parameters
    ----------
    table : array-like of shape (n, K)
        Probabilities.

    advice : str, default=None
        Last sentence of the error message. If None, it mentions logits.

    Returns
    -------
    array, StoredTable or tensor of shape (n, K)

    Raises
    ------
    InputError
        If a value is outside of [0, 1], or a row does not sum to 1.

    Examples
    --------
    >>> check_probabilities([[0.25, 0.75]]).shape
    (1, 2)
    >>> check_probabilities([[3.0, 0.5]])
    Traceback (most recent call last):
    metacal.errors.InputKindError: probabilities must lie in [0, 1], but row 0 holds 3.0. If ...
    """
    array = _read_float_table(table, "probabilities")
    dtype_name = str(array.dtype).removeprefix("torch.")
    tolerance = _SUM_TOLERANCE_BY_DTYPE[dtype_name]
    blocks: Iterable[tuple[int, NDArray[Any]]] = iterate_blocks(array, BLOCK_ELEMENTS)
    if kernels.is_device_tensor(array):
        # The first invalid row is copied to the host for the error message.
        invalid_row = kernels.device_kernels().find_invalid_probability_row(array, tolerance)
        blocks = []
        if invalid_row is not None:
            blocks = [(invalid_row, to_numpy(array[invalid_row : invalid_row + 1]))]
    for first_row, block in blocks:
        _check_probability_block(block, first_row=first_row, tolerance=tolerance, advice=advice)
    return array


def _check_probability_block(
    block: NDArray[Any], *, first_row: int, tolerance: float, advice: str | None
) -> None:
    """Raise InputError if a row is not a probability vector.

    Parameters
    ----------
    block : array of shape (n, K)
        Rows of probabilities.

    first_row : int
        Index of the first row in the table, for the message.

    tolerance : float
        Largest distance of the sum of a row from 1.

    advice : str or None
        Last sentence of the message.
    """
    smallest = block.min(axis=1)
    largest = block.max(axis=1)
    is_in_range = (smallest >= 0) & (largest <= 1 + tolerance)
    invalid_row = find_first_true(~is_in_range)
    if invalid_row is not None:
        is_too_small = not smallest[invalid_row] >= 0
        invalid_value = smallest[invalid_row] if is_too_small else largest[invalid_row]
        hint = advice or f"If the numbers are logits, pass {format_option('input', 'logits')}."
        raise errors.InputKindError(
            f"probabilities must lie in [0, 1], but row {first_row + invalid_row} holds"
            f" {float(invalid_value)}. {hint}"
        )
    row_sums = block.sum(axis=1, dtype=np.float64)
    invalid_row = find_first_true(np.abs(row_sums - 1.0) > tolerance)
    if invalid_row is not None:
        hint = advice or (
            "Divide each row by its sum. If the numbers are logits, pass"
            f" {format_option('input', 'logits')} instead."
        )
        raise errors.InputKindError(
            f"The probabilities of each row must sum to 1, but row {first_row + invalid_row} sums"
            " to"
            f" {row_sums[invalid_row]:.6g}. {hint}"
        )


def read_logits(
    table: Any,
    input_kind: str,
    *,
    convert_lazily: bool = False,
    executor: Executor | None = None,
    defer_validation: bool = False,
) -> NDArray[Any]:
    """Return logits from a table of logits or probabilities.

    The logits of a probability vector are its logarithms, so that softmax recovers it. A probability
    of exactly 0 counts as too small to be written down. It is replaced by the smaller of 2.2e-16 and
    the smallest positive entry of the row, because a zero on a true class (of a random forest, for
    example) would make every likelihood infinite.

    Parameters
    ----------
    table : array-like of shape (n, K)
        Logits or probabilities.

    input_kind : {"logits", "probabilities"}
        Content of the table. It is never guessed from the values.

    convert_lazily : bool, default=False
        Whether probabilities in an array are converted when their rows are read, as those of a
        stored table are, and not into a second table.

    executor : Executor, default=None
        Pool of threads that share the validation.

    defer_validation : bool, default=False
        Whether to leave the validation of values to the first pass over them, if
        `can_defer_validation` allows it.

    Returns
    -------
    array, StoredTable or tensor of shape (n, K)

    Examples
    --------
    >>> read_logits([[0.5, 0.5]], "probabilities")
    array([[-0.69314718, -0.69314718]])
    """
    if defer_validation and can_defer_validation(table, input_kind):
        return _read_float_table(table, "logits")
    if input_kind == "logits":
        return check_logits(table, executor=executor)
    check_choice("input", input_kind, "logits", "probabilities")
    array: Any = check_probabilities(table)
    if kernels.is_device_tensor(array):
        return kernels.device_kernels().log_probabilities(array)
    dtype = np.dtype(np.float64 if array.dtype == np.float64 else np.float32)
    if convert_lazily or isinstance(array, StoredTable) or isinstance(table, np.memmap):
        converted_table: Any = ConvertedTable(array, partial(_log_probabilities, dtype), dtype)
        return converted_table
    return _log_probabilities(dtype, array)


def can_defer_validation(table: Any, input_kind: str) -> bool:
    """Check whether a kernel can validate values while it scores them.

    Examples
    --------
    >>> can_defer_validation(np.zeros((2, 3)), "probabilities")
    False
    """
    return input_kind == "logits" and (kernels.uses_c_kernels or kernels.is_device_tensor(table))


def _log_probabilities(dtype: np.dtype[Any], table: NDArray[Any]) -> NDArray[Any]:
    """Return the logarithms of probabilities, with zeros replaced."""
    logarithms = np.empty(table.shape, dtype)
    for start, block in iterate_blocks(table, BLOCK_ELEMENTS):
        positive_block = block.astype(dtype, copy=False)
        if not positive_block.min() > 0.0:
            positive_block = replace_zero_probabilities(NUMPY, positive_block)
        logarithms[start : start + len(block)] = np.log(positive_block, dtype=np.float64)
    return logarithms


def _read_float_table(table: Any, name: str) -> NDArray[Any]:
    """Convert a table to floats, check its shape, and use `name` in the errors."""
    if hasattr(table, "toarray"):
        raise errors.NumberError(
            f"{name} must be dense, but got a sparse matrix. Pass {name}.toarray() instead."
        )
    is_on_device = kernels.is_device_tensor(table)
    array: Any = table
    if not is_on_device and not isinstance(table, StoredTable):
        array = as_plain_array(table, name)
    shape = tuple(array.shape)
    if len(shape) != 2:
        raise errors.ShapeError(
            f"{name} must be 2-D with one row per item and one column per class, but got a"
            f" {len(shape)}-D array of shape {shape}. Reshape your data: a single row is"
            " x.reshape(1, -1). Only two classes may have one score per row."
        )
    if "complex" in str(array.dtype):
        raise errors.NumberError(f"{name} must be real numbers. Complex data not supported.")
    if is_on_device:
        array = kernels.device_kernels().as_float_table(array)
    elif not isinstance(table, StoredTable):
        array = as_native_floats(array, name)
    elif table.dtype.kind != "f":
        array = ConvertedTable(table, convert_integers_to_double, np.float64)
    if shape[0] < 1:
        raise errors.NoRowsError(
            f"{name} is empty: Found array with 0 sample(s) (shape={shape}); at least 1 is"
            " required."
        )
    if shape[1] < 2:
        raise errors.ShapeError(
            f"{name} needs at least 2 columns, one per class; got {shape[1]}: Found array"
            f" with {shape[1]} feature(s) (shape={shape}) while a minimum of 2 is required."
            " Only two classes may have one score per row."
        )
    return array


def _raise_invalid_logit(table: Any, row: int) -> None:
    """Raise InputError about a row with NaN, with +inf, or with every class masked."""
    row_logits = to_numpy(table[row : row + 1])[0]
    row_text = f"row {row}"
    # Only a table of several files has the method `describe_row`, which names the file.
    if hasattr(table, "describe_row"):
        row_text += f" ({table.describe_row(row)})"
    for kind, is_invalid in (("NaN", np.isnan(row_logits)), ("infinity", np.isposinf(row_logits))):
        if is_invalid.any():
            raise errors.NumberError(
                f"logits must not contain NaN or +infinity, but {row_text}, column"
                f" {is_invalid.argmax()} is {kind}. Drop such rows, or correct the model. -inf is"
                " allowed and means a masked class."
            )
    raise errors.NumberError(
        f"At least one class must have a finite logit, but {row_text} has -infinity in every"
        " column."
    )


def encode_labels_on_device_of_table(labels: Any, table: Any, classes: NDArray[Any]) -> Any:
    """Convert labels to class indices on the device of the table.

    Column numbers are validated on the device, other labels on the host.

    Parameters
    ----------
    labels : array-like of shape (n,)
        Labels.

    table : array or tensor of shape (n, K)
        Table of the same rows.

    classes : array of shape (K,)
        Class of each column.

    Returns
    -------
    array or tensor of int of shape (n,)
    """
    if not kernels.is_device_tensor(table):
        return encode_labels(labels, len(table), classes)
    raise_if_masked(labels, "labels")
    device_kernels = kernels.device_kernels()
    classes_are_column_numbers = classes.dtype.kind in "iu" and np.array_equal(
        classes, np.arange(len(classes))
    )
    if classes_are_column_numbers:
        codes_or_none = device_kernels.move_valid_column_numbers(labels, table)
        if codes_or_none is not None:
            return codes_or_none
    codes_on_host = encode_labels(labels, len(table), classes)
    return device_kernels.move_to_device_of(codes_on_host, table)
