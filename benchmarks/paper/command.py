"""python -m benchmarks paper: the experiments of the paper, resumable, on the logits files that are found."""

from __future__ import annotations

from pathlib import Path

import click

from benchmarks.experiments.options import DRAWS, Request, list_files, parsed, request_options, run, say_written
from metacal.cli.options import SEED
from metacal.cli.printing import echo, say_json


@click.command("paper")
@click.option(
    "--runs", type=click.IntRange(1, 100_000), default=40, show_default=True, help="Random splits of each set."
)
@click.option("--draws", type=DRAWS, default=1000, show_default=True, help="Draws behind the violation rates.")
@click.option(
    "--methods", metavar="LIST", default="all", show_default=True,
    help="uncal, ts, ets, gpc, meta-mis-paper, meta-acc-paper, meta-mis, meta-acc.",
)  # fmt: skip
@click.option("--seed", type=SEED, default=0, show_default=True, help="Which splits and draws.")
@request_options("bench-paper")
def command(runs: int, draws: int, methods: str, seed: int, request: Request) -> None:
    """Run the experiments of the Meta-Cal paper, with the paper's figures beside what comes out.

    Calibration and test rows are merged and split at random, as in the paper; every method is fitted on one part and
    measured on the other. Violation rates come from draws with replacement, with the whole file as the truth. The
    embedded sets take two or three minutes on two cores. A run that was stopped goes on where it was, and ends with
    the same files; times are kept in files of their own.

    \b
    Examples:
      python -m benchmarks paper
      python -m benchmarks paper --data benchmarks/data --data more-logits -o bench-paper
      python -m benchmarks paper --runs 5 --methods uncal,ts,meta-acc --sets cifar10-resnet110
      python -m benchmarks paper --list
      python -m benchmarks paper --from benchmarks/results/paper
    """  # noqa: D301
    from benchmarks.paper import output as paper_output
    from benchmarks.paper import tables as paper_tables
    from benchmarks.paper.runs import Settings, parse_methods, run_task

    if request.listing:
        list_files(request)
        return
    if request.source is not None:
        results, seconds = paper_output.read(Path(request.source))
    else:
        chosen = parsed("--methods", parse_methods, methods)
        settings = Settings(methods=tuple(chosen), runs=runs, draws=draws, seed=seed)
        sets, folder = run(run_task, settings, request)
        results, seconds = paper_output.collect(sets, folder)
    if request.source is None or request.output != "bench-paper":
        written = paper_output.write(results, seconds, Path(request.output))
        say_written(written)
    if request.as_json:
        say_json({**results, "seconds": seconds})
    else:
        echo(paper_tables.page(results) + "\n" + paper_tables.seconds_page(results, seconds), nl=False)
