"""What a command writes, and where: never over what it reads; a saved gate only once it has been
read back.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from metacal.cli.options import ReadOptions, file_option, option
from metacal.cli.printing import flag_is_set, print_note
from metacal.cli.values import bad_option
from metacal.io.formats import endings

if TYPE_CHECKING:
    from metacal.gate import Gate


class OutputPath(click.Path):
    """A file to write; the names that systems have for standard output are -."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path as text."""
        return (
            "-"
            if value in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")
            else super().convert(value, param, ctx)
        )


def output_option(help: str, metavar: str, **more: Any) -> Any:
    """A field for -o."""
    return option(help, f"-o --output {metavar}", type=OutputPath(), **more)


def is_folder_output(output: str | None) -> bool:
    """Whether results go to a folder, a file for each that is read: one that is there, or a name
    that ends in /.
    """
    return (
        output is not None
        and output != "-"
        and (output.endswith(("/", os.sep)) or os.path.isdir(output))
    )


def check_is_file(output: str | None) -> None:
    """Refuse to save a gate on standard output, where the certificate goes, or where there is no
    folder.
    """
    if output == "-":
        where = "a file, such as -o cal.json; --json prints the certificate on standard output"
        raise bad_option("-o", f"what is saved goes into {where}.")
    if output is not None:
        from metacal.io.writing import check_folder

        check_folder(output)


def check_not_input(
    output: str | None, *inputs: str | None, reading: ReadOptions | None = None
) -> None:
    """Refuse to write over a file that is being read, under whatever name: another path, a link,
    --classes @FILE.
    """
    if reading is not None:
        named = reading.classes is not None and reading.classes.startswith("@")
        inputs = (
            *inputs,
            reading.large,
            reading.labels,
            reading.classes[1:] if named and reading.classes else None,
        )
    from metacal.io.many import is_read

    for path in inputs:
        if (
            output not in (None, "-")
            and path not in (None, "-")
            and is_read(str(output), str(path), endings())
        ):
            raise click.UsageError(f"{output} is also read; write to another file.")


# ── a gate that is saved ──────────────────────────────────────────────────────────────────────────


def sign_option() -> Any:
    """A field for --sign, of the commands that save a gate."""
    return file_option(
        "Sign what is saved: with a secret of 32 bytes or more, or an Ed25519 private key in PEM.",
        "--sign KEYFILE",
    )


def check_can_sign(key: str | None, output: str | None) -> None:
    """Refuse a key that cannot sign before anything is fitted."""
    if key is None:
        return
    from metacal.io.artifact.signature import read_key

    if output is None:
        raise click.UsageError("--sign signs what -o saves; give -o cal.json.")
    read_key(key).make(b"")


def save_gate(gate: Gate, path: str | None, key: str | None, n_jobs: int | None = None) -> None:
    """Put the gate into a file, once what is to be saved has been read back and decides the same;
    nothing for None.
    """
    if path is None:
        return
    from metacal.io.artifact.document import Content, text_that_loads
    from metacal.io.artifact.wrapping import write_text

    write_text(text_that_loads(Content(gate, n_jobs), key=key), path)


def print_saved_note(output: str | None, key: str | None, *, then: str, without: str) -> None:
    """Say where it was saved and what comes `then`, or what `-o` would do; whoever reads JSON has
    not asked.
    """
    if output is not None:
        print_note(f"Saved to {output}{' and signed' if key else ''}. Next: {then}")
    elif not flag_is_set("json"):
        print_note(f"Nothing was saved; {without}")
