"""Every floor: a method's map, fit and estimator are found where its row says, and its map has a
formula.
"""

from __future__ import annotations

import pytest

from metacal.maps.map import Map
from metacal.maps.methods import METHODS, find_map_method, get_calibration_method


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_found_on_every_floor(name):
    method = METHODS[name]
    fitted = method.map_class()
    assert issubclass(fitted, Map)
    assert fitted.formula is not None
    assert find_map_method(fitted).map == method.map
    assert get_calibration_method(method.estimator_class()) is method
    assert callable(method.get_fit_function())
    assert method.estimator.startswith("metacal.estimators.")
    assert method.fit.startswith("metacal.maps.")
