"""Table of logits that a promise is certified on, and the result for each of its rows.

Rows that *count* are those that a certificate is computed from. They are all rows, unless clusters
or importance weights select some of them (`metacal.certification.row_selection`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metacal.certificates.certificate import Certificate, accept_up_to_threshold
from metacal.certificates.fingerprint import Fingerprint, fingerprint_rows
from metacal.certification.ranking import Ranking
from metacal.certification.row_selection import RowSelection, SelectedRows
from metacal.certification.rows import Subgroups
from metacal.errors import UnsupportedPromiseError
from metacal.formulas import Codes, Flags, Float
from metacal.gate.background_map import BackgroundMap
from metacal.rows import Rows
from metacal.rows.arrays import to_numpy
from metacal.scores import Score


@dataclass(frozen=True, eq=False)
class CalibrationTable:
    """Validated table of logits with labels, subgroups and a selection of rows.

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
        return np.asarray(to_numpy(self.labels, "labels"))

    @property
    def subgroup_codes(self) -> Codes | None:
        """Index of the class or group of each row."""
        if self.subgroups is None:
            return None
        return self.subgroups.codes

    def draw_selected_rows(self, *columns: ArrayLike | None) -> SelectedRows | None:
        """Draw the rows to certify, or return None if all rows are used.

        The seed of the draw is derived from the columns.
        """
        if self.selection is None:
            return None
        return self.selection.draw(*columns)


@dataclass(frozen=True, eq=False)
class RowColumns:
    """Score, correctness and threshold of each calibration row after certification.

    Attributes
    ----------
    scores : array of shape (n_rows,)
        Score by which the gate decides the row.

    correct : array of bool of shape (n_rows,)
        Whether the prediction is correct.

    is_available_for_map : array of bool of shape (n_rows,)
        Whether the calibration map may be fitted on the row.

    thresholds : float or array of float of shape (n_rows,)
        Threshold of the row.

    ranking : Ranking
        Ranking of the rows that count.
    """

    scores: NDArray[Any]
    correct: Flags
    is_available_for_map: Flags
    thresholds: float | Float
    ranking: Ranking

    @cached_property
    def is_accepted(self) -> Flags:
        """Whether each row is accepted."""
        return accept_up_to_threshold(self.scores, self.thresholds)


@dataclass(frozen=True, eq=False)
class CertifiedTable:
    """Certification result of a table of logits.

    Attributes
    ----------
    certificate : Certificate
        Certificate of the rows that count.

    score : str or callable
        Score that ranks the rows.

    rows : Rows
        Validated rows.

    columns : RowColumns
        Score, correctness and threshold of each row.

    decision_offset : float or array of float of shape (n_rows,)
        Log-odds above which the second of two classes is predicted.

    selected_rows : SelectedRows or None
        Rows that count. None if all rows count.

    background_map : BackgroundMap or None
        Calibration map that was fitted while the rows were ranked.

    has_row_scores : bool
        Whether `columns.scores` has the score of each row. False if the rows were too many to sort
        and were counted instead.

    wait_for_fingerprint : callable or None
        Function that returns a fingerprint which is computed already, or in another thread. None if
        its computation has not begun.
    """

    certificate: Certificate
    score: str | Score
    rows: Rows
    columns: RowColumns
    decision_offset: float | Float = 0.0
    selected_rows: SelectedRows | None = None
    background_map: BackgroundMap | None = None
    has_row_scores: bool = True
    wait_for_fingerprint: Callable[[], Fingerprint] | None = None

    @property
    def predicts_largest_logit(self) -> bool:
        """Whether the predicted class is always the class of the largest logit."""
        return not np.any(self.decision_offset)

    def get_fingerprint(self) -> Fingerprint:
        """Return the fingerprint of the scores and the correctness of all rows."""
        if self.wait_for_fingerprint is not None:
            return self.wait_for_fingerprint()
        return fingerprint_rows(self.columns.scores, self.columns.correct)


def check_two_classes(n_classes: int, option_name: str) -> None:
    """Raise InputError if an option for two classes is used with another number."""
    if n_classes != 2:
        raise UnsupportedPromiseError(
            f"{option_name} requires two classes, but the table has {n_classes} columns. Leave"
            f" out {option_name}."
        )
