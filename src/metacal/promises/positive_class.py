"""The positive class of a promise about one of two classes.

A promise such as `MinPrecision(0.9, positive="fraud")` names its positive class. If it names none,
the positive class is that of the estimator or, among numbers and booleans, the second class. Names
have no order, so the positive one of two names is never assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from metacal.certificates.subgroups import Name
from metacal.certification.unsuitable_rows import build_unknown_class_error
from metacal.errors import InputError, PositiveClassError, choose_spelling, format_option
from metacal.promises.promise import Promise

PromiseType = TypeVar("PromiseType", bound=Promise)


def apply_positive_class(
    promise: PromiseType, positive: Name | None, *, has_one_score: bool = False
) -> PromiseType:
    """Apply the positive class of an estimator to a promise that names none.

    Parameters
    ----------
    promise : Promise
        Promise of the estimator. A positive class that it names is kept.

    positive : str, bool, int, float or None
        Positive class of the estimator.

    has_one_score : bool, default=False
        Whether the estimator reads one score per row, of which `positive` states the direction.

    Returns
    -------
    Promise

    Raises
    ------
    InputError
        If `positive` has no effect.

    Examples
    --------
    >>> import metacal as mc
    >>> apply_positive_class(mc.MinRecall(0.95), "fraud").positive
    'fraud'
    >>> apply_positive_class(mc.MinAccuracy(0.95), "fraud")
    Traceback (most recent call last):
    metacal.errors.PositiveClassError: positive='fraud' has no effect, because MinAccuracy covers both classes. ...
    """
    if positive is None:
        return promise
    promise_with_class = promise.with_positive_class(positive)
    positive_classes = promise_with_class.positive_classes
    has_effect = has_one_score or positive in positive_classes
    if has_effect:
        return promise_with_class
    is_about_one_class = len(positive_classes) > 0
    if is_about_one_class:
        reason = f"{promise!r} has its own positive class"
    else:
        reason = f"{type(promise).__name__} covers both classes"
    raise PositiveClassError(
        f"positive={positive!r} has no effect, because {reason}. Leave out positive."
    )


def check_positive_class(promise: Promise, class_names: Sequence[Name]) -> None:
    """Raise InputError if the positive class of a promise is unknown or missing.

    Parameters
    ----------
    promise : Promise
        Promise of any kind.

    class_names : sequence of str, bool, int or float
        Names of two classes.

    Examples
    --------
    >>> import metacal as mc
    >>> check_positive_class(mc.MinPrecision(0.9), [0, 1])
    >>> check_positive_class(mc.MinPrecision(0.9), ["fine", "fraud"])
    Traceback (most recent call last):
    metacal.errors.PositiveClassError: MinPrecision requires a positive class, 'fine' or 'fraud'...
    """
    for positive in promise.positive_classes:
        if positive is None and isinstance(class_names[0], str):
            raise _build_missing_class_error(promise, class_names)
        if positive is not None and positive not in class_names:
            raise build_unknown_class_error(positive, class_names)


def _build_missing_class_error(promise: Promise, class_names: Sequence[Name]) -> InputError:
    """Build the error for a promise about one of two classes that does not name it."""
    first_class, second_class = class_names
    first_option = format_option("positive", str(first_class))
    second_option = format_option("positive", str(second_class))
    place = choose_spelling(" to the promise or to the estimator", "")
    return PositiveClassError(
        f"{type(promise).__name__} requires a positive class, {first_class!r} or"
        f" {second_class!r}. Pass {first_option} or {second_option}{place}."
    )
