"""Options that describe a promise, and the promise that they describe.

To add a promise, add its option as a field of `PromiseOptions`, made with `promise_option` from the
option and a function that builds the promise. Only click is imported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

import click

from metacal.cli.options import file_option, fraction_option, option, option_flag, switch_option
from metacal.cli.promise_builders import build_accuracy_promise, build_min_npv
from metacal.cli.promise_specs import (
    BuildFunction,
    Combination,
    PromiseInputs,
    PromiseSpec,
    promise_option,
)
from metacal.cli.values import build_number_parser, convert_confidence_to_delta

if TYPE_CHECKING:
    from metacal.promises.promise import Promise


parse_cost = build_number_parser(0.0, 1e15, "a cost, such as 50", "is not a positive number")
parse_positive = build_number_parser(0.0, 1e15, "a number, such as 0.1", "is not a positive number")
#: Options of promises about cases.
CASE_PROMISES = ("max_case_errors", "min_case_recall", "max_errors_per_case")


def min_accuracy_option(predictions: str = "accepted predictions") -> Any:
    """Return a field for --min-accuracy."""
    return fraction_option(f"At least B of the {predictions} are correct.", "B")


def max_miscoverage_option() -> Any:
    """Return a field for --max-miscoverage."""
    return fraction_option("At most A of the correct predictions are rejected.", "A")


_SUBGROUP_OPTIONS = ("per_class", "group_key")


@dataclass(frozen=True)
class PromiseOptions:
    """Options that describe a promise."""

    min_accuracy: float | None = promise_option(
        min_accuracy_option(),
        build=build_accuracy_promise,
        combination=Combination.ACCURACY_AND_MISCOVERAGE,
    )
    max_miscoverage: float | None = promise_option(
        max_miscoverage_option(),
        build=build_accuracy_promise,
        combination=Combination.ACCURACY_AND_MISCOVERAGE,
    )
    max_review: float | None = promise_option(
        fraction_option("At most B of all rows are rejected. Needs no labels.", "B"),
        build=lambda mc, options, inputs: mc.MaxReview(options.max_review, options.delta),
    )
    max_cost: float | None = promise_option(
        option(
            "Accepted predictions cost at most LIMIT per row on average.",
            "LIMIT",
            type=parse_cost,
        ),
        build=lambda mc, options, inputs: mc.MaxCost(
            options.read_error_costs(inputs.classes), options.max_cost, options.delta, inputs.seed
        ),
    )
    max_risk: float | None = promise_option(
        fraction_option(
            "The mean loss of accepted predictions is at most R (losses: --loss-key).",
            "R",
        ),
        build=lambda mc, options, inputs: mc.MaxRisk(
            options.max_risk, options.delta, options.near_binary, inputs.seed
        ),
    )
    near_binary: bool = switch_option(
        "nearly every loss is 0 or 1. Decide this before you see the rows.", needs=("max_risk",)
    )
    cheapest: bool = promise_option(
        switch_option(
            "Choose the threshold with the lowest expected cost, and promise an upper limit of it."
        ),
        build=lambda mc, options, inputs: mc.Cheapest(
            options.read_error_costs(inputs.classes),
            options.cost_review or 0.0,
            options.delta,
            inputs.seed,
        ),
    )
    cost_wrong: float | None = option(
        "cost of an incorrect prediction, in any unit.",
        "W",
        type=parse_cost,
        needs=("max_cost", "cheapest"),
    )
    cost_matrix: str | None = file_option(
        "CSV file with one line per true class and one cost per predicted class.",
        "CSV",
        needs=("max_cost", "cheapest"),
    )
    cost_review: float | None = option(
        "cost of reviewing one row.", "R", type=parse_cost, needs=("cheapest",)
    )
    min_precision: float | None = promise_option(
        fraction_option(
            "Two classes: at least B of the accepted positive predictions are correct.", "B"
        ),
        build=lambda mc, options, inputs: mc.MinPrecision(
            options.min_precision,
            share=options.positive_share,
            positive=inputs.positive,
            delta=options.delta,
        ),
        combination=Combination.TWO_CLASSES,
    )
    max_false_positive_rate: float | None = promise_option(
        fraction_option("Two classes: at most A of the negatives are accepted as positive.", "A"),
        build=lambda mc, options, inputs: mc.MaxFalsePositiveRate(
            options.max_false_positive_rate, positive=inputs.positive, delta=options.delta
        ),
        combination=Combination.TWO_CLASSES,
    )
    min_recall: float | None = promise_option(
        fraction_option(
            "Two classes: at least B of the positives are predicted positive or rejected.", "B"
        ),
        build=lambda mc, options, inputs: mc.MinRecall(
            options.min_recall, positive=inputs.positive, delta=options.delta
        ),
        combination=Combination.TWO_CLASSES,
    )
    min_npv: float | None = promise_option(
        fraction_option(
            "Two classes: at least B of the accepted negative predictions are correct.", "B"
        ),
        build=build_min_npv,
        combination=Combination.TWO_CLASSES,
    )
    max_case_errors: float | None = promise_option(
        fraction_option(
            "At most L of all cases contain an incorrect accepted item (with --case-key).",
            "L",
        ),
        build=lambda mc, options, inputs: mc.MaxCaseErrors(
            options.max_case_errors,
            options.delta,
            "automated" if options.among_automated else "all",
            options.same_scale,
        ),
    )
    among_automated: bool = switch_option(
        "count only cases with an accepted item.", needs=("max_case_errors",)
    )
    min_case_recall: float | None = promise_option(
        fraction_option(
            "All true items are accepted in at least B of the cases that have one.",
            "B",
        ),
        build=lambda mc, options, inputs: mc.MinCaseRecall(
            options.min_case_recall, options.delta, options.same_scale
        ),
    )
    max_errors_per_case: float | None = promise_option(
        option(
            "A case contains at most M incorrect accepted items on average.",
            "M",
            type=parse_positive,
        ),
        build=lambda mc, options, inputs: mc.MaxErrorsPerCase(
            options.max_errors_per_case,
            options.largest_per_case,
            options.delta,
            options.same_scale,
        ),
    )
    largest_per_case: int | None = option(
        "largest number of errors counted in one case, such as its number of fields.",
        "N",
        type=click.IntRange(min=1),
        needs=("max_errors_per_case",),
    )
    same_scale: bool = switch_option(
        "one model computes the scores of all item types.",
        needs=CASE_PROMISES,
    )
    positive_share: float | None = fraction_option(
        "expected share of positive rows, from training data or experience.",
        "P",
        needs=("min_precision",),
    )
    confidence: float | None = fraction_option(
        "Confidence level of the promise.  [default: 0.9]", "C"
    )
    in_expectation: bool = switch_option(
        "Promise the average over calibration sets instead of a confidence level.",
        excludes=("confidence", "after_looking", "at_threshold", "cheapest", *_SUBGROUP_OPTIONS),
    )
    after_looking: bool = switch_option(
        "Certify a target that was chosen on these rows, for example in a report.",
        excludes=_SUBGROUP_OPTIONS,
    )
    at_threshold: float | None = option(
        "Certify this threshold, chosen on these rows in a report, for the targets that the report"
        " shows.",
        "T",
        type=float,
        excludes=_SUBGROUP_OPTIONS,
    )
    per_class: bool = switch_option(
        "Each predicted class has its own threshold and promise.", excludes=("group_key",)
    )
    each: bool = switch_option(
        "the confidence level holds for each subgroup by itself, not for all together.",
        needs=_SUBGROUP_OPTIONS,
        excludes=("fcr",),
    )
    fcr: bool = switch_option(
        "among subgroups that accept rows, at most 1 - C break their promise on average.",
        needs=_SUBGROUP_OPTIONS,
    )
    pool_small: bool = switch_option(
        "subgroups with too few rows share one threshold.", needs=_SUBGROUP_OPTIONS
    )
    rule: str = option(
        "Rule that chooses the threshold. paper: the algorithms of the paper, without a guarantee.",
        type=click.Choice(("certified", "paper")),
        default="certified",
    )

    def __post_init__(self) -> None:
        """Raise a usage error for options that contradict each other."""
        promise_flags = self._list_flags_of_promises()
        if not promise_flags:
            raise click.UsageError(
                "No promise given. Add --min-accuracy 0.97 (accepted predictions are correct"
                " at least 97% of the time) or --max-miscoverage 0.05 (at most 5% of correct"
                " predictions are rejected). 'metacal fit --help' lists the others."
            )
        if len(promise_flags) > 1:
            raise click.UsageError(
                f"{' and '.join(promise_flags)} cannot be combined. Pass only one promise."
            )
        self._check_costs()
        if self.max_errors_per_case is not None and self.largest_per_case is None:
            raise click.UsageError(
                "--max-errors-per-case requires --largest-per-case, the largest number of errors"
                " that one case can count. Add, for example, --largest-per-case 4."
            )
        post_selection_options = self._select_given_options(("after_looking", "at_threshold"))
        accuracy_options = _list_options_in_combination(Combination.ACCURACY_AND_MISCOVERAGE)
        if post_selection_options and not self._select_given_options(accuracy_options):
            raise click.UsageError(
                f"{option_flag(post_selection_options[0])} supports only"
                f" {_format_flag_list(accuracy_options)}. Leave it out, and certify {promise_flags[0]} on rows"
                " that did not influence the choice of its target."
            )
        if self.rule == "paper":
            self._check_paper_rule()

    def _select_given_options(self, names: Sequence[str]) -> list[str]:
        """Return the names, out of some option names, of those that the user passed."""
        given_names = []
        for name in names:
            option_value = getattr(self, name)
            if option_value is not None and option_value is not False:
                given_names.append(name)
        return given_names

    def _list_flags_of_promises(self) -> list[str]:
        """Return the flags of each promise that the user gave.

        Promises that may be given together count as one. Its entry names the flags of all of them.
        """
        flags_of_promises = []
        for name in self._select_given_options(_list_promise_options()):
            options_to_combine = [name]
            combination = _get_promise_spec(name).combination
            if combination is not None:
                options_to_combine = _list_options_in_combination(combination)
            flags_of_promises.append(_format_flag_list(options_to_combine))
        # Promises that may be given together have equal entries, of which one is kept.
        return list(dict.fromkeys(flags_of_promises))

    @property
    def is_about_cases(self) -> bool:
        """Whether the promise is about cases."""
        return bool(self._select_given_options(CASE_PROMISES))

    @property
    def is_two_class(self) -> bool:
        """Whether the promise is about the positive or the negative of two classes."""
        two_class_options = _list_options_in_combination(Combination.TWO_CLASSES)
        return bool(self._select_given_options(two_class_options))

    def _check_paper_rule(self) -> None:
        """Raise a usage error if the options do not fit --rule paper.

        The paper has one rule for each of the two limits, none for both together, and no confidence
        level.
        """
        accuracy_options = _list_options_in_combination(Combination.ACCURACY_AND_MISCOVERAGE)
        if len(self._select_given_options(accuracy_options)) != 1:
            raise click.UsageError(
                "--rule paper supports either --min-accuracy or --max-miscoverage, but not both."
                " Pass one of them."
            )
        guarantee_options = ("confidence", "in_expectation", "after_looking", "at_threshold")
        for name in self._select_given_options(guarantee_options):
            raise click.UsageError(
                f"{option_flag(name)} has no effect with --rule paper, because the paper's rules"
                f" give no guarantee. Leave out {option_flag(name)}."
            )

    def _check_costs(self) -> None:
        """Raise a usage error if an option that limits or minimises costs lacks a cost."""
        n_given_error_costs = len(self._select_given_options(("cost_wrong", "cost_matrix")))
        for name in self._select_given_options(("max_cost", "cheapest")):
            if n_given_error_costs != 1:
                raise click.UsageError(
                    f"{option_flag(name)} requires the cost of an incorrect prediction. Add, for"
                    " example, --cost-wrong 50, or pass --cost-matrix FILE."
                )
        if self.cheapest and self.cost_review is None:
            raise click.UsageError(
                "--cheapest requires the cost of reviewing one row. Add, for example,"
                " --cost-review 1."
            )

    def check_subgroups(self, *, by_group: bool) -> None:
        """Raise a usage error if the promise cannot be made for each class or group."""
        # In a promise about cases, the groups are types of items. They are not subgroups, because
        # the promise is about all items of a case.
        groups_are_item_types = by_group and self.is_about_cases
        has_subgroups = self.per_class or by_group
        if groups_are_item_types or not has_subgroups:
            return
        accuracy_options = _list_options_in_combination(Combination.ACCURACY_AND_MISCOVERAGE)
        limits_only_one_quantity = len(self._select_given_options(accuracy_options)) == 1
        if limits_only_one_quantity or (by_group and self.is_two_class):
            return
        if self.per_class:
            raise click.UsageError(
                "--per-class supports a single promise, --min-accuracy or --max-miscoverage."
                " Pass one of them."
            )
        raise click.UsageError(
            "--group-key supports a single promise: --min-accuracy, --max-miscoverage, or a"
            " promise about one of two classes. Pass one of them."
        )

    @property
    def delta(self) -> float | None:
        """Error probability of the promise, or None for a promise in expectation."""
        if self.in_expectation:
            return None
        confidence_level = 0.9 if self.confidence is None else self.confidence
        return convert_confidence_to_delta(confidence_level)

    def build_promise(
        self,
        seed: int | None = None,
        classes: Sequence[Any] | None = None,
        *,
        per_group: bool = False,
        positive: Any = None,
    ) -> Promise:
        """Build the promise that the options describe.

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

        promise = self._build_promise_without_subgroups(PromiseInputs(seed, classes, positive))
        method_for_small_subgroups = "pooled" if self.pool_small else None
        if per_group and not self.is_about_cases:
            return mc.PerGroup(promise, self._error_rate, method_for_small_subgroups)
        if self.per_class:
            return mc.PerClass(promise, self._error_rate, method_for_small_subgroups)
        return promise

    @property
    def _error_rate(self) -> Literal["each", "fcr", "together"]:
        """Error rate over subgroups that delta bounds."""
        if self.each:
            return "each"
        if self.fcr:
            return "fcr"
        return "together"

    def _build_promise_without_subgroups(self, inputs: PromiseInputs) -> Promise:
        """Build the promise for all rows, or for those of one class or group."""
        import metacal as mc

        build_functions: list[BuildFunction] = []
        for name in self._select_given_options(_list_promise_options()):
            build_function = _get_promise_spec(name).build
            # Two options that describe one promise together share the function that builds it.
            if build_function not in build_functions:
                build_functions.append(build_function)
        promises = [build_function(mc, self, inputs) for build_function in build_functions]
        if len(promises) > 2:
            raise click.UsageError(
                "At most two promises about two classes are allowed, one for each class. Leave"
                " out the others."
            )
        if len(promises) == 1:
            return promises[0]
        promise_about_one_class: Any = promises[0]
        promise_about_other_class: Any = promises[1]
        return mc.TwoSided(
            promise_about_one_class, promise_about_other_class, delta=self.delta or 0.0
        )

    def read_error_costs(self, classes: Sequence[Any] | None) -> Any:
        """Return the cost of any error, or read the cost matrix of the classes."""
        from metacal.cli.cost_matrix import read_cost_matrix

        if self.cost_matrix is not None:
            return read_cost_matrix(self.cost_matrix, classes)
        return self.cost_wrong


def _get_promise_spec(name: str) -> PromiseSpec:
    """Return the promise that an option describes."""
    option_field = PromiseOptions.__dataclass_fields__[name]
    spec: PromiseSpec = option_field.metadata["promise"]
    return spec


def _list_promise_options() -> list[str]:
    """Return the names of the options that describe a promise."""
    return [
        option_field.name
        for option_field in fields(PromiseOptions)
        if "promise" in option_field.metadata
    ]


def _list_options_in_combination(combination: Combination) -> list[str]:
    """Return the names of the promise options that may be given together."""
    option_names = []
    for name in _list_promise_options():
        if _get_promise_spec(name).combination is combination:
            option_names.append(name)
    return option_names


def _format_flag_list(names: Sequence[str]) -> str:
    """Join the flags of some options with commas and "and".

    Examples
    --------
    >>> _format_flag_list(["min_precision", "min_recall", "min_npv"])
    '--min-precision, --min-recall and --min-npv'
    """
    flags = [option_flag(name) for name in names]
    if len(flags) == 1:
        return flags[0]
    return f"{', '.join(flags[:-1])} and {flags[-1]}"
