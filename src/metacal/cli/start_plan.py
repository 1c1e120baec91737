"""Rows of `metacal start` that fit and judge a gate, and the fit itself.

Some rows are *held out*: they do not take part in the fit, so they can judge the gate. If the rows
of the fit do not support the target, a lower target is chosen from them and certified on the rows
that were held out. These rows did not influence the choice, so the certificate is valid. A target
that was chosen and certified on the same rows would not be.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from metacal.cli.options import to_arguments
from metacal.cli.printing import print_note, wrap_lines
from metacal.cli.read_options import ReadOptions
from metacal.cli.start_promises import (
    TWO_CLASS_PROMISES,
    OfferedPromise,
    round_down,
    round_up,
)
from metacal.cli.start_runs import CommandRun, run_command
from metacal.errors import InfeasibleTargetError, UnsupportedPromiseError

if TYPE_CHECKING:
    from metacal.gate import Gate
    from metacal.io.inspection import Inspection

#: Smallest number of rows, or clusters of dependent rows, of which some are held out.
MIN_ROWS_TO_JUDGE = 300
#: Part of the rows that fits the gate, and part that is held out.
FIT_PART = (0.0, 0.7)
HELD_OUT_PART = (0.7, 1.0)
#: Parts of the rows of the fit that are as large as the part that is held out.
PILOT_PARTS = ((0.0, 0.3), (0.1, 0.4), (0.2, 0.5), (0.3, 0.6), (0.4, 0.7))


@dataclass(frozen=True)
class Plan:
    """What is promised, and from which rows.

    Attributes
    ----------
    inspection : Inspection
        Meaning of the columns.
    promise : OfferedPromise
        Promise of the gate.
    target : float
        Target of the promise.
    fit_part : tuple of float or None
        Part of the rows that is used to fit. None for all rows.
    judging_part : tuple of float or None
        Part of the rows that judges the gate. None if no rows judge it.
    gate : str
        File of the gate.
    """

    inspection: Inspection
    promise: OfferedPromise
    target: float
    fit_part: tuple[float, float] | None
    judging_part: tuple[float, float] | None
    gate: str

    def fit_arguments(self) -> list[str]:
        """Return the command that fits the gate."""
        words = [*self.arguments_without_promise(), *self.promise.fit_words(self.target)]
        two_classes = self.inspection.two_classes
        is_about_one_class = self.promise in TWO_CLASS_PROMISES
        if two_classes is not None and is_about_one_class and "--positive" not in words:
            words += ["--positive", two_classes[1]]
        return [*words, "-o", self.gate]

    def arguments_without_promise(self) -> list[str]:
        """Return the beginning of a command that fits a gate on the same rows."""
        words = ["fit", self.inspection.path]
        for name, value in self.promise.reading_options(self.inspection).items():
            words += to_arguments(name, value)
        return [*words, *part_words(self.fit_part)]

    @property
    def independent_rows(self) -> str:
        """Name of what is drawn and counted: rows, or cases."""
        return "cases" if self.promise.is_about_cases else "rows"

    def target_of(self, promise: OfferedPromise) -> float:
        """Return the target of another promise, for mistakes of the same cost."""
        if promise.is_about_cases == self.promise.is_about_cases:
            return self.target
        return 1.0 - self.target

    def reading_words(self) -> list[str]:
        """Return the options for this file that a gate does not remember."""
        options = self.inspection.options
        return [*self.format_words(), *to_arguments("labels", options.get("labels"))]

    def format_words(self) -> list[str]:
        """Return the option for the format of this file and of new ones, if it was given."""
        return to_arguments("format", self.inspection.options.get("format"))

    def verify_arguments(self) -> list[str]:
        """Return the command that judges the gate on a new file, called NEW."""
        words = ["verify", self.gate, "NEW", *self.format_words()]
        if "labels" in self.inspection.options:
            words += ["--labels", "NEWLABELS"]
        return words


def part_words(part: tuple[float, float] | None) -> list[str]:
    """Return the option that selects a part of the rows."""
    return [] if part is None else to_arguments("rows", part)


def plan_rows(
    inspection: Inspection, promise: OfferedPromise, target: float, gate_path: str
) -> Plan:
    """Divide the rows into those that fit the gate and those that judge it."""
    n_rows, n_clusters = _count_rows(inspection, promise)
    if n_clusters < MIN_ROWS_TO_JUDGE:
        return Plan(inspection, promise, target, None, None, gate_path)
    plan = Plan(inspection, promise, target, FIT_PART, HELD_OUT_PART, gate_path)
    n_drawn = n_clusters if promise.is_about_cases else n_rows
    n_fit = round(FIT_PART[1] * n_drawn)
    print_note(
        f"\n{n_drawn:,} {plan.independent_rows}: about {n_fit:,}, drawn at random, fit the gate. The"
        f" other {n_drawn - n_fit:,} judge it."
    )
    return plan


def _count_rows(inspection: Inspection, promise: OfferedPromise) -> tuple[int, int]:
    """Return the number of rows of the whole file, and of clusters of dependent rows or cases."""
    import numpy as np

    from metacal.cli.reading import read_keywords, read_score_table
    from metacal.io.columns import Columns
    from metacal.io.predictions import read_predictions

    known_names = ReadOptions.__dataclass_fields__.keys()
    reading = ReadOptions(
        **{
            name: value
            for name, value in promise.reading_options(inspection).items()
            if name in known_names
        }
    )
    columns: Columns
    if reading.score_key is not None:
        columns = read_score_table(inspection.path, reading)
    else:
        columns = read_predictions(
            inspection.path, input=reading.input or "logits", **read_keywords(reading)
        )
    n_rows = len(columns)
    clusters = columns.cases if promise.is_about_cases else columns.units
    n_clusters = n_rows if clusters is None else len(np.unique(clusters))
    return n_rows, n_clusters


def fit_plan(plan: Plan) -> tuple[Plan, CommandRun]:
    """Fit the gate, if need be with the best target that other rows certify.

    Returns
    -------
    plan : Plan
        With the target and the rows of the gate that was fitted.
    run : CommandRun

    Raises
    ------
    InfeasibleTargetError
        If no target could be certified.
    UnsupportedPromiseError
        If every gate keeps the promise.
    """
    try:
        run = run_command(plan.fit_arguments())
    except UnsupportedPromiseError as error:
        raise UnsupportedPromiseError(
            f"{error} Nothing was written. Pass a higher --mistake-cost, or another --promise."
        ) from None
    if run.error is None:
        return plan, run
    fallback = _plan_best_target(plan)
    if fallback is None:
        raise _error_with_advice(plan, run.error, "")
    target = fallback.target
    try:
        fallback_run = run_command(fallback.fit_arguments())
    except UnsupportedPromiseError:  # without a gate, so many rows are of the class
        raise _error_with_advice(plan, run.error, "") from None
    if fallback_run.error is not None:
        failure = f" The rows that were held out do not support {100.0 * target:.4g}% either."
        raise _error_with_advice(plan, run.error, failure)
    print_note(
        wrap_lines(
            f"\nThe target is not supported. {_as_sentence(run.error)}\nA target of"
            f" {100.0 * target:.4g}% was chosen from these rows instead. The rows that were held out"
            " did not influence the choice, and they certify it:"
        )
    )
    return fallback, fallback_run


def try_plan(plan: Plan) -> tuple[Plan, Gate] | None:
    """Fit the gate of a plan without saving it, if need be with the best target that other rows certify.

    Parameters
    ----------
    plan : Plan
        Plan that `start` does not carry out, but offers.

    Returns
    -------
    plan : Plan
        With the target and the rows of the gate that was fitted.
    gate : Gate
        The gate. Instead of both, None if no target could be certified.

    Raises
    ------
    UnsupportedPromiseError
        If every gate keeps the promise.
    """
    gate = _fit_trial(plan)
    if gate is not None:
        return plan, gate
    fallback = _plan_best_target(plan)
    if fallback is None:
        return None
    try:
        gate = _fit_trial(fallback)
    except UnsupportedPromiseError:
        return None
    return None if gate is None else (fallback, gate)


def _fit_trial(plan: Plan) -> Gate | None:
    """Fit the gate of a plan without saving it. Return None if the target is not supported."""
    import metacal

    with tempfile.TemporaryDirectory(prefix="metacal-") as folder:
        trial = replace(plan, gate=str(Path(folder, "trial.json")))
        if run_command(trial.fit_arguments()).error is not None:
            return None
        return metacal.load_gate(trial.gate)


def _plan_best_target(plan: Plan) -> Plan | None:
    """Plan to certify, on the rows that were held out, the best target that they probably support.

    None if no rows were held out, or if there is no such target.
    """
    if plan.judging_part is None:
        return None
    best_targets = []
    with tempfile.TemporaryDirectory(prefix="metacal-") as folder:
        for part in PILOT_PARTS:
            pilot = replace(plan, fit_part=part, gate=str(Path(folder, "pilot.json")))
            best = _find_best_target(pilot)
            if best is None:
                return None
            best_targets.append(best)
    choose = choose_higher_limit if plan.promise.is_about_cases else choose_lower_target
    target = choose(best_targets)
    if target is None:
        return None
    return replace(plan, target=target, fit_part=plan.judging_part, judging_part=None)


def _find_best_target(plan: Plan) -> float | None:
    """Return the target of a plan if its rows support it, or else the best that they support."""
    try:
        error = run_command(plan.fit_arguments()).error
    except UnsupportedPromiseError:  # every gate keeps the promise on these rows
        return plan.target
    return plan.target if error is None else error.best


def choose_lower_target(best_targets: Sequence[float]) -> float | None:
    """Return a target that other rows probably support.

    Parameters
    ----------
    best_targets : sequence of float
        Best targets that several draws of as many rows support.

    Returns
    -------
    float or None
        The lowest one, lowered by half the range of all, because the next draw may be worse than
        each. None if that is no target.

    Examples
    --------
    >>> choose_lower_target([0.92, 0.94, 0.93])
    0.91
    """
    lowest = min(best_targets)
    target = round_down(lowest - 0.5 * (max(best_targets) - lowest) + 1e-9)
    return target if 0.0 < target < 1.0 else None


def choose_higher_limit(best_limits: Sequence[float]) -> float | None:
    """Return an upper limit that other rows probably support.

    Parameters
    ----------
    best_limits : sequence of float
        Strictest limits that several draws of as many rows support.

    Returns
    -------
    float or None
        The highest one, raised by the range of all. None if that is no limit.

    Examples
    --------
    >>> choose_higher_limit([0.08, 0.06, 0.07])
    0.1
    """
    highest = max(best_limits)
    limit = round_up(2.0 * highest - min(best_limits) - 1e-9)
    return limit if 0.0 < limit < 1.0 else None


def _as_sentence(error: InfeasibleTargetError) -> str:
    """Return an error as a sentence."""
    text = str(error)
    return text[:1].upper() + text[1:]


def _error_with_advice(
    plan: Plan, error: InfeasibleTargetError, failure: str
) -> InfeasibleTargetError:
    """Return the error about a target, with what to do."""
    advice = " Nothing was written. Collect more labelled rows, or pass a lower --mistake-cost."
    if plan.judging_part is None:
        independent = plan.independent_rows if plan.promise.is_about_cases else "independent rows"
        advice = (
            f" Nothing was written. With at least {MIN_ROWS_TO_JUDGE} {independent}, start also"
            " chooses the best target, and certifies this target on rows that did not influence"
            " it."
        )
    return InfeasibleTargetError(
        f"{_as_sentence(error)}{failure}{advice}",
        target=error.target,
        best=error.best,
        rows_needed=error.rows_needed,
    )
