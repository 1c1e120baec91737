"""Lines of text as input of a monitor.

A line holds a row, a row with its label, or the label of an earlier row, which is found by its id.
A line that cannot be read is set aside with the reason.

The *sampling probability* of a row is the probability with which it was chosen to be labelled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

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

#: Name of the source that is not a file.
STANDARD_INPUT = "-"


@dataclass
class _LineBatch:
    """Lines that arrived together, without headers and empty lines.

    Attributes
    ----------
    lines : list of Line
        The lines.
    records : dict of int to StreamRecord
        Content of each readable line, keyed by its index in `lines`.
    unreadable_reasons : dict of int to str
        Reason why a line is unreadable, keyed by its index in `lines`.
    """

    lines: list[Line] = field(default_factory=list)
    records: dict[int, StreamRecord] = field(default_factory=dict)
    unreadable_reasons: dict[int, str] = field(default_factory=dict)

    def mark_unreadable(self, index: int, reason: str) -> None:
        """Mark a readable line as unreadable."""
        del self.records[index]
        self.unreadable_reasons[index] = reason

    def unreadable_lines(self) -> list[UnreadableLine]:
        """Return the unreadable lines in order."""
        unreadable_lines = []
        for index in sorted(self.unreadable_reasons):
            line = self.lines[index]
            line_text = line.content[:MAX_KEPT_BYTES].decode("utf-8", "replace")
            unreadable_lines.append(
                UnreadableLine(index, line.number, self.unreadable_reasons[index], line_text)
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
        # The keys are labels as text. For scores, the values are flags of correct predictions.
        self.label_by_text: Mapping[str, Any] = FLAG_OF_VERDICT
        if watch.gate.has_classes:
            self.label_by_text = {str(label): label for label in watch.gate.classes.tolist()}
        self.n_readable = 0
        self.first_error_message = ""
        self._n_reported_gaps = 0
        # Sampling probabilities of the rows of the current batch, keyed by id.
        self._batch_probabilities: dict[str, float | None] = {}

    @property
    def place(self) -> str:
        """Name of the source in messages."""
        if self.name == STANDARD_INPUT:
            return "standard input"
        return self.reader.request.path

    @property
    def state(self) -> dict[str, Any]:
        """Position in the file and names of its columns, empty for a pipe."""
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
        if not new_lines and self.lines.n_gaps == self._n_reported_gaps:
            return None
        batch = self._parse_lines(new_lines)
        unreadable_lines = batch.unreadable_lines()
        self.n_readable += len(batch.records)
        if unreadable_lines:
            first_unreadable = unreadable_lines[0]
            error_message = (
                f"{self.place}:{first_unreadable.line_number}: {first_unreadable.reason}."
            )
            if self.strict:
                raise MonitoringError(error_message)
            self.first_error_message = self.first_error_message or error_message
        n_new_gaps = self.lines.n_gaps - self._n_reported_gaps
        self._n_reported_gaps = self.lines.n_gaps
        return _build_received_batch(self.watch, batch, unreadable_lines, n_new_gaps)

    def _parse_lines(self, lines: list[Line]) -> _LineBatch:
        """Parse lines, and mark lines that the gate cannot read as unreadable."""
        self._batch_probabilities.clear()
        batch = _LineBatch()
        for line in lines:
            try:
                line_records = self._parse_line(line)
            except LineError as error:
                line_index = len(batch.lines)
                batch.unreadable_reasons[line_index] = error.reason
                batch.lines.append(line)
                continue
            # A line with a list of items counts as one line for each of them.
            for record in line_records:
                line_index = len(batch.lines)
                batch.records[line_index] = record
                batch.lines.append(line)
        indexed_rows = [
            (index, record.row) for index, record in batch.records.items() if record.row is not None
        ]
        for index, reason in _iterate_invalid_rows(self.watch, indexed_rows):
            batch.mark_unreadable(index, reason)
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
        label = self._convert_labels(record)
        if record.row is None and (record.id is None or label is None):
            raise build_invalid_line_error(
                "a line without a row must have the id of an earlier row and a label"
            )
        self._check_sampling_probability(record)
        request = self.reader.request
        if record.row is not None and record.unit is None:
            if request.case_key is not None:
                raise build_invalid_line_error("the line has no case")
            if request.unit_key is not None:
                raise build_invalid_line_error("the line has no cluster")
        return record._replace(label=label)

    def _split_line_into_records(self, line: Line) -> list[StreamRecord]:
        """Split a line into its columns."""
        try:
            return self.reader.parse_records(line.number, line.content)
        except HeaderError as error:
            is_header_of_table = (
                self.reader.stream_format in ("csv", "tsv") and self.reader.header is None
            )
            if is_header_of_table:
                # Without a header, no line of the file can be read.
                raise
            raise build_invalid_line_error(str(error)) from None

    def _convert_labels(self, record: StreamRecord) -> Any:
        """Convert the label of a record, or its tuple with a label per model."""
        if not isinstance(record.label, tuple):
            return self._convert_label(record.label)
        if record.row is None:
            label_keys = " or ".join(map(repr, self.reader.request.default_label_names))
            raise build_invalid_line_error(f"a late label must be in the column {label_keys}")
        return tuple(self._convert_label(label) for label in record.label)

    def _convert_label(self, label: Any) -> Any:
        """Convert a label to the form that the gate uses."""
        if label is None:
            return None
        if self.watch.gate.reads_losses:
            return self._convert_loss(label)
        label_text = str(label)
        if isinstance(label, float) and label.is_integer():
            label_text = str(int(label))
        is_correctness = self.reader.request.reads_scores
        gate_label = self.label_by_text.get(label_text)
        if gate_label is None and is_correctness:
            gate_label = self.label_by_text.get(label_text.strip().lower())
        if gate_label is None:
            problem = (
                "neither correct nor incorrect"
                if is_correctness
                else "not one of the gate's classes"
            )
            raise build_invalid_line_error(f"the label {label_text[:40]!r} is {problem}")
        return gate_label

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
        probability = record.probability
        if probability is not None:
            self._raise_unless_probability_allowed(probability)
        elif record.row is None and record.id is not None:
            probability = self._probability_of_earlier_row(record.id)
        if probability is None and record.label is not None:
            raise build_invalid_line_error("the sampling probability of the row is missing")
        if record.row is not None and record.id is not None:
            self._batch_probabilities[record.id] = probability

    def _raise_unless_probability_allowed(self, probability: float) -> None:
        """Raise LineError unless a probability is from the declared minimum to 1."""
        alarms = self.watch.alarms
        declared_minima = [alarm.least_probability for alarm in alarms.promise]
        declared_minima += [alarm.least_probability for alarm in alarms.calibration]
        least_probability = min(declared_minima, default=0.0)
        if not (least_probability <= probability <= 1.0 and probability > 0.0):
            raise build_invalid_line_error(
                "the sampling probability must lie between --least-probability"
                f" {least_probability:g} and 1, but got {probability:g}; start again with a lower"
                " --least-probability"
            )

    def _probability_of_earlier_row(self, row_id: str) -> float | None:
        """Return the sampling probability of an earlier row, or None."""
        if row_id in self._batch_probabilities:
            return self._batch_probabilities[row_id]
        waiting_row = self.watch.waiting.find_row(row_id)
        return None if waiting_row is None else waiting_row.probability


def _iterate_invalid_rows(
    watch: Watch, indexed_rows: list[tuple[int, Any]]
) -> Iterator[tuple[int, str]]:
    """Yield index and reason of the rows that the gate cannot read.

    Most rows are valid, so the rows are checked together, and halves are checked only if that
    fails.
    """
    if not indexed_rows:
        return
    try:
        table = _convert_rows_to_array(watch, [row for _, row in indexed_rows])
        read_rows(watch.gate, split_model_outputs(watch.gate, table))
    except InputError:
        half_size = len(indexed_rows) // 2
        if half_size:
            yield from _iterate_invalid_rows(watch, indexed_rows[:half_size])
            yield from _iterate_invalid_rows(watch, indexed_rows[half_size:])
        else:
            line_index, row = indexed_rows[0]
            yield line_index, _explain_invalid_row(watch.gate, row)


def _explain_invalid_row(gate: Gate, row: tuple[float, ...]) -> str:
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


def _convert_rows_to_array(watch: Watch, rows: list[Any]) -> Any:
    """Convert rows to an array of scores (1-D) or of logits (2-D)."""
    n_columns = len(rows[0]) if rows else max(1, watch.gate.n_classes)
    table = np.array(rows, dtype=np.float64).reshape(len(rows), n_columns)
    return table[:, 0] if watch.gate.is_score_gate else table


def _build_received_batch(
    watch: Watch, batch: _LineBatch, unreadable_lines: list[UnreadableLine], n_gaps: int
) -> ReceivedBatch:
    """Build the input of the monitor from a batch of lines.

    Parameters
    ----------
    watch : Watch
        Monitor state.
    batch : _LineBatch
        Lines that arrived together.
    unreadable_lines : list of UnreadableLine
        Unreadable lines of the batch.
    n_gaps : int
        Number of new gaps in the stream.

    Returns
    -------
    ReceivedBatch
        Rows, and labels of earlier rows, in the order of the lines.
    """
    row_records = list[StreamRecord]()
    line_indices = list[int]()
    late_labels = list[LateLabel]()
    for line_index, record in batch.records.items():
        if record.row is not None:
            row_records.append(record)
            line_indices.append(line_index)
        elif record.id is not None:
            late_labels.append(
                LateLabel(len(row_records), record.id, record.label, record.probability)
            )
    probabilities = [record.probability for record in row_records]
    has_probabilities = any(probability is not None for probability in probabilities)
    has_units = any(record.unit is not None for record in row_records)
    has_groups = watch.gate.has_group_thresholds
    return ReceivedBatch(
        rows=_convert_rows_to_array(watch, [record.row for record in row_records]),
        labels=[record.label for record in row_records],
        ids=[record.id for record in row_records],
        sampling_probabilities=probabilities if has_probabilities else None,
        groups=[str(record.group) for record in row_records] if has_groups else None,
        units=[str(record.unit) for record in row_records] if has_units else None,
        late_labels=late_labels,
        line_indices=line_indices,
        n_lines=len(batch.lines),
        unreadable_lines=unreadable_lines,
        n_gaps=n_gaps,
    )
