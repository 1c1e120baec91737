"""`benchmarks all --same-as` stamps a result only if old and present code compute the same."""

from __future__ import annotations

import json
import subprocess

import pytest
from click.testing import CliRunner

from benchmarks.all import catalogue, command
from benchmarks.all.catalogue import CATALOGUE, Entry
from benchmarks.all.fingerprint import Code
from benchmarks.all.same_as import refusal

SCRIPT = """
import argparse, json, pathlib
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    values = [{formula} for k in range(options.draws)]
    options.out.write_text(json.dumps({{"values": values, "seconds": {seconds}}}))
main()
"""
TOY = Entry(
    "toy",
    "benchmarks.toy --out {out}",
    seconds=100,
    part="benchmarks.toy --draws 5 --out {out}",
)


def git(folder, *words):
    settings = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *settings, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def toy(tmp_path):
    """A repository with one benchmark, committed; a function that rewrites it; the stamp of its
    result.
    """
    root = tmp_path / "repository"
    (root / "benchmarks").mkdir(parents=True)
    (root / "benchmarks" / "__init__.py").write_text("")

    def rewrite(formula, seconds="1.0"):
        (root / "benchmarks" / "toy.py").write_text(SCRIPT.format(formula=formula, seconds=seconds))

    rewrite("k / 3")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "one")
    stamped = {
        "by": "python -m benchmarks.toy",
        "code": Code(root).fingerprints(TOY.entries, TOY.rooms),
    }
    return root, rewrite, stamped


def test_code_that_computes_something_else_is_refused(toy):
    root, rewrite, stamped = toy
    rewrite("k / 3 + 1e-12")  # below any rounding: every digit counts
    assert "computes something else" in refusal(TOY, "HEAD", stamped, "", 1, root)
    assert "/values/0: 0.0 is committed, 1e-12 comes out" in refusal(
        TOY, "HEAD", stamped, "", 1, root
    )


def test_code_that_computes_the_same_is_stamped(toy):
    root, rewrite, stamped = toy
    rewrite("k * 2 / 6", seconds="2.0")  # rewritten, and slower
    assert Code(root).fingerprints(TOY.entries, TOY.rooms) != stamped["code"]
    assert refusal(TOY, "HEAD", stamped, "", 1, root) == ""


def test_a_result_of_another_commit_is_refused(toy):
    """The commit must be the one that the result was measured with, or the comparison shows nothing
    about it.
    """
    root, rewrite, stamped = toy
    rewrite("k / 4")
    git(root, "commit", "-qam", "two")
    assert "not measured with the code of HEAD" in refusal(TOY, "HEAD", stamped, "", 1, root)
    assert "computes something else" in refusal(TOY, "HEAD~1", stamped, "", 1, root)
    assert "no archive of abcdef0" in refusal(TOY, "abcdef0", stamped, "", 1, root)


def test_a_part_that_fails_is_refused(toy):
    root, rewrite, stamped = toy
    rewrite("1 / 0")
    assert "failed with the present code" in refusal(TOY, "HEAD", stamped, "", 1, root)


@pytest.mark.parametrize("name", ["speed", "billion-rows", "per-class", "two-class"])
def test_results_without_a_part_are_refused(name):
    assert CATALOGUE[name].part is None
    assert "Measure it again" in refusal(CATALOGUE[name], "HEAD", {"code": {}}, "", 1)


def test_a_part_without_its_data_is_refused(tmp_path):
    """It would read an empty folder, and nothing equals nothing."""
    entry = CATALOGUE["accuracy-rule"]
    assert "Give --data" in refusal(entry, "HEAD", {"code": {}}, "", 1)
    assert "cifar10_resnet110.npz" in refusal(entry, "HEAD", {"code": {}}, str(tmp_path), 1)


def test_the_command_leaves_the_stamp_of_a_refused_result_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(catalogue, "RESULTS", tmp_path)
    (tmp_path / "per-class.json").write_text(
        json.dumps({"made": {"by": "x", "code": {}}, "rows": []})
    )
    before = (tmp_path / "per-class.json").read_text()
    done = CliRunner().invoke(command.command, ["per-class", "--same-as", "HEAD"])
    assert done.exit_code == 1
    assert "no small part to compare" in done.output
    assert (tmp_path / "per-class.json").read_text() == before
    assert CliRunner().invoke(command.command, ["--same-as", "HEAD"]).exit_code == 2


def test_every_part_is_a_part_of_its_own_command():
    for name in catalogue._PARTS:
        entry = CATALOGUE[name]
        assert not entry.timed
        assert entry.part.split()[0] == entry.command.split()[0]
        assert "{out}" in entry.part or "{folder}" in entry.part
