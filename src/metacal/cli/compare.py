"""metacal compare: every calibrator on the same rows, by repeated cross-validation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import click
from click.shell_completion import CompletionItem

from metacal.cli.cluster import executor_option, open_cluster
from metacal.cli.options import (
    ReadOptions,
    as_command,
    jobs_option,
    option,
    option_group,
    resolve_n_jobs,
)
from metacal.cli.printing import print_note, print_result, progress_bar
from metacal.cli.values import REPEATS_RANGE, SEED_RANGE, bad_option
from metacal.maps.methods import METHODS, every_method


def _compared() -> list[str]:
    return [name for name in every_method() if name != "auto"]


def _complete_names(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the last name of a list with commas."""
    before, comma, last = incomplete.rpartition(",")
    names = (
        name for name in _compared() if name.startswith(last) and name not in before.split(",")
    )
    return [CompletionItem(f"{before}{comma}{name}") for name in names]


@dataclass(frozen=True)
class Options:
    """Options of `metacal compare`."""

    calibrators: str | None = option(
        f"Which to compare.  [default: all: {', '.join(_compared())}]",
        "A,B,C",
        shell_complete=_complete_names,
    )
    folds: int = option("Folds of a repeat.", type=click.IntRange(2, 1000), default=5)
    repeats: int = option("How often folds are drawn.", type=REPEATS_RANGE, default=2)
    seed: int = option("Seed of the folds.", type=SEED_RANGE, default=0)
    reading: ReadOptions = option_group(ReadOptions, without=("large", "agree_key"))
    n_jobs: int | None = jobs_option()
    executor: str | None = executor_option()


@as_command(Options, "FILE")
def command(file: str, options: Options) -> None:
    """Compare calibrators on labelled rows, best first.

    Each is fitted on all folds but one and measured on that one: log loss (NLL), Brier score, ECE
    with equal-width and equal-mass bins (from all held-out rows, without what chance adds), and CPU
    seconds of a fit. * marks the best and · those that are at most three standard errors worse, by
    differences row by row. The marks are a rule of thumb for a shortlist and have no confidence
    level. With --executor the fits run side by side on a cluster; each of its workers holds the
    whole table.

    \b
    Examples:
      metacal compare val.npz
      metacal compare val.npz --calibrators temperature,spline,structured --repeats 5
      metacal compare val.csv --json | jq .best.nll
      metacal compare 'val/*.parquet' --executor dask://host:8786
    """  # noqa: D301
    executor, threads = options.executor, resolve_n_jobs(options.n_jobs)
    names, n_folds = calibrator_names(options.calibrators), options.folds * options.repeats

    import numpy as np

    from metacal.cli.reading import read_table
    from metacal.estimators.compare import compare
    from metacal.rows.plausibility import unquestioned
    from metacal.rows.validate import class_list, label_codes, logits_from

    found = read_table(file, options.reading, stream=True if executor is not None else None)
    # Folds are drawn from the rows: whoever fits holds all of them in memory.
    logits = logits_from(found.table, found.input)
    logits = logits if executor is not None else np.asarray(logits)
    codes = label_codes(
        found.require_truth(), len(found), class_list(found.class_names, logits.shape[1])
    )
    print_cost_note(METHODS if names is None else names, logits.shape, n_folds)
    plan: dict[str, Any] = {
        "n_splits": options.folds,
        "n_repeats": options.repeats,
        "random_state": options.seed,
    }
    with unquestioned(), open_cluster(executor, threads) as there:
        result = compare(
            logits, codes, names, **plan, n_jobs=threads, progress=with_progress, executor=there
        )
    print_result({"file": file, **result.to_dict()}, result)


def print_cost_note(names: Iterable[str], shape: tuple[int, ...], n_folds: int) -> None:
    """What it will take, where that is more than a minute, and how many of the folds that buys."""
    from metacal.estimators.compare import BUDGET
    from metacal.estimators.cost import affordable_folds, fold_seconds

    names, (n_rows, n_classes) = list(names), shape
    used = affordable_folds(names, n_rows, n_classes, n_folds, BUDGET)
    seconds = used * fold_seconds(names, n_rows, n_classes)
    if seconds > 60.0:
        some = (
            ""
            if used == n_folds
            else f", for {used} of {n_folds} folds; fewer --calibrators leave time for more"
        )
        print_note(
            f"This takes up to about {seconds / 60.0:.0f} min of CPU time, less if classes are"
            f" alike{some}."
        )


def with_progress(fits: Iterator[Any], total: int) -> Iterator[Any]:
    """Pass fits on, with a bar that shows how many are done."""
    with progress_bar(total, "fit", "fits") as bar:
        for fit in fits:
            yield fit
            bar.update()


def calibrator_names(calibrators: str | None) -> list[str] | None:
    """Return the calibrators that a list with commas names; None where none was given."""
    if calibrators is None:
        return None
    names = [name.strip() for name in calibrators.split(",")]
    for name in names:
        if name not in _compared():
            raise bad_option(
                "--calibrators", f"{name!r} is no calibrator; there are {', '.join(_compared())}."
            )
    return names
