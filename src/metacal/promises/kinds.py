"""Registry of promises: the name of each in saved files, and its class.

Public names, the promises that can be saved and loaded, and the schema of files are derived from
this registry. A class is imported when it is first needed. Other packages add their promises with
`register_promise`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metacal.errors import InputError
from metacal.lazy import import_object, read_typed_imports

if TYPE_CHECKING:
    # `PROMISES` is built from these imports, which also show each promise to type checkers.
    from metacal.promises.accuracy import MinAccuracy as MinAccuracy
    from metacal.promises.both import AfterLooking as AfterLooking
    from metacal.promises.both import Both as Both
    from metacal.promises.cascade import MaxLoss as MaxLoss
    from metacal.promises.case_errors import MaxCaseErrors as MaxCaseErrors
    from metacal.promises.case_errors import MaxErrorsPerCase as MaxErrorsPerCase
    from metacal.promises.case_errors import MinCaseRecall as MinCaseRecall
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

# Map from the name of a promise in saved files to its class, as "module:Class".
PROMISES: dict[str, str] = {
    **read_typed_imports(__name__),
    "paper.MaxMiscoverage": "metacal.promises.paper:MaxMiscoverage",
    "paper.MinCoverageAccuracy": "metacal.promises.paper:MinCoverageAccuracy",
}


def register_promise(name: str, place: str) -> None:
    """Register a promise that is defined outside metacal.

    Parameters
    ----------
    name : str
        Name of the promise in files.
    place : str
        Module and class of the promise, as "module:Class".

    Raises
    ------
    InputError
        If the name is taken, or if the place is not of this form.

    Examples
    --------
    >>> register_promise("Both", "elsewhere:Both")
    Traceback (most recent call last):
    metacal.errors.InputError: A promise named 'Both' is already registered. Choose another name.
    """
    if name in PROMISES:
        raise InputError(f"A promise named {name!r} is already registered. Choose another name.")
    module_name, colon, class_name = place.partition(":")
    if not (module_name and colon and class_name):
        raise InputError(
            f"The place of a promise must have the form 'module:Class', but got {place!r}."
        )
    PROMISES[name] = place


def find_promise_modules() -> dict[str, str]:
    """Return the module of each promise, keyed by its public name.

    The rules of the paper are left out, because `metacal.paper` exports them.
    """
    modules = {}
    for name, place in PROMISES.items():
        if "." not in name:
            modules[name] = place.partition(":")[0]
    return modules


def load_promise_classes() -> dict[str, type[Promise]]:
    """Import all promise classes, and return them by their names in saved files."""
    return {name: import_object(place) for name, place in PROMISES.items()}
