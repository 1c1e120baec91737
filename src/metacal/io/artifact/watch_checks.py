"""Checks of a watch that was read from a file."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from metacal.errors import ArtifactError
from metacal.gate.traffic import LONGEST_ID, Counts, Id, PendingRow
from metacal.gate.waiting_rows import MAX_WAITING_ROWS, WaitingRows
from metacal.gate.watch import Watch
from metacal.gate.watch_acknowledgement import (
    Acknowledgement,
    check_reason,
    count_acknowledged_rows,
    format_time,
)
from metacal.gate.watch_history import MAX_POINTS
from metacal.promises.sequential.alarms import ALARM_NAMES


def check_watch_state(watch: Watch) -> None:
    """Raise ArtifactError if the state of a watch is inconsistent."""
    _check_all_counts(watch.counts, watch.counts_by_class)
    _check_history(watch)
    waiting = watch.waiting
    has_valid_horizon = 0 <= waiting.horizon < MAX_WAITING_ROWS
    if not has_valid_horizon or waiting.n_released_without_label < 0:
        raise ArtifactError("the horizon must be a nonnegative number of rows.")
    _check_clusters(
        waiting,
        expects_clusters=watch.watches_clusters,
        # Without a horizon, the rows of a complete case wait for its last label.
        complete_clusters_can_wait=watch.watches_cases and not waiting.has_horizon,
    )
    _check_acknowledgements(watch.acknowledgements, n_rows=watch.counts.rows)
    _check_waiting_rows(waiting.rows_by_id)


def _check_all_counts(counts: Counts, counts_by_class: Sequence[Counts]) -> None:
    """Raise ArtifactError if the counts of a watch are inconsistent."""
    for checked_counts in (counts, *counts_by_class):
        _check_counts(checked_counts)
    n_rows_of_classes = sum(class_counts.rows for class_counts in counts_by_class)
    if counts_by_class and n_rows_of_classes != counts.rows:
        raise ArtifactError("the counts of the classes do not add up to the number of rows.")


def _check_waiting_rows(waiting_rows: dict[Id, PendingRow]) -> None:
    """Raise ArtifactError if too many rows wait for a label, or an id is too long."""
    if len(waiting_rows) > MAX_WAITING_ROWS:
        raise ArtifactError(
            f"at most {MAX_WAITING_ROWS:,} rows may wait for a label, but the state has"
            f" {len(waiting_rows):,}."
        )
    text_ids = [row_id for row_id in waiting_rows if isinstance(row_id, str)]
    if any(len(row_id) > LONGEST_ID for row_id in text_ids):
        raise ArtifactError("an id in the state is longer than allowed.")


def _check_counts(counts: Counts) -> None:
    """Raise ArtifactError if counts are negative or a subset is larger than the whole."""
    is_consistent = (
        min(vars(counts).values()) >= 0
        and counts.accepted <= counts.rows
        and counts.correct_accepted <= counts.labelled_accepted <= counts.labelled <= counts.rows
    )
    if not is_consistent:
        raise ArtifactError("the counts contradict each other.")


def _check_history(watch: Watch) -> None:
    """Raise ArtifactError if the history is too long or does not match the alarms."""
    n_alarms = len(list(watch.alarms))
    points = watch.history.points
    has_valid_size = watch.history.stride >= 1 and len(points) <= MAX_POINTS
    has_wrong_alarm_count = any(len(point.evidence) != n_alarms for point in points)
    if not has_valid_size or has_wrong_alarm_count:
        raise ArtifactError("the history contradicts the quantities that the monitor watches.")


def _check_clusters(
    waiting: WaitingRows, *, expects_clusters: bool, complete_clusters_can_wait: bool
) -> None:
    """Raise ArtifactError if waiting and complete clusters are inconsistent.

    Parameters
    ----------
    waiting : WaitingRows
        Rows that wait, and clusters that are complete.

    expects_clusters : bool
        Whether the gate was certified by clusters. If not, there must be none.

    complete_clusters_can_wait : bool
        Whether rows of a complete cluster can still wait, for a label.

    Raises
    ------
    ArtifactError
        If they are inconsistent.
    """
    waiting_cluster_ids = {
        row.cluster_id for row in waiting.rows_by_id.values() if row.cluster_id is not None
    }
    complete_clusters = waiting.complete_clusters
    complete_cluster_ids = complete_clusters.recent_ids.keys()
    has_clusters = bool(waiting_cluster_ids or complete_cluster_ids)
    has_unexpected_clusters = has_clusters and not expects_clusters
    has_overlapping_clusters = bool(waiting_cluster_ids & complete_cluster_ids)
    if has_unexpected_clusters or (has_overlapping_clusters and not complete_clusters_can_wait):
        raise ArtifactError("the stored clusters contradict each other, or contradict the gate.")
    has_negative_count = min(complete_clusters.n_complete, complete_clusters.n_stray_rows) < 0
    if has_negative_count or len(complete_cluster_ids) > MAX_WAITING_ROWS:
        raise ArtifactError("the counts of clusters contradict each other.")


def _check_acknowledgements(acknowledgements: Sequence[Acknowledgement], n_rows: int) -> None:
    """Raise ArtifactError if acknowledgements have inconsistent counts or names.

    Parameters
    ----------
    acknowledgements : sequence of Acknowledgement
        Acknowledged alarms, the oldest first.

    n_rows : int
        Number of rows that the watch has received.

    Raises
    ------
    ArtifactError
        If rows, lines or unreadable lines become fewer, or an alarm is unknown.
    """
    previous_counts = (0, 0, 0)
    for acknowledgement in acknowledgements:
        _check_acknowledgement_texts(acknowledgement)
        line_counts = acknowledgement.lines
        counts = (acknowledgement.n_rows, line_counts.n_lines, line_counts.n_unreadable)
        has_nondecreasing_counts = all(
            count >= previous_count for count, previous_count in zip(counts, previous_counts)
        )
        alarm_names = acknowledgement.names
        has_known_alarms = len(alarm_names) > 0 and set(alarm_names) <= set(ALARM_NAMES)
        if not (has_nondecreasing_counts and has_known_alarms):
            raise ArtifactError("the acknowledgements contradict each other.")
        previous_counts = counts
    if count_acknowledged_rows(acknowledgements) > n_rows:
        raise ArtifactError("an acknowledgement is later than the last row.")


def _check_acknowledgement_texts(acknowledgement: Acknowledgement) -> None:
    """Raise ArtifactError if an acknowledgement has no valid time or reason."""
    try:
        time = format_time(datetime.fromisoformat(acknowledgement.time))
        reason = check_reason(acknowledgement.reason)
    except ValueError as error:
        raise ArtifactError("an acknowledgement does not have a valid time and reason.") from error
    if (time, reason) != (acknowledgement.time, acknowledgement.reason):
        raise ArtifactError("an acknowledgement does not have a valid time and reason.")
