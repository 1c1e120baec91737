"""python -m benchmarks selective: rules that accept rows with a promise on their accuracy, side by
side.
"""

from __future__ import annotations

from pathlib import Path

import click

from benchmarks.experiments.options import (
    DRAWS,
    Request,
    list_files,
    parse_sizes,
    parsed,
    request_options,
    run,
    say_written,
)
from metacal.cli.printing import echo, print_json
from metacal.cli.values import SEED_RANGE, parse_fraction


@click.command("selective")
@click.option(
    "--draws",
    type=click.IntRange(1, DRAWS.max),
    default=500,
    show_default=True,
    help="Calibration sets per size.",
)
@click.option(
    "--sizes", metavar="LIST", default="300,1000,5000", show_default=True, help="Calibration rows."
)
@click.option(
    "--rules", metavar="LIST", default="all", show_default=True,
    help="certified, sgr, ltt-sequence, ltt-bonferroni, ltt-sequence-even, ltt-bonferroni-even, mapie, mapie-sequence, "
    "mapie-starts, mapie-split, mapie-multi, plug-in, paper; all: all that can run here, own: all but MAPIE's.",
)  # fmt: skip
@click.option(
    "--delta",
    type=parse_fraction,
    metavar="P",
    default=0.1,
    show_default=True,
    help="Allowed rate of broken promises.",
)
@click.option(
    "--keep",
    metavar="DIR",
    help="Rules that are not run: their rows as they stand in DIR, of the same draws.",
)
@click.option("--seed", type=SEED_RANGE, default=0, show_default=True, help="Which draws.")
@request_options("bench-selective")
def command(
    draws: int, sizes: str, rules: str, delta: float, keep: str | None, seed: int, request: Request
) -> None:
    """Compare rules that accept rows with a promise on their accuracy: what they accept, how often
    they break it.

    The promise is the same for all: accepted predictions are correct at least beta of the time (.97; .87
    for CIFAR-100, .85 for ImageNet), with confidence 1 - delta. Calibration rows are drawn with
    replacement from each file, which is the truth; a draw on which a rule accepts nothing counts as
    coverage 0. MAPIE takes part when it is installed; it takes nearly all of the time, mapie-split
    more than a second a draw.

    \b
    Examples:
      python -m benchmarks selective
      python -m benchmarks selective --rules own --data benchmarks/data --draws 1000 -n -1
      python -m benchmarks selective --rules certified,mapie,mapie-split --draws 20 -o bench-mapie
      python -m benchmarks selective --rules certified,sgr,plug-in --sizes 1000
      python -m benchmarks selective --from benchmarks/results/selective
      python -m benchmarks selective --rules own --keep benchmarks/results/selective -o again
      python -m benchmarks selective --from bench-selective,bench-mapie -o both
    """  # noqa: D301
    from benchmarks.selective import output as selective_output
    from benchmarks.selective import tables as selective_tables
    from benchmarks.selective.rules import parse_rules
    from benchmarks.selective.runs import Settings, run_task

    if request.listing:
        list_files(request)
        return
    if request.source is not None:
        results = selective_output.read(*map(Path, request.source.split(",")))
    else:
        chosen = parsed("--rules", parse_rules, rules)
        wanted = parsed("--sizes", parse_sizes, sizes)
        settings = Settings(
            rules=tuple(chosen), sizes=tuple(wanted), draws=draws, delta=delta, seed=seed
        )
        sets, folder = run(run_task, settings, request)
        results = selective_output.collect(sets, folder)
        if keep is not None:
            results = selective_output.keeping(results, Path(keep))
    if request.source is None or request.output != "bench-selective":
        say_written(selective_output.write(results, Path(request.output)))
    if request.as_json:
        print_json(results)
    else:
        echo(selective_tables.page(results), nl=False)
