"""Read the user's file as a command needs it. NumPy is imported when a command runs, not before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from metacal.cli.options import Reading
from metacal.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from metacal.files.predictions import Predictions
    from metacal.gate import CascadeGate, Gate, ScoredGate


def read(path: str, reading: Reading, *, input: str = "logits", classes: Any = None) -> Predictions:
    """Read FILE with the user's options; `input` and `classes` hold where the user gave none."""
    refuse_scores(reading)
    from metacal.files.predictions import read_predictions

    given = class_names(reading.classes)
    return read_predictions(
        path,
        labels=reading.labels,
        logits_key=reading.logits_key,
        label_key=reading.label_key,
        id_key=reading.id_key,
        format=reading.format,
        input=reading.input or input,
        classes=classes if given is None else given,
    )


def class_names(text: str | None) -> tuple[str | int, ...] | None:
    """Return the classes that --classes lists, or that its @file holds, one per line.

    Examples
    --------
    >>> class_names("cat, dog"), class_names("0,1"), class_names(None)
    (('cat', 'dog'), (0, 1), None)
    """
    from metacal.files.opening import plain_read_errors
    from metacal.files.request import as_class_names

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


def load_gate(artifact: str) -> Gate:
    """The gate on logits in a saved file, without scikit-learn; with --key only if it is signed with that key."""
    from metacal.gate import ScoredGate

    gate = load_any_gate(artifact)
    if isinstance(gate, ScoredGate):
        raise click.UsageError(
            f"{artifact} holds a gate on the score {gate.score!r}, without logits or probabilities; "
            "this command needs a gate on logits."
        )
    return gate


def load_any_gate(artifact: str) -> Gate | ScoredGate:
    """The same, or a gate on scores."""
    from metacal.gate import CascadeGate

    gate = load_every_gate(artifact)
    if isinstance(gate, CascadeGate):
        raise click.UsageError(
            f"{artifact} holds a cascade of two models; metacal apply, verify and report read it with "
            "--large LARGEFILE, show and export without."
        )
    return gate


def load_every_gate(artifact: str) -> Gate | ScoredGate | CascadeGate:
    """The same, or a cascade."""
    import metacal

    return metacal.load_gate(artifact, key=click.get_current_context().meta.get("metacal.key"))


def read_for(gate: Gate, artifact: str, path: str, reading: Reading) -> Predictions:
    """Read FILE for a gate: as many columns, of the same kind, in the order of its classes."""
    refuse_scores(reading, f"{artifact} was fitted on {gate.input}")
    if reading.input not in (None, gate.input):
        raise click.BadParameter(
            f"{artifact} was fitted on {gate.input}, so FILE must hold {gate.input}.",
            param_hint="'--input'",
        )
    from metacal.rows.stored import StoredTable

    own = tuple(gate.classes.tolist())
    # In text the classes choose their columns among others; any other file says its own class order, checked below.
    chooses = _is_text(path, reading) and isinstance(own[0], str)
    found = read(path, reading, input=gate.input, classes=own if chooses else None)
    n_columns = found.table.shape[1] if found.table.ndim == 2 else 1
    if n_columns != len(own):
        raise InputError(
            f"{path} has {n_columns} columns but {artifact} was fitted on {len(own)}; "
            "give predictions of the same classifier."
        )
    names = found.class_names
    if names is None or type(names[0]) is not type(own[0]) or names == own:
        return found
    if sorted(map(str, names)) != sorted(map(str, own)):
        raise InputError(
            f"{path} has the classes {_few(names)} but {artifact} was fitted on {_few(own)}; "
            "give predictions of the same classifier."
        )
    order = [names.index(name) for name in own]
    table = found.table.in_order(order) if isinstance(found.table, StoredTable) else found.table[:, order]
    return replace(found, table=table, class_names=own, labels=_renumbered(found, order))


def _is_text(path: str, reading: Reading) -> bool:
    kind = reading.format or ("csv" if path == "-" else Path(path).suffix.lower().lstrip("."))
    return kind in ("csv", "tsv", "jsonl", "ndjson")


def labels_as_columns(found: Predictions, classes: NDArray[Any]) -> NDArray[np.intp]:
    """Return each label's column; numbers stand for columns where the classes are names."""
    from metacal.rows.validate import class_list, label_codes

    labels = found.require_labels()
    numbered = labels.dtype.kind in "iubf" and classes.dtype.kind == "U"
    return label_codes(labels, len(found), class_list(None, len(classes)) if numbered else classes)


def _renumbered(found: Predictions, order: list[int]) -> NDArray[Any] | None:
    """Labels that number the file's columns, in the new order of the columns; others stay as they are."""
    import numpy as np

    from metacal.rows.validate import class_list, label_codes

    if found.labels is None or found.classes is not None:
        return found.labels
    codes = label_codes(found.labels, len(found), class_list(None, len(order)))
    return np.argsort(order)[codes]


def _few(names: tuple[Any, ...]) -> str:
    from metacal.files.request import listed

    return listed(names)
