"""Options that several commands share. Only click and what is as light are imported here."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import Field, dataclass, field, fields
from typing import Any

import click

from metacal.io.formats import endings


class RegistryChoice(click.Choice):  # type: ignore[type-arg]  # no generic before click 8.2
    """One of the names in a registry, which is asked when a command line is read: a plugin may have
    added to it.
    """

    def __init__(self, registered: Callable[[], Iterable[str]], *more: str) -> None:
        self.registered, self.more = registered, more
        self.case_sensitive = True

    @property
    def choices(self) -> tuple[str, ...]:  # type: ignore[override]
        """The names that are registered now."""
        return (*self.registered(), *self.more)


#: What counts may be: more is a slip of the finger, and would fill the memory or never end.
BINS_RANGE = click.IntRange(1, 1000)
RESAMPLES_RANGE = click.IntRange(0, 100_000)
REPEATS_RANGE = click.IntRange(1, 1000)
#: scikit-learn takes seeds of 32 bits.
SEED_RANGE = click.IntRange(0, 2**32 - 1)
#: As many threads as a saved file may ask for.
MAX_JOBS = 1024


def bad_option(name: str, why: str) -> click.BadParameter:
    """What is said of an option whose value cannot be."""
    return click.BadParameter(why, param_hint=f"'{name}'")


def number_between(low: float, high: float, wanted: str, why: str) -> Callable[[Any], float]:
    """What parses a number strictly between two: what is `wanted` instead of another text, `why`
    not another number.

    Whoever wrote a percentage is helped.

    Examples
    --------
    >>> between(0.0, 1e15, "a cost, such as 50", "is not a positive number")("50")
    50.0
    """

    def parsed(value: Any) -> float:
        try:
            number = float(value)
        except ValueError:
            raise click.BadParameter(
                f"{str(value)[:40]!r} is not a number; give {wanted}."
            ) from None
        if not low < number < high:
            hint = (
                f"; write {number:g}% as {number / 100:g}" if high == 1.0 < number < 100.0 else ""
            )
            raise click.BadParameter(f"{value} {why}{hint}.")
        return number

    return parsed


parse_fraction = number_between(
    0.0, 1.0, "one between 0 and 1, such as 0.95", "is not strictly between 0 and 1"
)


def parse_numbers(value: str) -> list[float]:
    """Parse numbers separated by commas."""
    try:
        return [float(one) for one in value.split(",")]
    except ValueError:
        raise click.BadParameter(f"{value!r} must be numbers, separated by commas.") from None


# ── help in sections ──────────────────────────────────────────────────────────────────────────────

#: Heading -> the options below it, the common ones first; those that no section names stand below
#: the last.
_SECTIONS = {
    "The promise": "min-accuracy max-miscoverage confidence per-class group-key",
    "What is written": "output output-format json title",
    "What is in FILE": "label-key input logits-key classes drop labels id-key format",
    "One score in place of logits": (
        "score-key correct-key agree-key higher-is loss-key positive marks"
    ),
    "Other promises": (
        "max-review max-risk max-cost cheapest cost-wrong cost-matrix cost-review after-looking "
        "at-threshold in-expectation each pool-small near-binary rule"
    ),
    "Other options": "",
}


class SectionedCommand(click.Command):
    """A command with many options: its help has them in sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each section that has options, then all others."""
        left: list[click.Parameter] = [
            one for one in self.get_params(ctx) if isinstance(one, click.Option)
        ]
        for title, listed in _SECTIONS.items():
            names = [f"--{name}" for name in listed.split()] or [one.opts[-1] for one in left]
            here = sorted(
                (one for one in left if one.opts[-1] in names),
                key=lambda one: names.index(one.opts[-1]),
            )
            left = [one for one in left if one not in here]
            if records := [
                record for one in here if (record := one.get_help_record(ctx)) is not None
            ]:
                with formatter.section(title):
                    formatter.write_dl(records)


# ── options as fields ─────────────────────────────────────────────────────────────────────────────


def option(
    help: str,
    written: str = "",
    *,
    default: Any = None,
    needs: tuple[str, ...] = (),
    excludes: tuple[str, ...] = (),
    **more: Any,
) -> Any:
    """A field of a dataclass that is an option of the command line too.

    `written` has its flags, where these are not --like-its-name, and what the help calls its value.
    Any default but False is shown. It is refused without one of the options that it `needs`, which
    the help then begins with, and beside those that it `excludes`. `more` goes to `click.Option`.
    """
    flags = [word for word in written.split() if word.startswith("-")]
    more |= {"metavar": "".join(word for word in written.split() if word not in flags) or None}
    more["help"] = f"With {_either(needs)}: {help}" if needs else help
    if more.get("multiple"):
        default = ()
    elif default is not None and default is not False:
        more = {"default": default, "show_default": True, **more}
    known = {"make": lambda name: click.Option([*(flags or (option_flag(name),)), name], **more)}
    return field(
        default=default, metadata={**known, "needs": needs, "excludes": excludes, "help": help}
    )


def fraction_option(help: str, metavar: str, **more: Any) -> Any:
    """One whose value is a share, strictly between 0 and 1."""
    return option(help, metavar, type=parse_fraction, **more)


def column_option(help: str, **more: Any) -> Any:
    """One that names a column."""
    return option(help, "NAME", **more)


def switch_option(help: str, written: str = "", **more: Any) -> Any:
    """One without a value: it was given, or not."""
    return option(help, written, default=False, is_flag=True, **more)


def file_option(help: str, metavar: str = "FILE", **more: Any) -> Any:
    """One that names a file."""
    return option(help, metavar, type=click.Path(), **more)


def option_flag(name: str) -> str:
    """What users call the option of a field.

    Examples
    --------
    >>> flag("group_key")
    '--group-key'
    """
    return "--" + name.replace("_", "-")


def _either(names: tuple[str, ...]) -> str:
    return " or ".join(map(option_flag, names))


def to_arguments(name: str, value: Any) -> list[str]:
    """The words of a command line that give an option this value: none where it has none.

    Examples
    --------
    >>> as_words("label_key", "truth"), as_words("drop", ("a", "b")), as_words("input", None)
    (['--label-key', 'truth'], ['--drop', 'a', '--drop', 'b'], [])
    """
    values = value if isinstance(value, tuple) else () if value is None else (value,)
    return [word for one in values for word in (option_flag(name), str(one))]


def option_group(options: type, *, without: tuple[str, ...] = ()) -> Any:
    """A field for the options of another dataclass, all but some."""
    return field(default=None, metadata={"group": options, "without": without})


def _flat(options: type, without: tuple[str, ...] = ()) -> Iterator[Field[Any]]:
    """The fields that are options, those of groups among them."""
    for one in fields(options):
        if "group" in one.metadata:
            yield from _flat(one.metadata["group"], one.metadata["without"])
        elif "make" in one.metadata and one.name not in without:
            yield one


def _check_together(options: type, given: dict[str, Any]) -> None:
    """Refuse an option without what it needs, or beside what it excludes."""
    said = {
        name
        for name, value in given.items()
        if value is not None and value is not False and value != ()
    }
    for one in (one for one in _flat(options) if one.name in said):
        needs, beside = (
            one.metadata["needs"],
            [other for other in one.metadata["excludes"] if other in said],
        )
        if needs and not said.intersection(needs):
            raise click.UsageError(
                f"{option_flag(one.name)} goes with {_either(needs)}: {one.metadata['help']}"
            )
        if beside:
            raise click.UsageError(
                f"{option_flag(one.name)} and {option_flag(beside[0])} exclude each other; give one."
            )


def _gathered(options: type, given: dict[str, Any], without: tuple[str, ...] = ()) -> Any:
    """The dataclass of what was given, which is taken out; what is not given keeps its default."""
    own: dict[str, Any] = {}
    for one in fields(options):
        if "group" in one.metadata:
            own[one.name] = _gathered(one.metadata["group"], given, one.metadata["without"])
        elif one.name in given and one.name not in without:
            own[one.name] = given.pop(one.name)
    return options(**own)


#: What --format and --output-format may be: what a file is, where its name does not say.
FORMATS, OUTPUT_FORMATS = (
    [ending[1:] for ending in endings(written=written)] for written in (False, True)
)


def _into_context(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Leave what was given where answers, warnings, notes and readers of saved files look for
    it.
    """
    if value not in (None, False):
        ctx.meta[f"metacal.{parameter.name}"] = value


#: Of an option that the command itself is not given.
_STORED_IN_CONTEXT: dict[str, Any] = {"expose_value": False, "callback": _into_context}


@dataclass(frozen=True)
class ReadOptions:
    """How to find table, labels and classes in the user's file, and a second model's table in
    another.
    """

    large: str | None = file_option(
        "With a cascade: the large model's predictions, of all rows or of those that need it.",
        "LARGEFILE",
    )
    input: str | None = option(
        "What FILE holds; never guessed.  [default: logits, or what the JSON was fitted on]",
        type=click.Choice(["logits", "probabilities"]),
    )
    labels: str | None = file_option(
        "A second file with the labels: .npy, or text with one per line."
    )
    logits_key: str | None = option(
        "Name of the table in FILE, prefix of its columns, or of two classes the column with the"
        " score of the positive one.  [default: logits, or probabilities or probs; score, or prob;"
        " what the JSON was fitted on]",
        "--logits-key --positive-key NAME",
    )
    label_key: str | None = column_option(
        "Name of the labels in FILE.  [default: labels, label or y]"
    )
    id_key: str | None = column_option(
        "Name of the row ids in FILE.  [default: id or ids, if there]"
    )
    group_key: str | None = column_option(
        "Name of the rows' groups in FILE: a threshold, and a promise, for each group."
    )
    classes: str | None = option(
        "The classes in column order, or @FILE with one per line.  [default: 0 ...]", "A,B,C"
    )
    drop: tuple[str, ...] = option(
        "A column of FILE that is no class; once for each.", "NAME", multiple=True
    )
    format: str | None = option(
        "What FILE is: csv, jsonl, parquet, npz, ...  [default: what it begins with, or its name]",
        "KIND",
        type=click.Choice(FORMATS),
    )
    score_key: str | None = column_option(
        "FILE holds no logits but a score for each row, of this name.  [default: what the JSON was"
        " fitted on]"
    )
    correct_key: str | None = column_option(
        "With a score: what says right or wrong, as true/false, 1/0 or yes/no.  [default: correct"
        " or ok]"
    )
    agree_key: str | None = column_option(
        "For a cascade over scores with --max-loss: what says whether each model but the last gives"
        " the last model's answer, one name for each, separated by commas."
    )
    loss_key: str | None = column_option(
        "With a score and --max-risk: the loss of each row, from 0 to 1.  [default: loss, of a gate"
        " fitted on losses]"
    )
    higher_is: str | None = option(
        "With a score: what a higher one says; doubtful for losses, distances, perplexities. "
        " [default: surer]",
        type=click.Choice(["surer", "doubtful"]),
    )
    strict: None = option(
        "A warning is an error: probabilities read as logits, a stray column, rows that"
        " repeat, ...",
        is_flag=True,
        **_STORED_IN_CONTEXT,
    )
    unit_key: str | None = None
    keep: tuple[str, ...] = ()


def _checked_jobs(ctx: click.Context, parameter: click.Parameter, n_jobs: int | None) -> int | None:
    """Refuse 0 threads and absurdly many as wrong usage."""
    if n_jobs == 0:
        raise bad_option("-n", "0 threads cannot work; give 1 or more, or -1 for one per core.")
    if n_jobs is not None and abs(n_jobs) > MAX_JOBS:
        raise bad_option(
            "-n",
            f"{n_jobs} threads are too many; give at most {MAX_JOBS}, or -1 for one per core.",
        )
    return n_jobs


def jobs_option() -> Any:
    """A field for -n."""
    return option(
        "Threads; -1: one per core. Never changes the result.  [default: -1]",
        "-n --jobs --n-jobs N",
        type=int,
        callback=_checked_jobs,
    )


def level_option() -> Any:
    """A field for --level."""
    return fraction_option("Level of the intervals.", "P", default=0.95)


def resolve_n_jobs(n_jobs: int | None) -> int:
    """The threads to use: all cores unless the user says otherwise."""
    return -1 if n_jobs is None else n_jobs


# ── commands ──────────────────────────────────────────────────────────────────────────────────────

#: Every command that reads a saved file has it; `metacal.cli.reading.load_gate` asks for it.
_key_option = click.Option(
    ["--key"],
    type=click.Path(),
    metavar="KEYFILE",
    **_STORED_IN_CONTEXT,
    help=(
        "Take the saved file only if it is signed with this key: a secret, or an Ed25519 key in"
        " PEM."
    ),
)
_json_option = click.Option(
    ["--json"],
    is_flag=True,
    **_STORED_IN_CONTEXT,
    help="Print the answer as JSON, and nothing else.",
)
#: Every command gets it, from the group.
quiet_option = click.Option(
    ["-q", "--quiet"],
    is_flag=True,
    **_STORED_IN_CONTEXT,
    help="Only results and errors: no notes, no warnings, no progress bar.",
)


def as_command(
    options: type | None, *arguments: str, sectioned: bool = False, answers: bool = True
) -> Callable[[Callable[..., Any]], click.Command]:
    """A function as a command with the options that the fields of a dataclass describe: it gets one
    as `options`.

    `arguments` are files as help calls them, one in brackets where it may be left out. GATE, of
    which the function gets the path as `artifact`, comes with --key; --json with every command that
    `answers`.
    """

    def decorate(function: Callable[..., Any]) -> click.Command:
        @functools.wraps(function)
        def gathered(**given: Any) -> Any:
            if "paths" in given:
                given |= _gate_and_file(given.pop("paths"))
            if options is not None:
                _check_together(options, given)
                given["options"] = _gathered(options, given)
            return function(**given)

        params: list[click.Parameter] = [_argument(name) for name in arguments]
        params += (
            [] if options is None else [one.metadata["make"](one.name) for one in _flat(options)]
        )
        params += [_key_option] if any("GATE" in name for name in arguments) else []
        params += [_json_option] if answers else []
        return click.command(cls=SectionedCommand if sectioned else click.Command, params=params)(
            gathered
        )

    return decorate


def _argument(name: str) -> click.Argument:
    own = {"GATE": "artifact", "[GATE] FILE": "paths"}.get(name, name.strip("[]").lower())
    several = own == "paths"
    required = several or not name.startswith("[")
    return click.Argument(
        [own], metavar=name, nargs=-1 if several else 1, required=required, type=click.Path()
    )


def _gate_and_file(paths: tuple[str, ...]) -> dict[str, str | None]:
    """A saved gate first where there is one, and the rows."""
    if len(paths) > 2:
        raise click.UsageError(
            f"got {len(paths)} files: give a gate and one file of rows, or a file of rows alone."
        )
    return {"artifact": paths[0] if len(paths) == 2 else None, "file": paths[-1]}
