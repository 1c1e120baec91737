"""Calibration rows as flat columns, for callers of `Promise.certify`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from metacal.certificates.certificate import Certificate
from metacal.certificates.subgroups import Name
from metacal.certification.certify import CertifiablePromise, certify
from metacal.certification.plans import PilotRows
from metacal.certification.ranking import Evidence, Ranking
from metacal.certification.rows import CalibrationRows, Clusters, Subgroups
from metacal.formulas import Codes, Flags, Float

if TYPE_CHECKING:
    from metacal.certification.row_losses import Losses


@dataclass(frozen=True, eq=False)
class Sample(Evidence):
    """Calibration rows as flat columns, which you pass to `Promise.certify`.

    It converts itself to `CalibrationRows`, in which subgroups and clusters are objects.

    Attributes
    ----------
    score : array of float of shape (n_rows,)
        Ranking score of each row, rounded to the grid. `Sample.of` rounds.

    correct : array of bool of shape (n_rows,), optional
        Whether each prediction is correct.

    losses : Losses, optional
        Loss of each row.

    part : array of int of shape (n_rows,), optional
        Class or group of each row, as an index of `names`.

    names : sequence of str or int
        Names of the classes or groups.

    units : Clusters, optional
        Clusters of dependent rows whose every row counts.

    pilot : PilotRows, optional
        Rows that determine where the tests begin.

    truth : array of int of shape (n_rows,), optional
        For a promise about two classes, the true class of each row.

    classes : sequence of str or int
        Names of the two classes.

    Examples
    --------
    >>> sample = Sample.of([0.9, 0.1, 0.2], [False, True, True])
    >>> sample.ranking.cumulative_errors
    array([0, 0, 1])
    """

    score: Float
    correct: Flags | None = None
    losses: Losses | None = None
    part: Codes | None = None
    names: Sequence[Name] = ()
    units: Clusters | None = None
    pilot: PilotRows | None = None
    truth: Codes | None = None
    classes: Sequence[Name] = (0, 1)

    @classmethod
    def of(cls, scores: Any, correct: Any = None, **columns: Any) -> Sample:
        """Build a sample from scores, which are rounded, and the correctness of rows."""
        calibration_rows = CalibrationRows.from_columns(scores, correct)
        return cls(calibration_rows.scores, calibration_rows.correct, **columns)

    def __len__(self) -> int:
        return len(self.score)

    @cached_property
    def rows(self) -> CalibrationRows:
        """Rows as `CalibrationRows`, which `certify` requires."""
        subgroups = None
        if self.part is not None:
            subgroups = Subgroups(self.part, tuple(self.names))
        return CalibrationRows(
            scores=self.score,
            correct=self.correct,
            losses=self.losses,
            subgroups=subgroups,
            clusters=self.units,
            class_codes=self.truth,
            class_names=tuple(self.classes),
            pilot_rows=self.pilot,
        )

    @property
    def ranking(self) -> Ranking:
        """Rows in increasing order of score."""
        return self.rows.ranking

    def certify(self, promise: CertifiablePromise) -> Certificate:
        """Certify a promise on these rows."""
        return certify(promise, self.rows)
