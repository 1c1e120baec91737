"""The scikit-learn faces of the maps, thin. X is a table of logits: one row per item, one column per class.

Calibrators of one family share a file. Which ones there are is said in `metacal.maps.methods`; each is imported when it
is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from metacal.maps import methods

if TYPE_CHECKING:
    from metacal.estimators.base import Calibrator
    from metacal.maps.methods import *  # noqa: F403 the calibrators

    #: Every calibrator by the name that `compare` and the command line use, simplest first.
    CALIBRATORS: dict[str, type[Calibrator]]
else:

    def __getattr__(name):
        if name == "CALIBRATORS":
            return {row.name: row.estimator_class() for row in methods.METHODS.values()}
        if name in (homes := methods.homes()):
            return getattr(import_module(homes[name]), name)
        raise AttributeError(f"module 'metacal.estimators' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(methods.homes())
