"""metacal label in histories of kills, full disks, failed syncs and second calls: no answer lost,
none doubled.

A history is a person who fills in the sheet, at any moment, and a tool that is called again and
again. Every call may end in the middle of anything, and another may run in between. In the end it
is called in peace until it is finished. The laws:

- an answer that a sheet held when a call ended well is in the journal, once, as it was given;
- a sheet with answers that are not in the journal is never overwritten: it stays, or it has another
  name beside it;
- two calls never both write: whoever comes second is told so and changes nothing;
- the certificate at the end is that of a labelling that was never interrupted, and where the person
  always fills in whole sheets, so are the answers.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest

from metacal.cli.labelling import LabellingCall, run_labelling_call
from metacal.errors import BusyError, InputError
from metacal.io.scores import Scores
from metacal.promises.accuracy import MinAccuracy
from simulation.world import World

SHEET, JOURNAL = "labels.csv", "labels.journal"
CALL = LabellingCall(SHEET, JOURNAL, batch_size=7)
PROMISE = MinAccuracy(0.8)


class History:
    """A pool, a person and a world."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng([seed, 17])
        doubts = rng.random(90).round(int(rng.integers(1, 4)))
        self.right = rng.random(90) >= rng.uniform(0.1, 0.6) * doubts**2
        self.pool = Scores("pool", doubts, ids=np.array([f"r{k}" for k in range(90)]))
        self.options = {
            "labels": int(rng.integers(20, 60)),
            "higher_is": "doubtful",
            "random_state": seed,
        }
        self.rng = rng
        self.world = World(
            seed,
            killed=0.06,
            full=0.04,
            unsynced=0.03,
            busy=0.12,
            meanwhile=self.someone,
            swaps=seed % 3 > 0,
        )
        self.saved_meanwhile = 0
        self.answered: set[int] = set()  # what the person has filled in at some time
        self.refused = 0
        self.hasty = seed % 2 == 0  # fills in some of a sheet, not all

    def call(self) -> None:
        """The tool once; what it says when something is wrong is part of life."""
        run_labelling_call(
            CALL, self.pool, PROMISE, certifier_options=self.options, disk=self.world
        )

    def someone(self) -> None:
        """What happens in the middle of a call: the person saves the sheet, or another call
        begins.
        """
        if self.rng.random() < 0.6:
            self.saved_meanwhile += 1
            self.person()
        else:
            self.second()

    def second(self) -> None:
        before = dict(self.world.files)
        try:
            self.call()
        except BusyError:
            self.refused += 1
            assert self.world.files == before
        except InputError:
            pass

    def person(self) -> None:
        """Fill in some of the sheet, or all of it, and save it."""
        content = self.world.files.get(SHEET)
        if content is None:
            return
        header, *lines = csv.reader(io.StringIO(content.decode()))
        few = self.hasty and self.rng.random() < 0.5
        for line in lines:
            if not few or self.rng.random() < 0.5:
                line[-1] = "right" if self.right[int(line[0])] else "wrong"
                self.answered.add(int(line[0]))
        text = io.StringIO()
        csv.writer(text).writerows([header, *lines])
        self.world.files[SHEET] = text.getvalue().encode()

    def recorded(self) -> list[tuple[int, bool]]:
        """What the journal holds; a last line that is torn does not count."""
        content = self.world.files.get(JOURNAL, b"")
        lines = content[: content.rfind(b"\n") + 1].splitlines()
        records = [json.loads(line.partition(b" ")[2]) for line in lines if b"\0" not in line]
        return [
            (row, bool(ok))
            for one in records
            if "rows" in one
            for row, ok in zip(one["rows"], one["right"])
        ]

    def check(self) -> None:
        """The laws that hold at every moment."""
        known = self.recorded()
        rows = [row for row, _ in known]
        assert len(set(rows)) == len(rows), "an answer is there twice"
        assert all(self.right[row] == ok for row, ok in known), "an answer was changed"
        assert self.answered <= self.in_sheets() | set(rows), "an answer is lost"

    def in_sheets(self) -> set[int]:
        """The rows that are answered in some file beside the journal."""
        found = set()
        for path, content in self.world.files.items():
            if not path.startswith(JOURNAL) and b"\0" not in content:
                lines = list(csv.reader(io.StringIO(content.decode())))[1:]
                found |= {int(line[0]) for line in lines if line and line[-1] in ("right", "wrong")}
        return found


def lives(seed: int, n_lives: int = 25) -> History:
    history = History(seed)
    for _ in range(n_lives):
        with contextlib.suppress(InputError):
            history.world.life(history.call)
        history.check()
        history.person()
        history.check()
    history.world.peace()
    never = History(seed)
    never.world.peace()
    for one in (history, never):
        for _ in range(200):
            one.person()
            one.check()
            done = run_labelling_call(
                CALL, one.pool, PROMISE, certifier_options=one.options, disk=one.world
            )
            one.check()
            if not len(done.waiting_rows):
                break
        assert done.certifier.finished
        one.done = done.certifier
    assert history.hasty or set(never.recorded()) == set(history.recorded())
    assert history.done.coverage == never.done.coverage
    assert history.done.within_reach == never.done.within_reach
    if never.done.coverage is not None:
        made = [
            replace(one.done.certificate, n_labels=None, n_correct=0) for one in (history, never)
        ]
        assert made[0] == made[1]
    return history


def explore(seeds: range) -> tuple[int, int, int]:
    """Deaths, second calls that were refused, and sheets saved during a call, over many
    histories.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tool reports what it has put beside
        found = [lives(seed) for seed in seeds]
    counts = [(one.world.deaths, one.refused, one.saved_meanwhile) for one in found]
    deaths, refused, saved = map(sum, zip(*counts))
    return deaths, refused, saved


@pytest.mark.slow
def test_no_answer_is_lost_none_doubled_and_the_decision_is_the_same():
    deaths, refused, saved = explore(range(60))
    assert deaths > 180  # the world is hostile enough to mean something
    assert refused > 12
    assert saved > 100


if __name__ == "__main__":  # python tests/simulation/test_label.py 10000
    print(
        "histories, deaths, refused second calls, saved meanwhile:",
        sys.argv[1],
        *explore(range(int(sys.argv[1]))),
    )
