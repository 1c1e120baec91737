"""python -m benchmarks quality: how good every calibrator's probabilities are, beside those of
other packages.
"""

from __future__ import annotations

from pathlib import Path

import click

from benchmarks.experiments.options import (
    Request,
    list_files,
    parse_sizes,
    parsed,
    request_options,
    run,
    say_written,
)
from metacal.cli.printing import echo, print_json, print_note
from metacal.cli.values import SEED_RANGE
from metacal.errors import InputError


@click.command("quality")
@click.option("--sizes", metavar="LIST", default="1000", show_default=True, help="Rows to fit on.")
@click.option(
    "--splits",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="Random splits of each.",
)
@click.option(
    "--variants", metavar="LIST", default="plain,floored", show_default=True,
    help="plain, floored, sharpened, mislabelled, long-tailed.",
)  # fmt: skip
@click.option(
    "--methods", metavar="LIST", default="all", show_default=True,
    help="Calibrators by name; ours, peers (what is installed), all.",
)  # fmt: skip
@click.option("--seed", type=SEED_RANGE, default=0, show_default=True, help="Which splits.")
@request_options("bench-quality")
def command(
    sizes: str, splits: int, variants: str, methods: str, seed: int, request: Request
) -> None:
    """Compare the probabilities of every calibrator, on rows that it was not fitted on.

    Each file, and variants of it with something wrong, is split at random; every method is fitted
    on one part and measured on the other: log loss, Brier score and ECE, of all rows and of the
    four fifths with the lowest entropy. Losses are compared row by row. Calibrators of
    scikit-learn, probmetrics, netcal, betacal and venn-abers take part where they are installed;
    runs of several environments are put together with --from DIR,DIR -o BOTH.

    \b
    Examples:
      python -m benchmarks quality
      python -m benchmarks quality --sizes 500,1000,5000 --splits 3 --variants plain,floored,sharpened
      python -m benchmarks quality --methods temperature,spline,auto --sets cifar10-resnet110
      python -m benchmarks quality --from benchmarks/results/quality
      python -m benchmarks quality --from bench-ours,bench-peers -o bench-both
    """  # noqa: D301
    from benchmarks.quality import output as quality_output
    from benchmarks.quality import tables as quality_tables
    from benchmarks.quality.methods import parse_methods
    from benchmarks.quality.peers import missing_packages
    from benchmarks.quality.runs import Settings, run_task

    if request.listing:
        list_files(request)
        return
    if request.source is not None:
        results = quality_output.read([Path(part.strip()) for part in request.source.split(",")])
    else:
        settings = Settings(
            methods=tuple(parsed("--methods", parse_methods, methods)),
            variants=tuple(parsed("--variants", _parse_variants, variants)),
            sizes=tuple(parsed("--sizes", parse_sizes, sizes)),
            splits=splits,
            seed=seed,
            losses=Path(request.output) / quality_output.LOSSES,
        )
        for package in missing_packages() if {"all", "peers"} & set(methods.split(",")) else []:
            print_note(
                f"{package} is not installed, its calibrators are left out: pip install {package}."
            )
        run(run_task, settings, request)
        results = quality_output.collect([Path(request.output)])
    if request.source is None or request.output != "bench-quality":
        say_written(quality_output.write(results, Path(request.output)))
    if request.as_json:
        print_json(results)
    else:
        echo(quality_tables.page(results), nl=False)


def _parse_variants(text: str) -> list[str]:
    from benchmarks.quality.variants import VARIANTS

    names = list(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in VARIANTS:
            raise InputError(f"there is no variant {name!r}; there are {', '.join(VARIANTS)}.")
    return names
