"""What can be saved: a new calibrator or promise is one entry here."""

from __future__ import annotations

from typing import NamedTuple

from metacal import constraints, paper
from metacal.calibrators import Calibrator, TemperatureScaling
from metacal.certificate import Quantity
from metacal.maps.meta import MetaMap
from metacal.maps.temperature import TemperatureMap

#: kind -> the estimator, and the frozen dataclass it holds as `map_`. Its fields are saved as they are annotated.
CALIBRATORS: dict[str, tuple[type[Calibrator], type]] = {
    "TemperatureScaling": (TemperatureScaling, TemperatureMap),
}


def maps() -> dict[str, type]:
    """Every map by its own name; a map may hold another.

    Examples
    --------
    >>> sorted(maps())
    ['MetaMap', ...'TemperatureMap'...]
    """
    return {cls.__name__: cls for _, cls in CALIBRATORS.values()} | {"MetaMap": MetaMap}


class Promise(NamedTuple):
    """A constraint class, what it limits, and the field that holds the limit."""

    constraint: type
    quantity: Quantity
    target: str


#: type -> the promise.
CONSTRAINTS: dict[str, Promise] = {
    "MaxMiscoverage": Promise(constraints.MaxMiscoverage, "miscoverage", "alpha"),
    "MinCoverageAccuracy": Promise(constraints.MinCoverageAccuracy, "coverage accuracy", "beta"),
    "paper.MaxMiscoverage": Promise(paper.MaxMiscoverage, "miscoverage", "alpha"),
    "paper.MinCoverageAccuracy": Promise(paper.MinCoverageAccuracy, "coverage accuracy", "beta"),
}
