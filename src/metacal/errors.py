"""Every error metacal raises on purpose, and the one warning category.

An error says what came, what is needed and what to do.
"""

from __future__ import annotations

import shlex
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from math import nan


class MetacalError(Exception):
    """Base of all errors raised on purpose by metacal."""


class InputError(MetacalError, ValueError):
    """The data or a parameter is not what the function needs."""


class WrongTypeError(InputError, TypeError):
    """The same, where scikit-learn and Python expect a TypeError."""


class BusyError(InputError):
    """Another process holds what was to be written; nothing was changed."""


class InfeasibleTargetError(MetacalError, ValueError):
    """The data cannot certify the asked target.

    Attributes
    ----------
    target : float
        What was asked.
    best : float or None
        The best value that these rows certify at the same confidence; None when they certify
        nothing.
    rows_needed : int or None
        A rough estimate of how many calibration rows would be enough, if new rows look like these.
        It may be off by a factor of three or more. None if the simulation finds no such number
        among those it tries: up to 50 times as many, for graded losses up to 32 times.

    Examples
    --------
    >>> import metacal as mc
    >>> try:
    ...     mc.MinAccuracy(0.99).certify([0.1] * 50, [True] * 50)
    ... except mc.InfeasibleTargetError as error:
    ...     error.target, error.best, error.rows_needed
    (0.99, 0.9549, 270)
    """

    def __init__(
        self,
        message: str,
        *,
        target: float = nan,
        best: float | None = None,
        rows_needed: int | None = None,
    ) -> None:
        super().__init__(message)  # pickle brings this argument back, and then the attributes
        self.target, self.best, self.rows_needed = target, best, rows_needed


class ArtifactError(MetacalError, ValueError):
    """A saved file is damaged, was tampered with, or was written by a newer metacal."""


class MissingExtraError(MetacalError, ImportError):
    """An optional dependency is not installed; the message names the extra to install."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(what, extra)
        self.extra = extra

    def __str__(self) -> str:
        return '{} needs an optional dependency: pip install "metacal[{}]"'.format(*self.args)


@contextmanager
def needs_extra(what: str, extra: str) -> Iterator[None]:
    """What is imported within this comes with an extra; MissingExtraError where it is not
    installed.

    Examples
    --------
    >>> with needs_extra("drawing a plot", "plot"):
    ...     import a_library_for_plots
    Traceback (most recent call last):
    metacal.errors.MissingExtraError: drawing a plot needs an optional dependency: pip install "metacal[plot]"
    """
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(what, extra) from error


class MetacalWarning(UserWarning):
    """The answer stands, but something about the data deserves a look."""


class ConvergenceWarning(MetacalWarning):
    """An optimisation stopped before it reached its tolerance."""


#: Whether whoever asked wrote a command; Python otherwise.
_commands = False


@contextmanager
def spelled_as_commands() -> Iterator[None]:
    """Spell what messages name as the command line does, until the command ends."""
    global _commands
    before, _commands = _commands, True
    try:
        yield
    finally:
        _commands = before


def spelled(python: str, command: str) -> str:
    """What a message names, in the spelling of whoever asked."""
    return command if _commands else python


def option(name: str, value: str | None = None, metavar: str | None = None) -> str:
    """A parameter as whoever asked writes it, in Python or on the command line.

    Examples
    --------
    >>> option("label_key", "truth"), option("classes")
    ("label_key='truth'", 'classes=[...]')
    >>> with spelled_as_commands():
    ...     option("label_key", "my truth"), option("classes")
    ("--label-key 'my truth'", '--classes A,B,C')
    """
    shown = metavar or {"classes": "A,B,C", "labels": "FILE"}.get(name, "NAME")
    listed = metavar.split(",") if metavar else "[...]"
    python = (
        f"{name}={value!r}"
        if value is not None
        else f"classes={listed}"
        if name == "classes"
        else name
    )
    return spelled(
        python, f"--{name.replace('_', '-')} {shlex.quote(value) if value is not None else shown}"
    )


#: Whose lines a warning does not point to: what passes a table on, and does not pass it in.
_INSIDE = ("metacal", "contextlib")


def warn_caller(message: str, category: type[MetacalWarning] = MetacalWarning) -> None:
    """Warn whoever called metacal, at their own line: Python shows it once for each such line."""
    frame, level = sys._getframe(1), 2
    while (
        frame.f_back is not None
        and str(frame.f_globals.get("__name__", "")).partition(".")[0] in _INSIDE
    ):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
