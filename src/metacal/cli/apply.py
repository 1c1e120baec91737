"""metacal apply: calibrated probabilities and decisions for new rows, block by block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import starmap
from typing import TYPE_CHECKING, Any

import click

from metacal.cli.cascade_rows import apply_cascade, large_option
from metacal.cli.options import (
    OUTPUT_FORMATS,
    OutputPath,
    Reading,
    check_jobs,
    check_not_an_input,
    is_folder,
    jobs_option,
    json_option,
    key_option,
    reading_options,
)
from metacal.cli.printing import note, progress_bar, say_json

if TYPE_CHECKING:
    from metacal.decision import Decision
    from metacal.files.predictions import Predictions
    from metacal.gate import Gate, Rejected

#: Elements of a block of rows; 2 MB of probabilities in float32.
BLOCK_ELEMENTS = 1 << 19


@click.command()
@click.argument("artifact", type=click.Path())
@click.argument("file", type=click.Path())
@click.option(
    "-o",
    "--output",
    type=OutputPath(),
    metavar="OUT",
    help="Where the rows go: .npz, .npy, .csv, .tsv, .jsonl, .parquet, .arrow or .feather; - is csv on stdout.",
)
@click.option(
    "--output-format",
    type=click.Choice(OUTPUT_FORMATS),
    metavar="KIND",
    help="What OUT is, where its name does not say.  [default for -: csv]",
)
@click.option(
    "--rejected",
    type=click.Choice(("calibrated", "uniform")),
    default="calibrated",
    show_default=True,
    help="Probabilities of rejected rows: calibrated too, or 1/K in every class, the paper's map.",
)
@large_option
@reading_options(labels=False)
@jobs_option
@key_option
@json_option
def command(
    artifact: str,
    file: str,
    large: str | None,
    output: str | None,
    output_format: str | None,
    rejected: Rejected,
    reading: Reading,
    n_jobs: int | None,
    as_json: bool,
) -> None:
    """Give new rows calibrated probabilities and an accept/reject decision.

    ARTIFACT is what `metacal fit` saved; FILE holds logits of the same classifier, with or without labels. OUT has for
    each row its id (if FILE has ids), prediction (the reject label where rejected), answer and confidence (also where
    rejected: what a reviewer wants to see), accept, score (higher: less sure) and one calibrated probability per class.
    A calibrator without a promise rejects nothing: prediction, confidence and probabilities. A gate on scores gives
    accept, score (as it is in FILE) and confidence. Rows are read and written block by block, so FILE may be larger
    than memory.

    FILE may be a folder or a pattern such as 'logs/*.parquet'. Where OUT is a folder (it ends in /, or is there) it
    gets a file for each; after a run that was cut off, those that are finished are kept.

    With a cascade FILE holds the small model's logits and --large those of the large one; answered_by says who answers
    each row: small, large or person. Without --large the rows that need the large model are answered by nobody.

    \b
    Examples:
      metacal apply cal.json new.parquet -o out.parquet
      metacal apply cal.json new.csv -o - | head
      metacal apply cal.json - --format parquet -o out.csv < new.parquet
      metacal apply cal.json new.npz --json          only count: rows, accepted, coverage
      metacal apply judge.json new.jsonl -o out.jsonl
      metacal apply cal.json 'logs/*.parquet' -o out/
      metacal apply cascade.json small.npz --large large.npz -o out.csv
    """  # noqa: D301
    _check_output(output, output_format, as_json)
    check_not_an_input(output, file, artifact, large, reading=reading)
    threads = check_jobs(n_jobs)

    from metacal.cli.reading import load_every_gate, read_for
    from metacal.gate import CascadeGate, Gate, ScoredGate

    gate = load_every_gate(artifact, file)
    if is_folder(output) and not isinstance(gate, Gate):
        raise click.UsageError(f"a folder of results is for a gate on logits; give a file for those of {artifact}.")
    if isinstance(gate, CascadeGate):
        if rejected != "calibrated":
            raise click.UsageError(
                "--rejected uniform is the map of one gate; a cascade gives calibrated probabilities."
            )
        apply_cascade(gate, artifact, file, large, reading, output, output_format, as_json)
        return
    if large is not None:
        raise click.UsageError(f"--large belongs to a cascade; {artifact} holds one gate.")
    if isinstance(gate, ScoredGate):
        from metacal.cli.scored import apply

        apply(gate, artifact, file, output, output_format, reading, as_json)
        return
    if is_folder(output):
        from metacal.cli.parts import apply_parts

        def one(source: str, target: str) -> tuple[int, int | None]:
            found = read_for(gate, artifact, source, reading)
            return len(found), _written(gate, found, target, output_format, rejected, threads)

        made_with = {"rejected": rejected, "reading": asdict(reading)}
        n_rows, counted, told = apply_parts(one, artifact, file, str(output), output_format, made_with)
    else:
        found = read_for(gate, artifact, file, reading)
        counted, n_rows, told = _written(gate, found, output, output_format, rejected, threads), len(found), {}
    summary: dict[str, Any] = {"file": file, "artifact": artifact, "n_rows": n_rows}
    if counted is not None:
        summary |= {"n_accepted": counted, "coverage": counted / n_rows}
    if as_json:
        say_json({**summary, "output": output, **told})
    elif output != "-":
        kept = f", {counted:,} accepted ({100 * summary['coverage']:.1f}%)" if counted is not None else ""
        files = f" ({told['n_files']:,} files, {told['n_kept']:,} of them kept)" if told else ""
        note(f"{n_rows:,} rows{kept}; written to {output}{files}.")


def _check_output(output: str | None, output_format: str | None, as_json: bool) -> None:
    if output is None and not as_json:
        raise click.UsageError("say where the rows go: -o out.csv, -o out.parquet, or -o - for csv on stdout.")
    if output == "-" and as_json:
        raise click.UsageError("-o - and --json both want stdout; write the rows to a file.")
    endings = tuple(f".{kind}" for kind in OUTPUT_FORMATS)
    if (
        output not in (None, "-")
        and not is_folder(output)
        and output_format is None
        and not str(output).lower().endswith(endings)
    ):
        raise click.BadParameter(
            f"{output} must end in {', '.join(endings)} (or be -), or say what it is with --output-format.",
            param_hint="'-o'",
        )


def _written(
    gate: Gate,
    found: Predictions,
    output: str | None,
    output_format: str | None,
    rejected: Rejected,
    threads: int,
) -> int | None:
    """Write every block; return how many rows were accepted, or None where there is no gate."""
    import contextlib

    from metacal.files.decided import decided_columns
    from metacal.files.writing import open_table
    from metacal.rows import Rows, workers
    from metacal.rows.elsewhere import in_order
    from metacal.rows.workers import threads_of

    # All of FILE is checked, once, before the first row is written: a row's number is then its number in FILE.
    table = gate.read(found.table, by_rows=True)
    accepted = None if gate.is_calibrator else 0
    with contextlib.ExitStack() as stack:
        write = None
        if output is not None:
            names = gate.classes.tolist() if gate.classes_given else found.class_names
            write = stack.enter_context(open_table(output, len(found), class_names=names, format=output_format))
        bar = stack.enter_context(progress_bar(len(found), "row", "rows"))
        pool = stack.enter_context(workers(threads))

        def decide(start: int, logits: Any) -> tuple[int, Decision]:
            groups = None if found.groups is None else found.groups[start : start + len(logits)]
            rows = Rows(logits)
            return start, gate.decide(rows, rejected=rejected, probabilities=write is not None, groups=groups)

        blocks = _blocks(table)
        decided = starmap(decide, blocks) if pool is None else in_order(pool, decide, blocks, 2 * threads_of(pool) + 1)
        for start, decision in decided:
            if accepted is not None:
                accepted += int(decision.accept.sum())
            if write is not None:
                ids = None if found.ids is None else found.ids.ravel()[start : start + len(decision)]
                write(decided_columns(gate, decision, ids))
            bar.update(len(decision))
    return accepted


def _blocks(table: Any) -> Iterator[tuple[int, Any]]:
    """Each block of rows and the number of its first: read here, in order; what is to be converted waits."""
    from metacal.rows import Rows
    from metacal.rows.stored import StoredTable

    # Whole strips: the same rows are worked on together as in one call, to the last bit.
    step = Rows(table, block_rows=max(1, BLOCK_ELEMENTS // table.shape[1])).block_rows
    for start in range(0, len(table), step):
        stop = min(start + step, len(table))
        yield start, table.fetched(start, stop) if isinstance(table, StoredTable) else table[start:stop]
