"""Files as sources of a watch, from where they were read to before: text line by line, any other
kind as a whole.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from metacal.cli.gate_rows import read_gate_rows
from metacal.cli.options import ReadOptions
from metacal.cli.printing import flag_is_set
from metacal.cli.reading import cascade_column_names, check_read_options
from metacal.errors import InputError
from metacal.gate.judged import by_model
from metacal.gate.traffic import Late, kept_id
from metacal.io.artifact.watch import Kept, Taken, Unreadable
from metacal.io.formats.jsonl import LineError
from metacal.io.lines import KEPT, Line, Logs, Pipe, Position
from metacal.io.opening import check_head
from metacal.io.request import Request
from metacal.io.stream import KINDS, HeaderError, Reader, Record, unfit
from metacal.io.tail import Tail
from metacal.rows.score_columns import WORDS

if TYPE_CHECKING:
    from metacal.cli.monitor import Options
    from metacal.gate import Gate
    from metacal.gate.watch import Watch

#: A source that is no file.
STANDARD_INPUT = "-"
#: Rows of a file of fixed length that are taken in at a time.
_ROWS = 5000
_OTHER = (
    "{} is not the stream that the state was made with, nor does it begin with what was counted."
    " Say --append if it holds only rows and labels that came after those."
)


def open_source(kept: Kept, artifact: str, path: str, options: Options) -> LineSource | TableSource:
    """FILE as a source for this watch, from where it was read to before."""
    gate, reading, follow = kept.watch.gate, options.reading, options.goes_on
    kind = reading.format or ("csv" if path == "-" else Path(path).suffix.lower().lstrip("."))
    if kind not in KINDS:
        if options.probability_key is not None or path == "-":
            raise click.UsageError(
                f"--probability-key and - (standard input) are for text: {', '.join(KINDS)}."
            )
        return _table_of(kept, gate, artifact, path, options)
    check_read_options(gate, artifact, reading)
    if reading.large is not None or (gate.kind == "cascade" and gate.n_classes):
        raise click.UsageError(
            "a cascade over tables is watched by whole files: give FILE and --large LARGEFILE as"
            " .npz or .parquet. Any other gate reads lines as they come, without --large, a cascade"
            " on scores (--score-key) too."
        )
    if reading.classes is not None:
        raise click.UsageError("--classes does not fit here: the gate knows them; leave it out.")
    name, state = STANDARD_INPUT, dict[str, Any]()
    lines: Tail | Pipe
    if path == "-" or (
        os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)
    ):
        lines = Pipe(sys.stdin.fileno() if path == "-" else os.open(path, os.O_RDONLY))
    else:
        name = os.path.abspath(path)
        state = _known(kept, name, path, append=options.append) or {}
        if not (follow or state) or (os.path.isfile(path) and os.path.getsize(path)):
            check_head(path, ())  # a log that is to grow may be empty, or not there yet
        since = Position.of(state["position"]) if state else None
        lines = Tail(
            path, follow=follow, since=since, unfinished=not (follow or options.state is not None)
        )
    header, lists = state.get("header"), state.get("lists", [])
    reader = Reader(_request(gate, path, reading), kind, options.probability_key, header, lists)
    return LineSource(kept.watch, reader, lines, name, strict=flag_is_set("strict"))


def _known(kept: Kept, name: str, path: str, *, append: bool) -> dict[str, Any] | None:
    """How far this file was read before; None where it is new. InputError where it does not belong
    to the state.
    """
    file = Logs().open(path) if os.path.isfile(path) else None
    fits = {}
    for each, state in kept.sources.items():
        with suppress(ValueError):  # it is no place in a log
            place = Position.of(state.get("position"))
            if file is not None and place.offset > 0 and place.fits(file):
                fits[each] = state
    if name in fits or (kept.sources.get(name) and not append and "position" in kept.sources[name]):
        return kept.sources[name]
    if fits:
        return next(iter(fits.values()))
    if append or kept.sources.get(name) == {} or not set(kept.sources) - {STANDARD_INPUT}:
        return None
    raise InputError(_OTHER.format(path))


def _table_of(kept: Kept, gate: Gate, artifact: str, path: str, options: Options) -> TableSource:
    name, append = os.path.abspath(path), options.append
    given = read_gate_rows(gate, artifact, path, options.reading)
    labels, rows = given.truth, np.asarray(given.columns.table)
    if gate.kind == "cascade":
        rows = np.stack(
            [rows, np.asarray(given.large_columns.table)] if gate.n_classes else given.tables,
            axis=1,
        )
    if gate.n_classes:
        labels = (
            None if labels is None else gate.classes[gate.source.codes(labels, len(given.columns))]
        )
    elif gate.kind == "cascade":
        told = None if labels is None else np.stack(labels, axis=1)
        labels = (
            given.columns.correct
            if told is None
            else np.where(np.isnan(told), np.array(None), told)
        )
    table = TableSource(
        rows, labels, given.columns.ids, given.columns.groups, name, given.columns.units
    )
    known = [
        state for state in (kept.sources.get(name), *kept.sources.values()) if state is not None
    ]
    if not any(table.skip(state) for state in known) and known and not append:
        raise InputError(_OTHER.format(path))
    return table


def _request(gate: Gate, path: str, reading: ReadOptions) -> Request:
    """What is what in FILE, for this gate."""
    own = Request(
        path, id_key=reading.id_key, group_key=reading.group_key, unit_key=reading.unit_key
    )
    if gate.kind == "scores":
        name, key = reading.score_key or gate.source.score, reading.loss_key or reading.correct_key
        return replace(own, logits_key=name, label_key=key, scores=True, losses=gate.reads_losses)
    if gate.kind == "cascade":
        scores, flags = cascade_column_names(gate, reading)
        own = replace(own, logits_key=scores[0], scores=True, agreement=gate.reads_agreement)
        return replace(own, later_scores=tuple(scores[1:]), flags=tuple(flags))
    return replace(
        own,
        input=gate.source.input,
        logits_key=reading.logits_key or gate.source.score_column,
        label_key=reading.label_key,
        classes=tuple(gate.classes.tolist()),
    )


class TableSource:
    """A file of fixed length, by its rows."""

    def __init__(
        self, X: Any, labels: Any, ids: Any, groups: Any, name: str, units: Any = None
    ) -> None:
        self.X, self.name, self.done = X, name, 0
        self.groups, self.units = (
            None if one is None else [str(entry) for entry in one] for one in (groups, units)
        )
        self.labels = [None] * len(X) if labels is None else labels.tolist()
        self.ids: list[str | None] = (
            [None] * len(X) if ids is None else [str(one) for one in ids.tolist()]
        )
        self._digest = hashlib.blake2b(digest_size=16)

    place, first_fault, good = "", "", 0
    #: There is nothing to wait for, and nothing happens to such a file.
    lines = SimpleNamespace(ended=True, waits=False, notes=[], wait=lambda: None)

    @property
    def state(self) -> dict[str, Any]:
        """Rows that were taken, and a fingerprint of them."""
        return {"rows": self.done, "digest": self._digest.hexdigest()}

    def take(self) -> Taken | None:
        """The next rows; None at the end."""
        part = slice(self.done, min(self.done + _ROWS, len(self.X)))
        if part.start == part.stop:
            return None
        self._go_to(part.stop)
        groups, units = (None if one is None else one[part] for one in (self.groups, self.units))
        return Taken(self.X[part], self.labels[part], self.ids[part], groups=groups, units=units)

    def skip(self, state: dict[str, Any]) -> bool:
        """Leave out rows that were taken before; False where they were others."""
        rows = state.get("rows")
        if not isinstance(rows, int) or not 0 <= rows <= len(self.X):
            return False
        self._go_to(rows)
        if self._digest.hexdigest() == state.get("digest"):
            return True
        self._digest, self.done = hashlib.blake2b(digest_size=16), 0
        return False

    def _go_to(self, row: int) -> None:
        self._digest.update(np.ascontiguousarray(self.X[self.done : row]).tobytes())
        self.done = row


class LineSource:
    """Lines of text as rows and labels; what cannot be read is put aside, or with `strict` an
    error.
    """

    def __init__(
        self, watch: Watch, reader: Reader, lines: Tail | Pipe, name: str, *, strict: bool = False
    ) -> None:
        self.watch, self.reader, self.lines, self.name, self.strict = (
            watch,
            reader,
            lines,
            name,
            strict,
        )
        # What labels are called, and what the gate calls them; of a gate on scores right and wrong.
        names = watch.gate.classes.tolist()
        self.labels: Mapping[str, Any] = (
            {str(name): name for name in names} if watch.gate.n_classes else WORDS
        )
        self.good, self.first_fault = 0, ""
        self._gaps, self._chances = 0, dict[str, float | None]()

    @property
    def place(self) -> str:
        """What messages call the file."""
        return "standard input" if self.name == STANDARD_INPUT else self.reader.request.path

    @property
    def state(self) -> dict[str, Any]:
        """The place in the file, and what its columns are called."""
        position = self.lines.position
        if position is None:
            return {}
        return {
            "position": asdict(position),
            "header": self.reader.header,
            "lists": self.reader.lists,
        }

    def take(self) -> Taken | None:
        """What the lines say that have come."""
        lines = self.lines.read()
        if not lines and self.lines.gaps == self._gaps:
            return None
        self._chances.clear()
        read, why, good = list[Line](), dict[int, str](), dict[int, Record]()
        for line in lines:
            try:
                if (record := self._read(line)) is None:
                    continue
                good[len(read)] = record
            except LineError as error:
                why[len(read)] = error.reason
            read.append(line)
        why |= _odd_rows(
            self.watch, [(n, record.row) for n, record in good.items() if record.row is not None]
        )
        good = {n: record for n, record in good.items() if n not in why}
        bad = [
            Unreadable(n, read[n].number, why[n], read[n].content[:KEPT].decode("utf-8", "replace"))
            for n in sorted(why)
        ]
        self.good += len(good)
        fault = f"{self.place}:{bad[0].line}: {bad[0].reason}." if bad else ""
        if fault and self.strict:
            raise InputError(fault)
        self.first_fault = self.first_fault or fault
        gaps, self._gaps = self.lines.gaps - self._gaps, self.lines.gaps
        return _taken(self.watch, good, len(read), bad, gaps)

    def _read(self, line: Line) -> Record | None:
        """A record with its label as the gate knows it; LineError where there is none."""
        if line.fault:
            raise unfit(line.fault)
        try:
            record = self.reader.read(line.number, line.content)
        except HeaderError as error:
            if self.reader.kind in ("csv", "tsv") and self.reader.header is None:
                raise  # nothing of this file can be read
            raise unfit(str(error)) from None
        if record is None:
            return None
        several = isinstance(record.label, tuple)
        if several and record.row is None:
            names = " or ".join(map(repr, self.reader.request.label_keys))
            raise unfit(
                f"a label that comes later is about the answer that was given: call it {names}"
            )
        label = tuple(map(self._label, record.label)) if several else self._label(record.label)
        if record.row is None and (record.id is None or label is None):
            raise unfit(
                "a line without a row says the label of an earlier one: it needs an id and a label"
            )
        self._check_probability(record)
        if (
            record.row is not None
            and record.unit is None
            and self.reader.request.unit_key is not None
        ):
            raise unfit("it does not say of which unit the row is")
        return record._replace(label=label)

    def _label(self, label: Any) -> Any:
        """As the gate knows it."""
        if label is None:
            return None
        if self.watch.gate.reads_losses:
            with suppress(TypeError, ValueError):
                label = float(label)
            if self.watch.gate.source.code(label) is None:
                raise unfit(f"the loss {str(label)[:40]!r} is no number from 0 to 1")
            return label
        text = str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)
        known = self.labels.get(
            text, self.labels.get(text.strip().lower()) if self.reader.request.scores else None
        )
        if known is None:
            what = (
                "neither right nor wrong"
                if self.reader.request.scores
                else "none of the gate's classes"
            )
            raise unfit(f"the label {text[:40]!r} is {what}")
        return known

    def _check_probability(self, record: Record) -> None:
        if self.reader.probability_key is None:
            return
        chance, alarms = record.probability, self.watch.alarms
        said = [one.least_probability for one in alarms.promise]
        least = min(said + [one.least_probability for one in alarms.calibration], default=0.0)
        if chance is not None and not (least <= chance <= 1.0 and chance > 0.0):
            raise unfit(
                f"the probability {chance:g} is not between the least probability {least:g}, which"
                " was said beforehand, and 1; begin again with a lower one (--least-probability)"
            )
        if record.row is None and chance is None and record.id is not None:
            waiting = self.watch.waiting.get(kept_id(record.id))
            chance = self._chances.get(record.id, None if waiting is None else waiting.probability)
        if chance is None and record.label is not None:
            raise unfit("it does not say with which probability it was chosen")
        if record.row is not None and record.id is not None:
            self._chances[record.id] = chance


def _odd_rows(watch: Watch, rows: list[tuple[int, Any]]) -> Iterator[tuple[int, str]]:
    """The numbers of the rows that the gate cannot read, and why: by halves, as most can be."""
    if not rows:
        return
    try:
        watch.read(by_model(watch.gate, _table(watch, [row for _, row in rows])))
    except InputError:
        half = len(rows) // 2
        if half:
            yield from _odd_rows(watch, rows[:half])
            yield from _odd_rows(watch, rows[half:])
        else:
            yield rows[0][0], _why_odd(watch.gate, rows[0][1])


def _why_odd(gate: Gate, row: tuple[float, ...]) -> str:
    """What is wrong with the numbers of a row."""
    values = np.array(row)
    strange = np.flatnonzero(np.isnan(values) | (values == np.inf))
    if len(strange):
        at = int(strange[0])
        what = "NaN" if np.isnan(values[at]) else "infinity"
        return (
            f"number {at + 1} of the row is {what}; drop such rows or fix the model that made them"
        )
    if gate.n_classes and gate.source.input == "probabilities":
        return (
            f"the row holds no probabilities: they sum to {values.sum():.4g}, from"
            f" {values.min():.4g} up"
        )
    return "the row is -infinity in every class; at least one must be possible"


def _table(watch: Watch, rows: list[Any]) -> Any:
    width = len(rows[0]) if rows else max(1, watch.gate.n_classes)
    table = np.array(rows, dtype=np.float64).reshape(len(rows), width)
    return table[:, 0] if watch.gate.kind == "scores" else table


def _taken(
    watch: Watch, good: dict[int, Record], n: int, bad: list[Unreadable], gaps: int
) -> Taken:
    """Rows, and labels of earlier rows, in the order in which they came."""
    rows, late = list[Record](), list[Late]()
    for record in good.values():
        if record.row is not None:
            rows.append(record)
        elif record.id is not None:
            late.append(Late(len(rows), record.id, record.label, record.probability))
    sampled = any(record.probability is not None for record in rows)
    by_unit = any(record.unit is not None for record in rows)
    return Taken(
        _table(watch, [record.row for record in rows]),
        [record.label for record in rows],
        [record.id for record in rows],
        [record.probability for record in rows] if sampled else None,
        [str(record.group) for record in rows] if watch.gate.by_group else None,
        [str(record.unit) for record in rows] if by_unit else None,
        late,
        [nth for nth, record in good.items() if record.row is not None],
        n,
        bad,
        gaps,
    )
