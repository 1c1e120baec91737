"""What every experiment is asked on the command line, and how it is run: resumable, on the files
that are found.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from metacal.cli.printing import echo, print_json, print_note, progress_bar
from metacal.cli.values import MAX_JOBS
from metacal.display import align_columns
from metacal.errors import InputError

if TYPE_CHECKING:
    from benchmarks.experiments.logits_files import Found
    from benchmarks.experiments.run import Task

Command = Callable[..., Any]
DRAWS = click.IntRange(0, 1_000_000)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the answer as JSON, and nothing else."
)


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
            "-n", "--n-jobs", type=click.IntRange(-MAX_JOBS, MAX_JOBS), default=2, show_default=True,
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


def run(
    task: Task, settings: Any, request: Request, own: Found | None = None
) -> tuple[list[Found], Path]:
    """Do what is left to do, on the sets that are known or on one that is given; the sets, the
    folder of journals.
    """
    from benchmarks.experiments import run as experiment
    from benchmarks.experiments.logits_files import choose, find

    if request.n_jobs == 0:
        raise click.BadParameter(
            "0 processes cannot work; give 1 or more, or -1 for one per core.", param_hint="'-n'"
        )
    sets, unknown = ([own], []) if own is not None else find(request.data)
    for path in unknown:
        print_note(
            f"{path} is not one of the files this experiment knows (see --list); it is left out."
        )
    if request.sets != "all":
        sets = parsed(
            "--sets",
            lambda text: choose(sets, [name.strip() for name in text.split(",")]),
            request.sets,
        )
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
    from benchmarks.experiments.logits_files import CATALOGUE, find

    found = {item.name: item for item in find(request.data)[0]}
    if request.as_json:
        print_json(
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
    echo("\n".join(align_columns(rows)))


def parse_sizes(text: str) -> list[int]:
    """Return a list of sizes."""
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 10:
        raise InputError(
            f"{text!r} is not a list of sizes; give whole numbers of at least 10, such as 300,1000."
        )
    return list(dict.fromkeys(sizes))


def parsed(option: str, parse: Callable[[str], Any], text: str) -> Any:
    """What an option's text means, or why not."""
    try:
        return parse(text)
    except InputError as error:
        raise click.BadParameter(str(error), param_hint=f"'{option}'") from None


def say_written(paths: list[Path]) -> None:
    """Say where the results are."""
    from benchmarks.experiments.figure import can_draw

    print_note(f"Saved to {paths[0].parent}: {', '.join(path.name for path in paths)}.")
    if not can_draw():
        print_note('No figures: they need matplotlib, pip install "metacal[plot]".')


class _Bar:
    """A progress bar with the time left on stderr; silent when that is not a terminal."""

    def __init__(self) -> None:
        self._bar = progress_bar(1, "task")

    def begin(self, steps: int, done: int) -> None:
        """So many tasks in all, so many of them done by an earlier run."""
        self._bar.reset(total=steps)
        self._bar.initial = self._bar.n = done
        if done:
            print_note(f"{done} of {steps} tasks are there from an earlier run.")
        self._bar.refresh()

    def step(self, doing: str) -> None:
        """One more is done."""
        self._bar.set_description_str(doing, refresh=False)
        self._bar.update()

    def close(self) -> None:
        """Remove the bar."""
        self._bar.close()
