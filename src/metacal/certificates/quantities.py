"""Quantities that promises of metacal limit, and the registry that finds them by name.

To add a quantity, add it to `QUANTITIES`, or call `register_quantity` from another package.
`metacal.certificates.quantity` explains what a quantity consists of.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable

import numpy as np

from metacal.certificates.quantity import Quantity
from metacal.errors import InputError

#: Miscoverage, P(reject | correct).
MISCOVERAGE = Quantity(
    "miscoverage",
    mask_function=lambda accept, correct: (correct & ~accept, correct),
    limits_only_rejections=True,
    claim_template="At most {} of the correct predictions are rejected",
    measured_template="of the correct predictions were rejected",
    violations_text="correct predictions rejected",
    violations_suffix="rejected among the correct",
)
#: Selective accuracy, P(correct | accept).
SELECTIVE_ACCURACY = Quantity(
    "selective accuracy",
    mask_function=lambda accept, correct: (correct & accept, accept),
    has_upper_limit=False,
    claim_template="Accepted predictions are correct at least {} of the time",
    short_name="accuracy",
    measured_template="of the {n:,} accepted predictions are correct",
    violations_text="incorrect predictions among the accepted",
    violations_suffix="incorrect among the accepted",
    violation_rate_name="share of errors",
)
#: Review rate, P(reject).
REVIEW = Quantity(
    "review rate",
    mask_function=lambda accept, correct: (~accept, np.ones_like(accept)),
    limits_only_rejections=True,
    claim_template="At most {} of all rows go to review",
    short_name="review",
    measured_template="of all rows went to review",
    violations_text="rows sent to review",
    violations_suffix="sent to review",
    needs_labels=False,
)
#: Mean cost of accepted predictions, E[cost | accept].
COST = Quantity(
    "cost",
    mask_function=lambda accept, correct: (accept & ~correct, accept),
    claim_template="Accepted predictions cost at most {} a row on average",
    measured_template="is what the {n:,} accepted rows cost on average",
    violations_text="costly predictions among the accepted",
    violations_suffix="costly among the accepted",
    violation_rate_name="mean cost",
    is_mean_cost=True,
)
#: Mean loss of accepted predictions, E[loss | accept].
RISK = Quantity(
    "risk",
    mask_function=lambda accept, correct: (accept & ~correct, accept),
    claim_template="Accepted predictions have a mean loss of at most {}",
    measured_template="is the mean loss of the {n:,} accepted rows",
    violations_text="predictions with a loss among the accepted",
    violations_suffix="with a loss among the accepted",
    violation_rate_name="mean loss",
    is_mean_cost=True,
    uses_graded_losses=True,
)
#: Mean cost of all rows, with the cost of a review for rejected rows.
COST_PER_ROW = Quantity(
    "cost per row",
    mask_function=lambda accept, correct: (~(accept & correct), np.ones_like(accept)),
    claim_template="Errors and reviews together cost at most {} a row on average",
    measured_template="is the mean cost of a row, errors and reviews together",
    violations_text="rows that are answered wrong or sent to review",
    violations_suffix="answered wrong or sent to review",
    violation_rate_name="mean cost per row",
    is_mean_cost=True,
)
#: Additional error rate of a cascade, P(cascade incorrect) - P(last model incorrect).
LOSS = Quantity(
    "loss",
    mask_function=lambda accept, correct: (~correct, np.ones_like(accept)),
    claim_template="Of all answers at most {} more are incorrect than if the large model answered alone",
    measured_template="more of all answers are incorrect than if the large model answered alone",
    violations_text="answered worse than by the large model alone",
    violations_suffix="answered worse than by the large model alone",
    is_paired_difference=True,
)
#: P(cascade and last model disagree), an upper bound on the additional error rate of a cascade.
DISAGREEMENT = Quantity(
    "disagreement",
    mask_function=lambda accept, correct: (~correct, np.ones_like(accept)),
    claim_template=(
        "At most {0} of all answers differ from the large model's, so at most {0} more are wrong"
    ),
    measured_template="of all answers differ from the large model's",
    violations_text="answers that differ from the large model's",
    violations_suffix="differ from the large model's",
    uses_agreement_only=True,
)
#: Texts shared by the quantities about false positives of a class.
_FALSE_POSITIVE_TEXTS = {
    "violations_text": "rows that are predicted {name} and are not",
    "violations_suffix": "predicted {name} and are not",
}
#: Precision, P(row is of the class | predicted to be of the class and accepted).
PRECISION = Quantity(
    "precision",
    mask_function=lambda accept, correct: (correct & accept, accept),
    has_upper_limit=False,
    claim_template="At least {} of the rows predicted {name} are {name}",
    measured_template="of the {n:,} rows predicted {name} are {name}",
    violation_rate_name="share of false alarms",
    **_FALSE_POSITIVE_TEXTS,
)
#: Recall, P(not accepted as the other class | row is of the class).
#: The masks of the recall of a class are computed from predictions of the other class.
RECALL = Quantity(
    "recall",
    mask_function=lambda accept, correct: (~correct & ~accept, ~correct),
    has_upper_limit=False,
    claim_template="At least {} of the {name} rows are predicted {name} or sent to review",
    measured_template="of the {name} rows were predicted {name} or sent to review",
    violations_text="rows of {name} that are missed",
    violations_suffix="missed",
    violation_rate_name="share of missed rows",
    conditions_on_true_class=True,
)
#: False-positive rate, P(predicted to be of the class and accepted | row is of the other class).
FALSE_POSITIVE_RATE = Quantity(
    "false-positive rate",
    mask_function=lambda accept, correct: (~correct & accept, ~correct),
    claim_template="At most {} of the rows that are not {name} are predicted {name}",
    measured_template="of the rows that are not {name} were predicted {name}",
    conditions_on_true_class=True,
    **_FALSE_POSITIVE_TEXTS,
)
# The following quantities count cases, so `accept` and `correct` have one entry for each case.
# The module `metacal.certification.case_outcomes` computes these entries.

#: P(a case has an incorrect accepted item).
CASE_ERRORS = Quantity(
    "case error rate",
    mask_function=lambda accept, correct: (~correct, np.ones_like(accept)),
    claim_template="At most {} of all cases contain an incorrect accepted item",
    measured_template="of the {n:,} cases contain an incorrect accepted item",
    violations_text="cases with an incorrect accepted item",
    violations_suffix="with an incorrect accepted item",
    case_outcome="incorrect",
)
#: P(a case has an incorrect accepted item | it has an accepted item).
AUTOMATED_CASE_ERRORS = Quantity(
    "error rate of automated cases",
    mask_function=lambda accept, correct: (accept & ~correct, accept),
    claim_template="At most {} of the cases with an accepted item contain an incorrect one",
    measured_template="of the {n:,} cases with an accepted item contain an incorrect one",
    violations_text="cases with an incorrect accepted item",
    violations_suffix="with an incorrect accepted item",
    case_outcome="incorrect",
)
#: P(every true item of a case is accepted | it has a true item).
CASE_RECALL = Quantity(
    "case recall",
    mask_function=lambda accept, correct: (accept & correct, correct),
    has_upper_limit=False,
    limits_only_rejections=True,
    claim_template="In at least {} of the cases with a true item, every true item is accepted",
    measured_template="of the {n:,} cases with a true item have all of them accepted",
    violations_text="cases with a missed true item",
    violations_suffix="with a missed true item",
    violation_rate_name="share of cases with a miss",
    case_outcome="missed",
)
#: E[number of incorrect accepted items of a case].
ERRORS_PER_CASE = Quantity(
    "errors per case",
    mask_function=lambda accept, correct: (~correct, np.ones_like(accept)),
    claim_template="A case contains at most {} incorrect accepted items on average",
    measured_template="is the mean number of incorrect accepted items of the {n:,} cases",
    violations_text="cases with an incorrect accepted item",
    violations_suffix="with an incorrect accepted item",
    violation_rate_name="mean number of errors",
    is_mean_cost=True,
    case_outcome="incorrect",
)
#: Registered quantities by name.
QUANTITIES: dict[str, Quantity] = {
    registered.name: registered
    for registered in (
        MISCOVERAGE,
        SELECTIVE_ACCURACY,
        REVIEW,
        COST,
        RISK,
        COST_PER_ROW,
        LOSS,
        DISAGREEMENT,
        PRECISION,
        RECALL,
        FALSE_POSITIVE_RATE,
        CASE_ERRORS,
        AUTOMATED_CASE_ERRORS,
        CASE_RECALL,
        ERRORS_PER_CASE,
    )
}


def get_quantity(name: str) -> Quantity:
    """Return a registered quantity by its name, such as "selective accuracy".

    Parameters
    ----------
    name : str
        Name of the quantity; a `Quantity` is also accepted, because it equals its name.

    Returns
    -------
    Quantity

    Raises
    ------
    InputError
        If no quantity has this name.

    Examples
    --------
    >>> get_quantity("selective accuracy").comparison_sign
    '>='
    >>> get_quantity("profit")
    Traceback (most recent call last):
    metacal.errors.InputError: quantity must be one of 'miscoverage', 'selective accuracy', ...
    """
    if isinstance(name, str) and name in QUANTITIES:
        return QUANTITIES[name]
    raise InputError(
        f"quantity must be one of {', '.join(map(repr, QUANTITIES))}, but got {name!r}."
    )


def register_quantity(new_quantity: Quantity) -> Quantity:
    """Register a quantity, so that certificates about it can be loaded from files.

    Parameters
    ----------
    new_quantity : Quantity
        Quantity with a name that is not registered yet.

    Returns
    -------
    Quantity
        The same quantity.

    Raises
    ------
    InputError
        If a quantity with this name is registered already.

    Examples
    --------
    >>> register_quantity(MISCOVERAGE)
    Traceback (most recent call last):
    metacal.errors.InputError: A quantity named 'miscoverage' is already registered. Choose another name.
    """
    if new_quantity in QUANTITIES:
        raise InputError(
            f"A quantity named {new_quantity.name!r} is already registered. Choose another name."
        )
    QUANTITIES[new_quantity.name] = new_quantity
    return new_quantity


def _reduce_quantity(quantity: Quantity) -> tuple[Callable[[str], Quantity], tuple[str]]:
    """Pickle a quantity by its name, because its mask function cannot be pickled."""
    return get_quantity, (quantity.name,)


copyreg.pickle(Quantity, _reduce_quantity)
