"""`metacal start`: detect the columns of a file, fit a first gate, and judge it on other rows."""

from __future__ import annotations

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
)
from metacal.cli.outputs import output_option
from metacal.cli.printing import EXIT_REFUTED, echo, print_note, wrap_lines
from metacal.cli.start_page import python_code, write_next_steps
from metacal.cli.start_plan import (
    FIT_PART,
    HELD_OUT_PART,
    MIN_ROWS_TO_JUDGE,
    Plan,
    fit_plan,
    part_words,
    plan_rows,
    try_plan,
)
from metacal.cli.start_promises import ACCURACY, PROMISES, TWO_CLASS_PROMISES
from metacal.cli.start_questions import (
    DEFAULT_MISTAKE_COST,
    DEFAULT_REVIEW_FRACTION,
    ask_mistake_cost,
    ask_promise,
    ask_review_fraction,
    check_can_ask,
    parse_mistake_cost,
)
from metacal.cli.start_runs import CommandRun, run_command, shell_line
from metacal.display import align_columns

if TYPE_CHECKING:
    from metacal.io.inspection import Inspection


@dataclass(frozen=True)
class _Paths:
    """Files that the command writes."""

    gate: str
    report: str
    next_steps: str


@dataclass(frozen=True)
class Options:
    """Options of `metacal start`."""

    yes: bool = switch_option("Ask nothing: take the defaults.", "-y --yes")
    mistake_cost: float | None = option(
        "How many reviews one mistake costs.  [default: 20]", "N", type=parse_mistake_cost
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
    reading: ReadOptions = option_group(
        ReadOptions, excluded_fields=("large", "agree_key", "loss_key", "rows")
    )


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
    answers = _collect_answers(options, inspection)
    paths = _output_paths(file, options.output)
    plan = plan_rows(inspection, PROMISES[answers.promise], answers.target, paths.gate)
    plan, fit_run = fit_plan(plan)
    fit_run.show()
    judging_runs = _judge(plan, paths.report)
    _print_review_note(plan, answers.review_fraction)
    _print_other_promises(plan)
    page = write_next_steps(
        inspection,
        [run.arguments for run in (fit_run, *judging_runs)],
        _later_commands(plan),
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


@dataclass(frozen=True)
class _Answers:
    """Answers to the questions, from options, from the user or by default.

    Attributes
    ----------
    target : float
        Target of the promise.
    promise : str
        Name of the promise.
    review_fraction : float
        Fraction of the rows that can be reviewed.
    """

    target: float
    promise: str
    review_fraction: float


def _collect_answers(options: Options, inspection: Inspection) -> _Answers:
    """Return the answers to the questions. Ask those that no option answers."""
    mistake_cost, promise, review_fraction = options.mistake_cost, options.promise, options.review
    if options.yes:
        mistake_cost = mistake_cost or DEFAULT_MISTAKE_COST
        review_fraction = review_fraction or DEFAULT_REVIEW_FRACTION
    if options.yes or inspection.two_classes is None:
        promise = promise or ACCURACY.name
    check_can_ask([mistake_cost, promise, review_fraction])
    if mistake_cost is None:
        mistake_cost = ask_mistake_cost()
    target = 1.0 - 1.0 / mistake_cost
    if promise is None:
        promise = ask_promise(target, inspection.two_classes).name
    if review_fraction is None:
        review_fraction = ask_review_fraction()
    return _Answers(target=target, promise=promise, review_fraction=review_fraction)


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


def _judge(plan: Plan, report_path: str) -> list[CommandRun]:
    """Judge the gate on the rows that were held out, and write the report."""
    file = plan.inspection.path
    judged_words = [plan.gate, file, *plan.reading_words()]
    runs = []
    if plan.judging_part is not None:
        runs.append(run_command(["verify", *judged_words, *part_words(plan.judging_part)]))
    report_words = part_words(plan.judging_part or plan.fit_part)
    runs.append(run_command(["report", *judged_words, *report_words, "-o", report_path]))
    for run in runs:
        run.show()
    if plan.judging_part is None:
        n_rows = round((HELD_OUT_PART[1] - HELD_OUT_PART[0]) * MIN_ROWS_TO_JUDGE)
        print_note(
            "\nNot judged: every row that could judge the gate was used to fit it. Label at least"
            f" {n_rows} new rows, and run:\n$ {shell_line(plan.verify_arguments())}"
        )
    return runs


def _later_commands(plan: Plan) -> list[list[str]]:
    """Return the commands for new files."""
    format_words = plan.format_words()
    return [
        ["apply", plan.gate, "NEW", *format_words, "-o", "out.csv"],
        plan.verify_arguments(),
        ["monitor", plan.gate, "NEW", *format_words],
    ]


def _print_review_note(plan: Plan, review_fraction: float) -> None:
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
    text = (
        f"\nAbout {1.0 - coverage:.0%} of the rows go to review, more than the"
        f" {review_fraction:.0%} that can be reviewed. To promise that share instead, and see in the"
        " report how accurate the accepted rows are:"
    )
    print_note(f"{wrap_lines(text)}\n$ {shell_line([*beginning, '-o', plan.gate])}")


def _print_other_promises(plan: Plan) -> None:
    """Print the other promises about two classes that the same rows support."""
    two_classes = plan.inspection.two_classes
    if two_classes is None or plan.fit_part != FIT_PART:
        return
    print_note("\nOther promises about these two classes, each instead of the one above:")
    for promise in (ACCURACY, *TWO_CLASS_PROMISES):
        if promise is plan.promise:
            continue
        other = replace(plan, promise=promise)
        sentence = f"  {promise.title}: {promise.describe(plan.target, two_classes)}"
        gate = try_plan(other)
        if gate is None or gate.certificate is None:
            print_note(f"{sentence}. These rows do not support it.")
            continue
        coverage = gate.certificate.coverage
        accepted = "" if coverage is None else f" ({coverage:.0%} of the rows are accepted)"
        print_note(f"{sentence}{accepted}\n$ {shell_line(other.fit_arguments())}")
