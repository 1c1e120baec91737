"""Fast start of the process of a command.

On a table of ordinary size a command computes for less time than Python takes to import what it
needs. Two parts of that time serve nothing that the command does: `scipy.special` reads the
documentation of its functions and imports compilers and test tools, and the garbage collector
looks through the imported modules again and again.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_SCIPY_SPECIAL = "scipy.special"
#: Number of new objects after which the garbage collector runs.
#: The imports of a command create about a quarter of a million objects.
_OBJECTS_BEFORE_COLLECTION = 1_000_000


class _SpecialFunctions(ModuleType):
    """Replacement of `scipy.special` that has only its compiled functions.

    The real package is imported as soon as another attribute is needed.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {_SCIPY_SPECIAL!r} has no attribute {name!r}")
        if sys.modules.get(_SCIPY_SPECIAL) is self:
            del sys.modules[_SCIPY_SPECIAL]
        return getattr(import_module(_SCIPY_SPECIAL), name)


class _SpecialFunctionsLoader(Loader):
    """Loader that imports only the compiled functions of `scipy.special`."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Create the module that stands for the package."""
        return _SpecialFunctions(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Fill the module with the compiled functions, or replace it by the real package."""
        try:
            function_by_name = _import_compiled_scipy_functions()
        except Exception:
            # Another version of SciPy may be built differently. The import hook is removed at its
            # first use, so the following import loads the real package.
            del sys.modules[_SCIPY_SPECIAL]
            sys.modules[_SCIPY_SPECIAL] = import_module(_SCIPY_SPECIAL)
            return
        vars(module).update(function_by_name)


class _SpecialFunctionsFinder(MetaPathFinder):
    """Import hook for the first import of `scipy.special`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the package, and name the loader of its compiled functions."""
        if fullname != _SCIPY_SPECIAL:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None:
            spec.loader = _SpecialFunctionsLoader()
        return spec


def prepare_process() -> None:
    """Prepare a process that runs one command and ends."""
    gc.set_threshold(_OBJECTS_BEFORE_COLLECTION, *gc.get_threshold()[1:])
    # At its end, Python would look through all objects once more.
    atexit.register(gc.freeze)
    shorten_import_of_special_functions()


def shorten_import_of_special_functions() -> None:
    """Install an import hook that loads only the compiled part of `scipy.special`.

    Nothing happens if the package is imported already, or if SciPy is to replace its functions by
    those of another array library.
    """
    if _SCIPY_SPECIAL in sys.modules or os.environ.get("SCIPY_ARRAY_API"):
        return
    sys.meta_path.insert(0, _SpecialFunctionsFinder())


def _import_compiled_scipy_functions() -> dict[str, Any]:
    """Import the compiled functions of `scipy.special` and return them by name."""
    import numpy as np

    members = vars(import_module(f"{_SCIPY_SPECIAL}._ufuncs"))
    function_by_name = {}
    for name, member in members.items():
        if isinstance(member, np.ufunc) and not name.startswith("_"):
            function_by_name[name] = member
    return function_by_name
