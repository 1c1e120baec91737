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
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from metacal.cli.gate_rows import GateRows, read_gate_rows
from metacal.cli.line_source import STANDARD_INPUT, LineSource
from metacal.cli.options import ReadOptions
from metacal.cli.printing import flag_is_set
from metacal.cli.reading import cascade_column_names, check_read_options
from metacal.errors import InputError
from metacal.io.artifact.watch_journal import MonitorState, ReceivedBatch
from metacal.io.lines import LogFileSystem, Pipe, Position
from metacal.io.opening import check_first_bytes
from metacal.io.request import Request
from metacal.io.stream import STREAM_FORMATS, StreamReader
from metacal.io.tail import Tail

if TYPE_CHECKING:
    from metacal.cli.monitor import Options
    from metacal.gate import Gate

#: Number of rows that a `TableSource` returns at a time.
_BLOCK_ROWS = 5000
#: Error if a file does not continue any source of the state.
_UNKNOWN_SOURCE = (
    "{} is not the stream that the state was made with, nor does it begin with what was counted."
    " Say --append if it holds only rows and labels that came after those."
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
    kind = reading.format or _kind_of_file(path)
    if kind not in STREAM_FORMATS:
        if options.probability_key is not None or path == STANDARD_INPUT:
            raise click.UsageError(
                f"--probability-key and - (standard input) are for text: {', '.join(STREAM_FORMATS)}."
            )
        return _open_table(monitor_state, artifact, path, options)
    check_read_options(gate, artifact, reading)
    _check_line_options(gate, reading)
    if path == STANDARD_INPUT or _is_special_file(path):
        descriptor = sys.stdin.fileno() if path == STANDARD_INPUT else os.open(path, os.O_RDONLY)
        return _build_line_source(
            monitor_state, Pipe(descriptor), STANDARD_INPUT, kind, path, options, {}
        )
    name = os.path.abspath(path)
    state = _find_state(monitor_state, name, path, append=options.append) or {}
    tail = _open_tail(path, state, options)
    return _build_line_source(monitor_state, tail, name, kind, path, options, state)


def _kind_of_file(path: str) -> str:
    """Return the format from the ending of a path; csv for standard input."""
    if path == STANDARD_INPUT:
        return "csv"
    return Path(path).suffix.lower().lstrip(".")


def _is_special_file(path: str) -> bool:
    """Check whether a path is neither a file nor a folder, but a named pipe."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def _check_line_options(gate: Gate, reading: ReadOptions) -> None:
    """Raise a usage error if options or gate do not support reading line by line."""
    if reading.large is not None or (gate.is_cascade and gate.has_classes):
        raise click.UsageError(
            "a cascade over tables is watched by whole files: give FILE and --large LARGEFILE as"
            " .npz or .parquet. Any other gate reads lines as they come, without --large, a cascade"
            " on scores (--score-key) too."
        )
    if reading.classes is not None:
        raise click.UsageError("--classes does not fit here: the gate knows them; leave it out.")


def _open_tail(path: str, state: dict[str, Any], options: Options) -> Tail:
    """Open a text file at the position in `state`, or at its beginning."""
    is_new = not state
    has_content = os.path.isfile(path) and os.path.getsize(path) > 0
    # A log that is followed may be empty or missing at first, so its head cannot be checked yet.
    if has_content or (is_new and not options.waits_for_more_input):
        check_first_bytes(path, ())
    return Tail(
        path,
        follow=options.waits_for_more_input,
        resume_from=None if is_new else Position.from_dict(state["position"]),
        return_incomplete_line=not options.waits_for_more_input and options.state is None,
    )


def _build_line_source(
    monitor_state: MonitorState,
    lines: Tail | Pipe,
    name: str,
    kind: str,
    path: str,
    options: Options,
    state: dict[str, Any],
) -> LineSource:
    """Build the source of a text file or pipe.

    Parameters
    ----------
    monitor_state : MonitorState
        State of the monitor.
    lines : Tail or Pipe
        Lines to read.
    name : str
        Name of the source.
    kind : str
        Text format.
    path : str
        Path in messages.
    options : Options
        Options of the command.
    state : dict
        Earlier state of this source. Empty if it is new.

    Returns
    -------
    LineSource
    """
    request = _build_request(monitor_state.watch.gate, path, options.reading)
    reader = StreamReader(
        request, kind, options.probability_key, state.get("header"), state.get("lists", [])
    )
    return LineSource(monitor_state.watch, reader, lines, name, strict=flag_is_set("strict"))


def _find_state(
    monitor_state: MonitorState, name: str, path: str, *, append: bool
) -> dict[str, Any] | None:
    """Return the state from which to continue a file, or None if the file is new.

    Parameters
    ----------
    monitor_state : MonitorState
        State of the monitor.
    name : str
        Name of the source.
    path : str
        Path in messages.
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
    continued_states = _states_continued_by(monitor_state, path)
    state = monitor_state.source_positions.get(name)
    is_known_log = bool(state) and "position" in (state or {})
    if name in continued_states or (is_known_log and not append):
        return state
    if continued_states:
        # The file was renamed, by log rotation for example.
        return next(iter(continued_states.values()))
    has_other_files = bool(set(monitor_state.source_positions) - {STANDARD_INPUT})
    if append or state == {} or not has_other_files:
        return None
    raise InputError(_UNKNOWN_SOURCE.format(path))


def _states_continued_by(monitor_state: MonitorState, path: str) -> dict[str, dict[str, Any]]:
    """Return the states whose content is the beginning of this file, by name."""
    if not os.path.isfile(path):
        return {}
    file = LogFileSystem().open(path)
    continued_states = {}
    for name, state in monitor_state.source_positions.items():
        # The state of a table has no position in a log.
        with suppress(ValueError):
            position = Position.from_dict(state.get("position"))
            if file is not None and position.offset > 0 and position.matches(file):
                continued_states[name] = state
    return continued_states


def _open_table(
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
    gate = monitor_state.watch.gate
    gate_rows = read_gate_rows(gate, artifact, path, options.reading)
    columns = gate_rows.columns
    name = os.path.abspath(path)
    table_source = TableSource(
        _stack_rows(gate, gate_rows),
        _row_labels(gate, gate_rows),
        columns.ids,
        columns.groups,
        name,
        columns.units,
    )
    states = list(monitor_state.source_positions.values())
    if name in monitor_state.source_positions:
        states.insert(0, monitor_state.source_positions[name])
    has_skipped = any(table_source.skip_counted_rows(state) for state in states)
    if states and not has_skipped and not options.append:
        raise InputError(_UNKNOWN_SOURCE.format(path))
    return table_source


def _stack_rows(gate: Gate, gate_rows: GateRows) -> Any:
    """Return the input rows; for a cascade, those of all models along the second axis."""
    first_table = np.asarray(gate_rows.columns.table)
    if not gate.is_cascade:
        return first_table
    if gate.has_classes:
        return np.stack([first_table, np.asarray(gate_rows.large_columns.table)], axis=1)
    return np.stack(gate_rows.tables, axis=1)


def _row_labels(gate: Gate, gate_rows: GateRows) -> Any:
    """Return the labels in the form that the monitor expects, or None.

    These are classes for a gate on logits, correctness flags for a gate on scores, and one flag per
    model for a cascade over scores, with None for a missing one.
    """
    truth = gate_rows.truth
    if gate.has_classes:
        if truth is None:
            return None
        return gate.classes[gate.source.encode_truth(truth, len(gate_rows.columns))]
    if not gate.is_cascade:
        return truth
    if truth is None:
        return gate_rows.columns.correct
    model_flags = np.stack(truth, axis=1)
    return np.where(np.isnan(model_flags), np.array(None), model_flags)


def _build_request(gate: Gate, path: str, reading: ReadOptions) -> Request:
    """Describe which columns of a text file a gate needs."""
    request = Request(
        path, id_key=reading.id_key, group_key=reading.group_key, unit_key=reading.unit_key
    )
    if gate.is_score_gate:
        return replace(
            request,
            logits_key=reading.score_key or gate.score_source.score,
            label_key=reading.loss_key or reading.correct_key,
            reads_scores=True,
            labels_are_losses=gate.reads_losses,
        )
    if gate.is_cascade:
        score_names, flag_names = cascade_column_names(gate, reading)
        return replace(
            request,
            logits_key=score_names[0],
            later_score_columns=tuple(score_names[1:]),
            correctness_columns=tuple(flag_names),
            reads_scores=True,
            labels_are_agreement=gate.reads_agreement,
        )
    return replace(
        request,
        input=gate.logits_source.input,
        logits_key=reading.logits_key or gate.logits_source.score_column,
        label_key=reading.label_key,
        classes=tuple(gate.classes.tolist()),
    )


class TableSource:
    """Source of a file that is read as a whole.

    Parameters
    ----------
    X : array of shape (n_rows, ...)
        Rows.
    labels, ids, groups, units : array or None
        Columns beside the rows.
    name : str
        Name of the source.
    """

    def __init__(
        self, X: Any, labels: Any, ids: Any, groups: Any, name: str, units: Any = None
    ) -> None:
        self.X = X
        self.name = name
        self.n_taken = 0
        self.groups = _as_texts(groups)
        self.units = _as_texts(units)
        self.labels = [None] * len(X) if labels is None else labels.tolist()
        self.ids: list[str | None] = [None] * len(X)
        if ids is not None:
            self.ids = [str(row_id) for row_id in ids.tolist()]
        self._digest = hashlib.blake2b(digest_size=16)

    # A table has neither line numbers nor unreadable lines, and nothing arrives later.
    place = ""
    first_error_message = ""
    n_readable = 0
    lines = SimpleNamespace(ended=True, has_incomplete_line=False, notes=[], wait=lambda: None)

    @property
    def state(self) -> dict[str, Any]:
        """Number of rows that were taken, and a fingerprint of them."""
        return {"rows": self.n_taken, "digest": self._digest.hexdigest()}

    def read_batch(self) -> ReceivedBatch | None:
        """Return the next block of rows, or None at the end."""
        block = slice(self.n_taken, min(self.n_taken + _BLOCK_ROWS, len(self.X)))
        if block.start == block.stop:
            return None
        self._advance_to(block.stop)
        return ReceivedBatch(
            self.X[block],
            self.labels[block],
            self.ids[block],
            groups=None if self.groups is None else self.groups[block],
            units=None if self.units is None else self.units[block],
        )

    def skip_counted_rows(self, state: dict[str, Any]) -> bool:
        """Skip the rows that an earlier run took. Return False if they were other rows."""
        n_rows = state.get("rows")
        if not isinstance(n_rows, int) or not 0 <= n_rows <= len(self.X):
            return False
        self._advance_to(n_rows)
        if self._digest.hexdigest() == state.get("digest"):
            return True
        self._digest = hashlib.blake2b(digest_size=16)
        self.n_taken = 0
        return False

    def _advance_to(self, row: int) -> None:
        """Add the rows before `row` to the fingerprint."""
        block = self.X[self.n_taken : row]
        self._digest.update(np.ascontiguousarray(block).tobytes())
        self.n_taken = row


def _as_texts(column: Any) -> list[str] | None:
    """Convert the entries of a column to strings; None stays None."""
    if column is None:
        return None
    return [str(entry) for entry in column]
