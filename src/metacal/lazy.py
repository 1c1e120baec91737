"""What is imported when it is first asked for: by its place, or by its name in a package."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def import_object(path: str) -> Any:
    """What stands at "module:name": a module of that package, or what the module has under the
    name.
    """
    module, _, name = path.partition(":")
    home = import_module(module)
    if (
        name not in vars(home)
        and hasattr(home, "__path__")
        and find_spec(f"{module}.{name}") is not None
    ):
        return import_module(f"{module}.{name}")
    return getattr(home, name)


def read_typed_imports(package: str) -> dict[str, str]:
    """What a module imports for type checkers, below `if TYPE_CHECKING:`: name -> "module:name"."""
    spec: Any = sys.modules[package].__spec__
    try:
        source = spec.loader.get_data(spec.origin).decode()
    except (OSError, UnicodeDecodeError) as error:
        do = "bundle it with its .py files (PyInstaller: module_collection_mode={'metacal': 'py'})"
        raise ImportError(
            f"{package} looks its names up in its own source file, which is not here; {do}"
        ) from error
    lines = re.findall(r"^    from (\S+) import (\w+) as (\w+)", source, re.MULTILINE)
    return {name: f"{module}:{inner}" for module, inner, name in lines}


def make_lazy_attributes(
    package: str, registered: Callable[[], Mapping[str, str]] = dict
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and the `__dir__` of a package whose names live in other modules; `__all__`
    is all of them.

    The names are those that its file imports for type checkers, below `if TYPE_CHECKING:`, and so
    are written once; `registered` brings those of a registry, name -> module, asked anew each time.
    """
    written = cache(partial(read_typed_imports, package))

    def get(name: str) -> Any:
        if name == "__all__":
            return names()
        if name in written():
            value = import_object(written()[name])
            setattr(sys.modules[package], name, value)
            return value
        if name in (homes := registered()):
            return getattr(import_module(homes[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        return sorted({*written(), *registered()})

    return get, names
