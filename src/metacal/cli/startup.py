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
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from types import ModuleType
from typing import Any

_PACKAGE = "scipy.special"
#: Number of new objects after which the garbage collector runs. The imports of a command create
#: about a quarter of a million.
_COLLECTION_THRESHOLD = 1_000_000


class _SpecialFunctions(ModuleType):
    """Module that stands for `scipy.special` and has only its functions that are written in C.

    The real package is imported as soon as another attribute is needed.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {_PACKAGE!r} has no attribute {name!r}")
        if sys.modules.get(_PACKAGE) is self:
            del sys.modules[_PACKAGE]
        return getattr(import_module(_PACKAGE), name)


def prepare_process() -> None:
    """Prepare a process that runs one command and ends."""
    gc.set_threshold(_COLLECTION_THRESHOLD, *gc.get_threshold()[1:])
    # At its end, Python would look through all objects once more.
    atexit.register(gc.freeze)
    import_special_functions()


def import_special_functions() -> None:
    """Import the functions of `scipy.special` that are written in C, without the package.

    Nothing happens if the package is imported already, or if SciPy is to replace its functions by
    those of another array library.
    """
    if _PACKAGE in sys.modules or os.environ.get("SCIPY_ARRAY_API"):
        return
    try:
        sys.modules[_PACKAGE] = _build_module()
        functions = vars(import_module(f"{_PACKAGE}._ufuncs"))
    except Exception:
        # Another version of SciPy may be built differently; its package is imported when needed.
        sys.modules.pop(_PACKAGE, None)
        return
    import numpy as np

    for name, function in functions.items():
        if isinstance(function, np.ufunc) and not name.startswith("_"):
            setattr(sys.modules[_PACKAGE], name, function)


def _build_module() -> ModuleType:
    """Build the module without running the code of the package."""
    import scipy

    spec = PathFinder.find_spec(_PACKAGE, scipy.__path__)
    assert spec is not None
    module = module_from_spec(spec)
    module.__class__ = _SpecialFunctions
    return module
