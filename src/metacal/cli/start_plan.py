"""Rows of `metacal start` that fit and judge a gate, and the fit itself.

Some rows are *held out*: they do not take part in the fit, so they can judge the gate. If the rows
of the fit do not support the target, a lower target is chosen from them and certified on the rows
that were held out. These rows did not influence the choice, so the certificate is valid. A target
that was chosen and certified on the same rows would not be.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from metacal.cli.options import format_option_arguments
from metacal.cli.printing import print_note, wrap_lines
from metacal.cli.read_options import ReadOptions
from metacal.cli.start_promises import (
    PROMISES_ABOUT_ONE_CLASS,
    OfferedPromise,
    round_down_to_3_decimals,
    round_up_to_3_decimals,
)
from metacal.cli.start_runs import CommandRun, run_metacal_command
from metacal.errors import InfeasibleTargetError, UnsupportedPromiseError

if TYPE_CHECKING:
    from metacal.gate import Gate
    from metacal.io.inspection import Inspection

#: Smallest number of rows, or clusters of dependent rows, of which some are held out.
MIN_ROWS_TO_HOLD_OUT = 300
#: Tolerance for floating-point error when a target is rounded.
_ROUNDING_TOLERANCE = 1e-9

#: Fractions of the rows, in random order: the first 70% fit the gate, the others are held out.
FIT_ROW_RANGE = (0.0, 0.7)
HELD_OUT_ROW_RANGE = (0.7, 1.0)
#: Ranges within the rows of the fit, each with as many rows as are held out.
PILOT_FIT_ROW_RANGES = ((0.0, 0.3), (0.1, 0.4), (0.2, 0.5), (0.3, 0.6), (0.4, 0.7))


@dataclass(frozen=True)
class Plan:
    """Plan of a gate: its promise, the target, and the rows that fit and test it.

    Attributes
    ----------
    inspection : Inspection
        Meaning of the columns.
    promise : OfferedPromise
        Promise of the gate.
    target : float
        Target of the promise.
    fit_row_range : tuple of float or None
        Part of the rows that is used to fit. None for all rows.
    test_row_range : tuple of float or None
        Part of the rows that judges the gate. None if no rows judge it.
    gate : str
        File of the gate.
    """

    inspection: Inspection
    promise: OfferedPromise
    target: float
    fit_row_range: tuple[float, float] | None
    test_row_range: tuple[float, float] | None
    gate: str

    def fit_arguments(self) -> list[str]:
        """Return the arguments of the command that fits the gate."""
        arguments = self.fit_arguments_without_promise()
        arguments += self.promise.format_fit_arguments(self.target)
        two_classes = self.inspection.negative_and_positive
        is_about_one_class = self.promise in PROMISES_ABOUT_ONE_CLASS
        if two_classes is not None and is_about_one_class and "--positive" not in arguments:
            _negative_class, positive_class = two_classes
            arguments += ["--positive", positive_class]
        return [*arguments, "-o", self.gate]

    def fit_arguments_without_promise(self) -> list[str]:
        """Return the fit command of the plan without the options of the promise."""
        arguments = ["fit", self.inspection.path]
        for option_name, value in self.promise.reader_options_for(self.inspection).items():
            arguments += format_option_arguments(option_name, value)
        return [*arguments, *row_range_arguments(self.fit_row_range)]

    @property
    def sampling_unit_name(self) -> str:
        """Name of the units that are drawn and counted: rows or cases."""
        return "cases" if self.promise.is_about_cases else "rows"

    def target_for(self, promise: OfferedPromise) -> float:
        """Return the target of another promise, for an equal cost of mistakes."""
        if promise.is_about_cases == self.promise.is_about_cases:
            return self.target
        return 1.0 - self.target

    def reading_arguments(self) -> list[str]:
        """Return the options for this file that a gate does not remember."""
        options = self.inspection.options
        return [*self.format_arguments(), *format_option_arguments("labels", options.get("labels"))]

    def format_arguments(self) -> list[str]:
        """Return the option for the format of this file and of new ones, if it was given."""
        return format_option_arguments("format", self.inspection.options.get("format"))

    def verify_arguments(self) -> list[str]:
        """Return the arguments of the command that judges the gate on a file called NEW."""
        arguments = ["verify", self.gate, "NEW", *self.format_arguments()]
        if "labels" in self.inspection.options:
            arguments += ["--labels", "NEWLABELS"]
        return arguments


def row_range_arguments(row_range: tuple[float, float] | None) -> list[str]:
    """Return the arguments that select a random part of the rows, none for all rows."""
    return [] if row_range is None else format_option_arguments("rows", row_range)


def plan_fit_and_test_rows(
    inspection: Inspection, promise: OfferedPromise, target: float, gate_path: str
) -> Plan:
    """Divide the rows of a file into those that fit the gate and those that test it."""
    n_rows, n_clusters = _count_rows_and_clusters(inspection, promise)
    if n_clusters < MIN_ROWS_TO_HOLD_OUT:
        return Plan(
            inspection, promise, target, fit_row_range=None, test_row_range=None, gate=gate_path
        )
    plan = Plan(
        inspection,
        promise,
        target,
        fit_row_range=FIT_ROW_RANGE,
        test_row_range=HELD_OUT_ROW_RANGE,
        gate=gate_path,
    )
    n_drawn = n_clusters if promise.is_about_cases else n_rows
    _, fit_fraction = FIT_ROW_RANGE
    n_fit = round(fit_fraction * n_drawn)
    print_note(
        f"\n{n_drawn:,} {plan.sampling_unit_name}: about {n_fit:,}, drawn at random, fit the gate. The"
        f" other {n_drawn - n_fit:,} judge it."
    )
    return plan


def _count_rows_and_clusters(inspection: Inspection, promise: OfferedPromise) -> tuple[int, int]:
    """Return the number of rows in a file, and of clusters or cases."""
    import numpy as np

    from metacal.cli.reading import convert_to_reader_arguments, read_score_table
    from metacal.io.columns import Columns
    from metacal.io.predictions import read_predictions

    # The other options, such as --positive, are options of the estimator.
    names_of_read_options = {field.name for field in fields(ReadOptions)}
    values_of_read_options = {
        name: value
        for name, value in promise.reader_options_for(inspection).items()
        if name in names_of_read_options
    }
    reading = ReadOptions(**values_of_read_options)
    columns: Columns
    if reading.score_key is not None:
        columns = read_score_table(inspection.path, reading)
    else:
        columns = read_predictions(
            inspection.path, input=reading.input or "logits", **convert_to_reader_arguments(reading)
        )
    n_rows = len(columns)
    clusters = columns.cases if promise.is_about_cases else columns.units
    n_clusters = n_rows if clusters is None else len(np.unique(clusters))
    return n_rows, n_clusters


def fit_plan(plan: Plan) -> tuple[Plan, CommandRun]:
    """Fit the gate of a plan, or of its best supported target.

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
        run = run_metacal_command(plan.fit_arguments())
    except UnsupportedPromiseError as error:
        raise UnsupportedPromiseError(
            f"{error} Nothing was written. Pass a higher --mistake-cost, or another --promise."
        ) from None
    if run.error is None:
        return plan, run
    fallback_plan = _plan_best_certifiable_target(plan)
    if fallback_plan is None:
        raise _build_infeasible_target_error(plan, run.error)
    target = fallback_plan.target
    try:
        fallback_run = run_metacal_command(fallback_plan.fit_arguments())
    except UnsupportedPromiseError:
        # The chosen target is so low that the promise holds without a gate.
        raise _build_infeasible_target_error(plan, run.error) from None
    if fallback_run.error is not None:
        raise _build_infeasible_target_error(
            plan,
            run.error,
            also_tried=f" The rows that were held out do not support {100.0 * target:.4g}% either.",
        )
    print_note(
        wrap_lines(
            f"\nThe target is not supported. {_capitalize_error_message(run.error)}\nA target of"
            f" {100.0 * target:.4g}% was chosen from these rows instead. The rows that were held out"
            " did not influence the choice, and they certify it:"
        )
    )
    return fallback_plan, fallback_run


class TrialGate(NamedTuple):
    """Gate that was fitted but not saved.

    Attributes
    ----------
    plan : Plan
        Plan with the target and the rows that the gate was fitted with.
    gate : Gate
        Fitted gate.
    """

    plan: Plan
    gate: Gate


def fit_trial_gate(plan: Plan) -> TrialGate | None:
    """Fit the gate of a plan, or of its best supported target, without saving the gate.

    Parameters
    ----------
    plan : Plan
        Plan that `start` does not carry out, but offers.

    Returns
    -------
    TrialGate or None
        None if no target could be certified.

    Raises
    ------
    UnsupportedPromiseError
        If every gate keeps the promise.
    """
    gate = _fit_unsaved_gate(plan)
    if gate is not None:
        return TrialGate(plan=plan, gate=gate)
    fallback_plan = _plan_best_certifiable_target(plan)
    if fallback_plan is None:
        return None
    try:
        fallback_gate = _fit_unsaved_gate(fallback_plan)
    except UnsupportedPromiseError:
        return None
    if fallback_gate is None:
        return None
    return TrialGate(plan=fallback_plan, gate=fallback_gate)


def _fit_unsaved_gate(plan: Plan) -> Gate | None:
    """Fit the gate of a plan without saving it, or return None if it is infeasible."""
    import metacal

    with tempfile.TemporaryDirectory(prefix="metacal-") as folder:
        trial_plan = replace(plan, gate=str(Path(folder, "trial.json")))
        trial_run = run_metacal_command(trial_plan.fit_arguments())
        is_supported = trial_run.error is None
        return metacal.load_gate(trial_plan.gate) if is_supported else None


def _plan_best_certifiable_target(plan: Plan) -> Plan | None:
    """Plan a gate on the held-out rows, with the best target that they probably support.

    The target is chosen from the best targets of several pilot fits, each on as many rows as were
    held out. None if no rows were held out, or if there is no such target.
    """
    if plan.test_row_range is None:
        return None
    best_targets_of_pilots: list[float] = []
    with tempfile.TemporaryDirectory(prefix="metacal-") as folder:
        pilot_gate_path = str(Path(folder, "pilot.json"))
        for row_range in PILOT_FIT_ROW_RANGES:
            pilot_plan = replace(plan, fit_row_range=row_range, gate=pilot_gate_path)
            best_target = _find_best_supported_target(pilot_plan)
            if best_target is None:
                return None
            best_targets_of_pilots.append(best_target)
    if plan.promise.is_about_cases:
        # The target of such a promise is an upper limit, so a higher one is easier to certify.
        target = choose_limit_above(best_targets_of_pilots)
    else:
        target = choose_target_below(best_targets_of_pilots)
    if target is None:
        return None
    return replace(plan, target=target, fit_row_range=plan.test_row_range, test_row_range=None)


def _find_best_supported_target(plan: Plan) -> float | None:
    """Return the target of a plan, or the best target if the rows do not support it."""
    try:
        error = run_metacal_command(plan.fit_arguments()).error
    except UnsupportedPromiseError:
        # Every gate keeps the promise on these rows.
        return plan.target
    return plan.target if error is None else error.best


def choose_target_below(best_targets: Sequence[float]) -> float | None:
    """Choose a target, below the best targets of samples, for rows that are not in them.

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
    >>> choose_target_below([0.92, 0.94, 0.93])
    0.91
    """
    lowest = min(best_targets)
    half_range = 0.5 * (max(best_targets) - lowest)
    target = round_down_to_3_decimals(lowest - half_range + _ROUNDING_TOLERANCE)
    return target if 0.0 < target < 1.0 else None


def choose_limit_above(best_limits: Sequence[float]) -> float | None:
    """Choose a limit, above the best limits of samples, for rows that are not in them.

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
    >>> choose_limit_above([0.08, 0.06, 0.07])
    0.1
    """
    highest = max(best_limits)
    raised_limit = 2.0 * highest - min(best_limits)
    limit = round_up_to_3_decimals(raised_limit - _ROUNDING_TOLERANCE)
    return limit if 0.0 < limit < 1.0 else None


def _capitalize_error_message(error: InfeasibleTargetError) -> str:
    """Return the message of an error with a capital first letter."""
    message = str(error)
    return message[:1].upper() + message[1:]


def _build_infeasible_target_error(
    plan: Plan, error: InfeasibleTargetError, also_tried: str = ""
) -> InfeasibleTargetError:
    """Build the error about a target that the rows do not support, with advice."""
    advice_text = (
        " Nothing was written. Collect more labelled rows, or pass a lower --mistake-cost."
    )
    if plan.test_row_range is None:
        independent_units = "cases" if plan.promise.is_about_cases else "independent rows"
        advice_text = (
            f" Nothing was written. With at least {MIN_ROWS_TO_HOLD_OUT} {independent_units}, start also"
            " chooses the best target, and certifies this target on rows that did not influence"
            " it."
        )
    return InfeasibleTargetError(
        f"{_capitalize_error_message(error)}{also_tried}{advice_text}",
        target=error.target,
        best=error.best,
        rows_needed=error.rows_needed,
    )
