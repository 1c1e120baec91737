"""The journal alone: whatever happens, what was acknowledged is there, once, in order."""

from __future__ import annotations

import contextlib

import pytest

from metacal.errors import ArtifactError, InputError
from metacal.io.journal import Journal
from simulation.world import World

PATH = "a.journal"


def lives(seed: int, n_records: int = 12) -> World:
    """Processes that each count on from what they find, until there are enough; checks the law at each step."""
    world = World(seed, killed=0.08, full=0.05, unsynced=0.03, busy=0.1)
    acknowledged: list[int] = []

    def count() -> None:
        with Journal(PATH, "count", disk=world) as journal:
            found = [record["n"] for record in journal.records]
            assert found[: len(acknowledged)] == acknowledged
            assert found == list(range(len(found)))
            acknowledged[:] = found
            for n in range(len(found), n_records):
                journal.append({"n": n})
                acknowledged.append(n)
                if n % 5 == 4 and world.rng.random() < 0.3:
                    journal.rewrite(list(journal.records))

    def second() -> None:
        with contextlib.suppress(InputError):
            count()

    world.meanwhile = second
    for _ in range(60):
        world.life(second)
    world.peace()
    world.life(count)
    assert acknowledged == list(range(n_records))
    return world


@pytest.mark.slow
def test_nothing_acknowledged_is_ever_lost_or_doubled():
    deaths = sum(lives(seed).deaths for seed in range(400))
    assert deaths > 400  # the world is hostile enough to mean something


@pytest.mark.parametrize("at", range(0, 170, 7))
def test_a_changed_byte_is_noticed(tmp_path, at):
    path = tmp_path / "a.journal"
    with Journal(str(path), "count") as journal:
        for n in range(8):
            journal.append({"n": n})
    content = bytearray(path.read_bytes())
    assert at < content.rfind(b"\n", 0, -1)  # a last line that is torn is another matter
    content[at] ^= 0x21
    path.write_bytes(bytes(content))
    with pytest.raises(ArtifactError, match=r"a\.journal:\d+: this record is damaged"), Journal(str(path), "count"):
        pass


def test_a_line_taken_out_is_noticed(tmp_path):
    path = tmp_path / "a.journal"
    with Journal(str(path), "count") as journal:
        for n in range(5):
            journal.append({"n": n})
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2] + lines[3:]))
    with pytest.raises(ArtifactError, match=r"a\.journal:3: this record is damaged"), Journal(str(path), "count"):
        pass


def test_another_tools_journal_is_refused(tmp_path):
    path = str(tmp_path / "a.journal")
    with Journal(path, "count") as journal:
        journal.append({"n": 0})
    with pytest.raises(ArtifactError, match="no journal of metacal label"), Journal(path, "label"):
        pass
