"""A resumable experiment over several logits files: tasks, journals, processes, progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from benchmarks.experiments.journal import Entry, Journal, Line, read_journal
from benchmarks.experiments.logits_files import Found
from benchmarks.experiments.pool import in_order


class Settings(Protocol):
    """What an experiment needs to know of its settings."""

    def tasks(self) -> list[Any]:
        """The tasks for one file, each a tuple of arguments."""
        ...

    def header(self, found: Found) -> Line:
        """The first line of the journal of one file."""
        ...


class Progress(Protocol):
    """Who is told how far the work is."""

    def begin(self, steps: int, done: int) -> None:
        """So many tasks in all, so many of them done by an earlier run."""
        ...

    def step(self, doing: str) -> None:
        """One more is done, on this file."""
        ...


Task = Callable[..., Entry]


def run(
    task: Task,
    sets: Sequence[Found],
    settings: Settings,
    folder: Path,
    *,
    n_jobs: int,
    progress: Progress,
) -> None:
    """Do every task of every file that its journal in `folder` does not have yet."""
    tasks = settings.tasks()
    with ExitStack() as stack:
        journals = [
            stack.enter_context(Journal(folder, found.name, settings.header(found)))
            for found in sets
        ]
        progress.begin(
            len(tasks) * len(sets), sum(min(journal.done, len(tasks)) for journal in journals)
        )
        # Task by task, every file: what a run that was stopped has, it has of all of them.
        left = [
            (at, arguments)
            for number, arguments in enumerate(tasks)
            for at, journal in enumerate(journals)
            if number >= journal.done
        ]
        answers = in_order(
            task, [(sets[at], settings, *arguments) for at, arguments in left], n_jobs
        )
        for (at, _), entry in zip(left, answers, strict=True):
            journals[at].append(entry)
            progress.step(sets[at].name)


def read(sets: Sequence[Found], folder: Path) -> list[tuple[Found, Line, list[Entry]]]:
    """The journals of the files, whole or not."""
    return [(found, *read_journal(folder, found.name)) for found in sets]


def forget(sets: Sequence[Found], folder: Path) -> None:
    """Delete the journals of the files, so that everything is done again."""
    for found in sets:
        for ending in (".jsonl", ".seconds.jsonl"):
            (folder / f"{found.name}{ending}").unlink(missing_ok=True)
