"""Creation of calibrators from their names."""

from __future__ import annotations

from typing import Any

from sklearn.base import clone

from metacal.maps.composed import get_default_calibrator_name
from metacal.maps.methods import get_calibration_method, get_calibrator_class
from metacal.promises.promise import Promise


def make_calibrator(calibrator_or_name: Any) -> Any:
    """Make a calibrator from its name, or an unfitted copy of an estimator.

    Examples
    --------
    >>> make_calibrator("spline"), make_calibrator(make_calibrator("platt"))
    (SplineCalibration(), PlattScaling())
    >>> make_calibrator("splin")
    Traceback (most recent call last):
    metacal.errors.InputError: Unknown calibrator 'splin'. The available calibrators are ...
    """
    if isinstance(calibrator_or_name, str):
        return get_calibrator_class(calibrator_or_name)()
    return clone(calibrator_or_name)


def make_base_calibrator(
    calibrator_or_name: Any, promise: object, n_classes: int | None = None
) -> Any:
    """Make the base calibrator of a gate from its name, or the default one.

    Parameters
    ----------
    calibrator_or_name : str, estimator or None
        Calibrator that the user chose. None selects the default of the promise or, if it has
        none, the default for the number of classes.
    promise : Promise or None
        Promise of the gate.
    n_classes : int or None, default=None
        Number of classes, if known.

    Returns
    -------
    estimator

    Examples
    --------
    >>> make_base_calibrator(None, None), make_base_calibrator("platt", None), make_base_calibrator(None, None, 2)
    (ComposedCalibration(), PlattScaling(), MonotoneCalibration())
    """
    if calibrator_or_name is not None:
        return make_calibrator(calibrator_or_name)
    if isinstance(promise, Promise) and promise.default_calibrator:
        return make_calibrator(promise.default_calibrator)
    return make_calibrator(get_default_calibrator_name(n_classes))


def get_calibrator_name(calibrator_or_name: Any) -> str:
    """Return the registered name of a calibrator.

    Examples
    --------
    >>> get_calibrator_name("spline"), get_calibrator_name(make_calibrator("platt"))
    ('spline', 'platt')
    """
    if isinstance(calibrator_or_name, str):
        return calibrator_or_name
    return get_calibration_method(type(calibrator_or_name)).name
