"""Which results are current, which are stale, and which of these are known to be and shown as
such.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from benchmarks.all.catalogue import CATALOGUE, RESULTS, Entry
from benchmarks.all.fingerprint import changed
from benchmarks.all.stamp import stamp_of

#: Results that are known to be stale -> why they were not measured again.
ACCEPTED = RESULTS / "accepted-stale.json"


@dataclass(frozen=True)
class State:
    """A result, and which modules have changed since; `unstamped` where it does not say what it was
    made with.
    """

    entry: Entry
    changed: tuple[str, ...]
    unstamped: bool = False
    #: Why it may be stale; empty where it must be current.
    accepted: str = ""

    @property
    def stale(self) -> bool:
        """Whether it has to be measured again."""
        return self.unstamped or bool(self.changed)

    @property
    def words(self) -> str:
        """The state in a few words."""
        if self.unstamped:
            return "without a stamp"
        return f"changed since: {', '.join(self.changed)}" if self.changed else "current"


def accepted() -> dict[str, str]:
    """The results that may be stale, with the reason."""
    found: dict[str, str] = json.loads(ACCEPTED.read_text(encoding="utf-8"))
    return found


def state_of(entry: Entry) -> State:
    """What the stamp of a result says against the present code."""
    made = stamp_of(entry.path)
    why = accepted().get(entry.name, "")
    if made is None:
        return State(entry, (), unstamped=True, accepted=why)
    return State(entry, tuple(changed(made["code"], entry.subject)), accepted=why)


def states() -> list[State]:
    """Every result's state."""
    return [state_of(entry) for entry in CATALOGUE.values()]
