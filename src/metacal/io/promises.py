"""The promises that can be saved: a new one is one entry here."""

from __future__ import annotations

from typing import NamedTuple

from metacal import both, constraints, paper
from metacal.certificate import Quantity


class Promise(NamedTuple):
    """A constraint class, what it limits, and the field that holds the limit."""

    constraint: type
    quantity: Quantity
    target: str


#: type -> the promise.
CONSTRAINTS: dict[str, Promise] = {
    "MaxMiscoverage": Promise(constraints.MaxMiscoverage, "miscoverage", "alpha"),
    "MinCoverageAccuracy": Promise(constraints.MinCoverageAccuracy, "coverage accuracy", "beta"),
    "Both": Promise(both.Both, "coverage accuracy", "beta"),
    "AfterLooking": Promise(both.AfterLooking, "coverage accuracy", "beta"),
    "paper.MaxMiscoverage": Promise(paper.MaxMiscoverage, "miscoverage", "alpha"),
    "paper.MinCoverageAccuracy": Promise(paper.MinCoverageAccuracy, "coverage accuracy", "beta"),
}
