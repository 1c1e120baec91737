"""How far a walk over rows has come, for whoever listens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

#: Told how many rows were gone through, block by block.
_listener: ContextVar[Callable[[int], object] | None] = ContextVar("metacal_rows_listener", default=None)


@contextmanager
def told(tell: Callable[[int], object] | None) -> Iterator[None]:
    """Within this, `tell(n)` is called whenever n more rows were gone through: what a progress bar needs.

    Examples
    --------
    >>> with told(print):
    ...     advance(3)
    3
    """
    token = _listener.set(tell)
    try:
        yield
    finally:
        _listener.reset(token)


def advance(n: int) -> None:
    """Say that n more rows were gone through otherwise than by `Rows`.

    Examples
    --------
    >>> with told(print):
    ...     advance(5)
    5
    """
    tell = _listener.get()
    if tell is not None:
        tell(n)


def telling(results: Iterator[Any], kept: list[int]) -> Iterator[Any]:
    """The results as they come; whoever listens is told how many rows each stands for."""
    tell = _listener.get()
    return results if tell is None else _telling(tell, results, kept)


def _telling(tell: Callable[[int], object], results: Iterator[Any], kept: list[int]) -> Iterator[Any]:
    for result, n in zip(results, kept):
        yield result
        tell(n)
