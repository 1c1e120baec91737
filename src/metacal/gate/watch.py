"""Watch: alarms and counts on the traffic of a gate, whose labels may arrive later than the rows.

A watch receives rows in batches, and labels in any order. It uses each label once, in the order in
which labels become known. A label may arrive with its row, or later with the id of its row. The
result does not depend on how rows are divided into batches: a watch that is stopped, saved and
restored gives the same result as one that runs without interruption.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import display
from metacal.certificates.accuracy_estimate import AccuracyEstimate
from metacal.formulas import Codes, Flags
from metacal.gate.feature_checks import check_watchable
from metacal.gate.find_gate import find_gate
from metacal.gate.gate import Gate
from metacal.gate.judged_cases import check_case_columns
from metacal.gate.labelled_rows import LabelledRows
from metacal.gate.thresholds import check_groups
from metacal.gate.traffic import (
    BatchLines,
    ConfidenceSums,
    Counts,
    Id,
    LateLabel,
    PendingRow,
    Point,
    add_flags_by_class,
    build_class_counts,
    build_pending_rows,
    collect_confidences,
    collect_probabilities,
    get_confidences_without_nan,
    split_rows_by_arrival,
)
from metacal.gate.waiting_rows import EncodedLabel, WaitingRows
from metacal.gate.watch_acknowledgement import (
    Acknowledgement,
    LineCounts,
    count_acknowledged_lines,
    count_acknowledged_rows,
)
from metacal.gate.watch_batch import WatchBatch, decide_batch_rows
from metacal.gate.watch_estimate import estimate_selective_accuracy
from metacal.gate.watch_history import History, split_at_history_points
from metacal.gate.watch_labels import encode_labels_of_ids
from metacal.gate.watched_clusters import (
    add_case_outcomes,
    add_cluster_decisions,
    draw_one_row_per_cluster,
    get_certificate_design,
    get_largest_loss,
)
from metacal.promises.sequential.alarms import Alarms
from metacal.promises.sequential.calibration_monitor import DEFAULT_TOLERANCE
from metacal.promises.sequential.monitored_rows import ClusterMembership


@dataclass
class Watch:
    """Alarms and counts on the traffic of a gate.

    Parameters
    ----------
    gate : Gate
        Gate that decides on the rows. For a cascade, X has one table or one column of scores for
        each model, and the abstention alarm is about the first model.
    alarms : Alarms
        Monitors of the gate. `Watch.of(gate, delta=0.05)` builds them.
    counts : Counts
        Numbers of rows by decision and label.
    counts_by_class : list of Counts
        The same numbers for each predicted class. Empty if there are no classes, or too many.
    waiting : WaitingRows
        Rows that wait for their label, or for the rest of their cluster.
    history : History
        Counts and evidence at regular intervals.
    first_raised : dict of alarm name to int
        Number of rows in the stream when each raised alarm was raised.
    gaps : int
        Number of times that rows were lost before they were read.
    confidence_sums : ConfidenceSums
        Sums of the confidence of accepted rows.
    acknowledgements : list of Acknowledgement
        Acknowledged alarms, the oldest first. Each acknowledgement begins an armed period.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = mc.MetaCal(mc.MinAccuracy(0.97)).fit(data.logits[:5000], data.labels[:5000])
    >>> watch = Watch.of(cal, delta=0.05)
    >>> watch.update(data.logits[5000:7000], data.labels[5000:7000]).raised
    ()
    >>> watch.update(data.logits[7000:9000], ids=range(2000)).counts.labelled  # labels follow
    2000
    >>> watch.label(range(1000), (data.labels[7000:8000] + 1) % 10).raised
    ('promise', 'calibration')
    >>> watch.acknowledge("labels were shifted by one; the export is repaired").raised
    ()
    >>> [(period.n_rows, period.names) for period in watch.acknowledgements]
    [(4000, ('promise', 'calibration'))]
    """

    gate: Gate
    alarms: Alarms
    counts: Counts = field(default_factory=Counts)
    counts_by_class: list[Counts] = field(default_factory=list)
    waiting: WaitingRows = field(default_factory=WaitingRows)
    history: History = field(default_factory=History)
    first_raised: dict[str, int] = field(default_factory=dict)
    gaps: int = 0
    confidence_sums: ConfidenceSums = field(default_factory=ConfidenceSums)
    acknowledgements: list[Acknowledgement] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        gate: Any,
        delta: float = 0.05,
        *,
        least_probability: float = 1.0,
        tolerance: float = DEFAULT_TOLERANCE,
        most_unreadable: float | None = None,
        horizon: int = 0,
    ) -> Watch:
        """Build a watch on a gate, or on an estimator that contains one.

        Parameters
        ----------
        gate : Gate or estimator
            Gate to watch.
        delta : float, default=0.05
            Probability of any false alarm, ever, over all alarms together.
        least_probability : float, default=1.0
            Smallest probability with which a row is selected for labelling.
        tolerance : float, default=0.02
            Calibration gap that raises no alarm.
        most_unreadable : float, optional
            Tolerated share of unreadable lines. If it is given, a larger share raises an alarm.
        horizon : int, default=0
            Number of later rows after which a row is used. See Notes.

        Raises
        ------
        InputError
            If `horizon` is out of range, or the promise of the gate cannot be watched.

        Notes
        -----
        Without a horizon, a label is used when it arrives. This is valid only if the delay of a
        label does not depend on the label, unlike the delay of complaints, which arrive early.
        Choose a horizon by which every label has arrived or never will. Rows are then used in
        order of arrival. Later labels are counted as unknown.

        If the gate was certified by clusters (`units=`), whole clusters are used once they are
        complete (`metacal.gate.waiting_rows`). Later rows of a cluster are counted as stray rows.

        If the promise is about cases (`cases=`), a complete case is used once all of its rows have
        labels, also rejected rows and rows without a score. If some labels come earlier because of
        a decision or of a label, choose a horizon. The only alarm is then that of the promise.
        """
        waiting_rows = WaitingRows(horizon=horizon)
        watched_gate = find_gate(gate)
        check_watchable(watched_gate)
        alarms = Alarms.from_certificate(
            certificate=watched_gate.certificate,
            profile=watched_gate.profile,
            delta=delta,
            largest_loss=get_largest_loss(watched_gate),
            least_labelling_probability=least_probability,
            calibration_tolerance=tolerance,
            is_calibrated=watched_gate.is_calibrated,
            max_unreadable_share=most_unreadable,
        )
        watch = cls(gate=watched_gate, alarms=alarms, waiting=waiting_rows)
        watch.counts_by_class = build_class_counts(watched_gate.n_classes)
        design = get_certificate_design(watched_gate)
        waiting_rows.largest_cluster_size = design.largest_cluster_size
        waiting_rows.holds_cases = watch.watches_cases
        return watch

    @property
    def raised(self) -> tuple[str, ...]:
        """Names of the raised alarms: "promise", "abstention", "score", "calibration", ..."""
        return self.alarms.raised

    @property
    def n_acknowledged_rows(self) -> int:
        """Number of rows before the last acknowledgement of alarms."""
        return count_acknowledged_rows(self.acknowledgements)

    @property
    def line_counts(self) -> LineCounts:
        """Numbers of text lines and of unreadable lines since the start of the watch."""
        acknowledged_lines = count_acknowledged_lines(self.acknowledgements)
        return acknowledged_lines.plus_monitors(self.alarms.unreadable)

    @property
    def watches_clusters(self) -> bool:
        """Whether rows are watched in whole clusters or cases."""
        design = get_certificate_design(self.gate)
        was_certified_on_clusters = design.cluster_counting is not None
        return self.watches_cases or was_certified_on_clusters

    @property
    def watches_cases(self) -> bool:
        """Whether the promise is about cases, so that the outcomes of cases are watched."""
        return self.gate.certificate is not None and self.gate.certificate.cases is not None

    @property
    def current_point(self) -> Point:
        """Counts and evidence after the latest row, as a point of the history."""
        log_evidence = [alarm.log_evidence for alarm in self.alarms]
        return Point.from_counts(self.counts, log_evidence)

    @property
    def estimate(self) -> AccuracyEstimate | None:
        """Selective accuracy that the confidence of accepted rows implies, without labels.

        None if the certificate does not allow such an estimate.
        """
        if self.watches_clusters or not self.alarms.calibration:
            return None
        return estimate_selective_accuracy(self.gate, self.counts, self.confidence_sums)

    def to_frame(self) -> Any:
        """Return the alarms as a `pandas.DataFrame` with one row for each alarm."""
        return self.alarms.to_frame()

    def __repr__(self) -> str:
        alarm_text = f"ALARM on {', '.join(self.raised)}" if self.raised else "no alarm"
        return (
            f"Watch({self.counts.rows:,} rows, {self.counts.accepted:,} accepted,"
            f" {self.counts.labelled:,} labelled: {alarm_text})"
        )

    def _repr_html_(self) -> str:
        return f"<div>{display.make_paragraphs_html(repr(self))}{self.alarms._repr_html_()}</div>"

    def update(
        self,
        X: Any,
        y: Any = None,
        *,
        ids: Sequence[Id | None] | None = None,
        probability: Any = None,
        groups: Any = None,
        units: Sequence[Id] | None = None,
        cases: Sequence[Id] | None = None,
        late: Sequence[LateLabel] = (),
        lines: BatchLines | None = None,
    ) -> Watch:
        """Update the alarms and counts with a batch of rows in order of arrival.

        Parameters
        ----------
        X : array-like
            Input of the gate: logits or scores. For a cascade, a list with the input of each model.
            It may be empty if there are only late labels.
        y : array-like, optional
            Labels, None or NaN if a label is not known. For a gate on scores, the correctness or
            the loss of each row. For a cascade on scores, whether the given answer agrees with the
            last model (MaxLoss) or is correct (MinAccuracy), or the same for each model as in
            `fit`.
        ids : sequence of str, int or None, optional
            Id of each row. A row with an id and without a label waits for its label.
        probability : array-like, optional
            Probability with which each row is selected for labelling.
        groups : array-like, optional
            Group of each row, if the gate has a threshold for each group.
        units : sequence of str or int, optional
            Cluster of each row, if the gate was certified by clusters.
        cases : sequence of str or int, optional
            Case of each row, if the promise is about cases.
        late : sequence of LateLabel, optional
            Labels of earlier rows that arrived between the rows of this batch.
        lines : BatchLines, optional
            Lines of text that the rows were read from.

        Returns
        -------
        Watch
            The watch itself.
        """
        if cases is not None:
            check_case_columns(self.gate, units)
        batch = WatchBatch.read(
            self.gate,
            X,
            y,
            ids=ids,
            probability=probability,
            groups=groups,
            units=units if cases is None else cases,
            late=late,
            lines=lines,
        )
        n_lines_added = 0
        for block in split_at_history_points(self.counts.rows, len(batch)):
            ready_rows = self.waiting.add_rows(
                self._decide_block(batch, block),
                batch_index_of_first_row=block.start,
                ids=batch.ids,
                cluster_ids=batch.cluster_ids,
                late_labels=batch.late_labels,
            )
            self._evaluate_rows(ready_rows)
            if lines is not None:
                last_line = lines.line_of_row[block.stop - 1]
                self.alarms.add_lines(lines.is_unreadable[n_lines_added : last_line + 1])
                n_lines_added = last_line + 1
            if self.history.is_due(self.counts.rows):
                self.history.add(self.current_point)
        self._add_labels(batch.late_labels)
        if lines is not None:
            self.alarms.add_lines(lines.is_unreadable[n_lines_added:])
            self._record_raised_alarms()
        return self

    def acknowledge(self, reason: str, *, time: datetime | None = None) -> Watch:
        """Acknowledge the raised alarms, and watch for new alarms from the next row on.

        All alarms begin again without evidence. Labels that arrive later for earlier rows are
        counted, but are no evidence. The acknowledged alarms stay in `acknowledgements`. Each armed
        period raises a false alarm with probability at most `delta` (`watch_acknowledgement`).

        Parameters
        ----------
        reason : str
            What caused the alarm, and what was done.
        time : datetime, optional
            Time of the acknowledgement, with a time zone. By default now.

        Returns
        -------
        Watch
            The watch itself.

        Raises
        ------
        InputError
            If no alarm is raised, or if the reason is empty.
        """
        n_rows = self.counts.rows
        acknowledgement = Acknowledgement.from_raised_alarms(
            self.alarms,
            n_rows_when_raised=self.first_raised,
            reason=reason,
            time=time,
            n_rows=n_rows,
            line_counts=self.line_counts,
        )
        if not self.history.has_point_at(n_rows):
            self.history.add(self.current_point)
        self.acknowledgements.append(acknowledgement)
        self.alarms = self.alarms.restart()
        self.first_raised = {}
        return self

    def label(self, ids: Sequence[Id], y: Any, probability: Any = None) -> Watch:
        """Update the alarms and counts with labels of earlier rows.

        Parameters
        ----------
        ids : sequence of str or int
            Ids of the rows. Labels of ids without a waiting row are counted as unknown.
        y : array-like
            Labels. None or NaN is skipped.
        probability : array-like, optional
            Probability with which each row was selected for labelling.

        Returns
        -------
        Watch
            The watch itself.
        """
        self._add_labels(encode_labels_of_ids(self.gate, ids, y, probability))
        return self

    def _add_labels(self, labels: Sequence[EncodedLabel] | deque[EncodedLabel]) -> None:
        """Assign labels to waiting rows, and evaluate the rows that stop waiting."""
        ready_rows: list[PendingRow] = []
        for label in labels:
            ready_rows += self.waiting.add_label(label)
        self._evaluate_rows(ready_rows)

    def _decide_block(self, batch: WatchBatch, block: slice) -> list[PendingRow]:
        """Decide on a block of a batch, update alarms and counts, and return pending rows."""
        groups = batch.select_groups(block)
        decision = decide_batch_rows(self.gate, batch.rows[block], groups)
        # Clusters are evaluated as a whole, so the alarms use their decisions only later.
        if not self.watches_clusters:
            self.alarms.add_decisions(
                accepted=decision.is_accepted_by_first_stage,
                scores=decision.uncertainty,
                row_subgroups=self.gate.get_row_subgroups(decision.predicted_codes, groups),
            )
        first_position = self.counts.rows
        is_counted = np.ones_like(decision.accept)
        self._increase_counts(
            decision.predicted_codes,
            flags_by_count_name={"rows": is_counted, "accepted": decision.accept},
        )
        self._record_raised_alarms()
        confidences = get_confidences_without_nan(decision)
        if confidences is not None:
            self.confidence_sums.add(confidences[decision.accept])
        return build_pending_rows(
            decision,
            batch.label_codes[block],
            first_position=first_position,
            confidences=confidences,
            groups=check_groups(groups) if self.gate.has_group_thresholds else None,
            probabilities=batch.select_probabilities(block),
            has_clusters=self.watches_clusters,
        )

    def _evaluate_rows(self, rows: list[PendingRow]) -> None:
        """Update alarms and counts with labelled rows, or with rows of complete clusters."""
        if not rows:
            return
        # Rows that arrived before the last acknowledgement are counted, but are no evidence.
        rows_before_acknowledgement, rows_since_acknowledgement = split_rows_by_arrival(
            rows, first_late_position=self.n_acknowledged_rows
        )
        labelled_earlier_rows = [row for row in rows_before_acknowledgement if row.has_label]
        if labelled_earlier_rows:
            self._count_and_convert_to_columns(labelled_earlier_rows)
        if not rows_since_acknowledgement:
            return
        if self.watches_cases:
            columns = self._count_and_convert_to_columns(rows_since_acknowledgement)
            add_case_outcomes(self.alarms, self.gate, rows_since_acknowledgement, columns)
            self._record_raised_alarms()
        elif self.watches_clusters:
            self._evaluate_clusters(rows_since_acknowledgement)
        else:
            self._evaluate_labelled_rows(rows_since_acknowledgement, clusters=None)

    def _evaluate_clusters(self, rows: list[PendingRow]) -> None:
        """Update alarms and counts with all rows of complete clusters."""
        clusters = draw_one_row_per_cluster(rows, get_certificate_design(self.gate))
        add_cluster_decisions(self.alarms, rows, self._get_subgroups(rows), clusters)
        self._record_raised_alarms()
        has_label = np.array([row.has_label for row in rows])
        labelled_rows = [row for row in rows if row.has_label]
        self._evaluate_labelled_rows(labelled_rows, clusters=clusters.select_rows(has_label))

    def _evaluate_labelled_rows(
        self, rows: list[PendingRow], *, clusters: ClusterMembership | None
    ) -> None:
        """Update alarms and counts with labelled rows, which may belong to clusters."""
        if not rows:
            return
        columns = self._count_and_convert_to_columns(rows)
        self.alarms.add_labelled_rows(
            accepted=columns.is_accepted,
            correct=columns.is_correct,
            confidence=collect_confidences(rows),
            losses=self.gate.losses(columns.label_codes, columns.predicted_codes),
            row_subgroups=self._get_subgroups(rows),
            probability=collect_probabilities(rows),
            clusters=clusters,
        )
        self._record_raised_alarms()

    def _count_and_convert_to_columns(self, rows: list[PendingRow]) -> LabelledRows:
        """Convert labelled rows to columns, and add them to the counts."""
        columns = LabelledRows.from_pending_rows(rows, in_cascade=self.gate.is_cascade)
        self._increase_counts(columns.predicted_codes, columns.flags_by_count_name)
        return columns

    def _get_subgroups(self, rows: list[PendingRow]) -> NDArray[Any] | None:
        """Return the class or group of each row, or None if all rows have one threshold."""
        predicted_codes = np.array([row.predicted_code for row in rows])
        row_groups = [row.group for row in rows]
        return self.gate.get_row_subgroups(predicted_codes, row_groups)

    def _increase_counts(
        self, predicted_codes: Codes, flags_by_count_name: dict[str, Flags]
    ) -> None:
        """Add the number of true flags to each named count, in total and for each class."""
        self.counts.add_flags(**flags_by_count_name)
        if self.counts_by_class:
            add_flags_by_class(self.counts_by_class, predicted_codes, flags_by_count_name)

    def _record_raised_alarms(self) -> None:
        """Store the number of rows at which each alarm was raised for the first time."""
        for name in self.raised:
            self.first_raised.setdefault(name, self.counts.rows)
