"""What a watch has taken in since its state was last written: rows and labels as a record of a journal, and back.

A journal of a monitor begins with a whole state (`metacal.io.artifact.watch`); each record after it is what came next,
so that the state of now follows from them in order, however the process ended.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metacal.errors import ArtifactError, InputError
from metacal.gate.watch import Late, Lines, Watch, kept_id

#: What a source is known by and how far it was read, as JSON: a name, and what whoever reads it wants to know again.
Source = dict[str, Any]
#: So many sources are remembered.
MOST_SOURCES = 100


class Unreadable(NamedTuple):
    """A line that could not be read: which of the lines that came together, its number, why, and what stands there."""

    nth: int
    line: int
    reason: str
    text: str


@dataclass
class Taken:
    """Rows and late labels that came together, in their order, and the lines that they stood on.

    There are `lines` of them: some unreadable, those of late labels (`late_on`), and those of rows.

    Examples
    --------
    >>> taken = Taken(np.array([[2.5, -1.0]]), ["cat"], ["a"], late=[Late(1, "b", "dog")], late_on=[1], lines=2)
    >>> Taken.of(taken.described()) == taken
    True
    """

    rows: NDArray[np.floating[Any]]
    labels: list[Any]
    ids: list[str | None]
    probability: list[float | None] | None = None
    groups: list[str] | None = None
    late: list[Late] = field(default_factory=list)
    late_on: list[int] = field(default_factory=list)
    lines: int = 0
    unreadable: list[Unreadable] = field(default_factory=list)
    gaps: int = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Taken) and self.described() == other.described()

    __hash__ = None  # type: ignore[assignment]

    def into(self, watch: Watch) -> None:
        """Give it to a watch."""
        chances = None if self.probability is None else np.array(self.probability, dtype=np.float64)
        groups = None if self.groups is None else np.array(self.groups, dtype=np.str_)
        broken, other = np.zeros(self.lines, dtype=bool), np.zeros(self.lines, dtype=bool)
        broken[[one.nth for one in self.unreadable]] = True
        other[self.late_on] = True
        lines = Lines(broken, np.flatnonzero(~broken & ~other).tolist()) if self.lines else None
        if lines is not None and len(lines.rows) != len(self.rows):
            raise ArtifactError("a record holds other rows than lines.")
        watch.update(
            self.rows, self.labels, ids=self.ids, probability=chances, groups=groups, late=self.late, lines=lines
        )
        watch.gaps += self.gaps

    def described(self) -> dict[str, Any]:
        """As JSON types."""
        return {
            "dtype": (kind := "<f4" if self.rows.dtype == np.float32 else "<f8"),
            "shape": list(self.rows.shape),
            "rows": base64.b64encode(np.ascontiguousarray(self.rows, dtype=kind).tobytes()).decode("ascii"),
            "labels": self.labels,
            "ids": [None if one is None else kept_id(one) for one in self.ids],
            "probability": self.probability,
            "groups": self.groups,
            "late": [[one.after, kept_id(one.id), one.label, one.probability] for one in self.late],
            "late_on": self.late_on,
            "lines": self.lines,
            "unreadable": [list(one) for one in self.unreadable],
            "gaps": self.gaps,
        }

    @classmethod
    def of(cls, data: dict[str, Any]) -> Taken:
        """From its description; ArtifactError where that is none."""
        try:
            content = base64.b64decode(data["rows"], validate=True)
            kind = np.dtype({"<f4": "f4", "<f8": "f8"}[data["dtype"]])
            rows = np.frombuffer(content, dtype=data["dtype"]).reshape(data["shape"]).astype(kind)
            rest = {name: data[name] for name in ("labels", "ids", "probability", "groups", "late_on", "lines", "gaps")}
            late = [Late(*one) for one in data["late"]]
            return cls(rows, **rest, late=late, unreadable=[Unreadable(*one) for one in data["unreadable"]])
        except (KeyError, TypeError, ValueError) as error:
            raise ArtifactError("a record is none of what a monitor takes in.") from error


@dataclass
class Kept:
    """What is kept of a monitor: its watch, how far each source was read, and how many records came after each other.

    `last` is what was taken in last, None where nothing came after the whole state.
    """

    watch: Watch
    sources: dict[str, Source] = field(default_factory=dict)
    serial: int = 0
    last: Taken | None = None

    def add(self, taken: Taken, name: str, source: Source) -> dict[str, Any]:
        """Take in what has come from a source; the record of it."""
        taken.into(self.watch)
        self._read(name, source)
        self.serial, self.last = self.serial + 1, taken
        return {"n": self.serial, "taken": taken.described(), "name": name, "source": source}

    def replay(self, records: Sequence[dict[str, Any]]) -> None:
        """Take in what records say."""
        for record in records:
            try:
                taken, name, source = Taken.of(record["taken"]), record["name"], record["source"]
                if record["n"] != self.serial + 1 or not isinstance(name, str) or not isinstance(source, dict):
                    raise ValueError
                self.add(taken, name, source)
            except (KeyError, IndexError, TypeError, ValueError, InputError) as error:
                raise ArtifactError("a record is none of what this monitor has taken in.") from error

    def _read(self, name: str, source: Source) -> None:
        self.sources.pop(name, None)
        self.sources[name] = source
        if len(self.sources) > MOST_SOURCES:
            del self.sources[next(iter(self.sources))]
