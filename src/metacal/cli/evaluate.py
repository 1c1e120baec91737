"""metacal evaluate: calibration, the gate, and whether its promise is kept, on labelled rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from metacal.cli.cluster import executor_option, open_cluster
from metacal.cli.options import (
    ReadOptions,
    as_command,
    jobs_option,
    level_option,
    option,
    option_group,
    resolve_n_jobs,
)
from metacal.cli.printing import print_result, progress_bar, wrap_lines
from metacal.cli.values import BINS_RANGE, RESAMPLES_RANGE, SEED_RANGE
from metacal.errors import warn_caller

if TYPE_CHECKING:
    from metacal.estimators.evaluate import GateEvaluation
    from metacal.promises.estimate import AccuracyEstimate

    Measured = GateEvaluation | AccuracyEstimate


@dataclass(frozen=True)
class Options:
    """Options of `metacal evaluate`."""

    reading: ReadOptions = option_group(ReadOptions)
    level: float = level_option()
    bins: int = option("Bins of the binned ECEs.", type=BINS_RANGE, default=15)
    seed: int = option("Seed of the bootstrap.", type=SEED_RANGE, default=0)
    resamples: int = option("0: no intervals.", type=RESAMPLES_RANGE, default=1000)
    n_jobs: int | None = jobs_option()
    executor: str | None = executor_option()


@as_command(Options, "[GATE] FILE", sectioned=True)
def command(artifact: str | None, file: str, options: Options) -> None:
    """Measure calibration, and whether the promise is kept, on labelled rows.

    GATE is what `metacal fit` saved; without one the classifier's own probabilities are measured.
    FILE holds logits and true labels of rows that neither the classifier nor `metacal fit` has
    seen. Shares get exact intervals, everything else bootstrap intervals. The promise is kept where
    what was measured keeps it, undecided where it is missed but the interval includes it, refuted
    where the whole interval lies on the wrong side, and not judged if FILE has rows of the fit:
    `metacal verify` says the same.

    With --executor the workers of a cluster read the rows. All numbers are the same, but the
    class-wise ECE has no interval, which needs every entry for each resample.

    Rows without labels cannot be measured. With a gate, how many of the accepted ones are right is
    then estimated from their confidence, with an error bar: an estimate and nothing more, and wrong
    if the rows have changed.

    Of a cascade FILE holds the small model's rows and --large the large one's: who answers how
    much, how right each is.

    It is a report: the exit code is 0 whatever the verdict; `metacal verify` exits with 3 when a
    promise is refuted.

    \b
    Examples:
      metacal evaluate test.npz
      metacal evaluate cal.json test.parquet
      metacal evaluate cal.json test.csv --json | jq .promise.verdict
    """  # noqa: D301
    from metacal.promises.estimate import AccuracyEstimate

    result = _measured(artifact, file, options)
    if isinstance(result, AccuracyEstimate):
        warn_caller(
            f"{file}: there are no labels here, so nothing is measured, only estimated. If there"
            " are some, name them with --label-key (--correct-key for scores) or give a file of"
            " them with --labels."
        )
        answer, text = {"estimate": result.to_dict()}, wrap_lines(str(result), hang=0)
    else:
        about = f"{file}: " if artifact is None else f"{file}, through {artifact}: "
        answer, text = result.to_dict(), result.text(about, partial(wrap_lines, hang=10), few=True)
    print_result({"file": file, "artifact": artifact, **answer}, text)


def _measured(artifact: str | None, file: str, options: Options) -> Measured:
    """What `mc.evaluate` says: a table may stay in its file, and threads or a cluster work on
    it.
    """
    from metacal.cli.reading import read_gate_and_rows
    from metacal.estimators.evaluate import evaluate
    from metacal.estimators.verify import estimate_accuracy
    from metacal.rows import told
    from metacal.rows.validate import class_list, label_codes, logits_from

    threads, stream = resolve_n_jobs(options.n_jobs), True if options.executor is not None else None
    gate, given = read_gate_and_rows(artifact, file, options.reading, as_is=True, stream=stream)
    if gate is not None and gate.kind != "logits" and options.executor is not None:
        raise click.UsageError("--executor works on one table of logits; leave it out here.")
    found, (table, *later) = given.found, given.tables
    promises = gate is not None and gate.certificate is not None and len(gate.stages) == 1
    if given.truth is None and promises and gate.is_calibrated:  # type: ignore[union-attr]
        return estimate_accuracy(gate, table, level=options.level, groups=given.found.groups)
    truth = given.require_truth()
    if gate is None:
        truth = label_codes(truth, len(found), class_list(found.class_names, table.shape[1]))
        table = table if stream and found.input == "logits" else logits_from(table, found.input)
    elif later and not gate.n_classes:  # a score of each model
        table, later = given.tables, []
    plan = {"level": options.level, "n_resamples": options.resamples, "random_state": options.seed}
    known: dict[str, Any] = {
        **plan,
        "n_bins": options.bins,
        "groups": given.found.groups,
        "n_jobs": threads,
    }
    resampling = progress_bar(None, "row", "rows, resampled for the intervals")
    with resampling as bar, told(bar.update), open_cluster(options.executor, threads) as there:
        result = evaluate(
            gate,
            table,
            truth,
            large=next(iter(later), None),
            executor=there,
            overwrite=True,
            **known,
        )
    given.note_rows_without_score(result.after.n_rows)
    given.warn_of_fit_rows(result.fit_rows, artifact)
    return result
