"""Alarms of a gate: all monitors, which share the false-alarm probability δ.

Half of δ is spent on the promise. The other half is divided equally among the other alarms that the
gate supports: abstention rate, distribution of the scores, calibration, unreadable lines. Each alarm
is an e-process of its own, so by the union bound all of them together raise a false alarm, ever,
with probability at most δ. If a gate promises nothing, only its calibration is monitored, and the
distribution of its scores if it has a profile.

An alarm that compares new rows with the calibration rows assumes that both were scored by the same
classifier. Cross-fitted calibration rows (`cv=`) were scored by other classifiers than the one in
use. In this case there are no alarms on abstention, scores and calibration, and the promise has all
of δ.

If rows come in clusters (`units=`), clusters are independent draws. One random row of each complete
cluster is compared with the calibration rows, which were drawn in the same way. If every row of a
cluster was counted at calibration, such rows are not comparable, so there are no such alarms. The
bets on the promise use whole clusters (`PromiseMonitor`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from metacal import display
from metacal.certificates.certificate import Certificate
from metacal.certificates.number_format import format_percent_ceil
from metacal.certification.row_losses import Losses
from metacal.errors import MissingPromiseError
from metacal.formulas import Flags, Float
from metacal.promises.sequential.calibration_monitor import DEFAULT_TOLERANCE, CalibrationMonitor
from metacal.promises.sequential.drift import AbstentionMonitor, ScoreMonitor, UnreadableMonitor
from metacal.promises.sequential.monitor import PromiseMonitor
from metacal.promises.sequential.monitor_base import MAX_LOG_OF_FINITE_NUMBER, Monitor
from metacal.promises.sequential.monitored_rows import ClusterMembership
from metacal.promises.sequential.profile import Profile
from metacal.rows.arrays import check_fraction

#: Class of a monitor.
MonitorType = TypeVar("MonitorType", bound=Monitor)

#: Meaning of each alarm, in the order in which alarms are shown.
ALARM_MEANINGS = {
    "promise": "labelled rows refute the promise",
    "abstention": "rows are rejected more or less often than at calibration",
    "score": "scores are distributed differently than at calibration",
    "calibration": "the confidence of accepted rows is off",
    "unreadable": "more lines than expected cannot be read",
}
#: Names of all alarms, which are also attributes of `Alarms`.
ALARM_NAMES = tuple(ALARM_MEANINGS)


@dataclass(frozen=True)
class Alarm:
    """State of one alarm.

    Attributes
    ----------
    name : str
        Name of the alarm, a key of `ALARM_MEANINGS`.
    raised : bool
        Whether the alarm was ever raised.
    delta : float
        Probability of ever raising this alarm falsely.
    log_evidence, log_highest_evidence : float
        Logarithm of the evidence now, and at its highest.
    log_evidence_for_alarm : float
        Logarithm of the evidence that raises the alarm.
    descriptions : tuple of str
        Observed rows in words, one text for each class or group with its own monitor.
    """

    name: str
    raised: bool
    delta: float
    log_evidence: float
    log_highest_evidence: float
    log_evidence_for_alarm: float
    descriptions: tuple[str, ...]

    @property
    def meaning(self) -> str:
        """Meaning of the alarm, if it is raised."""
        return ALARM_MEANINGS[self.name]

    @property
    def evidence_values(self) -> dict[str, float]:
        """Current evidence, highest evidence so far, and evidence that raises the alarm."""
        log_values = {
            "evidence": self.log_evidence,
            "highest_evidence": self.log_highest_evidence,
            "needed": self.log_evidence_for_alarm,
        }
        return {
            name: math.exp(min(value, MAX_LOG_OF_FINITE_NUMBER))
            for name, value in log_values.items()
        }


@dataclass
class Alarms:
    """All monitors of a gate, grouped by alarm.

    Call `add_decisions` when decisions are made, and `add_labelled_rows` when labels become known.

    Attributes
    ----------
    delta : float
        Probability of any false alarm, ever.
    promise, abstention, score, calibration, unreadable : tuple of monitors
        Monitors of each alarm. Empty if the gate does not support the alarm.

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
        largest_loss: float | None = None,
        least_labelling_probability: float = 1.0,
        calibration_tolerance: float = DEFAULT_TOLERANCE,
        is_calibrated: bool = True,
        max_unreadable_share: float | None = None,
    ) -> Self:
        """Build all monitors of a gate, with a false-alarm probability of at most delta.

        Parameters
        ----------
        certificate : Certificate or None
            Certificate of the gate. None if the gate promises nothing.
        profile : Profile or None
            Summary of the calibration rows.
        delta : float, default=0.05
            Probability of any false alarm, ever.
        largest_loss : float, optional
            Largest loss of a row, or of a case, if the promise is about losses.
        least_labelling_probability : float, default=1.0
            Smallest probability with which a row is selected for labelling.
        calibration_tolerance : float, default=DEFAULT_TOLERANCE
            Calibration gap that raises no alarm.
        is_calibrated : bool, default=True
            Whether the confidence of the gate is meant to be calibrated.
        max_unreadable_share : float, optional
            Tolerated share of unreadable lines, if rows arrive as lines of a stream.

        Returns
        -------
        Alarms
        """
        check_fraction("delta", delta)
        has_promise = certificate is not None
        has_score_bins = profile is not None and len(profile.bin_edges) > 0
        is_comparable = explain_incomparable_rows(certificate) == ""
        monitors_abstention = is_comparable and has_promise
        monitors_scores = is_comparable and has_score_bins
        monitors_calibration = is_comparable and is_calibrated
        monitors_unreadable_lines = max_unreadable_share is not None
        if not (has_promise or monitors_scores or monitors_calibration):
            raise MissingPromiseError(
                "This gate has neither a promise nor a calibrated confidence, so it cannot be"
                " monitored. Fit the gate with a promise."
            )
        drift_alarm_flags = [
            monitors_abstention,
            monitors_scores,
            monitors_calibration,
            monitors_unreadable_lines,
        ]
        n_drift_alarms = drift_alarm_flags.count(True)
        drift_delta = _compute_drift_delta(
            delta, has_promise=has_promise, has_drift_alarms=n_drift_alarms > 0
        )
        delta_per_drift_alarm = drift_delta / max(n_drift_alarms, 1)
        alarms = cls(delta)
        if certificate is not None:
            alarms.promise = PromiseMonitor.of(
                certificate,
                delta=delta - drift_delta,
                largest=largest_loss,
                least_probability=least_labelling_probability,
            )
        if certificate is not None and monitors_abstention:
            alarms.abstention = AbstentionMonitor.from_certificate(
                certificate, delta=delta_per_drift_alarm
            )
        if profile is not None and monitors_scores:
            alarms.score = (ScoreMonitor(profile, delta_per_drift_alarm),)
        if monitors_calibration:
            calibration_monitor = CalibrationMonitor.from_profile(
                profile,
                delta=delta_per_drift_alarm,
                tolerance=calibration_tolerance,
                least_probability=least_labelling_probability,
            )
            alarms.calibration = (calibration_monitor,)
        if max_unreadable_share is not None:
            alarms.unreadable = (UnreadableMonitor(max_unreadable_share, delta_per_drift_alarm),)
        return alarms

    def add_decisions(
        self,
        accepted: Flags,
        scores: Float,
        row_subgroups: NDArray[Any] | None = None,
        clusters: ClusterMembership | None = None,
    ) -> None:
        """Update the monitors that need no labels with new decisions.

        Parameters
        ----------
        accepted : boolean array
            True for each accepted row, in the order of the decisions.
        scores : array
            Uncertainty score of each row.
        row_subgroups : array, optional
            Class or group of each row.
        clusters : ClusterMembership, optional
            Cluster of each row. All rows of a cluster must be given at once.
        """
        # Rows of a cluster are dependent. Monitors of drift observe one random row of each cluster,
        # and monitors of promises bet on whole clusters.
        independent_rows: Flags | slice = slice(None)
        if clusters is not None:
            independent_rows = clusters.is_cluster_representative
        independent_subgroups = None
        if row_subgroups is not None:
            independent_subgroups = row_subgroups[independent_rows]
        for abstention_monitor in self.abstention:
            abstention_monitor.update(
                accepted[independent_rows], row_subgroups=independent_subgroups
            )
        # Calibration scores are finite, so the score monitors observe only finite scores.
        independent_scores = scores[independent_rows]
        finite_scores = independent_scores[np.isfinite(independent_scores)]
        for score_monitor in self.score:
            score_monitor.update(finite_scores)
        for promise_monitor in self.promise:
            if not promise_monitor.monitored_quantity.needs_labels:
                promise_monitor.update(accepted, row_subgroups=row_subgroups, clusters=clusters)

    def add_lines(self, is_unreadable: Flags) -> None:
        """Update the monitor of unreadable lines with new lines of a stream."""
        for monitor in self.unreadable:
            monitor.update(is_unreadable)

    def add_labelled_rows(
        self,
        accepted: Flags,
        correct: Flags,
        confidence: Float | None = None,
        *,
        losses: Losses | None = None,
        row_subgroups: NDArray[Any] | None = None,
        probability: Float | None = None,
        clusters: ClusterMembership | None = None,
    ) -> None:
        """Update the monitors that need labels with labelled rows.

        Parameters
        ----------
        accepted, correct : boolean arrays
            Decision and correctness of each row, in the order of the labels.
        confidence : array, optional
            Calibrated confidence of each row.
        losses : Losses, optional
            Cost of each row, if a cost is promised.
        row_subgroups : array, optional
            Class or group of each row.
        probability : array, optional
            Probability with which each row was selected for labelling.
        clusters : ClusterMembership, optional
            Cluster of each row. All labelled rows of a cluster must be given at once.
        """
        for promise_monitor in self.promise:
            if promise_monitor.monitored_quantity.needs_labels:
                promise_monitor.update(
                    accepted,
                    correct,
                    losses,
                    row_subgroups=row_subgroups,
                    probability=probability,
                    clusters=clusters,
                )
        if confidence is None:
            return
        is_betting_row = accepted
        if clusters is not None:
            # Bets on the confidence need independent rows, so one random row of each cluster is used.
            is_betting_row = accepted & clusters.is_cluster_representative
        betting_row_probability = None
        if probability is not None:
            betting_row_probability = probability[is_betting_row]
        for calibration_monitor in self.calibration:
            calibration_monitor.update(
                confidence[is_betting_row],
                correct[is_betting_row],
                probability=betting_row_probability,
            )

    def restart(self) -> Self:
        """Return a copy of the alarms with their evidence reset, for later rows."""
        return replace(
            self,
            promise=_restart_each(self.promise),
            abstention=_restart_each(self.abstention),
            score=_restart_each(self.score),
            calibration=_restart_each(self.calibration),
            unreadable=_restart_each(self.unreadable),
        )

    def __iter__(self) -> Iterator[Alarm]:
        """Iterate over the alarms that the gate supports, in the order of `ALARM_NAMES`."""
        for name in ALARM_NAMES:
            monitors = getattr(self, name)
            if monitors:
                yield _combine_monitors(name, monitors)

    @property
    def raised(self) -> tuple[str, ...]:
        """Names of the raised alarms."""
        return tuple(alarm.name for alarm in self if alarm.raised)

    def to_frame(self) -> Any:
        """Return a `pandas.DataFrame` with the evidence of each alarm in a row."""
        records = [
            {"raised": alarm.raised, "delta": alarm.delta, **alarm.evidence_values}
            for alarm in self
        ]
        return display.make_frame(records, [alarm.name for alarm in self], ["alarm"])

    def _repr_html_(self) -> str:
        table_rows = []
        for alarm in self:
            title = f"{alarm.name}: {alarm.meaning}" if alarm.raised else alarm.name
            verdict = "ALARM" if alarm.raised else "no alarm"
            evidence_cells = [f"{value:.3g}" for value in alarm.evidence_values.values()]
            table_rows.append((title, verdict, *evidence_cells))
        return display.make_table_html(
            ("watched", "verdict", "evidence", "highest", "alarm at"),
            table_rows,
            caption=describe_delta_shares(self),
        )


def explain_incomparable_rows(certificate: Certificate | None) -> str:
    """Return why new rows cannot be compared with calibration rows, or ""."""
    if certificate is None:
        return ""
    if certificate.design.n_folds > 0:
        return (
            "its calibration rows were scored by other classifiers than the one in use (cv); hold"
            " rows out for it"
        )
    if certificate.cases is not None:
        return (
            "its promise is about cases, whose items depend on each other; whole cases are watched"
        )
    if certificate.design.counts_whole_clusters:
        return (
            "every row of a unit was counted at calibration; one row of each unit can be compared"
            " (per='unit')"
        )
    return ""


def _compute_drift_delta(delta: float, *, has_promise: bool, has_drift_alarms: bool) -> float:
    """Return the part of delta that is available for drift alarms."""
    if not has_promise:
        return delta
    if has_drift_alarms:
        return 0.5 * delta
    return 0.0


def _restart_each(monitors: tuple[MonitorType, ...]) -> tuple[MonitorType, ...]:
    """Return copies of the monitors with their evidence reset."""
    return tuple(monitor.restart() for monitor in monitors)


def _combine_monitors(name: str, monitors: tuple[Monitor, ...]) -> Alarm:
    """Summarize monitors as one alarm, with the evidence closest to its threshold."""
    closest_monitor = max(
        monitors, key=lambda monitor: monitor.log_evidence - monitor.log_evidence_for_alarm
    )
    # Each monitor needs its own amount of evidence, so each peak is compared with that amount.
    highest_log_excess = max(
        monitor.log_highest_evidence - monitor.log_evidence_for_alarm for monitor in monitors
    )
    return Alarm(
        name=name,
        raised=any(monitor.alarm for monitor in monitors),
        delta=sum(monitor.delta for monitor in monitors),
        log_evidence=closest_monitor.log_evidence,
        log_highest_evidence=closest_monitor.log_evidence_for_alarm + highest_log_excess,
        log_evidence_for_alarm=closest_monitor.log_evidence_for_alarm,
        descriptions=tuple(monitor.summary for monitor in monitors),
    )


def describe_delta_shares(alarms: Alarms) -> str:
    """Describe how delta is divided among the alarms.

    >>> describe_delta_shares(Alarms.from_certificate(None, None, 0.05))
    'at most 5% false alarms in all, ever: calibration 5%'
    """
    share_texts = []
    for alarm in alarms:
        delta_ceiling = math.ceil(1e4 * round(alarm.delta, 12)) / 1e4
        share_texts.append(f"{alarm.name} {format_percent_ceil(delta_ceiling)}")
    total_text = format_percent_ceil(alarms.delta)
    return f"at most {total_text} false alarms in all, ever: {', '.join(share_texts)}"
