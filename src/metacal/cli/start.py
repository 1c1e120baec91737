"""`metacal start`: detect the columns of a file, fit a first gate, and judge it on other rows.

Some rows are *held out*: they do not take part in the fit, so they can judge the gate. If the rows
of the fit do not support the target, a lower target is chosen from them and certified on the rows
that were held out, which did not influence the choice.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from metacal.cli.options import (
    ReadOptions,
    as_command,
    fraction_option,
    option,
    option_group,
    switch_option,
    to_arguments,
)
from metacal.cli.outputs import output_option
from metacal.cli.printing import EXIT_REFUTED, echo, print_note
from metacal.cli.start_page import python_code, write_next_steps
from metacal.cli.start_promises import (
    ACCURACY,
    PROMISES,
    TWO_CLASS_PROMISES,
    OfferedPromise,
    round_down,
)
from metacal.cli.start_runs import CommandRun, run_command, shell_line
from metacal.cli.values import number_between, parse_fraction
from metacal.display import align_columns, is_terminal
from metacal.errors import InfeasibleTargetError

if TYPE_CHECKING:
    from metacal.io.inspection import Inspection


#: Parser of the cost of a mistake, relative to the cost of a review.
_parse_mistake_cost = number_between(
    1.0,
    1e6,
    "one above 1, such as 20",
    "is not above 1; a mistake that costs no more needs no review",
)
#: Defaults of the questions.
_DEFAULT_MISTAKE_COST = 20.0
_DEFAULT_REVIEW_FRACTION = 0.2
#: Fraction of the rows that is used to fit. The others are held out.
_FIT_FRACTION = 0.7
#: Smallest number of rows, or clusters of dependent rows, of which some are held out.
_MIN_ROWS_TO_JUDGE = 300
#: Parts of the rows of the fit that are as large as the part that is held out.
_PILOT_PARTS = ((0.0, 0.3), (0.2, 0.5), (0.4, 0.7))


@dataclass(frozen=True)
class _Paths:
    """Files that the command writes."""

    gate: str
    report: str
    next_steps: str


@dataclass(frozen=True)
class _Plan:
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
        return [*self.trial_arguments(), "-o", self.gate]

    def trial_arguments(self) -> list[str]:
        """Return the command that fits the gate without saving it."""
        words = [*self.arguments_without_promise(), *self.promise.fit_words(self.target)]
        two_classes = self.inspection.two_classes
        is_about_one_class = self.promise is not ACCURACY and two_classes is not None
        if two_classes is not None and is_about_one_class and "--positive" not in words:
            words += ["--positive", two_classes[1]]
        return words

    def arguments_without_promise(self) -> list[str]:
        """Return the beginning of a command that fits a gate on the same rows."""
        words = ["fit", self.inspection.path]
        for name, value in self.inspection.options.items():
            words += to_arguments(name, value)
        return [*words, *_part_words(self.fit_part)]

    def reading_words(self) -> list[str]:
        """Return the options that a gate does not remember, for later commands."""
        words = []
        for name in ("format", "labels"):
            words += to_arguments(name, self.inspection.options.get(name))
        return words


@dataclass(frozen=True)
class Options:
    """Options of `metacal start`."""

    yes: bool = switch_option("Ask nothing: take the defaults.", "-y --yes")
    mistake_cost: float | None = option(
        "How many reviews one mistake costs.  [default: 20]", "N", type=_parse_mistake_cost
    )
    review: float | None = fraction_option(
        "The share of the rows that can be reviewed.  [default: 0.2]", "S"
    )
    promise: str | None = option(
        "What must hold. All but accuracy need two classes.  [default: accuracy]",
        type=click.Choice(list(PROMISES)),
    )
    positive: str | None = option(
        "With one score for two classes: the class that a higher score favours.", "LABEL"
    )
    unit_key: str | None = option(
        "Column that says which rows depend on each other, such as the rows of one document.",
        "NAME",
    )
    output: str = output_option("Folder for what is written.", "DIR", default=".")
    reading: ReadOptions = option_group(ReadOptions, excluded_fields=("large", "agree_key", "rows"))


@as_command(Options, "FILE", groups_options=True, has_json_option=False)
def command(file: str, options: Options) -> None:
    """Begin with a file of your own: detects its columns, fits a gate, judges it on other rows.

    FILE holds a classifier's predictions on rows whose truth is known: a column of logits or
    probabilities per class, one score for two classes, a prediction with its confidence, or
    responses of a language model. It may be a folder or a pattern. What each column seems to be is
    printed, with the reason. If that is ambiguous, start names the option that decides, and writes
    nothing. Options that you give are not questioned.

    Two or three questions follow. How many reviews does one mistake cost? For N, at least 1 - 1/N
    of the accepted predictions must be correct; mistakes then cost no more than reviewing every row
    would. For two classes, the promise may be about one class: precision, negative predictive value
    or recall. Which share of the rows can be reviewed? If more would have to be, start shows the
    alternative.

    70% of the rows fit the gate and 30% judge it. With fewer than 300 rows all are needed to fit,
    and the gate is not judged. If the target is not supported, the best one is chosen from the rows
    of the fit and certified on the others.

    \b
    Examples:
      metacal start val.csv
      metacal start judge.jsonl --yes
      metacal start val.parquet --mistake-cost 50 --review 0.1 -o gates
      metacal start scores.csv --label-key truth --positive fraud --promise precision
    """  # noqa: D301
    if file == "-":
        raise click.UsageError(
            "start reads FILE several times, so it cannot be standard input. Save the rows to a"
            " file first."
        )
    inspection = _inspect(file, options)
    _check_can_ask(options, inspection)
    mistake_cost = _ask_mistake_cost(options)
    target = 1.0 - 1.0 / mistake_cost
    promise = _ask_promise(options, inspection, target)
    review_fraction = _ask_review_fraction(options)
    paths = _output_paths(file, options.output)
    plan = _plan_rows(inspection, promise, target, paths.gate)

    plan, fit_run = _fit(plan)
    fit_run.show()
    report_part = plan.judging_part or plan.fit_part
    report_arguments = ["report", plan.gate, file, *plan.reading_words(), *_part_words(report_part)]
    judging_runs = _judge(plan, [*report_arguments, "-o", paths.report])
    _print_review_note(plan, review_fraction)
    _print_other_promises(plan)
    later_commands = [
        ["apply", plan.gate, "NEW", *to_arguments("format", options.reading.format)],
        ["verify", plan.gate, "NEW", *plan.reading_words()],
        ["monitor", plan.gate, "NEW", *to_arguments("format", options.reading.format)],
    ]
    later_commands[0] += ["-o", "out.csv"]
    page = write_next_steps(
        inspection,
        [run.arguments for run in (fit_run, *judging_runs)],
        later_commands,
        python_code(
            inspection, plan.promise, plan.target, fit_part=plan.fit_part, gate_path=plan.gate
        ),
    )
    Path(paths.next_steps).write_text(page, encoding="utf-8")
    echo(f"\nGate: {paths.gate}. Report: {paths.report}. Next steps: {paths.next_steps}.")
    if any(run.exit_code == EXIT_REFUTED for run in judging_runs):
        click.get_current_context().exit(EXIT_REFUTED)


def _inspect(file: str, options: Options) -> Inspection:
    """Detect what a file holds, and print it. Raise a usage error if it is ambiguous."""
    from metacal.io.file_inspection import inspect_file

    reading = replace(options.reading, unit_key=options.unit_key)
    hints = {**vars(reading), "positive": options.positive}
    given_hints = {name: value for name, value in hints.items() if value not in (None, ())}
    inspection = inspect_file(file, **given_hints)
    print_note(f"{file}: {inspection.description}.")
    if inspection.findings:
        cells = [(f"  {finding}", f"because {reason}") for finding, reason in inspection.findings]
        print_note("\n".join(align_columns(cells)))
    if inspection.question is not None:
        raise click.UsageError(f"{file}: {inspection.question} Nothing was written.")
    if options.promise not in (None, "accuracy") and inspection.two_classes is None:
        raise click.UsageError(
            f"--promise {options.promise} needs two classes, and {file} does not have them. Take"
            " --promise accuracy."
        )
    return inspection


# ── questions ─────────────────────────────────────────────────────────────────────────────────────


def _check_can_ask(options: Options, inspection: Inspection) -> None:
    """Raise a usage error if there are questions to ask, and no terminal to ask them on."""
    answers: list[object] = [options.mistake_cost, options.review]
    if inspection.two_classes is not None:
        answers.append(options.promise)
    if options.yes or None not in answers or is_terminal(sys.stdin):
        return
    raise click.UsageError(
        "start asks questions, and standard input is not a terminal. Add --yes to take the"
        " defaults: a mistake costs 20 reviews, and 20% of the rows can be reviewed."
    )


def _ask_mistake_cost(options: Options) -> float:
    """Return the cost of a mistake, from an option, a question or the default."""
    if options.mistake_cost is not None:
        return options.mistake_cost
    if options.yes:
        return _DEFAULT_MISTAKE_COST
    answer: float = click.prompt(
        "\nHow many reviews does one mistake cost?",
        _DEFAULT_MISTAKE_COST,
        value_proc=_parse_mistake_cost,
        err=True,
    )
    return answer


def _ask_promise(options: Options, inspection: Inspection, target: float) -> OfferedPromise:
    """Return the promise, from an option, a question or the default."""
    if options.promise is not None:
        return PROMISES[options.promise]
    if inspection.two_classes is None or options.yes:
        return ACCURACY
    print_note("\nWhat must hold?")
    offered_promises = list(PROMISES.values())
    for number, promise in enumerate(offered_promises, start=1):
        sentence = promise.describe(target, inspection.two_classes)
        print_note(f"  {number}  {promise.title}: {sentence}")
    number = click.prompt("Number", 1, type=click.IntRange(1, len(offered_promises)), err=True)
    return offered_promises[number - 1]


def _ask_review_fraction(options: Options) -> float:
    """Return the review fraction, from an option, a question or the default."""
    if options.review is not None:
        return options.review
    if options.yes:
        return _DEFAULT_REVIEW_FRACTION
    answer: float = click.prompt(
        "\nWhich share of the rows can be reviewed?",
        _DEFAULT_REVIEW_FRACTION,
        value_proc=parse_fraction,
        err=True,
    )
    return answer


# ── rows ──────────────────────────────────────────────────────────────────────────────────────────


def _output_paths(file: str, output: str) -> _Paths:
    """Create the output folder, and return the files to write in it."""
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    source = Path(file)
    source_name = source.name
    if "*" in source_name:
        source_name = source.parent.name
    stem = source_name.partition(".")[0] or "gate"
    return _Paths(
        gate=str(folder / f"{stem}.gate.json"),
        report=str(folder / f"{stem}.report.html"),
        next_steps=str(folder / f"{stem}.next.md"),
    )


def _plan_rows(inspection: Inspection, promise: OfferedPromise, target: float, gate: str) -> _Plan:
    """Divide the rows into those that fit the gate and those that judge it."""
    n_rows, n_clusters = _count_rows(inspection)
    fit_part = judging_part = None
    if n_clusters >= _MIN_ROWS_TO_JUDGE:
        fit_part, judging_part = (0.0, _FIT_FRACTION), (_FIT_FRACTION, 1.0)
        n_judging = n_rows - round(_FIT_FRACTION * n_rows)
        print_note(
            f"\n{n_rows:,} rows: about {n_rows - n_judging:,}, drawn at random, fit the gate. The"
            f" other {n_judging:,} judge it."
        )
    return _Plan(inspection, promise, target, fit_part, judging_part, gate)


def _count_rows(inspection: Inspection) -> tuple[int, int]:
    """Return the number of rows of the whole file, and of clusters of dependent rows."""
    import numpy as np

    from metacal.cli.reading import read_keywords, read_score_table
    from metacal.io.predictions import read_predictions

    known_names = ReadOptions.__dataclass_fields__.keys()
    reading = ReadOptions(
        **{name: value for name, value in inspection.options.items() if name in known_names}
    )
    columns: object
    if reading.score_key is not None:
        columns = read_score_table(inspection.path, reading)
    else:
        columns = read_predictions(
            inspection.path, input=reading.input or "logits", **read_keywords(reading)
        )
    n_rows = len(columns)
    n_clusters = n_rows if columns.units is None else len(np.unique(columns.units))
    return n_rows, n_clusters


def _part_words(part: tuple[float, float] | None) -> list[str]:
    """Return the option that selects a part of the rows."""
    return [] if part is None else ["--rows", f"{part[0]:g}:{part[1]:g}"]


# ── runs ──────────────────────────────────────────────────────────────────────────────────────────


def _fit(plan: _Plan) -> tuple[_Plan, CommandRun]:
    """Fit the gate, if need be with the best target that other rows certify.

    Returns
    -------
    plan : _Plan
        With the target and the rows of the gate that was fitted.
    run : CommandRun

    Raises
    ------
    InfeasibleTargetError
        If no target could be certified.
    """
    run = run_command(plan.fit_arguments())
    if run.error is None:
        return plan, run
    print_note(f"\nThe target is not supported: {run.error}")
    best = _choose_lower_target(plan)
    if best is None:
        raise _without_gate(plan, run.error)
    fallback = replace(plan, target=best, fit_part=plan.judging_part, judging_part=None)
    fallback_run = run_command(fallback.fit_arguments())
    if fallback_run.error is not None:
        raise _without_gate(plan, fallback_run.error)
    print_note(
        f"\n{best:.4g} is the best target for as many rows as were held out, judged by the others."
        " The rows that were held out had no part in this choice, and they certify it:"
    )
    return fallback, fallback_run


def _choose_lower_target(plan: _Plan) -> float | None:
    """Return the best target that parts of the fit rows support, each as large as the held-out part.

    None if no rows were held out, or if one of the parts supports no target.
    """
    if plan.judging_part is None:
        return None
    best_targets = []
    for part in _PILOT_PARTS:
        error = run_command(replace(plan, fit_part=part).trial_arguments()).error
        best = plan.target if error is None else error.best
        if best is None:
            return None
        best_targets.append(best)
    lowest = round_down(min(best_targets))
    return lowest if 0.0 < lowest < 1.0 else None


def _without_gate(plan: _Plan, error: InfeasibleTargetError) -> InfeasibleTargetError:
    """Return the error with what to do if no gate could be certified."""
    advice = "Nothing was written. Collect more labelled rows, or take a lower --mistake-cost."
    if plan.judging_part is None:
        advice = (
            f"Nothing was written. With {_MIN_ROWS_TO_JUDGE} labelled rows or more, start also"
            " looks for the best target, and certifies it on rows that did not choose it."
        )
    return InfeasibleTargetError(
        f"{error} {advice}",
        target=error.target,
        best=error.best,
        rows_needed=error.rows_needed,
    )


def _judge(plan: _Plan, report_arguments: list[str]) -> list[CommandRun]:
    """Judge the gate on the rows that were held out, and write the report."""
    runs = []
    if plan.judging_part is not None:
        part_words = _part_words(plan.judging_part)
        verify_arguments = [
            "verify",
            plan.gate,
            plan.inspection.path,
            *plan.reading_words(),
            *part_words,
        ]
        runs.append(run_command(verify_arguments))
    runs.append(run_command(report_arguments))
    for run in runs:
        run.show()
    if plan.judging_part is None:
        verify_line = shell_line(["verify", plan.gate, "NEW", *plan.reading_words()])
        print_note(
            "\nNot judged: every row that could judge the gate was used to fit it. Label at least"
            f" {round((1.0 - _FIT_FRACTION) * _MIN_ROWS_TO_JUDGE)} new rows, and run:"
            f"\n$ {verify_line}"
        )
    return runs


def _print_review_note(plan: _Plan, review_fraction: float) -> None:
    """Print a note if the gate sends more rows to review than can be reviewed."""
    import metacal

    certificate = metacal.load_gate(plan.gate).certificate
    assert certificate is not None
    coverage = certificate.coverage
    if coverage is None or 1.0 - coverage <= review_fraction:
        return
    beginning = [*plan.arguments_without_promise(), "--max-review", f"{review_fraction:g}"]
    if run_command(beginning).error is not None:
        return
    print_note(
        f"\nAbout {1.0 - coverage:.0%} of the rows go to review, more than the"
        f" {review_fraction:.0%} that can be reviewed. To promise that share instead, and see in the"
        f" report how accurate the accepted rows are:\n$ {shell_line([*beginning, '-o', plan.gate])}"
    )


def _print_other_promises(plan: _Plan) -> None:
    """Print the other promises about two classes that the same rows support."""
    two_classes = plan.inspection.two_classes
    if two_classes is None or plan.fit_part != (0.0, _FIT_FRACTION):
        return
    lines = []
    for promise in (ACCURACY, *TWO_CLASS_PROMISES):
        if promise is plan.promise:
            continue
        other = replace(plan, promise=promise)
        sentence = f"{promise.title}: {promise.describe(plan.target, two_classes)}"
        if run_command(other.trial_arguments()).error is not None:
            lines.append(f"\n{sentence}. These rows do not support it.")
        else:
            lines.append(f"\n{sentence}\n$ {shell_line(other.fit_arguments())}")
    print_note("\nOther promises about these two classes:" + "".join(lines))
