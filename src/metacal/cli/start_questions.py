"""Questions of `metacal start`, which options or defaults may answer."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from metacal.cli.printing import print_note
from metacal.cli.start_promises import OfferedPromise, list_offered_promises
from metacal.cli.values import build_number_parser, parse_fraction
from metacal.display import is_terminal

if TYPE_CHECKING:
    from metacal.io.inspection import Inspection

#: Cost of a mistake, in reviews.
DEFAULT_MISTAKE_COST = 20.0
#: Cost of a case with an incorrect accepted item, in reviews of a case.
DEFAULT_CASE_MISTAKE_COST = 10.0
DEFAULT_REVIEW_FRACTION = 0.2

#: Parser of the cost of a mistake, relative to the cost of a review.
parse_mistake_cost = build_number_parser(
    1.0,
    1e6,
    "one above 1, such as 20",
    "is not above 1, and a mistake that costs no more needs no review",
)


def check_can_ask(answers: Sequence[object]) -> None:
    """Raise a usage error if an answer is None, and there is no terminal to ask on."""
    if None not in answers or is_terminal(sys.stdin):
        return
    raise click.UsageError(
        "start asks questions, but standard input is not a terminal. Add --yes to accept the"
        f" defaults: a mistake costs {DEFAULT_MISTAKE_COST:g} reviews, and"
        f" {DEFAULT_REVIEW_FRACTION:.0%} of the rows can be reviewed."
    )


def ask_mistake_cost() -> float:
    """Ask for the cost of a mistake, in reviews."""
    print_note(
        "\nA costly mistake needs a high target: if one mistake costs as much as 20 reviews, 95% of"
        "\nthe accepted predictions must be correct; for 100 reviews, 99%."
    )
    mistake_cost: float = click.prompt(
        "How many reviews does one mistake cost?",
        f"{DEFAULT_MISTAKE_COST:g}",
        value_proc=parse_mistake_cost,
        err=True,
    )
    return mistake_cost


def ask_case_mistake_cost() -> float:
    """Ask for the cost of a case with an incorrect item, in reviews of a case."""
    print_note(
        "\nA costly mistake needs a low limit: if a case with an incorrect accepted item costs as much"
        "\nas 10 reviews of a case, at most 10% of the cases may contain one; for 20 reviews, 5%."
    )
    mistake_cost: float = click.prompt(
        "How many reviews of a case does a case with an incorrect item cost?",
        f"{DEFAULT_CASE_MISTAKE_COST:g}",
        value_proc=parse_mistake_cost,
        err=True,
    )
    return mistake_cost


def ask_promise(mistake_cost: float | None, inspection: Inspection) -> OfferedPromise:
    """Ask which promise must hold, and show the target of each."""
    print_note("\nWhich promise must hold?")
    offered_promises = list_offered_promises(inspection)
    for promise_number, promise in enumerate(offered_promises, start=1):
        target = promise.find_target(mistake_cost or default_mistake_cost(promise))
        promise_text = promise.describe(target, inspection)
        print_note(f"  {promise_number}  {promise.title}: {promise_text}")
    promise_number = click.prompt(
        "Number", 1, type=click.IntRange(1, len(offered_promises)), err=True
    )
    return offered_promises[promise_number - 1]


def default_mistake_cost(promise: OfferedPromise) -> float:
    """Return the default cost of a mistake."""
    return DEFAULT_CASE_MISTAKE_COST if promise.is_about_cases else DEFAULT_MISTAKE_COST


def ask_review_fraction() -> float:
    """Ask for the fraction of the rows that can be reviewed."""
    review_fraction: float = click.prompt(
        "\nWhich share of the rows can be reviewed?",
        f"{DEFAULT_REVIEW_FRACTION:g}",
        value_proc=parse_fraction,
        err=True,
    )
    return review_fraction
