"""Options that describe a promise, and the promise that they describe.

To add a promise, add its option as a field of `PromiseOptions`, its name to `_PROMISES`, and its
constructor to `PromiseOptions.promise`. Only click is imported here.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import click

from metacal.cli.options import file_option, fraction_option, option, option_flag, switch_option
from metacal.cli.values import bad_option, number_between
from metacal.errors import InputError

if TYPE_CHECKING:
    from metacal.promises.promise import Promise


parse_cost = number_between(0.0, 1e15, "a cost, such as 50", "is not a positive number")


def min_accuracy_option(what: str = "is accepted") -> Any:
    """Return a field for --min-accuracy."""
    return fraction_option(f"Promise: what {what} is right at least B of the time.", "B")


def max_miscoverage_option() -> Any:
    """Return a field for --max-miscoverage."""
    return fraction_option("Promise: at most A of the right answers are rejected.", "A")


_TWO_CLASS_PROMISES = ("min_precision", "max_false_positive_rate", "min_recall", "min_npv")
_SUBGROUP_OPTIONS = ("per_class", "group_key")
_ACCURACY_AND_MISCOVERAGE = "--min-accuracy and --max-miscoverage"
#: Promises of which a command takes one, with the options of each.
_PROMISES = {
    _ACCURACY_AND_MISCOVERAGE: ("min_accuracy", "max_miscoverage"),
    "--max-review": ("max_review",),
    "--max-cost": ("max_cost",),
    "--max-risk": ("max_risk",),
    "--cheapest": ("cheapest",),
    "--min-precision, --max-false-positive-rate, --min-recall and --min-npv": _TWO_CLASS_PROMISES,
}


def _negative_class(positive: Any, classes: Sequence[Any]) -> Any:
    """Return the other one of two classes; by default the second class is positive."""
    if positive is None:
        return classes[0]
    return next((name for name in classes if name != positive), None)


@dataclass(frozen=True)
class PromiseOptions:
    """Options that describe a promise."""

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
        """Raise a usage error for options that contradict each other."""
        promises = [title for title, names in _PROMISES.items() if self._given(*names)]
        if not promises:
            raise click.UsageError(
                "give a promise: --min-accuracy (say 0.97: what is accepted is right at least 97%"
                " of the time), --max-miscoverage (say 0.05: at most 5% of the right answers are"
                " rejected), or both; --max-review, --max-cost, --max-risk or --cheapest; of two"
                " classes --min-precision, --min-recall, --max-false-positive-rate."
            )
        if len(promises) > 1:
            raise click.UsageError(
                f"{' and '.join(promises)} do not go together; give one promise."
            )
        self._check_costs()
        post_selection_options = self._given("after_looking", "at_threshold")
        if post_selection_options and promises[0] != _ACCURACY_AND_MISCOVERAGE:
            raise click.UsageError(
                f"{option_flag(post_selection_options[0])} is for {_ACCURACY_AND_MISCOVERAGE};"
                f" certify {promises[0]} on rows that it was not chosen on."
            )
        if self.rule == "paper":
            self._check_paper_rule()

    def _given(self, *names: str) -> list[str]:
        """Return those of the named options that the user gave."""
        given_names = []
        for name in names:
            value = getattr(self, name)
            if value is not None and value is not False:
                given_names.append(name)
        return given_names

    @property
    def is_two_class(self) -> bool:
        """Whether the promise is about the positive or the negative of two classes."""
        return bool(self._given(*_TWO_CLASS_PROMISES))

    def _check_paper_rule(self) -> None:
        """Raise a usage error if the paper has no rule for these options.

        The paper has one rule for each of the two limits, none for both together, and no confidence
        level.
        """
        if len(self._given(*_PROMISES[_ACCURACY_AND_MISCOVERAGE])) != 1:
            raise click.UsageError(
                "--rule paper takes --min-accuracy or --max-miscoverage, not both; give one."
            )
        for name in self._given("confidence", "in_expectation", "after_looking", "at_threshold"):
            raise click.UsageError(
                f"{option_flag(name)} does not go with --rule paper, which guarantees nothing; leave"
                " it out."
            )

    def _check_costs(self) -> None:
        """Raise a usage error if a promise about costs lacks a cost."""
        for name in self._given("max_cost", "cheapest"):
            if len(self._given("cost_wrong", "cost_matrix")) != 1:
                raise click.UsageError(
                    f"{option_flag(name)} needs --cost-wrong (say 50 for any wrong answer) or"
                    " --cost-matrix FILE."
                )
        if self.cheapest and self.cost_review is None:
            raise click.UsageError(
                "--cheapest needs --cost-review (say 1): what it costs to review a row."
            )

    def check_subgroups(self, *, by_group: bool) -> None:
        """Raise a usage error if the promise cannot be made for each class or group."""
        if not self.per_class and not by_group:
            return
        has_one_limit = len(self._given(*_PROMISES[_ACCURACY_AND_MISCOVERAGE])) == 1
        if has_one_limit or (by_group and self.is_two_class):
            return
        if self.per_class:
            raise click.UsageError(
                "--per-class takes one promise: --min-accuracy or --max-miscoverage."
            )
        raise click.UsageError(
            "--group-key takes one promise: --min-accuracy or --max-miscoverage, or what rows of two"
            " classes are called."
        )

    @property
    def delta(self) -> float | None:
        """Error probability of the promise, or None for a promise in expectation."""
        if self.in_expectation:
            return None
        confidence = 0.9 if self.confidence is None else self.confidence
        # 1 - 0.9 is 0.09999999999999998; the user means 0.1.
        return round(1.0 - confidence, 12)

    def build_promise(
        self,
        seed: int | None = None,
        classes: Sequence[Any] | None = None,
        *,
        per_group: bool = False,
        positive: Any = None,
    ) -> Promise:
        """Build the promise.

        Parameters
        ----------
        seed : int or None, default=None
            Seed of the split of the paper's rules and of the order of bets. None derives it from the
            rows.
        classes : sequence or None, default=None
            Names of the logit columns, if they have any. A cost matrix may use these names.
        per_group : bool, default=False
            Whether the promise holds for each group of rows.
        positive : object, default=None
            Positive one of two classes.

        Returns
        -------
        Promise

        Examples
        --------
        >>> PromiseOptions(min_accuracy=0.97, confidence=0.95).build_promise()
        MinAccuracy(beta=0.97, delta=0.05)
        >>> PromiseOptions(max_miscoverage=0.05, rule="paper").build_promise(seed=7)
        MaxMiscoverage(alpha=0.05, random_state=7)
        """
        import metacal as mc

        if self.is_two_class:
            promise = self._two_class_promise(positive, [0, 1] if classes is None else classes)
        else:
            promise = self._promise_for_all_rows(seed, classes)
        fallback = "pooled" if self.pool_small else None
        if per_group:
            return mc.PerGroup(promise, self._error_rate, fallback)
        if self.per_class:
            return mc.PerClass(promise, self._error_rate, fallback)
        return promise

    @property
    def _error_rate(self) -> Literal["each", "fcr", "together"]:
        """Error rate over subgroups that delta bounds."""
        if self.each:
            return "each"
        if self.fcr:
            return "fcr"
        return "together"

    def _promise_for_all_rows(
        self, seed: int | None, classes: Sequence[Any] | None = None
    ) -> Promise:
        """Build the promise for all rows, or for those of one class or group."""
        import metacal as mc

        # `__post_init__` has checked that the limits which a promise needs are not None.
        alpha: Any = self.max_miscoverage
        beta: Any = self.min_accuracy
        delta: Any = self.delta
        if self.max_review is not None:
            return mc.MaxReview(self.max_review, delta)
        if self.max_risk is not None:
            return mc.MaxRisk(self.max_risk, delta, self.near_binary, seed)
        if self.cheapest or self.max_cost is not None:
            return self._cost_promise(seed, classes)
        if self.rule == "paper":
            if alpha is None:
                return mc.paper.MinCoverageAccuracy(beta, seed)
            return mc.paper.MaxMiscoverage(alpha, seed)
        if self.after_looking or self.at_threshold is not None:
            return mc.AfterLooking(alpha, beta, delta, self.at_threshold)
        if alpha is None:
            return mc.MinAccuracy(beta, delta)
        if beta is None:
            return mc.MaxMiscoverage(alpha, delta)
        return mc.Both(alpha, beta, delta)

    def _cost_promise(self, seed: int | None, classes: Sequence[Any] | None) -> Promise:
        """Build the promise of --max-cost or --cheapest."""
        import metacal as mc

        delta: Any = self.delta
        error_costs: Any = self.cost_wrong
        if self.cost_matrix is not None:
            error_costs = read_cost_matrix(self.cost_matrix, classes)
        if self.max_cost is not None:
            return mc.MaxCost(error_costs, self.max_cost, delta, seed)
        return mc.Cheapest(error_costs, self.cost_review or 0.0, delta, seed)

    def _two_class_promise(self, positive: Any, classes: Sequence[Any]) -> Promise:
        """Build one promise about the positive or negative class, or one for each."""
        import metacal as mc

        delta: Any = self.delta
        promises: list[Any] = []
        if self.min_precision is not None:
            promises.append(
                mc.MinPrecision(
                    self.min_precision, share=self.positive_share, positive=positive, delta=delta
                )
            )
        if self.max_false_positive_rate is not None:
            promises.append(
                mc.MaxFalsePositiveRate(
                    self.max_false_positive_rate, positive=positive, delta=delta
                )
            )
        if self.min_recall is not None:
            promises.append(mc.MinRecall(self.min_recall, positive=positive, delta=delta))
        if self.min_npv is not None:
            # The negative predictive value is the precision of the negative class.
            negative = _negative_class(positive, classes)
            promises.append(mc.MinPrecision(self.min_npv, positive=negative, delta=delta or 0.0))
        if len(promises) > 2:
            raise click.UsageError(
                "rows have two sides: give at most two of these promises, one for either side."
            )
        if len(promises) == 1:
            return promises[0]
        return mc.TwoSided(promises[0], promises[1], delta or 0.0)


def read_cost_matrix(path: str, classes: Sequence[Any] | None) -> tuple[tuple[float, ...], ...]:
    """Read a cost matrix from a csv file.

    Parameters
    ----------
    path : str
        File with one line per true class and one column per answer. If it has names, in the first
        line and the first column, the costs are put into the order of the classes. Otherwise they
        are used in the order of the file.
    classes : sequence or None
        Names of the logit columns.

    Returns
    -------
    tuple of tuples of float
        Cost of each answer (inner) for each true class (outer).
    """
    from metacal.certification.row_losses import validate_error_costs
    from metacal.cli.reading import read_lines
    from metacal.io.formats.text_cells import is_number

    table = []
    for line in csv.reader(read_lines(path, "save the table of costs as csv")):
        cells = [cell.strip() for cell in line]
        if any(cells):
            table.append(cells)
    has_names = bool(table) and not is_number(table[0][-1])
    if has_names:
        table = _sort_by_class(path, table, classes)
    try:
        costs = [[float(cell) for cell in line] for line in table]
        return validate_error_costs(costs)  # type: ignore[return-value]
    except InputError as error:
        raise bad_option("--cost-matrix", f"{path}: {error}") from None
    except ValueError:
        raise bad_option("--cost-matrix", f"{path}: every cost must be a number") from None


def _sort_by_class(
    path: str, table: list[list[str]], classes: Sequence[Any] | None
) -> list[list[str]]:
    """Remove the names from a cost matrix and sort it into the order of the classes."""
    answer_names = table[0][1:]
    true_names = [line[0] for line in table[1:]]
    if classes is None:
        class_names = [str(code) for code in range(len(answer_names))]
    else:
        class_names = [str(name) for name in classes]
    expected_names = sorted(class_names)
    if sorted(answer_names) != expected_names or sorted(true_names) != expected_names:
        shown_names = ", ".join(class_names[:8])
        ellipsis = ", ..." if len(class_names) > 8 else ""
        raise bad_option(
            "--cost-matrix",
            f"{path}: the first line must name every answer and the first column every true class,"
            f" as the predictions do: {shown_names}{ellipsis}.",
        )
    if any(len(line) != len(class_names) + 1 for line in table):
        raise bad_option("--cost-matrix", f"{path}: some line has too few or too many costs.")

    sorted_table = []
    costs_by_class = {line[0]: line[1:] for line in table[1:]}
    answer_order = [answer_names.index(name) for name in class_names]
    for true_name in class_names:
        costs = costs_by_class[true_name]
        sorted_table.append([costs[column] for column in answer_order])
    return sorted_table
