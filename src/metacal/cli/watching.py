"""Files as sources of a watch: text line by line, whose unreadable lines are put aside; any other kind as a whole."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from metacal.artifact.taken import Kept, Taken, Unreadable
from metacal.cli.options import Reading
from metacal.errors import InputError
from metacal.files.jsonl import LineError
from metacal.files.lines import KEPT, Line, Pipe
from metacal.files.opening import check_head
from metacal.files.stream import KINDS, HeaderError, Reader, Record
from metacal.files.tail import Logs, Position, Tail
from metacal.gate.watch import Late, kept_id

if TYPE_CHECKING:
    from metacal.gate import Gate, ScoredGate
    from metacal.gate.watch import Watch

#: Rows of a file of fixed length that are taken in at a time.
_ROWS = 5000
#: A source that is no file.
_STANDARD_INPUT = "-"


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
        return "standard input" if self.name == _STANDARD_INPUT else self.reader.request.path

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
        good, bad, n = list[tuple[int, Record, Any]](), list[Unreadable](), 0
        for line in lines:
            try:
                record = self._read(line)
            except LineError as error:
                bad.append(self._aside(n, line, error.reason))
            else:
                if record is None:
                    continue
                good.append((n, *record))
            n += 1
        good = self._without_odd_rows(lines, good, bad)
        self.good += len(good)
        if bad:
            self.first_fault = self.first_fault or f"{self.place}:{min(bad).line}: {min(bad).reason}."
        gaps, self._gaps = self.lines.gaps - self._gaps, self.lines.gaps
        return _taken(self.watch, good, n, sorted(bad), gaps)

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

    def _without_odd_rows(
        self, lines: list[Line], good: list[tuple[int, Record, Any]], bad: list[Unreadable]
    ) -> list[tuple[int, Record, Any]]:
        """Take out rows that the gate cannot read, and put them aside."""
        by_number = {line.number: line for line in lines}
        odd = set(_odd_rows(self.watch, [(n, record.row) for n, record, _ in good if record.row is not None]))
        for n, record, _ in good:
            if n in odd:
                bad.append(self._aside(n, by_number[record.line], _why_odd(self.watch.gate, record.row or ())))
        return [one for one in good if one[0] not in odd]

    def _aside(self, index: int, line: Line, reason: str) -> Unreadable:
        if self.strict:
            raise InputError(f"{self.place}:{line.number}: {reason}.")
        return Unreadable(index, line.number, reason, line.content[:KEPT].decode("utf-8", "replace"))


def _labels(gate: Gate | ScoredGate) -> dict[str, Any]:
    """What labels are called, and what the gate calls them; of a gate on scores right and wrong."""
    classes = getattr(gate, "classes", None)
    if classes is not None:
        return {str(name): name for name in classes.tolist()}
    right, wrong = dict.fromkeys(("true", "1", "yes"), True), dict.fromkeys(("false", "0", "no"), False)
    return {**right, **wrong}


def _odd_rows(watch: Watch, rows: list[tuple[int, Any]]) -> Iterable[int]:
    """The numbers of the rows that the gate cannot read: by halves, as most can be."""
    if not rows:
        return
    try:
        watch.read(_table(watch, [row for _, row in rows]))
    except InputError:
        if len(rows) == 1:
            yield rows[0][0]
            return
        half = len(rows) // 2
        yield from _odd_rows(watch, rows[:half])
        yield from _odd_rows(watch, rows[half:])


def _why_odd(gate: Gate | ScoredGate, row: tuple[float, ...]) -> str:
    """What is wrong with the numbers of a row."""
    values, kind = np.array(row), getattr(gate, "input", "score")
    strange = np.flatnonzero(np.isnan(values) | (values == np.inf))
    if len(strange):
        at = int(strange[0])
        what = "NaN" if np.isnan(values[at]) else "infinity"
        return f"number {at + 1} of the row is {what}; drop such rows or mend the model that made them"
    if kind == "probabilities":
        return f"the row holds no probabilities: they sum to {values.sum():.4g}, from {values.min():.4g} up"
    return "the row is -infinity in every class; at least one must be possible"


def _table(watch: Watch, rows: list[Any]) -> Any:
    width = getattr(watch.gate, "n_classes", 0)
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
        [str(record.group) for record, _ in rows] if getattr(watch.gate, "by_group", False) else None,
        late,
        [nth for nth, record, _ in good if record.row is None],
        n,
        bad,
        gaps,
    )


class Table:
    """A file of fixed length, by its rows."""

    def __init__(self, X: Any, labels: Any, ids: Any, groups: Any, name: str) -> None:
        self.X, self.groups, self.name, self.done = X, groups, name, 0
        self.labels = [None] * len(X) if labels is None else labels.tolist()
        self.ids: list[str | None] = [None] * len(X) if ids is None else [str(one) for one in ids.tolist()]
        self._digest = hashlib.blake2b(digest_size=16)

    place, ended, waits, first_fault, good = "", True, False, "", 0

    def wait(self) -> None:
        """There is nothing to wait for."""

    def notes(self) -> list[str]:
        """Nothing happens to such a file."""
        return []

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
        groups = None if self.groups is None else [str(one) for one in self.groups[part]]
        rows = np.asarray(self.X[part])
        return Taken(rows, self.labels[part], self.ids[part], groups=groups)

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


_OTHER = (
    "{} is not the stream that the state was made with, nor does it begin with what was counted. Say --append if it "
    "holds only rows and labels that came after those."
)


def source_of(
    kept: Kept,
    artifact: str,
    path: str,
    reading: Reading,
    probability_key: str | None,
    *,
    append: bool,
    follow: bool,
    lasts: bool,
    strict: bool,
) -> Text | Table:
    """FILE as a source for this watch, from where it was read to before; `lasts` where there is a state."""
    gate = kept.watch.gate
    kind = reading.format or ("csv" if path == "-" else Path(path).suffix.lower().lstrip("."))
    if kind not in KINDS:
        if probability_key is not None or path == "-":
            raise click.UsageError(f"--probability-key and - (standard input) are for text: {', '.join(KINDS)}.")
        return _table_of(kept, gate, artifact, path, reading, append=append)
    reader = _reader_for(gate, path, reading, kind, probability_key)
    if path == "-" or _is_pipe(path):
        file = sys.stdin.fileno() if path == "-" else os.open(path, os.O_RDONLY)
        return Text(kept.watch, reader, Pipe(file), _STANDARD_INPUT, strict=strict)
    name = os.path.abspath(path)
    state = _known(kept, name, path, append=append)
    if not (follow or state) or (os.path.isfile(path) and os.path.getsize(path)):
        check_head(path, ())  # a log that is to grow may be empty, or not there yet
    if state:
        reader = _reader_for(gate, path, reading, kind, probability_key, state)
    since = Position.of(state["position"]) if state else None
    lines = Tail(path, follow=follow, since=since, unfinished=not (follow or lasts))
    return Text(kept.watch, reader, lines, name, strict=strict)


def _is_pipe(path: str) -> bool:
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def _known(kept: Kept, name: str, path: str, *, append: bool) -> dict[str, Any] | None:
    """How far this file was read before; None where it is new. InputError where it does not belong to the state."""
    file = Logs().open(path) if os.path.isfile(path) else None
    fits = {}
    for each, state in kept.sources.items():
        try:
            place = Position.of(state.get("position"))
        except ValueError:
            continue
        if file is not None and place.offset > 0 and place.fits(file):
            fits[each] = state
    if file is not None:
        file.close()
    if name in fits or (kept.sources.get(name) and not append and "position" in kept.sources[name]):
        return kept.sources[name]
    if fits:
        return next(iter(fits.values()))
    if append or kept.sources.get(name) == {} or not set(kept.sources) - {_STANDARD_INPUT}:
        return None
    raise InputError(_OTHER.format(path))


def _table_of(
    kept: Kept, gate: Gate | ScoredGate, artifact: str, path: str, reading: Reading, *, append: bool
) -> Table:
    from metacal.gate import ScoredGate

    name = os.path.abspath(path)
    if isinstance(gate, ScoredGate):
        from metacal.cli.scored import read_scored

        scores = read_scored(path, reading, gate, artifact)
        table = Table(scores.score, scores.correct, scores.ids, None, name)
    else:
        from metacal.cli.reading import labels_as_columns, read_for

        rows = read_for(gate, artifact, path, reading)
        labels = None if rows.labels is None else gate.classes[labels_as_columns(rows, gate.classes)]
        ids = None if rows.ids is None else rows.ids.ravel()
        table = Table(np.asarray(rows.table), labels, ids, rows.groups, name)
    known = [state for state in (kept.sources.get(name), *kept.sources.values()) if state is not None]
    if not any(table.skip(state) for state in known) and known and not append:
        raise InputError(_OTHER.format(path))
    return table


def _refuse_what_the_gate_knows(gate: Gate | ScoredGate, reading: Reading) -> None:
    """Refuse options that a stream has no use for, as wrong usage: nothing that is said is ignored."""
    from metacal.gate import ScoredGate

    logits, scores = ("input", "logits_key", "label_key", "classes"), ("score_key", "correct_key", "higher_is")
    known: dict[str, str | None] = {"classes": None, "higher_is": None}
    if isinstance(gate, ScoredGate):
        known |= {**dict.fromkeys(logits), "group_key": None, "higher_is": gate.higher_is}
    else:
        known |= {**dict.fromkeys(scores), "input": gate.input}
        known |= {} if gate.by_group else {"group_key": None}
    for name, fits in known.items():
        if getattr(reading, name) not in (None, fits):
            option = "--" + name.replace("_", "-")
            raise click.UsageError(f"{option} does not fit here: the gate knows it, or has none; leave it out.")


def _reader_for(
    gate: Gate | ScoredGate,
    path: str,
    reading: Reading,
    kind: str,
    probability_key: str | None,
    state: dict[str, Any] | None = None,
) -> Reader:
    """What makes records of the lines of FILE for this gate."""
    from metacal.files.request import Request
    from metacal.gate import ScoredGate

    _refuse_what_the_gate_knows(gate, reading)
    if isinstance(gate, ScoredGate):
        name = reading.score_key or gate.score
        request = Request(path, logits_key=name, label_key=reading.correct_key, id_key=reading.id_key, scores=True)
    else:
        request = Request(
            path,
            input=gate.input,
            logits_key=reading.logits_key,
            label_key=reading.label_key,
            classes=tuple(gate.classes.tolist()),
            id_key=reading.id_key,
        )
    header, lists = (None, []) if state is None else (state.get("header"), state.get("lists", []))
    return Reader(request, kind, probability_key, reading.group_key, header, lists)
