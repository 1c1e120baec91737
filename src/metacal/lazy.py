"""Lazy imports of objects by their path.

An *import path* is written "module:name". The name is an attribute or a submodule of the module.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

#: Line of an import for type checkers, which is indented below `if TYPE_CHECKING:`.
_TYPED_IMPORT = re.compile(r"^    from (\S+) import (\w+) as (\w+)", re.MULTILINE)


def import_object(path: str) -> Any:
    """Import the object with the path "module:name".

    Parameters
    ----------
    path : str
        Module and name, separated by a colon. If the module is a package, the name may be that of
        a submodule.

    Returns
    -------
    object

    Examples
    --------
    >>> import_object("metacal.errors:InputError").__name__
    'InputError'
    """
    module_name, _, name = path.partition(":")
    module = import_module(module_name)
    is_package = hasattr(module, "__path__")
    submodule_name = f"{module_name}.{name}"
    if name not in vars(module) and is_package and find_spec(submodule_name) is not None:
        return import_module(submodule_name)
    return getattr(module, name)


def read_typed_imports(module_name: str) -> dict[str, str]:
    """Return the import paths of the names that a module imports for type checkers.

    These are the names below `if TYPE_CHECKING:` in the source of the module.

    Parameters
    ----------
    module_name : str
        Name of a module that has been imported.

    Returns
    -------
    dict of str to str
        Import path of each name.

    Raises
    ------
    ImportError
        If the source file of the module is missing.
    """
    spec: Any = sys.modules[module_name].__spec__
    try:
        source = spec.loader.get_data(spec.origin).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ImportError(
            f"{module_name} reads its public names from its own source file, which is missing;"
            " bundle it with its .py files (PyInstaller:"
            f" module_collection_mode={{'metacal': 'py'}})"
        ) from error
    typed_imports = _TYPED_IMPORT.findall(source)
    return {alias: f"{origin}:{name}" for origin, name, alias in typed_imports}


def make_lazy_attributes(
    package_name: str, list_registered_modules: Callable[[], Mapping[str, str]] = dict
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the `__getattr__` and `__dir__` of a package with lazily imported names.

    The names are those that the package imports for type checkers, so that each is written once,
    and those of a registry. `__all__` lists all of them.

    Parameters
    ----------
    package_name : str
        Name of the package.
    list_registered_modules : callable, default=dict
        Function that returns the module of each name in a registry. It is called for each access,
        because a registry may grow.

    Returns
    -------
    get_attribute : callable
        Function for the `__getattr__` of the package.
    list_names : callable
        Function for the `__dir__` of the package.
    """
    get_typed_imports = cache(partial(read_typed_imports, package_name))

    def get_attribute(name: str) -> Any:
        if name == "__all__":
            return list_names()
        typed_imports = get_typed_imports()
        if name in typed_imports:
            value = import_object(typed_imports[name])
            setattr(sys.modules[package_name], name, value)
            return value
        registered_modules = list_registered_modules()
        if name in registered_modules:
            return getattr(import_module(registered_modules[name]), name)
        raise AttributeError(f"module {package_name!r} has no attribute {name!r}")

    def list_names() -> list[str]:
        return sorted({*get_typed_imports(), *list_registered_modules()})

    return get_attribute, list_names
