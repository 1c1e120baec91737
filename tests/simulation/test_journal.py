"""The journal alone: whatever happens, what was acknowledged is there, once, in order."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import textwrap
import warnings

import pytest

from metacal.errors import ArtifactError, BusyError, InputError, MetacalWarning
from metacal.io.journal import Journal, read_journal
from simulation.world import World

PATH = "a.journal"


def lives(seed: int, n_records: int = 12) -> World:
    """Processes that each count on from what they find, until there are enough; checks the law at
    each step.
    """
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torn records are reported
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
    with (
        pytest.raises(ArtifactError, match=r"a\.journal:\d+: this record is damaged"),
        Journal(str(path), "count"),
    ):
        pass


def test_a_line_taken_out_is_noticed(tmp_path):
    path = tmp_path / "a.journal"
    with Journal(str(path), "count") as journal:
        for n in range(5):
            journal.append({"n": n})
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2] + lines[3:]))
    with (
        pytest.raises(ArtifactError, match=r"a\.journal:3: this record is damaged"),
        Journal(str(path), "count"),
    ):
        pass


def test_another_tools_journal_is_refused(tmp_path):
    path = str(tmp_path / "a.journal")
    with Journal(path, "count") as journal:
        journal.append({"n": 0})
    with pytest.raises(ArtifactError, match="metacal label"), Journal(path, "label"):
        pass


# ── the last record ───────────────────────────────────────────────────────────────────────────────

ANSWERS = {
    "rows": list(range(1200, 1220)),
    "right": [1] * 20,
    "classes": [3] * 20,
    "by": "a person",
}


@pytest.fixture
def written():
    """The files of a world with a journal whose last record holds a round of 20 answers, and its
    content.
    """
    world = World(0, killed=0.0)
    with Journal(PATH, "label", disk=world) as journal:
        journal.append({"n": 0})
        journal.append(ANSWERS)
    return world, world.files[PATH]


def open_and_listen(world):
    """The records of a journal, or None if it is refused, and what was reported."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            with Journal(PATH, "label", disk=world) as journal:
                return journal.records, [str(one.message) for one in heard]
        except ArtifactError as error:
            world.held.clear()  # as when the process ends
            return None, [str(error)]


def beside(world):
    """The tails that were saved beside the journal."""
    return {name: content for name, content in world.files.items() if name != PATH}


def test_every_flipped_bit_of_the_last_record_is_survived_or_reported(written):
    world, content = written
    start = content.rfind(b"\n", 0, -1) + 1
    kept = refused = 0
    for at in range(start, len(content)):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[at] ^= 1 << bit
            world.files[PATH] = bytes(damaged)
            records, reports = open_and_listen(world)
            assert len(reports) == 1, (at, bit)
            if records is None:
                refused += 1
                assert "a.journal:3: this record is damaged" in reports[0]
                assert world.files[PATH] == bytes(damaged)  # nothing was changed
            else:
                kept += 1
                assert records[-1] == ANSWERS
                assert world.files[PATH] == content  # it was mended
            assert not beside(world)
    assert kept == 16  # the space and the end of the line, which no seal covers
    assert refused == 8 * (len(content) - start) - 16


def test_a_last_line_cut_anywhere_is_saved_and_reported(written):
    world, content = written
    start = content.rfind(b"\n", 0, -1) + 1
    for end in range(start + 1, len(content) - 1, 7):
        for zeros in (0, 40):
            world.files[PATH] = content[:end] + bytes(zeros)
            records, (report,) = open_and_listen(world)
            assert records == [{"n": 0}]
            assert beside(world) == {"a.journal.tail-1": content[start:end] + bytes(zeros)}
            assert "a.journal.tail-1" in report
            assert world.files[PATH] == content[:start]
            assert open_and_listen(world) == ([{"n": 0}], [])  # it is reported once
            del world.files["a.journal.tail-1"]


def test_a_last_line_without_its_end_is_kept(written):
    world, content = written
    world.files[PATH] = content[:-1]
    assert read_journal(PATH, "label", disk=world)[-1] == ANSWERS
    assert world.files[PATH] == content[:-1]  # reading alone changes nothing
    assert open_and_listen(world) == ([{"n": 0}, ANSWERS], [])
    assert world.files[PATH] == content


def test_zeros_in_the_middle_of_a_last_line_are_saved_and_reported(written):
    world, content = written
    start = content.rfind(b"\n", 0, -1) + 1
    torn = content[:start] + bytes(60) + content[start + 60 :]
    world.files[PATH] = torn
    with pytest.warns(MetacalWarning, match="damaged"):
        assert read_journal(PATH, "label", disk=world) == [{"n": 0}]
    records, (report,) = open_and_listen(world)
    assert records == [{"n": 0}]
    assert beside(world) == {"a.journal.tail-1": torn[start:]}
    assert "a.journal.tail-1" in report


def test_two_tails_have_two_names_and_one_tail_has_one(written):
    world, content = written
    start = content.rfind(b"\n", 0, -1) + 1
    for tail in (
        b"abc",
        b"def",
        b"def",
    ):  # the last as if a crash had come between saving and cutting off
        world.files[PATH] = content[:start] + tail
        open_and_listen(world)
    assert beside(world) == {"a.journal.tail-1": b"abc", "a.journal.tail-2": b"def"}


@pytest.mark.parametrize("damage", [b"\0", b"\0" * 20])
def test_zeros_before_the_last_record_are_an_error(written, damage):
    world, content = written
    line = content.find(b"\n") + 1
    damaged = content[: line + 3] + damage + content[line + 3 + len(damage) :]
    world.files[PATH] = damaged
    records, (report,) = open_and_listen(world)
    assert records is None
    assert "a.journal:2: this record is damaged" in report
    assert world.files[PATH] == damaged


@pytest.mark.parametrize(
    "content",
    [
        b"my notes",
        b"\x89PNG\0\0\n\0\0\n",
        bytes(20) + b"ftypisom",
        b"a,b\n1,2",
        b"{",
        b'{"journal": 1}',
    ],
)
def test_a_file_that_is_no_journal_is_not_touched(tmp_path, content):
    path = tmp_path / "notes"
    path.write_bytes(content)
    with pytest.raises(ArtifactError), Journal(str(path), "label"):
        pass
    assert path.read_bytes() == content
    assert {one.name for one in tmp_path.iterdir()} == {"notes", "notes.lock"}


def test_a_first_record_that_was_cut_off_begins_anew():
    world = World(0, killed=0.0)
    with Journal(PATH, "label", disk=world) as journal:
        journal.append({"n": 0})
    content = world.files[PATH]
    header_end = content.find(b"\n")
    for end in range(1, len(content) - 1):
        for zeros in (0, 3):
            world.files[PATH] = content[:end] + bytes(zeros)
            records, reports = open_and_listen(world)
            assert records == []
            if zeros or end not in (header_end, header_end + 1):  # at these the header is whole
                assert len(reports) == 1
            with Journal(PATH, "label", disk=world) as journal:
                journal.append({"n": 0})
            assert world.files[PATH] == content


# ── one writer ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(
    params=["two symbolic links", "a link and the file", "a hard link", "links into another folder"]
)
def names(request, tmp_path):
    """Two names of one journal."""
    path = tmp_path / "a.journal"
    with Journal(str(path), "count") as journal:
        journal.append({"n": 0})
    one, two = tmp_path / "one.journal", tmp_path / "two.journal"
    if request.param == "a hard link":
        os.link(path, one)
        return path, one
    if request.param == "a link and the file":
        one.symlink_to(path)
        return path, one
    if request.param == "links into another folder":
        (tmp_path / "folder").mkdir()
        (tmp_path / "alias").symlink_to(tmp_path / "folder")
        path = path.rename(tmp_path / "folder" / "a.journal")
        one.symlink_to(tmp_path / "alias" / "a.journal")
        return one, tmp_path / "alias" / "a.journal"
    one.symlink_to(path)
    two.symlink_to("a.journal")
    return one, two


@pytest.mark.skipif(os.name == "nt", reason="Windows locks names, and links need a privilege")
def test_a_journal_with_two_names_has_one_writer(names):
    first, second = map(str, names)
    with Journal(first, "count") as journal:
        with pytest.raises(BusyError, match="in use"), Journal(second, "count"):
            pass
        journal.append({"n": 1})
    with Journal(second, "count") as journal:
        journal.append({"n": 2})
    with Journal(first, "count") as journal:
        assert [record["n"] for record in journal.records] == [0, 1, 2]


COUNT = """
import sys, time
from metacal.errors import BusyError
from metacal.io.journal import Journal
for n in range(15):
    while True:
        try:
            with Journal(sys.argv[1], "count") as journal:
                journal.append({"by": sys.argv[2], "n": n})
            break
        except BusyError:
            time.sleep(0.001)
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows locks names, and links need a privilege")
@pytest.mark.parametrize("names", ["two symbolic links", "a hard link"], indirect=True)
def test_two_processes_with_two_names_write_one_whole_journal(names):
    command = [sys.executable, "-c", textwrap.dedent(COUNT)]
    processes = [subprocess.Popen([*command, str(name), str(k)]) for k, name in enumerate(names)]
    assert [process.wait(60) for process in processes] == [0, 0]
    with Journal(str(names[0]), "count") as journal:
        written = [(record["by"], record["n"]) for record in journal.records[1:]]
    assert sorted(written) == sorted((by, n) for by in "01" for n in range(15))


def test_a_copy_of_a_journal_is_another_journal(tmp_path):
    path, copy = tmp_path / "a.journal", tmp_path / "copy.journal"
    with Journal(str(path), "count") as journal:
        journal.append({"n": 0})
        copy.write_bytes(path.read_bytes())
        with Journal(str(copy), "count") as other:  # both go on, and neither knows of the other
            other.append({"n": "there"})
        journal.append({"n": "here"})
    both = path.read_bytes() + copy.read_bytes().splitlines(keepends=True)[-1]
    path.write_bytes(both)
    with pytest.raises(ArtifactError, match=r"a\.journal:4"), Journal(str(path), "count"):
        pass
    assert json.loads(copy.read_text().splitlines()[-1].partition(" ")[2]) == {"n": "there"}
