"""What a release says of itself is said once: version, addresses, supported Pythons."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import metacal as mc

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_changelog_begins_with_this_version():
    version, released = re.search(
        r"^## \[(.+?)\] - (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M
    ).groups()
    assert re.match(r"\d+\.\d+\.\d+", mc.__version__)[0] == version
    is_final = mc.__version__ == version
    assert (released == "unreleased") != is_final, (
        "a final version has its date; a candidate has none yet"
    )


def test_the_version_is_written_in_one_place():
    assert "version" in PROJECT["dynamic"]
    places = [
        *ROOT.glob("*.toml"),
        *ROOT.glob("*.py"),
        *ROOT.glob("*.cff"),
        *(ROOT / "docs").glob("*.py"),
    ]
    assert not [path.name for path in places if mc.__version__ in path.read_text(encoding="utf-8")]


def test_every_file_names_the_same_repository():
    source = PROJECT["urls"]["Source"]
    assert all(
        url.startswith((source, "https://metacal.github.io/")) for url in PROJECT["urls"].values()
    )
    assert f"repository-code: {source}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    templates = ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml"
    if templates.exists():  # the sdist leaves .github out
        assert f"url: {source}/security" in templates.read_text(encoding="utf-8")


def test_the_matrix_has_every_python_that_is_declared():
    declared = {
        text.rpartition(" ")[2]
        for text in PROJECT["classifiers"]
        if re.search(r"Python :: 3\.\d+", text)
    }
    (listed,) = re.findall(
        r"^PYTHONS = \((.*)\)$", (ROOT / "noxfile.py").read_text(encoding="utf-8"), re.M
    )
    assert declared == set(re.findall(r"[\d.]+", listed))
    assert (
        PROJECT["requires-python"]
        == f">={min(declared, key=lambda text: int(text.partition('.')[2]))}"
    )


@pytest.mark.parametrize(
    "name", ["CITATION.cff", "SECURITY.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "LICENSE"]
)
def test_what_a_newcomer_looks_for_is_there(name):
    assert (ROOT / name).stat().st_size > 500
