"""The GitHub workflows run only code that a commit hash names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.y*ml"))
#: A whole line: the action, the commit, and the exact version as a comment.
PINNED = re.compile(r"\s*(-\s+)?uses:\s+[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+\s*")


def uses_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if re.match(r"\s*(-\s+)?[\"']?uses[\"']?\s*:", line)]


def unpinned(text: str) -> list[str]:
    return [line for line in uses_lines(text) if not PINNED.fullmatch(line)]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_action_is_pinned_by_commit_with_its_version(path):
    text = path.read_text(encoding="utf-8")
    assert uses_lines(text)
    assert unpinned(text) == []


def test_one_action_has_one_commit_in_all_workflows():
    lines = [line for path in WORKFLOWS for line in uses_lines(path.read_text(encoding="utf-8"))]
    pins = {line.split("uses:")[1].strip() for line in lines}
    actions = [pin.partition("@")[0] for pin in pins]
    assert len(actions) == len(set(actions)), sorted(pins)


@pytest.mark.parametrize(
    "line",
    [
        "      - uses: actions/checkout@v4",
        "      - uses: actions/checkout@v4 # v4.4.0",
        "        uses: pypa/gh-action-pypi-publish@release/v1",
        "      - uses: actions/checkout@11d5960a326750d5838078e36cf38b85af677262",
        "      - uses: actions/checkout@11d5960a326750d5838078e36cf38b85af677262 # v4",
        "      - uses: actions/checkout@11d5960 # v4.4.0",
        '      - "uses": actions/checkout@v4',
    ],
)
def test_a_loose_pin_would_be_noticed(line):
    assert unpinned(line) == [line]
