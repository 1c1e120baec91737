"""python -m benchmarks all: what every committed result was made with, and what must be measured
again.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from benchmarks.all.catalogue import CATALOGUE, Entry
from benchmarks.all.compare import different
from benchmarks.all.data_folders import linked_folders
from benchmarks.all.fingerprint import ROOT, Code
from benchmarks.all.same_as import refusal
from benchmarks.all.stamp import stamp, stamp_of
from benchmarks.all.state import ACCEPTED, State, accepted, states
from metacal.cli.printing import echo


@click.command("all")
@click.argument("names", metavar="[RESULT]...", nargs=-1)
@click.option(
    "--stale",
    is_flag=True,
    help="Run nothing: list the results whose code has changed since, and why.",
)
@click.option(
    "--check",
    is_flag=True,
    help="Run the commands, write nothing, fail where another result comes out.",
)
@click.option("--cheap", is_flag=True, help="Only those that take seconds.")
@click.option(
    "--accept",
    metavar="REASON",
    help="Run nothing: note that these are stale, and why they stay so.",
)
@click.option(
    "--same-as",
    metavar="COMMIT",
    help=(
        "Run a seeded part of the results named with the code of COMMIT, which they were measured"
        " with, and with the present code. Stamp those whose numbers are equal to the last digit;"
        " refuse the others."
    ),
)
@click.option(
    "--data", metavar="FOLDER", default=os.environ.get("METACAL_DATA", ""), help="More logits."
)
@click.option("--jobs", type=int, default=os.cpu_count() or 1, help="Processes.")
@click.option(
    "-o",
    "--output",
    metavar="FOLDER",
    type=Path,
    help="Where results go. Default: benchmarks/results.",
)
def command(
    names: tuple[str, ...],
    stale: bool,
    check: bool,
    cheap: bool,
    accept: str | None,
    same_as: str | None,
    data: str,
    jobs: int,
    output: Path | None,
) -> None:
    """Run the commands behind the committed results, and stamp each with the code that it is about.

    Without a name all are run that are stale. A result holds a fingerprint of the functions that
    it uses: --stale compares. Results that were not measured again stand in accepted-stale.json with
    a reason, and the pages say so; the list may only get shorter. Where code was rewritten and
    nothing that it computes has changed, --same-as stamps what was measured before, after it has
    run old and new code on few draws and compared every digit. Times, and commands without such a
    part, are refused: measure these again.

    \b
    Examples:
      python -m benchmarks all --stale
      python -m benchmarks all cascade per-class
      python -m benchmarks all --cheap --check
    """  # noqa: D301
    if same_as is not None and not names:
        raise click.UsageError("--same-as needs the names of the results to compare.")
    chosen = _chosen_states(names, cheap=cheap)
    if stale:
        _list(chosen)
    elif same_as is not None:
        _stamp_if_same([one.entry for one in chosen], same_as, data, jobs)
    elif accept is not None:
        _accept([one.entry.name for one in chosen if one.stale], accept, anew=bool(names))
    else:
        runs_all = bool(names) or check
        entries = [one.entry for one in chosen if one.stale or runs_all]
        failed = [
            entry.name for entry in entries if not _run(entry, data, jobs, output, check=check)
        ]
        if failed:
            raise click.ClickException(f"another result, or none: {', '.join(failed)}.")


def _chosen_states(names: tuple[str, ...], *, cheap: bool) -> list[State]:
    """Return the states of the results named, or of all; of these, only the cheap ones."""
    unknown = [name for name in names if name not in CATALOGUE]
    if unknown:
        raise click.ClickException(
            f"there is no result {', '.join(unknown)}; there are {', '.join(CATALOGUE)}."
        )
    entries = [entry for name, entry in CATALOGUE.items() if not names or name in names]
    return states(entry for entry in entries if entry.cheap or not cheap)


def present_code(entry: Entry) -> dict[str, str]:
    """Compute the fingerprint of the code that a result is about, from the files as they are."""
    return Code().fingerprints(entry.entries, entry.rooms)


def _list(chosen: list[State]) -> None:
    """Print what must be run again, and which results only use code that has changed."""
    stale = [one for one in chosen if one.stale]
    for one in stale:
        known = f"; accepted: {one.accepted}" if one.accepted else ""
        echo(f"{one.entry.name}: {one.words}{known}\n    python -m {one.entry.command}")
    touched = [one for one in chosen if one.changed and not one.stale]
    for one in touched:
        echo(f"{one.entry.name}: current; other code that it uses has {one.words}")
    echo(f"{len(stale)} of {len(CATALOGUE)} results are stale.")


def _stamp_if_same(entries: list[Entry], commit: str, data: str, jobs: int) -> None:
    """Stamp each result whose part comes out the same with old and present code; fail if one does
    not.
    """
    refused = []
    for entry in entries:
        code = present_code(entry)
        reason = refusal(entry, commit, stamp_of(entry.path), data, jobs)
        if not reason and present_code(entry) != code:
            reason = f"{entry.name}: its code changed while it ran."
        if reason:
            refused.append(reason)
            continue
        stamp(entry.path, f"python -m {entry.command}", code, commit)
        echo(
            f"{entry.name}: python -m {entry.part} gives the same with the code of {commit};"
            " stamped."
        )
    if refused:
        raise click.ClickException("\n".join(refused))


def _accept(names: list[str], reason: str, *, anew: bool) -> None:
    """Put results on the list of those that may be stale; take the others off it. `anew`: known
    reasons, too.
    """
    stale = {one.entry.name for one in states() if one.stale}
    known = {name: why for name, why in accepted().items() if name in stale}
    given = dict.fromkeys(names, reason)
    noted = {**known, **given} if anew else {**given, **known}
    ACCEPTED.write_text(json.dumps(dict(sorted(noted.items())), indent=1) + "\n", encoding="utf-8")


def _run(entry: Entry, data: str, jobs: int, output: Path | None, *, check: bool) -> bool:
    """Run one command; stamp what it wrote, or compare it with what is committed."""
    code = {} if check else present_code(entry)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / entry.path.name
        begun = time.perf_counter()
        with linked_folders(data) as folders:
            filled = entry.command.format(jobs=jobs, out=made, folder=folder, **folders)
            arguments = [sys.executable, "-m", *shlex.split(filled)]
            done = subprocess.run(arguments, cwd=ROOT, check=False, stdout=sys.stderr)
        echo(f"{entry.name}: exit status {done.returncode}, {time.perf_counter() - begun:.0f} s")
        if done.returncode or not made.is_file():
            return False
        if check:
            return not _difference(entry, json.loads(made.read_text(encoding="utf-8")))
        if present_code(entry) != code:
            return False
        target = (output / f"{entry.name}.json") if output else entry.path
        target.parent.mkdir(parents=True, exist_ok=True)
        for beside in (
            path for path in Path(folder).glob("*.*") if path.suffix in (".json", ".md")
        ):
            (target.parent / beside.name).write_bytes(beside.read_bytes())
        stamp(target, f"python -m {entry.command}", code)
    return True


def _difference(entry: Entry, made: dict[str, Any]) -> str:
    """Where a result differs from the committed one; empty where it does not."""
    committed = json.loads(entry.path.read_text(encoding="utf-8"))
    committed.pop("made", None)
    where = different(committed, made, timed=entry.timed)
    if where:
        echo(f"{entry.name}: {where}")
    return where
