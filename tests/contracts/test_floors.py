"""One name on every floor: a method's map, estimator, ONNX writer and torch module are found, in files of one name."""

from __future__ import annotations

import pytest

from metacal.maps.map import Map
from metacal.maps.methods import METHODS, method_of, method_of_map


def below(room, place):
    """The file of a place, relative to its room."""
    module = place.partition(":")[0]
    assert module.startswith(f"metacal.{room}.")
    return module.removeprefix(f"metacal.{room}.")


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_found_on_every_floor(name):
    method = METHODS[name]
    fitted = method.map_class()
    assert issubclass(fitted, Map)
    assert method_of_map(fitted).onnx == method.onnx
    assert method_of(method.estimator_class()) is method
    assert callable(method.fit_function())
    assert below("estimators", method.estimator) == below("maps", method.fit)
    file = below("maps", method.map)
    assert file == below("export.onnx.maps", method.onnx) == below("export.torch.maps", method.torch)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_an_onnx_writer(name):
    pytest.importorskip("onnx")
    assert callable(METHODS[name].onnx_writer())


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_torch_module(name):
    torch = pytest.importorskip("torch")
    assert issubclass(METHODS[name].torch_module(), torch.nn.Module)
