"""`metacal evaluate`: calibration and promise, measured on labelled rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from metacal.cli.cluster import executor_option, open_cluster
from metacal.cli.options import (
    as_command,
    jobs_option,
    level_option,
    option,
    option_group,
    resolve_n_jobs,
)
from metacal.cli.printing import print_result, progress_bar, wrap_lines
from metacal.cli.read_options import ReadOptions
from metacal.cli.values import BINS_RANGE, RESAMPLES_RANGE, SEED_RANGE
from metacal.errors import warn_caller

if TYPE_CHECKING:
    from metacal.certificates.accuracy_estimate import AccuracyEstimate
    from metacal.cli.gate_rows import GateRows
    from metacal.estimators.gate_evaluation import GateEvaluation
    from metacal.formulas import Codes
    from metacal.gate import Gate
    from metacal.io.predictions import Predictions


@dataclass(frozen=True)
class Options:
    """Options of `metacal evaluate`."""

    reading: ReadOptions = option_group(ReadOptions)
    level: float = level_option()
    bins: int = option("Number of bins of the calibration errors.", type=BINS_RANGE, default=15)
    seed: int = option("Seed of the bootstrap.", type=SEED_RANGE, default=0)
    resamples: int = option(
        "Number of bootstrap resamples. 0 leaves out the intervals.",
        type=RESAMPLES_RANGE,
        default=1000,
    )
    n_jobs: int | None = jobs_option()
    executor: str | None = executor_option()


@as_command(Options, "[GATE] FILE", has_help_sections=True)
def command(artifact: str | None, file: str, options: Options) -> None:
    """Measure calibration and the promise of a gate on labelled rows.

    GATE was saved by 'metacal fit'. Without it, the command measures the classifier's own
    probabilities. FILE holds logits and true labels of rows that neither the classifier nor
    'metacal fit' has seen. Without labels, the command estimates the accuracy of accepted rows
    from their confidence.

    The verdict is kept if the estimate meets the target, undecided if it does not but the interval
    includes the target, and refuted if the whole interval misses the target. The promise
    is not judged if FILE holds rows of the fit. The exit code does not depend on the verdict, unlike that of 'metacal verify'.

    \b
    Examples:
      metacal evaluate test.npz
      metacal evaluate cal.json test.parquet
      metacal evaluate cal.json test.csv --json | jq .promise.verdict
    """  # noqa: D301
    from metacal.certificates.accuracy_estimate import AccuracyEstimate

    evaluation = _evaluate_file(artifact, file, options)
    json_content: dict[str, Any]
    if isinstance(evaluation, AccuracyEstimate):
        warn_caller(
            f"{file}: no labels found, so the accuracy is estimated instead of measured. Name the"
            " column of labels with --label-key (--correct-key for scores), or pass a file of"
            " labels with --labels."
        )
        json_content = {"estimate": evaluation.to_dict()}
        printed_text = wrap_lines(str(evaluation), hanging_indent=0)
    else:
        text_prefix = f"{file}: " if artifact is None else f"{file}, through {artifact}: "
        json_content = evaluation.to_dict()
        printed_text = evaluation.text(text_prefix, partial(wrap_lines, hanging_indent=10))
    print_result({"file": file, "artifact": artifact, **json_content}, printed_text)


def _evaluate_file(
    artifact: str | None, file: str, options: Options
) -> GateEvaluation | AccuracyEstimate:
    """Evaluate a gate on a file, or estimate its accuracy if the file has no labels."""
    from metacal.cli.gate_rows import read_gate_and_rows
    from metacal.estimators.verify import estimate_accuracy

    uses_cluster = options.executor is not None
    gate, gate_rows = read_gate_and_rows(
        artifact,
        file,
        options.reading,
        skips_validation=True,
        # Workers of a cluster read the table from its file. Otherwise its size decides.
        stream=True if uses_cluster else None,
    )
    if gate is not None and not gate.is_logits_gate and uses_cluster:
        raise click.UsageError(
            "--executor supports only a single table of logits. Leave out --executor."
        )
    has_labels = gate_rows.truth is not None
    if not has_labels and gate is not None and _supports_accuracy_estimate(gate):
        (gate_input,) = gate_rows.tables
        return estimate_accuracy(
            gate, gate_input, level=options.level, groups=gate_rows.columns.groups
        )
    evaluation = _evaluate_rows(gate, gate_rows, options)
    n_evaluated_rows = evaluation.after.n_rows
    # Every row with a score is evaluated, unless its label is missing.
    n_rows_with_score = n_evaluated_rows + gate_rows.count_unlabelled_rows_with_score()
    gate_rows.note_rows_without_score(n_rows_with_score)
    gate_rows.warn_of_fit_rows(evaluation.fit_rows, artifact)
    return evaluation


def _supports_accuracy_estimate(gate: Gate) -> bool:
    """Check whether the selective accuracy can be estimated without labels."""
    return gate.certificate is not None and not gate.is_cascade and gate.is_calibrated


def _evaluate_rows(gate: Gate | None, gate_rows: GateRows, options: Options) -> GateEvaluation:
    """Evaluate a gate, or a classifier without one, on labelled rows."""
    from metacal.estimators.evaluate import evaluate
    from metacal.rows import report_progress_to

    n_jobs = resolve_n_jobs(options.n_jobs)
    table = gate_rows.tables[0]
    large_table = None
    has_several_tables = len(gate_rows.tables) > 1
    truth = gate_rows.require_truth()
    if gate is None:
        table, truth = _validate_logits_and_labels(
            gate_rows.columns, truth, uses_cluster=options.executor is not None
        )
    elif has_several_tables and gate.has_classes:
        large_table = gate_rows.tables[1]
    elif has_several_tables:
        # A cascade over scores reads the scores of all models at once.
        table = gate_rows.tables
    resampling_bar = progress_bar(None, "row", "rows, resampled for the intervals")
    with (
        resampling_bar as bar,
        report_progress_to(bar.update),
        open_cluster(options.executor, n_jobs) as client,
    ):
        return evaluate(
            gate,
            table,
            truth,
            large=large_table,
            executor=client,
            overwrite=True,
            level=options.level,
            n_resamples=options.resamples,
            random_state=options.seed,
            n_bins=options.bins,
            groups=gate_rows.columns.groups,
            cases=gate_rows.columns.cases,
            n_jobs=n_jobs,
        )


def _validate_logits_and_labels(
    predictions: Predictions, labels: Any, *, uses_cluster: bool
) -> tuple[Any, Codes]:
    """Return the validated logits of a classifier, and the class code of each label."""
    from metacal.rows.validate import check_classes, encode_labels, read_logits

    n_classes = predictions.table.shape[1]
    classes = check_classes(predictions.class_names, n_classes)
    label_codes = encode_labels(labels, len(predictions), classes)
    # The workers of a cluster validate logits when they read them, but do not convert probabilities.
    is_validated_by_workers = uses_cluster and predictions.input == "logits"
    if is_validated_by_workers:
        return predictions.table, label_codes
    logits = read_logits(predictions.table, predictions.input)
    return logits, label_codes
