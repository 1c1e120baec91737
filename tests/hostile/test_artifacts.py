"""Mutations of valid files of every kind: ArtifactError or an estimator that works, and nothing
else ever happens.

The mutations are those of `benchmarks/fuzz_artifacts.py`, where a case is a number; 20,000 of them
are in `benchmarks/results/fuzz-artifacts.json`. METACAL_MUTATIONS=10000 tries more of them here.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
from pathlib import Path

import pytest

from benchmarks import artifact_mutations as mutations
from benchmarks import fuzz_artifacts as fuzz
from metacal.errors import ArtifactError
from metacal.export import saved as artifact

ROOT = Path(__file__).resolve().parents[2]
COUNT = int(os.environ.get("METACAL_MUTATIONS", "400"))
#: Cases that failed once, and what was wrong with the reader.
ONCE_FAILED = {
    1022: (
        "a delta of 5e-324, half of which is no number between 0 and 1, was an InputError of the"
        " bands"
    ),
}


TEXTS = mutations.texts()

# ── nothing in a file is ever run ─────────────────────────────────────────────────────────────────

#: Events of the interpreter that reading data never needs: running, importing, unpickling, opening,
#: connecting.
FORBIDDEN = (
    *(
        "exec",
        "compile",
        "import",
        "pickle.find_class",
        "marshal.",
        "os.",
        "subprocess.",
        "socket.",
        "ctypes.",
        "open",
    ),
)
WATCH = threading.local()


def watch(event, details):
    if getattr(WATCH, "on", False) and event.startswith(FORBIDDEN):
        WATCH.on = False
        raise AssertionError(f"reading a file led to {event} {details[:2]}")


sys.addaudithook(watch)


@pytest.fixture(scope="module", autouse=True)
def everything_is_imported():
    _ = "é".encode(
        "unicode_escape"
    )  # Python loads this codec, which messages use, at its first use
    for text in TEXTS.values():
        assert fuzz.judged(text.encode()) == "works"


def read_while_watched(raw):
    WATCH.on = True
    try:
        artifact.loads(raw)
    except ArtifactError:
        pass
    finally:
        WATCH.on = False


def test_the_watch_would_see_it():
    WATCH.on = True
    with pytest.raises(AssertionError, match=r"led to (exec|compile)"):
        eval("1 + 1")


# ── mutations ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(4))
def test_mutations_are_refused_or_work(chunk):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = {"refused": 0, "works": 0}
    for number in range(10**6 + chunk, 10**6 + COUNT, 4):
        raw = mutations.mutated(TEXTS, number).raw
        try:
            read_while_watched(raw)
            found[fuzz.judged(raw)] += 1
        except BaseException as error:
            raise AssertionError(f"mutation {number}: {type(error).__name__}: {error}") from error
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 300 * 1024, f"{grown / 1024:.0f} MB"
    assert found["refused"] > 2 * found["works"] > 0  # the mutations bite, and not all of them do


@pytest.mark.parametrize("number", ONCE_FAILED)
def test_what_failed_once(number):
    assert fuzz.judged(mutations.mutated(TEXTS, number).raw) in ("refused", "works")


@pytest.mark.slow
@pytest.mark.parametrize("text", ["x" * 100_000, "\x1b[2J" + "y" * 500])
@pytest.mark.parametrize("name", ["histogram", "top-label-isotonic", "gate-pairwise-ranker"])
def test_what_a_message_quotes_is_short_and_plain(name, text):
    """A map's own complaint once quoted 100,000 characters of the file."""
    document = json.loads(TEXTS[name])
    for path in list(mutations.places(document)):
        changed = json.loads(TEXTS[name])
        mutations.at(changed, path[:-1])[path[-1]] = text
        changed["checksum"] = artifact.checksum(changed)
        assert fuzz.judged(json.dumps(changed).encode()) in ("refused", "works")


def test_a_case_is_always_the_same():
    assert mutations.mutated(TEXTS, 7).raw == mutations.mutated(TEXTS, 7).raw
    assert len({mutations.mutated(TEXTS, number).raw for number in range(50)}) == 50


@pytest.mark.slow
def test_a_child_names_the_case_it_dies_at(monkeypatch, tmp_path):
    """Each case of the campaign has a limit of its own; the one that breaks it is named, the others
    are counted.
    """
    broken = tmp_path / "fuzz.py"
    text = (ROOT / "benchmarks" / "fuzz_artifacts.py").read_text(encoding="utf-8")
    text = text.replace(
        "            found = judged(case.raw)\n", "            found = hit(number)\n"
    )
    hit = (
        "def hit(number):\n    return ('ok', str(bytearray(10**10 * (number == 1))), number == 2"
        " and os.abort())[0]"
    )
    broken.write_text(text.replace("def main() ->", f"{hit}\n\n\ndef main() ->"), encoding="utf-8")
    monkeypatch.setattr(fuzz, "__file__", str(broken))
    answers, died = fuzz.run_batch(range(4))
    assert died == 2
    assert [answer["end"] for answer in answers] == [0, 1, 2]
    assert answers[0]["found"] == "ok"
    assert answers[1]["found"].startswith("raised MemoryError")
    assert answers[2]["found"] == "died with -6"


def test_the_committed_campaign():
    result = json.loads(
        (ROOT / "benchmarks" / "results" / "fuzz-artifacts.json").read_text(encoding="utf-8")
    )
    assert result["cases"] >= 20_000
    assert result["failures"] == []
    assert set(result["outcomes"]) == {"refused", "works"}
    assert result["fixtures"] == len(TEXTS)
    assert set(result["by_mutation"]) == {
        *(way.__name__ for way in mutations.MUTATIONS),
        "bytes",
        "doubled_key",
    }
