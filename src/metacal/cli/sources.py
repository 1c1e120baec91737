"""Input of a monitor: files and pipes that continue where an earlier run stopped.

Text (csv, tsv, JSON lines) is read line by line by a `LineSource`. Any other format is read as a
whole by a `TableSource`. Both have the same interface:

- `read_batch` returns the rows and labels that have arrived (`ReceivedBatch`), or None if there are none;
- `state` is a JSON description of the position, from which a later run continues;
- `name` identifies the source, and `place` names it in messages.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from metacal.cli.gate_rows import GateRows, read_gate_rows
from metacal.cli.line_source import STANDARD_INPUT, LineSource
from metacal.cli.printing import flag_is_set
from metacal.cli.read_options import ReadOptions
from metacal.cli.reading import check_read_options_fit_gate, choose_cascade_columns
from metacal.errors import MonitoringError
from metacal.io.artifact.watch_journal import MonitorState, ReceivedBatch
from metacal.io.gate_predictions import add_column_names_of_gate
from metacal.io.lines import LogFileSystem, Pipe, Position
from metacal.io.opening import check_first_bytes
from metacal.io.request import Request
from metacal.io.stream import STREAM_FORMATS, StreamReader
from metacal.io.tail import Tail

if TYPE_CHECKING:
    from metacal.cli.monitor import Options
    from metacal.gate import Gate

#: Text has no magic bytes, so `check_first_bytes` checks only that the file is text.
_NO_MAGIC_BYTES_OF_TEXT: tuple[bytes, ...] = ()
#: Maximum number of rows that a `TableSource` returns at a time.
_MAX_ROWS_PER_BATCH = 5000
#: Message if a file does not continue any source in the saved state of the monitor.
_UNKNOWN_SOURCE_MESSAGE = (
    "{} does not continue the stream of the saved state. If the file holds only new rows and"
    " labels, pass --append."
)


def open_source(
    monitor_state: MonitorState, artifact: str, path: str, options: Options
) -> LineSource | TableSource:
    """Open a file as the source of a monitor, where an earlier run stopped.

    Parameters
    ----------
    monitor_state : MonitorState
        State of the monitor, with the positions of all sources.
    artifact : str
        Name of the gate's file in messages.
    path : str
        File to read, or "-" for standard input.
    options : Options
        Options of the command.

    Returns
    -------
    LineSource or TableSource
    """
    gate = monitor_state.watch.gate
    reading = options.reading
    file_format = reading.format or _format_from_extension(path)
    if file_format not in STREAM_FORMATS:
        if options.probability_key is not None or path == STANDARD_INPUT:
            raise click.UsageError(
                "--probability-key and - (standard input) support only text formats:"
                f" {', '.join(STREAM_FORMATS)}."
            )
        return _open_table_source(monitor_state, artifact, path, options)
    check_read_options_fit_gate(gate, artifact, reading)
    _check_can_read_line_by_line(gate, reading)
    if path == STANDARD_INPUT or _is_special_file(path):
        descriptor = sys.stdin.fileno() if path == STANDARD_INPUT else os.open(path, os.O_RDONLY)
        # A pipe cannot be read again, so no saved position applies to it.
        return _build_line_source(
            monitor_state,
            artifact,
            lines=Pipe(descriptor),
            source_name=STANDARD_INPUT,
            text_format=file_format,
            path=path,
            options=options,
            saved_state={},
        )
    source_name = os.path.abspath(path)
    saved_state = (
        _find_state_to_continue(monitor_state, source_name, path, append=options.append) or {}
    )
    return _build_line_source(
        monitor_state,
        artifact,
        lines=_open_tail(path, saved_state, options),
        source_name=source_name,
        text_format=file_format,
        path=path,
        options=options,
        saved_state=saved_state,
    )


def _format_from_extension(path: str) -> str:
    """Return the file format by extension, or csv for standard input."""
    if path == STANDARD_INPUT:
        return "csv"
    return Path(path).suffix.lower().lstrip(".")


def _is_special_file(path: str) -> bool:
    """Check whether a path exists but is neither a regular file nor a folder."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def _check_can_read_line_by_line(gate: Gate, reading: ReadOptions) -> None:
    """Raise a usage error if options or gate do not support reading line by line."""
    if reading.large is not None or (gate.is_cascade and gate.has_classes):
        raise click.UsageError(
            "A cascade over tables needs whole files. Pass FILE and --large LARGEFILE as"
            " .npz or .parquet. Other gates, including a cascade over scores (--score-key),"
            " read lines from a stream."
        )
    if reading.classes is not None:
        raise click.UsageError(
            "--classes has no effect, because the gate stores its classes. Leave it out."
        )


def _open_tail(path: str, saved_state: dict[str, Any], options: Options) -> Tail:
    """Open a text file at its saved position, or at its beginning if there is none."""
    is_new_file = not saved_state
    has_content = os.path.isfile(path) and os.path.getsize(path) > 0
    # A log that is followed may be empty or missing at first, so its head cannot be checked yet.
    if has_content or (is_new_file and not options.waits_for_more_input):
        check_first_bytes(path, magic_bytes=_NO_MAGIC_BYTES_OF_TEXT)
    saved_position = None
    if not is_new_file:
        saved_position = Position.from_dict(saved_state["position"])
    # A later run of a monitor with a state file reads the last line when it is complete.
    has_later_input = options.waits_for_more_input or options.state is not None
    return Tail(
        path,
        follow=options.waits_for_more_input,
        resume_from=saved_position,
        return_incomplete_line=not has_later_input,
    )


def _build_line_source(
    monitor_state: MonitorState,
    artifact: str,
    *,
    lines: Tail | Pipe,
    source_name: str,
    text_format: str,
    path: str,
    options: Options,
    saved_state: dict[str, Any],
) -> LineSource:
    """Build the source of a text file or pipe.

    Parameters
    ----------
    monitor_state : MonitorState
        State of the monitor.
    artifact : str
        Name of the gate's file in messages.
    lines : Tail or Pipe
        Lines to read.
    source_name : str
        Name of the source.
    text_format : str
        One of `STREAM_FORMATS`.
    path : str
        Path in messages.
    options : Options
        Options of the command.
    saved_state : dict
        State of this source after an earlier run. Empty if the source is new.

    Returns
    -------
    LineSource
    """
    column_request = _build_column_request(
        monitor_state.watch.gate, artifact, path, options.reading
    )
    reader = StreamReader(
        column_request,
        stream_format=text_format,
        probability_key=options.probability_key,
        header=saved_state.get("header"),
        list_names=saved_state.get("lists", []),
    )
    return LineSource(
        monitor_state.watch,
        reader=reader,
        lines=lines,
        name=source_name,
        strict=flag_is_set("strict"),
    )


def _find_state_to_continue(
    monitor_state: MonitorState, source_name: str, path: str, *, append: bool
) -> dict[str, Any] | None:
    """Return the saved state of the source that a file continues, None for a new file.

    Parameters
    ----------
    monitor_state : MonitorState
        State of the monitor.
    source_name : str
        Name of the source.
    path : str
        File to read.
    append : bool
        Whether the file holds only rows that came after those counted.

    Returns
    -------
    dict or None

    Raises
    ------
    InputError
        If the file continues no source of the state, and `append` is False.
    """
    state_by_source = monitor_state.source_positions
    matching_states = _find_states_matching_content(state_by_source, path)
    state_of_same_name = state_by_source.get(source_name)
    was_read_as_log = state_of_same_name is not None and "position" in state_of_same_name
    if source_name in matching_states or (was_read_as_log and not append):
        return state_of_same_name
    if matching_states:
        # The file was renamed, by log rotation for example.
        return next(iter(matching_states.values()))
    was_opened_but_not_read = state_of_same_name == {}
    has_read_other_files = bool(set(state_by_source) - {STANDARD_INPUT})
    if append or was_opened_but_not_read or not has_read_other_files:
        return None
    raise MonitoringError(_UNKNOWN_SOURCE_MESSAGE.format(path))


def _find_states_matching_content(
    state_by_source: Mapping[str, dict[str, Any]], path: str
) -> dict[str, dict[str, Any]]:
    """Return the saved states of sources whose lines are the first lines of this file."""
    if not os.path.isfile(path):
        return {}
    log_file = LogFileSystem().open(path)
    matching_states = {}
    for source_name, saved_state in state_by_source.items():
        # The state of a table has no position in a log.
        with suppress(ValueError):
            saved_position = Position.from_dict(saved_state.get("position"))
            if (
                log_file is not None
                and saved_position.offset > 0
                and saved_position.matches(log_file)
            ):
                matching_states[source_name] = saved_state
    return matching_states


def _open_table_source(
    monitor_state: MonitorState, artifact: str, path: str, options: Options
) -> TableSource:
    """Read a whole file as a source, skipping the rows that were counted before.

    Parameters
    ----------
    monitor_state : MonitorState
        State of the monitor.
    artifact : str
        Name of the gate's file in messages.
    path : str
        File to read.
    options : Options
        Options of the command.

    Returns
    -------
    TableSource
    """
    watch = monitor_state.watch
    gate_rows = read_gate_rows(watch.gate, artifact, path, options.reading)
    columns = gate_rows.columns
    table_source = TableSource(
        _stack_model_tables(watch.gate, gate_rows),
        labels=_convert_labels_for_monitor(watch.gate, gate_rows),
        ids=columns.ids,
        groups=columns.groups,
        name=os.path.abspath(path),
        units=columns.cases if watch.watches_cases else columns.units,
    )
    state_by_source = monitor_state.source_positions
    has_skipped_rows = _skip_rows_of_earlier_run(table_source, state_by_source)
    if state_by_source and not has_skipped_rows and not options.append:
        raise MonitoringError(_UNKNOWN_SOURCE_MESSAGE.format(path))
    return table_source


def _skip_rows_of_earlier_run(
    table_source: TableSource, state_by_source: Mapping[str, dict[str, Any]]
) -> bool:
    """Skip the rows of a table that an earlier run read, and return whether there are any."""
    saved_states = list(state_by_source.values())
    # The state of the same file is tried first. Other states match if the file was renamed.
    if table_source.name in state_by_source:
        saved_states.insert(0, state_by_source[table_source.name])
    return any(table_source.skip_rows_if_unchanged(saved_state) for saved_state in saved_states)


def _stack_model_tables(gate: Gate, gate_rows: GateRows) -> Any:
    """Return the input rows, stacked along the second axis for a cascade."""
    first_table = np.asarray(gate_rows.columns.table)
    if not gate.is_cascade:
        return first_table
    if gate.has_classes:
        return np.stack([first_table, np.asarray(gate_rows.large_columns.table)], axis=1)
    return np.stack(gate_rows.tables, axis=1)


def _convert_labels_for_monitor(gate: Gate, gate_rows: GateRows) -> Any:
    """Return the true classes of the rows, or the flags of correctness or agreement.

    These are classes for a gate on logits, flags for a gate on scores, and one flag per model for a
    cascade over scores, with None for a missing one. None if the rows are unlabelled.
    """
    labels_or_flags = gate_rows.truth
    if gate.has_classes:
        if labels_or_flags is None:
            return None
        class_indices = gate.source.encode_truth(labels_or_flags, len(gate_rows.columns))
        return gate.classes[class_indices]
    if not gate.is_cascade:
        return labels_or_flags
    if labels_or_flags is None:
        return gate_rows.columns.correct
    flags_by_model = np.stack(labels_or_flags, axis=1)
    return np.where(np.isnan(flags_by_model), np.array(None), flags_by_model)


def _build_column_request(gate: Gate, artifact: str, path: str, reading: ReadOptions) -> Request:
    """Describe which columns of a text file a gate needs."""
    column_request = Request(
        path,
        id_key=reading.id_key,
        group_key=reading.group_key,
        unit_key=reading.unit_key,
        case_key=reading.case_key,
    )
    layout = gate.file_layout
    if gate.is_score_gate:
        stored_name = layout.score_key or gate.score_source.score
        column_request = replace(
            column_request,
            logits_key=reading.score_key or stored_name,
            label_key=reading.loss_key or reading.correct_key or reading.label_key,
            prediction_key=reading.prediction_key,
            table_is_score_column=True,
            labels_are_losses=gate.reads_losses,
        )
        return add_column_names_of_gate(column_request, gate, artifact)
    if gate.is_cascade:
        score_names, flag_names = choose_cascade_columns(gate, reading)
        return replace(
            column_request,
            logits_key=score_names[0],
            later_score_columns=tuple(score_names[1:]),
            correctness_columns=tuple(flag_names),
            table_is_score_column=True,
            labels_are_agreement=gate.needs_agreement_flags,
        )
    column_request = replace(
        column_request,
        input=gate.logits_source.input,
        logits_key=reading.logits_key,
        label_key=reading.label_key,
        classes=tuple(gate.classes.tolist()),
    )
    return add_column_names_of_gate(column_request, gate, artifact)


@dataclass(frozen=True)
class _NoLines:
    """Lines of a source that has none: nothing arrives later."""

    ended: bool = True
    has_incomplete_line: bool = False
    notes: list[str] = field(default_factory=list)

    def wait(self) -> None:
        """Return at once."""


class TableSource:
    """Source of a file that is read as a whole.

    Parameters
    ----------
    X : array of shape (n_rows, ...)
        Rows.
    labels, ids, groups, units : array or None
        Columns beside the rows. `units` has the cases if the promise is about cases.
    name : str
        Name of the source.
    """

    def __init__(
        self, X: Any, labels: Any, ids: Any, groups: Any, name: str, units: Any = None
    ) -> None:
        self.table = X
        self.name = name
        self.n_rows_read = 0
        self.groups = _convert_to_texts(groups)
        self.units = _convert_to_texts(units)
        self.labels = [None] * len(X) if labels is None else labels.tolist()
        self.ids: list[str | None] = [None] * len(X)
        if ids is not None:
            self.ids = [str(row_id) for row_id in ids.tolist()]
        self._digest_of_read_rows = hashlib.blake2b(digest_size=16)

    # The monitor reads these attributes of any source. A table has no lines.
    place = ""
    first_error_message = ""
    n_readable_lines = 0
    lines = _NoLines()

    @property
    def state(self) -> dict[str, Any]:
        """Number of rows read so far, and a fingerprint of these rows."""
        return {"rows": self.n_rows_read, "digest": self._digest_of_read_rows.hexdigest()}

    def read_batch(self) -> ReceivedBatch | None:
        """Return the next batch of rows, or None at the end of the table."""
        first_row = self.n_rows_read
        stop_row = min(first_row + _MAX_ROWS_PER_BATCH, len(self.table))
        if first_row == stop_row:
            return None
        self._mark_rows_as_read(stop_row)
        batch = slice(first_row, stop_row)
        return ReceivedBatch(
            rows=self.table[batch],
            labels=self.labels[batch],
            ids=self.ids[batch],
            groups=None if self.groups is None else self.groups[batch],
            units=None if self.units is None else self.units[batch],
        )

    def skip_rows_if_unchanged(self, saved_state: dict[str, Any]) -> bool:
        """Skip the rows that an earlier run read. Return False if the rows differ."""
        n_rows_of_earlier_run = saved_state.get("rows")
        if not isinstance(n_rows_of_earlier_run, int):
            return False
        if not 0 <= n_rows_of_earlier_run <= len(self.table):
            return False
        self._mark_rows_as_read(n_rows_of_earlier_run)
        if self._digest_of_read_rows.hexdigest() == saved_state.get("digest"):
            return True
        # The rows differ, so reading begins at the first row.
        self._digest_of_read_rows = hashlib.blake2b(digest_size=16)
        self.n_rows_read = 0
        return False

    def _mark_rows_as_read(self, stop: int) -> None:
        """Mark the rows before `stop` as read, and add them to the fingerprint."""
        new_rows = self.table[self.n_rows_read : stop]
        self._digest_of_read_rows.update(np.ascontiguousarray(new_rows).tobytes())
        self.n_rows_read = stop


def _convert_to_texts(column: Any) -> list[str] | None:
    """Convert the entries of a column to strings, if there is a column."""
    if column is None:
        return None
    return [str(entry) for entry in column]
