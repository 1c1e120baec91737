"""`metacal apply`: calibrated probabilities and decisions for new rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from metacal.cli.cluster import executor_option, open_cluster
from metacal.cli.options import (
    OUTPUT_FORMATS,
    as_command,
    jobs_option,
    option,
    option_group,
    resolve_n_jobs,
    switch_option,
)
from metacal.cli.outputs import (
    check_output_is_not_input,
    is_folder_output,
    output_option,
    rejected_option,
)
from metacal.cli.printing import flag_is_set, print_json, print_note, progress_bar
from metacal.cli.read_options import ReadOptions
from metacal.cli.values import bad_option
from metacal.display import format_names
from metacal.io.formats import list_extensions

if TYPE_CHECKING:
    from metacal.gate import Gate, Rejected
    from metacal.io.decision_writing import Applied


@dataclass(frozen=True)
class Options:
    """Options of `metacal apply`."""

    output: str | None = output_option(
        "File or folder of results: .npz, .csv, .tsv, .jsonl, .parquet, .arrow or .feather; '-' for"
        " CSV on standard output.",
        "OUT",
    )
    output_format: str | None = option(
        "Format of OUT.  [default: from its name; csv for -]",
        "KIND",
        type=click.Choice(OUTPUT_FORMATS),
    )
    rejected: Rejected | None = rejected_option()
    keep: tuple[str, ...] = option(
        "Column of FILE to copy to OUT. Repeat the option for each column.  [default: all columns"
        " that are not classes, unless FILE is larger than memory]",
        "NAME",
        multiple=True,
    )
    prune: bool = switch_option("Remove results from the folder OUT whose source file is gone.")
    reading: ReadOptions = option_group(
        ReadOptions, excluded_fields=("labels", "agree_key", "rows")
    )
    n_jobs: int | None = jobs_option()
    executor: str | None = executor_option()


@as_command(Options, "GATE", "FILE", has_help_sections=True)
def command(artifact: str, file: str, options: Options) -> None:
    """Add calibrated probabilities and accept/reject decisions to new rows.

    GATE was saved by 'metacal fit'. FILE holds logits or scores of the same classifier, and needs
    no labels. OUT gets these columns for each row: prediction (the reject label for rejected rows),
    answer (the prediction for all rows), confidence, accept, score and one probability per class.
    A gate on scores adds only accept, score and confidence.

    FILE may be a folder or a pattern. If OUT ends in '/', it is a folder with one result per file,
    and a repeated call computes only the missing results. For a cascade, pass the small model's
    file as FILE and the large model's with --large.

    \b
    Examples:
      metacal apply cal.json new.parquet -o out.parquet
      metacal apply cal.json new.csv -o - | head
      metacal apply cal.json new.npz --json
      metacal apply cal.json 'logs/*.parquet' -o out/
      metacal apply cascade.json small.npz --large large.npz -o out.csv
    """  # noqa: D301
    # The reader keeps every column except the table if `keep` is None, and none if it is empty.
    columns_to_keep = options.keep or None
    options = replace(options, reading=replace(options.reading, keep=columns_to_keep))
    _check_output_options(options)
    check_output_is_not_input(options.output, file, artifact, reading=options.reading)
    _check_folder_options(options)

    from metacal.cli.reading import load_gate

    gate = load_gate(artifact, file)
    _check_gate_options(gate, artifact, options)
    if is_folder_output(options.output):
        apply_result = _apply_to_folder(gate, artifact, file, options)
    else:
        apply_result = _apply_to_file(gate, artifact, file, options)
    if flag_is_set("json"):
        json_counts = _convert_counts_to_json(gate, apply_result, options)
        print_json({"file": file, "artifact": artifact, **json_counts})
    else:
        _print_result_notes(gate, apply_result, options.output)


def _convert_counts_to_json(gate: Gate, apply_result: Applied, options: Options) -> dict[str, Any]:
    """Return the counts of rows and files as JSON types."""
    json_counts: dict[str, Any] = {"n_rows": apply_result.n_rows}
    if apply_result.n_accepted is not None:
        json_counts["n_accepted"] = apply_result.n_accepted
        json_counts["coverage"] = apply_result.n_accepted / apply_result.n_rows
    if gate.is_score_gate:
        json_counts["n_without_score"] = apply_result.n_without_score
    if apply_result.answered_by:
        json_counts["large"] = options.reading.large
        json_counts["answered_by"] = apply_result.answered_by
    json_counts["output"] = options.output
    if is_folder_output(options.output):
        json_counts |= {
            "n_files": apply_result.n_files,
            "n_kept": apply_result.n_kept,
            "empty": apply_result.empty,
            "orphans": apply_result.orphans,
            "pruned": apply_result.pruned,
            "edited": apply_result.edited,
        }
    return json_counts


def _apply_to_file(gate: Gate, artifact: str, file: str, options: Options) -> Applied:
    """Write the decisions on the rows of a file to a single output file.

    For a cascade without --large, the decisions tell which rows need the large model.

    Parameters
    ----------
    gate : Gate
        The gate.
    artifact : str
        File of the gate.
    file : str
        File of rows.
    options : Options
        Options of the command.

    Returns
    -------
    Applied
    """
    from metacal.cli.gate_rows import read_gate_rows
    from metacal.io.decision_writing import write_decisions
    from metacal.rows import report_progress_to

    gate_rows = read_gate_rows(gate, artifact, file, options.reading, requires_large_rows=False)
    table_of_each_model = list(gate_rows.tables)
    if gate.has_classes:
        # Logits are read as `Rows`, which wrap the table. Scores are arrays already.
        table_of_each_model = [rows.table for rows in gate_rows.tables]
    with progress_bar(len(gate_rows.columns), "row", "rows") as bar, report_progress_to(bar.update):
        return write_decisions(
            gate,
            gate_rows.columns,
            options.output,
            options.output_format,
            tables=table_of_each_model,
            rejected=options.rejected,
            n_jobs=resolve_n_jobs(options.n_jobs),
        )


def _apply_to_folder(gate: Gate, artifact: str, file: str, options: Options) -> Applied:
    """Write one result per input file to a folder, locally or on a cluster.

    Parameters
    ----------
    gate : Gate
        The gate.
    artifact : str
        File of the gate.
    file : str
        File of rows.
    options : Options
        Options of the command.

    Returns
    -------
    Applied
    """
    from metacal.cli.gate_rows import check_large_option
    from metacal.cli.reading import check_read_options_fit_gate, convert_to_reader_arguments
    from metacal.io.apply import apply
    from metacal.rows import report_progress_to

    check_large_option(gate, artifact, options.reading.large)
    check_read_options_fit_gate(gate, artifact, options.reading)
    n_jobs = resolve_n_jobs(options.n_jobs)
    with (
        open_cluster(options.executor, n_jobs) as client,
        progress_bar(None, "row", "rows") as bar,
        report_progress_to(bar.update),
    ):
        apply_result = apply(
            artifact,
            file,
            str(options.output),
            n_jobs=n_jobs,
            executor=client,
            say=print_note,
            rejected=options.rejected,
            output_format=options.output_format,
            prune=options.prune,
            **convert_to_reader_arguments(options.reading),
        )
    _print_folder_notes(
        sources_without_rows=apply_result.empty,
        results_without_source=apply_result.orphans,
        were_results_removed=apply_result.pruned,
        edited_results_without_source=apply_result.edited,
    )
    return apply_result


def _print_folder_notes(
    *,
    sources_without_rows: Sequence[str],
    results_without_source: Sequence[str],
    were_results_removed: bool,
    edited_results_without_source: Sequence[str],
) -> None:
    """Print notes about sources without rows and results without a source.

    Parameters
    ----------
    sources_without_rows : sequence of str
        Sources that have no result because they have no rows.
    results_without_source : sequence of str
        Results in the folder whose source no longer exists, except edited ones.
    were_results_removed : bool
        Whether --prune removed these results.
    edited_results_without_source : sequence of str
        Results that are never removed, because somebody edited them.
    """
    if sources_without_rows:
        print_note(f"No rows, and so no result: {', '.join(sources_without_rows)}.")
    if results_without_source:
        result_names = ", ".join(results_without_source)
        if were_results_removed:
            print_note(f"Removed, for the source is gone: {result_names}.")
        else:
            print_note(
                "The source is gone, the result is still there (--prune removes it):"
                f" {result_names}."
            )
    if edited_results_without_source:
        print_note(
            "The source is gone, but the result was changed by hand, and stays:"
            f" {', '.join(edited_results_without_source)}."
        )


def _check_output_options(options: Options) -> None:
    """Raise a usage error if the output conflicts with --json or has no format."""
    output = options.output
    if output is None and not flag_is_set("json"):
        raise click.UsageError(
            "No output given. Pass -o out.csv or -o out.parquet, or pass -o - to write CSV to"
            " standard output."
        )
    if output == "-" and flag_is_set("json"):
        raise click.UsageError(
            "-o - and --json both write to standard output. Write the rows to a file, for"
            " example with -o out.csv."
        )
    _check_output_ending(output, options.output_format)


def _check_folder_options(options: Options) -> None:
    """Raise a usage error if an option requires a folder as output."""
    if is_folder_output(options.output):
        return
    if options.executor is not None:
        raise click.UsageError(
            "--executor writes one result per file into a folder, but -o names a file. End the"
            " name with a slash, for example -o out/."
        )
    if options.prune:
        raise click.UsageError(
            "--prune requires a folder of results, but -o names a file. End the name with a"
            " slash, for example -o out/."
        )


def _check_output_ending(output: str | None, output_format: str | None) -> None:
    """Raise a usage error if neither name nor --output-format determines the format."""
    if output is None or output == "-" or output_format is not None or is_folder_output(output):
        return
    if not output.lower().endswith(list_extensions(writable=True)):
        known_endings = ", ".join(list_extensions(writable=True))
        raise bad_option(
            "-o",
            f"The file type of {output} is unknown. End the name in {known_endings}, or pass the"
            " type with --output-format.",
        )


def _check_gate_options(gate: Gate, artifact: str, options: Options) -> None:
    """Raise a usage error if the options do not fit the kind of the gate."""
    if is_folder_output(options.output) and not gate.is_logits_gate:
        raise click.UsageError(
            f"A folder of results requires a gate on logits, but {artifact} holds a gate on"
            " scores. Write the result to a single file."
        )
    if options.rejected == "uniform" and gate.is_cascade:
        raise click.UsageError(
            "--rejected uniform does not support a cascade, because a cascade has calibrated"
            " probabilities for every row. Leave out --rejected."
        )


def _print_result_notes(gate: Gate, apply_result: Applied, output: str | None) -> None:
    """Print how many rows were accepted and who answered them, and the next step."""
    if apply_result.n_without_score and gate.is_score_gate:
        print_note(
            f"{apply_result.n_without_score:,} of {apply_result.n_rows:,} rows have no score: they are"
            " rejected."
        )
    if output != "-":
        print_note(_format_summary_sentence(apply_result, output))
    columns_not_copied = apply_result.left_out
    if columns_not_copied:
        print_note(
            f"Left out: {format_names(columns_not_copied)}. --keep NAME passes a column on, unless the"
            " results have one of that name."
        )
    # Rows that the small model passes on have no answer if --large was not given.
    n_rows_without_answer = apply_result.answered_by.get("nobody", 0)
    if n_rows_without_answer > 0:
        print_note(
            "Run the large model on the rows that nobody has answered, and give its predictions as"
            " --large."
        )


def _format_summary_sentence(apply_result: Applied, output: str | None) -> str:
    """Return a sentence with the numbers of rows, accepted rows, answers and files."""
    accepted_text = ""
    if apply_result.n_accepted is not None:
        accepted_percentage = 100 * apply_result.n_accepted / apply_result.n_rows
        accepted_text = f", {apply_result.n_accepted:,} accepted ({accepted_percentage:.1f}%)"
    answered_by_text = ""
    if apply_result.answered_by:
        # The keys are the models of a cascade, and who answers the rows that no model accepts.
        counts_by_model = [f"{name} {count:,}" for name, count in apply_result.answered_by.items()]
        answered_by_text = f"; answered by: {', '.join(counts_by_model)}"
    files_text = ""
    if is_folder_output(output):
        n_unchanged_files = apply_result.n_kept
        files_text = f" ({apply_result.n_files:,} files, {n_unchanged_files:,} of them kept)"
    row_text = f"{apply_result.n_rows:,} rows{accepted_text}{answered_by_text}"
    return f"{row_text}; written to {output}{files_text}."
