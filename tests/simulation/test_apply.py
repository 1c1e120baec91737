"""A folder of results on a disk that fails, among sources that change, vanish and come back, with
runs that overlap.

The laws: when a run has ended, every result is what a fresh run makes of a content that its source
had during that run; in peace, of the content that it has. No result without a source is left once
it was pruned, and what is no result of ours is never touched. Nobody writes into the folder who
does not hold its lock.
"""

from __future__ import annotations

import sys

import pytest

from metacal.errors import InputError, NoRowsError
from metacal.io.apply import WrittenResult, make_missing_results
from metacal.io.disk import build_temporary_path
from metacal.io.results import JOURNAL, ResultFolder
from metacal.io.source_fingerprint import read_until_unchanged
from simulation.world import World

pytestmark = pytest.mark.filterwarnings("ignore:.*the last record is incomplete")
OUT = "/out"
SOURCES = [f"/in/{n}.csv" for n in range(4)]
#: What a person has made of a result: nothing replaces it, and it does not go with its source.
EDITED = b"edited by hand"
FOREIGN = (f"{OUT}/mine.csv", f"{OUT}/.notes.part", f"{OUT}/.mine.csv.0123456789ab.part.csv")


def result_of(content: bytes, gate: str) -> bytes:
    return gate.encode() + b":" + content


class Guarded(World):
    """A world in which only the holder of the folder's lock puts anything into its place."""

    def replace(self, temporary_path, target):
        self._guard(target)
        assert self.files.get(target) not in (EDITED, b"mine"), "it is not ours"
        super().replace(temporary_path, target)

    def remove(self, path):
        self._guard(path)
        assert self.files.get(path) not in (EDITED, b"mine"), "it is not ours"
        super().remove(path)

    def _guard(self, path):
        if path.startswith(OUT):
            assert self.held.get(f"{OUT}/{JOURNAL}.lock") == str(self.process), (
                "a second run writes"
            )


class History:
    """Runs on a folder, one after the other and at once, and a person who changes what they
    read.
    """

    def __init__(self, seed: int) -> None:
        self.world = Guarded(seed, killed=0.012, full=0.01, unsynced=0.01, busy=0.05)
        self.rng = self.world.rng
        self.gate = "g0"
        #: Every content that a source has had since the run began that looks at it.
        self.had: dict[str, list[bytes | None]] = {}
        self.kept = self.redone = self.refused = self.spared = 0
        for source in SOURCES:
            self.change(source)
        for path in FOREIGN:
            self.world.files[path] = b"mine"
        self.world.meanwhile = self.someone

    def change(self, source: str) -> None:
        """Write it anew: mostly to the same length, now and then to nothing, or not at all any
        more.
        """
        kind = self.rng.random()
        if kind < 0.1:
            self.world.files.pop(source, None)
        elif kind < 0.2:
            self.world.files[source] = b""
        else:
            self.world.files[source] = b"%03d" % self.rng.integers(1000)
        self.had.setdefault(source, []).append(self.world.files.get(source))

    def someone(self) -> None:
        """What happens in the middle of a run: a source changes, or another run begins."""
        if self.rng.random() < 0.6:
            self.change(SOURCES[self.rng.integers(len(SOURCES))])
        else:
            self.run()

    def work(self, source: str, target: str, gate: str) -> WrittenResult:
        temporary_path = build_temporary_path(target)

        def write() -> int:
            content = self.world.read(source)
            if content is None:
                raise InputError(f"{source}: the file does not exist.")
            if not content:
                return 0
            begun = self.world.read(
                source
            )  # rows are read one after the other: the rest may be another file's
            mixed = content[:1] + (begun or b"??")[1:]
            self.world.append(temporary_path, b"half")
            self.world.write(temporary_path, result_of(mixed, gate))
            return 1

        rows, known = read_until_unchanged(source, write, self.world)
        return WrittenResult(known, temporary_path if rows else None, n_rows=rows, n_accepted=rows)

    def run(self, *, prune: bool = False) -> bool:
        """One run; whether it came to its end."""
        gate = self.gate
        present = {
            source.rpartition("/")[2]: source for source in SOURCES if source in self.world.files
        }
        since = {source: len(contents) - 1 for source, contents in self.had.items()}
        if not present:
            return True

        def each(pieces):
            for piece in pieces:
                yield piece, self.work(*piece, gate)

        told: list[str] = []
        try:
            with ResultFolder(OUT, {"gate": gate}, disk=self.world) as results:
                done = make_missing_results(results, present, each, prune=prune, notify=told.append)
                # Nothing is asked of the disk from here on: what is there is what the run has left.
                self.check(present, since, gate, done.orphans if prune else ())
        except NoRowsError:
            return True
        except (InputError, OSError) as error:
            self.refused += "in use" in str(error)
            self.spared += "was changed afterwards" in str(error)
            return False
        self.kept += done.n_kept
        self.redone += done.n_files - done.n_kept
        return True

    def check(self, present, since, gate, pruned) -> None:
        for name, source in present.items():
            possible = self.had[source][since[source] :]
            result = self.world.files.get(f"{OUT}/{name}")
            made = [result_of(content, gate) if content else None for content in possible]
            assert result in made or (result == EDITED and None in made), (name, possible)
        for name in pruned:
            assert f"{OUT}/{name}" not in self.world.files

    def law(self) -> None:
        """What holds at any time, whoever was killed: strangers' files are as they were."""
        for path in FOREIGN:
            assert self.world.files[path] == b"mine"

    def live(self, n_lives: int = 12) -> World:
        for _ in range(n_lives):
            self.world.life(lambda: self.run(prune=bool(self.rng.random() < 0.3)))
            self.law()
            if self.rng.random() < 0.3:
                self.change(SOURCES[self.rng.integers(len(SOURCES))])
            if self.rng.random() < 0.1:
                self.gate = f"g{self.rng.integers(2)}"
            if self.world.files.get(f"{OUT}/0.csv") == EDITED:
                if (
                    self.rng.random() < 0.5
                ):  # runs that would replace it are refused until somebody moves it away
                    del self.world.files[f"{OUT}/0.csv"]
            elif self.rng.random() < 0.1:
                self.world.files[f"{OUT}/0.csv"] = EDITED
        self.world.peace()
        if self.world.files.get(f"{OUT}/0.csv") == EDITED:
            del self.world.files[f"{OUT}/0.csv"]
        self.change(SOURCES[0])
        self.world.files[SOURCES[1]] = b"one"
        self.had[SOURCES[1]].append(b"one")
        assert self.world.life(lambda: self.run(prune=True)) is True
        self.law()
        now = {path for path in self.world.files if path.startswith(OUT)}
        results = {
            f"{OUT}/{path.rpartition('/')[2]}" for path in SOURCES if self.world.files.get(path)
        }
        left = {path for path in now if not path.startswith(f"{OUT}/{JOURNAL}")} - {
            *results,
            *FOREIGN,
        }
        assert all(self.world.files[path] == EDITED for path in left), left
        assert results <= now
        for path in SOURCES:
            content = self.world.files.get(path)
            if content:
                assert self.world.files[f"{OUT}/{path.rpartition('/')[2]}"] == result_of(
                    content, self.gate
                )
        kept, redone = self.kept, self.redone
        assert self.world.life(self.run) is True
        assert self.redone == redone, "in peace everything is kept"
        assert self.kept == kept + len(results)
        return self.world


def histories(seeds) -> dict[str, int]:
    """Live them all; what came to pass."""
    counts = {
        "histories": 0,
        "deaths": 0,
        "kept": 0,
        "redone": 0,
        "second_runs_refused": 0,
        "edits_spared": 0,
    }
    for seed in seeds:
        history = History(seed)
        counts["deaths"] += history.live().deaths
        counts["histories"] += 1
        counts["kept"] += history.kept
        counts["redone"] += history.redone
        counts["second_runs_refused"] += history.refused
        counts["edits_spared"] += history.spared
    return counts


@pytest.mark.slow
def test_a_result_is_always_that_of_its_source():
    counts = histories(range(200))
    assert counts["deaths"] > 200  # the world is hostile enough to mean something
    assert counts["kept"] > 200
    assert counts["second_runs_refused"] > 30
    assert counts["edits_spared"] > 30


@pytest.mark.slow
def test_without_the_checksum_of_young_files_the_law_is_broken(monkeypatch):
    monkeypatch.setattr("metacal.io.source_fingerprint.SETTLED_NS", 0)
    with pytest.raises(AssertionError):
        histories(range(200))


if __name__ == "__main__":
    print(histories(range(int(sys.argv[1]))))
