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
from metacal.errors import InputError, PositiveClassError
from metacal.promises.promise import Promise
from metacal.spelling import choose_spelling, format_option

PromiseType = TypeVar("PromiseType", bound=Promise)


def apply_positive_class(
    promise: PromiseType, positive: Name | None, *, positive_is_class_of_high_scores: bool = False
) -> PromiseType:
    """Set the positive class of an estimator on a promise that names no class.

    Parameters
    ----------
    promise : Promise
        Promise of the estimator. A positive class that it names is kept.

    positive : str, bool, int, float or None
        Positive class of the estimator.

    positive_is_class_of_high_scores : bool, default=False
        Whether the estimator reads one score per row, and `positive` is the class of high scores.
        It then has an effect whatever is promised.

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
    promised_classes = promise_with_class.positive_classes
    is_about_positive_class = positive in promised_classes
    if is_about_positive_class or positive_is_class_of_high_scores:
        return promise_with_class
    is_about_another_class = len(promised_classes) > 0
    if is_about_another_class:
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
    metacal.errors.PositiveClassError: MinPrecision requires a positive class, 'fine' or ...
    """
    for positive in promise.positive_classes:
        if positive is None and isinstance(class_names[0], str):
            raise _build_missing_class_error(promise, class_names)
        if positive is not None and positive not in class_names:
            raise build_unknown_class_error(positive, class_names)


def _build_missing_class_error(promise: Promise, class_names: Sequence[Name]) -> InputError:
    """Build the error for a promise that lacks its positive class."""
    first_class, second_class = class_names
    first_option = format_option("positive", str(first_class))
    second_option = format_option("positive", str(second_class))
    # The command line has only one such option, so the message does not name its target.
    destination_text = choose_spelling(
        python_spelling=" to the promise or to the estimator", command_spelling=""
    )
    return PositiveClassError(
        f"{type(promise).__name__} requires a positive class, {first_class!r} or"
        f" {second_class!r}. Pass {first_option} or {second_option}{destination_text}."
    )
