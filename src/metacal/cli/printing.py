"""How answers look: JSON for machines; for people, aligned tables and lines that fit the screen."""

from __future__ import annotations

import json
import sys
import textwrap
from typing import Any

import click

from metacal.display import on_a_terminal, visible

WIDTH = 100
#: Exit codes: the data do not support what was asked; a promise is refuted, or there is an alarm. 2
#: is wrong usage.
EXIT_NOT_SUPPORTED, EXIT_REFUTED = 1, 3
#: How many rows ahead people are told what to expect.
N_FORECAST_ROWS = 1000
#: Where the context of a command has what people were told: a warning that stands there is not said
#: again.
PRINTED_TEXTS_KEY = "metacal.said"


def echo(text: object, *, err: bool = False, nl: bool = True) -> None:
    """Print for people: all that a command says goes through here, and nothing that a terminal
    could obey gets out.
    """
    ctx = click.get_current_context(silent=True)
    if ctx is not None:
        ctx.meta.setdefault(PRINTED_TEXTS_KEY, []).append(" ".join(str(text).split()))
    click.echo(visible(str(text)), err=err, nl=nl)


def echo_data(text: str) -> None:
    """Print a result as it is into a pipe or a file; on a terminal, made visible."""
    click.echo(visible(text) if on_a_terminal(sys.stdout) else text, nl=False)


def print_json(answer: Any) -> None:
    """Print strict JSON on stdout."""
    # JSON in ASCII has every control character written out but one.
    click.echo(json.dumps(answer, indent=2, allow_nan=False).replace("\x7f", "\\u007f"))


def print_result(answer: Any, text: object) -> None:
    """Print the result: with --json an answer for machines, else a text for people."""
    if flag_is_set("json"):
        print_json(answer)
    else:
        echo(text)


def print_note(text: str) -> None:
    """Tell people something that is not the result: on stderr, unless they said --quiet."""
    if not flag_is_set("quiet"):
        echo(text, err=True)


def flag_is_set(name: str) -> bool:
    """Whether the command was called with --quiet, --json, or --strict."""
    ctx = click.get_current_context(silent=True)
    return ctx is not None and bool(ctx.meta.get(f"metacal.{name}"))


def progress_bar(total: int | None, unit: str, what: str = "") -> Any:
    """Return a tqdm bar on stderr: it appears after a second, leaves nothing behind, and only shows
    on a terminal.

    Examples
    --------
    >>> with progress_bar(10, "row") as bar:
    ...     _ = bar.update(10)
    """
    from tqdm import tqdm

    disable = True if flag_is_set("quiet") else None
    return tqdm(
        total=total,
        unit=unit,
        desc=what or None,
        unit_scale=True,
        delay=1,
        leave=False,
        disable=disable,
    )


def wrap_lines(text: str, hang: int = 15, width: int = WIDTH) -> str:
    """Break long lines; what follows a break is indented by `hang`.

    Examples
    --------
    >>> print(wrapped("  note         one two three", width=22))
      note         one two
                   three
    """
    lines = []
    for line in text.splitlines():
        start = line[: len(line) - len(line.lstrip())]
        after = " " * hang if start else ""
        lines += textwrap.wrap(
            line.strip(),
            width,
            initial_indent=start,
            subsequent_indent=after,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
    return "\n".join(lines)
