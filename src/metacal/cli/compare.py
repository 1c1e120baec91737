"""`metacal compare`: calibrators compared by repeated cross-validation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import click
from click.shell_completion import CompletionItem

from metacal.cli.cluster import executor_option, open_cluster
from metacal.cli.options import as_command, jobs_option, option, option_group, resolve_n_jobs
from metacal.cli.printing import print_note, print_result, progress_bar
from metacal.cli.read_options import ReadOptions
from metacal.cli.values import REPEATS_RANGE, SEED_RANGE, bad_option
from metacal.maps.methods import METHODS, get_all_methods


def _list_comparable_calibrators() -> list[str]:
    """Return the names of all calibrators except "auto", which chooses among them."""
    return [name for name in get_all_methods() if name != "auto"]


def _complete_names(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the last name of a comma-separated list."""
    earlier_text, comma, prefix = incomplete.rpartition(",")
    earlier_names = earlier_text.split(",")
    completions = []
    for name in _list_comparable_calibrators():
        if name.startswith(prefix) and name not in earlier_names:
            completions.append(CompletionItem(f"{earlier_text}{comma}{name}"))
    return completions


@dataclass(frozen=True)
class Options:
    """Options of `metacal compare`."""

    calibrators: str | None = option(
        f"Calibrators to compare.  [default: all: {', '.join(_list_comparable_calibrators())}]",
        "A,B,C",
        shell_complete=_complete_names,
    )
    folds: int = option("Number of folds.", type=click.IntRange(2, 1000), default=5)
    repeats: int = option("Number of times that folds are drawn.", type=REPEATS_RANGE, default=2)
    seed: int = option("Seed of the folds.", type=SEED_RANGE, default=0)
    reading: ReadOptions = option_group(ReadOptions, excluded_fields=("large", "agree_key", "rows"))
    n_jobs: int | None = jobs_option()
    executor: str | None = executor_option()


@as_command(Options, "FILE", has_help_sections=True)
def command(file: str, options: Options) -> None:
    """Compare calibrators by cross-validation on labelled rows, best first.

    The table lists log loss, Brier score, calibration errors with equal-width and equal-mass
    bins, and CPU seconds of a fit. '*' marks the best calibrator, and a dot those that are at most
    three standard errors worse. These marks help to choose, and have no confidence level.

    \b
    Examples:
      metacal compare val.npz
      metacal compare val.npz --calibrators temperature,spline,structured --repeats 5
      metacal compare val.csv --json | jq .best.nll
    """  # noqa: D301
    compared_names = parse_calibrator_names(options.calibrators)

    import numpy as np

    from metacal.cli.reading import read_table
    from metacal.estimators.compare import compare
    from metacal.rows.plausibility import skip_plausibility_checks
    from metacal.rows.validate import check_classes, encode_labels, read_logits

    uses_cluster = options.executor is not None
    predictions = read_table(file, options.reading, stream=True if uses_cluster else None)
    logits = read_logits(predictions.table, predictions.input)
    if not uses_cluster:
        # Folds are drawn from the rows, so a fit needs all of them in memory.
        logits = np.asarray(logits)
    classes = check_classes(predictions.class_names, logits.shape[1])
    label_codes = encode_labels(predictions.require_truth(), len(predictions), classes)

    n_folds = options.folds * options.repeats
    print_cost_note(METHODS if compared_names is None else compared_names, logits.shape, n_folds)
    n_jobs = resolve_n_jobs(options.n_jobs)
    with skip_plausibility_checks(), open_cluster(options.executor, n_jobs) as client:
        comparison = compare(
            logits,
            label_codes,
            compared_names,
            n_splits=options.folds,
            n_repeats=options.repeats,
            random_state=options.seed,
            n_jobs=n_jobs,
            progress=iterate_with_progress,
            executor=client,
        )
    print_result({"file": file, **comparison.to_dict()}, comparison)


def print_cost_note(names: Iterable[str], shape: tuple[int, ...], n_folds: int) -> None:
    """Print the expected CPU time, and how many folds fit, if above a minute.

    Parameters
    ----------
    names : iterable of str
        Names of the calibrators to compare.
    shape : tuple of int
        Number of rows and number of classes.
    n_folds : int
        Number of folds that were requested.
    """
    from metacal.estimators.compare import DEFAULT_BUDGET
    from metacal.estimators.cost import count_affordable_folds, estimate_fold_seconds

    method_names = list(names)
    n_rows, n_classes = shape
    n_affordable = count_affordable_folds(method_names, n_rows, n_classes, n_folds, DEFAULT_BUDGET)
    cpu_minutes = n_affordable * estimate_fold_seconds(method_names, n_rows, n_classes) / 60.0
    is_short = cpu_minutes <= 1.0
    if is_short:
        return
    fold_note = ""
    if n_affordable < n_folds:
        fold_note = (
            f", for {n_affordable} of {n_folds} folds; fewer --calibrators leave time for more"
        )
    print_note(
        f"This takes up to about {cpu_minutes:.0f} min of CPU time, less if classes are"
        f" alike{fold_note}."
    )


def iterate_with_progress(fits: Iterator[Any], total: int) -> Iterator[Any]:
    """Yield each fit while a progress bar counts them."""
    with progress_bar(total, "fit", "fits") as bar:
        for fit in fits:
            yield fit
            bar.update()


def parse_calibrator_names(calibrators: str | None) -> list[str] | None:
    """Parse a comma-separated list of calibrators, if there is a list."""
    if calibrators is None:
        return None
    requested_names = [name.strip() for name in calibrators.split(",")]
    known_names = _list_comparable_calibrators()
    for name in requested_names:
        if name not in known_names:
            raise bad_option(
                "--calibrators",
                f"Unknown calibrator {name!r}. The available calibrators are"
                f" {', '.join(known_names)}.",
            )
    return requested_names
