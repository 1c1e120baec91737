"""Command-line options that are described by the fields of dataclasses.

Each command has a dataclass `Options`. A field made with `option` is one option of the command
line, and a field made with `option_group` holds another such dataclass, whose options the
command shares with other commands. `as_command` turns a function with a parameter `options` into
a click command.

Only click and modules that load equally fast are imported here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import click

from metacal.cli.values import (
    MAX_JOBS,
    bad_option,
    format_row_range,
    parse_fraction,
)
from metacal.io.formats import list_extensions

# ── help in sections ──────────────────────────────────────────────────────────────────────────────

#: Heading of each help section and its options, in the order in which they are needed.
#: See `group_by_help_section` for the options that no section lists.
HELP_SECTIONS = {
    "Promise": (
        "min-accuracy max-miscoverage max-review max-risk max-cost cheapest max-loss min-precision"
        " min-recall max-false-positive-rate min-npv max-case-errors min-case-recall"
        " max-errors-per-case confidence per-class no-people"
    ),
    "Monitoring": "follow serve state acknowledge append horizon silence",
    "Labelling": "gate coverage show show-prediction batch replay",
    "Comparison": "calibrators compare folds repeats",
    "Input": (
        "label-key labels input logits positive-key classes group-key unit-key score-key correct-key"
        " higher-is positive large"
    ),
    "Output": "output output-format keep title to dtype part json quiet help",
    "Advanced promise settings": (
        "cost-wrong cost-matrix cost-review after-looking at-threshold in-expectation each fcr"
        " pool-small every-row largest-unit positive-share among-automated largest-per-case"
        " same-scale near-binary rule"
    ),
    "Advanced": "",
}


class SectionedCommand(click.Command):
    """Command whose help lists the options in sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each section that has options."""
        shown_options = [
            parameter for parameter in self.get_params(ctx) if isinstance(parameter, click.Option)
        ]
        for heading, section_options in group_by_help_section(shown_options).items():
            _write_help_section(ctx, formatter, heading, section_options)


class _PromiseOption(click.Option):
    """Option that describes a promise."""


def group_by_help_section(options: Sequence[click.Option]) -> dict[str, list[click.Option]]:
    """Group options by the heading of their help section, in the order of the help.

    A section begins with the options that `HELP_SECTIONS` lists. Of the other options, those that
    describe a promise end the section "Promise", and the rest is the last section.

    Parameters
    ----------
    options : sequence of click.Option
        Options of a command.

    Returns
    -------
    dict of str to list of click.Option
        Options of each section, which may be empty.
    """
    option_by_name = {shown.opts[-1].removeprefix("--"): shown for shown in options}
    options_by_heading: dict[str, list[click.Option]] = {}
    for heading, option_names in HELP_SECTIONS.items():
        listed_names = [name for name in option_names.split() if name in option_by_name]
        options_by_heading[heading] = [option_by_name.pop(name) for name in listed_names]
    *_, last_heading = HELP_SECTIONS
    for unlisted in option_by_name.values():
        heading = "Promise" if isinstance(unlisted, _PromiseOption) else last_heading
        options_by_heading[heading].append(unlisted)
    return options_by_heading


def _write_help_section(
    ctx: click.Context,
    formatter: click.HelpFormatter,
    heading: str,
    section_options: Sequence[click.Option],
) -> None:
    """Write a section of the help, unless none of its options is shown."""
    # A hidden option has no help record.
    help_records = [shown_option.get_help_record(ctx) for shown_option in section_options]
    shown_records = [record for record in help_records if record is not None]
    if shown_records:
        with formatter.section(heading):
            formatter.write_dl(shown_records)


@dataclass(frozen=True)
class _OptionSpec:
    """Description of an option, stored in the metadata of a dataclass field.

    Attributes
    ----------
    build_option_of_class : callable
        Builds the click option from its class and the name of the field.
    help : str
        Help text, without the options that this option needs.
    needs : tuple of str
        Fields of which at least one must be given together with this option.
    excludes : tuple of str
        Fields that must not be given together with this option.
    describes_promise : bool, default=False
        Whether the option describes a promise.
    """

    build_option_of_class: Callable[[type[click.Option], str], click.Option]
    help: str
    needs: tuple[str, ...]
    excludes: tuple[str, ...]
    describes_promise: bool = False

    def build_click_option(self, field_name: str) -> click.Option:
        """Build the click option from the name of the field."""
        option_class = _PromiseOption if self.describes_promise else click.Option
        return self.build_option_of_class(option_class, field_name)


@dataclass(frozen=True)
class _OptionGroupSpec:
    """Dataclass of shared options, stored in the metadata of a dataclass field.

    Attributes
    ----------
    options_class : type
        The dataclass.
    excluded_fields : tuple of str
        Fields of it that the command does not have.
    """

    options_class: type
    excluded_fields: tuple[str, ...]


# ── options as fields ─────────────────────────────────────────────────────────────────────────────


def option(
    help: str,
    flags_and_metavar: str = "",
    *,
    default: Any = None,
    needs: tuple[str, ...] = (),
    excludes: tuple[str, ...] = (),
    **click_options: Any,
) -> Any:
    """Return a dataclass field that describes an option of the command line.

    Parameters
    ----------
    help : str
        Help text.
    flags_and_metavar : str, default=""
        Flags of the option and placeholder of its value, separated by spaces, as in
        "-o --output FILE". Without flags, the flag is derived from the name of the field.
    default : object, default=None
        Default value. The help shows it, unless it is None or False.
    needs : tuple of str, default=()
        Fields of which at least one must be given together with this option. The help text
        begins with them.
    excludes : tuple of str, default=()
        Fields that must not be given together with this option.
    **click_options
        Further parameters of `click.Option`.

    Returns
    -------
    dataclasses.Field
    """
    words = flags_and_metavar.split()
    explicit_flags = [word for word in words if word.startswith("-")]
    metavar = "".join(word for word in words if word not in explicit_flags)
    click_parameters = {**click_options, "metavar": metavar or None, "help": help}
    if needs:
        click_parameters["help"] = f"With {_format_flag_list(needs)}: {help}"
    if click_options.get("multiple"):
        default = ()
    elif default is not None and default is not False:
        click_parameters = {"default": default, "show_default": True, **click_parameters}

    def build_option_of_class(option_class: type[click.Option], field_name: str) -> click.Option:
        flags = explicit_flags or [option_flag(field_name)]
        return option_class([*flags, field_name], **click_parameters)

    option_spec = _OptionSpec(build_option_of_class, help=help, needs=needs, excludes=excludes)
    return field(default=default, metadata={"option": option_spec})


def fraction_option(help: str, metavar: str, **click_options: Any) -> Any:
    """Return a field for an option whose value is strictly between 0 and 1."""
    return option(help, metavar, type=parse_fraction, **click_options)


def column_option(help: str, **click_options: Any) -> Any:
    """Return a field for an option that names a column."""
    return option(help, "NAME", **click_options)


def switch_option(help: str, flags: str = "", **click_options: Any) -> Any:
    """Return a field for an option without a value: True if given, else False."""
    return option(help, flags, default=False, is_flag=True, **click_options)


def file_option(help: str, metavar: str = "FILE", **click_options: Any) -> Any:
    """Return a field for an option that names a file."""
    return option(help, metavar, type=click.Path(), **click_options)


def option_flag(name: str) -> str:
    """Return the command-line flag of a field.

    Examples
    --------
    >>> option_flag("group_key")
    '--group-key'
    """
    return "--" + name.replace("_", "-")


def _format_flag_list(names: tuple[str, ...]) -> str:
    """Join the flags of some fields with "or"."""
    return " or ".join(map(option_flag, names))


def format_option_arguments(name: str, value: Any) -> list[str]:
    """Return the command-line arguments that give an option this value.

    Examples
    --------
    >>> format_option_arguments("label_key", "truth"), format_option_arguments("drop", ("a", "b"))
    (['--label-key', 'truth'], ['--drop', 'a', '--drop', 'b'])
    >>> format_option_arguments("rows", (0.7, 1.0))
    ['--rows', '0.7:1']
    >>> format_option_arguments("input", None)
    []
    """
    if value is None:
        return []
    if name == "rows":
        return [option_flag(name), format_row_range(value)]
    option_values = value if isinstance(value, tuple) else (value,)
    arguments = []
    for option_value in option_values:
        arguments += [option_flag(name), str(option_value)]
    return arguments


def option_group(options_class: type, *, excluded_fields: tuple[str, ...] = ()) -> Any:
    """Return a field for a dataclass of shared options, without some of them."""
    group_spec = _OptionGroupSpec(options_class, excluded_fields)
    return field(default=None, metadata={"group": group_spec})


def _iterate_option_specs(
    options_class: type, excluded_fields: tuple[str, ...] = ()
) -> Iterator[tuple[str, _OptionSpec]]:
    """Yield name and description of each option, including those of option groups."""
    for dataclass_field in fields(options_class):
        metadata = dataclass_field.metadata
        if "group" in metadata:
            group_spec: _OptionGroupSpec = metadata["group"]
            yield from _iterate_option_specs(group_spec.options_class, group_spec.excluded_fields)
        elif "option" in metadata and dataclass_field.name not in excluded_fields:
            yield dataclass_field.name, metadata["option"]


def _raise_if_options_conflict(options_class: type, parameter_values: Mapping[str, Any]) -> None:
    """Raise a usage error if a required option is missing, or options conflict."""
    given_names = {
        name
        for name, value in parameter_values.items()
        if value is not None and value is not False and value != ()
    }
    for name, option_spec in _iterate_option_specs(options_class):
        if name not in given_names:
            continue
        if option_spec.needs and not given_names.intersection(option_spec.needs):
            raise click.UsageError(
                f"{option_flag(name)} has no effect without {_format_flag_list(option_spec.needs)}. Pass both,"
                f" or leave out {option_flag(name)}."
            )
        for excluded_name in option_spec.excludes:
            if excluded_name in given_names:
                raise click.UsageError(
                    f"{option_flag(name)} and {option_flag(excluded_name)} cannot be"
                    " combined. Pass one of them."
                )


def _move_values_to_options(
    options_class: type, parameter_values: dict[str, Any], excluded_fields: tuple[str, ...] = ()
) -> Any:
    """Build the dataclass of options, and remove its fields from the parsed values."""
    field_values: dict[str, Any] = {}
    for dataclass_field in fields(options_class):
        field_name = dataclass_field.name
        group_spec: _OptionGroupSpec | None = dataclass_field.metadata.get("group")
        if group_spec is not None:
            field_values[field_name] = _move_values_to_options(
                group_spec.options_class, parameter_values, group_spec.excluded_fields
            )
        elif field_name in parameter_values and field_name not in excluded_fields:
            field_values[field_name] = parameter_values.pop(field_name)
    return options_class(**field_values)


#: Values of --format.
FORMATS = [ending[1:] for ending in list_extensions(writable=False)]
#: Values of --output-format.
OUTPUT_FORMATS = [ending[1:] for ending in list_extensions(writable=True)]


def _store_in_context(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Store a value in the click context, for printing and for reading files."""
    if value not in (None, False):
        ctx.meta[f"metacal.{parameter.name}"] = value


#: Parameters of a click option whose value goes to the click context, and not to the command.
STORED_IN_CONTEXT: dict[str, Any] = {"expose_value": False, "callback": _store_in_context}


def _check_n_jobs(ctx: click.Context, parameter: click.Parameter, n_jobs: int | None) -> int | None:
    """Raise a usage error for 0 threads and for more than `MAX_JOBS`."""
    if n_jobs == 0:
        raise bad_option(
            "-n",
            "The number of threads must not be 0. Pass a positive number, or -1 for one"
            " thread per core.",
        )
    if n_jobs is not None and abs(n_jobs) > MAX_JOBS:
        raise bad_option(
            "-n",
            f"The number of threads must be at most {MAX_JOBS}, but got {n_jobs}. Pass -1 for one"
            " thread per core.",
        )
    return n_jobs


def jobs_option() -> Any:
    """Return a field for -n."""
    return option(
        "Number of threads, -1 for one per core. Does not change the result.  [default: -1]",
        "-n --jobs --n-jobs N",
        type=int,
        callback=_check_n_jobs,
    )


def level_option() -> Any:
    """Return a field for --level."""
    return fraction_option("Confidence level of the intervals.", "P", default=0.95)


def resolve_n_jobs(n_jobs: int | None) -> int:
    """Return the number of threads, -1 (all cores) by default."""
    return -1 if n_jobs is None else n_jobs


# ── commands ──────────────────────────────────────────────────────────────────────────────────────

#: Option of every command that reads a saved gate. `metacal.cli.reading.load_gate` uses it.
_key_option = click.Option(
    ["--key"],
    type=click.Path(),
    metavar="KEYFILE",
    **STORED_IN_CONTEXT,
    help=("Refuse the gate unless it is signed with this key: a secret, or an Ed25519 key in PEM."),
)
_json_option = click.Option(
    ["--json"],
    is_flag=True,
    **STORED_IN_CONTEXT,
    help="Print the result as JSON.",
)
#: Option of every command; `metacal.cli.Commands` adds it.
quiet_option = click.Option(
    ["-q", "--quiet"],
    is_flag=True,
    **STORED_IN_CONTEXT,
    help="Print only results and errors.",
)


def as_command(
    options_class: type | None,
    *arguments: str,
    has_help_sections: bool = False,
    has_json_option: bool = True,
) -> Callable[[Callable[..., Any]], click.Command]:
    """Return a decorator that turns a function into a click command.

    Parameters
    ----------
    options_class : type or None
        Dataclass that describes the options. The function gets an instance as `options`.
    *arguments : str
        Names of the file arguments as the help shows them, in brackets if optional. GATE adds
        --key, and the function gets its path as `artifact`.
    has_help_sections : bool, default=False
        Whether the help lists the options in sections.
    has_json_option : bool, default=True
        Whether the command has --json.

    Returns
    -------
    callable
    """

    def decorate(function: Callable[..., Any]) -> click.Command:
        @functools.wraps(function)
        def run_command(**parameter_values: Any) -> Any:
            if "paths" in parameter_values:
                paths: tuple[str, ...] = parameter_values.pop("paths")
                parameter_values |= _split_into_gate_and_rows(paths)
            if options_class is not None:
                _raise_if_options_conflict(options_class, parameter_values)
                options = _move_values_to_options(options_class, parameter_values)
                parameter_values["options"] = options
            return function(**parameter_values)

        params: list[click.Parameter] = [_build_argument(name) for name in arguments]
        if options_class is not None:
            for name, option_spec in _iterate_option_specs(options_class):
                params.append(option_spec.build_click_option(name))
        if any("GATE" in name for name in arguments):
            params.append(_key_option)
        if has_json_option:
            params.append(_json_option)
        command_class = SectionedCommand if has_help_sections else click.Command
        return click.command(cls=command_class, params=params)(run_command)

    return decorate


def _build_argument(name: str) -> click.Argument:
    """Build the click argument that the help shows under this name."""
    if name == "[GATE] FILE":
        # click cannot make the first of two arguments optional, so it collects both as one.
        return click.Argument(["paths"], metavar=name, nargs=-1, required=True, type=click.Path())
    parameter_name = "artifact" if name == "GATE" else name.strip("[]").lower()
    return click.Argument(
        [parameter_name], metavar=name, required=not name.startswith("["), type=click.Path()
    )


def _split_into_gate_and_rows(paths: tuple[str, ...]) -> dict[str, str | None]:
    """Split the paths of "[GATE] FILE" into the optional gate and the file of rows."""
    if len(paths) > 2:
        raise click.UsageError(
            f"At most one gate and one file of rows are allowed, but got {len(paths)} files."
        )
    artifact = paths[0] if len(paths) == 2 else None
    return {"artifact": artifact, "file": paths[-1]}
