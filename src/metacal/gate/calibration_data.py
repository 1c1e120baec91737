"""Steps and values of the pipeline that `metacal.gate.calibrate` runs.

Calibration data of each kind implement two steps. `certify` chooses thresholds that keep a promise,
and returns a `CertifiedData`. `fit_sources` fits the maps or curves that turn logits or scores
into probabilities, and returns `FittedSources`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from metacal.certificates.certificate import Certificate
from metacal.certificates.fingerprint import Fingerprint
from metacal.certificates.notes import Note
from metacal.gate.stages import Source
from metacal.promises.promise import Promise
from metacal.promises.sequential.profile import Profile

# Label of rejected rows if the gate has no classes.
DEFAULT_REJECT_LABEL = -1


class CertifiedData(Protocol):
    """Certificate of calibration data, with the rows that sources are fitted on."""

    @property
    def certificate(self) -> Certificate:
        """Certificate of the promise, with its thresholds and notes on the data."""

    def get_fingerprint(self) -> Fingerprint:
        """Return the fingerprint that identifies the calibration rows later."""


@dataclass(frozen=True, eq=False)
class FittedSources:
    """Fitted sources of scores and probabilities, with notes on them.

    Attributes
    ----------
    sources : tuple of Source
        Source of each stage, with its fitted map or confidence curve.

    notes : tuple of Note
        Notes on how well the probabilities are calibrated.

    profile : Profile or None
        Scores and confidences of the calibration rows, which monitors compare new rows with.

    reject_label : int or str
        Label of rejected rows.
    """

    sources: tuple[Source, ...]
    notes: tuple[Note, ...] = ()
    profile: Profile | None = None
    reject_label: Any = DEFAULT_REJECT_LABEL


CertifiedDataT = TypeVar("CertifiedDataT", bound=CertifiedData)


class CalibrationData(Protocol[CertifiedDataT]):
    """Calibration rows of one kind, with the steps that turn them into a gate."""

    def certify(self, promise: Promise) -> CertifiedDataT:
        """Validate the data, then certify thresholds that keep the promise.

        Raises
        ------
        InputError
            If the data are invalid or do not suit the promise.

        InfeasibleTargetError
            If the rows do not support the target of the promise.
        """

    def fit_sources(self, certified_data: CertifiedDataT, promise: Promise) -> FittedSources:
        """Fit the maps or curves that turn logits or scores into probabilities.

        Raises
        ------
        InputError
            If no row is left to fit on.
        """
