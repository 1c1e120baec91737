"""Promises that `metacal start` offers, and their sentences."""

from __future__ import annotations

import math
from dataclasses import dataclass


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
        What is promised, with the placeholders {target}, {negative} and {positive}.
    python : str
        Python code of the promise, with the placeholders {target}, {negative} and {positive}.
    """

    name: str
    option: str
    title: str
    sentence: str
    python: str

    def describe(self, target: float, two_classes: tuple[str, str] | None) -> str:
        """Return what is promised, in the names of the user's classes."""
        negative, positive = two_classes or ("", "")
        return self.sentence.format(
            target=f"{100.0 * target:.4g}%", negative=negative, positive=positive
        )

    def fit_words(self, target: float) -> list[str]:
        """Return the options of `metacal fit` for this promise."""
        return [self.option, f"{target:.4g}"]


ACCURACY = OfferedPromise(
    "accuracy",
    "--min-accuracy",
    "accuracy",
    "at least {target} of the accepted predictions are correct",
    "mc.MinAccuracy({target})",
)
#: Promises for two classes, besides the accuracy.
TWO_CLASS_PROMISES = (
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
#: All promises by name.
PROMISES = {promise.name: promise for promise in (ACCURACY, *TWO_CLASS_PROMISES)}


def round_down(target: float) -> float:
    """Round a target down to three digits, so that it stays certifiable.

    >>> round_down(0.91487), round_down(0.99912)
    (0.914, 0.999)
    """
    return math.floor(target * 1000.0) / 1000.0
