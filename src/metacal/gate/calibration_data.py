"""Data of the pipeline from a table of logits to a certificate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.certificates.certificate import Certificate, accepts
from metacal.certificates.fingerprint import Fingerprint
from metacal.certification.ranking import Ranking
from metacal.certification.row_selection import RowSelection, SelectedRows
from metacal.certification.rows import Subgroups
from metacal.formulas import Codes, Flags, Float
from metacal.rows import Rows
from metacal.rows.arrays import on_host
from metacal.scores import Score


@dataclass(frozen=True, eq=False)
class CalibrationData:
    """Validated rows that a gate is fitted on.

    Attributes
    ----------
    rows : Rows
        Logits.

    labels : array of int of shape (n_rows,) or None
        Column of the true class of each row, or a negative number if the label is none of the
        classes. None without labels.

    class_names : array of shape (n_classes,)
        Names of the columns.

    subgroups : Subgroups or None
        Class or group of each row, for a promise about each of them.

    selection : RowSelection, SelectedRows or None
        Rows that count, drawn or to be drawn. None if all rows count.
    """

    rows: Rows
    labels: Codes | None
    class_names: NDArray[Any]
    subgroups: Subgroups | None = None
    selection: RowSelection | SelectedRows | None = None

    @property
    def host_labels(self) -> Codes | None:
        """Labels in main memory."""
        if self.labels is None:
            return None
        return np.asarray(on_host(self.labels, "labels"))

    @property
    def subgroup_codes(self) -> Codes | None:
        """Index of the class or group of each row."""
        if self.subgroups is None:
            return None
        return self.subgroups.codes

    def draw(self, *columns: Any) -> SelectedRows | None:
        """Draw the rows that count. None if all rows count."""
        if self.selection is None:
            return None
        return self.selection.draw(*columns)


@dataclass(frozen=True, eq=False)
class RowColumns:
    """What is known about each calibration row once thresholds are certified.

    Attributes
    ----------
    scores : array of shape (n_rows,)
        Score by which the gate decides the row.

    correct : array of bool of shape (n_rows,)
        Whether the prediction is correct.

    is_available : array of bool of shape (n_rows,)
        Whether the base map may be fitted on the row.

    thresholds : float or array of float of shape (n_rows,)
        Threshold of the row.

    ranking : Ranking
        Ranking of the rows that count.
    """

    scores: NDArray[Any]
    correct: Flags
    is_available: Flags
    thresholds: float | Float
    ranking: Ranking

    @property
    def is_accepted(self) -> Flags:
        """Whether each row is accepted."""
        return accepts(self.scores, self.thresholds)


@dataclass(frozen=True, eq=False)
class CertificationResult:
    """Certificate, and what it states about each calibration row.

    Attributes
    ----------
    certificate : Certificate
        Certificate of the rows that count.

    score : str or callable
        Score that ranks the rows.

    rows : Rows
        Validated rows.

    columns : RowColumns
        Facts about each row.

    decision_offset : float or array of float of shape (n_rows,)
        Log-odds above which the second of two classes is predicted.

    counted : SelectedRows or None
        Rows that count. None if all rows count.

    fingerprint : Fingerprint or None
        Fingerprint of the rows, if counting them has computed it.
    """

    certificate: Certificate
    score: str | Score
    rows: Rows
    columns: RowColumns
    decision_offset: float | Float = 0.0
    counted: SelectedRows | None = None
    fingerprint: Fingerprint | None = None
