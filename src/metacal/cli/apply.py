"""metacal apply: calibrated probabilities and decisions for new rows, block by block."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from metacal.cli.options import (
    OUTPUT_FORMATS,
    Reading,
    check_jobs,
    check_not_an_input,
    jobs_option,
    json_option,
    key_option,
    reading_options,
)
from metacal.cli.printing import note, progress_bar, say_json

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from metacal.files.predictions import Predictions

#: Elements of a block of rows; 2 MB of probabilities in float32.
BLOCK_ELEMENTS = 1 << 19


@click.command()
@click.argument("artifact", type=click.Path())
@click.argument("file", type=click.Path())
@click.option(
    "-o",
    "--output",
    type=click.Path(),
    metavar="OUT",
    help="Where the rows go: .npz, .npy, .csv, .tsv, .parquet, .arrow or .feather; - is csv on stdout.",
)
@click.option(
    "--output-format",
    type=click.Choice(OUTPUT_FORMATS),
    metavar="KIND",
    help="What OUT is, where its name does not say.  [default for -: csv]",
)
@reading_options(labels=False)
@jobs_option
@key_option
@json_option
def command(
    artifact: str,
    file: str,
    output: str | None,
    output_format: str | None,
    reading: Reading,
    n_jobs: int | None,
    as_json: bool,
) -> None:
    """Give new rows calibrated probabilities and an accept/reject decision.

    ARTIFACT is what `metacal fit` saved; FILE holds logits of the same classifier, with or without labels. OUT has for
    each row its id (if FILE has ids), prediction (the reject label where rejected), accept, score (higher: less sure)
    and one probability per class. Rows are read and written block by block, so FILE may be larger than memory.

    \b
    Examples:
      metacal apply cal.json new.parquet -o out.parquet
      metacal apply cal.json new.csv -o - | head
      metacal apply cal.json - --format parquet -o out.csv < new.parquet
      metacal apply cal.json new.npz --json          only count: rows, accepted, coverage
    """  # noqa: D301
    _check_output(output, output_format, as_json)
    check_not_an_input(output, file, artifact, reading=reading)
    check_jobs(n_jobs)

    from metacal.cli.reading import load_saved, read_for

    estimator = load_saved(artifact)
    found = read_for(estimator, artifact, file, reading)
    counted = _written(estimator, found, output, output_format, estimator.n_jobs if n_jobs is None else n_jobs)
    summary: dict[str, Any] = {"file": file, "n": len(found)}
    if counted is not None:
        summary |= {"accepted": counted, "coverage": counted / len(found)}
    if as_json:
        say_json({**summary, "output": output})
    elif output != "-":
        gate = f", {summary['accepted']:,} accepted ({100 * summary['coverage']:.1f}%)" if "accepted" in summary else ""
        note(f"{len(found):,} rows{gate}; written to {output}.")


def _check_output(output: str | None, output_format: str | None, as_json: bool) -> None:
    if output is None and not as_json:
        raise click.UsageError("say where the rows go: -o out.csv, -o out.parquet, or -o - for csv on stdout.")
    if output == "-" and as_json:
        raise click.UsageError("-o - and --json both want stdout; write the rows to a file.")
    endings = tuple(f".{kind}" for kind in OUTPUT_FORMATS)
    if output not in (None, "-") and output_format is None and not str(output).lower().endswith(endings):
        raise click.BadParameter(
            f"{output} must end in {', '.join(endings)} (or be -), or say what it is with --output-format.",
            param_hint="'-o'",
        )


def _written(
    estimator: Any, found: Predictions, output: str | None, output_format: str | None, n_jobs: int | None
) -> int | None:
    """Write every block; return how many rows were accepted, or None where there is no gate."""
    import contextlib

    from metacal.files.writing import open_table
    from metacal.rows import Rows, validate, workers

    # All of FILE is checked before the first row is written: a row's number is then its number in FILE.
    check = validate.logits_table if found.input == "logits" else validate.probability_table
    table: Any = check(found.table)
    estimator.set_params(n_jobs=None)  # whole blocks are worked on side by side
    # Whole strips: the same rows are worked on together as in one call, to the last bit.
    step = Rows(table, block_rows=max(1, BLOCK_ELEMENTS // table.shape[1])).block_rows
    blocks = ((start, table[start : start + step]) for start in range(0, len(table), step))
    accepted = 0 if hasattr(estimator, "certificate_") else None
    with contextlib.ExitStack() as stack:
        write = None
        if output is not None:
            names = _names(estimator, found)
            write = stack.enter_context(open_table(output, len(found), class_names=names, format=output_format))
        bar = stack.enter_context(progress_bar(len(found), "row", "rows"))
        pool = stack.enter_context(workers(n_jobs))

        def decide(block: tuple[int, Any]) -> dict[str, Any]:
            return _columns(estimator, found, *block, everything=write is not None)

        for columns in _in_order(decide, blocks, pool):
            if accepted is not None:
                accepted += int(columns["accept"].sum())
            if write is not None:
                write(columns)
            bar.update(len(columns["prediction"]))
    return accepted


def _in_order(task: Callable[[Any], Any], items: Iterator[Any], pool: Executor | None) -> Iterator[Any]:
    """The task's results in order, with only a few items in memory at a time."""
    if pool is None:
        yield from map(task, items)
        return
    pending: deque[Any] = deque()
    for item in items:
        pending.append(pool.submit(task, item))
        if len(pending) > 2 * getattr(pool, "_max_workers", 2):
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


def _columns(estimator: Any, found: Predictions, start: int, block: Any, *, everything: bool) -> dict[str, Any]:
    from metacal.promises.certificate import accepts

    stop = start + len(block)
    columns: dict[str, Any] = {} if found.ids is None else {"id": found.ids.ravel()[start:stop]}
    columns["prediction"] = estimator.predict(block)
    if hasattr(estimator, "certificate_"):
        score = estimator.ranking_scores(block)
        columns |= {"accept": accepts(score, estimator.threshold_), "score": score}
    return columns | {"probs": estimator.predict_proba(block)} if everything else columns


def _names(estimator: Any, found: Predictions) -> Any:
    """The classes where they were named; else the names that FILE has for its columns."""
    return estimator.classes_.tolist() if estimator.classes is not None else found.class_names
