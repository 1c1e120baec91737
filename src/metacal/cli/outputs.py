"""Output files of commands.

A command never overwrites a file that it reads. A gate is saved only after the text to be saved was
loaded again and decides the same.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from metacal.cli.options import file_option, option
from metacal.cli.printing import flag_is_set, print_note
from metacal.cli.values import bad_option
from metacal.io.formats import list_extensions

if TYPE_CHECKING:
    from metacal.cli.read_options import ReadOptions
    from metacal.gate import Gate


class OutputPath(click.Path):
    """Path of a file to write, with "-" for every name of standard output."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path as text."""
        if value in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"):
            return "-"
        return super().convert(value, param, ctx)


def output_option(help: str, metavar: str, **more: Any) -> Any:
    """Return a field for -o."""
    return option(help, f"-o --output {metavar}", type=OutputPath(), **more)


def rejected_option() -> Any:
    """Return a field for --rejected."""
    return option(
        "Probabilities of rejected rows: calibrated, or 1/K for every class.  [default: calibrated;"
        " uniform if GATE was fitted with --rule paper]",
        type=click.Choice(("calibrated", "uniform")),
    )


def is_folder_output(output: str | None) -> bool:
    """Check whether the output is an existing folder or a name ending in "/"."""
    if output is None or output == "-":
        return False
    return output.endswith(("/", os.sep)) or os.path.isdir(output)


def check_saves_to_file(output: str | None) -> None:
    """Raise an error if a gate cannot be saved under this name.

    Raises
    ------
    click.BadParameter
        If `output` is standard output, where the certificate is printed.
    InputError
        If the folder of `output` does not exist.
    """
    if output == "-":
        raise bad_option(
            "-o",
            "-o must name a file, for example -o cal.json. To print the certificate to standard"
            " output, pass --json.",
        )
    if output is not None:
        from metacal.io.writing import check_output_directory

        check_output_directory(output)


def check_output_is_not_input(
    output: str | None, *inputs: str | None, reading: ReadOptions | None = None
) -> None:
    """Raise a usage error if the output is a file that the command reads.

    Parameters
    ----------
    output : str or None
        Path to write.
    *inputs : str or None
        Paths to read. They are compared as files, so a link to `output` counts as well.
    reading : ReadOptions or None, default=None
        Options that may name further files to read.
    """
    from metacal.io.input_paths import is_also_input

    if output is None or output == "-":
        return
    input_paths = list(inputs)
    if reading is not None:
        input_paths += [reading.large, reading.labels]
        if reading.classes is not None and reading.classes.startswith("@"):
            input_paths.append(reading.classes[1:])
    for path in input_paths:
        if path is None or path == "-":
            continue
        if is_also_input(output, path, suffixes=list_extensions()):
            raise click.UsageError(f"{output} is also an input file. Write to another file.")


# ── saving of gates ───────────────────────────────────────────────────────────────────────────────


def sign_option() -> Any:
    """Return a field for --sign, for commands that save a gate."""
    return file_option(
        "Sign the saved file with a secret of at least 32 bytes or an Ed25519 private key in PEM.",
        "--sign KEYFILE",
    )


def check_can_sign(key: str | None, output: str | None) -> None:
    """Check that the key can sign, and that there is a file to sign."""
    if key is None:
        return
    from metacal.io.artifact.signature import read_key

    if output is None:
        raise click.UsageError("--sign has no effect, because no gate is saved. Add -o cal.json.")
    read_key(key).compute(b"")


def store_column_names_in_gate(gate: Gate, reading: ReadOptions) -> Gate:
    """Return a copy of a gate that stores the column names of its calibration file."""
    from metacal.gate.file_layout import FileLayout

    layout = FileLayout.from_options(vars(reading))
    if layout == FileLayout():
        return gate
    stages = []
    for stage in gate.stages:
        source: Any = replace(stage.source, file_layout=layout)
        stages.append(replace(stage, source=source))
    return replace(gate, stages=tuple(stages))


def save_gate(gate: Gate, path: str | None, key: str | None, n_jobs: int | None = None) -> None:
    """Save a gate after checking that the loaded gate makes equal decisions.

    Parameters
    ----------
    gate : Gate
        Gate to save.
    path : str or None
        File to write. With None, nothing is saved.
    key : str or None
        File with the key that signs the gate.
    n_jobs : int or None, default=None
        Number of threads that the saved gate requests.
    """
    if path is None:
        return
    from metacal.io.artifact.document import SavedContent, build_verified_text
    from metacal.io.artifact.wrapping import write_text

    write_text(build_verified_text(SavedContent(gate, n_jobs), key=key), path)


def print_saved_note(
    output: str | None, key: str | None, *, next_command: str, note_if_not_saved: str
) -> None:
    """Print where the gate was saved, and the next command.

    Parameters
    ----------
    output : str or None
        File that was saved, or None.
    key : str or None
        File with the key that signed it, or None.
    next_command : str
        Command to run next, if the gate was saved.
    note_if_not_saved : str
        Advice to save it, if it was not saved. Omitted with --json.
    """
    if output is not None:
        signature_note = " and signed" if key else ""
        print_note(f"Saved to {output}{signature_note}. Next: {next_command}")
    elif not flag_is_set("json"):
        print_note(f"Nothing was saved; {note_if_not_saved}")
