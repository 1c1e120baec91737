"""Spelling of parameters in messages, for users of Python and of the command line."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager

#: Whether messages show options as command-line flags instead of Python parameters.
_uses_command_line_spelling = False


@contextmanager
def use_command_line_spelling() -> Iterator[None]:
    """Show options in messages as command-line flags while the context is active."""
    global _uses_command_line_spelling
    previous_setting = _uses_command_line_spelling
    _uses_command_line_spelling = True
    try:
        yield
    finally:
        _uses_command_line_spelling = previous_setting


def choose_spelling(python_spelling: str, command_spelling: str) -> str:
    """Return the spelling of an option for a user of Python or of the command line."""
    return command_spelling if _uses_command_line_spelling else python_spelling


def format_option_name(name: str) -> str:
    """Format the name of a parameter as the user writes it, without a value.

    Examples
    --------
    >>> format_option_name("label_key")
    'label_key'
    >>> with use_command_line_spelling():
    ...     format_option_name("label_key")
    '--label-key'
    """
    return choose_spelling(python_spelling=name, command_spelling=_format_flag(name))


def _format_flag(name: str) -> str:
    """Return the command-line flag of a parameter."""
    return f"--{name.replace('_', '-')}"


#: Placeholder for the value of an option on the command line, keyed by parameter.
_PLACEHOLDERS = {"classes": "A,B,C", "labels": "FILE"}
_DEFAULT_PLACEHOLDER = "NAME"


def format_option(name: str, value: str | None = None, metavar: str | None = None) -> str:
    """Format a parameter as the user writes it, in Python or on the command line.

    Parameters
    ----------
    name : str
        Name of the parameter in Python.

    value : str, default=None
        Value of the parameter.

    metavar : str, default=None
        Placeholder for the value on the command line. For `classes` it is a list of example
        classes, separated by commas.

    Returns
    -------
    str

    Examples
    --------
    >>> format_option("label_key", "truth"), format_option("classes")
    ("label_key='truth'", 'classes=[...]')
    >>> with use_command_line_spelling():
    ...     format_option("label_key", "my truth"), format_option("classes")
    ("--label-key 'my truth'", '--classes A,B,C')
    """
    flag = _format_flag(name)
    if value is not None:
        return choose_spelling(f"{name}={value!r}", f"{flag} {shlex.quote(value)}")
    python_spelling = name
    if name == "classes":
        example_classes = metavar.split(",") if metavar else "[...]"
        python_spelling = f"classes={example_classes}"
    placeholder = metavar or _PLACEHOLDERS.get(name, _DEFAULT_PLACEHOLDER)
    return choose_spelling(python_spelling, f"{flag} {placeholder}")
