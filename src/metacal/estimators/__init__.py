"""The scikit-learn faces of the maps, thin. X is a table of logits: one row per item, one column
per class.

Calibrators of one family share a file. Which ones there are is said in `metacal.maps.methods`; each
is imported when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from metacal.lazy import names_of
from metacal.maps import methods

if TYPE_CHECKING:
    from metacal.estimators.base import Calibrator as Calibrator
    from metacal.maps.methods import *  # noqa: F403 the calibrators

    #: Every calibrator by the name that `compare` and the command line use, simplest first.
    CALIBRATORS: dict[str, type[Calibrator[Any]]]
else:
    _get, __dir__ = names_of(__name__, methods.homes)

    def __getattr__(name):
        if name == "CALIBRATORS":
            return {row.name: row.estimator_class() for row in methods.METHODS.values()}
        return _get(name)
