"""Alarms: everything that is watched about a gate, under one δ, which is the chance of any false
alarm ever.

Half of δ goes to the promise. The other half is shared equally by what else can be watched: the
rate of abstentions, the spread of the scores, calibration, unreadable lines of a stream. Each is an
e-process of its own, so by the union bound (Boole) all of them together raise a false alarm, ever,
with probability at most δ. A gate that promises nothing has its calibration watched alone, and the
spread of its scores where it has a profile.

An alarm that compares new rows with the calibration rows needs both from one law. Cross-fitted
calibration rows (`cv=`) were scored by other classifiers than the one in use, whose scores and
confidence differ: abstention, score and calibration are closed then, and the promise has all of δ.

Where rows belong together units are independent draws, and a row drawn at random from each that is
complete is compared with the calibration rows, which were drawn so. Where every row of a unit was
counted nothing is known of such rows: these alarms are closed too. The promise is bet on by whole
units (`PromiseMonitor`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

from numpy.typing import NDArray

from metacal import display
from metacal.certificates.certificate import Certificate
from metacal.certificates.number_format import format_percent_ceil
from metacal.certification.row_losses import Losses
from metacal.errors import InputError
from metacal.formulas import Flags, Float
from metacal.promises.sequential.drift import (
    DEFAULT_TOLERANCE,
    AbstentionMonitor,
    CalibrationMonitor,
    ScoreMonitor,
    UnreadableMonitor,
)
from metacal.promises.sequential.monitor import PromiseMonitor
from metacal.promises.sequential.monitor_base import Monitor
from metacal.promises.sequential.profile import Profile
from metacal.promises.sequential.wager import UnitMembership
from metacal.rows.arrays import check_fraction

#: What may be watched, in the order in which it is shown, and what an alarm says.
ALARM_MEANINGS = {
    "promise": "labelled rows refute the promise",
    "abstention": "rows are rejected more or less often than at calibration",
    "score": "scores are distributed differently than at calibration",
    "calibration": "the confidence of accepted rows is off",
    "unreadable": "more lines than expected cannot be read",
}
ALARM_NAMES = tuple(ALARM_MEANINGS)


@dataclass(frozen=True)
class Alarm:
    """One thing that is watched, as it stands.

    `evidence` and `needed` are logarithms; `texts` says what was seen, a line for each class or
    group that has its own.
    """

    name: str
    raised: bool
    delta: float
    log_evidence: float
    log_peak: float
    log_needed: float
    descriptions: tuple[str, ...]

    @property
    def meaning(self) -> str:
        return ALARM_MEANINGS[self.name]

    @property
    def numbers(self) -> dict[str, float]:
        """The evidence now, at its highest, and what it takes."""
        logs = {
            "evidence": self.log_evidence,
            "highest_evidence": self.log_peak,
            "needed": self.log_needed,
        }
        return {name: math.exp(min(log, 700.0)) for name, log in logs.items()}


@dataclass
class Alarms:
    """The monitors of a gate: give decisions to `decided` as they are made, and to `labelled` once
    the truth is known.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> gate = mc.MetaCal(mc.MinAccuracy(0.97)).fit(data.logits[:5000], data.labels[:5000]).gate_
    >>> alarms = Alarms.from_certificate(gate.certificate, gate.profile, delta=0.06)
    >>> [(alarm.name, round(alarm.delta, 3)) for alarm in alarms]
    [('promise', 0.03), ('abstention', 0.01), ('score', 0.01), ('calibration', 0.01)]
    """

    delta: float
    promise: tuple[PromiseMonitor, ...] = ()
    abstention: tuple[AbstentionMonitor, ...] = ()
    score: tuple[ScoreMonitor, ...] = ()
    calibration: tuple[CalibrationMonitor, ...] = ()
    unreadable: tuple[UnreadableMonitor, ...] = ()

    @classmethod
    def from_certificate(
        cls,
        certificate: Certificate | None,
        profile: Profile | None,
        delta: float = 0.05,
        *,
        largest: float | None = None,
        least_probability: float = 1.0,
        tolerance: float = DEFAULT_TOLERANCE,
        calibrated: bool = True,
        most_unreadable: float | None = None,
    ) -> Self:
        """Build all monitors that a gate supports, at a false-alarm probability of delta.

        Parameters
        ----------
        certificate : Certificate or None
            Certificate of the gate. None if the gate promises nothing.
        profile : Profile or None
            Summary of the calibration rows.
        delta : float, default=0.05
            Probability of any false alarm, ever.
        largest : float, optional
            Largest cost of a row, if a cost is promised.
        least_probability : float, default=1.0
            Smallest probability with which a row is selected for labelling.
        tolerance : float, default=TOLERANCE
            Calibration gap that raises no alarm.
        calibrated : bool, default=True
            True if the confidence of the gate is meant to be calibrated.
        most_unreadable : float, optional
            Tolerated share of unreadable lines, if rows arrive as lines of a stream.

        Returns
        -------
        Alarms
        """
        check_fraction("delta", delta)
        is_comparable = not explain_incomparable_rows(certificate)
        has_abstention = is_comparable and certificate is not None
        has_scores = is_comparable and profile is not None and len(profile.edges) > 0
        has_calibration = is_comparable and calibrated
        if certificate is None and not (has_scores or has_calibration):
            raise InputError(
                "this gate has neither a promise nor a calibrated confidence: there is nothing to"
                " watch."
            )
        has_unreadable = most_unreadable is not None
        n_drift_alarms = has_abstention + has_scores + has_calibration + has_unreadable
        drift_delta = _delta_of_drift_alarms(certificate, delta, n_drift_alarms)
        alarm_delta = drift_delta / max(n_drift_alarms, 1)
        alarms = cls(delta)
        if certificate is not None:
            alarms.promise = PromiseMonitor.of(
                certificate,
                delta - drift_delta,
                largest=largest,
                least_probability=least_probability,
            )
        if certificate is not None and has_abstention:
            alarms.abstention = AbstentionMonitor.from_certificate(certificate, alarm_delta)
        if profile is not None and has_scores:
            alarms.score = (ScoreMonitor(profile, alarm_delta),)
        if has_calibration:
            alarms.calibration = (
                CalibrationMonitor.from_profile(profile, alarm_delta, tolerance, least_probability),
            )
        if most_unreadable is not None:
            alarms.unreadable = (UnreadableMonitor(most_unreadable, alarm_delta),)
        return alarms

    def add_decisions(
        self,
        accepted: Flags,
        scores: Float,
        row_subgroups: NDArray[Any] | None = None,
        units: UnitMembership | None = None,
    ) -> None:
        """Take in decisions in the order they were made, labelled or not; of units that are
        complete, whole ones.
        """
        one = slice(None) if units is None else units.is_drawn
        for monitor in self.abstention:
            monitor.update(accepted[one], None if row_subgroups is None else row_subgroups[one])
        for spread in self.score:
            spread.update(scores[one])
        for promise in self.promise:
            if not promise.monitored_quantity.needs_labels:
                promise.update(accepted, parts=row_subgroups, units=units)

    def add_lines(self, unreadable: Flags) -> None:
        """Take in lines of a stream in the order they came: which of them could not be read."""
        for monitor in self.unreadable:
            monitor.update(unreadable)

    def add_labelled_rows(
        self,
        accepted: Flags,
        correct: Flags,
        confidence: Float | None = None,
        *,
        losses: Losses | None = None,
        row_subgroups: NDArray[Any] | None = None,
        probability: Float | None = None,
        units: UnitMembership | None = None,
    ) -> None:
        """Take in rows whose truth has become known, in the order in which it did; of units as
        `decided` does.
        """
        for promise in self.promise:
            if promise.monitored_quantity.needs_labels:
                promise.update(
                    accepted,
                    correct,
                    losses,
                    parts=row_subgroups,
                    probability=probability,
                    units=units,
                )
        own = accepted if units is None else accepted & units.is_drawn
        for monitor in self.calibration:
            if confidence is not None:
                monitor.update(
                    confidence[own], correct[own], None if probability is None else probability[own]
                )

    def __iter__(self) -> Iterator[Alarm]:
        for name in ALARM_NAMES:
            if monitors := getattr(self, name):
                yield _alarm(name, monitors)

    @property
    def raised(self) -> tuple[str, ...]:
        return tuple(alarm.name for alarm in self if alarm.raised)

    def to_frame(self) -> Any:
        """A `pandas.DataFrame`, a row for each alarm: evidence now, at its highest, and what it
        takes.
        """
        records = [
            {"raised": alarm.raised, "delta": alarm.delta, **alarm.numbers} for alarm in self
        ]
        return display.make_frame(records, [alarm.name for alarm in self], ["alarm"])

    def _repr_html_(self) -> str:
        rows = [
            (
                f"{alarm.name}{': ' + alarm.meaning if alarm.raised else ''}",
                "ALARM" if alarm.raised else "no alarm",
                *(f"{value:.3g}" for value in alarm.numbers.values()),
            )
            for alarm in self
        ]
        return display.make_table_html(
            ("watched", "verdict", "evidence", "highest", "alarm at"),
            rows,
            caption=describe_delta_shares(self),
        )


def explain_incomparable_rows(certificate: Certificate | None) -> str:
    """Why new rows cannot be compared with the calibration rows; empty where they can."""
    if certificate is not None and certificate.circumstances.folds > 0:
        return (
            "its calibration rows were scored by other classifiers than the one in use (cv); hold"
            " rows out for it"
        )
    if certificate is not None and certificate.circumstances.counts_whole_units:
        return (
            "every row of a unit was counted at calibration; one row of each unit can be compared"
            " (per='unit')"
        )
    return ""


def _delta_of_drift_alarms(
    certificate: Certificate | None, delta: float, n_drift_alarms: int
) -> float:
    """Return the part of delta that is not spent on the promise."""
    if certificate is None:
        return delta
    if n_drift_alarms:
        return 0.5 * delta
    return 0.0


def _alarm(name: str, monitors: tuple[Monitor, ...]) -> Alarm:
    """Several monitors of one kind as one alarm: the one that is nearest to it speaks for all."""
    near = max(monitors, key=lambda one: one.log_evidence - one.log_needed)
    return Alarm(
        name,
        any(one.alarm for one in monitors),
        sum(one.delta for one in monitors),
        near.log_evidence,
        max(one.log_peak - one.log_needed for one in monitors) + near.log_needed,
        near.log_needed,
        tuple(one.summary for one in monitors),
    )


def describe_delta_shares(alarms: Alarms) -> str:
    """How δ is shared, in words.

    >>> describe_delta_shares(Alarms.from_certificate(None, None, 0.05))
    'at most 5% false alarms in all, ever: calibration 5%'
    """
    shares = ", ".join(
        f"{alarm.name} {format_percent_ceil(math.ceil(1e4 * round(alarm.delta, 12)) / 1e4)}"
        for alarm in alarms
    )
    return f"at most {format_percent_ceil(alarms.delta)} false alarms in all, ever: {shares}"
