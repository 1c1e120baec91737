"""metacal evaluate: calibration, the gate, and whether its promise is kept, on labelled rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from metacal.cli.cluster import check_executor, cluster, executor_option
from metacal.cli.given import Given, large_option, read_given, read_scored
from metacal.cli.options import (
    BINS,
    RESAMPLES,
    SEED,
    Reading,
    check_jobs,
    jobs_option,
    json_option,
    key_option,
    level_option,
    reading_options,
)
from metacal.cli.printing import aligned, echo, progress_bar, say_json, wrapped
from metacal.errors import warn_caller

if TYPE_CHECKING:
    from collections.abc import Iterable

    from metacal.estimators.evaluate import GateEvaluation
    from metacal.gate import Gate
    from metacal.metrics.resampling import Resampling
    from metacal.promises.certificate import Certificate


@click.command()
@click.argument("file", type=click.Path())
@click.option("--with", "artifact", type=click.Path(), metavar="JSON", help="What `metacal fit` saved.")
@large_option
@reading_options()
@level_option
@click.option("--bins", type=BINS, default=15, show_default=True, help="Bins of the binned ECEs.")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of the bootstrap.")
@click.option("--resamples", type=RESAMPLES, default=1000, show_default=True, help="0: no intervals.")
@jobs_option
@executor_option
@key_option
@json_option
def command(
    file: str,
    artifact: str | None,
    large: str | None,
    reading: Reading,
    level: float,
    bins: int,
    seed: int,
    resamples: int,
    n_jobs: int | None,
    executor: str | None,
    as_json: bool,
) -> None:
    """Measure calibration, and whether the promise is kept, on labelled rows.

    FILE holds logits and true labels of rows that neither the classifier nor `metacal fit` has seen. Without --with the
    classifier's own probabilities are measured. Shares get exact intervals, everything else bootstrap intervals.

    With --executor the workers of a cluster read the rows. All numbers are the same, but the class-wise ECE has no
    interval, which needs every entry for each resample.

    Rows without labels cannot be measured. With --with how many of the accepted ones are right is then estimated from
    their confidence, with an error bar: an estimate and nothing more, which shift makes wrong.

    Of a cascade FILE holds the small model's rows and --large the large one's: who answers how much, how right each is.

    It is a report: the exit code is 0 also when the promise is not kept.

    \b
    Examples:
      metacal evaluate test.npz
      metacal evaluate test.parquet --with cal.json
      metacal evaluate test.csv --with cal.json --json | jq .promise
    """  # noqa: D301
    threads = check_jobs(n_jobs)
    check_executor(executor)
    from metacal.cli.reading import load_gate

    gate = None if artifact is None else load_gate(artifact, file)
    if gate is None and large is not None:
        raise click.UsageError("--large belongs to a cascade; give --with cascade.json, which metacal cascade saves.")
    from metacal.metrics.resampling import Resampling

    plan = Resampling(level, resamples, seed)
    if gate is None and reading.score_key is not None:
        from metacal.gate import Gate, Marks

        gate = Gate.of(Marks("score", reading.higher_is or "surer"))  # type: ignore[arg-type]
        found = read_scored(file, reading)
        given = Given(file, (found.score,), found.correct, found)
    elif gate is None or gate.kind == "logits":
        if large is not None:
            raise click.UsageError(f"--large belongs to a cascade; {artifact} holds one gate.")
        _evaluate_table(gate, artifact, file, reading, plan, bins, threads, executor, as_json)
        return
    else:
        given = read_given(gate, str(artifact), file, reading, large)
    if executor is not None:
        raise click.UsageError("--executor works on one table of logits; leave it out here.")
    if given.truth is None and gate.is_calibrated and gate.certificate is not None and len(gate.stages) == 1:
        _estimated(gate, given.tables[0], None, file, str(artifact), level, as_json)
        return
    from metacal.estimators.evaluate import measured_columns
    from metacal.rows import told

    seen = given.judged(gate, str(artifact), probabilities=True)
    with progress_bar(None, "row", "rows, resampled for the intervals") as bar, told(bar.update):
        result = measured_columns(gate, seen, plan, bins)
    say_evaluation(result, file, artifact, as_json)


def _estimated(gate: Gate, X: Any, groups: Any, file: str, artifact: str, level: float, as_json: bool) -> None:
    """Print how many of the accepted rows are right by their confidence alone: an estimate, called one."""
    from metacal.estimators.estimate import estimate_accuracy

    warn_caller(
        f"{file}: there are no labels here, so nothing is measured, only estimated. If there are some, name them with "
        "--label-key (--correct-key for scores) or give a file of them with --labels."
    )
    found = estimate_accuracy(gate, X, level=level, groups=groups)
    if as_json:
        say_json({"file": file, "artifact": artifact, "estimate": found.to_dict()})
    else:
        echo(wrapped(str(found), hang=0))


def _evaluate_table(
    gate: Gate | None,
    artifact: str | None,
    file: str,
    reading: Reading,
    plan: Resampling,
    bins: int,
    threads: int,
    executor: str | None,
    as_json: bool,
) -> None:
    """One walk over a table that may stay in its file, on threads or on a cluster."""
    from metacal.cli.reading import labels_as_columns, read, read_for
    from metacal.estimators.evaluate import walked
    from metacal.rows import Rows, told, workers
    from metacal.rows.stored import StoredTable
    from metacal.rows.validate import class_list, logits_from

    stream = True if executor is not None else None
    if gate is None:
        found = read(file, reading, stream=stream)
    else:
        found = read_for(gate, str(artifact), file, reading, stream=stream)
    if found.labels is None and gate is not None and gate.certificate is not None and gate.certificate.labelled:
        _estimated(gate, found.table, found.groups, file, str(artifact), plan.level, as_json)
        return
    remote = executor is not None and isinstance(found.table, StoredTable)
    logits = found.table if remote else logits_from(found.table, found.input)
    codes = labels_as_columns(found, class_list(found.class_names, logits.shape[1]) if gate is None else gate.classes)
    resampling = progress_bar(None, "row", "rows, resampled for the intervals")
    with resampling as bar, told(bar.update), cluster(executor, threads) as there, workers(threads, there) as pool:
        rows = Rows(logits, executor=pool, unseen=remote)
        _, result = walked(gate, rows, codes, plan, bins, found.groups, ours=True)
    if result.fitted_here:
        warn_caller(f"{file} holds the very rows that {artifact} was fitted on; measure on rows it has not seen.")
    say_evaluation(result, file, artifact, as_json)


def say_evaluation(result: GateEvaluation, file: str, artifact: str | None, as_json: bool) -> None:
    """Print what was measured, on logits as on scores."""
    if as_json:
        say_json({"file": file, "artifact": artifact, **result.to_dict()})
    else:
        echo(_text(result, file, artifact))


def _text(found: GateEvaluation, file: str, artifact: str | None) -> str:
    after = found.after
    gated = "" if after.n_accepted is None else f"; {after.n_accepted:,} accepted"
    through = "" if artifact is None else f", through {artifact}"
    classes = f", {after.n_classes} classes" if after.n_classes else ""
    lines = [
        f"{file}{through}: {after.n_rows:,} rows{classes}{gated}",
        f"(in brackets: {100 * after.level:g}% intervals{which_confidence(found.certificate)})",
    ]
    if found.certificate is not None:
        lines += ["", f"promised  {found.certificate.statement}", f"measured  {found.verdict}"]
        lines += [f"  {own.part}  {own.short}" for own in (found.verdict.of_parts if found.verdict else ())[:_FEW]]
    lines += [f"  {one.name:<8}{one}" for one in found.answered_by]
    lines = [wrapped(line, hang=10) for line in lines]
    lines += ["", *_probabilities(found)]
    if (harm := found.harm) is not None:
        lines += ["", wrapped(harm)]
    words = metric_words(after.gate)
    ranking = [(words[name], str(after.gate[name])) for name in words]
    lines += ["", *aligned([("ranking of the rows" if after.n_accepted is None else "gate", ""), *ranking])]
    if after.n_accepted is not None and after.n_classes:
        lines += ["", _NOTE]
    return "\n".join(lines)


def _probabilities(found: GateEvaluation) -> list[str]:
    after, before = found.after, found.before
    groups = [("all rows", after.all_rows, None if before is None else before.all_rows)]
    if after.n_accepted is not None:
        kept = None if before is None else before.accepted_rows or {}
        groups.insert(0, ("accepted rows", after.accepted_rows or {}, kept))
    words = metric_words(after.all_rows)
    names = list(words)
    heads, columns = [], []
    for title, now, earlier in groups:
        heads.append(title)
        columns.append([str(now.get(name, "undefined")) for name in names])
        if earlier is not None:
            heads.append("uncalibrated")
            points = (earlier.get(name) for name in names)
            columns.append(["undefined" if point is None else f"{point.estimate:.4f}" for point in points])
    return aligned([("probabilities" if after.n_classes else "confidence", *heads), *zip(words.values(), *columns)])


def which_confidence(certificate: Certificate | None) -> str:
    """Two percentages stand close together; they are about different rows."""
    from metacal.promises.words import at_least

    if certificate is None or certificate.confidence is None:
        return ""
    return f" of what these rows show; the promise's {at_least(certificate.confidence)} is about the fit"


def metric_words(names: Iterable[str]) -> dict[str, str]:
    """What people see of these metrics, and under which words; --json has all of them."""
    from metacal.metrics.registry import METRICS

    rows = [METRICS[name] for name in names]
    return {row.name: row.words or row.title for row in rows if row.words is not None}


#: Classes or groups that are shown, the worst first; --json has all.
_FEW = 10
_NOTE = (
    "Rejected rows have probability 1/K in every class, which dilutes the ECE of all rows and lowers\n"
    "their accuracy: judge calibration by the accepted rows, next to the coverage."
)
