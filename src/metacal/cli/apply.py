"""metacal apply: calibrated probabilities and decisions for new rows, block by block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from metacal.cli.cluster import check_executor, cluster, executor_option
from metacal.cli.given import Given, large_option, read_given
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
from metacal.errors import InputError
from metacal.io.formats import endings

if TYPE_CHECKING:
    from metacal.gate import Decision, Gate, Rejected
    from metacal.io.apply import Applied

#: Elements of a block of rows.
_BLOCK_ELEMENTS = 1 << 19


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
@click.option(
    "--prune",
    is_flag=True,
    help="Where OUT is a folder: remove results whose source is gone, unless they were changed since.",
)
@large_option
@reading_options(labels=False)
@jobs_option
@executor_option
@key_option
@json_option
def command(
    artifact: str,
    file: str,
    large: str | None,
    output: str | None,
    output_format: str | None,
    rejected: Rejected,
    prune: bool,
    reading: Reading,
    n_jobs: int | None,
    executor: str | None,
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
    gets a file for each; after a run that was cut off, those that are finished are kept, as long as their source is the
    same. Results whose source is gone are named, and removed with --prune. With --executor the workers of a cluster
    read and write these files.

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
      metacal apply cal.json 'logs/*.parquet' -o out/ --executor dask://host:8786
      metacal apply cascade.json small.npz --large large.npz -o out.csv
    """  # noqa: D301
    _check_output(output, output_format, as_json)
    check_not_an_input(output, file, artifact, large, reading=reading)
    threads = check_jobs(n_jobs)
    check_executor(executor)
    if executor is not None and not is_folder(output):
        raise click.UsageError(
            "--executor writes a folder of results, a file for each that is read; end its name with /: -o out/."
        )
    if prune and not is_folder(output):
        raise click.UsageError("--prune is for a folder of results; end its name with /: -o out/.")

    from metacal.cli.reading import load_gate

    gate = load_gate(artifact, file)
    if is_folder(output) and gate.kind != "logits":
        raise click.UsageError(f"a folder of results is for a gate on logits; give a file for those of {artifact}.")
    if rejected != "calibrated" and gate.kind == "cascade":
        raise click.UsageError("--rejected uniform is the map of one gate; a cascade gives calibrated probabilities.")
    if gate.kind != "logits":
        _apply_in_blocks(gate, artifact, file, large, output, output_format, reading, as_json)
        return
    if large is not None:
        raise click.UsageError(f"--large belongs to a cascade; {artifact} holds one gate.")
    done = _applied(gate, artifact, file, output, output_format, rejected, reading, threads, executor, prune)
    summary: dict[str, Any] = {"file": file, "artifact": artifact, "n_rows": done.n_rows}
    if done.n_accepted is not None:
        summary |= {"n_accepted": done.n_accepted, "coverage": done.n_accepted / done.n_rows}
    folder: dict[str, Any] = {}
    if is_folder(output):
        folder = {"n_files": done.n_files, "n_kept": done.n_kept, "empty": done.empty, "orphans": done.orphans}
        folder |= {"pruned": done.pruned, "edited": done.edited}
        _name_the_odd(done)
    if as_json:
        say_json({**summary, "output": output, **folder})
    elif output != "-":
        kept = "" if done.n_accepted is None else f", {done.n_accepted:,} accepted ({100 * summary['coverage']:.1f}%)"
        files = f" ({done.n_files:,} files, {done.n_kept:,} of them kept)" if folder else ""
        note(f"{done.n_rows:,} rows{kept}; written to {output}{files}.")


def _apply_in_blocks(
    gate: Gate,
    artifact: str,
    file: str,
    large: str | None,
    output: str | None,
    output_format: str | None,
    reading: Reading,
    as_json: bool,
) -> None:
    """Write what is decided on scores, or by a cascade; without --large, which rows need the large model."""
    given = read_given(gate, artifact, file, reading, large, all_stages=False)
    counts = _written(gate, given, output, output_format)
    n, accepted, missing = len(given), counts.pop("accepted"), counts.pop("without a score")
    summary: dict[str, Any] = {"file": file, "artifact": artifact, "n_rows": n}
    summary |= {"n_accepted": accepted, "coverage": accepted / n}
    if as_json:
        more = {"large": large, "answered_by": counts} if counts else {"n_without_score": missing}
        say_json({**summary, **more, "output": output})
        return
    if missing:
        note(f"{missing:,} of {n:,} rows have no score: they are rejected.")
    if output != "-":
        told = f"; answered by: {', '.join(f'{name} {count:,}' for name, count in counts.items())}" if counts else ""
        note(f"{n:,} rows, {accepted:,} accepted ({100 * accepted / n:.1f}%){told}; written to {output}.")
    if counts.get("nobody"):
        note("Run the large model on the rows that nobody has answered, and give its predictions as --large.")


def _written(gate: Gate, given: Given, output: str | None, output_format: str | None) -> Counter[str]:
    """Write every block; return how many rows are accepted, lack a score, and are answered by whom."""
    import contextlib

    import numpy as np

    from metacal.io.batches import decided_columns
    from metacal.io.writing import open_table

    counts: Counter[str] = Counter({"accepted": 0, "without a score": 0})
    with contextlib.ExitStack() as stack:
        write = None
        if output is not None:
            named = gate.classes.tolist() if gate.source.classes_given else getattr(given.found, "class_names", None)
            write = stack.enter_context(open_table(output, len(given), class_names=named, format=output_format))
        bar = stack.enter_context(progress_bar(len(given), "row", "rows"))
        for start, decision in _decisions(gate, given):
            if decision.by is not None:
                names = (*decision.stages, decision.last)
                counts.update(dict(zip(names, np.bincount(decision.by, minlength=len(names)).tolist())))
            counts["accepted"] += int(decision.accept.sum())
            counts["without a score"] += int(np.isnan(decision.doubt).sum())
            if write is not None:
                ids = None if given.ids is None else given.ids[start : start + len(decision)]
                write(decided_columns(gate, decision, ids))
            bar.update(len(decision))
    return counts


def _decisions(gate: Gate, given: Given) -> Iterator[tuple[int, Decision]]:
    """The number of the first row of each block, and what the gate decides on it.

    A later model's table holds every row, or those alone that the first one leaves. Without it these are left to
    nobody.
    """
    from dataclasses import replace

    import numpy as np

    first, n, at = given.tables[0], len(given), 0
    later = given.tables[1] if len(given.tables) > 1 else None
    if later is not None and len(later) != n and len(later) != (needed := int((~gate.accepts(first)).sum())):
        raise InputError(
            f"--large has {len(later):,} rows; give all {n:,}, or the {needed:,} that the small model does not answer."
        )
    step = max(1, _BLOCK_ELEMENTS // max(1, gate.n_classes))
    for start in range(0, n, step):
        stop = min(start + step, n)
        rows = _part(first, start, stop)
        if len(gate.stages) == 1:
            yield start, gate.decide(rows, groups=None if given.groups is None else given.groups[start:stop])
        elif later is None:
            alone = gate.stage(0).decide(rows)
            yield start, replace(alone, by=np.where(alone.accept, 0, 1), stages=("small",), last="nobody")
        else:
            whole = len(later) == n
            span = (start, stop) if whole else (at, at + int((~gate.accepts(rows)).sum()))
            at = span[1]
            yield start, gate.decide(rows, _part(later, *span))


def _part(given: Any, start: int, stop: int) -> Any:
    """Some rows of what a stage reads."""
    from metacal.rows import Rows
    from metacal.rows.stored import StoredTable

    if not isinstance(given, Rows):
        return given[start:stop]
    table = given.table
    return Rows(table.fetched(start, stop) if isinstance(table, StoredTable) else table[start:stop])


def _name_the_odd(done: Applied) -> None:
    """Name sources without rows, and results without a source."""
    if done.empty:
        note(f"No rows, and so no result: {', '.join(done.empty)}.")
    if done.orphans and done.pruned:
        note(f"Removed, for the source is gone: {', '.join(done.orphans)}.")
    elif done.orphans:
        note(f"The source is gone, the result is still there (--prune removes it): {', '.join(done.orphans)}.")
    if done.edited:
        note(f"The source is gone, but the result was changed by hand, and stays: {', '.join(done.edited)}.")


def _applied(
    gate: Gate,
    artifact: str,
    file: str,
    output: str | None,
    output_format: str | None,
    rejected: Rejected,
    reading: Reading,
    threads: int,
    executor: str | None,
    prune: bool,
) -> Applied:
    """Write one file, or a folder of them."""
    from metacal.cli.reading import keywords_for, read_for
    from metacal.io.apply import FileApplier, apply_to_folder, write_decisions
    from metacal.io.batches import BatchGate
    from metacal.io.results import checksum_of
    from metacal.rows import told

    if not is_folder(output):
        found = read_for(gate, artifact, file, reading)
        with progress_bar(len(found), "row", "rows") as bar, told(bar.update):
            return write_decisions(gate, found, output, output_format, rejected=rejected, n_jobs=threads)
    made_with = {"rejected": rejected, "reading": asdict(reading), "artifact": checksum_of(artifact)}
    shipped = gate if executor is None else BatchGate(artifact, group_key=reading.group_key)
    options = keywords_for(gate, artifact, reading)
    one = FileApplier(shipped, artifact, options, rejected, output_format, threads)

    def check(target: str, source: str) -> None:
        check_not_an_input(target, source, file)

    with (
        cluster(executor, threads) as there,
        progress_bar(None, "row", "rows") as bar,
        told(bar.update),
    ):
        return apply_to_folder(one, file, str(output), made_with, there, prune=prune, check=check, say=note)


def _check_output(output: str | None, output_format: str | None, as_json: bool) -> None:
    if output is None and not as_json:
        raise click.UsageError("say where the rows go: -o out.csv, -o out.parquet, or -o - for csv on stdout.")
    if output == "-" and as_json:
        raise click.UsageError("-o - and --json both want stdout; write the rows to a file.")
    if (
        output not in (None, "-")
        and not is_folder(output)
        and output_format is None
        and not str(output).lower().endswith(endings(written=True))
    ):
        raise click.BadParameter(
            f"{output} must end in {', '.join(endings(written=True))} (or be -), or say what it is with "
            "--output-format.",
            param_hint="'-o'",
        )
