"""Runs of metacal commands within `metacal start`.

A command is printed only after it has succeeded, so that `start` never shows one that fails.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

import click

from metacal.cli.printing import EXIT_NOT_SUPPORTED, EXIT_REFUTED, echo_data, print_note
from metacal.errors import InfeasibleTargetError


@dataclass(frozen=True)
class CommandRun:
    """A command that was run.

    Attributes
    ----------
    arguments : list of str
        Words of the command after "metacal".
    output : str
        Its standard output.
    exit_code : int
        0, or the code for a refuted promise or rows that judge nothing.
    error : InfeasibleTargetError or None
        Error if the rows do not support the target.
    """

    arguments: list[str]
    output: str = ""
    exit_code: int = 0
    error: InfeasibleTargetError | None = None

    def show(self) -> None:
        """Print the command and its output."""
        print_note(f"\n$ {shell_line(self.arguments)}")
        echo_data(self.output)


def shell_line(arguments: list[str]) -> str:
    """Return a metacal command as a line for the shell."""
    return shlex.join(["metacal", *arguments])


def run_metacal_command(arguments: list[str]) -> CommandRun:
    """Run a metacal command in this process, without printing.

    Parameters
    ----------
    arguments : list of str
        Words of the command after "metacal".

    Returns
    -------
    CommandRun
    """
    command_name = arguments[0]
    command = importlib.import_module(f"metacal.cli.{command_name}").command
    captured_output = io.StringIO()
    exit_code = 0
    try:
        with (
            _hide_notes(),
            contextlib.redirect_stdout(captured_output),
            command.make_context(
                command_name, list(arguments[1:]), parent=click.get_current_context()
            ) as context,
        ):
            command.invoke(context)
    except InfeasibleTargetError as error:
        return CommandRun(arguments, exit_code=EXIT_NOT_SUPPORTED, error=error)
    except click.exceptions.Exit as exit_request:
        exit_code = exit_request.exit_code
        if exit_code not in (0, EXIT_NOT_SUPPORTED, EXIT_REFUTED):
            raise
    return CommandRun(arguments, captured_output.getvalue(), exit_code)


@contextlib.contextmanager
def _hide_notes() -> Iterator[None]:
    """Hide the notes of a command, which suggest the next command."""
    meta = click.get_current_context().meta
    meta["metacal.hidden_notes"] = True
    try:
        yield
    finally:
        meta["metacal.hidden_notes"] = False
