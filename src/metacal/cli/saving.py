"""Saving what a command has fitted, whatever kind of gate it is, and saying so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from metacal.cli.printing import note

if TYPE_CHECKING:
    from metacal.gate import Gate


def check_can_sign(key: str | None, output: str | None) -> None:
    """Refuse a key that cannot sign before anything is fitted."""
    if key is None:
        return
    from metacal.io.artifact.signature import read_key

    if output is None:
        raise click.UsageError("--sign signs what -o saves; give -o cal.json.")
    read_key(key).make(b"")


def save(gate: Gate, path: str | None, key: str | None, n_jobs: int | None = None) -> None:
    """Put the gate into a file, once what is to be saved has been read back and decides the same; nothing for None."""
    if path is None:
        return
    from metacal.io.artifact.document import Content
    from metacal.io.artifact.file import text_that_loads
    from metacal.io.artifact.wrapping import write_text

    write_text(text_that_loads(Content(gate, n_jobs), key=key), path)


def say_saved(output: str | None, key: str | None, *, then: str, without: str, as_json: bool) -> None:
    """Say where it was saved and what comes `then`, or what `-o` would do; whoever reads JSON has not asked."""
    if output is not None:
        note(f"Saved to {output}{' and signed' if key else ''}. Next: {then}")
    elif not as_json:
        note(f"Nothing was saved; {without}")
