"""Journal of a monitor: the state of a watch, and the rows received since.

The first record of the journal contains the whole state of the watch. Every later record contains
one batch of rows and labels (`ReceivedBatch`). Replaying the records in order restores the current
state, however the process ended.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import ArtifactError, InputError
from metacal.gate.judged import split_model_outputs
from metacal.gate.traffic import BatchLines, LateLabel, make_stored_id
from metacal.gate.watch import Watch
from metacal.io.artifact.encoding import decode
from metacal.io.artifact.messages import check_keys, prefix_errors_with
from metacal.io.artifact.watch import MONITOR, decode_watch, encode_watch
from metacal.io.journal import Journal, read_journal

#: Position up to which a source was read, as a JSON object.
Source = dict[str, Any]

#: Largest number of sources whose position is stored.
MOST_SOURCES = 100

# Supported dtypes of rows.
_ROW_DTYPES = ("<f4", "<f8")


@dataclass(frozen=True)
class UnreadableLine:
    """Line that could not be read.

    Attributes
    ----------
    nth : int
        Index of the line in its batch.

    line : int
        Line number in its source.

    reason : str
        Why the line could not be read.

    text : str
        Beginning of the line.
    """

    nth: int
    line: int
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

    probability : list of float or None, default=None
        Probability with which each row was selected for labelling.

    groups, units : list of str, default=None
        Group and cluster of each row.

    late : list of LateLabel
        Labels of earlier rows.

    rows_on : list of int
        Index of the line of each row.

    lines : int
        Number of lines. A line contains a row or a late label, or is unreadable.

    unreadable : list of Unreadable
        Lines that could not be read.

    gaps : int
        Number of gaps in the source, where lines were lost.

    Examples
    --------
    >>> late_labels = [LateLabel(1, "b", "dog")]
    >>> rows = np.array([[2.5, -1.0]])
    >>> taken = ReceivedBatch(rows, ["cat"], ["a"], late=late_labels, rows_on=[0], lines=2)
    >>> ReceivedBatch.from_json(taken.to_json()).to_json() == taken.to_json()
    True
    """

    rows: NDArray[np.floating[Any]]
    labels: list[Any]
    ids: list[str | None]
    probability: list[float | None] | None = None
    groups: list[str] | None = None
    units: list[str] | None = None
    late: list[LateLabel] = field(default_factory=list)
    rows_on: list[int] = field(default_factory=list)
    lines: int = 0
    unreadable: list[UnreadableLine] = field(default_factory=list)
    gaps: int = 0

    def apply_to(self, watch: Watch) -> None:
        """Update a watch with the batch."""
        probability = None
        if self.probability is not None:
            probability = np.array(self.probability, dtype=np.float64)
        groups = None
        if self.groups is not None:
            groups = np.array(self.groups, dtype=np.str_)
        is_unreadable = np.zeros(self.lines, dtype=bool)
        is_unreadable[[line.nth for line in self.unreadable]] = True
        lines = None
        if self.lines:
            if len(self.rows_on) != len(self.rows):
                raise ArtifactError("a record holds other rows than lines.")
            lines = BatchLines(is_unreadable, self.rows_on)
        watch.update(
            split_model_outputs(watch.gate, self.rows),
            self.labels,
            ids=self.ids,
            probability=probability,
            groups=groups,
            units=self.units,
            late=self.late,
            lines=lines,
        )
        watch.gaps += self.gaps

    def to_json(self) -> dict[str, Any]:
        """Convert the batch to a JSON object."""
        dtype_name = "<f4" if self.rows.dtype == np.float32 else "<f8"
        row_bytes = np.ascontiguousarray(self.rows, dtype=dtype_name).tobytes()
        late_labels = []
        for late in self.late:
            late_labels.append([late.after, make_stored_id(late.id), late.label, late.probability])
        return {
            "dtype": dtype_name,
            "shape": list(self.rows.shape),
            **vars(self),
            "rows": base64.b64encode(row_bytes).decode("ascii"),
            "ids": [None if row_id is None else make_stored_id(row_id) for row_id in self.ids],
            "late": late_labels,
            "unreadable": [list(astuple(line)) for line in self.unreadable],
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
            values = {each_field.name: data[each_field.name] for each_field in fields(cls)}
            values["rows"] = stored_rows.astype(np.dtype(dtype_name).newbyteorder("="))
            values["late"] = [LateLabel(*entries) for entries in data["late"]]
            values["unreadable"] = [UnreadableLine(*entries) for entries in data["unreadable"]]
            return cls(**values)
        except (KeyError, TypeError, ValueError) as error:
            raise ArtifactError("a record is none of what a monitor takes in.") from error


@dataclass
class MonitorState:
    """State of a monitor.

    Attributes
    ----------
    watch : Watch
        Watch with its alarms.

    sources : dict of str to dict
        Position up to which each source was read, by its name. The last one was read last.

    serial : int
        Number of batches received.

    last_batch : ReceivedBatch or None
        Last batch. None if there is none since the whole state was stored.
    """

    watch: Watch
    sources: dict[str, Source] = field(default_factory=dict)
    serial: int = 0
    last_batch: ReceivedBatch | None = None

    def add(self, batch: ReceivedBatch, name: str, source: Source) -> dict[str, Any]:
        """Update the state with a batch.

        Parameters
        ----------
        batch : ReceivedBatch
            Batch of rows and labels.

        name : str
            Name of the source of the batch.

        source : dict
            Position up to which the source was read.

        Returns
        -------
        dict
            Record for the journal.
        """
        batch.apply_to(self.watch)
        self.sources.pop(name, None)
        self.sources[name] = source
        if len(self.sources) > MOST_SOURCES:
            oldest_name = next(iter(self.sources))
            del self.sources[oldest_name]
        self.serial += 1
        self.last_batch = batch
        return {"n": self.serial, "taken": batch.to_json(), "name": name, "source": source}

    def replay(self, records: Sequence[dict[str, Any]]) -> None:
        """Update the state with the batches of journal records."""
        for record in records:
            try:
                self._replay_record(record)
            except (KeyError, IndexError, TypeError, ValueError, InputError) as error:
                raise ArtifactError(
                    "a record is none of what this monitor has taken in."
                ) from error

    def _replay_record(self, record: dict[str, Any]) -> None:
        """Update the state with the batch of one record."""
        batch = ReceivedBatch.from_json(record["taken"])
        name = record["name"]
        source = record["source"]
        if record["n"] != self.serial + 1:
            raise ValueError("the record has another serial number")
        if not isinstance(name, str) or not isinstance(source, dict):
            raise ValueError("the record has no source")
        self.add(batch, name, source)


def save_watch(watch: Watch, path: str | os.PathLike[str]) -> None:
    """Save the state of a watch, for `load_watch` and `metacal monitor --state`.

    Parameters
    ----------
    watch : Watch
        Watch to save.

    path : str or path
        Journal to create or replace.

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
    """
    file_name = os.fspath(path)
    records = read_journal(file_name, MONITOR)
    if not records:
        raise ArtifactError(f"{file_name}: there is no state of a monitor.")
    return restore_state(records, gate, file_name).watch


def state_record(state: MonitorState) -> dict[str, Any]:
    """Return the journal record of the whole state of a monitor."""
    return {"watch": encode_watch(state.watch), "sources": dict(state.sources), "n": state.serial}


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
    Kept

    Raises
    ------
    ArtifactError
        If the records are inconsistent, or belong to another gate.
    """
    with prefix_errors_with(path):
        first_record = records[0]
        check_keys(first_record, ["watch", "sources", "n"], "the first record")
        serial = decode(int, first_record["n"], "n")
        sources = first_record["sources"]
        has_positions = isinstance(sources, dict) and all(
            isinstance(source, dict) for source in sources.values()
        )
        if not has_positions:
            raise ArtifactError("sources must say how far each was read.")
        watch = decode_watch(first_record["watch"], gate)
        state = MonitorState(watch=watch, sources=sources, serial=serial)
        state.replay(records[1:])
    return state
