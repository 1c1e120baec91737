"""Printing: JSON for programs, aligned text for people.

Results go to stdout. Notes, warnings and progress bars go to stderr. Every text for people
passes through `echo`, which escapes control characters that a terminal would interpret.
"""

from __future__ import annotations

import json
import sys
import textwrap
from typing import Any

import click

from metacal.display import escape_controls, is_terminal

WIDTH = 100
#: Exit code if the data do not support the requested result. Exit code 2 means wrong usage.
EXIT_NOT_SUPPORTED = 1
#: Exit code if a promise is refuted or an alarm was raised.
EXIT_REFUTED = 3
#: Number of new rows for which a certificate forecasts the number of accepted rows.
N_FORECAST_ROWS = 1000
#: Key of the click context under which printed texts are stored.
#: A warning whose text was already printed is not repeated.
PRINTED_TEXTS_KEY = "metacal.said"


def echo(text: object, *, err: bool = False, nl: bool = True) -> None:
    """Print a text for people, with control characters escaped."""
    ctx = click.get_current_context(silent=True)
    if ctx is not None:
        printed_texts = ctx.meta.setdefault(PRINTED_TEXTS_KEY, [])
        printed_texts.append(" ".join(str(text).split()))
    click.echo(escape_controls(str(text)), err=err, nl=nl)


def echo_data(text: str) -> None:
    """Print a result unchanged; on a terminal, escape control characters."""
    if is_terminal(sys.stdout):
        text = escape_controls(text)
    click.echo(text, nl=False)


def print_json(json_content: Any) -> None:
    """Print strict JSON on stdout."""
    # ASCII JSON escapes every control character except DEL.
    click.echo(json.dumps(json_content, indent=2, allow_nan=False).replace("\x7f", "\\u007f"))


def print_result(json_content: Any, text: object) -> None:
    """Print a result as JSON if --json was given, else print it as text."""
    if flag_is_set("json"):
        print_json(json_content)
    else:
        echo(text)


def print_note(text: str) -> None:
    """Print a note on stderr, unless --quiet was given or the notes are hidden."""
    if not flag_is_set("quiet") and not flag_is_set("hidden_notes"):
        echo(text, err=True)


def flag_is_set(name: str) -> bool:
    """Check whether --quiet, --json or --strict was given to the current command."""
    ctx = click.get_current_context(silent=True)
    return ctx is not None and bool(ctx.meta.get(f"metacal.{name}"))


def progress_bar(total: int | None, unit: str, description: str = "") -> Any:
    """Return a tqdm progress bar on stderr, or a bar that shows nothing.

    The bar appears after one second, only on a terminal, and is erased when it is closed.

    Examples
    --------
    >>> with progress_bar(10, "row") as bar:
    ...     _ = bar.update(10)
    """
    if flag_is_set("quiet") or not is_terminal(sys.stderr):
        return _HiddenProgressBar()
    # A short command spends more time on importing tqdm than on parsing its options.
    from tqdm import tqdm

    return tqdm(
        total=total, unit=unit, desc=description or None, unit_scale=True, delay=1, leave=False
    )


class _HiddenProgressBar:
    """Progress bar that shows nothing. It has the methods of tqdm that the commands call."""

    initial = n = 0

    def __enter__(self) -> _HiddenProgressBar:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def update(self, n: float | None = 1) -> None:
        """Ignore that `n` further steps are done."""

    def reset(self, total: float | None = None) -> None:
        """Ignore a new number of steps."""

    def set_description(self, desc: str | None = None, refresh: bool | None = True) -> None:
        """Ignore a new description."""

    def set_description_str(self, desc: str | None = None, refresh: bool | None = True) -> None:
        """Ignore a new description."""

    def set_postfix_str(self, s: str = "", refresh: bool = True) -> None:
        """Ignore a new text behind the bar."""

    def refresh(self) -> None:
        """Draw nothing."""

    def close(self) -> None:
        """Remove nothing."""


def wrap_lines(text: str, hanging_indent: int = 15, width: int = WIDTH) -> str:
    """Wrap each line of a text, with a hanging indent for indented lines.

    Examples
    --------
    >>> print(wrap_lines("  note         one two three", width=22))
      note         one two
                   three
    """
    wrapped_lines = []
    for line in text.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        continuation_indent = " " * hanging_indent if indent else ""
        pieces = textwrap.wrap(
            line.strip(),
            width,
            initial_indent=indent,
            subsequent_indent=continuation_indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        # textwrap returns no line for an empty one.
        wrapped_lines += pieces or [""]
    return "\n".join(wrapped_lines)
