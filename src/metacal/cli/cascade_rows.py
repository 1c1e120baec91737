"""What apply, verify, evaluate and report do with a cascade: two files of the same rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from metacal.cli.options import Reading
from metacal.cli.printing import echo, note, progress_bar, say_json, wrapped
from metacal.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from metacal.estimators.cascade_evaluation import CascadeEvaluation
    from metacal.gate import CascadeGate
    from metacal.io.predictions import Predictions
    from metacal.rows import Rows

#: The option of the commands that read a cascade.
large_option = click.option(
    "--large",
    type=click.Path(),
    metavar="LARGEFILE",
    help="With a cascade: the large model's predictions, of all rows or of those that need it.",
)
_BLOCK_ELEMENTS = 1 << 19


def apply_cascade(
    gate: CascadeGate,
    artifact: str,
    file: str,
    large: str | None,
    reading: Reading,
    output: str | None,
    output_format: str | None,
    as_json: bool,
) -> None:
    """Write who answers each row, and what; without the large model's file, which rows need it."""
    from metacal.cli.reading import read_for

    found = read_for(gate.small, artifact, file, reading)
    other = None if large is None else read_for(gate.large, artifact, large, reading)
    counted = _written(gate, found, other, output, output_format)
    summary = {"file": file, "artifact": artifact, "large": large, "n_rows": len(found), "answered_by": counted}
    if as_json:
        say_json({**summary, "output": output})
        return
    told = ", ".join(f"{name} {n:,}" for name, n in counted.items())
    if output != "-":
        note(f"{len(found):,} rows; answered by: {told}; written to {output}.")
    if other is None and counted["nobody"]:
        note("Run the large model on the rows that nobody has answered, and give its predictions as --large.")


def _written(
    gate: CascadeGate, found: Predictions, other: Predictions | None, output: str | None, output_format: str | None
) -> dict[str, int]:
    """Write every block; return how many rows each has answered."""
    import contextlib

    import numpy as np

    from metacal.io.writing import open_table
    from metacal.rows import Rows

    small, n = gate.small.read(found.table, by_rows=True), len(found)
    large = None if other is None else gate.large.read(other.table, by_rows=True)
    needed = 0 if large is None else int(gate.needs_large(Rows(small)).sum())
    if large is not None and len(large) not in (n, needed):
        raise InputError(
            f"--large has {len(large):,} rows; give all {n:,}, or the {needed:,} that the small model does not answer."
        )
    names = ("small", "large", "person") if large is not None else ("small", "nobody")
    counted, at = dict.fromkeys(names, 0), 0
    step = Rows(small, block_rows=max(1, _BLOCK_ELEMENTS // gate.n_classes)).block_rows
    with contextlib.ExitStack() as stack:
        write = None
        if output is not None:
            classes = gate.classes.tolist() if gate.small.classes_given else found.class_names
            write = stack.enter_context(open_table(output, n, class_names=classes, format=output_format))
        bar = stack.enter_context(progress_bar(n, "row", "rows"))
        for start in range(0, n, step):
            stop = min(start + step, n)
            rows = Rows(_part(small, start, stop))
            span = (
                (start, stop) if large is not None and len(large) == n else (at, at + int(gate.needs_large(rows).sum()))
            )
            columns, by = _decided(gate, rows, None if large is None else _part(large, *span))
            at = span[1]
            for name, count in zip(*np.unique(by, return_counts=True)):
                counted[str(name)] += int(count)
            if write is not None:
                ids = {} if found.ids is None else {"id": found.ids.ravel()[start:stop]}
                write({**ids, **columns})
            bar.update(stop - start)
    return counted


def _decided(gate: CascadeGate, rows: Any, large: Any) -> tuple[dict[str, Any], Any]:
    """What is written of a block of rows, by name, and who answers each."""
    import numpy as np

    from metacal.rows import Rows

    if large is None:
        alone = gate.small.decide(rows)
        by = np.where(alone.accept, "small", "nobody")
        told = {"prediction": alone.label, "answer": alone.answer, "confidence": alone.confidence}
        return {
            **told,
            "answered_by": by,
            "accept": alone.accept,
            "score": alone.score,
            "probs": alone.probabilities,
        }, by
    both = gate.decide(rows, Rows(large))
    told = {"prediction": both.label, "answer": both.answer, "confidence": both.confidence}
    rest = {"accept": both.accept, "score": both.score, "probs": both.probabilities}
    return {**told, "answered_by": both.answered_by, **rest}, both.answered_by


def _part(table: Any, start: int, stop: int) -> Any:
    from metacal.rows.stored import StoredTable

    return table.fetched(start, stop) if isinstance(table, StoredTable) else table[start:stop]


def _read_both(
    gate: CascadeGate, artifact: str, file: str, large: str, reading: Reading
) -> tuple[Rows, Rows, NDArray[Any]]:
    """The rows of both models, and the labels that either file has."""
    from metacal.cli.reading import read_for
    from metacal.rows import Rows

    found, other = read_for(gate.small, artifact, file, reading), read_for(gate.large, artifact, large, reading)
    if len(found) != len(other):
        raise InputError(f"{file} has {len(found):,} rows, {large} {len(other):,}; give the same rows of both models.")
    tables = gate.small.read(found.table, by_rows=True), gate.large.read(other.table, by_rows=True)
    return Rows(tables[0]), Rows(tables[1]), found.require_labels() if other.labels is None else other.labels


def verify_cascade_file(
    gate: CascadeGate, artifact: str, file: str, large: str | None, reading: Reading, confidence: float, as_json: bool
) -> bool:
    """Print whether the promise of a cascade still stands; return whether it is refuted."""
    from metacal.gate.cascade import paired
    from metacal.promises.rules.cascade_verification import verify_cascade
    from metacal.rows.labels import codes_where_known

    if large is None:
        raise click.UsageError(
            f"{artifact} holds a cascade: give the large model's predictions too, --large LARGEFILE."
        )
    small, second, labels = _read_both(gate, artifact, file, large, reading)
    codes = codes_where_known(labels, len(small), gate.classes)
    fitted_here = gate.fitted_on(small, second)
    if fitted_here:
        note(f"Warning: {file} holds the very rows that {artifact} was fitted on; they say nothing new.")
    rows = paired(small, second, codes, (gate.small.score, gate.large.score))
    result = verify_cascade(gate.certificate, rows, confidence)
    if as_json:
        say_json({"file": file, "large": large, "artifact": artifact, **result.to_dict(), "fitted_here": fitted_here})
    else:
        echo(wrapped(result.text(f" of {file} through {artifact}")))
    return result.refuted


def measured_cascade(artifact: str | None, file: str, large: str, reading: Reading, level: float) -> CascadeEvaluation:
    """What a cascade does on labelled rows of both models."""
    from metacal.cli.reading import load_every_gate
    from metacal.estimators.cascade_evaluation import evaluate_cascade
    from metacal.gate import CascadeGate

    gate = None if artifact is None else load_every_gate(artifact)
    if artifact is None or not isinstance(gate, CascadeGate):
        raise click.UsageError("--large belongs to a cascade; give --with cascade.json, which metacal cascade saves.")
    source = {"file": file, "large_file": large, "artifact": artifact}
    small, second, labels = _read_both(gate, artifact, file, large, reading)
    result = evaluate_cascade(gate, small, second, labels, level=level, **source)
    if result.fitted_here:
        note(f"Warning: {file} holds the very rows that {artifact} was fitted on; measure on rows it has not seen.")
    return result


def evaluate_cascade_file(
    artifact: str | None, file: str, large: str, reading: Reading, level: float, as_json: bool
) -> None:
    """Print who answers how much, how right each is, and whether the promise stands."""
    result = measured_cascade(artifact, file, large, reading, level)
    if as_json:
        say_json(result.to_dict())
    else:
        echo(wrapped(str(result)))


def report_cascade(
    artifact: str | None,
    file: str,
    large: str,
    reading: Reading,
    output: str,
    title: str | None,
    level: float,
    as_json: bool,
) -> None:
    """Write the page on a cascade."""
    from metacal.cli.printing import echo_data
    from metacal.report.cascade_page import render_cascade, write_cascade_report

    if output == "-" and as_json:
        raise click.UsageError("-o - and --json both want stdout; write the page to a file.")
    summary = measured_cascade(artifact, file, large, reading, level)
    if output == "-":
        echo_data(render_cascade(summary, title=title))
        return
    size = write_cascade_report(summary, output, title=title)
    if as_json:
        say_json({**summary.to_dict(), "output": output, "bytes": size})
    else:
        echo(wrapped(str(summary)))
    note(f"Written to {output} ({size / 1000:,.0f} kB).")
