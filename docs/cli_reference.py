"""Write docs/cli.md from the commands themselves: python docs/cli_reference.py. A test fails when
the page is stale.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click

from metacal.cli import SUMMARIES, main
from metacal.cli.options import group_by_help_section

PAGE = Path(__file__).with_name("cli.md")

#: What precedes the commands. Its blocks run in the tests like those of any page.
INTRODUCTION = """\
<!-- Written by docs/cli_reference.py from the help of the commands. Edit that file or the help. -->

# Command line

```console
$ metacal --help
Usage: metacal [OPTIONS] COMMAND [ARGS]...
...
Commands:
  demo ...
  fit ...
  apply ...
  evaluate ...
```

`-h` or `--help` shows the help of any command. The [quick start](quick-start.md) is a complete example, and [files](files.md)
describes the formats.
"""

#: Headings of the page and the commands below each, in the order of use.
TASKS = {
    "Try metacal": ("demo", "start"),
    "Certify a promise": ("fit", "label", "cascade"),
    "Use a gate": ("apply", "show", "export", "attach"),
    "Measure and monitor": ("evaluate", "verify", "monitor", "report", "compare"),
    "Inspect the installation": ("config",),
}

#: Headings of the sections about shared options, and the commands that have these options.
SHARED_OPTIONS = {
    "Options of most commands": ("json", "quiet", "key", "sign", "n-jobs", "executor", "strict"),
    "Options about FILE": (
        "label-key",
        "labels",
        "input",
        "positive-key",
        "classes",
        "drop",
        "id-key",
        "group-key",
        "format",
        "rows",
        "large",
    ),
    "Options about scores": (
        "score-key",
        "correct-key",
        "prediction-key",
        "higher-is",
        "loss-key",
        "agree-key",
        "case-key",
    ),
}

#: What follows the commands.
CONVENTIONS = """\
## Exit codes and messages

| exit code | meaning |
|---|---|
| 0 | success |
| 1 | the data do not support the request, for example because the rows cannot certify the target |
| 2 | wrong usage or a wrong file |
| 3 | a promise is refuted (`metacal verify`), or an alarm was raised (`metacal monitor`) |
| 130 | stopped by Ctrl-C |
| 129, 143 | stopped by SIGHUP or SIGTERM (128 plus the number of the signal) |

Results go to standard output, and everything else to standard error. An interrupted command leaves no partial file, and no
command overwrites its own input. An error is a sentence followed by a link to the [error reference](errors.md). A command
continues after a [warning](files.md#what-is-questioned), unless `--strict` makes it an error. Names from a file are printed
with escaped control characters.

## Names in the JSON

`--json` uses the same names in the results of all commands. A key is left out or null if it does not apply.

| key | meaning |
|---|---|
| `file` | the file of predictions |
| `artifact` | the saved gate |
| `output` | the file that was written |
| `n_rows`, `n_classes`, `n_accepted` | numbers of rows, of classes, and of accepted rows |
| `coverage` | `n_accepted` / `n_rows` |
| `certificate` | the promise, the counts that support it, and its assumptions |
| `promise` | the promise and its verdict on these rows |
| `verdict` | `kept`, `undecided` (missed, but the interval includes the target), `refuted` (the whole interval misses the target), or `not judged` (the file holds rows of the fit) |
| `fit_rows` | number of rows of `file` that were used in the fit (`n_fit_rows` of `n_rows`, `is_estimate` if estimated from a sample), or null |
| `class` | for promises about two classes: the class of `quantity` |
| `value` or `estimate`, `low`, `high`, `level` | a measured number, its interval, and the confidence level of the interval |

Numbers are never NaN or infinite. An undefined number is null, and an infinite threshold is the text `"inf"`.

## Completion

One of these lines in the start-up file of the shell completes commands, options, file names and calibrators:

```bash
eval "$(_METACAL_COMPLETE=bash_source metacal)"        # ~/.bashrc
eval "$(_METACAL_COMPLETE=zsh_source metacal)"         # ~/.zshrc
_METACAL_COMPLETE=fish_source metacal | source         # ~/.config/fish/config.fish
```

## Plugins

`METACAL_PLUGINS` lists modules, separated by commas, that `metacal` imports before it runs a command. They may register
calibrators, scores and promises ([extending metacal](development/extending.md)).

```bash
METACAL_PLUGINS=my_calibrator,my_score metacal fit val.npz --calibrator mine --min-accuracy 0.97 -o cal.json
```
"""


def page() -> str:
    """Return the text of the whole page."""
    ctx = click.Context(main, info_name="metacal")
    parts = [INTRODUCTION, *_contents()]
    for task, names in TASKS.items():
        parts += [f"## {task}", ""]
        for name in names:
            command = main.get_command(ctx, name)
            assert command is not None
            parts += _section(click.Context(command, ctx, name), "###")
    parts += _shared_sections(ctx)
    parts.append(CONVENTIONS)
    return "\n".join(parts).rstrip() + "\n"


def _contents() -> list[str]:
    """Return the table of tasks and commands."""
    listed_names = [name for names in TASKS.values() for name in names]
    assert sorted(listed_names) == sorted(SUMMARIES), "TASKS must list each command once"
    lines = ["| task | command | |", "|---|---|---|"]
    for task, names in TASKS.items():
        for name in names:
            lines.append(f"| {task} | [`metacal {name}`](#metacal-{name}) | {SUMMARIES[name]} |")
            task = ""
    return [*lines, ""]


def _key(option: click.Option) -> str:
    """Return the name by which the sections about shared options list an option."""
    return option.opts[-1].removeprefix("--")


def _shared_sections(ctx: click.Context) -> list[str]:
    """Return the sections about the options that commands share, as `metacal evaluate` has them."""
    options: dict[str, tuple[click.Option, click.Context]] = {}
    for name in ("evaluate", "verify", "apply", "fit", "compare"):
        command = main.get_command(ctx, name)
        assert command is not None
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                options.setdefault(_key(parameter), (parameter, click.Context(command, ctx, name)))
    lines = []
    for title, keys in SHARED_OPTIONS.items():
        lines += [f"## {title}", "", "| option | meaning |", "|---|---|"]
        lines += [_row(*options[key]) for key in keys]
        lines.append("")
    return lines


def _section(ctx: click.Context, level: str) -> list[str]:
    """Return the section about a command: its help, its own options, links to the shared ones."""
    command = ctx.command
    lines = [
        f"{level} {ctx.command_path}",
        "",
        "```text",
        ctx.get_usage().removeprefix("Usage: "),
        "```",
        "",
    ]
    lines += _help(command.help or "")
    options = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    assert ctx.parent is not None
    shared_rows = set(_shared_sections(ctx.parent))
    own_options = [option for option in options if _row(option, ctx) not in shared_rows]
    lines += _option_tables(own_options, ctx)
    links = []
    for title, keys in SHARED_OPTIONS.items():
        flags = [f"`--{_key(o)}`" for o in options if _key(o) in keys and o not in own_options]
        if flags:
            anchor = title.lower().replace(" ", "-")
            links.append(f"[{title}](#{anchor}): {', '.join(flags)}.")
    for link in links:
        lines += [link, ""]
    return lines


def _option_tables(options: list[click.Option], ctx: click.Context) -> list[str]:
    """Return one table for each section of the help, in the order of use."""
    lines = []
    for title, section in group_by_help_section(options).items():
        if section:
            rows = [_row(option, ctx) for option in section]
            lines += [f"| {title.lower()} | meaning |", "|---|---|", *rows, ""]
    return lines


def _help(text: str) -> list[str]:
    """The command's docstring as Markdown: paragraphs, and what stands below a backspace as a block
    of code.
    """
    lines: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        rows = [row for row in paragraph.split("\n") if row.strip("\b ")]
        if "\b" not in paragraph:
            lines += [*(_literal(row.strip()) for row in rows), ""]
            continue
        words = [row.strip() for row in rows if row.strip().endswith(":")]
        code = [row.strip() for row in rows if row.strip() not in words]
        lines += [*words, *([""] if words else []), "```bash", *code, "```", ""]
    return lines


def _row(option: click.Option, ctx: click.Context) -> str:
    """One line of the table."""
    names = ", ".join(f"`{name}`" for name in option.opts[:-1])
    shown = option.opts[-1]
    if not option.is_flag:
        shown += f" {option.metavar or _type(option)}"
    names += (", " if names else "") + f"`{shown}`"
    meaning = " ".join((option.help or "").split())
    if isinstance(option.show_default, str):
        meaning += f" Default: {option.show_default}."
    elif option.show_default and option.default is not None and option.default is not False:
        meaning += f" Default: {option.default}."
    if isinstance(option.type, click.Choice) and option.metavar is None:
        meaning += " One of " + ", ".join(f"`{choice}`" for choice in option.type.choices) + "."
    return f"| {names} | {_literal(meaning)} |".replace("<", "&lt;")


def _type(option: click.Option) -> str:
    if isinstance(option.type, click.Choice):
        return "NAME"
    return (
        "N"
        if isinstance(option.type, click.types.IntParamType | click.IntRange)
        else option.type.name.upper()
    )


def _literal(text: str) -> str:
    """Keep Markdown from reading * and _ and | as marks."""
    return re.sub(r"(?<!`)([*|])(?!`)", r"\\\1", text)


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        raise SystemExit(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
