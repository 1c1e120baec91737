"""Journal of a monitor: the state of a watch, and the rows received since.

The first record of the journal contains the whole state of the watch. Every later record contains
one batch of rows and labels (`ReceivedBatch`). Replaying the records in order restores the current
state, however the process ended.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import ArtifactError, ForeignFileError, InputError
from metacal.gate.model_outputs import split_model_outputs
from metacal.gate.traffic import BatchLines, LateLabel, make_stored_id
from metacal.gate.watch import Watch
from metacal.io.artifact.encoding import decode
from metacal.io.artifact.messages import check_keys, prefix_errors_with
from metacal.io.artifact.watch import MONITOR, decode_watch, encode_watch
from metacal.io.journal import Journal, read_journal

#: JSON object that describes how far a source was read.
SourcePosition = dict[str, Any]

#: Maximum number of sources whose position is stored.
MAX_SOURCES = 100

# Supported dtypes of stored rows.
_ROW_DTYPES = ("<f4", "<f8")


@dataclass(frozen=True)
class UnreadableLine:
    """Line that could not be read.

    Attributes
    ----------
    index_in_batch : int
        Index of the line in its batch.

    line_number : int
        Line number in its source.

    reason : str
        Why the line could not be read.

    text : str
        Beginning of the line.
    """

    index_in_batch: int
    line_number: int
    reason: str
    text: str


@dataclass(eq=False)
class ReceivedBatch:
    """Batch of rows and late labels.

    Attributes
    ----------
    rows : array of shape (n_rows, n_columns) or (n_rows,)
        Logits or scores.

    labels : list
        Label of each row. None if the label is not known yet.

    ids : list of str or None
        Id of each row.

    sampling_probabilities : list of float or None, default=None
        Probability with which each row was selected for labelling.

    groups, units : list of str, default=None
        Group and cluster of each row.

    late_labels : list of LateLabel
        Labels of earlier rows.

    line_indices : list of int
        Index of the line of each row in the batch.

    n_lines : int
        Number of lines. A line contains a row or a late label, or is unreadable.

    unreadable_lines : list of UnreadableLine
        Lines that could not be read.

    n_gaps : int
        Number of gaps in the source, where lines were lost.

    Examples
    --------
    >>> late_labels = [LateLabel(1, "b", "dog")]
    >>> rows = np.array([[2.5, -1.0]])
    >>> batch = ReceivedBatch(
    ...     rows, ["cat"], ["a"], late_labels=late_labels, line_indices=[0], n_lines=2
    ... )
    >>> ReceivedBatch.from_json(batch.to_json()).to_json() == batch.to_json()
    True
    """

    rows: NDArray[np.floating[Any]]
    labels: list[Any]
    ids: list[str | None]
    sampling_probabilities: list[float | None] | None = None
    groups: list[str] | None = None
    units: list[str] | None = None
    late_labels: list[LateLabel] = field(default_factory=list)
    line_indices: list[int] = field(default_factory=list)
    n_lines: int = 0
    unreadable_lines: list[UnreadableLine] = field(default_factory=list)
    n_gaps: int = 0

    def update_watch(self, watch: Watch) -> None:
        """Update a watch with the rows and late labels of the batch."""
        # A cascade expects one array for each of its models.
        model_outputs = split_model_outputs(watch.gate, self.rows)
        sampling_probabilities = None
        if self.sampling_probabilities is not None:
            sampling_probabilities = np.array(self.sampling_probabilities, dtype=np.float64)
        groups = None
        if self.groups is not None:
            groups = np.array(self.groups, dtype=np.str_)
        watch.update(
            model_outputs,
            self.labels,
            ids=self.ids,
            probability=sampling_probabilities,
            groups=groups,
            units=self.units,
            late=self.late_labels,
            lines=self._locate_rows_in_lines(),
        )
        watch.gaps += self.n_gaps

    def _locate_rows_in_lines(self) -> BatchLines | None:
        """Return a mask of unreadable lines, and the line index of each row.

        None if the batch does not consist of lines of text.
        """
        unreadable_indices = [line.index_in_batch for line in self.unreadable_lines]
        is_unreadable = np.zeros(self.n_lines, dtype=bool)
        is_unreadable[unreadable_indices] = True
        if self.n_lines == 0:
            return None
        if len(self.line_indices) != len(self.rows):
            raise ArtifactError("a record must hold as many rows as lines.")
        return BatchLines(is_unreadable=is_unreadable, line_of_row=self.line_indices)

    def to_json(self) -> dict[str, Any]:
        """Convert the batch to a JSON object."""
        dtype_name = "<f4" if self.rows.dtype == np.float32 else "<f8"
        row_bytes = np.ascontiguousarray(self.rows, dtype=dtype_name).tobytes()
        stored_ids = [None if row_id is None else make_stored_id(row_id) for row_id in self.ids]
        stored_late_labels = []
        for late_label in self.late_labels:
            stored_late_labels.append(
                [
                    late_label.n_batch_rows_before_label,
                    make_stored_id(late_label.id),
                    late_label.label,
                    late_label.probability,
                ]
            )
        return {
            "dtype": dtype_name,
            "shape": list(self.rows.shape),
            "rows": base64.b64encode(row_bytes).decode("ascii"),
            "labels": self.labels,
            "ids": stored_ids,
            "probability": self.sampling_probabilities,
            "groups": self.groups,
            "units": self.units,
            "late": stored_late_labels,
            "rows_on": self.line_indices,
            "lines": self.n_lines,
            "unreadable": [list(astuple(line)) for line in self.unreadable_lines],
            "gaps": self.n_gaps,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ReceivedBatch:
        """Convert a JSON object to a batch. Raise ArtifactError if it is not valid."""
        try:
            dtype_name = data["dtype"]
            if dtype_name not in _ROW_DTYPES:
                raise ValueError(f"unsupported dtype {dtype_name!r}")
            row_bytes = base64.b64decode(data["rows"], validate=True)
            stored_rows = np.frombuffer(row_bytes, dtype=dtype_name).reshape(data["shape"])
            native_dtype = np.dtype(dtype_name).newbyteorder("=")
            return cls(
                rows=stored_rows.astype(native_dtype),
                labels=data["labels"],
                ids=data["ids"],
                sampling_probabilities=data["probability"],
                groups=data["groups"],
                units=data["units"],
                late_labels=[LateLabel(*entries) for entries in data["late"]],
                line_indices=data["rows_on"],
                n_lines=data["lines"],
                unreadable_lines=[UnreadableLine(*entries) for entries in data["unreadable"]],
                n_gaps=data["gaps"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ArtifactError("a record has a kind that a monitor does not read.") from error


@dataclass(frozen=True)
class BatchRecord:
    """Journal record of one batch.

    Attributes
    ----------
    serial_number : int
        Number of batches received, including this one.

    batch : ReceivedBatch
        Batch of rows and labels.

    source_name : str
        Name of the source of the batch.

    source_position : dict
        Position up to which the source was read.
    """

    serial_number: int
    batch: ReceivedBatch
    source_name: str
    source_position: SourcePosition

    def to_json(self) -> dict[str, Any]:
        """Convert the record to a JSON object."""
        return {
            "n": self.serial_number,
            "taken": self.batch.to_json(),
            "name": self.source_name,
            "source": self.source_position,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> BatchRecord:
        """Convert a JSON object to a record. Raise ValueError if it has no source."""
        record = cls(
            serial_number=data["n"],
            batch=ReceivedBatch.from_json(data["taken"]),
            source_name=data["name"],
            source_position=data["source"],
        )
        if not isinstance(record.source_name, str) or not isinstance(record.source_position, dict):
            raise ValueError("the record has no source")
        return record


@dataclass
class MonitorState:
    """State of a monitor.

    Attributes
    ----------
    watch : Watch
        Watch with its alarms.

    source_positions : dict of str to dict
        Position up to which each source was read, keyed by the name of the source. The source
        that was read last comes last.

    n_batches : int
        Number of batches received.

    last_batch : ReceivedBatch or None
        Last batch. None if there is none since the whole state was stored.
    """

    watch: Watch
    source_positions: dict[str, SourcePosition] = field(default_factory=dict)
    n_batches: int = 0
    last_batch: ReceivedBatch | None = None

    def add_batch(
        self, batch: ReceivedBatch, source_name: str, source_position: SourcePosition
    ) -> dict[str, Any]:
        """Update the state with a batch, and return the record for the journal.

        Parameters
        ----------
        batch : ReceivedBatch
            Batch of rows and labels.

        source_name : str
            Name of the source of the batch.

        source_position : dict
            Position up to which the source was read.

        Returns
        -------
        dict
            Record for the journal.
        """
        batch.update_watch(self.watch)
        # The dict is ordered by the time of the last batch, so the source moves to its end.
        self.source_positions.pop(source_name, None)
        self.source_positions[source_name] = source_position
        if len(self.source_positions) > MAX_SOURCES:
            oldest_name = next(iter(self.source_positions))
            del self.source_positions[oldest_name]
        self.n_batches += 1
        self.last_batch = batch
        record = BatchRecord(
            serial_number=self.n_batches,
            batch=batch,
            source_name=source_name,
            source_position=source_position,
        )
        return record.to_json()

    def replay(self, records: Sequence[dict[str, Any]]) -> None:
        """Update the state with the batches of journal records."""
        for record in records:
            try:
                self._replay_record(record)
            except (KeyError, IndexError, TypeError, ValueError, InputError) as error:
                raise ArtifactError(
                    "a record has a kind that this monitor does not read."
                ) from error

    def _replay_record(self, record: dict[str, Any]) -> None:
        """Update the state with the batch of one record."""
        batch_record = BatchRecord.from_json(record)
        if batch_record.serial_number != self.n_batches + 1:
            raise ValueError("the record has another serial number")
        self.add_batch(batch_record.batch, batch_record.source_name, batch_record.source_position)


def save_watch(watch: Watch, path: str | os.PathLike[str]) -> None:
    """Save the state of a watch, for `load_watch` and `metacal monitor --state`.

    Parameters
    ----------
    watch : Watch
        Watch to save.

    path : str or path
        Journal to create or replace.

    Raises
    ------
    InputError
        If the file cannot be written.

    See Also
    --------
    load_watch : Load the state of a watch.
    Watch : Monitor the traffic of a gate.

    Examples
    --------
    >>> import tempfile
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = mc.MetaCal(mc.MinAccuracy(0.97)).fit(data.logits[:5000], data.labels[:5000])
    >>> watch = mc.Watch.of(cal).update(data.logits[5000:6000], data.labels[5000:6000])
    >>> path = os.path.join(tempfile.mkdtemp(), "watch.journal")
    >>> save_watch(watch, path)
    >>> load_watch(path, cal) == watch
    True
    """
    with Journal(os.fspath(path), MONITOR) as journal:
        journal.rewrite([state_record(MonitorState(watch))])


def load_watch(path: str | os.PathLike[str], gate: Any) -> Watch:
    """Load a watch from the journal of `save_watch` or of `metacal monitor --state`.

    Parameters
    ----------
    path : str or path
        Journal to read.

    gate : Gate or estimator
        Gate that is watched, or an estimator that contains it.

    Returns
    -------
    Watch

    Raises
    ------
    ArtifactError
        If the journal is damaged or inconsistent, or belongs to another gate.

    See Also
    --------
    save_watch : Save the state of a watch.
    Watch : Monitor the traffic of a gate.

    Examples
    --------
    >>> import tempfile
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = mc.MetaCal(mc.MinAccuracy(0.97)).fit(data.logits[:5000], data.labels[:5000])
    >>> path = os.path.join(tempfile.mkdtemp(), "watch.journal")
    >>> save_watch(mc.Watch.of(cal), path)
    >>> load_watch(path, cal).raised
    ()
    """
    file_name = os.fspath(path)
    records = read_journal(file_name, MONITOR)
    if not records:
        raise ForeignFileError(
            f"{file_name}: the file does not hold the state of a monitor. Pass the file that"
            " save_watch or --state wrote."
        )
    return restore_state(records, gate, file_name).watch


def state_record(state: MonitorState) -> dict[str, Any]:
    """Return the journal record of the whole state of a monitor."""
    return {
        "watch": encode_watch(state.watch),
        "sources": dict(state.source_positions),
        "n": state.n_batches,
    }


def restore_state(records: Sequence[dict[str, Any]], gate: Any, path: str) -> MonitorState:
    """Build the state of a monitor from the records of a journal.

    Parameters
    ----------
    records : sequence of dict
        Records: the whole state, then one record per batch.

    gate : Gate or estimator
        Gate that is watched, or an estimator that contains it.

    path : str
        File name used in error messages.

    Returns
    -------
    MonitorState

    Raises
    ------
    ArtifactError
        If the records are inconsistent, or belong to another gate.
    """
    with prefix_errors_with(path):
        first_record = records[0]
        check_keys(first_record, ["watch", "sources", "n"], "the first record")
        n_batches = decode(int, first_record["n"], "n")
        source_positions = first_record["sources"]
        has_valid_positions = isinstance(source_positions, dict) and all(
            isinstance(position, dict) for position in source_positions.values()
        )
        if not has_valid_positions:
            raise ArtifactError("sources must contain the position in each source.")
        watch = decode_watch(first_record["watch"], gate)
        state = MonitorState(watch=watch, source_positions=source_positions, n_batches=n_batches)
        state.replay(records[1:])
    return state
