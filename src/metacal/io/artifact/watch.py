"""The state of a watch in a journal, and back: sealed JSON, checked before use.

It belongs to one gate: the fingerprint of the gate's own document stands in it, and what is
watched, at which levels, must be what that gate gives. The journal begins with a whole state; each
record after it is what came next, rows and labels (`Taken`), so that the state of now follows from
them in order, however the process ended.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metacal.errors import ArtifactError, InputError
from metacal.gate import Gate
from metacal.gate.judged import by_model
from metacal.gate.traffic import LONGEST_ID, Counts, Id, Late, Lines, Point, Waiting, kept_id
from metacal.gate.watch import MOST_POINTS, MOST_WAITING, Watch
from metacal.io.artifact.document import Content, document_of
from metacal.io.artifact.encoding import (
    ENTRIES,
    FORMS,
    Form,
    decode,
    decode_entries,
    encode,
    entries,
    row_form,
)
from metacal.io.artifact.messages import exact_keys, naming
from metacal.io.artifact.wrapping import checksum
from metacal.io.journal import Journal, read_journal
from metacal.promises.sequential.alarms import NAMES, Alarms
from metacal.promises.sequential.drift import TOLERANCE

#: What a source is known by and how far it was read, as JSON: a name, and what whoever reads it
#: wants to know again.
Source = dict[str, Any]
#: So many sources are remembered.
MOST_SOURCES = 100


class Unreadable(NamedTuple):
    """A line that could not be read: which of the lines that came together, its number, why, and
    what stands there.
    """

    nth: int
    line: int
    reason: str
    text: str


@dataclass(eq=False)
class Taken:
    """Rows and late labels that came together, in their order, and the lines that they stood on.

    There are `lines` of them: some unreadable, those of late labels, and those of rows (`rows_on`).

    Examples
    --------
    >>> taken = Taken(np.array([[2.5, -1.0]]), ["cat"], ["a"], late=[Late(1, "b", "dog")], rows_on=[0], lines=2)
    >>> Taken.of(taken.described()).described() == taken.described()
    True
    """

    rows: NDArray[np.floating[Any]]
    labels: list[Any]
    ids: list[str | None]
    probability: list[float | None] | None = None
    groups: list[str] | None = None
    units: list[str] | None = None
    late: list[Late] = field(default_factory=list)
    rows_on: list[int] = field(default_factory=list)
    lines: int = 0
    unreadable: list[Unreadable] = field(default_factory=list)
    gaps: int = 0

    def into(self, watch: Watch) -> None:
        """Give it to a watch."""
        chances = None if self.probability is None else np.array(self.probability, dtype=np.float64)
        groups = None if self.groups is None else np.array(self.groups, dtype=np.str_)
        broken = np.zeros(self.lines, dtype=bool)
        broken[[one.nth for one in self.unreadable]] = True
        if self.lines and len(self.rows_on) != len(self.rows):
            raise ArtifactError("a record holds other rows than lines.")
        watch.update(
            by_model(watch.gate, self.rows),
            self.labels,
            ids=self.ids,
            probability=chances,
            groups=groups,
            units=self.units,
            late=self.late,
            lines=Lines(broken, self.rows_on) if self.lines else None,
        )
        watch.gaps += self.gaps

    def described(self) -> dict[str, Any]:
        """As JSON types."""
        kind = "<f4" if self.rows.dtype == np.float32 else "<f8"
        rows = base64.b64encode(np.ascontiguousarray(self.rows, dtype=kind).tobytes()).decode(
            "ascii"
        )
        told = {
            "rows": rows,
            "ids": [None if one is None else kept_id(one) for one in self.ids],
            "late": [[one.after, kept_id(one.id), one.label, one.probability] for one in self.late],
            "unreadable": [list(one) for one in self.unreadable],
        }
        return {"dtype": kind, "shape": list(self.rows.shape), **vars(self), **told}

    @classmethod
    def of(cls, data: dict[str, Any]) -> Taken:
        """From its description; ArtifactError where that is none."""
        try:
            content = base64.b64decode(data["rows"], validate=True)
            kind = np.dtype({"<f4": "f4", "<f8": "f8"}[data["dtype"]])
            rows = np.frombuffer(content, dtype=data["dtype"]).reshape(data["shape"]).astype(kind)
            late, unreadable = (
                [Late(*one) for one in data["late"]],
                [Unreadable(*one) for one in data["unreadable"]],
            )
            rest = {each.name: data[each.name] for each in fields(cls)}
            return cls(**{**rest, "rows": rows, "late": late, "unreadable": unreadable})
        except (KeyError, TypeError, ValueError) as error:
            raise ArtifactError("a record is none of what a monitor takes in.") from error


@dataclass
class Kept:
    """What is kept of a monitor: its watch, how far each source was read, and how many records came
    after each other.

    `last` is what was taken in last, None where nothing came after the whole state.
    """

    watch: Watch
    sources: dict[str, Source] = field(default_factory=dict)
    serial: int = 0
    last: Taken | None = None

    def add(self, taken: Taken, name: str, source: Source) -> dict[str, Any]:
        """Take in what has come from a source; the record of it."""
        taken.into(self.watch)
        self.sources.pop(name, None)
        self.sources[name] = source
        if len(self.sources) > MOST_SOURCES:
            del self.sources[next(iter(self.sources))]
        self.serial, self.last = self.serial + 1, taken
        return {"n": self.serial, "taken": taken.described(), "name": name, "source": source}

    def replay(self, records: Sequence[dict[str, Any]]) -> None:
        """Take in what records say."""
        for record in records:
            try:
                taken, name, source = Taken.of(record["taken"]), record["name"], record["source"]
                if (
                    record["n"] != self.serial + 1
                    or not isinstance(name, str)
                    or not isinstance(source, dict)
                ):
                    raise ValueError
                self.add(taken, name, source)
            except (KeyError, IndexError, TypeError, ValueError, InputError) as error:
                raise ArtifactError(
                    "a record is none of what this monitor has taken in."
                ) from error


# ── the whole state ───────────────────────────────────────────────────────────────────────────────

#: The kind of such a journal, and of the state in it.
MONITOR = "monitor"
#: What a monitor has seen; the rest is what it was begun with.
_SEEN = {
    "rows",
    "events",
    "rejected",
    "right",
    "counts",
    "confidence",
    "lines",
    "unreadable",
    "capital",
}
_SEEN |= {"log_evidence", "log_peak"}


def save_watch(watch: Watch, path: str | os.PathLike[str]) -> None:
    """Write the state of a watch; `load_watch` goes on from there, and so does `metacal monitor
    --state`.

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
        journal.rewrite([checkpoint(Kept(watch))])


def load_watch(path: str | os.PathLike[str], gate: Any) -> Watch:
    """The watch on this gate whose state was saved, or is being kept by `metacal monitor --state`.

    A file that is damaged, contradicts itself or belongs to another gate raises ArtifactError.
    """
    name = os.fspath(path)
    records = read_journal(name, MONITOR)
    if not records:
        raise ArtifactError(f"{name}: there is no state of a monitor.")
    return kept_from(records, gate, name).watch


def checkpoint(kept: Kept) -> dict[str, Any]:
    """The record of a whole state."""
    return {"watch": describe_watch(kept.watch), "sources": dict(kept.sources), "n": kept.serial}


def kept_from(records: Sequence[dict[str, Any]], gate: Any, path: str) -> Kept:
    """The state that the records of a journal give; ArtifactError, which names the file, where they
    give none.
    """
    with naming(path):
        first = records[0]
        exact_keys(first, ["watch", "sources", "n"], "the first record")
        sources, serial = first["sources"], decode(int, first["n"], "n")
        if not isinstance(sources, dict) or not all(
            isinstance(one, dict) for one in sources.values()
        ):
            raise ArtifactError("sources must say how far each was read.")
        kept = Kept(watch_from(first["watch"], gate), sources, serial)
        kept.replay(records[1:])
    return kept


def _pairs(pairs: tuple[tuple[Any, Any], ...], where: str) -> dict[Any, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ArtifactError("an id waits twice, or an alarm was first raised twice.")
    return found


#: What stands in a journal of each field of a watch, all but its gate: a dict is the list of its
#: pairs.
ENTRIES[Watch] = {name: kind for name, kind in entries(Watch).items() if name != "gate"}
for _row in (Counts, Waiting, Point):  # there are many of them: lists in the order of their fields
    FORMS[_row] = row_form(_row)


def _paired(shape: Any) -> Form:
    return Form(shape, lambda held, where: [*held.items()], _pairs)


FORMS[dict[Id, Waiting]] = _paired(tuple[tuple[Id, Waiting], ...])
FORMS[dict[str, int]] = _paired(tuple[tuple[Literal[NAMES], int], ...])  # type: ignore[valid-type]
FORMS[dict[Id, None]] = Form(
    tuple[Id, ...], lambda held, where: [*held], lambda read, where: dict.fromkeys(read)
)


def describe_watch(watch: Watch) -> dict[str, Any]:
    """The document of a watch: the fingerprint of its gate, and what it has seen."""
    return {"kind": MONITOR, "gate": _fingerprint(watch.gate), **encode(watch, "the watch")}


def watch_from(document: Any, gate: Any) -> Watch:
    """The watch that a document describes, or ArtifactError."""
    if not isinstance(document, dict) or document.get("kind") != MONITOR:
        raise ArtifactError("this is not the state of a monitor.")
    state = {name: entry for name, entry in document.items() if name not in ("kind", "gate")}
    seen = decode_entries(Watch, state, "the state")
    held = getattr(gate, "gate_", gate)
    if document.get("gate") != _fingerprint(held):
        raise ArtifactError(
            "this state belongs to another gate; give the gate that it was made with, or begin"
            " anew."
        )
    begun = _begun_like(seen["alarms"], held)
    if len(seen["classes"]) != len(begun.classes):
        raise ArtifactError(
            f"there are counts of {len(seen['classes'])} classes, and the gate has"
            f" {len(begun.classes)}."
        )
    watch = replace(begun, **seen)
    _agree(watch)
    return watch


def _fingerprint(gate: Gate) -> str:
    return checksum(document_of(Content(gate)))


def _begun_like(alarms: Alarms, gate: Gate) -> Watch:
    """A new watch on the gate with the levels of these alarms; raises where it would watch
    something else.
    """
    sampled: list[Any] = [*alarms.promise, *alarms.calibration]
    begun_with: dict[str, Any] = {
        "least_probability": min((one.least_probability for one in sampled), default=1.0),
        "tolerance": alarms.calibration[0].tolerance if alarms.calibration else TOLERANCE,
        "most_unreadable": alarms.unreadable[0].limit if alarms.unreadable else None,
    }
    try:
        watch = Watch.of(gate, alarms.delta, **begun_with)
    except ValueError as error:
        raise ArtifactError(f"alarms: {error}") from error
    for name in NAMES:
        if [_begun(one) for one in getattr(alarms, name)] != [
            _begun(one) for one in getattr(watch.alarms, name)
        ]:
            raise ArtifactError(f"what the {name} alarm watches is not what this gate gives.")
        for one, new in zip(getattr(alarms, name), getattr(watch.alarms, name)):
            _check_capital(one, new)
    return watch


def begun(watch: Watch) -> dict[str, Any]:
    """What a watch was begun with, and cannot change: its horizon, and of each alarm what it
    watches at which level.
    """
    alarms = {name: [_begun(one) for one in getattr(watch.alarms, name)] for name in NAMES}
    return {"horizon": watch.horizon, "delta": watch.alarms.delta, **alarms}


def _begun(monitor: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(monitor).items() if name not in _SEEN}


def _check_capital(one: Any, new: Any) -> None:
    """Raise unless the wagers are those that such a monitor begins with, and the peak is one."""
    wagers = [(wager.guess, wager.guess_gain) for wager in one.capital.wagers]
    if wagers != [(wager.guess, wager.guess_gain) for wager in new.capital.wagers]:
        raise ArtifactError("a monitor has other wagers than it began with.")
    if not one.capital.log_peak >= max(0.0, one.capital.log_now) or any(
        w.rows > 2**53 for w in one.capital.wagers
    ):
        raise ArtifactError("evidence lies above its own peak.")


def _agree(watch: Watch) -> None:
    """Raise where counts contradict each other, or too many rows wait."""
    for counts in (watch.counts, *watch.classes):
        least = min(vars(counts).values())
        fits = (
            counts.accepted <= counts.rows
            and counts.right_accepted <= counts.labelled_accepted <= counts.labelled
        )
        if least < 0 or not fits or counts.labelled > counts.rows:
            raise ArtifactError("the counts contradict each other.")
    if watch.classes and sum(one.rows for one in watch.classes) != watch.counts.rows:
        raise ArtifactError("the rows of the classes are not all rows.")
    width = len(list(watch.alarms))
    if (
        watch.stride < 1
        or len(watch.history) > MOST_POINTS
        or any(len(p.evidence) != width for p in watch.history)
    ):
        raise ArtifactError("the history does not fit what is watched.")
    if not 0 <= watch.horizon < MOST_WAITING or watch.unlabelled < 0:
        raise ArtifactError("the horizon is no number of rows.")
    names = {row.unit for row in watch.waiting.values()} - {None}
    if ((names or watch.closed) and not watch.by_unit) or names & watch.closed.keys():
        raise ArtifactError("what is known of units contradicts itself or the gate.")
    if min(watch.complete, watch.strays) < 0 or len(watch.closed) > MOST_WAITING:
        raise ArtifactError("the counts of units contradict each other.")
    if len(watch.waiting) > MOST_WAITING:
        raise ArtifactError(
            f"{len(watch.waiting):,} rows wait for a label; {MOST_WAITING:,} is the most."
        )
    if any(isinstance(name, str) and len(name) > LONGEST_ID for name in watch.waiting):
        raise ArtifactError("an id is too long.")
