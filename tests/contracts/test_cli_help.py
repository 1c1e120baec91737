"""The help of each command fits the screen: few examples, options in the order of use."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
from click.testing import CliRunner

from metacal.cli import SUMMARIES, main
from metacal.cli.options import as_command, fraction_option, group_by_help_section, option
from metacal.cli.promise_specs import promise_option

#: Largest number of examples of a command.
MAX_EXAMPLES = 5
#: Two screens of a terminal with 100 columns.
MAX_LINES_BEFORE_ADVANCED = 80


def help_text(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    result = CliRunner().invoke(main, [name, "--help"], terminal_width=100)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("name", SUMMARIES)
def test_help_has_at_most_five_examples(name, monkeypatch):
    text = help_text(name, monkeypatch)
    examples = re.search(r"^  Examples:\n((?:    .+\n)+)", text, re.MULTILINE)
    assert examples, "the help has no examples"
    assert 1 <= len(examples[1].splitlines()) <= MAX_EXAMPLES


def test_help_of_fit_fits_two_screens_before_the_advanced_options(monkeypatch):
    lines = help_text("fit", monkeypatch).splitlines()
    assert lines.index("Advanced promise settings:") <= MAX_LINES_BEFORE_ADVANCED


def test_all_promises_are_under_one_heading(monkeypatch):
    text = help_text("fit", monkeypatch)
    promises = re.search(r"^Promise:\n(.*?)^\S", text, re.MULTILINE | re.DOTALL)
    flags = set(re.findall(r"^  (--(?:min|max)-[a-z-]+|--cheapest)", promises[1], re.MULTILINE))
    assert flags == set(re.findall(r"^  (--(?:min|max)-[a-z-]+|--cheapest)", text, re.MULTILINE))


def test_an_option_that_no_section_lists_is_under_promise_if_it_describes_one():
    @dataclass(frozen=True)
    class Options:
        max_leak: float | None = promise_option(
            fraction_option("At most A of the wrong answers are accepted.", "A"),
            build=lambda mc, options, inputs: None,
        )
        depth: int | None = option("Depth of the search.", "N")

    command = as_command(Options, has_help_sections=True)(lambda options: None)
    grouped = group_by_help_section(command.params)
    names = {heading: [option.name for option in options] for heading, options in grouped.items()}
    assert names["Promise"] == ["max_leak"]
    assert names["Advanced"] == ["depth"]
