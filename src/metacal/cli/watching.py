"""Files as sources of a watch, from where they were read to before: text line by line, any other kind as a whole."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from metacal.cli.options import Reading
from metacal.cli.text_source import STANDARD_INPUT, Text
from metacal.errors import InputError
from metacal.io.artifact.taken import Kept, Taken
from metacal.io.lines import Logs, Pipe, Position
from metacal.io.opening import check_head
from metacal.io.stream import KINDS, Reader
from metacal.io.tail import Tail

if TYPE_CHECKING:
    from metacal.gate import Gate

#: Rows of a file of fixed length that are taken in at a time.
_ROWS = 5000


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
        return Text(kept.watch, reader, Pipe(file), STANDARD_INPUT, strict=strict)
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
    if name in fits or (kept.sources.get(name) and not append and "position" in kept.sources[name]):
        return kept.sources[name]
    if fits:
        return next(iter(fits.values()))
    if append or kept.sources.get(name) == {} or not set(kept.sources) - {STANDARD_INPUT}:
        return None
    raise InputError(_OTHER.format(path))


def _table_of(kept: Kept, gate: Gate, artifact: str, path: str, reading: Reading, *, append: bool) -> Table:
    from metacal.cli.given import read_given

    name = os.path.abspath(path)
    given = read_given(gate, artifact, path, reading)
    labels = given.truth
    if labels is not None and gate.n_classes:
        labels = gate.classes[gate.codes(labels, len(given))]
    table = Table(np.asarray(given.found.table), labels, given.ids, given.groups, name)
    known = [state for state in (kept.sources.get(name), *kept.sources.values()) if state is not None]
    if not any(table.skip(state) for state in known) and known and not append:
        raise InputError(_OTHER.format(path))
    return table


def _refuse_what_the_gate_knows(gate: Gate, reading: Reading) -> None:
    """Refuse options that a stream has no use for, as wrong usage: nothing that is said is ignored."""
    logits, scores = ("input", "logits_key", "label_key", "classes"), ("score_key", "correct_key", "higher_is")
    known: dict[str, str | None] = {"classes": None, "higher_is": None}
    if gate.kind == "scores":
        known |= {**dict.fromkeys(logits), "higher_is": gate.source.higher_is}
    else:
        known |= {**dict.fromkeys(scores), "input": gate.source.input}
    known |= {} if gate.by_group else {"group_key": None}
    for name, fits in known.items():
        if getattr(reading, name) not in (None, fits):
            option = "--" + name.replace("_", "-")
            raise click.UsageError(f"{option} does not fit here: the gate knows it, or has none; leave it out.")


def _reader_for(
    gate: Gate,
    path: str,
    reading: Reading,
    kind: str,
    probability_key: str | None,
    state: dict[str, Any] | None = None,
) -> Reader:
    """What makes records of the lines of FILE for this gate."""
    from metacal.io.columns import Request

    _refuse_what_the_gate_knows(gate, reading)
    if gate.kind == "scores":
        name = reading.score_key or gate.source.score
        request = Request(path, logits_key=name, label_key=reading.correct_key, id_key=reading.id_key, scores=True)
    else:
        request = Request(
            path,
            input=gate.source.input,
            logits_key=reading.logits_key,
            label_key=reading.label_key,
            classes=tuple(gate.classes.tolist()),
            id_key=reading.id_key,
        )
    header, lists = (None, []) if state is None else (state.get("header"), state.get("lists", []))
    return Reader(request, kind, probability_key, reading.group_key, header, lists)
