"""Write docs/cli.md from the commands themselves: python docs/cli_reference.py. A test fails when
the page is stale.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click

from metacal.cli import SUMMARIES, main

PAGE = Path(__file__).with_name("cli.md")

#: What precedes the commands. Its blocks run in the tests like those of any page.
INTRODUCTION = """\
<!-- Written by docs/cli_reference.py from the commands' own help; edit that, or the help. -->

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

Results go to stdout, everything else to stderr. `--json` prints the answer as JSON and nothing else on stdout.
`-q`, `--quiet` leaves only results and errors: no notes, no warnings, no bar. What takes longer than a second shows a bar on stderr, on a terminal.
`-h`, `--help` works on every command.

| exit code | meaning |
|---|---|
| 0 | fine |
| 1 | the data do not support what was asked: a target that these rows cannot certify, a promise that rows of the fit do not judge |
| 2 | wrong usage or file: unknown command or option, a number out of range, a file that cannot be read or does not fit |
| 3 | a promise is refuted (`metacal verify`), or an alarm was raised (`metacal monitor`) |
| 130 | stopped by Ctrl-C; no partial file is left |
| 129, 143 | stopped by SIGHUP or SIGTERM (128 and the signal's number); no partial file is left |

An error is one line that says what came, what is needed and what to do. Should you meet an unexpected one,
`METACAL_TRACEBACK=1` in the environment shows where it happened. A warning is a line too, and the command goes on: a table
that looks like something else, a column that is hardly a class, rows that repeat or that were part of the fit
([which](files.md#what-is-questioned)). `fit` writes what it has warned of into the certificate. `--strict` makes every
such warning an error, exit code 2, and nothing is written: right for a pipeline that nobody watches. Names that come from a file are printed with control
characters written out (`\\x1b[2J`), so that no file steers the terminal; into a pipe or a file rows go as they are. What
is read is never written over: `-o` is refused if it is FILE, the JSON, `--labels` or the `@FILE` of `--classes`, under
whatever name.

## Names in the JSON

A thing has one name in the answers of all commands; what a command has no such thing of is left out, or null.

| key | what it is |
|---|---|
| `file` | the predictions that were read |
| `artifact` | the saved gate: what `fit` wrote, what the others read |
| `output` | what else was written: rows, a page, a model |
| `n_rows`, `n_classes`, `n_accepted` | rows of `file` (in a part of the answer: of that part), classes, rows accepted |
| `coverage` | `n_accepted` / `n_rows` |
| `certificate` | what is promised, from which counts, under which assumptions |
| `promise` | the promise and what these rows say of it |
| `verdict` | kept; undecided, missed but perhaps by chance, as the interval includes the target; refuted, the whole interval on the wrong side; not judged, rows of the fit are among them |
| `fit_rows` | how many rows of `file` were part of the fit (`n_fit_rows` of `n_rows`, `is_estimate` if estimated from a sample of the row hashes); null if none was recognised |
| `class` | for promises about two classes: the class that `quantity` is about |
| `value` or `estimate`, `low`, `high`, `level` | a measured number, its interval, the level of the interval |

Numbers are never NaN or infinite: what is undefined is null, an infinite threshold the text `"inf"`.

## Completion

The shell completes commands, options, file names and the names of calibrators once one of these lines is in its start-up
file:

```bash
eval "$(_METACAL_COMPLETE=bash_source metacal)"        # ~/.bashrc
eval "$(_METACAL_COMPLETE=zsh_source metacal)"         # ~/.zshrc
_METACAL_COMPLETE=fish_source metacal | source         # ~/.config/fish/config.fish
```

## Plugins

`METACAL_PLUGINS` in the environment names modules, with commas between them, that `metacal` imports before it runs a command:
they register calibrators, scores and promises of their own, which can then be chosen, loaded and exported like any other.
A module must be installed or lie on `PYTHONPATH`; one that cannot be imported is wrong usage, exit code 2.
[Extending metacal](development/extending.md) has examples that run.

```bash
METACAL_PLUGINS=my_calibrator,my_score metacal fit val.npz --calibrator mine --min-accuracy 0.97 -o cal.json
```

## What is in FILE

`fit`, `evaluate`, `apply`, `compare`, `report` and `verify` read a table of logits, with labels where they need them.
[Files](files.md) has the formats, their columns and what is refused.

| kind | what is expected |
|---|---|
| `.npz`, `.safetensors`, `.pt` | arrays or tensors `logits` (or `probabilities`, `probs`), `labels` (or `label`, `y`), optionally `id` and `classes` |
| `.npy` | the table alone; labels from `--labels` |
| `.csv`, `.tsv`, `.parquet`, `.arrow`, `.feather` | one row per item; `label` and `id`, and a column `logits` of lists, or columns `logits_…`, or every other column is a class |
| `-` | csv or JSON lines on standard input; another kind with `--format` |

## A session

```python
import numpy as np
import metacal as mc

(logits, labels), (new_logits, new_labels) = mc.datasets.load("cifar10-resnet110").split(
    5000, random_state=0
)
np.savez("val.npz", logits=logits, labels=labels)
np.savez("test.npz", logits=new_logits[:1000], labels=new_labels[:1000])
mc.io.write_table("new.parquet", {"logits": new_logits})
```

```console
$ metacal fit val.npz --max-miscoverage 0.05 -o gate.json
At most 5% of the correct predictions are rejected, with 90% confidence.
  gate         accept if entropy <= 0.148325
  from         5,000 calibration rows, 4,639 of them correct
  on these     coverage 0.9172, selective accuracy 0.9653, miscoverage 0.0457
...
  calibrator   ComposedCalibration, temperature ...
Saved to gate.json. Next: metacal evaluate gate.json TEST

$ metacal fit val.npz --min-accuracy 0.999
Error: Cannot certify an accuracy of 0.999 on these 5,000 rows at 90% confidence; the best they support is 0.9973. Lower the target to 0.9973, or collect about 15,000 rows (a rough estimate).

$ metacal fit val.npz --min-accuracy 97
Usage: metacal fit [OPTIONS] FILE
...
Error: Invalid value for '--min-accuracy': 97 is not strictly between 0 and 1; write 97% as 0.97.

$ metacal fit val.npz --min-acuracy 0.97
Usage: metacal fit [OPTIONS] FILE
...
Error: No such option ...

$ metacal evaluate gate.json test.npz --resamples 200
test.npz, through gate.json: 1,000 rows, 10 classes; 939 accepted
(in brackets: 95% intervals of what these rows show; the promise's 90% is about the fit)

promised  At most 5% of the correct predictions are rejected, with 90% confidence.
measured  kept: miscoverage 0.0392 [0.0277, 0.0537], promised at most 0.05.
...

$ metacal apply gate.json new.parquet -o out.parquet
10,000 rows, 9,181 accepted (91.8%); written to out.parquet.

$ metacal apply gate.json new.parquet --json
{
  "file": "new.parquet",
  "artifact": "gate.json",
  "n_rows": 10000,
  "n_accepted": 9181,
  "coverage": 0.9181,
  "output": null
}
```

"Not kept" on a small file may be chance. The verdict says whether the interval excludes the target: only then do the
rows refute the promise.
"""


def page() -> str:
    """The whole page."""
    ctx = click.Context(main, info_name="metacal")
    parts = [INTRODUCTION]
    for name in SUMMARIES:
        command = main.get_command(ctx, name)
        assert command is not None
        parts += _section(click.Context(command, ctx, name), "##")
    return "\n".join(parts).rstrip() + "\n"


def _section(ctx: click.Context, level: str) -> list[str]:
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
    if options:
        lines += [
            "| option | meaning |",
            "|---|---|",
            *(_row(option, ctx) for option in options),
            "",
        ]
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            part = command.get_command(ctx, name)
            assert part is not None
            lines += _section(click.Context(part, ctx, name), level + "#")
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
