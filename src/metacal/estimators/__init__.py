"""Calibrators and gates as scikit-learn estimators.

X is a table of logits, with one row per item and one column per class. Calibrators of one family
share a file. The registry `metacal.maps.methods` lists them, and each is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from metacal.lazy import make_lazy_attributes
from metacal.maps import methods

if TYPE_CHECKING:
    from metacal.estimators.base import Calibrator as Calibrator
    from metacal.maps.methods import *  # noqa: F403 the calibrators

    #: Class of each calibrator, keyed by its name on the command line, simplest first.
    CALIBRATORS: dict[str, type[Calibrator[Any]]]
else:
    _get_lazy_attribute, __dir__ = make_lazy_attributes(__name__, methods.get_estimator_modules)

    def __getattr__(name):
        if name == "CALIBRATORS":
            return {method.name: method.estimator_class() for method in methods.METHODS.values()}
        return _get_lazy_attribute(name)
