"""Read the user's file as a command needs it. NumPy is imported when a command runs, not before."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from metacal.cli.options import Reading
from metacal.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from metacal.gate import Gate
    from metacal.io.predictions import Predictions


def read(path: str, reading: Reading, *, stream: bool | None = None) -> Predictions:
    """Read FILE with the user's options; what looks odd is said. With `stream` the table stays in its file."""
    refuse_scores(reading)
    from metacal.io.predictions import read_predictions
    from metacal.rows.plausibility import warn_of_suspicion

    _refuse_gate(path)
    found = read_predictions(path, input=reading.input or "logits", stream=stream, **keywords(reading))
    warn_of_suspicion(found.table, found.input)
    return found


def keywords(reading: Reading) -> dict[str, Any]:
    """The user's options as `read_predictions` takes them, all but `input`."""
    names = ("labels", "logits_key", "label_key", "id_key", "group_key", "unit_key", "format")
    return {**{name: getattr(reading, name) for name in names}, "classes": class_names(reading.classes)}


def class_names(text: str | None) -> tuple[str | int, ...] | None:
    """Return the classes that --classes lists, or that its @file holds, one per line.

    Examples
    --------
    >>> class_names("cat, dog"), class_names("0,1"), class_names(None)
    (('cat', 'dog'), (0, 1), None)
    """
    from metacal.io.columns import as_class_names
    from metacal.io.opening import plain_read_errors

    if text is None:
        return None
    if text.startswith("@"):
        try:
            with plain_read_errors(text[1:]):
                names = Path(text[1:]).read_text(encoding="utf-8-sig").splitlines()
        except UnicodeDecodeError:
            raise InputError(f"{text[1:]}: this is not UTF-8 text; save the class names as UTF-8.") from None
        names = [name.strip() for name in names if name.strip()]
    else:
        names = [name.strip() for name in text.split(",")]
    if len(names) < 2 or "" in names:
        raise click.BadParameter(
            f"{text!r} must list at least two classes, separated by commas.", param_hint="'--classes'"
        )
    return as_class_names(names)


def refuse_scores(reading: Reading, why: str = "this command needs logits") -> None:
    """Refuse the options that read scores, as wrong usage."""
    given = [name for name in ("score_key", "correct_key", "higher_is") if getattr(reading, name) is not None]
    if given:
        raise click.UsageError(f"--{given[0].replace('_', '-')} is about scores in place of logits; {why}.")


def load_gate(artifact: str, file: str | None = None) -> Gate:
    """The gate in a saved file, without scikit-learn; with --key only if it is signed with that key.

    `file` is the other file of the command line, where there is one: the two are easily taken for each other.
    """
    import metacal

    if file is not None and _is_saved(file) and not _is_saved(artifact):
        raise click.UsageError(
            f"{file} is a gate that metacal saved, and {artifact} is none: it seems that the two are swapped."
        )
    return metacal.load_gate(artifact, key=click.get_current_context().meta.get("metacal.key"))


def check_groups(gate: Gate, artifact: str, reading: Reading, *, any_groups: bool = False) -> None:
    """Refuse groups that a gate does not go by, and missing ones; `any_groups` may be told apart all the same."""
    if gate.by_group and reading.group_key is None:
        raise click.UsageError(
            f"{artifact} has a threshold for each group of rows; say where FILE has the groups: --group-key NAME."
        )
    if reading.group_key is not None and not (gate.by_group or any_groups):
        raise click.UsageError(f"{artifact} has no threshold by group; leave out --group-key.")


def read_for(
    gate: Gate, artifact: str, path: str, reading: Reading, *, any_groups: bool = False, stream: bool | None = None
) -> Predictions:
    """Read FILE for a gate: as many columns, of the same kind, in the order of its classes.

    Groups are read where the gate goes by them, and with `any_groups` to be told apart all the same.
    """
    from metacal.io.predictions import read_for_gate

    options = keywords_for(gate, artifact, reading, any_groups=any_groups)
    _refuse_gate(path)
    return read_for_gate(gate, artifact, path, stream=stream, **options)


def keywords_for(gate: Gate, artifact: str, reading: Reading, *, any_groups: bool = False) -> dict[str, Any]:
    """The user's options as `read_for_gate` takes them, where they fit the gate; wrong usage otherwise."""
    refuse_scores(reading, f"{artifact} was fitted on {gate.source.input}")
    if reading.input not in (None, gate.source.input):
        raise click.BadParameter(
            f"{artifact} was fitted on {gate.source.input}, so FILE must hold {gate.source.input}.",
            param_hint="'--input'",
        )
    check_groups(gate, artifact, reading, any_groups=any_groups)
    return keywords(reading)


def _refuse_gate(path: str) -> None:
    if _is_saved(path):
        raise click.UsageError(
            f"{path} is a gate that metacal saved, not a file of predictions; give a file with rows."
        )


def _is_saved(path: str) -> bool:
    """Whether a file begins as those do that metacal saves."""
    try:
        if not Path(path).is_file():  # a pipe can be read only once
            return False
        with open(path, "rb") as file:
            head = b"".join(file.read(64).split())
            return head.startswith(b'{"format":"metacal"')
    except (OSError, ValueError):
        return False


def labels_as_columns(found: Predictions, classes: NDArray[Any]) -> NDArray[np.intp]:
    """Return each label's column."""
    from metacal.rows.validate import label_codes

    return label_codes(found.require_truth(), len(found), classes)
