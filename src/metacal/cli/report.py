"""metacal report: one page to look at, to drag the threshold on, and to sign off."""

from __future__ import annotations

import shlex
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from metacal.cli.cascade_rows import large_option, report_cascade
from metacal.cli.options import (
    BINS,
    CALIBRATORS,
    RESAMPLES,
    SEED,
    OutputPath,
    Reading,
    check_jobs,
    check_not_an_input,
    jobs_option,
    json_option,
    key_option,
    level_option,
    reading_options,
    share,
)
from metacal.cli.printing import echo, echo_data, note, progress_bar, say_json, wrapped
from metacal.errors import warn_caller

if TYPE_CHECKING:
    from metacal.gate import Gate, ScoredGate
    from metacal.io.predictions import Predictions
    from metacal.report.summary import Summary

#: Compared when the user names none: quick, and one of each kind. `metacal compare` has them all.
COMPARED = ("temperature", "ensemble-temperature", "vector", "structured", "spline", "isotonic", "histogram")


@click.command()
@click.argument("file", type=click.Path())
@click.option("--with", "artifact", type=click.Path(), metavar="JSON", help="What `metacal fit` saved.")
@click.option(
    "-o", "--output", type=OutputPath(), metavar="HTML", default="report.html", show_default=True, help="- is stdout."
)
@click.option("--title", metavar="TEXT", help="Heading of the page.  [default: Report on FILE]")
@click.option("--compare", "comparing", is_flag=True, help="Compare calibrators on these rows too, cross-validated.")
@click.option("--calibrators", metavar="A,B,C", help=f"Compare these.  [default with --compare: {', '.join(COMPARED)}]")
@click.option(
    "--confidence", type=share, metavar="C", default=0.9, show_default=True, help="Of the bands under the point."
)
@large_option
@reading_options()
@level_option
@click.option("--bins", type=BINS, default=15, show_default=True, help="Bins of the diagrams.")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of bootstrap and folds.")
@click.option(
    "--resamples",
    type=RESAMPLES,
    help="Of the bootstrap; 0: no intervals.  [default: 1000, fewer for very many rows]",
)
@jobs_option
@key_option
@json_option
def command(
    file: str,
    artifact: str | None,
    output: str,
    title: str | None,
    comparing: bool,
    calibrators: str | None,
    confidence: float,
    large: str | None,
    reading: Reading,
    level: float,
    bins: int,
    seed: int,
    resamples: int | None,
    n_jobs: int | None,
    as_json: bool,
) -> None:
    """Write one page to look at: is the promise kept, where to put the threshold.

    FILE holds logits and true labels of rows that neither the classifier nor `metacal fit` has seen. The page has the
    promise and whether it is kept, reliability before and after, risk-coverage and miscoverage curves with a point to
    drag and the command that certifies it, both promises together, a table of classes, the rows worth a look. It is
    one file, opens without a network, and holds every number as JSON.

    With a gate on scores, or with --score-key, the page has no classes, and reliability only of the gate's confidence.

    With a cascade FILE holds the small model's rows and --large the large one's: who answers how much, how right each
    of the two is.

    The bounds under the point hold at every threshold at once, so that it may be chosen after looking.

    \b
    Examples:
      metacal report test.npz --with cal.json -o report.html
      metacal report val.parquet --logits-key z --label-key truth
      metacal report test.npz --with cal.json --compare --title "Release 7"
      metacal report test.npz --with cal.json --json | jq .evaluation.gate.coverage
    """  # noqa: D301
    check_not_an_input(output, file, artifact, large, reading=reading)
    if large is not None:
        report_cascade(artifact, file, large, reading, output, title, level, as_json)
        return
    threads = check_jobs(n_jobs)
    if output == "-" and as_json:
        raise click.UsageError("-o - and --json both want stdout; write the page to a file.")
    names = _to_compare(comparing, calibrators)
    options = {"level": level, "n_bins": bins, "seed": seed, "n_resamples": resamples, "n_jobs": threads}
    options["delta"] = round(1.0 - confidence, 12)

    with progress_bar(3 + (names is not None), "step", "Reading") as bar:
        summary = _summarised(file, artifact, reading, names, options, bar)
        bar.set_description("Writing")
        size = _written(summary, output, title)
    if summary.promise is not None and summary.promise.fitted_here:
        warn_caller(f"{file} holds the very rows that {artifact} was fitted on; report on rows it has not seen.")
    if as_json:
        sizes = {"n_rows": summary.source.n_rows, "n_classes": summary.source.n_classes}
        read = {"file": file, "artifact": artifact, **sizes}
        say_json({**read, **summary.to_dict(), "output": output, "bytes": size})
    elif output != "-":
        echo(wrapped(_said(summary), hang=10))
    if output != "-":
        note(f"Written to {output} ({size / 1000:,.0f} kB). Open it in a browser: {_address(output)}")


def _to_compare(comparing: bool, calibrators: str | None) -> list[str] | None:
    if calibrators is None:
        return list(COMPARED) if comparing else None
    from metacal.cli.compare import calibrator_names

    return calibrator_names(calibrators)


def _summarised(
    file: str, artifact: str | None, reading: Reading, names: list[str] | None, options: dict[str, Any], bar: Any
) -> Summary:
    import numpy as np

    import metacal
    from metacal.cli.compare import watched
    from metacal.cli.reading import labels_as_columns, load_any_gate, read, read_for
    from metacal.gate import ScoredGate
    from metacal.report.summarise import summarise
    from metacal.rows.plausibility import unquestioned
    from metacal.rows.validate import class_list, logits_from

    gate = None if artifact is None else load_any_gate(artifact, file)
    if isinstance(gate, ScoredGate) or (gate is None and reading.score_key is not None):
        return _summarised_scores(file, artifact, gate, reading, options)
    found = read(file, reading) if gate is None else read_for(gate, str(artifact), file, reading, any_groups=True)
    classes = class_list(found.class_names, found.table.shape[1]) if gate is None else gate.classes
    codes = labels_as_columns(found, classes)
    bar.update()
    comparison = None
    if names is not None:
        bar.set_description("Comparing calibrators")
        # Folds are drawn from the rows: they are held in memory.
        seen = {"random_state": options["seed"], "n_jobs": options["n_jobs"], "progress": watched}
        with unquestioned():
            comparison = metacal.compare(np.asarray(logits_from(found.table, found.input)), codes, names, **seen)
        bar.update()
    bar.set_description("Measuring")
    summary = summarise(
        found.table,
        classes[codes],
        gate,
        classes=classes,
        class_names=_shown_names(found, classes),
        ids=found.ids,
        groups=found.groups,
        input=found.input,
        compare=comparison,
        file=file,
        artifact=artifact,
        sha256=_sha256(file, reading),
        command=fit_command(file, reading, gate),
        **options,
    )
    bar.update()
    return summary


def _summarised_scores(
    file: str, artifact: str | None, gate: ScoredGate | None, reading: Reading, options: dict[str, Any]
) -> Summary:
    from dataclasses import replace

    from metacal.cli.scored import read_scored
    from metacal.report.scored import summarise_scores

    found = read_scored(file, reading, gate, artifact)
    told = replace(reading, score_key=found.name, higher_is=gate.higher_is if gate is not None else reading.higher_is)
    return summarise_scores(
        found.score,
        found.require_correct(),
        gate,
        score_name=found.name,
        higher_is=told.higher_is or "surer",  # type: ignore[arg-type]
        ids=found.ids,
        file=file,
        artifact=artifact,
        sha256=_sha256(file, reading),
        command=fit_command(file, replace(told, higher_is=None if told.higher_is == "surer" else told.higher_is)),
        **{name: value for name, value in options.items() if name != "n_jobs"},
    )


def _shown_names(found: Predictions, classes: Any) -> Any:
    """The file's names of its columns where the gate only knows numbers."""
    named = found.class_names is not None and isinstance(found.class_names[0], str)
    return found.class_names if named and classes.dtype.kind != "U" else None


def fit_command(file: str, reading: Reading, gate: Gate | None = None) -> str:
    """The start of the `metacal fit` command that reads this file in this way, with this calibrator.

    Examples
    --------
    >>> fit_command("my rows.csv", Reading(label_key="truth"))
    "metacal fit 'my rows.csv' --label-key truth"
    """
    from metacal.maps.composed import DEFAULT_BASE

    words = ["metacal", "fit", f"./{file}" if file.startswith("-") and file != "-" else file]
    for field in fields(reading):
        value = getattr(reading, field.name)
        if value is not None and field.name != "group_key":  # the point that is certified is one for all rows
            words += [f"--{field.name.replace('_', '-')}", value]
    if gate is not None:
        if gate.input != "logits" and reading.input is None:
            words += ["--input", gate.input]
        kinds = {kind: name for name, kind in CALIBRATORS.items()}
        base = None if gate.recipe is None else kinds.get(gate.recipe.estimator)
        if base not in (None, DEFAULT_BASE) and (gate.certificate is None or gate.certificate.labelled):
            words += ["--calibrator", str(base)]
    return shlex.join(words)


def _sha256(file: str, reading: Reading) -> str | None:
    """Of the file where one file holds all; None leaves it to the arrays."""
    import hashlib

    if file == "-" or reading.labels is not None:
        return None
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _written(summary: Summary, output: str, title: str | None) -> int:
    from metacal.report.html import render, write_report

    if output != "-":
        return write_report(summary, output, title=title)
    content = render(summary, title=title)
    echo_data(content)
    return len(content.encode("utf-8"))


def _said(summary: Summary) -> str:
    """The headline of the page in two lines."""
    if summary.promise is None:
        all_rows = summary.evaluation["all_rows"]
        shown, name = ("ECE", "ece") if "ece" in all_rows else ("accuracy", "accuracy")
        found = f"{shown} {all_rows[name]['estimate']:.4f} on {summary.source.n_rows:,} rows"
        return f"measured  {found}; no gate was given, so nothing is promised yet."
    measured = [f"measured  {verdict['text']}" for verdict in summary.promise.verdicts]
    return "\n".join([f"promised  {summary.promise.statement}", *measured])


def _address(output: str) -> str:
    return Path(output).resolve().as_uri()
