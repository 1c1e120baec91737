"""Being told to stop: SIGTERM and SIGHUP unwind the command as Ctrl-C does, so that no half-written file stays.

By default these signals end the process on the spot, between two lines of Python, and what was being written stays.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]


class Stopped(BaseException):
    """A signal said to stop. Not an `Exception`: nothing on the way up may take it for an ordinary failure."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def exit_code(self) -> int:
        """What a shell reports for a process that the signal ended: 128 and its number."""
        return 128 + self.number


@contextmanager
def _handled(names: tuple[str, ...], handle: Handler, where: Callable[[Any], bool]) -> Iterator[dict[int, Any]]:
    """Within this the signals are handled otherwise `where` their handlers are such; yields these, as they were before.

    Only the main thread may handle signals, and Windows has no SIGHUP.
    """
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
        before = {number: signal.getsignal(number) for number in numbers if where(signal.getsignal(number))}
    for number in before:
        signal.signal(number, handle)
    try:
        yield before
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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

    def stop(number: int, frame: FrameType | None) -> Any:
        # A second signal must not interrupt the clearing up after the first.
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(number)

    # One that is ignored stays so: that is what nohup does.
    with _handled(("SIGTERM", "SIGHUP"), stop, lambda handler: handler == signal.SIG_DFL) as numbers:
        yield


@contextmanager
def held() -> Iterator[None]:
    """Within this, signals that stop the command wait: what must be done whole is."""
    came: list[int] = []
    before: dict[int, Any] = {}
    try:
        with _handled(("SIGINT", "SIGTERM", "SIGHUP"), lambda number, frame: came.append(number), callable) as before:
            yield
    finally:
        for number in came[:1]:
            before[number](number, None)
