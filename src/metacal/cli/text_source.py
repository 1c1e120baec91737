"""Lines of text as a source of a watch: rows and labels as the gate knows them; what cannot be read is put aside."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from metacal.errors import InputError
from metacal.gate.watch import Late, kept_id
from metacal.io.artifact.taken import Taken, Unreadable
from metacal.io.formats.jsonl import LineError
from metacal.io.lines import KEPT, Line, Pipe
from metacal.io.stream import HeaderError, Reader, Record
from metacal.io.tail import Tail
from metacal.rows.score_columns import WORDS

if TYPE_CHECKING:
    from metacal.gate import Gate
    from metacal.gate.watch import Watch

#: A source that is no file.
STANDARD_INPUT = "-"


class Text:
    """Lines of text as rows and labels; what cannot be read is put aside, or with `strict` an error."""

    def __init__(self, watch: Watch, reader: Reader, lines: Tail | Pipe, name: str, *, strict: bool = False) -> None:
        self.watch, self.reader, self.lines, self.name, self.strict = watch, reader, lines, name, strict
        self.labels = _labels(watch.gate)
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
        return {"position": asdict(position), "header": self.reader.header, "lists": self.reader.lists}

    @property
    def ended(self) -> bool:
        """Whether no more can come."""
        return self.lines.ended

    @property
    def waits(self) -> bool:
        """Whether a line has begun whose end has not come."""
        return self.lines.waits

    def wait(self) -> None:
        """A moment, or until something has come."""
        self.lines.wait()

    def notes(self) -> list[str]:
        """What happened since the last time, for people."""
        notes, self.lines.notes = self.lines.notes, []
        return notes

    def take(self) -> Taken | None:
        """What the lines say that have come."""
        lines = self.lines.read()
        if not lines and self.lines.gaps == self._gaps:
            return None
        self._chances.clear()
        good, bad, n = list[tuple[int, Line, Record, Any]](), list[Unreadable](), 0
        for line in lines:
            try:
                record = self._read(line)
            except LineError as error:
                bad.append(_aside(n, line, error.reason))
            else:
                if record is None:
                    continue
                good.append((n, line, *record))
            n += 1
        rows = [(n, record.row) for n, _, record, _ in good if record.row is not None]
        odd = dict(_odd_rows(self.watch, rows))
        bad = sorted(bad + [_aside(n, line, odd[n]) for n, line, _, _ in good if n in odd])
        good = [one for one in good if one[0] not in odd]
        self.good += len(good)
        fault = f"{self.place}:{bad[0].line}: {bad[0].reason}." if bad else ""
        if fault and self.strict:
            raise InputError(fault)
        self.first_fault = self.first_fault or fault
        gaps, self._gaps = self.lines.gaps - self._gaps, self.lines.gaps
        return _taken(self.watch, [(n, record, label) for n, _, record, label in good], n, bad, gaps)

    def _read(self, line: Line) -> tuple[Record, Any] | None:
        """A record with its label as the gate knows it; LineError where there is none."""
        if line.fault:
            raise LineError(self.place, line.number, line.fault)
        try:
            record = self.reader.read(line.number, line.content)
        except HeaderError as error:
            if self.reader.kind in ("csv", "tsv") and self.reader.header is None:
                raise  # nothing of this file can be read
            raise LineError(self.place, line.number, str(error)) from None
        if record is None:
            return None
        label = None if record.label is None else self._label(record)
        if record.row is None and (record.id is None or label is None):
            raise LineError(
                self.place,
                line.number,
                "a line without a row says the label of an earlier one: it needs an id and a label",
            )
        self._check_probability(record, label)
        return record, label

    def _label(self, record: Record) -> Any:
        label = record.label
        text = str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)
        known = self.labels.get(text, self.labels.get(text.strip().lower()) if self.reader.request.scores else None)
        if known is None:
            what = "neither right nor wrong" if self.reader.request.scores else "none of the gate's classes"
            raise LineError(self.place, record.line, f"the label {text[:40]!r} is {what}")
        return known

    def _check_probability(self, record: Record, label: Any) -> None:
        if self.reader.probability_key is None:
            return
        chance, alarms = record.probability, self.watch.alarms
        said = [one.least_probability for one in alarms.promise]
        least = min(said + [one.least_probability for one in alarms.calibration], default=0.0)
        if chance is not None and not (least <= chance <= 1.0 and chance > 0.0):
            raise LineError(
                self.place,
                record.line,
                f"the probability {chance:g} is not between the least probability {least:g}, which was said "
                "beforehand, and 1; begin again with a lower one (--least-probability)",
            )
        if record.row is None and chance is None and record.id is not None:
            waiting = self.watch.waiting.get(kept_id(record.id))
            chance = self._chances.get(record.id, None if waiting is None else waiting.probability)
        if chance is None and label is not None:
            raise LineError(self.place, record.line, "it does not say with which probability it was chosen")
        if record.row is not None and record.id is not None:
            self._chances[record.id] = chance


def _aside(index: int, line: Line, reason: str) -> Unreadable:
    return Unreadable(index, line.number, reason, line.content[:KEPT].decode("utf-8", "replace"))


def _labels(gate: Gate) -> dict[str, Any]:
    """What labels are called, and what the gate calls them; of a gate on scores right and wrong."""
    return {str(name): name for name in gate.classes.tolist()} if gate.n_classes else WORDS


def _odd_rows(watch: Watch, rows: list[tuple[int, Any]]) -> Iterator[tuple[int, str]]:
    """The numbers of the rows that the gate cannot read, and why: by halves, as most can be."""
    if not rows:
        return
    try:
        watch.read(_table(watch, [row for _, row in rows]))
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
        return f"number {at + 1} of the row is {what}; drop such rows or mend the model that made them"
    if gate.n_classes and gate.source.input == "probabilities":
        return f"the row holds no probabilities: they sum to {values.sum():.4g}, from {values.min():.4g} up"
    return "the row is -infinity in every class; at least one must be possible"


def _table(watch: Watch, rows: list[Any]) -> Any:
    width = watch.gate.n_classes
    table = np.array(rows, dtype=np.float64).reshape(len(rows), max(1, width))
    return table if width else table[:, 0]


def _taken(watch: Watch, good: list[tuple[int, Record, Any]], n: int, bad: list[Unreadable], gaps: int) -> Taken:
    """Rows, and labels of earlier rows, in the order in which they came."""
    rows, late = list[tuple[Record, Any]](), list[Late]()
    for _, record, label in good:
        if record.row is not None:
            rows.append((record, label))
        elif record.id is not None:
            late.append(Late(len(rows), record.id, label, record.probability))
    sampled = any(record.probability is not None for record, _ in rows)
    return Taken(
        _table(watch, [record.row for record, _ in rows]),
        [label for _, label in rows],
        [record.id for record, _ in rows],
        [record.probability for record, _ in rows] if sampled else None,
        [str(record.group) for record, _ in rows] if watch.gate.by_group else None,
        late,
        [nth for nth, record, _ in good if record.row is None],
        n,
        bad,
        gaps,
    )
