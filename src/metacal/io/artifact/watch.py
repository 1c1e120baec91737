"""The state of a watch in a journal, and back: sealed JSON, checked before use.

It belongs to one gate: the fingerprint of the gate's own document stands in it, and what is watched, at which levels,
must be what that gate gives. The journal begins with a whole state; what was taken in since follows
(`metacal.io.artifact.taken`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from metacal.errors import ArtifactError
from metacal.gate import Gate
from metacal.gate.watch import LONGEST_ID, MOST_POINTS, MOST_WAITING, Counts, Id, Point, Waiting, Watch
from metacal.io.artifact.document import Content, document_of
from metacal.io.artifact.encoding import FORMS, decode, encode, exact_keys, row_form
from metacal.io.artifact.taken import Kept
from metacal.io.artifact.wrapping import checksum
from metacal.io.journal import Journal, read_journal
from metacal.promises.sequential.alarms import NAMES, Alarms
from metacal.promises.sequential.drift import (
    TOLERANCE,
    AbstentionMonitor,
    CalibrationMonitor,
    ScoreMonitor,
    UnreadableMonitor,
)
from metacal.promises.sequential.monitor import PromiseMonitor

#: The kind of such a journal, and of the state in it.
MONITOR = "monitor"
#: What each monitor was begun with; the rest is what it has seen.
_BEGUN = {
    PromiseMonitor: ("quantity", "limit", "delta", "largest", "parts", "least_probability"),
    AbstentionMonitor: ("n_rows", "n_accepted", "delta", "parts"),
    ScoreMonitor: ("profile", "delta"),
    CalibrationMonitor: ("tolerance", "delta", "least_probability"),
    UnreadableMonitor: ("limit", "delta"),
}


def save_watch(watch: Watch, path: str | os.PathLike[str]) -> None:
    """Write the state of a watch; `load_watch` goes on from there, and so does `metacal monitor --state`.

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
    """The state that the records of a journal give; ArtifactError, which names the file, where they give none."""
    try:
        first = records[0]
        exact_keys(first, ["watch", "sources", "n"], "the first record")
        sources, serial = first["sources"], decode(int, first["n"], "n")
        if not isinstance(sources, dict) or not all(isinstance(one, dict) for one in sources.values()):
            raise ArtifactError("sources must say how far each was read.")
        kept = Kept(watch_from(first["watch"], gate), sources, serial)
        kept.replay(records[1:])
    except ArtifactError as error:
        raise ArtifactError(f"{path}: {error}") from error.__cause__
    return kept


@dataclass(frozen=True)
class State:
    """A watch as it stands in a journal: the fingerprint of its gate, and what it has seen."""

    kind: Literal["monitor"]
    gate: str
    alarms: Alarms
    counts: Counts
    classes: tuple[Counts, ...]
    waiting: tuple[tuple[Id, Waiting], ...]
    unknown: int
    forgotten: int
    gaps: int
    confidence: float
    variance: float
    stride: int
    history: tuple[Point, ...]
    first: tuple[tuple[Literal[NAMES], int], ...]  # type: ignore[valid-type]


for _row in (Counts, Waiting, Point):  # there are many of them: lists in the order of their fields
    FORMS[_row] = row_form(_row)


def describe_watch(watch: Watch) -> dict[str, Any]:
    """The document of a watch."""
    held = {**vars(watch), "waiting": tuple(watch.waiting.items()), "first": tuple(watch.first.items())}
    state: dict[str, Any] = encode(State(**{**held, "kind": MONITOR, "gate": _fingerprint(watch.gate)}), "the watch")
    return state


def watch_from(document: Any, gate: Any) -> Watch:
    """The watch that a document describes, or ArtifactError."""
    if not isinstance(document, dict) or document.get("kind") != MONITOR:
        raise ArtifactError("this is not the state of a monitor.")
    state: State = decode(State, document, "the state")
    held = getattr(gate, "gate_", gate)
    if state.gate != _fingerprint(held):
        raise ArtifactError("this state belongs to another gate; give the gate that it was made with, or begin anew.")
    begun = _begun_like(state.alarms, held)
    if len(state.classes) != len(begun.classes):
        raise ArtifactError(f"there are counts of {len(state.classes)} classes, and the gate has {len(begun.classes)}.")
    seen = {name: value for name, value in vars(state).items() if name not in ("kind", "gate")}
    lists = {"classes": list(state.classes), "history": list(state.history)}
    watch = replace(begun, **{**seen, **lists, "waiting": dict(state.waiting), "first": dict(state.first)})
    _agree(watch, len(state.waiting), len(state.first))
    return watch


def _fingerprint(gate: Gate) -> str:
    return checksum(document_of(Content(gate)))


def _begun_like(alarms: Alarms, gate: Gate) -> Watch:
    """A new watch on the gate with the levels of these alarms; raises where it would watch something else."""
    sampled = [one.least_probability for one in alarms.promise]
    sampled += [one.least_probability for one in alarms.calibration]
    tolerance = alarms.calibration[0].tolerance if alarms.calibration else TOLERANCE
    limits = [one.limit for one in alarms.unreadable]
    least = min(sampled, default=1.0)
    try:
        watch = Watch.of(
            gate,
            alarms.delta,
            least_probability=least,
            tolerance=tolerance,
            most_unreadable=limits[0] if limits else None,
        )
    except ValueError as error:
        raise ArtifactError(f"alarms: {error}") from error
    for name in NAMES:
        if [_begun(one) for one in getattr(alarms, name)] != [_begun(one) for one in getattr(watch.alarms, name)]:
            raise ArtifactError(f"what the {name} alarm watches is not what this gate gives.")
        for one, new in zip(getattr(alarms, name), getattr(watch.alarms, name)):
            _check_capital(one, new)
    return watch


def _begun(monitor: Any) -> list[Any]:
    return [getattr(monitor, name) for name in _BEGUN[type(monitor)]]


def _check_capital(one: Any, new: Any) -> None:
    """Raise unless the wagers are those that such a monitor begins with, and the peak is one."""
    wagers = [(wager.guess, wager.guess_gain) for wager in one.capital.wagers]
    if wagers != [(wager.guess, wager.guess_gain) for wager in new.capital.wagers]:
        raise ArtifactError("a monitor has other wagers than it began with.")
    if not one.capital.log_peak >= max(0.0, one.capital.log_now) or any(w.rows > 2**53 for w in one.capital.wagers):
        raise ArtifactError("evidence lies above its own peak.")


def _agree(watch: Watch, n_waiting: int, n_first: int) -> None:
    """Raise where counts contradict each other, an id waits twice or too many do."""
    for counts in (watch.counts, *watch.classes):
        least = min(vars(counts).values())
        fits = counts.accepted <= counts.rows and counts.right_accepted <= counts.labelled_accepted <= counts.labelled
        if least < 0 or not fits or counts.labelled > counts.rows:
            raise ArtifactError("the counts contradict each other.")
    if watch.classes and sum(one.rows for one in watch.classes) != watch.counts.rows:
        raise ArtifactError("the rows of the classes are not all rows.")
    width = len(list(watch.alarms))
    if watch.stride < 1 or len(watch.history) > MOST_POINTS or any(len(p.evidence) != width for p in watch.history):
        raise ArtifactError("the history does not fit what is watched.")
    if n_waiting > MOST_WAITING:
        raise ArtifactError(f"{n_waiting:,} rows wait for a label; {MOST_WAITING:,} is the most.")
    if any(isinstance(name, str) and len(name) > LONGEST_ID for name in watch.waiting):
        raise ArtifactError("an id is too long.")
    if len(watch.waiting) < n_waiting or len(watch.first) < n_first:
        raise ArtifactError("an id waits twice, or an alarm was first raised twice.")
