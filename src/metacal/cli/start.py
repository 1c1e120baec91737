"""`metacal start`: detect the columns of a file, and write a first gate.

The command asks two questions. Besides the gate, it writes a report and a page with the commands for the next time.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from metacal.cli.printing import echo, print_note
from metacal.cli.values import number_between, parse_fraction
from metacal.display import align_columns

if TYPE_CHECKING:
    from metacal.io.inspection import Inspection


#: Parser of the cost of a mistake, relative to the cost of a review.
_parse_mistake_cost = number_between(
    1.0,
    1e6,
    "one above 1, such as 20",
    "is not above 1; a mistake that costs no more needs no review",
)


#: Defaults of the two questions.
_DEFAULT_MISTAKE_COST = 20.0


_DEFAULT_REVIEW_FRACTION = 0.2


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
        "What a mistake costs, in reviews.  [default: 20]", "N", type=_parse_mistake_cost
    )
    review: float | None = fraction_option(
        "The share of rows that people can review.  [default: 0.2]", "S"
    )
    positive: str | None = option(
        "With one score for two classes: the class it speaks for.", "LABEL"
    )
    output: str = output_option("Folder for what is written.", "DIR", default=".")
    reading: ReadOptions = option_group(ReadOptions, excluded_fields=("large", "agree_key"))


@as_command(Options, "FILE", groups_options=True, has_json_option=False)
def command(file: str, options: Options) -> None:
    """Begin with a file of your own: looks at it, asks two questions, writes gate, report and
    commands.

    FILE holds what a classifier said of rows whose truth is known, in any form that people keep: a
    table of logits or probabilities, a column per class, one score. What it seems to be is said,
    with the reason; where that cannot be told you are asked for the option that says it, and
    nothing is written. Options that you give are not guessed at.

    Two questions follow. What does a mistake cost, if having a person look at a row costs 1? Of N,
    what is accepted must be right at least 1 - 1/N of the time: mistakes then cost no more than
    reviewing every row would. And which share of the rows can be reviewed? If more would have to
    be, both ways out are named.

    All rows of FILE are used to fit. They do not judge the gate: its report says "not judged". Keep
    other labelled rows for `metacal verify`.

    \b
    Examples:
      metacal start val.csv
      metacal start judge.jsonl --yes
      metacal start val.parquet --mistake-cost 50 --review 0.1 -o gates
      metacal start scores.csv --label-key truth --positive fraud
    """  # noqa: D301
    inspection = _look_at_file(file, options)
    mistake_cost = _ask_mistake_cost(options)
    review_fraction = _ask_review_fraction(options)
    paths = _output_paths(file, options.output)

    min_accuracy = f"{1.0 - 1.0 / mistake_cost:.4g}"
    fit_words = ["fit", file, *_option_words(inspection)]
    reading_words = _option_words(inspection, excluded_names=("positive",))
    fit_arguments = [*fit_words, "--min-accuracy", min_accuracy, "-o", paths.gate]
    report_arguments = ["report", paths.gate, file, *reading_words, "-o", paths.report]
    _run_command(fit_arguments)
    _run_command(report_arguments)
    print_note(
        "\nAll rows of the file were used to fit, so the report does not judge the promise. With"
        f" other labelled rows:\n$ {_shell_line(['verify', paths.gate, 'NEW', *reading_words])}"
    )
    budget_arguments = [*fit_words, "--max-review", f"{review_fraction:g}", "-o", paths.gate]
    _print_budget_note(paths.gate, review_fraction, budget_arguments)
    next_steps = _next_steps_page(
        inspection, [fit_arguments, report_arguments], paths.gate, min_accuracy
    )
    Path(paths.next_steps).write_text(next_steps, encoding="utf-8")
    echo(f"Gate {paths.gate}, report {paths.report}, and how to go on in {paths.next_steps}.")


def _look_at_file(file: str, options: Options) -> Inspection:
    """Detect what a file holds, and print it. Raise a usage error if it is ambiguous."""
    from metacal.io.file_inspection import inspect_file

    hints = {**vars(options.reading), "positive": options.positive}
    given_hints = {name: value for name, value in hints.items() if value not in (None, ())}
    inspection = inspect_file(file, **given_hints)
    print_note(f"{file}: {inspection.description}.")
    if inspection.findings:
        cells = [(f"  {finding}", f"because {reason}") for finding, reason in inspection.findings]
        print_note("\n".join(align_columns(cells)))
    if inspection.question is not None:
        raise click.UsageError(f"{file}: {inspection.question} Nothing was written.")
    return inspection


def _ask_mistake_cost(options: Options) -> float:
    """Return the cost of a mistake, from an option, a question or the default."""
    if options.mistake_cost is not None:
        return options.mistake_cost
    if options.yes:
        return _DEFAULT_MISTAKE_COST
    answer: float = click.prompt(
        "A mistake costs as much as reviewing how many rows?",
        _DEFAULT_MISTAKE_COST,
        value_proc=_parse_mistake_cost,
        err=True,
    )
    return answer


def _ask_review_fraction(options: Options) -> float:
    """Return the review fraction, from an option, a question or the default."""
    if options.review is not None:
        return options.review
    if options.yes:
        return _DEFAULT_REVIEW_FRACTION
    answer: float = click.prompt(
        "Which share of the rows can be reviewed?",
        _DEFAULT_REVIEW_FRACTION,
        value_proc=parse_fraction,
        err=True,
    )
    return answer


def _output_paths(file: str, output: str) -> _Paths:
    """Create the output folder, and return the files to write in it."""
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    source_name = Path("stdin" if file == "-" else file).name
    stem = source_name.partition(".")[0] or "gate"
    return _Paths(
        gate=str(folder / f"{stem}.gate.json"),
        report=str(folder / f"{stem}.report.html"),
        next_steps=str(folder / f"{stem}.next.md"),
    )


def _option_words(inspection: Inspection, excluded_names: tuple[str, ...] = ()) -> list[str]:
    """Return the detected options as command-line words."""
    words = []
    for name, value in inspection.options.items():
        if name not in excluded_names:
            words += to_arguments(name, value)
    return words


def _shell_line(arguments: list[str]) -> str:
    """Return a metacal command as a line for the shell."""
    return shlex.join(["metacal", *arguments])


def _run_command(arguments: list[str]) -> None:
    """Print a metacal command, and run it in this process."""
    import importlib

    name = arguments[0]
    print_note(f"\n$ {_shell_line(arguments)}")
    command = importlib.import_module(f"metacal.cli.{name}").command
    with command.make_context(
        name, list(arguments[1:]), parent=click.get_current_context()
    ) as context:
        command.invoke(context)


def _print_budget_note(gate: str, review_fraction: float, budget_arguments: list[str]) -> None:
    """Print a note if the gate rejects more rows than can be reviewed.

    Parameters
    ----------
    gate : str
        File of the gate.
    review_fraction : float
        Fraction of rows that can be reviewed.
    budget_arguments : list of str
        Command that promises this fraction instead.
    """
    import metacal

    certificate = metacal.load_gate(gate).certificate
    assert certificate is not None
    coverage = certificate.coverage
    if coverage is None or 1.0 - coverage <= review_fraction:
        return
    print_note(
        f"\nAbout {1.0 - coverage:.0%} of the rows go to review, more than the"
        f" {review_fraction:.0%} you can do. Keep the promise and review more, or promise that"
        " budget instead and see on the report what accuracy is left:"
        f"\n$ {_shell_line(budget_arguments)}"
    )


def _next_steps_page(
    inspection: Inspection, commands_run: list[list[str]], gate: str, min_accuracy: str
) -> str:
    """Return a Markdown page with the commands and the Python code for the next time.

    Parameters
    ----------
    inspection : Inspection
        Detected columns.
    commands_run : list of lists of str
        Commands that were run.
    gate : str
        File of the gate.
    min_accuracy : str
        Promised accuracy.

    Returns
    -------
    str
    """
    truth_options = ("label_key", "correct_key", "loss_key", "labels", "positive")
    apply_words = _option_words(inspection, excluded_names=truth_options)
    verify_words = _option_words(inspection, excluded_names=("positive",))
    later_commands = [
        ["apply", gate, "NEW", *apply_words, "-o", "out.csv"],
        ["verify", gate, "LASTWEEK", *verify_words],
    ]
    shell_lines = [_shell_line(arguments) for arguments in [*commands_run, *later_commands]]
    findings = [f"- {finding}: {reason}" for finding, reason in inspection.findings]
    sections = [
        f"# {inspection.path}",
        inspection.description,
        "\n".join(findings),
        "```sh\n" + "\n".join(shell_lines) + "\n```",
        f"```python\n{_python_code(inspection, gate, min_accuracy)}\n```",
    ]
    return "\n\n".join(sections) + "\n"


def _python_code(inspection: Inspection, gate: str, min_accuracy: str) -> str:
    """Return Python code that reads the file, fits the gate and saves it."""
    options = inspection.options
    read_arguments = [repr(inspection.path)]
    for name, value in options.items():
        if name not in ("positive", "higher_is"):
            read_arguments.append(f"{name}={value!r}")
    arguments = ", ".join(read_arguments)
    if "score_key" in options:
        read_call = f"mc.io.read_scores({arguments})"
        gate_arguments = _keyword_text(options, ("higher_is",))
        fit_call = (
            f"mc.ScoreGate(mc.MinAccuracy({min_accuracy}){gate_arguments})"
            ".fit(rows.score, rows.correct)"
        )
    else:
        read_call = f"mc.read_predictions({arguments})"
        gate_arguments = _keyword_text(options, ("input", "positive"))
        gate_arguments += ", classes=None if rows.labels_count_columns else rows.class_names"
        fit_call = (
            f"mc.MetaCal(mc.MinAccuracy({min_accuracy}){gate_arguments})"
            ".fit(rows.table, rows.labels)"
        )
    return f"import metacal as mc\n\nrows = {read_call}\ngate = {fit_call}\ngate.save({gate!r})"


def _keyword_text(options: Mapping[str, Any], names: tuple[str, ...]) -> str:
    """Return the options of these names as further keyword arguments in Python code."""
    return "".join(f", {name}={options[name]!r}" for name in names if name in options)
