"""The one registry of promises: the name that a saved file gives to each, and where its class
stands.

Public names, what can be saved and loaded, and the schema of files are read from here. Nothing is
imported before it is asked for. A promise of somebody else's is entered with `register_promise`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metacal.errors import InputError
from metacal.lazy import import_object, read_typed_imports

if TYPE_CHECKING:
    # The promises there are, for type checkers and for the registry below.
    from metacal.promises.accuracy import MinAccuracy as MinAccuracy
    from metacal.promises.both import AfterLooking as AfterLooking
    from metacal.promises.both import Both as Both
    from metacal.promises.cascade import MaxLoss as MaxLoss
    from metacal.promises.max_risk import Cheapest as Cheapest
    from metacal.promises.max_risk import MaxCost as MaxCost
    from metacal.promises.max_risk import MaxRisk as MaxRisk
    from metacal.promises.miscoverage import MaxMiscoverage as MaxMiscoverage
    from metacal.promises.miscoverage import MaxReview as MaxReview
    from metacal.promises.per_subgroup import PerClass as PerClass
    from metacal.promises.per_subgroup import PerGroup as PerGroup
    from metacal.promises.promise import Promise
    from metacal.promises.two_sided import MaxFalsePositiveRate as MaxFalsePositiveRate
    from metacal.promises.two_sided import MinPrecision as MinPrecision
    from metacal.promises.two_sided import MinRecall as MinRecall
    from metacal.promises.two_sided import TwoSided as TwoSided

#: Name in files -> "module:Class": what stands above, and the paper's own rules, which are found as
#: `metacal.paper.X`.
PROMISES: dict[str, str] = {
    **read_typed_imports(__name__),
    "paper.MaxMiscoverage": "metacal.promises.paper:MaxMiscoverage",
    "paper.MinCoverageAccuracy": "metacal.promises.paper:MinCoverageAccuracy",
}


def register_promise(name: str, place: str) -> None:
    """Enter a promise that lives outside metacal, under the name that files give it; `place` is
    "module:Class".

    Examples
    --------
    >>> register_promise("Both", "elsewhere:Both")
    Traceback (most recent call last):
    metacal.errors.InputError: there is a promise 'Both' already.
    """
    if name in PROMISES:
        raise InputError(f"there is a promise {name!r} already.")
    if not all(place.partition(":")):
        raise InputError(
            f"a promise is registered with its place as 'module:Class'; got {place!r}."
        )
    PROMISES[name] = place


def find_promise_modules() -> dict[str, str]:
    """Public name of each promise -> the module it lives in; "paper.X" is found as
    `metacal.paper.X`.
    """
    places = {name: place.partition(":")[0] for name, place in PROMISES.items()}
    return {name: module for name, module in places.items() if "." not in name}


def load_promise_classes() -> dict[str, type[Promise]]:
    """Every promise by its name in files."""
    return {name: import_object(place) for name, place in PROMISES.items()}
