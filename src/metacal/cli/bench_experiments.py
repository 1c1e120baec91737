"""metacal bench paper and metacal bench selective: the experiments, resumable, on the logits files that are found."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from metacal.cli.options import DRAWS, MOST_JOBS, SEED, json_option, share
from metacal.cli.printing import aligned, echo, note, progress_bar, say_json
from metacal.errors import InputError

if TYPE_CHECKING:
    from metacal.bench.experiment import Task
    from metacal.bench.logits_files import Found

Command = Callable[..., Any]


@dataclass(frozen=True)
class Request:
    """What every experiment is asked: which files, where to, how."""

    data: tuple[str, ...]
    sets: str
    n_jobs: int
    output: str
    source: str | None
    fresh: bool
    listing: bool
    as_json: bool


def request_options(default_output: str) -> Callable[[Command], Command]:
    """Add the options that every experiment has; the command gets them as one `request`."""

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def with_request(**options: Any) -> Any:
            found = {name: options.pop(name) for name in Request.__dataclass_fields__}
            return command(request=Request(**found), **options)

        decorated: Command = with_request
        for option in reversed(_options(default_output)):
            decorated = option(decorated)
        return decorated

    return decorate


def _options(default_output: str) -> list[Callable[[Command], Command]]:
    return [
        click.option("--data", metavar="DIR", multiple=True, help="A folder of further logits files; may be repeated."),
        click.option(
            "--sets", metavar="LIST", default="all", show_default=True, help="Which data sets, by name: see --list."
        ),
        click.option(
            "-n", "--n-jobs", type=click.IntRange(-MOST_JOBS, MOST_JOBS), default=2, show_default=True,
            help="Processes; -1: one per core. Never changes the result.",
        ),
        click.option(
            "-o", "--output", metavar="DIR", default=default_output, show_default=True,
            help="Folder of the results. A run that was stopped goes on there.",
        ),
        click.option("--fresh", is_flag=True, help="Begin anew instead of going on with what is in the folder."),
        click.option("--from", "source", metavar="DIR", help="Tables and figures of the results in DIR; run nothing."),
        click.option("--list", "listing", is_flag=True, help="List the logits files that are known, and stop."),
        json_option,
    ]  # fmt: skip


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
def paper(runs: int, draws: int, methods: str, seed: int, request: Request) -> None:
    """Run the experiments of the Meta-Cal paper, with the paper's figures beside what comes out.

    Calibration and test rows are merged and split at random, as in the paper; every method is fitted on one part and
    measured on the other. Violation rates come from draws with replacement, with the whole file as the truth. The
    embedded sets take two or three minutes on two cores. A run that was stopped goes on where it was, and ends with
    the same files; times are kept in files of their own.

    \b
    Examples:
      metacal bench paper
      metacal bench paper --data benchmarks/data --data more-logits -o bench-paper
      metacal bench paper --runs 5 --methods uncal,ts,meta-acc --sets cifar10-resnet110
      metacal bench paper --list
      metacal bench paper --from benchmarks/results/paper
    """  # noqa: D301
    from metacal.bench import paper_output, paper_tables
    from metacal.bench.paper_runs import Settings, parse_methods, run_task

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


@click.command("selective")
@click.option(
    "--draws", type=click.IntRange(1, DRAWS.max), default=500, show_default=True, help="Calibration sets per size."
)
@click.option("--sizes", metavar="LIST", default="300,1000,5000", show_default=True, help="Calibration rows.")
@click.option(
    "--rules", metavar="LIST", default="all", show_default=True,
    help="certified, sgr, ltt-sequence, ltt-bonferroni, ltt-sequence-even, ltt-bonferroni-even, mapie, mapie-sequence, "
    "mapie-starts, mapie-split, mapie-multi, plug-in, paper; all: all that can run here, own: all but MAPIE's.",
)  # fmt: skip
@click.option(
    "--delta", type=share, metavar="P", default=0.1, show_default=True, help="Allowed rate of broken promises."
)
@click.option("--seed", type=SEED, default=0, show_default=True, help="Which draws.")
@request_options("bench-selective")
def selective(draws: int, sizes: str, rules: str, delta: float, seed: int, request: Request) -> None:
    """Compare rules that accept rows with a promise on their accuracy: what they accept, how often they break it.

    The promise is the same for all: what is accepted is right at least beta of the time (.97; .87 for CIFAR-100, .85
    for ImageNet), with confidence 1 - delta. Calibration rows are drawn with replacement from each file, which is the
    truth; a draw on which a rule accepts nothing counts as coverage 0. MAPIE takes part when it is installed; it takes
    nearly all of the time, mapie-split more than a second a draw.

    \b
    Examples:
      metacal bench selective
      metacal bench selective --rules own --data benchmarks/data --draws 1000 -n -1
      metacal bench selective --rules certified,mapie,mapie-split --draws 20 -o bench-mapie
      metacal bench selective --rules certified,sgr,plug-in --sizes 1000
      metacal bench selective --from benchmarks/results/selective
      metacal bench selective --from bench-selective,bench-mapie -o both
    """  # noqa: D301
    from metacal.bench import selective_output, selective_tables
    from metacal.bench.selective_rules import parse_rules
    from metacal.bench.selective_runs import Settings, run_task

    if request.listing:
        list_files(request)
        return
    if request.source is not None:
        results = selective_output.read(*map(Path, request.source.split(",")))
    else:
        chosen = parsed("--rules", parse_rules, rules)
        wanted = parsed("--sizes", parse_sizes, sizes)
        settings = Settings(rules=tuple(chosen), sizes=tuple(wanted), draws=draws, delta=delta, seed=seed)
        sets, folder = run(run_task, settings, request)
        results = selective_output.collect(sets, folder)
    if request.source is None or request.output != "bench-selective":
        say_written(selective_output.write(results, Path(request.output)))
    if request.as_json:
        say_json(results)
    else:
        echo(selective_tables.page(results), nl=False)


def run(task: Task, settings: Any, request: Request) -> tuple[list[Found], Path]:
    """Do what is left to do; the sets and the folder of their journals."""
    from metacal.bench import experiment
    from metacal.bench.logits_files import choose, find

    if request.n_jobs == 0:
        raise click.BadParameter("0 processes cannot work; give 1 or more, or -1 for one per core.", param_hint="'-n'")
    sets, unknown = find(request.data)
    for path in unknown:
        note(f"{path} is not one of the files this experiment knows (see --list); it is left out.")
    if request.sets != "all":
        sets = parsed("--sets", lambda text: choose(sets, [name.strip() for name in text.split(",")]), request.sets)
    folder = Path(request.output) / "runs"
    if request.fresh:
        experiment.forget(sets, folder)
    progress = _Bar()
    try:
        experiment.run(task, sets, settings, folder, n_jobs=request.n_jobs, progress=progress)
    finally:
        progress.close()
    return sets, folder


def list_files(request: Request) -> None:
    """List the files that the experiments know."""
    from metacal.bench.logits_files import CATALOGUE, find

    found = {item.name: item for item in find(request.data)[0]}
    if request.as_json:
        say_json(
            [
                {
                    "name": file.name,
                    "network": file.network,
                    "data": file.family.title,
                    "origin": file.origin,
                    "sha256": file.digest or None,
                    "of_the_paper": file.of_the_paper,
                    "found": file.name in found,
                }
                for file in CATALOGUE
            ]
        )
        return
    rows = [["set", "data", "network", "here", "where it comes from"]]
    for file in CATALOGUE:
        here = "yes" if file.name in found else "no"
        origin = f"{file.origin}; SHA-256 {file.digest}" if file.of_the_paper else file.origin
        rows.append([file.name, file.family.title, file.network, here, origin])
    echo("\n".join(aligned(rows)))


def parse_sizes(text: str) -> list[int]:
    """Return a list of sizes."""
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 10:
        raise InputError(f"{text!r} is not a list of sizes; give whole numbers of at least 10, such as 300,1000.")
    return list(dict.fromkeys(sizes))


def parsed(option: str, parse: Callable[[str], Any], text: str) -> Any:
    """What an option's text means, or why not."""
    try:
        return parse(text)
    except InputError as error:
        raise click.BadParameter(str(error), param_hint=f"'{option}'") from None


def say_written(paths: list[Path]) -> None:
    """Say where the results are."""
    from metacal.bench.figure import can_draw

    note(f"Saved to {paths[0].parent}: {', '.join(path.name for path in paths)}.")
    if not can_draw():
        note('No figures: they need matplotlib, pip install "metacal[plot]".')


class _Bar:
    """A progress bar with the time left on stderr; silent when that is not a terminal."""

    def __init__(self) -> None:
        self._bar = progress_bar(1, "task")

    def begin(self, steps: int, done: int) -> None:
        """So many tasks in all, so many of them done by an earlier run."""
        self._bar.reset(total=steps)
        self._bar.initial = self._bar.n = done
        if done:
            note(f"{done} of {steps} tasks are there from an earlier run.")
        self._bar.refresh()

    def step(self, doing: str) -> None:
        """One more is done."""
        self._bar.set_description_str(doing, refresh=False)
        self._bar.update()

    def close(self) -> None:
        """Remove the bar."""
        self._bar.close()
