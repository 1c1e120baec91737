"""Result of inspecting a file, and tests of the names and values of columns."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.io.strays import NON_CLASS_NAME_PATTERN

#: Names of columns that mark a row as correct or incorrect.
CORRECTNESS_NAME_PATTERN = re.compile(
    r"(.*[_. ])?(is[_ ]?)?(correct|ok|right|passed|success|hit)", re.IGNORECASE
)


class AmbiguousFileError(Exception):
    """The meaning of a file cannot be determined. The text is a question to the user."""


@dataclass
class Inspection:
    """Meaning of the columns of a file, as far as it was determined.

    Attributes
    ----------
    path : str
        The file.

    description : str
        Format of the file, in words.

    columns : dict of str to array
        First rows of each column.

    options : dict
        Parameters with which the readers find the same columns, including those that the user gave.

    findings : list of (str, str)
        The meaning of each column, and the reason.

    question : str or None
        Question to the user if the meaning is ambiguous, with the options that answer it.
    """

    path: str
    description: str
    columns: dict[str, NDArray[Any]]
    options: dict[str, Any]
    findings: list[tuple[str, str]] = field(default_factory=list)
    question: str | None = None

    def add_finding(
        self,
        meaning: str,
        reason: str,
        *,
        options: Mapping[str, str] | None = None,
        default_values: Collection[str] = (),
    ) -> None:
        """Record a finding, and the options that make the readers agree with it.

        Parameters
        ----------
        meaning : str
            Meaning of a column, for example "labels: truth".

        reason : str
            Reason for the finding.

        options : mapping of str to str, optional
            Parameters of the readers. A parameter that the user gave is not changed.

        default_values : collection of str, default=()
            Values that the readers use anyway. They are not recorded.
        """
        self.findings.append((meaning, reason))
        for name, value in (options or {}).items():
            if name not in self.options and value not in default_values:
                self.options[name] = value


def is_text(column: NDArray[Any]) -> bool:
    """Check whether a column holds texts."""
    return column.dtype.kind in "UO"


def are_column_numbers(labels: NDArray[Any], n_columns: int) -> bool:
    """Check whether all labels are integers from 0 to `n_columns` - 1."""
    if labels.dtype.kind not in "iub":
        return False
    return bool(labels.min() >= 0 and labels.max() < n_columns)


def contains_only(column: NDArray[Any], names: Collection[str]) -> bool:
    """Check whether every value of a column is one of the names."""
    return set(map(str, np.unique(column))) <= set(names)


def has_non_class_name(name: str) -> bool:
    """Check whether the name of a column suggests something other than a class."""
    return name == "" or NON_CLASS_NAME_PATTERN.fullmatch(name) is not None


def is_row_counter(column: NDArray[Any]) -> bool:
    """Check whether a column of integers increases by one from row to row."""
    if column.dtype.kind not in "iu" or len(column) <= 2:
        return False
    return bool((np.diff(column) == 1).all())
