"""Open a file, or say in one line why not. What a file is, is told by its first bytes; a pickle is
never read.

How much a file may unpack to is compared with what it claims, and with what it holds, before memory
is taken. A few kilobytes of zip, zstd or repeated dictionary entries can stand for gigabytes.
Logits do not pack like that: real ones shrink by a factor of two or three. So a file may unpack to
`UNPACKED_BYTES`, or to `UNPACKED_TIMES` its own size where that is more; whoever knows better
raises the limit.
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

from metacal.errors import InputError, MetacalError, option, spelled
from metacal.rows.executors import within

SAVE_AS_NPZ = "save it from Python as np.savez('predictions.npz', logits=logits, labels=labels)"
#: Kinds of files, and what each may begin with.
_MAGIC: dict[str, bytes | tuple[bytes, ...]] = {
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
#: Every file may unpack to this many bytes.
UNPACKED_BYTES = 1 << 31
#: And a larger one to so many times its own size.
UNPACKED_TIMES = 20
#: The environment variable that sets the limit in bytes.
VARIABLE = "METACAL_UNPACK_LIMIT"

_given: ContextVar[int | None] = ContextVar("metacal_unpack_limit", default=None)


class NoRowsError(InputError):
    """A file that is sound and holds no rows: among several, it contributes nothing."""


class NoScoreError(InputError):
    """A file that is read for a score has none of the name that is asked for."""


@contextlib.contextmanager
def plain_read_errors(path: str) -> Iterator[None]:
    """Turn what the system says about a file that cannot be opened into one line.

    Examples
    --------
    >>> with plain_read_errors("val.npz"):
    ...     raise FileNotFoundError
    Traceback (most recent call last):
    metacal.errors.InputError: val.npz: there is no such file; check the name and the folder.
    """
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file; check the name and the folder.") from None
    except IsADirectoryError:
        raise InputError(f"{path}: this is a folder; give a file in it.") from None
    except PermissionError:
        raise InputError(
            f"{path}: you have no permission to read it; ask its owner, or chmod +r."
        ) from None
    except OSError as error:
        raise InputError(f"{path}: it cannot be opened: {error.strerror or error}.") from error


def kind_of(head: bytes) -> str | None:
    r"""Name the kind of file that begins with these bytes; None for text and for what is
    unknown.
    """
    return next((kind for kind, begins in _MAGIC.items() if head.startswith(begins)), None)


def check_head(path: str, begins: tuple[bytes, ...] | None, shown: str | None = None) -> None:
    """Raise unless `path` is a readable file that begins with one of these; () for text, None for
    all but a pickle.

    `shown` is what messages call the file, where that differs.
    """
    name = path if shown is None else shown
    if os.path.isdir(path):
        raise InputError(f"{name}: this is a folder; give a file in it.")
    with plain_read_errors(name), open(path, "rb") as file:
        head = file.read(8)
    if not head:
        # Of text this is how some engines write a part without rows; of anything else, damage.
        raise (NoRowsError if begins == () else InputError)(
            f"{name}: the file is empty (0 bytes); write it again."
        )
    kind = kind_of(head)
    # safetensors begin with a length, which may look like a pickle's mark; but then a zero follows,
    # and no opcode.
    if kind == "a pickle" and (begins is not None or head[2:3] != b"\x00"):
        old = " (or a torch file from before torch 1.6)" if path.endswith((".pt", ".pth")) else ""
        raise InputError(
            f"{name}: this is a pickle{old}, which can run any code when read, so it never is;"
            f" {SAVE_AS_NPZ}."
        )
    if begins is not None and (not head.startswith(begins) if begins else kind):
        raise InputError(
            f"{name}: the content does not fit the name: it is {kind or 'something else'}, not"
            f" {Path(path).suffix}; rename it to what it is, or {SAVE_AS_NPZ}."
        )


@contextlib.contextmanager
def decoding(path: str) -> Iterator[None]:
    """Turn whatever a decoder says about a file into one line: what comes out of bytes may fail in
    any way.

    Only what reads bytes belongs in here, a library's decoder above all.

    Examples
    --------
    >>> import struct
    >>> with decoding("val.npz"):
    ...     raise struct.error("unpack requires a buffer of 4 bytes")
    Traceback (most recent call last):
    metacal.errors.InputError: val.npz: the file is damaged or cut short (unpack requires a buffer of 4 bytes); ...
    """
    try:
        yield
    except MetacalError:
        raise
    except MemoryError:
        raise InputError(
            f"{path}: there is not enough memory to read it; use a machine with more, or fewer"
            " rows."
        ) from None
    except Exception as error:
        raise InputError(damaged(path, error)) from error


def damaged(path: str, error: BaseException) -> str:
    """Say that a file cannot be read to its end."""
    said = " ".join(str(error).split())[:200].rstrip(" .;") or type(error).__name__
    return f"{path}: the file is damaged or cut short ({said}); copy or write it again."


def unpacking(limit: int | None) -> contextlib.AbstractContextManager[None]:
    """Within this, files may unpack to `limit` bytes; None: to what the environment says, or the
    rule above.

    Examples
    --------
    >>> with unpacking(10):
    ...     check_unpacked("val.npz", 11, held=5)
    Traceback (most recent call last):
    metacal.errors.InputError: val.npz: it unpacks to 11 bytes but the limit is 10 bytes. ...
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise InputError(f"unpack_limit must be a number of bytes, 1 or more, got {limit!r}.")
    return within(_given, limit)


def unpack_limit(held: int) -> int:
    """The number of bytes that a file of `held` bytes may unpack to."""
    given = _given.get()
    if given is not None:
        return given
    text = os.environ.get(VARIABLE)
    if not text:
        return max(UNPACKED_BYTES, UNPACKED_TIMES * held)
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 20 and int(text)):
        raise InputError(
            f"{VARIABLE} must be a number of bytes, such as 8000000000, got {text[:40]!r}."
        )
    return int(text)


def check_unpacked(path: str, size: int, held: int) -> None:
    """Raise where `size` bytes are more than a file of `held` bytes may unpack to."""
    limit = unpack_limit(held)
    if size > limit:
        raise InputError(
            f"{path}: it unpacks to {_shown(size)} but the limit is {_shown(limit)}. If you trust"
            f" it and have the memory, raise the limit: unpack_limit={size} in Python,"
            f" {VARIABLE}={size} in the environment."
        )


def check_texts(path: str, what: str, texts: Sequence[str], held: int) -> None:
    """Raise where an array of these texts, each as wide as the longest, would break the limit."""
    widest = max(map(len, texts), default=0)
    if widest * len(texts) * 4 > unpack_limit(held):
        raise InputError(
            f"{path}: the longest of the {len(texts):,} {what} has {widest:,} characters, and NumPy"
            f" would make all as wide, {_shown(4 * widest * len(texts))} (the limit is"
            f" {_shown(unpack_limit(held))}); shorten it."
        )


def uneven(row: str, found: int, width: int) -> InputError:
    """What is said of a row with another number of logits than the first."""
    return InputError(
        f"{row} has {found} numbers but the first row has {width}; every row needs one number per"
        " class."
    )


def _shown(size: int) -> str:
    for unit, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB")):
        if size >= unit:
            return f"{size / unit:,.1f} {name}"
    return f"{size:,} bytes"


def passed_on(values: Sequence[Any]) -> NDArray[Any]:
    """Values of any kind, or missing (None), as one array: all numbers, all true or false, or else
    texts (objects).

    A missing number is NaN and a missing text is empty. Numbers that would lose digits as floats
    become texts.

    Examples
    --------
    >>> passed_on([1, 2]), passed_on([1, None]), passed_on(["a", None, {"b": 1}]).tolist()
    (array([1, 2]), array([ 1., nan]), ['a', '', '{"b": 1}'])
    """
    kinds = {type(value) for value in values}
    most = 1 << (63 if kinds == {int} else 53)
    exact = all(abs(value) < most for value in values if type(value) is int)
    if exact and (kinds in ({bool}, {int}) or kinds <= {int, float, NoneType}):
        return np.array([math.nan if value is None else value for value in values])
    return np.array([_text(value) for value in values], dtype=object)


def _text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, default=str) if isinstance(value, bool | dict | list) else str(value)


def one_score() -> str:
    """How the score of the second of two classes is named."""
    return spelled("logits_key=...", "--positive-key NAME")


def two_columns_hint() -> str:
    """How one score for two classes is written."""
    return (
        f" One score for two classes: name its column with {one_score()}, or say"
        f" {option('input', 'probabilities')} where it is the probability of the second."
    )
