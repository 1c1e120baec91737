"""Decided rows that wait for their label, or for the rest of their cluster.

A row waits until its label arrives. If there is a *horizon* of h rows, the row waits until h rows
have arrived after it instead, whether or not its label is known by then.

A *cluster* (`units=`) is a set of dependent rows. The rows of a cluster wait until it is complete:
until the first row of another cluster arrives or, if there is a horizon, until h rows have arrived
after the first row of the cluster. A *stray row* arrives after its cluster was complete, or belongs
to a cluster that is too large. Stray rows are counted and not used.

If the promise is about *cases* (`cases=`), a case is a cluster whose rows are its items. It is used only
if all of its labels are known, whatever the decisions on its items. Otherwise the cases that are used
would not be like the others: a case without an accepted item, for example, cannot break the promise, and
must not be used earlier than others. Without a horizon, a complete case waits for its last label.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from metacal.errors import InputError
from metacal.gate.traffic import Id, PendingRow, make_stored_id

#: Maximum number of waiting rows, and of stored ids of complete clusters.
MAX_WAITING_ROWS = 40_000
#: A bet on a cluster could lose the whole capital of an alarm if the cluster has this many times
#: as many rows as the largest cluster at calibration.
_UNSAFE_SIZE_RATIO = 2


class EncodedLabel(NamedTuple):
    """Label of an earlier row, as a code.

    Attributes
    ----------
    n_batch_rows_before_label : int
        Number of rows of the batch that arrived before the label.
    row_id : str or int
        Id of the row.
    code : float
        Code of the label.
    probability : float or None
        Probability with which the row was selected for labelling, if it arrives with the label.
    """

    n_batch_rows_before_label: int
    row_id: Id
    code: float
    probability: float | None


@dataclass
class CompleteClusters:
    """Ids of the latest complete clusters, with counts of clusters and stray rows.

    Attributes
    ----------
    recent_ids : dict of cluster id to None
        Ids of the latest complete clusters, the oldest first.
    n_complete : int
        Number of complete clusters, without those that are too large.
    n_stray_rows : int
        Number of stray rows.
    """

    recent_ids: dict[Id, None] = field(default_factory=dict)
    n_complete: int = 0
    n_stray_rows: int = 0

    def remember(self, cluster_id: Id) -> None:
        """Store the id of a complete cluster. Drop the oldest id if there are too many."""
        self.recent_ids[cluster_id] = None
        if len(self.recent_ids) > MAX_WAITING_ROWS:
            oldest_id = next(iter(self.recent_ids))
            del self.recent_ids[oldest_id]


@dataclass
class WaitingRows:
    """Rows that wait for their label, or for the rest of their cluster.

    Attributes
    ----------
    horizon : int
        Number of later rows after which a row is released. 0 if a row is released with its label.
    largest_cluster_size : int or None
        Largest number of rows of a cluster at calibration, if every row of a cluster was counted.
    holds_cases : bool
        Whether the clusters are cases, which are used only with all of their labels.
    rows_by_id : dict of row id to PendingRow
        Waiting rows in the order of their arrival.
    complete_clusters : CompleteClusters
        Clusters that no longer wait.
    n_unknown_labels : int
        Number of labels for ids without a waiting row that lacks a label.
    n_dropped_rows : int
        Number of rows that were dropped because too many were waiting.
    n_released_without_label : int
        Number of rows that were released without a label.

    Examples
    --------
    >>> waiting = WaitingRows()
    >>> row = PendingRow(True, 1, confidence=None, group=None, probability=None)
    >>> waiting.add_row(row, "a"), len(waiting)
    ([], 1)
    >>> [row.label_code for row in waiting.add_label(EncodedLabel(0, "a", 1, None))], len(waiting)
    ([1], 0)
    """

    horizon: int = 0
    largest_cluster_size: int | None = None
    holds_cases: bool = False
    rows_by_id: dict[Id, PendingRow] = field(default_factory=dict)
    complete_clusters: CompleteClusters = field(default_factory=CompleteClusters)
    n_unknown_labels: int = 0
    n_dropped_rows: int = 0
    n_released_without_label: int = 0
    # `_row_ids_by_cluster` builds this index from `rows_by_id` when it is first needed.
    _cached_row_ids_by_cluster: dict[Id, dict[Id, None]] | None = field(
        default=None, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if not 0 <= self.horizon < MAX_WAITING_ROWS:
            raise InputError(
                f"horizon must be a number of rows between 0 and {MAX_WAITING_ROWS - 1:,}, but"
                f" got {self.horizon!r}."
            )

    def __len__(self) -> int:
        return len(self.rows_by_id)

    @property
    def has_horizon(self) -> bool:
        """Whether rows wait for a fixed number of later rows instead of for their label."""
        return self.horizon > 0

    def find_row(self, row_id: Id) -> PendingRow | None:
        """Find the waiting row with an id. Return None if there is none."""
        return self.rows_by_id.get(make_stored_id(row_id))

    def add_rows(
        self,
        rows: Sequence[PendingRow],
        *,
        batch_index_of_first_row: int,
        ids: Sequence[Id | None] | None,
        cluster_ids: Sequence[Id] | None,
        late_labels: deque[EncodedLabel],
    ) -> list[PendingRow]:
        """Add new rows and the labels that arrived between them.

        Parameters
        ----------
        rows : sequence of PendingRow
            New rows, at least one.
        batch_index_of_first_row : int
            Index of the first of these rows in the batch.
        ids, cluster_ids : sequence or None
            Id and cluster of each row of the batch.
        late_labels : deque of EncodedLabel
            Labels of earlier rows. Labels that arrived before the last row are removed.

        Returns
        -------
        list of PendingRow
            Rows that need not wait longer, in the order in which they are to be evaluated.
        """
        ready_rows: list[PendingRow] = []
        for batch_index, row in enumerate(rows, start=batch_index_of_first_row):
            ready_rows += self.release_rows_past_horizon(n_rows_in_stream=row.position)
            while late_labels and late_labels[0].n_batch_rows_before_label <= batch_index:
                ready_rows += self.add_label(late_labels.popleft())
            if cluster_ids is not None:
                row.cluster_id = cluster_ids[batch_index]
                ready_rows += self.release_earlier_clusters(row.cluster_id)
            row_id = None if ids is None else ids[batch_index]
            ready_rows += self.add_row(row, row_id)
        last_row = rows[-1]
        ready_rows += self.release_rows_past_horizon(n_rows_in_stream=last_row.position + 1)
        return ready_rows

    def add_row(self, row: PendingRow, row_id: Id | None) -> list[PendingRow]:
        """Store a row that must wait, or return it in a list if it can be evaluated now."""
        arrives_after_its_cluster = row.cluster_id in self.complete_clusters.recent_ids
        if arrives_after_its_cluster:
            self.complete_clusters.n_stray_rows += 1
            return []
        is_in_cluster = row.cluster_id is not None
        is_ready = row.has_label and not is_in_cluster and not self.has_horizon
        if is_ready:
            return [row]
        may_get_label_later = row_id is not None
        # A row without a cluster that will never have a label is of no use, so it is not stored.
        if row.has_label or is_in_cluster or may_get_label_later:
            self._store_waiting_row(row, row_id)
        return []

    def _store_waiting_row(self, row: PendingRow, row_id: Id | None) -> None:
        """Store a waiting row, and drop the oldest one if there are too many."""
        if row_id is None:
            # The unprintable first character makes this id differ from all ids that users pass.
            row_id = f"\0{row.position}"
        stored_id = make_stored_id(row_id)
        # If two waiting rows have the same id, a label belongs to the later one.
        replaced_row = self.rows_by_id.pop(stored_id, None)
        if replaced_row is not None and replaced_row.cluster_id is not None:
            del self._row_ids_by_cluster[replaced_row.cluster_id][stored_id]
        self.rows_by_id[stored_id] = row
        if row.cluster_id is not None:
            ids_of_cluster_rows = self._row_ids_by_cluster.setdefault(row.cluster_id, {})
            ids_of_cluster_rows[stored_id] = None
        if len(self.rows_by_id) > MAX_WAITING_ROWS:
            self._forget_oldest_row()

    def _forget_oldest_row(self) -> None:
        """Drop the oldest waiting row and, for cases, all other rows of its case."""
        oldest_id, oldest_row = next(iter(self.rows_by_id.items()))
        cluster_id = oldest_row.cluster_id
        ids_to_forget = [oldest_id]
        if cluster_id is not None:
            if self.holds_cases:
                ids_to_forget = self._get_ids_of_cluster_rows(cluster_id)
                self.complete_clusters.remember(cluster_id)
            for row_id in ids_to_forget:
                del self._row_ids_by_cluster[cluster_id][row_id]
        for row_id in ids_to_forget:
            del self.rows_by_id[row_id]
        self.n_dropped_rows += len(ids_to_forget)

    def add_label(self, label: EncodedLabel) -> list[PendingRow]:
        """Set the label of a waiting row, and return the row if it stops waiting."""
        stored_id = make_stored_id(label.row_id)
        row = self.rows_by_id.get(stored_id)
        if row is None or row.has_label:
            self.n_unknown_labels += 1
            return []
        row.label_code = label.code
        if label.probability is not None:
            row.probability = label.probability
        if self.has_horizon:
            return []
        if row.cluster_id is None:
            del self.rows_by_id[stored_id]
            return [row]
        is_in_complete_case = (
            self.holds_cases and row.cluster_id in self.complete_clusters.recent_ids
        )
        if is_in_complete_case:
            return self._release_case_if_labelled(row.cluster_id)
        return []

    def release_rows_past_horizon(self, *, n_rows_in_stream: int) -> list[PendingRow]:
        """Remove and return the rows whose horizon has passed.

        A row without a label is returned only if it belongs to a cluster.

        Parameters
        ----------
        n_rows_in_stream : int
            Number of rows that have arrived so far.

        Returns
        -------
        list of PendingRow
            In the order of their arrival, one cluster after another.
        """
        released_rows: list[PendingRow] = []
        if not self.has_horizon:
            return released_rows
        while self.rows_by_id:
            oldest_id, oldest_row = next(iter(self.rows_by_id.items()))
            n_later_rows = n_rows_in_stream - (oldest_row.position + 1)
            has_passed_horizon = n_later_rows >= self.horizon
            if not has_passed_horizon:
                break
            released_rows += self._release_row_or_cluster(oldest_id, oldest_row)
        return released_rows

    def release_earlier_clusters(self, arriving_cluster: Id) -> list[PendingRow]:
        """Remove and return the rows of clusters that end when another cluster arrives.

        If there is a horizon, the arrival of another cluster does not end a cluster.
        """
        released_rows: list[PendingRow] = []
        if self.has_horizon:
            return released_rows
        if self.holds_cases:
            return self._complete_open_case(arriving_case=arriving_cluster)
        while self.rows_by_id:
            oldest_id, oldest_row = next(iter(self.rows_by_id.items()))
            if oldest_row.cluster_id == arriving_cluster:
                break
            released_rows += self._release_row_or_cluster(oldest_id, oldest_row)
        return released_rows

    def _release_row_or_cluster(self, row_id: Id, row: PendingRow) -> list[PendingRow]:
        """Remove a row, or all rows of its cluster. Return the rows that can be evaluated."""
        if row.cluster_id is not None:
            return self._release_cluster(row.cluster_id)
        del self.rows_by_id[row_id]
        if row.has_label:
            return [row]
        self.n_released_without_label += 1
        return []

    def _complete_open_case(self, arriving_case: Id) -> list[PendingRow]:
        """End the open case if another one begins, and return its labelled rows.

        No row is returned as long as one of them has no label.
        """
        completed_cases = self.complete_clusters.recent_ids
        if not self.rows_by_id or arriving_case in completed_cases:
            return []
        latest_row = next(reversed(self.rows_by_id.values()))
        open_case = latest_row.cluster_id
        if open_case is None or open_case == arriving_case:
            return []
        if open_case in completed_cases:
            return []
        self.complete_clusters.remember(open_case)
        return self._release_case_if_labelled(open_case)

    def _release_case_if_labelled(self, case_id: Id) -> list[PendingRow]:
        """Remove and return the rows of a complete case once all of them have labels."""
        row_ids = self._get_ids_of_cluster_rows(case_id)
        every_row_has_label = all(self.rows_by_id[row_id].has_label for row_id in row_ids)
        if not every_row_has_label:
            return []
        return self._release_cluster(case_id)

    def _get_ids_of_cluster_rows(self, cluster_id: Id) -> list[Id]:
        """Return the ids of the waiting rows of a cluster."""
        no_rows: dict[Id, None] = {}
        return list(self._row_ids_by_cluster.get(cluster_id, no_rows))

    @property
    def _row_ids_by_cluster(self) -> dict[Id, dict[Id, None]]:
        """Ids of the waiting rows of each cluster, in the order of their arrival."""
        if self._cached_row_ids_by_cluster is None:
            row_ids_by_cluster: dict[Id, dict[Id, None]] = {}
            for row_id, row in self.rows_by_id.items():
                if row.cluster_id is not None:
                    ids_of_cluster_rows = row_ids_by_cluster.setdefault(row.cluster_id, {})
                    ids_of_cluster_rows[row_id] = None
            self._cached_row_ids_by_cluster = row_ids_by_cluster
        return self._cached_row_ids_by_cluster

    def _release_cluster(self, cluster_id: Id) -> list[PendingRow]:
        """Remove the rows of a complete cluster, and return them if they can be evaluated."""
        row_ids = self._get_ids_of_cluster_rows(cluster_id)
        cluster_rows = [self.rows_by_id.pop(row_id) for row_id in row_ids]
        self._row_ids_by_cluster.pop(cluster_id, None)
        n_cluster_rows = len(cluster_rows)
        self.complete_clusters.remember(cluster_id)
        if self._could_lose_more_than_capital(n_cluster_rows):
            self.complete_clusters.n_stray_rows += n_cluster_rows
            return []
        self.complete_clusters.n_complete += 1
        n_unlabelled = sum(not row.has_label for row in cluster_rows)
        self.n_released_without_label += n_unlabelled
        is_case_without_all_labels = self.holds_cases and n_unlabelled > 0
        if is_case_without_all_labels:
            return []
        return cluster_rows

    def _could_lose_more_than_capital(self, n_cluster_rows: int) -> bool:
        """Check whether a bet on a cluster could lose more than the whole capital.

        The weights of the rows are divided by the largest size at calibration, and a stake risks at
        most half of the capital per unit of weight. If no size is declared, any size is possible.
        """
        # The largest size is None unless whole clusters were counted, and a file may state 0.
        if not self.largest_cluster_size:
            return False
        return n_cluster_rows >= _UNSAFE_SIZE_RATIO * self.largest_cluster_size
