"""Lines of text as input of a monitor.

A line holds a row, a row with its label, or the label of an earlier row, which is found by its id.
A line that cannot be read is set aside with the reason.

The *sampling probability* of a row is the probability with which it was chosen to be labelled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError, MonitoringError
from metacal.gate.model_outputs import split_model_outputs
from metacal.gate.traffic import LateLabel
from metacal.gate.watch_batch import read_rows
from metacal.io.artifact.watch_journal import ReceivedBatch, UnreadableLine
from metacal.io.formats.jsonl import LineError
from metacal.io.lines import MAX_KEPT_BYTES, Line, Pipe
from metacal.io.stream import StreamReader, StreamRecord
from metacal.io.stream_cells import build_invalid_line_error
from metacal.io.stream_layout import HeaderError
from metacal.io.tail import Tail
from metacal.rows.score_columns import FLAG_OF_VERDICT

if TYPE_CHECKING:
    from metacal.gate import Gate
    from metacal.gate.watch import Watch

#: Logits of one row, or its score.
ModelOutputs = tuple[float, ...]

#: Name by which users pass standard input instead of a file.
STANDARD_INPUT = "-"


@dataclass
class _LineBatch:
    """Entries of lines that arrived together, without headers and empty lines.

    An *entry* is a line, or one item of a line that has a list of items. An entry that is readable
    has a record, and an unreadable one has a reason.

    Attributes
    ----------
    line_by_entry : list of Line
        Line of each entry.
    record_by_entry : dict of int to StreamRecord
        Content of each readable entry, keyed by the index of the entry.
    reason_by_entry : dict of int to str
        Reason why an entry is unreadable, keyed by the index of the entry.
    """

    line_by_entry: list[Line] = field(default_factory=list)
    record_by_entry: dict[int, StreamRecord] = field(default_factory=dict)
    reason_by_entry: dict[int, str] = field(default_factory=dict)

    @property
    def n_entries(self) -> int:
        """Number of entries, readable or not."""
        return len(self.line_by_entry)

    def add_readable_entry(self, line: Line, record: StreamRecord) -> None:
        """Add an entry with its content."""
        self.record_by_entry[self.n_entries] = record
        self.line_by_entry.append(line)

    def add_unreadable_entry(self, line: Line, reason: str) -> None:
        """Add an entry with the reason why it is unreadable."""
        self.reason_by_entry[self.n_entries] = reason
        self.line_by_entry.append(line)

    def mark_entry_as_unreadable(self, entry_index: int, reason: str) -> None:
        """Replace the content of an entry by the reason why the gate cannot read it."""
        del self.record_by_entry[entry_index]
        self.reason_by_entry[entry_index] = reason

    def list_unreadable_lines(self) -> list[UnreadableLine]:
        """Return the unreadable entries in the order of their lines."""
        unreadable_lines = []
        for entry_index, reason in sorted(self.reason_by_entry.items()):
            line = self.line_by_entry[entry_index]
            unreadable_lines.append(
                UnreadableLine(
                    index_in_batch=entry_index,
                    line_number=line.number,
                    reason=reason,
                    text=line.content[:MAX_KEPT_BYTES].decode("utf-8", "replace"),
                )
            )
        return unreadable_lines


class LineSource:
    """Source of text lines.

    Parameters
    ----------
    watch : Watch
        Monitor state, whose gate determines which rows and labels are valid.
    reader : StreamReader
        Parser of the lines.
    lines : Tail or Pipe
        Lines as they arrive.
    name : str
        Name of the source.
    strict : bool, default=False
        Whether an unreadable line raises InputError.
    """

    def __init__(
        self,
        watch: Watch,
        reader: StreamReader,
        lines: Tail | Pipe,
        name: str,
        *,
        strict: bool = False,
    ) -> None:
        self.watch = watch
        self.reader = reader
        self.lines = lines
        self.name = name
        self.strict = strict
        # For scores, the labels are booleans: whether the prediction of a row is correct.
        self.label_by_text: Mapping[str, Any] = FLAG_OF_VERDICT
        if watch.gate.has_classes:
            self.label_by_text = {str(label): label for label in watch.gate.classes.tolist()}
        self.n_readable_lines = 0
        self.first_error_message = ""
        self._n_reported_gaps = 0
        # A late label may refer to a row of the same batch, which the monitor does not know yet.
        self._probability_by_id_in_batch: dict[str, float | None] = {}

    @property
    def place(self) -> str:
        """Name of the source in messages."""
        if self.name == STANDARD_INPUT:
            return "standard input"
        return self.reader.request.path

    @property
    def state(self) -> dict[str, Any]:
        """Position in the file and names of its columns, to resume reading. Empty for a pipe."""
        file_position = self.lines.position
        if file_position is None:
            return {}
        return {
            "position": file_position.to_dict(),
            "header": self.reader.header,
            "lists": self.reader.list_names,
        }

    def read_batch(self) -> ReceivedBatch | None:
        """Return rows and labels of the lines that have arrived, or None."""
        new_lines = self.lines.read()
        # A gap is a place where lines may have been lost, for example if a log was deleted.
        n_new_gaps = self.lines.n_gaps - self._n_reported_gaps
        if not new_lines and n_new_gaps == 0:
            return None
        batch = self._parse_lines(new_lines)
        unreadable_lines = batch.list_unreadable_lines()
        self.n_readable_lines += len(batch.record_by_entry)
        if unreadable_lines:
            first_unreadable = unreadable_lines[0]
            error_message = (
                f"{self.place}:{first_unreadable.line_number}: {first_unreadable.reason}."
            )
            if self.strict:
                raise MonitoringError(error_message)
            self.first_error_message = self.first_error_message or error_message
        self._n_reported_gaps += n_new_gaps
        return _build_received_batch(
            batch,
            unreadable_lines,
            gate=self.watch.gate,
            n_new_gaps=n_new_gaps,
        )

    def _parse_lines(self, lines: list[Line]) -> _LineBatch:
        """Parse lines, and mark lines that the gate cannot read as unreadable."""
        self._probability_by_id_in_batch.clear()
        batch = _LineBatch()
        for line in lines:
            try:
                records_of_line = self._parse_line(line)
            except LineError as error:
                batch.add_unreadable_entry(line, error.reason)
                continue
            for record in records_of_line:
                batch.add_readable_entry(line, record)
        indexed_rows = [
            (entry_index, record.row)
            for entry_index, record in batch.record_by_entry.items()
            if record.row is not None
        ]
        for entry_index, reason in _find_invalid_rows(self.watch.gate, indexed_rows):
            batch.mark_entry_as_unreadable(entry_index, reason)
        return batch

    def _parse_line(self, line: Line) -> list[StreamRecord]:
        """Parse a line to one or several records with converted labels.

        Returns
        -------
        list of StreamRecord
            Rows and labels, with each label as the gate names it. Several if the line has a list of
            items, and none for a line without content.

        Raises
        ------
        LineError
            If the line is unreadable.
        """
        if line.fault:
            raise build_invalid_line_error(line.fault)
        return [self._convert_record(record) for record in self._split_line_into_records(line)]

    def _convert_record(self, record: StreamRecord) -> StreamRecord:
        """Convert the label of a record. Raise LineError if the record is incomplete."""
        label = self._convert_label_or_labels(record)
        has_row = record.row is not None
        if not has_row and (record.id is None or label is None):
            raise build_invalid_line_error(
                "a line without a row must have the id of an earlier row and a label"
            )
        self._check_sampling_probability(record)
        # The reader stores the case or the cluster of a row as its unit.
        has_case_or_cluster = record.unit is not None
        if has_row and not has_case_or_cluster:
            if self.reader.request.case_key is not None:
                raise build_invalid_line_error("the line has no case")
            if self.reader.request.unit_key is not None:
                raise build_invalid_line_error("the line has no cluster")
        return record._replace(label=label)

    def _split_line_into_records(self, line: Line) -> list[StreamRecord]:
        """Parse the text of a line. Raise LineError, or HeaderError for an invalid header."""
        try:
            return self.reader.parse_records(line.number, line.content)
        except HeaderError as error:
            has_header_line = self.reader.stream_format in ("csv", "tsv")
            is_header_invalid = has_header_line and self.reader.header is None
            if is_header_invalid:
                # Without a header, no line of the file can be read.
                raise
            raise build_invalid_line_error(str(error)) from None

    def _convert_label_or_labels(self, record: StreamRecord) -> Any:
        """Convert the label of a record, or its tuple with a label per model."""
        if not isinstance(record.label, tuple):
            return self._convert_label(record.label)
        if record.row is None:
            label_keys = " or ".join(map(repr, self.reader.request.default_label_names))
            raise build_invalid_line_error(f"a late label must be in the column {label_keys}")
        return tuple(self._convert_label(label) for label in record.label)

    def _convert_label(self, label: Any) -> Any:
        """Convert a label to a class, to a correctness flag (for scores), or to a loss."""
        if label is None:
            return None
        if self.watch.gate.reads_losses:
            return self._convert_loss(label)
        label_text = str(label)
        if isinstance(label, float) and label.is_integer():
            label_text = str(int(label))
        # For scores, a label states whether the prediction is correct, in words or numbers.
        is_correctness_label = self.reader.request.table_is_score_column
        class_or_flag = self.label_by_text.get(label_text)
        if class_or_flag is None and is_correctness_label:
            class_or_flag = self.label_by_text.get(label_text.strip().lower())
        if class_or_flag is None:
            problem = (
                "neither correct nor incorrect"
                if is_correctness_label
                else "not one of the gate's classes"
            )
            raise build_invalid_line_error(f"the label {label_text[:40]!r} is {problem}")
        return class_or_flag

    def _convert_loss(self, loss: Any) -> Any:
        """Convert a loss to a number from 0 to 1."""
        with suppress(TypeError, ValueError):
            loss = float(loss)
        if self.watch.gate.source.encode_one_truth(loss) is None:
            raise build_invalid_line_error(
                f"the loss must be a number between 0 and 1, but got {str(loss)[:40]!r}"
            )
        return loss

    def _check_sampling_probability(self, record: StreamRecord) -> None:
        """Raise LineError if a labelled row lacks a valid sampling probability."""
        if self.reader.probability_key is None:
            return
        is_late_label = record.row is None
        probability = record.probability
        if probability is not None:
            self._raise_unless_probability_allowed(probability)
        elif is_late_label and record.id is not None:
            probability = self._find_probability_of_earlier_row(record.id)
        if probability is None and record.label is not None:
            raise build_invalid_line_error("the sampling probability of the row is missing")
        if not is_late_label and record.id is not None:
            self._probability_by_id_in_batch[record.id] = probability

    def _raise_unless_probability_allowed(self, probability: float) -> None:
        """Raise LineError unless --least-probability <= probability <= 1 and probability > 0."""
        promise_alarms = self.watch.alarms.promise
        calibration_alarms = self.watch.alarms.calibration
        # Each alarm stores the --least-probability that the user declared when it began.
        declared_minima = [alarm.least_probability for alarm in promise_alarms]
        declared_minima += [alarm.least_probability for alarm in calibration_alarms]
        least_probability = min(declared_minima, default=0.0)
        if not (least_probability <= probability <= 1.0 and probability > 0.0):
            raise build_invalid_line_error(
                "the sampling probability must lie between --least-probability"
                f" {least_probability:g} and 1, but got {probability:g}; start again with a lower"
                " --least-probability"
            )

    def _find_probability_of_earlier_row(self, row_id: str) -> float | None:
        """Return the sampling probability of an earlier row, or None."""
        if row_id in self._probability_by_id_in_batch:
            return self._probability_by_id_in_batch[row_id]
        waiting_row = self.watch.waiting.find_row(row_id)
        return None if waiting_row is None else waiting_row.probability


def _find_invalid_rows(
    gate: Gate, indexed_rows: Sequence[tuple[int, ModelOutputs]]
) -> Iterator[tuple[int, str]]:
    """Yield index and reason of the rows that the gate cannot read.

    Most rows are valid, so the rows are checked together, and halves are checked only if that
    fails.
    """
    if not indexed_rows:
        return
    try:
        _raise_unless_gate_reads_rows(gate, [row for _, row in indexed_rows])
    except InputError:
        if len(indexed_rows) == 1:
            index, invalid_row = indexed_rows[0]
            yield index, _explain_invalid_row(gate, invalid_row)
            return
        middle = len(indexed_rows) // 2
        yield from _find_invalid_rows(gate, indexed_rows[:middle])
        yield from _find_invalid_rows(gate, indexed_rows[middle:])


def _raise_unless_gate_reads_rows(gate: Gate, rows: list[ModelOutputs]) -> None:
    """Raise InputError if a gate cannot read one of the rows."""
    table = _convert_rows_to_array(gate, rows)
    read_rows(gate, split_model_outputs(gate, table))


def _explain_invalid_row(gate: Gate, row: ModelOutputs) -> str:
    """Return the reason why a gate cannot read a row."""
    row_values = np.array(row)
    invalid_columns = np.flatnonzero(np.isnan(row_values) | (row_values == np.inf))
    if len(invalid_columns):
        column_index = int(invalid_columns[0])
        value_name = "NaN" if np.isnan(row_values[column_index]) else "infinity"
        return (
            f"number {column_index + 1} of the row is {value_name}; drop such rows or fix the model that"
            " made them"
        )
    if gate.has_classes and gate.logits_source.input == "probabilities":
        return (
            f"the row holds no probabilities: they sum to {row_values.sum():.4g}, from"
            f" {row_values.min():.4g} up"
        )
    return "the row is -infinity in every class; at least one must be possible"


def _convert_rows_to_array(gate: Gate, rows: list[ModelOutputs]) -> NDArray[np.float64]:
    """Convert rows to an array of scores (1-D) or of logits (2-D)."""
    n_columns = len(rows[0]) if rows else max(1, gate.n_classes)
    table = np.array(rows, dtype=np.float64).reshape(len(rows), n_columns)
    return table[:, 0] if gate.is_score_gate else table


def _build_received_batch(
    batch: _LineBatch, unreadable_lines: list[UnreadableLine], *, gate: Gate, n_new_gaps: int
) -> ReceivedBatch:
    """Arrange the records of a batch of lines as columns of rows and a list of late labels.

    Parameters
    ----------
    batch : _LineBatch
        Lines that arrived together.
    unreadable_lines : list of UnreadableLine
        Unreadable lines of the batch.
    gate : Gate
        Gate that is monitored.
    n_new_gaps : int
        Number of new places in the stream where lines may have been lost.

    Returns
    -------
    ReceivedBatch
        Rows, and labels of earlier rows, in the order of the lines.
    """
    rows = list[ModelOutputs]()
    row_records = list[StreamRecord]()
    entry_index_of_row = list[int]()
    late_labels = list[LateLabel]()
    for entry_index, record in batch.record_by_entry.items():
        if record.row is not None:
            rows.append(record.row)
            row_records.append(record)
            entry_index_of_row.append(entry_index)
        elif record.id is not None:
            late_label = LateLabel(
                n_batch_rows_before_label=len(row_records),
                id=record.id,
                label=record.label,
                probability=record.probability,
            )
            late_labels.append(late_label)
    probabilities = [record.probability for record in row_records]
    has_probabilities = any(probability is not None for probability in probabilities)
    has_clusters = any(record.unit is not None for record in row_records)
    has_groups = gate.has_group_thresholds
    return ReceivedBatch(
        rows=_convert_rows_to_array(gate, rows),
        labels=[record.label for record in row_records],
        ids=[record.id for record in row_records],
        sampling_probabilities=probabilities if has_probabilities else None,
        groups=[str(record.group) for record in row_records] if has_groups else None,
        units=[str(record.unit) for record in row_records] if has_clusters else None,
        late_labels=late_labels,
        line_indices=entry_index_of_row,
        n_lines=batch.n_entries,
        unreadable_lines=unreadable_lines,
        n_gaps=n_new_gaps,
    )
