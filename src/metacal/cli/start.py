"""metacal start: look at a file, ask two questions, and leave a gate, a report and the commands for
next time.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
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
from metacal.cli.printing import echo, print_note
from metacal.cli.values import number_between, parse_fraction
from metacal.display import aligned

if TYPE_CHECKING:
    from metacal.io.inspection import Look


#: What a mistake costs, more than a review does.
_cost = number_between(
    1.0,
    1e6,
    "one above 1, such as 20",
    "is not above 1; a mistake that costs no more needs no review",
)


@dataclass(frozen=True)
class Options:
    """Options of `metacal start`."""

    yes: bool = switch_option("Ask nothing: take the defaults.", "-y --yes")
    mistake_cost: float | None = option(
        "What a mistake costs, in reviews.  [default: 20]", "N", type=_cost
    )
    review: float | None = fraction_option(
        "The share of rows that people can review.  [default: 0.2]", "S"
    )
    positive: str | None = option(
        "With one score for two classes: the class it speaks for.", "LABEL"
    )
    output: str = output_option("Folder for what is written.", "DIR", default=".")
    reading: ReadOptions = option_group(ReadOptions, without=("large", "agree_key"))


@as_command(Options, "FILE", sectioned=True, answers=False)
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
    from metacal.io.look import look

    said = {**vars(options.reading), "positive": options.positive}
    found = look(file, **{name: value for name, value in said.items() if value not in (None, ())})
    print_note(f"{file}: {found.kind}.")
    if found.seen:
        print_note(
            "\n".join(aligned([(f"  {what}", f"because {why}") for what, why in found.seen]))
        )
    if found.question is not None:
        raise click.UsageError(f"{file}: {found.question} Nothing was written.")
    cost, review = _asked(options)
    folder = Path(options.output)
    folder.mkdir(parents=True, exist_ok=True)
    stem = Path(file if file != "-" else "stdin").name.partition(".")[0] or "gate"
    gate, page, after = (
        str(folder / f"{stem}.{name}") for name in ("gate.json", "report.html", "next.md")
    )
    words, reading = _words(found), _words(found, "positive")
    target = f"{1.0 - 1.0 / cost:.4g}"
    fit = ["fit", file, *words, "--min-accuracy", target, "-o", gate]
    report = ["report", gate, file, *reading, "-o", page]
    _run(fit)
    _run(report)
    print_note(
        "\nAll rows of the file were used to fit, so the report does not judge the promise. With"
        f" other labelled rows:\n$ {shlex.join(['metacal', 'verify', gate, 'NEW', *reading])}"
    )
    _say_budget(gate, review, ["fit", file, *words, "--max-review", f"{review:g}", "-o", gate])
    Path(after).write_text(_next(found, [fit, report], gate, reading, target), encoding="utf-8")
    echo(f"Gate {gate}, report {page}, and how to go on in {after}.")


def _asked(options: Options) -> tuple[float, float]:
    """The two answers: given, asked for, or the defaults."""
    cost, review = options.mistake_cost, options.review
    if cost is None and not options.yes:
        cost = click.prompt(
            "A mistake costs as much as reviewing how many rows?", 20.0, value_proc=_cost, err=True
        )
    if review is None and not options.yes:
        review = click.prompt(
            "Which share of the rows can be reviewed?", 0.2, value_proc=parse_fraction, err=True
        )
    return cost or 20.0, review or 0.2


def _words(found: Look, *without: str) -> list[str]:
    """The options that say what is what in the file, all but some."""
    return [
        word
        for name, value in found.options.items()
        if name not in without
        for word in to_arguments(name, value)
    ]


def _run(words: list[str]) -> None:
    """Run a command of metacal, as the user would."""
    import importlib

    print_note(f"\n$ {shlex.join(['metacal', *words])}")
    command = importlib.import_module(f"metacal.cli.{words[0]}").command
    with command.make_context(
        words[0], list(words[1:]), parent=click.get_current_context()
    ) as context:
        command.invoke(context)


def _say_budget(gate: str, review: float, other: list[str]) -> None:
    """Does what is rejected fit what can be reviewed?"""
    import metacal

    certificate = metacal.load_gate(gate).certificate
    assert certificate is not None
    coverage = certificate.coverage
    if coverage is None or 1.0 - coverage <= review:
        return
    print_note(
        f"\nAbout {1.0 - coverage:.0%} of the rows go to review, more than the {review:.0%} you can"
        " do. Keep the promise and review more, or promise that budget instead and see on the"
        f" report what accuracy is left:\n$ {shlex.join(['metacal', *other])}"
    )


def _next(found: Look, ran: list[list[str]], gate: str, reading: list[str], target: str) -> str:
    """What to do next time, on the command line and in Python."""
    truth = ("label_key", "correct_key", "loss_key", "labels", "positive")
    later = [
        ["apply", gate, "NEW", *_words(found, *truth), "-o", "out.csv"],
        ["verify", gate, "LASTWEEK", *reading],
    ]
    shell = "\n".join(shlex.join(["metacal", *words]) for words in [*ran, *later])
    keys = {
        name: value
        for name, value in found.options.items()
        if name not in ("positive", "higher_is")
    }
    arguments = ", ".join(
        [repr(found.path), *(f"{name}={value!r}" for name, value in keys.items())]
    )
    if "score_key" in keys:
        more = f", higher_is={found.options['higher_is']!r}" if "higher_is" in found.options else ""
        read, fit = (
            f"mc.io.read_scores({arguments})",
            f"mc.ScoreGate(mc.MinAccuracy({target}){more})",
        )
        fitted = f"{fit}.fit(rows.score, rows.correct)"
    else:
        known = {
            name: found.options[name] for name in ("input", "positive") if name in found.options
        }
        more = "".join(f", {name}={value!r}" for name, value in known.items())
        read = f"mc.read_predictions({arguments})"
        named = ", classes=None if rows.labels_count_columns else rows.class_names"
        fitted = f"mc.MetaCal(mc.MinAccuracy({target}){more}{named}).fit(rows.table, rows.labels)"
    python = f"import metacal as mc\n\nrows = {read}\ngate = {fitted}\ngate.save({gate!r})"
    seen = "\n".join(f"- {what}: {why}" for what, why in found.seen)
    return f"# {found.path}\n\n{found.kind}\n\n{seen}\n\n```sh\n{shell}\n```\n\n```python\n{python}\n```\n"
