"""A stream through a watch: rows are decided as they come, labels are joined by id, the state is kept."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from metacal.cli.options import Reading
from metacal.errors import InputError

if TYPE_CHECKING:
    from metacal.artifact.watch import Progress
    from metacal.files.stream import Reader, Record
    from metacal.gate import Gate, ScoredGate
    from metacal.gate.watch import Watch

#: Seconds between two saves while rows come.
_SAVED_EVERY = 1.0
#: Rows of a file of fixed length that are taken in at a time.
_ROWS = 5000


@dataclass
class Stream:
    """Lines of text, and how far they have been read; `before` says which of them had been counted.

    Records are told by their position, and a fingerprint of all up to the last that was counted says that they are the
    same. What is appended (`before` is not in this stream) is all new.
    """

    watch: Watch
    reader: Reader
    path: str
    follow: bool
    before: Progress
    append: bool = False

    def run(self, after: Callable[[], None]) -> None:
        """Read to the end, which with `follow` never comes; `after` is called when something was taken in."""
        from metacal.files.stream import Lines

        with Lines(self.path, follow=self.follow) as lines:
            for batch in lines.batches():
                found = [record for number, line in batch if (record := self._new(number, line)) is not None]
                if found:
                    take(self.watch, found, self.path)
                after()
        if self.reader.records < self._seen:
            raise InputError(
                _OTHER.format(self.path, f"has {self.reader.records:,} records", f"{self._seen:,} had been")
            )

    @property
    def progress(self) -> Progress:
        """How far the stream has been read."""
        from metacal.artifact.watch import Progress

        if self.append:  # another file each time: no fingerprint fits
            return Progress(self.before.records + self.reader.records, "")
        read = Progress(self.reader.records, self.reader.digest)
        return read if read.records > self._seen else self.before

    @property
    def _seen(self) -> int:
        return 0 if self.append else self.before.records

    def _new(self, number: int, line: bytes) -> Record | None:
        record = self.reader.read(number, line)
        if self.reader.records > self._seen:
            return record
        if record is not None and self.reader.records == self._seen and self.reader.digest != self.before.digest:
            raise InputError(_OTHER.format(self.path, "begins otherwise", f"{self._seen:,} records had been"))
        return None


_OTHER = (
    "{} {}, and {} counted: it is not the stream that the state was made with. Say --append if it holds only rows that "
    "came after those."
)


@dataclass
class Table:
    """A file of fixed length, by its rows."""

    watch: Watch
    path: str
    X: Any
    labels: Any
    ids: Any
    groups: Any
    before: Progress
    append: bool = False
    done: int = 0

    def run(self, after: Callable[[], None]) -> None:
        """Take in the rows that had not been counted."""
        seen = 0 if self.append else self.before.records
        if seen > len(self.X) or (seen and self._digest(seen) != self.before.digest):
            raise InputError(_OTHER.format(self.path, "holds other rows", f"{seen:,} had been"))
        labels = [None] * len(self.X) if self.labels is None else _plain(self.labels)
        ids = None if self.ids is None else _plain(self.ids)
        for start in range(seen, len(self.X), _ROWS):
            part = slice(start, min(start + _ROWS, len(self.X)))
            groups = None if self.groups is None else self.groups[part]
            self.watch.update(self.X[part], labels[part], ids=None if ids is None else ids[part], groups=groups)
            self.done = part.stop
            after()
        self.done = len(self.X)

    @property
    def progress(self) -> Progress:
        """How far the file has been read."""
        from metacal.artifact.watch import Progress

        if self.append:
            return Progress(self.before.records + self.done, "")
        return Progress(self.done, self._digest(self.done)) if self.done > self.before.records else self.before

    def _digest(self, n: int) -> str:
        import hashlib

        import numpy as np

        return hashlib.blake2b(np.ascontiguousarray(self.X[:n]).tobytes(), digest_size=16).hexdigest()


def _plain(column: Any) -> list[Any]:
    values: list[Any] = column.tolist()
    return values


def take(watch: Watch, records: list[Record], path: str) -> None:
    """Rows, and labels of earlier rows, in the order in which they came."""
    import numpy as np

    from metacal.gate.watch import Late

    rows, late = [], []
    for record in records:
        label = _label(watch.gate, record, path)
        if record.row is not None:
            rows.append((record, label))
        elif record.id is None or label is None:
            raise InputError(
                f"{path}:{record.line}: a line without a row says the label of an earlier one: it needs an id and a "
                "label."
            )
        else:
            late.append(Late(len(rows), record.id, label, record.probability))
    table, width = np.array([record.row for record, _ in rows]), _width(watch, [record for record, _ in rows], path)
    chances = np.array([record.probability for record, _ in rows], dtype=np.float64)  # NaN where there is none
    by_group = getattr(watch.gate, "by_group", False)
    watch.update(
        table[:, 0] if width == 0 else table.reshape(len(rows), width),
        [label for _, label in rows],
        ids=[record.id for record, _ in rows],
        probability=chances,
        groups=np.array([str(record.group) for record, _ in rows]) if by_group else None,
        late=late,
    )


def _width(watch: Watch, records: list[Record], path: str) -> int:
    """The classes of the gate; 0 for a gate on scores. Raises where a row has not as many numbers."""
    width = getattr(watch.gate, "n_classes", 0)
    for record in records:
        if len(record.row or ()) != max(1, width):
            raise InputError(
                f"{path}:{record.line}: this row has {len(record.row or ())} numbers, the gate was fitted on {width} "
                "classes; give predictions of the same classifier."
            )
    return width


def _label(gate: Gate | ScoredGate, record: Record, path: str) -> Any:
    """The label as the gate knows it; None where there is none."""
    label = record.label
    if label is None:
        return None
    classes = getattr(gate, "classes", None)
    if classes is None:
        from metacal.rows.given import correct_column

        return bool(correct_column([label], name="correct", place=lambda row: f"{path}:{record.line}")[0])
    known = {str(name): name for name in classes.tolist()}
    text = str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)
    if text not in known:
        raise InputError(f"{path}:{record.line}: the label {text[:40]!r} is none of the gate's classes.")
    return known[text]


@dataclass
class Keeper:
    """What is done after each batch: the state is saved, the metrics are written, the page is told."""

    save: Callable[[], None] | None
    publish: Callable[[], None]
    seen: tuple[int, ...] = ()
    unsaved: bool = False
    saved_at: float = field(default_factory=time.monotonic)

    def __call__(self, watch: Watch) -> None:
        """Publish what is new; save now and then, and soon after the last row."""
        now = (watch.counts.rows, watch.counts.labelled, watch.unknown)
        if now != self.seen:
            self.seen, self.unsaved = now, True
            self.publish()
        if self.unsaved and self.save is not None and time.monotonic() - self.saved_at >= _SAVED_EVERY:
            self.save()
            self.unsaved, self.saved_at = False, time.monotonic()


def source_of(
    watch: Watch,
    artifact: str,
    path: str,
    reading: Reading,
    probability_key: str | None,
    before: Progress,
    *,
    append: bool,
    follow: bool,
) -> Stream | Table:
    """FILE as rows for this watch: text line by line, any other kind as a whole."""
    from metacal.files.stream import KINDS

    gate = watch.gate
    kind = reading.format or ("csv" if path == "-" else Path(path).suffix.lower().lstrip("."))
    if kind in KINDS:
        reader = _reader_for(gate, path, reading, kind, probability_key)
        return Stream(watch, reader, path, follow, before, append or path == "-")
    if probability_key is not None or path == "-":
        raise click.UsageError(f"--probability-key and - (standard input) are for text: {', '.join(KINDS)}.")
    from metacal.gate import ScoredGate

    if isinstance(gate, ScoredGate):
        from metacal.cli.scored import read_scored

        scores = read_scored(path, reading, gate, artifact)
        return Table(watch, path, scores.score, scores.correct, scores.ids, None, before, append)
    import numpy as np

    from metacal.cli.reading import labels_as_columns, read_for

    found = read_for(gate, artifact, path, reading)
    labels = None if found.labels is None else gate.classes[labels_as_columns(found, gate.classes)]
    ids = None if found.ids is None else found.ids.ravel()
    return Table(watch, path, np.asarray(found.table), labels, ids, found.groups, before, append)


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


def _reader_for(gate: Gate | ScoredGate, path: str, reading: Reading, kind: str, probability_key: str | None) -> Reader:
    """What makes records of the lines of FILE for this gate."""
    from metacal.files.request import Request
    from metacal.files.stream import Reader
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
    return Reader(request, kind, probability_key, reading.group_key)
