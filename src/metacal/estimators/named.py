"""A calibrator by its name: what is a string on the command line is one in Python, too."""

from __future__ import annotations

from typing import Any

from sklearn.base import clone

from metacal.maps.default_base import DEFAULT_BASE
from metacal.maps.methods import calibrator, method_of
from metacal.promises.promise import Promise


def calibrator_from(given: Any) -> Any:
    """A fresh estimator: the calibrator of this name with its usual options, or a copy of the one given.

    Examples
    --------
    >>> calibrator_from("spline"), calibrator_from(calibrator_from("platt"))
    (SplineCalibration(), PlattScaling())
    >>> calibrator_from("splin")
    Traceback (most recent call last):
    metacal.errors.InputError: unknown calibrator 'splin'; there are temperature, uniform-temperature, ...
    """
    return calibrator(given)() if isinstance(given, str) else clone(given)


def base_calibrator(given: Any, promise: object) -> Any:
    """A fresh estimator for a gate's base map: the one given or, if None, what goes with the promise.

    Examples
    --------
    >>> base_calibrator(None, None), base_calibrator("platt", None)
    (ComposedCalibration(), PlattScaling())
    """
    usual = promise.calibrator if isinstance(promise, Promise) else None
    return calibrator_from(given if given is not None else usual or DEFAULT_BASE)


def name_of(given: Any) -> str:
    """The name of a calibrator, which a file can hold.

    Examples
    --------
    >>> name_of("spline"), name_of(calibrator_from("platt"))
    ('spline', 'platt')
    """
    return given if isinstance(given, str) else method_of(type(given)).name
