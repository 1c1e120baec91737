"""Result of inspecting a file."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from metacal.io.column_facts import ColumnFacts

#: Names of columns that mark a row as correct or incorrect.
CORRECTNESS_NAME_PATTERN = re.compile(
    r"(.*[_. ])?(is[_ ]?)?(correct(ness)?|ok|right|passed|success|hit|exact[_ ]?match|match(es)?"
    r"|relevant|korrekt|richtig|correcto|juste)",
    re.IGNORECASE,
)


class AmbiguousFileError(Exception):
    """Error about a file of unclear meaning, with a question to the user."""


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

    column_of_role : dict of str to str
        Column of each role: "labels", "correct", "predictions", "score", "ids", "case" for the
        document or case to which several rows belong, "group" for the name of a field, and "split"
        for the part of the data set.

    negative_and_positive : tuple of (str, str) or None
        Negative and positive class, if there are two.

    question : str or None
        Question to the user if the meaning is ambiguous, with the options that answer it.
    """

    path: str
    description: str
    columns: dict[str, NDArray[Any]]
    options: dict[str, Any]
    findings: list[tuple[str, str]] = field(default_factory=list)
    column_of_role: dict[str, str] = field(default_factory=dict)
    negative_and_positive: tuple[str, str] | None = None
    question: str | None = None

    @cached_property
    def facts(self) -> dict[str, ColumnFacts]:
        """Facts about each column that holds one value per row."""
        flat_facts = {}
        for name, column in self.columns.items():
            if column.ndim == 1:
                flat_facts[name] = ColumnFacts(name, column)
        return flat_facts

    @property
    def n_rows(self) -> int:
        """Number of inspected rows."""
        return max(len(column) for column in self.columns.values())

    @property
    def has_scored_items(self) -> bool:
        """Whether the rows have confidence scores, as items of cases."""
        return "score" in self.column_of_role and self.negative_and_positive is None

    def add_finding(
        self,
        meaning: str,
        reason: str,
        *,
        reader_options: Mapping[str, str] | None = None,
        values_used_by_default: Collection[str] = (),
    ) -> None:
        """Record a finding, and the reader options that follow from it.

        Parameters
        ----------
        meaning : str
            Meaning of a column, for example "labels: truth".

        reason : str
            Reason for the finding.

        reader_options : mapping of str to str, optional
            Parameters of the readers. A parameter that the user gave is not changed.

        values_used_by_default : collection of str, default=()
            Values that the readers use anyway. They are not recorded.
        """
        self.findings.append((meaning, reason))
        for name, value in (reader_options or {}).items():
            if name not in self.options and value not in values_used_by_default:
                self.options[name] = value


def are_column_numbers(labels: NDArray[Any], n_columns: int) -> bool:
    """Check whether all labels are integers from 0 to `n_columns` - 1."""
    if labels.dtype.kind not in "iub":
        return False
    return bool(labels.min() >= 0 and labels.max() < n_columns)
