"""Handling of signals that end a command.

By default, SIGTERM and SIGHUP end the process at once, between two lines of Python. Here they raise
an exception instead, as Ctrl-C does, so that a command removes half-written files before it ends.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SignalHandler = Callable[[int, FrameType | None], Any]


class StopRequested(BaseException):
    """Exception raised by a signal that ends the command.

    It is not an `Exception`, so that no handler of failures catches it.

    Parameters
    ----------
    signal_number : int
        Number of the signal.
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number


@contextmanager
def _replace_handlers(
    signal_names: tuple[str, ...],
    new_handler: SignalHandler,
    is_replaceable: Callable[[Any], bool],
) -> Iterator[dict[int, Any]]:
    """Replace signal handlers temporarily.

    Only the main thread may handle signals; in other threads nothing is replaced.

    Parameters
    ----------
    signal_names : tuple of str
        Names of the signals. Those that the platform does not have are skipped (Windows has no
        SIGHUP).
    new_handler : callable
        Handler to install.
    is_replaceable : callable
        Checks whether the current handler of a signal may be replaced.

    Yields
    ------
    dict
        Replaced handlers, keyed by signal number. They are restored at the end.
    """
    original_handlers: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for name in signal_names:
            signal_number = getattr(signal, name, None)
            if signal_number is None:
                continue
            original_handler = signal.getsignal(signal_number)
            if is_replaceable(original_handler):
                original_handlers[signal_number] = original_handler
    for signal_number in original_handlers:
        signal.signal(signal_number, new_handler)
    try:
        yield original_handlers
    finally:
        for signal_number, original_handler in original_handlers.items():
            signal.signal(signal_number, original_handler)


@contextmanager
def raise_on_stop_signals() -> Iterator[None]:
    """Raise `StopRequested` in the main thread on SIGTERM and SIGHUP, at most once.

    Examples
    --------
    >>> import os
    >>> try:
    ...     with raise_on_stop_signals():
    ...         os.kill(os.getpid(), signal.SIGTERM)
    ... except StopRequested as stop:
    ...     print(stop)
    15
    """

    def raise_stop_request(signal_number: int, frame: FrameType | None) -> Any:
        # A second signal must not interrupt the cleanup after the first.
        for number in original_handlers:
            signal.signal(number, signal.SIG_IGN)
        raise StopRequested(signal_number)

    def has_default_action(handler: Any) -> bool:
        # An ignored signal stays ignored: this is how nohup works.
        return bool(handler == signal.SIG_DFL)

    with _replace_handlers(
        ("SIGTERM", "SIGHUP"), raise_stop_request, has_default_action
    ) as original_handlers:
        yield


@contextmanager
def delay_signals() -> Iterator[None]:
    """Delay signals that end the command until the block is finished."""
    received_signals: list[int] = []
    original_handlers: dict[int, Any] = {}

    def record_signal(signal_number: int, frame: FrameType | None) -> None:
        received_signals.append(signal_number)

    try:
        with _replace_handlers(
            ("SIGINT", "SIGTERM", "SIGHUP"), record_signal, callable
        ) as original_handlers:
            yield
    finally:
        if received_signals:
            first_signal = received_signals[0]
            original_handlers[first_signal](first_signal, None)
