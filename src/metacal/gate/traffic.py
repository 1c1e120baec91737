"""Records of the rows, late labels and counts that a watch on a gate stores.

A *pending row* has been decided by the gate and waits for its label, or for the rest of its
cluster. A *late label* arrives after its row, and refers to the row by its id. A *cluster*
(`units=`) is a set of dependent rows that is monitored as a whole.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metacal.errors import MonitoringError
from metacal.formulas import Codes, Flags, Float
from metacal.gate.decision import Decision

Id = str | int

#: An id with more characters than this is stored as a digest.
LONGEST_ID = 200
#: Number of bytes of the digest that replaces a long id.
_DIGEST_BYTES = 16

_MIN_INT64 = -(2**63)
_MAX_INT64 = 2**63 - 1


class LateLabel(NamedTuple):
    """Label of an earlier row.

    Attributes
    ----------
    n_batch_rows_before_label : int
        Number of rows of the batch that arrived before the label.
    id : str or int
        Id of the row.
    label : object
        Label of the row.
    probability : float or None
        Probability with which the row was selected for labelling, if it is known.
    """

    n_batch_rows_before_label: int
    id: Id
    label: Any
    probability: float | None = None


class BatchLines(NamedTuple):
    """Lines of text from which a batch of rows was read.

    Attributes
    ----------
    is_unreadable : boolean array
        True for each line that could not be read.
    line_of_row : sequence of int
        Index of the line of each row.
    """

    is_unreadable: Flags
    line_of_row: Sequence[int]


def make_stored_id(row_id: Id) -> Id:
    """Return an id, or its digest if the id is too long to store.

    Ids with unprintable characters and integers beyond 64 bits are replaced by a digest too.

    Examples
    --------
    >>> make_stored_id("a"), make_stored_id("a" * 300) == make_stored_id("a" * 301)
    ('a', False)
    >>> len(make_stored_id("a" * 300))
    39
    """
    if isinstance(row_id, str):
        is_storable = len(row_id) <= LONGEST_ID and row_id.isprintable()
    else:
        is_storable = _MIN_INT64 <= row_id <= _MAX_INT64
    if is_storable:
        return row_id
    id_bytes = str(row_id).encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(id_bytes, digest_size=_DIGEST_BYTES).hexdigest()
    return f"digest:{digest}"


@dataclass
class PendingRow:
    """Decided row that waits for its label, or for the rest of its cluster.

    Attributes
    ----------
    is_accepted : bool
        True if the gate accepted the row.
    predicted_code : int
        Code of the prediction.
    confidence : float or None
        Calibrated probability of the prediction. None if the gate has no confidence.
    group : str, int or None
        Group of the row. None if the gate does not use groups.
    probability : float or None
        Probability with which the row was selected for labelling, if it is known.
    position : int
        Index of the row in the stream.
    label_code : float
        Code of the label. -1 as long as the label is not known.
    cluster_id : str, int or None
        Cluster of the row. None if the gate was certified on independent rows.
    uncertainty : float or None
        Ranking score of a row of a cluster. None if the row has no score.
    """

    is_accepted: bool
    predicted_code: int
    confidence: float | None
    group: str | int | None
    probability: float | None
    position: int = 0
    label_code: float = -1
    cluster_id: Id | None = None
    uncertainty: float | None = None

    @property
    def has_label(self) -> bool:
        """Whether the label of the row is known."""
        return self.label_code >= 0


@dataclass
class Counts:
    """Numbers of rows by decision and label.

    Attributes
    ----------
    rows, accepted : int
        All rows, and accepted rows.
    labelled, labelled_accepted : int
        Rows with a label, and accepted rows with a label.
    correct_accepted : int
        Accepted rows with a label whose prediction is correct.
    """

    rows: int = 0
    accepted: int = 0
    labelled: int = 0
    labelled_accepted: int = 0
    correct_accepted: int = 0

    def add_flags(
        self, selected_rows: Flags | slice = slice(None), **flags_by_count_name: Flags
    ) -> None:
        """Increase each named count by the number of selected rows whose flag is set."""
        for count_name, row_flags in flags_by_count_name.items():
            n_added = int(row_flags[selected_rows].sum())
            previous_count = getattr(self, count_name)
            setattr(self, count_name, previous_count + n_added)


#: Rows are counted class by class only if there are at most this many classes.
MAX_COUNTED_CLASSES = 2000


def build_class_counts(n_classes: int) -> list[Counts]:
    """Return empty counts for each class, or none if there are too many classes."""
    if n_classes > MAX_COUNTED_CLASSES:
        return []
    return [Counts() for _ in range(n_classes)]


def add_flags_by_class(
    class_counts: Sequence[Counts], predicted_codes: Codes, flags_by_count_name: dict[str, Flags]
) -> None:
    """Increase the counts of each predicted class by the number of flags that are set."""
    for class_code in np.unique(predicted_codes):
        is_predicted_as_class = predicted_codes == class_code
        counts_of_class = class_counts[class_code]
        counts_of_class.add_flags(selected_rows=is_predicted_as_class, **flags_by_count_name)


@dataclass
class ConfidenceSums:
    """Sums over the confidence c of accepted rows.

    Attributes
    ----------
    confidence : float
        Sum of c, the expected number of correct rows.
    variance : float
        Sum of c (1 - c), the variance of that number.
    """

    confidence: float = 0.0
    variance: float = 0.0

    def add(self, confidences: Float) -> None:
        """Add confidences one by one, so that the sums do not depend on batches."""
        row_variances = confidences * (1.0 - confidences)
        self.confidence = _add_one_by_one(self.confidence, confidences)
        self.variance = _add_one_by_one(self.variance, row_variances)


def _add_one_by_one(total: float, terms: Float) -> float:
    """Add terms to a total one by one, so that rounding is the same for any batches."""
    running_totals = np.cumsum(np.append(total, terms))
    return float(running_totals[-1])


def get_confidences_without_nan(decision: Decision) -> Float | None:
    """Return the confidence of each row, or None if the gate has no confidence.

    A row without a score has the confidence NaN, which is replaced by 0. The gate rejects such a row.
    """
    if decision.confidence is None:
        return None
    return np.nan_to_num(np.asarray(decision.confidence, dtype=np.float64))


#: The log-evidence of an alarm is stored with this many decimals.
_EVIDENCE_DECIMALS = 4


@dataclass
class Point:
    """Counts and evidence after some rows of the stream.

    Attributes
    ----------
    rows, accepted, labelled_accepted, correct_accepted : int
        Counts, as in `Counts`.
    evidence : tuple of float
        Logarithm of the evidence of each alarm, in the order of the alarms.
    """

    rows: int
    accepted: int
    labelled_accepted: int
    correct_accepted: int
    evidence: tuple[float, ...]

    @classmethod
    def from_counts(cls, counts: Counts, log_evidence: Iterable[float]) -> Point:
        """Build a point from the current counts and the log-evidence of each alarm."""
        return cls(
            rows=counts.rows,
            accepted=counts.accepted,
            labelled_accepted=counts.labelled_accepted,
            correct_accepted=counts.correct_accepted,
            evidence=tuple(round(value, _EVIDENCE_DECIMALS) for value in log_evidence),
        )


def to_list_without_nan(column: Float) -> list[float | None]:
    """Convert an array to a list in which None replaces NaN.

    >>> to_list_without_nan(np.array([0.5, np.nan]))
    [0.5, None]
    """
    float_values = np.asarray(column, dtype=np.float64).tolist()
    return [None if math.isnan(value) else value for value in float_values]


def build_pending_rows(
    decision: Decision,
    label_codes: NDArray[Any],
    *,
    first_position: int,
    confidences: Float | None,
    groups: NDArray[Any] | None,
    probabilities: Float | None,
    has_clusters: bool,
) -> list[PendingRow]:
    """Build a pending row for each decided row.

    Parameters
    ----------
    decision : Decision
        Decision on each row.
    label_codes : array
        Code of each label, -1 if it is not known.
    first_position : int
        Index of the first row in the stream.
    confidences : array or None
        Confidence of each row, without NaN.
    groups : array or None
        Group of each row, if the gate uses groups.
    probabilities : array or None
        Probability with which each row is selected for labelling.
    has_clusters : bool
        Whether rows belong to clusters. Only then is their ranking score stored.

    Returns
    -------
    list of PendingRow
        Rows whose cluster is not set yet.
    """
    n_rows = len(decision.accept)
    column_of_nones: list[Any] = [None] * n_rows
    confidence_column = column_of_nones
    if confidences is not None:
        confidence_column = confidences.tolist()
    group_column = column_of_nones
    if groups is not None:
        group_column = groups.tolist()
    probability_column = column_of_nones
    if probabilities is not None:
        probability_column = to_list_without_nan(probabilities)
    uncertainty_column = column_of_nones
    if has_clusters:
        uncertainty_column = to_list_without_nan(decision.uncertainty)
    cluster_column = column_of_nones
    position_column = range(first_position, first_position + n_rows)
    # The order is that of the fields of `PendingRow`, because keyword arguments are slower.
    columns_in_field_order = (
        decision.accept.tolist(),
        decision.predicted_codes.tolist(),
        confidence_column,
        group_column,
        probability_column,
        position_column,
        label_codes.tolist(),
        cluster_column,
        uncertainty_column,
    )
    return [PendingRow(*row_fields) for row_fields in zip(*columns_in_field_order)]


def collect_confidences(rows: Sequence[PendingRow]) -> Float | None:
    """Return the confidence of each row, or None if the gate has no confidence."""
    confidences = [row.confidence for row in rows]
    if None in confidences:
        return None
    return np.array(confidences, dtype=np.float64)


def collect_probabilities(rows: Sequence[PendingRow]) -> Float | None:
    """Return the sampling probability of each labelled row, or None if no row has one.

    Raises InputError if only some of the rows have one.
    """
    probabilities = [row.probability for row in rows]
    n_missing = probabilities.count(None)
    every_row_has_probability = n_missing == 0
    no_row_has_probability = n_missing == len(rows)
    if every_row_has_probability:
        return np.array(probabilities, dtype=np.float64)
    if not no_row_has_probability:
        raise MonitoringError(
            "Some labelled rows have no sampling probability. Pass the probability for all"
            " labelled rows, or for none of them."
        )
    return None


def split_rows_by_arrival(
    rows: Sequence[PendingRow], *, first_late_position: int
) -> tuple[list[PendingRow], list[PendingRow]]:
    """Split rows into early and late ones by their position in the stream.

    All rows of a cluster that began early are early rows, because they depend on each other.

    Parameters
    ----------
    rows : sequence of PendingRow
        Rows. If they belong to clusters, all rows of complete clusters.
    first_late_position : int
        Position of the first late row in the stream.

    Returns
    -------
    early_rows, late_rows : list of PendingRow

    Examples
    --------
    >>> rows = [PendingRow(True, 0, None, None, None, k, cluster_id=name) for k, name in enumerate("aabb")]
    >>> early_rows, late_rows = split_rows_by_arrival(rows, first_late_position=1)
    >>> [row.position for row in early_rows], [row.position for row in late_rows]
    ([0, 1], [2, 3])
    """
    ids_of_early_clusters: set[Id] = set()
    for row in rows:
        if row.cluster_id is not None and row.position < first_late_position:
            ids_of_early_clusters.add(row.cluster_id)
    early_rows: list[PendingRow] = []
    late_rows: list[PendingRow] = []
    for row in rows:
        is_early = row.position < first_late_position
        if is_early or row.cluster_id in ids_of_early_clusters:
            early_rows.append(row)
        else:
            late_rows.append(row)
    return early_rows, late_rows
