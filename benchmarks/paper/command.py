"""python -m benchmarks paper: the experiments of the paper, resumable, on the logits files that are
found.
"""

from __future__ import annotations

from pathlib import Path

import click

from benchmarks.experiments.options import (
    DRAWS,
    Request,
    list_files,
    parsed,
    request_options,
    run,
    say_written,
)
from metacal.cli.printing import echo, print_json
from metacal.cli.values import SEED_RANGE


@click.command("paper")
@click.option(
    "--runs",
    type=click.IntRange(1, 100_000),
    default=40,
    show_default=True,
    help="Random splits of each set.",
)
@click.option(
    "--draws", type=DRAWS, default=1000, show_default=True, help="Draws behind the violation rates."
)
@click.option(
    "--methods", metavar="LIST", default="all", show_default=True,
    help="uncal, ts, ets, gpc, meta-mis-paper, meta-acc-paper, meta-mis, meta-acc, dirichlet, dirichlet-odir.",
)  # fmt: skip
@click.option(
    "--keep",
    metavar="DIR",
    help="Data sets that are not run: as they stand in DIR, of the same splits and draws.",
)
@click.option(
    "--logits",
    metavar="FILE",
    help="Run it on this file of yours: logits and labels, in any format.",
)
@click.option(
    "--min-accuracy",
    type=float,
    metavar="B",
    help="With --logits: the accuracy promised.  [default: half way to 1]",
)
@click.option(
    "--seed", type=SEED_RANGE, default=0, show_default=True, help="Which splits and draws."
)
@request_options("bench-paper")
def command(
    runs: int,
    draws: int,
    methods: str,
    keep: str | None,
    logits: str | None,
    min_accuracy: float | None,
    seed: int,
    request: Request,
) -> None:
    """Run the experiments of the Meta-Cal paper, with the paper's figures beside what comes out.

    Calibration and test rows are merged and split at random, as in the paper; every method is
    fitted on one part and measured on the other. Violation rates come from draws with replacement,
    with the whole file as the truth. The embedded sets take two or three minutes on two cores. A
    run that was stopped goes on where it was, and ends with the same files; times are kept in files
    of their own.

    With --logits FILE it is anybody's file, half of whose rows are fitted on, half measured on; the
    answer begins with whether Meta-Cal beats temperature scaling there, as published and apart from
    dilution.

    \b
    Examples:
      python -m benchmarks paper
      python -m benchmarks paper --data benchmarks/data --data more-logits -o bench-paper
      python -m benchmarks paper --runs 5 --methods uncal,ts,meta-acc --sets cifar10-resnet110
      python -m benchmarks paper --sets cifar10-wrn32 --data benchmarks/data --keep benchmarks/results/paper -o again
      python -m benchmarks paper --logits mine.npz --runs 20
      python -m benchmarks paper --list
      python -m benchmarks paper --from benchmarks/results/paper
    """  # noqa: D301
    from benchmarks.paper import output as paper_output
    from benchmarks.paper import tables as paper_tables
    from benchmarks.paper.runs import Settings, parse_methods, run_task
    from benchmarks.paper.yours import say, verdicts, your_file

    if min_accuracy is not None and logits is None:
        raise click.UsageError(
            "--min-accuracy goes with --logits; the paper's sets have the paper's targets."
        )
    if request.listing:
        list_files(request)
        return
    own = told = None
    if request.source is not None:
        results, seconds = paper_output.read(Path(request.source))
    else:
        chosen = parsed("--methods", parse_methods, methods)
        settings = Settings(methods=tuple(chosen), runs=runs, draws=draws, seed=seed)
        own = None if logits is None else your_file(logits, Path(request.output), min_accuracy)
        sets, folder = run(run_task, settings, request, own)
        results, seconds = paper_output.collect(sets, folder)
        if keep is not None:
            results, seconds = paper_output.keeping(results, seconds, Path(keep))
        told = None if own is None else verdicts(own, settings)
    if request.source is None or request.output != "bench-paper":
        written = paper_output.write(results, seconds, Path(request.output))
        say_written(written)
    if request.as_json:
        print_json(
            {
                **results,
                "seconds": seconds,
                **({} if told is None else {"against_temperature_scaling": told}),
            }
        )
    else:
        if own is not None and told is not None:
            echo(say(own, settings, told))
        echo(
            paper_tables.page(results) + "\n" + paper_tables.seconds_page(results, seconds),
            nl=False,
        )
