"""metacal apply: calibrated probabilities and decisions for new rows, block by block."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from metacal.cli.cluster import executor_option, open_cluster
from metacal.cli.options import (
    OUTPUT_FORMATS,
    ReadOptions,
    as_command,
    jobs_option,
    option,
    option_group,
    resolve_n_jobs,
    switch_option,
)
from metacal.cli.outputs import check_not_input, is_folder_output, output_option
from metacal.cli.printing import flag_is_set, print_json, print_note, progress_bar
from metacal.cli.values import bad_option
from metacal.io.formats import endings

if TYPE_CHECKING:
    from metacal.gate import Gate, Rejected
    from metacal.io.apply import Applied


@dataclass(frozen=True)
class Options:
    """Options of `metacal apply`."""

    output: str | None = output_option(
        "Where the rows go: .npz, .csv, .tsv, .jsonl, .parquet, .arrow or .feather; - is csv on"
        " stdout.",
        "OUT",
    )
    output_format: str | None = option(
        "What OUT is, where its name does not say.  [default for -: csv]",
        "KIND",
        type=click.Choice(OUTPUT_FORMATS),
    )
    rejected: Rejected = option(
        "Probabilities of rejected rows: calibrated too, or 1/K in every class, the paper's map.",
        type=click.Choice(("calibrated", "uniform")),
        default="calibrated",
    )
    keep: tuple[str, ...] = option(
        "A column of FILE to pass on to OUT: an id, a prompt, a time; once for each.",
        "NAME",
        multiple=True,
    )
    prune: bool = switch_option(
        "Where OUT is a folder: remove results whose source is gone, unless they were changed"
        " since."
    )
    reading: ReadOptions = option_group(ReadOptions, without=("labels", "agree_key"))
    n_jobs: int | None = jobs_option()
    executor: str | None = executor_option()


@as_command(Options, "GATE", "FILE", sectioned=True)
def command(artifact: str, file: str, options: Options) -> None:
    """Give new rows calibrated probabilities and an accept/reject decision.

    GATE is what `metacal fit` saved; FILE holds logits of the same classifier, with or without
    labels. OUT has for each row its id (if FILE has ids), prediction (the reject label where
    rejected), answer and confidence (also where rejected: what a reviewer wants to see), accept,
    score (higher: less sure) and one calibrated probability per class; before them the columns of
    FILE that --keep names. A calibrator without a promise rejects nothing: prediction, confidence
    and probabilities. A gate on scores gives accept, score (as it is in FILE) and confidence. Rows
    are read and written block by block, so FILE may be larger than memory.

    FILE may be a folder or a pattern such as 'logs/*.parquet'. Where OUT is a folder (it ends in /,
    or is there) it gets a file for each; after a run that was cut off, those that are finished are
    kept, as long as their source is the same. Results whose source is gone are named, and removed
    with --prune. With --executor the workers of a cluster read and write these files.

    With a cascade FILE holds the small model's logits and --large those of the large one;
    answered_by says who answers each row: small, large or person. Without --large the rows that
    need the large model are answered by nobody.

    \b
    Examples:
      metacal apply cal.json new.parquet -o out.parquet
      metacal apply cal.json new.csv -o - | head
      metacal apply cal.json new.jsonl --keep prompt --keep meta.user -o out.jsonl
      metacal apply cal.json - --format parquet -o out.csv < new.parquet
      metacal apply cal.json new.npz --json          only count: rows, accepted, coverage
      metacal apply judge.json new.jsonl -o out.jsonl
      metacal apply cal.json 'logs/*.parquet' -o out/
      metacal apply cal.json 'logs/*.parquet' -o out/ --executor dask://host:8786
      metacal apply cascade.json small.npz --large large.npz -o out.csv
    """  # noqa: D301
    options = replace(options, reading=replace(options.reading, keep=options.keep))
    output = options.output
    _check_output(output, options.output_format)
    check_not_input(output, file, artifact, reading=options.reading)
    if options.executor is not None and not is_folder_output(output):
        raise click.UsageError(
            "--executor writes a folder of results, a file for each that is read; end its name with"
            " /: -o out/."
        )
    if options.prune and not is_folder_output(output):
        raise click.UsageError("--prune is for a folder of results; end its name with /: -o out/.")

    from metacal.cli.reading import load_gate

    gate = load_gate(artifact, file)
    if is_folder_output(output) and gate.kind != "logits":
        raise click.UsageError(
            f"a folder of results is for a gate on logits; give a file for those of {artifact}."
        )
    if options.rejected != "calibrated" and gate.kind == "cascade":
        raise click.UsageError(
            "--rejected uniform is the map of one gate; a cascade gives calibrated probabilities."
        )
    done = (_applied_to_folder if is_folder_output(output) else _applied)(
        gate, artifact, file, options
    )
    if flag_is_set("json"):
        print_json({"file": file, "artifact": artifact, **_counts(gate, done, options)})
        return
    if done.n_without_score and gate.kind == "scores":
        print_note(
            f"{done.n_without_score:,} of {done.n_rows:,} rows have no score: they are rejected."
        )
    if output != "-":
        n = done.n_accepted
        kept = "" if n is None else f", {n:,} accepted ({100 * n / done.n_rows:.1f}%)"
        who = ", ".join(f"{name} {count:,}" for name, count in done.answered_by.items())
        files = (
            f" ({done.n_files:,} files, {done.n_kept:,} of them kept)"
            if is_folder_output(output)
            else ""
        )
        print_note(
            f"{done.n_rows:,} rows{kept}{f'; answered by: {who}' if who else ''}; written to"
            f" {output}{files}."
        )
    if done.answered_by.get("nobody"):
        print_note(
            "Run the large model on the rows that nobody has answered, and give its predictions as"
            " --large."
        )


def _counts(gate: Gate, done: Applied, options: Options) -> dict[str, Any]:
    """What was decided on and written, as JSON."""
    counts: dict[str, Any] = {"n_rows": done.n_rows}
    if done.n_accepted is not None:
        counts |= {"n_accepted": done.n_accepted, "coverage": done.n_accepted / done.n_rows}
    if gate.kind == "scores":
        counts["n_without_score"] = done.n_without_score
    if done.answered_by:
        counts |= {"large": options.reading.large, "answered_by": done.answered_by}
    counts["output"] = options.output
    if is_folder_output(options.output):
        names = ("n_files", "n_kept", "empty", "orphans", "pruned", "edited")
        counts |= {name: getattr(done, name) for name in names}
    return counts


def _applied(gate: Gate, artifact: str, file: str, options: Options) -> Applied:
    """Write one file; of a cascade without --large, which rows need the large model."""
    from metacal.cli.reading import read_gate_rows
    from metacal.io.apply import write_decisions
    from metacal.rows import told

    given = read_gate_rows(gate, artifact, file, options.reading, all_stages=False)
    tables = [one.table if gate.n_classes else one for one in given.tables]
    known: dict[str, Any] = {"rejected": options.rejected, "n_jobs": resolve_n_jobs(options.n_jobs)}
    with progress_bar(len(given.found), "row", "rows") as bar, told(bar.update):
        return write_decisions(
            gate, given.found, options.output, options.output_format, tables=tables, **known
        )


def _applied_to_folder(gate: Gate, artifact: str, file: str, options: Options) -> Applied:
    """Write a folder of files, here or on a cluster, and name what is odd in it."""
    from metacal.cli.reading import check_large, check_read_options, read_keywords
    from metacal.io.apply import apply
    from metacal.rows import told

    check_large(gate, artifact, options.reading.large)
    check_read_options(gate, artifact, options.reading)
    threads, known = resolve_n_jobs(options.n_jobs), read_keywords(options.reading)
    known |= {name: getattr(options, name) for name in ("rejected", "output_format", "prune")}
    with (
        open_cluster(options.executor, threads) as there,
        progress_bar(None, "row", "rows") as bar,
        told(bar.update),
    ):
        done = apply(
            artifact,
            file,
            str(options.output),
            n_jobs=threads,
            executor=there,
            say=print_note,
            **known,
        )
    if done.empty:
        print_note(f"No rows, and so no result: {', '.join(done.empty)}.")
    if done.orphans and done.pruned:
        print_note(f"Removed, for the source is gone: {', '.join(done.orphans)}.")
    elif done.orphans:
        print_note(
            "The source is gone, the result is still there (--prune removes it):"
            f" {', '.join(done.orphans)}."
        )
    if done.edited:
        print_note(
            "The source is gone, but the result was changed by hand, and stays:"
            f" {', '.join(done.edited)}."
        )
    return done


def _check_output(output: str | None, output_format: str | None) -> None:
    if output is None and not flag_is_set("json"):
        raise click.UsageError(
            "say where the rows go: -o out.csv, -o out.parquet, or -o - for csv on stdout."
        )
    if output == "-" and flag_is_set("json"):
        raise click.UsageError("-o - and --json both want stdout; write the rows to a file.")
    said = output in (None, "-") or is_folder_output(output) or output_format is not None
    if not said and not str(output).lower().endswith(endings(written=True)):
        known = ", ".join(endings(written=True))
        raise bad_option(
            "-o", f"{output} must end in {known} (or be -), or say what it is with --output-format."
        )
