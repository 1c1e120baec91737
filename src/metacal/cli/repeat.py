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
    click_context = click.get_current_context(silent=True)
    if click_context is None:
        return None
    paths: list[str] = []
    option_arguments: list[str] = []
    for parameter in click_context.command.params:
        parameter_name = parameter.name or ""
        if isinstance(parameter, click.Argument):
            value: Any = click_context.params[parameter_name]
            paths += value if isinstance(value, tuple) else [value]
        elif parameter_name not in excluded_options:
            option_arguments += _format_given_option(click_context, parameter)
    if "-" in paths:
        return None
    new_path_by_old_path = new_paths or {}
    arguments = [
        new_path_by_old_path.get(argument, argument)
        for argument in [*map(_path_as_argument, paths), *option_arguments]
    ]
    return shlex.join(["metacal", click_context.info_name or "", *arguments])


def _format_given_option(context: click.Context, parameter: click.Parameter) -> list[str]:
    """Return the arguments of an option, none if it was not on the command line."""
    parameter_name = parameter.name or ""
    if context.get_parameter_source(parameter_name) is not click.core.ParameterSource.COMMANDLINE:
        return []
    # Options that all commands share are stored in the context.
    parsed_value: Any = context.params.get(
        parameter_name, context.meta.get(f"metacal.{parameter_name}")
    )
    flag = max(parameter.opts, key=len)
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return [flag] if parsed_value else []
    if parameter_name == "rows":
        return [flag, format_row_range(parsed_value)]
    option_values = parsed_value if isinstance(parsed_value, tuple | list) else (parsed_value,)
    arguments = []
    for option_value in option_values:
        arguments += [
            flag,
            f"{option_value:.15g}" if isinstance(option_value, float) else str(option_value),
        ]
    return arguments


def _path_as_argument(path: str) -> str:
    """Return a path that is not taken for an option."""
    return f"./{path}" if path.startswith("-") else path
