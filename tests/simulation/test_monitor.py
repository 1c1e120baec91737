"""The monitor: whatever becomes of log, disk and process, no row is lost in silence, and none is
counted twice.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math

import numpy as np
import pytest

import metacal as mc
from metacal.cli.intake import Intake, NotRecordedError, Quarantine
from metacal.cli.line_source import LineSource
from metacal.errors import InputError
from metacal.gate.watch import Watch
from metacal.io.artifact.watch import encode_watch
from metacal.io.artifact.watch_journal import MonitorState, restore_state
from metacal.io.journal import Journal
from metacal.io.lines import Position
from metacal.io.request import Request
from metacal.io.stream import StreamReader
from metacal.io.tail import Tail
from simulation.logs import LOG, LONGEST, Folder
from simulation.world import World

pytestmark = pytest.mark.filterwarnings("ignore:.*the last record is incomplete")
STATE, ASIDE = "state.journal", "state.quarantine.jsonl"


@functools.cache
def gate():
    random = np.random.default_rng(0)
    return (
        mc.TemperatureScaling()
        .fit(random.normal(size=(60, 3)), random.integers(0, 3, size=60))
        .gate_
    )


def new():
    return Watch.of(gate(), most_unreadable=0.2)


@pytest.fixture(autouse=True)
def journals_are_soon_large(monkeypatch):
    monkeypatch.setattr("metacal.cli.intake._MIN_JOURNAL_BYTES_TO_COMPACT", 3000)


class History:
    """A log, whoever writes it, and one monitor after the other that follows it."""

    def __init__(self, seed: int, **chances: float) -> None:
        self.world = World(seed, **chances)
        self.folder = Folder(self.world, "csv" if seed % 3 == 0 else "jsonl")
        self.rng = self.world.rng
        self.watch = new()
        self.position: Position | None = None
        self.must_tell = False

    def meanwhile(self) -> None:
        """What others do: write, rotate, cut off."""
        for _ in range(int(self.rng.integers(0, 4))):
            event = self.rng.random()
            if (
                event < 0.9 or self.position is None
            ):  # what was rotated before anybody looked is nobody's
                self.folder.write()
            elif event < 0.95:
                self.folder.move()
            elif event < 0.985:
                self.folder.cut_off(copied=True)
            else:
                read = self.position.inode == self.folder.file.inode and self.position.matches(
                    self.folder.plain()
                )
                self.must_tell |= self.folder.cut_off(copied=False) and read

    def source(self, kept: MonitorState) -> LineSource:
        state = kept.source_positions.get(LOG) or None
        request = Request(LOG, classes=tuple(gate().classes.tolist()))
        names = (None, []) if state is None else (state["header"], state["lists"])
        reader = StreamReader(request, self.folder.kind, None, *names)
        since = None if state is None else Position.from_dict(state["position"])
        return LineSource(
            kept.watch,
            reader,
            Tail(LOG, follow=True, resume_from=since, logs=self.folder, max_line_length=LONGEST),
            LOG,
        )

    def monitor(self, steps: int | None = None) -> None:
        """One process: so many steps, or until nothing comes any more."""
        with Journal(STATE, "monitor", disk=self.world) as journal:
            kept = (
                restore_state(journal.records, gate(), STATE)
                if journal.records
                else MonitorState(new())
            )
            intake = Intake(
                kept, self.source(kept), journal, Quarantine(ASIDE, disk=self.world), None
            )
            quiet = 0
            while quiet < 3 if steps is None else steps > 0:
                if steps is not None:
                    self.meanwhile()
                    steps -= 1
                try:
                    quiet = 0 if intake.process_next_batch() else quiet + 1
                    if not quiet:
                        self.position = intake.source.lines.position
                except NotRecordedError:
                    continue
            self.watch = intake.monitor_state.watch

    def second(self) -> None:
        """Another monitor on the same state: it is told that it is in use, or had it to itself."""
        in_use = f"{STATE}.lock" in self.world.held
        with contextlib.suppress(InputError):
            self.monitor(2)
            assert not in_use

    def run(self, lives: int) -> None:
        self.world.meanwhile = self.second
        for _ in range(lives):
            with contextlib.suppress(InputError):
                self.world.life(lambda: self.monitor(int(self.rng.integers(1, 12))))
            self.meanwhile()
        self.world.peace()
        self.folder.finish()
        self.world.life(self.monitor)

    def put_aside(self) -> list[tuple[str, str]]:
        """The lines that could not be read, and why."""
        aside = [json.loads(line) for line in self.world.files.get(ASIDE, b"").splitlines()]
        return [(one["line"], one["reason"]) for one in aside]


def close(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(close(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(close, one, other))
    return (
        math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
        if isinstance(one, float)
        else one == other
    )


def never_interrupted(history: History, written: list[tuple[str, bytes]]) -> Watch:
    """All lines of the log, in order, by a monitor to which nothing happens."""
    world = World(0, killed=0.0)
    folder = Folder(world, history.folder.kind)
    head = b"id,logits_0,logits_1,logits_2,label\n" if history.folder.kind == "csv" else b""
    folder.file.content = head + b"".join(content + b"\n" for _, content in written)
    calm = History.__new__(History)
    calm.world, calm.folder, calm.rng, calm.watch, calm.position = (
        world,
        folder,
        world.rng,
        new(),
        None,
    )
    calm.monitor()
    return calm.watch


def check(seed: int, lives: int = 6) -> History:
    history = History(seed, killed=0.02, full=0.03, unsynced=0.02, busy=0.02)
    history.run(lives)
    watch, folder, aside = history.watch, history.folder, history.put_aside()
    lines = watch.alarms.unreadable[0]
    # None twice: every row has an id of its own, and waits for its label or has it; every broken
    # line is another one.
    assert watch.counts.rows <= folder.rows + folder.halves
    assert watch.counts.labelled + len(watch.waiting) >= watch.counts.rows - folder.halves
    assert len(set(aside)) + folder.halves >= len(aside) == lines.n_unreadable
    if not folder.destroyed:  # None lost: the same as if nothing had happened.
        state, want = (
            encode_watch(watch),
            encode_watch(never_interrupted(history, folder.written)),
        )
        state.update(first={}), want.update(first={})
        assert close(state, want)
        assert lines.n_unreadable == sum(name.startswith("bad") for name, _ in folder.written)
    elif not watch.gaps:  # What was destroyed before anybody could know of it, and nothing else.
        gone = {name for lines in folder.destroyed for name in lines}
        assert lines.n_lines >= len(folder.written) - len(gone)
    assert watch.gaps or not history.must_tell
    return history


def test_a_disk_that_is_full_at_the_start_stops_nothing():
    history = History(1, killed=0.0)
    for _ in range(30):
        history.folder.write()
    history.folder.finish()
    world, kept = history.world, MonitorState(new())
    with Journal(STATE, "monitor", disk=world) as journal:
        world.chance["full"] = 1.0
        intake = Intake(kept, history.source(kept), journal, Quarantine(ASIDE, disk=world), None)
        for _ in range(3):
            with pytest.raises(NotRecordedError):
                intake.process_next_batch()
        assert world.files.get(STATE, b"") == b""
        assert intake.monitor_state.watch.counts.rows == 0
        world.peace()
        while intake.process_next_batch():
            pass
        assert intake.monitor_state.watch.counts.rows > 0
        want = encode_watch(never_interrupted(history, history.folder.written))
        assert close(encode_watch(intake.monitor_state.watch) | {"first": {}}, want | {"first": {}})
    with Journal(STATE, "monitor", disk=world) as journal:
        again = restore_state(journal.records, gate(), STATE)
    assert encode_watch(again.watch) == encode_watch(intake.monitor_state.watch)


@pytest.mark.slow
def test_histories():
    n = 40  # benchmarks/histories.py runs thousands
    histories = [check(seed) for seed in range(n)]
    assert (
        sum(one.world.deaths for one in histories) > n
    )  # the world is hostile enough to mean something
    assert sum(not one.folder.destroyed for one in histories) > n / 5
    assert sum(one.watch.gaps > 0 for one in histories) > n / 20
