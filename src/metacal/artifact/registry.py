"""What can be saved: a new calibrator is one entry here, a new promise one in `promises`, a score one in `rankers`."""

from __future__ import annotations

from metacal.artifact.metamap import MetaMap
from metacal.estimators.base import Calibrator
from metacal.maps.map import Map
from metacal.maps.methods import METHODS, map_classes

#: Kind of file -> the calibrator and the map that it holds.
CALIBRATORS: dict[str, tuple[type[Calibrator], type[Map]]] = {
    row.public_name: (row.estimator_class(), row.map_class()) for row in METHODS.values()
}


def maps() -> dict[str, type]:
    """Every map by its own name; a map may hold another.

    Examples
    --------
    >>> {"MetaMap", "TemperatureMap"} <= set(maps())
    True
    """
    return {**map_classes(), "MetaMap": MetaMap}
