"""`metacal report`: an HTML page about a gate and its test rows."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from metacal.cli.compare import iterate_with_progress, parse_calibrator_names
from metacal.cli.options import (
    as_command,
    format_option_arguments,
    fraction_option,
    jobs_option,
    level_option,
    option,
    option_group,
    resolve_n_jobs,
    switch_option,
)
from metacal.cli.outputs import check_output_is_not_input, output_option
from metacal.cli.printing import (
    echo,
    echo_data,
    flag_is_set,
    print_json,
    print_note,
    progress_bar,
    wrap_lines,
)
from metacal.cli.read_options import ReadOptions
from metacal.cli.repeat import build_repeat_command
from metacal.cli.values import BINS_RANGE, RESAMPLES_RANGE, SEED_RANGE, convert_confidence_to_delta

if TYPE_CHECKING:
    from metacal.cli.gate_rows import GateRows
    from metacal.gate import Gate
    from metacal.reports.next_steps import NewRowsCommand
    from metacal.reports.summary import Summary

# Calibrators that --compare uses by default: a fast one of each kind. `metacal compare` uses all.
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

    output: str = output_option(
        "File of the page, '-' for standard output.", "HTML", default="report.html"
    )
    title: str | None = option("Title of the page.  [default: Report on FILE]", "TEXT")
    comparing: bool = switch_option(
        "Also compare calibrators on these rows by cross-validation.", "--compare"
    )
    calibrators: str | None = option(
        f"Calibrators to compare.  [default with --compare: {', '.join(COMPARED)}]", "A,B,C"
    )
    confidence: float = fraction_option(
        "Confidence level of the bounds below the chosen threshold.", "C", default=0.9
    )
    reading: ReadOptions = option_group(ReadOptions)
    level: float = level_option()
    bins: int = option("Number of bins of the diagrams.", type=BINS_RANGE, default=15)
    seed: int = option("Seed of the bootstrap and the folds.", type=SEED_RANGE, default=0)
    resamples: int | None = option(
        "Number of bootstrap resamples. 0 leaves out the intervals.  [default: 1000, fewer for very"
        " many rows]",
        type=RESAMPLES_RANGE,
    )
    n_jobs: int | None = jobs_option()


@as_command(Options, "[GATE] FILE", has_help_sections=True)
def command(artifact: str | None, file: str, options: Options) -> None:
    """Write an HTML report: the promise, calibration, and the choice of a threshold.

    GATE was saved by 'metacal fit'. Without it, the report describes the classifier alone. FILE
    holds logits or scores, with true labels, of rows that neither the classifier nor 'metacal fit'
    has seen. For a cascade, pass the large model's file with --large.

    The page shows the verdict on the promise, reliability diagrams, and curves on which you drag
    the threshold. The bounds hold for all thresholds at once, so you may choose one after looking.
    The page is one file that opens without a network, and also holds all numbers as JSON.

    \b
    Examples:
      metacal report cal.json test.npz -o report.html
      metacal report val.parquet --logits-key z --label-key truth
      metacal report cal.json test.npz --compare --title "Release 7"
    """  # noqa: D301
    from metacal.cli.gate_rows import read_gate_and_rows

    output = options.output
    check_output_is_not_input(output, file, artifact, reading=options.reading)
    if output == "-" and flag_is_set("json"):
        raise click.UsageError(
            "-o - and --json both write to standard output. Write the page to a file, for"
            " example with -o report.html."
        )
    compared_names = parse_calibrator_names(options.calibrators)
    if not compared_names and options.comparing:
        compared_names = list(COMPARED)

    with progress_bar(3, "step", "Reading") as bar:
        gate, gate_rows = read_gate_and_rows(artifact, file, options.reading, allows_group_key=True)
        bar.update()
        bar.set_description("Measuring")
        summary = _summarise_rows(gate, artifact, gate_rows, compared_names, options)
        bar.update()
        bar.set_description("Writing")
        n_bytes = _write_page_and_count_bytes(summary, output, options.title)
        bar.update()
    gate_rows.note_rows_without_score(
        len(gate_rows.columns) - (summary.source.n_without_score or 0)
    )
    if summary.promise is not None:
        gate_rows.warn_of_fit_rows(summary.promise.fit_rows, artifact)
    if flag_is_set("json"):
        print_json(
            {
                "file": file,
                "artifact": artifact,
                "n_rows": summary.source.n_rows,
                "n_classes": summary.source.n_classes,
                **summary.to_dict(),
                "output": output,
                "bytes": n_bytes,
            }
        )
    elif output != "-":
        echo(wrap_lines(_format_main_result(summary), hanging_indent=10))
        for step in () if summary.promise is None else summary.promise.next_steps:
            echo(wrap_lines(step["text"], hanging_indent=0))
            # A command is not wrapped, so that it can be copied.
            echo(f"  {step['command']}")
    if output != "-":
        print_note(
            f"Written to {output} ({n_bytes / 1000:,.0f} kB). Open it in a browser:"
            f" {Path(output).resolve().as_uri()}"
        )


def _summarise_rows(
    gate: Gate | None,
    artifact: str | None,
    gate_rows: GateRows,
    compared_names: list[str] | None,
    options: Options,
) -> Summary:
    """Compute all numbers of the page.

    Parameters
    ----------
    gate : Gate or None
        The gate.
    artifact : str or None
        Its file.
    gate_rows : GateRows
        Labelled rows.
    compared_names : list of str or None
        Calibrators to compare.
    options : Options
        Options of the command.

    Returns
    -------
    Summary
    """
    from metacal.gate.judged_cases import is_about_cases
    from metacal.reports.summary import summarise

    columns = gate_rows.columns
    gate_input: Any = gate_rows.tables[0]
    large_model_table = None
    if gate is not None and gate.is_cascade:
        if gate.has_classes:
            large_model_table = gate_rows.tables[1]
        else:
            # A cascade over scores reads the scores of all models at once.
            gate_input = gate_rows.tables
    return summarise(
        gate_input,
        gate_rows.require_truth(),
        gate,
        large=large_model_table,
        ids=columns.ids,
        groups=columns.groups,
        cases=columns.cases if gate is not None and is_about_cases(gate) else None,
        file=gate_rows.path,
        artifact=artifact,
        sha256=_checksum_if_one_file(gate_rows.path, options.reading),
        command=_fit_command_with_classes(gate, gate_rows, options.reading),
        new_rows_command=_build_new_rows_command(gate_rows.path, options.reading),
        progress=iterate_with_progress,
        compare=compared_names,
        level=options.level,
        n_bins=options.bins,
        seed=options.seed,
        n_resamples=options.resamples,
        n_jobs=resolve_n_jobs(options.n_jobs),
        delta=convert_confidence_to_delta(options.confidence),
        **_class_keywords_of_summary(gate, columns),
    )


def _checksum_if_one_file(file: str, reading: ReadOptions) -> str | None:
    """Return the SHA-256 of the file if it holds all data, else None."""
    from metacal.io.disk import DISK

    if reading.large or reading.labels or not Path(file).is_file():
        return None
    return DISK.checksum(file)


def _class_keywords_of_summary(gate: Gate | None, columns: Any) -> dict[str, Any]:
    """Return the keyword arguments of `summarise` that name the classes."""
    if gate is None:
        # Nothing but the file describes the classes and the kind of input.
        return {"classes": columns.class_names, "input": columns.input}
    if not gate.has_classes:
        return {}
    names_in_file = columns.class_names
    gate_has_class_names = gate.classes.dtype.kind == "U"
    file_has_class_names = names_in_file is not None and isinstance(names_in_file[0], str)
    if file_has_class_names and not gate_has_class_names:
        # The classes of the gate are numbers, so the report shows the names in the file.
        return {"class_names": names_in_file}
    return {}


def _fit_command_with_classes(
    gate: Gate | None, gate_rows: GateRows, reading: ReadOptions
) -> str | None:
    """Return a `metacal fit` command for the rows of a report, without its promise.

    It names the classes if only the gate stores them. Returns None for rows from standard input, which a command cannot read again.
    """
    if gate_rows.path == "-":
        return None
    command_start = build_fit_command_start(gate_rows.path, reading)
    if gate is None or not gate.has_classes or not gate.logits_source.classes_given:
        # A gate without named classes numbers the columns, as `metacal fit` does by default.
        return command_start
    if reading.classes is not None or gate_rows.columns.class_names is not None:
        return command_start
    class_names = [str(name) for name in gate.classes.tolist()]
    class_option = ["--classes", ",".join(class_names)]
    if len(class_names) == 2:
        # A file of two classes may hold one score for each row, which takes no --classes.
        _negative_class, positive_class = class_names
        class_option = ["--positive", positive_class]
    return f"{command_start} {shlex.join(class_option)}"


def _build_new_rows_command(file: str, reading: ReadOptions) -> NewRowsCommand | None:
    """Build the command that writes this report for new rows, None on standard input."""
    from metacal.reports.next_steps import NewRowsCommand, choose_new_path

    old_path_by_new_name = {
        "new-rows": file,
        "new-labels": reading.labels,
        "new-large": reading.large,
    }
    new_path_by_old_path = {}
    for new_name, old_path in old_path_by_new_name.items():
        if old_path is not None:
            new_path_by_old_path[old_path] = choose_new_path(old_path, new_name)
    # --rows may have selected a part of the old file. The command reads all of the new file.
    command = build_repeat_command(("json", "quiet", "rows"), new_paths=new_path_by_old_path)
    if command is None:
        return None
    return NewRowsCommand(command=command, file=new_path_by_old_path[file], old_file=file)


def build_fit_command_start(file: str, reading: ReadOptions) -> str:
    """Return the start of a `metacal fit` command that reads the same file.

    Examples
    --------
    >>> build_fit_command_start("my rows.csv", ReadOptions(label_key="truth"))
    "metacal fit 'my rows.csv' --label-key truth"
    """
    is_like_option = file.startswith("-") and file != "-"
    words = ["metacal", "fit", f"./{file}" if is_like_option else file]
    for name, value in vars(reading).items():
        # The command certifies one threshold for all rows and one model.
        if name not in ("group_key", "large"):
            words += format_option_arguments(name, value)
    return shlex.join(words)


def _write_page_and_count_bytes(summary: Summary, output: str, title: str | None) -> int:
    """Write the page to a file or to stdout, and return its size in bytes."""
    from metacal.reports.html import render_report, write_report

    if output != "-":
        return write_report(summary, output, title=title)
    page_html = render_report(summary, title=title)
    echo_data(page_html)
    return len(page_html.encode("utf-8"))


def _format_main_result(summary: Summary) -> str:
    """Return the main result of the page in a few lines of text."""
    judged_promise = summary.promise
    if judged_promise is None:
        metrics_on_all_rows = summary.evaluation["all_rows"]
        metric_name, metric_title = "accuracy", "accuracy"
        if "ece" in metrics_on_all_rows:
            metric_name, metric_title = "ece", "ECE"
        metric_estimate = metrics_on_all_rows[metric_name]["estimate"]
        return (
            f"measured  {metric_title} {metric_estimate:.4f} on"
            f" {summary.source.n_rows:,} rows; no gate was given, so nothing is promised yet."
        )
    verdict_texts = [verdict["text"] for verdict in judged_promise.verdicts]
    includes_fit_rows = judged_promise.fit_rows is not None
    if includes_fit_rows:
        # No part of the promise is judged on rows of the fit, so the texts are equal.
        verdict_texts = verdict_texts[:1]
    lines = [f"promised  {judged_promise.statement}"]
    lines += [f"measured  {text}" for text in verdict_texts]
    lines.append(f"to do     {judged_promise.advice}")
    for model in judged_promise.answered_by:
        lines.append(f"{model.name:<9} {model}")
    return "\n".join(lines)
