"""What changes from one NumPy, SciPy or Python to another: type aliases, integers that wrap, declared versions."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray

from metacal.errors import ArtifactError
from metacal.io import encoding, schema
from metacal.io.registry import maps

if sys.version_info >= (3, 12):
    from typing import TypeAliasType
else:
    from typing_extensions import TypeAliasType

Scalar = TypeVar("Scalar", bound=np.generic)
#: What `NDArray` is from NumPy 2.5 on, on every NumPy.
Array = TypeAliasType("Array", np.ndarray[tuple[int, ...], np.dtype[Scalar]], type_params=(Scalar,))
Floats = TypeAliasType("Floats", Array[np.float64])
Number = TypeAliasType("Number", float)


@dataclass(frozen=True)
class AliasMap:
    curve: Array[np.float64]
    knots: Floats | None
    weights: tuple[Number, ...]


HELD = {
    "type": "AliasMap",
    "curve": {"dtype": "<f8", "shape": [2], "values": [1.5, 2.0]},
    "knots": {"dtype": "<f8", "shape": [1], "values": [0.5]},
    "weights": [1.0, "inf"],
}


def test_fields_behind_aliases_are_saved_and_read_back():
    known = {"AliasMap": AliasMap}
    found = encoding.decode_map(HELD, "map", known)
    assert found.curve.tolist() == [1.5, 2.0]
    assert found.knots.tolist() == [0.5]
    assert found.weights == (1.0, np.inf)
    assert encoding.encode_map(found, "map", known) == HELD
    assert encoding.decode_map({**HELD, "knots": None}, "map", known).knots is None


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("curve", {"dtype": "<i8", "shape": [1], "values": [1]}, "array of float64"),
        ("knots", {"dtype": "<f4", "shape": [1], "values": [1.0]}, "array of float64"),
        ("curve", [1.0], "not a list"),
        ("weights", ["one"], 'a number, not "one"'),
    ],
)
def test_aliases_are_checked_as_what_they_stand_for(name, value, said):
    with pytest.raises(ArtifactError, match=said):
        encoding.decode_map({**HELD, name: value}, "map", {"AliasMap": AliasMap})


def test_the_schema_sees_through_aliases():
    assert schema._of(Array[np.float64]) == schema._of(NDArray[np.float64])
    assert schema._of(Floats | None) == schema._of(NDArray[np.float64] | None)
    assert schema._of(tuple[Number, ...]) == schema._of(tuple[float, ...])


def test_no_annotation_of_a_map_is_left_an_alias():
    for cls in maps().values():
        annotations = encoding.annotations_of(cls)
        for field in fields(cls):
            found = encoding.resolved(annotations[field.name])
            assert not hasattr(found, "__value__"), f"{cls.__name__}.{field.name}"
