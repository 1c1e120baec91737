"""How much a file may unpack to. What it claims is compared with this, and with what it holds, before memory is taken.

A few kilobytes of zip, zstd or repeated dictionary entries can stand for gigabytes. Logits do not pack like that: real
ones shrink by a factor of two or three. So a file may unpack to `UNPACKED_BYTES`, or to `UNPACKED_TIMES` its own size
where that is more; whoever knows better raises the limit.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from metacal.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: Every file may unpack to this many bytes.
UNPACKED_BYTES = 1 << 31
#: And a larger one to so many times its own size.
UNPACKED_TIMES = 20
#: The environment variable that sets the limit in bytes.
VARIABLE = "METACAL_UNPACK_LIMIT"

_given: ContextVar[int | None] = ContextVar("metacal_unpack_limit", default=None)


@contextmanager
def unpacking(limit: int | None) -> Iterator[None]:
    """Within this, files may unpack to `limit` bytes; None: to what the environment says, or the rule above.

    Examples
    --------
    >>> with unpacking(10):
    ...     check_unpacked("val.npz", 11, held=5)
    Traceback (most recent call last):
    metacal.errors.InputError: val.npz: it unpacks to 11 bytes but the limit is 10 bytes. ...
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise InputError(f"unpack_limit must be a number of bytes, 1 or more, got {limit!r}.")
    token = _given.set(limit)
    try:
        yield
    finally:
        _given.reset(token)


def unpack_limit(held: int) -> int:
    """The number of bytes that a file of `held` bytes may unpack to.

    Examples
    --------
    >>> unpack_limit(1000), unpack_limit(1 << 30)
    (2147483648, 21474836480)
    """
    given = _given.get()
    if given is not None:
        return given
    text = os.environ.get(VARIABLE)
    if not text:
        return max(UNPACKED_BYTES, UNPACKED_TIMES * held)
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 20 and int(text)):
        raise InputError(f"{VARIABLE} must be a number of bytes, such as 8000000000, got {text[:40]!r}.")
    return int(text)


def check_unpacked(path: str, size: int, held: int) -> None:
    """Raise where `size` bytes are more than a file of `held` bytes may unpack to."""
    limit = unpack_limit(held)
    if size > limit:
        raise InputError(
            f"{path}: it unpacks to {_shown(size)} but the limit is {_shown(limit)}. If you trust it and have the "
            f"memory, raise the limit: unpack_limit={size} in Python, {VARIABLE}={size} in the environment."
        )


def check_texts(path: str, what: str, texts: Sequence[str], held: int) -> None:
    """Raise where an array of these texts, each as wide as the longest, would break the limit."""
    widest = max(map(len, texts), default=0)
    if widest * len(texts) * 4 > unpack_limit(held):
        raise InputError(
            f"{path}: the longest of the {len(texts):,} {what} has {widest:,} characters, and NumPy would make all as "
            f"wide, {_shown(4 * widest * len(texts))} (the limit is {_shown(unpack_limit(held))}); shorten it."
        )


def _shown(size: int) -> str:
    for unit, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB")):
        if size >= unit:
            return f"{size / unit:,.1f} {name}"
    return f"{size:,} bytes"
