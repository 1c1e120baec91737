"""Predictions read for a gate: as many columns, of the same kind, in the order of its classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError, warn_caller
from metacal.gate import Gate
from metacal.io.columns import ClassNames, OtherKindError, listed
from metacal.io.formats import endings
from metacal.io.many import suffix_of
from metacal.io.predictions import Predictions
from metacal.rows.plausibility import suspicion_in
from metacal.rows.stored import StoredTable
from metacal.rows.validate import class_list, label_codes


def read_for_gate(
    gate: Gate,
    fitted: str,
    path: str,
    read: Callable[[ClassNames | None], Predictions],
    *,
    format: str | None = None,
    classes_named: bool = False,
) -> Predictions:
    """What `read` finds, as the gate wants it; raises where it is something else than what the gate was fitted on.

    Parameters
    ----------
    gate, fitted : Gate, str
        And what messages call it: its file.
    path : str
        What is read.
    read : callable
        From the classes that choose their columns among others (None: all that there are) to predictions.
    format : str, optional
        What the file is, where its name does not say.
    classes_named : bool
        Whether the caller has named the classes, in the order of the columns.
    """
    own = tuple(gate.classes.tolist())
    # In text the classes choose their columns among others; any other file says its own class order, checked below.
    chooses = _is_text(path, format) and isinstance(own[0], str)
    try:
        found = read(own if chooses else None)
    except OtherKindError:
        other, kind = "logits" if gate.source.input == "probabilities" else "probabilities", gate.source.input
        raise InputError(
            f"{path} holds {other}, but {fitted} was fitted on {kind}; give {kind} of the same "
            f"classifier, or fit again on its {other}."
        ) from None
    n_columns = found.table.shape[1] if found.table.ndim == 2 else 1
    if n_columns != len(own):
        raise InputError(
            f"{path} has {n_columns} columns but {fitted} was fitted on {len(own)}; "
            "give predictions of the same classifier."
        )
    _question(gate, fitted, found)
    if chooses and not classes_named and found.places is not None:
        # The columns were taken in the gate's order; labels that are numbers count them as they stand in the file.
        found = replace(found, labels=_renumbered(found, np.argsort(np.argsort(found.places)).tolist()))
    order = order_of_classes(found.class_names, own, path, fitted)
    if order is None:
        return found
    table = found.table.in_order(order) if isinstance(found.table, StoredTable) else found.table[:, order]
    return replace(found, table=table, class_names=own, labels=_renumbered(found, order))


def order_of_classes(names: ClassNames | None, own: ClassNames, held: str, fitted: str) -> list[int] | None:
    """Which of the columns called `names` is each of a gate's `own` classes; None where they stand as they should.

    Columns without names, and names of another kind than the gate's (column numbers beside words), are taken in order.
    `held` and `fitted` are what messages call the rows and the gate.

    Examples
    --------
    >>> order_of_classes(("dog", "cat"), ("cat", "dog"), "new.csv", "cal.json")
    [1, 0]
    >>> order_of_classes(("dog", "cow"), ("cat", "dog"), "new.csv", "cal.json")
    Traceback (most recent call last):
    metacal.errors.InputError: new.csv has the classes 'dog', 'cow' but cal.json was fitted on 'cat', 'dog'; ...
    """
    if names is None or type(names[0]) is not type(own[0]) or names == own:
        return None
    if sorted(map(str, names)) != sorted(map(str, own)):
        raise InputError(
            f"{held} has the classes {listed(names)} but {fitted} was fitted on {listed(own)}; "
            "give predictions of the same classifier."
        )
    return [names.index(name) for name in own]


def _question(gate: Gate, fitted: str, found: Predictions) -> None:
    """Warn where the rows look like something else than what the gate was fitted on, by its certificate's notes."""
    if gate.source.input != "logits":
        return
    notes = () if gate.certificate is None else gate.certificate.notes
    known = {dict(note.facts)["looks"] for note in notes if note.kind == "suspicion"}
    odd = suspicion_in(found.table)
    if odd is not None and odd.kind in known:
        return
    if odd is not None and odd.kind == "probabilities":
        warn_caller(
            f"{found.path}: every row lies in [0, 1] and sums to one, as probabilities do, but {fitted} was fitted "
            "on logits: what it says of these rows means nothing. Give logits, or fit on probabilities with --input "
            "probabilities."
        )
    elif odd is not None:
        warn_caller(f"{found.path}: {odd.remark}")
    elif "probabilities" in known:
        warn_caller(
            f"{fitted} was fitted on rows that look like probabilities read as logits, and {found.path} holds other "
            "rows: what it says of them means nothing. Fit again, with --input probabilities or on logits."
        )


def _is_text(path: str, format: str | None) -> bool:
    kind = f".{format}" if format else ".csv" if path == "-" else suffix_of(path)
    return kind in endings(text=True)


def _renumbered(found: Predictions, order: list[int]) -> NDArray[Any] | None:
    """Labels that number the file's columns, in the new order of the columns; others stay as they are."""
    if not found.labels_count_columns:
        return found.labels
    codes = label_codes(found.labels, len(found), class_list(None, len(order)))
    return np.argsort(order)[codes]
