"""Checks and error messages for files that are opened for reading.

The first bytes of a file determine its kind. Pickles are never read, because unpickling can run any
code.

A few kilobytes of zip, zstd or repeated dictionary entries can decompress to gigabytes. The
decompressed size is therefore checked before memory is allocated. Real logits compress by a factor
of two or three, so a file may decompress to `MIN_UNPACK_LIMIT`, or to `MAX_UNPACK_RATIO` its own size
if that is more. The user can raise the limit.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import (
    ColumnError,
    FileContentError,
    FileReadError,
    InputError,
    MetacalError,
    NoRowsError,
    ShapeError,
    SizeLimitError,
)
from metacal.rows.executors import set_context_variable
from metacal.spelling import choose_spelling, format_option

SAVE_AS_NPZ_ADVICE = (
    "save it from Python with np.savez('predictions.npz', logits=logits, labels=labels)"
)
#: Magic bytes of each kind of binary file.
_MAGIC_BYTES: dict[str, bytes | tuple[bytes, ...]] = {
    "a NumPy .npy file": b"\x93NUMPY",
    "a zip archive such as .npz": b"PK\x03\x04",
    "an empty zip archive": b"PK\x05\x06",
    "a Parquet file": b"PAR1",
    "an Arrow file": b"ARROW1\x00",
    "an Arrow stream": b"\xff\xff\xff\xff",
    "an HDF5 file": b"\x89HDF",
    "a pickle": (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"),
    "compressed data such as joblib writes": (
        b"\x1f\x8b",
        b"x\x9c",
        b"x\xda",
        b"BZh9",
        b"\xfd7zXZ",
    ),
}
#: Number of first bytes that suffices to recognise every kind of file.
N_MAGIC_BYTES = 8
#: Maximum number of digits of a limit on the decompressed size.
_MAX_LIMIT_DIGITS = 19
#: Maximum number of characters of a value that a message quotes.
_MAX_SHOWN_TEXT = 40
#: Maximum number of characters of the reason for an error.
_MAX_REASON_LENGTH = 200
#: Number of bits of the integers that int64 and float64 represent exactly.
_N_EXACT_BITS_OF_INT64 = 63
_N_EXACT_BITS_OF_FLOAT64 = 53
#: Number of bytes to which any file may decompress, however small it is.
MIN_UNPACK_LIMIT = 1 << 31
#: Maximum ratio of the decompressed size to the file size.
MAX_UNPACK_RATIO = 20
#: Environment variable that sets the limit of the decompressed size in bytes.
UNPACK_LIMIT_VARIABLE = "METACAL_UNPACK_LIMIT"
#: Number of bytes per character in a NumPy string array.
_BYTES_PER_CHARACTER = 4

_requested_limit: ContextVar[int | None] = ContextVar("metacal_unpack_limit", default=None)


class MissingScoreColumnError(ColumnError):
    """Error about a file that has no column with the requested name of the score."""


@contextlib.contextmanager
def input_error_if_read_fails(path: str) -> Iterator[None]:
    """Convert an OSError inside the context to an InputError about reading a file.

    Examples
    --------
    >>> with input_error_if_read_fails("val.npz"):
    ...     raise FileNotFoundError
    Traceback (most recent call last):
    metacal.errors.FileReadError: val.npz: the file does not exist. Check the name and the folder.
    """
    try:
        yield
    except FileNotFoundError:
        raise FileReadError(
            f"{path}: the file does not exist. Check the name and the folder."
        ) from None
    except IsADirectoryError:
        raise FileReadError(f"{path}: the path is a folder. Pass a file in this folder.") from None
    except PermissionError:
        raise FileReadError(
            f"{path}: you do not have permission to read the file. Ask its owner, or run chmod +r."
        ) from None
    except OSError as error:
        raise FileReadError(
            f"{path}: the file cannot be opened: {error.strerror or error}."
        ) from error


def detect_file_kind(first_bytes: bytes) -> str | None:
    """Return the kind of a binary file in words, or None for text and unknown formats."""
    for kind, magic_bytes in _MAGIC_BYTES.items():
        if first_bytes.startswith(magic_bytes):
            return kind
    return None


def check_first_bytes(
    path: str, magic_bytes: tuple[bytes, ...] | None, name_in_messages: str | None = None
) -> None:
    """Check that a file is readable and begins as its format requires.

    Parameters
    ----------
    path : str
        File to check.

    magic_bytes : tuple of bytes or None
        Accepted first bytes. An empty tuple stands for text, and None for anything but a pickle.

    name_in_messages : str, optional
        Name of the file in messages, if it is not `path`.

    Raises
    ------
    NoRowsError
        If a text file is empty. Some engines write such a file for a part without rows.
    InputError
        If the file cannot be read, is empty, is a pickle, or has another format.
    """
    file_name = path
    if name_in_messages is not None:
        file_name = name_in_messages
    if os.path.isdir(path):
        raise FileReadError(f"{file_name}: the path is a folder. Pass a file in this folder.")
    with input_error_if_read_fails(file_name), open(path, "rb") as file:
        first_bytes = file.read(N_MAGIC_BYTES)

    is_text_format = magic_bytes is not None and len(magic_bytes) == 0
    if not first_bytes:
        message = f"{file_name}: the file is empty (0 bytes). Write it again."
        if is_text_format:
            raise NoRowsError(message)
        raise FileContentError(message)

    file_kind = detect_file_kind(first_bytes)
    # The header length at the start of a safetensors file may look like the start of a pickle.
    # The third byte of such a length is zero, whereas a pickle has an opcode there.
    third_byte = first_bytes[2:3]
    could_be_safetensors = magic_bytes is None and third_byte == b"\x00"
    if file_kind == "a pickle" and not could_be_safetensors:
        torch_hint = ""
        if path.endswith((".pt", ".pth")):
            torch_hint = " (or a torch file from before torch 1.6)"
        raise FileContentError(
            f"{file_name}: the file is a pickle{torch_hint}, which metacal does not read because a"
            f" pickle can run any code; {SAVE_AS_NPZ_ADVICE}."
        )

    if is_text_format:
        has_other_format = file_kind is not None
    else:
        has_other_format = magic_bytes is not None and not first_bytes.startswith(magic_bytes)
    if has_other_format:
        raise FileContentError(
            f"{file_name}: the name ends in {Path(path).suffix}, but the content is"
            f" {file_kind or 'of another format'}. Rename the file, or {SAVE_AS_NPZ_ADVICE}."
        )


@contextlib.contextmanager
def input_error_if_decoding_fails(path: str) -> Iterator[None]:
    """Convert any exception of a decoder inside the context to an InputError.

    A decoder can fail in any way on bytes that it does not expect. Use this context only around
    code that decodes, typically a call of another library.

    Examples
    --------
    >>> import struct
    >>> with input_error_if_decoding_fails("val.npz"):
    ...     raise struct.error("unpack requires a buffer of 4 bytes")
    Traceback (most recent call last):
    metacal.errors.FileContentError: val.npz: the file is damaged or cut short (unpack requires ...
    """
    try:
        yield
    except MetacalError:
        raise
    except MemoryError:
        raise SizeLimitError(
            f"{path}: not enough memory to read the file. Use fewer rows, or a machine with more"
            " memory."
        ) from None
    except Exception as error:
        raise FileContentError(describe_damaged_file(path, error)) from error


def describe_damaged_file(path: str, error: BaseException) -> str:
    """Return the message for a file that cannot be read to its end."""
    one_line = " ".join(str(error).split())
    reason = one_line[:_MAX_REASON_LENGTH].rstrip(" .;") or type(error).__name__
    return f"{path}: the file is damaged or cut short ({reason}); copy or write it again."


def limit_unpacked_size(limit: int | None) -> contextlib.AbstractContextManager[None]:
    """Return a context in which files may decompress to `limit` bytes.

    If the limit is None, the environment variable or the default rule applies.

    Examples
    --------
    >>> with limit_unpacked_size(10):
    ...     check_unpacked_size("val.npz", 11, file_size=5)
    Traceback (most recent call last):
    metacal.errors.SizeLimitError: val.npz: the file unpacks to 11 bytes, but the limit is 10 bytes. ...
    """
    if limit is not None:
        is_integer = isinstance(limit, int) and not isinstance(limit, bool)
        if not is_integer or limit < 1:
            raise InputError(f"unpack_limit must be a positive number of bytes, but got {limit!r}.")
    return set_context_variable(_requested_limit, limit)


def get_unpack_limit(file_size: int) -> int:
    """Return the number of bytes to which a file of the given size may decompress."""
    requested_limit = _requested_limit.get()
    if requested_limit is not None:
        return requested_limit
    variable_text = os.environ.get(UNPACK_LIMIT_VARIABLE)
    if not variable_text:
        return max(MIN_UNPACK_LIMIT, MAX_UNPACK_RATIO * file_size)
    has_only_digits = variable_text.isascii() and variable_text.isdigit()
    is_number = has_only_digits and len(variable_text) <= _MAX_LIMIT_DIGITS
    if not is_number or int(variable_text) == 0:
        raise InputError(
            f"{UNPACK_LIMIT_VARIABLE} must be a positive number of bytes, such as 8000000000, but"
            f" got {variable_text[:_MAX_SHOWN_TEXT]!r}."
        )
    return int(variable_text)


def check_unpacked_size(path: str, unpacked_size: int, file_size: int) -> None:
    """Raise InputError if a file decompresses to more bytes than the limit allows."""
    limit = get_unpack_limit(file_size)
    if unpacked_size > limit:
        raise SizeLimitError(
            f"{path}: the file unpacks to {_format_size(unpacked_size)}, but the limit is"
            f" {_format_size(limit)}. If you trust the file and have the memory, raise the limit"
            f" with unpack_limit={unpacked_size} in Python, or with"
            f" {UNPACK_LIMIT_VARIABLE}={unpacked_size} in the environment."
        )


def check_text_array_size(
    path: str, column_text: str, texts: Sequence[str], file_size: int
) -> None:
    """Raise InputError if a NumPy array of the texts would exceed the size limit.

    NumPy stores every text of an array with the width of the longest.

    Parameters
    ----------
    path : str
        Name of the file in messages.

    column_text : str
        Description of the column in messages, for example "labels".

    texts : sequence of str
        Texts of the column.

    file_size : int
        Size of the file in bytes.
    """
    max_length = max(map(len, texts), default=0)
    array_size = _BYTES_PER_CHARACTER * max_length * len(texts)
    limit = get_unpack_limit(file_size)
    if array_size > limit:
        raise SizeLimitError(
            f"{path}: the longest of the {len(texts):,} {column_text} has {max_length:,}"
            f" characters, so an array of them would need {_format_size(array_size)}, but the"
            f" limit is {_format_size(limit)}. Shorten the longest text."
        )


def build_uneven_row_error(row_name: str, n_numbers: int, n_classes: int) -> InputError:
    """Build the error for a row that has more or fewer numbers than the first row."""
    return ShapeError(
        f"{row_name} has {n_numbers} numbers, but the first row has {n_classes}. Every row must"
        " have one number per class."
    )


def _format_size(n_bytes: int) -> str:
    """Format a number of bytes with a decimal unit."""
    for unit_size, unit_name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB")):
        if n_bytes >= unit_size:
            return f"{n_bytes / unit_size:,.1f} {unit_name}"
    return f"{n_bytes:,} bytes"


def build_kept_column(values: Sequence[Any]) -> NDArray[Any]:
    """Convert the values of a column that is copied to the results into one array.

    The array holds numbers or booleans if all values are such, and texts (as objects) otherwise. A
    missing number becomes NaN and a missing text becomes empty. Integers that a float cannot
    represent exactly become texts.

    Parameters
    ----------
    values : sequence
        Values of any type. None stands for a missing value.

    Returns
    -------
    array of shape (n_rows,)

    Examples
    --------
    >>> build_kept_column([1, 2]), build_kept_column([1, None]), build_kept_column(["a", None, {"b": 1}]).tolist()
    (array([1, 2]), array([ 1., nan]), ['a', '', '{"b": 1}'])
    """
    value_types = {type(value) for value in values}
    # Integers become int64, or float64 if there are other numbers.
    has_only_integers = value_types == {int}
    n_exact_bits = _N_EXACT_BITS_OF_INT64 if has_only_integers else _N_EXACT_BITS_OF_FLOAT64
    integer_bound = 1 << n_exact_bits
    has_exact_integers = all(abs(value) < integer_bound for value in values if type(value) is int)
    has_only_booleans = value_types == {bool}
    has_only_numbers_or_none = value_types <= {int, float, NoneType}
    if has_exact_integers and (has_only_booleans or has_only_numbers_or_none):
        return np.array([math.nan if value is None else value for value in values])
    return np.array([_format_value(value) for value in values], dtype=object)


def _format_value(value: Any) -> str:
    """Convert one value to text: JSON for booleans and containers, "" for None."""
    if value is None:
        return ""
    if isinstance(value, bool | dict | list):
        return json.dumps(value, default=str)
    return str(value)


def single_score_parameter() -> str:
    """Return the parameter that names the score of the second of two classes."""
    return choose_spelling("logits_key=...", "--positive-key NAME")


def advise_on_single_score() -> str:
    """Return the advice for a file with one score for two classes."""
    return (
        f" For a single score of two classes, name its column with {single_score_parameter()}. If"
        f" it is the probability of the second class, pass {format_option('input', 'probabilities')}."
    )
