"""Errors and warnings of metacal.

A message states the value received, the requirement and the fix. Each class of errors belongs to a
kind, which is the anchor of a section in the error reference (docs/errors.md). Python prints the
address of this section below the traceback, and the command line prints it below the message.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from math import nan
from typing import ClassVar

#: Address of the error reference.
ERROR_REFERENCE_URL = "https://metacal.github.io/metacal/errors.html"


def format_help_link(kind: str) -> str:
    """Format the line that names the section about a kind of error.

    Examples
    --------
    >>> format_help_link("too-few-rows")
    'See https://metacal.github.io/metacal/errors.html#too-few-rows'
    """
    return f"See {ERROR_REFERENCE_URL}#{kind}"


class MetacalError(Exception):
    """Base class of all errors that metacal raises.

    Attributes
    ----------
    kind : str
        Kind of the error: the anchor of its section in the error reference.

    See Also
    --------
    InputError : Error about data or a parameter.
    ArtifactError : Error about a saved file.
    InfeasibleTargetError : Error about a target that the rows cannot certify.
    MissingExtraError : Error about a missing optional package.
    """

    kind: ClassVar[str] = "reading-an-error"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.add_note(format_help_link(self.kind))


class InputError(MetacalError, ValueError):
    """Error about invalid data or an invalid parameter.

    See Also
    --------
    MetacalError : Base class of all errors.
    InfeasibleTargetError : Error about a target that the rows cannot certify.
    """

    kind = "invalid-parameter"


class CombinationError(InputError):
    """Error about parameters that exclude each other, or of which one has no effect."""

    kind = "unsupported-combination"


class ShapeError(InputError):
    """Error about an array of the wrong shape, or columns of different lengths."""

    kind = "wrong-shape"


class NumberError(InputError):
    """Error about an entry that is missing, not a number, or out of range."""

    kind = "invalid-numbers"


class InputKindError(InputError):
    """Error about probabilities in place of logits, or logits in place of probabilities."""

    kind = "logits-or-probabilities"


class MissingLabelsError(InputError):
    """Error about true labels or correctness flags that were not passed."""

    kind = "missing-labels"


class LabelError(InputError):
    """Error about labels that cannot be matched with the columns of the table."""

    kind = "unknown-labels"


class ClassMismatchError(InputError):
    """Error about a table whose classes differ from those of the gate."""

    kind = "different-classes"


class PositiveClassError(InputError):
    """Error about the positive class of two classes."""

    kind = "positive-class"


class ColumnError(InputError):
    """Error about a column that is missing in a file, or whose name is ambiguous."""

    kind = "column-not-found"


class FileReadError(InputError):
    """Error about a file that does not exist, or cannot be opened."""

    kind = "cannot-read-file"


class FileContentError(InputError):
    """Error about a file of predictions whose content cannot be read."""

    kind = "unreadable-content"


class NoRowsError(InputError):
    """Error about a file without rows. Among several files, such a file is skipped."""

    kind = "no-rows"


class SizeLimitError(InputError):
    """Error about a file that needs more memory than the limit allows."""

    kind = "cannot-read-file"


class FileWriteError(InputError):
    """Error about an output that cannot be written."""

    kind = "cannot-write-file"


class TooFewRowsError(InputError):
    """Error about too few rows for a division, a fold or a profile."""

    kind = "too-few-rows"


class OneOutcomeError(InputError):
    """Error about rows that are all correct or all incorrect."""

    kind = "only-one-outcome"


class GroupsError(InputError):
    """Error about groups of rows that are missing, or that the gate does not have."""

    kind = "groups"


class ClustersError(InputError):
    """Error about clusters of dependent rows."""

    kind = "clusters-and-cases"


class CasesError(InputError):
    """Error about the cases of a promise about cases."""

    kind = "clusters-and-cases"


class WeightsError(InputError):
    """Error about sample weights or importance weights."""

    kind = "invalid-numbers"


class MissingPromiseError(InputError):
    """Error about a gate without a promise."""

    kind = "missing-promise"


class UnsupportedPromiseError(InputError):
    """Error about a promise that does not suit the rows or the procedure."""

    kind = "unsupported-promise"


class UnfittedError(InputError):
    """Error about an estimator that was not fitted, or an object without a gate."""

    kind = "not-fitted"


class CascadeError(InputError):
    """Error about the models of a cascade, or their predictions."""

    kind = "cascade-inputs"


class LabellingError(InputError):
    """Error about the sheet, the journal or the answers of `metacal label`."""

    kind = "labelling"


class MonitoringError(InputError):
    """Error about the stream or the state of a monitor."""

    kind = "monitoring"


class ExportError(InputError):
    """Error about a gate that cannot be exported or attached to a model."""

    kind = "cannot-export"


class WorkersError(InputError):
    """Error about a cluster of worker processes."""

    kind = "workers"


class KeyFileError(InputError):
    """Error about a key that cannot sign or verify a saved file."""

    kind = "signature"


class WrongTypeError(InputError, TypeError):
    """InputError for cases in which scikit-learn and Python expect a TypeError."""


class MissingGateError(InputError, AttributeError):
    """Error about the gate of an estimator that was fitted without one.

    It is an AttributeError too, so that `hasattr(estimator, "gate_")` is False.
    """

    kind = "missing-promise"


class BusyError(InputError):
    """Error about a file that another process is using. The file was not changed."""

    kind = "cannot-write-file"


class InfeasibleTargetError(MetacalError, ValueError):
    """Error about a target that the data cannot certify.

    Attributes
    ----------
    target : float
        Requested target.

    best : float or None
        Best value that these rows certify at the same confidence level. None if they certify
        nothing.

    rows_needed : int or None
        Rough estimate of the number of calibration rows that would be enough if new rows are like
        these. It may be wrong by a factor of three or more. None if the simulation finds no such
        number up to 50 times as many rows, or 32 times for graded losses.

    ruled_out_coverage : float or None
        With probability 1 - delta, no threshold that accepts at least this share of all rows reaches
        an accuracy target. None if the rows do not rule it out, and for other targets.

    min_rows_needed : int or None
        Proved lower limit on the number of rows that can certify a threshold with a lower coverage,
        to two digits. None if it is not above the present number of rows.

    cases_needed : int or None
        For a promise about cases: smallest number of calibration cases that can certify the target.

    n_cases : int or None
        For a promise about cases: number of calibration cases that the promise counts.

    n_uncovered, floor_low : int and float, or None
        If some cases have a true item without a score: the number of these cases, and the lower
        confidence limit of their share. No threshold brings the share of misses below it.

    See Also
    --------
    MetacalError : Base class of all errors.
    InputError : Error about data or a parameter.

    Examples
    --------
    >>> import metacal as mc
    >>> try:
    ...     mc.MinAccuracy(0.99).certify([0.1] * 50, [True] * 50)
    ... except mc.InfeasibleTargetError as error:
    ...     error.target, error.best, error.rows_needed
    (0.99, 0.9549, 270)
    """

    kind = "infeasible-target"

    def __init__(
        self,
        message: str,
        *,
        target: float = nan,
        best: float | None = None,
        rows_needed: int | None = None,
        cases_needed: int | None = None,
        n_cases: int | None = None,
        n_uncovered: int | None = None,
        floor_low: float | None = None,
        ruled_out_coverage: float | None = None,
        min_rows_needed: int | None = None,
    ) -> None:
        # Pickle recreates the error from its positional arguments, so only the message is one.
        super().__init__(message)
        self.target = target
        self.best = best
        self.rows_needed = rows_needed
        self.ruled_out_coverage = ruled_out_coverage
        self.min_rows_needed = min_rows_needed
        self.cases_needed = cases_needed
        self.n_cases = n_cases
        self.n_uncovered = n_uncovered
        self.floor_low = floor_low


class ArtifactError(MetacalError, ValueError):
    """Error about a saved file that is damaged, modified, or from a newer metacal.

    See Also
    --------
    MetacalError : Base class of all errors.
    load_gate : Load a saved gate as a frozen value.
    """

    kind = "damaged-file"


class ForeignFileError(ArtifactError):
    """Error about a file that is not the expected kind of metacal file."""

    kind = "not-a-metacal-file"


class SignatureError(ArtifactError):
    """Error about a saved file whose signature is missing or does not match."""

    kind = "signature"


class SavingError(ArtifactError):
    """Error about an object that cannot be saved."""

    kind = "cannot-save"


class OnnxModelError(ArtifactError):
    """Error about an ONNX model that cannot be read, checked or written."""

    kind = "cannot-export"


class MissingExtraError(MetacalError, ImportError):
    """Error about a missing optional dependency.

    Parameters
    ----------
    feature : str
        Feature that needs the dependency.
    extra : str
        Extra of metacal that installs the dependency.

    See Also
    --------
    MetacalError : Base class of all errors.
    show_config : Show versions, kernel and environment.
    """

    kind = "missing-extra"

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(feature, extra)
        self.extra = extra

    def __str__(self) -> str:
        return '{} needs an optional dependency: pip install "metacal[{}]"'.format(*self.args)


@contextmanager
def needs_extra(feature: str, extra: str) -> Iterator[None]:
    """Turn an ImportError inside the context into a MissingExtraError.

    Parameters
    ----------
    feature : str
        Feature that needs the optional dependency.
    extra : str
        Extra of metacal that installs the dependency.

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
        raise MissingExtraError(feature, extra) from error


class StrictWarningError(MetacalError):
    """Error about a warning of a command that was called with --strict."""

    kind = "strict-warnings"


class MetacalWarning(UserWarning):
    """Warning about data that may be wrong, although the result is valid.

    See Also
    --------
    MetacalError : Base class of all errors.
    """


class ConvergenceWarning(MetacalWarning):
    """Warning about an optimisation that stopped before it reached its tolerance."""


#: Packages whose stack frames `warn_caller` skips to find the line of the user's code.
_SKIPPED_PACKAGES = ("metacal", "contextlib")


def warn_caller(message: str, category: type[MetacalWarning] = MetacalWarning) -> None:
    """Issue a warning at the line of user code that called metacal.

    Python shows such a warning once for each of these lines.
    """
    frame = sys._getframe(1)
    stack_level = 2
    while frame.f_back is not None:
        module_name = str(frame.f_globals.get("__name__", ""))
        if module_name.partition(".")[0] not in _SKIPPED_PACKAGES:
            break
        frame = frame.f_back
        stack_level += 1
    warnings.warn(message, category, stacklevel=stack_level)
