"""Every error metacal raises on purpose, and the one warning category.

An error says what came, what is needed and what to do.
"""

from __future__ import annotations

import sys
import warnings
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
        The best value that these rows certify at the same confidence; None when they certify nothing.
    rows_needed : int or None
        About how many calibration rows of the same kind would certify it in 4 of 5 cases, by simulation; None when,
        as far as the rows tell, no number would.

    Examples
    --------
    >>> import metacal as mc
    >>> try:
    ...     mc.MinAccuracy(0.99).certify([0.1] * 50, [True] * 50)
    ... except mc.InfeasibleTargetError as error:
    ...     error.target, error.best, error.rows_needed
    (0.99, 0.9549, 2100)
    """

    def __init__(
        self, message: str, *, target: float = nan, best: float | None = None, rows_needed: int | None = None
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


class MetacalWarning(UserWarning):
    """The answer stands, but something about the data deserves a look."""


class ConvergenceWarning(MetacalWarning):
    """An optimisation stopped before it reached its tolerance."""


#: Whose lines a warning does not point to: what passes a table on, and does not pass it in.
_INSIDE = ("metacal", "contextlib")


def warn_caller(message: str, category: type[MetacalWarning] = MetacalWarning) -> None:
    """Warn whoever called metacal, at their own line: Python shows it once for each such line."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] in _INSIDE:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
