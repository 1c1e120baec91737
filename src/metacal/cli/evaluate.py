"""metacal evaluate: calibration, the gate, and whether its promise is kept, on labelled rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import click

from metacal.cli.cluster import cluster, executor_option
from metacal.cli.options import (
    BINS,
    RESAMPLES,
    SEED,
    Reading,
    Sectioned,
    jobs_option,
    json_option,
    key_option,
    large_option,
    level_option,
    option,
    reading_options,
    shared,
    threads_for,
    with_gate_and_file,
    with_options,
)
from metacal.cli.printing import progress_bar, say, wrapped
from metacal.errors import warn_caller

if TYPE_CHECKING:
    from metacal.estimators.evaluate import GateEvaluation
    from metacal.gate import Gate
    from metacal.promises.estimate import AccuracyEstimate

    Measured = GateEvaluation | AccuracyEstimate


@dataclass(frozen=True)
class Options:
    """What `metacal evaluate` is told."""

    large: str | None = shared(large_option)
    reading: Reading = reading_options()
    level: float = shared(level_option, 0.95)
    bins: int = option("Bins of the binned ECEs.", type=BINS, default=15)
    seed: int = option("Seed of the bootstrap.", type=SEED, default=0)
    resamples: int = option("0: no intervals.", type=RESAMPLES, default=1000)
    n_jobs: int | None = shared(jobs_option)
    executor: str | None = shared(executor_option)
    key: None = shared(key_option)
    as_json: bool = shared(json_option, False)


@click.command(cls=Sectioned)
@with_gate_and_file
@with_options(Options)
def command(artifact: str | None, file: str, options: Options) -> None:
    """Measure calibration, and whether the promise is kept, on labelled rows.

    GATE is what `metacal fit` saved; without one the classifier's own probabilities are measured. FILE holds logits and
    true labels of rows that neither the classifier nor `metacal fit` has seen. Shares get exact intervals, everything
    else bootstrap intervals. The promise is kept where what was measured keeps it, undecided where it is missed but the
    interval includes it, refuted where the whole interval lies on the wrong side: `metacal verify` says the same.

    With --executor the workers of a cluster read the rows. All numbers are the same, but the class-wise ECE has no
    interval, which needs every entry for each resample.

    Rows without labels cannot be measured. With a gate, how many of the accepted ones are right is then estimated from
    their confidence, with an error bar: an estimate and nothing more, and wrong if the rows have changed.

    Of a cascade FILE holds the small model's rows and --large the large one's: who answers how much, how right each is.

    It is a report: the exit code is 0 whatever the verdict; `metacal verify` exits with 3 when a promise is refuted.

    \b
    Examples:
      metacal evaluate test.npz
      metacal evaluate cal.json test.parquet
      metacal evaluate cal.json test.csv --json | jq .promise.verdict
    """  # noqa: D301
    from metacal.cli.reading import check_large, load_gate

    gate = None if artifact is None else load_gate(artifact, file)
    check_large(gate, artifact, options.large)
    if options.reading.score_key is None if gate is None else gate.kind == "logits":
        result = _measured_table(gate, artifact, file, options)
    elif options.executor is not None:
        raise click.UsageError("--executor works on one table of logits; leave it out here.")
    else:
        result = _measured_columns(gate, artifact, file, options)
    from metacal.promises.estimate import AccuracyEstimate

    if isinstance(result, AccuracyEstimate):
        warn_caller(
            f"{file}: there are no labels here, so nothing is measured, only estimated. If there are some, name them "
            "with --label-key (--correct-key for scores) or give a file of them with --labels."
        )
        answer, text = {"estimate": result.to_dict()}, wrapped(str(result), hang=0)
    else:
        about = f"{file}: " if artifact is None else f"{file}, through {artifact}: "
        answer, text = result.to_dict(), result.text(about, partial(wrapped, hang=10), few=True)
    say({"file": file, "artifact": artifact, **answer}, text, as_json=options.as_json)


def _measured_columns(gate: Gate | None, artifact: str | None, file: str, options: Options) -> Measured:
    """Scores, or the tables of a cascade: a column of confidences."""
    from metacal.cli.reading import read_marks, read_rows
    from metacal.estimators.evaluate import measured_columns
    from metacal.estimators.verify import estimate_accuracy
    from metacal.metrics.resampling import Resampling
    from metacal.rows import told

    if gate is None:
        gate, given = read_marks(file, options.reading)
    else:
        given = read_rows(gate, str(artifact), file, options.reading, options.large)
    if given.truth is None and gate.is_calibrated and gate.certificate is not None and len(gate.stages) == 1:
        return estimate_accuracy(gate, given.tables[0], level=options.level, groups=given.groups)
    seen = given.judged(gate, str(artifact), probabilities=True)
    plan = Resampling(options.level, options.resamples, options.seed)
    with progress_bar(None, "row", "rows, resampled for the intervals") as bar, told(bar.update):
        return measured_columns(gate, seen, plan, options.bins)


def _measured_table(gate: Gate | None, artifact: str | None, file: str, options: Options) -> Measured:
    """One walk over a table that may stay in its file, on threads or on a cluster."""
    from metacal.cli.reading import labels_as_columns, read, read_for
    from metacal.estimators.evaluate import walked
    from metacal.estimators.verify import estimate_accuracy
    from metacal.metrics.resampling import Resampling
    from metacal.rows import Rows, told, workers
    from metacal.rows.stored import StoredTable
    from metacal.rows.validate import class_list, logits_from

    executor, threads = options.executor, threads_for(options.n_jobs)
    stream = True if executor is not None else None
    if gate is None:
        found = read(file, options.reading, stream=stream)
    else:
        found = read_for(gate, str(artifact), file, options.reading, stream=stream)
    if found.labels is None and gate is not None and gate.certificate is not None and gate.certificate.labelled:
        return estimate_accuracy(gate, found.table, level=options.level, groups=found.groups)
    remote = executor is not None and isinstance(found.table, StoredTable)
    logits = found.table if remote else logits_from(found.table, found.input)
    codes = labels_as_columns(found, class_list(found.class_names, logits.shape[1]) if gate is None else gate.classes)
    plan = Resampling(options.level, options.resamples, options.seed)
    resampling = progress_bar(None, "row", "rows, resampled for the intervals")
    with resampling as bar, told(bar.update), cluster(executor, threads) as there, workers(threads, there) as pool:
        rows = Rows(logits, executor=pool, unseen=remote)
        _, result = walked(gate, rows, codes, plan, options.bins, found.groups, ours=True)
    if result.fitted_here:
        warn_caller(f"{file} holds the very rows that {artifact} was fitted on; measure on rows it has not seen.")
    return result
