"""Promises that `metacal start` offers, and their sentences."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metacal.io.inspection import Inspection


@dataclass(frozen=True)
class OfferedPromise:
    """Promise that `metacal start` offers.

    Attributes
    ----------
    name : str
        Value of --promise.
    option : str
        Option of `metacal fit`.
    title : str
        Name of the promised quantity.
    sentence : str
        What is promised, with the placeholders {target}, {negative}, {positive} and {case}.
    python : str
        Python code of the promise, with the placeholders {target}, {negative} and {positive}.
    further_arguments : tuple of str
        Further options of `metacal fit`.
    is_about_cases : bool
        Whether the promise limits the share of the cases with an incorrect accepted item. Its target
        is then an upper limit.
    """

    name: str
    option: str
    title: str
    sentence: str
    python: str
    further_arguments: tuple[str, ...] = ()
    is_about_cases: bool = False

    def describe(self, target: float, inspection: Inspection) -> str:
        """Return what is promised, in the names of the user's classes and columns."""
        negative, positive = inspection.negative_and_positive or ("", "")
        return self.sentence.format(
            target=f"{100.0 * target:.4g}%",
            negative=negative,
            positive=positive,
            case=inspection.column_of_role.get("case", ""),
        )

    def find_target(self, mistake_cost: float) -> float:
        """Return the target at which mistakes cost no more than reviewing everything would."""
        return 1.0 / mistake_cost if self.is_about_cases else 1.0 - 1.0 / mistake_cost

    def reader_options_for(self, inspection: Inspection) -> dict[str, Any]:
        """Return the options for reading the file that this promise needs.

        A promise about cases reads the columns of cases and item types. For any other promise, the
        rows of a case are a cluster of dependent rows.
        """
        reader_options = dict(inspection.options)
        if not self.is_about_cases:
            if "case_key" in reader_options:
                reader_options["unit_key"] = reader_options.pop("case_key")
            return reader_options
        reader_options.pop("unit_key", None)
        reader_options["case_key"] = inspection.column_of_role["case"]
        if "group" in inspection.column_of_role:
            reader_options["group_key"] = inspection.column_of_role["group"]
        return reader_options

    def format_fit_arguments(self, target: float) -> list[str]:
        """Return the arguments of `metacal fit` that describe this promise."""
        return [self.option, f"{target:.4g}", *self.further_arguments]


ACCURACY = OfferedPromise(
    "accuracy",
    "--min-accuracy",
    "accuracy",
    "at least {target} of the accepted predictions are correct",
    "mc.MinAccuracy({target})",
)
#: Promises about the positive or the negative one of two classes.
PROMISES_ABOUT_ONE_CLASS = (
    OfferedPromise(
        "precision",
        "--min-precision",
        "precision",
        "at least {target} of the rows accepted as {positive!r} are {positive!r}",
        "mc.MinPrecision({target}, positive={positive})",
    ),
    OfferedPromise(
        "npv",
        "--min-npv",
        "negative predictive value",
        "at least {target} of the rows accepted as {negative!r} are {negative!r}",
        "mc.MinPrecision({target}, positive={negative})",
    ),
    OfferedPromise(
        "recall",
        "--min-recall",
        "recall",
        "at least {target} of the rows that are {positive!r} are accepted as {positive!r} or"
        " reviewed",
        "mc.MinRecall({target}, positive={positive})",
    ),
)
#: Promises about cases, such as documents with fields. The first one is the default.
CASE_PROMISES = (
    OfferedPromise(
        "automated-cases",
        "--max-case-errors",
        "automated cases",
        "of the cases ({case!r}) with an accepted item, at most {target} contain an incorrect one",
        'mc.MaxCaseErrors({target}, among="automated")',
        further_arguments=("--among-automated",),
        is_about_cases=True,
    ),
    OfferedPromise(
        "all-cases",
        "--max-case-errors",
        "all cases",
        "of all cases ({case!r}), at most {target} contain an incorrect accepted item",
        "mc.MaxCaseErrors({target})",
        is_about_cases=True,
    ),
)
#: All promises by name.
PROMISES = {
    promise.name: promise for promise in (ACCURACY, *PROMISES_ABOUT_ONE_CLASS, *CASE_PROMISES)
}


def list_offered_promises(inspection: Inspection) -> tuple[OfferedPromise, ...]:
    """Return the promises that the columns of a file allow, the default first."""
    if inspection.negative_and_positive is not None:
        return (ACCURACY, *PROMISES_ABOUT_ONE_CLASS)
    if inspection.has_scored_items and "case" in inspection.column_of_role:
        return (*CASE_PROMISES, ACCURACY)
    return (ACCURACY,)


def round_down_to_3_decimals(target: float) -> float:
    """Round a target down to three digits, so that it stays certifiable.

    >>> round_down_to_3_decimals(0.91487), round_down_to_3_decimals(0.99912)
    (0.914, 0.999)
    """
    return math.floor(target * 1000.0) / 1000.0


def round_up_to_3_decimals(limit: float) -> float:
    """Round an upper limit up to three digits, so that it stays certifiable.

    >>> round_up_to_3_decimals(0.10412), round_up_to_3_decimals(0.0991)
    (0.105, 0.1)
    """
    return math.ceil(limit * 1000.0) / 1000.0
