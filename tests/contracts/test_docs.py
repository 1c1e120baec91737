"""The documentation is true: its code runs and prints what the page shows, its links resolve, its
lists are complete.

On each page the blocks run in order, in one namespace and one empty folder:
- ```python runs; a ```text block right below it is what it prints;
- ```console runs the lines after "$ metacal"; the lines below each are what it answers ("..."
  stands for anything).
Any other kind of block is only read.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib.util
import io
import re
import shlex
import subprocess
import sys
import unicodedata
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import metacal
from metacal.cli import SUMMARIES, main

#: Both streams in the order in which they were written; later versions of click do so unasked.
IN_ORDER = {"mix_stderr": True} if version("click").startswith("8.1.") else {}

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
DEVELOPMENT_PAGES = sorted((DOCS / "development").glob("*.md"))
TEXTS = [*PAGES, *DEVELOPMENT_PAGES, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]

#: What a page takes for granted: names that its examples use as the reader's own data.
GIVEN = {
    "index.md": (
        """
import metacal as mc
(logits, labels), (new_logits, new_labels) = mc.datasets.load("cifar10-resnet110").split(5000, random_state=0)
"""
    ),
    "metrics.md": (
        """
import numpy as np
import metacal as mc
(fit_x, fit_y), (test_x, labels) = mc.datasets.load("cifar10-resnet110").split(14_800, random_state=0)
gate = mc.MetaCal(mc.MinAccuracy(0.97)).fit(fit_x, fit_y)
proba, accept, score = gate.predict_proba(test_x), gate.accepts(test_x), gate.ranking_scores(test_x)
correct = test_x.argmax(axis=1) == labels
"""
    ),
}

FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)
LOOSELY = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    """A fenced block, and whether nothing but blank lines lies between it and the block before."""

    language: str
    code: str
    line: int
    follows: bool


def blocks(text):
    end = -1
    for found in FENCE.finditer(text):
        follows = end >= 0 and not text[end : found.start()].strip()
        yield Block(found[1], found[2], text.count("\n", 0, found.start()) + 2, follows)
        end = found.end()


def same(expected, got):
    return doctest.OutputChecker().check_output(
        expected.strip() + "\n", got.strip() + "\n", LOOSELY
    )


def assert_same(expected, got, where):
    assert same(expected, got), (
        f"{where}: the page shows\n{expected}\nbut it is\n{got}\n{rewrite_command(where)}"
    )


def rewrite_command(where):
    """Say how to write the outputs of a page anew. `where` begins with the name of the page."""
    name = where.partition(":")[0]
    page = next(page for page in PAGES if page.name == name)
    return f"if the change is meant, run: python docs/outputs.py {page.relative_to(ROOT)}"


def run_python(block, names, where):
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            exec(compile("\n" * (block.line - 1) + block.code, where, "exec"), names)
    except ModuleNotFoundError as error:
        if error.name in ("torch", "transformers"):
            pytest.skip(f"{where}: {error.name} is not installed")
        raise
    return out.getvalue()


def run_console(block, where):
    for part in re.split(r"^\$ ", block.code, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        assert_same(expected, answer_of(command), f"{where}: {command}")


def answer_of(command):
    program, *arguments = shlex.split(command, comments=True)
    assert program == "metacal", (
        f"only metacal runs here, not {program!r}; use another kind of block"
    )
    answer = CliRunner(**IN_ORDER).invoke(main, arguments, prog_name="metacal").output
    # What click 8.1 writes with a colon, later versions write with quotes.
    return re.sub(
        r"option: (--[a-z-]+) Did you mean (--[a-z-]+)\?",
        r"option '\1'. Did you mean '\2'?",
        answer,
    )


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_code_on_the_page_runs_and_prints_what_it_shows(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    names = {"__name__": "__main__"}
    exec(GIVEN.get(page.name, ""), names)
    printed = None
    for block in blocks(page.read_text(encoding="utf-8")):
        where = f"{page.name}:{block.line}"
        if block.language == "text" and block.follows and printed is not None:
            assert_same(block.code, printed, where)
        printed = run_python(block, names, where) if block.language == "python" else None
        if block.language == "console":
            run_console(block, where)


@pytest.mark.slow
def test_the_quick_start_shows_what_the_demo_prints(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    quick_start = (DOCS / "quick-start.md").read_text(encoding="utf-8")
    shown = next(b.code for b in blocks(quick_start) if "rows to fit" in b.code)
    printed = CliRunner(**IN_ORDER).invoke(main, ["demo"]).output.splitlines()
    missing = [line for line in shown.splitlines() if line.strip() and line not in printed]
    assert not missing, rewrite_command("quick-start.md")


def slugs(text, collapse):
    """The anchors of a page; some make one hyphen of several blanks, GitHub does not."""
    found = set()
    for title in HEADING.findall(FENCE.sub("", text)):
        plain = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", title)
        if collapse:
            plain = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode()
        words = re.sub(r"[^\w\s-]", "", plain).strip().lower()
        found.add(re.sub(r"[-\s]+", "-", words) if collapse else words.replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.name)
def test_links_and_anchors_resolve(page):
    text = page.read_text(encoding="utf-8")
    for target in LINK.findall(FENCE.sub("", text)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name} links to {target}"
        assert DOCS not in page.parents or DOCS in file.parents, (
            f"{page.name} links out of docs: {target}"
        )
        if anchor:
            linked = file.read_text(encoding="utf-8")
            assert anchor in slugs(linked, True) & slugs(linked, False), (
                f"{page.name}: no heading for {target}"
            )


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_first_pages_link_the_page_of_two_classes(page):
    text = (DOCS.parent / page).read_text(encoding="utf-8")
    assert any(target.endswith("two-classes.md") for target in LINK.findall(text))


PARTS = ("tutorials", "how-to", "reference", "explanation", "benchmarks")


def contents(name):
    """The pages in the hidden table of contents of a page."""
    found = re.search(
        r"^```\{toctree\}\n(.*?)^```$",
        (DOCS / f"{name}.md").read_text(encoding="utf-8"),
        re.M | re.S,
    )
    return re.findall(r"^[\w-]+$", found[1], re.MULTILINE)


def test_every_page_is_in_one_part_of_the_site():
    assert contents("index") == [*PARTS]
    listed = [page for part in PARTS for page in contents(part)]
    pages = {page.stem for page in DOCS.glob("*.md")} - {"index", *PARTS}
    missing, twice = pages - set(listed), {page for page in listed if listed.count(page) > 1}
    assert not missing, (
        f"list them in one of {', '.join(f'docs/{part}.md' for part in PARTS)}: {missing}"
    )
    assert not twice
    assert not set(listed) - pages


@pytest.mark.parametrize("part", PARTS)
def test_a_part_says_what_its_pages_are_about(part):
    text = (DOCS / f"{part}.md").read_text(encoding="utf-8")
    assert {target.removesuffix(".md") for target in LINK.findall(text)} >= set(contents(part))


@pytest.mark.parametrize("name", metacal.__all__)
def test_python_page_names_every_public_name(name):
    assert re.search(rf"`(mc\.)?{name}\b", (DOCS / "python.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.name)
def test_names_in_the_text_exist(page):
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    for dotted in re.findall(r"`mc\.([A-Za-z_.]+[A-Za-z_])", prose):
        value = metacal
        for part in dotted.split("."):
            value = getattr(value, part)


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.name)
def test_commands_in_the_text_exist(page):
    text = page.read_text(encoding="utf-8")
    code = "\n".join(
        [*(b.code for b in blocks(text)), *re.findall(r"`([^`\n]+)`", FENCE.sub("", text))]
    )
    used = set(re.findall(r"(?:^|[$|&] ?)metacal ([a-z][a-z-]*)", code, re.MULTILINE))
    assert used <= set(SUMMARIES)


@pytest.mark.parametrize("name", SUMMARIES)
def test_cli_page_describes_every_command_and_option(name):
    text = (DOCS / "cli.md").read_text(encoding="utf-8")
    section = re.search(rf"^### metacal {name}$(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
    assert section, f"docs/cli.md has no section '### metacal {name}'"
    shared = re.search(r"^## Options of most commands$(.*)", text, re.MULTILINE | re.DOTALL)
    command = main.get_command(click.Context(main), name)
    options = [max(p.opts, key=len) for p in command.params if isinstance(p, click.Option)]
    assert not [option for option in options if f"`{option}" not in section[1] + shared[1]]


@pytest.mark.parametrize("name", ["plain_text", "signatures"])
def test_what_reads_the_docstrings_does_what_it_says(name):
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = doctest.testmod(module)
    assert (found.failed, found.attempted > 0) == (0, True)


def test_cli_page_is_what_the_commands_say_of_themselves():
    done = subprocess.run([sys.executable, DOCS / "cli_reference.py", "--check"], cwd=ROOT)
    assert done.returncode == 0, "docs/cli.md is stale: run python docs/cli_reference.py"
