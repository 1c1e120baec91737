"""What is imported when it is first asked for: by its place, or by its name in a package."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def found(place: str) -> Any:
    """What stands at "module:name": a module of that package, or what the module has under the name."""
    module, _, name = place.partition(":")
    home = import_module(module)
    inside = hasattr(home, "__path__") and find_spec(f"{module}.{name}") is not None
    return import_module(f"{module}.{name}") if inside else getattr(home, name)


def names_of(
    package: str, registered: Callable[[], Mapping[str, str]] = dict
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and the `__dir__` of a package whose names live in other modules.

    The names are those that its file imports for type checkers, below `if TYPE_CHECKING:`, and so are written once;
    `registered` brings those of a registry, name -> module, asked anew each time.
    """

    @cache
    def written() -> dict[str, str]:
        import ast  # `import metacal` alone does not wait for it

        spec = sys.modules[package].__spec__
        source = spec.loader.get_source(package)  # type: ignore[union-attr]
        blocks = (node for node in ast.parse(source).body if isinstance(node, ast.If))
        lines = [line for block in blocks for line in block.body if isinstance(line, ast.ImportFrom)]
        return {to.asname: f"{line.module}:{to.name}" for line in lines for to in line.names if to.asname}

    def get(name: str) -> Any:
        if name in written():
            value = found(written()[name])
            setattr(sys.modules[package], name, value)
            return value
        if name in (homes := registered()):
            return getattr(import_module(homes[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        return sorted({*written(), *registered()})

    return get, names
