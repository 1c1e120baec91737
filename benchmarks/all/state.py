"""Which results are current, which are stale, and which of these are known to be and shown as
such.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.all.catalogue import CATALOGUE, RESULTS, Entry
from benchmarks.all.fingerprint import USED, Code, changed_rooms, is_same
from benchmarks.all.stamp import stamp_of

#: Results that are known to be stale -> why they were not measured again.
ACCEPTED = RESULTS / "accepted-stale.json"


@dataclass(frozen=True)
class State:
    """How a result stands to the present code.

    Attributes
    ----------
    entry : Entry
        The result.
    changed : tuple of str
        Rooms whose code has changed since it was measured, of all code that it uses.
    stale : bool
        Whether the change is in the code that the result is about, so that it must be measured
        again.
    unstamped : bool
        Whether the result has no record of the code that it was measured with.
    accepted : str
        Why it may be stale; empty if it must be current.
    """

    entry: Entry
    changed: tuple[str, ...]
    stale: bool
    unstamped: bool = False
    accepted: str = ""

    @property
    def words(self) -> str:
        """The state in a few words."""
        if self.unstamped:
            return "without a stamp"
        if not self.changed:
            return "current"
        return f"changed since: {', '.join(self.changed)}"


def accepted() -> dict[str, str]:
    """The results that may be stale, with the reason."""
    found: dict[str, str] = json.loads(ACCEPTED.read_text(encoding="utf-8"))
    return found


def state_of(entry: Entry, code: Code) -> State:
    """Compare the stamp of a result with the present code."""
    made = stamp_of(entry.path)
    why = accepted().get(entry.name, "")
    if made is None:
        return State(entry, (), stale=True, unstamped=True, accepted=why)
    stamped, present = made["code"], code.fingerprints(entry.entries, entry.rooms)
    if is_same(stamped, present, USED):
        return State(entry, (), stale=False, accepted=why)
    changed = changed_rooms(stamped, present) or ["the connections between its functions"]
    return State(entry, tuple(changed), stale=not is_same(stamped, present), accepted=why)


def states(entries: Iterable[Entry] | None = None) -> list[State]:
    """Return the state of some results, by default of every one in the catalogue."""
    code = Code()
    chosen = CATALOGUE.values() if entries is None else entries
    return [state_of(entry, code) for entry in chosen]
