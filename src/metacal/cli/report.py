"""metacal report: one page to look at, to drag the threshold on, and to sign off."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from metacal.cli.compare import calibrator_names, with_progress
from metacal.cli.options import (
    ReadOptions,
    as_command,
    fraction_option,
    jobs_option,
    level_option,
    option,
    option_group,
    resolve_n_jobs,
    switch_option,
    to_arguments,
)
from metacal.cli.outputs import check_not_input, output_option
from metacal.cli.printing import (
    echo,
    echo_data,
    flag_is_set,
    print_json,
    print_note,
    progress_bar,
    wrap_lines,
)
from metacal.cli.values import BINS_RANGE, RESAMPLES_RANGE, SEED_RANGE

if TYPE_CHECKING:
    from metacal.cli.reading import GateRows
    from metacal.gate import Gate
    from metacal.report.summary import Summary

#: Compared when the user names none: quick, and one of each kind. `metacal compare` has them all.
COMPARED = (
    "temperature",
    "ensemble-temperature",
    "vector",
    "structured",
    "spline",
    "isotonic",
    "histogram",
)


@dataclass(frozen=True)
class Options:
    """Options of `metacal report`."""

    output: str = output_option("- is stdout.", "HTML", default="report.html")
    title: str | None = option("Heading of the page.  [default: Report on FILE]", "TEXT")
    comparing: bool = switch_option(
        "Compare calibrators on these rows too, cross-validated.", "--compare"
    )
    calibrators: str | None = option(
        f"Compare these.  [default with --compare: {', '.join(COMPARED)}]", "A,B,C"
    )
    confidence: float = fraction_option("Of the bands under the point.", "C", default=0.9)
    reading: ReadOptions = option_group(ReadOptions)
    level: float = level_option()
    bins: int = option("Bins of the diagrams.", type=BINS_RANGE, default=15)
    seed: int = option("Seed of bootstrap and folds.", type=SEED_RANGE, default=0)
    resamples: int | None = option(
        "Of the bootstrap; 0: no intervals.  [default: 1000, fewer for very many rows]",
        type=RESAMPLES_RANGE,
    )
    n_jobs: int | None = jobs_option()


@as_command(Options, "[GATE] FILE", sectioned=True)
def command(artifact: str | None, file: str, options: Options) -> None:
    """Write one page to look at: is the promise kept, where to put the threshold.

    GATE is what `metacal fit` saved; without one the page is about the classifier alone. FILE holds
    logits and true labels of rows that neither the classifier nor `metacal fit` has seen. The page
    has the promise and whether it is kept, reliability before and after, risk-coverage and
    miscoverage curves with a point to drag and the command that certifies it, both promises
    together, a table of classes, the rows worth a look. It is one file, opens without a network,
    and holds every number as JSON.

    With a gate on scores, or with --score-key, the page has no classes, and reliability only of the
    gate's confidence.

    With a cascade FILE holds the small model's rows and --large the large one's: the page says who
    answers how much, how right each of the two is.

    The bounds under the point are proved for every threshold at once, so that it may be chosen
    after looking.

    \b
    Examples:
      metacal report cal.json test.npz -o report.html
      metacal report val.parquet --logits-key z --label-key truth
      metacal report cal.json test.npz --compare --title "Release 7"
      metacal report cal.json test.npz --json | jq .evaluation.gate.coverage
    """  # noqa: D301
    from metacal.cli.reading import read_gate_and_rows

    output = options.output
    check_not_input(output, file, artifact, reading=options.reading)
    if output == "-" and flag_is_set("json"):
        raise click.UsageError("-o - and --json both want stdout; write the page to a file.")
    compared = calibrator_names(options.calibrators) or (
        list(COMPARED) if options.comparing else None
    )

    with progress_bar(3, "step", "Reading") as bar:
        gate, given = read_gate_and_rows(artifact, file, options.reading, any_groups=True)
        bar.update()
        bar.set_description("Measuring")
        summary = _summarised(gate, artifact, given, compared, options)
        bar.update()
        bar.set_description("Writing")
        size = _written(summary, output, options.title)
        bar.update()
    given.note_rows_without_score(len(given.found) - (summary.source.n_without_score or 0))
    if summary.promise is not None:
        given.warn_of_fit_rows(summary.promise.fit_rows, artifact)
    if flag_is_set("json"):
        sizes = {"n_rows": summary.source.n_rows, "n_classes": summary.source.n_classes}
        read = {"file": file, "artifact": artifact, **sizes}
        print_json({**read, **summary.to_dict(), "output": output, "bytes": size})
    elif output != "-":
        echo(wrap_lines(_said(summary), hang=10))
    if output != "-":
        print_note(
            f"Written to {output} ({size / 1000:,.0f} kB). Open it in a browser:"
            f" {Path(output).resolve().as_uri()}"
        )


def _summarised(
    gate: Gate | None,
    artifact: str | None,
    given: GateRows,
    compared: list[str] | None,
    options: Options,
) -> Summary:
    from metacal.io.disk import DISK
    from metacal.report.summary import summarise

    file, found = given.path, given.found
    alone = Path(file).is_file() and not (
        options.reading.large or options.reading.labels
    )  # or arrays are hashed
    known: dict[str, Any] = {}
    if gate is None:
        known = {"classes": found.class_names, "input": found.input}
    elif gate.n_classes and gate.classes.dtype.kind != "U":
        # The file's names of its columns where the gate only knows numbers.
        named = found.class_names is not None and isinstance(found.class_names[0], str)
        known = {"class_names": found.class_names if named else None}
    return summarise(
        given.tables[0],
        given.require_truth(),
        gate,
        large=given.tables[1] if len(given.tables) > 1 else None,
        ids=given.found.ids,
        groups=given.found.groups,
        file=file,
        artifact=artifact,
        sha256=DISK.checksum(file) if alone else None,
        command=fit_command(file, options.reading),
        progress=with_progress,
        compare=compared,
        level=options.level,
        n_bins=options.bins,
        seed=options.seed,
        n_resamples=options.resamples,
        n_jobs=resolve_n_jobs(options.n_jobs),
        delta=round(1.0 - options.confidence, 12),
        **known,
    )


def fit_command(file: str, reading: ReadOptions) -> str:
    """The start of the `metacal fit` command that reads this file in this way.

    Examples
    --------
    >>> fit_command("my rows.csv", Reading(label_key="truth"))
    "metacal fit 'my rows.csv' --label-key truth"
    """
    words = ["metacal", "fit", f"./{file}" if file.startswith("-") and file != "-" else file]
    for name, value in vars(reading).items():
        if name not in (
            "group_key",
            "large",
        ):  # the point that is certified is one for all rows, of one model
            words += to_arguments(name, value)
    return shlex.join(words)


def _written(summary: Summary, output: str, title: str | None) -> int:
    from metacal.report.html import render, write_report

    if output != "-":
        return write_report(summary, output, title=title)
    content = render(summary, title=title)
    echo_data(content)
    return len(content.encode("utf-8"))


def _said(summary: Summary) -> str:
    """The headline of the page in two lines, and who answers in a cascade."""
    if summary.promise is None:
        all_rows = summary.evaluation["all_rows"]
        shown, name = ("ECE", "ece") if "ece" in all_rows else ("accuracy", "accuracy")
        found = f"{shown} {all_rows[name]['estimate']:.4f} on {summary.source.n_rows:,} rows"
        return f"measured  {found}; no gate was given, so nothing is promised yet."
    lines = [f"promised  {summary.promise.statement}"]
    measured = [verdict["text"] for verdict in summary.promise.verdicts]
    if summary.promise.fit_rows is not None:
        measured = measured[:1]  # one sentence for all limits
    lines += [f"measured  {text}" for text in measured]
    lines += [f"to do     {summary.promise.advice}"]
    return "\n".join([*lines, *(f"{one.name:<9} {one}" for one in summary.promise.answered_by)])
