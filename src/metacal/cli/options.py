"""Options that several commands share. Only click and what is as light are imported here."""

from __future__ import annotations

import fnmatch
import functools
import glob
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from metacal.io.formats import endings
from metacal.maps.methods import estimator_names
from metacal.scores.registry import NAMED

if TYPE_CHECKING:
    _Choice = click.Choice[str]
else:
    _Choice = click.Choice  # no generic before click 8.2


class OneOf(_Choice):
    """One of the names in a registry, which is asked when a command line is read: a plugin may have added to it."""

    def __init__(self, registry: Mapping[str, object], *more: str) -> None:
        self.registry = registry
        self.more = more
        self.case_sensitive = True

    @property
    def choices(self) -> tuple[str, ...]:  # type: ignore[override]
        """The names that are registered now."""
        return (*self.registry, *self.more)


class _Calibrators(Mapping[str, str]):
    """What `estimator_names` says, each time anew."""

    def __getitem__(self, name: str) -> str:
        return estimator_names()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(estimator_names())

    def __len__(self) -> int:
        return len(estimator_names())


#: --calibrator -> the estimator's name in `metacal`.
CALIBRATORS: Mapping[str, str] = _Calibrators()
#: --score -> its row.
SCORES: Mapping[str, object] = NAMED

#: The most threads that a saved gate may ask for. Kept in step with metacal.io by a test.
MOST_JOBS = 1024

Command = Callable[..., Any]


#: What counts may be: more is a slip of the finger, and would fill the memory or never end.
BINS = click.IntRange(1, 1000)
RESAMPLES = click.IntRange(0, 100_000)
FOLDS = click.IntRange(2, 1000)
REPEATS = click.IntRange(1, 1000)
#: scikit-learn takes seeds of 32 bits.
SEED = click.IntRange(0, 2**32 - 1)
#: As many threads as a saved file may ask for.
MOST_JOBS = 1024


def share(value: Any) -> float:
    """Parse a number strictly between 0 and 1, and help whoever wrote a percentage.

    Examples
    --------
    >>> share("0.97")
    0.97
    """
    try:
        number = float(value)
    except ValueError:
        shown = str(value)[:40]
        raise click.BadParameter(f"{shown!r} is not a number; give one between 0 and 1, such as 0.95.") from None
    if not 0.0 < number < 1.0:
        hint = f"; write {number:g}% as {number / 100:g}" if 1.0 < number < 100.0 else ""
        raise click.BadParameter(f"{value} is not strictly between 0 and 1{hint}.")
    return number


class OutputPath(click.Path):
    """A file to write; the names that systems have for standard output are -."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path as text."""
        return "-" if value in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1") else super().convert(value, param, ctx)


def is_folder(output: str | None) -> bool:
    """Whether results go to a folder, a file for each that is read: one that is there, or a name that ends in /."""
    return output is not None and output != "-" and (output.endswith(("/", os.sep)) or os.path.isdir(output))


def check_is_a_file(output: str | None) -> None:
    """Refuse to save a gate on standard output, where the certificate goes, or where there is no folder."""
    if output == "-":
        raise click.BadParameter(
            "what is saved goes into a file, such as -o cal.json; --json prints the certificate on standard output.",
            param_hint="'-o'",
        )
    if output is not None:
        from metacal.io.writing import check_folder

        check_folder(output)


@dataclass(frozen=True)
class Reading:
    """How to find table, labels and classes in the user's file."""

    input: str | None = None
    labels: str | None = None
    logits_key: str | None = None
    label_key: str | None = None
    id_key: str | None = None
    classes: str | None = None
    format: str | None = None
    group_key: str | None = None
    unit_key: str | None = None
    score_key: str | None = None
    correct_key: str | None = None
    higher_is: str | None = None


def reading_options(*, labels: bool = True) -> Callable[[Command], Command]:
    """Add the options that say what is what in FILE; the command gets them as one `reading`."""

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def with_reading(**options: Any) -> Any:
            found = {name: options.pop(name, None) for name in Reading.__dataclass_fields__}
            return command(reading=Reading(**found), **options)

        for option in reversed(_READING if labels else [_READING[0], *_READING[2:]]):
            with_reading = option(with_reading)
        return with_reading

    return decorate


#: What --format and --output-format may be: what a file is, where its name does not say.
FORMATS, OUTPUT_FORMATS = ([ending[1:] for ending in endings(written=written)] for written in (False, True))


def _be_strict(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta["metacal.strict"] = True


_READING = [
    click.option(
        "--input",
        type=click.Choice(["logits", "probabilities"]),
        help="What FILE holds; never guessed.  [default: logits, or what the JSON was fitted on]",
    ),
    click.option(
        "--labels",
        type=click.Path(),
        metavar="FILE",
        help="A second file with the labels: .npy, or text with one per line.",
    ),
    click.option(
        "--logits-key",
        metavar="NAME",
        help="Name of the table in FILE, or prefix of its columns.  [default: logits, or probabilities or probs]",
    ),
    click.option("--label-key", metavar="NAME", help="Name of the labels in FILE.  [default: labels, label or y]"),
    click.option("--id-key", metavar="NAME", help="Name of the row ids in FILE.  [default: id or ids, if there]"),
    click.option(
        "--group-key",
        metavar="NAME",
        help="Name of the rows' groups in FILE: a threshold, and a promise, for each group.",
    ),
    click.option(
        "--classes", metavar="A,B,C", help="The classes in column order, or @FILE with one per line.  [default: 0 ...]"
    ),
    click.option(
        "--format",
        type=click.Choice(FORMATS),
        metavar="KIND",
        help="What FILE is, where its name does not say: csv, jsonl, parquet, npz, ...  [default for -: csv]",
    ),
    click.option(
        "--score-key",
        metavar="NAME",
        help="FILE holds no logits but a score for each row, of this name.  [default: what the JSON was fitted on]",
    ),
    click.option(
        "--correct-key",
        metavar="NAME",
        help="With a score: what says right or wrong, as true/false, 1/0 or yes/no.  [default: correct or ok]",
    ),
    click.option(
        "--higher-is",
        type=click.Choice(["surer", "doubtful"]),
        help="With a score: what a higher one says; doubtful for losses, distances, perplexities.  [default: surer]",
    ),
    click.option(
        "--strict",
        is_flag=True,
        expose_value=False,
        callback=_be_strict,
        help="A warning is an error: probabilities read as logits, a stray column, rows that repeat, ...",
    ),
]


def _be_quiet(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta["metacal.quiet"] = True


def _use_key(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    ctx.meta["metacal.key"] = value


#: Every command that reads a saved file has it; `metacal.cli.reading.load_gate` asks for it.
key_option = click.option(
    "--key",
    type=click.Path(),
    metavar="KEYFILE",
    expose_value=False,
    callback=_use_key,
    help="Take the saved file only if it is signed with this key: a secret, or an Ed25519 key in PEM.",
)
#: Every command gets it, from the group.
quiet_option = click.option(
    "-q",
    "--quiet",
    is_flag=True,
    expose_value=False,
    callback=_be_quiet,
    help="Only results and errors: no notes, no warnings, no progress bar.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON, and nothing else.")
jobs_option = click.option(
    "-n",
    "--jobs",
    "--n-jobs",
    "n_jobs",
    type=int,
    metavar="N",
    help="Threads; -1: one per core. Never changes the result.  [default: -1]",
)
level_option = click.option(
    "--level", type=share, metavar="P", default=0.95, show_default=True, help="Level of the intervals."
)


def check_jobs(n_jobs: int | None) -> int:
    """The threads to use, all cores unless the user says otherwise; 0 and absurdly many are wrong usage."""
    if n_jobs == 0:
        raise click.BadParameter("0 threads cannot work; give 1 or more, or -1 for one per core.", param_hint="'-n'")
    if n_jobs is not None and abs(n_jobs) > MOST_JOBS:
        raise click.BadParameter(
            f"{n_jobs} threads are too many; give at most {MOST_JOBS}, or -1 for one per core.", param_hint="'-n'"
        )
    return -1 if n_jobs is None else n_jobs


def check_not_an_input(output: str | None, *inputs: str | None, reading: Reading | None = None) -> None:
    """Refuse to write over a file that is being read, under whatever name: another path, a link, --classes @FILE."""
    if reading is not None:
        named = reading.classes is not None and reading.classes.startswith("@")
        inputs = (*inputs, reading.labels, reading.classes[1:] if named and reading.classes else None)
    for path in inputs:
        if output in (None, "-") or path in (None, "-"):
            continue
        if _same_file(str(output), str(path)) or _among(str(output), str(path)):
            raise click.UsageError(f"{output} is also read; write to another file.")


def _among(output: str, path: str) -> bool:
    """Whether a table would be written among those that a folder or a pattern names, and be read with them next."""
    if os.path.splitext(output)[1].lower() not in endings():
        return False
    here = os.path.realpath(output)
    if os.path.isdir(path):
        return here.startswith(os.path.join(os.path.realpath(path), ""))
    folder, name = os.path.split(path)
    if glob.has_magic(folder):
        return fnmatch.fnmatch(here, os.path.abspath(path))
    return os.path.dirname(here) == os.path.realpath(folder or ".") and fnmatch.fnmatch(os.path.basename(here), name)


def _same_file(one: str, other: str) -> bool:
    if os.path.realpath(one) == os.path.realpath(other):
        return True
    try:
        return os.path.samefile(one, other)  # hard links, and names that differ in case alone
    except (OSError, ValueError):
        return False  # one of them is not there
