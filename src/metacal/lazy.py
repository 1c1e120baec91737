"""What is imported when it is first asked for: by its place, or by its name in a package."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def found(place: str) -> Any:
    """What stands at "module:name"."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def names_of(package: str, homes: Callable[[], Mapping[str, str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package whose names live in other modules: name -> module."""

    def get(name: str) -> Any:
        home = homes().get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(home), name)

    return get
