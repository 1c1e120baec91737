"""README and docs say what was measured: every table and number has a committed result, and every
result its code.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest

from benchmarks.all.catalogue import CATALOGUE, RESULTS
from benchmarks.all.fingerprint import ROOT
from benchmarks.all.stamp import stamp, stamp_of
from benchmarks.all.state import accepted, states
from benchmarks.pages import GENERATED_PAGES, PAGES
from benchmarks.pages.figures import FIGURES
from benchmarks.pages.measured import KINDS, kinds, unsourced
from benchmarks.pages.numbers import Source, filled, sources
from benchmarks.pages.source_notes import collect_notes
from benchmarks.pages.tables import MARKED, TABLES, refreshed, tables

TEXTS = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
#: Results that may be stale: this many, never more. Whoever measures one again lowers it.
MOST_STALE = 44
#: Files below results/ that are parts of another result.
BESIDE = {"accepted-stale", "paper/paper-seconds"}


@pytest.mark.parametrize("page", sorted(TEXTS.keys() - GENERATED_PAGES))
def test_every_measured_digit_has_a_source(page):
    found = [f"{page}:{one.line}: {one.number}: {one.text}" for one in unsourced(TEXTS[page])]
    assert not found, "\n".join(found)


def test_the_pages_say_what_the_results_say():
    known = tables()
    for name, text in TEXTS.items():
        assert filled(refreshed(text, known)) == text, (
            f"{name}: run python -m benchmarks pages --write"
        )
    shown = {found[2] for text in TEXTS.values() for found in MARKED.finditer(text)}
    assert shown == {*TABLES, "results"}, "a table that no page shows, or the reverse"


def test_what_is_given_says_why():
    assert {kind for text in TEXTS.values() for kind in kinds(text)} <= set(KINDS)


def test_sixty_claims_are_traced_to_their_result():
    claims = [(name, *claim) for name, text in TEXTS.items() for claim in sources(text)]
    assert len(claims) >= 60
    for name, shown, source in random.Random(26).sample(claims, 60):
        assert source.shown.lower() == shown.lower(), name
        result = FIGURES[source.result[1:]][0] if source.result.startswith("@") else source.result
        assert result in CATALOGUE, f"{name}: {result}"


def test_every_result_is_known_and_says_what_it_was_made_with():
    files = {str(path.relative_to(RESULTS).with_suffix("")) for path in RESULTS.rglob("*.json")}
    assert files - BESIDE == set(CATALOGUE)
    for entry in CATALOGUE.values():
        made = stamp_of(entry.path)
        assert made is not None, f"run python -m benchmarks all {entry.name}"
        assert made["code"], f"run python -m benchmarks all {entry.name}"


def test_what_is_stale_is_known_to_be():
    stale = {one.entry.name: one.words for one in states() if one.stale}
    unknown = {name: words for name, words in stale.items() if name not in accepted()}
    assert not unknown, (
        f"{unknown}\nif nothing that they compute has changed, run: python -m benchmarks all"
        f" {' '.join(unknown)} --same-as COMMIT --data FOLDER; else measure them again"
    )
    assert set(accepted()) <= set(stale), "measured again: take it off accepted-stale.json"
    assert len(accepted()) <= MOST_STALE


@pytest.mark.slow
def test_cheap_results_come_out_again():
    names = [entry.name for entry in CATALOGUE.values() if entry.cheap]
    command = [sys.executable, "-m", "benchmarks", "all", *names, "--check", "--jobs", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# ── what the machinery notices ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "text",
    [
        "The gate accepts .93 of the rows.",
        "It takes 4.2 ms.",
        "It takes 12 ms.",
        "Broken in 8.6% of the draws.",
        "46 of 55 cells are lower.",
        "| cifar10 | 0.0045 |",
        "Three times as fast: 10.3× a plain one.",
        "An error of 6.6e-7.",
    ],
)
def test_a_measured_digit_is_seen(text):
    assert list(unsourced(text))


@pytest.mark.parametrize(
    "text",
    [
        "With NumPy 1.26 and Python 3.11.7.",
        "β = .97 and .87, δ = 0.1, n = 5,000.",
        'Right "at least 97% of the time, with 90% confidence".',
        "`mc.MinAccuracy(0.97)` and\n\n```python\nx = 0.97\n```",
        "The paper prints .0063<!--given: paper, Table 1-->.",
        "<!-- given: definition -->\nThe rate is 0.1, then 0.01.",
        "Accepts .93<!--=cascade; n; .2--> of the rows.",
        "<!-- trust -->\n| 0.12 |\n<!-- end -->",
        "Sections 3 and 4, 15 bins, 2021.",
    ],
)
def test_what_is_no_measurement_is_left_alone(text):
    assert not list(unsourced(text))


def test_a_number_follows_its_result():
    notes = "<!-- sources\n{}: cascade; draws; d\n{}: cascade; pairs/*/oracle; max; .2\n-->\n"
    text = "It draws 3 times, at .5 or more.\n\n" + notes.format("3", ".5")
    draws = json.loads((RESULTS / "cascade.json").read_text(encoding="utf-8"))["draws"]
    expected = f"It draws {draws} times, at 1.00 or more.\n\n" + notes.format(draws, "1.00")
    assert filled(text) == expected
    assert filled(expected) == expected
    with pytest.raises(ValueError, match="12 values; say which"):
        _ = Source.parsed("cascade; pairs/*/oracle; .2").value


def test_sources_are_collected_below_their_section():
    text = (
        "# One\n\nAt 5% and at 5%<!--=cascade; draws; d-->.\n\n```python\n# 7\n```\n\nThen 7<!--given: paper-->.\n\n"
        "# Two\n\nFive.\n"
    )
    collected = collect_notes(text)
    assert collected == (
        "# One\n\nAt 5% and at 5%.\n\n```python\n# 7\n```\n\nThen 7.\n\n"
        "<!-- sources\nat 5%: cascade; draws; d\n7: given: paper\n-->\n\n# Two\n\nFive.\n"
    )
    assert collect_notes(collected) == collected
    assert list(sources(collected)) == list(sources(text))
    assert list(kinds(collected)) == ["paper"]


def test_a_source_of_a_number_that_is_not_there_is_an_error():
    text = "It draws 3 times.\n\n<!-- sources\n4: cascade; draws; d\n-->\n"
    with pytest.raises(ValueError, match="does not contain '4'"):
        filled(text)


def test_a_stamp_leaves_the_rest_of_a_file_alone(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"draws": 3,\n "made up": [1,  2]}\n', encoding="utf-8")
    for code in ({"a.py": "1"}, {"a.py": "2", "b.py": "3"}):
        stamp(path, "python -m x", code)
        assert stamp_of(path) == {"by": "python -m x", "code": code}
        assert path.read_text(encoding="utf-8").endswith('"draws": 3,\n "made up": [1,  2]}\n')
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")), indent=1))
    stamp(path, "python -m x", {"a.py": "4"})
    assert stamp_of(path)["code"] == {"a.py": "4"}
