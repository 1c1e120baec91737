"""`metacal start`: detect the columns of a file, fit a first gate, and judge it on other rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from metacal.cli.options import as_command, fraction_option, option, option_group, switch_option
from metacal.cli.outputs import output_option
from metacal.cli.printing import EXIT_REFUTED, echo, print_note, wrap_lines
from metacal.cli.read_options import ReadOptions
from metacal.cli.start_page import format_next_steps_page, format_python_code
from metacal.cli.start_plan import (
    FIT_ROW_RANGE,
    HELD_OUT_ROW_RANGE,
    MIN_ROWS_TO_HOLD_OUT,
    Plan,
    fit_plan,
    fit_trial_gate,
    plan_fit_and_test_rows,
    row_range_arguments,
)
from metacal.cli.start_promises import PROMISES, OfferedPromise, list_offered_promises
from metacal.cli.start_questions import (
    DEFAULT_REVIEW_FRACTION,
    ask_case_mistake_cost,
    ask_mistake_cost,
    ask_promise,
    ask_review_fraction,
    check_can_ask,
    default_mistake_cost,
    parse_mistake_cost,
)
from metacal.cli.start_runs import CommandRun, run_metacal_command, shell_line
from metacal.display import align_columns
from metacal.errors import UnsupportedPromiseError

if TYPE_CHECKING:
    from metacal.io.inspection import Inspection


@dataclass(frozen=True)
class _OutputPaths:
    """Files that the command writes."""

    gate: str
    report: str
    next_steps: str


@dataclass(frozen=True)
class Options:
    """Options of `metacal start`."""

    yes: bool = switch_option("Ask nothing: take the defaults.", "-y --yes")
    mistake_cost: float | None = option(
        "How many reviews one mistake costs.  [default: 20; 10 for a promise about cases]",
        "N",
        type=parse_mistake_cost,
    )
    review: float | None = fraction_option(
        "The share of the rows that can be reviewed.  [default: 0.2]", "S"
    )
    promise: str | None = option(
        "Promise to certify. precision, npv and recall need two classes; automated-cases and all-cases"
        " need scores of the items of cases.  [default: automated-cases if there are cases, or else"
        " accuracy]",
        type=click.Choice(list(PROMISES)),
    )
    positive: str | None = option(
        "With one score for two classes: the class that a higher score favours.", "LABEL"
    )
    unit_key: str | None = option(
        "Column that says which rows depend on each other, such as the rows of one document.",
        "NAME",
    )
    output: str = output_option("Folder for the output files.", "DIR", default=".")
    reading: ReadOptions = option_group(
        ReadOptions, excluded_fields=("large", "agree_key", "loss_key", "rows")
    )


@as_command(Options, "FILE", has_help_sections=True, has_json_option=False)
def command(file: str, options: Options) -> None:
    """Start with a file of your own: detect its columns, fit a gate, and test it on other rows.

    FILE contains the predictions of a classifier for labelled rows: one column of logits or
    probabilities per class, one score for two classes, predictions with their confidence, or
    responses of a language model. FILE may be a folder or a pattern. start prints the meaning of
    each column, with the reason. If a column may have two meanings, start names the option that
    decides, and writes nothing.

    start asks two or three questions. How many reviews does one mistake cost? For the answer N, at
    least 1 - 1/N of the accepted predictions must be correct, so that mistakes cost no more than a
    review of every row. For two classes, the promise may be about one class: precision, negative
    predictive value or recall. Which fraction of the rows can be reviewed? If the gate would need
    more reviews, start shows an alternative.

    If each case has several scores, such as the fields of a document, the promise may be about
    cases: at most 1/N of the cases with an accepted item contain an incorrect one. If a column
    names the case, start offers this promise first. Otherwise name the column with --case-key.

    start fits the gate on 70% of the rows, and tests it on the other 30%. With fewer than 300 rows,
    it fits the gate on all of them. If the rows do not support the target, start chooses the best
    target from the rows of the fit, and certifies it on the other rows.

    \b
    Examples:
      metacal start val.csv
      metacal start judge.jsonl --yes
      metacal start val.parquet --mistake-cost 50 --review 0.1 -o gates
      metacal start scores.csv --label-key truth --positive fraud --promise precision
      metacal start fields.csv --case-key document --group-key field --mistake-cost 20
    """  # noqa: D301
    if file == "-":
        raise click.UsageError(
            "start reads FILE several times, so it does not support standard input. Save the"
            " rows to a file first."
        )
    inspection = _inspect_file(file, options)
    answers = _collect_answers(options, inspection)
    output_paths = _create_output_paths(file, options.output)
    plan = plan_fit_and_test_rows(inspection, answers.promise, answers.target, output_paths.gate)
    plan, fit_run = fit_plan(plan)
    fit_run.show()
    test_runs = _run_test_and_report(plan, output_paths.report)
    if answers.review_fraction is not None:
        _print_review_note(plan, answers.review_fraction)
    _print_other_promises(plan)
    next_steps_page = format_next_steps_page(
        inspection,
        [run.arguments for run in (fit_run, *test_runs)],
        _list_commands_for_new_files(plan),
        format_python_code(
            inspection,
            plan.promise,
            plan.target,
            fit_row_range=plan.fit_row_range,
            gate_path=plan.gate,
        ),
    )
    Path(output_paths.next_steps).write_text(next_steps_page, encoding="utf-8")
    echo(
        f"\nGate: {output_paths.gate}. Report: {output_paths.report}. Next steps: {output_paths.next_steps}."
    )
    if any(run.exit_code == EXIT_REFUTED for run in test_runs):
        click.get_current_context().exit(EXIT_REFUTED)


def _inspect_file(file: str, options: Options) -> Inspection:
    """Detect the columns of a file and print them, or raise a usage error."""
    from metacal.io.file_inspection import inspect_file

    column_options = {
        **vars(options.reading),
        "unit_key": options.unit_key,
        "positive": options.positive,
    }
    given_options = {
        name: value for name, value in column_options.items() if value not in (None, ())
    }
    inspection = inspect_file(file, **given_options)
    print_note(f"{file}: {inspection.description}.")
    if inspection.findings:
        cells = [(f"  {finding}", f"because {reason}") for finding, reason in inspection.findings]
        print_note("\n".join(align_columns(cells)))
    # A question asks for an option, because a column may have two meanings.
    if inspection.question is not None:
        raise click.UsageError(f"{file}: {inspection.question} Nothing was written.")
    if options.promise is not None:
        _check_promise_is_offered(PROMISES[options.promise], inspection)
    return inspection


def _check_promise_is_offered(promise: OfferedPromise, inspection: Inspection) -> None:
    """Raise a usage error if the columns of the file do not allow a promise."""
    if promise in list_offered_promises(inspection):
        return
    if promise.is_about_cases:
        raise click.UsageError(
            f"--promise {promise.name} requires the case of each item, but no column of"
            f" {inspection.path} was recognised as the case. Name the column with --case-key"
            " NAME."
        )
    raise click.UsageError(
        f"--promise {promise.name} requires two classes, but {inspection.path} does not have two."
        " Pass --promise accuracy."
    )


@dataclass(frozen=True)
class _Answers:
    """Answers to the questions, from options, from the user or by default.

    Attributes
    ----------
    target : float
        Target of the promise.
    promise : OfferedPromise
        The promise.
    review_fraction : float or None
        Fraction of the rows that can be reviewed. None for a promise about cases.
    """

    target: float
    promise: OfferedPromise
    review_fraction: float | None


def _collect_answers(options: Options, inspection: Inspection) -> _Answers:
    """Return the answers to all questions, from options, defaults or the user."""
    mistake_cost = options.mistake_cost
    review_fraction = options.review
    accepts_defaults = options.yes
    promise = PROMISES[options.promise] if options.promise is not None else None
    default_promise, *other_promises = list_offered_promises(inspection)
    if promise is None and (accepts_defaults or not other_promises):
        promise = default_promise
    if accepts_defaults:
        assert promise is not None
        mistake_cost = mistake_cost or default_mistake_cost(promise)
        review_fraction = review_fraction or DEFAULT_REVIEW_FRACTION
    check_can_ask([mistake_cost, promise, review_fraction])
    # For two classes, the cost means the same in every promise. It is asked first, because the
    # question about the promise shows the targets that follow from it.
    if mistake_cost is None and inspection.negative_and_positive is not None:
        mistake_cost = ask_mistake_cost()
    if promise is None:
        promise = ask_promise(mistake_cost, inspection)
    if mistake_cost is None:
        mistake_cost = ask_case_mistake_cost() if promise.is_about_cases else ask_mistake_cost()
    if promise.is_about_cases:
        review_fraction = None
    elif review_fraction is None:
        review_fraction = ask_review_fraction()
    return _Answers(
        target=promise.find_target(mistake_cost), promise=promise, review_fraction=review_fraction
    )


def _create_output_paths(file: str, output: str) -> _OutputPaths:
    """Create the output folder, and return the files to write in it."""
    output_folder = Path(output)
    output_folder.mkdir(parents=True, exist_ok=True)
    source_path = Path(file)
    source_name = source_path.name
    is_pattern = "*" in source_name
    if is_pattern:
        source_name = source_path.parent.name
    name_stem = source_name.partition(".")[0] or "gate"
    return _OutputPaths(
        gate=str(output_folder / f"{name_stem}.gate.json"),
        report=str(output_folder / f"{name_stem}.report.html"),
        next_steps=str(output_folder / f"{name_stem}.next.md"),
    )


def _run_test_and_report(plan: Plan, report_path: str) -> list[CommandRun]:
    """Test the gate on the rows that were held out, and write the report."""
    gate_and_file_arguments = [plan.gate, plan.inspection.path, *plan.reading_arguments()]
    runs = []
    if plan.test_row_range is not None:
        test_rows = row_range_arguments(plan.test_row_range)
        runs.append(run_metacal_command(["verify", *gate_and_file_arguments, *test_rows]))
    report_rows = row_range_arguments(plan.test_row_range or plan.fit_row_range)
    runs.append(
        run_metacal_command(["report", *gate_and_file_arguments, *report_rows, "-o", report_path])
    )
    for run in runs:
        run.show()
    if plan.test_row_range is None:
        start, stop = HELD_OUT_ROW_RANGE
        n_rows_to_label = round((stop - start) * MIN_ROWS_TO_HOLD_OUT)
        print_note(
            "\nNot judged: every row that could judge the gate was used to fit it. Label at least"
            f" {n_rows_to_label} new {plan.sampling_unit_name}, and run:\n$ {shell_line(plan.verify_arguments())}"
        )
    return runs


def _list_commands_for_new_files(plan: Plan) -> list[list[str]]:
    """List the commands that apply, verify and monitor the gate on new files."""
    from metacal.io.formats.item_lists import find_item_list_key

    format_arguments = plan.format_arguments()
    commands = [
        ["apply", plan.gate, "NEW", *format_arguments, "-o", "out.csv"],
        plan.verify_arguments(),
    ]
    reads_lists = find_item_list_key(plan.inspection.options.get("score_key")) is not None
    if not reads_lists:
        commands.append(["monitor", plan.gate, "NEW", *format_arguments])
    return commands


def _print_review_note(plan: Plan, review_fraction: float) -> None:
    """Print a note if the gate sends more rows to review than can be reviewed."""
    import metacal

    certificate = metacal.load_gate(plan.gate).certificate
    assert certificate is not None
    coverage = certificate.coverage
    if coverage is None or 1.0 - coverage <= review_fraction:
        return
    review_promise = ["--max-review", f"{review_fraction:g}"]
    fit_arguments = [*plan.fit_arguments_without_promise(), *review_promise]
    if run_metacal_command(fit_arguments).error is not None:
        return
    note_text = (
        f"\nAbout {1.0 - coverage:.0%} of the rows go to review, more than the"
        f" {review_fraction:.0%} that can be reviewed. To promise that share instead, and see in the"
        " report how accurate the accepted rows are:"
    )
    print_note(f"{wrap_lines(note_text)}\n$ {shell_line([*fit_arguments, '-o', plan.gate])}")


def _print_other_promises(plan: Plan) -> None:
    """Print further promises that the rows support, with the best target of each."""
    offered_promises = list_offered_promises(plan.inspection)
    # Otherwise no rows were held out, or a lower target was certified on them.
    are_rows_held_out = plan.fit_row_range == FIT_ROW_RANGE
    if len(offered_promises) == 1 or not are_rows_held_out:
        return
    promise_subject = "two classes" if plan.inspection.negative_and_positive is not None else "rows"
    print_note(f"\nOther promises about these {promise_subject}, each instead of the one above:")
    for promise in offered_promises:
        if promise is plan.promise:
            continue
        target = plan.target_for(promise)
        other_plan = replace(plan, promise=promise, target=target)
        promise_text = f"  {promise.title}: {promise.describe(target, plan.inspection)}"
        try:
            trial = fit_trial_gate(other_plan)
        except UnsupportedPromiseError:
            print_note(f"{promise_text}. That holds without a gate.")
            continue
        if trial is None:
            print_note(f"{promise_text}. These rows do not support it.")
            continue
        if trial.plan.target != target:
            promise_text += (
                ".\n  These rows do not support it. The rows that were held out certify"
                f" {100.0 * trial.plan.target:.4g}%"
            )
        assert trial.gate.certificate is not None
        coverage = trial.gate.certificate.coverage
        coverage_note = "" if coverage is None else f" ({coverage:.0%} of the rows are accepted)"
        print_note(f"{promise_text}{coverage_note}\n$ {shell_line(trial.plan.fit_arguments())}")
