"""The options that say what is promised, and the promise that they ask for. Only click is imported
here.

A new promise adds its option, switch, a field of `PromiseOptions`, and a line to
`PromiseOptions.promise`.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import click

from metacal.cli.options import file_option, fraction_option, option, option_flag, switch_option
from metacal.cli.values import bad_option, number_between
from metacal.errors import InputError

if TYPE_CHECKING:
    from metacal.promises.promise import Promise


parse_cost = number_between(0.0, 1e15, "a cost, such as 50", "is not a positive number")


def min_accuracy_option(what: str = "is accepted") -> Any:
    """A field for --min-accuracy."""
    return fraction_option(f"Promise: what {what} is right at least B of the time.", "B")


def max_miscoverage_option() -> Any:
    """A field for --max-miscoverage."""
    return fraction_option("Promise: at most A of the right answers are rejected.", "A")


_TWO_CLASS_PROMISES = ("min_precision", "max_false_positive_rate", "min_recall", "min_npv")
_SUBGROUP_OPTIONS = ("per_class", "group_key")
_ACCURACY_AND_MISCOVERAGE = "--min-accuracy and --max-miscoverage"
#: Promises that go together, and their options.
_PROMISES = {
    _ACCURACY_AND_MISCOVERAGE: ("min_accuracy", "max_miscoverage"),
    "--max-review": ("max_review",),
    "--max-cost": ("max_cost",),
    "--max-risk": ("max_risk",),
    "--cheapest": ("cheapest",),
    "--min-precision, --max-false-positive-rate, --min-recall and --min-npv": _TWO_CLASS_PROMISES,
}


@dataclass(frozen=True)
class PromiseOptions:
    """What the user wants promised, option by option."""

    min_accuracy: float | None = min_accuracy_option()
    max_miscoverage: float | None = max_miscoverage_option()
    max_review: float | None = fraction_option(
        "Promise: at most B of all rows go to review. Needs no labels.", "B"
    )
    max_cost: float | None = option(
        "Promise: what is accepted costs at most LIMIT a row on average.", "LIMIT", type=parse_cost
    )
    max_risk: float | None = fraction_option(
        "Promise: what is accepted has a mean loss of at most R; a loss is 0 to 1 (--loss-key), or"
        " right or wrong.",
        "R",
    )
    near_binary: bool = switch_option(
        "nearly every loss is 0 or 1. To be said before looking at the rows.", needs=("max_risk",)
    )
    cheapest: bool = switch_option(
        "The threshold at which wrong answers and reviews cost least, and a promise what that is at"
        " most."
    )
    cost_wrong: float | None = option(
        "what a wrong answer costs, in any unit.",
        "W",
        type=parse_cost,
        needs=("max_cost", "cheapest"),
    )
    cost_matrix: str | None = file_option(
        "a file with a line for each true class and in it the cost of each answer.",
        "CSV",
        needs=("max_cost", "cheapest"),
    )
    cost_review: float | None = option(
        "what it costs to review a row.", "R", type=parse_cost, needs=("cheapest",)
    )
    min_precision: float | None = fraction_option(
        "Two classes; promise: at least B of what is called positive is positive.", "B"
    )
    max_false_positive_rate: float | None = fraction_option(
        "Two classes; promise: at most A of what is negative is called positive.", "A"
    )
    min_recall: float | None = fraction_option(
        "Two classes; promise: at least B of what is positive is caught or sent to review.", "B"
    )
    min_npv: float | None = fraction_option(
        "Two classes; promise: at least B of what is called negative is negative.", "B"
    )
    positive_share: float | None = fraction_option(
        "about how many rows are positive, from training data or experience.",
        "P",
        needs=("min_precision",),
    )
    confidence: float | None = fraction_option(
        "How sure the promise is, over draws of the rows of FILE.  [default: 0.9]", "C"
    )
    in_expectation: bool = switch_option(
        "Promise the average over calibration sets instead.",
        excludes=("confidence", "after_looking", "at_threshold", "cheapest", *_SUBGROUP_OPTIONS),
    )
    after_looking: bool = switch_option(
        "Certify although B or A was chosen on these very rows, say from a report.",
        excludes=_SUBGROUP_OPTIONS,
    )
    at_threshold: float | None = option(
        "Certify this very threshold, chosen on these rows; B and A are what a report says that it"
        " carries.",
        "T",
        type=float,
        excludes=_SUBGROUP_OPTIONS,
    )
    per_class: bool = switch_option(
        "A threshold, and the promise, for each predicted class.", excludes=("group_key",)
    )
    each: bool = switch_option(
        "C for each by itself, not for all of them together.",
        needs=_SUBGROUP_OPTIONS,
        excludes=("fcr",),
    )
    fcr: bool = switch_option(
        "of those that accept rows, an expected share of at most 1 - C is broken.",
        needs=_SUBGROUP_OPTIONS,
    )
    pool_small: bool = switch_option(
        "those with too few rows share one threshold.", needs=_SUBGROUP_OPTIONS
    )
    rule: str = option(
        "How the threshold is chosen. paper: by the paper's algorithms, for reproduction, without a"
        " guarantee.",
        type=click.Choice(("certified", "paper")),
        default="certified",
    )

    def __post_init__(self) -> None:
        """Refuse what cannot be meant, before any file is read."""
        given = [title for title, names in _PROMISES.items() if self._given(*names)]
        if not given:
            raise click.UsageError(
                "give a promise: --min-accuracy (say 0.97: what is accepted is right at least 97%"
                " of the time), --max-miscoverage (say 0.05: at most 5% of the right answers are"
                " rejected), or both; --max-review, --max-cost, --max-risk or --cheapest; of two"
                " classes --min-precision, --min-recall, --max-false-positive-rate."
            )
        if len(given) > 1:
            raise click.UsageError(f"{' and '.join(given)} do not go together; give one promise.")
        self._check_costs()
        looked = self._given("after_looking", "at_threshold")
        if looked and given[0] != _ACCURACY_AND_MISCOVERAGE:
            raise click.UsageError(
                f"{option_flag(looked[0])} is for {_ACCURACY_AND_MISCOVERAGE}; certify {given[0]} on rows that it was not"
                " chosen on."
            )
        if self.rule == "paper":
            self._check_the_papers()

    def _given(self, *names: str) -> list[str]:
        """Those of these options that the user gave."""
        return [
            name
            for name in names
            if getattr(self, name) is not None and getattr(self, name) is not False
        ]

    @property
    def sided(self) -> bool:
        """Whether something is promised about what rows of two classes are called."""
        return bool(self._given(*_TWO_CLASS_PROMISES))

    def _check_the_papers(self) -> None:
        """The paper has a rule for each limit and none for both, and none of them says how
        surely.
        """
        if len(self._given(*_PROMISES[_ACCURACY_AND_MISCOVERAGE])) != 1:
            raise click.UsageError(
                "--rule paper takes --min-accuracy or --max-miscoverage, not both; give one."
            )
        for name in self._given("confidence", "in_expectation", "after_looking", "at_threshold"):
            raise click.UsageError(
                f"{option_flag(name)} does not go with --rule paper, which guarantees nothing; leave it"
                " out."
            )

    def _check_costs(self) -> None:
        """Costs where they are needed."""
        for name in self._given("max_cost", "cheapest"):
            if len(self._given("cost_wrong", "cost_matrix")) != 1:
                wanted = "--cost-wrong (say 50 for any wrong answer) or --cost-matrix FILE"
                raise click.UsageError(f"{option_flag(name)} needs {wanted}.")
        if self.cheapest and self.cost_review is None:
            raise click.UsageError(
                "--cheapest needs --cost-review (say 1): what it costs to review a row."
            )

    def check_parts(self, by_group: bool) -> None:
        """Refuse what cannot be promised for each class or group."""
        one = len(self._given(*_PROMISES[_ACCURACY_AND_MISCOVERAGE])) == 1 or (
            by_group and self.sided
        )
        if (self.per_class or by_group) and not one:
            which = "--per-class" if self.per_class else "--group-key"
            also = "" if self.per_class else ", or what rows of two classes are called"
            raise click.UsageError(
                f"{which} takes one promise: --min-accuracy or --max-miscoverage{also}."
            )

    @property
    def delta(self) -> float | None:
        """How surely; 1 - 0.9 is 0.09999999999999998: say 0.1, as the user did."""
        return (
            None
            if self.in_expectation
            else round(1.0 - (0.9 if self.confidence is None else self.confidence), 12)
        )

    def promise(
        self,
        seed: int | None = None,
        classes: Sequence[Any] | None = None,
        *,
        per_group: bool = False,
        positive: Any = None,
    ) -> Promise:
        """The promise itself, for each group where there are some.

        `seed` draws the split of the paper's rules and the order of bets; None derives it from the
        rows. `classes` are the names of the columns, if they have any: a table of costs may name
        them. `positive` is the positive of two classes.

        Examples
        --------
        >>> PromiseOptions(min_accuracy=0.97, confidence=0.95).promise()
        MinAccuracy(beta=0.97, delta=0.05)
        >>> PromiseOptions(max_miscoverage=0.05, rule="paper").promise(seed=7)
        MaxMiscoverage(alpha=0.05, random_state=7)
        """
        import metacal as mc

        shares: Literal["each", "fcr", "together"] = (
            "each" if self.each else "fcr" if self.fcr else "together"
        )
        fallback = "pooled" if self.pool_small else None
        names = [0, 1] if classes is None else classes
        whole = self._about_sides(positive, names) if self.sided else self._for_all(seed, classes)
        if per_group:
            return mc.PerGroup(whole, shares, fallback)
        return mc.PerClass(whole, shares, fallback) if self.per_class else whole

    def _for_all(self, seed: int | None, classes: Sequence[Any] | None = None) -> Promise:
        """The promise for all rows, or for the rows of one class or group."""
        import metacal as mc

        # What is not given of these is not asked for: `__post_init__` has seen to it.
        alpha: Any = self.max_miscoverage
        beta: Any = self.min_accuracy
        delta: Any = self.delta
        if self.max_review is not None:
            return mc.MaxReview(self.max_review, delta)
        if self.max_risk is not None:
            return mc.MaxRisk(self.max_risk, delta, self.near_binary, seed)
        if self.cheapest or self.max_cost is not None:
            wrong: Any = (
                self.cost_wrong
                if self.cost_matrix is None
                else read_cost_matrix(self.cost_matrix, classes)
            )
            if self.max_cost is not None:
                return mc.MaxCost(wrong, self.max_cost, delta, seed)
            return mc.Cheapest(wrong, self.cost_review or 0.0, delta, seed)
        if self.rule == "paper":
            return (
                mc.paper.MinCoverageAccuracy(beta, seed)
                if alpha is None
                else mc.paper.MaxMiscoverage(alpha, seed)
            )
        if self.after_looking or self.at_threshold is not None:
            return mc.AfterLooking(alpha, beta, delta, self.at_threshold)
        if alpha is None:
            return mc.MinAccuracy(beta, delta)
        return mc.MaxMiscoverage(alpha, delta) if beta is None else mc.Both(alpha, beta, delta)

    def _about_sides(self, positive: Any, classes: Sequence[Any]) -> Promise:
        """One promise about what rows are called, or one for either side."""
        import metacal as mc

        own: dict[str, Any] = {"positive": positive, "delta": self.delta}
        negative = (
            next((name for name in classes if name != positive), None)
            if positive is not None
            else classes[0]
        )
        given: list[tuple[Any, Any]] = [
            (partial(mc.MinPrecision, share=self.positive_share, **own), self.min_precision),
            (partial(mc.MaxFalsePositiveRate, **own), self.max_false_positive_rate),
            (partial(mc.MinRecall, **own), self.min_recall),
            (partial(mc.MinPrecision, positive=negative, delta=self.delta or 0.0), self.min_npv),
        ]
        sides = [promise(level) for promise, level in given if level is not None]
        if len(sides) > 2:
            raise click.UsageError(
                "rows have two sides: give at most two of these promises, one for either side."
            )
        return sides[0] if len(sides) == 1 else mc.TwoSided(sides[0], sides[1], self.delta or 0.0)


# ── a table of costs ──────────────────────────────────────────────────────────────────────────────


def read_cost_matrix(path: str, classes: Sequence[Any] | None) -> tuple[tuple[float, ...], ...]:
    """The costs in the order of the columns of the logits.

    K rows of K numbers are taken as they stand. A first line with the names of the answers and a
    first column with those of the true classes put them in order by name.
    """
    from metacal.cli.reading import read_lines
    from metacal.io.formats.text_cells import is_number
    from metacal.promises.rules.costs import checked_costs

    lines = csv.reader(read_lines(path, "save the table of costs as csv"))
    table = [
        [cell.strip() for cell in line] for line in lines if any(cell.strip() for cell in line)
    ]
    if table and not is_number(table[0][-1]):
        table = _by_name(path, table, classes)
    try:
        rows = [[float(cell) for cell in line] for line in table]
        return checked_costs(rows)  # type: ignore[return-value]
    except ValueError as error:
        said = str(error) if isinstance(error, InputError) else "every cost must be a number"
        raise bad_option("--cost-matrix", f"{path}: {said}") from None


def _by_name(path: str, table: list[list[str]], classes: Sequence[Any] | None) -> list[list[str]]:
    """The numbers alone, in the order of the classes."""
    answers, truths = table[0][1:], [line[0] for line in table[1:]]
    own = [str(name) for name in (range(len(answers)) if classes is None else classes)]
    if sorted(answers) != sorted(own) or sorted(truths) != sorted(own):
        few = f"{', '.join(own[:8])}{', ...' if len(own) > 8 else ''}"
        must = (
            "the first line must name every answer and the first column every true class, as the"
            " predictions do"
        )
        raise bad_option("--cost-matrix", f"{path}: {must}: {few}.")
    if any(len(line) != len(own) + 1 for line in table):
        raise bad_option("--cost-matrix", f"{path}: some line has too few or too many costs.")
    rows = {line[0]: dict(zip(answers, line[1:], strict=True)) for line in table[1:]}
    return [[rows[truth][answer] for answer in own] for truth in own]
