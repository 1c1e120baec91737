"""The options that say what is promised, and the promise that they ask for. Only click is imported here.

A new promise adds its option to `_OPTIONS`, a field of the same name to `Asked`, and a line to `Asked.promise`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import click

from metacal.cli.options import Command, share

if TYPE_CHECKING:
    from metacal.promises.promise import Promise


@dataclass(frozen=True)
class Asked:
    """What the user wants promised, option by option."""

    min_accuracy: float | None = None
    max_miscoverage: float | None = None
    confidence: float | None = None
    in_expectation: bool = False
    after_looking: bool = False
    at_threshold: float | None = None
    per_class: bool = False
    each: bool = False
    pool_small: bool = False
    rule: str = "certified"

    def __post_init__(self) -> None:
        """Refuse what cannot be meant, before any file is read."""
        if self.min_accuracy is None and self.max_miscoverage is None:
            raise click.UsageError(
                "give a promise: --min-accuracy (say 0.97: what is accepted is right at least 97% of the time), "
                "--max-miscoverage (say 0.05: at most 5% of the right answers are turned away), or both."
            )
        looked = self.after_looking or self.at_threshold is not None
        if self.in_expectation and (self.confidence is not None or looked):
            other = "--confidence" if self.confidence is not None else "--after-looking"
            raise click.UsageError(f"{other} and --in-expectation exclude each other; give one.")
        if self.rule == "paper":
            self._check_the_papers()

    def _check_the_papers(self) -> None:
        """The paper has a rule for each limit and none for both, and none of them says how surely."""
        if self.min_accuracy is not None and self.max_miscoverage is not None:
            raise click.UsageError("--rule paper takes --min-accuracy or --max-miscoverage, not both; give one.")
        for given, option in (
            (self.confidence is not None, "--confidence"),
            (self.in_expectation, "--in-expectation"),
            (self.after_looking, "--after-looking"),
        ):
            if given:
                raise click.UsageError(
                    f"{option} does not go with --rule paper, which guarantees nothing; leave it out."
                )

    def check_parts(self, by_group: bool) -> None:
        """Refuse what cannot be promised for each class or group."""
        if self.per_class and by_group:
            raise click.UsageError("--per-class and --group-key exclude each other; give one.")
        if not self.per_class and not by_group:
            if self.each or self.pool_small:
                other = "--each" if self.each else "--pool-small"
                raise click.UsageError(
                    f"{other} says how classes or groups share: give --per-class or --group-key NAME."
                )
            return
        which = "--per-class" if self.per_class else "--group-key"
        if self.in_expectation or self.after_looking or self.at_threshold is not None:
            other = "--in-expectation" if self.in_expectation else "--after-looking"
            raise click.UsageError(f"{which} and {other} exclude each other; give one.")
        if self.min_accuracy is not None and self.max_miscoverage is not None:
            raise click.UsageError(f"{which} takes one promise: --min-accuracy or --max-miscoverage.")

    @property
    def delta(self) -> float | None:
        """How surely; 1 - 0.9 is 0.09999999999999998: say 0.1, as the user did."""
        return None if self.in_expectation else round(1.0 - (0.9 if self.confidence is None else self.confidence), 12)

    def promise(self, seed: int = 0, groups: Any = None) -> Promise:
        """The promise itself, for each group where there are some; `seed` draws the split of the paper's rules.

        Examples
        --------
        >>> Asked(min_accuracy=0.97, confidence=0.95).promise()
        MinCoverageAccuracy(beta=0.97, delta=0.05)
        >>> Asked(max_miscoverage=0.05, rule="paper").promise(seed=7)
        MaxMiscoverage(alpha=0.05, random_state=7)
        """
        import metacal as mc

        shares: Literal["each", "together"] = "each" if self.each else "together"
        fallback = "pooled" if self.pool_small else None
        if groups is not None:
            return mc.PerGroup(self._for_all(seed), shares, fallback, groups=groups)
        return mc.PerClass(self._for_all(seed), shares, fallback) if self.per_class else self._for_all(seed)

    def _for_all(self, seed: int) -> Promise:
        """The promise for all rows, or for the rows of one class or group."""
        import metacal as mc

        if self.rule == "paper":
            if self.max_miscoverage is not None:
                return mc.paper.MaxMiscoverage(self.max_miscoverage, seed)
            assert self.min_accuracy is not None
            return mc.paper.MinCoverageAccuracy(self.min_accuracy, seed)
        if self.after_looking or self.at_threshold is not None:
            assert self.delta is not None
            return mc.AfterLooking(self.max_miscoverage, self.min_accuracy, self.delta, self.at_threshold)
        if self.max_miscoverage is None:
            assert self.min_accuracy is not None
            return mc.MinCoverageAccuracy(self.min_accuracy, self.delta)
        if self.min_accuracy is None:
            return mc.MaxMiscoverage(self.max_miscoverage, self.delta)
        return mc.Both(self.max_miscoverage, self.min_accuracy, self.delta)


_OPTIONS = [
    click.option(
        "--min-accuracy", type=share, metavar="B", help="Promise: what is accepted is right at least B of the time."
    ),
    click.option(
        "--max-miscoverage", type=share, metavar="A", help="Promise: at most A of the right answers are turned away."
    ),
    click.option(
        "--confidence", type=share, metavar="C", help="How surely, over the draw of the rows of FILE.  [default: 0.9]"
    ),
    click.option("--in-expectation", is_flag=True, help="Promise the average over calibration sets instead."),
    click.option(
        "--after-looking",
        is_flag=True,
        help="Certify although B or A was chosen on these very rows, say from a report.",
    ),
    click.option(
        "--at-threshold",
        type=float,
        metavar="T",
        help="Certify this very threshold, chosen on these rows; B and A are what a report says that it carries.",
    ),
    click.option("--per-class", is_flag=True, help="A threshold, and the promise, for each predicted class."),
    click.option(
        "--each",
        is_flag=True,
        help="With --per-class or --group-key: C for each by itself, not for all of them together.",
    ),
    click.option(
        "--pool-small",
        is_flag=True,
        help="With --per-class or --group-key: those with too few rows share one threshold.",
    ),
    click.option(
        "--rule",
        type=click.Choice(("certified", "paper")),
        default="certified",
        show_default=True,
        help="How the threshold is chosen. paper: by the paper's algorithms, for reproduction, without a guarantee.",
    ),
]


def promise_options(command: Command) -> Command:
    """Add the options that say what is promised; the command gets them as one `asked`."""

    @functools.wraps(command)
    def with_promise(**options: Any) -> Any:
        found = {name: options.pop(name) for name in Asked.__dataclass_fields__}
        return command(asked=Asked(**found), **options)

    decorated: Callable[..., Any] = with_promise
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated
