"""Being told to stop: SIGTERM and SIGHUP unwind the command as Ctrl-C does, so that no half-written file stays.

By default these signals end the process on the spot, between two lines of Python, and what was being written stays.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Stopped(BaseException):
    """A signal said to stop. Not an `Exception`: nothing on the way up may take it for an ordinary failure."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def exit_code(self) -> int:
        """What a shell reports for a process that the signal ended: 128 and its number."""
        return 128 + self.number


def _signals() -> list[int]:
    # Windows has no SIGHUP. One that is ignored stays so: that is what nohup does.
    found = [getattr(signal, name, None) for name in ("SIGTERM", "SIGHUP")]
    return [number for number in found if number is not None and signal.getsignal(number) == signal.SIG_DFL]


@contextmanager
def stoppable() -> Iterator[None]:
    """Within this, SIGTERM and SIGHUP raise `Stopped` in the main thread, once; then the signals are as before.

    Examples
    --------
    >>> import os
    >>> try:
    ...     with stoppable():
    ...         os.kill(os.getpid(), signal.SIGTERM)
    ... except Stopped as stopped:
    ...     print(stopped.exit_code)
    143
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = _signals()

    def stop(number: int, frame: FrameType | None) -> Any:
        # A second signal must not interrupt the clearing up after the first.
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(number)

    for number in numbers:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def held() -> Iterator[None]:
    """Within this, signals that stop the command wait: what must be done whole is."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    names = ("SIGINT", "SIGTERM", "SIGHUP")
    before = {getattr(signal, name): signal.getsignal(getattr(signal, name)) for name in names if hasattr(signal, name)}
    before = {number: handler for number, handler in before.items() if callable(handler)}
    came: list[int] = []
    for number in before:
        signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in came[:1]:
            before[number](number, None)  # type: ignore[operator, misc]
