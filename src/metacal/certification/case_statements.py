"""Error messages about the cases of a promise."""

from __future__ import annotations

import math

from metacal.certificates.number_format import (
    ceil_to_4_decimals,
    floor_to_4_decimals,
    format_percent,
    format_percent_floor,
)
from metacal.certificates.quantity import Quantity
from metacal.certification.statements import format_confidence_level
from metacal.errors import CasesError, InfeasibleTargetError, InputError
from metacal.spelling import choose_spelling
from metacal.statistics import bounds

# Error probability of the confidence bound in a message if the promise has no delta.
_DEFAULT_DELTA = 0.1


def build_too_few_cases_error(
    quantity: Quantity,
    target: float,
    delta: float | None,
    n_cases: int,
    best_violation_rate: float,
    cases_needed: int,
    *,
    n_pilot: int,
) -> InfeasibleTargetError:
    """Build the error for too few cases to certify the target without an error.

    Parameters
    ----------
    quantity : Quantity
        Limited quantity.

    target : float
        Promised limit.

    delta : float or None
        Error probability of the promise.

    n_cases : int
        Number of calibration cases that the quantity counts.

    best_violation_rate : float
        Smallest limit of the violation rate that these cases certify if none is broken.

    cases_needed : int
        Number of calibration cases that certify the promise at best.

    n_pilot : int
        How many of the cases fit the scale of the item types. 0 if there is one type.

    Returns
    -------
    InfeasibleTargetError
    """
    best_target = _convert_to_target(quantity, best_violation_rate)
    advice = f"Collect {cases_needed:,} cases"
    if n_pilot > 0:
        advice += " (at least a fifth of them fit the scale of the item types)"
    message = (
        f"Cannot certify a target of {target:g} for the {quantity} from {n_cases:,} cases"
        f" {format_confidence_level(delta)}. {advice}, or relax the target to {best_target:g}."
    )
    return InfeasibleTargetError(
        message, target=target, best=best_target, cases_needed=cases_needed, n_cases=n_cases
    )


def build_uncovered_items_error(
    quantity: Quantity, target: float, delta: float | None, n_cases: int, n_uncovered: int
) -> InfeasibleTargetError:
    """Build the error for too many cases with a correct item without a score.

    Parameters
    ----------
    quantity : Quantity
        Limited recall.

    target : float
        Promised limit.

    delta : float or None
        Error probability of the promise.

    n_cases, n_uncovered : int
        Number of tested cases with a true item, and how many of them have one without a score.

    Returns
    -------
    InfeasibleTargetError
    """
    if delta is None:
        max_uncovered_rate = _bound_rate_in_expectation(n_uncovered, n_cases)
        bound_delta = _DEFAULT_DELTA
    else:
        max_uncovered_rate = bounds.clopper_pearson_upper(n_uncovered, n_cases, delta)
        bound_delta = delta
    best_target = _convert_to_target(quantity, max_uncovered_rate)
    min_uncovered_rate = bounds.clopper_pearson_lower(n_uncovered, n_cases, bound_delta)
    observed_percent = format_percent(round(n_uncovered / n_cases, 3))
    min_percent = format_percent(math.floor(1e3 * min_uncovered_rate) / 1e3)
    confidence_level = format_percent_floor(1.0 - bound_delta)
    message = (
        f"Cannot certify a target of {target:g} for the {quantity}: {n_uncovered:,} of"
        f" {n_cases:,} cases ({observed_percent}, at least {min_percent} with {confidence_level}"
        " confidence) have a true item that no candidate covers. Propose more candidates, or lower"
        f" the target to at most {best_target:g}."
    )
    return InfeasibleTargetError(
        message,
        target=target,
        best=best_target,
        n_cases=n_cases,
        n_uncovered=n_uncovered,
        floor_low=min_uncovered_rate,
    )


def _bound_rate_in_expectation(n_events: int, n_cases: int) -> float:
    """Compute an upper bound on the rate of events that holds in expectation."""
    return (n_events + 1) / (n_cases + 1)


def build_no_passing_cutoffs_error(
    quantity: Quantity,
    target: float,
    delta: float,
    n_cases: int,
    cases_needed: int,
    strictest_limit: float | None,
) -> InfeasibleTargetError:
    """Build the error for cases on which the strictest cutoffs fail.

    Parameters
    ----------
    quantity : Quantity
        Limited quantity.

    target : float
        Promised limit.

    delta : float
        Error probability of the promise.

    n_cases : int
        Number of calibration cases.

    cases_needed : int
        Number of calibration cases with which error-free ones would certify the target.

    strictest_limit : float or None
        Strictest limit that these cases support, if there is one.

    Returns
    -------
    InfeasibleTargetError
    """
    best_limit_sentence = "They support no limit."
    if strictest_limit is not None:
        best_limit_sentence = f"The strictest limit that they support is {strictest_limit:g}."
    if n_cases < cases_needed:
        best_limit_sentence = f"It takes at least {cases_needed:,} cases. {best_limit_sentence}"
    message = (
        f"Cannot certify a target of {target:g} for the {quantity} from {n_cases:,} cases"
        f" {format_confidence_level(delta)}. {best_limit_sentence} Raise the limit, collect more cases, or"
        " improve the scores."
    )
    return InfeasibleTargetError(
        message, target=target, best=strictest_limit, cases_needed=cases_needed, n_cases=n_cases
    )


def build_missing_cases_error(promise: object) -> InputError:
    """Build the error for a promise about cases if the cases are missing."""
    cases_option = choose_spelling(
        "ScoreGate(promise).fit(score, correct, cases=document_id)", "--case-key NAME"
    )
    return CasesError(
        f"{type(promise).__name__} is a promise about cases, but the rows have no cases. Pass the"
        f" case of each row: {cases_option}."
    )


def build_unused_cases_error(promise: object) -> InputError:
    """Build the error for cases that a promise does not use."""
    return CasesError(
        f"{type(promise).__name__} is not a promise about cases. Leave out cases, or promise"
        " MaxCaseErrors, MinCaseRecall or MaxErrorsPerCase. If rows depend on each other, name"
        " their clusters with units=..."
    )


def build_unsupported_case_columns_error(promise: object) -> InputError:
    """Build the error for cases whose items have clusters or losses."""
    return CasesError(
        f"{type(promise).__name__} does not support units, importance or losses together with"
        " cases. Pass the case of each item and whether the item is correct."
    )


def _convert_to_target(quantity: Quantity, violation_rate: float) -> float:
    """Convert the largest certified violation rate to a target with four decimals."""
    if quantity.has_upper_limit:
        return ceil_to_4_decimals(violation_rate)
    return floor_to_4_decimals(1.0 - violation_rate)
