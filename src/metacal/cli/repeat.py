"""Command line that repeats the current command."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import click

from metacal.cli.values import format_row_range


def build_repeat_command(
    excluded_options: Sequence[str] = ("json", "quiet"), new_paths: Mapping[str, str] | None = None
) -> str | None:
    """Return the current command with its options, for a shell in the same folder.

    Parameters
    ----------
    excluded_options : sequence of str
        Names of options that are left out.

    new_paths : mapping of str to str, optional
        Path to use instead of each of these paths.

    Returns
    -------
    str or None
        None if the command reads standard input, which cannot be read again, or if no command
        runs.
    """
    context = click.get_current_context(silent=True)
    if context is None:
        return None
    paths: list[str] = []
    options: list[str] = []
    for parameter in context.command.params:
        name = parameter.name or ""
        if isinstance(parameter, click.Argument):
            value: Any = context.params[name]
            paths += value if isinstance(value, tuple) else [value]
        elif name not in excluded_options:
            options += _option_arguments(context, parameter)
    if "-" in paths:
        return None
    new_path_by_old_path = new_paths or {}
    words = [
        new_path_by_old_path.get(word, word) for word in [*map(_path_as_argument, paths), *options]
    ]
    return shlex.join(["metacal", context.info_name or "", *words])


def _option_arguments(context: click.Context, parameter: click.Parameter) -> list[str]:
    """Return the words of an option that was given on the command line."""
    name = parameter.name or ""
    if context.get_parameter_source(name) is not click.core.ParameterSource.COMMANDLINE:
        return []
    # Options that all commands share are stored in the context.
    value: Any = context.params.get(name, context.meta.get(f"metacal.{name}"))
    flag = max(parameter.opts, key=len)
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return [flag] if value else []
    if name == "rows":
        return [flag, format_row_range(value)]
    values = value if isinstance(value, tuple | list) else (value,)
    words = []
    for entry in values:
        words += [flag, f"{entry:.15g}" if isinstance(entry, float) else str(entry)]
    return words


def _path_as_argument(path: str) -> str:
    """Return a path that is not taken for an option."""
    return f"./{path}" if path.startswith("-") else path
