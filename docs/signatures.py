"""Signatures as they are written: `X: ArrayLike`, not the half page of types that NumPy means by
it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


class _AsWritten:
    """An annotation that is shown by its own words."""

    def __init__(self, words: object) -> None:
        self.words = words if isinstance(words, str) else inspect.formatannotation(words)

    def __repr__(self) -> str:
        return self.words


def as_written(thing: Callable[..., Any], *, bound: bool) -> tuple[str, str | None] | None:
    """The arguments of a function or class, and what it returns; of a method without `self`.

    >>> as_written(as_written, bound=False)
    ('(thing: Callable[..., Any], *, bound: bool)', 'tuple[str, str | None] | None')
    """
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return None
    empty = inspect.Parameter.empty
    parameters = [
        given
        if given.annotation is empty
        else given.replace(annotation=_AsWritten(given.annotation))
        for given in signature.parameters.values()
    ]
    arguments = str(inspect.Signature(parameters[1:] if bound else parameters))
    returned = signature.return_annotation
    return arguments, None if returned is empty or inspect.isclass(thing) else repr(
        _AsWritten(returned)
    )


def show(app: Any, what: str, name: str, thing: Any, *_: Any) -> tuple[str, str | None] | None:
    """For Sphinx's event autodoc-process-signature."""
    if what not in ("class", "exception", "function", "method"):
        return None
    parent = name.rpartition(".")[0]
    bound = what == "method" and not isinstance(_static(parent, name), staticmethod | classmethod)
    return as_written(thing, bound=bound and not inspect.ismethod(thing))


def _static(parent: str, name: str) -> Any:
    """The member as its class holds it: a static method shows itself as one only there."""
    import metacal

    found: Any = metacal
    for part in parent.split(".")[1:]:
        found = getattr(found, part)
    return inspect.getattr_static(found, name.rpartition(".")[2])
