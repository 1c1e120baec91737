"""The state of a watch in a journal, and back: sealed JSON, checked before use.

It belongs to one gate: the fingerprint of the gate's own document stands in it, and what is watched, at which levels,
must be what that gate gives. The journal begins with a whole state; what was taken in since follows
(`metacal.io.artifact.taken`).
"""

from __future__ import annotations

import os
from collections import ChainMap
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from metacal.errors import ArtifactError
from metacal.gate import Gate
from metacal.gate.watch import LONGEST_ID, MOST_POINTS, MOST_WAITING, Counts, Point, Waiting, Watch
from metacal.io.artifact.document import Content, document_of
from metacal.io.artifact.encoding import (
    annotations_of,
    decode,
    decode_map,
    encode,
    encode_map,
    exact_keys,
    maps_in,
    shown,
)
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
#: Plain entries of a watch, with their kinds.
_PLAIN: dict[str, Any] = {
    "unknown": int,
    "forgotten": int,
    "gaps": int,
    "confidence": float,
    "variance": float,
    "stride": int,
}
KEYS = ("kind", "gate", "alarms", "counts", "classes", "waiting", "history", "first", *_PLAIN)
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
        sources, serial = first["sources"], decode(int, first["n"], "n", {})
        if not isinstance(sources, dict) or not all(isinstance(one, dict) for one in sources.values()):
            raise ArtifactError("sources must say how far each was read.")
        kept = Kept(watch_from(first["watch"], gate), sources, serial)
        kept.replay(records[1:])
    except ArtifactError as error:
        raise ArtifactError(f"{path}: {error}") from error.__cause__
    return kept


def describe_watch(watch: Watch) -> dict[str, Any]:
    """The document of a watch."""
    return {
        "kind": MONITOR,
        "gate": _fingerprint(watch.gate),
        **{name: encode(getattr(watch, name), name, {}) for name in _PLAIN},
        "alarms": encode_map(watch.alarms, "alarms", maps_in(Alarms) | _nested()),
        "counts": _listed(watch.counts),
        "classes": [_listed(one) for one in watch.classes],
        "waiting": [[encode(name, "an id", {}), *_listed(one)] for name, one in watch.waiting.items()],
        "history": [_listed(one) for one in watch.history],
        "first": dict(watch.first),
    }


def watch_from(document: Any, gate: Any) -> Watch:
    """The watch that a document describes, or ArtifactError."""
    if not isinstance(document, dict) or document.get("kind") != MONITOR:
        raise ArtifactError("this is not the state of a monitor.")
    exact_keys(document, KEYS, "the state")
    held = getattr(gate, "gate_", gate)
    if document["gate"] != _fingerprint(held):
        raise ArtifactError("this state belongs to another gate; give the gate that it was made with, or begin anew.")
    alarms: Alarms = decode_map(document["alarms"], "alarms", maps_in(Alarms) | _nested(), only=Alarms)
    watch = _begun_like(alarms, held)
    for name, kind in _PLAIN.items():
        setattr(watch, name, decode(kind, document[name], name, {}))
    watch.alarms = alarms
    watch.counts = _from_list(Counts, document["counts"], "counts")
    classes = [_from_list(Counts, one, "classes") for one in _list(document["classes"], "classes")]
    if len(classes) != len(watch.classes):
        raise ArtifactError(f"there are counts of {len(classes)} classes, and the gate has {len(watch.classes)}.")
    watch.classes = classes
    watch.waiting = _waiting(document["waiting"])
    watch.history = [_from_list(Point, one, "history") for one in _list(document["history"], "history")]
    watch.first = _first(document["first"])
    _agree(watch)
    return watch


def _fingerprint(gate: Gate) -> str:
    return checksum(document_of(Content(gate)))


def _nested() -> ChainMap[str, type]:
    found = maps_in(PromiseMonitor)
    for kind in _BEGUN:
        found |= maps_in(kind)
    return found


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


def _agree(watch: Watch) -> None:
    """Raise where counts contradict each other."""
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


def _listed(value: Any) -> list[Any]:
    return [encode(getattr(value, each.name), each.name, {}) for each in fields(value)]


def _list(data: Any, where: str) -> list[Any]:
    if not isinstance(data, list):
        raise ArtifactError(f"{where} must be a list, not {shown(data)}.")
    return data


def _from_list(cls: Any, data: Any, where: str) -> Any:
    names, kinds = [each.name for each in fields(cls)], annotations_of(cls)
    if len(_list(data, where)) != len(names):
        raise ArtifactError(f"{where} must have {len(names)} entries, not {len(data)}.")
    return cls(*(decode(kinds[name], value, f"{where}.{name}", {}) for name, value in zip(names, data)))


def _waiting(data: Any) -> dict[str | int, Waiting]:
    rows = _list(data, "waiting")
    if len(rows) > MOST_WAITING:
        raise ArtifactError(f"{len(rows):,} rows wait for a label; {MOST_WAITING:,} is the most.")
    found = {}
    for row in rows:
        name = decode(str | int, _list(row, "waiting")[0] if row else None, "waiting", {})
        if isinstance(name, str) and len(name) > LONGEST_ID:
            raise ArtifactError("an id is too long.")
        found[name] = _from_list(Waiting, row[1:], "waiting")
    if len(found) < len(rows):
        raise ArtifactError("an id waits twice.")
    return found


def _first(data: Any) -> dict[str, int]:
    if not isinstance(data, dict) or not set(data) <= set(NAMES):
        raise ArtifactError("first must say at which row alarms were raised, by their names.")
    return {name: decode(int, row, f"first.{name}", {}) for name, row in data.items()}
